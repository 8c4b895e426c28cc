"""The launcher of ranks: what it does when one ends, and what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from zipfel.cli import launch
from zipfel.errors import INTERRUPTED

WAITS = "import signal, sys, time; {}; print(1, flush=True); time.sleep(60)"
DEAF = WAITS.format("signal.signal(signal.SIGINT, signal.SIG_IGN)")  # as ranks but the first are
STARTING = WAITS.format("signal.signal(signal.SIGINT, signal.SIG_DFL)")  # Python has not set its handler yet
POLITE = WAITS.format(f"signal.signal(signal.SIGINT, lambda *_: sys.exit({INTERRUPTED}))")


@pytest.mark.parametrize("first", [STARTING, POLITE], ids=["killed by the signal", "ends by itself"])
def test_ctrl_c_that_the_first_rank_alone_hears_ends_all_soon_and_in_silence(
    first: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(launch, "PATIENCE", 0.2)
    processes = [subprocess.Popen([sys.executable, "-S", "-c", text], stdout=subprocess.PIPE) for text in (first, DEAF)]
    for process in processes:
        assert process.stdout is not None
        process.stdout.readline()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    start = time.monotonic()
    assert launch._Ranks(processes).code() == INTERRUPTED
    assert time.monotonic() - start < launch.GRACE / 2
    assert capsys.readouterr() == ("", "")
    for process in processes:
        assert process.stdout is not None
        process.stdout.close()
