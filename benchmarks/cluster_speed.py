"""Balanced clusters: `python -m benchmarks.cluster_speed LABELS LEVELS [dense WIDTH | sparse NNZ]`, one JSON line.

Labels are noisy copies of one in twenty of them: dense rows of WIDTH, or sparse rows with some NNZ of 100,000 Zipfian
features; dense 128 unless told otherwise, on the GPU where there is one. The target: 10^6 labels, 17 levels in 10
minutes on two cores, in one on an H200. `similarity` is the mean cosine of a label and the centre of its cluster,
`chance` that of random clusters of the same sizes. The peak of memory is the process's, `held_mb` what it held before,
with the centroids and torch. `load` is what the machine had to do beforehand and afterwards: where it says more than
the cores, others worked too, and `processor_s` tells more than the clock.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional as F

from benchmarks.deepwalk_speed import forget_peak, peak_mb
from benchmarks.record import record
from zipfel.labelspace.clusters import balanced_clusters

FEATURES, COPIES, CHUNK, SEED = 100_000, 20, 1 << 16, 0


def dense_rows(labels: int, width: int, numbers: np.random.Generator) -> Tensor:
    """Return centres with as much noise, [labels, width]."""
    centres = numbers.standard_normal((-(-labels // COPIES), width), dtype=np.float32)
    rows = np.empty((labels, width), dtype=np.float32)
    numbers.standard_normal(dtype=np.float32, out=rows)
    owners = numbers.integers(len(centres), size=labels)
    for first in range(0, labels, CHUNK):
        rows[first : first + CHUNK] += centres[owners[first : first + CHUNK]]
    return torch.from_numpy(rows).to("cuda" if torch.cuda.is_available() else "cpu")


def sparse_rows(labels: int, entries: int, numbers: np.random.Generator) -> csr_array:
    """Return rows half of whose features are those of a centre, [labels, FEATURES]; what is drawn twice adds up."""
    frequency = np.cumsum(1 / np.arange(1, FEATURES + 1))

    def drawn(rows: int) -> NDArray[np.int32]:
        places = numbers.random((rows, entries // 2)) * frequency[-1]
        return np.asarray(np.searchsorted(frequency, places), dtype=np.int32)

    centres = drawn(-(-labels // COPIES))
    columns = np.concatenate((centres[numbers.integers(len(centres), size=labels)], drawn(labels)), axis=1)
    values = numbers.random(columns.size, dtype=np.float32)
    ends = np.arange(labels + 1) * columns.shape[1]
    rows = csr_array((values, columns.ravel(), ends), shape=(labels, FEATURES))
    rows.sum_duplicates()
    return rows


def similarity(vectors: csr_array | Tensor, clusters: NDArray[np.int32]) -> float:
    """Return the mean cosine of a row and the centre of its cluster: the mean length of the clusters' sums."""
    count = int(clusters.max()) + 1
    if isinstance(vectors, Tensor):
        sums = vectors.new_zeros(count, vectors.shape[1])
        owners = torch.from_numpy(clusters).to(vectors.device)
        for first in range(0, len(owners), CHUNK):
            sums.index_add_(0, owners[first : first + CHUNK], F.normalize(vectors[first : first + CHUNK]))
        return float(sums.norm(dim=1).sum()) / len(clusters)
    lengths = np.sqrt(vectors.power(2).sum(axis=1))
    owners = csr_array((1 / lengths, (clusters, np.arange(len(clusters)))), shape=(count, len(clusters)))
    return float(np.sqrt((owners @ vectors).power(2).sum(axis=1)).sum()) / len(clusters)


def main() -> None:
    labels, levels = int(sys.argv[1]), int(sys.argv[2])
    kind, size = (sys.argv[3], int(sys.argv[4])) if sys.argv[3:] else ("dense", 128)
    make = {"dense": dense_rows, "sparse": sparse_rows}[kind]
    vectors = make(labels, size, np.random.default_rng(SEED))
    load = os.getloadavg()[0]
    forget_peak()
    held = peak_mb()
    start, used = time.perf_counter(), time.process_time()
    clusters = balanced_clusters(vectors, 2**levels, np.random.default_rng(SEED))
    seconds, processor = time.perf_counter() - start, time.process_time() - used
    peak = peak_mb()
    sizes = np.bincount(clusters)
    figures: dict[str, object] = {
        "labels": labels,
        "levels": levels,
        "kind": kind,
        "width" if kind == "dense" else "entries": size if isinstance(vectors, Tensor) else vectors.nnz,
        "device": torch.cuda.get_device_name() if isinstance(vectors, Tensor) and vectors.is_cuda else "cpu",
        "seconds": round(seconds, 1),
        "processor_s": round(processor, 1),
        "held_mb": held,
        "peak_mb": peak,
        "sizes": [int(sizes.min()), int(sizes.max())],
        "similarity": round(similarity(vectors, clusters), 4),
        "chance": round(similarity(vectors, np.random.default_rng(SEED).permutation(clusters)), 4),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
    }
    if figures["device"] != "cpu":
        figures["gpu_peak_mb"] = torch.cuda.max_memory_allocated() >> 20
    record("cluster_speed", figures, SEED, ("torch",))


if __name__ == "__main__":
    main()
