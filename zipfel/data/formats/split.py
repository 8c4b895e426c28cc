"""The repository's split form: `trn_X_Xf.txt` (features), `trn_X_Y.txt` (labels), `tst_*`, `val_*`, `lbl_X_Xf.txt`.

Each file starts with its sizes; rows are `id:value` pairs. A feature file may also be dense: rows of plain numbers,
or `trn_X_Xf.npy`. Names are in `Y.txt` and `Xf.txt`, pairs to ignore in `filter_labels_*.txt`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part, first_row
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import BLOCK, Growing, find, line_blocks, opened, reason, require
from zipfel.data.formats.folder import PREFIXES, merged_notes
from zipfel.data.formats.repository import feature_rows, read_label_features, write_label_features, write_sparse
from zipfel.data.formats.sparse_text import (
    Header,
    fit_float32,
    json_numbers,
    matrix_of,
    parse_value,
    read_header,
    read_rows,
    read_sparse,
    shown,
)
from zipfel.errors import DataError

NAMES = common.Names(labels=("Y.txt", "labels.txt"), features=("Xf.txt", "features.txt"))


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder."""
    parts = {
        name: read_part(folder, prefix)
        for name, prefix in PREFIXES.items()
        if find(folder, f"{prefix}_X_Y.txt") or _feature_file(folder, prefix)
    }
    return common.assembled(folder, parts, NAMES, encoding, Z=read_label_features(folder))


def _feature_file(folder: Path, prefix: str) -> Path | None:
    return find(folder, f"{prefix}_X_Xf.txt", f"{prefix}_X_Xf.npy")


def read_part(folder: Path, prefix: str) -> tuple[Part, list[str]]:
    """Read features and labels of one part; return it and notes on merged entries."""
    x_path, y_path = _feature_file(folder, prefix), require(folder, f"{prefix}_X_Y.txt")
    if x_path is None:
        raise DataError(f"{prefix}_X_Xf.txt (or .npy) is missing", folder)
    X, repeated = read_features(x_path)
    labels = read_sparse(y_path, ("points", "labels"))
    Y = labels.features
    if (negative := Y.data < 0).any():
        line = first_row(Y, negative) + 2
        raise DataError(f"a label has a negative relevance: {Y.data[negative][0]:g}", y_path, line)
    if X.shape[0] != Y.shape[0]:
        raise DataError(f"holds {Y.shape[0]} points, but {x_path.name} holds {X.shape[0]}", y_path, 1)
    notes = merged_notes(y_path.name, labels=labels.merged_features) + merged_notes(x_path.name, features=repeated)
    return Part(Y, X), notes


def read_features(path: Path) -> tuple[csr_array, int]:
    """Read a feature file, sparse or dense; return the matrix and how many repeated entries were summed."""
    if ".npy" in path.suffixes:
        return _sparse(_npy_blocks(path)), 0
    with opened(path) as stream:
        header = read_header(stream, path, ("points", "features"))
        start = stream.tell()
        beginning = stream.read(4096)
        stream.seek(start)
        if b":" in beginning or not beginning.strip():
            content = read_rows(stream, path, header)
            return content.features, content.merged_features
        return _sparse(_text_blocks(stream, path, header)), 0


def _sparse(blocks: Iterator[NDArray[np.float32]]) -> csr_array:
    """Make one CSR array of blocks of dense rows, one at a time, so that the dense matrix need not fit in memory."""
    counts, ids, values = Growing(np.int64), Growing(np.int32), Growing(np.float32)
    columns = 0
    for dense in blocks:
        block, columns = csr_array(dense), dense.shape[1]
        for buffer, part in ((counts, np.diff(block.indptr)), (ids, block.indices), (values, block.data)):
            buffer.append(part)
    return matrix_of(counts.done(), ids.done(), columns, values.done())[0]


def _text_blocks(stream: BinaryIO, path: Path, header: Header) -> Iterator[NDArray[np.float32]]:
    """Yield blocks of rows of plain numbers; their number must be that of the header."""
    line = 2
    for text in line_blocks(stream, path, line):
        lines = [row.replace(b",", b" ").split() for row in text.split(b"\n")[:-1]]
        _check_widths(lines, path, header, line)
        rows = lines[: max(0, header.points + 2 - line)]
        if rows:
            yield _dense_block(rows, path, line)
        line += len(lines)
    if line < header.points + 2:
        raise DataError(f"the file ends after {line - 2} points; the header says {header.points}", path, line - 1)


def _check_widths(lines: list[list[bytes]], path: Path, header: Header, first_line: int) -> None:
    """Check width and number of rows against the header; blank lines at the end do not count."""
    for number, words in enumerate(lines, start=first_line):
        if number > header.points + 1:
            if words:
                raise DataError(f"more points than expected; the header says {header.points}", path, number)
        elif len(words) != header.features:
            line = shown(b" ".join(words))
            raise DataError(f"expected {header.features} numbers, found {len(words)} in {line}", path, number)


def _dense_block(rows: list[list[bytes]], path: Path, first_line: int) -> NDArray[np.float32]:
    """Parse rows of numbers, [rows, features]; numbers that JSON does not allow go through `parse_value`."""
    numbers = json_numbers(b" ".join(b" ".join(words) for words in rows))
    if numbers is None or not fit_float32(numbers):
        numbers = np.array([_parse_dense_line(words, path, n) for n, words in enumerate(rows, start=first_line)])
    return numbers.reshape(len(rows), -1).astype(np.float32)


def _parse_dense_line(words: list[bytes], path: Path, number: int) -> list[float]:
    try:
        return [parse_value(word) for word in words]
    except ValueError as error:
        raise DataError(str(error), path, number) from None


def _npy_blocks(path: Path) -> Iterator[NDArray[np.float32]]:
    """Yield the rows of a dense numpy file in blocks."""
    with opened(path) as stream:
        content = io.BytesIO(stream.read())  # from a gzip stream, numpy would read the compressed bytes
        try:
            array = np.lib.format.read_array(content, allow_pickle=False)
        except Exception as error:  # a mangled header makes numpy raise nearly anything
            raise DataError(f"not a numpy array: {reason(error)}", path) from None
    del content
    if array.ndim != 2 or array.dtype.kind not in "biuf" or not array.size:
        raise DataError(f"expected a matrix of numbers, found shape {array.shape} of {array.dtype}", path)
    step = max(1, BLOCK // array.shape[1])
    for start in range(0, len(array), step):
        rows = array[start : start + step].astype(np.float64)
        if not fit_float32(rows):
            row = next(row for row, values in enumerate(rows, start) if not fit_float32(values))
            raise DataError(f"row {row} holds a value that is not a finite float32 number", path)
        yield rows.astype(np.float32)


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; `suffix` is ".gz" for compressed files."""
    for name, part in dataset.parts.items():
        X, stem = common.required_features(dataset, part), folder / PREFIXES[name]
        write_sparse(feature_rows(X), Path(f"{stem}_X_Xf.txt{suffix}"), X.shape)
        write_sparse(feature_rows(part.Y), Path(f"{stem}_X_Y.txt{suffix}"), part.Y.shape)
    write_label_features(dataset, folder, suffix)
    common.write_common(dataset, folder, NAMES)
