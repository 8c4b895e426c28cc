"""The one place that loads faiss and says how many threads it may use (see docs/decisions/009-indices.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipfel.types import Shortlist

BATCH = 64  # queries below which a second thread costs more than it saves
_NEVER = 2**31 - 1


@contextmanager
def building(deterministic: bool) -> Iterator[Any]:
    """Lend faiss with one thread, where two builds must be the same bit for bit, else with as many as torch uses."""
    with _lent(1 if deterministic else torch.get_num_threads()) as faiss:
        yield faiss


@contextmanager
def searching(queries: int) -> Iterator[Any]:
    """Lend faiss with one thread for few queries, else with as many as torch uses; answers are the same.

    BLAS is off meanwhile: its sums depend on how many queries come at a time, and answers must not.
    """
    with _lent(1 if queries < BATCH else torch.get_num_threads()) as faiss:
        before = faiss.cvar.distance_compute_blas_threshold
        faiss.cvar.distance_compute_blas_threshold = _NEVER
        try:
            yield faiss
        finally:
            faiss.cvar.distance_compute_blas_threshold = before


@contextmanager
def _lent(threads: int) -> Iterator[Any]:
    """Lend faiss with so many threads, and put back what was set before.

    Where torch was imported first, as it is here, the two share one pool: torch has as many threads meanwhile.
    """
    import faiss

    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(threads)
    try:
        yield faiss
    finally:
        faiss.omp_set_num_threads(before)


def small(*seeds: int) -> int:
    """Return one seed of 31 bits, which is what faiss takes, for seeds of any size."""
    return int(np.random.SeedSequence(seeds).generate_state(1)[0] >> 1)


def rows(vectors: Tensor) -> NDArray[np.float32]:
    """Return vectors as faiss takes them: float32, one row after the other, in the memory of the host."""
    return np.ascontiguousarray(vectors.detach().cpu().float().numpy())


def shortlist(ids: NDArray[np.int64], scores: NDArray[np.float32], device: torch.device) -> Shortlist:
    """Return faiss's answer on the queries' device; where it found too few, id -1 and score -inf."""
    scores = np.where(ids < 0, np.float32(-np.inf), scores)
    return Shortlist(torch.from_numpy(ids).to(device), torch.from_numpy(scores).to(device))
