"""Time and memory to generate synthetic data: `python -m benchmarks.synthetic_speed [key=value ...]`, one JSON line.

The default is a million labels and a million points; key=value pairs are settings of `Synthetic`, such as labels=1000.
"""

from __future__ import annotations

import resource
import sys
import time

import numpy as np

from benchmarks.record import record
from zipfel.config import from_mapping, words_of
from zipfel.data.synthetic import Synthetic, make


def main(words: list[str]) -> None:
    settings = from_mapping(Synthetic, {"points": 1_000_000, "labels": 1_000_000, **words_of(words)})
    start = time.perf_counter()
    dataset = make(settings)
    seconds = time.perf_counter() - start
    unit = 2**30 if sys.platform == "darwin" else 2**20  # ru_maxrss is in bytes on macOS, in KiB on Linux
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
    counts = dataset.label_counts
    parts = dataset.parts.values()
    figures = {
        "seconds": round(seconds, 2),
        "peak_gib": round(peak, 2),
        "points": settings.points,
        "labels": settings.labels,
        "features": settings.vocabulary,
        "labels_per_point": round(sum(part.Y.nnz for part in parts) / settings.points, 3),
        "features_per_point": round(sum(part.X.nnz for part in parts if part.X is not None) / settings.points, 3),
        "labels_without_train_point": int((counts == 0).sum()),
        "median_count": float(np.median(counts)),
        "highest_count": int(counts.max()),
    }
    record("synthetic_speed", figures, settings.seed)


if __name__ == "__main__":
    main(sys.argv[1:])
