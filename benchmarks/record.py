"""One line of JSON for a benchmark's figures, with all that it takes to repeat them."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import orjson


def record(benchmark: str, figures: Mapping[str, object], seed: int, packages: tuple[str, ...] = ()) -> None:
    """Print figures with seed, commit, machine, versions and date; what is kept goes to benchmarks/results/."""
    line = {
        "benchmark": benchmark,
        **figures,
        "seed": seed,
        "commit": _commit(),
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "versions": {name: version(name) for name in ("numpy", "scipy", *packages)},
        "python": platform.python_version(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
    sys.stdout.write(orjson.dumps(line).decode() + "\n")


def _commit() -> str:
    """Return the commit that was run, marked where the working tree differs from it."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--exclude=*"], capture_output=True, text=True, check=False
    )
    return run.stdout.strip() or "unknown"


def _processor() -> str:
    """Return the processor's name, which Linux tells in a file only."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
