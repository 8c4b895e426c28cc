"""How long a trained model takes to tag: `python -m benchmarks.predict_speed MODEL DATA`, one JSON line.

Test points of a data set with texts, in batches from features and from text to names, and one at a time.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from benchmarks.record import record
from zipfel import Tagger, read

POINTS, ALONE = 3000, 300


def main(model: str, data: str) -> None:
    test = read(data).test
    if test is None or test.texts is None:
        raise SystemExit(f"{data} must have a test part with texts")
    tagger, points = Tagger.load(model), min(POINTS, len(test))
    if tagger.features_ is None:
        raise SystemExit(f"{model} was not trained on texts")
    texts = {name: list(column[:points]) for name, column in test.texts.items()}
    X = tagger.features_.transform(texts)
    tagger.predict({name: column[:100] for name, column in texts.items()})  # what is mapped is read
    start = time.perf_counter()
    ranking = tagger.learner_.rank(X, 5)
    [[tagger.classes_[label] for label in row] for row in ranking.ids]
    features = time.perf_counter() - start
    start = time.perf_counter()
    tagger.predict(texts)
    text = time.perf_counter() - start
    alone = []
    for row in range(min(ALONE, points)):
        start = time.perf_counter()
        tagger.predict({name: [column[row]] for name, column in texts.items()})
        alone.append(1e3 * (time.perf_counter() - start))
    figures = {
        "data": data.rstrip("/").rpartition("/")[2],
        "features_to_names_ms": round(1e3 * features / points, 3),
        "text_to_names_ms": round(1e3 * text / points, 3),
        "alone_p50_ms": round(float(np.median(alone)), 2),
        "alone_p99_ms": round(float(np.percentile(alone, 99)), 2),
    }
    record("predict_speed", figures, tagger.seed, ("torch",))


if __name__ == "__main__":
    main(*sys.argv[1:3])
