"""Balanced hierarchical 2-means over label centroids (DECAF, Modules I and II).

All clusters of a level are split at once. They differ in size by at most one, so a level is a table of labels [C, S]
with at most one empty place a row, and a step of 2-means is two batched products over it. How seeds and the number of
steps were chosen, and what it costs: docs/decisions/011-balanced-clusters.md.
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

STEPS = 10  # of 2-means at most, for a level


def balanced_clusters(vectors: csr_array | Tensor, count: int, numbers: np.random.Generator) -> NDArray[np.int32]:
    """Return the cluster of each label, [L], ids 0 to count - 1; sizes differ by at most one.

    vectors: [L, D] centroids, of any length, for nearness is their cosine; a label whose row is zero goes where there
    is room, by chance.  count: a power of two.  The cluster of an earlier level is what the first bits of the id say:
    `clusters >> 1` has half as many, and their sizes differ by at most one too.

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
    """Return how often all is halved to make so many clusters."""
    if count < 1 or count & (count - 1):
        raise ConfigError(f"the number of clusters must be a power of two; found {count}")
    if count > labels:
        raise ConfigError(f"{count} clusters need as many labels; there are {labels}")
    return count.bit_length() - 1


@contextmanager
def _one_thread() -> Iterator[None]:
    """Keep torch to one thread: how many share a sum decides its last bits, and these decide who is in which half."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _sizes(labels: int, levels: int) -> NDArray[np.int64]:
    """Return the sizes of the clusters when so many labels are halved so often, the larger half first, [2 ** levels].

    They take two consecutive values at most: halves of m and m + 1 do. With more labels no cluster becomes smaller.
    """
    sizes = np.array([labels])
    for _ in range(levels):
        sizes = np.stack(((sizes + 1) // 2, sizes // 2), axis=1).ravel()
    return sizes


class _Points(Protocol):
    """What 2-means asks of centroids, whatever they are kept in. Tables of members [C, S] hold -1 where none is."""

    lengths: Tensor  # [L]

    def arrange(self, members: Tensor) -> None:
        """Make the clusters of a level ready: halves, two by two, of those that were arranged before."""

    def sums(self, weights: Tensor) -> Tensor:
        """Return the sums of unit centroids, as weights [C, S] say, for each cluster."""

    def gaps(self, first: Tensor, second: Tensor) -> Tensor:
        """Return how much nearer each member is to the first sum of its cluster than to the second, [C, S]."""


class _Dense:
    """Centroids in a table, on any device. The unit rows of a level are copied in the order of its clusters."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors.detach()
        self.lengths = torch.linalg.vector_norm(self.vectors, dim=1, dtype=torch.float32)
        self.rows = vectors.new_empty(0)

    def arrange(self, members: Tensor) -> None:
        self.rows = self.vectors.new_empty(0)  # the last level's go before the next come
        places = members.flatten().clamp_min(0)
        self.rows = self.vectors.index_select(0, places).float()
        scales = torch.where(members.flatten() >= 0, 1 / self.lengths[places], 0)
        self.rows = self.rows.mul_(scales[:, None]).view(*members.shape, -1)  # [C, S, D]

    def sums(self, weights: Tensor) -> Tensor:
        return torch.bmm(weights[:, None, :], self.rows)[:, 0]  # [C, D]

    def gaps(self, first: Tensor, second: Tensor) -> Tensor:
        between = F.normalize(first) - F.normalize(second)  # [C, D]
        return torch.bmm(between[:, None, :], self.rows.transpose(1, 2))[:, 0]  # twice as fast as rows @ between


class _Sparse:
    """Sparse centroids. A pair of a cluster and a feature that one of its members has is a column of its own.

    So the sums of all clusters are one vector with an entry for each pair, never more than the centroids have entries,
    and one product with a matrix gives all of them, one the gaps. Pairs of a cluster lie side by side, and rows of a
    cluster follow each other: what a product needs is in the cache.
    """

    def __init__(self, vectors: csr_array) -> None:
        index = get_index_dtype(maxval=2 * max(vectors.nnz, vectors.shape[1]))
        values = vectors.data.astype(np.float32)
        parts = (values, vectors.indices.astype(index), vectors.indptr.astype(index))
        self.rows = csr_array(parts, shape=vectors.shape)
        self.lengths = torch.from_numpy(_row_lengths(self.rows))
        values /= np.repeat(np.maximum(self.lengths.numpy(), np.finfo(np.float32).tiny), np.diff(vectors.indptr))
        self.place = np.arange(vectors.shape[0])  # the row of each label
        self.widths = np.array([vectors.shape[1]])  # how many columns each cluster has, in their order
        self.kept = torch.empty(0)

    def arrange(self, members: Tensor) -> None:
        self.kept = members >= 0  # [C, S]
        labels = members[self.kept].numpy()
        clusters = torch.nonzero(self.kept)[:, 0].numpy()  # [M], of each row
        self.rows = rows = self.rows[self.place[labels]]
        self.place[labels] = np.arange(len(labels))
        columns = rows.shape[1]
        pairs = rows.indices  # (half, column of the level before), the half first
        pairs += np.repeat((clusters & 1).astype(pairs.dtype) * columns, np.diff(rows.indptr))
        found = np.zeros(2 * columns, dtype=bool)
        found[pairs] = True
        starts = self._starts()
        widths = np.add.reduceat(found, np.concatenate((starts, starts + columns)), dtype=np.int64)
        self.widths = widths[widths > 0]  # the second half of a single label is empty
        names = np.cumsum(found, dtype=pairs.dtype)
        names -= 1
        self.rows = csr_array((rows.data, names[pairs], rows.indptr), shape=(len(labels), int(names[-1]) + 1))

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
        """Scale the sums of each cluster to length 1."""
        lengths = np.sqrt(np.add.reduceat(sums * sums, self._starts()))
        return np.asarray(sums / np.repeat(np.maximum(lengths, 1e-12), self.widths))


def _row_lengths(rows: csr_array) -> NDArray[np.float32]:
    """Return the length of each row, [L]."""
    squares = csr_array((rows.data * rows.data, rows.indices, rows.indptr), shape=rows.shape)
    return np.asarray(np.sqrt(squares @ np.ones(rows.shape[1], dtype=np.float32)))


def _hierarchy(points: _Points, labels: Tensor, levels: int, numbers: np.random.Generator) -> Tensor:
    """Return the labels of each cluster of the last level, [2 ** levels, S]."""
    members = labels[None, :]
    for _ in range(levels):
        if members.shape[1] > 1:
            points.arrange(members)
            members = members.gather(1, _two_means(points, members >= 0, numbers))
        members = _halves(members)
    return members


def _halves(members: Tensor) -> Tensor:
    """Cut each row [C, S] in two, [2C, S / 2]; the first half has the odd one."""
    width = (members.shape[1] + 1) // 2
    middles = ((members >= 0).sum(dim=1, keepdim=True) + 1) // 2  # [C, 1]
    places = torch.arange(width, device=members.device)
    first = members[:, :width].where(places < middles, -1)
    second = F.pad(members, (0, width), value=-1).gather(1, middles + places)
    return torch.stack((first, second), dim=1).flatten(0, 1)


def _two_means(points: _Points, kept: Tensor, numbers: np.random.Generator) -> Tensor:
    """Return the order of the members of each cluster: those nearest to its first centre first, empty places last."""
    middles = (kept.sum(dim=1, keepdim=True) + 1) // 2
    front = (torch.arange(kept.shape[1], device=kept.device) < middles).float()  # [C, S]
    half = kept.float()
    whole = points.sums(half)
    first, second = _seeds(points, kept, numbers)
    for _ in range(STEPS):
        gaps = points.gaps(first, second).masked_fill(~kept, -torch.inf)
        order = gaps.argsort(dim=1, descending=True, stable=True)  # of equals, who came first stays first
        before, half = half, torch.zeros_like(half).scatter(1, order, front)
        if torch.equal(before, half):
            break
        first = points.sums(half)
        second = whole - first
    return order


def _seeds(points: _Points, kept: Tensor, numbers: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Return two members of each cluster, as sums: one drawn by chance, and the one that is least like it."""
    sizes = kept.sum(dim=1)
    draws = torch.from_numpy(numbers.random(len(kept))).to(kept.device)
    one = points.sums(_alone((draws * sizes).long(), kept))
    nearness = points.gaps(one, torch.zeros_like(one)).masked_fill(~kept, torch.inf)
    return one, points.sums(_alone(nearness.argmin(dim=1), kept))


def _alone(places: Tensor, kept: Tensor) -> Tensor:
    """Return weights [C, S] that are 1 at one place of each row."""
    return torch.zeros(kept.shape, device=kept.device).scatter(1, places[:, None], 1.0)
