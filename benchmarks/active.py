"""Which documents to label next: `python -m benchmarks.active DATA [MODEL] [--rules]`.

Starts with STEPS[0] labelled points of train at random, and labels more up to each of STEPS: at random, or those that
`zipfel.suggesting` chooses by the model trained so far. One JSON line for each rule and seed: P@1 and P@5 by number of
labelled points, on a validation part held out of train (which chose the rule) and on test. `--rules` also tries
uncertainty without diversity.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.record import record
from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.splits import hold_out
from zipfel.suggesting import DEPTH, Suggester
from zipfel.tagger import Tagger
from zipfel.tagging import Request

STEPS = (250, 500, 750, 1000, 1500, 2000)  # labelled points
SEEDS = (0, 1, 2)
POOL = 8000  # points of train that may be labelled
Rows = NDArray[np.int64]


def inputs(part: Part) -> object:
    return part.X if part.texts is None else part.texts


def suggested(tagger: Tagger, train: Part, left: Rows, wanted: int, diverse: bool) -> Rows:
    """Return rows of train to label next."""
    suggester = Suggester[int](wanted, train.Y.shape[1], diverse)
    for rows in np.array_split(left, max(1, len(left) // 1024)):
        ranking = tagger.tag([Request(inputs(train.take(rows)), DEPTH)])[0].ranking
        suggester.add(rows.tolist(), ranking)
    return np.array([row for row, _ in suggester.chosen()])


def fitted(dataset: Dataset, rows: Rows, model: str, seed: int) -> Tagger:
    """Train on some points; a fifth of them is held out for calibration."""
    labelled = Dataset(dataset.train.take(rows), label_names=dataset.label_names, label_texts=dataset.label_texts)
    return Tagger(model, validation=0.2, device="cpu", seed=seed).fit_dataset(labelled)


def course(dataset: Dataset, model: str, rule: str, seed: int) -> dict[str, dict[str, list[float]]]:
    """Return P@1 and P@5 by number of labelled points, on validation and on test."""
    train, order = dataset.train, np.random.default_rng(seed).permutation(len(dataset.train))[:POOL]
    rows, left, result = order[: STEPS[0]], order[STEPS[0] :], dict[str, dict[str, list[float]]]()
    for size, following in zip(STEPS, (*STEPS[1:], 0), strict=True):
        tagger = fitted(dataset, rows, model, seed)
        for name in ("validation", "test"):
            part = dataset.parts[name].take(np.arange(min(5000, len(dataset.parts[name]))))
            figures = metrics.measure(tagger.rank(inputs(part), 5), part.Y, ks=(1, 5))
            result.setdefault(name, {})[str(size)] = [round(figures["P@1"], 2), round(figures["P@5"], 2)]
        if following:
            wanted = following - size
            new = left[:wanted] if rule == "random" else suggested(tagger, train, left, wanted, rule == "diverse")
            rows, left = np.concatenate([rows, new]), left[~np.isin(left, new)]
    return result


def main(words: list[str]) -> None:
    rules = ("random", "diverse", "uncertain") if "--rules" in words else ("random", "diverse")
    words = [word for word in words if word != "--rules"]
    dataset, model = read(Path(words[0])), words[1] if len(words) > 1 else "linear"
    if dataset.validation is None:
        dataset = hold_out(dataset, 0.2, into="validation")
    for seed in SEEDS:
        for rule in rules:
            curves = course(dataset, model, rule, seed)
            record("active", {"data": dataset.name, "model": model, "rule": rule, **curves}, seed)


if __name__ == "__main__":
    main(sys.argv[1:])
