"""Losses over labels, as pure functions of scores. Each is the mean over the points of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from zipfel.types import Bags

CHUNK, WIDE = 1 << 23, 1 << 28  # scores held at a time, on a CPU and on a GPU
EVEN = 128  # labels in a chunk are a multiple of this: a GPU multiplies odd widths at half the speed
FAR = 55.0  # if |scores| are bounded by this, exp(score − bound / 2) stays in range, and no maximum is needed
LOWEST = -(2.0**99)  # the score of excluded labels, since −∞ would make gradients NaN

Reduction = Literal["max", "mean", "sum"]


def margin(positive: Tensor, negatives: Tensor, c: float, weights: Tensor | None = None) -> Tensor:
    """Margin loss, GLaS Eq. (1), with one sampled positive y and negatives y': mean of Σ_y' w_y' [h_y' − h_y + c]₊.

    positive: [B] scores h_y.  negatives: [B, S] scores h_y'.  weights: [B, S], 0 or False excludes a pair; the weights
    of a sample of the negatives make its sum an estimate of that over all. Without weights, w = 1.
    """
    hinge = (negatives - positive[:, None] + c).clamp_min(0)  # [B, S]
    if weights is not None:
        hinge = hinge * weights
    return hinge.sum(dim=1).mean()


def softmax(positive: Tensor, negatives: Tensor, weights: Tensor | None = None) -> Tensor:
    """Softmax cross-entropy of a sampled positive y against negatives y': mean of −h_y + ln(e^h_y + Σ_y' w_y' e^h_y').

    positive: [B].  negatives: [B, S].  weights: [B, S], as in `margin`.
    """
    if weights is not None:
        negatives = negatives + weights.log()
    scores = torch.cat([positive[:, None], negatives], dim=1)  # [B, 1 + S]
    return (scores.logsumexp(dim=1) - positive).mean()


def logistic(scores: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Logistic loss, one-vs-all: mean over points of Σ_l −y_l ln σ(s_l) − (1 − y_l) ln(1 − σ(s_l)).

    scores, targets: [B, S].  mask: [B, S], False excludes a pair.
    """
    terms = F.softplus(scores) - targets * scores  # [B, S]
    if mask is not None:
        terms = terms * mask
    return terms.sum(dim=1).mean()


def matching(
    positive: Tensor, negatives: Tensor, m: float, mask: Tensor | None = None, reduction: Reduction = "max"
) -> Tensor:
    """Noise contrastive loss, MNN Eq. (9)-(11): mean of ¼ (1 − c)² + max_j [c_j > m] c_j².

    positive: [B] cosines c with the point's own labels.  negatives: [B, h] cosines c_j with the labels of other points.
    mask: [B, h], False excludes a pair.  reduction: mean or sum over j instead of the maximum, which Sec. 3.3 advises
    against.
    """
    penalties = torch.where(negatives > m, negatives.square(), 0.0)  # [B, h]
    if mask is not None:
        penalties = penalties * mask
    return ((1 - positive).square() / 4 + reduced(penalties, mask, reduction)).mean()


def reduced(penalties: Tensor, mask: Tensor | None, reduction: Reduction) -> Tensor:
    """Return one penalty for each point, [B], of those of its negatives [B, h]; 0 without negatives.

    penalties: 0 where the mask [B, h] is False; such pairs do not count in a mean.
    """
    if reduction == "max" and penalties.shape[1]:
        return penalties.amax(dim=1)
    total = penalties.sum(dim=1)  # 0 without negatives
    if reduction != "mean":
        return total
    counts = torch.full_like(total, penalties.shape[1]) if mask is None else mask.sum(dim=1)
    return total / counts.clamp_min(1)


def smooth_l1(a: Tensor, b: Tensor) -> Tensor:
    """Smooth-ℓ1 distance, DXML Eq. (1)-(3): mean over points of Σ_j h(a_j, b_j) over dimensions j.

    h(a, b) = ½ (a − b)² where |a − b| ≤ 1, else |a − b| − ½.  a, b: [B, D].
    """
    return F.smooth_l1_loss(a, b, reduction="none").sum(dim=1).mean()


def log_distance(points: Tensor, labels: Tensor, offsets: Tensor, rows: Tensor) -> Tensor:
    """Distance of points to their labels, LightDXML Eq. (2): mean over points of Σ_j ln(1 + ‖x_i − ẑ_j‖²).

    points: [B, D].  labels: [U, D].  offsets [B + 1], rows [T]: the labels of point i are
    `labels[rows[offsets[i]:offsets[i + 1]]]`.
    """
    owners = torch.arange(len(points), device=points.device).repeat_interleave(offsets.diff())  # [T]
    own = labels.index_select(0, rows)  # its gradient is added in order; that of `labels[rows]` in any, on two threads
    squares = (points[owners] - own).square().sum(dim=1)  # [T]
    return squares.log1p().sum() / len(points)


def decoupled(scores: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Decoupled softmax (Gupta et al., 2024): each true label against the negatives only, averaged over true labels.

    Mean over points of 1/|P| Σ_{l∈P} ln(1 + Σ_{j∉P} exp(s_j − s_l)).  scores, targets: [B, S].  mask: [B, S], False
    excludes a pair.
    """
    scores, right, wrong = scores.float() if scores.dtype == torch.bfloat16 else scores, targets > 0, targets <= 0
    if mask is not None:
        right, wrong = right & mask, wrong & mask
    total = scores.masked_fill(~wrong, LOWEST).logsumexp(dim=1, keepdim=True)  # [B, 1], ln Σ exp over negatives
    terms = F.softplus(total - scores) * right / right.sum(dim=1, keepdim=True).clamp_min(1)  # [B, S]
    return terms.sum(dim=1).mean()


def all_labels(points: Tensor, W: Tensor, offset: Tensor, positives: Bags, filtered: Bags | None = None) -> Tensor:
    """Logistic loss over all labels, one-vs-all: mean over points of Σ_l ln(1 + exp(−y_il (w_l · x_i + offset))).

    points: [B, D].  W: [L, D].  offset: one number.  positives, filtered: the true and the excluded labels of each
    point. Loss and gradients are computed a chunk of labels at a time: no [B, L] array is ever held.
    """
    return _AllLabels.apply(points, W, offset, positives, filtered)  # type: ignore[no-any-return, no-untyped-call]


class Elsewhere(Protocol):
    """Adds what other processes know of the labels that they hold; `Alone`, if there are none."""

    def log_sum(self, values: Tensor) -> Tensor:
        """Return ln Σ exp of each process's values, [B]."""
        ...

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of each process's values, [B]."""
        ...


class Alone:
    """All labels are here."""

    def log_sum(self, values: Tensor) -> Tensor:
        """Return the values."""
        return values

    def sum(self, values: Tensor) -> Tensor:
        """Return the values."""
        return values


def decoupled_all(
    points: Tensor, W: Tensor, positives: Bags, filtered: Bags | None = None, elsewhere: Elsewhere | None = None
) -> Tensor:
    """Return the `decoupled` loss of points [B, D] over all labels W [L, D], also a chunk of labels at a time.

    elsewhere: where W are the labels of one of several processes, adds up the sums over labels of all of them. The
    result is then this process's part of the loss, that of its true labels; the sum of the parts is the loss.
    """
    others = elsewhere or Alone()
    return _DecoupledAll.apply(points, W, positives, filtered, others)  # type: ignore[no-any-return, no-untyped-call]


class _Chunk(NamedTuple):
    """Scores of the points for a chunk of labels, and the true labels among them."""

    labels: slice
    scores: Tensor  # [B, S], −∞ for excluded pairs
    rows: Tensor  # [T], points of the true pairs that are not excluded
    columns: Tensor  # [T], their labels, counted from the start of the chunk


class _Chunks:
    """Scores of points for all labels, a chunk of labels at a time."""

    def __init__(self, points: Tensor, W: Tensor, positives: Bags, filtered: Bags | None) -> None:
        self.points, self.W = (half(part) for part in (points, W))
        size = (WIDE if W.is_cuda else CHUNK) // max(1, len(points))
        self.size = max(1, size - size % EVEN if size > EVEN else size)
        self.starts = range(0, len(W), self.size)
        self.right = pairs_by_chunk(positives, self.starts)
        self.excluded = pairs_by_chunk(filtered, self.starts) if filtered is not None else None

    def __iter__(self) -> Iterator[_Chunk]:
        return map(self.chunk, range(len(self.starts)))

    def chunk(self, number: int, top: Tensor | None = None) -> _Chunk:
        """Compute a chunk; `top` [B], if given, is subtracted from the scores of each point."""
        labels = slice(self.starts[number], self.starts[number] + self.size)
        W = self.W[labels].T
        scores = self.points @ W if top is None else torch.addmm(-top[:, None], self.points, W)
        rows, columns = self.right[number]
        if self.excluded is not None:
            scores[self.excluded[number]] = -torch.inf
            counts = scores[rows, columns] > -torch.inf
            rows, columns = rows[counts], columns[counts]
        return _Chunk(labels, scores, rows, columns)

    def middle(self) -> Tensor | None:
        """Return a number for each point, [B], such that exp(score − number) can be summed; None if there is none.

        If scores have a small bound, as cosines times a scale do, no pass over them is needed to find the largest.
        """
        bounds = self.points.norm(dim=1) * self.W.norm(dim=1).max() if len(self.W) else self.points.norm(dim=1)
        far = float(bounds.max() if len(bounds) else 0) > FAR
        return None if far else (bounds / 2).to(self.points.dtype)  # rounded, as it is subtracted and added back


def half(vectors: Tensor) -> Tensor:
    """Convert vectors once to the precision that autocast would convert them to in each product."""
    kind = vectors.device.type
    return vectors.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else vectors


def summing(kind: torch.dtype) -> torch.dtype:
    """Return the type in which sums over labels are kept: float32, or float64 for points in float64."""
    return torch.float64 if kind == torch.float64 else torch.float32


class _MeanOfPoints(torch.autograd.Function):
    """A loss whose forward pass computes its gradients too, as sums over points; the mean is taken of both."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        scale = gradient / ctx.points
        slopes = [slope * scale for slope in ctx.saved_tensors]
        return *slopes, *(None for _ in range(len(ctx.needs_input_grad) - len(slopes)))


class _AllLabels(_MeanOfPoints):
    @staticmethod
    def forward(ctx: Any, points: Tensor, W: Tensor, offset: Tensor, positives: Bags, filtered: Bags | None) -> Tensor:
        chunks = _Chunks(points, W, positives, filtered)
        kind = summing(points.dtype)
        loss, to_offset = (torch.zeros((), dtype=kind, device=W.device) for _ in range(2))
        to_points, to_W = torch.zeros_like(points, dtype=kind), torch.empty_like(W, dtype=kind)
        for chunk in chunks:
            scores = chunk.scores.add_(offset)
            right = scores[chunk.rows, chunk.columns]
            loss += F.softplus(scores).sum(dtype=kind) - right.sum(dtype=kind)
            slope = scores.sigmoid_()
            slope[chunk.rows, chunk.columns] -= 1
            to_points += slope @ chunks.W[chunk.labels]
            to_W[chunk.labels] = slope.T @ chunks.points
            to_offset += slope.sum(dtype=kind)
        ctx.save_for_backward(to_points, to_W, to_offset)
        ctx.points = max(1, len(points))
        mean: Tensor = loss / ctx.points
        return mean


class _DecoupledAll(_MeanOfPoints):
    """Two passes: the first computes ln Σ exp s over each point's negatives, the second the gradients.

    The gradient at the score of a negative is exp(s) times a factor of the point, which is applied to the vectors on
    either side instead; true labels are few, and are added one by one. So half-precision scores are never copied to
    float32.
    """

    @staticmethod
    def forward(
        ctx: Any, points: Tensor, W: Tensor, positives: Bags, filtered: Bags | None, elsewhere: Elsewhere
    ) -> Tensor:
        kind = summing(points.dtype)
        chunks = _Chunks(points, W, positives, filtered)
        weights = top = torch.empty(0, device=W.device)
        own, rows, labels = ([torch.empty(0, dtype=kind, device=W.device)], *([positives.ids[:0]] for _ in range(2)))
        total, middle = torch.full((len(points),), LOWEST, dtype=kind, device=W.device), chunks.middle()
        for number in range(len(chunks.starts)):
            chunk = chunks.chunk(number, middle)
            right = chunk.scores[chunk.rows, chunk.columns].to(kind)
            own.append(right if middle is None else right + middle[chunk.rows].to(kind))
            rows.append(chunk.rows)
            labels.append(chunk.columns + chunk.labels.start)
            weights, top = wrong_weights(chunk, middle)
            total = torch.logaddexp(total, top.to(kind) + weights.sum(dim=1, dtype=kind).log())
        total = elsewhere.log_sum(total)
        owners, owned = torch.cat(rows), torch.cat(labels)
        share = (1 / elsewhere.sum(owners.bincount(minlength=len(points))).clamp_min(1)[owners]).to(kind)
        behind = total[owners] - torch.cat(own)
        pull = behind.sigmoid() * share  # of each true label
        push = elsewhere.sum(torch.zeros_like(total).index_add_(0, owners, pull))  # of all negatives of a point
        to_points, to_W = torch.zeros_like(points, dtype=kind), torch.empty_like(W, dtype=kind)
        alone = len(chunks.starts) == 1  # weights of a single chunk are still held; those of more are recomputed
        top = top if alone else total.to(weights.dtype)
        factor = (push * (top.to(kind) - total).clamp_max(88).exp())[:, None]  # 0 without negatives
        for number in range(len(chunks.starts)):
            if not alone:
                weights, _ = wrong_weights(chunks.chunk(number, top), top)
            part = slice(chunks.starts[number], chunks.starts[number] + chunks.size)
            to_points += factor * (weights @ chunks.W[part])
            to_W[part] = weights.T @ (factor * points)
        to_points.index_add_(0, owners, -pull[:, None] * W[owned])
        to_W.index_add_(0, owned, -pull[:, None] * points[owners])
        ctx.save_for_backward(to_points, to_W)
        ctx.points = max(1, len(points))
        mean: Tensor = (F.softplus(behind) * share).sum() / ctx.points
        return mean


def wrong_weights(chunk: _Chunk, top: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Turn a chunk's scores, in place, into exp(s − top) for negatives and 0 for others, [B, S]; also return top, [B].

    top: already subtracted from the scores; by default, the largest score of each point is subtracted here.
    """
    scores = chunk.scores
    scores[chunk.rows, chunk.columns] = -torch.inf
    if top is None:
        top = scores.amax(dim=1).clamp_min(LOWEST)
        scores.sub_(top[:, None])
    return scores.exp_(), top


def pairs_by_chunk(bags: Bags, starts: range) -> list[tuple[Tensor, Tensor]]:
    """Return for each chunk of labels its (bag, label) pairs: numbers of bags [T] and labels from its start [T]."""
    owners = torch.arange(len(bags), device=bags.ids.device).repeat_interleave(bags.offsets.diff())
    labels, order = bags.ids.sort(stable=True)
    edges = torch.tensor([*starts, starts.stop], device=labels.device)
    ends = torch.searchsorted(labels, edges).tolist()
    spans = zip(starts, ends, ends[1:], strict=False)
    return [(owners[order[low:high]], labels[low:high] - start) for start, low, high in spans]
