"""Fake peers for tests of the bench."""

from __future__ import annotations

import dataclasses
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

import zipfel
from zipfel.bench.contestants import Contestant, peers
from zipfel.bench.race import Race, Rules
from zipfel.data.synthetic import Synthetic, make

# A peer of a few lines: ranks labels from `first` on for every document, or does what no contestant should.
FAKE = """
import json, os, subprocess, sys, time
import numpy as np

verb, features, model, report = sys.argv[1:5]
words = dict(zip(sys.argv[5::2], sys.argv[6::2]))
settings = json.loads(words["--settings"])
with open(os.environ["FAKE_DIARY"], "a") as diary:
    diary.write(f"{verb} {words['--seed']} {words['--threads']} {json.dumps(settings)}\\n")
if settings["act"] == "crash":
    sys.exit("first line\\nboom")
if settings["act"] == "sleep":
    child = subprocess.Popen(["sleep", "60"])
    open(os.environ["FAKE_DIARY"] + ".pid", "w").write(str(child.pid))
    time.sleep(60)
os.makedirs(model, exist_ok=True)
figures = {"train_seconds": 1.5, "train_cpu_seconds": 2.5}
if settings.get("model") == "auto":
    figures["chosen"] = {"model": "blend", "main": settings.get("main", "planted")}
if verb == "predict":
    points = int(np.load(os.path.join(features, "X.tst.npz"))["shape"][0])
    ids = np.tile(np.arange(int(words["--k"])) + settings.get("first", 0), (points, 1))
    np.savez(words["--ranking"], ids=ids, scores=-ids.astype(np.float32))
    figures = {"batch_ms": 0.5, "alone_p50_ms": 1.0, "alone_p99_ms": 2.0, "startup_seconds": 0.1}
else:
    open(os.path.join(model, "weights"), "wb").write(bytes(2_000_000))
json.dump(figures, open(report, "w"))
"""


def environment(folder: Path, name: str) -> None:
    """Make a fake environment whose `python` is the one that runs the tests."""
    python = folder / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)


class Arena:
    """Fake peers, a small data set, and a record of the jobs that were started and their results."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.out = folder, folder / "tiny", folder / "out"
        self.diary = folder / "diary"
        (folder / "benchmarks" / "recipes" / "peers").mkdir(parents=True)
        (folder / "benchmarks" / "peers").mkdir()
        (folder / "benchmarks" / "peers" / "fake_adapter.py").write_text(FAKE)
        environment(folder / "environments", "here")
        dataset = make(Synthetic(points=120, labels=12, seed=3))
        zipfel.write(dataset, self.data, "npz")
        self.started: list[tuple[str, str, int]] = []
        self.heard: list[dict[str, Any]] = []

    def peer(self, name: str, more: str = "", environment: str = "here", **settings: object) -> Contestant:
        recipe = self.folder / "benchmarks" / "recipes" / "peers" / f"{name}.toml"
        base = "\n".join(f"{key} = {orjson.dumps(value).decode()}" for key, value in settings.items())
        head = f'title = "Peer {name}"\nadapter = "fake"\nenvironment = "{environment}"\n'
        recipe.write_text(f"{head}{more}\n[base]\n{base}\n")
        return peers(name, self.folder / "benchmarks", self.folder / "environments")[0]

    def auto(self, name: str = "auto", **settings: object) -> Contestant:
        """Return a fake peer in the place of zipfel with the model that it chooses by itself."""
        peer = self.peer(name, **settings)
        return dataclasses.replace(peer, title="zipfel auto", model={"model": "auto"})

    def take_texts(self) -> None:
        """Take a data set of texts instead."""
        self.data = self.folder / "texts"
        zipfel.write(make(Synthetic(points=120, labels=12, texts=True, seed=3)), self.data, "lf")

    def race(self, *contestants: Contestant, heard: Callable[[Any], None] | None = None, **rules: Any) -> None:
        limits = Rules(**{"seeds": 1, "limit": 60, **rules})
        Race(contestants, self.out, limits, self._on_start, heard or self.heard.append).run([self.data])

    def _on_start(self, data: str, job: Any, number: int, total: int) -> None:
        self.started.append((job.part, job.contestant.name, job.seed))

    @property
    def pages(self) -> list[str]:
        return self.diary.read_text().splitlines() if self.diary.exists() else []


def is_gone(pid: int) -> bool:
    """Whether a process has ended, even if nobody has read its exit status."""
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
