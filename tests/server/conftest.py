from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from zipfel.server.access import Tokens
from zipfel.server.app import built
from zipfel.server.catalog import Catalog
from zipfel.server.gate import Gate
from zipfel.server.measures import Measures
from zipfel.server.service import Service
from zipfel.server.settings import ServeSettings, Sources
from zipfel.tagger import Tagger

TEXTS = ["the printer is out of paper", "paper jam in the printer", "no wifi here", "the wifi is slow today"] * 5
TAGS = [["printer"], ["printer"], ["network"], ["network", "slow / late"]] * 5
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
    tiny("glas", parents={"printer": ["hardware", "paper"], "slow / late": ["network"]}).save(folder / "tree")
    return folder


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
