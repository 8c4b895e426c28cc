"""Signals that come early, or at the end: they wait until the process, or one that it starts, can handle them."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

LATER = (signal.SIGHUP, signal.SIGUSR1)  # they would end a process without a handler


@contextmanager
def signals_wait() -> Iterator[None]:
    """Let signals wait while a process starts, and in the processes that it starts, until `signals_arrive`."""
    before = hold_signals()
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def hold_signals() -> set[signal.Signals]:
    """Let signals wait until `signals_arrive`, or until the process ends; return those that have waited before."""
    return {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, LATER)}


def signals_arrive() -> None:
    """Handle the signals that came while the process started, and all later ones."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LATER)
