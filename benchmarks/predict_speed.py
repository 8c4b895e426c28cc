"""Prediction time of a trained model: `python -m benchmarks.predict_speed MODEL DATA`, one JSON line.

Tags test points from features to names, in batches and one at a time; if they are texts, also from text to names.
Times of one point are medians and 99th percentiles.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel import Tagger, read
from zipfel.data.dataset import Texts

POINTS = 3000  # one at a time they take seconds, so that short disturbances hardly matter


def main(model: str, data: str) -> None:
    test = read(data).test
    if test is None:
        raise SystemExit(f"{data} must have a test part")
    tagger, points = Tagger.load(model), min(POINTS, len(test))
    test = test.take(np.arange(points))
    X: csr_array = test.X if tagger.features_ is None else tagger.features_.transform(test.texts or {})
    figures: dict[str, object] = {"data": data.rstrip("/").rpartition("/")[2], "model": tagger.chosen_.model}
    figures["index"] = getattr(tagger.settings_, "index", None)
    figures["features_to_names_ms"] = round(min(features_to_names(tagger, X) for _ in range(5)) / points, 3)
    alone = [features_to_names(tagger, X[[row]]) for row in range(points)]
    figures |= percentiles("features_alone", alone)
    if tagger.features_ is not None and test.texts is not None:
        figures |= from_text(tagger, test.texts, points)
    record("predict_speed", figures, tagger.seed, ("torch",))


def features_to_names(tagger: Tagger, X: csr_array) -> float:
    """Return milliseconds. The best of several calls counts: the first reads mapped weights from disk."""
    start = time.perf_counter()
    ranking = tagger.predictor_.rank(X, 5)
    [[tagger.classes_[label] for label in row] for row in ranking.ids.tolist()]
    return 1e3 * (time.perf_counter() - start)


def from_text(tagger: Tagger, texts: Texts, points: int) -> dict[str, object]:
    """Return milliseconds per text, in batches and one at a time."""
    start = time.perf_counter()
    tagger.predict(texts)
    together = 1e3 * (time.perf_counter() - start) / points
    alone = []
    for row in range(points):
        start = time.perf_counter()
        tagger.predict({name: [column[row]] for name, column in texts.items()})
        alone.append(1e3 * (time.perf_counter() - start))
    return {"text_to_names_ms": round(together, 3), **percentiles("alone", alone)}


def percentiles(name: str, times: list[float]) -> dict[str, object]:
    """Return the median and the 99th percentile of milliseconds."""
    p50, p99 = (float(value) for value in np.percentile(times, (50, 99)))
    return {f"{name}_p50_ms": round(p50, 2), f"{name}_p99_ms": round(p99, 2)}


if __name__ == "__main__":
    main(*sys.argv[1:3])
