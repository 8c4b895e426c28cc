"""Training of `linear`: `python -m benchmarks.linear_speed DATA [--device cuda] [--sample 100]`, one JSON line.

Trains the preset `default` from features in memory, and reports seconds, P@1 and P@5 on test, the size of the weights
that are saved, and milliseconds to rank test points. CPU seconds include those of other processes that solve labels.
--sample times scikit-learn's one-vs-rest in the same process, on evenly spaced labels, and scales its seconds by the
number of labels that have training points: an estimate, not a full run.
"""

from __future__ import annotations

import argparse
import os
import resource
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from joblib import parallel_backend
from joblib.externals.loky import get_reusable_executor
from scipy.sparse import csr_matrix

from benchmarks.record import record
from zipfel.bench.features import featured, loaded
from zipfel.data.dataset import Dataset, Part
from zipfel.evaluate import evaluate
from zipfel.tagger import Tagger

ALONE = 200  # documents that are ranked one at a time


def main(path: str, device: str, sample: int) -> None:
    dataset = featured(loaded(Path(path)))  # features as in the bench, so that figures compare with those of its peers
    figures: dict[str, object] = {"data": dataset.name, "device": device, "threads": torch.get_num_threads()}
    figures |= trained(dataset, device)
    if sample:
        figures |= one_vs_rest(dataset.train, sample)
    record("linear_speed", {**figures, "load": round(os.getloadavg()[0], 1)}, 0, ("torch", "scikit-learn"))


def trained(dataset: Dataset, device: str) -> dict[str, object]:
    """Train and rank once."""
    tagger, start = Tagger("linear", device=device, seed=0), time.perf_counter()
    before = cpu_seconds()
    tagger.fit_dataset(dataset)
    seconds = time.perf_counter() - start
    get_reusable_executor().shutdown(wait=True)  # so that CPU seconds of its processes are counted
    cpu = cpu_seconds() - before
    test, predictor = dataset.test, tagger.predictor_
    assert test is not None
    assert test.X is not None
    assert tagger.fitted_ is not None
    start = time.perf_counter()
    ranking = tagger.rank(test.X, 5, test.filtered)
    together = 1e3 * (time.perf_counter() - start) / len(ranking)
    values, sizes = evaluate(ranking, dataset, "test").values, tagger.fitted_.model.tensors().serve.values()
    return {
        "seconds": round(seconds, 1), "cpu_seconds": round(cpu, 1),
        "P@1": round(values["P@1"], 2), "P@5": round(values["P@5"], 2),
        "model_mb": round(sum(tensor.numel() * tensor.element_size() for tensor in sizes) / 1e6, 1),
        "rank_ms": round(together, 3), "alone_p50_ms": alone(predictor, test.X),
    }  # fmt: skip


def alone(predictor: object, X: csr_matrix) -> float:
    """Return the median milliseconds to rank 50 labels of one document."""
    times = []
    for row in range(min(ALONE, X.shape[0])):
        one, start = X[[row]], time.perf_counter()
        predictor.rank(one, 50)  # type: ignore[attr-defined]
        times.append(1e3 * (time.perf_counter() - start))
    return round(float(np.median(times)), 3)


def cpu_seconds() -> float:
    """Return CPU seconds of this process since it began, and of those it started that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def one_vs_rest(train: Part, sample: int) -> dict[str, object]:
    """Time scikit-learn on evenly spaced labels with training points, in as many threads as torch has."""
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    seen = np.flatnonzero(np.bincount(train.Y.indices, minlength=train.Y.shape[1]))
    labels = seen[np.unique(np.linspace(0, len(seen) - 1, sample).astype(np.int64))]
    targets = csr_matrix(train.Y[:, labels], dtype=np.int64)
    with parallel_backend("threading"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # labels that do not converge
        start = time.perf_counter()
        OneVsRestClassifier(LinearSVC(random_state=0), n_jobs=torch.get_num_threads()).fit(csr_matrix(train.X), targets)
        seconds = time.perf_counter() - start
    scaled = round(seconds * len(seen) / len(labels), 1)
    return {"sklearn_labels_timed": len(labels), "sklearn_seconds_scaled_by_labels": scaled}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sample", type=int, default=0, help="labels on which scikit-learn is timed; 0: none")
    options = parser.parse_args()
    main(options.data, options.device, options.sample)
