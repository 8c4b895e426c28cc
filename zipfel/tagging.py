"""The one way to tag: Python, `zipfel predict` and `POST /tag` all call `tag`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from zipfel import calibration
from zipfel.errors import ConfigError, DataError
from zipfel.fitting import Fitted
from zipfel.types import Ranking


class Tag(NamedTuple):
    """A label and its score in [0, 1]."""

    label: str
    score: float


@dataclass(frozen=True)
class Request:
    """Points to tag, and which tags are wanted.

    X: texts (a list, or lists by field) or a matrix.  k: most tags of a point; None is 5, and 50 with a threshold, so
    that the threshold decides.  threshold: least score of a tag, one for all or one for each bin of label frequency.
    extra: texts of labels that exist only for this request, by name; they compete with the model's own, and one without
    a known word scores 0.  filtered: pairs [points, labels] that must not be ranked.
    """

    X: Any
    k: int | None = None
    threshold: float | Sequence[float] | None = None
    extra: Mapping[str, str] = field(default_factory=dict)
    filtered: csr_array | None = None

    @property
    def depth(self) -> int:
        """How many labels of each point to rank."""
        if self.k is None:
            return calibration.SHOWN if self.threshold is None else calibration.DEPTH
        if not isinstance(self.k, int | np.integer) or self.k < 1:
            raise ConfigError(f"k must be a whole number of at least 1; found {self.k!r}")
        return int(self.k)

    def check(self, fitted: Fitted) -> None:
        """Check the request against a model; raise ConfigError where the model cannot answer it."""
        if isinstance(self.threshold, int | float) and not 0 <= self.threshold <= 1:  # one of several may be ∞
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
            raise ConfigError(f"extra: the model has a label {known!r} already")


class Tagged(NamedTuple):
    """Ranked labels with probabilities, and the names of all labels by id."""

    ranking: Ranking
    names: Sequence[str]

    def tags(self) -> list[list[Tag]]:
        """Return the tags of each point, best first."""
        return [
            [Tag(self.names[label], score) for label, score in zip(*row, strict=True) if label >= 0]
            for row in zip(self.ranking.ids.tolist(), self.ranking.scores.tolist(), strict=True)
        ]


def tag(fitted: Fitted, requests: Sequence[Request]) -> list[Tagged]:
    """Answer requests; those of equal depth are ranked together, and get the same answers as alone."""
    alike: dict[int, list[int]] = defaultdict(list)  # by depth; a request with filtered pairs stays alone
    for number, request in enumerate(requests):
        request.check(fitted)
        alike[request.depth if request.filtered is None else -number - 1].append(number)
    tagged: dict[int, Tagged] = {}
    for numbers in alike.values():
        rows = [fitted.rows(requests[number].X) for number in numbers]
        first = requests[numbers[0]]
        together = rank(fitted, rows[0] if len(rows) == 1 else vstack(rows, format="csr"), first.depth, first.filtered)
        start = 0
        for number, X in zip(numbers, rows, strict=True):
            ranking = Ranking(together.ids[start : start + X.shape[0]], together.scores[start : start + X.shape[0]])
            start += X.shape[0]
            tagged[number] = _finished(fitted, requests[number], X, ranking)
    return [tagged[number] for number in range(len(requests))]


def rank(fitted: Fitted, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
    """Return the best k labels of each row of X by the model's own scores, without filtered and removed labels."""
    points, labels = X.shape[0], fitted.labels
    if filtered is not None and filtered.shape != (points, len(labels)):
        raise DataError(f"filtered pairs must be {points} × {len(labels)}; found shape {filtered.shape}")
    removed = labels.mask(points)
    if removed is not None:
        filtered = removed if filtered is None else csr_array(removed + filtered)
    ranking = fitted.predictor.rank(X, min(k, len(labels) - len(labels.removed)), filtered)
    return labels.consistent(ranking, filtered)


def calibrated(fitted: Fitted, ranking: Ranking, threshold: float | Sequence[float] | None = None) -> Ranking:
    """Return a ranking with probabilities for scores, without labels below a threshold."""
    if fitted.calibration is not None:
        return fitted.calibration.applied(ranking, threshold)
    return ranking if threshold is None else calibration.cut(ranking, threshold)


def _finished(fitted: Fitted, request: Request, X: csr_array, ranking: Ranking) -> Tagged:
    names: Sequence[str] = fitted.labels.names
    if request.extra:
        ranking = _with_extra(fitted, ranking, X, list(request.extra.values())).top(request.depth)
        names = [*names, *request.extra]
    return Tagged(calibrated(fitted, ranking, request.threshold), names)


def _with_extra(fitted: Fitted, ranking: Ranking, X: csr_array, texts: Sequence[str]) -> Ranking:
    """Rank labels known by their texts only among the others; their ids follow those of the model."""
    assert fitted.blueprint.features is not None
    Z = fitted.blueprint.features.transform(list(texts))
    scores = fitted.model.text_scores(fitted.predictor, X, Z).cpu().numpy()
    scores[:, np.diff(Z.indptr) == 0] = 0
    rows, columns = np.nonzero(ranking.ids >= 0)
    extra = np.indices(scores.shape).reshape(2, -1)
    ids = np.concatenate([ranking.ids[rows, columns], len(fitted.labels) + extra[1]])
    values = np.concatenate([ranking.scores[rows, columns], scores.ravel()])
    return Ranking.of_pairs(np.concatenate([rows, extra[0]]), ids, values, len(ranking), ranking.k + len(texts))
