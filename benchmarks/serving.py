"""Runs `zipfel serve` in its own process, for the benchmarks of the service."""

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

START = 180.0  # longest time for a server to start or stop, in seconds: a busy machine is no failure


@dataclass(frozen=True)
class Running:
    """A running server."""

    process: subprocess.Popen[bytes]
    port: int
    seconds: float  # from the start of the process until it listened

    def memory(self) -> int:
        """Return the memory of the process in MB, without mapped files."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) // 1000 for line in lines if line.startswith("RssAnon"))

    def worked(self) -> float:
        """Return the CPU seconds of the process."""
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(model: str, *options: str) -> Iterator[Running]:
    """Run a server on a free port of the loopback interface; stop it at the end, and check that it exits with 0."""
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
    """Return the port, which the server logs once it listens."""
    while time.perf_counter() < end and process.poll() is None:
        for line in Path(f"/proc/self/fd/{log}").read_bytes().splitlines():
            if line.startswith(b"{") and (entry := orjson.loads(line))["event"] == "serving":
                return int(entry["port"])
        time.sleep(0.02)
    raise SystemExit(f"the server did not start: {Path(f'/proc/self/fd/{log}').read_bytes().decode()}")
