"""Classifiers: from vectors of points to scores of labels, and DECAF's combination of label vectors."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipfel.nn.encoders import EmbeddingTable
from zipfel.types import Share

EXTRA = 8  # columns that biases take: a GPU multiplies odd widths at half the speed


class Combination(nn.Module):
    """DECAF's combination block: σ(α) ⊙ a + σ(β) ⊙ b; both weights start at ½."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, a: Tensor | None, b: Tensor | None) -> Tensor:
        """Combine a and b, [S, D] each, to [S, D]; if one is None, return the other unchanged."""
        if a is None or b is None:
            only = a if b is None else b
            assert only is not None
            return only
        return torch.addcmul(torch.sigmoid(self.beta) * b, torch.sigmoid(self.alpha), a)


class OneVsAll(nn.Module):
    """A vector w_l for each label; a point's score is w_l · x, or with `cosine` scale · cos(w_l, x) + offset.

    scale: the initial scale of cosines; None means 2.5 ln L.  biases: add a number b_l of each label to its scores.
    own: the labels whose vectors it holds, as in `EmbeddingTable`.
    """

    def __init__(
        self, labels: int, width: int, cosine: bool, generator: torch.Generator, scale: float | None = None,
        biases: bool = False, own: Share | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.cosine = cosine
        self.labels = EmbeddingTable(labels, width, generator, std=width**-0.5, own=own)
        self.biases = EmbeddingTable(labels, 1, generator, std=0.0, own=own) if biases else None
        start = (2.5 * math.log(max(labels, 2)) if scale is None else float(scale)) if cosine else 1.0
        self.scale = nn.Parameter(torch.tensor(start), requires_grad=cosine)
        self.offset = nn.Parameter(torch.tensor(-start / 3 if cosine else 0.0), requires_grad=cosine)
        self.stored_lengths: Tensor | None = None  # [L] norms of the vectors, if these are stored as unit vectors

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        """Return the scores of points [B, D] for labels [S], [B, S]; with `cosine`, points must be unit vectors."""
        return self.widened(points) @ self.scaled(labels).T + self.offset

    def scaled(self, labels: Tensor | None = None) -> Tensor:
        """Return the vectors of labels [S], or of all, whose products with points are scores without the offset.

        [S, D]; with biases, [S, D + EXTRA], for `widened` points.
        """
        W = self.labels.gather(labels)
        W = self.scale * F.normalize(W, dim=1) if self.cosine else W
        return W if self.biases is None else F.pad(torch.cat([W, self.biases.gather(labels)], dim=1), (0, EXTRA - 1))

    def widened(self, points: Tensor) -> Tensor:
        """Return points [B, D] as `scaled` needs them: with biases, each has a 1 that they are multiplied with."""
        return points if self.biases is None else F.pad(F.pad(points, (0, 1), value=1.0), (0, EXTRA - 1))

    def scale_and_offset(self) -> tuple[Tensor, Tensor]:
        """Return the scale and offset that turn inner products with `composed` vectors into scores.

        With biases, each label has an offset of its own, [L].
        """
        offset = self.offset.detach()
        return self.scale.detach(), offset if self.biases is None else offset + self.biases.rows.detach()[:, 0]

    def composed(self) -> Tensor:
        """Return the label vectors that prediction multiplies with, [L, D]; with `cosine`, unit vectors."""
        rows = self.labels.rows.detach()
        return F.normalize(rows, dim=1) if self.cosine and self.stored_lengths is None else rows

    def lengths(self) -> dict[str, Tensor]:
        """Return the norms that `composed` drops, which further training needs; without `cosine`, nothing."""
        if not self.cosine:
            return {}
        lengths = self.stored_lengths
        return {"classifier.lengths": self.labels.rows.detach().norm(dim=1) if lengths is None else lengths}

    def restore_lengths(self) -> None:
        """Restore the norms of vectors that were stored as unit vectors."""
        if self.stored_lengths is not None:
            rows = self.labels.rows.detach() * self.stored_lengths.to(self.labels.rows.device)[:, None]
            self.labels.rows, self.stored_lengths = nn.Parameter(rows, requires_grad=False), None

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Append `count` labels with random vectors."""
        self.restore_lengths()
        self.labels.grow(count, generator, std=self.labels.rows.shape[1] ** -0.5)
        if self.biases is not None:
            self.biases.grow(count, generator, std=0.0)
