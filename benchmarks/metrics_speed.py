"""Time of all metrics on 100,000 points × top 5 × 500,000 labels: `python -m benchmarks.metrics_speed`."""

from __future__ import annotations

import time

import numpy as np
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel.metrics import contributions, inverse_propensities, macro, measure, only_tail, tail_labels
from zipfel.types import Ids, Ranking

POINTS, LABELS, POSITIVES, K, SEED = 100_000, 500_000, 5, 5, 0


def zipfian(rng: np.random.Generator, shape: tuple[int, ...]) -> Ids:
    """Draw labels whose frequencies follow Zipf's law: log-uniform ranks."""
    return (LABELS ** rng.random(shape)).astype(np.int64) - 1


def matrix(labels: Ids) -> csr_array:
    """Return the [N, L] matrix of each point's labels; a label drawn twice counts once."""
    points, width = labels.shape
    rows = np.repeat(np.arange(points), width)
    truth = csr_array((np.ones(labels.size, dtype=np.float32), (rows, labels.ravel())), shape=(points, LABELS))
    truth.data[:] = 1
    return truth


def half_right(rng: np.random.Generator, labels: Ids) -> Ranking:
    """Return a ranking of true labels, about half of them replaced by random ones."""
    wrong = rng.random(labels.shape) < 0.5
    ids = np.where(wrong, zipfian(rng, labels.shape), labels)
    rows = np.repeat(np.arange(len(ids)), ids.shape[1])
    unique = np.unique(np.stack([rows, ids.ravel()]), axis=1)
    scores = rng.random((unique.shape[1],), dtype=np.float32)
    return Ranking.of_pairs(unique[0], unique[1], scores, len(ids), K)


def main() -> None:
    rng = np.random.default_rng(SEED)
    train = matrix(zipfian(rng, (POINTS, POSITIVES)))
    labels = zipfian(rng, (POINTS, POSITIVES))
    truth, ranking = matrix(labels), half_right(rng, labels)
    start = time.perf_counter()
    counts = np.bincount(train.indices, minlength=LABELS)
    values = measure(ranking, truth, inverse_propensities(counts, POINTS)) | macro(ranking, truth)
    contributions(ranking, truth, counts)
    only_tail(truth, tail_labels(counts))
    seconds = time.perf_counter() - start
    figures = {"seconds": round(seconds, 3), "points": POINTS, "labels": LABELS, "k": K, "metrics": len(values)}
    record("metrics_speed", {**figures, "P@1": round(values["P@1"], 2)}, SEED)


if __name__ == "__main__":
    main()
