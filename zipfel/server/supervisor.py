"""The main process: binds the port, starts the workers, forwards signals, and replaces a worker that dies."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from ctypes import c_double
from multiprocessing import connection, get_context
from pathlib import Path
from types import FrameType
from typing import Any

from zipfel.errors import INTERRUPTED, ZipfelError
from zipfel.server import log
from zipfel.server.door import bound, ignore_new_connections, wait_until_accepted
from zipfel.server.measures import LENGTH, STARTS
from zipfel.server.settings import ServeSettings

PAUSE = 1.0  # seconds before a dead worker is restarted


def serve(folders: Mapping[str, Path], settings: ServeSettings, token: str | None = None) -> int:
    """Serve models until a signal stops it; return the exit code."""
    with bound(settings) as sock:
        if settings.workers > 1:
            return Supervisor(folders, settings, token, sock).run()
        from zipfel.server.worker import work

        return work(folders, settings, token, sock)


class Supervisor:
    """Starts workers, and waits until all have ended. It spawns, never forks: torch's state does not survive a fork."""

    def __init__(
        self, folders: Mapping[str, Path], settings: ServeSettings, token: str | None, sock: socket.socket
    ) -> None:
        self.context = get_context("spawn")
        self.shared = self.context.RawArray(c_double, LENGTH * settings.workers)
        self.arguments = (dict(folders), settings, token, sock, self.shared)
        self.sock, self.workers, self.stopping, self.code = sock, settings.workers, False, 0
        self.processes: dict[int, Any] = {}

    def run(self) -> int:
        """Run until all workers have ended."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._send_to_workers)
        for number in range(self.workers):
            self._start(number)
        while self.processes:
            connection.wait([process.sentinel for process in self.processes.values()])
            for number, process in list(self.processes.items()):
                if process.exitcode is not None:
                    self._ended(number, process.exitcode)
        return self.code

    def _start(self, number: int) -> None:
        if self.stopping:
            return
        process = self.context.Process(target=worker, args=(*self.arguments, number), name=f"zipfel-{number}")
        process.start()
        self.processes[number] = process

    def _ended(self, number: int, code: int) -> None:
        """Replace a worker that died; stop the service if the worker never started to serve."""
        del self.processes[number]
        if self.stopping:
            return
        log.line("worker ended", level="error", worker=number, code=code)
        if self.shared[number * LENGTH + STARTS]:
            time.sleep(PAUSE)
            self._start(number)
        else:
            self.code = code if code > 0 else 1
            self._stop(signal.SIGTERM, None)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        """Close the socket for all workers, including one that is still starting; then stop them."""
        if number == signal.SIGINT:
            self.code = INTERRUPTED
        if not self.stopping:
            self.stopping = True
            ignore_new_connections(self.sock)
            wait_until_accepted(self.sock)
            with suppress(OSError):  # the socket may not listen yet
                self.sock.shutdown(socket.SHUT_RDWR)
            self.sock.close()
        self._send_to_workers(signal.SIGTERM, frame)

    def _send_to_workers(self, number: int, frame: FrameType | None) -> None:
        for process in list(self.processes.values()):
            if process.is_alive():
                os.kill(process.pid, number)


def worker(*arguments: Any) -> None:
    """Run one worker, the target of its process."""
    from zipfel.server.worker import work

    try:
        work(*arguments)
    except ZipfelError as error:
        log.line("cannot serve", level="error", error=str(error))
        sys.exit(2)
