"""Corrections from the service to the next model: kept, shown, trained on."""

from __future__ import annotations

import http.client
import json
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from tests.e2e.test_cli_serve import Server
from zipfel.data.corrections import read_corrections
from zipfel.tagger import Tagger

TEXTS = ["the printer is out of paper", "paper jam in the printer", "no wifi here", "the wifi is slow today"] * 5
TAGS = [["printer"], ["printer"], ["network"], ["network", "slow"]] * 5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tickets"
    settings = {"dimension": 16, "epochs": 2, "min_steps": 1}
    Tagger("glas", settings=settings, text={"min_count": 1}, validation=0).fit(TEXTS, TAGS).save(folder)
    return folder


def body(text: str, label: str = "printer", decision: str = "accept", rank: int = 1) -> str:
    decisions = [{"label": label, "decision": decision, "rank": rank, "score": 0.5}]
    return json.dumps({"text": text, "decisions": decisions})


JSON = {"Content-Type": "application/json"}


def test_nothing_acknowledged_is_lost_when_a_server_is_killed(model, tmp_path):
    server = Server(tmp_path / "log", model, "--corrections", tmp_path / "kept", "--workers", 2)
    acknowledged, enough, lock = [], threading.Event(), threading.Lock()

    def send(client: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        try:
            for number in range(100_000):
                text = f"text {client} {number}"
                connection.request("POST", "/corrections", body(text), JSON)
                answer = connection.getresponse()
                answer.read()
                if answer.status == 200:
                    with lock:
                        acknowledged.append(text)
                        if len(acknowledged) >= 60:
                            enough.set()
        except (OSError, http.client.HTTPException):
            pass  # the server is dead

    clients = [threading.Thread(target=send, args=(client,)) for client in range(4)]
    for client in clients:
        client.start()
    assert enough.wait(60)
    children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children").read_text().split()
    for process in (server.process.pid, *map(int, children)):
        os.kill(process, signal.SIGKILL)
    for client in clients:
        client.join(60)
    server.process.wait(60)
    kept = {one.document[0][1] for one in read_corrections(tmp_path / "kept").decisions}
    assert {*acknowledged} <= kept
    assert len(acknowledged) >= 60


def test_a_full_disk_gets_507_and_the_service_goes_on(model, tmp_path):
    server = Server(tmp_path / "log", model, "--corrections", tmp_path / "kept")
    try:
        assert server.ask("GET", "/models")[1]["corrections"] is True
        assert server.ask("POST", "/corrections", body("before"), **JSON)[0] == 200
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (60_000, 60_000))  # bytes that a file may have
        status, answer = server.ask("POST", "/corrections", body("x" * 90_000), **JSON)
        assert (status, answer) == (507, {"error": "the correction was not kept: the server's disk is full"})
        assert server.ask("POST", "/corrections", body("after"), **JSON)[0] == 200
        assert server.tag("paper")[0] == 200
    finally:
        assert server.stop() == 0
    read = read_corrections(tmp_path / "kept")
    assert ([one.document[0][1] for one in read.decisions], read.notes) == (["before", "after"], ())


def test_a_folder_that_cannot_be_written_is_one_line_before_the_model_is_loaded(model, tmp_path, zipfel_command):
    (tmp_path / "file").write_text("")
    outcome = zipfel_command("serve", model, "--corrections", tmp_path / "file", "--port", 0)
    assert outcome.code == 2
    assert outcome.err.startswith(f"error: {tmp_path / 'file'}: corrections cannot be written here: ")


def row(text: str, labels: list[str], rejected: list[str], day: int, **shown: int) -> str:
    about = {"time": f"2026-11-{day:02}T12:00:00.000+00:00", "version": "v1",
             "shown": {label: {"rank": rank, "score": 0.5} for label, rank in shown.items()}}  # fmt: skip
    return json.dumps({"text": text, "labels": labels, "rejected": rejected, "model": "m", "correction": about}) + "\n"


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """Return a folder of corrections over two weeks, with a torn last line."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "a.jsonl").write_text(
        row("no wifi here", ["network"], ["printer"], 10, network=1, printer=2)
        + row("the wifi is slow today", ["network"], ["slow"], 11, network=1, slow=12)
        + row("a new text", ["brand new"], [], 17)
        + row("no wifi here", ["printer"], [], 18, printer=2)
        + '{"text": "torn'
    )
    return tmp_path / "kept"


def test_agreement_is_shown_and_written(kept, tmp_path, zipfel_command):
    out = ["--json", tmp_path / "a.json", "--plot", tmp_path / "a.svg"]
    outcome = zipfel_command("corrections", kept, *out)
    assert outcome.code == 0, outcome.err
    assert outcome.err == f"note: {kept / 'a.jsonl'}:5: skipped: the last line is torn\n"
    assert "agreement 75.0 % (30-95): 3 of 4 labels accepted, 3 texts" in outcome.out
    assert "1 decisions were overruled by later ones" in outcome.out
    figures = json.loads((tmp_path / "a.json").read_text())
    counts = {name: {key: (one["accepted"], one["decided"]) for key, one in figures[name].items()}
              for name in ("ranks", "weeks", "models")}  # fmt: skip
    assert counts == {"ranks": {"1": (2, 2), "2": (1, 1), "11+": (0, 1)},
                      "weeks": {"2026-11-09": (2, 3), "2026-11-16": (1, 1)}, "models": {"m v1": (3, 4)}}  # fmt: skip
    assert figures["rejected"] == [{"label": "slow", "rejected": 1, "decided": 1}]
    assert figures["added"] == [{"label": "brand new", "added": 1}]
    assert figures["all"]["interval"] == pytest.approx([0.3006, 0.9544], abs=1e-4)
    svg = (tmp_path / "a.svg").read_text()
    assert ">2026-11-09<" in svg
    assert ">11+<" in svg


def test_a_download_has_no_ranks_and_no_weeks(tmp_path, zipfel_command):
    (tmp_path / "c.jsonl").write_text('{"text": "x", "labels": ["a"], "rejected": ["b"], "model": "m"}\n')
    outcome = zipfel_command("corrections", tmp_path / "c.jsonl", "--plot", tmp_path / "c.svg")
    assert (outcome.code, outcome.err) == (0, "")
    assert "agreement 50.0 %" in outcome.out
    assert "By rank" not in outcome.out
    assert (tmp_path / "c.svg").read_text().count(">unknown<") == 2


def test_bad_corrections_are_one_line_and_nothing_is_written(tmp_path, zipfel_command):
    (tmp_path / "c.jsonl").write_text('{"text": "x", "labels": ["a"]}\n{"text": 3}\n{}\n')
    outcome = zipfel_command("corrections", tmp_path / "c.jsonl", "--json", tmp_path / "c.json")
    assert (outcome.code, outcome.err) == (
        2, f"error: {tmp_path / 'c.jsonl'}:2: expected a text under 'text'; found 3\n"
    )  # fmt: skip
    assert not (tmp_path / "c.json").exists()


def test_a_model_learns_from_corrections(kept, tmp_path, zipfel_command):
    rows = [json.dumps({"text": text, "labels": tags}) for text, tags in zip(TEXTS[:4] * 3, TAGS[:4] * 3, strict=True)]
    (tmp_path / "data.jsonl").write_text("\n".join(rows) + "\n")
    words = [tmp_path / "data.jsonl", "--model", "linear", "--holdout", 0, "--min-count", 1]
    outcome = zipfel_command("train", *words, "--out", tmp_path / "run", "--corrections", kept)
    assert outcome.code == 0, outcome.err
    used = "corrections: 3 labels added to known texts, 3 removed from them, 1 new points, 1 new labels"
    assert used in outcome.err
    assert "corrections: 1 decisions overruled by later ones" in outcome.err
    tagger = Tagger.load(tmp_path / "run", "cpu")
    assert tagger.predict(["a new text"], 1)[0][0].label == "brand new"
    assert tagger.labels_.counts[tagger.labels_.live["slow"]] == 0
    again = zipfel_command("train", *words, "--out", tmp_path / "run")  # another data set: no resuming
    assert again.code == 2
    assert zipfel_command("evaluate", tmp_path / "run", tmp_path / "data.jsonl", "--holdout", 0).code == 0
