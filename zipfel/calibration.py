"""Probabilities and thresholds, learned from a ranking of held-out points.

Calibration never changes a ranking: labels are ranked by the model's own scores, and a monotone curve maps these to the
probabilities that are shown.
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

from zipfel.errors import ConfigError, DataError, quoted
from zipfel.types import Ids, Ranking, stored

Method = Literal["auto", "isotonic", "platt", "none"]
METHODS = ("auto", "isotonic", "platt", "none")

DEPTH = 50  # labels of a point that thresholds are learned from: enough that the threshold, not DEPTH, is the limit
FITTED = 10  # labels of a point that a curve is fitted to; further down are too many misses
SHOWN = 5  # labels of a point shown by default, and over which calibration errors are reported
MOST_POINTS = 20_000  # held-out points used at most; more would not improve a curve
FEWEST = 20  # hits, and misses, needed to fit a curve
ENOUGH = 1000  # hits needed for "auto" to try isotonic regression; with fewer its knots would follow the noise
FOLDS = 5
BINS = 3  # label bins by training frequency: rare, middle, frequent
ROWS = 500  # rows of a table of cuts
SMALLEST = 1e-7  # scores are clipped to this distance from 0 and 1 before their logit is taken

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
    """Probabilities of the labels of a ranking: σ(z) with z = slope · logit(score) − fall · ln(rank) + intercept.

    That is Platt's sigmoid with the rank as a second feature: the same score is worth less further down. If there are
    knots (z, probability), linear interpolation between them replaces σ. slope and fall are never negative, so
    probabilities never rise within a row.
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
    def _lines(self) -> Floats:
        """The knots' z and probabilities, [2, knots]."""
        return np.array(self.knots, dtype=np.float64).T.copy()

    def line(self, scores: NDArray[Any]) -> Floats:
        """Return z, [B, k]; computed elementwise, so that its last bits do not depend on the batch."""
        logits, log_ranks = features(scores)
        return np.asarray(self.slope * logits - self.fall * log_ranks + self.intercept)

    @classmethod
    def platt(cls, scores: NDArray[Any], hits: Flags) -> Curve:
        """Fit z by logistic regression to a ranking's scores [B, k] and hits [B, k]."""
        filled = np.isfinite(scores)
        columns, right = [column[filled] for column in features(scores)], hits[filled]
        for used in (2, 1):  # score and rank; if a weight has the wrong sign, the score alone; then the mean only
            (*weights, intercept) = _regressed(np.stack(columns[:used], axis=1), right)
            slope, fall = weights[0], -sum(weights[1:])
            if slope > 0 and fall >= 0:
                return cls(slope, fall, intercept)
        return cls(0.0, 0.0, float(logit(np.clip(right.mean(), SMALLEST, 1 - SMALLEST))))

    @classmethod
    def isotonic(cls, scores: NDArray[Any], hits: Flags) -> Curve:
        """Fit z as `platt` does, then an isotonic regression of hits on z."""
        line, filled = cls.platt(scores, hits), np.isfinite(scores)
        return replace(line, knots=pooled(line.line(scores)[filled], hits[filled]))


CURVES = {"isotonic": Curve.isotonic, "platt": Curve.platt}


def features(scores: NDArray[Any]) -> tuple[Floats, Floats]:
    """Return the logits of a ranking's scores, clipped near 0 and 1, and the logarithms of ranks, [B, k] each."""
    log_ranks = np.log(np.arange(1, scores.shape[1] + 1))
    return logit(np.clip(scores, SMALLEST, 1 - SMALLEST, dtype=np.float64)), np.broadcast_to(log_ranks, scores.shape)


def _regressed(columns: Floats, hits: Flags) -> tuple[float, ...]:
    """Return the weights and intercept of a logistic regression; zeros if all are hits, or none."""
    from sklearn.linear_model import LogisticRegression

    if hits.all() or not hits.any():
        return (0.0,) * int(columns.shape[1] + 1)
    fitted = LogisticRegression(C=1000.0).fit(columns, hits)
    return (*fitted.coef_[0].tolist(), float(fitted.intercept_[0]))


def pooled(values: Floats, hits: Flags) -> tuple[tuple[float, float], ...]:
    """Return the knots (value, share of hits) of an isotonic regression of hits on values.

    A pseudo-hit at the lowest value and a pseudo-miss at the highest keep shares away from 0 and 1: a few points must
    not make a prediction certain.
    """
    from sklearn.isotonic import IsotonicRegression

    values = np.concatenate(([values.min()], values, [values.max()]))
    fitted = IsotonicRegression().fit(values, np.concatenate(([1.0], hits, [0.0])))
    knots = zip(fitted.X_thresholds_, fitted.y_thresholds_, strict=True)
    return tuple((float(value), float(share)) for value, share in knots)


def mapped(curve: Curve | None, scores: NDArray[Any]) -> NDArray[np.float32]:
    """Return the curve's probabilities of scores; without a curve, the scores themselves."""
    return np.asarray(scores if curve is None else curve(scores), dtype=np.float32)


# --- Thresholds -------------------------------------------------------------------------------------------------------


class Cut(NamedTuple):
    """A threshold, the number of held-out points' tags that reach it, and how many of those are right."""

    threshold: float
    tags: int
    hits: int


@dataclass(frozen=True)
class Cuts:
    """Tags and hits on held-out points by threshold; thresholds fall, so both grow.  positives: all true labels."""

    thresholds: Floats  # [R]
    tags: Ids  # [R]
    hits: Ids  # [R]
    positives: int

    @classmethod
    def of(cls, scores: NDArray[np.float32], hits: Flags, positives: int) -> Cuts:
        """Return a cut at each distinct score, thinned to at most ROWS, about equally many hits apart."""
        order = np.argsort(-scores, kind="stable")
        ordered, reached = scores[order].astype(np.float64), np.cumsum(hits[order])
        ends = np.flatnonzero(np.diff(ordered, append=-np.inf))  # the last tag with each score
        if len(ends) > ROWS:
            steps = np.linspace(0, reached[ends[-1]], ROWS)
            ends = ends[np.unique(np.minimum(np.searchsorted(reached[ends], steps), len(ends) - 1))]
        return cls(ordered[ends], ends + 1, reached[ends].astype(np.int64), positives)

    def precise(self, precision: float) -> Cut:
        """Return the lowest threshold with at least this precision; if there is none, one that no tag reaches."""
        enough = np.flatnonzero(self.hits / self.tags >= precision)
        return self._cut(int(enough[-1])) if len(enough) else Cut(np.inf, 0, 0)

    def worth(self, price: float) -> Cut:
        """Return the threshold that maximises 2 · hits − price · tags; one that no tag reaches if that is at most 0."""
        gains = 2 * self.hits - price * self.tags
        return self._cut(int(gains.argmax())) if gains.max(initial=0) > 0 else Cut(np.inf, 0, 0)

    def _cut(self, row: int) -> Cut:
        return Cut(float(self.thresholds[row]), int(self.tags[row]), int(self.hits[row]))

    @classmethod
    def of_json(cls, saved: Mapping[str, Any]) -> Cuts:
        """Return the cuts from saved JSON values."""
        arrays = (np.array(saved["thresholds"]), np.array(saved["tags"], int), np.array(saved["hits"], int))
        return cls(*arrays, saved["positives"])


def best_f1(bins: Sequence[Cuts]) -> list[Cut]:
    """Return a threshold for each bin of labels that together maximise micro-F1 = 2 Σ hits / (Σ tags + Σ positives).

    With a price per tag equal to the F1 so far, each bin can choose on its own; F1 then grows until it is the best
    (Dinkelbach's method for ratios).
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
    """Data and quality of a calibration: errors over the top SHOWN labels, `after` by FOLDS-fold cross-fitting."""

    method: str
    points: int
    hits: int  # among the top FITTED labels
    error_before: float
    error_after: float
    brier_before: float
    brier_after: float


@dataclass(frozen=True)
class Calibration:
    """A curve from scores to probabilities, and tables of cuts to choose thresholds from.

    frequent: ids of the labels of each bin but the first, so that labels added later count as rare.
    """

    curve: Curve | None
    figures: Figures
    cuts: Cuts  # of all labels
    by_frequency: tuple[Cuts, ...]  # of each bin, rarest first
    frequent: tuple[Ids, ...]

    def applied(self, ranking: Ranking, threshold: float | Sequence[float] | None = None) -> Ranking:
        """Return the same labels in the same order with probabilities, without those below the threshold.

        threshold: one for all labels, or one for each bin.  Equal probabilities are made distinct in their last bit, so
        that sorting by score reproduces the order.
        """
        scores = np.where(ranking.ids >= 0, mapped(self.curve, ranking.scores), np.float32(-np.inf))
        calibrated = Ranking(ranking.ids, scores)
        if threshold is not None:
            calibrated = self.cut(calibrated, threshold)
        return calibrated if self.curve is None else calibrated.set_apart()

    def cut(self, ranking: Ranking, threshold: float | Sequence[float]) -> Ranking:
        """Return a ranking without the labels below the threshold: one for all labels, or one for each bin."""
        least = np.asarray(threshold, dtype=np.float64)
        return cut(ranking, least[self.bins_of(ranking.ids)] if least.shape == (BINS,) else least)

    def bins_of(self, ids: Ids) -> Ids:
        """Return the frequency bin of each label, 0 the rarest; labels without a known bin are in bin 0."""
        bins = self._bins
        return np.where(ids < len(bins), bins[np.minimum(ids, len(bins) - 1)], 0)

    @cached_property
    def _bins(self) -> Ids:
        """The bin of each label, up to the last label that is not in bin 0."""
        bins = np.zeros(1 + max(int(labels.max(initial=0)) for labels in self.frequent), dtype=np.int64)
        for number, labels in enumerate(self.frequent, start=1):
            bins[labels] = number
        return bins

    def threshold(self, precision: float | None, by_frequency: bool) -> float | tuple[float, ...]:
        """Return the threshold, or one for each bin, that reaches a precision, or if None the best micro-F1."""
        bins = self.by_frequency if by_frequency else (self.cuts,)
        if precision is None:
            chosen = best_f1(bins)
        elif 0 < precision <= 1:
            chosen = [cuts.precise(precision) for cuts in bins]
        else:
            raise ConfigError(f"precision must be above 0 and at most 1; found {precision!r}")
        if not any(cut.tags for cut in chosen):
            most = max((cuts.hits / cuts.tags).max(initial=0) for cuts in bins)
            raise ConfigError(f"no threshold reaches precision {precision} on held-out points; the most is {most:.3f}")
        thresholds = tuple(cut.threshold for cut in chosen)
        return thresholds if by_frequency else thresholds[0]

    def as_json(self) -> dict[str, Any]:
        """Return JSON values for `of_json`; lists of numbers are numpy arrays."""
        return asdict(self)

    @classmethod
    def of_json(cls, saved: Mapping[str, Any], labels: int) -> Calibration:
        """Return the calibration from saved JSON values.  labels: their number."""
        curve = saved["curve"]
        if not all(0 <= label < labels for bin in saved["frequent"] for label in bin):
            raise DataError(f"calibration.json has a label outside 0..{labels - 1}")
        return cls(
            None if curve is None else Curve(**{**curve, "knots": tuple(map(tuple, curve["knots"]))}),
            Figures(**saved["figures"]),
            Cuts.of_json(saved["cuts"]),
            tuple(map(Cuts.of_json, saved["by_frequency"])),
            tuple(np.array(labels, dtype=np.int64) for labels in saved["frequent"]),
        )


def cut(ranking: Ranking, threshold: float | Sequence[float] | Floats) -> Ranking:
    """Return a ranking without the labels below a threshold, which is one number or [B, k]."""
    least = np.asarray(threshold, dtype=np.float64)
    if least.shape not in ((), ranking.ids.shape) or np.isnan(least).any():
        raise ConfigError(
            f"threshold must be a number, or {BINS} of them, rarest labels first; found {quoted(threshold)}"
        )
    kept = (ranking.ids >= 0) & (ranking.scores >= least)
    order = np.argsort(~kept, axis=1, kind="stable")  # removed labels go to the end
    ids, scores = np.where(kept, ranking.ids, -1), np.where(kept, ranking.scores, np.float32(-np.inf))
    return Ranking(np.take_along_axis(ids, order, axis=1), np.take_along_axis(scores, order, axis=1))


def learned(ranking: Ranking, truth: csr_array, bins: Ids, method: Method) -> Calibration | None:
    """Learn a calibration from a ranking of held-out points; None if there are too few hits or misses.

    truth: [points, labels].  bins: [labels], frequency bins of the labels, 0 the rarest.
    """
    hits = stored(truth, np.arange(len(ranking))[:, None], ranking.ids)
    filled = ranking.ids >= 0
    count = int(hits[:, :FITTED].sum())
    if min(count, int(filled[:, :FITTED].sum()) - count) < FEWEST:
        return None
    name, after = _chosen(ranking.scores[:, :FITTED], hits[:, :FITTED], method)
    curve = None if name == "none" else CURVES[name](ranking.scores[:, :FITTED], hits[:, :FITTED])
    scores, positives = mapped(curve, ranking.scores), np.bincount(bins[truth.indices], minlength=BINS)
    bin_of = np.where(filled, bins[ranking.ids], -1)
    parts = [Cuts.of(scores[bin_of == b], hits[bin_of == b], int(positives[b])) for b in range(BINS)]
    whole = Cuts.of(scores[filled], hits[filled], int(positives.sum()))
    top, right = _shown(ranking.scores, ranking.scores), _shown(hits, ranking.scores)
    quality = [error(shown, right) for error in (calibration_error, brier) for shown in (top, after)]
    figures = Figures(name, len(ranking), count, *quality)
    return Calibration(curve, figures, whole, tuple(parts), tuple(np.flatnonzero(bins == b) for b in range(1, BINS)))


def _chosen(scores: NDArray[Any], hits: Flags, method: Method) -> tuple[str, Floats]:
    """Return the method, for "auto" the one with the lowest Brier score, and its cross-fitted probabilities."""
    names = [method] if method != "auto" else ["platt", "isotonic"] if hits.sum() >= ENOUGH else ["platt"]
    fitted = {name: _shown(_cross_fitted(scores, hits, name), scores) for name in names}
    return min(fitted.items(), key=lambda item: brier(item[1], _shown(hits, scores)))


def _cross_fitted(scores: NDArray[Any], hits: Flags, name: str) -> NDArray[Any]:
    """Return probabilities [B, k], each from a curve fitted to the points of the other folds."""
    if name == "none":
        return scores
    folds, probabilities = np.arange(len(scores)) % FOLDS, np.empty(scores.shape)
    for fold in range(FOLDS):
        here = folds == fold
        probabilities[here] = CURVES[name](scores[~here], hits[~here])(scores[here])
    return probabilities


def _shown(values: NDArray[Any], scores: NDArray[Any]) -> NDArray[Any]:
    """Return the values [B, k] of the top SHOWN labels, flattened and without padding."""
    return np.asarray(values[:, :SHOWN][np.isfinite(scores[:, :SHOWN])])
