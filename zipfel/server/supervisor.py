"""The first process: takes the port, starts the others, tells them what it is told, and replaces one that dies."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from ctypes import c_double
from multiprocessing import connection, get_context
from pathlib import Path
from types import FrameType
from typing import Any

from zipfel.errors import ConfigError, ZipfelError
from zipfel.server import log
from zipfel.server.measures import LENGTH
from zipfel.server.settings import ServeSettings

SOON = 5.0  # seconds: a process that ends within them would not fare better when started again


def serve(folders: Mapping[str, Path], settings: ServeSettings, token: str | None = None) -> int:
    """Serve models until told to stop, and return the exit code."""
    sock = bound(settings)
    if settings.workers > 1:
        return Supervisor(folders, settings, token, sock).run()
    from zipfel.server.worker import work

    work(folders, settings, token, sock)
    return 0


def bound(settings: ServeSettings) -> socket.socket:
    """Return a socket at the address; it begins to listen when a process is ready to answer."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        raise ConfigError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}") from None
    sock.set_inheritable(True)
    return sock


class Supervisor:
    """Starts processes, and stays until all have ended. Never forks: what torch holds would not survive that."""

    def __init__(
        self, folders: Mapping[str, Path], settings: ServeSettings, token: str | None, sock: socket.socket
    ) -> None:
        self.context = get_context("spawn")
        self.shared = self.context.RawArray(c_double, LENGTH * settings.workers)
        self.arguments = (dict(folders), settings, token, sock, self.shared)
        self.sock, self.workers, self.stopping, self.code = sock, settings.workers, False, 0
        self.processes: dict[int, Any] = {}
        self.started: dict[int, float] = {}

    def run(self) -> int:
        """Run until all processes have ended."""
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, self._pass_on)
        for number in range(self.workers):
            self._start(number)
        while self.processes:
            connection.wait([process.sentinel for process in self.processes.values()])
            for number, process in list(self.processes.items()):
                if process.exitcode is not None:
                    self._ended(number, process.exitcode)
        return self.code

    def _start(self, number: int) -> None:
        process = self.context.Process(target=worker, args=(*self.arguments, number), name=f"zipfel-{number}")
        process.start()
        self.processes[number], self.started[number] = process, time.monotonic()

    def _ended(self, number: int, code: int) -> None:
        """Replace a process that was not told to end; give up where that is in vain."""
        del self.processes[number]
        if self.stopping:
            return
        log.line("worker ended", level="error", worker=number, code=code)
        if time.monotonic() - self.started[number] < SOON:
            self.code = code if code > 0 else 1
            self._stop(signal.SIGTERM, None)
        else:
            self._start(number)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.stopping = True
        self.sock.close()  # else it would go on listening when nobody answers
        self._pass_on(signal.SIGTERM, frame)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        for process in list(self.processes.values()):
            if process.is_alive():
                os.kill(process.pid, number)


def worker(*arguments: Any) -> None:
    """Be one of the processes."""
    from zipfel.server.worker import work

    try:
        work(*arguments)
    except ZipfelError as error:
        log.line("cannot serve", level="error", error=str(error))
        sys.exit(2)
