"""Open, stream and write files, plain, gzip or zip. Errors name file and line; no file is ever half-written."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray

from zipfel.data.cells import half_of_pair
from zipfel.errors import ConfigError, DataError, quoted

Line = TypeVar("Line", str, bytes)

LONGEST_LINE = 64 << 20  # bytes or characters: a small compressed file can hold one line that fills the memory
BLOCK = 1 << 17  # bytes read at a time: enough for numpy to be fast, and a parsed block stays at a few megabytes


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading; the only file in a .zip, and gzip by its first bytes, are decompressed."""
    try:
        if path.suffix.lower() == ".zip":
            with zipfile.ZipFile(path) as archive, archive.open(_only_member(archive, path)) as member:
                yield cast(BinaryIO, member)
            return
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=raw), BLOCK)) if packed else raw
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"broken {_packing(path)} file: {str(error).rstrip('.')}", path) from None
    except zipfile.BadZipFile as error:
        raise DataError(f"broken zip file: {reason(error)}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from None


def _packing(path: Path) -> str:
    return "zip" if path.suffix.lower() == ".zip" else "gzip"


def _only_member(archive: zipfile.ZipFile, path: Path) -> str:
    """Return the name of the only file in an archive, apart from hidden ones and those that macOS adds."""
    files = [item for item in archive.infolist() if not item.is_dir() and not item.filename.startswith("__MACOSX/")]
    shown = [item for item in files if not item.filename.rpartition("/")[2].startswith(".")]
    if len(shown) != 1:
        inside = listed(item.filename for item in shown) or "nothing"
        raise DataError(f"expected a zip file with one table, found {inside}; unpack it first", path)
    if shown[0].flag_bits & 1:
        raise DataError("the zip file is protected by a password; unpack it first", path)
    return shown[0].filename


def unpacked_name(path: Path) -> str:
    """Return the name of a file in lower case without .gz; of a .zip, the name of the only file in it."""
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith(".zip") or not path.is_file():
        return name
    try:
        with zipfile.ZipFile(path) as archive:
            return _only_member(archive, path).rpartition("/")[2].lower()
    except zipfile.BadZipFile as error:
        raise DataError(f"broken zip file: {reason(error)}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from None


def line_blocks(stream: BinaryIO, path: Path, line: int = 1) -> Iterator[bytes]:
    """Yield the rest of a stream in blocks of whole lines; every block ends with a newline.

    path, line: the file and the number of the next line, for errors.
    """
    rest, length = list[bytes](), 0  # parts of a line longer than a block, joined only once
    while block := stream.read(BLOCK):
        end = block.rfind(b"\n") + 1
        if end:
            lines = b"".join(rest) + block[:end]
            yield lines
            line += lines.count(b"\n")
            rest, length = [], 0
        rest.append(block[end:])
        length += len(rest[-1])
        if length > LONGEST_LINE:
            raise _too_long(path, line)
    if any(rest):
        yield b"".join(rest) + b"\n"


def byte_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, line without its end) for each line of a file; a byte-order mark is skipped."""
    with opened(path) as stream:
        for number, line in enumerate(_lines(stream.readline, path), start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            yield number, line.rstrip(b"\r\n")


def text_lines(path: Path, encoding: str = "utf-8", newline: str = "", errors: str = "strict") -> Iterator[str]:
    r"""Yield the decoded lines of a file with their ends; a byte-order mark is skipped.

    newline: "" ends lines at any of \n, \r and \r\n, which csv needs; "\n" only at \n.  errors: "surrogateescape"
    decodes wrong bytes as halves of surrogate pairs, for callers that look for these.
    """
    if checked_encoding(encoding) == "utf-8":
        encoding = "utf-8-sig"
    with opened(path) as stream:
        try:
            with io.TextIOWrapper(stream, encoding, errors, newline) as lines:
                for number, line in enumerate(_lines(lines.readline, path), start=1):
                    strict = errors == "strict" and encoding != "utf-8-sig"
                    if strict and (half := half_of_pair(line)) is not None:  # UTF-7, for one
                        raise DataError(f"{half!a} is half of a surrogate pair, and no character", path, number)
                    yield line
        except UnicodeError:  # the wrapper decodes ahead, so the line is unknown here
            raise _undecodable(path, encoding) from None


def _lines(read: Callable[[int], Line], path: Path) -> Iterator[Line]:
    """Yield lines; raise DataError for one that would fill the memory."""
    number = 0
    while line := read(LONGEST_LINE + 1):
        number += 1
        if len(line) > LONGEST_LINE:
            raise _too_long(path, number)
        yield line


def _too_long(path: Path, line: int) -> DataError:
    return DataError(f"the line is longer than {LONGEST_LINE >> 20} MiB; is it one line of text?", path, line)


def checked_encoding(name: str) -> str:
    """Return the canonical name of an encoding; raise DataError if it is unknown."""
    try:
        "a".encode(name)  # fails for codecs that do not encode text, such as base64
        return codecs.lookup(name).name
    except (LookupError, ValueError):
        raise DataError(f"unknown encoding {name!r}; try utf-8, cp1252, latin-1 or utf-16") from None


def _undecodable(path: Path, encoding: str) -> DataError:
    """Decode a file again while counting lines, and return an error that names the line where decoding fails."""
    name = encoding.removesuffix("-sig")
    with opened(path) as stream:
        guess = "utf-16" if stream.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "cp1252"
    advice = f"set the right one with --encoding{f' ({guess}?)' if name == 'utf-8' else ''}"
    decoder, line = codecs.getincrementaldecoder(encoding)(), 1
    with opened(path) as stream:
        while block := stream.read(BLOCK):
            before = decoder.getstate()
            try:
                line += decoder.decode(block).count("\n")
            except UnicodeDecodeError as error:
                if "BOM" in error.reason:  # from Python 3.13 on; before, a plain UnicodeError
                    return DataError(f"not {name}: UTF-16 stream does not start with BOM; {advice}", path, 1)
                decoder.setstate(before)
                good = max(0, len(block) - len(error.object) + error.start)  # the object starts with left-over bytes
                line += decoder.decode(block[:good]).count("\n")
                return DataError(f"not {name}: byte 0x{error.object[error.start]:02x}; {advice}", path, line)
            except UnicodeError as error:  # such as utf-16 without a byte-order mark
                return DataError(f"not {name}: {reason(error)}; {advice}", path, 1)
    return DataError(f"not {name}: the file ends within a character; {advice}", path, line)


def read_names(path: Path, size: int, kind: str, encoding: str = "utf-8") -> list[str]:
    """Read a file with one name (or text) per line; it must have `size` lines, not counting blank ones at the end."""
    names = [line.rstrip("\r\n") for line in text_lines(path, encoding, newline="\n")]
    while len(names) > size and not names[-1].strip():
        names.pop()
    if len(names) != size:
        raise DataError(f"holds {len(names)} lines, expected {size} {kind}", path, min(len(names), size + 1) or 1)
    return names


def shortened(text: str, most: int) -> str:
    """Return a text, cut off if it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def printable(text: str, most: int = 120) -> str:
    r"""Return text for a one-line message: shortened, and with line breaks and the like escaped.

    >>> print(printable("a b"), printable("a\nb"))
    a b a\nb
    """
    text = shortened(text, most)
    return text if text.isprintable() else repr(text)[1:-1]


def reason(error: BaseException) -> str:
    """Return the first line of an error message that is not blank, or the type of an error without message."""
    return printable(next((line for line in str(error).splitlines() if line.strip()), type(error).__name__))


def listed(names: Iterable[object], most: int = 12) -> str:
    """Return up to `most` names as a list for a one-line message."""
    shown = [printable(str(name), 40) for name in names]
    return ", ".join(shown[:most]) + (", …" if len(shown) > most else "")


def find(folder: Path, *names: str) -> Path | None:
    """Return the file with one of these names, plain or with .gz or .zip, or None; two such files are an error."""
    ends = ("", ".gz", ".zip")
    paths = [folder / (name + end) for name in names for end in ends if (folder / (name + end)).is_file()]
    if len(paths) > 1:
        raise DataError(f"holds both {paths[0].name} and {paths[1].name}; remove one", folder)
    return paths[0] if paths else None


def require(folder: Path, *names: str) -> Path:
    """Return the file with one of these names, plain or with .gz or .zip; a missing file is an error."""
    path = find(folder, *names)
    if path is None:
        raise DataError(f"{' or '.join(names)} is missing", folder)
    return path


class Growing:
    """An array that grows in place where the allocator can, so that reading needs no second copy."""

    def __init__(self, dtype: DTypeLike) -> None:
        self._array: NDArray[Any] = np.empty(1024, dtype=dtype)
        self._size = 0

    def append(self, values: NDArray[Any]) -> None:
        """Append values."""
        needed = self._size + len(values)
        if needed > len(self._array):
            self._array.resize(max(needed, len(self._array) * 5 // 4), refcheck=False)
        self._array[self._size : needed] = values
        self._size = needed

    def done(self) -> NDArray[Any]:
        """Return the array, cut to its size; do not append afterwards."""
        self._array.resize(self._size, refcheck=False)
        return self._array


@contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing under a temporary name, renamed on success; gzip if the name ends in .gz."""
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
    except UnicodeEncodeError as error:  # half of a surrogate pair, which UTF-8 cannot encode
        raise DataError(f"cannot be written: {reason(error)}", path) from None
    finally:
        with suppress(OSError):  # it may not even have been created
            temporary.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file at once; it is never half-written."""
    with new_file(path) as out:
        out.write(content)


def lock(file: int, problem: str) -> None:
    """Lock an open file against other processes until it is closed; if another one has locked it, raise ConfigError."""
    try:
        import fcntl
    except ImportError:  # Windows: no lock
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ConfigError(problem) from None


def json_line(item: object) -> bytes:
    """Return an object as one line of JSON."""
    try:
        return orjson.dumps(item) + b"\n"
    except TypeError as error:  # half of a surrogate pair
        raise DataError(f"cannot be written as JSON: {error}") from None


def write_names(path: Path, names: Sequence[str]) -> None:
    """Write one name per line."""
    with new_file(path) as out:
        for number, name in enumerate(names):
            if "\n" in name or "\r" in name:
                raise DataError(f"name {number} has a line break, which this format cannot hold: {quoted(name)}", path)
            out.write(name.encode() + b"\n")
