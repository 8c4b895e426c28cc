"""What a label is about, by its points: the sum of their features (DECAF, Module I)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

CHUNK = 1 << 22  # entries that a chunk of labels has before the largest are kept, under 200 MB with their order


def sparse_centroids(X: csr_array, Y: csr_array, Z: csr_array | None, most: int | None = None) -> csr_array:
    """Return c_l = Σ x_i over the points i of label l, [L, V] float32; a label that has none gets its text, row l of Z.

    X: [N, V].  Y: [N, L], where only what is not zero counts.  Z: [L, V].  most: how many entries of a row are kept,
    the largest; the rest never takes up memory beyond a chunk of labels.

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
        rows = rows if most is None else _largest(rows, most)
        counts.append(np.diff(rows.indptr))
        columns.append(rows.indices)
        values.append(rows.data)
    ends = np.concatenate(([0], np.cumsum(np.concatenate(counts), dtype=np.int64)))
    return csr_array((_joined(values), _joined(columns), ends), shape=(Y.shape[1], X.shape[1]))


def _chunks(points: csr_array, X: csr_array) -> Iterator[tuple[int, int]]:
    """Yield first and last of labels whose points have about CHUNK entries together; at least one label."""
    entries = points @ np.diff(X.indptr).astype(np.float64)  # [L], at most so many has a centroid
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


def _largest(rows: csr_array, most: int) -> csr_array:
    """Keep the `most` largest entries of each row, of equal ones those of lower columns, in the order of columns."""
    rows.sort_indices()
    counts = np.diff(rows.indptr)
    if counts.max(initial=0) <= most:
        return rows
    keys = np.repeat(np.arange(len(counts), dtype=np.uint64) << np.uint64(32), counts)
    keys |= ~np.abs(rows.data).view(np.uint32)  # bits of positive floats sort as they do; lexsort takes 9 times as long
    order = np.argsort(keys, kind="stable")
    kept = np.zeros(rows.nnz, dtype=bool)
    kept[order[np.arange(rows.nnz) - np.repeat(rows.indptr[:-1], counts) < most]] = True
    ends = np.concatenate(([0], np.cumsum(np.minimum(counts, most))))
    return csr_array((rows.data[kept], rows.indices[kept], ends), shape=rows.shape)


def _joined(parts: list[NDArray[np.generic]]) -> NDArray[np.generic]:
    """Put parts together, and let go of them: of indices and values, only one is ever held twice."""
    whole = np.concatenate(parts)
    parts.clear()
    return whole
