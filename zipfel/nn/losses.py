"""Losses over labels, as pure functions of scores. Each is the mean over the points of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def margin(positive: Tensor, negatives: Tensor, c: float, mask: Tensor | None = None) -> Tensor:
    """Margin loss, GLaS Eq. (1), with one sampled positive y and negatives y': mean of Σ_y' [h_y' − h_y + c]₊.

    positive: [B] scores h_y.  negatives: [B, S] scores h_y'.  mask: [B, S], False leaves a pair out.
    """
    hinge = (negatives - positive[:, None] + c).clamp_min(0)  # [B, S]
    if mask is not None:
        hinge = hinge * mask
    return hinge.sum(dim=1).mean()


def softmax(positive: Tensor, negatives: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax cross-entropy of a sampled positive against negatives: mean of −h_y + ln Σ exp h over both.

    positive: [B].  negatives: [B, S].  mask: [B, S], False leaves a pair out.
    """
    if mask is not None:
        negatives = negatives.masked_fill(~mask, -torch.inf)
    scores = torch.cat([positive[:, None], negatives], dim=1)  # [B, 1 + S]
    return (scores.logsumexp(dim=1) - positive).mean()


def logistic(scores: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logistic loss, one-vs-all: mean over points of Σ_l −y_l ln σ(s_l) − (1 − y_l) ln(1 − σ(s_l)).

    scores, targets: [B, S].  mask: [B, S], False leaves a pair out.
    """
    terms = F.softplus(scores) - targets * scores  # [B, S]
    if mask is not None:
        terms = terms * mask
    return terms.sum(dim=1).mean()
