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
from zipfel.cli.show import bar, console, named, print_table, say
from zipfel.data.formats.files import json_line
from zipfel.data.hierarchy import ARROW
from zipfel.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.explain import Reason

LISTED = 12
FAINT = 0.1  # share of the largest weight below which a word is not marked


@with_options
def explain(
    model: Model,
    machine: Machine,
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Text to explain.", show_default=False)] = None,
    field: Annotated[
        list[str] | None, typer.Option(help="Text of a field, such as title='no paper'; repeatable, instead of TEXT.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="Label to explain; default: the best one.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object with all terms.")] = False,
) -> None:
    """Show which words of a text support a label (green), and which count against it (red)."""
    if (text is None) == (not field):
        raise ConfigError("give either a text or its fields with --field")
    document = text if text is not None else _fields(field or [])
    from zipfel.tagger import Tagger

    tagger = Tagger.load(model, machine.used().device)
    label = tagger.predict([document], 1)[0][0].label if label is None else label
    reasons = tagger.explain(document, label)
    labels = tagger.labels_
    paths, title = labels.paths(label), labels.title(label)
    if json:
        terms = [reason._asdict() for reason in reasons]
        answer = {"text": document, "label": label, **({"paths": paths} if paths else {}), "reasons": terms,
                  **({"title": title} if labels.titles else {})}  # fmt: skip
        sys.stdout.write(json_line(answer).decode())
        return
    for name, words in ({"": document} if isinstance(document, str) else document).items():
        heading = Text(f"{name}: " if name else "", "dim")
        console.print(heading + marked(words, reasons, name), soft_wrap=True)
    if not tagger.known([document])[0]:
        say("\nno known word, so there are no reasons for any label")
    most = max((abs(reason.weight) for reason in reasons), default=0) or 1
    rows = [(escape(term), f"{weight:+.3f}", bar(abs(weight) / most)) for term, weight, _ in reasons[:LISTED]]
    left = f"; {len(reasons) - LISTED} more" if len(reasons) > LISTED else ""
    total = sum(reason.weight for reason in reasons)
    for path in paths:
        console.print(f"\npath: {escape(ARROW.join(map(labels.title, path)))}", soft_wrap=True)
    print_table(f"\n{escape(named(label, title))}: {total:+.3f} in total{left}", rows, ("", "", "bar"))


def _fields(words: Sequence[str]) -> dict[str, str]:
    """Return the texts of words such as `title=no paper`, by field."""
    fields: dict[str, str] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name:
            raise ConfigError(f"--field must look like title='no paper'; found {word!r:.60}")
        if name in fields:
            raise ConfigError(f"--field {name} is given twice")
        fields[name] = text
    return fields


def marked(text: str, reasons: Sequence[Reason], field: str = "") -> Text:
    """Return the text of a field with its most important words marked; strong marks are drawn last, over weak ones."""
    shown = Text(text)
    most = max((abs(reason.weight) for reason in reasons), default=0)
    for reason in reversed(reasons):
        weight = reason.weight
        if weight and abs(weight) >= FAINT * most:
            style = f"bold {'green' if weight > 0 else 'red'}{' reverse' if abs(weight) > most / 2 else ''}"
            for start, end in reason.places_in(field):
                shown.stylize(style, start, end)
    return shown
