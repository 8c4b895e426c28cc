"""The few types that cross module boundaries (see docs/decisions/001-values.md).

Points are rows and the best label comes first, everywhere. Training uses torch (`Bags`, `Candidates`, `Shortlist`);
models return numpy (`Ranking`), so that metrics and files never need torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

if TYPE_CHECKING:  # torch takes seconds to import; nothing here needs it at run time
    import torch
    from torch import Tensor

Ids = NDArray[np.int64]
Scores = NDArray[np.float32]

PIECE = 1 << 16  # numbers of a long array that are looked at at a time, so that a pass over it needs little memory


class Sizes(NamedTuple):
    """Sizes of a data set; `features` is 0 while points are texts without features."""

    points: int
    features: int
    labels: int


class Share(NamedTuple):
    """Rows `start` to `stop` of `total`: the labels, or the points of a batch, that one of several processes holds."""

    start: int
    stop: int
    total: int

    @property
    def rows(self) -> slice:
        """The rows as a slice of all."""
        return slice(self.start, self.stop)

    @property
    def size(self) -> int:
        """The number of rows."""
        return self.stop - self.start

    @classmethod
    def of(cls, rank: int, ranks: int, total: int) -> Share:
        """Return the rows of one of `ranks` processes; sizes differ by one at most.

        >>> [Share.of(rank, 3, 10)[:2] for rank in range(3)]
        [(0, 3), (3, 6), (6, 10)]
        """
        return cls(total * rank // ranks, total * (rank + 1) // ranks, total)

    @classmethod
    def balanced(cls, rank: int, ranks: int, costs: NDArray[np.float64]) -> Share:
        """Return the rows of one of `ranks` processes, one at least, such that all have about the same sum of costs.

        >>> [Share.balanced(rank, 3, np.array([9.0, 5, 5, 1, 1, 1, 1]))[:2] for rank in range(3)]
        [(0, 1), (1, 2), (2, 7)]
        """
        sums, total = np.cumsum(costs), len(costs)
        ends = np.searchsorted(sums - costs / 2, sums[-1] * np.arange(1, ranks) / ranks)  # nearest ends of rows
        bounds = [0, *ends.tolist(), total]
        for number in range(1, ranks):
            bounds[number] = min(max(bounds[number], bounds[number - 1] + 1), total - ranks + number)
        return cls(bounds[rank], bounds[rank + 1], total)


@dataclass(frozen=True, slots=True, eq=False)
class Bags:
    """B weighted bags of ids, concatenated: bag b is `ids[offsets[b]:offsets[b + 1]]`."""

    ids: Tensor  # [T] int64
    weights: Tensor  # [T] float32
    offsets: Tensor  # [B + 1] int64, from 0 to T

    def __post_init__(self) -> None:
        """Check the three shapes against each other."""
        if self.ids.shape != self.weights.shape or self.ids.ndim != 1:
            shapes = f"{tuple(self.ids.shape)} and {tuple(self.weights.shape)}"
            raise ValueError(f"ids and weights must both be [T]; found shapes {shapes}")
        if self.offsets.ndim != 1 or len(self.offsets) == 0:
            raise ValueError(f"offsets must be [B + 1]; found shape {tuple(self.offsets.shape)}")

    def __len__(self) -> int:
        """Return the number of bags, B."""
        return len(self.offsets) - 1

    def among(self, share: Share) -> Bags:
        """Return the bags without ids outside a share; the others count from its start."""
        import torch.nn.functional as F

        kept = (self.ids >= share.start) & (self.ids < share.stop)
        ends = F.pad(kept.cumsum(0), (1, 0))[self.offsets]
        return Bags(self.ids[kept] - share.start, self.weights[kept], ends)

    def to(self, device: torch.device | str) -> Bags:
        """Return the same bags on `device`."""
        if self.ids.device == device:
            return self
        wait = device == "cpu"  # otherwise the CPU might read tensors before the copy is done
        return Bags(*(part.to(device, non_blocking=not wait) for part in (self.ids, self.weights, self.offsets)))


@dataclass(frozen=True, slots=True, eq=False)
class Shortlist:
    """Unsorted candidates from an index; -1 pads short rows.

    steady: scores are inner products that do not depend on the batch (`row_products`), so need not be recomputed.
    """

    ids: Tensor  # [B, W] int64
    scores: Tensor  # [B, W] float32
    steady: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """The labels that a training step scores, shared by the points of its batch."""

    labels: Tensor  # [S] int64
    targets: Tensor  # [B, S] float32, 1 for true labels
    mask: Tensor | None = None  # [B, S] bool, False excludes a pair


@dataclass(frozen=True, slots=True, eq=False)
class Ranking:
    """Labels (or points, until a vote turns them into labels), best first; ties go to the lower id.

    Short rows end in id -1 with score -inf.

    Args:
        ids: [points, k], int64.
        scores: [points, k], float32.

    Example:
        >>> ranking = Ranking.of_scores(csr_array([[0.2, 0.7, 0.1], [0.0, 0.0, 0.9]]), k=2)
        >>> ranking.ids
        array([[ 1,  0],
               [ 2, -1]])
    """

    ids: Ids  # [B, K]
    scores: Scores  # [B, K]

    def __post_init__(self) -> None:
        """Check the two shapes against each other."""
        if self.ids.shape != self.scores.shape or self.ids.ndim != 2:
            raise ValueError(
                f"ids and scores must both be [B, K]; found shapes {self.ids.shape} and {self.scores.shape}"
            )

    def __len__(self) -> int:
        """Return the number of points, B."""
        return len(self.ids)

    @property
    def k(self) -> int:
        """The number of labels that a row has room for, K."""
        return int(self.ids.shape[1])

    def top(self, k: int) -> Ranking:
        """Return the best labels of each row.

        Args:
            k: how many.

        Returns:
            A ranking [points, k].

        Example:
            >>> Ranking.of_scores(csr_array([[0.2, 0.7, 0.1]]), k=3).top(1).ids
            array([[1]])
        """
        return Ranking(self.ids[:, :k], self.scores[:, :k])

    @classmethod
    def of_pairs(cls, rows: Ids, ids: Ids, scores: NDArray[np.floating], points: int, k: int) -> Ranking:
        """Rank scored pairs of points and labels, in any order.

        Args:
            rows: the point of each pair.
            ids: the label of each pair.
            scores: the score of each pair.
            points: number of points.
            k: how many labels of each point to keep.

        Returns:
            A ranking [points, k].

        Example:
            >>> Ranking.of_pairs(np.array([0, 0]), np.array([4, 7]), np.array([0.1, 0.9]), points=1, k=2).ids
            array([[7, 4]])
        """
        scores = scores.astype(np.float32)  # before sorting: scores that tie in float32 are ranked by id
        order = np.lexsort((ids, -scores, rows))  # by row, then best score, then lowest id
        rows, ids, scores = rows[order], ids[order], scores[order]
        starts = np.searchsorted(rows, np.arange(points))
        ranks = np.arange(len(rows)) - starts[rows]
        kept = ranks < k
        ranking = cls.empty(points, k)
        ranking.ids[rows[kept], ranks[kept]] = ids[kept]
        ranking.scores[rows[kept], ranks[kept]] = scores[kept]
        return ranking

    @classmethod
    def of_scores(cls, scores: csr_array, k: int) -> Ranking:
        """Rank a sparse matrix of scores; only stored entries are candidates.

        Args:
            scores: [points, labels].
            k: how many labels of each point to keep.

        Returns:
            A ranking [points, k].

        Example:
            >>> Ranking.of_scores(csr_array([[0.2, 0.7, 0.1]]), k=2).ids
            array([[1, 0]])
        """
        points = scores.shape[0]
        rows = np.repeat(np.arange(points, dtype=np.int64), np.diff(scores.indptr))
        return cls.of_pairs(rows, scores.indices.astype(np.int64), scores.data, points, k)

    def as_scores(self, labels: int) -> csr_array:
        """Return the scores as a sparse matrix, the inverse of `of_scores`.

        Args:
            labels: number of labels.

        Returns:
            [points, labels]; only ranked labels are stored.

        Example:
            >>> Ranking.of_scores(csr_array([[0.25, 0.75]]), k=1).as_scores(2).toarray()
            array([[0.  , 0.75]], dtype=float32)
        """
        rows, ranks = np.nonzero(self.ids >= 0)
        pairs = (rows, self.ids[rows, ranks])
        return csr_array((self.scores[rows, ranks], pairs), shape=(len(self), labels))

    @classmethod
    def empty(cls, points: int, k: int) -> Ranking:
        """Return a ranking without labels.

        Args:
            points: number of rows.
            k: how many labels a row has room for.

        Returns:
            Ids of -1, with scores of -inf.

        Example:
            >>> Ranking.empty(1, 2).ids
            array([[-1, -1]])
        """
        return cls(np.full((points, k), -1, dtype=np.int64), np.full((points, k), -np.inf, dtype=np.float32))

    def set_apart(self) -> Ranking:
        """Return a ranking whose scores fall within a row; equal ones are lowered by the last bit of float32.

        Returns:
            A ranking with the same labels in the same order.

        Example:
            >>> scores = Ranking.of_scores(csr_array([[0.5, 0.5]]), k=2).set_apart().scores
            >>> bool(scores[0, 0] > scores[0, 1])
            True
        """
        if (self.scores[:, 1:] < self.scores[:, :-1]).all():
            return self
        scores = self.scores.copy()
        for rank in range(1, self.k):
            below = np.nextafter(scores[:, rank - 1], np.float32(0))
            scores[:, rank] = np.minimum(scores[:, rank], below)
        return Ranking(self.ids, scores)

    def without(self, pairs: csr_array) -> Ranking:
        """Return the ranking without some pairs of points and labels; later labels move up.

        Args:
            pairs: [points, labels], sparse; the pairs that it stores are removed.

        Returns:
            A ranking of the same size; short rows end in -1.

        Example:
            >>> ranking = Ranking.of_scores(csr_array([[0.2, 0.7]]), k=2)
            >>> ranking.without(csr_array([[0, 1]])).ids
            array([[ 0, -1]])
        """
        rows, ranks = np.nonzero(self.ids >= 0)
        ids, scores = self.ids[rows, ranks], self.scores[rows, ranks]
        kept = ~stored(pairs, rows, ids)
        return Ranking.of_pairs(rows[kept], ids[kept], scores[kept], len(self), self.k)


def pieces(count: int, size: int = PIECE) -> Iterator[slice]:
    """Yield slices that together are the first `count` items.

    >>> [*pieces(5, 2)]
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def csr_problem(indptr: NDArray[Any], indices: NDArray[Any], columns: int, values: int) -> str | None:
    """Return what is wrong with the arrays of a CSR matrix that has this many columns and values; None if nothing.

    scipy checks less: its C code trusts the ends of rows, and follows wrong ones out of the arrays.

    >>> csr_problem(np.array([0, 2**30, 2]), np.array([0, 1]), 3, 2)
    'the ends of its rows are not in ascending order'
    >>> csr_problem(np.array([0, 1, 2]), np.array([0, 3]), 3, 2)
    'column 3 is outside 0..2'
    """
    if indptr.ndim != 1 or indices.ndim != 1 or indptr.dtype.kind not in "iu" or indices.dtype.kind not in "iu":
        return "ends of rows and columns must be flat arrays of whole numbers"
    if not len(indptr) or indptr[0] != 0:
        return "the first row does not start at 0"
    if any((indptr[p.start + 1 : p.stop + 1] < indptr[p]).any() for p in pieces(len(indptr) - 1)):
        return "the ends of its rows are not in ascending order"
    if indptr[-1] != len(indices) or values != len(indices):
        return f"its rows end at {indptr[-1]}, but there are {len(indices)} columns and {values} values"
    least, most = indices.min(initial=0), indices.max(initial=-1)
    if least < 0 or most >= columns:
        return f"column {least if least < 0 else most} is outside 0..{columns - 1}"
    return None


def matrix_problem(matrix: Any) -> str | None:
    """Return what is wrong with the arrays of a sparse matrix, before C code of scipy follows them; None if nothing.

    >>> broken = csr_array((2, 3))
    >>> broken.indptr[1] = 2**30
    >>> matrix_problem(broken)
    'the ends of its rows are not in ascending order'
    """
    if matrix.format == "coo":
        sizes = zip(matrix.coords, matrix.shape, strict=True)
        outside = any(len(ids) and not 0 <= ids.min() <= ids.max() < size for ids, size in sizes)
        return "a row or column is outside the matrix" if outside else None
    if matrix.format not in ("csr", "csc", "bsr") or matrix.ndim != 2:
        return None
    height, width = matrix.shape if matrix.format != "csc" else matrix.shape[::-1]
    tall, wide = matrix.blocksize if matrix.format == "bsr" else (1, 1)
    if len(matrix.indptr) != height // tall + 1:
        return f"it has {height // tall} rows, and the ends of {len(matrix.indptr) - 1}"
    end = int(matrix.indptr[-1])  # entries after it are spare
    return csr_problem(matrix.indptr, matrix.indices[:end], width // wide, len(matrix.data[:end]))


def stored(matrix: csr_array, rows: Ids, columns: Ids) -> NDArray[np.bool_]:
    """Return for each (row, column) pair whether the sparse matrix stores it; shapes broadcast.

    Cost: n log nnz, no dense array.
    """
    width = np.int64(matrix.shape[1])
    owners = np.repeat(np.arange(matrix.shape[0], dtype=np.int64), np.diff(matrix.indptr))
    keys = owners * width + matrix.indices
    if not matrix.has_sorted_indices:
        keys.sort()
    wanted = rows.astype(np.int64) * width + columns
    if len(keys) == 0:
        return np.zeros(wanted.shape, dtype=bool)
    nearest = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.asarray((keys[nearest] == wanted) & (columns >= 0) & (columns < width))
