"""How long a model takes from features to names: `python -m benchmarks.feature_speed DATA MODEL [key=value ...]`.

Trains the default preset, and times the test points in batches, ten times; one JSON line with median and best.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.tagger import Tagger


def main(words: list[str]) -> None:
    dataset = featurized(read(words[0]))
    assert dataset.test is not None
    tagger, X, times = Tagger(words[1], settings=words_of(words[2:])).fit_dataset(dataset), dataset.test.X, []
    for _ in range(10):
        start = time.perf_counter()
        ranking = tagger.rank(X, 5)
        [[tagger.classes_[label] for label in row] for row in ranking.ids.tolist()]
        times.append(1e3 * (time.perf_counter() - start) / len(ranking))
    figures = {"median_ms": round(float(np.median(times)), 4), "best_ms": round(min(times), 4)}
    vote = {name: getattr(tagger.model_, name, None) for name in ("voters", "sharpness")}
    record("feature_speed", {"data": dataset.name, "model": words[1], **figures, **vote}, 0, ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
