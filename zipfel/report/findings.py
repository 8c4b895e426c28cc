"""Content of a report: metrics, curves, documents and confusions, all from one ranking of a part's points."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import metrics, tagging
from zipfel.calibration import DEPTH, cut
from zipfel.data.dataset import Dataset, Part
from zipfel.data.judged import filtered_of
from zipfel.data.labels import names_of
from zipfel.errors import DataError
from zipfel.evaluate import LEVELS, Report, evaluate
from zipfel.index.exact import SPARE
from zipfel.label_report import LabelReport
from zipfel.models.base import Learner, Predictor
from zipfel.report.documents import JUDGED, LENGTH, Confusion, Document, Tagged, confusions, documents
from zipfel.tagger import Tagger
from zipfel.tagging import Request
from zipfel.types import Ids, Ranking

BATCH = 512  # points between two progress reports
SEARCHED = 1000  # points whose shortlists are evaluated

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Reliability:
    """Reliability diagram: mean score, share of right predictions, and number of predictions, per bin."""

    said: Floats
    right: Floats
    counts: Ids

    @property
    def error(self) -> float:
        """The expected calibration error: mean distance of score and share of right, over predictions, in percent."""
        return 100 * float(np.abs(self.said - self.right) @ self.counts / max(1, int(self.counts.sum())))


@dataclass(frozen=True)
class Shortlist:
    """Recall of the true labels among the top 1, 2, ... candidates, and how many candidates the model scores."""

    recall: Floats
    width: int | None  # None: it depends on k, and all labels are searched
    of_points: bool  # whether candidates are training points, whose labels count


@dataclass(frozen=True)
class Findings:
    """Content of the page."""

    part: str
    report: Report
    curves: Mapping[str, Floats]  # P, R and coverage for k = 1, 2, ..., in percent
    covered: Floats  # share of the occurring labels that are predicted correctly, per frequency bin, in percent
    reliability: Reliability
    shortlist: Shortlist
    best: list[Document]
    worst: list[Document]
    confusions: list[Confusion]
    labels: LabelReport  # at the threshold with the best micro-F1 on held-out points
    tuned: bool  # whether there were enough of these; if not, the threshold is 0.5


def findings(
    tagger: Tagger, dataset: Dataset, part: str = "test", on_progress: Callable[[int], None] = lambda points: None
) -> Findings:
    """Rank the points of a part and evaluate the ranking.  on_progress: called with the number of ranked points."""
    points = dataset.parts.get(part)
    if points is None or len(points) == 0:
        raise DataError(f"{dataset.name or 'the data set'} has no points in {part}")
    long = ranked(tagger, points, max(LENGTH, LEVELS, DEPTH), on_progress)
    ranking = long.top(LENGTH)
    tagged = Tagged(dataset, points, ranking)
    right, ks, some = tagged.right[:, :JUDGED], range(1, ranking.k + 1), np.arange(min(SEARCHED, len(points)))
    measured = metrics.measure(ranking, points.Y, ks=ks)
    best, worst = documents(tagged, tagger)
    return Findings(
        part=part,
        report=evaluate(long, dataset, part),
        curves={name: np.array([measured[f"{name}@{k}"] for k in ks]) for name in ("P", "R", "coverage")},
        covered=covered(ranking.ids[:, :JUDGED][right], points.Y, tagged.counts),
        reliability=reliability(ranking.scores[:, :JUDGED], right),
        shortlist=shortlist(tagger.predictor_, _rows(tagger, points.take(some)), points.Y),
        best=best,
        worst=worst,
        confusions=confusions(tagged),
        labels=labels_at_threshold(tagger, long, points.Y, names_of(dataset)),
        tuned=tagger.calibration_ is not None,
    )


def labels_at_threshold(tagger: Tagger, ranking: Ranking, truth: csr_array, names: Sequence[str]) -> LabelReport:
    """Return the report of labels at the usual threshold; those that the model lacks come after its own.

    ranking: with probabilities.  truth: [points, labels].
    """
    fitted, known = tagger.fitted_, len(tagger.labels_)
    assert fitted is not None
    least = tagging.usual_threshold(fitted)
    report = tagging.report_of(fitted, cut(ranking, least), truth[:, :known], least)
    return report.with_unknown(truth[:, known:], names[known:])


def _rows(tagger: Tagger, points: Part) -> csr_array:
    return points.X if tagger.features_ is None else tagger.features_.transform(points.texts or {})


def ranked(tagger: Tagger, points: Part, k: int, on_progress: Callable[[int], None]) -> Ranking:
    """Return the best k labels of the points of a part, with probabilities."""
    parts = []
    for start in range(0, len(points), BATCH):
        some = points.take(np.arange(start, min(start + BATCH, len(points))))
        filtered = filtered_of(some, len(tagger.labels_))
        request = Request(some.X if tagger.features_ is None else some.texts, k, filtered=filtered)
        parts.append(tagger.tag([request])[0].ranking)
        on_progress(start + len(some))
    return Ranking(np.concatenate([part.ids for part in parts]), np.concatenate([part.scores for part in parts]))


def reliability(scores: NDArray[np.float32], right: NDArray[np.bool_], bins: int = 10) -> Reliability:
    """Bin predictions [N, K] by score in [0, 1], in bins of equal width; `said` and `right` of an empty bin are 0."""
    known = np.isfinite(scores)
    said, hits = scores[known].astype(np.float64), right[known]
    owner = np.minimum((said * bins).astype(np.int64), bins - 1)
    counts = np.bincount(owner, minlength=bins)
    means = [np.bincount(owner, values, bins) / np.maximum(counts, 1) for values in (said, hits)]
    return Reliability(means[0], means[1], counts)


def shortlist(predictor: Predictor, X: csr_array, truth: csr_array, widest: int = 100) -> Shortlist:
    """Measure the recall of true labels of points [n, F] among the candidates of a model's index, nearest first.

    For a model without an index: among the labels that it ranks highest.
    """
    learner, truth, votes, width = predictor.first, truth[: X.shape[0]], None, None
    if learner is None:
        ids = predictor.rank(X, min(widest, truth.shape[1])).ids
    else:
        votes, width = learner.classifier.point_labels, _width(learner)
        length = min(max(widest, 2 * (width or 0)), len(learner.index))
        candidates = learner.index.search(learner.encode(X), length)
        order = candidates.scores.sort(dim=1, descending=True, stable=True).indices
        ids = candidates.ids.gather(1, order).cpu().numpy()  # [n, W]
    rows, ranks = np.nonzero(ids >= 0)  # ranks ascend within a row
    labels = ids[rows, ranks]
    if votes is not None:
        sizes = np.diff(votes.indptr)[labels]
        rows, ranks, labels = np.repeat(rows, sizes), np.repeat(ranks, sizes), votes[labels].indices
    wanted = np.repeat(np.arange(truth.shape[0]), np.diff(truth.indptr)) * truth.shape[1] + truth.indices
    pairs, first = np.unique(rows * truth.shape[1] + labels, return_index=True)
    ranks = ranks[first[np.isin(pairs, wanted)]]  # of the true labels
    return Shortlist(np.bincount(ranks, minlength=ids.shape[1]).cumsum() / max(1, truth.nnz), width, votes is not None)


def _width(learner: Learner) -> int | None:
    """Return how many candidates a model scores; None if that depends on k."""
    classifier = learner.classifier
    if classifier.width(1) != classifier.width(2):
        return None
    voters = classifier.width(1) - (0 if classifier.point_labels is None else SPARE)  # spare points do not vote
    return min(voters, len(learner.index))


def covered(predicted: Ids, truth: csr_array, counts: Ids) -> Floats:
    """Return the share of the labels in `truth` that are predicted correctly, per frequency bin, in percent."""
    owner = metrics.frequency_bins(counts)
    right, occurring = (np.bincount(owner[np.unique(labels)], minlength=5) for labels in (predicted, truth.indices))
    return np.asarray(100 * right / np.maximum(occurring, 1))
