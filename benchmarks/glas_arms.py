"""GLaS's regularizers, as in its Tables 1 and 2: `python -m benchmarks.glas_arms WORKERS DATA [key=value ...]`.

The weight of each arm's regularizer is chosen on validation, from the same grid for all arms. Then three seeds are
trained, and evaluated on test once. key=value pairs are settings that all arms share. WORKERS runs share the machine.
One JSON line per arm: means, standard deviations, and how far its P@1 is from that of `none` and `glas`, in standard
errors.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import sys
from functools import cache
from multiprocessing import get_context
from typing import Any

import torch

from benchmarks.record import record
from zipfel.config import from_mapping, words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.splits import hold_out
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.models.base import Lesson
from zipfel.models.glas import Glas, GlasSettings
from zipfel.training.run import Run

GRID = (10.0, 100.0, 1000.0)
SEEDS = (0, 1, 2)
NAMES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5", "train P@1")
ARMS: dict[str, dict[str, Any]] = {
    "none": {"regularizer": "none"},
    "glas": {"regularizer": "glas"},
    "glas, geometric": {"regularizer": "glas", "adjacency": "geometric"},
    "spread_out": {"regularizer": "spread_out"},
    "gravity": {"regularizer": "gravity"},
    "glas, linear": {"regularizer": "glas", "nonlinear": False},
}


@cache
def loaded(path: str) -> Dataset:
    """Return a data set with features and a validation part."""
    dataset = featurized(read(path))
    return dataset if dataset.validation is not None else hold_out(dataset, 0.1, into="validation")


def evaluated(path: str, settings: GlasSettings, seed: int, parts: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Train once, and return the figures on some parts."""
    torch.set_num_threads(1)
    dataset, run = loaded(path), Run(seed=seed)
    model = Glas(dataset.sizes.features, dataset.sizes.labels, settings, run.generator("start"))
    model.to("cuda" if torch.cuda.is_available() else "cpu").fit(Lesson(dataset.train, dataset.validation), run)
    predictor, found = model.predictor(), {}
    for name in parts:
        part = dataset.parts[name]
        found[name] = evaluate(predictor.rank(part.X, 5, part.filtered), dataset, name).values
    return found


def tried(arm: dict[str, Any], base: GlasSettings) -> list[GlasSettings]:
    """Return the settings of an arm with each weight of the grid."""
    settings = dataclasses.replace(base, **arm)
    weights = GRID if settings.regularizer != "none" else (0.0,)
    return [dataclasses.replace(settings, regularizer_weight=weight) for weight in weights]


def main(words: list[str]) -> None:
    workers, path, base = int(words[0]), words[1], from_mapping(GlasSettings, words_of(words[2:]))
    with get_context("spawn").Pool(workers) as pool:
        trials = [(arm, one) for arm, changes in ARMS.items() for one in tried(changes, base)]
        scores = pool.starmap(evaluated, [(path, one, 0, ("validation",)) for _, one in trials], chunksize=1)
        chosen: dict[str, tuple[float, GlasSettings]] = {}
        for (arm, one), score in zip(trials, scores, strict=True):
            chosen[arm] = max(chosen.get(arm, (-1.0, one)), (score["validation"]["P@1"], one), key=lambda pair: pair[0])
        finals = [(arm, one, seed) for arm, (_, one) in chosen.items() for seed in SEEDS]
        tests = pool.starmap(evaluated, [(path, one, seed, ("train", "test")) for _, one, seed in finals], chunksize=1)
    rows: dict[str, list[dict[str, float]]] = {arm: [] for arm in ARMS}
    for (arm, _, _), found in zip(finals, tests, strict=True):
        rows[arm].append({"train P@1": found["train"]["P@1"], **found["test"]})
    for arm in ARMS:
        report(path, arm, *chosen[arm], rows)


def report(path: str, arm: str, validation: float, settings: GlasSettings, rows: dict[str, list[Any]]) -> None:
    """Print an arm's figures."""
    means = {name: round(statistics.mean(row[name] for row in rows[arm]), 2) for name in NAMES}
    spread = {f"{name} sd": round(statistics.stdev(row[name] for row in rows[arm]), 2) for name in NAMES}
    ahead = {f"ahead of {other}, in standard errors": apart(rows[arm], rows[other]) for other in ("none", "glas")}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"data": loaded(path).name, "arm": arm, "validation P@1": round(validation, 2), "device": device}
    figures = {**about, **means, **spread, **ahead, "settings": dataclasses.asdict(settings)}
    record("glas_arms", figures, SEEDS[0], ("torch",))


def apart(rows: list[dict[str, float]], others: list[dict[str, float]]) -> float:
    """Return the difference of the two mean P@1, in standard errors of the difference."""
    here, there = [row["P@1"] for row in rows], [row["P@1"] for row in others]
    error = math.sqrt((statistics.variance(here) + statistics.variance(there)) / len(SEEDS))
    return round((statistics.mean(here) - statistics.mean(there)) / max(error, 1e-9), 1)


if __name__ == "__main__":
    main(sys.argv[1:])
