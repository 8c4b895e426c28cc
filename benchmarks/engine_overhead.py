"""The cost of Ray on one machine: `python -m benchmarks.engine_overhead [rows=1000000] [key=value ...]`.

Trains a small model on synthetic texts and tags short documents by `zipfel predict`, with `--engine ray --workers N
--threads 1` and with `--engine local --threads N`: one process with as many cores, which its threads share. Both tag
the same slices of the documents, in turn and in alternating order, each by a command of its own; outputs must be equal.
A start is a job of N documents (the faster of two), with all that a command does once: imports, Ray, processes, the
model. One job over all documents starts once, so all starts but one are subtracted from the sum over slices.
Defaults: workers=2 slices=4 files=20 (a slice) model=linear. One JSON line.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq

from benchmarks.record import record
from zipfel.config import words_of

SEED, WORDS = 0, 12  # words of a document
DEFAULTS = {"rows": "1000000", "workers": "2", "slices": "4", "files": "20", "model": "linear"}


def trained(folder: Path, model: str) -> list[str]:
    """Save a model in a folder; return the words of its texts, frequent ones more often."""
    from zipfel.data.synthetic import Synthetic, make
    from zipfel.tagger import Tagger

    dataset = make(Synthetic(points=5000, labels=200, texts=True, noise=0.2, seed=SEED))
    Tagger(model, device="cpu", seed=SEED).fit_dataset(dataset).save(folder)
    return [word for texts in (dataset.train.texts or {}).values() for text in texts for word in text.split()]


def write(path: Path, rows: range, words: list[str]) -> None:
    """Write documents of random words, with an id each, as lines of JSON."""
    drawn = np.random.default_rng([SEED, rows.start]).integers(0, len(words), (len(rows), WORDS)).tolist()
    with path.open("wb") as file:
        for row, ids in zip(rows, drawn, strict=True):
            file.write(orjson.dumps({"id": row, "text": " ".join(words[n] for n in ids)}) + b"\n")


def documents(folder: Path, told: dict[str, str], words: list[str]) -> list[Path]:
    """Write all documents; return a folder for each slice, and before them one with a document for each process."""
    slices, files = int(told["slices"]), int(told["files"])
    bounds = np.linspace(0, int(told["rows"]), slices * files + 1).astype(int).tolist()
    folders = [folder / "one", *(folder / f"slice-{number}" for number in range(slices))]
    for each in folders:
        each.mkdir()
    for number in range(int(told["workers"])):
        write(folders[0] / f"{number}.jsonl", range(number, number + 1), words)
    for number in range(slices * files):
        path = folders[1 + number // files] / f"{number:04d}.jsonl"
        write(path, range(bounds[number], bounds[number + 1]), words)
    return folders


def seconds(engine: str, workers: str, source: Path) -> float:
    """Tag the documents of a folder; return the seconds of the command."""
    options = {"local": ["--threads", workers], "ray": ["--threads", "1", "--workers", workers]}[engine]
    files = ["--input", str(source), "--out", f"{source}-{engine}", "--fresh"]
    model, start = str(source.parent / "model"), time.perf_counter()
    command = [sys.executable, "-m", "zipfel", "predict", model, *files, "--engine", engine, "--device", "cpu"]
    subprocess.run([*command, *options], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(words: list[str]) -> None:
    told = {**DEFAULTS, **words_of(words)}
    times: dict[str, list[float]] = {"local": [], "ray": []}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, *slices = documents(folder, told, trained(folder / "model", told["model"]))
        for number, source in enumerate([one, one, *slices]):
            for engine in sorted(times, reverse=number % 2 == 1):
                times[engine].append(seconds(engine, told["workers"], source))
            local, ray = (pq.read_table(f"{source}-{engine}") for engine in times)
            if not local.equals(ray):
                raise SystemExit(f"{source.name}: Ray's output differs")
    figures: dict[str, object] = dict(told) | {"rows": int(told["rows"])}
    whole = {}
    for engine, own in times.items():
        start = min(own[:2])
        whole[engine] = sum(own[2:]) - (len(slices) - 1) * start
        slice_seconds = [round(each, 1) for each in own[2:]]
        figures |= {f"{engine}_start_s": round(start, 1), f"{engine}_slices_s": slice_seconds}
        figures[f"{engine}_s"] = round(whole[engine], 1)
    figures["overhead_percent"] = round(100 * (whole["ray"] / whole["local"] - 1), 1)
    record("engine_overhead", figures, SEED, ("torch", "ray", "pyarrow"))


if __name__ == "__main__":
    main(sys.argv[1:])
