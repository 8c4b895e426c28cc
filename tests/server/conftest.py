from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from zipfel.data.formats.concepts import CODE, NAME, SYNONYM, Concepts
from zipfel.server import worker
from zipfel.server.access import Tokens
from zipfel.server.app import built
from zipfel.server.catalog import Catalog
from zipfel.server.connection import Crowd
from zipfel.server.door import bound
from zipfel.server.gate import Gate
from zipfel.server.measures import Measures
from zipfel.server.service import Service
from zipfel.server.settings import ServeSettings, Sources
from zipfel.server.worker import Server, _config
from zipfel.tagger import Tagger

WAIT = 60.0  # seconds: a busy machine is no reason to fail

TEXTS = ["the printer is out of paper", "paper jam in the printer", "no wifi here", "the wifi is slow today"] * 5
TAGS = [["printer"], ["printer"], ["network"], ["network", "slow / late"]] * 5
PRINTER, NETWORK, DEVICE = (f"http://t.org/{name}" for name in ("printer", "network", "device"))
ABOUT = {"printer": "Printers and PAPER", "network": "Wifi, cables", "slow / late": "takes long"}


def tiny(model: str = "glas", seed: int = 0, parents: dict[str, list[str]] | None = None, **settings: Any) -> Tagger:
    """Return a model that is quick to train, and otherwise useless."""
    settings = {"dimension": 16, "epochs": 3, **settings} | ({"min_steps": 1} if model != "mnn" else {})
    tagger = Tagger(model, settings=settings, text={"min_count": 1}, validation=0, device="cpu", seed=seed)
    return tagger.fit(TEXTS, TAGS, label_texts=ABOUT, parents=parents)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with saved models."""
    folder = tmp_path_factory.mktemp("models")
    for model in ("glas", "lightdxml", "mnn"):
        tiny(model).save(folder / model)
    tiny("decaf").add_labels({"paper jam": "paper jam in the printer"}).remove_labels(["network"]).save(
        folder / "decaf"
    )
    tiny("glas", seed=1).save(folder / "newer")
    tiny("decaf").add_labels({"two\nlines": "wifi and paper"}).save(folder / "lines")
    tiny("glas", parents={"printer": ["hardware", "paper"], "slow / late": ["network"]}).save(folder / "tree")
    return folder


@pytest.fixture(scope="session")
def titled(models):
    """Return a folder with a model whose labels have titles."""
    concepts = Concepts()
    for uri, name in ((PRINTER, "Drucker"), (NETWORK, "Netze"), (DEVICE, "Geräte")):
        concepts.declare(uri)
        concepts.text(uri, NAME, name, "de")
    concepts.text(PRINTER, SYNONYM, "Kopierer", "de")
    concepts.text(PRINTER, CODE, "621.3")
    concepts.broader(PRINTER, DEVICE)
    settings = {"dimension": 16, "epochs": 3, "min_steps": 1}
    tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0, device="cpu")
    tagger.fit(
        TEXTS, [[PRINTER], [PRINTER], [NETWORK], [NETWORK]] * 5, label_texts=concepts.thesaurus(models / "t.ttl")
    )
    tagger.save(models / "titled")
    return models


class Client:
    """Sends requests to the application in this process, one at a time or several at once."""

    def __init__(self, runner: asyncio.Runner, service: Service, gate: Gate) -> None:
        self.runner, self.service, self.gate = runner, service, gate

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        return self.together((method, path, more))[0]

    def together(self, *requests: tuple[str, str, dict[str, Any]]) -> list[httpx.Response]:
        async def answers() -> list[httpx.Response]:
            transport = httpx.ASGITransport(self.gate, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
                return await asyncio.gather(*(client.request(m, path, **more) for m, path, more in requests))

        return self.runner.run(answers())

    def tag(self, texts: Any, **more: Any) -> httpx.Response:
        return self.ask("POST", "/tag", json={"texts": texts, **more})


@pytest.fixture
def serving(models: Path) -> Iterator[Callable[..., Client]]:
    """Return a function that serves models of the folder, by name, until the test ends."""
    with asyncio.Runner() as runner:
        services: list[Service] = []

        def serve(*names: str, token: str | None = None, **settings: Any) -> Client:
            catalog, measures = Catalog(Sources({name: [models / name] for name in names})), Measures()
            chosen = ServeSettings(**{"allowed_hosts": ("test",), **settings})
            service = Service(catalog, chosen, measures)
            services.append(service)

            async def start() -> None:
                service.start()

            runner.run(start())
            tokens = Tokens({} if token is None else {"ours": token})
            return Client(runner, service, Gate(built(service), measures, chosen, tokens))

        yield serve
        for service in services:
            runner.run(service.stop())


@pytest.fixture
def client(serving: Callable[..., Client]) -> Client:
    return serving("glas", "lightdxml", "mnn", "decaf")


class Listening:
    """A server on a free port, in a thread of this process: quicker to start than a process of its own."""

    def __init__(self, models: Path, *names: str, **settings: Any) -> None:
        self.settings, self.measures = ServeSettings(**{"port": 0, **settings}), Measures()
        self.service = Service(
            Catalog(Sources({name: [models / name] for name in names})), self.settings, self.measures
        )
        self.gate = Gate(built(self.service), self.measures, self.settings, Tokens.of(self.settings.token_file))
        self.crowd = Crowd(self.settings, self.gate.refused)
        self.server = Server(_config(self.gate, self.settings), self.service, self.gate, self.crowd)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()
        wait_until(lambda: self.server.started)

    def _run(self) -> None:
        loop = self.server.config.get_loop_factory()
        with bound(self.settings) as sock, asyncio.Runner(loop_factory=loop) as runner:
            runner.run(self.server._serve([sock]))

    def connect(self) -> socket.socket:
        """Return a new connection."""
        if self.settings.unix_socket is not None:
            sock = socket.socket(socket.AF_UNIX)
            sock.connect(str(self.settings.unix_socket))
        else:
            sock = socket.create_connection(("127.0.0.1", self.port))
        sock.settimeout(WAIT)
        return sock

    @property
    def port(self) -> int:
        return int(self.server.servers[0].sockets[0].getsockname()[1])

    def ask(self, request: bytes, half_close: bool = False) -> bytes:
        """Send a request and return all that the server sends until it closes the connection."""
        with self.connect() as sock:
            sock.sendall(request)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
            return received(sock)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(WAIT)
        assert not self.thread.is_alive()


def received(sock: socket.socket) -> bytes:
    """Return all that comes until the connection is closed."""
    content = b""
    with contextlib.suppress(ConnectionError):
        while data := sock.recv(65536):
            content += data
    return content


def wait_until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, and return its value."""
    end = time.monotonic() + WAIT
    while not (value := condition()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return value


@pytest.fixture
def listening(models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Listening]]:
    """Return a function that serves models of the folder on a port, until the test ends."""
    monkeypatch.setattr(worker, "LINGER", 0.05)
    servers: list[Listening] = []

    def listen(*names: str, **settings: Any) -> Listening:
        servers.append(Listening(models, *(names or ("glas",)), **settings))
        return servers[-1]

    yield listen
    for server in servers:
        if server.thread.is_alive():
            server.stop()
