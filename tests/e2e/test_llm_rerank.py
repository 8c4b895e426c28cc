"""examples/llm_rerank.py against a stub of a language model on loopback."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from examples.llm_rerank import Endpoint, rerank
from zipfel.tagger import Tagger

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "llm_rerank.py"
TEXTS = ["crushing chest pain", "broken wrist after a fall", "chest pain on exertion", "cough and fever"] * 5
TAGS = [["I21"], ["S62"], ["I20"], ["J18"]] * 5
NAMES = {"I21": "Heart attack", "S62": "Fracture at wrist", "I20": "Angina pectoris", "J18": "Pneumonia"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "icd"
    tagger = Tagger("linear", text={"min_count": 1}, validation=0, device="cpu").fit(TEXTS, TAGS, NAMES)
    tagger.save(folder)
    return folder


class Stub:
    """An endpoint that answers every request with one body, and notes what it was asked."""

    def __init__(self) -> None:
        self.status, self.body, self.asked = 200, b"", list[tuple[str, dict[str, object]]]()
        stub = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                stub.asked.append((self.path, json.loads(self.rfile.read(length))))
                self.send_response(stub.status)
                self.send_header("Content-Length", str(len(stub.body)))
                self.end_headers()
                self.wfile.write(stub.body)

            def log_message(self, *words: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"

    def says(self, content: str) -> None:
        self.status, self.body = 200, json.dumps({"choices": [{"message": {"content": content}}]}).encode()


@pytest.fixture
def stub() -> Iterator[Stub]:
    stub = Stub()
    yield stub
    stub.server.shutdown()
    stub.thread.join(30)
    stub.server.server_close()


@pytest.fixture
def ranked(model: Path, stub: Stub) -> Callable[..., tuple[list[str], int, str]]:
    """Return a function that re-ranks a text after the stub has said something."""
    tagger = Tagger.load(model, "cpu")

    def ask(said: str | None = None, k: int = 3) -> tuple[list[str], int, str]:
        if said is not None:
            stub.says(said)
        result = rerank(tagger, "chest pain", Endpoint(stub.url, "stub"), k)
        return [each.label for each in result.candidates], result.dropped, result.problem

    return ask


def own(model: Path, k: int = 3) -> list[str]:
    return [each.label for each in Tagger.load(model, "cpu").candidates("chest pain", 30)][:k]


def test_the_language_model_chooses_and_the_models_order_fills_up(model, stub, ranked):
    every = own(model, 4)
    assert ranked("[4, 2]") == ([every[3], every[1], every[0]], 0, "")
    assert ranked(f"I think of [1] and so on: [{json.dumps(every[2].lower())}, 1]")[0] == [every[2], *every[:2]]
    path, body = stub.asked[0]
    assert path == "/v1/chat/completions"
    assert body["model"] == "stub"
    said = str(body["messages"])
    assert "chest pain" in said
    assert all(f"{label}: {NAMES[label]}" in said for label in every)


def test_labels_that_do_not_exist_are_dropped_and_counted(model, ranked):
    every = own(model, 4)
    labels, dropped, problem = ranked('["Broken heart", 99, 2, "2", {"a": 1}, null]')
    assert (labels, dropped, problem) == ([every[1], every[0], every[2]], 5, "")


@pytest.mark.parametrize(
    ("status", "body", "problem"),
    [(500, b"oops", "status 500"), (200, b"oops", "its response is no chat completion"),
     (200, b'{"choices": []}', "its response is no chat completion"),
     (200, b'{"choices": [{"message": {"content": "I cannot."}}]}', "its answer has no JSON list")],
)  # fmt: skip
def test_an_answer_that_cannot_be_used_leaves_the_models_order(model, stub, ranked, status, body, problem):
    stub.status, stub.body = status, body
    assert ranked() == (own(model), 0, f"{stub.url}: {problem}; the model's own order stands")


def test_an_endpoint_that_is_down_is_one_line_and_the_models_order(model):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"  # bound, but nobody listens
        words = [sys.executable, EXAMPLE, model, "chest pain", "--url", url, "--llm", "stub", "-k", "2"]
        run = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert run.returncode == 0
    line = f"warning: {url}: [Errno 111] Connection refused; the model's own order stands"
    assert run.stderr.splitlines()[-1] == line, run.stderr
    assert run.stdout.splitlines()[1:] == [f"  {label}  {NAMES[label]}" for label in own(model, 2)]


def test_an_endpoint_that_is_no_url_leaves_the_models_order(model):
    result = rerank(Tagger.load(model, "cpu"), "chest pain", Endpoint("localhost", "stub"), 3)
    assert [each.label for each in result.candidates] == own(model)
    assert result.problem.startswith("localhost: not a URL; expected one such as http://127.0.0.1:8080/v1")


def test_a_folder_without_a_model_is_one_line(tmp_path):
    words = [sys.executable, EXAMPLE, tmp_path, "chest pain", "--url", "http://127.0.0.1:9/v1", "--llm", "stub"]
    run = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == f"error: {tmp_path}: not a saved model: model.json is missing\n"
