"""Search and scores over labels that several ranks hold, a range each. In one process nothing here is used."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from zipfel.index import Search
from zipfel.index.exact import largest, row_products
from zipfel.training.ranks import World
from zipfel.types import Share, Shortlist


class SplitIndex:
    """Searches the labels of this rank, and merges what all ranks find: exact, if their own search is."""

    def __init__(self, index: Search, vectors: Tensor, own: Share, world: World) -> None:
        self.index, self.vectors, self.own, self.world = index, vectors, own, world

    def __len__(self) -> int:
        """Return the number of labels of all ranks."""
        return self.own.total

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the `width` labels with the largest inner products for each query, by id; ties go to the lower id."""
        found = self.index.search(queries, min(width, self.own.size))
        scores = found.scores if found.steady else row_products(queries, self.vectors, found.ids.clamp_min(0))
        ids = torch.where(found.ids < 0, -1, found.ids + self.own.start)
        scores = scores.masked_fill(found.ids < 0, -torch.inf)
        most = min(width, -(-self.own.total // self.world.size))  # of the largest share
        ids, scores = (
            F.pad(part, (0, most - part.shape[1]), value=fill) for part, fill in ((ids, -1), (scores, -torch.inf))
        )
        ids, scores = self.world.columns(ids), self.world.columns(scores)
        best = largest(scores, min(width, self.own.total))
        return Shortlist(ids.gather(1, best), scores.gather(1, best), steady=True)


def own_ids(ids: Tensor, own: Share | None) -> Tensor:
    """Return lists of labels [B, W] as this rank numbers its own; those of other ranks are replaced by -1."""
    if own is None:
        return ids
    return torch.where((ids >= own.start) & (ids < own.stop), ids - own.start, -1)


def split_products(queries: Tensor, vectors: Tensor, ids: Tensor, own: Share, world: World) -> Tensor:
    """Return the inner products of queries with the labels [B, W] of all ranks, of which each has vectors [own, D]."""
    mine = own_ids(ids, own)
    products = row_products(queries, vectors, mine.clamp_min(0))
    return world.sum(products.masked_fill(mine < 0, 0), "shortlists")


def collected_rows(matrix: csr_array, own: Share, world: World) -> csr_array:
    """Return the rows of all ranks' matrices [own, F] on the first rank, [total, F]; elsewhere the rank's own."""
    sizes = torch.from_numpy(np.diff(matrix.indptr).astype(np.int64))
    lengths = world.collected(sizes, own).numpy()
    counts = torch.zeros(world.size, dtype=torch.int64)
    counts[world.rank] = matrix.nnz
    ends = world.sum(counts).cumsum(0).tolist()
    entries = Share(ends[world.rank] - matrix.nnz, ends[world.rank], ends[-1])
    indices, data = (world.collected(torch.from_numpy(part), entries).numpy() for part in (matrix.indices, matrix.data))
    if not world.is_first:
        return matrix
    return csr_array((data, indices, np.concatenate([[0], np.cumsum(lengths)])), shape=(own.total, matrix.shape[1]))
