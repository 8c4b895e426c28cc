"""`zipfel explain`: which words of a text speak for a label, and which against it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.markup import escape
from rich.text import Text

from zipfel.cli.model import Model
from zipfel.cli.show import bar, console, print_table

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.explain import Reason

LISTED = 12
FAINT = 0.1  # of the largest weight, below which a word is not marked


def explain(
    model: Model,
    text: Annotated[str, typer.Argument(help="Text that is tagged.", show_default=False)],
    label: Annotated[str | None, typer.Option(help="Label to explain; the best one where none is named.")] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON object with all terms.")] = False,
) -> None:
    """Tell which words of a text speak for a label (green), and which against it (red)."""
    from zipfel.tagger import Tagger

    tagger = Tagger.load(model)
    label = tagger.predict([text], 1)[0][0].label if label is None else label
    reasons = tagger.explain(text, label)
    if json:
        found = [reason._asdict() for reason in reasons]
        sys.stdout.write(orjson.dumps({"text": text, "label": label, "reasons": found}).decode() + "\n")
        return
    console.print(marked(text, reasons), soft_wrap=True)
    most = max((abs(reason.weight) for reason in reasons), default=0) or 1
    rows = [
        (escape(reason.term), f"{reason.weight:+.3f}", bar(abs(reason.weight) / most)) for reason in reasons[:LISTED]
    ]
    left = f"; {len(reasons) - LISTED} more" if len(reasons) > LISTED else ""
    print_table(
        f"\n{escape(label)}: {sum(reason.weight for reason in reasons):+.3f} in all{left}", rows, ("", "", "bar")
    )


def marked(text: str, reasons: Sequence[Reason]) -> Text:
    """Return the text with the words marked that weigh most; weak ones first, so that strong ones are seen."""
    shown = Text(text)
    most = max((abs(reason.weight) for reason in reasons), default=0)
    for reason in reversed(reasons):
        strength = abs(reason.weight) / most if most else 0
        if strength < FAINT:
            continue
        colour = "green" if reason.weight > 0 else "red"
        for start, end in reason.places:
            shown.stylize(f"bold {colour} reverse" if strength > 0.5 else f"bold {colour}", start, end)
    return shown
