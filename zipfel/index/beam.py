"""Shortlists: the labels of the clusters that score highest (DECAF's shortlister), or the nearest labels."""

from __future__ import annotations

import torch
from torch import Tensor

from zipfel.index import Index
from zipfel.index.exact import SPARE, ExactIndex, largest, row_products, with_ones
from zipfel.types import Shortlist


class BeamIndex:
    """Shortlists the labels of the `beam` best clusters.

    heads: [K, D], a vector for each cluster, or [K, D + 1] with a bias.  clusters: [L], the cluster of each label.
    """

    def __init__(self, heads: Tensor, clusters: Tensor, beam: int) -> None:
        self.heads, self.clusters, self.beam = heads, clusters, min(beam, len(heads))
        self.index = ExactIndex(heads)
        self.members = members_of(clusters.long(), len(heads))  # [K, M]

    def __len__(self) -> int:
        """Return the number of labels, L."""
        return len(self.clusters)

    @property
    def width(self) -> int:
        """The number of ids, padding included, that a search returns for a query: beam · M."""
        return self.beam * self.members.shape[1]

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return all labels of each query's best clusters, with their cluster's inner product; `width` is ignored."""
        opened = self.open(queries)
        ids = self.labels(opened.ids)
        scores = opened.scores.repeat_interleave(self.members.shape[1], dim=1)
        return Shortlist(ids, scores.masked_fill(ids < 0, -torch.inf))

    def open(self, queries: Tensor) -> Shortlist:
        """Return the best clusters of each query, [B, beam].

        Inner products are recomputed by `row_products`, so that they do not depend on the batch.
        """
        queries = with_ones(queries, self.heads)
        ids = self.index.search(queries, self.beam + SPARE).ids
        scores = row_products(queries, self.heads, ids)
        best = largest(scores, self.beam)
        return Shortlist(ids.gather(1, best), scores.gather(1, best))

    def labels(self, opened: Tensor) -> Tensor:
        """Return the labels of opened clusters [B, beam], [B, beam · M]; -1 pads."""
        return self.members[opened].flatten(1)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Return the best cluster of each vector [S, D], [S]."""
        opened = self.open(vectors)
        return opened.ids.gather(1, opened.scores.argmax(dim=1, keepdim=True))[:, 0]


class NearIndex:
    """Shortlists the `width` nearest labels by the labels' own vectors, in any index, behind BeamIndex's interface."""

    def __init__(self, index: Index, width: int) -> None:
        self.index, self.width = index, min(width, len(index))

    def __len__(self) -> int:
        """Return the number of labels, L."""
        return len(self.index)

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the nearest labels of each query, always as many as the index was made for."""
        return self.open(queries)

    def open(self, queries: Tensor) -> Shortlist:
        """Return the nearest labels of each query, [B, width]."""
        return self.index.search(queries, self.width)

    def labels(self, opened: Tensor) -> Tensor:
        """Return `opened` itself: it holds labels already."""
        return opened


def members_of(clusters: Tensor, count: int) -> Tensor:
    """Return the labels of each of `count` clusters, [K, M], in ascending order; -1 pads."""
    sizes = clusters.bincount(minlength=count)
    order = clusters.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    within = torch.arange(len(clusters), device=clusters.device) - starts[clusters[order]]
    members = torch.full((count, int(sizes.max()) if len(clusters) else 0), -1, device=clusters.device)
    members[clusters[order], within] = order
    return members
