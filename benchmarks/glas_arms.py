"""GLaS's regularizers side by side, as its Tables 1 and 2: `python -m benchmarks.glas_arms DATA [key=value ...]`.

Each arm's strength is chosen on validation, all arms from the same grid; then three seeds are trained, and judged
on test once. Words are settings that all arms share. One JSON line an arm: mean and standard deviation.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

from benchmarks.record import record
from zipfel.config import from_words
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.splits import hold_out
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.models.glas import Glas, GlasSettings
from zipfel.training.run import Run

GRID = (10.0, 100.0, 1000.0, 10_000.0)
SEEDS = (0, 1, 2)
ARMS: dict[str, dict[str, Any]] = {
    "none": {"regularizer": "none"},
    "glas": {"regularizer": "glas"},
    "glas, geometric": {"regularizer": "glas", "adjacency": "geometric"},
    "spread_out": {"regularizer": "spread_out"},
    "gravity": {"regularizer": "gravity"},
    "glas, linear": {"regularizer": "glas", "nonlinear": False},
}


def fitted(dataset: Dataset, settings: GlasSettings, seed: int) -> tuple[Glas, float]:
    """Train once and return the model, and how long it took."""
    run = Run(seed=seed)
    model = Glas(dataset.sizes.features, dataset.sizes.labels, settings, run.generator("start"))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    start = time.perf_counter()
    model.fit(dataset.train, run, dataset.validation)
    return model, time.perf_counter() - start


def precision(model: Glas, dataset: Dataset, part: str) -> dict[str, float]:
    """Return the figures of a part."""
    points: Part = dataset.parts[part]
    return evaluate(model.learner().rank(points.X, 5, points.filtered), dataset, part).values


def chosen(dataset: Dataset, settings: GlasSettings) -> GlasSettings:
    """Return the settings with the strength that is best on validation."""
    if settings.regularizer == "none":
        return settings
    tried = [dataclasses.replace(settings, strength=strength) for strength in GRID]
    scores = [precision(fitted(dataset, one, 0)[0], dataset, "validation")["P@1"] for one in tried]
    return tried[int(np.argmax(scores))]


def main(words: list[str]) -> None:
    dataset = featurized(read(words[0]))
    if dataset.validation is None:
        dataset = hold_out(dataset, 0.1, into="validation")
    base = from_words(GlasSettings, words[1:])
    for arm, changes in ARMS.items():
        settings = chosen(dataset, dataclasses.replace(base, **changes))
        rows = []
        for seed in SEEDS:
            model, seconds = fitted(dataset, settings, seed)
            test, gap = precision(model, dataset, "test"), precision(model, dataset, "train")
            rows.append({"train P@1": gap["P@1"], "seconds": seconds, **test})
        names = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5", "train P@1", "seconds")
        means = {name: round(statistics.mean(row[name] for row in rows), 2) for name in names}
        spread = {f"{name} sd": round(statistics.stdev(row[name] for row in rows), 2) for name in names[:5]}
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        about = {"data": dataset.name, "arm": arm, "strength": settings.strength, "device": device}
        record(
            "glas_arms", {**about, **means, **spread, "settings": dataclasses.asdict(settings)}, SEEDS[0], ("torch",)
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
