"""Label centroids: the sum of the features of a label's points (DECAF, Module I)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

CHUNK = 1 << 22  # entries of the centroids computed at a time


def sparse_centroids(X: csr_array, Y: csr_array, Z: csr_array | None) -> csr_array:
    """Return c_l = Σ x_i over the points i of label l, [L, V] float32.

    X: [N, V].  Y: [N, L]; every stored entry counts as 1.  Z: [L, V], texts of labels: row l stands in for the centroid
    of a label l without points.

    >>> X = csr_array(np.array([[1, 0, 2], [0, 1, 1]], dtype=np.float32))
    >>> Y = csr_array(np.array([[1, 1, 0], [1, 0, 0]], dtype=np.float32))
    >>> sparse_centroids(X, Y, csr_array(np.eye(3))).toarray().tolist()
    [[1.0, 1.0, 3.0], [1.0, 0.0, 2.0], [0.0, 0.0, 1.0]]
    """
    points = csr_array((np.ones(Y.nnz, dtype=np.float32), Y.indices, Y.indptr), shape=Y.shape).T.tocsr()  # [L, N]
    X = X.astype(np.float32, copy=False)
    counts, columns, values = [], [], []
    for first, last in _chunks(points, X):
        rows = points[first:last] @ X
        rows = rows if Z is None else _with_text(rows, Z[first:last])

        counts.append(np.diff(rows.indptr))
        columns.append(rows.indices)
        values.append(rows.data)
    ends = np.concatenate(([0], np.cumsum(np.concatenate(counts), dtype=np.int64)))
    return csr_array((_joined(values), _joined(columns), ends), shape=(Y.shape[1], X.shape[1]))


def _chunks(points: csr_array, X: csr_array) -> Iterator[tuple[int, int]]:
    """Yield (first, last) of chunks of labels, at least one each, whose centroids have about CHUNK entries together."""
    entries = points @ np.diff(X.indptr).astype(np.float64)  # [L], upper bounds of the centroids' entries
    chunks = np.cumsum(np.minimum(entries, X.shape[1])) // CHUNK
    starts = np.flatnonzero(np.diff(chunks, prepend=-1))
    yield from zip(starts.tolist(), [*starts[1:].tolist(), len(chunks)], strict=True)


def _with_text(rows: csr_array, Z: csr_array) -> csr_array:
    """Fill empty rows with those of Z."""
    empty = np.flatnonzero(np.diff(rows.indptr) == 0)
    if len(empty) == 0:
        return rows
    picked = csr_array((np.ones(len(empty), dtype=np.float32), (empty, empty)), shape=(rows.shape[0],) * 2)
    return csr_array(rows + picked @ Z.astype(np.float32, copy=False))


def _joined(parts: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Concatenate parts and free them, so that of indices and values only one is held twice at any time."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole
