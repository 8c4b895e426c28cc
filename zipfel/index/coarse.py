"""Coarse first passes over vectors in low precision: 8 bits for one query, 16 bits for many.

The error of a coarse inner product has a known bound, so no vector that can be among the best is ruled out.

With one query, calling small operations would take most of the time; NumPy calls them faster than torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS = 127  # largest absolute value of a quantized number
CHUNK = 1 << 16  # vectors quantized at a time
PACKED = 1 << 28  # numbers packed together: torch 2.13 crashes on 2^30 and more, such as 10 million vectors of 128
ROOM = 1 << 24  # inner products held at a time
EVEN = 2  # if the largest norm is at most this many times the median, one error bound serves all vectors
GROUP = 64  # adjacent products that are first reduced to their maximum
Multiplied = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # a quantized query [D] to its products [L]
MORE = 48  # candidates beyond `width`; the best are nearly always among them
ROUNDED = 2.0**-8  # largest relative rounding error of bfloat16


class Coarse:
    """Vectors [L, D] in 8 bits."""

    def __init__(self, vectors: Tensor) -> None:
        rows = torch.empty(vectors.shape, dtype=torch.int8)  # filled in place: pieces would fragment the heap
        steps, lost = torch.empty(len(vectors)), torch.empty(len(vectors))
        for start in range(0, len(vectors), CHUNK):
            part = slice(start, start + CHUNK)
            rows[part], steps[part], lost[part] = _quantized(vectors[part])
        lengths = vectors.norm(dim=1)
        if lengths.amax() <= EVEN * lengths.median():  # one bound for all is nearly as tight, and faster
            lengths, lost = lengths.amax(), lost.amax()
        self.lengths, self.lost = lengths.numpy(), lost.numpy()  # [] or [L]
        bounded = bool(np.isfinite(self.lengths).all() and np.isfinite(self.lost).all())
        self.multiplied = multiplier(rows, steps) if bounded else None

    def candidates(self, query: Tensor, width: int) -> NDArray[np.int64]:
        """Return the ids of all vectors that can be among the `width` best for a query [1, D], in ascending order."""
        assert self.multiplied is not None
        full = query[0].numpy()
        scaled = full / max(np.abs(full).max() / np.float32(STEPS), np.float32(1e-30))  # to at most STEPS
        short = np.rint(scaled)
        about = self.multiplied(short)  # [L]
        lost, length = _length(scaled - short), _length(scaled)
        error = (lost + 1e-5 * length) * self.lengths + (length + lost) * self.lost  # Cauchy–Schwarz bound
        if not np.ndim(error):  # one bound for all: no need to subtract it from each
            return np.flatnonzero(about >= _at_most(about, width) - 2 * error)
        return np.flatnonzero(about + error >= _at_most(about - error, width))

    def is_sound(self) -> bool:
        """Whether this machine multiplies 8-bit numbers correctly and the error is bounded (all vectors finite)."""
        return self.multiplied is not None


def multiplier(rows: Tensor, steps: Tensor) -> Multiplied | None:
    """Return a function that multiplies quantized queries with rows [L, D] of step sizes [L]; None if it is incorrect.

    A release of torch may remove it. It is tested with the largest numbers, on which some processors overflow.
    """
    same = torch.full((1, rows.shape[1]), STEPS, dtype=torch.int8)
    mixed = torch.where(torch.arange(rows.shape[1]) % 3 == 0, -same, same)
    largest, ones = torch.cat([same, -same, mixed, -mixed]), torch.ones(4)
    try:
        product = packed(rows, steps)
        sound = _is_right(packed(largest, ones), largest, largest, ones)
        return product if sound and _is_right(product, largest, rows[:64], steps) else None
    except (AttributeError, RuntimeError):  # not in this torch, or not for this processor
        return None


def packed(rows: Tensor, steps: Tensor) -> Multiplied:
    """Return a multiplication that packs rows once into the processor's layout, in blocks of at most PACKED numbers."""
    most = max(1, PACKED // max(rows.shape[1], 1))
    if len(rows) > most:
        blocks = [packed(*block) for block in zip(rows.split(most), steps.split(most), strict=True)]  # type: ignore[no-untyped-call]
        return lambda short: np.concatenate([block(short) for block in blocks])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that quantized tensors are deprecated
        typed = torch._make_per_channel_quantized_tensor(
            rows, steps.double(), torch.zeros(len(rows), dtype=torch.long), 0
        )
        weights = torch.ops.quantized.linear_prepack(typed, None)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32

    def multiply(short: NDArray[np.float32]) -> NDArray[np.float32]:
        products: Tensor = product(torch.from_numpy(short)[None], 1.0, 128, weights)
        return products[0].numpy()

    return multiply


def _is_right(multiplied: Multiplied, queries: Tensor, rows: Tensor, steps: Tensor) -> bool:
    """Whether the products of queries [B, D] with the first rows [n, D] are correct."""
    exact = ((queries.double() @ rows.double().T) * steps[: len(rows)]).numpy()
    products = np.stack([multiplied(query)[: len(rows)] for query in queries.float().numpy()])
    return bool(np.allclose(products, exact, rtol=1e-6, atol=0))


class Half:
    """Vectors [L, D] in bfloat16, for processors that multiply it faster than float32."""

    def __init__(self, vectors: Tensor) -> None:
        self.rows, self.longest = vectors.bfloat16(), vectors.norm(dim=1).amax()
        starts = range(0, len(vectors), CHUNK)
        lost = [(vectors[s : s + CHUNK] - self.rows[s : s + CHUNK]).norm(dim=1).amax() for s in starts]
        self.lost = torch.stack(lost).amax()  # largest norm of a vector's rounding error

    def candidates(self, queries: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return ids [B, width + MORE] in ascending order, and whether they surely contain the `width` best, [B].

        They do if the `width`-th best candidate leads the last one by more than the sum of both errors.
        """
        short = queries.bfloat16()
        ids, values = self._best(short, width + MORE)
        lost, lengths = (queries - short).norm(dim=1), queries.norm(dim=1)
        error = (lost + 1e-5 * lengths) * self.longest + (lengths + lost) * self.lost  # Cauchy–Schwarz bound
        wanted, last = values[:, width - 1], values[:, -1]
        sure = wanted - error - ROUNDED * wanted.abs() > last + error + ROUNDED * last.abs()
        return ids.sort(dim=1).values, sure

    def _best(self, short: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the ids and values of each query's largest inner products, [B, width] each, best first."""
        ids, values = short.new_empty(len(short), 0, dtype=torch.long), short.new_empty(len(short), 0)
        step = max(width, ROOM // len(short))
        for start in range(0, len(self.rows), step):
            scores = short @ self.rows[start : start + step].T
            top = scores.topk(min(width, scores.shape[1]), dim=1)
            ids, values = torch.cat([ids, top.indices + start], dim=1), torch.cat([values, top.values], dim=1)
            best = values.topk(min(width, values.shape[1]), dim=1)
            ids, values = ids.gather(1, best.indices), best.values
        return ids, values.float()


@cache
def half_is_faster() -> bool:
    """Whether this processor has bfloat16 instructions; without them bfloat16 is much slower than float32."""
    capabilities: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # missing in older torch
    return any(capabilities.get(name) is True for name in ("avx512_bf16", "amx_bf16"))


def _quantized(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors [L, D] in 8 bits, the step size of each, [L], and the norm of its rounding error, [L]."""
    steps = vectors.abs().amax(dim=1).clamp_min(1e-30) / STEPS
    short = (vectors / steps[:, None]).round()
    lost = (vectors - short * steps[:, None]).norm(dim=1)
    return short.to(torch.int8), steps, lost


def _at_most(values: NDArray[np.float32], width: int) -> float:
    """Return a lower bound of the `width`-th largest value, rarely far below it."""
    grouped = values[: len(values) // GROUP * GROUP].reshape(-1, GROUP)
    tops = grouped.max(axis=1) if len(grouped) >= width else values
    return float(np.partition(tops, -width)[-width]) if len(tops) >= width else -np.inf


def _length(vector: NDArray[np.float32]) -> float:
    return float(np.sqrt(vector @ vector))
