"""The log never blocks and never fails a request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time

import pytest

from zipfel.server import log

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def writer(monkeypatch):
    """A writer to a pipe, in the place of standard error."""
    out, into = os.pipe()
    monkeypatch.setattr(log, "STDERR", into)
    monkeypatch.setattr(log, "_writer", None)
    log.start()
    yield out
    os.set_blocking(out, False)
    while log._writer.lines.qsize():  # let the thread come to its end of work
        try:
            os.read(out, 1 << 20)
        except BlockingIOError:
            time.sleep(0.01)
    log._writer.flush(10)
    os.close(into)
    os.close(out)


def test_a_stalled_pipe_blocks_nobody_and_lost_lines_are_counted(serving, writer, monkeypatch):
    out = writer
    monkeypatch.setattr(log, "WAITING", 100)
    client = serving("glas")
    start = time.monotonic()
    for number in range(1500):  # a pipe holds 64 KiB
        log.line("filling", number=number, text="x" * 100)
    assert client.tag(["paper"]).status_code == 200
    log.flush(0.1)
    assert time.monotonic() - start < 30
    lost = log.lost()
    assert lost > 500
    assert f'zipfel_log_lines_lost_total{{worker="0"}} {lost}' in client.service.metrics()
    content, reported = b"", 0
    while reported < lost:  # once the pipe is read, the log says how many are missing
        content += os.read(out, 1 << 20)
        lines = [json.loads(line) for line in content.splitlines() if line.endswith(b"}")]
        reported = sum(line["lines"] for line in lines if line["event"] == "log lines lost")
        log.line("more")
    assert reported == lost


def test_a_full_disk_loses_lines_but_no_swap(serving, models, monkeypatch, writer):
    client = serving("glas")
    slot = client.service.catalog.slot("glas")
    slot.folder = models / "newer"

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(log.os, "write", full)
        client.runner.run(client.service.swap())
        answer = client.tag(["paper"])
        log.flush(10)
    assert (answer.status_code, answer.json()["model"]["version"]) == (200, slot.current.version)
    assert slot.current.version == json.loads((models / "newer" / "model.json").read_text())["sha256"][:12]
    assert log.lost() == 2
    log.line("again")
    log.flush(10)
    lines = [json.loads(line) for line in os.read(writer, 65536).splitlines()]
    assert [line["event"] for line in lines] == ["log lines lost", "again"]


def test_a_line_that_was_cut_off_does_not_spoil_the_next(monkeypatch, writer):
    out = writer
    write, calls = os.write, []

    def partly(fd, content):
        calls.append(content)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return write(fd, content[:10] if len(calls) == 1 else content)

    monkeypatch.setattr(log.os, "write", partly)
    log.line("first")
    log.line("second")
    log.flush(10)
    start, *lines = os.read(out, 65536).splitlines()
    assert start == calls[0][:10]
    assert [json.loads(line)["event"] for line in lines] == ["log lines lost", "second"]


def test_without_a_thread_a_full_disk_is_no_error_either():
    code = "from zipfel.server import log; log.line('x', path='\\udcff'); print('done')"
    with open("/dev/full", "w") as full:  # noqa: PTH123
        run = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=full, check=True)
    assert run.stdout == b"done\n"


def test_every_line_names_request_client_model_and_version(serving, models, capfd):
    client = serving("glas", "mnn")
    taken = client.ask("POST", "/tag", json={"texts": ["paper"], "model": "mnn"}, headers={"X-Request-Id": "abc-1"})
    made = client.ask("GET", "/labels?q=paper", headers={"X-Request-Id": "no\tid"})
    client.ask("POST", "/tag", json={"texts": ["paper"], "model": "none"})
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    assert [line["id"] for line in lines[:2]] == ["abc-1", made.headers["x-request-id"]]
    assert taken.headers["x-request-id"] == "abc-1"
    assert len(made.headers["x-request-id"]) == 16
    assert [line["client"] for line in lines] == ["127.0.0.1"] * 3
    for line, name in zip(lines[:2], ("mnn", "glas"), strict=True):
        version = json.loads((models / name / "model.json").read_text())["sha256"][:12]
        assert (line["model"], line["version"]) == (name, version)
    assert "model" not in lines[2]


def test_a_thread_is_started_once(writer):
    before = threading.active_count()
    log.start()
    assert threading.active_count() == before
