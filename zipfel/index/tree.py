"""Beam search in a binary tree whose leaves hold the labels (Parabel, Prabhu et al. 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zipfel.index.beam import BeamIndex, members_of
from zipfel.index.exact import largest, row_products
from zipfel.types import Shortlist


class TreeIndex(BeamIndex):
    """Shortlists the labels of the `beam` likeliest leaves; at each level, the `beam` likeliest nodes are kept.

    heads: [2K − 2, D + 1] for K leaves, a power of two: w and b of all nodes but the root, level by level.
    clusters: [L], the leaf of each label.  The children of node i are 2i + 2 and 2i + 3; a point moves from a node to
    a child with probability σ(w · x + b), where w and b are the child's.
    """

    def __init__(self, heads: Tensor, clusters: Tensor, beam: int) -> None:
        self.leaves = len(heads) // 2 + 1
        self.heads, self.clusters, self.beam = heads, clusters, min(beam, self.leaves)
        self.members = members_of(clusters.long(), self.leaves)  # [K, M]

    def open(self, queries: Tensor) -> Shortlist:
        """Return the likeliest leaves of each query, [B, beam], with Σ ln σ(w · x + b) over the path from the root.

        Computed in float64 and rounded: in float32 the last bit of a sigmoid depends on its position in the batch.
        """
        points = F.pad(queries, (0, 1), value=1.0)  # [B, D + 1], for b
        ids = torch.full((len(queries), 1), -1, device=queries.device)  # the root, whose children are 0 and 1
        scores = torch.zeros(len(queries), 1, device=queries.device)
        for _ in range(self.leaves.bit_length() - 1):
            children = torch.stack((2 * ids + 2, 2 * ids + 3), dim=2).flatten(1)
            steps = F.logsigmoid(row_products(points, self.heads, children).double())
            sums = (scores.double().repeat_interleave(2, dim=1) + steps).float()
            best = largest(sums, self.beam)
            ids, scores = children.gather(1, best), sums.gather(1, best)
        return Shortlist(ids - (self.leaves - 2), scores)


def nodes_on_the_way(targets: Tensor) -> Tensor:
    """Return which nodes a point visits, [B, 2K − 2] bool: those whose parent holds one of its labels.

    targets: [B, 2K − 2], 1 where a node holds a label of the point.  All points visit the two children of the root.
    """
    return F.pad(targets.repeat_interleave(2, dim=1)[:, : targets.shape[1] - 2], (2, 0), value=1.0).bool()
