"""Compare two checkouts of zipfel: weights, rankings and speed.

    python -m benchmarks.compare_checkouts weights BEFORE AFTER --data DATA ... --out FOLDER
    python -m benchmarks.compare_checkouts speed   BEFORE AFTER --data DATA --models NAME --presets NAME [--pairs 20]

BEFORE and AFTER are folders of checkouts. `weights` trains every model and preset (or those named by --models and
--presets) once in each, with seed 0 on a CPU. It compares the ranking of the test points bit for bit, and every saved
tensor with more than one number, by content, whatever its name. Results are kept in FOLDER, so that an interrupted
comparison resumes. `speed` trains and predicts in turn in two processes, one for each checkout, after a first pair that
does not count, and prints the paired ratios AFTER / BEFORE with a 95 % interval.
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

def run():
    tagger = Tagger(model, preset, device="cpu", seed=0)
    start = time.perf_counter()
    tagger.fit_dataset(dataset)
    trained = time.perf_counter() - start
    test = dataset.test
    inputs = test.texts if test.X is None else test.X
    tagger.rank(inputs, 5, test.filtered)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        ranking = tagger.rank(inputs, 5, test.filtered)
        times.append(time.perf_counter() - start)
    return tagger, ranking, {"train": trained, "predict": min(times)}

if mode == "speed":
    for _ in sys.stdin:  # a line for each run
        print(json.dumps(run()[2]), flush=True)
else:
    tagger, ranking, figures = run()
    saved = tagger.saved()
    tensors = {**saved.serve, **saved.train}
    contents = {n: digest(t.detach().cpu().numpy()) for n, t in tensors.items() if t.numel() > 1}
    print(json.dumps({**figures, "tensors": contents, "ids": digest(ranking.ids), "scores": digest(ranking.scores)}))
"""


def worker(checkout: Path, data: Path, model: str, preset: str, mode: str) -> dict[str, Any]:
    """Return the arguments of a process that runs in a checkout."""
    words = [sys.executable, "-c", WORKER, str(data.resolve()), model, preset, str(checkout.resolve()), mode]
    paths = [str(checkout.resolve()), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return {"args": words, "text": True, "env": environment, "cwd": checkout}


def kept(folder: Path, checkout: Path, side: str, data: Path, model: str, preset: str) -> dict[str, Any]:
    """Return the result of a checkout: from an earlier call, or measured now."""
    path = folder / side / f"{data.name}-{model}-{preset}.json"
    if not path.exists():
        run = subprocess.run(**worker(checkout, data, model, preset, "weights"), capture_output=True)
        failed = {"error": run.stderr.strip().splitlines()[-1]} if run.returncode else None
        found = failed or json.loads(run.stdout.splitlines()[-1])
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
    sides = [arguments.before, arguments.after]
    piped: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    runs = {s: subprocess.Popen(**worker(s, Path(data), model, preset, "speed"), **piped) for s in sides}

    def timed(side: Path) -> dict[str, float]:
        stdin, stdout = runs[side].stdin, runs[side].stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write("run\n")
        stdin.flush()
        return dict(json.loads(stdout.readline()))

    ratios: dict[str, list[float]] = {"train": [], "predict": []}
    for pair in range(arguments.pairs + 1):
        took = {side: timed(side) for side in (sides if pair % 2 == 0 else sides[::-1])}
        for name, values in ratios.items() if pair else ():
            values.append(took[arguments.after][name] / took[arguments.before][name])
    for run in runs.values():
        run.terminate()
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
