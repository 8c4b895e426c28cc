"""Exact maximum inner product search over all vectors, a chunk at a time, so that memory stays flat."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from zipfel.index.coarse import MORE, Coarse, Half, half_is_faster
from zipfel.types import Shortlist

CHUNK, WIDE = 1 << 24, 1 << 30  # scores held at a time, on a CPU and on a GPU
SLACK = 16  # columns beyond `width`; most ties at the last rank end within them
BLOCK = 512  # vectors multiplied at a time
GROUP = 64  # adjacent scores that a GPU first reduces to their maximum
GATHERED = 1 << 26  # numbers gathered at a time on a GPU
SPARE = 8  # candidates beyond k: inner products that differ may tie as scores, and ties go to the lower id

MANY, PATIENCE = 1 << 21, 2  # a coarse pass pays from MANY numbers on, and after PATIENCE single queries
SHORTENED = Lock()
Best = Callable[[Tensor, int], Tensor]  # same contract as `largest`
Multiplied = Callable[[Tensor, Tensor], Tensor]  # queries [B, D] and vectors [L, D] to inner products [B, L]


class ExactIndex:
    """Scores all vectors [L, D]; a vector's id is its row."""

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors
        self.asked = 0  # searches for a single query so far; -1: the coarse pass is unsound here
        self.coarse: Coarse | None = None
        self.half: Half | None = None

    def __len__(self) -> int:
        """Return the number of rows, L."""
        return len(self.vectors)

    def __getstate__(self) -> dict[str, object]:
        """Return the vectors only: coarse copies are rebuilt when they pay."""
        return {"vectors": self.vectors, "asked": 0, "coarse": None, "half": None}

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Append vectors; their ids continue from L."""
        self.vectors = torch.cat([self.vectors, vectors.to(self.vectors)])
        self.asked, self.coarse, self.half = 0, None, None

    def state(self) -> dict[str, Tensor]:
        """Return an empty state: there is nothing besides the vectors."""
        return {}

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the `width` vectors with the largest inner products for each query, by id; ties go to the lower id."""
        if queries.is_cuda:
            return self._search_on_gpu(queries, width)
        if len(queries) == 1 and self._has_coarse():
            return self._search_alone(queries, width)
        if len(queries) >= BLOCK // 4 and self._has_half(width):
            return self._search_in_half(queries, width)
        return self._search(queries, width, CHUNK, products, largest)

    def _has_coarse(self) -> bool:
        """Whether there is a coarse pass for single queries; it is built after PATIENCE of them."""
        if self.vectors.numel() < MANY or self.asked < 0:
            return False
        self.asked += 1
        if self.coarse is None and self.asked > PATIENCE:
            coarse = Coarse(self.vectors)
            self.coarse, self.asked = (coarse, self.asked) if coarse.is_sound() else (None, -1)
        return self.coarse is not None

    def _search_alone(self, query: Tensor, width: int) -> Shortlist:
        assert self.coarse is not None
        ids = self.coarse.candidates(query, width)
        scores = row_products(query, self.vectors, torch.from_numpy(ids)[None])[0].numpy()
        best = largest_alone(scores, width)
        return Shortlist(torch.from_numpy(ids[best])[None], torch.from_numpy(scores[best])[None], steady=True)

    def _has_half(self, width: int) -> bool:
        """Whether there is a coarse pass for many queries; it is built when it pays."""
        if self.vectors.numel() < MANY or len(self.vectors) < 8 * (width + MORE) or not half_is_faster():
            return False
        if self.half is None:
            self.half = Half(self.vectors)
        return True

    def _search_in_half(self, queries: Tensor, width: int) -> Shortlist:
        """Find extra candidates in bfloat16 and keep the best in float32; rerun the few queries that stay unsure."""
        assert self.half is not None
        ids, sure = self.half.candidates(queries, width)
        scores = row_products(queries, self.vectors, ids)
        best = largest(scores, width)
        ids, scores = ids.gather(1, best), scores.gather(1, best)
        if not sure.all():
            rerun = self._search(queries[~sure], width, CHUNK, products, largest).ids
            ids[~sure], scores[~sure] = rerun, row_products(queries[~sure], self.vectors, rerun)
        return Shortlist(ids, scores, steady=True)

    def _search_on_gpu(self, queries: Tensor, width: int) -> Shortlist:
        """Find extra candidates in TF32, whose products are 6 × as fast, and keep the best in float32."""
        ids = self._search(queries, width + SLACK, WIDE, short_products, largest_of_groups).ids
        scores = row_products(queries, self.vectors, ids)
        best = largest(scores, width)
        return Shortlist(ids.gather(1, best), scores.gather(1, best), steady=True)

    def _search(self, queries: Tensor, width: int, room: int, multiplied: Multiplied, best: Best) -> Shortlist:
        points, width = len(queries), min(width, len(self.vectors))
        ids = torch.empty(points, 0, dtype=torch.long, device=queries.device)  # the best so far
        values = torch.empty(points, 0, device=queries.device)
        step = max(width, room // max(points, 1))
        for start in range(0, len(self.vectors), step):
            scores = multiplied(queries, self.vectors[start : start + step])  # [B, chunk]
            columns = best(scores, width)
            ids = torch.cat([ids, columns + start], dim=1)
            values = torch.cat([values, scores.gather(1, columns)], dim=1)
            kept = largest(values, width)
            ids, values = ids.gather(1, kept), values.gather(1, kept)
        return Shortlist(ids, values)


def products(queries: Tensor, vectors: Tensor) -> Tensor:
    """Return all inner products, [B, L], in float32.

    On a CPU, many queries are multiplied with a block of vectors at a time: a product of 1024 × 1024 by 4271 took 72 ms
    as a whole and 46 ms in blocks, which are closer to square (two cores, MKL).
    """
    if queries.is_cuda or len(queries) < BLOCK // 4:
        return (queries @ vectors.T).float()
    scores = torch.empty(len(queries), len(vectors))
    for start in range(0, len(vectors), BLOCK):
        torch.mm(queries, vectors[start : start + BLOCK].T, out=scores[:, start : start + BLOCK])
    return scores


def with_ones(queries: Tensor, vectors: Tensor) -> Tensor:
    """Return queries [B, D], followed by a 1 each where vectors [L, D + 1] end in a bias.

    >>> with_ones(torch.zeros(1, 2), torch.zeros(5, 3)), with_ones(torch.zeros(1, 2), torch.zeros(5, 2))
    (tensor([[0., 0., 1.]]), tensor([[0., 0.]]))
    """
    return F.pad(queries, (0, 1), value=1.0) if queries.shape[1] < vectors.shape[1] else queries


def short_products(queries: Tensor, vectors: Tensor) -> Tensor:
    """Return all inner products, [B, L], computed by a GPU in TF32."""
    with SHORTENED:  # all threads share the switch
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return (queries @ vectors.T).float()
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


def row_products(queries: Tensor, vectors: Tensor, ids: Tensor) -> Tensor:
    """Return the inner products of each query with the vectors of its own ids [B, W], [B, W]; independent of the batch.

    On a CPU, a sampled product computes these entries only: nothing is gathered, which is 5 × as fast, and each entry
    is one sum in one order. On a GPU, a chunk is gathered at a time.
    """
    if queries.is_cuda:
        step = max(1, GATHERED // max(1, ids.shape[1] * vectors.shape[1]))
        starts = range(0, len(ids), step)
        parts = [(vectors[ids[s : s + step]] * queries[s : s + step, None]).sum(dim=2) for s in starts]
        return torch.cat(parts) if parts else queries.new_empty(ids.shape)
    if not ids.numel():
        return queries.new_empty(ids.shape)
    if ids.shape[1] > len(vectors):  # ids repeat or are padding: a sparse row has no room for more entries than columns
        return torch.cat(
            [row_products(queries, vectors, part) for part in torch.split(ids, len(vectors), dim=1)], dim=1
        )
    _hear_no_warning()
    pointers = torch.arange(0, ids.numel() + 1, ids.shape[1])
    pattern = torch.sparse_csr_tensor(pointers, ids.flatten(), torch.zeros(ids.numel()), (len(ids), len(vectors)))
    sampled: Tensor = torch.sparse.sampled_addmm(pattern, queries, vectors.T, beta=0).values()
    return sampled.view(ids.shape)


def all_products(queries: Tensor, vectors: Tensor) -> Tensor:
    """Return the inner products of each query with each of a few vectors, [B, n]; independent of the batch."""
    return row_products(queries, vectors, torch.arange(len(vectors), device=queries.device).repeat(len(queries), 1))


@cache
def _hear_no_warning() -> None:
    """Trigger and suppress torch's warning that sparse CSR is in beta, which it gives once per process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.sparse_csr_tensor(torch.tensor([0, 0]), torch.tensor([], dtype=torch.long), torch.tensor([]), (1, 1))


def largest(scores: Tensor, width: int) -> Tensor:
    """Return the columns of the `width` largest scores of each row, in ascending order; ties go to the lower column."""
    if scores.shape[1] <= width:
        return torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1)
    top = scores.topk(min(width + SLACK, scores.shape[1]), dim=1)
    columns = top.indices[:, :width].sort(dim=1).values
    last = top.values[:, width - 1, None]
    tied = (last == top.values[:, width, None])[:, 0]  # topk took any of the columns that tie at the last rank
    if tied.any():
        within = tied & ((last > top.values[:, -1:])[:, 0] | (top.values.shape[1] == scores.shape[1]))
        columns[within] = _first_of_tied(top.indices[within], top.values[within], width)
        beyond = tied & ~within
        columns[beyond] = _lowest_of_tied(scores[beyond], last[beyond], width)
    return columns


def largest_alone(scores: NDArray[np.float32], width: int) -> NDArray[np.int64]:
    """Return the positions of the `width` largest of some scores [n], in ascending order; ties go to the lower one."""
    if len(scores) <= width:
        return np.arange(len(scores))
    last = np.partition(scores, -width)[-width]
    kept = scores > last
    kept[np.flatnonzero(scores == last)[: width - np.count_nonzero(kept)]] = True
    return np.flatnonzero(kept)


def largest_of_groups(scores: Tensor, width: int) -> Tensor:
    """Return the same as `largest`, faster on a GPU: the best scores lie in the groups with the largest maxima."""
    groups = scores.shape[1] // GROUP
    if groups < 4 * width:
        return largest(scores, width)
    tops = scores[:, : groups * GROUP].view(len(scores), groups, GROUP).amax(dim=2)  # [B, groups]
    inside = torch.arange(GROUP, device=scores.device)
    columns = (GROUP * largest(tops, width)[:, :, None] + inside).flatten(1)
    rest = torch.arange(groups * GROUP, scores.shape[1], device=scores.device).expand(len(scores), -1)
    columns = torch.cat([columns, rest], dim=1)
    return columns.gather(1, largest(scores.gather(1, columns), width))


def _first_of_tied(columns: Tensor, values: Tensor, width: int) -> Tensor:
    """Return the `width` columns [B, W] with the best values [B, W], ties to the lower; all tied columns are given."""
    ascending = columns.sort(dim=1)
    best = values.gather(1, ascending.indices).sort(dim=1, descending=True, stable=True).indices[:, :width]
    return ascending.values.gather(1, best).sort(dim=1).values


def _lowest_of_tied(scores: Tensor, last: Tensor, width: int) -> Tensor:
    """Return the columns above the last kept score [B, 1], then the lowest of those equal to it, `width` in all."""
    above, equal = scores > last, scores == last
    room = width - above.sum(dim=1, keepdim=True)
    return (above | (equal & (equal.cumsum(dim=1) <= room))).nonzero()[:, 1].view(-1, width)
