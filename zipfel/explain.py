"""Why a label: what each term of a text adds to the label's score.

A term's weight is its part of the score f by integrated gradients (Sundararajan et al., 2017), from no text to this:

    weight_t = x_t ∫₀¹ ∂f / ∂x_t (a x) da,    Σ_t weight_t = f(x) − f(0)

Where points have length 1, the length that they are divided by is held at the text's. (A cosine does not change along
the way at all, while a sum divided by a number is shared out exactly.) So for a linear encoder with cosines a weight is
scale · x_t e_t · w_l / ‖Σ x_t e_t‖, and nothing is approximate. Judged in docs/guide/explain.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import singledispatch
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from zipfel.data.batches import bags
from zipfel.data.text import TextFeatures
from zipfel.models.base import Cosine, Ensemble, Learner
from zipfel.models.decaf_network import Likely
from zipfel.models.mixed import Mixed
from zipfel.models.neighbours import Vote
from zipfel.types import Bags, stored

STEPS = 16  # places on the way from nothing to the text at which gradients are taken

Judge = Callable[[Tensor], Tensor]  # vectors of points [B, D] to scores of one label [B]


class Reason(NamedTuple):
    """A term of a text, what it adds to a label's score, and the characters [start, end) at which it stands."""

    term: str
    weight: float
    places: list[tuple[int, int]]


def reasons(learner: Learner | Ensemble, features: TextFeatures, text: str, label: int) -> list[Reason]:
    """Return what each known term of a text adds to a label's score, the largest part first."""
    row, places = features.transform([text]), features.places(text)
    found = zip(row.indices.tolist(), weights(learner, row, label).tolist(), strict=True)
    named = [Reason(features.terms[term], weight, places[term]) for term, weight in found]
    return sorted(named, key=lambda reason: (-abs(reason.weight), reason.places))


def weights(learner: Learner | Ensemble, row: csr_array, label: int) -> NDArray[np.float64]:
    """Return what each stored feature of a point [1, F] adds to a label's score, [T]; of several learners, the mean."""
    if isinstance(learner, Ensemble):
        return np.asarray(np.mean([weights(each, row, label) for each in learner.learners], axis=0))
    point, query = bags(row).to(learner.device), learner.encode(row)
    unscaled = getattr(learner.encoder, "unscaled", learner.encoder)  # some encoders divide by a length at their end
    length = unscaled(point).float().norm() / query.norm() if query.any() else 1.0
    judge = judged(learner.classifier, query, label, learner)
    nodes = np.stack(np.polynomial.legendre.leggauss(STEPS)) / 2 + [[0.5], [0]]  # of [-1, 1], moved to [0, 1]
    steps, shares = torch.from_numpy(nodes).to(point.weights)
    with torch.enable_grad():
        along = (steps[:, None] * point.weights).flatten().requires_grad_()  # [STEPS · T]
        ends = torch.arange(STEPS + 1, device=learner.device) * len(point.ids)
        vectors = unscaled(Bags(point.ids.repeat(STEPS), along, ends)).float() / length  # [STEPS, D]
        (slopes,) = torch.autograd.grad((judge(vectors) * shares).sum(), along)
    return np.asarray((slopes.view(STEPS, -1).sum(dim=0) * point.weights).double().cpu())


@singledispatch
def judged(classifier: Any, query: Tensor, label: int, learner: Learner) -> Judge:
    """Return how a classifier scores a label for points near a query [1, D], before scores are squeezed into [0, 1]."""
    return lambda vectors: vectors @ classifier.vectors[label]


@judged.register
def _(classifier: Cosine, query: Tensor, label: int, learner: Learner) -> Judge:
    return lambda vectors: classifier.raw(vectors @ classifier.vectors[label])


@judged.register
def _(classifier: Mixed, query: Tensor, label: int, learner: Learner) -> Judge:
    """Score by the log-odds of the mix of both opinions."""
    W, place, beta = classifier.W[label], classifier.vectors[label], classifier.beta
    length = query.norm().clamp_min(1e-12)

    def judge(vectors: Tensor) -> Tensor:
        opinion = torch.sigmoid((classifier.scale * (vectors @ W) + classifier.offset).double())
        nearness = torch.sigmoid((vectors @ place / length).double())
        return torch.logit(beta * opinion + (1 - beta) * nearness).float()

    return judge


@judged.register
def _(classifier: Likely, query: Tensor, label: int, learner: Learner) -> Judge:
    """Score by the log-odds of the label; the cluster that found it, of other vectors, counts as it is."""
    return lambda vectors: vectors @ classifier.vectors[label] + classifier.offset


@judged.register
def _(classifier: Vote, query: Tensor, label: int, learner: Learner) -> Judge:
    """Score by the share of the vote; a neighbour's vote is divided as its cosine is, which is a sum over terms."""
    ids, cosines = classifier.nearest(query, learner.index.search(query, classifier.width(1)))
    votes = classifier.shares(ids, cosines)[0]  # [K]
    own = torch.from_numpy(stored(classifier.memory.Y, ids[0].numpy(), np.full(len(ids[0]), label)))
    parts = torch.where(own & (votes > 0), votes / cosines[0], 0)
    direction = parts.to(query) @ classifier.memory.vectors[ids[0].clamp_min(0).to(query.device)]
    return lambda vectors: vectors @ direction
