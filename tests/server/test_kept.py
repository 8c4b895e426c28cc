"""POST /corrections, and what is kept."""

from __future__ import annotations

import json
import os
import threading

import pytest

from tests.server.conftest import WAIT, wait_until
from zipfel.data.corrections import read_corrections
from zipfel.server import corrections, keeping

pytestmark = pytest.mark.usefixtures("one_thread")

PAPER = {"text": "no paper", "decisions": [{"label": "printer", "decision": "accept", "rank": 1, "score": 0.75}]}


def kept(folder):
    return [json.loads(line) for path in sorted(folder.iterdir()) for line in path.read_text().splitlines()]


def test_decisions_are_lines_of_the_pages_format_with_what_was_shown(serving, tmp_path):
    client = serving("glas", token="s3cret", corrections=tmp_path)
    body = {**PAPER, "version": "abc", "decisions": [
        *PAPER["decisions"], {"label": "network", "decision": "reject", "rank": 2.0, "score": 0.5},
        {"label": "new one", "decision": "accept"}, {"label": "slow / late", "decision": "undo"},
    ]}  # fmt: skip
    headers = {"Authorization": "Bearer s3cret", "X-Request-Id": "mine"}
    answer = client.ask("POST", "/corrections", json=body, headers=headers)
    version = client.service.catalog.slot(None).current.version
    assert (answer.status_code, answer.json()) == (200, {"kept": 4, "model": {"id": "glas", "version": version}})
    (line,) = kept(tmp_path)
    assert line.pop("correction").pop("time").endswith("+00:00")
    assert line == {"text": "no paper", "labels": ["printer", "new one"], "rejected": ["network"], "model": "glas"}
    (line,) = kept(tmp_path)
    del line["correction"]["time"]
    shown = {"printer": {"rank": 1, "score": 0.75}, "network": {"rank": 2, "score": 0.5}}
    assert line["correction"] == {
        "version": "abc", "undone": ["slow / late"], "shown": shown, "request": "mine", "token": "ours"
    }  # fmt: skip
    read = read_corrections(tmp_path).decisions
    assert [(one.label, one.accepted, one.rank, one.model, one.user) for one in read] == [
        ("printer", True, 1, "glas abc", "ours"), ("new one", True, 0, "glas abc", "ours"),
        ("network", False, 2, "glas abc", "ours"), ("slow / late", None, 0, "glas abc", "ours"),
    ]  # fmt: skip


def test_the_last_of_several_decisions_of_a_request_counts(serving, tmp_path):
    client = serving("glas", corrections=tmp_path)
    decisions = [{"label": "printer", "decision": kind} for kind in ("accept", "undo", "reject")]
    assert client.ask("POST", "/corrections", json={"text": "a", "decisions": decisions}).status_code == 200
    assert (kept(tmp_path)[0]["labels"], kept(tmp_path)[0]["rejected"]) == ([], ["printer"])


def test_a_service_without_a_folder_says_so(client):
    answer = client.ask("POST", "/corrections", json=PAPER)
    assert answer.status_code == 404
    assert "its option --corrections FOLDER" in answer.json()["error"]
    assert client.ask("GET", "/models").json()["corrections"] is False


@pytest.mark.parametrize(
    ("change", "status", "error"),
    [({"decisions": []}, 400, "decisions: List should have at least 1 item"),
     ({"decisions": [{"label": " ", "decision": "accept"}]}, 400, "decisions[0].label: String should not be blank"),
     ({"decisions": [{"label": "a", "decision": "like"}]}, 400, "decisions[0].decision: Input should be 'accept'"),
     ({"decisions": [{"label": "a", "decision": "accept", "rank": 0}]}, 400, "decisions[0].rank: Input should be"),
     ({"decisions": [{"label": "a", "decision": "accept", "score": 2}]}, 400, "decisions[0].score: Input should be"),
     ({"text": "x" * 101}, 413, "a text may have at most 100 characters"),
     ({"text": {"nope": "a"}}, 404, "the model has no text field 'nope'"),
     ({"model": "glass"}, 404, "unknown model 'glass'; did you mean 'glas'?"),
     ({"more": 1}, 400, "more: Extra inputs are not permitted")],
)  # fmt: skip
def test_bad_requests_get_one_line_and_nothing_is_kept(serving, tmp_path, change, status, error):
    client = serving("glas", corrections=tmp_path, max_length=100)
    answer = client.ask("POST", "/corrections", json={**PAPER, **change})
    assert (answer.status_code, answer.json()["error"][: len(error)]) == (status, error)
    assert kept(tmp_path) == []


def test_a_foreign_page_cannot_write_because_its_browser_would_have_to_ask_first(serving, tmp_path):
    client = serving("glas", corrections=tmp_path)
    answer = client.ask("POST", "/corrections", content=json.dumps(PAPER), headers={"Content-Type": "text/plain"})
    assert (answer.status_code, kept(tmp_path)) == (415, [])


def test_a_token_is_required_where_there_are_tokens(serving, tmp_path):
    client = serving("glas", token="s3cret", corrections=tmp_path)
    assert (client.ask("POST", "/corrections", json=PAPER).status_code, kept(tmp_path)) == (401, [])


@pytest.mark.parametrize(("number", "status", "error"), [(28, 507, "disk is full"), (5, 503, "cannot write it")])
def test_a_disk_that_fails_is_reported_counted_and_survived(
    serving, tmp_path, monkeypatch, capfd, number, status, error
):
    client = serving("glas", corrections=tmp_path)

    def fail(file, data, write=os.write):
        if file == 2:  # the log
            return write(file, data)
        raise OSError(number, "broken")

    with monkeypatch.context() as patch:
        patch.setattr(keeping.os, "write", fail)
        answer = client.ask("POST", "/corrections", json=PAPER)
    assert (answer.status_code, error in answer.json()["error"]) == (status, True)
    assert client.ask("POST", "/corrections", json=PAPER).status_code == 200
    assert len(kept(tmp_path)) == 1
    metrics = client.ask("GET", "/metrics").text
    assert f'zipfel_requests_total{{route="/corrections",status="{status}"}} 1' in metrics
    assert 'zipfel_requests_total{route="/corrections",status="200"} 1' in metrics
    assert '"event":"corrections not kept"' in capfd.readouterr().err


def test_decisions_that_wait_for_the_disk_are_limited_and_kept_when_their_clients_have_left(
    serving, tmp_path, monkeypatch
):
    go, keep = threading.Event(), keeping.Keeper.keep
    monkeypatch.setattr(keeping.Keeper, "keep", lambda self, line: keep(self, line) if go.wait(WAIT) else None)
    monkeypatch.setattr(corrections, "WAITING", 2)
    client = serving("glas", corrections=tmp_path, timeout=0.05)
    assert [client.ask("POST", "/corrections", json=PAPER).status_code for _ in range(3)] == [503, 503, 429]
    go.set()
    wait_until(lambda: len(kept(tmp_path)) == 2)
    assert client.ask("POST", "/corrections", json=PAPER).status_code != 429
