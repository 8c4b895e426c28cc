"""Labels in the leaves of a binary tree, found by a beam search down to them (Parabel, Prabhu et al. 2018)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from zipfel.index.beam import BeamIndex, members_of
from zipfel.index.exact import largest, row_products
from zipfel.types import Shortlist


class TreeIndex(BeamIndex):
    """Finds labels by their leaves [L]; of each level the `beam` nodes that are likeliest on the whole go on.

    heads: [2K − 2, D + 1] of a tree with K leaves, a power of two: w and b of all nodes but the root, level by level.
    The children of node i are 2i + 2 and 2i + 3, and a point goes from a node to its child with σ(w · x + b).
    """

    def __init__(self, heads: Tensor, clusters: Tensor, beam: int) -> None:
        self.leaves = len(heads) // 2 + 1
        self.heads, self.clusters, self.beam = heads, clusters, min(beam, self.leaves)
        self.members = members_of(clusters.long(), self.leaves)  # [K, M]

    def open(self, queries: Tensor) -> Shortlist:
        """Return the likeliest leaves of each query with Σ ln σ(w · x + b) from the root to them, [B, beam].

        In float64, and rounded: in float32 the last bit of a sigmoid depends on its place in the batch.
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

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Take new labels behind those that are there, each into the leaf that its vector is led to."""
        clusters = torch.cat([self.clusters, self.nearest(vectors).to(self.clusters)])
        self.__init__(self.heads, clusters, self.beam)  # type: ignore[misc]


def nodes_on_the_way(targets: Tensor) -> Tensor:
    """Tell which nodes a point comes by, [B, 2K − 2]: those whose parent holds a label of it, as `targets` tells."""
    return F.pad(targets.repeat_interleave(2, dim=1)[:, : targets.shape[1] - 2], (2, 0), value=1.0).bool()
