"""What a report tells: figures, curves, documents and confusions, all from one ranking of a part's points."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.errors import DataError
from zipfel.evaluate import Report, evaluate
from zipfel.explain import Reason, weights
from zipfel.models.base import Learner
from zipfel.models.neighbours import Vote
from zipfel.tagger import Tagger
from zipfel.types import Ids, Ranking, stored

LENGTH = 20  # of the ranking; what lies behind is not looked at
JUDGED = 5  # labels by which documents, scores and coverage are judged
BATCH = 512  # points between two signs of progress
SEARCHED = 1000  # points whose shortlists are looked at
DOCUMENTS, CONFUSIONS, FEATURES = 5, 15, 12  # shown

Floats = NDArray[np.float64]
Tell = Callable[[int, int], None]  # points done, of all


class Label(NamedTuple):
    """A label, its text where it has one, and how many points of train have it."""

    name: str
    text: str
    points: int


class Guess(NamedTuple):
    """A predicted label."""

    label: Label
    score: float
    right: bool


class Missed(NamedTuple):
    """A true label that is not among the first; `place` is where it came, None if behind all that were ranked."""

    label: Label
    place: int | None


@dataclass(frozen=True)
class Document:
    """A point with its text or features, what was said of it, and why the first label was."""

    row: int
    quality: float  # nDCG, in percent
    text: str | None
    reasons: list[Reason]  # of the first label; without a text, features with their parts, and no places
    guesses: list[Guess]
    missed: list[Missed]


class Confusion(NamedTuple):
    """A label that was predicted where another was right, and how often, of all points that have the other."""

    predicted: Label
    right: Label
    times: int
    of: int


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
    right = stored(points.Y, np.repeat(np.arange(len(points)), ranking.k), ranking.ids.ravel())
    right = right.reshape(ranking.ids.shape)
    report = evaluate(ranking.top(JUDGED), dataset, part)
    measured = metrics.measure(ranking, points.Y, ks=range(1, ranking.k + 1))
    names = ("P", "R", "coverage")
    best, worst = _documents(tagger, dataset, points, ranking, right)
    return Findings(
        part=part,
        report=report,
        curves={name: np.array([measured[f"{name}@{k}"] for k in range(1, ranking.k + 1)]) for name in names},
        covered=covered(ranking.ids[:, :JUDGED][right[:, :JUDGED]], points.Y, dataset.label_counts),
        reliability=reliability(ranking.scores[:, :JUDGED], right[:, :JUDGED]),
        shortlist=shortlist(
            tagger.learner_, _rows(tagger, points.take(np.arange(min(SEARCHED, len(points))))), points.Y
        ),
        best=best,
        worst=worst,
        confusions=confusions(dataset, points.Y, ranking, right),
    )


def inputs(tagger: Tagger, points: Part) -> Any:
    """Return what a tagger takes of points: texts or features."""
    return points.X if tagger.features_ is None else points.texts


def _rows(tagger: Tagger, points: Part) -> csr_array:
    return points.X if tagger.features_ is None else tagger.features_.transform(points.texts or {})


def _ranking(tagger: Tagger, points: Part, tell: Tell) -> Ranking:
    parts = []
    for start in range(0, len(points), BATCH):
        tell(start, len(points))
        some = points.take(np.arange(start, min(start + BATCH, len(points))))
        parts.append(tagger.rank(inputs(tagger, some), LENGTH, some.filtered))
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


def _documents(
    tagger: Tagger, dataset: Dataset, points: Part, ranking: Ranking, right: NDArray[np.bool_]
) -> tuple[list[Document], list[Document]]:
    """Return the best and the worst documents by nDCG.

    Among equals those are best that have the most labels, and worst whose first label has the highest score.
    """
    sizes = np.diff(points.Y.indptr)
    judged = metrics.ndcg_of_points(right[:, :JUDGED], sizes)[:, -1]
    rows = np.flatnonzero(sizes > 0)
    sure = np.where(ranking.ids[:, 0] >= 0, ranking.scores[:, 0], 0)
    first = ranking.ids[:, 0]
    best = _various(rows[np.lexsort((-sure[rows], -np.minimum(sizes[rows], JUDGED), -judged[rows]))], first)
    worst = _various(rows[np.lexsort((-sure[rows], judged[rows]))], first)

    def told(row: int) -> Document:
        return _document(tagger, dataset, points, row, judged[row], ranking.ids[row], ranking.scores[row])

    return [told(row) for row in best], [told(row) for row in worst]


def _various(rows: Ids, first: Ids) -> list[int]:
    """Return the first rows of which no two have the same first label: texts come in series, and one tells enough."""
    _, places = np.unique(first[rows], return_index=True)
    return [int(row) for row in rows[np.sort(places)][:DOCUMENTS]]


def _document(
    tagger: Tagger, dataset: Dataset, points: Part, row: int, quality: float, ids: Ids, scores: NDArray[np.float32]
) -> Document:
    true = set(points.Y[[row]].indices.tolist())
    first = ids[:JUDGED].tolist()
    guesses = [
        Guess(label_of(dataset, label), score, label in true)
        for label, score in zip(first, scores[:JUDGED].tolist(), strict=True)
        if label >= 0
    ]
    places = {label: place + 1 for place, label in enumerate(ids.tolist())}
    missed = [Missed(label_of(dataset, label), places.get(label)) for label in sorted(true - set(first))]
    missed.sort(key=lambda miss: miss.place or LENGTH + 1)
    text = None if points.texts is None else "\n".join(column[row] for column in points.texts.values())
    return Document(int(row), 100 * float(quality), text, _reasons(tagger, dataset, points, row, text, first[0]),
                    guesses, missed)  # fmt: skip


def _reasons(
    tagger: Tagger, dataset: Dataset, points: Part, row: int, text: str | None, label: int
) -> list[Reason]:  # fmt: skip
    if label < 0:
        return []
    if tagger.features_ is not None and text is not None:
        return tagger.explain(text, tagger.classes_[label])
    X = points.X[[row]]  # type: ignore[index]
    parts = weights(tagger.learner_, X, label)
    names = dataset.feature_names
    found = [
        Reason(str(feature) if names is None else names[feature], part, [])
        for feature, part in zip(X.indices.tolist(), parts.tolist(), strict=True)
    ]
    return sorted(found, key=lambda reason: -abs(reason.weight))[:FEATURES]


def label_of(dataset: Dataset, label: int) -> Label:
    """Return a label as it is shown."""
    texts = [column[label] for column in (dataset.label_texts or {}).values()]
    name = dataset.label_name(label)
    text = next((text for text in texts if text.strip() and text.strip() != name), "")
    return Label(name, text, int(dataset.label_counts[label]))


def confusions(dataset: Dataset, truth: csr_array, ranking: Ranking, right: NDArray[np.bool_]) -> list[Confusion]:
    """Return which labels most often stand where others should.

    Of a point with n labels the first n predictions are looked at: each wrong one there, with each label that is not.
    """
    sizes = np.diff(truth.indptr)
    looked = np.arange(ranking.k) < sizes[:, None]
    wrong = _pairs(ranking.ids, looked & ~right & (ranking.ids >= 0), truth.shape)
    hit = _pairs(ranking.ids, looked & right, truth.shape)
    missed = csr_array(truth - hit)
    missed.eliminate_zeros()
    together = csr_array(wrong.T @ missed).tocoo()  # [predicted, right]
    order = np.lexsort((together.col, together.row, -together.data))[:CONFUSIONS]
    of = np.bincount(truth.indices, minlength=truth.shape[1])
    pairs = zip(together.row[order].tolist(), together.col[order].tolist(), together.data[order].tolist(), strict=True)
    return [
        Confusion(label_of(dataset, predicted), label_of(dataset, wanted), int(count), int(of[wanted]))
        for predicted, wanted, count in pairs
    ]


def _pairs(ids: Ids, chosen: NDArray[np.bool_], shape: tuple[int, int]) -> csr_array:
    rows, places = np.nonzero(chosen)
    return csr_array((np.ones(len(rows), dtype=np.float32), (rows, ids[rows, places])), shape=shape)
