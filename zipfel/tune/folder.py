"""The folder of a search: locked, resumable, and empty again if nothing came of the search."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.storages.journal._file import BaseJournalFileLock

from zipfel.data.formats.files import write_bytes
from zipfel.errors import DataError
from zipfel.training.run import Run
from zipfel.tune.results import FILES, STUDY, TOML


class StudyFolder(Run):
    """The folder of a search: locked, with the inputs of the search on record, like the folder of a run."""

    def has_results(self) -> bool:
        """Whether a trial was judged."""
        return self.folder is not None and (self.folder / TOML).exists()

    @contextmanager
    def kept(self, inputs: Mapping[str, Any], fresh: bool) -> Iterator[BaseStorage]:
        """Yield the storage of the study; if the block fails before a trial was judged, leave nothing behind."""
        with self.opened(inputs, fresh):
            if self.folder is None:
                yield InMemoryStorage()
                return
            if fresh:
                self.clear()
            try:
                yield journal(self.folder / STUDY)
            except BaseException:
                if not self.has_results():
                    self.clear()
                raise

    def clear(self) -> None:
        """Remove the files of the search."""
        if self.folder is not None:
            for name in FILES:
                (self.folder / name).unlink(missing_ok=True)


def journal(path: Path) -> BaseStorage:
    """Open the journal of a study."""
    try:
        return JournalStorage(JournalFileBackend(str(mended(path)), HoldsCtrlC()))
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"is unreadable ({error!r}); start over with --fresh", path) from None


class HoldsCtrlC(BaseJournalFileLock):
    """Holds Ctrl-C back while Optuna writes a line; replaces its file lock.

    The folder is locked already. Optuna's own lock fails with an OSError if Ctrl-C comes while it is released, and
    makes the next process wait for 30 s if this one is killed.
    """

    def __init__(self) -> None:
        self.before: Any = None
        self.pressed = False

    def acquire(self) -> bool:
        """Hold Ctrl-C back; only the main thread is interrupted by it."""
        if threading.current_thread() is threading.main_thread():
            self.pressed, self.before = False, signal.signal(signal.SIGINT, self.remember)
        return True

    def release(self) -> None:
        """Let Ctrl-C through, and raise KeyboardInterrupt if it was pressed."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self.before)
            if self.pressed:
                raise KeyboardInterrupt

    def remember(self, number: int, frame: FrameType | None) -> None:
        """Take note of Ctrl-C."""
        self.pressed = True


def mended(path: Path) -> Path:
    """Cut off half a line that a killed process left at the end of a journal; return the path."""
    content = path.read_bytes() if path.exists() else b""
    if not content.endswith(b"\n") and content:
        write_bytes(path, content[: content.rfind(b"\n") + 1])
    return path
