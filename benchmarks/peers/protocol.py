"""The command line of every contestant of `zipfel bench`. An adapter calls `main` with a function to train and to load.

    python ADAPTER train   FEATURES MODEL REPORT --seed 0 --threads 2 --settings '{...}'
    python ADAPTER predict FEATURES MODEL REPORT --seed 0 --threads 2 --settings '{...}' --ranking OUT.npz --k 5

FEATURES has X.trn.npz, Y.trn.npz and X.tst.npz; Z.npz if labels have texts; and F.trn.npz if some pairs of train are to
be ignored (the document is that label), for contestants that can. REPORT is a JSON object with the measurements. This
module runs in the environments of the peers, so it needs nothing but numpy and scipy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix, load_npz

ALONE, ALONE_SECONDS = 300, 30.0  # documents ranked one at a time, and the longest total time
BATCH_SECONDS = 2.0  # test is ranked repeatedly for about this long, at least once; the median counts

Ids = Any  # numpy array, [documents, k]; -1 where a document has fewer labels
Scores = Any  # numpy array, [documents, k]
Rank = Callable[[Any, int], tuple[Ids, Scores]]


@dataclass
class Task:
    """The task of a contestant. X: [documents, features], Y: [documents, labels], Z: [labels, features]."""

    features: Path
    model: Path
    seed: int
    threads: int
    settings: dict[str, Any]
    measured: dict[str, Any] = field(default_factory=dict)

    def matrix(self, name: str) -> Any:
        """Return a matrix of the data set, or None if there is none: `Z` and `F.trn` are optional."""
        path = self.features / f"{name}.npz"
        return csr_matrix(load_npz(path)).astype(np.float32) if path.exists() else None

    def train(self) -> tuple[Any, Any]:
        """Return X and Y of train; with the setting `label_texts`, the text of each label is one more document."""
        X, Y = self.matrix("X.trn"), self.matrix("Y.trn")
        if self.settings.get("label_texts"):
            X, Y = stacked(X, self.matrix("Z")), stacked(Y, identity(Y.shape[1]))
        kept = np.flatnonzero((np.diff(X.indptr) > 0) & (np.diff(Y.indptr) > 0))  # some peers reject empty rows
        return X[kept], Y[kept]

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Measure the time of training, from features in memory to a model."""
        wall, cpu = time.perf_counter(), cpu_seconds()
        yield
        self.measured["train_seconds"] = time.perf_counter() - wall
        self.measured["train_cpu_seconds"] = cpu_seconds() - cpu


def stacked(above: Any, below: Any) -> Any:
    """Return one matrix on top of the other."""
    from scipy.sparse import vstack

    return csr_matrix(vstack([above, below]))


def identity(size: int) -> Any:
    """Return the labels of the labels' own texts."""
    from scipy.sparse import eye

    return csr_matrix(eye(size, format="csr", dtype=np.float32))


def cpu_seconds() -> float:
    """Return the CPU seconds of all threads, and of child processes that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def best(scores: Any, k: int) -> tuple[Ids, Scores]:
    """Return the best k of each row of dense or sparse scores; entries that are not stored are no candidates."""
    if not hasattr(scores, "indptr"):
        scores = np.asarray(scores)
        k = min(k, scores.shape[1])
        top = np.argpartition(-scores, k - 1, axis=1)[:, :k]
        values = np.take_along_axis(scores, top, axis=1)
        order = np.lexsort((top, -values), axis=1)
        return np.take_along_axis(top, order, axis=1), np.take_along_axis(values, order, axis=1)
    ids = np.full((scores.shape[0], k), -1, dtype=np.int64)
    values = np.full((scores.shape[0], k), -np.inf, dtype=np.float32)
    for row in range(scores.shape[0]):
        place = slice(scores.indptr[row], scores.indptr[row + 1])
        labels, found = scores.indices[place], scores.data[place]
        if len(found) > 4 * k:
            some = np.argpartition(-found, k - 1)[:k]
            labels, found = labels[some], found[some]
        order = np.lexsort((labels, -found))[:k]
        ids[row, : len(order)], values[row, : len(order)] = labels[order], found[order]
    return ids, values


def padded(rows: list[list[tuple[int, float]]], k: int) -> tuple[Ids, Scores]:
    """Return lists of (label, score) as arrays."""
    ids = np.full((len(rows), k), -1, dtype=np.int64)
    values = np.full((len(rows), k), -np.inf, dtype=np.float32)
    for place, row in enumerate(rows):
        for rank, (label, score) in enumerate(row[:k]):
            ids[place, rank], values[place, rank] = int(label), score
    return ids, values


def main(train: Callable[[Task], None], load: Callable[[Task], Rank], packages: tuple[str, ...] = ()) -> None:
    """Run the command line."""
    words = _arguments()
    task = Task(words.features, words.model, words.seed, words.threads, json.loads(words.settings))
    if words.verb == "train":
        words.model.mkdir(parents=True, exist_ok=True)
        train(task)
    else:
        _predict(task, load, words.k, words.ranking)
    task.measured["versions"] = {name: _version(name) for name in (*packages, "numpy", "scipy")}
    words.report.write_text(json.dumps(task.measured))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("train", "predict"))
    for name in ("features", "model", "report"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--settings", default="{}")
    parser.add_argument("--ranking", type=Path)
    parser.add_argument("--k", type=int, default=5)
    return parser.parse_args()


def _predict(task: Task, load: Callable[[Task], Rank], k: int, out: Path) -> None:
    """Measure start-up, batches and single documents, and write the ranking of test."""
    began = time.time()
    X = task.matrix("X.tst")
    read = time.time() - began
    rank = load(task)
    rank(X[:1], k)  # start-up ends with the first answer; reading test does not count
    task.measured["startup_seconds"] = time.time() - float(os.environ.get("BENCH_STARTED", began)) - read
    ids, scores, task.measured["batch_ms"] = _in_batches(rank, X, k)
    with out.open("wb") as file:
        np.savez(file, ids=np.asarray(ids, dtype=np.int64), scores=np.asarray(scores, dtype=np.float32))
    task.measured |= _alone(rank, X, k)


def _in_batches(rank: Rank, X: Any, k: int) -> tuple[Ids, Scores, float]:
    seconds: list[float] = []
    while sum(seconds) < BATCH_SECONDS and len(seconds) < 5:
        start = time.perf_counter()
        ids, scores = rank(X, k)
        seconds.append(time.perf_counter() - start)
    return ids, scores, 1000 * float(np.median(seconds)) / X.shape[0]


def _alone(rank: Rank, X: Any, k: int) -> dict[str, Any]:
    """Return milliseconds of documents ranked one at a time, evenly spaced in test."""
    rows = np.unique(np.linspace(0, X.shape[0] - 1, ALONE).astype(int))
    seconds: list[float] = []
    for row in rows:
        one = X[row : row + 1]
        start = time.perf_counter()
        rank(one, k)
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > ALONE_SECONDS:
            break
    p50, p99 = np.percentile(1000 * np.array(seconds), [50, 99])
    return {"alone_p50_ms": float(p50), "alone_p99_ms": float(p99), "alone_documents": len(seconds)}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
