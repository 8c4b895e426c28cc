"""The labels that a step is trained against."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zipfel.types import Bags, Candidates


def sampled_positives(positives: Bags, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw one label of each point that has any: the places of those points, [P], and their labels, [P]."""
    counts = positives.offsets.diff()
    draws = torch.rand(len(counts), generator=generator, device=generator.device).to(counts.device)
    rows = torch.nonzero(counts)[:, 0]
    places = positives.offsets[rows] + (draws[rows] * counts[rows]).long()
    return rows, positives.ids[places]


def within(owners: Bags, pool: Tensor) -> Bags:
    """Return the ids of bags as places in a sorted pool [S]; those that are not in it are left out."""
    places = torch.searchsorted(pool, owners.ids).clamp_max(len(pool) - 1)
    found = pool[places] == owners.ids
    ends = F.pad(found.cumsum(0), (1, 0))[owners.offsets]
    return Bags(places[found], owners.weights[found], ends)


def holds(owners: Bags, pool: Tensor) -> Tensor:
    """Tell which labels of a sorted pool [S] each bag holds, [B, S]."""
    inside = within(owners, pool)
    rows = torch.repeat_interleave(torch.arange(len(owners), device=pool.device), inside.offsets.diff())
    held = torch.zeros(len(owners), len(pool), dtype=torch.bool, device=pool.device)
    held[rows, inside.ids] = True
    return held


def pooled(own: Bags, listed: Bags, filtered: Bags | None, missed: bool = True) -> Candidates:
    """Return the labels that are listed or right for any point of a batch, and which of them count for which point.

    own: the labels that are right.  listed: the shortlists.  missed: labels that are right count even off the list.
    One matrix product then does the work of all lists: docs/decisions/010-shared-candidates.md.
    """
    pool = torch.unique(torch.cat([own.ids, listed.ids]) if missed else listed.ids)  # [S] sorted
    right = holds(own, pool)  # [B, S]
    mask = holds(listed, pool)
    if missed:
        mask |= right
    if filtered is not None:
        mask &= ~holds(filtered, pool)
    return Candidates(pool, right.float(), mask)


def hardest(scores: Tensor, left_out: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Stochastic negative mining (Reddi et al., 2019): the `count` largest scores [B, S] that are not left out.

    Returns the scores and a mask, both [B, count], or [B, S] where that is less; the mask is False where a point has
    too few negatives.
    """
    allowed = scores.masked_fill(left_out, -torch.inf)
    values, places = allowed.topk(min(count, scores.shape[1]), dim=1)
    mask = values > -torch.inf
    return scores.gather(1, places), mask
