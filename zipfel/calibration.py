"""Scores as probabilities, and thresholds: learned from the ranking of points that the model has not learned from.

A ranking never changes by it: labels are ranked by the model's own scores, and what is shown beside them is mapped by a
curve that never falls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array
from scipy.special import expit, logit

from zipfel.errors import ConfigError
from zipfel.types import Ids, Ranking, stored

Method = Literal["auto", "isotonic", "platt", "none"]
METHODS = ("auto", "isotonic", "platt", "none")

DEPTH = 50  # labels of a point that thresholds are learned from: enough that they, and not their number, decide
FITTED = 10  # labels of a point that a curve is fitted to: further down are too many misses
SHOWN = 5  # labels of a point that are shown where nobody says how many, and over which errors are told
MOST_POINTS = 20_000  # more would tell a curve nothing new
FEWEST = 20  # hits, and misses, without which there is no curve
ENOUGH = 1000  # hits, without which "auto" is Platt's curve: knots would follow the noise
FOLDS = 5
BINS = 3  # of labels by how often they were trained on: rare, middle, frequent
ROWS = 500  # of a table of cuts
SMALLEST = 1e-7  # distance of a score from 0 and 1 at which its logit is cut off

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]


# --- How good probabilities are ---------------------------------------------------------------------------------------


def calibration_error(scores: ArrayLike, hits: ArrayLike, bins: int = 15) -> float:
    """Return the expected calibration error, Σ_b (n_b / n) |mean score_b − share of hits_b|, with equal-mass bins.

    >>> calibration_error([0.2, 0.4, 0.6, 1.0], [0, 0, 1, 1], bins=2)  # |0.3 − 0| / 2 + |0.8 − 1| / 2
    0.25
    """
    scores, hits = np.asarray(scores, dtype=np.float64), np.asarray(hits, dtype=np.float64)
    parts = np.array_split(np.argsort(scores, kind="stable"), bins)
    return float(sum(abs((scores[part] - hits[part]).sum()) for part in parts) / max(len(scores), 1))


def brier(scores: ArrayLike, hits: ArrayLike) -> float:
    """Return the Brier score, the mean of (score − hit)²."""
    scores, hits = np.asarray(scores, dtype=np.float64), np.asarray(hits, dtype=np.float64)
    return float(np.square(scores - hits).mean()) if len(scores) else 0.0


# --- Curves -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Probabilities of the labels of a ranking: σ(z) with z = slope · logit(score) − fall · ln(place) + intercept.

    That is Platt's sigmoid, with the place beside the score: the same score is worth less further down. Where there are
    knots (z, probability), lines between them stand for σ. slope and fall are never negative, so that probabilities
    never rise within a row.
    """

    slope: float
    fall: float
    intercept: float
    knots: tuple[tuple[float, float], ...] = ()

    def __call__(self, scores: NDArray[Any]) -> Floats:
        """Return the probabilities of the labels of a ranking, [B, k]."""
        z = self.line(scores)
        return np.asarray(np.interp(z, *self._lines) if self.knots else expit(z))

    @cached_property
    def _lines(self) -> tuple[Floats, Floats]:
        """Both sides of the knots."""
        values, shares = np.array(self.knots, dtype=np.float64).T.copy()
        return values, shares

    def line(self, scores: NDArray[Any]) -> Floats:
        """Return z, [B, k]; number by number, so that its last bits do not depend on the batch."""
        logits, places = features(scores)
        return np.asarray(self.slope * logits - self.fall * places + self.intercept)

    @classmethod
    def platt(cls, scores: NDArray[Any], hits: Flags) -> Curve:
        """Fit the line by logistic regression to a ranking's scores [B, k] and hits."""
        there = np.isfinite(scores)
        columns, right = [column[there] for column in features(scores)], hits[there]
        for used in (2, 1):  # score and place; else the score alone; else the share of hits is all there is
            (*weights, intercept) = _regressed(np.stack(columns[:used], axis=1), right)
            slope, fall = weights[0], -sum(weights[1:])
            if slope > 0 and fall >= 0:
                return cls(slope, fall, intercept)
        return cls(0.0, 0.0, float(logit(np.clip(right.mean(), SMALLEST, 1 - SMALLEST))))

    @classmethod
    def isotonic(cls, scores: NDArray[Any], hits: Flags) -> Curve:
        """Fit Platt's line, and to it the shares of hits that never fall with the least squared error."""
        line, there = cls.platt(scores, hits), np.isfinite(scores)
        return replace(line, knots=pooled(line.line(scores)[there], hits[there]))


CURVES = {"isotonic": Curve.isotonic, "platt": Curve.platt}


def features(scores: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the logits of a ranking's scores, cut off near 0 and 1, and the logarithms of places, [B, k] each."""
    places = np.log(np.arange(1, scores.shape[1] + 1))
    return logit(np.clip(scores, SMALLEST, 1 - SMALLEST, dtype=np.float64)), np.broadcast_to(places, scores.shape)


def _regressed(columns: Floats, hits: Flags) -> tuple[float, ...]:
    """Return weights and intercept of a logistic regression; zeros where all are hits, or none."""
    from sklearn.linear_model import LogisticRegression

    if hits.all() or not hits.any():
        return (0.0,) * int(columns.shape[1] + 1)
    fitted = LogisticRegression(C=1000.0).fit(columns, hits)
    return (*fitted.coef_[0].tolist(), float(fitted.intercept_[0]))


def pooled(values: Floats, hits: Flags) -> tuple[tuple[float, float], ...]:
    """Return the knots of the shares of hits that never fall as values grow, by isotonic regression.

    One imagined hit at the lowest value and one imagined miss at the highest keep them off 0 and 1: nothing is certain
    because a few points say so.
    """
    from sklearn.isotonic import IsotonicRegression

    values = np.concatenate(([values.min()], values, [values.max()]))
    fitted = IsotonicRegression().fit(values, np.concatenate(([1.0], hits, [0.0])))
    knots = zip(fitted.X_thresholds_, fitted.y_thresholds_, strict=True)
    return tuple((float(value), float(share)) for value, share in knots)


def mapped(curve: Curve | None, scores: NDArray[Any]) -> NDArray[np.float32]:
    """Return scores as the curve has them; without a curve as they are."""
    return np.asarray(scores if curve is None else curve(scores), dtype=np.float32)


# --- Thresholds -------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A threshold, how many tags of the held-out points reach it, and how many of those are right."""

    threshold: float
    tags: int
    hits: int


@dataclass(frozen=True)
class Cuts:
    """What thresholds did to held-out points: thresholds fall, so tags and hits grow.  positives: all right labels."""

    thresholds: Floats  # [R]
    tags: Ids  # [R]
    hits: Ids  # [R]
    positives: int

    @classmethod
    def of(cls, scores: NDArray[np.float32], hits: Flags, positives: int) -> Cuts:
        """Return the cuts between different scores, thinned to about ROWS of them that are as many hits apart."""
        order = np.argsort(-scores, kind="stable")
        ordered, reached = scores[order].astype(np.float64), np.cumsum(hits[order])
        ends = np.flatnonzero(np.diff(ordered, append=-np.inf))  # the last tag of each score
        if len(ends) > ROWS:
            steps = np.linspace(0, reached[ends[-1]], ROWS)
            ends = ends[np.unique(np.minimum(np.searchsorted(reached[ends], steps), len(ends) - 1))]
        return cls(ordered[ends], ends + 1, reached[ends].astype(np.int64), positives)

    def precise(self, wanted: float) -> Cut:
        """Return the lowest threshold from which on that share of tags is right; else one that no tag reaches."""
        enough = np.flatnonzero(self.hits / self.tags >= wanted)
        return self._cut(int(enough[-1])) if len(enough) else Cut(np.inf, 0, 0)

    def worth(self, price: float) -> Cut:
        """Return the threshold where 2 · hits − price · tags is largest."""
        gains = 2 * self.hits - price * self.tags
        return self._cut(int(gains.argmax())) if gains.max(initial=0) > 0 else Cut(np.inf, 0, 0)

    def best_precision(self) -> float:
        """Return the largest share of right tags that a threshold gives."""
        return float((self.hits / self.tags).max(initial=0))

    def _cut(self, row: int) -> Cut:
        return Cut(float(self.thresholds[row]), int(self.tags[row]), int(self.hits[row]))

    def as_json(self) -> dict[str, Any]:
        """Return what `of_json` takes."""
        return {name: value if isinstance(value, int) else value.tolist() for name, value in vars(self).items()}

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Cuts:
        """Return the cuts that were saved."""
        arrays = (np.array(saved["thresholds"]), np.array(saved["tags"], int), np.array(saved["hits"], int))
        return cls(*arrays, saved["positives"])


def best_f1(bins: Sequence[Cuts]) -> list[Cut]:
    """Return a threshold for each bin of labels, with the best micro-F1 = 2 Σ hits / (Σ tags + Σ positives) together.

    A price a tag equal to the F1 that is reached makes the bins' choices independent; F1 then only grows, until it is
    the best (Dinkelbach's method for ratios).
    """
    positives, value = sum(cuts.positives for cuts in bins), 0.0
    while True:
        chosen = [cuts.worth(value) for cuts in bins]
        reached = f1(chosen, positives)
        if reached <= value:
            return chosen
        value = reached


def f1(cuts: Sequence[Cut], positives: int) -> float:
    """Return the micro-F1 of cuts through bins of labels."""
    tags, hits = sum(cut.tags for cut in cuts), sum(cut.hits for cut in cuts)
    return 2 * hits / max(tags + positives, 1)


# --- Both together ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What a calibration was learned from, and what it does to points that a fold of it has not seen; top 5."""

    method: str
    points: int
    hits: int  # among the labels that a curve is fitted to
    error_before: float
    error_after: float
    brier_before: float
    brier_after: float


@dataclass(frozen=True)
class Calibration:
    """A curve from scores to probabilities, and what thresholds on them did to held-out points.

    frequent: ids of the labels of all bins but the first, so that labels which came later are rare ones.
    """

    curve: Curve | None
    figures: Figures
    cuts: Cuts  # of all labels
    by_frequency: tuple[Cuts, ...]  # of each bin, rarest first
    frequent: tuple[Ids, ...]

    def applied(self, ranking: Ranking, threshold: float | Sequence[float] | None = None) -> Ranking:
        """Return the same labels in the same order with probabilities, less those below the threshold.

        threshold: one for all labels, or one for each bin.  Equal probabilities are set apart by their last bit, so
        that scores alone tell the order.
        """
        scores = np.where(ranking.ids >= 0, mapped(self.curve, ranking.scores), np.float32(-np.inf))
        found = Ranking(ranking.ids, scores)
        if threshold is not None:
            least = np.asarray(threshold, dtype=np.float64)
            found = cut(found, least[self.bins_of(ranking.ids)] if least.shape == (BINS,) else least)
        return found if self.curve is None else _set_apart(found)

    def bins_of(self, ids: Ids) -> Ids:
        """Return the bins of labels by how often they were trained on, 0 the rarest."""
        known = self._bins
        return np.where(ids < len(known), known[np.minimum(ids, len(known) - 1)], 0)

    @cached_property
    def _bins(self) -> Ids:
        """The bin of each label up to the last that is not in bin 0."""
        bins = np.zeros(1 + max(int(labels.max(initial=0)) for labels in self.frequent), dtype=np.int64)
        for number, labels in enumerate(self.frequent, start=1):
            bins[labels] = number
        return bins

    def threshold(self, precision: float | None, by_frequency: bool) -> float | tuple[float, ...]:
        """Return the threshold, or one for each bin, that reaches a precision; without one, the best micro-F1."""
        bins = self.by_frequency if by_frequency else (self.cuts,)
        if precision is None:
            found = best_f1(bins)
        elif 0 < precision <= 1:
            found = [cuts.precise(precision) for cuts in bins]
        else:
            raise ConfigError(f"precision must lie above 0 and at most at 1; found {precision!r}")
        if not any(cut.tags for cut in found):
            most = max(cuts.best_precision() for cuts in bins)
            raise ConfigError(f"no threshold reaches precision {precision} on held-out points; the most is {most:.3f}")
        thresholds = tuple(cut.threshold for cut in found)
        return thresholds if by_frequency else thresholds[0]

    def as_json(self) -> dict[str, Any]:
        """Return what `of_json` takes."""
        return {
            "figures": asdict(self.figures),
            "curve": None if self.curve is None else asdict(self.curve),
            "cuts": self.cuts.as_json(),
            "by_frequency": [cuts.as_json() for cuts in self.by_frequency],
            "frequent": [labels.tolist() for labels in self.frequent],
        }

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Calibration:
        """Return the calibration that was saved."""
        figures = Figures(**saved["figures"])
        curve = saved["curve"]
        return cls(
            None if curve is None else Curve(**{**curve, "knots": tuple(map(tuple, curve["knots"]))}),
            figures,
            Cuts.of_json(saved["cuts"]),
            tuple(map(Cuts.of_json, saved["by_frequency"])),
            tuple(np.array(labels, dtype=np.int64) for labels in saved["frequent"]),
        )


def cut(ranking: Ranking, threshold: float | Sequence[float] | Floats) -> Ranking:
    """Return a ranking less the labels below a threshold: one for all, or for each place, [B, k]."""
    least = np.asarray(threshold, dtype=np.float64)
    if least.shape not in ((), ranking.ids.shape) or np.isnan(least).any():
        raise ConfigError(
            f"threshold must be a number, or {BINS} of them, rarest labels first; found {threshold!r:.60}"
        )
    kept = (ranking.ids >= 0) & (ranking.scores >= least)
    order = np.argsort(~kept, axis=1, kind="stable")  # what is left out goes to the end
    ids, scores = np.where(kept, ranking.ids, -1), np.where(kept, ranking.scores, np.float32(-np.inf))
    return Ranking(np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1))


def _set_apart(ranking: Ranking) -> Ranking:
    """Return a ranking whose scores fall from place to place, by the last bit of float32 where they were equal."""
    if (ranking.scores[:, 1:] < ranking.scores[:, :-1]).all():
        return ranking
    scores = ranking.scores.copy()
    for place in range(1, ranking.k):
        below = np.nextafter(scores[:, place - 1], np.float32(0))
        scores[:, place] = np.minimum(scores[:, place], below)
    return Ranking(ranking.ids, scores)


def learned(ranking: Ranking, truth: csr_array, bins: Ids, method: Method) -> Calibration | None:
    """Learn from the ranking of points that were not learned from; None where there are too few hits or misses.

    truth: [points, labels].  bins: [labels], of labels by how often they were trained on, 0 the rarest.
    """
    rows = np.repeat(np.arange(len(ranking)), ranking.k)
    hits = stored(truth, rows, ranking.ids.ravel()).reshape(ranking.ids.shape)
    there = ranking.ids >= 0
    count = int(hits[:, :FITTED].sum())
    if min(count, int(there[:, :FITTED].sum()) - count) < FEWEST:
        return None
    name, after = _chosen(ranking.scores[:, :FITTED], hits[:, :FITTED], method)
    curve = None if name == "none" else CURVES[name](ranking.scores[:, :FITTED], hits[:, :FITTED])
    scores, positives = mapped(curve, ranking.scores), np.bincount(bins[truth.indices], minlength=BINS)
    owners = np.where(there, bins[ranking.ids], -1)
    parts = [Cuts.of(scores[owners == b], hits[owners == b], int(positives[b])) for b in range(BINS)]
    whole = Cuts.of(scores[there], hits[there], int(positives.sum()))
    top, right = _shown(ranking.scores, ranking.scores), _shown(hits, ranking.scores)
    figures = Figures(name, len(ranking), count, calibration_error(top, right), calibration_error(after, right),
                      brier(top, right), brier(after, right))  # fmt: skip
    return Calibration(curve, figures, whole, tuple(parts), tuple(np.flatnonzero(bins == b) for b in range(1, BINS)))


def _chosen(scores: NDArray[Any], hits: Flags, method: Method) -> tuple[str, Floats]:
    """Return the method, the one with the lower Brier score where that is open, and its cross-fitted probabilities."""
    names = [method] if method != "auto" else ["platt", "isotonic"] if hits.sum() >= ENOUGH else ["platt"]
    found = {name: _shown(_cross_fitted(scores, hits, name), scores) for name in names}
    return min(found.items(), key=lambda item: brier(item[1], _shown(hits, scores)))


def _cross_fitted(scores: NDArray[Any], hits: Flags, name: str) -> NDArray[Any]:
    """Return probabilities [B, k], each by a curve that was fitted to other points."""
    if name == "none":
        return scores
    folds, found = np.arange(len(scores)) % FOLDS, np.empty(scores.shape)
    for fold in range(FOLDS):
        here = folds == fold
        found[here] = CURVES[name](scores[~here], hits[~here])(scores[here])
    return found


def _shown(values: NDArray[Any], scores: NDArray[Any]) -> NDArray[Any]:
    """Return the values [B, k] of the labels that are shown, one after the other, where there is one."""
    return np.asarray(values[:, :SHOWN][np.isfinite(scores[:, :SHOWN])])
