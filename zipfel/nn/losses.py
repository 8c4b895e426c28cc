"""Losses over labels, as pure functions of scores. Each is the mean over the points of a batch."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from zipfel.types import Bags

CHUNK, WIDE = 1 << 23, 1 << 28  # scores of points against labels that are held at a time, on a CPU and on a GPU


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


def all_labels(points: Tensor, W: Tensor, offset: Tensor, positives: Bags, filtered: Bags | None = None) -> Tensor:
    """Logistic loss against all labels, one-vs-all: mean over points of Σ_l ln(1 + exp(−y_il (w_l · x_i + offset))).

    points: [B, D].  W: [L, D].  offset: one number.  positives, filtered: the labels of each point that are right, and
    those that are left out. A chunk of labels is worked at a time, gradients included: no [B, L] array is ever held.
    """
    return _AllLabels.apply(points, W, offset, positives, filtered)  # type: ignore[no-any-return, no-untyped-call]


class _AllLabels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, points: Tensor, W: Tensor, offset: Tensor, positives: Bags, filtered: Bags | None) -> Tensor:
        size = max(1, (WIDE if W.is_cuda else CHUNK) // max(1, len(points)))
        starts = range(0, len(W), size)
        right = pairs_by_chunk(positives, starts)
        left_out = pairs_by_chunk(filtered, starts) if filtered is not None else None
        loss, to_offset = torch.zeros((), device=W.device), torch.zeros((), device=W.device)
        to_points, to_W = torch.zeros_like(points, dtype=torch.float32), torch.empty_like(W, dtype=torch.float32)
        for place, start in enumerate(starts):
            chunk = W[start : start + size]
            scores = torch.addmm(offset, points, chunk.T)  # [B, S]
            rows, labels = right[place]
            if left_out is not None:
                scores[left_out[place]] = -torch.inf  # where σ is 0, and so is the loss
                counts = scores[rows, labels] > -torch.inf
                rows, labels = rows[counts], labels[counts]
            loss += F.softplus(scores).sum(dtype=torch.float32) - scores[rows, labels].sum(dtype=torch.float32)
            slope = scores.sigmoid_()
            slope[rows, labels] -= 1
            to_points += slope @ chunk
            to_W[start : start + size] = slope.T @ points
            to_offset += slope.sum(dtype=torch.float32)
        ctx.save_for_backward(to_points, to_W, to_offset)
        ctx.points = max(1, len(points))
        mean: Tensor = loss / ctx.points
        return mean

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        share = gradient / ctx.points
        return *(slope * share for slope in ctx.saved_tensors), None, None


def pairs_by_chunk(bags: Bags, starts: range) -> list[tuple[Tensor, Tensor]]:
    """Return for each chunk of labels the places of bags and the labels they hold in it, counted from its start."""
    owners = torch.arange(len(bags), device=bags.ids.device).repeat_interleave(bags.offsets.diff())
    labels, order = bags.ids.sort(stable=True)
    edges = torch.tensor([*starts, starts.stop], device=labels.device)
    ends = torch.searchsorted(labels, edges).tolist()
    spans = zip(starts, ends, ends[1:], strict=False)
    return [(owners[order[low:high]], labels[low:high] - start) for start, low, high in spans]
