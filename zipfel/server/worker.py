"""One worker: loads the models, serves requests, reloads on SIGHUP, and responds to all it accepted before it stops."""

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

from zipfel.errors import INTERRUPTED
from zipfel.server import door, log
from zipfel.server.app import built
from zipfel.server.catalog import Catalog
from zipfel.server.gate import Gate
from zipfel.server.measures import Measures
from zipfel.server.service import Service
from zipfel.server.settings import ServeSettings

CONNECTIONS = 1000  # at a time; more get status 503
HEAD = 64 << 10  # maximum bytes of a request's headers
IDLE = 75  # seconds after which a connection without a request is closed
LINGER = 1.0  # seconds that connections stay open at the end, for requests in transit
SWITCH = 0.0005  # seconds until a tagging thread yields to others: with 0.005, p99 under load is a sixth longer
GRACE = 30  # seconds to finish requests in progress at the end


class Connection(HttpToolsProtocol):
    """A connection with limits on the size of request headers and on the time to send them."""

    awaits_head = True
    head = 0  # header bytes received of the current request

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request."""
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(IDLE, self.timeout_keep_alive_handler)

    def data_received(self, data: bytes) -> None:
        """Process received bytes; the timer keeps running until the headers are complete."""
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        self.head += len(data)
        super().data_received(data)
        if self.awaits_head and self.head > HEAD and not self.transport.is_closing():
            self.send_400_response(f"The request's headers exceed {HEAD} bytes.")
        if timer is not None and self.awaits_head and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = timer
        elif timer is not None:
            timer.cancel()

    def on_headers_complete(self) -> None:
        """Expect the body, whose size is limited where it is read."""
        self.awaits_head, self.head = False, 0
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next request."""
        self.awaits_head, self.head = True, 0
        super().on_message_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection unless a request is in progress."""
        if self.cycle is None or self.cycle.response_complete:
            super().timeout_keep_alive_handler()


class Server(uvicorn.Server):
    """Handles signals, and stops without losing accepted requests."""

    def __init__(self, config: uvicorn.Config, service: Service, gate: Gate) -> None:
        super().__init__(config)
        self.service, self.gate = service, gate
        self.swaps, self.interrupted = set[asyncio.Task[None]](), False

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; none is raised again at the end, so that an orderly stop ends without error."""
        parent = parent_process()
        ours = {signal.SIGTERM: self.handle_exit, signal.SIGHUP: self._on_hangup}
        # With several processes Ctrl-C reaches all of them; only the main process reacts, and stops the workers.
        ours[signal.SIGINT] = self._on_interrupt if parent is None else _ignore
        before = {number: signal.signal(number, handler) for number, handler in ours.items()}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        self.handle_exit(number, frame)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.loop.call_soon_threadsafe(self._swap)

    def _swap(self) -> None:
        task = self.loop.create_task(self.service.swap())
        self.swaps.add(task)
        task.add_done_callback(self.swaps.discard)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self.loop = asyncio.get_running_loop()
        parent = parent_process()
        if parent is not None:  # stop when the main process is gone
            self.loop.add_reader(parent.sentinel, lambda: setattr(self, "should_exit", True))
        self.service.start()
        await super().startup(sockets)
        self.gate.measures.start()
        host, port, *_ = (sockets or [])[0].getsockname()
        log.line("serving", host=host, port=port, models=self.service.models()["models"])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, respond to all requests on open connections, then close the connections."""
        log.line("stopping")
        self.service.ready, self.gate.draining = False, True
        await self._accept_pending(sockets or [])
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

    async def _accept_pending(self, sockets: list[socket.socket]) -> None:
        """Accept pending connections but no new ones; with several processes, the main process has done so."""
        if parent_process() is None:
            end = self.loop.time() + door.PATIENCE
            for sock in sockets:
                door.ignore_new_connections(sock)
                while door.pending_connections(sock) and self.loop.time() < end:
                    await asyncio.sleep(0.01)


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def work(
    folders: Mapping[str, Path], settings: ServeSettings, token: str | None, sock: socket.socket,
    shared: Any = None, number: int = 0,
) -> int:  # fmt: skip
    """Serve models on a socket until a signal stops it; return the exit code."""
    sys.setswitchinterval(SWITCH)
    torch.set_num_threads(1)  # batches are small: two threads would wait for each other longer than they compute
    measures = Measures(shared, settings.workers, number)
    service = Service(Catalog(dict(folders), settings.copy), settings, measures)
    gc.collect()
    gc.freeze()  # models stay: scanning their hundreds of thousands of objects at each collection would stall requests
    gate = Gate(built(service), measures, token)
    logging.getLogger("uvicorn").handlers = [log.JsonLines(logging.WARNING)]
    config = uvicorn.Config(
        gate, http=Connection, ws="none", lifespan="off", log_config=None, log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, interface="asgi3", limit_concurrency=CONNECTIONS,
        timeout_keep_alive=IDLE, timeout_graceful_shutdown=GRACE,
    )  # fmt: skip
    server = Server(config, service, gate)
    server.run([sock])
    return INTERRUPTED if server.interrupted else 0
