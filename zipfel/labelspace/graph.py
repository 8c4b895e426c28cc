"""Graphs of labels that share points."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.types import pieces

Adjacency = Literal["arithmetic", "geometric", "pmi", "jaccard"]
ROWS = 1 << 18  # points whose pairs of labels are counted at a time


def cooccurrence(Y: csr_array) -> csr_array:
    """Return A = Yᵀ Y, [labels, labels]: the number of points that two labels share; the diagonal counts each label."""
    if Y.shape[0] <= ROWS:
        return csr_array(Y.T @ Y)
    A = csr_array((Y.shape[1],) * 2, dtype=Y.dtype)
    for rows in pieces(Y.shape[0], ROWS):  # so that memory does not grow with the points; whole numbers add up exactly
        A = csr_array(A + Y[rows].T @ Y[rows])
    return A


def walk_step(Y: csr_array) -> csr_array:
    """Return P [labels, labels], the rows of Yᵀ Y divided by their sums: a step of a walk to labels that share points.

    A label stays where it is in proportion to its own points; one without points has an empty row.

    >>> walk_step(csr_array(np.array([[1, 1, 0], [1, 0, 0]], dtype=np.float32))).toarray()[1].tolist()
    [0.5, 0.5, 0.0]
    """
    A = cooccurrence(csr_array((np.ones(Y.nnz, dtype=np.float32), Y.indices, Y.indptr), shape=Y.shape))
    sums = np.repeat(np.maximum(A.sum(axis=1), 1), np.diff(A.indptr))
    return csr_array(((A.data / sums).astype(np.float32), A.indices, A.indptr), shape=A.shape)


def adjacency(
    A: csr_array, labels: NDArray[np.int64], kind: Adjacency = "arithmetic", points: int = 0
) -> NDArray[np.float32]:
    """Return the block of U for a batch of labels, [S, S], GLaS Eq. (3); only this block is ever dense.

    arithmetic: half of A Z⁻¹ + Z⁻¹ A, the mean of the two conditional frequencies.  geometric: A_yy' / √(A_yy A_y'y').
    jaccard: A_yy' / (A_yy + A_y'y' − A_yy'), points with both labels among those with either.  pmi: see
    `normalised_information`, which needs `points`, the number of training points.

    Z is the diagonal of A over all training points. A label without points has U = 1 with itself and 0 with others.
    """
    part: NDArray[np.float32] = A[labels][:, labels].toarray().astype(np.float32)
    counts = np.maximum(part.diagonal(), 1)  # the batch's entries of Z
    if kind == "arithmetic":
        part *= (1 / counts[:, None] + 1 / counts[None, :]) / 2
    elif kind == "geometric":
        part /= np.sqrt(counts[:, None] * counts[None, :])
    elif kind == "jaccard":
        part /= counts[:, None] + counts[None, :] - part
    else:
        part = normalised_information(part, counts, points).astype(np.float32)
    part[labels[:, None] == labels[None, :]] = 1
    return part


def normalised_information(
    shared: NDArray[np.float32], counts: NDArray[np.float32], points: int
) -> NDArray[np.float64]:
    """Return max(0, ln(p_yy' / (p_y p_y'))) / −ln p_yy', [S, S]: pointwise mutual information, from 0 to 1.

    shared: [S, S] points that have both labels.  counts: [S] points of each label.  Divided by its largest possible
    value (Bouma, 2009), so that it can be the inner product of unit vectors: 1 if labels only come together, 0 if they
    meet no more often than by chance, or never, or on every point.
    """
    both = np.log(np.maximum(shared, 1).astype(np.float64) / points)  # ln p_yy'; pairs that share no point are 0 below
    alone = np.log(counts.astype(np.float64) / points)  # ln p_y
    information = np.maximum(both - (alone[:, None] + alone[None, :]), 0)
    largest = np.maximum(-both, np.finfo(np.float64).tiny)
    return np.where(shared > 0, information / largest, 0.0)


def label_graph(Y: csr_array, weighted: bool = False) -> csr_array:
    """Return the graph of DXML Sec. 3.2, [labels, labels] float32: an edge between labels that share a point.

    weighted: an edge's weight is the number of shared points; otherwise 1. No label is its own neighbour.
    """
    A = cooccurrence(Y).tocoo()
    kept = A.row != A.col
    weights = A.data[kept].astype(np.float32) if weighted else np.ones(int(kept.sum()), dtype=np.float32)
    return csr_array((weights, (A.row[kept], A.col[kept])), shape=A.shape)


def pmi_graph(Y: csr_array) -> csr_array:
    """Return a graph [labels, labels] of positive pointwise mutual information: max(0, ln(n_ij · N / (n_i · n_j))).

    n_ij: points that two labels share. Labels that share no more points than chance would let them have no edge, so a
    label that most points have is hardly anybody's neighbour.
    """
    A, counts = label_graph(Y, weighted=True).tocoo(), np.bincount(Y.indices, minlength=Y.shape[1]).astype(np.float64)
    weights = np.log(A.data.astype(np.float64) * Y.shape[0] / (counts[A.row] * counts[A.col]))
    kept = weights > 0
    return csr_array((weights[kept].astype(np.float32), (A.row[kept], A.col[kept])), shape=A.shape)
