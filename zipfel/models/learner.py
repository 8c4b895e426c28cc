"""A learner: an encoder, an index and a classifier. Prediction and explanation, written once for all models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from zipfel import metrics
from zipfel.calibration import DEPTH, MOST_POINTS
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.data.disk import empty_rows, ones_in, roomy
from zipfel.index import Search, recall
from zipfel.index.exact import SPARE, ExactIndex, row_products, with_ones
from zipfel.nn.encoders import Encoder
from zipfel.training.machine import keep_freed_memory, one_thread
from zipfel.training.ranks import World
from zipfel.training.trainer import Outcome, Validation
from zipfel.types import Bags, Ids, Ranking, Scores, Share, Shortlist, stored

BATCH = 1024
SCORES = 1 << 22  # used to set an offset
UNLISTED = 1e-6  # upper bound on the score of a label that is no candidate and is ranked by its frequency
OTHERS = 45  # labels beyond k that each learner of an ensemble ranks: one that all rank lower cannot end among the k
LITTLE = 1 << 25  # numbers of vectors up to which one point is ranked by one thread: 2 ms of products in 8 bits
COMPARED = 1 << 16  # label vectors that one is compared with at once
STEPS = 16  # points on the path from no text to the text at which gradients are taken

Scorer = Callable[[Tensor], Tensor]  # vectors of points [B, D] to scores of one label [B], differentiable


class Classifier(Protocol):
    """Turns candidates into ranked labels with scores in [0, 1]."""

    @property
    def vectors(self) -> Tensor:
        """The vectors that an exact index would search, [N, D]: of labels, or of points that vote."""
        ...

    @property
    def point_labels(self) -> csr_array | None:
        """The labels [N, L] of the points that vote; None where `vectors` are those of labels."""
        ...

    def width(self, k: int) -> int:
        """Return how many candidates it takes to rank k labels."""

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank the best k labels of each query."""

    def scorer(self, label: int, query: Tensor, index: Search) -> Scorer:
        """Return the score of a label near a query [1, D] as a function of vectors, before it is squeezed into [0, 1].

        Explanations differentiate it, so it should be as linear as the classifier allows: log-odds, not probabilities.
        """


@dataclass(frozen=True)
class Learner:
    """Encodes points, finds candidates, and ranks labels.

    search_encoder: encodes points for the index, where the index searches other vectors than the classifier uses.
    has_bias: the classifier's vectors end in a bias, [N, D + 1], so that its queries end in a 1.
    """

    encoder: Encoder
    index: Search
    classifier: Classifier
    device: torch.device
    search_encoder: Encoder | None = None
    has_bias: bool = False

    @property
    def first(self) -> Learner:
        """The learner itself."""
        return self

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k], without filtered pairs."""
        keep_freed_memory()
        wide = k + most_filtered(filtered)
        if X.shape[0] <= BATCH:
            alone = X.shape[0] == 1 and self.classifier.vectors.numel() <= LITTLE
            with one_thread() if alone else nullcontext():
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
        """Return the vectors [points, D] that the index is searched with; queries are those of the classifier."""
        return queries if self.search_encoder is None else self.encode(X, self.search_encoder)

    def recall(self, X: csr_array, k: int) -> float | None:
        """Return the share of the exact shortlist that the index finds for the points of X; None if it is exact."""
        if isinstance(self.index, ExactIndex):
            return None
        exact, width = ExactIndex(self.classifier.vectors), self.classifier.width(k)
        queries = self.encode(X)
        return recall(self.index, exact, queries, width, self.keys(X, queries))

    @torch.no_grad()
    def encode(self, X: csr_array, encoder: Encoder | None = None) -> Tensor:
        """Return the vectors of points, [points, D], by the learner's encoder (with a 1 for a bias) or another one."""
        used = encoder or self.encoder
        used.eval()
        encoded: Tensor = used(bags(X).to(self.device))
        return with_ones(encoded, self.classifier.vectors) if encoder is None else encoded

    def explained(self, row: csr_array, label: int) -> NDArray[np.float64]:
        """Return what each stored feature of a point [1, F] adds to a label's score, [T].

        By integrated gradients (Sundararajan et al., 2017), on the path from no text to this one:

            weight_t = x_t ∫₀¹ ∂f / ∂x_t (a x) da,    Σ_t weight_t = f(x) − f(0)

        Where vectors have length 1, they are divided by the length that the whole text has, all along the path: a
        cosine does not change along it at all, while a sum divided by a constant is shared out exactly. So for a linear
        encoder with cosines a weight is scale · x_t e_t · w_l / ‖Σ x_t e_t‖, and nothing is approximate.
        """
        point, query = bags(row).to(self.device), self.encode(row)
        x = query[:, :-1] if self.has_bias else query
        length = self.encoder.unscaled(point).float().norm() / x.norm() if x.any() else 1.0
        score = self.classifier.scorer(label, query, self.index)
        nodes = np.stack(np.polynomial.legendre.leggauss(STEPS)) / 2 + [[0.5], [0]]  # from [-1, 1] to [0, 1]
        steps, shares = torch.from_numpy(nodes).to(point.weights)
        with torch.enable_grad():
            along = (steps[:, None] * point.weights).flatten().requires_grad_()  # [STEPS · T]
            ends = torch.arange(STEPS + 1, device=self.device) * len(point.ids)
            vectors = self.encoder.unscaled(Bags(point.ids.repeat(STEPS), along, ends)).float() / length  # [STEPS, D]
            scores = score(with_ones(vectors, self.classifier.vectors))
            (slopes,) = torch.autograd.grad((scores * shares).sum(), along)
        return np.asarray((slopes.view(STEPS, -1).sum(dim=0) * point.weights).double().cpu())

    def cosines(self, label: int) -> Tensor | None:
        """Return the cosine of a label's vector with that of each label, [L]; None if the vectors are of points."""
        if self.classifier.point_labels is not None:
            return None
        vectors = self.classifier.vectors[:, :-1] if self.has_bias else self.classifier.vectors
        own = F.normalize(vectors[label], dim=0)
        chunks = torch.split(vectors, COMPARED)
        return torch.cat([chunk @ own / chunk.norm(dim=1).clamp_min(1e-12) for chunk in chunks])


@dataclass(frozen=True)
class Ensemble:
    """Several learners whose scores are averaged; a label that a learner does not rank counts as 0 there."""

    learners: Sequence[Learner]

    @property
    def first(self) -> Learner:
        """The first learner, for values that cannot be averaged, such as vectors of labels."""
        return self.learners[0]

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k], without filtered pairs."""
        return mean_ranking([learner.rank(X, k + OTHERS, filtered) for learner in self.learners], k)

    def recall(self, X: csr_array, k: int) -> float | None:
        """Return the share of the exact shortlists that the indices find, on average; None if they are exact."""
        shares = [share for learner in self.learners if (share := learner.recall(X, k)) is not None]
        return sum(shares) / len(shares) if shares else None

    def explained(self, row: csr_array, label: int) -> NDArray[np.float64]:
        """Return what each stored feature of a point [1, F] adds to a label's score, [T]: the mean over learners."""
        return np.asarray(np.mean([learner.explained(row, label) for learner in self.learners], axis=0))

    def cosines(self, label: int) -> Tensor | None:
        """Return the cosine of a label's vector with that of each label, [L], by the first learner."""
        return self.first.cosines(label)


class Predictor(Protocol):
    """Ranks points and explains scores: a learner, an average of several, or what a model has in their place."""

    @property
    def first(self) -> Learner | None:
        """The learner to ask for what cannot be averaged; None for a model without learners."""
        ...

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k], without filtered pairs."""
        ...

    def recall(self, X: csr_array, k: int) -> float | None:
        """Return the share of the exact candidates that the index finds for the points of X; None if it is exact."""
        ...

    def explained(self, row: csr_array, label: int) -> NDArray[np.float64]:
        """Return the contribution of each stored feature of a point [1, F] to a label's score, [T]."""
        ...

    def cosines(self, label: int) -> Tensor | None:
        """Return the cosine of a label's vector with that of each label, [L]; None if it has no such vectors."""
        ...


def in_turn(learn: Callable[[int], Outcome], learners: int) -> tuple[int, Outcome]:
    """Train learners one after the other; return how many of them can rank, and how training ended.

    learn: trains the learner of a number. Ctrl-C leaves the learners that are finished, or nothing to rank with.
    """
    outcomes: list[Outcome] = []
    for number in range(learners):
        try:
            outcomes.append(learn(number))
        except KeyboardInterrupt:
            if not outcomes:  # nothing can be ranked yet
                raise
            outcomes[-1].interrupted = True
        if outcomes[-1].interrupted:
            break
    first, last = outcomes[0], outcomes[-1]
    return len(outcomes), Outcome(first.best, first.best_epoch, sum(outcome.epochs for outcome in outcomes),
                                  sum(outcome.seconds for outcome in outcomes), last.interrupted,
                                  first.metric)  # fmt: skip


def learner_of(predictor: Predictor) -> Learner:
    """Return the first learner of a predictor that has one."""
    assert predictor.first is not None
    return predictor.first


def mean_ranking(rankings: Sequence[Ranking], k: int) -> Ranking:
    """Rank by the mean of scores; a label that a ranking lacks scores 0 there."""
    points = len(rankings[0])
    cells = [np.nonzero(ranking.ids >= 0) for ranking in rankings]
    rows = np.concatenate([rows for rows, _ in cells])
    ids = np.concatenate([ranking.ids[cell] for ranking, cell in zip(rankings, cells, strict=True)])
    scores = np.concatenate([ranking.scores[cell] for ranking, cell in zip(rankings, cells, strict=True)])
    labels = int(ids.max(initial=0)) + 1
    keys, inverse = np.unique(rows * labels + ids, return_inverse=True)
    means = np.bincount(inverse, weights=scores, minlength=len(keys)) / len(rankings)
    return Ranking.of_pairs(keys // labels, keys % labels, means, points, k)


def most_filtered(filtered: csr_array | None) -> int:
    """Return the largest number of filtered labels that a point has."""
    return 0 if filtered is None else int(np.diff(filtered.indptr).max(initial=0))


class HeldOut(NamedTuple):
    """A ranking of points by a model that had not learned from them, and their labels."""

    ranking: Ranking
    part: Part

    @property
    def Y(self) -> csr_array:  # noqa: N802
        """The labels of the points."""
        return self.part.Y


def rank_held_out(predictor: Predictor, validation: Part) -> HeldOut:
    """Rank up to MOST_POINTS of validation, deep enough to calibrate scores on.

    Points without a known feature are left out: tagging does not rank them by the model's scores.
    """
    assert validation.X is not None
    known = np.flatnonzero(np.diff(validation.X.indptr))
    validation = evenly_spaced(validation if len(known) == len(validation) else validation.take(known), MOST_POINTS)
    depth = min(DEPTH, validation.Y.shape[1])
    return HeldOut(predictor.rank(validation.X, depth, validation.filtered), validation)


def joined(batches: Iterable[Tensor], rows: int) -> Tensor:
    """Return batches of rows as one tensor; on a CPU, one of many rows lies in a temporary file."""
    others = iter(batches)
    first = next(others)
    if first.device.type != "cpu":
        return torch.cat([first, *others])
    whole, end = torch.from_numpy(roomy((rows, *first.shape[1:]), first[:0].numpy().dtype)), 0
    for batch in chain([first], others):
        whole[end : end + len(batch)] = batch
        end += len(batch)
    return whole


def evenly_spaced(part: Part, count: int) -> Part:
    """Return a part as it is, or `count` of its points at even spacing."""
    return part if len(part) <= count else part.take(np.linspace(0, len(part) - 1, count).astype(np.int64))


def labelled(part: Part) -> Part:
    """Return the points that have labels."""
    if not empty_rows(part.Y):
        return part
    ends = part.Y.indptr
    return part.take(ones_in(lambda p: ends[p.start + 1 : p.stop + 1] > ends[p], len(part)))


def validation_of(part: Part | None, quality: Callable[[Part], float], metric: str = "P@1") -> Validation | None:
    """Return how the trainer validates: the quality on a part, and its name; None without points."""
    return Validation(metric, partial(quality, part)) if part else None


def precision_at_1(predictor: Predictor, part: Part) -> float:
    """Return P@1 as a share: how often the first label is right."""
    best = predictor.rank(part.X, 1, part.filtered).ids[:, 0]
    right = np.asarray(part.Y[np.arange(len(best)), np.maximum(best, 0)]).ravel() > 0
    return float(np.mean(right & (best >= 0)))


def ndcg_at_5(learner: Learner, part: Part) -> float:
    """Return nDCG@5 as a share."""
    return metrics.measure(learner.rank(part.X, 5, part.filtered), part.Y, ks=[5])["nDCG@5"] / 100


@dataclass(frozen=True)
class CosineClassifier:
    """Scores labels by the inner product of a query with their vectors [L, D]."""

    vectors: Tensor
    score: Callable[[Tensor], Tensor]  # maps inner products to [0, 1] and keeps their order
    raw: Callable[[Tensor], Tensor] = torch.clone  # maps inner products to what `score` squeezes into [0, 1]
    point_labels: None = None

    def width(self, k: int) -> int:
        """Return how many candidates it takes to rank k labels."""
        return k + SPARE

    @torch.no_grad()
    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank labels; products are computed again, row by row: those of a matrix product depend on the batch."""
        ids = shortlist.ids
        steady = shortlist.scores if shortlist.steady else row_products(queries, self.vectors, ids.clamp_min(0))
        scores = self.score(steady)
        return sorted_ranking(Shortlist(ids, scores.masked_fill(ids < 0, -torch.inf)), k)

    def scorer(self, label: int, query: Tensor, index: Search) -> Scorer:
        """Return the label's raw score."""
        return lambda vectors: self.raw(vectors @ self.vectors[label])


def half_cosine(cosines: Tensor) -> Tensor:
    """Return scores in [0, 1], in the order of the cosines."""
    return ((1 + cosines) / 2).clamp(0, 1)


def sorted_ranking(shortlist: Shortlist, k: int) -> Ranking:
    """Sort candidates: best first, ties to the lower id, in float32; short rows are padded to k."""
    ids, scores = shortlist.ids.cpu(), shortlist.scores.float().cpu()
    top = _sorted_alone(ids.numpy(), scores.numpy(), k) if len(ids) == 1 else _sorted_together(ids, scores, k)
    top.scores[top.ids < 0] = -np.inf
    if top.k == k:
        return top
    ranking = Ranking.empty(len(ids), k)
    ranking.ids[:, : top.k], ranking.scores[:, : top.k] = top.ids, top.scores
    return ranking


def _sorted_together(ids: Tensor, scores: Tensor, k: int) -> Ranking:
    ids, order = ids.sort(dim=1)
    best = scores.gather(1, order).sort(dim=1, descending=True, stable=True)
    return Ranking(ids.gather(1, best.indices[:, :k]).numpy(), best.values[:, :k].contiguous().numpy())


def _sorted_alone(ids: Ids, scores: Scores, k: int) -> Ranking:
    """Sort the candidates of a single point, [1, W], which NumPy does in a third of the time."""
    best = np.lexsort((ids[0], -scores[0]))[:k]
    return Ranking(ids[:, best], scores[:, best])


def rank_candidates(ids: Tensor, scores: Tensor, counts: Tensor, k: int) -> Ranking:
    """Rank candidates [B, W] (-1 pads) and, where a row has fewer than k, the most frequent other labels behind them.

    scores: above UNLISTED, which `candidate_scores` ensures.  counts: training points of each label, [L].
    """
    present = ids >= 0
    if ids.shape[1] >= k and bool(present.all()):  # nearly always
        return sorted_ranking(Shortlist(ids, scores), k)
    scores = scores.masked_fill(~present, -torch.inf)
    if bool((present.sum(dim=1) < k).any()):
        return fill_with_frequent(ids.cpu(), scores.cpu(), frequency_scores(counts.cpu().numpy()), k)
    return sorted_ranking(Shortlist(ids, scores), k)


def candidate_scores(probabilities: Tensor) -> Tensor:
    """Return scores of candidates: above those of labels that are no candidates, in the order of the probabilities."""
    return (UNLISTED + (1 - UNLISTED) * probabilities).float()


def candidates_of(queries: Tensor, shortlist: Shortlist) -> Tensor:
    """Return the candidates [B, W]; a point without known features, whose query is 0, has none (-1)."""
    known = queries.any(dim=1, keepdim=True)
    return shortlist.ids if bool(known.all()) else shortlist.ids.masked_fill(~known, -1)


def frequency_scores(counts: NDArray[np.integer]) -> NDArray[np.float32]:
    """Return the scores, below UNLISTED, of labels that are ranked by frequency only, [L]."""
    return np.asarray(UNLISTED / 2 * counts / max(int(counts.max(initial=0)), 1), dtype=np.float32)


def fill_with_frequent(ids: Tensor, scores: Tensor, prior: NDArray[np.float32], k: int) -> Ranking:
    """Rank candidates [B, W] (-1 pads), and behind them the labels with the largest prior [L]."""
    points, width = ids.shape
    likely = np.argsort(-prior, kind="stable")[: k + width]  # enough for any row to have k
    rows, columns = np.nonzero(ids.numpy() >= 0)
    listed = csr_array((np.ones(len(rows)), (rows, ids.numpy()[rows, columns])), shape=(points, len(prior)))
    present = stored(listed, np.repeat(np.arange(points), len(likely)), np.tile(likely, points))
    mask = torch.from_numpy(present.reshape(points, len(likely)))
    more = torch.where(mask, -1, torch.from_numpy(likely))
    values = torch.where(mask, -torch.inf, torch.from_numpy(prior[likely]))
    return sorted_ranking(Shortlist(torch.cat([ids, more], dim=1), torch.cat([scores, values], dim=1)), k)


@torch.no_grad()
def matching_offset(
    part: Part, score: Callable[[Part], Tensor], own: Share | None = None, world: World | None = None
) -> float:
    """Return the offset b with which Σ σ(score + b) equals the number of right labels; for losses that learn none.

    score: returns the scores of points with all labels, [N, L]; it is called with a sample of the part.  own, world:
    where several ranks have a range of labels each, the scores are of the rank's own labels.
    """
    world = world or World()
    sample = evenly_spaced(part, max(16, SCORES // part.Y.shape[1]))
    scores, right = score(sample), sample.Y.nnz
    if sample.filtered is not None:
        mine = sample.filtered if own is None else sample.filtered[:, own.rows]
        scores[torch.from_numpy(np.stack(mine.nonzero())).unbind()] = -torch.inf
        right -= sample.Y.multiply(sample.filtered).nnz
    most = float(world.max(scores.abs().nan_to_num(posinf=0.0).max()))
    low, high = -100.0 - most, 100.0 + most
    for _ in range(40):  # bisection
        middle = (low + high) / 2
        many = float(world.sum(torch.sigmoid(scores + middle).sum())) > right
        low, high = (low, middle) if many else (middle, high)
    return middle
