"""`zipfel predict`: tags for texts of the command, or for a file of any size, which is streamed."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from zipfel.cli.options import with_options
from zipfel.cli.outputs import objects, output_of
from zipfel.cli.progress import Counted
from zipfel.cli.show import console, warnings
from zipfel.cli.unfinished import Unfinished
from zipfel.config import setting
from zipfel.data.formats.files import json_line, text_lines
from zipfel.data.formats.table import TEXT_COLUMNS, cell_text
from zipfel.data.formats.table_files import open_table
from zipfel.errors import ConfigError, DataError

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tagger import Tagger
    from zipfel.types import Ranking

BATCH = 1024  # texts
CHARACTERS = 4_000_000  # of a batch, so that long texts need no more memory than short ones
INTERRUPTED = 130  # the exit code of what Ctrl-C has stopped


@dataclass(frozen=True)
class Threshold:
    """Tags that are good enough."""

    threshold: float | None = setting(None, "least score of a tag, from 0 to 1")
    precision: float | None = setting(None, "choose the threshold with this share of right tags on held-out points")
    best_f1: bool = setting(False, "choose the threshold with the best micro-F1 on held-out points")
    by_frequency: bool = setting(False, "choose three: for rare, middling and frequent labels")

    def __post_init__(self) -> None:
        """Refuse what contradicts itself."""
        if (self.threshold is not None) + (self.precision is not None) + self.best_f1 > 1:
            raise ConfigError("give one of --threshold, --precision and --best-f1")
        if self.by_frequency and self.precision is None and not self.best_f1:
            raise ConfigError("--by-frequency needs --precision or --best-f1")

    def of(self, tagger: Tagger) -> Any:
        """Return the threshold for a model, or those of each bin; None where all tags do."""
        if self.precision is None and not self.best_f1:
            return self.threshold
        return tagger.choose_threshold(self.precision, self.by_frequency)


@with_options
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a trained model.", show_default=False)],
    wanted: Threshold,
    texts: Annotated[list[str] | None, typer.Argument(metavar="[TEXT ...]", help="Texts to tag.")] = None,
    input: Annotated[Path | None, typer.Option(help="File of texts: .txt (one a line), .jsonl, .csv, …")] = None,
    text: Annotated[str | None, typer.Option(help="Text columns of the file, such as title,body.")] = None,
    k: Annotated[int | None, typer.Option(help="Most tags of a text (5; with a threshold 50).")] = None,
    out: Annotated[Path | None, typer.Option(help="File to write: .jsonl, .csv, or .npz (scores).")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Write the file anew where it is there, or begun.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Without --out: one JSON object a line.")] = False,
) -> None:
    """Tag texts, given as words of the command, or in a file of any size.

    The same command again goes on where --out FILE stopped.
    """
    if bool(texts) == (input is not None):
        raise ConfigError("name texts to tag, or a file of them with --input")
    if out is not None and input is None:
        raise ConfigError("--out goes with --input")
    work = _work(model, wanted, k)
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
    """A model, and how its tags are chosen."""

    tagger: Tagger
    seal: str  # of the saved model
    k: int
    threshold: Any

    def tagged(self, texts: list[str]) -> Ranking:
        """Return the tags of texts, with probabilities."""
        return self.tagger.calibrated(self.tagger.rank(texts, self.k), self.threshold)


def _work(model: Path, wanted: Threshold, k: int | None) -> Work:
    from zipfel import calibration, persistence
    from zipfel.tagger import Tagger

    if k is not None and k < 1:
        raise ConfigError(f"k must be at least 1; found {k}")
    tagger = Tagger.load(model)
    seal = persistence.read_about(persistence.located(model))["sha256"]
    threshold = wanted.of(tagger)
    usual = calibration.SHOWN if threshold is None else calibration.DEPTH
    return Work(tagger, seal, min(usual if k is None else k, len(tagger.live_labels())), threshold)


def _write(work: Work, source: Path, columns: str | None, out: Path, fresh: bool) -> None:
    """Tag a file of texts into a file, from where it stopped."""
    from zipfel.persistence import checksum

    output = output_of(out, work.tagger.classes_, work.k)
    if not source.is_file():
        raise DataError("cannot be read: no such file", source)
    inputs = {"model": work.seal, "input": checksum(source), "text": columns, "k": work.k,
              "threshold": str(work.threshold)}  # fmt: skip
    with Unfinished(out, inputs, fresh) as file, Counted(file.rows) as shown:
        if not file.bytes:
            file.write(output.header, 0)
        if file.rows:
            warnings.print(f"going on after {file.rows:,} texts, where the last run stopped", soft_wrap=True)
        try:
            for batch in batches(islice(texts_of(source, columns), file.rows, None)):
                file.write(output.rows(batch, work.tagged(batch)), len(batch))
                shown.update(file.rows)
            file.finish(output.finish)
        except KeyboardInterrupt:
            file.keep()
            warnings.print(f"stopped after {file.rows:,} texts; the same command goes on from there", soft_wrap=True)
            raise typer.Exit(INTERRUPTED) from None
    console.print(f"{escape(str(out))}: {file.rows:,} texts tagged", soft_wrap=True)


def _show(item: Mapping[str, Any]) -> None:
    words = item["text"]
    shown = words if len(words) <= 60 else words[:59] + "…"
    console.print(f"[bold]{escape(shown)}[/bold]", soft_wrap=True)
    for tag in item["tags"]:
        console.print(f"  {tag['score']:.3f}  {escape(tag['label'])}", soft_wrap=True)


def texts_of(path: Path, columns: str | None) -> Iterator[str]:
    """Yield the texts of a file; columns of a table are joined."""
    if path.name.removesuffix(".gz").endswith(".txt"):
        yield from (line.rstrip("\r\n") for line in text_lines(path))
        return
    table = open_table(path)
    wanted = columns.split(",") if columns else [name for name in TEXT_COLUMNS if name in table.columns]
    if not wanted:
        raise DataError(f"name the text columns with --text (found: {', '.join(table.columns)})", path)
    table.check(wanted)
    for _, values in table.rows(wanted):
        yield " ".join(map(cell_text, values))


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of texts, up to BATCH of them or about CHARACTERS."""
    batch, length = list[str](), 0
    for text in texts:
        batch.append(text)
        length += len(text)
        if len(batch) == BATCH or length >= CHARACTERS:
            yield batch
            batch, length = [], 0
    if batch:
        yield batch
