"""A model of ten million labels in shards: `python -m benchmarks.sharded_labels FOLDER [key=value ...]`.

Builds a GLaS model with random weights, saves it, divides it into shards, checks, loads and searches both, and compares
their rankings, each in a process of its own. Peaks are of all memory of a process (with mapped pages of files), and of
its own (anonymous). Defaults: labels=10000000, dimension=128, shards=8, points=256. One JSON line; FOLDER is emptied.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.record import record

SEED, FEATURES, TOKENS, K = 0, 100_000, 16, 5
DEFAULTS = {"labels": 10_000_000, "dimension": 128, "shards": 8, "points": 256}


@contextmanager
def measured() -> Iterator[dict[str, float]]:
    """Yield figures that are filled at the end of the block: seconds, and peaks of memory in GB."""
    figures: dict[str, float] = {"own_gb": 0.0, "all_gb": 0.0}
    stop, start = threading.Event(), time.perf_counter()

    def watch() -> None:
        while True:
            status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
            for name, key in (("own_gb", "RssAnon"), ("all_gb", "VmRSS")):
                figures[name] = max(figures[name], int(status[key].split()[0]) * 1024 / 1e9)
            if stop.wait(0.05):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    yield figures
    stop.set()
    thread.join()
    figures |= {name: round(value, 2) for name, value in figures.items()}
    figures["seconds"] = round(time.perf_counter() - start, 1)


def build(folder: Path, sizes: dict[str, int]) -> None:
    """Save a model with random weights."""
    import torch

    from zipfel.choice import Choice
    from zipfel.data.labels import LabelSpace
    from zipfel.fitting import Blueprint, Fitted
    from zipfel.models.base import settings_of
    from zipfel.tagger import Tagger
    from zipfel.training.trainer import Outcome

    labels = LabelSpace([f"label {number}" for number in range(sizes["labels"])], [1] * sizes["labels"])
    settings = settings_of("glas", changes={"dimension": sizes["dimension"]})
    blueprint = Blueprint(Choice("glas", "default"), settings, None, labels)
    model = blueprint.built(FEATURES, SEED)
    with torch.no_grad():  # in place: a normalised copy of all vectors would double the memory
        for rows in model.classifier.labels.rows.split(1 << 18):  # type: ignore[union-attr, operator]
            rows.copy_(torch.nn.functional.normalize(rows, dim=1))
    model.classifier.stored_lengths = torch.ones(sizes["labels"])  # type: ignore[union-attr]
    tagger = Tagger("glas", device="cpu")
    tagger.fitted_ = Fitted(blueprint, model, model.predictor(), Outcome(None, -1, 0, 0.0))
    tagger.save(folder / "one")


def shard(folder: Path, sizes: dict[str, int]) -> None:
    """Divide it."""
    from zipfel.persistence import reshard

    reshard(folder / "one", folder / "many", sizes["shards"])


def search(folder: Path, sizes: dict[str, int]) -> dict[str, Any]:
    """Load a model and rank labels: for some points at once, and for single points."""
    from benchmarks.million_labels import drawn
    from zipfel.tagger import Tagger

    start = time.perf_counter()
    tagger = Tagger.load(folder, "cpu")
    loaded = time.perf_counter() - start
    X = drawn(sizes["points"], FEATURES, TOKENS, np.random.default_rng(SEED))
    start = time.perf_counter()
    ranking = tagger.rank(X, K)
    batch = time.perf_counter() - start
    np.savez(folder.with_suffix(".npz"), ids=ranking.ids, scores=ranking.scores)
    singles = []
    for row in range(8):  # the first ones build a coarse copy of the vectors
        start = time.perf_counter()
        tagger.rank(X[[row]], K)
        singles.append(time.perf_counter() - start)
    return {"load_s": round(loaded, 1), "batch_ms_a_point": round(1000 * batch / sizes["points"], 1),
            "single_ms": round(1000 * statistics.median(singles[4:]), 1)}  # fmt: skip


STEPS: dict[str, Callable[[Path, dict[str, int]], Any]] = {
    "build and save": build,
    "shard": shard,
    "search one": lambda folder, sizes: search(folder / "one", sizes),
    "search shards": lambda folder, sizes: search(folder / "many", sizes),
}


def main(folder: Path, sizes: dict[str, int]) -> None:
    """Do each step in a process of its own."""
    folder.mkdir(parents=True)
    figures: dict[str, Any] = dict(sizes)
    try:
        for step in STEPS:
            command = [sys.executable, "-m", "benchmarks.sharded_labels", "--step", step, str(folder)]
            command += [f"{name}={value}" for name, value in sizes.items()]
            figures[step] = orjson.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            sys.stderr.write(f"{step}: {figures[step]}\n")
        one, many = (np.load(folder / f"{name}.npz") for name in ("one", "many"))
        figures["identical"] = all(np.array_equal(one[name], many[name]) for name in ("ids", "scores"))
        figures["disk_gb"] = round(sum(p.stat().st_size for p in (folder / "many").rglob("*") if p.is_file()) / 1e9, 2)
    finally:
        shutil.rmtree(folder)
    record("sharded_labels", figures | {"weights": "random"}, SEED, ("torch",))


if __name__ == "__main__":
    given = DEFAULTS | {
        name: int(value) for name, _, value in (word.partition("=") for word in sys.argv if "=" in word)
    }
    if sys.argv[1] != "--step":
        main(Path(sys.argv[1]), given)
    else:
        with measured() as peaks:
            more = STEPS[sys.argv[2]](Path(sys.argv[3]), given) or {}
        sys.stdout.write(orjson.dumps({**more, **peaks}).decode())
