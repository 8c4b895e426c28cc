"""Encoders: from bags of tokens, features or labels to vectors."""

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

from zipfel.types import Bags, Share

PIECE = 256  # entries of a bag that a GPU sums sequentially
LONG, SHORT = 1 << 22, 127 * 257  # largest whole numbers of three parts and of two: 65,536 products fit into float64
WORTH = 256.0 ** np.array([[0, 1, 1, 2, 2, 3]])  # of the products of a part and another
WIDEST = 1 << 26  # random bytes that a GPU draws of which it needs a part only
DRAWN = 1 << 20  # random numbers drawn at a time where those of other processes are skipped; a multiple of 16
HALVES = np.int32(0x808080)  # 128 in each of three bytes


class Encoder(nn.Module):
    """Maps bags to vectors, [B, D]."""

    def unscaled(self, points: Bags) -> Tensor:
        """Return the vectors before they are divided by their length, [B, D]; explanations differentiate these."""
        vectors: Tensor = self(points)
        return vectors


class EmbeddingTable(nn.Module):
    """A vector of D numbers for each of V ids; a bag's vector is the weighted sum of its rows.

    std: the standard deviation of the random numbers that the rows start with.

    Only the rows that a batch touches cost anything: in training, each use records their ids and a leaf of the autograd
    graph, where the optimiser finds their gradient. (docs/decisions/007-sparse-rows.md)

    own: the ids whose rows this process holds, where several processes split the table; ids count from its start. None:
    it holds all.
    """

    def __init__(self, size: int, width: int, generator: torch.Generator, std: float, own: Share | None = None) -> None:
        super().__init__()
        rows = (
            torch.empty(size, width).normal_(0, std, generator=generator)
            if own is None
            else own_normals(own, width, generator, std)
        )
        self.rows, self.own = nn.Parameter(rows, requires_grad=False), own
        # uses in this step: (ids [U], leaf [U, D] with their gradient); ids None: all rows
        self.touched: list[tuple[Tensor | None, Tensor]] = []

    def forward(self, bags: Bags) -> Tensor:
        """Return the weighted sums, [B, D]; an empty bag is 0."""
        if not (self.training and torch.is_grad_enabled()):
            return weighted_sum(bags.ids, self.rows, bags)
        unique, by_id = bags.transposed if isinstance(bags, Reused) else TransposedBags.of(bags)
        leaf = self.rows.new_empty(1, 1).expand(len(unique), self.rows.shape[1])  # takes a gradient, no memory
        self.touched.append((unique, leaf.requires_grad_()))
        return _BagSum.apply(leaf, self.rows, bags, by_id)  # type: ignore[no-any-return, no-untyped-call]

    def grow(self, count: int, generator: torch.Generator, std: float) -> None:
        """Append random rows."""
        more = EmbeddingTable(count, self.rows.shape[1], generator, std).rows.to(self.rows.device)
        self.rows = nn.Parameter(torch.cat([self.rows.detach(), more]), requires_grad=False)

    def gather(self, ids: Tensor | None = None) -> Tensor:
        """Return the rows of unique ids, [U, D]; in training, as a leaf whose gradient the optimiser finds.

        Without ids, return all rows without copying.
        """
        rows = self.rows.detach() if ids is None else self.rows.detach().index_select(0, ids)
        if self.training and torch.is_grad_enabled():
            self.touched.append((ids, rows.requires_grad_()))
        return rows


def own_normals(own: Share, width: int, generator: torch.Generator, std: float) -> Tensor:
    """Return rows `own` of a random table [total, D], bit for bit, without ever holding the others.

    torch draws normal numbers in blocks of 16, and the last 16 of a tensor anew if they are no whole block.
    """
    rows, total, done = torch.empty(own.size, width), own.total * width, 0
    flat, first, last = rows.view(-1), own.start * width, own.stop * width
    while done < total:
        count = DRAWN if total - done >= DRAWN + 16 else total - done
        drawn = torch.empty(count).normal_(0, std, generator=generator)
        low, high = max(first, done), min(last, done + count)
        if low < high:
            flat[low - first : high - first] = drawn[low - done : high - done]
        done += count
    return rows


def unique_ids(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sorted unique ids, and for each id its position among them."""
    unique, inverse = torch.unique(ids, return_inverse=True)
    return unique, inverse


def weighted_sum(ids: Tensor, rows: Tensor, bags: Bags) -> Tensor:
    """Return Σ weight · row over each bag, [B, D]; an empty bag is 0."""
    return F.embedding_bag(
        ids, rows, bags.offsets, mode="sum", per_sample_weights=bags.weights.to(rows.dtype), include_last_offset=True
    )


class TransposedBags(NamedTuple):
    """Bags transposed: the ids that occur, and for each id a bag of the numbers of the bags that contain it."""

    unique: Tensor  # [U] sorted
    by_id: Bags  # U bags

    @classmethod
    def of(cls, bags: Bags) -> TransposedBags:
        """Transpose bags."""
        unique, inverse = unique_ids(bags.ids)
        order = inverse.argsort(stable=True)
        points = torch.arange(len(bags), device=order.device)
        owners = points.repeat_interleave(bags.offsets.diff(), output_size=len(order))  # [T]
        offsets = F.pad(inverse.bincount(minlength=len(unique)).cumsum(0), (1, 0))  # [U + 1]
        return cls(unique, Bags(owners[order], bags.weights[order], offsets))


class Reused(Bags):
    """Bags that every step sums, such as texts of labels: they are transposed only once."""

    @classmethod
    def of(cls, bags: Bags) -> Reused:
        """Return the same bags, marked for reuse."""
        return cls(bags.ids, bags.weights, bags.offsets)

    @cached_property
    def transposed(self) -> TransposedBags:
        """The transposed bags."""
        return TransposedBags.of(self)


class _BagSum(torch.autograd.Function):
    """The weighted sum; its gradient is a weighted sum too, over the transposed bags."""

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
    """Return `weighted_sum` of non-empty bags in two steps, pieces first: a GPU sums each bag sequentially."""
    pieces = (bags.offsets.diff() + PIECE - 1) // PIECE  # [B]
    ends = F.pad(pieces.cumsum(0), (1, 0))
    owners = torch.arange(len(bags), device=ids.device).repeat_interleave(pieces)  # [P]
    starts = bags.offsets[owners] + PIECE * (torch.arange(len(owners), device=ids.device) - ends[owners])
    parts = weighted_sum(ids, rows, Bags(ids, bags.weights, torch.cat([starts, bags.offsets[-1:]])))  # [P, D]
    all_parts = torch.arange(len(owners), device=ids.device)
    return F.embedding_bag(all_parts, parts, ends, mode="sum", include_last_offset=True)


def steady_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x Wᵀ + b, [B, outputs]; without gradients, computed in float64 and rounded.

    The last bits of a float32 product depend on the batch size; predictions must not.
    """
    if torch.is_grad_enabled():
        return F.linear(x, weight, bias)
    return F.linear(x.double(), weight.double(), bias.double() if bias is not None else None).float()


class NormedLinear(nn.Module):
    """A weight-normalised layer (Salimans and Kingma, 2016) as in GLaS: one length for all neurons.

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


class SpectralLayer(nn.Module):
    """A square layer R that starts as the identity, and is divided by its largest singular value (Miyato et al., 2018).

    A subclass says what becomes of a sum of token vectors r̂ = E r.
    """

    left: Tensor  # [D], estimate of R's first left singular vector, refined at each training step

    def __init__(self, width: int) -> None:
        super().__init__()
        self.R = nn.Parameter(torch.eye(width))
        self.register_buffer("left", torch.full((width,), width**-0.5))  # for the identity, any unit vector is right

    def spectral(self) -> Tensor:
        """Return R divided by its largest singular value; training refines it by a step of power iteration."""
        with torch.no_grad():
            right = F.normalize(self.R.T @ self.left, dim=0)
            if self.training:
                self.left.copy_(F.normalize(self.R @ right, dim=0))
        return self.R / (self.left @ self.R @ right).clamp_min(1e-6)

    def reset(self) -> None:
        """Reset R to the identity, as Module III does."""
        with torch.no_grad():
            nn.init.eye_(self.R)
            self.left.fill_(len(self.left) ** -0.5)

    def for_prediction(self) -> nn.Module:
        """Return a copy that maps r̂ [B, D] in float64 to [B, D], and whose results do not depend on the batch."""
        raise NotImplementedError


class TextBlock(SpectralLayer):
    """DECAF's text block: E(r) = σ(α) ⊙ r̂ + σ(β) ⊙ (R · ReLU(r̂))."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.alpha, self.beta = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))

    def forward(
        self, sums: Tensor, drop: float = 0.0, generator: torch.Generator | None = None, own: Share | None = None
    ) -> Tensor:
        """Map r̂ [B, D] to [B, D]; with a generator, drop a share `drop` after the ReLU.  own: as in `dropped`."""
        hidden = dropped(F.relu(sums), drop, generator, own)
        residual = steady_linear(hidden, torch.sigmoid(self.beta)[:, None] * self.spectral())
        return torch.addcmul(residual, torch.sigmoid(self.alpha), sums)

    def for_prediction(self) -> nn.Module:
        """Return the block quantized."""
        return QuantizedTextBlock(self)


class ResidualBlock(SpectralLayer):
    """Astec's residual layer: x̂ = v + ReLU(R v + b) for v = ReLU(r̂)."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, v: Tensor, drop: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Map v [B, D] to [B, D]; with a generator, apply dropout at rate `drop` after the second ReLU."""
        return v + dropped(F.relu(F.linear(v, self.spectral(), self.bias)), drop, generator)

    def reset(self) -> None:
        """Reset R to the identity, and b to 0."""
        super().reset()
        nn.init.zeros_(self.bias)

    def for_prediction(self) -> nn.Module:
        """Return the layer in float64, with the ReLU before it."""
        return SteadyResidual(self)


class SteadyResidual(nn.Module):
    """A residual layer for prediction, in float64: rounded to float32, results do not depend on the batch."""

    def __init__(self, block: ResidualBlock) -> None:
        super().__init__()
        with torch.no_grad():
            self.R, self.bias = block.eval().spectral().double(), block.bias.detach().double()

    def forward(self, sums: Tensor) -> Tensor:
        """Map r̂ [B, D] to x̂ [B, D]."""
        v = F.relu(sums)
        return v + F.relu(F.linear(v, self.R, self.bias))


class QuantizedTextBlock(nn.Module):
    """A text block for prediction, quantized to integers, whose products are exact: results do not depend on the batch.

    R without its diagonal, which is large and kept apart, is rounded to whole numbers of 16 bits times a step for each
    row, and its argument to 23 bits. A single point on a CPU uses parts of 8 bits: most of its time is spent on reading
    R, and they take a quarter of the space of float64. (docs/decisions/014-whole-numbers.md)
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
        if hidden.requires_grad:  # for explanations: rounding has no gradient, so nothing is rounded
            return (hidden.double() @ self.columns) * self.steps
        numbers, step = whole(hidden, LONG)
        return (numbers.double() @ self.columns) * (step.double() * self.steps)

    def _alone(self, sums: NDArray[np.floating], short: Tensor) -> NDArray[np.float64]:
        """Return the same for a single point, [1, D]: with few numbers NumPy is faster than torch."""
        own, diagonal, steps = self.own.numpy(), self.diagonal.numpy(), self.steps.numpy()
        hidden = np.maximum(sums.astype(np.float32), 0)
        step = np.maximum(hidden.max(), np.float32(1e-30)) / np.float32(LONG)
        product = whole_product(np.rint(hidden / step), short)
        return np.asarray(own * sums + diagonal * hidden + product * (np.float64(step) * steps))


class PredictionEncoder(Encoder):
    """Encodes points for prediction: x̂ = E(r) of their tokens, or r̂ without a block; with `unit`, of length 1."""

    def __init__(self, tokens: EmbeddingTable, block: SpectralLayer | None, unit: bool, relu: bool = False) -> None:
        super().__init__()
        self.tokens, self.unit, self.relu = tokens, unit, relu
        self.block = None if block is None else block.for_prediction()

    def train(self, mode: bool = True) -> PredictionEncoder:
        """Do nothing: nothing here learns, and E, which may be learning elsewhere, is only read."""
        return self

    def forward(self, points: Bags) -> Tensor:
        """Return x̂, [B, D]."""
        vectors = self.unscaled(points)
        return (F.normalize(vectors, dim=1) if self.unit else vectors).float()

    def unscaled(self, points: Bags) -> Tensor:
        """Return x̂ before it is divided by its length, [B, D], in float64."""
        sums = weighted_sum(points.ids, self.tokens.rows, points).double()
        vectors = sums if self.block is None else self.block(sums)
        return F.relu(vectors) if self.relu else vectors


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
    split = shifted.view(np.int8).reshape(*shifted.shape, 4)[..., :parts].transpose(2, 0, 1)
    return split.reshape(-1, shifted.shape[1])


def whole_product(numbers: NDArray[np.floating], columns: Tensor) -> NDArray[np.float64]:
    """Return the exact product of whole numbers [1, D] and others, whose two parts are [D, 2 C], [1, C]."""
    parts = torch.from_numpy(in_parts(numbers, 3))
    products = [torch._int_mm(parts[n : n + 1], columns).numpy() for n in range(3)]  # faster than all at a time
    return np.asarray(WORTH @ np.concatenate(products).reshape(6, -1).astype(np.float64))


@cache
def whole_products_are_sound(width: int) -> bool:
    """Whether this machine multiplies the largest whole numbers of such rows correctly; torch._int_mm is private."""
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


def dropped(values: Tensor, share: float, generator: torch.Generator | None, own: Share | None = None) -> Tensor:
    """Apply dropout: zero a share of the values, rounded to 1/256, and scale up the others; no generator, no dropout.

    A random byte decides each value, which takes a twelfth of the time of a random float.  own: the rows that values
    [B, D] are of a larger tensor, whose other rows are with other processes: they are dropped as one process would.
    """
    edge = min(255, round(256 * share))  # never drops all
    if generator is None or edge == 0:
        return values
    draws = generator
    if values.is_cuda:  # drawn on the GPU, to avoid a transfer
        seed = int(torch.randint(2**62, (1,), generator=generator))
        if own is not None and own.total * values.shape[1] > WIDEST:  # too many to draw those of others
            seed, own = seed + own.start, None
        draws = torch.Generator(values.device).manual_seed(seed)
    bits = random_bytes(values.numel(), draws, values.device) if own is None else own_bytes(own, values, draws)
    return values * (bits.view(values.shape) >= edge) * (256 / (256 - edge))


def random_bytes(count: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """Return random bytes, [count] uint8."""
    words = torch.empty((count + 7) // 8, dtype=torch.int64, device=device)
    return words.random_(-(2**63), None, generator=generator).view(torch.uint8)[:count]


def own_bytes(own: Share, values: Tensor, generator: torch.Generator) -> Tensor:
    """Return the bytes of rows `own`, values [B, D], of those that all rows get; a CPU never holds the others."""
    width, device, done = values.shape[1], values.device, 0
    first, last = own.start * width, own.stop * width
    if values.is_cuda:
        return random_bytes(own.total * width, generator, device)[first:last]
    pieces = [torch.empty(0, dtype=torch.uint8, device=device)]
    while done < own.total * width:
        piece = random_bytes(min(8 * DRAWN, own.total * width - done), generator, device)
        pieces.append(piece[max(0, first - done) : max(0, last - done)])
        done += len(piece)
    return torch.cat(pieces)


def drop_features(bags: Bags, dropout: float, generator: torch.Generator, own: Share | None = None) -> Bags:
    """Keep each entry of each bag with probability ρ = 1 − dropout, GLaS Sec. 3.3: x ← x ⊙ Bernoulli(ρ).

    own: which entries of the batch's these are, where other processes have the others.
    """
    if dropout <= 0:
        return bags
    entries = own or Share(0, len(bags.ids), len(bags.ids))
    kept = torch.rand(entries.total, generator=generator, device=generator.device)[entries.rows] < 1 - dropout
    return Bags(bags.ids, bags.weights * kept.to(bags.weights.device), bags.offsets)


def averaged(bags: Bags, dropout: float, generator: torch.Generator) -> Bags:
    """Return bags whose weighted sum is an average, MNN Eq. (2), (5)-(7): w_k r_k / ‖r‖₁, r_k ~ Bernoulli(1 − dropout).

    If no entry of a bag is kept, its average is 0.
    """
    sizes = bags.offsets.diff()
    kept = torch.ones_like(bags.weights)
    if dropout > 0:
        draws = torch.rand(len(bags.ids), generator=generator, device=generator.device)
        kept = (draws < 1 - dropout).float().to(kept.device)
    owners = torch.arange(len(bags), device=kept.device).repeat_interleave(sizes, output_size=len(kept))  # [T]
    counts = kept.new_zeros(len(bags)).index_add_(0, owners, kept).clamp_min_(1)  # ‖r‖₁
    return Bags(bags.ids, bags.weights * kept / counts[owners], bags.offsets)


class AveragingNetwork(Encoder):
    """MNN's averaging network, Eq. (1)-(4): the average of a bag's vectors, normalised for cosines."""

    def __init__(self, size: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.table = EmbeddingTable(size, width, generator, std=width**-0.5)

    def forward(self, bags: Bags, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Return unit vectors [B, D]; each entry of a bag is dropped with probability `dropout`."""
        return F.normalize(self.unscaled(bags, dropout, generator), dim=1)

    def unscaled(self, bags: Bags, dropout: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Return the averages before normalisation, [B, D]."""
        averages: Tensor = self.table(averaged(bags, dropout, generator or torch.Generator()))
        return averages
