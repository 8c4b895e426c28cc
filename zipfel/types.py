"""The few values that cross module boundaries (see docs/decisions/001-values.md).

Points are rows, the best label comes first, everywhere. What a training step touches is torch (`Bags`, `Batch`,
`Candidates`, `Shortlist`); what leaves a model is numpy (`Ranking`), so that metrics and files never need torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

if TYPE_CHECKING:  # torch takes seconds to import; nothing here needs it at run time
    import torch
    from torch import Tensor

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]


class Sizes(NamedTuple):
    """How large a data set is; `features` is 0 where points are text that has not been turned into features."""

    points: int
    features: int
    labels: int


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """B weighted bags of ids, one after the other: bag b is `ids[offsets[b]:offsets[b + 1]]`."""

    ids: Tensor  # [T] int64
    weights: Tensor  # [T] float32
    offsets: Tensor  # [B + 1] int64, from 0 to T

    def __post_init__(self) -> None:
        """Check the three shapes against each other."""
        if self.ids.shape != self.weights.shape or self.ids.ndim != 1:
            raise ValueError(f"ids {tuple(self.ids.shape)} and weights {tuple(self.weights.shape)} must be equal [T]")
        if self.offsets.ndim != 1 or len(self.offsets) == 0:
            raise ValueError(f"offsets must be [B + 1], found shape {tuple(self.offsets.shape)}")

    def __len__(self) -> int:
        """Return the number of bags, B."""
        return len(self.offsets) - 1

    def to(self, device: torch.device | str) -> Bags:
        """Return the same bags on `device`."""
        if self.ids.device == device:
            return self
        wait = device == "cpu"  # else the numbers might be read before they have arrived
        return Bags(*(part.to(device, non_blocking=not wait) for part in (self.ids, self.weights, self.offsets)))


@dataclass(frozen=True, slots=True, eq=False)
class Shortlist:
    """Unsorted candidates of an index; -1 pads short rows.

    steady: scores are inner products that do not depend on the batch (`row_products`), and need not be taken anew.
    """

    ids: Tensor  # [B, W] int64
    scores: Tensor  # [B, W] float32
    steady: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What a training step sees: some rows of train, their features and their labels."""

    rows: Tensor  # [B] int64
    points: Bags
    positives: Bags


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The labels that a step is trained against: shared by the batch, [S], or of each point, [B, S]."""

    labels: Tensor  # [S] or [B, S] int64
    targets: Tensor  # [B, S] float32, 1 where the label is right
    mask: Tensor | None = None  # [B, S] bool, False leaves a pair out (filters, padding)


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Labels (or points, until a vote turns them into labels), best first; ties go to the lower id.

    Short rows end in id -1 with score -inf.
    """

    ids: Ids  # [B, K]
    scores: Scores  # [B, K]

    def __post_init__(self) -> None:
        """Check the two shapes against each other."""
        if self.ids.shape != self.scores.shape or self.ids.ndim != 2:
            raise ValueError(f"ids {self.ids.shape} and scores {self.scores.shape} must be equal [B, K]")

    def __len__(self) -> int:
        """Return the number of points, B."""
        return len(self.ids)

    @property
    def k(self) -> int:
        """How many labels a row can hold."""
        return int(self.ids.shape[1])

    def top(self, k: int) -> Ranking:
        """Return the best k of each row."""
        return Ranking(self.ids[:, :k], self.scores[:, :k])

    @classmethod
    def of_pairs(cls, rows: Ids, ids: Ids, scores: NDArray[np.floating], points: int, k: int) -> Ranking:
        """Rank scored (row, id) pairs, given in any order, and keep the best k of each row."""
        scores = scores.astype(np.float32)  # first, so that what ties as stored goes to the lower id
        order = np.lexsort((ids, -scores, rows))  # by row, then best score, then lowest id
        rows, ids, scores = rows[order], ids[order], scores[order]
        starts = np.searchsorted(rows, np.arange(points))
        places = np.arange(len(rows)) - starts[rows]
        kept = places < k
        ranking = cls.empty(points, k)
        ranking.ids[rows[kept], places[kept]] = ids[kept]
        ranking.scores[rows[kept], places[kept]] = scores[kept]
        return ranking

    @classmethod
    def of_scores(cls, scores: csr_array, k: int) -> Ranking:
        """Rank a sparse [B, L] matrix of scores; what is not stored is not a candidate."""
        points = scores.shape[0]
        rows = np.repeat(np.arange(points, dtype=np.int64), np.diff(scores.indptr))
        return cls.of_pairs(rows, scores.indices.astype(np.int64), scores.data, points, k)

    def as_scores(self, labels: int) -> csr_array:
        """Return the scores as a sparse [B, labels] matrix, the inverse of `of_scores`."""
        rows, places = np.nonzero(self.ids >= 0)
        pairs = (rows, self.ids[rows, places])
        return csr_array((self.scores[rows, places], pairs), shape=(len(self), labels))

    @classmethod
    def empty(cls, points: int, k: int) -> Ranking:
        """Return a ranking in which no row has a label yet."""
        return cls(np.full((points, k), -1, dtype=np.int64), np.full((points, k), -np.inf, dtype=np.float32))

    def without(self, pairs: csr_array) -> Ranking:
        """Leave out the (row, id) pairs that a sparse [B, L] matrix stores; what follows moves up."""
        rows, places = np.nonzero(self.ids >= 0)
        ids, scores = self.ids[rows, places], self.scores[rows, places]
        kept = ~stored(pairs, rows, ids)
        return Ranking.of_pairs(rows[kept], ids[kept], scores[kept], len(self), self.k)


def stored(matrix: csr_array, rows: Ids, columns: Ids) -> NDArray[np.bool_]:
    """Tell for each (row, column) pair whether the sparse matrix stores it. Cost: n log nnz, no dense array."""
    width = np.int64(matrix.shape[1])
    owners = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    keys = owners * width + matrix.indices
    if not matrix.has_sorted_indices:
        keys.sort()
    wanted = rows.astype(np.int64) * width + columns
    if len(keys) == 0:
        return np.zeros(len(wanted), dtype=bool)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray((keys[places] == wanted) & (columns >= 0) & (columns < width))
