"""How much memory there is, and how much of it this process holds."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch


def free_memory(device: str = "cpu") -> int:
    """Return the free bytes of this machine, its GPU, or its container."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(device)[0])
    lines = _lines("/proc/meminfo")
    available = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable")]
    if not available:  # not Linux
        available = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")] if hasattr(os, "sysconf") else [1 << 62]
    limit, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit and used and limit[0].isdigit():
        available.append(max(0, int(limit[0]) - int(used[0])))
    return min(available)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


@contextmanager
def watched() -> Iterator[list[int]]:
    """Yield a list of one number, updated during the block: the peak memory of this process, in bytes."""
    peak, stop = [held_memory()], threading.Event()

    def watch() -> None:
        while not stop.wait(0.02):
            peak[0] = max(peak[0], held_memory())

    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def held_memory() -> int:
    """Return the memory of this process in bytes; on systems other than Linux, its peak."""
    pages = _lines("/proc/self/statm")
    if pages:
        return int(pages[0].split()[1]) * os.sysconf("SC_PAGE_SIZE")
    import resource  # which Windows has not

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
