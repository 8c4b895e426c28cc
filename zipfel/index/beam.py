"""A point's candidates: the labels of the clusters that score highest (DECAF's shortlister), or the nearest labels."""

from __future__ import annotations

import torch
from torch import Tensor

from zipfel.index import Index
from zipfel.index.exact import SPARE, ExactIndex, largest, row_products
from zipfel.types import Shortlist


class BeamIndex:
    """Finds labels by their clusters [L], each of which has a vector, [K, D]; the best `beam` clusters are opened."""

    def __init__(self, heads: Tensor, clusters: Tensor, beam: int) -> None:
        self.heads, self.clusters, self.beam = heads, clusters, min(beam, len(heads))
        self.index = ExactIndex(heads)
        self.members = members_of(clusters.long(), len(heads))  # [K, M]

    def __len__(self) -> int:
        """Return the number of labels, L."""
        return len(self.clusters)

    @property
    def width(self) -> int:
        """How many labels a search may find."""
        return self.beam * self.members.shape[1]

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the labels of each query's best clusters, whatever the width, with the clusters' inner products."""
        found = self.open(queries)
        ids = self.labels(found.ids)
        scores = found.scores.repeat_interleave(self.members.shape[1], dim=1)
        return Shortlist(ids, scores.masked_fill(ids < 0, -torch.inf))

    def open(self, queries: Tensor) -> Shortlist:
        """Return the best clusters of each query, [B, beam]; products are taken anew: the batch must change nothing."""
        ids = self.index.search(queries, self.beam + SPARE).ids
        scores = row_products(queries, self.heads, ids)
        best = largest(scores, self.beam)
        return Shortlist(ids.gather(1, best), scores.gather(1, best))

    def labels(self, opened: Tensor) -> Tensor:
        """Return the labels of the clusters [B, beam] that were opened, [B, beam · M]; -1 is none."""
        return self.members[opened].flatten(1)

    def nearest(self, vectors: Tensor) -> Tensor:
        """Return the cluster that scores best for each of vectors [S, D], [S]."""
        found = self.open(vectors)
        return found.ids.gather(1, found.scores.argmax(dim=1, keepdim=True))[:, 0]

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Take new labels behind those that are there, each into the cluster whose vector is nearest to its own."""
        nearest = torch.nn.functional.normalize(vectors, dim=1) @ torch.nn.functional.normalize(self.heads, dim=1).T
        clusters = torch.cat([self.clusters, nearest.argmax(dim=1).to(self.clusters)])
        self.__init__(self.heads, clusters, self.beam)  # type: ignore[misc]

    def state(self) -> dict[str, Tensor]:
        """Return all of it."""
        return {"heads": self.heads, "clusters": self.clusters, "beam": torch.tensor(self.beam)}


class NearIndex:
    """Finds labels by vectors of their own, in any index, and always so many of them, as clusters are."""

    def __init__(self, index: Index, width: int) -> None:
        self.index, self.width = index, min(width, len(index))

    def __len__(self) -> int:
        """Return the number of labels, L."""
        return len(self.index)

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the nearest labels of each query, whatever the width."""
        return self.open(queries)

    def open(self, queries: Tensor) -> Shortlist:
        """Return the nearest labels of each query, [B, width]."""
        return self.index.search(queries, self.width)

    def labels(self, opened: Tensor) -> Tensor:
        """Return what was opened, for these are labels already."""
        return opened

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Take new labels behind those that are there."""
        self.index.add(vectors, deterministic)

    def state(self) -> dict[str, Tensor]:
        """Return what the index has besides the vectors."""
        return self.index.state()


def members_of(clusters: Tensor, count: int) -> Tensor:
    """Return the labels of each of `count` clusters, [K, M], in ascending order; -1 pads."""
    sizes = clusters.bincount(minlength=count)
    order = clusters.argsort(stable=True)
    starts = sizes.cumsum(0) - sizes
    within = torch.arange(len(clusters), device=clusters.device) - starts[clusters[order]]
    members = torch.full((count, int(sizes.max()) if len(clusters) else 0), -1, device=clusters.device)
    members[clusters[order], within] = order
    return members
