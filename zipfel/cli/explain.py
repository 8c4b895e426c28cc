"""`zipfel explain`: which words of a text support a label, and which count against it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.text import Text

from zipfel.cli.machine import Machine
from zipfel.cli.options import Model, with_options
from zipfel.cli.show import bar, console, print_table
from zipfel.data.formats.files import json_line
from zipfel.data.hierarchy import ARROW

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.explain import Reason

LISTED = 12
FAINT = 0.1  # share of the largest weight below which a word is not marked


@with_options
def explain(
    model: Model,
    text: Annotated[str, typer.Argument(help="Text to explain.", show_default=False)],
    machine: Machine,
    label: Annotated[str | None, typer.Option(help="Label to explain; default: the best one.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all terms.")] = False,
) -> None:
    """Show which words of a text support a label (green), and which count against it (red)."""
    from zipfel.tagger import Tagger

    tagger = Tagger.load(model, machine.used().device)
    label = tagger.predict([text], 1)[0][0].label if label is None else label
    reasons = tagger.explain(text, label)
    paths = tagger.labels_.paths(label)
    if json:
        terms = [reason._asdict() for reason in reasons]
        answer = {"text": text, "label": label, **({"paths": paths} if paths else {}), "reasons": terms}
        sys.stdout.write(json_line(answer).decode())
        return
    console.print(marked(text, reasons), soft_wrap=True)
    most = max((abs(reason.weight) for reason in reasons), default=0) or 1
    rows = [(escape(term), f"{weight:+.3f}", bar(abs(weight) / most)) for term, weight, _ in reasons[:LISTED]]
    left = f"; {len(reasons) - LISTED} more" if len(reasons) > LISTED else ""
    total = sum(reason.weight for reason in reasons)
    for path in paths:
        console.print(f"\npath: {escape(ARROW.join(path))}", soft_wrap=True)
    print_table(f"\n{escape(label)}: {total:+.3f} in total{left}", rows, ("", "", "bar"))


def marked(text: str, reasons: Sequence[Reason]) -> Text:
    """Return the text with its most important words marked; strong marks are drawn last, over weak ones."""
    shown = Text(text)
    most = max((abs(reason.weight) for reason in reasons), default=0)
    for _, weight, places in reversed(reasons):
        if weight and abs(weight) >= FAINT * most:
            style = f"bold {'green' if weight > 0 else 'red'}{' reverse' if abs(weight) > most / 2 else ''}"
            for start, end in places:
                shown.stylize(style, start, end)
    return shown
