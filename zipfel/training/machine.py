"""Settings of the whole process, and their reasons (docs/decisions/007-sparse-rows.md)."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from zipfel.errors import ConfigError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # names of glibc's malloc.h


@cache
def keep_freed_memory() -> None:
    """Tell glibc to keep large freed blocks for the next step instead of handing them back.

    A step of training frees and takes the same hundreds of megabytes again; by default each of these blocks is mapped
    anew and every page of it faulted in and zeroed, which costs more than the arithmetic. Has no effect on
    systems other than Linux with glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if not mallopt(_M_MMAP_THRESHOLD, 1 << 30):  # older versions take no more than 32 MiB
            mallopt(_M_MMAP_THRESHOLD, 1 << 25)
        mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1)


def set_threads(count: int) -> None:
    """Use this many threads on the CPU from now on, in the whole process: torch, faiss, gensim and numpy.

    The default is one for each core. Weights may differ in their last digits between numbers of threads.

    Args:
        count: at least 1.

    Example:
        >>> set_threads(0)
        Traceback (most recent call last):
        zipfel.errors.ConfigError: threads must be a whole number of at least 1; found 0
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ConfigError(f"threads must be a whole number of at least 1; found {count!r}")
    import numpy as np  # noqa: F401  (its library of linear algebra must be loaded to be limited)
    import torch
    from threadpoolctl import threadpool_limits

    threadpool_limits(count)
    torch.set_num_threads(count)  # faiss and gensim follow it


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on the calling thread alone; other threads keep their number.

    For work of a millisecond: threads meet at the end of each operation, and where another process has a core, they
    wait milliseconds for each other every time.
    """
    import torch

    torch.get_num_threads()  # a thread takes torch's number when it first asks, which would undo the limit
    with _openmp().limit(limits=1):
        yield


@cache
def _openmp() -> Any:
    """Return the libraries that torch computes with; their number of threads belongs to the thread that sets it."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="openmp")
