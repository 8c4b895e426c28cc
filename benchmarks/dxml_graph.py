"""What the label graph gives DXML: `python -m benchmarks.dxml_graph DATA [--splits 10] [--arms smoothed,random] ...`.

Pools train and test, and splits them at random into parts of the same sizes, ten times. On each split all arms are
trained with the same seed, and evaluated on test: smoothed label vectors, those of DeepWalk, and the control, random
ones. One JSON line per split and arm, then one per arm: means, and the mean difference from the
control over splits, with its standard error. --set name=value changes a setting of all arms, and may be repeated.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from typing import Any

from benchmarks.neighbour_tables import resplit
from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.tagger import Tagger

NAMES = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5")  # nDCG@1 is P@1
CONTROL = "random"
DEEPWALK: dict[str, Any] = {"label_vectors": None, "whiten": True}  # the default until 2026-11-18
ARMS: dict[str, dict[str, Any]] = {
    "smoothed": {"label_vectors": "smoothed"},
    "deepwalk": DEEPWALK,  # the walks of the preset and of --set
    "deepwalk-paper": {**DEEPWALK, "walks_per_label": 80, "walk_window": 10, "walk_softmax": "hierarchical"},
    "deepwalk-weighted": {**DEEPWALK, "weighted_edges": True},
    CONTROL: {"label_vectors": "random"},
}

Figures = dict[str, float]


def evaluated(dataset: Dataset, options: argparse.Namespace, arm: str, seed: int) -> Figures:
    """Train an arm on a split, and return its figures on test and the seconds of training."""
    assert dataset.test is not None
    settings, start = {**words_of(options.set), **ARMS[arm]}, time.perf_counter()
    tagger = Tagger("dxml", options.preset, settings, device=options.device, seed=seed).fit_dataset(dataset)
    seconds = time.perf_counter() - start
    values = evaluate(tagger.rank(dataset.test.X, 5), dataset).values
    return {**{name: round(values[name], 3) for name in NAMES}, "seconds": round(seconds, 1)}


def compared(rows: list[Figures], control: list[Figures]) -> Figures:
    """Return means over splits, and paired differences from the control with their standard errors."""
    found: Figures = {}
    for name in NAMES:
        apart = [row[name] - other[name] for row, other in zip(rows, control, strict=True)]
        error = statistics.stdev(apart) / math.sqrt(len(apart)) if len(apart) > 1 else math.nan
        found |= {
            name: round(statistics.mean(row[name] for row in rows), 2),
            f"{name} ahead": round(statistics.mean(apart), 3),
            f"{name} ahead, standard error": round(error, 3),
        }
    return found


def main(options: argparse.Namespace) -> None:
    dataset, arms = featurized(read(options.data)), options.arms.split(",")
    about = {"data": dataset.name, "preset": options.preset, "settings": words_of(options.set)}
    rows: dict[str, list[Figures]] = {arm: [] for arm in arms}
    for split in range(options.splits):
        part = resplit(dataset, split)
        for arm in arms:
            rows[arm].append(evaluated(part, options, arm, split))
            record("dxml_graph", {**about, "split": split, "arm": arm, **rows[arm][-1]}, split, ("torch", "gensim"))
            sys.stdout.flush()
    control = CONTROL if CONTROL in arms else arms[-1]
    for arm in arms:
        figures = {"splits": options.splits, "arm": arm, "control": control, **compared(rows[arm], rows[control])}
        record("dxml_graph", {**about, **figures}, 0, ("torch", "gensim"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--arms", default=f"smoothed,{CONTROL}", help=f"of {', '.join(ARMS)}")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    if unknown := set(asked.arms.split(",")) - set(ARMS):
        parser.error(f"unknown arms {', '.join(sorted(unknown))}; known are {', '.join(ARMS)}")
    main(asked)
