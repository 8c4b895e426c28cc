"""DeepWalk on a large label graph: `python -m benchmarks.deepwalk_speed [share of the size, 1]`, one JSON line.

The graph has 200,000 labels and 5 million edges, whose ends are drawn by Zipf's law; 10 walks of 40 labels from each,
100 dimensions, all cores (`deterministic=False`). The target: under 15 minutes on two cores, memory linear in edges.
The peak of memory is that of DeepWalk alone, not of drawing the graph; `graph_mb` is part of it. `load` is what the
machine had to do beforehand and afterwards (average of the last minute): where it says more than the cores, others
worked too, and `processor_s`, of all threads together, tells more than the clock.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel.labelspace.deepwalk import Walks, deepwalk, random_walks

LABELS, EDGES, DIMENSION, SEED = 200_000, 5_000_000, 100, 0


def zipfian_graph(labels: int, edges: int, numbers: np.random.Generator) -> csr_array:
    """Return a graph of so many different edges, [labels, labels]; frequent and rare labels in mixed order."""
    upto = np.cumsum(1 / np.arange(1, labels + 1))
    names = numbers.permutation(labels)
    keys: NDArray[np.int64] = np.empty(0, dtype=np.int64)
    while len(keys) < edges:
        ends = names[np.searchsorted(upto, numbers.random((2, edges)) * upto[-1])]  # [2, edges]
        low, high = ends.min(axis=0), ends.max(axis=0)
        keys = np.unique(np.concatenate((keys, (low * labels + high)[low < high])))
    low, high = np.divmod(numbers.permutation(keys)[:edges], labels)
    ends = (np.concatenate((low, high)), np.concatenate((high, low)))
    return csr_array((np.ones(2 * edges, dtype=np.float32), ends), shape=(labels, labels))


def peak_mb() -> int:
    """Return the most memory that this process held since `forget_peak`, which Linux alone tells."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    share = float(sys.argv[1]) if sys.argv[1:] else 1.0
    labels, edges = int(LABELS * share), int(EDGES * share)
    graph = zipfian_graph(labels, edges, np.random.default_rng(SEED))
    degrees = np.diff(graph.indptr)
    load = os.getloadavg()[0]
    forget_peak()
    start = time.perf_counter()
    steps = sum(walks.size for walks in random_walks(graph, Walks(), np.random.default_rng(SEED)))
    walking = time.perf_counter() - start
    used = time.process_time()
    vectors = deepwalk(graph, DIMENSION, np.random.default_rng(SEED), deterministic=False)
    figures = {
        "labels": labels,
        "edges": edges,
        "largest_degree": int(degrees.max()),
        "isolated": int((degrees == 0).sum()),
        "steps": steps,
        "walking_s": round(walking, 2),
        "deepwalk_s": round(time.perf_counter() - start - walking, 1),
        "processor_s": round(time.process_time() - used, 1),
        "graph_mb": round((graph.data.nbytes + graph.indices.nbytes + graph.indptr.nbytes) / 2**20),
        "peak_mb": peak_mb(),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "finite": bool(np.isfinite(vectors).all()),
    }
    record("deepwalk_speed", figures, SEED, ("gensim",))


if __name__ == "__main__":
    main()
