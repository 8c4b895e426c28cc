"""Metrics and cost of a preset: `python -m benchmarks.train DATA MODEL PRESET [seeds=0,1,2] [device=auto] [key=value]`.

Trains like `zipfel train`, once per seed, and evaluates on test. One JSON line: means and standard deviations of the
metrics, seconds to train, milliseconds per point to predict, in batches and alone (the median of ALONE points), what
prediction needs on disk, and peak memory. Times exclude features, except with token_init=fasttext, which reads the
texts. Further key=value pairs are settings of the model.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import sys
import time

import torch
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.fitting import chosen_device
from zipfel.models.base import settings_of
from zipfel.tagger import Tagger
from zipfel.tagging import rank
from zipfel.training.run import state_size

COSTS = ("seconds", "ms a point", "ms alone", "MB")
NAMES = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", *COSTS)
ALONE = 1000  # points that are ranked one at a time


def evaluated(dataset: Dataset, tagger: Tagger) -> dict[str, float]:
    """Train once, and return metrics and times on test."""
    start = time.perf_counter()
    tagger.fit_dataset(dataset)
    trained = time.perf_counter()
    test = dataset.test
    assert test is not None
    assert test.X is not None
    assert tagger.fitted_ is not None
    ranking = rank(tagger.fitted_, test.X, 5, test.filtered)
    ranked = time.perf_counter()
    costs = {
        "seconds": trained - start,
        "ms a point": (ranked - trained) / len(ranking) * 1000,
        "ms alone": alone(tagger, test.X),
        "MB": state_size(tagger.model_.tensors().serve) / 1e6,
    }
    return evaluate(ranking, dataset, "test").values | costs


def alone(tagger: Tagger, X: csr_array) -> float:
    """Return the median of milliseconds from the features of a point to its ranking, one point at a time."""
    seconds = []
    for row in range(min(ALONE, X.shape[0])):
        one = X[[row]]
        start = time.perf_counter()
        tagger.predictor_.rank(one, 5)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


def main(words: list[str]) -> None:
    path, model, preset = words[:3]
    changes = words_of(words[3:])
    seeds = [int(seed) for seed in changes.pop("seeds", "0,1,2").split(",")]
    device = str(chosen_device(changes.pop("device", "auto")))
    dataset = featurized(read(path))
    if changes.get("token_init", vars(settings_of(model, preset)).get("token_init")) != "fasttext":  # which reads texts
        dataset = dataset.with_parts(lambda part: dataclasses.replace(part, texts=None), label_texts=None)
    rows = [evaluated(dataset, Tagger(model, preset, changes or None, device=device, seed=seed)) for seed in seeds]
    means = {name: round(statistics.mean(row[name] for row in rows), 2) for name in NAMES}
    spread = {f"{name} sd": round(statistics.stdev(row[name] for row in rows), 2) for name in NAMES if len(seeds) > 1}
    memory = {"peak GB": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)}
    if device != "cpu":
        memory["GPU GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
        device = torch.cuda.get_device_name()
    about = {"data": dataset.name, "model": model, "preset": preset, "changes": changes, "device": device}
    record("train", {**about, **means, **spread, **memory, "seeds": seeds}, seeds[0], ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
