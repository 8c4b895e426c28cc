"""The page in a real browser, served by `zipfel serve` with small models trained for the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tickets import LABEL_TEXTS, THINGS, TICKETS, TOKEN

expect.set_options(timeout=10_000)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folders of models: of tickets, with label texts; of things, without; of memos, with text fields."""
    from zipfel import Tagger

    folder = tmp_path_factory.mktemp("models")
    settings = {"min_steps": 1, "dimension": 16, "epochs": 30}
    for name, (rows, label_texts) in {"tickets": (TICKETS, LABEL_TEXTS), "things": (THINGS, None)}.items():
        texts, tags = zip(*rows * 5, strict=True)
        tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0, device="cpu")
        parents = {"printer": "hardware"} if name == "tickets" else None
        tagger.fit(texts, tags, label_texts=label_texts, parents=parents).save(folder / name)
    texts, tags = zip(*TICKETS * 5, strict=True)
    fields = {"title": [text.split()[0] for text in texts], "body": [text.partition(" ")[2] for text in texts]}
    tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0, device="cpu")
    tagger.fit(fields, tags).save(folder / "memos")
    return {name: folder / name for name in ("tickets", "things", "memos")}


class Server:
    """A running service, and its responses without a browser."""

    def __init__(self, words: list[str], log: Path, token: str | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "ZIPFEL_TOKEN"}
        environment |= {"ZIPFEL_TOKEN": token} if token else {}
        command = [sys.executable, "-m", "zipfel", "serve", *words, "--port", "0"]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stderr=errors, env=environment)
        self.log = log

    @cached_property
    def url(self) -> str:
        """The address, as soon as the service listens: services start in parallel."""
        end = time.monotonic() + 180  # a busy machine is no failure
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.log.read_text().splitlines():
                if '"serving"' in line and line.endswith("}"):
                    return f"http://127.0.0.1:{json.loads(line)['port']}/"
            time.sleep(0.05)
        raise AssertionError(f"zipfel serve did not start:\n{self.log.read_text()}")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as answer:
            return json.load(answer)

    def post(self, path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def tags(self, text: str) -> dict[str, float]:
        return {tag["label"]: tag["score"] for tag in self.post("tag", texts=[text], k=50)["tags"][0]}


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory, models: dict[str, Path]) -> Iterator[dict[str, Server]]:
    """Run a service of one model without a token, one of two with a token, and one whose first model has fields."""
    log = tmp_path_factory.mktemp("logs")
    tickets, things, memos = (str(folder) for folder in models.values())
    running = {
        "open": Server([tickets], log / "open"),
        "locked": Server([tickets, things], log / "locked", TOKEN),
        "fielded": Server([memos, tickets, "--corrections", str(log / "kept")], log / "fielded"),
    }
    yield running
    for server in running.values():
        server.process.terminate()
    assert [server.process.wait(30) for server in running.values()] == [0, 0, 0]


@pytest.fixture(scope="session")
def server(servers: dict[str, Server]) -> Server:
    return servers["open"]


@pytest.fixture(scope="session")
def locked(servers: dict[str, Server]) -> Server:
    return servers["locked"]


@pytest.fixture(scope="session")
def fielded(servers: dict[str, Server]) -> Server:
    return servers["fielded"]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "chromium is missing; `make test-page` installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """Opens pages and watches them: no page may fail, violate the policy, or contact another host."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self.browser, self.server = browser, server
        self.contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        self.asked: list[str] = []

    def __call__(self, path: str = "", *, server: Server | None = None, **options: Any) -> Page:
        context = self.browser.new_context(**options)
        self.contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda entry: self._heard(entry.type, entry.text))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto((server or self.server).url + path)
        return page

    def _heard(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):  # expected error statuses
            self.complaints.append(text)

    def close(self) -> None:
        for context in self.contexts:
            context.close()


@pytest.fixture
def tab(browser: Browser, server: Server) -> Iterator[Tab]:
    tab = Tab(browser, server)
    yield tab
    tab.close()
    assert tab.complaints == []
    hosts = {urlsplit(url).hostname for url in tab.asked if not url.startswith("blob:")}
    assert hosts <= {"127.0.0.1"}


@pytest.fixture
def page(tab: Tab) -> Page:
    return tab()
