"""The main process: binds the port, starts the workers, forwards signals, and replaces a worker that dies."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ctypes import c_double
from multiprocessing import connection, get_context
from types import FrameType
from typing import Any

from zipfel.errors import INTERRUPTED, ZipfelError
from zipfel.server import log
from zipfel.server.access import Tokens
from zipfel.server.door import bound, ignore_new_connections, remove_path, wait_until_accepted
from zipfel.server.keeping import check_folder
from zipfel.server.measures import LENGTH, STARTS
from zipfel.server.settings import ServeSettings, Sources
from zipfel.server.signals import signals_arrive, signals_wait

PAUSE = 1.0  # seconds before a dead worker is restarted; twice as long after each death that follows soon
LONGEST_PAUSE = 60.0  # seconds
SOON = 60.0  # seconds of service within which a death counts as one of a row
ADVICE = {  # by exit code; negative codes are signals
    2: "its models cannot be loaded: save sound ones, then send SIGHUP",
    -signal.SIGBUS: "files of a model were cut short while in use: save a sound one, then send SIGHUP",
    -signal.SIGKILL: "the system may be out of memory: fewer --workers need less",
}


def serve(sources: Sources, settings: ServeSettings) -> int:
    """Serve models until a signal stops it; return the exit code."""
    with signals_wait(), bound(settings) as sock:
        Tokens.of(settings.token_file)  # report a mistake before models are loaded
        if settings.corrections is not None:
            check_folder(settings.corrections)
        if settings.workers > 1:
            return Supervisor(sources, settings, sock).run()
        with _stopped_early():
            from zipfel.server.worker import work

            return work(sources, settings, sock)


@contextmanager
def _stopped_early() -> Iterator[None]:
    """Let SIGTERM end a process that does not serve yet in an orderly way."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Restarts:
    """When a worker is restarted: soon after a single death, later and later while it dies again and again."""

    def __init__(self) -> None:
        self.started, self.deaths, self.due = 0.0, 0, float("inf")

    def start(self, now: float) -> None:
        """Note that the worker was started."""
        self.started, self.due = now, float("inf")

    def died(self, now: float) -> float:
        """Note that the worker died, and return the seconds until it is due to be restarted."""
        self.deaths = self.deaths + 1 if now - self.started < SOON else 1
        pause = min(PAUSE * 2.0 ** min(self.deaths - 1, 10), LONGEST_PAUSE)
        self.due = now + pause
        return pause

    def hurry(self) -> None:
        """Restart a worker that waits for it at once: its models may be sound again."""
        if self.due < float("inf"):
            self.deaths, self.due = 0, 0.0


class Supervisor:
    """Starts workers, and waits until all have ended. It spawns, never forks: torch's state does not survive a fork.

    On SIGTERM the workers stop being ready at once. After the drain time the main process closes the socket for all of
    them, and tells them by SIGUSR1 to finish.
    """

    def __init__(self, sources: Sources, settings: ServeSettings, sock: socket.socket) -> None:
        self.context = get_context("spawn")
        self.shared = self.context.RawArray(c_double, LENGTH * settings.workers)
        self.arguments = (sources, settings, sock, self.shared)
        self.sock, self.settings, self.stopping, self.code = sock, settings, False, 0
        self.close_at = float("inf")
        self.processes: dict[int, Any] = {}
        self.restarts = [Restarts() for _ in range(settings.workers)]

    def run(self) -> int:
        """Run until all workers have ended."""
        log.start()
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._reload)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signals_arrive()
        for number in range(self.settings.workers):
            self._start(number)
        while self.processes or not self.stopping:
            # A signal handler may change close_at while we wait, which does not end the wait.
            self._wait(0.1)
            for number, process in list(self.processes.items()):
                if process.exitcode is not None:
                    self._ended(number, process.exitcode)
            self._restart()
            if time.monotonic() >= self.close_at:
                self._close()
        log.flush()
        return self.code

    def _wait(self, seconds: float) -> None:
        """Wait until a worker ends, at most this long."""
        if self.processes:
            connection.wait([process.sentinel for process in self.processes.values()], seconds)
        else:  # all are waiting to be restarted
            time.sleep(seconds)

    def _start(self, number: int) -> None:
        if self.stopping:
            return
        process = self.context.Process(target=worker, args=(*self.arguments, number), name=f"zipfel-{number}")
        with signals_wait():
            process.start()
        self.processes[number] = process
        self.restarts[number].start(time.monotonic())

    def _restart(self) -> None:
        """Start workers whose pause is over."""
        for number, restarts in enumerate(self.restarts):
            if time.monotonic() >= restarts.due:
                self._start(number)

    def _ended(self, number: int, code: int) -> None:
        """Replace a worker that died; stop the service if the worker never started to serve."""
        del self.processes[number]
        if self.stopping:
            return
        details: dict[str, object] = {"error": ADVICE[code]} if code in ADVICE else {}
        has_served = bool(self.shared[number * LENGTH + STARTS])
        if has_served:
            details["restart_in"] = self.restarts[number].died(time.monotonic())
        log.line("worker ended", level="error", worker=number, code=code, **details)
        if not has_served:
            self.code, self.close_at = code if code > 0 else 1, 0.0
            self._stop(signal.SIGTERM, None)

    def _reload(self, number: int, frame: FrameType | None) -> None:
        """Let all workers load newer models, and those that died start again."""
        self._send_to_workers(number, frame)
        for restarts in self.restarts:
            restarts.hurry()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Stop being ready, and close the socket after the drain time; at once on Ctrl-C."""
        now = time.monotonic()
        if number == signal.SIGINT:
            self.code, self.close_at = INTERRUPTED, now
        if not self.stopping:
            self.stopping = True
            self.close_at = min(self.close_at, now + self.settings.drain)
        self._send_to_workers(signal.SIGTERM, frame)

    def _close(self) -> None:
        """Close the socket for all workers, including one that is still starting; then let them finish."""
        self.close_at = float("inf")
        remove_path(self.settings)
        ignore_new_connections(self.sock)
        wait_until_accepted(self.sock)
        with suppress(OSError):  # the socket may not listen yet
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
        self._send_to_workers(signal.SIGUSR1, None)

    def _send_to_workers(self, number: int, frame: FrameType | None) -> None:
        for process in list(self.processes.values()):
            with suppress(ProcessLookupError):  # it ends just now
                if process.is_alive():
                    os.kill(process.pid, number)


def worker(*arguments: Any) -> None:
    """Run one worker, the target of its process."""
    from zipfel.server.worker import work

    try:
        work(*arguments)
    except ZipfelError as error:
        log.line("cannot serve", level="error", error=str(error))
        log.flush()
        sys.exit(2)
