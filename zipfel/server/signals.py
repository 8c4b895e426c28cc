"""Signals that come early: they wait until the process, or one that it starts, can handle them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

LATER = (signal.SIGHUP, signal.SIGUSR1)  # they would end a process without a handler


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let signals wait while a process starts, and in the processes that it starts, until `signals_arrive`."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LATER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def signals_arrive() -> None:
    """Handle the signals that came while the process started, and all later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LATER)
