"""Balanced hierarchical 2-means over label centroids (DECAF, Modules I and II).

All clusters of a level are split at once. They differ in size by at most one, so a level is a table of labels [C, S]
with at most one empty cell a row, and a step of 2-means is two batched products over it. How the seeds and the number
of steps were chosen, and the cost: docs/decisions/011-balanced-clusters.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, get_index_dtype
from torch import Tensor
from torch.nn import functional as F

from zipfel.errors import ConfigError

STEPS = 10  # maximum number of 2-means steps for a level


def balanced_clusters(vectors: csr_array | Tensor, count: int, numbers: np.random.Generator) -> NDArray[np.int32]:
    """Return the cluster of each label, [L], ids 0 to count - 1; sizes differ by at most one.

    vectors: [L, D] centroids of any norm: similarity is the cosine. A label whose row is zero joins a random cluster
    that has room.  count: a power of two.  The first bits of an id are the cluster of an earlier level: `clusters >> 1`
    has half as many clusters, whose sizes also differ by at most one.

    >>> vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.9, 0.1], [0.1, 0.9]])
    >>> clusters = balanced_clusters(vectors, 2, np.random.default_rng(0))
    >>> bool(clusters[0] == clusters[2] != clusters[1] == clusters[3])
    True
    """
    labels = vectors.shape[0]
    levels = _levels(count, labels)
    with _one_thread():
        points: _Points = _Dense(vectors) if isinstance(vectors, Tensor) else _Sparse(vectors)
        filled = torch.nonzero(points.lengths)[:, 0]
        members = _hierarchy(points, filled, levels, numbers).cpu().numpy()
    clusters = np.full(labels, -1, dtype=np.int32)
    rows, columns = np.nonzero(members >= 0)
    clusters[members[rows, columns]] = rows
    room = _sizes(labels, levels) - _sizes(len(filled), levels)
    clusters[clusters < 0] = numbers.permutation(np.repeat(np.arange(count, dtype=np.int32), room))
    return clusters


def _levels(count: int, labels: int) -> int:
    """Return log2(count), the number of levels of the hierarchy."""
    if count < 1 or count & (count - 1):
        raise ConfigError(f"the number of clusters must be a power of two; found {count}")
    if count > labels:
        raise ConfigError(f"the number of clusters must be at most that of labels, {labels}; found {count}")
    return count.bit_length() - 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Limit torch to one thread: the number of threads changes the last bits of a sum, and these can move a label."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _sizes(labels: int, levels: int) -> NDArray[np.int64]:
    """Return the cluster sizes after halving `labels` labels `levels` times, the larger half first, [2 ** levels].

    They take at most two consecutive values, since the halves of m and m + 1 do. With more labels no cluster shrinks.
    """
    sizes = np.array([labels])
    for _ in range(levels):
        sizes = np.stack(((sizes + 1) // 2, sizes // 2), axis=1).ravel()
    return sizes


class _Points(Protocol):
    """The operations that 2-means needs on centroids, dense or sparse. -1 pads tables of members [C, S]."""

    lengths: Tensor  # [L], norms of the centroids

    def arrange(self, members: Tensor) -> None:
        """Prepare the clusters of a level: in pairs, the halves of the clusters arranged before."""

    def sums(self, weights: Tensor) -> Tensor:
        """Return the sum of unit centroids for each cluster, weighted by [C, S]."""

    def gaps(self, first: Tensor, second: Tensor) -> Tensor:
        """Return each member's cosine with the first sum of its cluster less that with the second, [C, S]."""


class _Dense:
    """Dense centroids, on any device. The unit rows of a level are copied in the order of its clusters."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors.detach()
        self.lengths = torch.linalg.vector_norm(self.vectors, dim=1, dtype=torch.float32)
        self.rows = vectors.new_empty(0)

    def arrange(self, members: Tensor) -> None:
        self.rows = self.vectors.new_empty(0)  # frees the last level's rows before the next are allocated
        labels = members.flatten().clamp_min(0)
        self.rows = self.vectors.index_select(0, labels).float()
        scales = torch.where(members.flatten() >= 0, 1 / self.lengths[labels], 0)
        self.rows = self.rows.mul_(scales[:, None]).view(*members.shape, -1)  # [C, S, D]

    def sums(self, weights: Tensor) -> Tensor:
        return torch.bmm(weights[:, None, :], self.rows)[:, 0]  # [C, D]

    def gaps(self, first: Tensor, second: Tensor) -> Tensor:
        between = F.normalize(first) - F.normalize(second)  # [C, D]
        return torch.bmm(between[:, None, :], self.rows.transpose(1, 2))[:, 0]  # twice as fast as rows @ between


class _Sparse:
    """Sparse centroids. Each pair of a cluster and a feature of one of its members is a column of its own.

    So the sums of all clusters are one vector with an entry for each pair, never more entries than the centroids have;
    one matrix product gives all sums, and another all gaps. Columns and rows of a cluster are adjacent, so that a
    product finds its operands in the cache.
    """

    def __init__(self, vectors: csr_array) -> None:
        index = get_index_dtype(maxval=2 * max(vectors.nnz, vectors.shape[1]))
        values = vectors.data.astype(np.float32)
        parts = (values, vectors.indices.astype(index), vectors.indptr.astype(index))
        self.rows = csr_array(parts, shape=vectors.shape)
        self.lengths = torch.from_numpy(_row_lengths(self.rows))
        values /= np.repeat(np.maximum(self.lengths.numpy(), np.finfo(np.float32).tiny), np.diff(vectors.indptr))
        self.row_of = np.arange(vectors.shape[0])  # the row of each label
        self.widths = np.array([vectors.shape[1]])  # number of columns of each cluster
        self.kept = torch.empty(0)

    def arrange(self, members: Tensor) -> None:
        self.kept = members >= 0  # [C, S]
        labels = members[self.kept].numpy()
        clusters = torch.nonzero(self.kept)[:, 0].numpy()  # [M], the cluster of each row
        self.rows = rows = self.rows[self.row_of[labels]]
        self.row_of[labels] = np.arange(len(labels))
        columns = rows.shape[1]
        pairs = rows.indices  # half · columns + column of the previous level
        pairs += np.repeat((clusters & 1).astype(pairs.dtype) * columns, np.diff(rows.indptr))
        used = np.zeros(2 * columns, dtype=bool)
        used[pairs] = True
        starts = self._starts()
        widths = np.add.reduceat(used, np.concatenate((starts, starts + columns)), dtype=np.int64)
        self.widths = widths[widths > 0]  # the second half of a single label is empty
        column_of = np.cumsum(used, dtype=pairs.dtype)  # the new column of each used pair
        column_of -= 1
        self.rows = csr_array((rows.data, column_of[pairs], rows.indptr), shape=(len(labels), int(column_of[-1]) + 1))

    def sums(self, weights: Tensor) -> Tensor:
        return torch.from_numpy(self.rows.T @ weights[self.kept].numpy())  # [pairs]

    def gaps(self, first: Tensor, second: Tensor) -> Tensor:
        between = self._unit(first.numpy()) - self._unit(second.numpy())
        gaps = torch.zeros(self.kept.shape)
        gaps[self.kept] = torch.from_numpy(self.rows @ between)
        return gaps

    def _starts(self) -> NDArray[np.int64]:
        """Return the first column of each cluster."""
        return np.asarray(np.cumsum(self.widths) - self.widths)

    def _unit(self, sums: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scale the sum of each cluster to norm 1."""
        lengths = np.sqrt(np.add.reduceat(sums * sums, self._starts()))
        return np.asarray(sums / np.repeat(np.maximum(lengths, 1e-12), self.widths))


def _row_lengths(rows: csr_array) -> NDArray[np.float32]:
    """Return the norm of each row, [L]."""
    squares = csr_array((rows.data * rows.data, rows.indices, rows.indptr), shape=rows.shape)
    return np.asarray(np.sqrt(squares @ np.ones(rows.shape[1], dtype=np.float32)))


def _hierarchy(points: _Points, labels: Tensor, levels: int, numbers: np.random.Generator) -> Tensor:
    """Return the labels of each cluster of the last level, [2 ** levels, S]; -1 pads."""
    members = labels[None, :]
    for _ in range(levels):
        if members.shape[1] > 1:
            points.arrange(members)
            members = members.gather(1, _two_means(points, members >= 0, numbers))
        members = _halves(members)
    return members


def _halves(members: Tensor) -> Tensor:
    """Split each row [C, S] in two, [2C, ⌈S / 2⌉]; the first half gets the odd member."""
    width = (members.shape[1] + 1) // 2
    middles = ((members >= 0).sum(dim=1, keepdim=True) + 1) // 2  # [C, 1]
    columns = torch.arange(width, device=members.device)
    first = members[:, :width].where(columns < middles, -1)
    second = F.pad(members, (0, width), value=-1).gather(1, middles + columns)
    return torch.stack((first, second), dim=1).flatten(0, 1)


def _two_means(points: _Points, kept: Tensor, numbers: np.random.Generator) -> Tensor:
    """Return the order of each cluster's members [C, S]: those nearest to its first centre first, padding last."""
    middles = (kept.sum(dim=1, keepdim=True) + 1) // 2
    front = (torch.arange(kept.shape[1], device=kept.device) < middles).float()  # [C, S]
    half = kept.float()
    whole = points.sums(half)
    first, second = _seeds(points, kept, numbers)
    for _ in range(STEPS):
        gaps = points.gaps(first, second).masked_fill(~kept, -torch.inf)
        order = gaps.argsort(dim=1, descending=True, stable=True)  # ties keep their order
        before, half = half, torch.zeros_like(half).scatter(1, order, front)
        if torch.equal(before, half):
            break
        first = points.sums(half)
        second = whole - first
    return order


def _seeds(points: _Points, kept: Tensor, numbers: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return two members of each cluster, as sums: one drawn at random, and the one least similar to it."""
    sizes = kept.sum(dim=1)
    draws = torch.from_numpy(numbers.random(len(kept))).to(kept.device)
    one = points.sums(_one_hot((draws * sizes).long(), kept))
    cosines = points.gaps(one, torch.zeros_like(one)).masked_fill(~kept, torch.inf)
    return one, points.sums(_one_hot(cosines.argmin(dim=1), kept))


def _one_hot(columns: Tensor, kept: Tensor) -> Tensor:
    """Return weights [C, S] that are 1 in one column of each row, [C]."""
    return torch.zeros(kept.shape, device=kept.device).scatter(1, columns[:, None], 1.0)
