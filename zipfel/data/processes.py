"""Work on items in other processes: in order, with few items in memory, and with a value that all share."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import current_process, get_context, parent_process
from multiprocessing.synchronize import Event
from typing import Any, TypeVar

from zipfel.errors import DataError

Shared = TypeVar("Shared")
Item = TypeVar("Item")
Result = TypeVar("Result")

PAUSE = 0.5  # seconds between looks at the process that started this one

_work: tuple[Callable[[Any, Any], Any], Any, Event]  # in another process: its function, what all items share, the end


def cores() -> int:
    """Return how many cores this process may use: those of its affinity, at most the CPU quota of its container."""
    from joblib import cpu_count

    return int(cpu_count())


def spread(
    function: Callable[[Shared, Item], Result], shared: Shared, items: Iterable[Item], processes: int
) -> Iterator[Result]:
    """Yield function(shared, item) for each item, in order; only a few items are taken ahead.

    processes: 1 starts no other.  function, shared and items are pickled; `shared` once for each process.
    """
    if processes == 1:
        yield from (function(shared, item) for item in items)
        return
    waiting, context = deque[Future[Result]](), get_context("spawn")
    ended = context.Event()
    try:
        with ProcessPoolExecutor(processes, context, _begin, (function, shared, ended)) as pool:
            try:
                for item in items:
                    waiting.append(pool.submit(_done, item))
                    if len(waiting) > 2 * processes:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                ended.set()  # after an error or a signal, nobody waits for the items that have not begun
    except BrokenProcessPool:
        raise DataError("a process that reads texts died; there may be too little memory") from None


def _begin(function: Callable[[Any, Any], Any], shared: Any, ended: Event) -> None:
    """Keep what this process does. It ends with the process that started it, which alone hears Ctrl-C."""
    global _work
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow, daemon=True).start()
    _work = function, shared, ended


def _follow() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _done(item: Any) -> Any:
    function, shared, ended = _work
    return None if ended.is_set() else function(shared, item)


@cache  # one thread a process
def end_with(parent: int) -> None:
    """End this process, if joblib has started it for work of `parent`, soon after that, however that ends.

    joblib keeps idle processes for five minutes, and does not tell them who their parent is, as `spread` does. Nothing
    happens where joblib uses threads, or processes of a cluster; one that has had no work yet does not call this.
    """
    if os.getpid() != parent and current_process().name.startswith("LokyProcess"):
        threading.Thread(target=_wait_for_end_of, args=(parent,), daemon=True).start()


def _wait_for_end_of(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PAUSE)
    os._exit(1)
