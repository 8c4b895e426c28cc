"""Compare two checkouts of zipfel: weights, rankings and speed.

    python -m benchmarks.compare_checkouts weights BEFORE AFTER --data DATA ... --out FOLDER
    python -m benchmarks.compare_checkouts speed   BEFORE AFTER --data DATA --models NAME --presets NAME [--pairs 20]

BEFORE and AFTER are folders of checkouts. `weights` trains every model and preset (or those named by --models and
--presets) once in each, with seed 0 on a CPU. It compares the ranking of the test points bit for bit, and every saved
tensor with more than one number, by content, whatever its name. Results are kept in FOLDER, so that an interrupted
comparison resumes. `speed` trains and predicts in interleaved pairs of fresh processes and prints the paired ratios
AFTER / BEFORE with a 95 % interval.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.record import record

MODELS, PRESETS = ("mnn", "dxml", "glas", "lightdxml", "decaf"), ("fast", "default", "paper")

# Runs in either checkout, so it uses only what both have.
WORKER = """
import hashlib, json, sys, time
import numpy as np, torch, zipfel
from zipfel import Tagger
from zipfel.data.formats import read
from zipfel.data.text import Tfidf

path, model, preset, checkout, mode = sys.argv[1:6]
assert zipfel.__file__.startswith(checkout + "/"), zipfel.__file__
dataset = read(path)
if dataset.train.texts is None and (dataset.train.X.data % 1 == 0).all():
    dataset = Tfidf.fit(dataset.train.X).apply(dataset)

def digest(array):
    array = np.ascontiguousarray(array)
    return hashlib.sha256(str((array.shape, array.dtype.str)).encode() + array.tobytes()).hexdigest()

tagger = Tagger(model, preset, device="cpu", seed=0)
start = time.perf_counter()
tagger.fit_dataset(dataset)
trained = time.perf_counter() - start
test = dataset.test
inputs = test.texts if test.X is None else test.X
tagger.rank(inputs, 5, test.filtered)
times = []
for _ in range(3 if mode == "speed" else 1):
    start = time.perf_counter()
    ranking = tagger.rank(inputs, 5, test.filtered)
    times.append(time.perf_counter() - start)
found = {"train": trained, "predict": min(times)}
if mode == "weights":
    saved = tagger.saved()
    tensors = {**saved.serve, **saved.train}
    found |= {"tensors": {n: digest(t.detach().cpu().numpy()) for n, t in tensors.items() if t.numel() > 1},
              "ids": digest(ranking.ids), "scores": digest(ranking.scores)}
print(json.dumps(found))
"""


def measured(checkout: Path, data: Path, model: str, preset: str, mode: str) -> dict[str, Any]:
    """Train and predict in a fresh process of a checkout."""
    words = [sys.executable, "-c", WORKER, str(data), model, preset, str(checkout.resolve()), mode]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(checkout.resolve()), os.environ.get("PYTHONPATH", "")]),
    }
    run = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=checkout)
    if run.returncode:
        return {"error": run.stderr.strip().splitlines()[-1]}
    return dict(json.loads(run.stdout.splitlines()[-1]))


def kept(folder: Path, checkout: Path, side: str, data: Path, model: str, preset: str) -> dict[str, Any]:
    """Return the result of a checkout: from an earlier call, or measured now."""
    path = folder / side / f"{data.name}-{model}-{preset}.json"
    if not path.exists():
        found = measured(checkout, data, model, preset, "weights")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found))
    return dict(json.loads(path.read_text()))


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what differs between two checkouts; an error in both is no difference."""
    if "error" in before or "error" in after:
        same = before.get("error") is not None and after.get("error") is not None
        return [] if same else [f"error: {before.get('error')} / {after.get('error')}"]
    theirs = set(after["tensors"].values())
    lost = [name for name, content in before["tensors"].items() if content not in theirs]
    return lost + [name for name in ("ids", "scores") if before[name] != after[name]]


def weights(arguments: argparse.Namespace) -> None:
    for data in map(Path, arguments.data):
        for preset in arguments.presets:
            for model in arguments.models:
                sides = [("before", arguments.before)] + ([("after", arguments.after)] if arguments.after else [])
                found = [kept(arguments.out, path, side, data, model, preset) for side, path in sides]
                line: dict[str, Any] = {"data": data.name, "model": model, "preset": preset}
                line |= {"error": found[0]["error"]} if "error" in found[0] else {"tensors": len(found[0]["tensors"])}
                if len(found) == 2:
                    line["differences"] = differences(*found)
                print(json.dumps(line), flush=True)


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of paired ratios and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.mean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    t = 2.093 if len(logs) == 20 else 1.96  # Student's t with 19 degrees of freedom
    low, middle, high = (math.exp(mean + side * t * error) for side in (-1, 0, 1))
    return low, middle, high


def speed(arguments: argparse.Namespace) -> None:
    (data,), model, preset = arguments.data, arguments.models[0], arguments.presets[0]
    ratios: dict[str, list[float]] = {"train": [], "predict": []}
    for pair in range(arguments.pairs):
        sides = [arguments.before, arguments.after]
        order = sides if pair % 2 == 0 else sides[::-1]
        found = {side: measured(side, Path(data), model, preset, "speed") for side in order}
        for name, values in ratios.items():
            values.append(found[arguments.after][name] / found[arguments.before][name])
    figures = {name: [round(value, 3) for value in interval(values)] for name, values in ratios.items()}
    about = {"data": Path(data).name, "model": model, "preset": preset, "pairs": arguments.pairs}
    record("compare_checkouts", {**about, "after / before, 95 % low, mean, high": figures}, 0, ("torch",))


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("weights", "speed"))
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path, nargs="?")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--out", type=Path, default=Path("compared"))
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    parser.add_argument("--pairs", type=int, default=20)
    arguments = parser.parse_args(words)
    {"weights": weights, "speed": speed}[arguments.what](arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
