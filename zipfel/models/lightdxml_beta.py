"""The choice of β for LightDXML and Astec, whose papers set it by hand for each data set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from zipfel import metrics
from zipfel.data.dataset import Part
from zipfel.data.disk import counts_of
from zipfel.models.base import Lesson
from zipfel.models.learner import BATCH, Learner, candidates_of, most_filtered, rank_candidates

if TYPE_CHECKING:  # which imports this module
    from zipfel.models.lightdxml import MixedClassifier

BETAS = tuple(step / 20 for step in range(21))
TOLERANCE = 0.3  # of P@1 + P@3 + P@5, in points, that may be given up for rare labels


def figures_by_beta(learner: Learner, part: Part, lesson: Lesson) -> dict[float, dict[str, float]]:
    """Return P and PSP of up to 8 batches of a part, for each β."""
    mixed = cast("MixedClassifier", learner.classifier)
    part = part.take(np.arange(min(len(part), 8 * BATCH)))
    assert part.X is not None
    queries, ids, listed = (torch.cat(parts) for parts in zip(*_candidates(learner, part.X, mixed), strict=True))
    probabilities, k = mixed.probabilities(queries, ids, listed), 5 + most_filtered(part.filtered)
    Y = lesson.train.Y
    inverse = metrics.inverse_propensities(counts_of(Y), Y.shape[0], *lesson.propensity)
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
