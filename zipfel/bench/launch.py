"""Run a command with a time limit and record its resource usage: `python launch.py SECONDS USAGE.json LOG COMMAND ...`.

A script without imports from zipfel, to stay small: on Linux the peak memory of a process starts at that of its parent,
and the bench process holds whole data sets. A time-out, and a signal that ends this process, kill the command with all
processes that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

PATIENCE = 0.02  # seconds between two checks of the command


def launched(command: list[str], limit: float, log: str, parent: int | None = None) -> dict[str, Any]:
    """Run a command until it ends or reaches the limit; return exit code, wall and CPU seconds, and peak memory in MB.

    parent: process id; the command is killed when this process gets another parent. None: never.
    """
    started = time.monotonic()
    environment = {**os.environ, "BENCH_STARTED": str(time.time())}
    with open(log, "ab") as out:  # noqa: PTH123 (avoid importing pathlib)
        try:
            child = subprocess.Popen(command, stdout=out, stderr=out, env=environment, start_new_session=True)
        except OSError as error:
            out.write(f"{error}\n".encode())
            return {"code": 127, "timed_out": False, "seconds": 0.0, "cpu_seconds": 0.0, "peak_mb": 0.0}
    ended: Any = (0, 0, None)
    timed_out = False
    try:
        while not ended[0]:
            time.sleep(PATIENCE)
            ended = os.wait4(child.pid, os.WNOHANG)
            timed_out = not ended[0] and time.monotonic() - started > limit
            if timed_out or parent not in (None, os.getppid()):
                break
    finally:
        _end(child.pid)
    _, status, used = ended if ended[0] else os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return {
        "code": child.returncode,
        "timed_out": timed_out,
        "seconds": time.monotonic() - started,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "peak_mb": used.ru_maxrss / 1000,
    }


def _end(group: int) -> None:
    """Kill the remaining processes of a group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def main(words: list[str]) -> None:
    """Run the command of the command line, and write its usage."""
    for asked in (signal.SIGTERM, signal.SIGINT):
        signal.signal(asked, lambda *_: sys.exit(143))  # runs `finally`
    used = launched(words[3:], float(words[0]), words[2], os.getppid())
    with open(words[1], "w") as out:  # noqa: PTH123
        json.dump(used, out)


if __name__ == "__main__":
    main(sys.argv[1:])
