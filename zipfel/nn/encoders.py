"""Encoders: from bags to vectors."""

from __future__ import annotations

import math
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from zipfel.types import Bags

PIECE = 256  # entries of a bag that a GPU sums one by one
LONG, SHORT = 1 << 22, 127 * 257  # largest whole numbers of three parts and of two: 65,536 products fit into float64
WORTH = 256.0 ** np.array([[0, 1, 1, 2, 2, 3]])  # of the products of a part and another
HALVES = np.int32(0x808080)  # 128 in each of three bytes


class Table(nn.Module):
    """A row of D numbers for each of V ids; a bag is the weighted sum of its rows.

    Only the rows that a batch touches cost anything: in training each use leaves their ids and a leaf of the graph,
    on which `optim.Adam` finds their gradient. (docs/decisions/007-sparse-rows.md)
    """

    def __init__(self, size: int, width: int, generator: torch.Generator, scale: float) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.empty(size, width).normal_(0, scale, generator=generator), requires_grad=False)
        # of this step: (ids [U], leaf [U, D] with their gradient), where all rows were touched without ids
        self.touched: list[tuple[Tensor | None, Tensor]] = []

    def forward(self, bags: Bags) -> Tensor:
        """Return the weighted sums, [B, D]; an empty bag is 0."""
        if not (self.training and torch.is_grad_enabled()):
            return weighted_sum(bags.ids, self.rows, bags)
        turned = bags.turned if isinstance(bags, Reused) else Turned.of(bags)
        leaf = self.rows.new_empty(1, 1).expand(len(turned.unique), self.rows.shape[1])  # a gradient, but no memory
        self.touched.append((turned.unique, leaf.requires_grad_()))
        return _BagSum.apply(leaf, self.rows, bags, turned.by_id)  # type: ignore[no-any-return, no-untyped-call]

    def gather(self, ids: Tensor | None = None) -> Tensor:
        """Return the rows of unique ids, [U, D], in training as a leaf whose gradient the optimiser will find.

        Without ids it is all rows, and none is copied.
        """
        rows = self.rows.detach() if ids is None else self.rows.detach().index_select(0, ids)
        if self.training and torch.is_grad_enabled():
            self.touched.append((ids, rows.requires_grad_()))
        return rows


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted unique ids and the place of each id among them."""
    unique, places = torch.unique(ids, return_inverse=True)
    return unique, places


def weighted_sum(ids: Tensor, rows: Tensor, bags: Bags) -> Tensor:
    """Return Σ weight · row over each bag, [B, D]; an empty bag is 0."""
    return F.embedding_bag(
        ids, rows, bags.offsets, mode="sum", per_sample_weights=bags.weights, include_last_offset=True
    )


class Turned(NamedTuple):
    """Bags seen from their ids: which there are, and a bag for each with the places of the bags that hold it."""

    unique: Tensor  # [U] sorted
    by_id: Bags  # U bags

    @classmethod
    def of(cls, bags: Bags) -> Turned:
        """Turn bags round."""
        unique, places = unique_ids(bags.ids)
        order = places.argsort(stable=True)
        points = torch.arange(len(bags), device=order.device)
        owners = points.repeat_interleave(bags.offsets.diff(), output_size=len(order))  # [T]
        offsets = F.pad(places.bincount(minlength=len(unique)).cumsum(0), (1, 0))  # [U + 1]
        return cls(unique, Bags(owners[order], bags.weights[order], offsets))


class Reused(Bags):
    """Bags that are summed step after step, such as texts of labels: they are turned round once."""

    @classmethod
    def of(cls, bags: Bags) -> Reused:
        """Return the same bags."""
        return cls(bags.ids, bags.weights, bags.offsets)

    @cached_property
    def turned(self) -> Turned:
        """The bags seen from their ids."""
        return Turned.of(self)


class _BagSum(torch.autograd.Function):
    """The weighted sum, and its gradient as one too: the bag of a row holds the points that hold the row."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, rows: Tensor, bags: Bags, by_id: Bags) -> Tensor:
        ctx.by_id = by_id
        return weighted_sum(bags.ids, rows.detach(), bags)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        summed = sum_of_pieces if gradient.is_cuda else weighted_sum
        return summed(ctx.by_id.ids, gradient.contiguous(), ctx.by_id), None, None, None


def sum_of_pieces(ids: Tensor, rows: Tensor, bags: Bags) -> Tensor:
    """Return `weighted_sum` of bags that are not empty, in two goes: a GPU sums a bag one by one, however long."""
    pieces = (bags.offsets.diff() + PIECE - 1) // PIECE  # [B]
    ends = F.pad(pieces.cumsum(0), (1, 0))
    owners = torch.arange(len(bags), device=ids.device).repeat_interleave(pieces)  # [P]
    starts = bags.offsets[owners] + PIECE * (torch.arange(len(owners), device=ids.device) - ends[owners])
    parts = weighted_sum(ids, rows, Bags(ids, bags.weights, torch.cat([starts, bags.offsets[-1:]])))  # [P, D]
    everything = torch.arange(len(owners), device=ids.device)
    return F.embedding_bag(everything, parts, ends, mode="sum", include_last_offset=True)


def steady_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, [B, outputs]; without gradients in float64, and rounded.

    The last bits of a float32 product depend on the size of the batch, and a prediction must not.
    """
    if torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    return F.linear(x.double(), weight.double(), bias.double() if bias is not None else None).float()


class NormedLinear(nn.Module):
    """A weight-normalised layer (Salimans and Kingma, 2016), as GLaS has it: one length for all neurons.

    y = (g V / ‖V_j‖) x + b, with a trainable direction V_j for each neuron j and one trainable length g.
    """

    def __init__(self, inputs: int, outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.directions = nn.Parameter(torch.empty(outputs, inputs).normal_(0, 1, generator=generator))
        self.length = nn.Parameter(torch.tensor(math.sqrt(2.0)))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, inputs] to [B, outputs]."""
        return steady_linear(x, self.length * F.normalize(self.directions, dim=1), self.bias)


class TextBlock(nn.Module):
    """DECAF's text block: E(r) = σ(α) ⊙ r̂ + σ(β) ⊙ (R · ReLU(r̂)) of a sum of token vectors r̂ = E r.

    R starts as the identity, and is divided by its largest singular value (Miyato et al., 2018).
    """

    left: Tensor  # [D] what R's largest singular vector on the left is known to be, from step to step

    def __init__(self, width: int) -> None:
        super().__init__()
        self.R = nn.Parameter(torch.eye(width))
        self.alpha, self.beta = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("left", torch.full((width,), width**-0.5))  # any direction is as good for the identity

    def forward(self, sums: Tensor, drop: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Map r̂ [B, D] to [B, D]; with a generator, a share of what the ReLU lets through is dropped."""
        hidden = dropped(F.relu(sums), drop, generator)
        residual = steady_linear(hidden, torch.sigmoid(self.beta)[:, None] * self.spectral())
        return torch.addcmul(residual, torch.sigmoid(self.alpha), sums)

    def spectral(self) -> Tensor:
        """Return R over its largest singular value, by a step of power iteration in training."""
        with torch.no_grad():
            right = F.normalize(self.R.T @ self.left, dim=0)
            if self.training:
                self.left.copy_(F.normalize(self.R @ right, dim=0))
        return self.R / (self.left @ self.R @ right).clamp_min(1e-6)

    def reset(self) -> None:
        """Make R the identity again, as Module III does."""
        with torch.no_grad():
            nn.init.eye_(self.R)
            self.left.fill_(len(self.left) ** -0.5)


class ReadyBlock(nn.Module):
    """A text block for prediction, whose products are of whole numbers, and so exact: the batch changes nothing.

    R (but for its diagonal, which is large and kept apart) is rounded to whole numbers of 16 bits times a step for each
    row, and what it is multiplied with to 23 bits. For a single point on a CPU these are parts of 8 bits, a quarter of
    what float64 would be: most of the time that it takes is reading R.
    (docs/decisions/014-whole-numbers.md)
    """

    def __init__(self, block: TextBlock) -> None:
        super().__init__()
        with torch.no_grad():
            R = torch.sigmoid(block.beta)[:, None] * block.eval().spectral()
            self.own, self.diagonal = torch.sigmoid(block.alpha).double(), R.diagonal().double()  # [D]
            numbers, steps = whole(R - torch.diag(R.diagonal()), SHORT)
            self.steps, self.columns = steps[:, 0].double(), numbers.double().T  # [D], [D, D]
            sound = R.device.type == "cpu" and whole_products_are_sound(len(R))
            self.short = torch.from_numpy(in_parts(numbers.numpy(), 2)).T if sound else None  # [D, 2 D]

    def forward(self, sums: Tensor) -> Tensor:
        """Map r̂ [B, D] to [B, D], in float64."""
        if self.short is not None and len(sums) == 1 and not sums.requires_grad:
            return torch.from_numpy(self._alone(sums.numpy(), self.short))
        hidden = F.relu(sums.float())
        return self.own * sums.double() + self.diagonal * hidden.double() + self._product(hidden)

    def _product(self, hidden: Tensor) -> Tensor:
        """Return the product with R but for its diagonal, [B, D]."""
        if hidden.requires_grad:  # rounding has no slope, and explanations want that of what is rounded
            return (hidden.double() @ self.columns) * self.steps
        numbers, step = whole(hidden, LONG)
        return (numbers.double() @ self.columns) * (step.double() * self.steps)

    def _alone(self, sums: NDArray[np.floating], short: Tensor) -> NDArray[np.float64]:
        """Return the same for a single point, [1, D]: with so few numbers NumPy is done sooner than torch."""
        own, diagonal, steps = self.own.numpy(), self.diagonal.numpy(), self.steps.numpy()
        hidden = np.maximum(sums.astype(np.float32), 0)
        step = np.maximum(hidden.max(), np.float32(1e-30)) / np.float32(LONG)
        product = whole_product(np.rint(hidden / step), short)
        return np.asarray(own * sums + diagonal * hidden + product * (np.float64(step) * steps))


class Ready(nn.Module):
    """Points for prediction: x̂ = E(r) of their tokens, or r̂ where there is no block; with `unit`, of length 1."""

    def __init__(self, tokens: Table, block: TextBlock | None, unit: bool, relu: bool = False) -> None:
        super().__init__()
        self.tokens, self.unit, self.relu = tokens, unit, relu
        self.block = None if block is None else ReadyBlock(block)

    def train(self, mode: bool = True) -> Ready:
        """Do nothing: nothing here learns, and E, which may be learning elsewhere, is only read."""
        return self

    def forward(self, points: Bags) -> Tensor:
        """Return x̂, [B, D]."""
        found = self.unscaled(points)
        return (F.normalize(found, dim=1) if self.unit else found).float()

    def unscaled(self, points: Bags) -> Tensor:
        """Return x̂ before it is divided by its length, [B, D], in float64."""
        sums = weighted_sum(points.ids, self.tokens.rows, points).double()
        found = sums if self.block is None else self.block(sums)
        return F.relu(found) if self.relu else found


def whole(values: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return values [B, D] as whole numbers of at most `most`, and the step of each row, [B, 1]."""
    step = values.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / most
    return (values / step).round(), step


def in_parts(numbers: NDArray[np.floating], parts: int) -> NDArray[np.int8]:
    """Return whole numbers [B, D] in three parts of 8 bits, or two, below each other, [3 B, D]: a + 256 b + 256² c.

    Parts are from -128 to 127. With 128 added to each, they are the bytes of a number; and flipping the first bit of a
    byte takes 128 off again.
    """
    shifted = (numbers.astype(np.int32) + HALVES) ^ HALVES
    found = shifted.view(np.int8).reshape(*shifted.shape, 4)[..., :parts].transpose(2, 0, 1)
    return found.reshape(-1, shifted.shape[1])


def whole_product(numbers: NDArray[np.floating], columns: Tensor) -> NDArray[np.float64]:
    """Return the exact product of whole numbers [1, D] and others, whose two parts are [D, 2 C], [1, C]."""
    parts = torch.from_numpy(in_parts(numbers, 3))
    found = [torch._int_mm(parts[n : n + 1], columns).numpy() for n in range(3)]  # faster than all at a time
    return np.asarray(WORTH @ np.concatenate(found).reshape(6, -1).astype(np.float64))


@cache
def whole_products_are_sound(width: int) -> bool:
    """Tell whether torch multiplies the largest whole numbers of such rows right here: the door is a private one."""
    signs = torch.where(torch.arange(width) % 3 == 0, -1.0, 1.0).repeat(8, 1)
    signs[::2] = 1  # whose products are all of one sign
    fewer = torch.arange(8)[:, None] * (torch.arange(width) % 300)
    numbers, others = signs * (LONG - fewer), signs * (SHORT - fewer)
    exact, columns = (numbers.double() @ others.double().T).numpy(), torch.from_numpy(in_parts(others.numpy(), 2)).T
    rows = numbers.numpy()
    try:
        return all(np.array_equal(whole_product(rows[n : n + 1], columns), exact[n : n + 1]) for n in range(8))
    except (AttributeError, RuntimeError):  # where it is gone, or not made for this processor
        return False


def dropped(values: Tensor, share: float, generator: torch.Generator | None) -> Tensor:
    """Drop a share of numbers, to the nearest 256th, and scale up the others; without a generator, none.

    A random byte decides on each: a twelfth of the time that a random float takes.
    """
    edge = min(255, round(256 * share))  # all of them cannot go
    if generator is None or edge == 0:
        return values
    draws = generator
    if values.is_cuda:  # what is drawn on the CPU would have to travel
        draws = torch.Generator(values.device).manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
    words = torch.empty((values.numel() + 7) // 8, dtype=torch.int64, device=values.device)
    bits = words.random_(-(2**63), None, generator=draws).view(torch.uint8)[: values.numel()]
    return values * (bits.view(values.shape) >= edge) * (256 / (256 - edge))


def keep_features(bags: Bags, share: float, generator: torch.Generator) -> Bags:
    """Keep each entry of each bag with probability `share`, GLaS Sec. 3.3: x ← x ⊙ Bernoulli(ρ)."""
    if share >= 1:
        return bags
    kept = torch.rand(len(bags.ids), generator=generator, device=generator.device) < share
    return Bags(bags.ids, bags.weights * kept.to(bags.weights.device), bags.offsets)


def averaged(bags: Bags, share: float, generator: torch.Generator) -> Bags:
    """Return bags whose weighted sum is an average, MNN Eq. (2), (5)-(7): w_k r_k / ‖r‖₁, r_k ~ Bernoulli(share).

    A bag of which nothing is kept weighs nothing, and its average is 0.
    """
    sizes = bags.offsets.diff()
    kept = torch.ones_like(bags.weights)
    if share < 1:
        kept = (torch.rand(len(bags.ids), generator=generator, device=generator.device) < share).float().to(kept.device)
    owners = torch.arange(len(bags), device=kept.device).repeat_interleave(sizes, output_size=len(kept))  # [T]
    counts = kept.new_zeros(len(bags)).index_add_(0, owners, kept).clamp_min_(1)  # ‖r‖₁
    return Bags(bags.ids, bags.weights * kept / counts[owners], bags.offsets)


class AveragingNetwork(nn.Module):
    """MNN's averaging network, Eq. (1)-(4): a vector for each id, averaged over a bag, and for a cosine made unit."""

    def __init__(self, size: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.table = Table(size, width, generator, scale=width**-0.5)

    def forward(self, bags: Bags, share: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        """Return unit vectors [B, D]; with `share` < 1 each entry is kept with that probability."""
        return F.normalize(self.unscaled(bags, share, generator), dim=1)

    def unscaled(self, bags: Bags, share: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
        """Return averages [B, D]."""
        found: Tensor = self.table(averaged(bags, share, generator or torch.Generator()))
        return found
