"""Inspect, convert, split and get data sets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.markup import escape

from zipfel.cli.options import with_options
from zipfel.cli.show import console, frequency_plot, named, print_table, say, warn
from zipfel.data import registry, stream
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import FORMATS, WRITABLE, TableSettings, format_of, read, writable_format, write
from zipfel.data.formats.atomic import check_new
from zipfel.data.formats.files import shortened
from zipfel.data.formats.table import with_others
from zipfel.data.labels import TITLE
from zipfel.data.splits import Preparation, hold_out, prepared, shared_points
from zipfel.data.stream import Tables, tables_of
from zipfel.data.text import TextSettings, Tfidf, featurized
from zipfel.errors import ConfigError

app = typer.Typer(help=__doc__, no_args_is_help=True)

Source = Annotated[Path, typer.Argument(metavar="DATA", help="Data set: a folder or a file.", show_default=False)]
Target = Annotated[Path, typer.Argument(metavar="TARGET", help="Folder to write; must not exist.", show_default=False)]
From = Annotated[str | None, typer.Option("--from", help="Format of the source, if its folder holds several.")]
To = Annotated[str, typer.Option("--to", help=f"Format to write: {', '.join(WRITABLE)}.", show_default=False)]
Gzip = Annotated[bool, typer.Option("--gzip", help="Compress the written files with gzip.")]


NO_TFIDF = "--tfidf has no effect: the source has text"
PartName = Annotated[str, typer.Option("--part", help="Part of the data set to evaluate.")]


def load(path: Path, format: str | None, columns: TableSettings, preparation: Preparation) -> Dataset:
    """Read and prepare a data set; print a note on anything merged, held out or left out."""
    return announced(prepared(read(path, columns, format), preparation))


def announced(dataset: Dataset) -> Dataset:
    """Print which columns a data set was read from, and its notes; return it."""
    for note in ([] if dataset.columns is None else [dataset.columns]) + [*dataset.notes]:
        warn(f"note: {note}")
    return dataset


def part_of(dataset: Dataset, name: str) -> Part:
    """Return a part of a data set."""
    if name not in dataset.parts:
        raise ConfigError(f"part must be one of {', '.join(dataset.parts)}; found {name!r}")
    return dataset.parts[name]


@app.command()
@with_options
def info(source: Source, columns: TableSettings, preparation: Preparation, format: From = None) -> None:
    """Show sizes, empty and shared points, the most frequent and rarest labels, and a plot of label frequencies."""
    dataset = load(source, format, columns, preparation)
    counts = dataset.label_counts
    print_table(escape(dataset.name), _rows(dataset), ("", *dataset.parts))
    print_table("\nLabels", _label_rows(dataset))
    order = np.lexsort((np.arange(len(counts)), -counts))
    seen = order[counts[order] > 0]
    for title, labels in (("\nMost frequent labels", seen[:5]), ("\nRarest labels that occur", seen[5:][-5:])):
        if len(labels):
            print_table(title, [(escape(_label_title(dataset, label)), f"{counts[label]:,}") for label in labels])
    console.print("\n[bold]Points per label, by rank (both axes logarithmic)[/bold]")
    console.print(frequency_plot(counts))


def _rows(dataset: Dataset) -> list[tuple[str, ...]]:
    """Return rows of statistics, with one column per part."""
    parts = list(dataset.parts.values())
    shared = {name: f"{count:,}" for name, count in shared_points(dataset).items()}
    rows = [
        ("points", *(f"{len(part):,}" for part in parts)),
        ("labels per point", *(f"{part.Y.nnz / max(len(part), 1):.1f}" for part in parts)),
        ("points without labels", *(f"{np.count_nonzero(np.diff(part.Y.indptr) == 0):,}" for part in parts)),
        *_content_rows(parts),
        ("points also in train", *(shared.get(name, "") for name in dataset.parts)),
    ]
    if any(part.filtered is not None for part in parts):
        rows.append(("filtered pairs", *(f"{0 if p.filtered is None else p.filtered.nnz:,}" for p in parts)))
    return rows


def _content_rows(parts: list[Part]) -> list[tuple[str, ...]]:
    """Return statistics of the points' content: words of each text field, or features."""
    rows = []
    for name in parts[0].texts or {}:
        words = (sum(len(t.split()) for t in (part.texts or {})[name]) / max(len(part), 1) for part in parts)
        rows.append((f"words per point in {escape(name)}", *(f"{mean:.1f}" for mean in words)))
    matrices = [part.X for part in parts if part.X is not None]
    if matrices:
        rows.append(("features per point", *(f"{X.nnz / max(X.shape[0], 1):.1f}" for X in matrices)))
        rows.append(("points without features", *(f"{np.count_nonzero(np.diff(X.indptr) == 0):,}" for X in matrices)))
    return rows


def _label_rows(dataset: Dataset) -> list[tuple[str, str]]:
    sizes, counts = dataset.sizes, dataset.label_counts
    text = "yes" if dataset.label_texts or dataset.Z is not None else "names" if dataset.label_names else "no"
    rows = [
        ("labels", f"{sizes.labels:,}"),
        ("label text", text),
        ("points per label (train)", f"{counts.mean():.1f}"),
        ("labels with at most 5 points", f"{np.mean(counts <= 5):.1%}"),
        ("labels without a point in train", f"{np.count_nonzero(counts == 0):,}"),
        ("propensity A, B", f"{dataset.propensity.A:g}, {dataset.propensity.B:g}"),
    ]
    if dataset.hierarchy is not None:
        rows.append(("levels of the hierarchy", f"{max(dataset.hierarchy.levels.values()):,}"))
    return [("features", f"{sizes.features:,}"), *rows] if sizes.features else rows


def _label_title(dataset: Dataset, label: int) -> str:
    """Return a label's name and the beginning of its text, up to 60 characters."""
    name = dataset.label_name(label)
    field, text = next(iter((dataset.label_texts or {"": []}).items()))
    if field.partition("@")[0] == TITLE:
        return named(name, text[label] or name)
    return shortened(f"{name}: {text[label]}" if text and text[label] != name else name, 60)


@app.command()
@with_options
def convert(
    source: Source,
    target: Target,
    to: To,
    columns: TableSettings,
    preparation: Preparation,
    text: TextSettings,
    format: From = None,
    gzip: Gzip = False,
    tfidf: Annotated[bool, typer.Option("--tfidf", help="Apply tf-idf to a source without text.")] = False,
) -> None:
    """Convert a data set to another format; texts become tf-idf features if the format holds features.

    To the format mapped, tables are converted piece by piece, on all cores: they may be larger than memory.
    """
    kind = FORMATS[writable_format(to)]
    check_new(target)
    if to == "mapped" and (tables := tables_of(source, columns, format)) is not None:
        _stream(tables, target, preparation, text, tfidf)
        return
    dataset = load(source, format, columns, preparation)
    if text != TextSettings() and (kind.holds == "texts" or dataset.train.X is not None):
        warn("note: text settings have no effect: no text is converted to features here")
    if tfidf and dataset.train.X is None:
        warn(f"note: {NO_TFIDF}")
    if kind.holds == "features" and dataset.train.X is None:
        dataset = featurized(dataset, text)
    elif tfidf and dataset.train.X is not None:
        labels = [] if dataset.Z is None else [dataset.Z]  # label features count towards the idf too, as with texts
        dataset = Tfidf.fit(dataset.train.X, *labels).apply(dataset)
    _write(dataset, target, to, gzip)


def _stream(tables: Tables, target: Path, preparation: Preparation, text: TextSettings, tfidf: bool) -> None:
    """Write tables as a mapped folder, and print what was written."""
    if tfidf:
        warn(f"note: {NO_TFIDF}")
    dataset, points = stream.convert(tables, target, preparation, text)
    announced(dataset)
    _written(target, points, dataset, "mapped")


@app.command()
@with_options
def split(
    source: Source,
    target: Target,
    columns: TableSettings,
    preparation: Preparation,
    validation: Annotated[float, typer.Option(help="Share of train held out as validation; 0 for none.")] = 0.1,
    format: From = None,
    to: Annotated[str | None, typer.Option("--to", help="Format to write; default: the source's.")] = None,
    gzip: Gzip = False,
) -> None:
    """Hold out a validation part of train (and a test part if there is none); the same seed gives the same split.

    Tables keep all their columns and column names.
    """
    to = writable_format(to or format_of(source, format))
    check_new(target)
    dataset = read(source, columns, format)
    if FORMATS[to].holds == "texts" and to != "lf":
        dataset = with_others(dataset, source, f".{format_of(source, format)}", columns)
    dataset = announced(prepared(dataset, preparation))
    if validation:
        dataset = hold_out(dataset, validation, preparation.seed, into="validation")
    _write(dataset, target, to, gzip)


@app.command()
def get(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help=f"One of: {', '.join(registry.KNOWN)}.", show_default=False)
    ],
    target: Annotated[Path | None, typer.Argument(metavar="TARGET", help="Folder to write; default: NAME.")] = None,
    gzip: Gzip = False,
) -> None:
    """Write a data set that comes with a Python package, as an LF folder."""
    target = target or Path(name)
    check_new(target)
    _write(registry.load(name), target, "lf", gzip)


def _write(dataset: Dataset, target: Path, format: str, gzip: bool) -> None:
    write(dataset, target, format, gzip)
    _written(target, {name: len(part) for name, part in dataset.parts.items()}, dataset, format)


def _written(target: Path, points: Mapping[str, int], dataset: Dataset, format: str) -> None:
    """Print the sizes of a folder."""
    parts = ", ".join(f"{count:,} {name}" for name, count in points.items())
    say(f"{target}: {parts}, {dataset.sizes.labels:,} labels ({format})")
