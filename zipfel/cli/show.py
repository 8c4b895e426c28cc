"""Tables, bars and a small plot for the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:  # numpy takes long to import, for `zipfel --help`
    import numpy as np
    from numpy.typing import NDArray

console = Console(highlight=False)
warnings = Console(stderr=True, highlight=False)

_DOTS = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]]  # the bits of a braille character


def say(line: str, to: Console = console) -> None:
    """Print a line as it is: not wrapped, and without markup."""
    to.print(line, markup=False, emoji=False, soft_wrap=True)


def warn(line: str) -> None:
    """Print a line on standard error, as it is."""
    say(line, warnings)


def named(label: str, title: str | None) -> str:
    """Return a label as people see it: its title with the label behind it, or the label alone.

    >>> named("http://a.org/7", "cats"), named("cats", None)
    ('cats <http://a.org/7>', 'cats')
    """
    return label if title in (None, label) else f"{title} <{label}>"


def print_table(title: str, rows: Iterable[Sequence[str]], columns: Sequence[str] = ("", "")) -> None:
    """Print a table: first column text, the others numbers, except one called "bar", whose head is empty."""
    console.print(f"[bold]{title}[/bold]", soft_wrap=True)
    table = Table(box=None, padding=(0, 2, 0, 0))
    for number, name in enumerate(columns):
        left = number == 0 or name == "bar"
        table.add_column("" if name == "bar" else name, justify="left" if left else "right", no_wrap=number > 0)
    table.show_header = any(name not in ("", "bar") for name in columns)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def bar(share: float, width: int = 24) -> str:
    """Return a bar of up to `width` characters, in steps of an eighth.

    >>> bar(0.5, 4), bar(0.28, 4)
    ('██', '█▏')
    """
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    return "█" * (eighths // 8) + ("" if eighths % 8 == 0 else "▏▎▍▌▋▊▉"[eighths % 8 - 1])


def frequency_plot(counts: NDArray[np.int64], width: int = 56, height: int = 9) -> str:
    """Plot label frequency against frequency rank in braille dots; both axes are logarithmic.

    Zipf's law is a straight line from top left to bottom right.
    """
    import numpy as np

    counts = np.sort(counts[counts > 0])[::-1]
    if len(counts) == 0:
        return "(no label has a point)"
    columns = np.arange(width * 2)
    ranks = np.exp(columns / columns[-1] * np.log(max(len(counts), 2))) - 1
    heights = np.log(counts[np.minimum(ranks.astype(int), len(counts) - 1)]) / np.log(max(counts[0], 2))
    rows = ((1 - heights) * (height * 4 - 1)).round().astype(int)
    cells = np.zeros((height, width), dtype=int)
    np.bitwise_or.at(cells, (rows // 4, columns // 2), np.array(_DOTS)[rows % 4, columns % 2])
    left = len(str(counts[0]))
    names = [str(counts[0])] + [""] * (height - 2) + ["1"]
    lines = [
        f"{name:>{left}} ┤" + "".join(chr(0x2800 + cell) for cell in row)
        for name, row in zip(names, cells, strict=True)
    ]
    last = f"{len(counts):,}"
    axis = " " * left + " └" + "─" * width
    return "\n".join([*lines, axis, " " * (left + 2) + "rank 1" + last.rjust(width - 6)])
