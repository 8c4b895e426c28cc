"""What a process of a job does: read a slice of a file, tag it, write a part. It runs on any machine of an engine."""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, Protocol

import orjson

from zipfel import __version__
from zipfel.cli.inputs import Chosen, Row, texts_input
from zipfel.cli.job.files import Slice, is_remote, line_of, local_copy, opened_file
from zipfel.cli.outputs import objects
from zipfel.cli.parquet import NOTE, write_parquet
from zipfel.data.cells import json_value
from zipfel.data.formats.files import json_line, text_lines, unpacked_name
from zipfel.data.formats.table_files import Bad, open_parquet, open_table
from zipfel.errors import ConfigError, DataError, ZipfelError, raised

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tagging import Tagged

KINDS = {kind.__name__: kind for kind in (bool, int, float, str)}

TRIES = 4  # of a part whose process was lost: one that always ends its process must not be tried for ever

Order = tuple[int, Sequence[Any]]  # number of a part, and its slice
Answer = dict[str, Any]


class Worker(Protocol):
    """What an engine runs in each process; orders and answers can be written as JSON."""

    def __call__(self, order: Order) -> Answer:
        """Do one part; answer an error of the input by {"error": line, "fatal": whether all parts would fail}."""


@dataclass(frozen=True)
class Job:
    """Everything that a process must know. seal: checksum of the saved model.  digest: identifies the job.

    kinds: names of the types of copied columns.  strict: a bad row is an error.
    """

    model: str
    seal: str
    k: int | None
    threshold: Any
    chosen: Chosen | None  # None: lines of text
    encoding: str
    out: str
    digest: str = ""
    kinds: Mapping[str, str] | None = None
    strict: bool = False
    device: str = "auto"
    threads: int | None = None
    version: str = __version__

    @property
    def columns(self) -> Sequence[str]:
        """The copied columns."""
        return ("text",) if self.chosen is None else self.chosen.kept

    def path(self, number: int) -> Path:
        """Return the file of a part."""
        return Path(self.out) / f"part-{number:06d}.parquet"

    def check(self) -> None:
        """Raise ConfigError if this machine has another version of zipfel or another model."""
        from zipfel import persistence

        if self.version != __version__:
            raise ConfigError(f"the job was started by zipfel {self.version}, and a worker has {__version__}")
        if persistence.read_about(persistence.located(Path(self.model)))["sha256"] != self.seal:
            raise ConfigError(
                f"{self.model}: another model on a worker's machine, or replaced since the job was started"
            )


def answered(function: Callable[[int, Slice], Answer], order: Order, out: str) -> Answer:
    """Call a function with an order; return errors of the input as an answer."""
    number, part = order[0], Slice(*order[1])
    try:
        return {"part": number, **function(number, part)}
    except DataError as error:  # of one file, unless it is the output that cannot be written
        return {"part": number, "error": str(error), "fatal": Path(out) in Path(str(error.path)).parents}
    except (ZipfelError, MemoryError) as error:
        return {"part": number, "error": str(error) or "not enough memory", "fatal": True}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else "temporary folder: "
        return {"part": number, "error": f"{where}{error.strerror or error}", "fatal": error.errno == errno.ENOSPC}


class KindFinder:
    """Finds the types of the cells of each column, for files that do not state them."""

    def __init__(self, job: Job) -> None:
        self.job = replace(job, strict=False)  # bad rows are reported when they are tagged

    def __call__(self, order: Order) -> Answer:
        """Return {"kinds": {column: names of types}}."""
        return answered(self._kinds, order, self.job.out)

    def _kinds(self, number: int, part: Slice) -> Answer:
        seen: dict[str, set[str]] = {name: set() for name in self.job.columns}
        with documents(self.job, part, lambda _: None) as rows:
            for row in rows:
                for name, value in row.kept.items():
                    value = json_value(value)
                    seen[name] |= {type(value).__name__} if value is not None else set()
        return {"kinds": {name: sorted(kinds) for name, kinds in seen.items()}}


class PartTagger:
    """Tags slices and writes parts; a part that is written already is left as it is."""

    def __init__(self, job: Job) -> None:
        self.job, self.checked = job, False

    def __call__(self, order: Order) -> Answer:
        """Return {"rows": tagged, "bad": [[file, line or row, problem], ...]}."""
        return answered(self._part, order, self.job.out)

    def _part(self, number: int, part: Slice) -> Answer:
        done = written(self.job, number)
        if done is not None:  # by a process that was lost before it could answer
            return done
        if not self.checked:
            self.job.check()
            self.checked = True
        with self._tried(number):
            return self._written(number, part)

    @contextmanager
    def _tried(self, number: int) -> Iterator[None]:
        """Count how often a part is tried, in a file that only a lost process leaves; raise ConfigError at TRIES."""
        path = Path(self.job.out) / f".part-{number:06d}.tries.part"
        with path.open("ab") as file:
            file.write(b".")
        try:
            if path.stat().st_size > TRIES:
                raise ConfigError(f"part {number} has ended {TRIES} processes; is there enough memory for each worker?")
            yield
        finally:
            path.unlink(missing_ok=True)

    def _written(self, number: int, part: Slice) -> Answer:
        """Write a part."""
        bad, rows = list[list[Any]](), 0
        note_bad: Bad = raised if self.job.strict else lambda error: bad.append(placed(error))
        with TemporaryDirectory(prefix="zipfel-") as folder:
            lines = Path(folder) / "rows.jsonl"
            with documents(self.job, part, note_bad, Path(folder)) as documented, lines.open("wb") as file:
                rows = self._tag(documented, file)
            note = orjson.dumps({"job": self.job.digest, "part": number, "bad": bad})
            kinds = None if self.job.kinds is None else {name: KINDS[kind] for name, kind in self.job.kinds.items()}
            write_parquet(self.job.path(number), lines, self.job.columns, kinds, note)
        return {"rows": rows, "bad": bad}

    def _tag(self, documented: Iterator[Row], file: IO[bytes]) -> int:
        """Write documents with their tags as lines of JSON; return how many they are."""
        from zipfel.cli.predict import batches

        count = 0
        for batch in batches(documented):
            file.write(b"".join(map(json_line, objects(batch, self._tagged(batch)))))
            count += len(batch)
        return count

    def _tagged(self, batch: Sequence[Row]) -> Tagged:
        from zipfel.engines.batch import loaded
        from zipfel.tagging import Request

        job = self.job
        tagger = loaded(job.model, job.device, job.threads)
        return tagger.tag([Request([row.document for row in batch], job.k, job.threshold)])[0]


@contextmanager
def documents(job: Job, part: Slice, bad: Bad, folder: Path | None = None) -> Iterator[Iterator[Row]]:
    """Yield the documents of a slice; errors name the line or row of the file, not of the slice.

    folder: for a copy of the slice; None: a temporary one.
    """
    if folder is None:
        with TemporaryDirectory(prefix="zipfel-") as temporary, documents(job, part, bad, Path(temporary)) as rows:
            yield rows
        return
    if part.file.lower().endswith(".parquet"):
        with opened_file(part.file) as content:
            table = open_parquet(part.file, part.start, part.stop, content if is_remote(part.file) else None)
            assert job.chosen is not None
            table.own([*job.chosen.text.values(), *job.chosen.kept])
            yield job.chosen.rows(table, bad)
        return
    path = local_copy(part, folder)
    try:
        yield _read(job, path, bad if bad is raised else lambda error: bad(_relocated(error, part)))
    except DataError as error:
        if error.path is None or Path(str(error.path)) != path:
            raise
        raise _relocated(error, part) from None


def _read(job: Job, path: Path, bad: Bad) -> Iterator[Row]:
    """Yield the documents of a file of this machine."""
    if job.chosen is None:
        return texts_input(line.rstrip("\r\n") for line in text_lines(path, job.encoding)).rows()
    table = open_table(path, job.encoding, bad)
    if not unpacked_name(path).endswith(".jsonl"):  # of which each line may have other keys
        table.own([*job.chosen.text.values(), *job.chosen.kept])
    return job.chosen.rows(table, bad)


def _relocated(error: DataError, part: Slice) -> DataError:
    return DataError(error.problem, part.file, None if error.line is None else line_of(part, error.line))


def placed(error: DataError) -> list[Any]:
    """Return (file, line or row, problem) of an error about a row."""
    row = re.match(r"row (\d+): (.*)", error.problem, re.DOTALL)
    if error.line is None and row is not None:
        return [str(error.path), int(row[1]), row[2]]
    return [str(error.path), error.line, error.problem]


def written(job: Job, number: int) -> Answer | None:
    """Return the answer of a part that is written; None if it is not, or damaged, or of another job."""
    import pyarrow.parquet

    with suppress(Exception):  # pyarrow raises nearly anything on a mangled file
        about = pyarrow.parquet.read_metadata(job.path(number))
        note = orjson.loads(about.metadata[NOTE])
        if note["job"] == job.digest and note["part"] == number:
            return {"rows": about.num_rows, "bad": note["bad"]}
    return None
