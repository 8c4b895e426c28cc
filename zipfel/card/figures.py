"""Figures of a card: metrics with intervals, calibration, and the labels that a model is poor at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.calibration import SHOWN, calibration_error
from zipfel.data.dataset import Dataset
from zipfel.data.labels import names_of
from zipfel.evaluate import evaluate
from zipfel.label_report import LabelReport
from zipfel.types import Ids, Ranking, stored

KS = (1, 3, 5)
RESAMPLES = 1000
LEVEL = 95  # percent of the resamples that an interval holds
ENOUGH = 5  # points of a label from which its F1 is listed
WEAK = 0.5  # F1 below which a label is listed
LISTED = 10  # labels

Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """A metric in percent, and the interval of the bootstrap over points."""

    value: float
    low: float
    high: float


class Share(NamedTuple):
    """Tags of labels of similar training frequency, at the threshold, in percent; NaN where nothing is tagged."""

    lowest: int
    highest: int
    labels: int
    precision: float
    recall: float


class Weak(NamedTuple):
    """A label with a low F1 at the threshold: its title and name, or its name alone."""

    label: str
    precision: float  # NaN if it was never predicted
    recall: float
    f1: float
    support: int  # points of the part
    trained: int  # points in training


@dataclass(frozen=True)
class Figures:
    """How a model does on a part of a data set.

    remarks: what a reader must know first.  error: of the probabilities of the top SHOWN labels, in percent.
    """

    data: str
    part: str
    points: int
    labels: int
    metrics: dict[str, Interval]
    coverage: float
    error: float
    threshold: str
    averages: dict[str, float]
    shares: list[Share]
    weak: list[Weak]
    remarks: Sequence[str] = ()


def figures(ranking: Ranking, dataset: Dataset, part: str, labels: LabelReport, remarks: Sequence[str] = ()) -> Figures:
    """Return the figures of a ranking of a part's points, whose scores are probabilities.

    labels: of tags at a threshold, for the labels of the data set.
    """
    points, counts = dataset.parts[part], dataset.label_counts
    report = evaluate(ranking, dataset, part, KS)
    train = len(dataset.train) if dataset.trained_on is None else dataset.trained_on.points
    kept = ranking if points.filtered is None else ranking.without(points.filtered)
    inverse = metrics.inverse_propensities(counts, train, *report.propensity)
    hits = stored(points.Y, np.arange(len(ranking))[:, None], ranking.ids[:, :SHOWN])
    shown = np.isfinite(ranking.scores[:, :SHOWN])
    return Figures(
        data=dataset.name,
        part=part,
        points=report.points,
        labels=report.labels,
        metrics=intervals(kept, points.Y, inverse, report.values),
        coverage=report.values[f"coverage@{KS[-1]}"],
        error=100 * calibration_error(ranking.scores[:, :SHOWN][shown], hits[shown], _bins(int(shown.sum()))),
        threshold=labels.threshold_text(),
        averages=labels.averages(),
        shares=_shares(labels, counts),
        weak=_weak(labels, counts, names_of(dataset)),
        remarks=remarks,
    )


def _bins(scores: int) -> int:
    """Return the number of bins for SCORES scores: each has 50 or more, so that its share of hits means something."""
    return min(15, max(1, scores // 50))


def intervals(
    ranking: Ranking, truth: csr_array, inverse: Floats, values: dict[str, float], resamples: int = RESAMPLES
) -> dict[str, Interval]:
    """Return P, nDCG, R and PSP with percentile intervals of a bootstrap over points.  values: the metrics themselves.

    Each resample draws as many points as there are, with replacement, always the same ones for the same number.
    """
    parts = by_point(ranking, truth, inverse)
    above, below = (np.stack([pair[side] for pair in parts.values()], axis=1) for side in (0, 1))  # [N, metrics]
    generator, points = np.random.default_rng(0), len(ranking)
    drawn = np.empty((resamples, len(parts)))
    for row in drawn:
        times = np.bincount(generator.integers(0, points, points), minlength=points).astype(np.float64)
        total = times @ below
        row[:] = 100 * np.divide(times @ above, total, out=np.zeros_like(total), where=total > 0)
    low, high = np.percentile(drawn, [(100 - LEVEL) / 2, (100 + LEVEL) / 2], axis=0)
    return {name: Interval(values[name], float(low[i]), float(high[i])) for i, name in enumerate(parts)}


def by_point(ranking: Ranking, truth: csr_array, inverse: Floats) -> dict[str, tuple[Floats, Floats]]:
    """Return numerators and denominators of each point, [N] each: a metric is the ratio of their sums."""
    width = KS[-1]
    ids = np.full((len(ranking), width), -1, dtype=np.int64)
    ids[:, : ranking.k] = ranking.ids[:, :width]
    hits = stored(truth, np.arange(len(ranking))[:, None], ids)
    positives = np.diff(truth.indptr)
    ones, gains, best = np.ones(len(ids)), np.where(hits, inverse[ids], 0.0), metrics.best_gains(truth, inverse, width)
    ndcg = metrics.ndcg_of_points(hits, positives)
    parts = {}
    for k in KS:
        right = hits[:, :k].sum(axis=1).astype(np.float64)
        parts[f"P@{k}"] = right / k, ones
        parts[f"nDCG@{k}"] = ndcg[:, k - 1], ones
        parts[f"R@{k}"] = right / np.maximum(positives, 1), ones
        parts[f"PSP@{k}"] = gains[:, :k].sum(axis=1), best[:, :k].sum(axis=1)
    return {f"{name}@{k}": parts[f"{name}@{k}"] for name in ("P", "nDCG", "R", "PSP") for k in KS}


def _shares(labels: LabelReport, counts: Ids) -> list[Share]:
    """Return precision and recall of labels by training frequency, rarest first, without empty bins."""
    bin_of = metrics.frequency_bins(counts)
    shares = []
    for b in np.unique(bin_of):
        own = bin_of == b
        right, predicted, support = (
            int(column[own].sum()) for column in (labels.right, labels.predicted, labels.support)
        )
        precision, recall = (100 * right / total if total else float("nan") for total in (predicted, support))
        shares.append(Share(int(counts[own].min()), int(counts[own].max()), int(own.sum()), precision, recall))
    return shares


def _weak(labels: LabelReport, counts: Ids, names: Sequence[str]) -> list[Weak]:
    """Return the labels with the lowest F1 among those with enough points, the most frequent first where equal."""
    f1 = np.nan_to_num(labels.f1)
    poor = np.flatnonzero((labels.support >= ENOUGH) & (f1 < WEAK))
    order = sorted(poor.tolist(), key=lambda label: (f1[label], -labels.support[label], names[label]))[:LISTED]
    precision, recall = labels.precision, labels.recall
    titles = labels.titles or names
    shown = [name if title in ("", name) else f"{title} <{name}>" for title, name in zip(titles, names, strict=True)]
    return [
        Weak(shown[i], float(precision[i]), float(recall[i]), float(f1[i]), int(labels.support[i]), int(counts[i]))
        for i in order
    ]
