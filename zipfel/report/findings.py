"""What a report tells: figures, curves, documents and confusions, all from one ranking of a part's points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.errors import DataError
from zipfel.evaluate import Report, evaluate
from zipfel.models.base import Ensemble, Learner
from zipfel.models.neighbours import Vote
from zipfel.report.documents import JUDGED, LENGTH, Confusion, Document, Tagged, confusions, documents
from zipfel.tagger import Tagger
from zipfel.types import Ids, Ranking

BATCH = 512  # points between two signs of progress
SEARCHED = 1000  # points whose shortlists are looked at

Floats = NDArray[np.float64]
Tell = Callable[[int, int], None]  # points done, of all


@dataclass(frozen=True)
class Reliability:
    """Predictions by their score: what they said, how often they were right, and how many there are, by bin."""

    said: Floats
    right: Floats
    counts: Ids

    @property
    def error(self) -> float:
        """The mean distance of what was said to what was right, over predictions, in percent."""
        return 100 * float(np.abs(self.said - self.right) @ self.counts / max(1, int(self.counts.sum())))


@dataclass(frozen=True)
class Shortlist:
    """Share of the true labels among the first 1, 2, ... candidates, and how many of them the model looks at."""

    recall: Floats
    width: int | None  # None: as many as labels are asked for, from all
    of_points: bool  # candidates are points of train, whose labels count


@dataclass(frozen=True)
class Findings:
    """All that a page shows."""

    part: str
    report: Report
    curves: Mapping[str, Floats]  # P, R and coverage for k = 1, 2, ..., in percent
    covered: Floats  # of the labels of each frequency bin that occur, the share that is found, in percent
    reliability: Reliability
    shortlist: Shortlist
    best: list[Document]
    worst: list[Document]
    confusions: list[Confusion]


def findings(tagger: Tagger, dataset: Dataset, part: str = "test", tell: Tell = lambda done, all: None) -> Findings:
    """Rank the points of a part, and judge what came out."""
    points = dataset.parts.get(part)
    if points is None or len(points) == 0:
        raise DataError(f"{dataset.name or 'the data set'} has no points in {part}")
    ranking = _ranking(tagger, points, tell)
    tagged = Tagged(dataset, points, ranking)
    right, ks, some = tagged.right[:, :JUDGED], range(1, ranking.k + 1), np.arange(min(SEARCHED, len(points)))
    measured = metrics.measure(ranking, points.Y, ks=ks)
    best, worst = documents(tagged, tagger)
    return Findings(
        part=part,
        report=evaluate(ranking.top(JUDGED), dataset, part),
        curves={name: np.array([measured[f"{name}@{k}"] for k in ks]) for name in ("P", "R", "coverage")},
        covered=covered(ranking.ids[:, :JUDGED][right], points.Y, tagged.counts),
        reliability=reliability(ranking.scores[:, :JUDGED], right),
        shortlist=shortlist(_first(tagger.learner_), _rows(tagger, points.take(some)), points.Y),
        best=best,
        worst=worst,
        confusions=confusions(tagged),
    )


def _first(learner: Learner | Ensemble) -> Learner:
    """Return a learner, of several the first: their shortlists are made alike."""
    return learner.learners[0] if isinstance(learner, Ensemble) else learner


def _rows(tagger: Tagger, points: Part) -> csr_array:
    return points.X if tagger.features_ is None else tagger.features_.transform(points.texts or {})


def _ranking(tagger: Tagger, points: Part, tell: Tell) -> Ranking:
    parts = []
    for start in range(0, len(points), BATCH):
        tell(start, len(points))
        some = points.take(np.arange(start, min(start + BATCH, len(points))))
        parts.append(tagger.rank(some.X if tagger.features_ is None else some.texts, LENGTH, some.filtered))
    tell(len(points), len(points))
    return Ranking(np.concatenate([part.ids for part in parts]), np.concatenate([part.scores for part in parts]))


def reliability(scores: NDArray[np.float32], right: NDArray[np.bool_], bins: int = 10) -> Reliability:
    """Sort predictions [N, K] into bins of equal width by their scores in [0, 1]; an empty bin has said and right 0."""
    known = np.isfinite(scores)
    said, hits = scores[known].astype(np.float64), right[known]
    places = np.minimum((said * bins).astype(np.int64), bins - 1)
    counts = np.bincount(places, minlength=bins)
    means = [np.bincount(places, values, bins) / np.maximum(counts, 1) for values in (said, hits)]
    return Reliability(means[0], means[1], counts)


def shortlist(learner: Learner, X: csr_array, truth: csr_array, widest: int = 100) -> Shortlist:
    """Look for the true labels of points [n, F] among the candidates of a model's index, nearest first."""
    classifier, queries = learner.classifier, learner.encode(X)
    of_points, truth = isinstance(classifier, Vote), truth[: X.shape[0]]
    width = _width(learner)
    found = learner.index.search(queries, min(max(widest, 2 * (width or 0)), len(learner.index)))
    order = found.scores.sort(dim=1, descending=True, stable=True).indices
    ids = found.ids.gather(1, order).cpu().numpy()  # [n, W]
    rows, places = np.nonzero(ids >= 0)
    labels = ids[rows, places]
    if isinstance(classifier, Vote):
        Y = classifier.memory.Y
        sizes = np.diff(Y.indptr)[labels]
        rows, places, labels = np.repeat(rows, sizes), np.repeat(places, sizes), Y[labels].indices
    first = _first_places(rows * truth.shape[1] + labels, places, truth)
    hits = np.bincount(first[first >= 0], minlength=ids.shape[1]).cumsum()
    return Shortlist(hits / max(1, len(first)), width, of_points)


def _width(learner: Learner) -> int | None:
    """Return how many candidates a model looks at, where that does not depend on how many labels are asked for."""
    classifier = learner.classifier
    if isinstance(classifier, Vote):
        return min(classifier.neighbours, len(learner.index))
    return min(classifier.width(1), len(learner.index)) if classifier.width(1) == classifier.width(2) else None


def _first_places(keys: Ids, places: Ids, truth: csr_array) -> Ids:
    """Return the first place of each true pair among (row, label) keys, [nnz]; -1 where it is none of them."""
    order = np.lexsort((places, keys))
    unique, starts = np.unique(keys[order], return_index=True)
    wanted = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr)) * truth.shape[1] + truth.indices
    if len(unique) == 0:
        return np.full(len(wanted), -1)
    at = np.minimum(np.searchsorted(unique, wanted), len(unique) - 1)
    return np.where(unique[at] == wanted, places[order][starts[at]], -1)


def covered(found: Ids, truth: csr_array, counts: Ids) -> Floats:
    """Return of the labels that occur in truth the share that is found, by frequency bin, in percent."""
    owner = metrics.frequency_bins(counts)
    occurring, there = np.unique(truth.indices), np.unique(found)
    bins = int(owner.max(initial=0)) + 1
    shares = [np.bincount(owner[labels], minlength=max(5, bins)) for labels in (there, occurring)]
    return np.asarray(100 * shares[0] / np.maximum(shares[1], 1))
