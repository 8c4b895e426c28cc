"""Prediction of LightDXML (Sec. IV-F) and Astec: a mix of the scores of classifier and shortlist, the choice of β."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from zipfel import metrics
from zipfel.data.dataset import Part
from zipfel.index import Search
from zipfel.index.exact import row_products
from zipfel.models.base import Lesson
from zipfel.models.learner import (
    BATCH,
    Learner,
    Scorer,
    candidate_scores,
    candidates_of,
    most_filtered,
    rank_candidates,
)
from zipfel.types import Ranking, Shortlist

BETAS = tuple(step / 20 for step in range(21))
TOLERANCE = 0.3  # of P@1 + P@3 + P@5, in points, that may be given up for rare labels


@dataclass(frozen=True)
class MixedClassifier:
    """Scores the labels of a shortlist by β σ(classifier) + (1 − β) σ(cosine). Others follow, frequent ones first."""

    vectors: Tensor  # ŷ [L, D]
    W: Tensor  # [L, D]
    scale: Tensor
    offset: Tensor  # one number, or one of each label, [L]
    counts: Tensor  # [L]
    beta: float
    shortlist_size: int
    searched_apart: bool = False  # the index is searched with other vectors: its own scores take the place of cosines
    point_labels: None = None

    def width(self, k: int) -> int:
        """Return the size of the shortlist, whatever k: a longer ranking begins with a shorter one."""
        return self.shortlist_size

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank the labels of shortlists."""
        ids = candidates_of(queries, shortlist)
        return rank_candidates(ids, self.mixed(*self.probabilities(queries, ids, shortlist.scores)), self.counts, k)

    def scorer(self, label: int, query: Tensor, index: Search) -> Scorer:
        """Return the log-odds of the label's mixed score; of its classifier's, if the index is searched apart."""
        W, vector, length = self.W[label], self.vectors[label], query.norm().clamp_min(1e-12)
        offset = self.offset[label] if self.offset.ndim else self.offset
        if self.searched_apart:
            return lambda vectors: self.scale * (vectors @ W) + offset

        def score(vectors: Tensor) -> Tensor:
            classifier = torch.sigmoid((self.scale * (vectors @ W) + offset).double())
            shortlist = torch.sigmoid((vectors @ vector / length).double())
            return torch.logit(self.beta * classifier + (1 - self.beta) * shortlist).float()

        return score

    @torch.no_grad()
    def probabilities(self, queries: Tensor, ids: Tensor, listed: Tensor) -> tuple[Tensor, Tensor]:
        """Return the probabilities of candidates by the classifier and by the shortlist, both [B, W].

        listed: the scores of the index, [B, W].  In float64: in float32 the last bit of a sigmoid depends on its
        position in the batch.
        """
        labels = ids.clamp_min(0)
        offset = self.offset[labels] if self.offset.ndim else self.offset
        logits = self.scale * row_products(queries, self.W, labels) + offset
        apart = self.searched_apart
        cosines = listed if apart else row_products(F.normalize(queries, dim=1), self.vectors, labels)
        return torch.sigmoid(logits.double()), torch.sigmoid(cosines.double())

    def mixed(self, classifier: Tensor, shortlist: Tensor) -> Tensor:
        """Return the scores of candidates."""
        return candidate_scores(self.beta * classifier + (1 - self.beta) * shortlist)


def figures_by_beta(learner: Learner, part: Part, lesson: Lesson) -> dict[float, dict[str, float]]:
    """Return P and PSP of up to 8 batches of a part, for each β."""
    mixed, part = learner.classifier, part.take(np.arange(min(len(part), 8 * BATCH)))
    assert isinstance(mixed, MixedClassifier)
    assert part.X is not None
    queries, ids, listed = (torch.cat(parts) for parts in zip(*_candidates(learner, part.X, mixed), strict=True))
    probabilities, k = mixed.probabilities(queries, ids, listed), 5 + most_filtered(part.filtered)
    Y = lesson.train.Y
    inverse = metrics.inverse_propensities(np.bincount(Y.indices, minlength=Y.shape[1]), Y.shape[0], *lesson.propensity)
    figures = {}
    for beta in BETAS:
        other = replace(mixed, beta=beta)
        ranking = rank_candidates(ids, other.mixed(*probabilities), mixed.counts, k)
        ranking = ranking if part.filtered is None else ranking.without(part.filtered)
        figures[beta] = metrics.measure(ranking.top(5), part.Y, inverse)
    return figures


def _candidates(learner: Learner, X: csr_array, mixed: MixedClassifier) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield vectors, candidates and the index's scores of points in batches: [B, D], [B, W], [B, W]."""
    for start in range(0, X.shape[0], BATCH):
        rows = X[start : start + BATCH]
        queries = learner.encode(rows)
        shortlist = learner.index.search(learner.keys(rows, queries), mixed.shortlist_size)
        yield queries, candidates_of(queries, shortlist), shortlist.scores


def chosen_beta(figures: Mapping[float, Mapping[str, float]]) -> float:
    """Return the β that is best on rare labels (PSP) among those within TOLERANCE of the best on all (P)."""

    def total(beta: float, name: str) -> float:
        return sum(figures[beta][f"{name}@{k}"] for k in (1, 3, 5))

    best = max(total(beta, "P") for beta in figures)
    return max((beta for beta in figures if total(beta, "P") >= best - TOLERANCE), key=lambda beta: total(beta, "PSP"))
