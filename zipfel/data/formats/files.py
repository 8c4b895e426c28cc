"""Opening, streaming and writing files: plain or gzip, with errors that name file and line, and never half-written."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from zipfel.errors import DataError

BLOCK = 1 << 17  # bytes read at a time: large enough for numpy, and what is made of them stays at a few megabytes


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading, unpacked where it is gzip (told by its first bytes, not by its name)."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=raw), BLOCK)) if packed else raw
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"broken gzip file: {str(error).rstrip('.')}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from None


def line_blocks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of a stream in blocks of whole lines, each ended by a newline."""
    rest: list[bytes] = []  # a line longer than a block is joined once, not once a block
    while block := stream.read(BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            yield b"".join(rest) + block[:end]
            rest = []
        rest.append(block[end:])
    if any(rest):
        yield b"".join(rest) + b"\n"


def byte_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number, line without its end) of a file; a byte-order mark is left out."""
    with opened(path) as stream:
        for number, line in enumerate(stream, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, line.rstrip(b"\r\n")


def text_lines(path: Path, encoding: str = "utf-8", newline: str = "") -> Iterator[str]:
    r"""Yield the decoded lines of a file with their ends; a byte-order mark is left out.

    newline: "" ends lines at any of \n, \r and \r\n, as csv wants them; "\n" at that alone.
    """
    if checked_encoding(encoding) == "utf-8":
        encoding = "utf-8-sig"
    with opened(path) as stream:
        try:
            with io.TextIOWrapper(stream, encoding, newline=newline) as lines:
                yield from lines
        except UnicodeError:  # the wrapper decodes ahead, so it does not know the line
            raise _undecodable(path, encoding) from None


def checked_encoding(name: str) -> str:
    """Return the canonical name of an encoding, or say that there is none."""
    try:
        "a".encode(name)  # refuses codecs that do not make text, such as base64
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise DataError(f"unknown encoding {name!r}; utf-8, cp1252, latin-1 and utf-16 are some") from None


def _undecodable(path: Path, encoding: str) -> DataError:
    """Decode a file once more, now counting lines, and tell where that fails."""
    name = encoding.removesuffix("-sig")
    with opened(path) as stream:
        guess = "utf-16" if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "cp1252"
    advice = f"name the right one with --encoding{f' ({guess}?)' if name == 'utf-8' else ''}"
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    with opened(path) as stream:
        while block := stream.read(BLOCK):
            before = decoder.getstate()
            try:
                line += decoder.decode(block).count("\n")
            except UnicodeDecodeError as error:
                decoder.setstate(before)
                good = max(0, len(block) - len(error.object) + error.start)  # the object starts with what was left over
                line += decoder.decode(block[:good]).count("\n")
                return DataError(f"not {name}: byte 0x{error.object[error.start]:02x}; {advice}", path, line)
            except UnicodeError as error:  # such as utf-16 without its mark
                return DataError(f"not {name}: {reason(error)}; {advice}", path, 1)
    return DataError(f"not {name}: ends within a character; {advice}", path, line)


def read_names(path: Path, size: int, kind: str, encoding: str = "utf-8") -> list[str]:
    """Read a file with one name (or text) a line; there must be `size`, not counting blank lines at the end."""
    names = [line.rstrip("\r\n") for line in text_lines(path, encoding, newline="\n")]
    while len(names) > size and not names[-1].strip():
        names.pop()
    if len(names) != size:
        raise DataError(f"holds {len(names)} lines for {size} {kind}", path, min(len(names), size + 1) or 1)
    return names


def printable(text: str, most: int = 120) -> str:
    r"""Return text as it can stand in a message of one line.

    >>> print(printable("a b"), printable("a\nb"))
    a b a\nb
    """
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text if text.isprintable() else repr(text)[1:-1]


def reason(error: BaseException) -> str:
    """Return what an error says, on one line; some libraries say more on further lines, and some say nothing."""
    return printable(next((line for line in str(error).splitlines() if line.strip()), type(error).__name__))


def listed(names: Iterable[object], most: int = 12) -> str:
    """Return names as they are listed in a message: on one line, and not too many."""
    shown = [printable(str(name), 40) for name in names]
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")


def find(folder: Path, *names: str) -> Path | None:
    """Return the file of that name in the folder, plain or with .gz; two of them are an error, not a guess."""
    found = [folder / (name + end) for name in names for end in ("", ".gz") if (folder / (name + end)).is_file()]
    if len(found) > 1:
        raise DataError(f"holds both {found[0].name} and {found[1].name}; remove one", folder)
    return found[0] if found else None


def require(folder: Path, *names: str) -> Path:
    """Return the file of that name in the folder, plain or with .gz, or say that it is missing."""
    found = find(folder, *names)
    if found is None:
        raise DataError(f"{' or '.join(names)} is missing", folder)
    return found


class Growing:
    """An array that grows by appending, in place where the allocator can, so that reading needs no second copy."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._array: NDArray[Any] = np.empty(1024, dtype=dtype)
        self._size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Add values at the end."""
        needed = self._size + len(values)
        if needed > len(self._array):
            self._array.resize(max(needed, len(self._array) * 5 // 4), refcheck=False)
        self._array[self._size : needed] = values
        self._size = needed

    def done(self) -> NDArray[Any]:
        """Return the array, cut to its size; the buffer is not to be used again."""
        self._array.resize(self._size, refcheck=False)
        return self._array


def check_new(path: Path) -> None:
    """Refuse a target folder that is there already, unless it is empty."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise DataError("exists already; remove it or name another place", path)
    except OSError as error:  # such as a name that is too long
        raise DataError(f"cannot be written: {error.strerror or error}", path) from None


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Give a temporary folder beside `path` that takes its name when all is written, and vanishes where not."""
    check_new(path)
    temporary = path.parent / f".{path.name}.{os.getpid()}.part"
    new_parents: list[Path] = []
    try:
        new_parents = [parent for parent in path.parents if not parent.exists()]  # the nearest first
        temporary.mkdir(parents=True)
        yield temporary
        if path.exists():
            path.rmdir()
        temporary.rename(path)
    except DataError as error:
        if error.path is None or temporary not in Path(error.path).parents:
            raise
        raise DataError(error.problem, path / Path(error.path).name, error.line) from None  # as it would be called
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for parent in new_parents:
            with suppress(OSError):  # not empty: it holds what was written
                parent.rmdir()


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing under a temporary name, packed where it ends in .gz; renamed when all is written."""
    if path.is_dir():
        raise DataError("cannot be written: it is a folder", path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with temporary.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(fileobj=raw, mode="wb", filename="", compresslevel=6, mtime=0) as packed:
                    yield cast(BinaryIO, packed)
            else:
                yield raw
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from None
    except UnicodeEncodeError as error:  # half a surrogate pair, which UTF-8 does not have
        raise DataError(f"cannot be written: {reason(error)}", path) from None
    finally:
        with suppress(OSError):  # where it could not even be made
            temporary.unlink(missing_ok=True)


def json_line(item: object) -> bytes:
    """Return an object as one line of JSON."""
    try:
        return orjson.dumps(item) + b"\n"
    except TypeError as error:  # half a surrogate pair
        raise DataError(f"cannot be written as JSON: {error}") from None


def write_names(path: Path, names: Sequence[str]) -> None:
    """Write one name a line."""
    with new_file(path) as out:
        for number, name in enumerate(names):
            if "\n" in name or "\r" in name:
                raise DataError(f"name {number} holds a line break and cannot stand on one line: {name!r:.60}", path)
            out.write(name.encode() + b"\n")
