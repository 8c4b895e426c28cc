"""Linear classifiers of which several ranks hold a range of labels each: stages, mined negatives, prediction.

Labels are solved on their own, so ranks meet only where labels compete: for a place among a point's mined negatives, or
in its ranking. Each rank lists its own best, and all of them keep the same ones of all lists.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from zipfel.index.exact import SPARE, largest
from zipfel.models.learner import most_filtered
from zipfel.models.linear_predictor import LinearPredictor, best_of
from zipfel.models.linear_solvers import BLOCK, SCORES, Best
from zipfel.training.ranks import World
from zipfel.training.run import State
from zipfel.training.together import Ragged, Split
from zipfel.types import Ranking, Share

ENTRY, BIAS = 8, 4  # bytes of a weight with its feature, and of a label
MERGED = 4096  # points whose lists are merged at a time


# --- Weights in the files of a run ------------------------------------------------------------------------------------


def entries_to_read(own: Share) -> Split:
    """Return which part of a file of weights belongs to a rank's labels."""
    entries = Ragged("W.indptr", own)
    return {"W.indices": entries, "W.data": entries, "bias": own}


def entries_to_write(state: State, own: Share, world: World) -> tuple[State, dict[str, Share]]:
    """Return a rank's weights as they are written: with the ends of all labels, and its part of the other tensors."""
    ends = _ends(state["W.indptr"], own, world)
    entries = _entries(ends, own)
    return {**state, "W.indptr": ends}, {"W.indices": entries, "W.data": entries, "bias": own}


def of_own_labels(state: State, own: Share) -> State:
    """Return weights whose ends are those of a rank's labels, of weights with the ends of all labels."""
    ends = state["W.indptr"][own.start : own.stop + 1]
    return {**state, "W.indptr": ends - ends[0]}


def _ends(indptr: Tensor, own: Share, world: World) -> Tensor:
    """Return where each row of all ranks ends, [total + 1], of where those of this rank do."""
    lengths = torch.zeros(own.total, dtype=torch.int64)
    lengths[own.rows] = indptr.diff()
    return F.pad(world.sum(lengths, "sizes of weights").cumsum(0), (1, 0))


def _entries(ends: Tensor, own: Share) -> Share:
    """Return which entries are those of a rank's rows."""
    return Share(int(ends[own.start]), int(ends[own.stop]), int(ends[-1]))


# --- Ranges of labels -------------------------------------------------------------------------------------------------


def evened(W: csr_array, own: Share, world: World) -> Share:
    """Return a rank's range of labels such that all ranks hold about as many bytes.  W: weights of its range now."""
    lengths = _ends(torch.from_numpy(W.indptr), own, world).diff().numpy()
    return Share.balanced(world.rank, world.size, ENTRY * lengths.astype(np.float64) + BIAS)


def moved_rows(rows: csr_array, own: Share, new: Share, world: World) -> csr_array:
    """Return the rows of a rank's new range of labels.  rows: those of its range until now, [own, ...]."""
    ends = _ends(torch.from_numpy(rows.indptr), own, world)
    before, after = _entries(ends, own), _entries(ends, new)
    indices = rows.indices.astype(np.int32)  # of all ranks, though scipy takes int64 where a matrix is large
    data, indices = (world.moved(torch.from_numpy(part), before, after).numpy() for part in (rows.data, indices))
    indptr = (ends[new.start : new.stop + 1] - after.start).numpy()
    return csr_array((data, indices, indptr), shape=(new.size, rows.shape[1]))


# --- Mined negatives --------------------------------------------------------------------------------------------------


def best_of_ranks(own: Share, world: World) -> Best:
    """Return the replacement of `best_labels` where labels are split: the same labels, each rank returning its own."""
    return partial(_best_labels, own, world)


def _best_labels(
    own: Share, world: World, scores: Callable[[slice], Tensor], points: int, labels: int, count: int
) -> csr_array:
    """Return ones at this rank's labels that are among the best of all ranks', [N, own]; ties go to the lower label."""
    ids, values = _listed(scores, points, labels, count)
    most = min(count, _largest_share(own, world))  # in the list of the rank with the most labels
    kept = []
    for start in range(0, points, MERGED):
        mine = F.pad(values[start : start + MERGED], (0, most - ids.shape[1]), value=-torch.inf)
        best = largest(world.columns(mine), min(count, own.total)) - world.rank * most
        listed = torch.zeros(len(mine), most + 1, dtype=torch.bool)
        listed.scatter_(1, torch.where((best >= 0) & (best < most), best, most), value=True)  # others: a spare column
        kept.append(listed[:, : ids.shape[1]])
    places = torch.cat([torch.zeros(0, ids.shape[1], dtype=torch.bool), *kept])
    ends = np.concatenate([[0], places.sum(dim=1).cumsum(0).numpy()])
    columns = ids[places].numpy()
    return csr_array((np.ones(len(columns), np.float32), columns, ends), shape=(points, labels))


def _largest_share(own: Share, world: World) -> int:
    """Return how many labels the rank with the most has."""
    return int(world.max(torch.tensor(own.size)))


def _listed(scores: Callable[[slice], Tensor], points: int, labels: int, count: int) -> tuple[Tensor, Tensor]:
    """Return this rank's best labels of each point by id, and their scores, both [N, W]."""
    count, size = min(count, labels), max(1, min(BLOCK, SCORES // max(labels, 1)))

    def best(start: int) -> tuple[Tensor, Tensor]:
        some = scores(slice(start, start + size)).float()
        ids = largest(some, count)
        return ids.int(), some.gather(1, ids)

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        parts = list(pool.map(best, range(0, points, size)))
    empty = (torch.zeros(0, count, dtype=torch.int32), torch.zeros(0, count))
    ids, values = (torch.cat(kind) for kind in zip(empty, *parts, strict=True))
    return ids, values


# --- Prediction -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SplitPredictor(LinearPredictor):
    """Ranks the labels of all ranks, which call it together; weights and bias are those of the rank's own labels."""

    own: Share = Share(0, 0, 0)
    world: World = World()

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k], without filtered pairs."""
        wide = k + most_filtered(filtered)
        scores = partial(self._some_margins, X)
        ids, margins = _listed(scores, X.shape[0], len(self.bias), wide + SPARE)
        most = min(wide + SPARE, _largest_share(self.own, self.world))
        room = (0, most - ids.shape[1])
        parts = []
        for start in range(0, max(1, X.shape[0]), MERGED):
            some = slice(start, start + MERGED)
            labels = self.world.columns(F.pad(ids[some].long() + self.own.start, room, value=-1))
            parts.append(_ranked(labels, self.world.columns(F.pad(margins[some], room, value=-torch.inf)), wide))
        ranking = Ranking(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "scores")))
        return ranking if filtered is None else ranking.without(filtered).top(k)

    def _some_margins(self, X: csr_array, some: slice) -> Tensor:
        return torch.from_numpy(self.margins(X[some]))

    def margins_at(self, X: csr_array, labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return w · x + b of some labels of each point, [points, W]: each rank computes those of its own."""
        mine = (labels >= self.own.start) & (labels < self.own.stop)
        own = super().margins_at(X, np.where(mine, labels - self.own.start, 0))
        return self.world.sum(torch.from_numpy(np.where(mine, own, np.float32(0))), "shortlists").numpy()


def _ranked(labels: Tensor, margins: Tensor, k: int) -> Ranking:
    """Rank labels [B, W], in ascending order but for -1, by their margins [B, W]."""
    best = best_of(margins, k)
    ids = np.take_along_axis(labels.numpy(), np.maximum(best.ids, 0), axis=1)
    ids[best.ids < 0] = -1
    return Ranking(ids, np.where(ids < 0, np.float32(-np.inf), best.scores))
