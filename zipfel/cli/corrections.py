"""`zipfel corrections`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.markup import escape

from zipfel.cli.show import bar, print_table, say, warn
from zipfel.data.formats.files import shortened, write_bytes
from zipfel.errors import DataError, check_installed

if TYPE_CHECKING:  # numpy takes long to import, for `zipfel --help`
    from zipfel.agreement import Agreement, Share
    from zipfel.data.dataset import Dataset

SHOWN = 10  # labels, and weeks


def corrections(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Folder of `serve --corrections`, or a file.", show_default=False)
    ],
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also plot agreement by rank and week into this SVG file.")] = None,
) -> None:
    """Show how often people agreed with a model: by rank and week, and the labels they rejected and added most."""
    from zipfel.agreement import Agreement
    from zipfel.data.corrections import read_corrections

    if plot is not None:
        check_installed("plotting corrections", "report", "matplotlib")
    read = read_corrections(source)
    for note in read.notes:
        warn(f"note: {note}")
    agreement = Agreement.of(read)
    if not agreement.texts:
        raise DataError("no decision: all were undone, or none was made", source)
    show(agreement)
    if json is not None:
        write_bytes(json, orjson.dumps(agreement.as_json(), option=orjson.OPT_INDENT_2) + b"\n")
    if plot is not None:
        from zipfel.report.agreement import plot as plotted

        write_bytes(plot, plotted(agreement).encode())


def with_corrections(dataset: Dataset, source: Path | None) -> Dataset:
    """Return a data set with the corrections of a file or folder applied to train; say what was used."""
    from zipfel.data.corrected import corrected
    from zipfel.data.corrections import read_corrections

    if source is None:
        return dataset
    read = read_corrections(source)
    dataset, used = corrected(dataset, read)
    for line in (*read.notes, *used.lines()):
        warn(f"note: {line}")
    return dataset


def show(agreement: Agreement) -> None:
    """Print figures and tables."""
    share = agreement.all
    say(
        f"agreement {_spoken(share)}: {share.accepted:,} of {share.decided:,} labels accepted, "
        f"{agreement.texts:,} texts"
    )
    if agreement.overruled:
        say(f"{agreement.overruled:,} decisions were overruled by later ones on the same text and label")
    _table("By rank", agreement.ranks)
    _table("By week (from Monday, UTC)", dict(list(agreement.weeks.items())[-SHOWN:]))
    if len(agreement.models) > 1:
        _table("By model and version", agreement.models)
    if agreement.rejected:
        rows = [(_name(label), f"{count:,}", f"of {of:,}") for label, count, of in agreement.rejected[:SHOWN]]
        print_table("\nMost often rejected", rows, ("", "", ""))
    if agreement.added:
        added = [(_name(label), f"{count:,}") for label, count in agreement.added[:SHOWN]]
        print_table("\nMost often added by people", added)


def _table(title: str, shares: dict[str, Share]) -> None:
    if shares:
        rows = [
            (escape(name), f"{share.decided:,}", _spoken(share), bar(share.value)) for name, share in shares.items()
        ]
        print_table(f"\n{title}", rows, ("", "labels", "accepted", "bar"))


def _spoken(share: Share) -> str:
    """Return a share with its 95 % interval, in percent."""
    low, high = share.interval
    return f"{100 * share.value:.1f} % ({100 * low:.0f}-{100 * high:.0f})" if share.decided else "unknown"


def _name(label: str) -> str:
    return escape(shortened(label, 60))
