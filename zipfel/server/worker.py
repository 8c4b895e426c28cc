"""One worker: loads the models, serves requests, reloads on SIGHUP, and responds to all it accepted before it stops."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import parent_process
from types import FrameType
from typing import Any

import torch
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from zipfel.errors import INTERRUPTED
from zipfel.server import door, log
from zipfel.server.access import Tokens
from zipfel.server.app import built
from zipfel.server.catalog import Catalog
from zipfel.server.connection import IDLE, UNIX, Connection, Crowd
from zipfel.server.gate import Gate
from zipfel.server.measures import Measures
from zipfel.server.service import Service
from zipfel.server.settings import ServeSettings, Sources
from zipfel.server.signals import hold_signals, signals_arrive
from zipfel.server.tls import Tls, tls_context

BACKLOG = 2048  # connections that may wait to be accepted
LINGER = 1.0  # seconds that connections stay open at the end, for requests in transit
SWITCH = 0.0005  # seconds until a tagging thread yields to others: with 0.005, p99 under load is a sixth longer
GRACE = 30  # seconds to finish requests in progress at the end
LAST_READ = 2.0  # seconds without a byte sent after which a client counts as gone at the end
LAST_BODY = 5.0  # seconds for the rest of request bodies to arrive at the end
Handler = Callable[[int, FrameType | None], None]
LATE = 2 * door.PATIENCE  # seconds after the drain time at which a worker stops without word from the main process


class Server(uvicorn.Server):
    """Handles signals, and stops without losing accepted requests."""

    def __init__(self, config: uvicorn.Config, service: Service, gate: Gate, crowd: Crowd) -> None:
        super().__init__(config)
        self.service, self.gate, self.crowd = service, gate, crowd
        self.settings = service.settings
        self.is_child = parent_process() is not None
        self.tasks, self.interrupted = set[asyncio.Task[None]](), False
        self.stop_at = float("inf")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals while serving; none is raised again at the end, so that an orderly stop ends without error."""
        ours: dict[signal.Signals, Handler] = {signal.SIGTERM: self._on_terminate, signal.SIGHUP: self._on_hangup}
        # With several processes Ctrl-C reaches all of them; only the main process reacts, and stops the workers.
        ours[signal.SIGINT] = _ignore if self.is_child else self._on_interrupt
        ours[signal.SIGUSR1] = self.handle_exit if self.is_child else _ignore
        before = {number: signal.signal(number, handler) for number, handler in ours.items()}
        try:
            yield
        finally:
            hold_signals()  # one that comes now must not turn an orderly end into a death
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_terminate(self, number: int, frame: FrameType | None) -> None:
        """Stop being ready, and stop after the drain time; a worker then waits for the main process's word."""
        self.service.ready, self.gate.draining = False, True
        if not self.started or not (self.settings.drain or self.is_child):
            self.should_exit = True
        else:
            self.loop.call_soon_threadsafe(self._stop_after, self.settings.drain + (LATE if self.is_child else 0))

    def _stop_after(self, seconds: float) -> None:
        if self.stop_at == float("inf"):
            log.line("draining", seconds=self.settings.drain)
            self.stop_at = self.loop.time() + seconds

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self.interrupted = True
        self.handle_exit(number, frame)

    def _on_hangup(self, number: int, frame: FrameType | None) -> None:
        self.loop.call_soon_threadsafe(self._reload)

    def _reload(self) -> None:
        """Read tokens and certificates again, and load newer models."""
        for what, read in (("tokens", self.gate.tokens.read_again), ("certificate", self._read_certificate)):
            try:
                read()
            except Exception as problem:
                log.line("reload failed", level="error", what=what, error=str(problem))
        task = self.loop.create_task(self.service.swap())
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _read_certificate(self) -> None:
        """Use the current certificate for new connections; if it cannot be used, the old one stays."""
        if self.settings.tls_cert is not None:
            self.config.ssl = tls_context(self.settings)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self.loop = asyncio.get_running_loop()
        parent = parent_process()
        if parent is not None:  # stop when the main process is gone
            self.loop.add_reader(parent.sentinel, lambda: setattr(self, "should_exit", True))
        await self.lifespan.startup()
        self.service.start()
        self.servers = [await self._listen(sock) for sock in sockets or []]
        self.started = True
        self.gate.measures.start()
        log.line("serving", **_address((sockets or [])[0]), models=self.service.models()["models"])
        signals_arrive()

    async def _listen(self, sock: socket.socket) -> asyncio.Server:
        create = self.loop.create_unix_server if sock.family == socket.AF_UNIX else self.loop.create_server
        return await create(self._connection, sock=sock, backlog=BACKLOG)

    def _connection(self) -> Connection | Tls:
        connection = Connection(self.config, self.server_state, self.crowd)
        return connection if self.config.ssl is None else Tls(connection, self.config.ssl)

    async def on_tick(self, counter: int) -> bool:
        """Close dead connections every second; stop at the end of the drain time."""
        if counter % 10 == 0:
            self.crowd.drop_gone(self.loop.time())
            self.gate.measures.process(log.lost())
        return await super().on_tick(counter) or self.loop.time() >= self.stop_at

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, respond to all requests on open connections, then close the connections."""
        log.line("stopping")
        self.service.ready, self.gate.draining = False, True
        dropping = self.loop.create_task(self._drop_gone())
        await self._accept_pending(sockets or [])
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        end = self.loop.time() + LINGER
        while self.server_state.connections and self.loop.time() < end and not self.force_exit:
            await asyncio.sleep(0.02)
        await super().shutdown()
        dropping.cancel()
        await self.service.stop()
        log.line("stopped")

    async def _drop_gone(self) -> None:
        """Close dead connections sooner than before: a client that does not read, or send, must not delay the end."""
        start = self.loop.time()
        while True:
            self.crowd.drop_gone(self.loop.time(), LAST_READ)
            if self.loop.time() >= start + LAST_BODY:
                self.crowd.refuse_unfinished()
            await asyncio.sleep(0.1)

    async def _accept_pending(self, sockets: list[socket.socket]) -> None:
        """Accept pending connections but no new ones; with several processes, the main process has done so."""
        if not self.is_child:
            door.remove_path(self.settings)
            await asyncio.sleep(0 if self.settings.unix_socket is None else door.UNIX_PATIENCE)
            end = self.loop.time() + door.PATIENCE
            for sock in sockets:
                door.ignore_new_connections(sock)
                while door.pending_connections(sock) and self.loop.time() < end:
                    await asyncio.sleep(0.01)


def _address(sock: socket.socket) -> dict[str, Any]:
    """Return where a socket listens, for the log."""
    name = sock.getsockname()
    return {"path": name} if sock.family == socket.AF_UNIX else {"host": name[0], "port": name[1]}


def _ignore(number: int, frame: FrameType | None) -> None:
    pass


def work(
    sources: Sources, settings: ServeSettings, sock: socket.socket, shared: Any = None, number: int = 0
) -> int:  # fmt: skip
    """Serve models on a socket until a signal stops it; return the exit code."""
    sys.setswitchinterval(SWITCH)
    torch.set_num_threads(1)  # batches are small: two threads would wait for each other longer than they compute
    _allow_many_files()
    measures = Measures(shared, settings.workers, number)
    service = Service(Catalog(sources, settings.device, settings.copy), settings, measures)
    gc.collect()
    gc.freeze()  # models stay: scanning their hundreds of thousands of objects at each collection would stall requests
    gate = Gate(built(service), measures, settings, Tokens.of(settings.token_file))
    logging.getLogger("uvicorn").handlers = [log.JsonLines(logging.WARNING)]
    server = Server(_config(gate, settings), service, gate, Crowd(settings, gate.refused))
    log.start()
    server.run([sock])
    log.flush()
    return INTERRUPTED if server.interrupted else 0


def _config(gate: Gate, settings: ServeSettings) -> uvicorn.Config:
    """Return uvicorn's configuration."""
    app = ProxyHeadersMiddleware(gate, [UNIX, *settings.trusted_proxies])  # type: ignore[arg-type]
    config = uvicorn.Config(
        app, http=Connection, ws="none", lifespan="off", log_config=None, log_level="warning", access_log=False,
        server_header=False, proxy_headers=False, interface="asgi3", timeout_keep_alive=IDLE,
        timeout_graceful_shutdown=GRACE,
        ssl_context_factory=None if settings.tls_cert is None else lambda *_: tls_context(settings),
    )  # fmt: skip
    config.load()
    return config


def _allow_many_files() -> None:
    """Raise the limit of open files, so that it is ours of connections which counts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(8192, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
