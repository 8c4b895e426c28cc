"""Positives, negatives and shared candidates of a training step."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.types import Bags, Candidates


def sampled_positives(positives: Bags, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw one label of each point that has any; return the rows of these points, [P], and the labels, [P]."""
    counts = positives.offsets.diff()
    draws = torch.rand(len(counts), generator=generator, device=generator.device).to(counts.device)
    rows = torch.nonzero(counts)[:, 0]
    entries = positives.offsets[rows] + (draws[rows] * counts[rows]).long()
    return rows, positives.ids[entries]


def within(owners: Bags, pool: Tensor) -> Bags:
    """Return bags with ids replaced by their positions in a sorted pool [S]; ids outside the pool are dropped."""
    if not len(pool):  # of several ranks, one may hold none of a batch's candidates
        return Bags(owners.ids[:0], owners.weights[:0], torch.zeros_like(owners.offsets))
    positions = torch.searchsorted(pool, owners.ids).clamp_max(len(pool) - 1)
    kept = pool[positions] == owners.ids
    ends = F.pad(kept.cumsum(0), (1, 0))[owners.offsets]
    return Bags(positions[kept], owners.weights[kept], ends)


def holds(owners: Bags, pool: Tensor) -> Tensor:
    """Return which labels of a sorted pool [S] each bag contains, [B, S] bool."""
    inside = within(owners, pool)
    rows = torch.repeat_interleave(torch.arange(len(owners), device=pool.device), inside.offsets.diff())
    held = torch.zeros(len(owners), len(pool), dtype=torch.bool, device=pool.device)
    held[rows, inside.ids] = True
    return held


def pooled(own: Bags, listed: Bags, filtered: Bags | None, missed: bool = True) -> Candidates:
    """Return the candidates of a batch, shared by its points: all shortlisted labels, and all true labels if `missed`.

    own: true labels of each point.  listed: shortlists.  filtered: excluded labels.  missed: a point's true labels
    count even if its shortlist misses them. One matrix product then scores all shortlists:
    docs/decisions/010-shared-candidates.md.
    """
    pool = torch.unique(torch.cat([own.ids, listed.ids]) if missed else listed.ids)  # [S] sorted
    right = holds(own, pool)  # [B, S]
    mask = holds(listed, pool)
    if missed:
        mask |= right
    if filtered is not None:
        mask &= ~holds(filtered, pool)
    return Candidates(pool, right.float(), mask)


def shortlisted(part: Part, rows: NDArray[np.int64], lists: Tensor, device: torch.device) -> Candidates:
    """Return the candidates of some rows of a part: their own labels and those of their lists [B, W], -1 pads."""
    own, listed = bags(part.Y, rows).to(device), list_bags(lists.long().to(device))
    return pooled(own, listed, None if part.filtered is None else bags(part.filtered, rows).to(device))


def hardest(scores: Tensor, excluded: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Stochastic negative mining (Reddi et al., 2019): return the `count` largest of the scores [B, S] not excluded.

    Returns scores and a mask, both [B, min(count, S)]; the mask is False where a point has too few negatives.
    """
    allowed = scores.masked_fill(excluded, -torch.inf)
    values, columns = allowed.topk(min(count, scores.shape[1]), dim=1)
    mask = values > -torch.inf
    return scores.gather(1, columns), mask


def sampled_negatives(
    scores: Tensor, excluded: Tensor, count: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw `count` of the scores [B, S] not excluded, uniformly and without replacement.

    Returns scores and weights, both [B, min(count, S)]. Of N that are not excluded, n drawn ones weigh N / n each, so
    that a weighted sum over them is an unbiased estimate of the sum over all; draws beyond N weigh 0.
    """
    draws = generator
    if scores.is_cuda:  # drawn on the GPU, to avoid a transfer
        draws = torch.Generator(scores.device).manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
    keys = torch.rand(scores.shape, generator=draws, device=draws.device).masked_fill(excluded, -1)
    drawn, columns = keys.topk(min(count, scores.shape[1]), dim=1)
    mask = drawn >= 0
    present = (~excluded).sum(dim=1, keepdim=True)  # N
    return scores.gather(1, columns), mask * (present / mask.sum(dim=1, keepdim=True).clamp_min(1))


def list_bags(ids: Tensor) -> Bags:
    """Return lists of labels [B, W] (-1 pads) as bags."""
    present = ids >= 0
    ends = F.pad(present.sum(dim=1).cumsum(0), (1, 0))
    return Bags(ids[present], torch.ones(int(ends[-1]), device=ids.device), ends)
