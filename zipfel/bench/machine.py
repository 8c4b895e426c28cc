"""The origin of a measurement: commit, processor, date."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

PACKAGE = Path(__file__).parent.parent  # zipfel itself


def commit(folder: Path) -> str:
    """Return the commit of a checkout, marked as dirty if the working tree differs from it."""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return "unknown"
    return run.stdout.strip() or "unknown"


def processor() -> str:
    """Return the processor's name (on Linux from /proc/cpuinfo) and the number of cores."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def today() -> str:
    """Return the date, in UTC."""
    return datetime.datetime.now(datetime.UTC).date().isoformat()
