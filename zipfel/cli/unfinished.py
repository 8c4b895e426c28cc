"""A large output file that is written incrementally and can be resumed."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from zipfel.data.formats.files import lock, new_file
from zipfel.errors import ConfigError, DataError

SECONDS = 2.0  # of work that a power cut may lose


@contextmanager
def unfinished(out: Path, inputs: Mapping[str, Any], fresh: bool = False) -> Iterator[Unfinished]:
    """Open a file for writing, at its end when resuming; on leaving the block, the rows written so far are saved.

    Without rows, the file is removed: a command that failed at once must not block the next one.

    inputs: a file is resumed only with the same inputs.  fresh: start over.
    """
    if out.is_dir():
        raise DataError("cannot be written: it is a folder", out)
    if out.exists() and not fresh:
        raise DataError("already exists; name another file, or overwrite it with --fresh", out)
    part = out.with_name(f"{out.name}.part")
    try:
        with part.open("r+b" if part.exists() else "w+b") as stream:
            lock(stream.fileno(), f"another process is writing {out}; wait for it, or name another file")
            file = Unfinished(out, part, stream, dict(inputs))
            file.begin(fresh)
            try:
                yield file
            finally:
                if not file.finished:
                    file.keep() if file.rows else file.remove()
    except OSError as error:  # such as a full disk: rows saved before stay valid
        raise DataError(f"cannot be written: {error.strerror or error}", out) from None


class Unfinished:
    """Writes `FILE.part`; the journal `FILE.part.json` records its valid length and its inputs.

    Bytes beyond the valid length, such as half a row, are cut off on resuming.
    """

    def __init__(self, out: Path, part: Path, stream: BinaryIO, inputs: Mapping[str, Any]) -> None:
        self.out, self.part, self.journal = out, part, part.with_name(f"{part.name}.json")
        self.inputs, self.rows, self.bytes, self.finished = inputs, 0, 0, False
        self._stream, self._saved = stream, time.monotonic()

    def begin(self, fresh: bool) -> None:
        """Start over, or after the rows of an interrupted process."""
        for leftover in self.journal.parent.glob(f".{glob.escape(self.journal.name)}.*.part"):  # of a killed process
            leftover.unlink(missing_ok=True)
        if not fresh and self.journal.exists():
            self._resume()
        self._stream.truncate(self.bytes)
        self._stream.seek(self.bytes)
        self.keep()

    def _resume(self) -> None:
        try:
            journal = orjson.loads(self.journal.read_bytes())
            rows, written, inputs = int(journal["rows"]), int(journal["bytes"]), dict(journal["inputs"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"the journal is unreadable ({error!r}); start over with --fresh", self.journal) from None
        if not rows:  # nothing was done: a killed process has left only the header
            return
        changed = [name for name in {**self.inputs, **inputs} if inputs.get(name) != self.inputs.get(name)]
        if changed:
            raise ConfigError(f"{self.out} was started with a different {', '.join(changed)}; start over with --fresh")
        if self.part.stat().st_size < written:
            raise DataError(f"is shorter than the {written} bytes in its journal; start over with --fresh", self.part)
        self.rows, self.bytes = rows, written

    def write(self, content: bytes, rows: int) -> None:
        """Append whole rows; save them to disk every SECONDS."""
        self._stream.write(content)
        self.rows, self.bytes = self.rows + rows, self.bytes + len(content)
        if time.monotonic() - self._saved >= SECONDS:
            self.keep()

    def keep(self) -> None:
        """Save to disk: first the rows, then the journal."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        with new_file(self.journal) as out:
            out.write(orjson.dumps({"rows": self.rows, "bytes": self.bytes, "inputs": self.inputs}))
            out.flush()
            os.fsync(out.fileno())
        self._saved = time.monotonic()

    def remove(self) -> None:
        """Remove the part and its journal."""
        self.part.unlink(missing_ok=True)
        self.journal.unlink(missing_ok=True)

    def finish(self, make: Callable[[Path], None] | None = None) -> None:
        """Rename the part to its final name, or let `make` write the file from the part."""
        self.keep()
        if make is None:
            self.part.replace(self.out)
        else:
            make(self.part)
            self.part.unlink()
        self.finished = True
        self.journal.unlink()
