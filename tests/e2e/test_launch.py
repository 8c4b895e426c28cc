"""The launcher of ranks: what it does when one ends, and what it prints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

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


@pytest.mark.parametrize(("first", "code"), [("/bin", 0), ("", 1), (None, 1)], ids=["a script", "-c", "-m"])
def test_ranks_find_modules_in_the_current_folder_only_if_this_process_does(
    first: str | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "random.py").write_text("raise SystemExit(1)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(Path.cwd()) if first is None else first, *sys.path])
    assert subprocess.run([*launch._python(), "-c", "import random"], check=False).returncode == code
