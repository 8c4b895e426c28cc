"""Kill processes that save a model over an older one: `python -m benchmarks.save_kills [KILLS] [exchange|two-steps]`.

A child process replaces a saved model over and over; it is killed (SIGKILL) after a random time, and then the folder
must hold one whole model, the old or the new one. Both ways to replace a folder are tried, or only the one that is
named. Counts per way: kills, kills in the middle of a save (leftovers lie beside the model), models that were lost (no
model, one that cannot be read, or a mixture), and leftovers after one more save. One JSON line. Needs `os.fork`.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import torch

from benchmarks.record import record
from zipfel import persistence
from zipfel.data.formats import atomic
from zipfel.errors import DataError

WAYS = ("exchange", "two-steps")
NUMBERS = 250_000  # of a model, 4 bytes each
LONGEST = 3.0  # times that a save takes: the time after which a child is killed is at most that


def model(version: int) -> persistence.Saved:
    """Return a model whose every number is its version."""
    weights = {"weights": torch.full((NUMBERS,), float(version))}
    return persistence.Saved({"version": version}, {"labels": {"version": version}}, weights, weights)


def is_whole(folder: Path) -> bool:
    """Whether the folder holds one whole model."""
    try:
        located = persistence.located(folder)
        persistence.verify(located)
        saved = persistence.load(located)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return False
    found = {saved.about["version"], saved.documents["labels"]["version"]}
    weights = {*saved.serve["weights"].flatten().tolist(), *saved.train["weights"].flatten().tolist()}
    return found | weights == found


def save_until_killed(folder: Path, first: int) -> None:
    """Replace the model for as long as this process lives."""
    for version in count(first):
        persistence.save(model(version), folder, replace=True)


def survive(way: str, kills: int, seed: int) -> dict[str, object]:
    """Kill savers, and return the counts."""
    if way == "two-steps":
        atomic.exchange = lambda one, other: False
    numbers, lost, in_the_middle = random.Random(seed), 0, 0
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "model"
        persistence.save(model(0), folder)
        start = time.perf_counter()
        persistence.save(model(1), folder, replace=True)
        longest = LONGEST * (time.perf_counter() - start)
        for kill in range(kills):
            child = os.fork()
            if not child:
                save_until_killed(folder, 2 + kill)
            time.sleep(numbers.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            in_the_middle += len([*folder.parent.iterdir()]) > 1
            lost += not is_whole(folder)
        persistence.save(model(0), folder, replace=True)
        leftovers = sorted(path.name for path in folder.parent.iterdir() if path != folder)
    return {"way": way, "kills": kills, "in_the_middle": in_the_middle, "lost": lost, "leftovers": leftovers}


def main(kills: int, ways: tuple[str, ...]) -> None:
    torch.set_num_threads(1)  # the process is forked
    start = time.perf_counter()
    outcomes = [survive(way, kills, seed=0) for way in ways]
    record("save_kills", {"ways": outcomes, "seconds": round(time.perf_counter() - start)}, 0, ("torch",))


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, tuple(sys.argv[2:]) or WAYS)
