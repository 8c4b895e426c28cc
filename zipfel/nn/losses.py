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


def matching(positive: Tensor, negatives: Tensor, m: float, mask: Tensor | None = None) -> Tensor:
    """Noise contrastive loss, MNN Eq. (9)-(11): mean of ¼ (1 − c)² + max_j [c_j > m] c_j².

    positive: [B] cosines c with the point's own labels.  negatives: [B, h] cosines c_j with the labels of other points.
    mask: [B, h], False leaves a pair out.
    """
    against = torch.where(negatives > m, negatives.square(), 0.0)  # [B, h]
    if mask is not None:
        against = against * mask
    hardest = against.amax(dim=1) if against.shape[1] else torch.zeros_like(positive)
    return ((1 - positive).square() / 4 + hardest).mean()


def smooth_l1(found: Tensor, wanted: Tensor) -> Tensor:
    """Smooth-ℓ1 distance, DXML Eq. (1)-(3): mean over points of Σ_j h(a_j, b_j), summed over dimensions.

    h(a, b) = ½ (a − b)² where |a − b| ≤ 1, else |a − b| − ½.  found, wanted: [B, D].
    """
    return F.smooth_l1_loss(found, wanted, reduction="none").sum(dim=1).mean()


def log_distance(points: Tensor, labels: Tensor, offsets: Tensor, places: Tensor) -> Tensor:
    """Distance of points to their labels, LightDXML Eq. (2): mean over points of Σ_j ln(1 + ‖x_i − ẑ_j‖²).

    points: [B, D].  labels: [U, D].  offsets [B + 1], places [T]: the labels of point i are
    `labels[places[offsets[i]:offsets[i + 1]]]`.
    """
    owners = torch.arange(len(points), device=points.device).repeat_interleave(offsets.diff())  # [T]
    squares = (points[owners] - labels[places]).square().sum(dim=1)  # [T]
    return squares.log1p().sum() / len(points)
