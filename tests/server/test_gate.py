"""The gate that every request passes: token, log, security headers."""

from __future__ import annotations

import json

import pytest

from zipfel.server.answers import FAILURE

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_token_is_needed_where_one_is_set(serving):
    client = serving("glas", token="s3cret")
    for wrong in (
        {},
        {"Authorization": "Bearer s3cre"},
        {"Authorization": "s3cret"},
        {"Authorization": "Bearer s3crét"},
    ):
        headers = {name: value.encode() for name, value in wrong.items()}
        for method, path in (("POST", "/tag"), ("GET", "/models"), ("GET", "/metrics"), ("GET", "/nowhere")):
            answer = client.ask(method, path, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert client.ask("GET", "/models", headers={"Authorization": "Bearer s3cret"}).status_code == 200
    for path in ("/health", "/ready", "/", "/page/page.js", "/docs", "/openapi.json"):  # links bear no token
        answer = client.ask("GET", path)
        assert answer.status_code == 200
        assert "glas" not in answer.text


def test_an_internal_error_reveals_nothing_and_the_log_says_where(client, monkeypatch, capfd):
    tagger = client.service.catalog.slot("glas").current.tagger

    def fail(requests: object) -> None:
        raise RuntimeError("a secret text in /a/secret/place")

    monkeypatch.setattr(tagger, "tag", fail)
    answer = client.tag(["a secret text"])
    assert (answer.status_code, answer.json()) == (500, {"error": FAILURE.message})
    logged = capfd.readouterr().err
    assert "secret" not in logged
    failure, request = map(json.loads, logged.splitlines())
    assert (failure["event"], failure["error"]) == ("failure", "RuntimeError")
    assert any("batching.py" in frame for frame in failure["frames"])
    assert (request["status"], request["path"], request["texts"]) == (500, "/tag", 1)


def test_logs_are_json_without_content_of_requests(client, capfd):
    client.tag(["hush", "hush"])
    client.ask("GET", "/labels?q=hush")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/tag", 200),
        ("GET", "/labels", 200),
    ]
    assert lines[0]["texts"] == 2
    assert all(line["ms"] > 0 for line in lines)
    assert "hush" not in json.dumps(lines)


def test_every_answer_has_security_headers(client):
    for path in ("/health", "/nowhere", "/docs", "/tag"):
        headers = client.ask("GET", path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
        assert "server" not in headers


def test_while_the_service_stops_each_response_ends_its_connection(client):
    assert "connection" not in client.ask("GET", "/health").headers
    client.gate.draining = True
    assert client.ask("GET", "/health").headers["connection"] == "close"
