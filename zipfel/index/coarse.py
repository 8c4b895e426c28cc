"""A first look at vectors in whole numbers of 8 bits, which for one query costs a tenth of the exact products.

What it says of a vector is off by no more than is known, so it tells for sure which vectors can be among the best.
"""

from __future__ import annotations

import torch
from torch import Tensor

STEPS = 127  # that a number can be long, on either side of 0
CHUNK = 1 << 16  # vectors that are shortened at a time


class Coarse:
    """Vectors [L, D] in 8 bits."""

    def __init__(self, vectors: Tensor) -> None:
        parts = [_shortened(part) for part in vectors.split(CHUNK)]  # type: ignore[no-untyped-call]
        self.rows, self.steps, self.lost = (torch.cat(column) for column in zip(*parts, strict=True))
        self.lengths = vectors.norm(dim=1)  # [L]
        self.columns = self.rows.T  # [D, L], as a product wants them

    def candidates(self, query: Tensor, width: int) -> Tensor:
        """Return the ids of all vectors that can be among the `width` best for a query [1, D], in ascending order."""
        short, step, lost = _shortened(query)
        about = torch._int_mm(short, self.columns)[0] * (self.steps * step)  # [L]
        off = lost * self.lengths + step * short.float().norm() * self.lost  # by Cauchy and Schwarz
        off = off + 1e-5 * self.lengths * query.norm()  # what float32 may lose
        least = (about - off).topk(min(width, len(about))).values[-1]
        return torch.nonzero(about + off >= least)[:, 0]

    def is_sound(self) -> bool:
        """Tell whether such numbers are multiplied right here: without an overflow, and in this width and number."""
        short = torch.where(torch.arange(self.rows.shape[1]) % 3 == 0, -STEPS, STEPS).to(torch.int8)[None]
        largest = torch.cat([short, -short, self.rows[:62]])
        pairs = [(largest, torch._int_mm(short, largest.T)), (self.rows, torch._int_mm(short, self.columns))]
        return all(torch.equal(found[:, :64].long(), short.long() @ rows[:64].T.long()) for rows, found in pairs)


def _shortened(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors [L, D] in 8 bits, how long a step of each is, [L], and the length of what is lost, [L]."""
    steps = vectors.abs().amax(dim=1).clamp_min(1e-30) / STEPS
    short = (vectors / steps[:, None]).round()
    lost = (vectors - short * steps[:, None]).norm(dim=1)
    return short.to(torch.int8), steps, lost
