"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from zipfel.data import processes

CHILD = """
from zipfel.data.processes import end_with
import os, time
end_with(os.getppid())
print(1, flush=True)
time.sleep(30)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


def test_a_process_ends_with_its_parent_though_that_is_killed():
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"1\n"
        parent.kill()
        start = time.monotonic()
        assert parent.stdout.read() == b""  # until the child, which has the same output, has ended too
        assert time.monotonic() - start < 15


def test_a_thread_of_the_same_process_and_a_process_of_a_cluster_follow_nobody(monkeypatch: pytest.MonkeyPatch):
    started: list[object] = []
    monkeypatch.setattr(processes, "_wait_for_end_of", started.append)
    processes.end_with.__wrapped__(os.getpid())
    processes.end_with.__wrapped__(1 << 30)
    assert not started
    processes.end_with.__wrapped__(os.getppid())
    assert started == [os.getppid()]
