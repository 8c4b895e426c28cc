"""Prediction of linear classifiers: all labels ranked by w · x + b, exactly."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit
from torch import Tensor

from zipfel.index.exact import SPARE
from zipfel.models import learner
from zipfel.models.learner import most_filtered
from zipfel.types import Ranking

SLOPE = 2.0  # a score is σ(SLOPE · (w · x + b)); calibration makes it a probability
CELLS = 1 << 24  # scores that prediction holds at once
PAIRED = 64  # points whose margins with given labels are computed at once


@dataclass(frozen=True)
class LinearPredictor:
    """Ranks all labels by w · x + b, exactly."""

    weights: csr_array  # [F, L]
    bias: NDArray[np.float32]  # [L]
    first: None = None  # no learner: there is neither an encoder nor an index

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k], without filtered pairs; large batches in threads."""
        wide = k + most_filtered(filtered)
        size = max(1, min(learner.BATCH, CELLS // max(len(self.bias), 1)))
        if X.shape[0] <= size:
            ranking = best_of(torch.from_numpy(self.margins(X)), wide)
        else:
            with ThreadPoolExecutor(torch.get_num_threads()) as pool:
                blocks = (X[start : start + size] for start in range(0, X.shape[0], size))
                parts = list(pool.map(lambda rows: best_of(torch.from_numpy(self.margins(rows)), wide), blocks))
            ranking = Ranking(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "scores")))
        return ranking if filtered is None else ranking.without(filtered).top(k)

    def margins(self, X: csr_array) -> NDArray[np.float32]:
        """Return w · x + b of all labels, [points, L].

        Point by point: most labels share a frequent feature with a point, so a sparse product would be full.
        """
        margins = np.empty((X.shape[0], len(self.bias)), dtype=np.float32)
        for row, (start, end) in enumerate(pairwise(X.indptr)):
            margins[row] = self.weights[X.indices[start:end]].T @ X.data[start:end]
        return np.add(margins, self.bias, out=margins)

    def margins_at(self, X: csr_array, labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """Return w · x + b of some labels of each point, [points, W], which is cheaper than those of all labels.

        labels: [points, W].  Large batches are computed in threads.
        """
        if X.shape[0] <= PAIRED:
            return self._margins_at(X, labels)
        blocks = [slice(start, start + PAIRED) for start in range(0, X.shape[0], PAIRED)]
        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            return np.concatenate(list(pool.map(lambda some: self._margins_at(X[some], labels[some]), blocks)))

    def _margins_at(self, X: csr_array, labels: NDArray[np.int64]) -> NDArray[np.float32]:
        """Multiply each point with a matrix that shares the weights, and whose rows are its labels.

        Rows are given by where they start and end. Labels come in falling order, so that what lies between the end of
        one and the start of the next is empty: nothing is copied, and the product is one call.
        """
        order = np.argsort(-labels, axis=1)
        falling, starts = np.take_along_axis(labels, order, axis=1), self.by_label.indptr
        ends = np.stack([starts[falling], starts[falling + 1]], axis=2)  # [points, W, 2]
        rows = csr_array((max(2 * labels.shape[1] - 1, 0), X.shape[1]), dtype=np.float32)
        x = np.zeros(X.shape[1], dtype=np.float32)
        rows.indices, rows.data = self.by_label.indices, self.by_label.data
        products = np.empty(labels.shape, dtype=np.float32)
        for point, (start, end) in enumerate(pairwise(X.indptr)):
            features, rows.indptr = X.indices[start:end], ends[point].ravel()
            x[features] = X.data[start:end]
            products[point, order[point]] = (rows @ x)[::2]
            x[features] = 0
        return np.asarray(products + self.bias[labels], dtype=np.float32)

    @cached_property
    def by_label(self) -> csr_array:
        """The weights by label, [L, F]."""
        return csr_array(self.weights.T.tocsr())

    def recall(self, X: csr_array, k: int) -> None:
        """Return None: the search is exact."""

    def explained(self, row: csr_array, label: int) -> NDArray[np.float64]:
        """Return what each stored feature of a point [1, F] adds to w · x, [T]."""
        own = self.weights[row.indices][:, [label]].toarray()[:, 0]
        return np.asarray(row.data * own, dtype=np.float64)

    def cosines(self, label: int) -> Tensor:
        """Return the cosine of a label's weights with those of each label, [L]."""
        lengths = np.sqrt(np.asarray(self.by_label.multiply(self.by_label).sum(axis=1)).ravel())
        products = (self.by_label @ self.by_label[[label]].T).toarray()[:, 0]
        return torch.from_numpy(products / np.maximum(lengths * lengths[label], 1e-12))


def best_of(margins: Tensor, k: int) -> Ranking:
    """Rank the best k labels by their margins [B, L]; ties go to the lower id."""
    count = min(k + SPARE, margins.shape[1])
    top = margins.topk(count, dim=1)
    last = top.values[:, min(k, count) - 1]
    tied = ((top.values[:, -1] == last) & (count < margins.shape[1])).nonzero()[:, 0]
    for row in tied:  # which of the equal labels are listed would be left to chance
        above = int((top.values[row] > last[row]).sum())
        top.indices[row, above:] = (margins[row] == last[row]).nonzero()[: count - above, 0]
    ids, scores = top.indices.numpy(), expit(SLOPE * top.values.double().numpy()).astype(np.float32)
    best = np.lexsort((ids, -scores))[:, :k]
    ranking = Ranking.empty(len(ids), k)
    ranking.ids[:, :count] = np.take_along_axis(ids, best, axis=1)
    ranking.scores[:, :count] = np.take_along_axis(scores, best, axis=1)
    return ranking
