"""The one way to tag: Python, `zipfel predict` and `POST /tag` all call `tag`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from zipfel import calibration, persistence
from zipfel.data.given import checked_texts
from zipfel.data.labels import LabelSpace
from zipfel.data.points import split_vectors
from zipfel.data.source import Source, is_fielded
from zipfel.errors import ConfigError, DataError
from zipfel.fitting import Fitted
from zipfel.label_report import LabelReport
from zipfel.types import Ranking

OUTPUTS = ("tags", "indicator")
LIKELY = 0.5  # probability from which an indicator matrix has a label, as in scikit-learn
MOST_CELLS = 2**28  # of a dense matrix of probabilities: 1 GiB


class Tag(NamedTuple):
    """A label and its score.

    Args:
        label: the label's name.
        score: in [0, 1]; a probability where the model was calibrated.

    Example:
        >>> label, score = Tag("fruit", 0.8)
        >>> label
        'fruit'
    """

    label: str
    score: float


@dataclass(frozen=True)
class Request:
    """Points to tag, and which tags are wanted.

    X: texts or features, in any form that `fit` takes.  k: maximum number of tags of a point; None is 5, or 50 with a
    threshold, so that the threshold decides.  threshold: minimum score of a tag, one or one for each frequency bin.
    extra: texts of labels that exist only for this request, by name; they compete with the model's own, and one without
    a known word scores 0.  filtered: pairs [points, labels] that must not be ranked.
    """

    X: Any
    k: int | None = None
    threshold: float | Sequence[float] | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    filtered: csr_array | None = None

    def __post_init__(self) -> None:
        """Give the extra labels names as labels have them everywhere."""
        object.__setattr__(self, "extra", checked_texts(self.extra or None))

    @property
    def depth(self) -> int:
        """How many labels of each point to rank."""
        if self.k is None:
            return calibration.SHOWN if self.threshold is None else calibration.DEPTH
        if not isinstance(self.k, int | np.integer) or self.k < 1:
            raise ConfigError(f"k must be a whole number of at least 1; found {self.k!r}")
        return int(self.k)

    def check(self, fitted: Fitted) -> None:
        """Check the request against a model; raise ConfigError or DataError where the model cannot answer it."""
        self.check_settings(fitted)
        X, _ = split_vectors(self.X)
        if is_fielded(X):
            fitted.blueprint.source.texts(X)

    def check_settings(self, fitted: Fitted) -> None:
        """Check everything but the points, which `Fitted.rows` checks."""
        single = isinstance(self.threshold, int | float | np.number)
        if single and not 0 <= self.threshold <= 1:  # type: ignore[operator]  # one of several may be ∞
            raise ConfigError(f"threshold must be at least 0 and at most 1; found {self.threshold}")
        if not self.extra:
            return
        blueprint = fitted.blueprint
        if blueprint.features is None:
            raise ConfigError("a model that was fitted on a matrix cannot score a label by its text")
        if not blueprint.abilities.scores_label_texts:
            raise ConfigError(f"{blueprint.choice.model} cannot score a label by its text")
        known = next((name for name in self.extra if name in fitted.labels.live), None)
        if known is not None:
            raise ConfigError(f"extra: the model already has a label {known!r}")


class Tagged(NamedTuple):
    """Ranked labels with probabilities, and the names of all labels by id.

    known: whether a point has a known word; one that has none gets the most frequent labels, by their share in train.
    titles: names that people see, by id, where labels have some.
    """

    ranking: Ranking
    names: Sequence[str]
    known: NDArray[np.bool_]  # [points]
    titles: Sequence[str] | None = None

    def tags(self) -> list[list[Tag]]:
        """Return the tags of each point, best first."""
        return [
            [Tag(self.names[label], score) for label, score in zip(*row, strict=True) if label >= 0]
            for row in zip(self.ranking.ids.tolist(), self.ranking.scores.tolist(), strict=True)
        ]

    def items(self) -> list[list[dict[str, Any]]]:
        """Return the tags of each point as JSON has them: label and score, and the title where labels have titles."""
        if self.titles is None:
            return [[tag._asdict() for tag in row] for row in self.tags()]
        return [
            [{"label": self.names[label], "title": self.titles[label] or self.names[label], "score": score}
             for label, score in zip(*row, strict=True) if label >= 0]
            for row in zip(self.ranking.ids.tolist(), self.ranking.scores.tolist(), strict=True)
        ]  # fmt: skip

    def indicator(self) -> csr_array:
        """Return a matrix [points, labels] that is 1 where a point has the tag."""
        scores = self.ranking.as_scores(len(self.names))
        ones = np.ones(len(scores.data), dtype=np.int8)
        return csr_array((ones, scores.indices, scores.indptr), shape=scores.shape)


def verify(path: Path) -> int:
    """Check every file of a saved model, and that a model can be made of them; return how many files there are."""
    count = persistence.verify(persistence.located(path))
    Fitted.load(path, "cpu")
    return count


@dataclass(frozen=True)
class Loaded:
    """A saved model that answers requests as `Tagger` does, without scikit-learn, which takes a second to import."""

    fitted_: Fitted

    @classmethod
    def load(cls, path: Path, device: str = "auto") -> Loaded:
        """Read a saved model."""
        return cls(Fitted.load(path, device)[0])

    @property
    def classes_(self) -> list[str]:
        """Names of labels by id, removed ones included."""
        return self.labels_.names

    @property
    def labels_(self) -> LabelSpace:
        """Names, texts and counts of labels."""
        return self.fitted_.labels

    @property
    def source_(self) -> Source:
        """The text fields and table columns that it was fitted on."""
        return self.fitted_.blueprint.source

    def tag(self, requests: Sequence[Request]) -> list[Tagged]:
        """Answer several requests at once."""
        return tag(self.fitted_, requests)

    def choose_threshold(self, precision: float | None = None, by_frequency: bool = False) -> float | tuple[float, ...]:
        """Return the threshold as `choose_threshold` does."""
        return choose_threshold(self.fitted_, precision, by_frequency)


def choose_threshold(fitted: Fitted, precision: float | None, by_frequency: bool) -> float | tuple[float, ...]:
    """Return the lowest threshold with this precision on held-out points; None: that with the best micro-F1.

    by_frequency: three thresholds, for rare, medium and frequent labels.
    """
    if fitted.calibration is None:
        raise ConfigError(
            "the model has too few held-out points to choose a threshold; give one, or train on more points"
        )
    return fitted.calibration.threshold(precision, by_frequency)


def per_label(fitted: Fitted, X: Any, truth: csr_array, threshold: float | Sequence[float] | None = None,
              filtered: csr_array | None = None) -> LabelReport:  # fmt: skip
    """Tag points and compare the tags with the truth [points, labels], label by label.

    threshold: as in `Request`; None is that with the best micro-F1 on held-out points, or 0.5 without any.
    """
    least = usual_threshold(fitted) if threshold is None else threshold
    ranking = tag(fitted, [Request(X, calibration.DEPTH, least, filtered=filtered)])[0].ranking
    return report_of(fitted, ranking, truth, least)


def usual_threshold(fitted: Fitted) -> float | Sequence[float]:
    """Return the threshold with the best micro-F1 on held-out points; 0.5 if they were too few."""
    return 0.5 if fitted.calibration is None else choose_threshold(fitted, None, False)


def report_of(fitted: Fitted, ranking: Ranking, truth: csr_array, least: float | Sequence[float]) -> LabelReport:
    """Return a report of labels from a ranking without labels below the threshold."""
    by_bin, labels = np.asarray(least, dtype=np.float64), np.arange(len(fitted.labels))
    several = by_bin.ndim > 0 and fitted.calibration is not None
    thresholds = by_bin[fitted.calibration.bins_of(labels)] if several and fitted.calibration else by_bin
    report = LabelReport.of(ranking, truth, fitted.labels.names, thresholds)
    return replace(report, titles=fitted.labels.titles)


def tag(fitted: Fitted, requests: Sequence[Request]) -> list[Tagged]:
    """Answer requests; those of equal depth are ranked together, and get the same answers as alone."""
    alike: dict[int, list[int]] = defaultdict(list)  # by depth; a request with filtered pairs stays alone
    for number, request in enumerate(requests):
        request.check_settings(fitted)
        alike[request.depth if request.filtered is None else -number - 1].append(number)
    points, tagged = [fitted.rows(request.X) for request in requests], dict[int, Tagged]()
    for numbers in alike.values():
        rows, first = [points[number] for number in numbers], requests[numbers[0]]
        together = rank(fitted, rows[0] if len(rows) == 1 else vstack(rows, format="csr"), first.depth, first.filtered)
        start = 0
        for number, X in zip(numbers, rows, strict=True):
            ranking = Ranking(together.ids[start : start + X.shape[0]], together.scores[start : start + X.shape[0]])
            start += X.shape[0]
            tagged[number] = _finished(fitted, requests[number], X, ranking)
    return [tagged[number] for number in range(len(requests))]


def rank(fitted: Fitted, X: csr_array, k: int, filtered: csr_array | None = None, deep: bool = False) -> Ranking:
    """Return the best k labels of each row of X by the model's own scores, without filtered and removed labels.

    A row without known features gets the most frequent labels, scored by their share in train.  deep: whether the right
    labels should be among the k, at the cost of time.
    """
    points, labels = X.shape[0], fitted.labels
    if filtered is not None and filtered.shape != (points, len(labels)):
        raise DataError(f"filtered pairs must be {points} × {len(labels)}; found shape {filtered.shape}")
    removed = labels.mask(points)
    if removed is not None:
        filtered = removed if filtered is None else csr_array(removed + filtered)
    depth, known = min(k, len(labels) - len(labels.removed)), known_rows(X)
    if deep:
        ranking = fitted.model.ranked_deep(fitted.predictor, X, depth, filtered)
    else:
        ranking = fitted.predictor.rank(X, depth, filtered)
    if not known.all():
        ranking = _either(known, ranking, _frequent(labels, points, depth, filtered))
    return labels.consistent(ranking, filtered)


def known_rows(X: csr_array) -> NDArray[np.bool_]:
    """Return for each row of X whether it has a known feature, [points]."""
    return np.asarray(np.diff(X.indptr) > 0)


def _frequent(labels: LabelSpace, points: int, k: int, filtered: csr_array | None) -> Ranking:
    """Return the k most frequent labels of all points, without filtered pairs, and their shares of train."""
    wide = k + (0 if filtered is None else int(np.diff(filtered.indptr).max(initial=0)))
    ids, shares = labels.frequent
    ranking = Ranking(np.tile(ids[:wide], (points, 1)), np.tile(shares[:wide], (points, 1)))
    return ranking if filtered is None else ranking.without(filtered).top(k)


def _either(known: NDArray[np.bool_], ranking: Ranking, other: Ranking) -> Ranking:
    """Return the known rows of a ranking, and the other rows of another one."""
    choose = known[:, None]
    return Ranking(np.where(choose, ranking.ids, other.ids), np.where(choose, ranking.scores, other.scores))


def calibrated(
    fitted: Fitted,
    ranking: Ranking,
    threshold: float | Sequence[float] | None = None,
    known: NDArray[np.bool_] | None = None,
) -> Ranking:
    """Return a ranking with probabilities for scores, without labels below a threshold.

    known: rows that a model ranked, None for all [points]; the scores of the others are probabilities already.
    """
    curve = fitted.calibration
    if curve is None:
        return ranking if threshold is None else calibration.cut(ranking, threshold)
    applied = curve.applied(ranking, threshold)
    if known is None or known.all():
        return applied
    return _either(known, applied, ranking if threshold is None else curve.cut(ranking, threshold))


def _finished(fitted: Fitted, request: Request, X: csr_array, ranking: Ranking) -> Tagged:
    names: Sequence[str] = fitted.labels.names
    known, titles = known_rows(X), fitted.labels.titles
    if request.extra:
        ranking = _with_extra(fitted, ranking, X, list(request.extra.values())).top(request.depth)
        names, titles = [*names, *request.extra], titles and [*titles, *request.extra]
    return Tagged(calibrated(fitted, ranking, request.threshold, known), names, known, titles)


def _with_extra(fitted: Fitted, ranking: Ranking, X: csr_array, texts: Sequence[str]) -> Ranking:
    """Rank labels known by their texts only among the others; their ids follow those of the model."""
    assert fitted.blueprint.features is not None
    Z = fitted.blueprint.features.transform(list(texts))
    scores = fitted.model.text_scores(fitted.predictor, X, Z).cpu().numpy()
    scores[:, ~known_rows(Z)] = 0
    scores[~known_rows(X)] = 0  # no training point has these labels
    rows, columns = np.nonzero(ranking.ids >= 0)
    extra = np.indices(scores.shape).reshape(2, -1)
    ids = np.concatenate([ranking.ids[rows, columns], len(fitted.labels) + extra[1]])
    values = np.concatenate([ranking.scores[rows, columns], scores.ravel()])
    return Ranking.of_pairs(np.concatenate([rows, extra[0]]), ids, values, len(ranking), ranking.k + len(texts))


def probabilities(fitted: Fitted, X: Any) -> NDArray[np.float32]:
    """Return the probability of each label, [points, labels]; 0 for labels that are removed or not ranked."""
    rows, labels = fitted.rows(X), len(fitted.labels)
    if rows.shape[0] * labels > MOST_CELLS:
        raise ConfigError(f"{rows.shape[0]} points × {labels} labels are too many for a dense matrix of probabilities; "
                          "call predict or rank with k, or fewer points at a time")  # fmt: skip
    ranking = calibrated(fitted, rank(fitted, rows, labels))
    return np.asarray(ranking.as_scores(labels).toarray(), dtype=np.float32)


def nearest(fitted: Fitted, label: str, k: int) -> list[Tag]:
    """Return the k labels whose vectors are nearest to that of a label, by cosine, nearest first."""
    labels = fitted.labels
    (own_id,) = labels.ids([label])
    cosines = fitted.predictor.cosines(own_id)
    if cosines is None:
        raise ConfigError(f"{fitted.blueprint.choice.model} has vectors of points, not of labels")
    cosines[[own_id, *labels.removed]] = -torch.inf
    best = cosines.cpu().sort(descending=True, stable=True)
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [Tag(labels.names[other], score) for other, score in islice(pairs, min(k, len(labels.live) - 1))]
