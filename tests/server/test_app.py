"""The responses of the routes."""

from __future__ import annotations

import gzip
import json
import threading
import tracemalloc
from typing import NamedTuple
from urllib.parse import quote

import pytest

from zipfel.server.answers import Problem
from zipfel.server.body import Bodies
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")


class Reason(NamedTuple):
    term: str
    weight: float
    places: list[tuple[int, int]]


def test_tags_are_those_of_the_model(client, models):
    texts = ["paper in the printer", "wifi", ""]
    answer = client.tag(texts, k=2)
    assert answer.status_code == 200
    expected = Tagger.load(models / "glas").predict(texts, k=2)
    assert answer.json()["tags"] == [[{"label": tag.label, "score": tag.score} for tag in row] for row in expected]
    about = json.loads((models / "glas" / "model.json").read_text())
    assert answer.json()["model"] == {"id": "glas", "version": about["sha256"][:12]}


def test_a_threshold_leaves_out_lower_scores(client):
    tags = client.tag(["paper"], k=3).json()["tags"][0]
    least = tags[1]["score"]
    assert client.tag(["paper"], k=3, threshold=least).json()["tags"][0] == tags[:2]
    assert client.tag(["paper"], k=3, threshold=1).json()["tags"] == [[]]


def test_several_models_are_served_side_by_side(client, models):
    listed = client.ask("GET", "/models").json()["models"]
    assert [(m["id"], m["kind"], m["labels"], m["default"]) for m in listed] == [
        ("glas", "glas", 3, True),
        ("lightdxml", "lightdxml", 3, False),
        ("mnn", "mnn", 3, False),
        ("decaf", "decaf", 3, False),
    ]
    for name in ("glas", "lightdxml", "mnn", "decaf"):
        answer = client.tag(["wifi"], k=3, model=name).json()
        assert answer["model"]["id"] == name
        assert answer["tags"][0][0]["score"] == Tagger.load(models / name).predict(["wifi"], k=3)[0][0].score
    unknown = client.tag(["wifi"], model="glass")
    assert (unknown.status_code, unknown.json()) == (404, {"error": "unknown model 'glass'; did you mean 'glas'?"})


@pytest.mark.parametrize("model", ["glas", "lightdxml", "decaf"])
def test_an_extra_label_competes_with_those_of_the_model(client, model):
    plain = client.tag(["no paper in the printer"], k=3, model=model).json()["tags"][0]
    both = client.tag(["no paper in the printer"], k=4, model=model, extra={"mine": "paper in the printer", "?": "zz"})
    tags = both.json()["tags"][0]
    assert [tag for tag in tags if tag["label"] not in ("mine", "?")] == plain
    scores = {tag["label"]: tag["score"] for tag in tags}
    assert 0 < scores["mine"] <= 1
    assert "?" not in scores  # none of its words is known, so it comes last
    assert [tag["score"] for tag in tags] == sorted((tag["score"] for tag in tags), reverse=True)


def test_extra_labels_that_are_refused(client):
    known = client.tag(["wifi"], extra={"printer": "printer"})
    assert (known.status_code, known.json()["error"]) == (400, "extra: the model already has a label 'printer'")
    votes = client.tag(["wifi"], model="mnn", extra={"mine": "wifi"})
    assert (votes.status_code, votes.json()["error"]) == (400, "mnn cannot score a label by its text")


def test_labels_are_searched_by_name_and_text_and_prefixes_come_first(client):
    def search(query: str, **more: object) -> list[str]:
        answer = client.ask("GET", "/labels", params={"q": query, **more})
        return [label["name"] for label in answer.json()["labels"]]

    assert search("") == ["network", "printer", "slow / late"]
    assert search("PRINT") == ["printer"]
    assert search("paper") == ["printer"]
    assert search("t") == ["slow / late", "network", "printer"]  # its text, "takes long", begins with the query
    assert search("t", limit=1) == ["slow / late"]
    assert search("zzz") == []
    assert search("\x1e") == search("\x1f") == search(" ") == ["network", "printer", "slow / late"]  # separators
    label = client.ask("GET", "/labels?q=printer").json()["labels"][0]
    assert label == {"name": "printer", "text": "Printers and PAPER", "count": 10}


def test_labels_and_reasons_show_the_path_in_the_hierarchy(serving):
    client = serving("tree", "glas")
    paths = [["hardware", "printer"], ["paper", "printer"]]
    assert client.ask("GET", "/labels/printer").json()["paths"] == paths
    asked = {"text": "no paper", "label": "printer"}
    assert client.ask("POST", "/explain", json=asked).json()["paths"] == paths
    assert client.ask("GET", "/labels/network").json()["paths"] == []
    assert client.ask("GET", "/labels/printer?model=glas").json()["paths"] == []
    assert client.ask("POST", "/explain", json=asked | {"model": "glas"}).json()["paths"] == []


def test_a_label_is_described_with_its_nearest_labels(client, models):
    answer = client.ask("GET", "/labels/" + quote("slow / late", safe="")).json()
    vectors = Tagger.load(models / "glas").predictor_.first.classifier.vectors
    cosines = {name: float(vectors[2] @ vectors[place]) for place, name in enumerate(["network", "printer"])}
    assert (answer["name"], answer["text"], answer["count"]) == ("slow / late", "takes long", 5)
    assert [near["label"] for near in answer["near"]] == sorted(cosines, key=lambda name: -cosines[name])
    assert {near["label"]: near["score"] for near in answer["near"]} == pytest.approx(cosines, abs=1e-6)
    assert {near["label"]: near["text"] for near in answer["near"]} == {
        "network": "Wifi, cables",
        "printer": "Printers and PAPER",
    }
    assert answer["why"] is None
    votes = client.ask("GET", "/labels/printer", params={"model": "mnn"}).json()
    assert (votes["near"], votes["why"]) == ([], "mnn has vectors of points, not of labels")
    missing = client.ask("GET", "/labels/none/such")
    assert (missing.status_code, missing.json()["error"]) == (404, "the model has no label 'none/such'")


def test_added_labels_are_listed_and_removed_ones_are_not(client):
    names = [label["name"] for label in client.ask("GET", "/labels?model=decaf").json()["labels"]]
    assert names == ["printer", "slow / late", "paper jam"]
    label = client.ask("GET", "/labels/paper jam?model=decaf").json()
    assert (label["text"], label["count"]) == ("paper jam in the printer", 0)
    assert {near["label"] for near in label["near"]} == {"printer", "slow / late"}
    assert client.ask("GET", "/labels/network?model=decaf").status_code == 404
    tags = client.tag(["wifi"], k=9, model="decaf").json()["tags"][0]
    assert {tag["label"] for tag in tags} == {"printer", "slow / late", "paper jam"}


@pytest.mark.parametrize("model", ["glas", "lightdxml", "mnn", "decaf"])
def test_reasons_name_words_of_the_text(client, model):
    text = "no PAPER, no printer"
    answer = client.ask("POST", "/explain", json={"text": text, "label": "printer", "model": model})
    assert answer.status_code == 200
    reasons = answer.json()["reasons"]
    assert {reason["term"] for reason in reasons} == {"no", "paper", "printer"}
    for reason in reasons:
        assert {text[start:end].lower() for start, end in reason["places"]} == {reason["term"]}


def test_reasons_are_those_of_the_model(client, monkeypatch):
    tagger = client.service.catalog.slot("glas").current.tagger
    reasons = [Reason("paper", 0.5, [(3, 8)]), Reason("no", -0.25, [(0, 2)])]
    monkeypatch.setattr(tagger, "explain", lambda text, label: reasons, raising=False)
    answer = client.ask("POST", "/explain", json={"text": "no paper", "label": "printer"})
    assert answer.status_code == 200
    assert answer.json()["reasons"] == [
        {"term": "paper", "weight": 0.5, "places": [[3, 8]]},
        {"term": "no", "weight": -0.25, "places": [[0, 2]]},
    ]
    assert answer.json()["score"] == dict(tagger.predict(["no paper"], 3)[0])["printer"]
    unknown = client.ask("POST", "/explain", json={"text": "no paper", "label": "x"})
    assert (unknown.status_code, unknown.json()["error"]) == (404, "the model has no label 'x'")


def test_health_and_readiness(client):
    assert client.ask("GET", "/health").json() == {"status": "alive"}
    assert client.ask("GET", "/ready").json() == {"status": "ready"}
    client.service.ready = False
    assert client.ask("GET", "/ready").status_code == 503
    assert client.ask("GET", "/health").status_code == 200


def test_the_openapi_document_lists_all_routes_and_its_page_needs_no_script(client):
    document = client.ask("GET", "/openapi.json").json()
    routes = {"/tag", "/explain", "/models", "/labels", "/labels/{name}", "/health", "/ready", "/metrics"}
    own = {path for path in document["paths"] if not path.startswith("/v1/")}  # Annif's: test_annif.py
    assert own == routes | {"/candidates", "/ground", "/corrections"}
    assert document["paths"]["/tag"]["post"]["requestBody"]["required"] is True
    assert set(document["paths"]["/tag"]["post"]["responses"]) >= {"200", "400", "401", "404", "413", "429"}
    page = client.ask("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert all(path in page.text for path in routes)
    assert "<script" not in page.text


BAD = {
    b"": "Invalid JSON: EOF",
    b"[1, 2": "Invalid JSON",
    b"[]": "Input should be an object",
    b"{}": "texts: Field required",
    b'{"texts": "one"}': "texts: Input should be a valid array",
    b'{"texts": ["a", 1]}': "texts[1]: Input should be a valid string",
    b'{"texts": ["\xff"]}': "Invalid JSON: invalid unicode",
    b'{"texts": ["\\ud800"]}': "Invalid JSON",
    b'{"texts": ["\x01"]}': "Invalid JSON: control character",
    b'{"texts": ["a"], "k": 0}': "k: Input should be greater than or equal to 1",
    b'{"texts": ["a"], "k": 5.5}': "k: Input should be a valid integer",
    b'{"texts": ["a"], "k": true}': "k: Input should be a valid integer",
    b'{"texts": ["a"], "k": 1e400}': "k: Input should be a valid integer",
    b'{"texts": ["a"], "k": ' + b"9" * 5000 + b"}": "Invalid JSON: number out of range",
    b'{"texts": ["a"], "threshold": NaN}': "threshold: Input should be a finite number",
    b'{"texts": ["a"], "treshold": 1}': "treshold: Extra inputs are not permitted",
    b'{"texts": ' + b"[" * 100_000: "Invalid JSON: recursion limit",
    b'{"texts": ["a"], "extra": {"x": 1}}': "extra.x: Input should be a valid string",
}


@pytest.mark.parametrize("body", BAD, ids=lambda body: body[:30].decode(errors="replace"))
def test_an_unreadable_body_is_refused(client, body):
    answer = client.ask("POST", "/tag", content=body)
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(BAD[body])
    assert len(answer.json()["error"]) < 200


@pytest.mark.parametrize(
    ("method", "path", "status", "message"),
    [
        ("GET", "/nowhere", 404, "not found"),
        ("GET", "/page/../settings.py", 404, "not found"),
        ("GET", "/page/none.js", 404, "not found"),
        ("GET", "/tag", 405, "method GET is not allowed for this path"),
        ("POST", "/tag/", 404, "not found"),
        ("GET", "/labels?limit=0", 400, "limit: Input should be greater than or equal to 1"),
        ("GET", "/labels?limit=x", 400, "limit: Input should be a valid integer"),
        ("GET", "/labels?model=x", 404, "unknown model 'x'"),
    ],
)
def test_an_unknown_path_or_parameter_is_refused(client, method, path, status, message):
    answer = client.ask(method, path)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)


def test_a_label_with_a_newline_can_be_asked_for(serving):
    client = serving("lines")
    answer = client.ask("GET", "/labels/" + quote("two\nlines", safe=""))
    assert (answer.status_code, answer.json()["text"]) == (200, "wifi and paper")


def test_head_is_get_without_content(client):
    for path in ("/health", "/models", "/labels/printer", "/", "/metrics", "/none"):
        whole, head = client.ask("GET", path), client.ask("HEAD", path)
        assert (head.status_code, head.content) == (whole.status_code, b"")
        assert head.headers["content-type"] == whole.headers["content-type"]
    assert head.headers["content-length"] == whole.headers["content-length"]
    assert client.ask("HEAD", "/tag").status_code == 405


def test_bodies_and_answers_may_be_compressed_within_bounds(serving):
    client = serving("glas", max_body=50_000)
    body = json.dumps({"texts": ["paper"] * 100}).encode()

    def status(content: bytes, encoding: str = "gzip") -> tuple[int, str]:
        answer = client.ask("POST", "/tag", content=content, headers={"Content-Encoding": encoding})
        return answer.status_code, answer.json().get("error", "")

    packed = gzip.compress(body)
    plain = client.ask("POST", "/tag", content=body, headers={"Accept-Encoding": "identity"})
    answer = client.ask("POST", "/tag", content=packed, headers={"Content-Encoding": "gzip"})
    assert answer.json() == plain.json()
    assert (answer.headers["content-encoding"], "content-encoding" in plain.headers) == ("gzip", False)
    assert int(answer.headers["content-length"]) < len(plain.content) / 4
    assert "content-encoding" not in client.ask("GET", "/health").headers  # too small to gain
    assert status(gzip.compress(b" " * 10_000_000)) == (413, "a request body may have at most 50000 bytes")  # a bomb
    assert status(gzip.compress(b"[]" + b" " * 49_998))[0] == 400  # just within the limit
    for wrong in (b"", body, packed[:-5], packed + b"more", packed + packed):
        assert status(wrong) == (400, "the request body is not valid gzip")
    assert status(body, "br") == (415, "unknown Content-Encoding 'br'; known are gzip and identity")
    assert status(body, "identity") == (200, "")
    assert client.service.bodies.held == 0


def test_a_bomb_is_not_unpacked_beyond_the_limit():
    packed = gzip.compress(b" " * 20_000_000)
    tracemalloc.start()
    with pytest.raises(Problem):
        Bodies(50_000)._unpacked([packed])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000


def test_a_request_that_takes_too_long_is_given_up(serving, monkeypatch):
    client = serving("glas", timeout=0.1)
    tagger, go = client.service.catalog.slot("glas").current.tagger, threading.Event()
    tag = tagger.tag
    monkeypatch.setattr(tagger, "tag", lambda requests: go.wait(60) and tag(requests))
    first, second = client.together(*[("POST", "/tag", {"json": {"texts": ["paper"]}})] * 2)
    for answer in (first, second):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
        assert answer.json()["error"] == "the request took longer than 0.1 s; try again later"
    go.set()
    monkeypatch.setattr(tagger, "tag", tag)
    client.service.settings.__dict__["timeout"] = 60.0
    assert client.tag(["paper"]).status_code == 200
