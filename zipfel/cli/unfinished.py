"""A large file that is written bit by bit, and goes on where it stopped."""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import orjson

from zipfel.data.formats.files import new_file
from zipfel.errors import ConfigError, DataError

SECONDS = 2.0  # of work that a power cut may cost


class Unfinished:
    """Writes `FILE.part`; `FILE.part.json` tells how much of it counts, and what it is made from.

    What is behind the bytes that count, such as half a row, is cut off when the work goes on.
    """

    def __init__(self, out: Path, inputs: Mapping[str, Any], fresh: bool = False) -> None:
        self.out, self.inputs, self.fresh = out, dict(inputs), fresh
        self.part, self.journal = out.with_name(f"{out.name}.part"), out.with_name(f"{out.name}.part.json")
        self.rows = self.bytes = 0
        self._kept, self._finished = time.monotonic(), False

    def __enter__(self) -> Unfinished:
        """Open the file, at its end where it goes on."""
        if self.out.is_dir():
            raise DataError("cannot be written: it is a folder", self.out)
        if self.out.exists() and not self.fresh:
            raise DataError("exists already; name another, or write it anew with --fresh", self.out)
        try:
            self._file: BinaryIO = self.part.open("r+b" if self.part.exists() else "w+b")
            try:
                self._begin()
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise DataError(f"cannot be written: {error.strerror or error}", self.out) from None
        return self

    def _begin(self) -> None:
        _lock(self._file, self.out)
        for left in self.journal.parent.glob(f".{glob.escape(self.journal.name)}.*.part"):  # by one that was killed
            left.unlink(missing_ok=True)
        if not self.fresh and self.journal.exists():
            self._go_on()
        self._file.truncate(self.bytes)
        self._file.seek(self.bytes)
        self.keep()

    def _go_on(self) -> None:
        try:
            was = orjson.loads(self.journal.read_bytes())
            rows, written, inputs = int(was["rows"]), int(was["bytes"]), dict(was["inputs"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"tells not what was done ({error!r}); start over with --fresh", self.journal) from None
        other = [name for name in {**self.inputs, **inputs} if inputs.get(name) != self.inputs.get(name)]
        if other:
            raise ConfigError(f"{self.out} was begun with another {', '.join(other)}; start over with --fresh")
        if self.part.stat().st_size < written:
            raise DataError(f"has lost some of its {written} bytes; start over with --fresh", self.part)
        self.rows, self.bytes = rows, written

    def write(self, content: bytes, rows: int) -> None:
        """Add whole rows; every few seconds they are made safe."""
        try:
            self._file.write(content)
            self.rows, self.bytes = self.rows + rows, self.bytes + len(content)
            if time.monotonic() - self._kept >= SECONDS:
                self.keep()
        except OSError as error:
            raise DataError(f"cannot be written: {error.strerror or error}", self.out) from None

    def keep(self) -> None:
        """Make safe what is written: first the rows, then how many they are."""
        self._file.flush()
        os.fsync(self._file.fileno())
        with new_file(self.journal) as out:
            out.write(orjson.dumps({"rows": self.rows, "bytes": self.bytes, "inputs": self.inputs}))
            out.flush()
            os.fsync(out.fileno())
        self._kept = time.monotonic()

    def finish(self, make: Callable[[Path], None] | None = None) -> None:
        """Give the file its name, or let `make` write it out of what is there."""
        self.keep()
        if make is None:
            self.part.replace(self.out)
        else:
            make(self.part)
            self.part.unlink()
        self._finished = True
        self.journal.unlink()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Close the file; where the work was stopped, make safe what is done of it."""
        try:
            if not self._finished:
                self.keep()
        except OSError as error:  # a full disk, say: what was made safe before still counts
            raise DataError(f"cannot be written: {error.strerror or error}", self.out) from None
        finally:
            self._file.close()


def _lock(file: BinaryIO, out: Path) -> None:
    """Keep other processes off a file while it is open."""
    try:
        import fcntl
    except ImportError:  # Windows; there nobody is kept off
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(f"another process is writing {out}; wait for it, or name another file") from None
