"""`zipfel suggest`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from zipfel.cli.inputs import STDIN, Row, check_names, opened_input
from zipfel.cli.machine import Machine
from zipfel.cli.options import Model, with_options
from zipfel.cli.predict import Reading, batches
from zipfel.cli.progress import counted
from zipfel.cli.show import say, warn
from zipfel.data.cells import csv_text, json_value
from zipfel.data.formats.files import json_line, write_bytes
from zipfel.errors import ConfigError, DataError

UNCERTAINTY = "uncertainty"


@with_options
def suggest(
    model: Model,
    reading: Reading,
    machine: Machine,
    input: Annotated[Path, typer.Option(help="File of texts without labels: .csv, .jsonl, .txt, …; - for lines.")],
    out: Annotated[Path, typer.Option(help="File to write: .csv or .jsonl.", show_default=False)],
    n: Annotated[int, typer.Option("--n", "-n", help="How many documents to choose.")] = 100,
) -> None:
    """Choose the documents to label next: those that the model is least sure about and that differ from each other."""
    from zipfel.suggesting import DEPTH, Suggester
    from zipfel.tagging import Loaded, Request

    _check(input, out, n)
    tagger = Loaded.load(model, machine.used().device)
    source = opened_input(input, tagger.source_, reading.text, reading.keep, reading.encoding)
    check_names(source.columns, [UNCERTAINTY])
    if source.about:
        warn(f"note: {source.about}")
    suggester, seen, blank = Suggester[Row](n, len(tagger.labels_)), 0, 0
    with counted(0) as show:
        for batch in batches(source.rows()):
            rows = [row for row in batch if row.text.strip()]
            seen, blank = seen + len(batch), blank + len(batch) - len(rows)
            if rows:
                tagged = tagger.tag([Request([row.document for row in rows], DEPTH)])[0]
                suggester.add(rows, tagged.ranking)
            show(seen)
    chosen = suggester.chosen()
    write_bytes(out, _written(out.suffix, source.columns, chosen))
    left = f"; {blank:,} without text left out" if blank else ""
    say(f"{out}: {len(chosen):,} of {seen:,} texts to label next, most useful first{left}")


def _check(input: Path, out: Path, n: int) -> None:
    """Check the options before the model is loaded."""
    if out.suffix not in (".csv", ".jsonl"):
        raise ConfigError(f"--out must end in .csv or .jsonl; found {out.name!r}")
    if out.exists():  # it may be the input, or hold labels that somebody has entered since
        raise DataError("already exists; name another file, or remove it", out)
    if not out.parent.is_dir():
        raise DataError("cannot be written: its folder does not exist", out)
    if n < 1:
        raise ConfigError(f"n must be at least 1; found {n}")
    if input != STDIN and not input.is_file():
        raise DataError("cannot be read: no such file", input)


def _written(kind: str, columns: Sequence[str], chosen: Iterable[tuple[Row, float]]) -> bytes:
    """Return documents as the content of a file, with the columns of the input and their uncertainty."""
    rows = [({**row.kept}, doubt) for row, doubt in chosen]
    if kind == ".jsonl":
        return b"".join(json_line(_item(kept, doubt)) for kept, doubt in rows)
    out = io.StringIO(newline="")
    writer = csv.writer(out)
    writer.writerow([*columns, UNCERTAINTY])
    writer.writerows([*map(csv_text, kept.values()), f"{doubt:.6g}"] for kept, doubt in rows)
    return out.getvalue().encode()


def _item(kept: Mapping[str, Any], doubt: float) -> dict[str, Any]:
    return {**{name: json_value(value) for name, value in kept.items()}, UNCERTAINTY: round(doubt, 6)}
