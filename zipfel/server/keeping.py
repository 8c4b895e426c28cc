"""Files of corrections: lines of JSON that are on disk before they are acknowledged.

Every process writes to files of its own, which no other process ever opens for writing: a line that a killed process
has torn is the last of its file. (docs/decisions/024-corrections.md)
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from zipfel.errors import DataError

SIZE = 64 << 20  # bytes of a file; a new one begins before it would be larger
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_folder(folder: Path) -> None:
    """Create the folder if needed; raise DataError if no file can be written there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise DataError(f"corrections cannot be written here: {error.strerror or error}", folder) from None


class Keeper:
    """Appends lines to files of this process; a new file begins each day (UTC), and where one would become too large.

    worker: the number of the process.  It is for one thread.
    """

    def __init__(self, folder: Path, worker: int = 0, size: int = SIZE) -> None:
        self.folder, self.worker, self.most = folder, worker, size
        self._file, self._path, self._day, self._size = -1, folder, "", 0

    def keep(self, line: bytes) -> None:
        """Write a line, with its end; it is on disk when this returns. After an OSError, nothing of it is."""
        day = datetime.now(UTC).date().isoformat()
        if self._file < 0 or day != self._day or self._size + len(line) > self.most:
            self._begin(day)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._file, line[written:])
            os.fsync(self._file)
        except OSError:
            self._undo()
            raise
        self._size += len(line)

    def close(self) -> None:
        """Close the file; the next line begins a new one."""
        if self._file >= 0:
            with suppress(OSError):
                os.close(self._file)
        self._file = -1

    def _begin(self, day: str) -> None:
        """Begin a new file, whose name is on disk, too."""
        self.close()
        start = f"{day}-{self.worker}-"
        used = [path.stem.removeprefix(start) for path in self.folder.glob(f"{start}*.jsonl")]
        number = max([int(each) for each in used if each.isdecimal()], default=0)
        while self._file < 0:  # another service may use the folder, too
            number += 1
            self._path = self.folder / f"{start}{number:04}.jsonl"
            with suppress(FileExistsError):
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o640)
        self._day, self._size = day, 0
        try:
            folder = os.open(self.folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError:
            self._undo()
            raise

    def _undo(self) -> None:
        """Remove what was written of a line, and leave the file: after a failure, a new one is safer."""
        with suppress(OSError):
            os.ftruncate(self._file, self._size)
        if not self._size:
            with suppress(OSError):
                self._path.unlink()
        self.close()
