"""Single documents and labels of a report: the worst, the best, and what is confused with what."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.explain import Reason, weights
from zipfel.tagger import Tagger
from zipfel.types import Ids, Ranking, stored

LENGTH = 20  # of the ranking; what lies behind is not looked at
JUDGED = 5  # labels by which documents, scores and coverage are judged
DOCUMENTS, CONFUSIONS, FEATURES = 5, 15, 12  # shown


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
class Tagged:
    """Points, and the ranking of labels that they got."""

    dataset: Dataset
    points: Part
    ranking: Ranking

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Which predictions are right, [N, K]."""
        rows = np.repeat(np.arange(len(self.points)), self.ranking.k)
        return stored(self.points.Y, rows, self.ranking.ids.ravel()).reshape(self.ranking.ids.shape)

    @cached_property
    def counts(self) -> Ids:
        """How many points of train each label has, [L]."""
        return self.dataset.label_counts

    def label(self, label: int) -> Label:
        """Return a label as it is shown."""
        texts = [column[label] for column in (self.dataset.label_texts or {}).values()]
        name = self.dataset.label_name(label)
        text = next((text for text in texts if text.strip() and text.strip() != name), "")
        return Label(name, text, int(self.counts[label]))


def documents(tagged: Tagged, tagger: Tagger) -> tuple[list[Document], list[Document]]:
    """Return the best and the worst documents by nDCG.

    Among equals those are best that have the most labels, and worst whose first label has the highest score.
    """
    sizes = np.diff(tagged.points.Y.indptr)
    quality = metrics.ndcg_of_points(tagged.right[:, :JUDGED], sizes)[:, -1]
    rows = np.flatnonzero(sizes > 0)
    doubt = -tagged.ranking.scores[rows, 0]
    best = rows[np.lexsort((doubt, -np.minimum(sizes[rows], JUDGED), -quality[rows]))]
    worst = rows[np.lexsort((doubt, quality[rows]))]

    def told(rows: Ids) -> list[Document]:
        return [_document(tagged, tagger, row, quality[row]) for row in _various(rows, tagged.ranking.ids[:, 0])]

    return told(best), told(worst)


def _various(rows: Ids, first: Ids) -> list[int]:
    """Return the first rows of which no two have the same first label: texts come in series, and one tells enough."""
    _, places = np.unique(first[rows], return_index=True)
    return [int(row) for row in rows[np.sort(places)][:DOCUMENTS]]


def _document(tagged: Tagged, tagger: Tagger, row: int, quality: float) -> Document:
    points, ids = tagged.points, tagged.ranking.ids[row].tolist()
    true = set(points.Y[[row]].indices.tolist())
    said = zip(ids[:JUDGED], tagged.ranking.scores[row].tolist(), strict=False)
    guesses = [Guess(tagged.label(label), score, label in true) for label, score in said if label >= 0]
    places = {label: place for place, label in enumerate(ids, start=1)}
    missed = [Missed(tagged.label(label), places.get(label)) for label in sorted(true - set(ids[:JUDGED]))]
    missed.sort(key=lambda miss: miss.place or LENGTH + 1)
    text = None if points.texts is None else "\n".join(column[row] for column in points.texts.values())
    if ids[0] < 0:  # nothing could be said
        reasons = []
    elif tagger.features_ is not None and text is not None:
        reasons = tagger.explain(text, tagger.classes_[ids[0]])
    else:
        reasons = _features(tagger, points.X[[row]], ids[0], tagged.dataset)  # type: ignore[index]
    return Document(row, 100 * float(quality), text, reasons, guesses, missed)


def _features(tagger: Tagger, X: csr_array, label: int, dataset: Dataset) -> list[Reason]:
    """Return the features of a point [1, F] that count most for a label."""
    parts = zip(X.indices.tolist(), weights(tagger.learner_, X, label).tolist(), strict=True)
    names = dataset.feature_names
    found = [Reason(str(feature) if names is None else names[feature], part, []) for feature, part in parts]
    return sorted(found, key=lambda reason: -abs(reason.weight))[:FEATURES]


def confusions(tagged: Tagged) -> list[Confusion]:
    """Return which labels most often stand where others should.

    Of a point with n labels the first n predictions are looked at: each wrong one there, with each label that is not.
    """
    truth, ranking = tagged.points.Y, tagged.ranking
    looked = np.arange(ranking.k) < np.diff(truth.indptr)[:, None]
    wrong = _pairs(ranking.ids, looked & ~tagged.right & (ranking.ids >= 0), truth.shape)
    missed = csr_array(truth - _pairs(ranking.ids, looked & tagged.right, truth.shape))
    missed.eliminate_zeros()
    together = csr_array(wrong.T @ missed).tocoo()  # [predicted, right]
    order = np.lexsort((together.col, together.row, -together.data))[:CONFUSIONS]
    of = np.bincount(truth.indices, minlength=truth.shape[1])
    pairs = zip(*(part[order].tolist() for part in (together.row, together.col, together.data)), strict=True)
    return [Confusion(tagged.label(said), tagged.label(true), int(times), int(of[true])) for said, true, times in pairs]


def _pairs(ids: Ids, chosen: NDArray[np.bool_], shape: tuple[int, int]) -> csr_array:
    rows, places = np.nonzero(chosen)
    return csr_array((np.ones(len(rows), dtype=np.float32), (rows, ids[rows, places])), shape=shape)
