"""`zipfel predict`: tag texts given as arguments, or a file of any size, which is streamed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from zipfel.cli.machine import Machine
from zipfel.cli.model import Model
from zipfel.cli.options import with_options
from zipfel.cli.outputs import objects, output_of
from zipfel.cli.progress import counted
from zipfel.cli.show import console, say, warn
from zipfel.cli.unfinished import unfinished
from zipfel.config import Settings, setting
from zipfel.data.formats.files import json_line, shortened, text_lines
from zipfel.data.formats.table import TEXT_COLUMNS, cell_text
from zipfel.data.formats.table_files import open_table
from zipfel.errors import ConfigError, DataError

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tagger import Tagger
    from zipfel.tagging import Request
    from zipfel.types import Ranking

BATCH = 1024  # texts
CHARACTERS = 4_000_000  # per batch, so that long texts need no more memory than short ones
INTERRUPTED = 130  # exit code after Ctrl-C


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

    def of(self, tagger: Tagger) -> Any:
        """Return the threshold for a model, or one per frequency bin; None keeps all tags."""
        if self.precision is None and not self.best_f1:
            return self.threshold
        return tagger.choose_threshold(self.precision, self.by_frequency)


@with_options
def predict(
    model: Model,
    wanted: Threshold,
    machine: Machine,
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Texts to tag.")] = None,
    input: Annotated[Path | None, typer.Option(help="File of texts: .txt (one per line), .jsonl, .csv, …")] = None,
    text: Annotated[str | None, typer.Option(help="Text columns of the file, such as title,body.")] = None,
    k: Annotated[int | None, typer.Option(help="Maximum tags per text (5; with a threshold 50).")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write: .jsonl, .csv, or .npz (scores).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite --out instead of resuming.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Without --out: print one JSON object per line.")] = False,
) -> None:
    """Tag texts given as arguments, or in a file of any size.

    With --out, run the same command again to resume.
    """
    if bool(texts) == (input is not None):
        raise ConfigError("give either texts to tag or a file of texts with --input")
    if out is not None and input is None:
        raise ConfigError("--out needs --input")
    work = _work(model, wanted, k, machine.used().device)
    if out is not None:
        assert input is not None
        _write(work, input, text, out, fresh)
        return
    source = iter(texts or []) if input is None else texts_of(input, text)
    for batch in batches(source):
        for item in objects(batch, work.tagged(batch), work.tagger.classes_):
            sys.stdout.write(json_line(item).decode()) if json else _show(item)


@dataclass(frozen=True)
class Work:
    """A model, and how to choose its tags."""

    tagger: Tagger
    seal: str  # checksum of the saved model
    wanted: Request  # which tags, of no texts yet

    def tagged(self, texts: list[str]) -> Ranking:
        """Return the ranking of texts, with probabilities as scores."""
        return self.tagger.tag([replace(self.wanted, X=texts)])[0].ranking

    @property
    def width(self) -> int:
        """The most tags of a text."""
        return min(self.wanted.depth, len(self.tagger.labels_.live))


def _work(model: Path, wanted: Threshold, k: int | None, device: str) -> Work:
    from zipfel import persistence
    from zipfel.tagger import Tagger
    from zipfel.tagging import Request

    if k is not None and k < 1:  # before the model is loaded
        raise ConfigError(f"k must be at least 1; found {k}")
    tagger = Tagger.load(model, device)
    seal = persistence.read_about(persistence.located(model))["sha256"]
    return Work(tagger, seal, Request([], k, wanted.of(tagger)))


def _write(work: Work, source: Path, columns: str | None, out: Path, fresh: bool) -> None:
    """Tag a file of texts and write the tags to a file; resume if it was interrupted."""
    from zipfel.persistence import checksum

    output = output_of(out, work.tagger.classes_, work.width)
    if not source.is_file():
        raise DataError("cannot be read: no such file", source)
    inputs = {"model": work.seal, "input": checksum(source), "text": columns, "k": work.width,
              "threshold": str(work.wanted.threshold)}  # fmt: skip
    with unfinished(out, inputs, fresh) as file, counted(file.rows) as show:
        if not file.bytes:
            file.write(output.header, 0)
        if file.rows:
            warn(f"resuming after {file.rows:,} texts")
        try:
            for batch in batches(islice(texts_of(source, columns), file.rows, None)):
                file.write(output.rows(batch, work.tagged(batch)), len(batch))
                show(file.rows)
            file.finish(output.finish)
        except KeyboardInterrupt:
            file.keep()
            warn(f"stopped after {file.rows:,} texts; run the same command to resume")
            raise typer.Exit(INTERRUPTED) from None
    say(f"{out}: {file.rows:,} texts tagged")


def _show(item: Mapping[str, Any]) -> None:
    console.print(f"[bold]{escape(shortened(item['text'], 60))}[/bold]", soft_wrap=True)
    for tag in item["tags"]:
        say(f"  {tag['score']:.3f}  {tag['label']}")


def texts_of(path: Path, columns: str | None) -> Iterator[str]:
    """Yield the texts of a file; the text columns of a table are joined with blanks."""
    if path.name.removesuffix(".gz").endswith(".txt"):
        yield from (line.rstrip("\r\n") for line in text_lines(path))
        return
    table = open_table(path)
    wanted = columns.split(",") if columns else table.present(TEXT_COLUMNS)
    if not wanted:
        raise DataError(f"no text column found; name it with --text (columns: {', '.join(table.columns)})", path)
    for _, values in table.rows(table.own(wanted)):
        yield " ".join(map(cell_text, values))


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield batches of up to BATCH texts or about CHARACTERS characters."""
    batch, length = list[str](), 0
    for text in texts:
        batch.append(text)
        length += len(text)
        if len(batch) == BATCH or length >= CHARACTERS:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
