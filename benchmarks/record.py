"""A benchmark's figures as one line of JSON, with everything needed to repeat them."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import orjson

from zipfel.bench import machine


def record(benchmark: str, figures: Mapping[str, object], seed: int, packages: tuple[str, ...] = ()) -> None:
    """Print figures with seed, commit, machine, versions and date. Lines worth keeping go to benchmarks/results/."""
    line = {
        "benchmark": benchmark,
        **figures,
        "seed": seed,
        "commit": machine.commit(Path(__file__).parent),
        "machine": machine.processor(),
        "versions": {name: version(name) for name in ("numpy", "scipy", *packages)},
        "python": platform.python_version(),
        "date": machine.today(),
    }
    sys.stdout.write(orjson.dumps(line).decode() + "\n")
