"""A server in a process of its own, for benchmarks of the service."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

START = 60.0  # seconds that a server may take


@dataclass(frozen=True)
class Running:
    """A server that answers."""

    process: subprocess.Popen[bytes]
    port: int
    seconds: float  # from the start of the process until it listened

    def memory(self) -> int:
        """Return the memory that is the process's own, in MB: without what is mapped out of files."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1000 for line in lines if line.startswith("RssAnon"))

    def worked(self) -> float:
        """Return the seconds that the process has spent on a processor."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: str, *options: str) -> Iterator[Running]:
    """Run a server on a free port of loopback; in the end it is told to stop, and must do so in order."""
    with tempfile.TemporaryFile() as log:
        start = time.perf_counter()
        words = [sys.executable, "-m", "zipfel", "serve", model, "--port", "0", *options]
        process = subprocess.Popen(words, stderr=log)
        try:
            yield Running(process, _port(process, log.fileno(), start + START), time.perf_counter() - start)
            process.terminate()
            if process.wait(START) != 0:
                raise SystemExit(f"the server ended with {process.returncode}")
        finally:
            process.kill()


def _port(process: subprocess.Popen[bytes], log: int, end: float) -> int:
    """Return the port, which the log tells once the server listens."""
    while time.perf_counter() < end and process.poll() is None:
        for line in Path(f"/proc/self/fd/{log}").read_bytes().splitlines():
            if line.startswith(b"{") and (told := orjson.loads(line))["event"] == "serving":
                return int(told["port"])
        time.sleep(0.02)
    raise SystemExit(f"the server did not start: {Path(f'/proc/self/fd/{log}').read_bytes().decode()}")
