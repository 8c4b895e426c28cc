"""Plan against truth: `python -m benchmarks.plan_check DATA[,DATA ...] MODEL[,MODEL ...] PRESET[,...] [key=value ...]`.

For each data set, model and preset a plan is made in one process and the model trained, saved and used in another, one
after the other. One JSON line each, with what was planned over what was true: it should lie between a half and two.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import orjson

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.formats import read

NAMES = ("training_seconds", "memory_bytes", "disk_bytes", "predict_ms")


def planned(data: str, model: str, preset: str, changes: dict[str, str]) -> dict[str, float]:
    """Return what a plan says, and how long it took to make."""
    from zipfel.plan import plan

    dataset = read(data)
    start = time.perf_counter()
    found = plan(dataset, model, preset, changes).as_json()
    return {**{name: found[name] for name in NAMES}, "planning_seconds": time.perf_counter() - start}


def true(data: str, model: str, preset: str, changes: dict[str, str]) -> dict[str, float]:
    """Train, save and tag the texts of test, and return what that took."""
    from zipfel.tagger import Tagger

    dataset = read(data)
    start = time.perf_counter()
    tagger = Tagger(model, preset, changes).fit_dataset(dataset)
    seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        tagger.save(Path(folder) / "model")
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    part = dataset.test or dataset.train
    start = time.perf_counter()
    tagger.rank(part.X if tagger.features_ is None else part.texts)
    ms = 1000 * (time.perf_counter() - start) / len(part)
    return dict(zip(NAMES, (seconds, memory, size, ms), strict=True))


def elsewhere(what: str, *words: str) -> dict[str, float]:
    """Return the figures of a fresh process."""
    command = [sys.executable, "-m", "benchmarks.plan_check", f"--{what}", *words]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(run.stderr)
    figures: dict[str, float] = orjson.loads(run.stdout)
    return figures


def main(words: list[str]) -> None:
    if words[0] in ("--planned", "--true"):
        work = planned if words[0] == "--planned" else true
        figures = work(words[1], words[2], words[3], words_of(words[4:]))
        sys.stdout.write(orjson.dumps(figures).decode())
        return
    for data, model, preset in product(*(word.split(",") for word in words[:3])):
        one, other = (elsewhere(what, data, model, preset, *words[3:]) for what in ("planned", "true"))
        ratios = {name: round(one[name] / other[name], 2) for name in NAMES}
        about = {"data": Path(data).name, "model": model, "preset": preset, "changes": words_of(words[3:])}
        record("plan_check", {**about, "planned over true": ratios, "planned": one, "true": other}, 0, ("torch",))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
