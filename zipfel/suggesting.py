"""Which documents to label next: those that the model is unsure of, and that differ from each other.

Documents arrive as a stream; only the most uncertain ones are kept. Of these, one after the other is chosen: the one
with the largest uncertainty × (1 - similarity to what is chosen already). Two documents are similar if the model
predicts the same labels for them: the cosine of their predicted probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from zipfel.errors import ConfigError
from zipfel.types import Ranking

DEPTH = 10  # labels that are looked at
POOL = 20  # documents kept for each that is wanted
LEAST = 2000  # documents kept at least
EPSILON = 1e-6

Item = TypeVar("Item")


def uncertainty(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return how unsure a model is of each document, from the probabilities of its best labels [documents, k].

    It is the entropy of the labels, each of which the document has or not, for each label that it is expected to have:
    long label sets count no more than short ones.
    """
    p = np.clip(np.where(np.isfinite(scores), scores, 0).astype(np.float64), EPSILON, 1 - EPSILON)
    entropy = -(p * np.log2(p) + (1 - p) * np.log2(1 - p))
    return np.asarray(entropy.sum(axis=1) / (1 + p.sum(axis=1)))


@dataclass
class Suggester(Generic[Item]):
    """Chooses `wanted` documents of a stream, in memory that grows with `wanted` only.

    labels: of the model.  diverse: whether they should differ from each other.
    """

    wanted: int
    labels: int
    diverse: bool = True
    _items: list[Item] = field(default_factory=list)
    _doubts: list[NDArray[np.float64]] = field(default_factory=list)
    _predicted: list[csr_array] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the number of documents."""
        if self.wanted < 1:
            raise ConfigError(f"the number of documents must be at least 1; found {self.wanted}")

    def add(self, items: Sequence[Item], ranking: Ranking) -> None:
        """Look at further documents.  ranking: their best labels by probability, [documents, DEPTH]."""
        self._items += items
        self._doubts.append(uncertainty(ranking.scores))
        self._predicted.append(_unit(ranking, self.labels))
        if len(self._items) > 2 * self._most:
            self._prune()

    def chosen(self) -> list[tuple[Item, float]]:
        """Return the documents to label next, with their uncertainty, in the order in which they were chosen."""
        if not self._items:
            return []
        self._prune()
        doubts, rows = self._doubts[0], self._predicted[0]
        order = _spread(doubts, rows, self.wanted) if self.diverse else np.arange(min(self.wanted, len(doubts)))
        return [(self._items[row], float(doubts[row])) for row in order]

    @property
    def _most(self) -> int:
        return max(LEAST, POOL * self.wanted)

    def _prune(self) -> None:
        """Keep the most uncertain documents, most uncertain first; of equals, those that came first."""
        doubts = np.concatenate(self._doubts)
        kept = np.argsort(-doubts, kind="stable")[: self._most]
        self._items = [self._items[row] for row in kept]
        self._doubts = [doubts[kept]]
        self._predicted = [csr_array(vstack(self._predicted, format="csr")[kept])]


def _unit(ranking: Ranking, labels: int) -> csr_array:
    """Return the probabilities of the best labels as rows of length 1, [documents, labels]."""
    valid = (ranking.ids >= 0) & np.isfinite(ranking.scores)
    scores = np.where(valid, ranking.scores, 0).astype(np.float32)
    scores /= np.maximum(np.linalg.norm(scores, axis=1, keepdims=True), EPSILON)
    indptr = np.concatenate(([0], np.cumsum(valid.sum(axis=1))))
    return csr_array((scores[valid], ranking.ids[valid], indptr), shape=(len(scores), labels))


def _spread(doubts: NDArray[np.float64], rows: csr_array, wanted: int) -> list[int]:
    """Return rows chosen one after the other by uncertainty × distance to the nearest chosen one."""
    near = np.zeros(len(doubts))
    open_rows, order = np.ones(len(doubts), dtype=bool), list[int]()
    for _ in range(min(wanted, len(doubts))):
        values = np.where(open_rows, doubts * (1 - near), -1.0)
        best = int(np.argmax(values))
        order.append(best)
        open_rows[best] = False
        similar = (rows @ rows[[best]].T).toarray().ravel()
        np.maximum(near, np.minimum(similar, 1), out=near)
    return order
