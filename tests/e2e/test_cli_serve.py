"""`zipfel serve` as a separate process: signals, swaps, limits and hostile requests."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

from benchmarks.serve_hostile import hostile, large
from zipfel.tagger import Tagger

WAIT = 60.0  # seconds: a busy machine is no reason to fail
TEXTS = ["the printer is out of paper", "paper jam in the printer", "no wifi here", "the wifi is slow today"] * 5
TAGS = [["printer"], ["printer"], ["network"], ["network", "slow"]] * 5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, model, seed in (("first", "glas", 0), ("second", "glas", 1), ("light", "lightdxml", 0)):
        tagger = Tagger(
            model, settings={"dimension": 16, "epochs": 2, "min_steps": 1}, text={"min_count": 1}, seed=seed
        )
        tagger.fit(TEXTS, TAGS, label_texts={"printer": "printers"}).save(folder / name)
    return folder


class Server:
    """A running server and its log."""

    def __init__(self, log: Path, *words: object, started: bool = True, **environment: str) -> None:
        self.log = log
        command = [sys.executable, "-m", "zipfel", "serve", *map(str, words), "--port", "0"]
        with log.open("wb") as out:
            self.process = subprocess.Popen(command, stderr=out, env={**os.environ, **environment})
        if started:
            self.event("serving")

    @cached_property
    def port(self) -> int:
        return int(self.event("serving")["port"])

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().split("\n") if line.endswith("}")]

    def event(self, name: str, count: int = 1) -> dict[str, Any]:
        """Wait until an event has been logged `count` times, and return the last."""
        end = time.monotonic() + WAIT
        while time.monotonic() < end and self.process.poll() is None:
            events = [event for event in self.events() if event["event"] == name]
            if len(events) >= count:
                return events[-1]
            time.sleep(0.02)
        raise AssertionError(f"no {name}: {self.log.read_text()}")

    def ask(self, method: str, path: str, body: bytes | str | None = None, **headers: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT)
        try:
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        is_json = answer.headers.get_content_type() == "application/json"
        return answer.status, json.loads(content) if is_json else content.decode()

    def tag(self, text: str) -> tuple[int, Any]:
        return self.ask("POST", "/tag", json.dumps({"texts": [text], "k": 1}))

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(WAIT)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def started(*words: object, **environment: str) -> Server:
        servers.append(Server(tmp_path / f"log{len(servers)}", *words, **environment))
        return servers[-1]

    yield started
    for server in servers:
        server.process.kill()
        server.process.wait(WAIT)


@pytest.fixture(scope="module")
def one(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that several tests use; it must still work, without a failure, after all of them."""
    log = tmp_path_factory.mktemp("one") / "log"
    server = Server(log, models / "first", f"other={models / 'light'}", "--max-body", 100_000, "--max-length", 10_000)
    yield server
    assert server.tag("paper")[0] == 200
    assert server.stop() == 0
    assert [event for event in server.events() if event["event"] == "failure"] == []


class Load:
    """Clients that send requests until the end, each on its own connection, and keep the responses."""

    def __init__(self, server: Server, clients: int = 8) -> None:
        self.server, self.ended = server, threading.Event()
        self.answers: list[tuple[int, str]] = []
        self.lost: list[str] = []
        self.threads = [threading.Thread(target=self._run) for _ in range(clients)]

    def __enter__(self) -> Load:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join(WAIT)

    def _run(self) -> None:
        body = json.dumps({"texts": ["paper and wifi"], "k": 2})
        while not self.ended.is_set():
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=WAIT)
            try:
                connection.connect()
            except ConnectionRefusedError:  # it no longer listens: nothing was accepted
                return
            try:
                self._ask_on(connection, body)
            except (OSError, http.client.HTTPException) as problem:
                self.lost.append(repr(problem))
                return
            finally:
                connection.close()

    def _ask_on(self, connection: http.client.HTTPConnection, body: str) -> None:
        """Send requests until the server ends this connection."""
        while not self.ended.is_set():
            connection.request("POST", "/tag", body)
            answer = connection.getresponse()
            content = json.loads(answer.read())
            self.answers.append((answer.status, content["model"]["version"] if answer.status == 200 else ""))
            if answer.headers["connection"] == "close":
                return

    def wait_for(self, more: int) -> None:
        end, wanted = time.monotonic() + WAIT, len(self.answers) + more
        while len(self.answers) < wanted and time.monotonic() < end and not self.lost:
            time.sleep(0.01)
        assert self.lost == []
        assert len(self.answers) >= wanted


@pytest.mark.parametrize("workers", [1, 2])
def test_no_request_is_lost_when_models_are_swapped_and_when_the_server_stops(start, models, tmp_path, workers):
    link = tmp_path / "current"
    link.symlink_to(models / "first")
    server = start(f"m={link}", "--workers", workers)
    server.event("serving", workers)
    versions = [server.tag("paper")[1]["model"]["version"]]

    def turn(target: str, swaps: int) -> str:
        newer = tmp_path / "newer"
        newer.symlink_to(models / target)
        newer.rename(link)
        server.process.send_signal(signal.SIGHUP)
        return str(server.event("swap", swaps * workers)["after"])

    with Load(server) as load:
        load.wait_for(50)
        for swaps, target in enumerate(["second", "first"], 1):
            versions.append(turn(target, swaps))
            seen = len(load.answers)
            load.wait_for(50)
            late = load.answers[seen + len(load.threads) :]  # earlier requests may still have been on their way
            assert {version for _, version in late} == {versions[-1]}
        server.process.terminate()
        for thread in load.threads:
            thread.join(WAIT)
    assert server.process.wait(WAIT) == 0
    assert versions[0] == versions[2] != versions[1]
    assert load.lost == []
    assert {status for status, _ in load.answers} == {200}
    logged = [event for event in server.events() if event["event"] == "request"]
    assert len(logged) == len(load.answers) + 1


def keeps(pid: int, number: signal.Signals) -> bool:
    """Whether a signal no longer ends a process: it waits or is handled."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    masks = [int(line.split()[1], 16) for line in lines if line.startswith(("SigBlk", "SigCgt"))]
    return any(mask >> (number - 1) & 1 for mask in masks)


def test_early_signals_are_kept_and_sigterm_drains(start, models, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(models / "first")
    server = Server(tmp_path / "log", f"m={link}", "--workers", 2, "--drain", 1.5, started=False)
    try:
        end = time.monotonic() + WAIT
        while not keeps(server.process.pid, signal.SIGHUP):  # Python itself is starting
            assert server.process.poll() is None, server.log.read_text()
            assert time.monotonic() < end
            time.sleep(0.001)
        while '"serving"' not in server.log.read_text() and time.monotonic() < end:
            server.process.send_signal(signal.SIGHUP)
            time.sleep(0.1)
        (tmp_path / "newer").symlink_to(models / "second")
        (tmp_path / "newer").rename(link)
        server.process.send_signal(signal.SIGHUP)  # one worker is ready, the other one is not
        server.event("serving", 2)
        second = json.loads((models / "second" / "model.json").read_text())["sha256"][:12]
        end = time.monotonic() + WAIT
        while {server.tag("paper")[1]["model"]["version"] for _ in range(8)} != {second}:
            assert time.monotonic() < end
        assert "worker ended" not in server.log.read_text()
        server.process.terminate()
        server.event("draining", 2)
        assert {server.ask("GET", "/ready")[0] for _ in range(4)} == {503}
        assert {server.tag("paper")[0] for _ in range(4)} == {200}
        assert server.process.wait(WAIT) == 0
    finally:
        server.process.kill()
        server.process.wait(WAIT)


def test_signals_are_held_before_the_command_line_is_imported():
    code = """if True:
        import signal, sys, types
        imported = lambda: [name in sys.modules for name in ("typer", "zipfel.server")]
        held = lambda: print(*sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())), *imported())
        sys.modules["zipfel.cli.main"] = types.ModuleType("zipfel.cli.main")
        sys.modules["zipfel.cli.main"].main = held
        from zipfel.__main__ import main
        main()"""
    held = f"{signal.SIGHUP} {signal.SIGUSR1} False True\n"
    for command, said in (("serve", held), ("train", "False False\n")):  # Windows has no SIGHUP, and must not need one
        run = subprocess.run([sys.executable, "-c", code, command], capture_output=True, check=True)
        assert run.stdout.decode() == said


def test_a_sighup_that_nobody_has_handled_does_not_end_a_service_that_stops_while_it_starts(models, tmp_path):
    server = Server(tmp_path / "log", models / "first", started=False)
    try:
        end = time.monotonic() + WAIT
        while not all(keeps(server.process.pid, number) for number in (signal.SIGHUP, signal.SIGTERM)):
            assert time.monotonic() < end
            time.sleep(0.001)
        server.process.send_signal(signal.SIGHUP)
        assert server.stop() in (0, 143)  # 143 before it loads models
    finally:
        server.process.kill()
        server.process.wait(WAIT)


def mapped(pid: int, name: str) -> dict[str, int]:
    """Return Linux' statistics on the mapping of a file in a process, in kB."""
    sizes: dict[str, int] = {}
    inside = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            inside = line.endswith(name)
        elif inside and words[-1] == "kB":
            sizes[words[0]] = sizes.get(words[0], 0) + int(words[1])
    return sizes


def test_workers_end_with_sigbus_when_weights_are_cut_short_and_return_with_sound_ones(start, models, tmp_path):
    shutil.copytree(models / "first", tmp_path / "first")
    weights = next((tmp_path / "first").rglob("serve/weights.safetensors"))
    server = start(tmp_path / "first", "--workers", 2)
    server.event("serving", 2)
    sound = weights.read_bytes()
    os.truncate(weights, 0)
    with contextlib.suppress(OSError, http.client.HTTPException):  # until a worker dies while it answers
        for _ in range(20):
            server.tag("paper")
    ended = server.event("worker ended")
    assert (ended["code"], ended["restart_in"]) == (-signal.SIGBUS, 1.0)
    assert "files of a model were cut short" in ended["error"]
    assert "weights.safetensors" in server.event("cannot serve")["error"]  # it does not serve what is left of them
    again = server.event("worker ended", 2)
    if again["worker"] == ended["worker"]:
        assert (again["code"], again["restart_in"]) == (2, 2.0)
    weights.write_bytes(sound)
    server.process.send_signal(signal.SIGHUP)
    server.event("serving", 3)
    assert server.tag("paper")[0] == 200
    assert server.stop() == 0


def test_workers_share_one_mapped_copy_and_a_dead_worker_is_replaced(start, models):
    server = start(models / "first", f"light={models / 'light'}", "--workers", 2)
    server.event("serving", 2)
    for name in ("first", "light") * 10:
        assert server.ask("POST", "/tag", json.dumps({"texts": ["paper"], "model": name}))[0] == 200
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    workers = [pid for pid in map(int, children) if mapped(pid, "serve/weights.safetensors")]
    assert len(workers) == 2
    for pid in workers:
        for name in ("first", "light"):
            pages = mapped(pid, f"{name}/serve/weights.safetensors")
            assert pages["Rss:"] > 0
            assert pages["Private_Dirty:"] == pages["Shared_Dirty:"] == 0  # no page was written, so none was copied
    os.kill(workers[0], signal.SIGKILL)
    server.event("serving", 3)
    assert all(server.tag("paper")[0] == 200 for _ in range(4))
    end, wanted = time.monotonic() + WAIT, 'zipfel_requests_total{route="/tag",status="200"} 24\n'
    while wanted not in (counted := server.ask("GET", "/metrics")[1]):  # of all workers, including the dead one
        assert time.monotonic() < end, counted  # a request is counted just after its response
    assert "zipfel_starts_total 3" in counted
    assert server.stop() == 0


def test_it_listens_on_loopback_by_default(one):
    assert one.event("serving")["host"] == "127.0.0.1"
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", one.port)) != 0  # another address of this machine


def test_a_token_is_read_from_a_file_or_the_environment(start, models, tmp_path, zipfel_command):
    (tmp_path / "token").write_text("of-a-file\n")
    server = start(models / "first", "--token-file", tmp_path / "token", ZIPFEL_TOKEN="of-the-environment")
    assert server.ask("GET", "/models")[0] == 401
    assert server.ask("GET", "/models", Authorization="Bearer of-the-environment")[0] == 401
    assert server.ask("GET", "/models", Authorization="Bearer of-a-file")[0] == 200
    assert server.ask("GET", "/health")[0] == server.ask("GET", "/ready")[0] == 200
    for name, content in (("words", "a b c"), ("twice", "a b\na c"), ("foreign", "a bé"), ("empty", "# none\n")):
        (tmp_path / name).write_text(content)
    problems = {"words": "words:1: expected NAME TOKEN; found 3 words", "twice": "twice:2: a second token 'a'",
                "foreign": "foreign:1: the token must be printable ASCII", "empty": "empty: has no token",
                "none": "none: cannot be read"}  # fmt: skip
    for file, message in problems.items():
        outcome = zipfel_command("serve", models / "first", "--token-file", tmp_path / file)
        assert (outcome.code, message in outcome.err) == (2, True)


def test_a_folder_that_cannot_be_served_gives_one_line_of_error(tmp_path, zipfel_command):
    outcome = zipfel_command("serve", tmp_path, "--port", "0")
    assert outcome.code == 2
    assert f"error: {tmp_path}: not a saved model" in outcome.err
    command = [sys.executable, "-m", "zipfel", "serve", tmp_path, "--port", "0", "--workers", "2"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=WAIT, check=False)
    assert run.returncode == 2
    assert "not a saved model" in run.stderr
    assert "Traceback" not in run.stderr


def test_a_port_in_use_is_refused(one, models, zipfel_command):
    outcome = zipfel_command("serve", models / "first", "--port", one.port)
    assert outcome.code == 2
    assert f"cannot listen on 127.0.0.1 port {one.port}: Address already in use" in outcome.err


def test_hostile_bodies_are_refused_and_the_server_keeps_running(one):
    numbers = random.Random(0)
    statuses = [one.ask("POST", "/tag", hostile(numbers, 200_000))[0] for _ in range(400)]
    assert {status for status in statuses if status != 200} <= {400, 404, 413}
    assert statuses.count(400) > 100
    assert statuses.count(413) > 10
    assert {one.ask("POST", "/tag", large(numbers, size))[0] for size in (150_000, 1_000_000, 50_000_000)} == {413}
    assert one.tag("paper")[0] == 200


def test_a_large_request_within_the_limits_is_answered(one):
    status, answer = one.ask("POST", "/tag", json.dumps({"texts": ["paper " * 1600] * 10, "k": 1}))
    assert (status, len(answer["tags"])) == (200, 10)


RAW = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x00\xff\x00\xff\r\n\r\n",
    b"POST /tag HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /tag HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n",
    b"POST /tag HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET /health HTTP/1.1\r\nX: " + b"x" * 300_000,  # a head that does not end
    b"GET /" + b"y" * 300_000,
]


@pytest.mark.parametrize("raw", RAW, ids=lambda raw: raw[:24].decode("latin-1"))
def test_invalid_http_is_refused_and_its_connection_ends(one, raw):
    with socket.create_connection(("127.0.0.1", one.port), timeout=WAIT) as connection:
        answer = b""
        try:
            connection.sendall(raw)
            while data := connection.recv(4096):
                answer += data
        except ConnectionError:  # it was closed while we were still sending
            pass
    assert answer[:12] in (b"", b"HTTP/1.1 431" if len(raw) > 100_000 else b"HTTP/1.1 400")
    assert one.ask("GET", "/health")[0] == 200


def test_no_response_contains_a_path_of_the_server(one, models):
    asked = [("GET", path, None) for path in ("/", "/models", "/labels", "/labels/printer", "/metrics", "/docs",
                                              "/openapi.json", "/nowhere", "/page/x", "/labels?model=x")]  # fmt: skip
    for method, path, body in [*asked, ("POST", "/tag", "{"), ("POST", "/tag", '{"texts": [], "model": "x"}')]:
        answer = json.dumps(one.ask(method, path, body)[1])
        for secret in (str(models), "site-packages", "/tmp/", ".py", "Traceback"):
            assert secret not in answer, path


def test_responses_conform_to_the_openapi_document(one):
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{one.port}/openapi.json")
    asked = 0
    for operation in schema.get_all_operations():

        @given(case=operation.ok().as_strategy())
        @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
        def holds(case):
            nonlocal asked
            asked += 1
            case.call_and_validate()

        holds()
    assert asked >= 50  # routes without parameters are asked once
