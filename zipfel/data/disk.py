"""Arrays that lie in files instead of the process's own memory, and work on long arrays piece by piece.

Data larger than memory is mapped from files, whose pages the system reads and drops as it needs. What grows with the
points beside it (an order of all points, fingerprints, a selection of rows) lies in temporary files, which have no name
and end with the process. (docs/decisions/023-mapped-data.md)
"""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from zipfel.errors import DataError
from zipfel.types import Ids, pieces

LARGE = 1 << 24  # bytes from which an array that grows with the points lies in a file
_ROWS = 1 << 16  # rows copied at a time


def is_mapped(matrix: csr_array | None) -> bool:
    """Whether the values of a matrix lie in a file."""
    array = None if matrix is None else matrix.data
    while isinstance(array, np.ndarray):
        array = array.base
    return isinstance(array, mmap.mmap)


def in_file(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array of zeros that lies in a temporary file, on the disk of TMPDIR; raise DataError if that is full.

    The file is as large as the array from the start: writing to a mapped file on a full disk would end the process.
    """
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if not size:
        return np.zeros(shape, dtype)
    try:
        with tempfile.TemporaryFile(prefix="zipfel-") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            file.truncate(size)
            return np.ndarray(shape, dtype, mmap.mmap(file.fileno(), size))
    except OSError as error:
        needed = f"{size / 1e9:.1f} GB for a temporary file"
        raise DataError(f"{needed}: {error.strerror or error}; set TMPDIR", tempfile.gettempdir()) from None


def roomy(shape: int | tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array to be filled: in a file if it is large and the disk has room, else in memory."""
    size = math.prod(shape if isinstance(shape, tuple) else (shape,)) * np.dtype(dtype).itemsize
    if size >= LARGE:
        with suppress(DataError):
            return in_file(shape, dtype)
    return np.empty(shape, dtype)


def in_files(matrix: csr_array) -> csr_array:
    """Return a matrix whose large arrays lie in files, if the disk has room."""
    arrays = []
    for array in (matrix.data, matrix.indices, matrix.indptr):
        arrays.append(roomy(len(array), array.dtype))
        arrays[-1][:] = array
    return csr_array(tuple(arrays), shape=matrix.shape)


def permuted(count: int, numbers: np.random.Generator) -> Ids:
    """Return 0 to count - 1 in random order: that of `numbers.permutation(count)`."""
    order = roomy(count, np.int64)
    for piece in pieces(count):
        order[piece] = np.arange(piece.start, piece.stop)
    numbers.shuffle(order)
    return order


def ones_in(flags: Callable[[slice], NDArray[np.bool_]], count: int) -> Ids:
    """Return the rows, of `count`, whose flags are true, ascending.  flags: returns those of a piece of rows."""
    total = sum(int(np.count_nonzero(flags(piece))) for piece in pieces(count))
    rows, end = roomy(total, np.int64), 0
    for piece in pieces(count):
        some = np.flatnonzero(flags(piece)) + piece.start
        rows[end : end + len(some)] = some
        end += len(some)
    return rows


def distinct(arrays: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Return the different numbers of some arrays, ascending."""
    whole, end = roomy(sum(map(len, arrays)), np.uint64), 0
    for array in arrays:
        whole[end : end + len(array)] = array
        end += len(array)
    whole.sort()
    kept, last = 0, None
    for piece in pieces(len(whole)):
        some = np.unique(whole[piece])
        some, last = some[int(some[0] == last) :], some[-1]
        whole[kept : kept + len(some)] = some
        kept += len(some)
    return whole[:kept]


def counts_of(matrix: csr_array) -> NDArray[np.int64]:
    """Return how many entries each column of a matrix stores, [columns]."""
    counts = np.zeros(matrix.shape[1], dtype=np.int64)
    for piece in pieces(matrix.nnz):
        counts += np.bincount(matrix.indices[piece], minlength=len(counts))
    return counts


def empty_rows(matrix: csr_array) -> int:
    """Return how many rows of a matrix store nothing."""
    ends = matrix.indptr
    return sum(int(np.count_nonzero(ends[p.start + 1 : p.stop + 1] == ends[p])) for p in pieces(matrix.shape[0]))


def taken(matrix: csr_array, rows: Ids) -> csr_array:
    """Return some rows of a matrix, in their order; of a mapped one, many rows are copied into temporary files."""
    if not is_mapped(matrix) or len(rows) <= _ROWS:
        return matrix[rows]
    ends = in_file(len(rows) + 1, matrix.indptr.dtype)
    for piece in pieces(len(rows)):
        some = rows[piece]
        ends[piece.start + 1 : piece.stop + 1] = ends[piece.start] + np.cumsum(
            matrix.indptr[some + 1] - matrix.indptr[some]
        )
    indices, values = (in_file(int(ends[-1]), array.dtype) for array in (matrix.indices, matrix.data))
    for piece in pieces(len(rows), _ROWS):
        some, entries = matrix[rows[piece]], slice(int(ends[piece.start]), int(ends[piece.stop]))
        indices[entries], values[entries] = some.indices, some.data
    return csr_array((values, indices, ends), shape=(len(rows), matrix.shape[1]))


def row_pieces(matrix: csr_array) -> Iterator[tuple[slice, csr_array]]:
    """Yield pieces of a matrix: which rows, and these."""
    for piece in pieces(matrix.shape[0], _ROWS):
        yield piece, matrix[piece]
