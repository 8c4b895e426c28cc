"""How fast and how complete the indices are: `python -m benchmarks.index_speed`, a JSON line for each index and set.

Clustered unit vectors; queries are drawn like them. Recall is the share of the exact best 100 that an index finds.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from benchmarks.record import record
from zipfel.index import KINDS, Index, build_index, recall
from zipfel.index.exact import ExactIndex

SEED, WIDTH, BATCHED, ALONE = 0, 100, 1000, 100
SUBSPACE, NOISE = 32, 0.5
SETS = ((200_000, 100), (20_000, 300))


def clustered(rows: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return unit vectors around many centres near a subspace, so that the best 100 come from several clusters."""
    centres = torch.randn(rows // 20, SUBSPACE, generator=generator)
    centres = centres @ torch.randn(SUBSPACE, dimension, generator=generator) / SUBSPACE**0.5
    chosen = torch.randint(len(centres), (rows,), generator=generator)
    return normalize(centres[chosen] + NOISE * torch.randn(rows, dimension, generator=generator))


def measured(index: Index, queries: Tensor, exact: Index) -> dict[str, float]:
    index.search(queries, WIDTH)  # once to warm up
    start = time.perf_counter()
    index.search(queries, WIDTH)
    batched = time.perf_counter() - start
    alone = []
    for row in range(ALONE):
        start = time.perf_counter()
        index.search(queries[row : row + 1], WIDTH)
        alone.append(time.perf_counter() - start)
    return {
        "batched_ms": round(1e3 * batched / len(queries), 4),
        "alone_p50_ms": round(1e3 * float(np.median(alone)), 3),
        "recall@100": round(recall(index, exact, queries, WIDTH), 4),
    }


def main() -> None:
    for rows, dimension in SETS:
        every = clustered(rows + BATCHED, dimension, torch.Generator().manual_seed(SEED))
        vectors, queries = every[:rows], every[rows:]
        for kind in KINDS:
            start = time.perf_counter()
            index = build_index(kind, vectors, SEED)
            build = time.perf_counter() - start
            figures = {"index": kind, "rows": rows, "dimension": dimension, "build_s": round(build, 2)}
            figures |= measured(index, queries, ExactIndex(vectors)) | {"threads": torch.get_num_threads()}
            record("index_speed", figures, SEED, ("torch", "faiss-cpu"))


if __name__ == "__main__":
    main()
