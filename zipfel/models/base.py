"""What models share: a learner, which is an encoder, an index and a score; and prediction, written once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.index.exact import ExactIndex
from zipfel.types import Ranking, Shortlist

BATCH = 1024
SPARE = 8  # candidates beyond k: what differs in the index may tie as a score, and ties go to the lower id


@dataclass(frozen=True)
class Learner:
    """Encodes points, finds candidates, and gives them scores in [0, 1] that keep their order."""

    encoder: nn.Module
    index: ExactIndex
    score: Callable[[Tensor], Tensor]

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k]; filtered pairs are left out."""
        extra = 0 if filtered is None else int(np.diff(filtered.indptr).max(initial=0))
        parts = [self._rank(X[start : start + BATCH], k + extra) for start in range(0, X.shape[0], BATCH)]
        ids = np.concatenate([part.ids for part in parts]) if parts else np.empty((0, k), dtype=np.int64)
        scores = np.concatenate([part.scores for part in parts]) if parts else np.empty((0, k), dtype=np.float32)
        ranking = Ranking(ids, scores)
        return ranking.top(k) if filtered is None else ranking.without(filtered).top(k)

    @torch.no_grad()
    def _rank(self, X: csr_array, k: int) -> Ranking:
        self.encoder.eval()
        queries = self.encoder(bags(X).to(self.index.vectors.device))
        shortlist = self.index.search(queries, k + SPARE)
        return ranking_of(Shortlist(shortlist.ids, self.score(shortlist.scores)), k)


def ranking_of(shortlist: Shortlist, k: int) -> Ranking:
    """Sort candidates: best first, ties to the lower id, in float32; short rows are padded to k."""
    ids, order = shortlist.ids.cpu().sort(dim=1)
    scores = shortlist.scores.float().cpu().gather(1, order)
    best = scores.sort(dim=1, descending=True, stable=True)
    ranking = Ranking.empty(len(ids), k)
    width = min(k, ids.shape[1])
    ranking.ids[:, :width] = ids.gather(1, best.indices)[:, :width].numpy()
    ranking.scores[:, :width] = best.values[:, :width].numpy()
    ranking.scores[ranking.ids < 0] = -np.inf
    return ranking
