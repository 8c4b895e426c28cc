"""What a preset reaches: `python -m benchmarks.train DATA MODEL PRESET [seeds=0,1,2] [device=auto] [key=value ...]`.

Trains as `zipfel train` does, once a seed, and judges on test. One JSON line: means and standard deviations of the
accuracies, seconds to train (features apart), milliseconds a point to predict, and peak memory.
"""

from __future__ import annotations

import dataclasses
import resource
import statistics
import sys
import time

import torch

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.tagger import Tagger, chosen_device, settings_of

NAMES = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "seconds", "ms a point")


def judged(dataset: Dataset, tagger: Tagger) -> dict[str, float]:
    """Train once, and return the figures of test."""
    start = time.perf_counter()
    tagger.fit_dataset(dataset)
    trained = time.perf_counter()
    assert dataset.test is not None
    ranking = tagger.rank(dataset.test.X, 5, dataset.test.filtered)
    ranked = time.perf_counter()
    times = {"seconds": trained - start, "ms a point": (ranked - trained) / len(ranking) * 1000}
    return evaluate(ranking, dataset, "test").values | times


def main(words: list[str]) -> None:
    path, model, preset = words[:3]
    changes = words_of(words[3:])
    seeds = [int(seed) for seed in changes.pop("seeds", "0,1,2").split(",")]
    device = str(chosen_device(changes.pop("device", "auto")))
    dataset = featurized(read(path))
    if changes.get("tokens", settings_of(model, preset).__dict__.get("tokens")) != "fasttext":  # else texts are used
        dataset = dataset.with_parts(lambda part: dataclasses.replace(part, texts=None), label_texts=None)
    rows = [judged(dataset, Tagger(model, preset, changes or None, device=device, seed=seed)) for seed in seeds]
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
