"""A training step on sparse input against its floor: `python -m benchmarks.sparse_step`, one JSON line.

A step is forward, backward and update of a table of 300,000 × 512 by 1024 bags of 50 tokens, drawn uniformly. The floor
is what the same bytes take to copy, row by row from one preallocated block to another, for the U rows that a step
touches: 5 copies (read and write) of U × 512 floats, namely the gathered rows, their gradient, and weights, first and
second moments read and written back. Steps and floors take turns, so that noise hits both alike; medians count. The
same again without `keep_freed_memory`, in a process of its own; and torch's own sparse Adam and (fused)
dense Adam, a few steps.
"""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import orjson
import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.record import record
from zipfel.nn.encoders import Table, unique_ids
from zipfel.nn.optim import Adam
from zipfel.training.machine import keep_freed_memory
from zipfel.types import Bags

SIZE, WIDTH, BAGS, TOKENS = 300_000, 512, 1024, 50
COPIES, REPEATS, SEED = 5, 31, 0


def drawn(generator: torch.Generator) -> Bags:
    """Return bags of uniformly drawn tokens, no two steps the same."""
    ids = torch.randint(SIZE, (BAGS * TOKENS,), generator=generator)
    return Bags(ids, torch.rand(len(ids), generator=generator), torch.arange(0, len(ids) + 1, TOKENS))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def ours() -> dict[str, float]:
    """Return the median seconds of our step and of the floor, and their ratio."""
    generator = torch.Generator().manual_seed(SEED)
    table = Table(SIZE, WIDTH, generator, scale=WIDTH**-0.5)
    optimiser = Adam(table, rate=1e-3)
    slope = torch.randn(BAGS, WIDTH, generator=generator)
    source, target = torch.ones(BAGS * TOKENS, WIDTH), torch.ones(BAGS * TOKENS, WIDTH)
    steps, floors = [], []
    for _ in range(REPEATS):
        bags = drawn(generator)
        rows = len(unique_ids(bags.ids)[0])
        steps.append(seconds(partial(_step, table, optimiser, bags, slope)))
        floors.append(seconds(partial(_copies, source[:rows], target[:rows])))
    step, floor = statistics.median(steps[1:]), statistics.median(floors[1:])  # the first ones warm up
    return {"step_s": round(step, 4), "floor_s": round(floor, 4), "ratio": round(step / floor, 2)}


def _step(table: Table, optimiser: Adam, bags: Bags, slope: Tensor) -> None:
    table(bags).backward(slope)
    optimiser.step(1e-3)


def _copies(source: Tensor, target: Tensor) -> None:
    for _ in range(COPIES):
        target.copy_(source)


def torchs(sparse: bool, repeats: int) -> float:
    """Return the median seconds of the same step with torch's own embedding_bag and Adam."""
    generator = torch.Generator().manual_seed(SEED)
    weight = torch.empty(SIZE, WIDTH).normal_(0, WIDTH**-0.5, generator=generator).requires_grad_()
    optimiser = torch.optim.SparseAdam([weight]) if sparse else torch.optim.Adam([weight], fused=True)
    slope = torch.randn(BAGS, WIDTH, generator=generator)

    def step(bags: Bags) -> None:
        places = bags.offsets[:-1]
        sums = F.embedding_bag(bags.ids, weight, places, mode="sum", per_sample_weights=bags.weights, sparse=sparse)
        sums.backward(slope)  # type: ignore[no-untyped-call]
        optimiser.step()  # type: ignore[no-untyped-call, unused-ignore]
        optimiser.zero_grad()

    times = [seconds(partial(step, drawn(generator))) for _ in range(repeats)]
    return round(statistics.median(times[repeats // 2 :]), 4)  # memory is taken anew for some steps


def main() -> None:
    if sys.argv[1:] == ["plain"]:
        sys.stdout.write(orjson.dumps(ours()).decode())
        return
    command = [sys.executable, "-m", "benchmarks.sparse_step", "plain"]
    plain = orjson.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    keep_freed_memory()
    figures: dict[str, object] = {**ours(), "without_keeping_freed_memory": plain, "threads": torch.get_num_threads()}
    for name, sparse in (("sparse_adam_s", True), ("dense_adam_s", False)):
        gc.collect()
        figures[name] = torchs(sparse, repeats=14)
    record("sparse_step", figures, SEED, ("torch",))


if __name__ == "__main__":
    main()
