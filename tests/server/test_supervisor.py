"""Workers that die again and again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from zipfel.server import log, supervisor
from zipfel.server.measures import LENGTH, STARTS
from zipfel.server.settings import ServeSettings, Sources
from zipfel.server.supervisor import LONGEST_PAUSE, PAUSE, SOON, Restarts, Supervisor


@pytest.fixture(autouse=True)
def kept_signals() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_pauses_double_up_to_a_minute_and_start_anew_after_a_long_life():
    restarts, now, pauses = Restarts(), 0.0, []
    for _ in range(9):
        restarts.start(now)
        pauses.append(restarts.died(now + 1))
        now = restarts.due
    assert pauses == [PAUSE * factor for factor in (1, 2, 4, 8, 16, 32)] + [LONGEST_PAUSE] * 3
    restarts.start(now)
    assert restarts.due == float("inf")
    assert restarts.died(now + SOON) == PAUSE


def test_sighup_restarts_a_dead_worker_at_once_and_leaves_a_live_one_alone():
    dead, alive = Restarts(), Restarts()
    for restarts in (dead, alive):
        restarts.start(100.0)
    dead.died(101.0)
    dead.hurry()
    alive.hurry()
    assert (dead.due, dead.deaths, alive.due) == (0.0, 0, float("inf"))


def test_a_signal_to_a_worker_that_ends_just_now_is_no_error():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with socket.socket() as sock:
        supervisor = Supervisor(Sources(), ServeSettings(workers=2), sock)
        supervisor.processes[0] = mock.Mock(pid=gone.pid)  # it seems to be alive
        supervisor._send_to_workers(0, None)  # signal 0 asks only whether there is such a process


class Doomed:
    """A process that has died by SIGBUS as soon as it is started."""

    exitcode = -signal.SIGBUS

    def start(self) -> None:
        self.sentinel, writer = os.pipe()
        os.close(writer)

    def is_alive(self) -> bool:
        return False


def test_a_worker_that_keeps_dying_is_restarted_less_and_less_often_and_the_log_says_why(monkeypatch, capfd):
    monkeypatch.setattr(supervisor, "PAUSE", 0.01)
    monkeypatch.setattr(log, "start", lambda: None)
    made: list[Doomed] = []
    with socket.create_server(("127.0.0.1", 0)) as sock:
        parent = Supervisor(Sources({"glas": [Path("glas")]}), ServeSettings(workers=2), sock)
        for number in range(2):
            parent.shared[number * LENGTH + STARTS] = 1

        def process(**arguments: Any) -> Doomed:
            made.append(Doomed())
            if len(made) == 10:
                os.kill(os.getpid(), signal.SIGTERM)
            return made[-1]

        monkeypatch.setattr(parent.context, "Process", process, raising=False)
        assert parent.run() == 0
    for one in made:
        os.close(one.sentinel)
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
    pauses = [line["restart_in"] for line in lines if line["event"] == "worker ended" and line["worker"] == 0]
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
    assert {line["error"] for line in lines if line["event"] == "worker ended"} == {supervisor.ADVICE[-signal.SIGBUS]}
