"""One process of the service: loads the models, listens, swaps them on SIGHUP and leaves nobody without an answer."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import parent_process
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from zipfel.server import door, log
from zipfel.server.app import built
from zipfel.server.catalog import Catalog
from zipfel.server.gate import Gate
from zipfel.server.measures import Measures
from zipfel.server.service import Service
from zipfel.server.settings import ServeSettings

CONNECTIONS = 1000  # at a time; more are answered with 503
HEAD = 64 << 10  # bytes that the head of a request may have
IDLE = 75  # seconds that a connection may be without a request
LINGER = 1.0  # seconds in which a request that is on its way still finds its connection open
SWITCH = 0.0005  # seconds after which a thread that tags lets others go on: at 0.005 p99 under load is a sixth longer
GRACE = 30  # seconds that work in progress may take at the end


class Connection(HttpToolsProtocol):
    """A connection that can neither send a head without end, nor take for ever to send one."""

    awaits_head = True
    head = 0  # bytes that have come since anything was complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(IDLE, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Take what has come; the time to send a head goes on until all of it is there."""
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        self.head += len(data)
        super().data_received(data)
        if self.awaits_head and self.head > HEAD and not self.transport.is_closing():
            self.send_400_response("The head of the request is too large.")
        if timer is not None and self.awaits_head and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = timer
        elif timer is not None:
            timer.cancel()

    def on_headers_complete(self) -> None:
        """Go on with the body, which is counted where it is read."""
        self.awaits_head, self.head = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Wait for the next head."""
        self.awaits_head, self.head = True, 0
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which nothing is in work."""
        if self.cycle is None or self.cycle.response_complete:
            super().timeout_keep_alive_handler()


class Server(uvicorn.Server):
    """Takes signals, and stops without losing what it has accepted."""

    def __init__(self, config: uvicorn.Config, service: Service, gate: Gate) -> None:
        super().__init__(config)
        self.service, self.gate = service, gate
        self.swaps = set[asyncio.Task[None]]()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take signals while serving; none is raised again at the end, so that an orderly stop exits with 0."""
        parent = parent_process()
        ours = {signal.SIGTERM: self.handle_exit, signal.SIGHUP: self._on_hangup}
        # With several processes Ctrl-C reaches all of them; the first then tells the others.
        ours[signal.SIGINT] = self.handle_exit if parent is None else _nothing
        before = {number: signal.signal(number, handler) for number, handler in ours.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.loop.call_soon_threadsafe(self._swap)

    def _swap(self) -> None:
        task = self.loop.create_task(self.service.swap())
        self.swaps.add(task)
        task.add_done_callback(self.swaps.discard)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        self.loop = asyncio.get_running_loop()
        parent = parent_process()
        if parent is not None:  # without it nobody would stop this process
            self.loop.add_reader(parent.sentinel, lambda: setattr(self, "should_exit", True))
        self.service.start()
        await super().startup(sockets)
        self.gate.measures.start()
        host, port, *_ = (sockets or [])[0].getsockname()
        log.line("serving", host=host, port=port, models=self.service.models()["models"])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen no more; answer all that has come and is coming on open connections; then close those."""
        log.line("stopping")
        self.service.ready, self.gate.draining = False, True
        await self._close_door(sockets or [])
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        end = self.loop.time() + LINGER
        while self.server_state.connections and self.loop.time() < end and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown()
        await self.service.stop()
        log.line("stopped")

    async def _close_door(self, sockets: list[socket.socket]) -> None:
        """Take in those who are in line, and nobody else; with several processes, the first has done so."""
        if parent_process() is None:
            end = self.loop.time() + door.PATIENCE
            for sock in sockets:
                door.let_nobody_in(sock)
                while door.in_line(sock) and self.loop.time() < end:
                    await asyncio.sleep(0.01)


def _nothing(number: int, frame: FrameType | None) -> None:
    pass


def work(
    folders: Mapping[str, Path], settings: ServeSettings, token: str | None, sock: socket.socket,
    shared: Any = None, number: int = 0,
) -> None:  # fmt: skip
    """Serve models on a socket until told to stop."""
    sys.setswitchinterval(SWITCH)
    torch.set_num_threads(1)  # batches are small: two threads wait for each other longer than they compute
    measures = Measures(shared, settings.workers, number)
    service = Service(Catalog(dict(folders)), settings, measures)
    gc.collect()
    gc.freeze()  # models stay: to look through their hundreds of thousands of objects again and again stalls requests
    gate = Gate(built(service), measures, token)
    logging.getLogger("uvicorn").handlers = [log.JsonLines(logging.WARNING)]
    config = uvicorn.Config(
        gate, http=Connection, ws="none", lifespan="off", log_config=None, log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, interface="asgi3", limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE, timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    Server(config, service, gate).run([sock])
