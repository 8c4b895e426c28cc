"""One-vs-all on shortlists, two ways: `python -m benchmarks.shortlist_speed`, a JSON line for each size.

shared: all labels of a batch in one product, and a mask (what LightDXML does).  gathered: the k vectors of each point
apart, [B, k, D]. Forward and backward of the logistic loss, to the gradients of the label rows that were touched; both
give the same loss. Shortlists are drawn by Zipf's law, as near labels are often frequent ones.
"""

from __future__ import annotations

import statistics
import time

import torch
from torch import Tensor

from benchmarks.record import record
from zipfel.models.lightdxml import listed_bags
from zipfel.negatives import holds
from zipfel.nn import losses
from zipfel.nn.encoders import Table, unique_ids
from zipfel.training.machine import keep_freed_memory

SIZES = ((4_271, 214, 1024), (21_133, 700, 1024), (131_073, 500, 512), (1_000_000, 500, 512))  # labels, k, D
BATCH, REPEATS, SEED = 256, 7, 0


def shared(table: Table, points: Tensor, near: Tensor, right: Tensor) -> Tensor:
    """Return the loss by one product with all labels of the batch."""
    listed = listed_bags(near)
    pool = unique_ids(listed.ids)[0]
    candidates, positives = holds(listed, pool), holds(listed_bags(right), pool)
    return losses.logistic(points @ table.gather(pool).T, positives.float(), candidates)


def gathered(table: Table, points: Tensor, near: Tensor, right: Tensor) -> Tensor:
    """Return the loss by the vectors of each point's own labels."""
    pool, places = unique_ids(near)
    scores = torch.bmm(table.gather(pool)[places], points[:, :, None])[:, :, 0]  # [B, k]
    return losses.logistic(scores, (near[:, :, None] == right[:, None, :]).any(dim=2).float())


def main() -> None:
    keep_freed_memory()
    for labels, k, width in SIZES:
        generator = torch.Generator().manual_seed(SEED)
        table = Table(labels, width, generator, scale=width**-0.5).train()
        points = torch.randn(BATCH, width, generator=generator) * width**-0.5
        draws = torch.rand(BATCH, labels, generator=generator).log_() * torch.arange(1, labels + 1).sqrt()
        near = draws.topk(k, dim=1).indices.sort(dim=1).values  # without repetition, frequent labels more often
        del draws
        right = near[:, ::50].contiguous()
        times: dict[str, list[float]] = {"shared": [], "gathered": []}
        found: dict[str, float] = {}
        for _ in range(REPEATS):  # in turns, so that both meet the same minute
            for way in (shared, gathered):
                start = time.perf_counter()
                loss = way(table, points, near, right)
                loss.backward()  # type: ignore[no-untyped-call]
                times[way.__name__].append(1e3 * (time.perf_counter() - start))
                table.touched.clear()
                found[way.__name__] = float(loss.detach())
        assert abs(found["shared"] - found["gathered"]) < 1e-3 * found["shared"]
        medians = {f"{name}_ms": round(statistics.median(values), 1) for name, values in times.items()}
        sizes = {"labels": labels, "k": k, "width": width, "batch": BATCH, "different": len(unique_ids(near)[0])}
        record("shortlist_speed", {**sizes, **medians}, SEED, ("torch",))


if __name__ == "__main__":
    main()
