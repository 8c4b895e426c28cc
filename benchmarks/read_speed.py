"""Time to read the repository's text format, compared with scikit-learn: `python -m benchmarks.read_speed [FILE]`.

scikit-learn's `load_svmlight_file` reads the same content without the header line. Runs alternate, so that noise
affects both alike; the ratio of the medians counts. Without FILE, synthetic data is written and read. One JSON line.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

from benchmarks.record import record
from zipfel.data.formats import write
from zipfel.data.formats.files import opened
from zipfel.data.formats.sparse_text import read_sparse
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf

REPEATS, SEED = 5, 0


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def synthetic_file(folder: Path) -> Path:
    """Write 50,000 points with about 100 real-valued features each."""
    dataset = make(Synthetic(points=50_000, labels=5_000, tokens_per_point=150, test_share=0, seed=SEED))
    X = dataset.train.X
    write(Tfidf.fit(X).apply(dataset), folder / "data", "repository")
    return folder / "data" / "train.txt"


def main(path: Path | None, folder: Path) -> None:
    path = path or synthetic_file(folder)
    plain, headless = folder / "plain.txt", folder / "headless.txt"
    with opened(path) as stream:
        plain.write_bytes(stream.read())
    path = plain
    header, _, rows = plain.read_bytes().partition(b"\n")
    headless.write_bytes(rows)
    features = int(header.split()[1])
    ours, theirs = [], []
    for _ in range(REPEATS):
        ours.append(seconds(lambda: read_sparse(path, ("points", "features", "labels"))))
        theirs.append(seconds(lambda: load_svmlight_file(headless, n_features=features, multilabel=True,
                                                         zero_based=True, dtype=np.float32)))  # fmt: skip
    content = read_sparse(path, ("points", "features", "labels"))
    X, _ = load_svmlight_file(headless, n_features=features, multilabel=True, zero_based=True, dtype=np.float32)
    assert abs(X - content.features).max() < 1e-6, "the two readers disagree"
    figures = {
        "megabytes": round(path.stat().st_size / 1e6, 1),
        "values": int(content.features.nnz),
        "zipfel_seconds": round(statistics.median(ours), 3),
        "sklearn_seconds": round(statistics.median(theirs), 3),
        "times_as_fast": round(statistics.median(theirs) / statistics.median(ours), 2),
    }
    record("read_speed", figures, SEED, ("scikit-learn", "orjson"))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else None, Path(temporary))
