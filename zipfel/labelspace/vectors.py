"""Label vectors that need no walks: random ones, smoothed over a graph of labels, and those of labels that come later.

What they are worth beside DeepWalk's: docs/papers/dxml.md.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array


def random_directions(count: int, dimension: int, numbers: np.random.Generator) -> NDArray[np.float32]:
    """Return random unit vectors [count, dimension], nearly orthogonal to each other and to all other vectors."""
    return _unit(numbers.standard_normal((count, dimension), dtype=np.float32))


def smoothed(graph: csr_array, dimension: int, numbers: np.random.Generator, weight: float) -> NDArray[np.float32]:
    """Return unit label vectors, [L, dimension]: a random direction of a label's own, and `weight` of its neighbours'.

    It is what one step of many walks would gather, without the walks. A weight of 0 leaves random directions, which
    are orthogonal to each other as long as dimensions have room for that.

    >>> graph = csr_array(np.array([[0, 1], [1, 0]], dtype=np.float32))
    >>> np.allclose(*smoothed(graph, 3, np.random.default_rng(0), weight=1.0))
    True
    """
    own = random_directions(graph.shape[0], dimension, numbers)
    if len(own) <= dimension:
        own = np.linalg.qr(own.T)[0].T
    return _unit(own + weight * _unit(np.asarray(graph @ own, dtype=np.float32)))


def extended(V: NDArray[np.float32], graph: csr_array, numbers: np.random.Generator) -> NDArray[np.float32]:
    """Return label vectors [L, dimension]: V [known, dimension] as it is, and vectors for the labels behind them.

    graph: [L, L]. A new label gets the mean of the vectors of its known neighbours, weighted by its edges, scaled to
    the median length of known vectors. Without known neighbours, it gets a random direction of that length.

    >>> graph = csr_array(np.array([[0, 0, 1], [0, 0, 0], [1, 0, 0]], dtype=np.float32))
    >>> extended(np.eye(2, dtype=np.float32), graph, np.random.default_rng(0)).tolist()
    [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    """
    known = len(V)
    length = float(np.median(np.linalg.norm(V, axis=1))) if known else 1.0
    edges = csr_array(graph[known:, :known])  # [new, known]
    new = np.asarray(edges @ V, dtype=np.float32) / np.maximum(edges.sum(axis=1), 1e-12)[:, None]
    lengths = np.linalg.norm(new, axis=1)
    alone = lengths <= 1e-6 * length  # no neighbours, or neighbours that cancel out
    new[~alone] *= (length / lengths[~alone])[:, None]
    new[alone] = random_directions(int(alone.sum()), V.shape[1], numbers) * length
    return np.concatenate([V, new.astype(np.float32)])


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length 1; those of length 0 stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
