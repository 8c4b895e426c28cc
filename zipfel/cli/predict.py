"""`zipfel predict`: tag texts given as arguments, or a file of any size, which is streamed."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer
from rich.markup import escape

from zipfel.cli.inputs import STDIN, Input, Row, check_has_texts, check_names, opened_input, texts_input
from zipfel.cli.job.run import Running, tag_files
from zipfel.cli.machine import Machine
from zipfel.cli.options import Model, with_options
from zipfel.cli.outputs import Wanted, objects, output_of
from zipfel.cli.progress import counted
from zipfel.cli.show import console, named, say, warn
from zipfel.cli.unfinished import unfinished
from zipfel.config import Settings, setting
from zipfel.data.formats.files import json_line, shortened
from zipfel.errors import INTERRUPTED, ConfigError, DataError

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.data.labels import LabelSpace
    from zipfel.tagger import Tagger
    from zipfel.tagging import Loaded, Request, Tagged

BATCH = 1024  # texts
CHARACTERS = 4_000_000  # per batch, so that long texts need no more memory than short ones

Item = TypeVar("Item", bound=Sized)


@dataclass(frozen=True)
class Threshold(Settings):
    """Which tags to keep."""

    threshold: float | None = setting(None, "minimum score of a tag, from 0 to 1", at_least=0, at_most=1)
    precision: float | None = setting(
        None, "choose the threshold with this precision on held-out points", above=0, at_most=1
    )
    best_f1: bool = setting(False, "choose the threshold with the best micro-F1 on held-out points")
    by_frequency: bool = setting(False, "choose three thresholds: for rare, medium and frequent labels")

    def check(self) -> None:
        """Check that the options do not contradict each other."""
        if (self.threshold is not None) + (self.precision is not None) + self.best_f1 > 1:
            raise ConfigError("give only one of --threshold, --precision and --best-f1")
        if self.by_frequency and self.precision is None and not self.best_f1:
            raise ConfigError("--by-frequency needs --precision or --best-f1")

    def of(self, tagger: Loaded | Tagger) -> Any:
        """Return the threshold for a model, or one per frequency bin; print one that is chosen. None keeps all tags."""
        if self.precision is None and not self.best_f1:
            return self.threshold
        chosen = tagger.choose_threshold(self.precision, self.by_frequency)
        values = chosen if isinstance(chosen, tuple) else (chosen,)
        shown = ", ".join(f"{value:.6g}" for value in values) + " for rare, medium and frequent labels" * (
            len(values) > 1
        )
        why = "best micro-F1" if self.precision is None else f"precision {self.precision:g}"
        warn(f"note: threshold {shown} ({why} on held-out points)")
        return chosen


@dataclass(frozen=True)
class Reading(Settings):
    """Columns and encoding of the file of texts; default: as in training."""

    text: str | None = setting(None, "text columns of the file, such as title,body")
    keep: str | None = setting(
        None, "columns of the file to copy to the output, such as id,url; default: all but labels"
    )
    encoding: str | None = setting(None, "encoding of the file, such as cp1252")


@dataclass(frozen=True)
class Writing(Settings):
    """Tags in a file."""

    layout: Literal["wide", "tidy", "joined"] | None = setting(
        None, "tags in a .csv file: wide (side by side, the default), tidy (a row for each tag) or joined (in one cell)"
    )


@with_options
def predict(
    model: Model,
    wanted: Threshold,
    reading: Reading,
    writing: Writing,
    machine: Machine,
    running: Running,
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="TEXT", help="Texts, or - for lines of standard input.")
    ] = None,
    input: Annotated[str | None, typer.Option(help="File of texts: .txt (one per line), .jsonl, .csv, …")] = None,
    k: Annotated[int | None, typer.Option("--k", "-k", help="Maximum tags per text (5; with a threshold 50).")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write: .jsonl, .csv, .parquet, or .npz (scores).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite --out instead of resuming.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Without --out: print one JSON object per line.")] = False,
) -> None:
    """Tag texts given as arguments, in a file of any size, or on standard input.

    With --out, run the same command again to resume.
    """
    if bool(texts) == (input is not None):
        raise ConfigError("give either texts to tag or a file of texts with --input")
    if texts == [str(STDIN)]:
        texts, input = None, str(STDIN)
    if out is not None and input is None:
        raise ConfigError("--out needs --input, or - for standard input")
    if input is not None:
        check_has_texts(Path(input))
    if running.engine is not None:
        if out is None or input is None or input == str(STDIN) or writing.layout is not None:
            raise ConfigError("--engine needs --input and --out, a folder for Parquet files; it has no --layout")
        on_driver = "cpu" if running.engine == "ray" else machine.used().device
        work = _work(model, wanted, k, on_driver)
        tag_files(model, work, input, reading, running, machine, out, fresh)
        return
    work = _work(model, wanted, k, machine.used().device)
    if out is not None:
        assert input is not None
        _write(work, Path(input), (reading, writing), out, fresh)
        return
    source = _given(texts or []) if input is None else _opened(work, Path(input), reading)
    check_names(source.columns if json else (), ["tags", "known"])
    for batch in batches(source.rows()):
        for row, item in zip(batch, objects(batch, work.tagged(batch)), strict=True):
            sys.stdout.write(json_line(item).decode()) if json else _show(row, item, work.tagger.labels_)


def _given(texts: Sequence[str]) -> Input:
    """Return texts given as arguments; say which of them are names of files."""
    for text in filter(os.path.isfile, texts):
        warn(f"note: {text} is tagged as a text; to tag the texts in this file, use --input {text}")
    return texts_input(texts)


def _opened(work: Work, path: Path, reading: Reading) -> Input:
    """Open a file of texts; say which columns are read."""
    opened = opened_input(path, work.tagger.source_, reading.text, reading.keep, reading.encoding)
    if opened.about:
        warn(f"note: {opened.about}")
    return opened


@dataclass(frozen=True)
class Work:
    """A model, and how to choose its tags."""

    tagger: Loaded
    seal: str  # checksum of the saved model
    wanted: Request  # which tags, of no texts yet

    def tagged(self, rows: Sequence[Row]) -> Tagged:
        """Return the tags of documents."""
        return self.tagger.tag([replace(self.wanted, X=[row.document for row in rows])])[0]

    @property
    def width(self) -> int:
        """The most tags of a text."""
        return min(self.wanted.depth, len(self.tagger.labels_.live))


def _work(model: Path, wanted: Threshold, k: int | None, device: str) -> Work:
    from zipfel import persistence
    from zipfel.tagging import Loaded, Request

    if k is not None and k < 1:  # before the model is loaded
        raise ConfigError(f"k must be at least 1; found {k}")
    tagger = Loaded.load(model, device)
    seal = persistence.read_about(persistence.located(model))["sha256"]
    return Work(tagger, seal, Request([], k, wanted.of(tagger)))


def _write(work: Work, path: Path, options: tuple[Reading, Writing], out: Path, fresh: bool) -> None:
    """Tag a file of texts and write the tags to a file; resume if it was interrupted."""
    reading, writing = options
    if path != STDIN and not path.is_file():
        raise DataError("cannot be read: no such file", path)
    source, names, sep = _opened(work, path, reading), work.tagger.classes_, work.tagger.source_.columns.sep
    output = output_of(out, Wanted(names, work.width, source.columns, writing.layout, sep, source.kinds,
                                   work.tagger.labels_.titles))  # fmt: skip
    inputs = {"model": work.seal, "input": _identity(path), "k": work.width, "threshold": str(work.wanted.threshold),
              **dataclasses.asdict(reading), **dataclasses.asdict(writing)}  # fmt: skip
    with unfinished(out, inputs, fresh) as file, counted(file.rows) as show:
        if not file.bytes:
            file.write(output.header, 0)
        if file.rows:
            warn(f"resuming after {file.rows:,} texts")
        try:
            for batch in batches(islice(source.rows(), file.rows, None)):
                file.write(output.rows(batch, work.tagged(batch)), len(batch))
                show(file.rows)
            file.finish(output.finish)
        except KeyboardInterrupt:
            warn(f"stopped after {file.rows:,} texts; run the same command to resume")
            raise typer.Exit(INTERRUPTED) from None
    say(f"{out}: {file.rows:,} texts tagged")


def _identity(path: Path) -> str:
    """Return a checksum of the input; for standard input, which cannot be read again, a value that is never equal."""
    from zipfel.data.formats.checksums import checksum

    return f"standard input of process {os.getpid()} at {time.time()}" if path == STDIN else checksum(path)


def _show(row: Row, item: Mapping[str, Any], labels: LabelSpace) -> None:
    console.print(f"[bold]{escape(shortened(row.text, 60))}[/bold]", soft_wrap=True)
    if not item["known"]:
        say("  no known word; the most frequent labels are:")
    shown = {tag["label"]: named(tag["label"], tag.get("title")) for tag in item["tags"]}
    width = max(map(len, shown.values()), default=0)
    for tag in item["tags"]:
        label = tag["label"]
        text = "" if labels.texts is None or tag.get("title") else labels.texts[labels.live[label]].partition("\n")[0]
        about = f"{label:<{width}}  {shortened(text, 60)}" if text not in ("", label) else shown[label]
        say(f"  {tag['score']:.3f}  {about}")


def batches(rows: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield batches of up to BATCH rows or about CHARACTERS characters, which `len` counts."""
    batch, length = list[Item](), 0
    for row in rows:
        batch.append(row)
        length += len(row)
        if len(batch) == BATCH or length >= CHARACTERS:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
