"""Documents and labels of a report: worst and best documents, and confused labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.explain import Reason, in_one_text
from zipfel.tagger import Tagger
from zipfel.types import Ids, Ranking, stored

LENGTH = 20  # of the evaluated ranking
JUDGED = 5  # top labels by which documents, scores and coverage are evaluated
DOCUMENTS, CONFUSIONS, FEATURES = 5, 15, 12  # shown


class Label(NamedTuple):
    """A label, its text (may be empty), and its number of training points."""

    name: str
    text: str
    points: int


class Guess(NamedTuple):
    """A predicted label."""

    label: Label
    score: float
    right: bool


class Missed(NamedTuple):
    """A true label that is not in the top JUDGED; its rank is None if it is beyond LENGTH."""

    label: Label
    rank: int | None


@dataclass(frozen=True)
class Document:
    """A point with its text or features, its predictions, and the reasons for the first one."""

    row: int
    quality: float  # nDCG, in percent
    text: str | None
    reasons: list[Reason]  # for the first label; without a text: features and their weights, without positions
    guesses: list[Guess]
    missed: list[Missed]


class Confusion(NamedTuple):
    """A wrongly predicted label, the right one, how often, and the number of points with the right one."""

    predicted: Label
    right: Label
    times: int
    of: int


@dataclass(frozen=True)
class Tagged:
    """Points and their ranking."""

    dataset: Dataset
    points: Part
    ranking: Ranking

    @cached_property
    def right(self) -> NDArray[np.bool_]:
        """Whether each prediction is right, [N, K]."""
        rows = np.repeat(np.arange(len(self.points)), self.ranking.k)
        return stored(self.points.Y, rows, self.ranking.ids.ravel()).reshape(self.ranking.ids.shape)

    @cached_property
    def counts(self) -> Ids:
        """Number of training points of each label, [L]."""
        return self.dataset.label_counts

    def label(self, label: int) -> Label:
        """Return name, text and number of training points of a label."""
        texts = [column[label] for column in (self.dataset.label_texts or {}).values()]
        name = self.dataset.label_name(label)
        text = next((text for text in texts if text.strip() and text.strip() != name), "")
        return Label(name, text, int(self.counts[label]))


def documents(tagged: Tagged, tagger: Tagger) -> tuple[list[Document], list[Document]]:
    """Return the best and the worst documents by nDCG.

    Ties: best are those with the most labels, worst those whose first label has the highest score.
    """
    sizes = np.diff(tagged.points.Y.indptr)
    quality = metrics.ndcg_of_points(tagged.right[:, :JUDGED], sizes)[:, -1]
    rows = np.flatnonzero(sizes > 0)
    doubt = -tagged.ranking.scores[rows, 0]
    best = rows[np.lexsort((doubt, -np.minimum(sizes[rows], JUDGED), -quality[rows]))]
    worst = rows[np.lexsort((doubt, quality[rows]))]

    def shown(rows: Ids) -> list[Document]:
        """Return the first documents with distinct first labels: texts come in series, and one of each is enough."""
        _, first = np.unique(tagged.ranking.ids[rows, 0], return_index=True)
        chosen = rows[np.sort(first)][:DOCUMENTS].tolist()
        return [_document(tagged, tagger, row, quality[row]) for row in chosen]

    return shown(best), shown(worst)


def _document(tagged: Tagged, tagger: Tagger, row: int, quality: float) -> Document:
    points, ids = tagged.points, tagged.ranking.ids[row].tolist()
    true = set(points.Y[[row]].indices.tolist())
    pairs = zip(ids[:JUDGED], tagged.ranking.scores[row].tolist(), strict=False)
    guesses = [Guess(tagged.label(label), score, label in true) for label, score in pairs if label >= 0]
    ranks = {label: rank for rank, label in enumerate(ids, start=1)}
    missed = [Missed(tagged.label(label), ranks.get(label)) for label in sorted(true - set(ids[:JUDGED]))]
    missed.sort(key=lambda miss: miss.rank or LENGTH + 1)
    texts = None if points.texts is None else {name: column[row] for name, column in points.texts.items()}
    if ids[0] < 0:  # nothing was predicted
        reasons = []
    elif tagger.features_ is not None and texts is not None:
        reasons = tagger.explain(texts, tagger.classes_[ids[0]])
    else:
        reasons = _features(tagger, points.X[[row]], ids[0], tagged.dataset)  # type: ignore[index]
    text = None
    if texts is not None:
        text, reasons = in_one_text(texts, reasons)
    return Document(row, 100 * float(quality), text, reasons, guesses, missed)


def _features(tagger: Tagger, X: csr_array, label: int, dataset: Dataset) -> list[Reason]:
    """Return the features of a point [1, F] with the largest weights for a label."""
    parts = zip(X.indices.tolist(), tagger.predictor_.explained(X, label).tolist(), strict=True)
    names = dataset.feature_names
    reasons = [Reason(str(feature) if names is None else names[feature], part, []) for feature, part in parts]
    return sorted(reasons, key=lambda reason: -abs(reason.weight))[:FEATURES]


def confusions(tagged: Tagged) -> list[Confusion]:
    """Return the labels that are most often predicted instead of others.

    For a point with n labels, each wrong label in its top n is paired with each true label that is not there.
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
    return csr_array((np.ones(chosen.sum(), dtype=np.float32), (np.nonzero(chosen)[0], ids[chosen])), shape=shape)
