"""zipfel itself, with the same protocol as its peers: the public `Tagger`, on the same features."""

from __future__ import annotations

import json
from typing import Any

import torch
from joblib.externals.loky import get_reusable_executor
from protocol import Ids, Rank, Scores, Task, main

from zipfel import Tagger
from zipfel.data.dataset import Dataset, Part, Propensity


def train(task: Task) -> None:
    """Fit on train; the model itself holds out points for validation."""
    torch.set_num_threads(task.threads)
    settings = dict(task.settings)
    propensity = Propensity(*json.loads((task.features / "about.json").read_text())["propensity"])
    part = Part(task.matrix("Y.trn"), task.matrix("X.trn"), filtered=task.matrix("F.trn"))
    dataset = Dataset(part, Z=task.matrix("Z"), propensity=propensity)
    model, preset, device = settings.pop("model"), settings.pop("preset"), settings.pop("device", "auto")
    tagger = Tagger(model, preset, settings, device=device, seed=task.seed)
    with task.learning():
        tagger.fit_dataset(dataset)
        get_reusable_executor(reuse=True).shutdown(wait=True)  # ended worker processes count as CPU seconds
    choice = tagger.chosen_
    task.measured["chosen"] = {"model": choice.model, "main": choice.main.model, "preset": choice.preset,
                               "why": choice.why}  # fmt: skip
    tagger.save(task.model, replace=True)
    serve = (task.model / "serve").rglob("*")
    task.measured["serve_mb"] = sum(path.stat().st_size for path in serve) / 1e6  # without what only training needs
    if torch.cuda.is_available() and device != "cpu":
        task.measured["device"] = torch.cuda.get_device_name()
        task.measured["gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6


def load(task: Task) -> Rank:
    """Return the ranking of a saved tagger."""
    torch.set_num_threads(task.threads)
    tagger = Tagger.load(task.model, task.settings.get("device", "auto"))

    def rank(X: Any, k: int) -> tuple[Ids, Scores]:
        ranking = tagger.rank(X, k)
        return ranking.ids, ranking.scores

    return rank


if __name__ == "__main__":
    main(train, load, ("zipfel", "torch"))
