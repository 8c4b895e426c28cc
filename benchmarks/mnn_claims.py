"""What MNN's paper claims without figures: `python -m benchmarks.mnn_claims DATA [--what TABLE ...] [OPTIONS]`.

dropout: feature dropout improves accuracy (Sec. 3.2, 5): p from 1, nothing dropped, down to 0.5.  negatives: the
maximum over negatives is better than their mean or sum (Sec. 3.3).  tail: MNN is robust on tail labels (Sec. 4.2, 5):
both of its decoders beside dxml, glas and linear, by frequency bins of labels (bin 1 has the rarest) and on points that
have only tail labels. Only for linear does the length of a point's features matter much, so it is also trained on
features of unit length, and on tf-idf.

Each row is trained on random splits of all points into train and test of the given sizes, with several seeds each, and
evaluated on test. One JSON line per row: means over splits, their standard deviations, and the difference to the first
row of the table, split by split. Splits share points, so the standard error of a difference is the corrected one of
Nadeau and Bengio (2003): variance · (1 / splits + test points / train points). Two runs may share the splits, the
second with --first-split: each line has the figures of COMPARED split by split, from which those of all follow.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.preprocessing import normalize

from benchmarks.neighbour_tables import resplit
from benchmarks.record import record
from zipfel import metrics
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.text import Tfidf, featurized
from zipfel.evaluate import evaluate
from zipfel.fitting import chosen_device
from zipfel.models.base import model_class
from zipfel.tagger import Tagger

NAMES = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
COMPARED = ("P@1", "P@3", "P@5", "tail P@1", "tail P@5")
TABLES: dict[str, dict[str, tuple[str, dict[str, Any]]]] = {  # the model and changed settings of each row
    "dropout": {
        f"p={tenths / 10}": ("mnn", {"feature_dropout": round(1 - tenths / 10, 1)}) for tenths in range(10, 4, -1)
    },
    "negatives": {kind: ("mnn", {"negatives_reduction": kind}) for kind in ("max", "mean", "sum")},
    "tail": {
        "mnn": ("mnn", {}),
        "mnn, decoder=labels": ("mnn", {"decoder": "labels"}),
        "dxml": ("dxml", {}),
        "glas": ("glas", {}),
        "linear": ("linear", {}),
        "linear, unit rows": ("linear", {}),
        "linear, tf-idf": ("linear", {}),
    },
}


def figures(dataset: Dataset, tagger: Tagger) -> dict[str, float]:
    """Train once; return the figures on test, on its points with only tail labels, and by frequency bins of labels."""
    test = dataset.test
    assert test is not None
    ranking = tagger.fit_dataset(dataset).rank(test.X, 5, test.filtered)
    report = evaluate(ranking, dataset)
    found = {name: report.values[name] for name in NAMES}
    found |= {f"tail {name}": report.only_tail.get(name, math.nan) for name in ("P@1", "P@5")}
    for k in (1, 3, 5):
        bins = metrics.contributions(ranking, test.Y, dataset.label_counts, k)
        found |= {f"P@{k} of bin {number}": part.contribution for number, part in enumerate(bins, start=1)}
    return found


def prepared(dataset: Dataset, row: str) -> Dataset:
    """Return the data set with the features that a row asks for: as they are, of unit length, or tf-idf."""
    if row.endswith("unit rows"):
        return dataset.with_parts(lambda part: replace(part, X=normalize(part.X)))
    return Tfidf.fit(dataset.train.X).apply(dataset) if row.endswith("tf-idf") else dataset


def trained(dataset: Dataset, table: str, row: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """Return the figures of each split: means over the seeds."""
    model, settings = TABLES[table][row]
    preset = options.preset if options.preset in model_class(model).presets else "default"
    by_split = []
    for number in range(options.first_split, options.first_split + options.splits):
        split = prepared(resplit(dataset, number), row)
        taggers = [Tagger(model, preset, settings, device=options.device, seed=seed) for seed in options.seeds]
        runs = [figures(split, tagger) for tagger in taggers]
        by_split.append({name: float(np.mean([run[name] for run in runs])) for name in runs[0]})
    return by_split


def summary(rows: list[dict[str, float]], first: list[dict[str, float]], test_per_train: float) -> dict[str, Any]:
    """Return means over splits, standard deviations, and differences to the first row with their standard errors."""
    means: dict[str, Any] = {name: round(float(np.mean([row[name] for row in rows])), 2) for name in rows[0]}
    if len(rows) < 2:
        return means
    means["by split"] = {name: [round(row[name], 2) for row in rows] for name in COMPARED}
    spread = {f"{name} sd": round(float(np.std([row[name] for row in rows], ddof=1)), 2) for name in COMPARED}
    ahead: dict[str, list[float]] = {}
    for name in COMPARED:
        apart = [row[name] - other[name] for row, other in zip(rows, first, strict=True)]
        error = float(np.std(apart, ddof=1)) * math.sqrt(1 / len(apart) + test_per_train)
        ahead[name] = [round(float(np.mean(apart)), 2), round(error, 2)]
    return {**means, **spread, "ahead of the first row, standard error": ahead}


def arguments(words: list[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mnn_claims")
    parser.add_argument("data", help="a data set with train and test, such as Bibtex")
    parser.add_argument("--what", nargs="+", choices=TABLES, default=list(TABLES), help="tables; default: all")
    parser.add_argument("--rows", nargs="+", default=[], help="only these rows; each table's first always runs")
    parser.add_argument("--splits", type=int, default=10, help="number of random splits")
    parser.add_argument("--first-split", type=int, default=0, help="number of the first of them")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of each split")
    parser.add_argument("--preset", default="paper", help="of all models; a model without it takes `default`")
    parser.add_argument("--device", default="auto")
    return parser.parse_args(words)


def main(words: list[str]) -> None:
    options = arguments(words)
    dataset, device = featurized(read(options.data)), str(chosen_device(options.device))
    assert dataset.test is not None
    about = {
        "data": dataset.name,
        "preset": options.preset,
        "splits": options.splits,
        "first split": options.first_split,
        "seeds": options.seeds,
        "device": "cpu" if device == "cpu" else torch.cuda.get_device_name(),
    }
    for table in options.what:
        first: list[dict[str, float]] = []
        for name in TABLES[table]:
            if first and options.rows and name not in options.rows:
                continue
            found = trained(dataset, table, name, options)
            first = first or found
            values = summary(found, first, len(dataset.test) / len(dataset.train))
            record("mnn_claims", {**about, "table": table, "row": name, **values}, options.seeds[0], ("torch",))
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
