"""The `zipfel` command."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Annotated

import orjson
import typer
from rich.markup import escape

from zipfel import __version__
from zipfel.cli import data
from zipfel.cli.options import with_options
from zipfel.cli.show import bar, console, print_table, warnings
from zipfel.data.dataset import Propensity
from zipfel.data.formats import TableSettings
from zipfel.data.formats.files import new_file
from zipfel.data.splits import Preparation
from zipfel.errors import ConfigError, ZipfelError
from zipfel.evaluate import Report, ranked, read_predictions
from zipfel.evaluate import evaluate as judge

LONGEST = 1000  # ranking that is judged: what is held is points × k

app = typer.Typer(
    help="Tag text with labels out of hundreds to millions, most of them rare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"zipfel {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Tag text with labels out of hundreds to millions, most of them rare."""


@app.command()
@with_options
def evaluate(
    source: data.Source,
    predictions: Annotated[Path, typer.Option(help="Scores: scipy npz, or a line 'label:score …' for each point.")],
    columns: TableSettings,
    preparation: Preparation,
    part: Annotated[str, typer.Option(help="Part of the data set that was predicted.")] = "test",
    k: Annotated[str, typer.Option(help="Lengths of the ranking to judge.")] = "1,3,5",
    a: Annotated[float | None, typer.Option("--A", help="Propensity constant; else the data set's.")] = None,
    b: Annotated[float | None, typer.Option("--B", help="Propensity constant; else the data set's.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the figures to this file.")] = None,
    format: data.From = None,
) -> None:
    """Judge predictions, anybody's: P, nDCG, PSP, PSnDCG, R and coverage, by frequency, macro, and on the tail."""
    ks = _lengths(k)
    dataset = data.load(source, format, columns, preparation)
    given = Propensity(dataset.propensity.A if a is None else a, dataset.propensity.B if b is None else b)
    if part not in dataset.parts:
        raise ConfigError(f"part must be one of {', '.join(dataset.parts)}; found {part!r}")
    scores = read_predictions(predictions, len(dataset.parts[part]), dataset.sizes.labels)
    report = judge(ranked(scores, dataset, part, ks[-1]), dataset, part, ks, given)
    if json is not None:
        with new_file(json) as out:
            out.write(orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2) + b"\n")
    show_report(report, ks)


def _lengths(text: str) -> list[int]:
    try:
        ks = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise ConfigError(f"k must be whole numbers such as 1,3,5; found {text!r}") from None
    if ks[0] < 1:
        raise ConfigError(f"k must be at least 1; found {ks[0]}")
    if ks[-1] > LONGEST:
        raise ConfigError(f"k must be at most {LONGEST}; found {ks[-1]}")
    return ks


def show_report(report: Report, ks: list[int]) -> None:
    """Print the figures, in percent."""

    def rows(values: dict[str, float]) -> list[tuple[str, ...]]:
        names = dict.fromkeys(name.partition("@")[0] for name in values)
        return [(name, *(f"{values[f'{name}@{k}']:.2f}" for k in ks)) for name in names]

    lengths, propensity = ("", *(f"@{k}" for k in ks)), report.propensity
    title = f"{report.points:,} points, {report.labels:,} labels, A {propensity.A:g}, B {propensity.B:g}; percent"
    print_table(title, [*rows(report.values), *rows(report.macro)], lengths)
    if report.only_tail:
        title = f"\n{report.only_tail_points:,} points that have only tail labels"
        print_table(title, rows(report.only_tail), lengths)
    most = max((piece.contribution for piece in report.bins), default=0) or 1
    pieces = [
        (f"{piece.lowest:,} to {piece.highest:,} points a label", f"{piece.labels:,} labels",
         f"{piece.contribution:.2f}", bar(piece.contribution / most))
        for piece in report.bins
    ]  # fmt: skip
    print_table(f"\nWhat labels of each frequency contribute to P@{ks[-1]}", pieces, ("", "", "", "bar"))


def main() -> None:
    """Run the command line: what is the input's fault is told in one line, with exit code 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`, so that nothing is left half-written
    try:
        app()
    except ZipfelError as error:
        warnings.print(f"error: {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except MemoryError:
        warnings.print("error: not enough memory for data of the size that its files claim")
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("ZIPFEL_TRACEBACK"):
            traceback.print_exc()
        warnings.print(f"error in zipfel itself: {type(error).__name__}: {escape(str(error))}", soft_wrap=True)
        warnings.print("(ZIPFEL_TRACEBACK=1 shows where; please report it)")
        sys.exit(1)
