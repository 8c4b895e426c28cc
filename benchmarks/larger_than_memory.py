"""Training on data larger than memory: `python -m benchmarks.larger_than_memory FOLDER [key=value ...]`.

Writes synthetic data sets of growing size as mapped folders, piece by piece, and trains a model for the same number of
steps on each, in a process of its own. Own memory is anonymous, without mapped pages of files. Data that FOLDER has
already is used again; remove it afterwards. Defaults: points=1000000,20000000 labels=100000 model=glas dimension=128
steps=200. One JSON line.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from benchmarks.record import record
from benchmarks.sharded_labels import measured
from zipfel.config import words_of

SEED, HELD_OUT, TOKENS = 0, 10_000, 20
DEFAULTS = {"points": "1000000,20000000", "labels": "100000", "model": "glas", "dimension": "128", "steps": "200"}


def generate(folder: Path, points: int, labels: int) -> None:
    """Write a data set with that many points of train, and HELD_OUT of validation."""
    from zipfel.data.formats.atomic import new_folder
    from zipfel.data.formats.mapped import Writer
    from zipfel.data.synthetic import Synthetic, streamed, without_points

    share = HELD_OUT / (points + HELD_OUT)
    settings = Synthetic(points + HELD_OUT, labels, test_share=share, tokens_per_point=TOKENS, seed=SEED)
    with new_folder(folder) as new:
        writer = Writer(new)
        for part, Y, X in streamed(settings):
            writer.append("validation" if part == "test" else part, Y, X)
        writer.close()
        writer.finish(without_points(settings))


def train(folder: Path, told: dict[str, str]) -> dict[str, Any]:
    """Train on a folder; return seconds, and the sum of the weights, to tell runs apart."""
    import zipfel
    from zipfel.tagger import Tagger
    from zipfel.training.progress import Observer, StageLength
    from zipfel.training.run import Run

    class Steps(Observer):
        """Ends each stage after some steps."""

        done = 0

        def began(self, stage: str, length: StageLength) -> None:
            self.done = 0

        def did(self, event: str) -> None:
            self.done += event == "step"

        def is_enough(self) -> bool:
            return self.done >= int(told["steps"])

    start = time.perf_counter()
    dataset = zipfel.read(folder)
    read = time.perf_counter() - start
    settings = {"dimension": int(told["dimension"])}
    tagger = Tagger(told["model"], settings=settings, device="cpu", seed=SEED)
    tagger.fit_dataset(dataset, Run(seed=SEED, observer=Steps()))
    assert tagger.outcome_ is not None
    return {"check_s": round(read, 1), "steps_s": round(tagger.outcome_.seconds, 1)}


def step(words: list[str]) -> None:
    """Do one step in this process, and print its figures."""
    name, path, text = words
    told = orjson.loads(text)
    more: dict[str, Any] = {}
    with measured() as figures:
        if name == "generate":
            generate(Path(path), int(told["points"]), int(told["labels"]))
        else:
            more = train(Path(path), told)
    sys.stdout.write(orjson.dumps(figures | more).decode() + "\n")


def in_process(name: str, path: Path, told: dict[str, str]) -> dict[str, Any]:
    """Do a step in a process of its own; return its figures."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.larger_than_memory",
        "--step",
        name,
        str(path),
        orjson.dumps(told).decode(),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return dict(orjson.loads(done.stdout.splitlines()[-1]))


def main(folder: Path, told: dict[str, str]) -> None:
    """Measure each size."""
    rows = []
    for points in told["points"].split(","):
        path = folder / f"{points}-{told['labels']}"
        one = {**told, "points": points}
        row: dict[str, Any] = {"points": int(points)}
        if not path.exists():
            row["generate"] = in_process("generate", path, one)
        row["disk_gb"] = round(sum(file.stat().st_size for file in path.iterdir()) / 1e9, 2)
        row["train"] = in_process("train", path, one)
        rows.append(row)
        sys.stderr.write(f"{row}\n")
    owned = [row["train"]["own_gb"] for row in rows]
    shared = {name: told[name] for name in ("model", "labels", "dimension", "steps")}
    record("larger_than_memory", {**shared, "sizes": rows, "own_gb_grows": round(owned[-1] - owned[0], 3)}, SEED)


if __name__ == "__main__":
    if sys.argv[1] == "--step":
        step(sys.argv[2:])
    else:
        main(Path(sys.argv[1]), {**DEFAULTS, **words_of(sys.argv[2:])})
