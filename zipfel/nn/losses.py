"""Losses over labels, as pure functions of scores. Each is the mean over the points of a batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from zipfel.types import Bags

CHUNK, WIDE = 1 << 23, 1 << 28  # scores of points against labels that are held at a time, on a CPU and on a GPU
EVEN = 128  # a chunk has a multiple of so many labels: a GPU multiplies odd widths at half the speed
FAR = 55.0  # scores no further than this from 0 need no largest one: half of it below or above, exp is in range
LOWEST = -(2.0**99)  # a score of what does not count, where -∞ would leave gradients that are no numbers


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


def decoupled(scores: Tensor, targets: Tensor, mask: Tensor | None = None) -> Tensor:
    """Softmax of each right label against the wrong ones alone (Gupta et al., 2024), averaged over a point's labels.

    Mean over points of 1/|P| Σ_{l∈P} ln(1 + Σ_{j∉P} exp(s_j − s_l)).  scores, targets: [B, S].  mask: [B, S], False
    leaves a pair out.
    """
    scores, right, wrong = scores.float() if scores.dtype == torch.bfloat16 else scores, targets > 0, targets <= 0
    if mask is not None:
        right, wrong = right & mask, wrong & mask
    against = scores.masked_fill(~wrong, LOWEST).logsumexp(dim=1, keepdim=True)  # [B, 1]
    terms = F.softplus(against - scores) * right / right.sum(dim=1, keepdim=True).clamp_min(1)  # [B, S]
    return terms.sum(dim=1).mean()


def all_labels(points: Tensor, W: Tensor, offset: Tensor, positives: Bags, filtered: Bags | None = None) -> Tensor:
    """Logistic loss against all labels, one-vs-all: mean over points of Σ_l ln(1 + exp(−y_il (w_l · x_i + offset))).

    points: [B, D].  W: [L, D].  offset: one number.  positives, filtered: the labels of each point that are right, and
    those that are left out. A chunk of labels is worked at a time, gradients included: no [B, L] array is ever held.
    """
    return _AllLabels.apply(points, W, offset, positives, filtered)  # type: ignore[no-any-return, no-untyped-call]


def decoupled_all(points: Tensor, W: Tensor, positives: Bags, filtered: Bags | None = None) -> Tensor:
    """Return the loss `decoupled` of points [B, D] against all labels W [L, D], a chunk of labels at a time too."""
    return _DecoupledAll.apply(points, W, positives, filtered)  # type: ignore[no-any-return, no-untyped-call]


class _Chunk(NamedTuple):
    """Points against some labels: their scores, and which of them are right."""

    labels: slice
    scores: Tensor  # [B, S], -∞ where a pair is left out
    rows: Tensor  # [T] of right labels that are not left out
    columns: Tensor  # [T]


class _Chunks:
    """Scores of points against all labels, a chunk at a time."""

    def __init__(self, points: Tensor, W: Tensor, positives: Bags, filtered: Bags | None) -> None:
        self.points, self.W = (half(part) for part in (points, W))
        size = (WIDE if W.is_cuda else CHUNK) // max(1, len(points))
        self.size = max(1, size - size % EVEN if size > EVEN else size)
        self.starts = range(0, len(W), self.size)
        self.right = pairs_by_chunk(positives, self.starts)
        self.left_out = pairs_by_chunk(filtered, self.starts) if filtered is not None else None

    def __iter__(self) -> Iterator[_Chunk]:
        return map(self.chunk, range(len(self.starts)))

    def chunk(self, place: int, top: Tensor | None = None) -> _Chunk:
        """Work out a chunk; top [B], where it is given, is taken off the scores of each point on the way."""
        labels = slice(self.starts[place], self.starts[place] + self.size)
        W = self.W[labels].T
        scores = self.points @ W if top is None else torch.addmm(-top[:, None], self.points, W)
        rows, columns = self.right[place]
        if self.left_out is not None:
            scores[self.left_out[place]] = -torch.inf
            counts = scores[rows, columns] > -torch.inf
            rows, columns = rows[counts], columns[counts]
        return _Chunk(labels, scores, rows, columns)

    def middle(self) -> Tensor | None:
        """Return for each point what may be taken off its scores so that they can be summed as exp, [B]; else None.

        Where scores cannot be far from 0, as cosines times a scale cannot, no pass is spent on finding the largest.
        """
        most = self.points.norm(dim=1) * self.W.norm(dim=1).max() if len(self.W) else self.points.norm(dim=1)
        far = float(most.max() if len(most) else 0) > FAR
        return None if far else (most / 2).to(self.points.dtype)  # as the product will have it: the same is added back


def half(vectors: Tensor) -> Tensor:
    """Return vectors in the precision that autocast would give each product of theirs, once for all."""
    kind = vectors.device.type
    return vectors.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else vectors


class _MeanOfPoints(torch.autograd.Function):
    """A loss whose slopes are worked out with it, as sums over points: the mean is taken of both."""

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        share = gradient / ctx.points
        return *(slope * share for slope in ctx.saved_tensors), None, None


class _AllLabels(_MeanOfPoints):
    @staticmethod
    def forward(ctx: Any, points: Tensor, W: Tensor, offset: Tensor, positives: Bags, filtered: Bags | None) -> Tensor:
        chunks = _Chunks(points, W, positives, filtered)
        loss, to_offset = torch.zeros((), device=W.device), torch.zeros((), device=W.device)
        to_points, to_W = torch.zeros_like(points, dtype=torch.float32), torch.empty_like(W, dtype=torch.float32)
        for chunk in chunks:
            scores = chunk.scores.add_(offset)
            right = scores[chunk.rows, chunk.columns]
            loss += F.softplus(scores).sum(dtype=torch.float32) - right.sum(dtype=torch.float32)
            slope = scores.sigmoid_()
            slope[chunk.rows, chunk.columns] -= 1
            to_points += slope @ chunks.W[chunk.labels]
            to_W[chunk.labels] = slope.T @ chunks.points
            to_offset += slope.sum(dtype=torch.float32)
        ctx.save_for_backward(to_points, to_W, to_offset)
        ctx.points = max(1, len(points))
        mean: Tensor = loss / ctx.points
        return mean


class _DecoupledAll(_MeanOfPoints):
    """Two passes: the first finds what the wrong labels of a point weigh together, ln Σ exp s, the second the slopes.

    The slope of a wrong label is exp(s) times a number of the point, which is left to the vectors on either side; those
    of right labels are few, and are added one by one. So scores of half precision are never copied as whole ones.
    """

    @staticmethod
    def forward(ctx: Any, points: Tensor, W: Tensor, positives: Bags, filtered: Bags | None) -> Tensor:
        chunks = _Chunks(points, W, positives, filtered)
        weights = top = torch.empty(0, device=W.device)
        own, rows, labels = ([torch.empty(0, device=W.device)], *([positives.ids[:0]] for _ in range(2)))
        against, middle = torch.full((len(points),), LOWEST, device=W.device), chunks.middle()
        for place in range(len(chunks.starts)):
            chunk = chunks.chunk(place, middle)
            right = chunk.scores[chunk.rows, chunk.columns].float()
            own.append(right if middle is None else right + middle[chunk.rows].float())
            rows.append(chunk.rows)
            labels.append(chunk.columns + chunk.labels.start)
            weights, top = wrong_weights(chunk, middle)
            against = torch.logaddexp(against, top.float() + weights.sum(dim=1, dtype=torch.float32).log())
        owners, owned = torch.cat(rows), torch.cat(labels)
        share = 1 / owners.bincount(minlength=len(points)).clamp_min(1)[owners]
        behind = against[owners] - torch.cat(own)
        pull = behind.sigmoid() * share  # of each right label
        push = torch.zeros_like(against).index_add_(0, owners, pull)  # of all wrong ones of a point together
        to_points, to_W = torch.zeros_like(points, dtype=torch.float32), torch.empty_like(W, dtype=torch.float32)
        alone = len(chunks.starts) == 1  # of more than one chunk, no weights are held
        top = top if alone else against.to(weights.dtype)
        factor = (push * (top.float() - against).clamp_max(88).exp())[:, None]  # 0 where nothing is wrong
        for place in range(len(chunks.starts)):
            if not alone:
                weights, _ = wrong_weights(chunks.chunk(place, top), top)
            part = slice(chunks.starts[place], chunks.starts[place] + chunks.size)
            to_points += factor * (weights @ chunks.W[part])
            to_W[part] = weights.T @ (factor * points)
        to_points.index_add_(0, owners, -pull[:, None] * W[owned])
        to_W.index_add_(0, owned, -pull[:, None] * points[owners])
        ctx.save_for_backward(to_points, to_W)
        ctx.points = max(1, len(points))
        mean: Tensor = (F.softplus(behind) * share).sum() / ctx.points
        return mean


def wrong_weights(chunk: _Chunk, top: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return exp(s − top) of the wrong labels, [B, S], and 0 of others, in the place of the scores; and top, [B].

    top: what was taken off the scores; else it is the largest of each point.
    """
    scores = chunk.scores
    scores[chunk.rows, chunk.columns] = -torch.inf
    if top is None:
        top = scores.amax(dim=1).clamp_min(LOWEST)
        scores.sub_(top[:, None])
    return scores.exp_(), top


def pairs_by_chunk(bags: Bags, starts: range) -> list[tuple[Tensor, Tensor]]:
    """Return for each chunk of labels the places of bags and the labels they hold in it, counted from its start."""
    owners = torch.arange(len(bags), device=bags.ids.device).repeat_interleave(bags.offsets.diff())
    labels, order = bags.ids.sort(stable=True)
    edges = torch.tensor([*starts, starts.stop], device=labels.device)
    ends = torch.searchsorted(labels, edges).tolist()
    spans = zip(starts, ends, ends[1:], strict=False)
    return [(owners[order[low:high]], labels[low:high] - start) for start, low, high in spans]
