"""Classifiers: from vectors of points to scores of labels."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zipfel.nn.encoders import Table


class Combination(nn.Module):
    """DECAF's combination block: σ(α) ⊙ a + σ(β) ⊙ b, each half of it at the start."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha, self.beta = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(self, a: Tensor | None, b: Tensor | None) -> Tensor:
        """Combine [S, D] and [S, D]; where one is missing, the other stays as it is."""
        if a is None or b is None:
            only = a if b is None else b
            assert only is not None
            return only
        return torch.addcmul(torch.sigmoid(self.beta) * b, torch.sigmoid(self.alpha), a)


class OneVsAll(nn.Module):
    """A vector w_l for each label; a point's score is w_l · x, or with `cosine` scale · cos(w_l, x) + offset.

    scale: what cosines are multiplied by at the start; None is 2.5 ln L.
    """

    def __init__(
        self, labels: int, width: int, cosine: bool, generator: torch.Generator, scale: float | None = None
    ) -> None:
        super().__init__()
        self.cosine = cosine
        self.labels = Table(labels, width, generator, scale=width**-0.5)
        start = (2.5 * math.log(max(labels, 2)) if scale is None else float(scale)) if cosine else 1.0
        self.scale = nn.Parameter(torch.tensor(start), requires_grad=cosine)
        self.offset = nn.Parameter(torch.tensor(-start / 3 if cosine else 0.0), requires_grad=cosine)
        self.stored_lengths: Tensor | None = None  # [L] of the vectors, where those are stored with length 1

    def forward(self, points: Tensor, labels: Tensor) -> Tensor:
        """Return the scores of points [B, D], which have length 1 with `cosine`, against labels [S], [B, S]."""
        return points @ self.scaled(labels).T + self.offset

    def scaled(self, labels: Tensor) -> Tensor:
        """Return vectors of labels [S] whose products with points are scores but for the offset, [S, D]."""
        W = self.labels.gather(labels)
        return self.scale * F.normalize(W, dim=1) if self.cosine else W

    def line(self) -> tuple[Tensor, Tensor]:
        """Return scale and offset of inner products with `composed` vectors."""
        return self.scale.detach(), self.offset.detach()

    def composed(self) -> Tensor:
        """Return the vectors that prediction multiplies with, [L, D]."""
        rows = self.labels.rows.detach()
        return F.normalize(rows, dim=1) if self.cosine and self.stored_lengths is None else rows

    def lengths(self) -> dict[str, Tensor]:
        """Return what `composed` leaves out, for learning on."""
        if not self.cosine:
            return {}
        known = self.stored_lengths
        return {"classifier.lengths": self.labels.rows.detach().norm(dim=1) if known is None else known}

    def unfold(self) -> None:
        """Give vectors that were stored with length 1 their own lengths back."""
        if self.stored_lengths is not None:
            rows = self.labels.rows.detach() * self.stored_lengths.to(self.labels.rows.device)[:, None]
            self.labels.rows, self.stored_lengths = nn.Parameter(rows, requires_grad=False), None

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Add labels behind those that are there, at random places."""
        self.unfold()
        rows = self.labels.rows.detach()
        more = Table(count, rows.shape[1], generator, scale=rows.shape[1] ** -0.5).rows.to(rows.device)
        self.labels.rows = nn.Parameter(torch.cat([rows, more]), requires_grad=False)
