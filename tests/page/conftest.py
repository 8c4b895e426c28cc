"""The page in a real browser, served by `zipfel serve` with a small model that was really trained."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tickets import LABEL_TEXTS, TICKETS, TOKEN

expect.set_options(timeout=4_000)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model of tickets, with texts of its labels."""
    from zipfel import Tagger

    texts, tags = zip(*TICKETS * 5, strict=True)
    settings = {"steps": 1, "dimension": 16, "epochs": 30}
    tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0, device="cpu")
    folder = tmp_path_factory.mktemp("models") / "tickets"
    tagger.fit(texts, tags, label_texts=LABEL_TEXTS).save(folder)
    return folder


class Server:
    """A running service, and its answers without a browser in between."""

    def __init__(self, words: list[str], log: Path, token: str | None = None) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "ZIPFEL_TOKEN"}
        environment |= {"ZIPFEL_TOKEN": token} if token else {}
        command = [sys.executable, "-m", "zipfel", "serve", *words, "--port", "0"]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(command, stderr=errors, env=environment)
        self.url = f"http://127.0.0.1:{self._port(log)}/"

    def _port(self, log: Path) -> int:
        end = time.monotonic() + 60
        while time.monotonic() < end and self.process.poll() is None:
            lines = [line for line in log.read_text().splitlines(keepends=True) if line.endswith("\n")]
            for entry in (json.loads(line) for line in lines if line.startswith("{")):
                if entry["event"] == "serving":
                    return int(entry["port"])
            time.sleep(0.05)
        self.stop()
        raise AssertionError(f"zipfel serve did not start:\n{log.read_text()}")

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

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


@pytest.fixture(scope="session")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Server]]:
    """Start services that are stopped at the end."""
    running: list[Server] = []

    def start(*words: str, token: str | None = None) -> Server:
        running.append(Server(list(words), tmp_path_factory.mktemp("serve") / "log", token))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture(scope="session")
def server(serve: Callable[..., Server], model: Path) -> Server:
    return serve(str(model))


@pytest.fixture(scope="session")
def locked(serve: Callable[..., Server], model: Path) -> Server:
    """Return a service that asks for a token."""
    return serve(str(model), token=TOKEN)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium")
    assert path, "chromium is missing; `make test-page` installs it"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


class Tab:
    """Opens pages and watches them: no page may fail, break the policy, or ask another host for anything."""

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
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):  # statuses that are meant
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
