"""What models share: a learner, which is an encoder, an index and a classifier; and prediction, written once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel import metrics
from zipfel.calibration import DEPTH, MOST_POINTS
from zipfel.data.batches import bags
from zipfel.data.dataset import Part, Propensity
from zipfel.index import Index, recall
from zipfel.index.exact import SPARE, ExactIndex, row_products
from zipfel.training.machine import keep_freed_memory
from zipfel.types import Ranking, Shortlist, stored

BATCH = 1024
SCORES = 1 << 22  # by which an offset is set
UNLISTED = 1e-6  # more than a label can score that nothing speaks for but its frequency
OTHERS = 45  # labels beyond k that a learner of an ensemble names: one that is far down with all cannot end among k


@dataclass(frozen=True)
class Lesson:
    """What a model learns from.

    validation: points that decide on what is left open.  whole: train and validation together, where the second was cut
    from the first.  label_names: for files that name labels.  Z: [labels, features], texts of labels as features.
    terms: names of the features, where they are words.
    """

    train: Part
    validation: Part | None = None
    whole: Part | None = None
    label_names: Sequence[str] | None = None
    Z: csr_array | None = None
    terms: Sequence[str] | None = None
    propensity: Propensity = Propensity()


class Classifier(Protocol):
    """Turns candidates into ranked labels with scores in [0, 1]."""

    @property
    def vectors(self) -> Tensor:
        """What the index searches, [N, D]."""
        ...

    def width(self, k: int) -> int:
        """Return how many candidates it takes to rank k labels."""

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank the best k labels of each query."""


@dataclass(frozen=True)
class Learner:
    """Encodes points, finds candidates, and ranks labels.

    finder: encodes points for the index, where candidates are found by other vectors than they are ranked by.
    """

    encoder: nn.Module
    index: Index
    classifier: Classifier
    device: torch.device
    finder: nn.Module | None = None

    @property
    def first(self) -> Learner:
        """Itself: the first of as many learners as there are."""
        return self

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k]; filtered pairs are left out."""
        keep_freed_memory()
        wide = k + most_filtered(filtered)
        if X.shape[0] <= BATCH:
            ranking = self._rank(X, wide)
        else:
            parts = [self._rank(X[start : start + BATCH], wide) for start in range(0, X.shape[0], BATCH)]
            ranking = Ranking(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "scores")))
        return ranking if filtered is None else ranking.without(filtered).top(k)

    def _rank(self, X: csr_array, k: int) -> Ranking:
        queries = self.encode(X)
        shortlist = self.index.search(self.keys(X, queries), self.classifier.width(k))
        return self.classifier.rescore(queries, shortlist, k)

    def keys(self, X: csr_array, queries: Tensor) -> Tensor:
        """Return what the index is searched by for the points of X, whose own vectors are queries, [points, D]."""
        return queries if self.finder is None else self.encode(X, self.finder)

    def recall(self, X: csr_array, k: int) -> float | None:
        """Return the share of the exact shortlist that the index finds for the points of X; None if it is exact."""
        if isinstance(self.index, ExactIndex):
            return None
        exact, width = ExactIndex(self.classifier.vectors), self.classifier.width(k)
        queries = self.encode(X)
        return recall(self.index, exact, queries, width, self.keys(X, queries))

    @torch.no_grad()
    def encode(self, X: csr_array, encoder: nn.Module | None = None) -> Tensor:
        """Return the vectors of points, [points, D], as its encoder has them or another one."""
        encoder = encoder or self.encoder
        encoder.eval()
        encoded: Tensor = encoder(bags(X).to(self.device))
        return encoded


@dataclass(frozen=True)
class Ensemble:
    """Several learners, whose scores are averaged; a label that one of them does not find counts as 0 there."""

    learners: Sequence[Learner]

    @property
    def first(self) -> Learner:
        """The learner that tells of labels what an average cannot: which are near, and which words speak for them."""
        return self.learners[0]

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k]; filtered pairs are left out."""
        return averaged([learner.rank(X, k + OTHERS, filtered) for learner in self.learners], k)

    def recall(self, X: csr_array, k: int) -> float | None:
        """Return the share of the exact shortlists that the indices find, on average; None if they are exact."""
        shares = [share for learner in self.learners if (share := learner.recall(X, k)) is not None]
        return sum(shares) / len(shares) if shares else None


def averaged(rankings: Sequence[Ranking], k: int) -> Ranking:
    """Rank by the mean of scores; where a label is not ranked it scores 0."""
    points = len(rankings[0])
    places = [np.nonzero(ranking.ids >= 0) for ranking in rankings]
    rows = np.concatenate([rows for rows, _ in places])
    ids = np.concatenate([ranking.ids[place] for ranking, place in zip(rankings, places, strict=True)])
    scores = np.concatenate([ranking.scores[place] for ranking, place in zip(rankings, places, strict=True)])
    labels = int(ids.max(initial=0)) + 1
    keys, inverse = np.unique(rows * labels + ids, return_inverse=True)
    means = np.bincount(inverse, weights=scores, minlength=len(keys)) / len(rankings)
    return Ranking.of_pairs(keys // labels, keys % labels, means, points, k)


def most_filtered(filtered: csr_array | None) -> int:
    """Return how many labels a point may have that must not be ranked."""
    return 0 if filtered is None else int(np.diff(filtered.indptr).max(initial=0))


class Unseen(NamedTuple):
    """Points that a model ranked before it learned from them, if it ever did, and their labels."""

    ranking: Ranking
    Y: csr_array


def unseen(learner: Learner, validation: Part) -> Unseen:
    """Rank (some of) validation, deep enough to learn from it what scores are worth."""
    validation = at_most(validation, MOST_POINTS)
    depth = min(DEPTH, validation.Y.shape[1])
    return Unseen(learner.rank(validation.X, depth, validation.filtered), validation.Y)


def at_most(part: Part, count: int) -> Part:
    """Return a part as it is, or so many of its points, from the first to the last."""
    return part if len(part) <= count else part.take(np.linspace(0, len(part) - 1, count).astype(np.int64))


def labelled(part: Part) -> Part:
    """Return the points that have labels: the others have nothing to tell."""
    rows = np.flatnonzero(np.diff(part.Y.indptr))
    return part if len(rows) == len(part) else part.take(rows)


def share_right(learner: Learner, part: Part) -> float:
    """Return P@1 as a share: how often the first label is right."""
    best = learner.rank(part.X, 1, part.filtered).ids[:, 0]
    right = np.asarray(part.Y[np.arange(len(best)), np.maximum(best, 0)]).ravel() > 0
    return float(np.mean(right & (best >= 0)))


def ndcg(learner: Learner, part: Part) -> float:
    """Return nDCG@5 as a share: how good the first five labels are."""
    return metrics.measure(learner.rank(part.X, 5, part.filtered), part.Y, ks=[5])["nDCG@5"] / 100


@dataclass(frozen=True)
class Cosine:
    """Scores labels by the inner product of a query with their vectors [L, D]."""

    vectors: Tensor
    score: Callable[[Tensor], Tensor]  # of inner products, in [0, 1], keeps their order
    raw: Callable[[Tensor], Tensor] = torch.clone  # of inner products, what `score` squeezes into [0, 1]

    def width(self, k: int) -> int:
        """Return how many labels must be found to rank k."""
        return k + SPARE

    @torch.no_grad()
    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank labels; products are taken anew, row by row, for in a matrix product they depend on the batch."""
        ids = shortlist.ids
        steady = shortlist.scores if shortlist.steady else row_products(queries, self.vectors, ids.clamp_min(0))
        scores = self.score(steady)
        return ranking_of(Shortlist(ids, scores.masked_fill(ids < 0, -torch.inf)), k)


def half_cosine(cosines: Tensor) -> Tensor:
    """Return scores in [0, 1], in the order of the cosines."""
    return ((1 + cosines) / 2).clamp(0, 1)


def ranking_of(shortlist: Shortlist, k: int) -> Ranking:
    """Sort candidates: best first, ties to the lower id, in float32; short rows are padded to k."""
    ids, order = shortlist.ids.cpu().sort(dim=1)
    scores = shortlist.scores.float().cpu().gather(1, order)
    best = scores.sort(dim=1, descending=True, stable=True)
    found = Ranking(ids.gather(1, best.indices[:, :k]).numpy(), best.values[:, :k].contiguous().numpy())
    found.scores[found.ids < 0] = -np.inf
    if found.k == k:
        return found
    ranking = Ranking.empty(len(ids), k)
    ranking.ids[:, : found.k], ranking.scores[:, : found.k] = found.ids, found.scores
    return ranking


def with_others(ids: Tensor, scores: Tensor, counts: Tensor, k: int) -> Ranking:
    """Rank candidates [B, W], of which -1 are none, and behind them, where there are too few, the most frequent labels.

    scores: above `UNLISTED`, which `listed` sees to.  counts: points of each label, [L].
    """
    there = ids >= 0
    if ids.shape[1] >= k and bool(there.all()):  # as nearly always
        return ranking_of(Shortlist(ids, scores), k)
    scores = scores.masked_fill(~there, -torch.inf)
    if bool((there.sum(dim=1) < k).any()):
        return filled(ids.cpu(), scores.cpu(), likelihoods(counts.cpu().numpy()), k)
    return ranking_of(Shortlist(ids, scores), k)


def listed(probabilities: Tensor) -> Tensor:
    """Return the scores of candidates, above those of labels that are on no list; low ones keep their order."""
    return (UNLISTED + (1 - UNLISTED) * probabilities).float()


def known(queries: Tensor, shortlist: Shortlist) -> Tensor:
    """Return the candidates [B, W]: none, -1, for a point of which nothing is known."""
    told = queries.any(dim=1, keepdim=True)
    return shortlist.ids if bool(told.all()) else shortlist.ids.masked_fill(~told, -1)


def likelihoods(counts: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return scores of labels that nothing speaks for but how many points they have, [L]."""
    return np.asarray(UNLISTED / 2 * counts / max(int(counts.max(initial=0)), 1), dtype=np.float32)


def filled(ids: Tensor, scores: Tensor, prior: NDArray[np.float32], k: int) -> Ranking:
    """Rank candidates [B, W], of which -1 are none, and behind them the labels with the largest prior [L]."""
    points, width = ids.shape
    likely = np.argsort(-prior, kind="stable")[: k + width]  # enough for any row to find k in
    rows, places = np.nonzero(ids.numpy() >= 0)
    listed = csr_array((np.ones(len(rows)), (rows, ids.numpy()[rows, places])), shape=(points, len(prior)))
    there = stored(listed, np.repeat(np.arange(points), len(likely)), np.tile(likely, points))
    mask = torch.from_numpy(there.reshape(points, len(likely)))
    more = torch.where(mask, -1, torch.from_numpy(likely))
    values = torch.where(mask, -torch.inf, torch.from_numpy(prior[likely]))
    return ranking_of(Shortlist(torch.cat([ids, more], dim=1), torch.cat([scores, values], dim=1)), k)


@torch.no_grad()
def level(part: Part, scored: Callable[[Part], Tensor]) -> float:
    """Return an offset of scores, where the loss has learned none: with it, Σ σ(score) is the number of right labels.

    scored: returns the scores of points with all labels, [N, L]; it is asked for some points of the part.
    """
    some = at_most(part, max(16, SCORES // part.Y.shape[1]))
    scores, right = scored(some), some.Y.nnz
    if some.filtered is not None:
        scores[torch.from_numpy(np.stack(some.filtered.nonzero())).unbind()] = -torch.inf
        right -= some.Y.multiply(some.filtered).nnz
    most = float(scores.abs().nan_to_num(posinf=0.0).max())
    low, high = -100.0 - most, 100.0 + most
    for _ in range(40):  # of which each halves what is left
        middle = (low + high) / 2
        many = float(torch.sigmoid(scores + middle).sum()) > right
        low, high = (low, middle) if many else (middle, high)
    return middle
