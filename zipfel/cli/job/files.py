"""Input files of a job, on this machine or in a store such as S3, and their slices, each of which becomes a part."""

from __future__ import annotations

import csv
import glob
import re
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from zipfel.data.formats.files import checked_encoding, reason
from zipfel.data.formats.table_files import ENDINGS, READ_ONLY, delimiter_of, parquet_errors
from zipfel.errors import DataError

KNOWN = (
    *ENDINGS,
    *READ_ONLY,
    ".txt",
    *(f"{ending}{packed}" for ending in (*ENDINGS, ".txt") for packed in (".gz", ".zip")),
)
LEAST, MOST, PARTS = 4 << 20, 128 << 20, 2000  # bytes of a slice, and about how many slices of large data
READERS = 16  # files that are looked at together
_SPLIT = re.compile(r"utf-8|ascii|cp125\d|iso8859-\d+")  # encodings in which a byte 10 is always the end of a line
_COPIED = 1 << 20  # bytes at a time


class File(NamedTuple):
    """An input file. changed: when, in nanoseconds."""

    path: str
    size: int
    changed: int


class Slice(NamedTuple):
    """A part of a file: its bytes, or rows of Parquet, from `start` to `stop`; -1 is the end.

    header: bytes at the start of the file with the names of columns.  line: number of the first line; 0 if unknown.
    """

    file: str
    start: int = 0
    stop: int = -1
    header: int = 0
    line: int = 1

    @property
    def is_whole(self) -> bool:
        """Whether it is all of the file."""
        return self.start <= self.header and self.stop < 0


def is_remote(path: str) -> bool:
    """Whether a path is a URI, such as s3://bucket/folder."""
    return "://" in path


def found(pattern: str) -> list[File]:
    """Return the files that a path, a folder or a pattern with * names, in order of their names."""
    files = _remote_files(pattern) if is_remote(pattern) else _local_files(pattern)
    if not files:
        raise DataError(f"no such file; expected files that end in {', '.join(ENDINGS)}", pattern)
    return sorted(files)


def _local_files(pattern: str) -> list[File]:
    path = Path(pattern)
    if path.is_file():
        names = [path]
    elif path.is_dir():
        names = [name for name in path.iterdir() if _is_input(name.name)]
    else:
        matches = glob.glob(pattern, recursive=True)  # noqa: PTH207  (Path.glob takes no absolute pattern)
        names = [Path(name) for name in matches if _is_input(Path(name).name)]
    return [_file(name) for name in names if name.is_file()]


def _file(path: Path) -> File:
    about = path.stat()
    return File(str(path.absolute()), about.st_size, about.st_mtime_ns)


def _remote_files(pattern: str) -> list[File]:
    from pyarrow.fs import FileSelector, FileType

    folder = (
        re.split(r"[*?\[]", pattern, maxsplit=1)[0].rpartition("/")[0] if re.search(r"[*?\[]", pattern) else pattern
    )
    with _store_errors(pattern):
        store, inner = _store(folder)
        own = store.get_file_info(inner)
        if own.type == FileType.NotFound:
            return []
        infos = [own] if own.is_file else store.get_file_info(FileSelector(inner, recursive=folder != pattern))
    start = pattern[: pattern.index("://") + 3]
    shown = [info for info in infos if info.is_file and (info is own or _is_input(info.base_name))]
    files = [File(folder + info.path.removeprefix(inner.rstrip("/")), info.size, info.mtime_ns or 0) for info in shown]
    assert all(file.path.startswith(start) for file in files)
    return [file for file in files if folder == pattern or _matches(file.path, pattern)]


def _matches(path: str, pattern: str) -> bool:
    """Whether a path matches a pattern, in which * stops at a slash, unless it is **."""
    if "**" in pattern:
        return fnmatch(path, pattern)
    names, patterns = path.split("/"), pattern.split("/")
    return len(names) == len(patterns) and all(map(fnmatch, names, patterns))


def _is_input(name: str) -> bool:
    return name.lower().endswith(KNOWN) and not name.startswith((".", "_"))


def _store(uri: str) -> tuple[Any, str]:
    from pyarrow.fs import FileSystem

    store, inner = FileSystem.from_uri(uri)
    return store, inner


@contextmanager
def _store_errors(path: str) -> Iterator[None]:
    """Turn what pyarrow raises, such as for an unknown store or a wrong key, into one line."""
    try:
        yield
    except Exception as error:
        raise DataError(f"cannot be read: {reason(error)}", path) from None


@contextmanager
def opened_file(path: str) -> Iterator[BinaryIO]:
    """Open an input file, wherever it is."""
    if not is_remote(path):
        try:
            file = Path(path).open("rb")  # noqa: SIM115  (closed below; errors of its reader are not its own)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}", path) from None
    else:
        with _store_errors(path):
            store, inner = _store(path)
            file = store.open_input_file(inner)
    with file:
        yield file


# --- Slices -----------------------------------------------------------------------------------------------------------


def slices_of(files: list[File], encoding: str, size: int | None = None) -> list[Slice]:
    """Return the slices of files, in order.  size: bytes of a slice; default: by the size of all files."""
    size = size or min(max(sum(file.size for file in files) // PARTS, LEAST), MOST)
    with ThreadPoolExecutor(READERS) as pool:
        return [one for slices in pool.map(partial(_slices, size=size, encoding=encoding), files) for one in slices]


def _slices(file: File, size: int, encoding: str) -> list[Slice]:
    name = file.path.lower()
    if name.endswith(".parquet"):
        return _row_slices(file, size)
    if file.size <= size:
        return [Slice(file.path)]
    if name.endswith(".jsonl"):
        return _line_slices(file, size)
    if _SPLIT.fullmatch(checked_encoding(encoding)):
        if name.endswith(".txt"):
            return _line_slices(file, size)
        if name.endswith((".csv", ".tsv")) and not is_remote(name):
            return _csv_slices(file, size, encoding)
    return [Slice(file.path)]


def _row_slices(file: File, size: int) -> list[Slice]:
    """Return slices of about equally many rows; `size` counts bytes of the columns before they are compressed."""
    import pyarrow.parquet

    with opened_file(file.path) as content, parquet_errors(file.path):
        about = pyarrow.parquet.ParquetFile(content).metadata
        rows, groups = about.num_rows, [about.row_group(group) for group in range(about.num_row_groups)]
    count = max(1, round(sum(group.total_byte_size for group in groups) / size))
    ends = [rows * number // count for number in range(count + 1)]
    return [Slice(file.path, *pair) for pair in pairwise(ends) if pair[0] < pair[1]]


def _line_slices(file: File, size: int) -> list[Slice]:
    """Return slices of whole lines; only their ends are read."""
    starts = [0]
    with opened_file(file.path) as content:
        for start in range(size, file.size, size):
            if start <= starts[-1]:
                continue
            content.seek(start - 1)
            end = start - 1
            while block := content.read(_COPIED):
                at = block.find(b"\n")
                end += len(block) if at < 0 else at + 1
                if at >= 0:
                    break
            if starts[-1] < end < file.size:
                starts.append(end)
    return [Slice(file.path, *pair, 0, 0) for pair in zip(starts, [*starts[1:], -1], strict=True)]


def _csv_slices(file: File, size: int, encoding: str) -> list[Slice]:
    """Return slices of whole rows, which may hold line breaks: the file is read once. A broken file is one slice."""
    position, line = 0, 1

    def lines() -> Iterator[str]:
        nonlocal position
        for raw in content:
            position += len(raw)
            yield raw.decode("latin-1")  # quotes and separators are ASCII

    header, slices = 0, list[Slice]()
    start, first = 0, 1
    with opened_file(file.path) as content:
        reader = csv.reader(lines(), delimiter=delimiter_of(Path(file.path), encoding, "surrogateescape"), strict=True)
        try:
            for row in reader:
                line = reader.line_num + 1
                if row and not header:
                    header = start = position
                    first = line
                elif position - start >= size:
                    slices.append(Slice(file.path, start, position, header, first))
                    start, first = position, line
        except csv.Error:
            return [Slice(file.path)]
    if start < position:
        slices.append(Slice(file.path, start, -1, header, first))
    return slices if len(slices) > 1 else [Slice(file.path)]


def local_copy(part: Slice, folder: Path) -> Path:
    """Return a local file with the slice, after the header of its file; a whole local file is its own copy."""
    if part.is_whole and not is_remote(part.file):
        return Path(part.file)
    path = folder / Path(part.file).name
    with opened_file(part.file) as content, path.open("wb") as copy:
        copy.write(content.read(part.header))
        content.seek(part.start)
        left = part.stop - part.start if part.stop >= 0 else None
        if left is None:
            shutil.copyfileobj(content, copy, _COPIED)
        while left and (block := content.read(min(left, _COPIED))):
            copy.write(block)
            left -= len(block)
    return path


def line_of(part: Slice, number: int) -> int:
    """Return the line in the file of a line of its copy, from 1."""
    if part.is_whole:
        return number
    if part.line:  # its copy starts with the header, which ends before line `part.line` of the file
        return number + part.line - 1 - _lines_of(part.file, part.header)
    return number + _lines_of(part.file, part.start)


def _lines_of(path: str, stop: int) -> int:
    """Return how many lines end before a position."""
    count = 0
    with opened_file(path) as content:
        while stop and (block := content.read(min(stop, _COPIED))):
            count += block.count(b"\n")
            stop -= len(block)
    return count
