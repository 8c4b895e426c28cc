"""First looks at vectors in short numbers: of 8 bits for one query, of 16 bits for many.

What they say of a vector is off by no more than is known, so it is sure which vectors can be among the best.

For one query most of the time would go into calling small operations, which NumPy does sooner than torch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

STEPS = 127  # that a number can be long, on either side of 0
CHUNK = 1 << 16  # vectors that are shortened at a time
ROOM = 1 << 24  # products held at a time
EVEN = 2  # times the median, up to which lengths of vectors are much the same
GROUP = 64  # neighbouring products of which the largest is looked at first
Multiplied = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # whole numbers of at most STEPS [D] to products [L]
MORE = 48  # vectors beyond those wanted, among which the best are nearly always
ROUNDED = 2.0**-8  # most that a number loses in bfloat16, as a share of itself


class Coarse:
    """Vectors [L, D] in 8 bits."""

    def __init__(self, vectors: Tensor) -> None:
        parts = [_shortened(part) for part in vectors.split(CHUNK)]  # type: ignore[no-untyped-call]
        rows, steps, lost = (torch.cat(column) for column in zip(*parts, strict=True))
        lengths = vectors.norm(dim=1)
        if lengths.amax() <= EVEN * lengths.median():  # then a bound for all is nearly as good, and sooner there
            lengths, lost = lengths.amax(), lost.amax()
        self.lengths, self.lost = lengths.numpy(), lost.numpy()  # [] or [L]
        known = bool(np.isfinite(self.lengths).all() and np.isfinite(self.lost).all())
        self.multiplied = multiplier(rows, steps) if known else None

    def candidates(self, query: Tensor, width: int) -> NDArray[np.int64]:
        """Return the ids of all vectors that can be among the `width` best for a query [1, D], in ascending order."""
        assert self.multiplied is not None
        whole = query[0].numpy()
        scaled = whole / max(np.abs(whole).max() / np.float32(STEPS), np.float32(1e-30))  # to at most STEPS
        short = np.rint(scaled)
        about = self.multiplied(short)  # [L]
        lost, length = _length(scaled - short), _length(scaled)
        off = (lost + 1e-5 * length) * self.lengths + (length + lost) * self.lost  # by Cauchy and Schwarz
        if not np.ndim(off):  # one bound for all: it need not be taken from each
            return np.flatnonzero(about >= _at_most(about, width) - 2 * off)
        return np.flatnonzero(about + off >= _at_most(about - off, width))

    def is_sound(self) -> bool:
        """Tell whether such numbers are multiplied right here, and it is known how far off they can be."""
        return self.multiplied is not None


def multiplier(rows: Tensor, steps: Tensor) -> Multiplied | None:
    """Return what multiplies short numbers with rows of such, [L, D], in steps [L]; None where torch does it wrong.

    Both ways of torch may go, and are tried with the largest numbers first: some processors overflow.
    """
    same = torch.full((1, rows.shape[1]), STEPS, dtype=torch.int8)
    mixed = torch.where(torch.arange(rows.shape[1]) % 3 == 0, -same, same)
    largest, ones = torch.cat([same, -same, mixed, -mixed]), torch.ones(4)
    for kind in (packed, plain):
        try:
            found = kind(rows, steps)
            if _is_sound(kind(largest, ones), largest, largest, ones) and _is_sound(found, largest, rows[:64], steps):
                return found
        except (AttributeError, RuntimeError):  # where it is gone, or not made for this processor
            pass
    return None


def packed(rows: Tensor, steps: Tensor) -> Multiplied:
    """Return what multiplies in half the time: rows are packed once as the processor wants them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that tensors of such a type will go
        typed = torch._make_per_channel_quantized_tensor(
            rows, steps.double(), torch.zeros(len(rows), dtype=torch.long), 0
        )
        weights = torch.ops.quantized.linear_prepack(typed, None)
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32

    def multiply(short: NDArray[np.float32]) -> NDArray[np.float32]:
        found: Tensor = product(torch.from_numpy(short)[None], 1.0, 128, weights)
        return found[0].numpy()

    return multiply


def plain(rows: Tensor, steps: Tensor) -> Multiplied:
    """Return what multiplies rows as they are."""
    columns, scales = rows.T, steps.numpy()

    def multiply(short: NDArray[np.float32]) -> NDArray[np.float32]:
        found = torch._int_mm(torch.from_numpy(short.astype(np.int8))[None], columns)[0].numpy()
        return np.asarray(found.astype(np.float32) * scales)

    return multiply


def _is_sound(multiplied: Multiplied, queries: Tensor, rows: Tensor, steps: Tensor) -> bool:
    """Tell whether the products of queries [B, D] with the first rows [n, D] are right."""
    exact = ((queries.double() @ rows.double().T) * steps[: len(rows)]).numpy()
    found = np.stack([multiplied(query)[: len(rows)] for query in queries.float().numpy()])
    return bool(np.allclose(found, exact, rtol=1e-6, atol=0))


class Half:
    """Vectors [L, D] in bfloat16, where the processor multiplies these faster than whole ones."""

    def __init__(self, vectors: Tensor) -> None:
        self.rows, self.longest = vectors.bfloat16(), vectors.norm(dim=1).amax()
        starts = range(0, len(vectors), CHUNK)
        lost = [(vectors[s : s + CHUNK] - self.rows[s : s + CHUNK]).norm(dim=1).amax() for s in starts]
        self.lost = torch.stack(lost).amax()  # most of a vector's length

    def candidates(self, queries: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return ids [B, width + MORE] in ascending order, and whether the `width` best are among them for sure, [B].

        They are where the last id is behind the last wanted by more than both can be off.
        """
        short = queries.bfloat16()
        ids, values = self._best(short, width + MORE)
        lost, lengths = (queries - short).norm(dim=1), queries.norm(dim=1)
        off = (lost + 1e-5 * lengths) * self.longest + (lengths + lost) * self.lost  # by Cauchy and Schwarz
        least, most = values[:, width - 1], values[:, -1]
        sure = least - off - ROUNDED * least.abs() > most + off + ROUNDED * most.abs()
        return ids.sort(dim=1).values, sure

    def _best(self, short: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Return the ids of the largest products of each query, [B, width], and these, best first."""
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
    """Tell whether this processor has instructions for products of bfloat16; others are slower with them by far."""
    told: dict[str, object] = getattr(torch.cpu, "get_capabilities", dict)()  # which older versions do not have
    return any(told.get(name) is True for name in ("avx512_bf16", "amx_bf16"))


def _shortened(vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return vectors [L, D] in 8 bits, how long a step of each is, [L], and the length of what is lost, [L]."""
    steps = vectors.abs().amax(dim=1).clamp_min(1e-30) / STEPS
    short = (vectors / steps[:, None]).round()
    lost = (vectors - short * steps[:, None]).norm(dim=1)
    return short.to(torch.int8), steps, lost


def _at_most(values: NDArray[np.float32], width: int) -> float:
    """Return a number that is not above the `width`-th largest of values, and seldom far below it."""
    grouped = values[: len(values) // GROUP * GROUP].reshape(-1, GROUP)
    tops = grouped.max(axis=1) if len(grouped) >= width else values
    return float(np.partition(tops, -width)[-width]) if len(tops) >= width else -np.inf


def _length(vector: NDArray[np.float32]) -> float:
    return float(np.sqrt(vector @ vector))
