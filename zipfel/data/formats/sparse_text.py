"""Sparse rows as text: `l,l,l f:v f:v` (Extreme Classification Repository) and `f:v f:v` (its split form).

Reading is fast because numpy finds the separators of a block, which decide whether a number is a label, a feature or
a value, and orjson reads the numbers as one JSON list. Any unusual block is read again line by line by `parse_line`,
the reference for the format, which either parses a line or says what is wrong with it.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.dataset import first_row
from zipfel.data.formats.files import Growing, line_blocks, opened, shortened
from zipfel.errors import DataError

LARGEST = 2**31 - 1  # ids are int32
_TOO_LARGE = 2.0**128 - 2.0**103  # from here on a number rounds to infinity in float32
_LONGEST_HEADER = 4000  # bytes; a longer first line is no header
_SEPARATORS = b"\n ,:"  # a separator's index in this string is its code below
_NEWLINE, _SPACE, _COMMA, _COLON = range(4)
_BAD, _LABEL, _FEATURE, _VALUE, _NOTHING = range(5)

_CODES = np.full(256, 255, dtype=np.uint8)
_CODES[list(_SEPARATORS)] = range(4)
_ALLOWED = np.zeros(256, dtype=bool)
_ALLOWED[list(_SEPARATORS + b"0123456789+-.eE")] = True
_TO_JSON = bytes.maketrans(_SEPARATORS, b",,,,")

# The role of a number, by the separator before it (row) and the one after it (column).
_ROLES = np.full((4, 4), _BAD, dtype=np.uint8)
_ROLES[_NEWLINE, [_NEWLINE, _SPACE, _COMMA]] = _LABEL
_ROLES[_COMMA, [_NEWLINE, _SPACE, _COMMA]] = _LABEL
_ROLES[[_NEWLINE, _SPACE], _COLON] = _FEATURE
_ROLES[_COLON, [_NEWLINE, _SPACE]] = _VALUE


class Header(NamedTuple):
    """Sizes from a file's first line; `labels` is 0 in the split form, whose rows hold only pairs.

    column: the name of ids in `id:value` pairs, for messages.  source: where the sizes come from, for messages.
    """

    points: int
    features: int
    labels: int = 0
    column: str = "feature"
    source: str = "the header says"


@dataclass(frozen=True)
class SparseFile:
    """The content of a file. merged_labels, merged_features: how many entries repeated another one of their row."""

    labels: csr_array  # [points, labels]
    features: csr_array  # [points, features]
    merged_labels: int
    merged_features: int


class _Block(NamedTuple):
    """The rows of one block of lines."""

    label_counts: NDArray[np.int64]  # [rows]
    labels: NDArray[np.float64]
    feature_counts: NDArray[np.int64]  # [rows]
    features: NDArray[np.float64]
    values: NDArray[np.float64]


def read_sparse(path: Path, names: Sequence[str]) -> SparseFile:
    """Read a file whose header holds the sizes in `names`: points, features, labels, or points and one more."""
    with opened(path) as stream:
        return read_rows(stream, path, read_header(stream, path, names))


def read_header(stream: BinaryIO, path: Path, names: Sequence[str]) -> Header:
    """Read the first line, such as `15539 5000 3993`."""
    line = stream.readline(_LONGEST_HEADER + 4).removeprefix(codecs.BOM_UTF8)
    numbers = line.split()
    if not numbers:
        raise DataError("empty" if not line else f"line 1 is empty; expected '{' '.join(names)}'", path, 1)
    if len(numbers) != len(names) or not all(map(bytes.isdigit, numbers)) or len(line) > _LONGEST_HEADER:
        raise DataError(f"expected the header '{' '.join(names)}', found {shown(line)}", path, 1)
    sizes = list(map(int, numbers))
    for size, name in zip(sizes, names, strict=True):
        if not 1 <= size <= LARGEST:
            raise DataError(f"the header says {shown(b'%d' % size)[1:-1]} {name}, outside 1..{LARGEST}", path, 1)
    return Header(sizes[0], sizes[1], sum(sizes[2:]), column=names[1].removesuffix("s"))


def read_rows(stream: BinaryIO, path: Path, header: Header, first_line: int = 2, zeros: bool = False) -> SparseFile:
    """Read all rows after the header; their number and their ids must fit it.

    zeros: keep values of 0, which are scores in a file of predictions but meaningless in a file of features.
    """
    label_counts, labels = Growing(np.int64), Growing(np.int32)
    feature_counts, features, values = Growing(np.int64), Growing(np.int32), Growing(np.float32)
    rows = 0
    for text in line_blocks(stream, path, first_line):
        block = _parse_fast(_plain(text))
        if block is None or not _in_range(block, header):
            block = _parse_slowly(text, path, header, rows + first_line)
        rows += len(block.label_counts)
        for buffer, part in zip((label_counts, labels, feature_counts, features, values), block, strict=True):
            buffer.append(part)
    y_counts, x_counts = label_counts.done(), feature_counts.done()
    _check_rows(y_counts + x_counts, path, header, first_line)
    Y, merged_labels = matrix_of(y_counts[: header.points], labels.done(), header.labels)
    X, merged_features = matrix_of(x_counts[: header.points], features.done(), header.features, values.done(), zeros)
    if merged_features and not np.isfinite(X.data).all():
        line = first_row(X, ~np.isfinite(X.data)) + first_line
        raise DataError(f"the values of a repeated {header.column} sum to more than float32 can hold", path, line)
    return SparseFile(Y, X, merged_labels, merged_features)


def matrix_of(
    counts: NDArray[np.int64],
    ids: NDArray[np.int32],
    columns: int,
    values: NDArray[np.float32] | None = None,
    zeros: bool = False,
) -> tuple[csr_array, int]:
    """Make a CSR array with `counts` entries per row; return it and how many repeated entries were summed.

    values: default 1.  zeros: keep entries of 0.
    """
    indptr = np.concatenate(([0], np.cumsum(counts)))
    if indptr[-1] <= LARGEST:
        indptr = indptr.astype(np.int32)
    values = np.ones(len(ids), dtype=np.float32) if values is None else values
    matrix = csr_array((values, ids, indptr), shape=(len(counts), columns))
    matrix.sum_duplicates()
    merged = len(ids) - matrix.nnz
    if not zeros and not matrix.data.all():
        matrix.eliminate_zeros()
    return matrix, merged


def _check_rows(counts: NDArray[np.int64], path: Path, header: Header, first_line: int) -> None:
    """Check that the number of rows is that of the header; blank lines at the end do not count."""
    rows, expected = len(counts), header.points
    if rows < expected:
        raise DataError(f"the file ends after {rows} points; {header.source} {expected}", path, rows + first_line - 1)
    if counts[expected:].any():
        line = expected + int(np.argmax(counts[expected:] > 0)) + first_line
        raise DataError(f"more points than expected; {header.source} {expected}", path, line)


def _plain(text: bytes) -> bytes:
    """Normalise line ends, tabs and repeated blanks; usually there is nothing to do."""
    if b"\r" in text:
        text = text.replace(b"\r\n", b"\n")
    if b"\t" in text:
        text = text.replace(b"\t", b" ")
    if b"  " in text:
        text = re.sub(rb" {2,}", b" ", text)
    return text.replace(b" \n", b"\n")


def _parse_fast(text: bytes) -> _Block | None:
    """Parse a block of regular lines, or return None."""
    codes = _CODES[np.frombuffer(text, dtype=np.uint8)]
    ends = np.flatnonzero(codes != 255)  # a number ends before each separator
    after = codes[ends]
    before = np.concatenate(([np.uint8(_NEWLINE)], after[:-1]))
    roles = _ROLES[before, after]
    empty = np.diff(ends, prepend=-1) == 1
    if empty.any():  # a row without labels starts with a blank, or is empty if it has no features either
        at_start = empty & (before == _NEWLINE) & (after <= _SPACE)
        roles[at_start] = _NOTHING
        if (empty & ~at_start).any():
            return None
        text = re.sub(rb"(?m)^(?=[ \n])", b"0", text)
    if (roles == _BAD).any() or (numbers := json_numbers(text[:-1])) is None:
        return None
    rows = np.cumsum(before == _NEWLINE) - 1
    return _Block(
        np.bincount(rows[roles == _LABEL], minlength=rows[-1] + 1),
        numbers[roles == _LABEL],
        np.bincount(rows[roles == _FEATURE], minlength=rows[-1] + 1),
        numbers[roles == _FEATURE],
        numbers[roles == _VALUE],
    )


def json_numbers(text: bytes) -> NDArray[np.float64] | None:
    """Parse separated numbers; return None if one is not a JSON number, such as 007, +1 or `1.`."""
    if not _ALLOWED[np.frombuffer(text, dtype=np.uint8)].all():
        return None
    try:
        return np.array(orjson.loads(b"[" + text.translate(_TO_JSON) + b"]"), dtype=np.float64)
    except orjson.JSONDecodeError:
        return None


def _in_range(block: _Block, header: Header) -> bool:
    ids = _are_ids(block.labels, header.labels) and _are_ids(block.features, header.features)
    return ids and fit_float32(block.values)


def fit_float32(values: NDArray[np.float64]) -> bool:
    """Whether all values are finite as float32."""
    return bool(np.all(np.abs(values) < _TOO_LARGE))


def _are_ids(numbers: NDArray[np.float64], size: int) -> bool:
    return bool(np.all((numbers >= 0) & (numbers < size) & (numbers == np.floor(numbers))))


def _parse_slowly(text: bytes, path: Path, header: Header, first_line: int) -> _Block:
    """Parse a block line by line; raise a DataError that names the line."""
    labels: list[list[int]] = []
    pairs: list[list[tuple[int, float]]] = []
    for number, line in enumerate(text.split(b"\n")[:-1], start=first_line):
        try:
            row_labels, row_pairs = parse_line(line, header)
        except ValueError as error:
            raise DataError(str(error), path, number) from None
        labels.append(row_labels)
        pairs.append(row_pairs)
    return _Block(
        np.array([len(row) for row in labels], dtype=np.int64),
        np.array([label for row in labels for label in row], dtype=np.float64),
        np.array([len(row) for row in pairs], dtype=np.int64),
        np.array([feature for row in pairs for feature, _ in row], dtype=np.float64),
        np.array([value for row in pairs for _, value in row], dtype=np.float64),
    )


def parse_line(line: bytes, header: Header) -> tuple[list[int], list[tuple[int, float]]]:
    """Parse one line into labels and (feature, value) pairs; the reference for the format. Raises ValueError.

    >>> parse_line(b"3,1 0:0.5 2:-1", Header(1, 4, 4))
    ([3, 1], [(0, 0.5), (2, -1.0)])
    """
    words = line.split()
    labels: list[int] = []
    if words and header.labels and b":" not in words[0] and not line[:1].isspace():
        labels = [parse_id(word, "label", header.labels, header.source) for word in words.pop(0).split(b",")]
    return labels, [_pair(word, header) for word in words]


def _pair(word: bytes, header: Header) -> tuple[int, float]:
    column, colon, value = word.partition(b":")
    if not colon or not column or not value:
        raise ValueError(f"expected {header.column}:value, found {shown(word)}")
    return parse_id(column, header.column, header.features, header.source), parse_value(value)


def parse_value(word: bytes) -> float:
    """Parse a number that is finite as float32; raise ValueError otherwise."""
    value = _number(word, "a number")
    if not abs(value) < _TOO_LARGE:  # also NaN
        raise ValueError(f"value {shown(word)} is not a finite float32 number")
    return value


def parse_id(word: bytes, kind: str, size: int, source: str) -> int:
    """Parse an id below `size`; raise ValueError otherwise. source: where `size` comes from, for the message."""
    number = _number(word, f"a {kind} id")
    if not number.is_integer():
        raise ValueError(f"expected a {kind} id, found {shown(word)}")
    if not 0 <= number < size:
        bounds = f"outside 0..{size - 1} ({source} {size} {kind}s)"
        raise ValueError(f"{kind} id {shown(word)[1:-1]} is {bounds}")
    return int(number)


def _number(word: bytes, expected: str) -> float:
    try:
        return float("_" if b"_" in word else word)  # Python would read 1_000 as a thousand
    except ValueError:
        raise ValueError(f"expected {expected}, found {shown(word)}") from None


def shown(text: bytes, most: int = 40) -> str:
    """Return bytes for a message: decoded, quoted, without line end, and cut to `most` characters."""
    return repr(shortened(text.rstrip(b"\r\n").decode("utf-8", "replace"), most))
