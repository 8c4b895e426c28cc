"""Accuracy of plans: `python -m benchmarks.plan_check DATA[,DATA ...] MODEL[,MODEL ...] PRESET[,...] [key=value ...]`.

For each data set, model and preset, plans in one process, then trains, saves and predicts in another. One JSON line
each, with the planned figure divided by the true one, which should be between 0.5 and 2. With results=FILE, the true
figures are read from the results of `zipfel bench` (means over seeds, test), and plans are made for its features.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import product
from pathlib import Path

import orjson

from benchmarks.record import record
from zipfel.bench import features
from zipfel.bench.results import OK, read_results
from zipfel.config import words_of
from zipfel.data.formats import read

NAMES = ("training_seconds", "memory_bytes", "disk_bytes", "predict_ms")
RACED = {"train_seconds": 1.0, "train_peak_mb": 1e6, "model_mb": 1e6, "batch_ms": 1.0}  # the same in a bench, and units


def planned(data: str, model: str, preset: str, changes: dict[str, str]) -> dict[str, float]:
    """Return the figures of a plan, and how long planning took."""
    from zipfel.plan import plan

    raced = changes.pop("results", None) is not None
    dataset = features.loaded(Path(data)) if raced else read(data)
    dataset = dataclasses.replace(dataset, validation=None) if raced else dataset
    start = time.perf_counter()
    found = plan(dataset, model, preset, changes).as_json()
    return {**{name: found[name] for name in NAMES}, "planning_seconds": time.perf_counter() - start}


def true(data: str, model: str, preset: str, changes: dict[str, str]) -> dict[str, float]:
    """Train, save and tag test, and return what that took."""
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


def raced(results: Path, data: str, model: str, preset: str) -> dict[str, float]:
    """Return the figures that a bench measured."""
    name = model if preset == "default" else f"{model}:{preset}"
    wanted = {"part": "test", "data": data, "contestant": name, "status": OK}
    settings = {"model": model, "preset": preset}
    lines = [line for line in read_results(results) if wanted.items() <= line.items() and line["settings"] == settings]
    if not lines:
        sys.exit(f"{results}: no successful run of {model}, preset {preset}, on {data}")
    means = [statistics.mean(line[name] for line in lines) * unit for name, unit in RACED.items()]
    return dict(zip(NAMES, means, strict=True))


def elsewhere(what: str, *words: str) -> dict[str, float]:
    """Return figures measured in a fresh process."""
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
    changes = words_of(words[3:])
    results = changes.get("results")
    if results is not None and len(changes) > 1:
        sys.exit("results=FILE has figures of unchanged presets; remove the other settings")
    for data, model, preset in product(*(word.split(",") for word in words[:3])):
        one = elsewhere("planned", data, model, preset, *words[3:])
        if results is not None:
            other = raced(Path(results), Path(data).name, model, preset)
        else:
            other = elsewhere("true", data, model, preset, *words[3:])
        ratios = {name: round(one[name] / other[name], 2) for name in NAMES}
        about = {"data": Path(data).name, "model": model, "preset": preset, "changes": words_of(words[3:])}
        record("plan_check", {**about, "planned over true": ratios, "planned": one, "true": other}, 0, ("torch",))
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
