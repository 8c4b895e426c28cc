"""Loads faiss and sets its number of threads; no other module does (see docs/decisions/009-indices.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipfel.types import Shortlist

BATCH = 64  # with fewer queries a second thread costs more than it saves
_NEVER = 2**31 - 1


@contextmanager
def building(deterministic: bool) -> Iterator[Any]:
    """Yield faiss with one thread if two builds must be equal bit for bit, otherwise with as many as torch uses."""
    with _faiss(1 if deterministic else torch.get_num_threads()) as faiss:
        yield faiss


@contextmanager
def searching(queries: int) -> Iterator[Any]:
    """Yield faiss with one thread for few queries, otherwise with as many as torch uses; results are the same.

    BLAS is off: its sums depend on the number of queries in a batch, and results must not.
    """
    with _faiss(1 if queries < BATCH else torch.get_num_threads()) as faiss:
        before = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = _NEVER
        try:
            yield faiss
        finally:
            faiss.cvar.distance_compute_blas_threshold = before


@contextmanager
def _faiss(threads: int) -> Iterator[Any]:
    """Yield faiss with this many threads, then restore the previous number.

    If torch was imported first, as it is here, both share one thread pool: torch has the same number meanwhile.
    """
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def small(*seeds: int) -> int:
    """Combine seeds of any size into one of 31 bits, as faiss requires."""
    return int(np.random.SeedSequence(seeds).generate_state(1)[0] >> 1)


def rows(vectors: Tensor) -> NDArray[np.float32]:
    """Return vectors as faiss takes them: contiguous float32 in CPU memory."""
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())


def shortlist(ids: NDArray[np.int64], scores: NDArray[np.float32], device: torch.device) -> Shortlist:
    """Return faiss's results as a shortlist on `device`; missing ones have id -1 and score -inf."""
    scores = np.where(ids < 0, np.float32(-np.inf), scores)
    return Shortlist(torch.from_numpy(ids).to(device), torch.from_numpy(scores).to(device))
