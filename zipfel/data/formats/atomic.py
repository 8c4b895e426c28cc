"""Folders that appear, or replace older ones, all at once, and that survive a power cut.

A new folder is written as `.NAME.PID.ID.part` beside its target, locked by its writer, flushed to disk, and then
exchanged with the target in one step (renameat2), so that the target is complete at every moment. Systems that cannot
exchange folders need two steps; between them the old folder is `.NAME.older`, from where it is recovered. Folders of
killed processes, which nobody locks, are removed by the next writer. (docs/decisions/018-saved-models.md)
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from zipfel.data.formats.files import lock
from zipfel.errors import ConfigError, DataError

_HERE, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


def check_new(path: Path) -> None:
    """Raise DataError if the target folder exists, unless it is empty."""
    try:
        if path.exists() and not _is_empty(path):
            raise DataError("exists already; remove it or choose another path", path)
    except OSError as error:  # such as a name that is too long
        raise DataError(f"cannot be written: {error.strerror or error}", path) from None


@contextmanager
def new_folder(path: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, which takes the place of `path` on success and is removed on failure.

    replace: the folder at `path` may have content, which is removed.  If `path` is a link, the link stays, and the
    folder that it points to is written.
    """
    path = linked(path)
    if not replace:
        check_new(path)
    temporary, locked, new_parents = path, -1, list[Path]()
    try:
        new_parents = [parent for parent in path.parents if not parent.exists()]  # nearest first
        if new_parents:
            path.parent.mkdir(parents=True, exist_ok=True)
        temporary, locked = _claimed(path)
        yield temporary
        flush(temporary)
        _put(temporary, path, replace)
    except DataError as error:
        if error.path is None or temporary not in Path(error.path).parents:
            raise
        raise DataError(
            error.problem, path / Path(error.path).relative_to(temporary), error.line
        ) from None  # its final name
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from None
    finally:
        if temporary != path:
            shutil.rmtree(temporary, ignore_errors=True)  # half of the new folder, or all of the old one
        if locked >= 0:
            os.close(locked)
        for parent in new_parents:
            with suppress(OSError):  # not empty: it holds the new folder
                parent.rmdir()


def linked(path: Path) -> Path:
    """Return the target of a link, whether or not it exists, and the full path of `.` and `..`; others as they are."""
    return Path(os.path.realpath(path)) if path.is_symlink() or path.name in ("", "..") else path


def older_version(path: Path) -> Path:
    """Return where the old folder is while a system without exchange replaces it."""
    path = linked(path)
    return path.parent / f".{path.name}.older"  # not `with_name`, which refuses the root


def flush(folder: Path) -> None:
    """Write all files of a folder to the disk, and then the folders that list them."""
    for parent, _, names in os.walk(folder, topdown=False):
        for name in names:
            with (Path(parent) / name).open("r+b") as file:  # Windows flushes only files that may be written
                os.fsync(file.fileno())
        _flush_names(Path(parent))


def _flush_names(folder: Path) -> None:
    with suppress(OSError), _opened(folder) as file:  # not every system can flush folders
        os.fsync(file)


def _claimed(path: Path) -> tuple[Path, int]:
    """Make a temporary folder beside `path`, and return it and the open file that locks it; remove leftovers.

    The file is -1 on systems that cannot open folders.
    """
    with _alone_in(path.parent):
        name = re.escape(path.name)
        for folder in path.parent.iterdir():
            if re.fullmatch(rf"\.{name}\.(newer|\d+(\.[0-9a-f]+)?\.part)", folder.name):  # older versions wrote .newer
                _remove_unlocked(folder)
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.part")
        temporary.mkdir()
        file = -1
        with suppress(OSError, ConfigError):  # a system that cannot open folders, or a file system without locks
            file = os.open(temporary, os.O_RDONLY)
            lock(file, "")
        return temporary, file


def recover(path: Path) -> None:
    """Undo a replacement of a folder that was killed between its two steps."""
    path, older = linked(path), older_version(path)
    with suppress(OSError):  # it cannot be written either then, which `new_folder` says
        if older.is_dir():
            with _alone_in(path.parent):
                if not path.exists():
                    older.rename(path)


def _remove_unlocked(folder: Path) -> None:
    """Remove a folder unless another process is writing it."""
    with suppress(OSError, ConfigError), _opened(folder) as file:
        lock(file, "in use")
        shutil.rmtree(folder)


def _put(new: Path, path: Path, replace: bool) -> None:
    """Move a folder to `path`; with `replace`, a folder with content that was there is at `new` afterwards."""
    with _alone_in(path.parent):
        if replace and path.exists() and not _is_empty(path):
            if not exchange(new, path):
                _exchange_in_two_steps(new, path)
        else:
            check_new(path)  # another process may have written it meanwhile
            if path.exists():
                path.rmdir()
            new.rename(path)
        _flush_names(path.parent)


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return whether the system can."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if function is None:
        return False
    return bool(function(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0)


def _exchange_in_two_steps(new: Path, path: Path) -> None:
    older = older_version(path)
    shutil.rmtree(older, ignore_errors=True)
    path.rename(older)
    try:
        new.rename(path)
    except OSError:
        older.rename(path)
        raise
    older.rename(new)


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Keep other writers out of a folder for a moment, where the file system has locks."""
    with ExitStack() as stack:
        with suppress(ImportError, OSError):
            import fcntl

            fcntl.flock(stack.enter_context(_opened(folder)), fcntl.LOCK_EX)
        yield


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    file = os.open(folder, os.O_RDONLY)
    try:
        yield file
    finally:
        os.close(file)
