"""Processes that end with the one that started them."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time

import pytest

from zipfel.data import processes

CHILD = """
import multiprocessing, os, sys, time
from zipfel.data.processes import end_with
multiprocessing.current_process().name = "LokyProcess-1"
print(1, flush=True)
sys.stdin.read()  # until the parent has been killed, or not at all
end_with(int(sys.argv[1]))
print(2, flush=True)
time.sleep(30)
"""
PARENT = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {child!r}, str(os.getpid())], stdin={stdin})
child.wait()
"""


@pytest.mark.parametrize(("stdin", "reached"), [("subprocess.DEVNULL", b"1\n2\n"), ("subprocess.PIPE", b"1\n")],
                         ids=["at work", "while it starts"])  # fmt: skip
def test_a_process_of_joblib_ends_with_its_parent_though_that_is_killed(stdin: str, reached: bytes):
    text = PARENT.format(child=CHILD, stdin=stdin)
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        lines = b"".join(parent.stdout.readline() for _ in reached.splitlines())
        assert lines == reached
        parent.kill()
        start = time.monotonic()
        parent.stdout.read()  # until the child, which has the same output, has ended too
        assert time.monotonic() - start < 15


def test_threads_and_processes_of_a_cluster_follow_nobody(monkeypatch: pytest.MonkeyPatch):
    started: list[int] = []
    monkeypatch.setattr(processes, "_wait_for_end_of", started.append)
    processes.end_with.__wrapped__(os.getppid())
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "LokyProcess-1")
    processes.end_with.__wrapped__(os.getpid())
    assert not started
    processes.end_with.__wrapped__(os.getppid())
    assert started == [os.getppid()]
