"""LightDXML's prediction, Sec. IV-F: a mix of what the classifier and the shortlist say, and how β is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from zipfel import metrics
from zipfel.data.dataset import Part
from zipfel.index.exact import row_products
from zipfel.models.base import (
    BATCH,
    Learner,
    Lesson,
    known,
    listed,
    most_filtered,
    with_others,
)
from zipfel.types import Ranking, Shortlist

BETAS = tuple(step / 20 for step in range(21))
TOLERANCE = 0.3  # of P@1 + P@3 + P@5, in points, that rare labels are worth


@dataclass(frozen=True)
class Mixed:
    """Scores the labels of a shortlist by β σ(classifier) + (1 − β) σ(cosine). Others follow, the frequent first."""

    vectors: Tensor  # ŷ [L, D]
    W: Tensor  # [L, D]
    scale: Tensor
    offset: Tensor
    counts: Tensor  # [L]
    beta: float
    shortlist: int

    def width(self, k: int) -> int:
        """Return how many labels must be found, whatever k: a longer ranking begins with a shorter one."""
        return self.shortlist

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank the labels of shortlists."""
        ids = known(queries, shortlist)
        return with_others(ids, self.mixed(*self.opinions(queries, ids)), self.counts, k)

    @torch.no_grad()
    def opinions(self, queries: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return what classifier and shortlist say of each candidate, as probabilities, both [B, W].

        In float64: in float32 the last bit of a sigmoid depends on its place in the batch.
        """
        labels = ids.clamp_min(0)
        logits = self.scale * row_products(queries, self.W, labels) + self.offset
        cosines = row_products(F.normalize(queries, dim=1), self.vectors, labels)
        return torch.sigmoid(logits.double()), torch.sigmoid(cosines.double())

    def mixed(self, classifier: Tensor, shortlist: Tensor) -> Tensor:
        """Return the scores of candidates."""
        return listed(self.beta * classifier + (1 - self.beta) * shortlist)


def curve(learner: Learner, part: Part, lesson: Lesson) -> dict[float, dict[str, float]]:
    """Return P and PSP of a part for each β; where it is large, of some of its points."""
    mixed, part = learner.classifier, part.take(np.arange(min(len(part), 8 * BATCH)))
    assert isinstance(mixed, Mixed)
    assert part.X is not None
    queries = torch.cat([learner.encode(part.X[start : start + BATCH]) for start in range(0, len(part), BATCH)])
    ids = known(queries, learner.index.search(queries, mixed.shortlist))
    opinions, k = mixed.opinions(queries, ids), 5 + most_filtered(part.filtered)
    Y = lesson.train.Y
    inverse = metrics.inverse_propensities(np.bincount(Y.indices, minlength=Y.shape[1]), Y.shape[0], *lesson.propensity)
    found = {}
    for beta in BETAS:
        other = replace(mixed, beta=beta)
        ranking = with_others(ids, other.mixed(*opinions), mixed.counts, k)
        ranking = ranking if part.filtered is None else ranking.without(part.filtered)
        found[beta] = metrics.measure(ranking.top(5), part.Y, inverse)
    return found


def chosen_beta(found: Mapping[float, Mapping[str, float]]) -> float:
    """Return the β that is best on rare labels (PSP) among those that are as good as any on all (P)."""

    def total(beta: float, name: str) -> float:
        return sum(found[beta][f"{name}@{k}"] for k in (1, 3, 5))

    best = max(total(beta, "P") for beta in found)
    return max((beta for beta in found if total(beta, "P") >= best - TOLERANCE), key=lambda beta: total(beta, "PSP"))
