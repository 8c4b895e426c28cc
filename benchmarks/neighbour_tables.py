"""Tables of MNN and DXML: `python -m benchmarks.neighbour_tables DATA [TABLE ...]`.

splits: ten random splits of all points into train and test of the same sizes, both models.  decoders: both of MNN.
linear: DXML with and without its ReLU and its linear path.  partial: a fit on half of train, the other half added by
`partial_fit`, or learned from by a further fit (`warm_start`), and a fit on all of train. Evaluates on test, and
separately on the points of test that have only tail labels. One JSON line per row.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import numpy as np
from scipy.sparse import vstack

from benchmarks.record import record
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.tagger import Tagger

NAMES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@5")


def figures(dataset: Dataset, tagger: Tagger) -> dict[str, float]:
    """Return the figures on test, and on its points that have only tail labels."""
    assert dataset.test is not None
    report = evaluate(tagger.rank(dataset.test.X, 5, dataset.test.filtered), dataset)
    tail = {f"tail {name}": report.only_tail.get(name, float("nan")) for name in ("P@1", "P@5")}
    found = {name: report.values[name] for name in NAMES} | tail
    return {name: round(value, 2) for name, value in found.items()} | {"tail points": report.only_tail_points}


def fitted(dataset: Dataset, model: str, seed: int = 0, **settings: Any) -> Tagger:
    """Return a fitted tagger: preset default with these settings changed."""
    return Tagger(model, settings=settings, seed=seed).fit_dataset(dataset)


def resplit(dataset: Dataset, seed: int) -> Dataset:
    """Return a random split of all points into train and test of the same sizes."""
    assert dataset.test is not None
    X = vstack([dataset.train.X, dataset.test.X], format="csr")
    Y = vstack([dataset.train.Y, dataset.test.Y], format="csr")
    order = np.random.default_rng(seed).permutation(X.shape[0])
    train, test = np.sort(order[: len(dataset.train)]), np.sort(order[len(dataset.train) :])
    return Dataset(Part(Y[train], X=X[train]), test=Part(Y[test], X=X[test]), name=dataset.name)


def report(dataset: Dataset, table: str, row: str, values: dict[str, Any]) -> None:
    """Print a row of a table."""
    record("neighbour_tables", {"data": dataset.name, "table": table, "row": row, **values}, 0, ("torch",))
    sys.stdout.flush()


def splits(dataset: Dataset) -> None:
    """Ten random splits, as in the papers."""
    for model in ("mnn", "dxml"):
        found = [figures(part, fitted(part, model)) for part in (resplit(dataset, seed) for seed in range(10))]
        means = {name: round(statistics.mean(row[name] for row in found), 2) for name in NAMES}
        report(dataset, "splits", model, means | {"P@1 sd": round(statistics.stdev(r["P@1"] for r in found), 2)})


def decoders(dataset: Dataset) -> None:
    """Both decoders of MNN."""
    for decoder in ("neighbours", "labels"):
        report(dataset, "decoders", decoder, figures(dataset, fitted(dataset, "mnn", decoder=decoder)))


def linear(dataset: Dataset) -> None:
    """DXML's Fig. 2: non-linear and linear, each with and without the linear path."""
    for nonlinear in (True, False):
        for linear_path in (True, False):
            tagger = fitted(dataset, "dxml", nonlinear=nonlinear, linear_path=linear_path)
            report(dataset, "linear", f"nonlinear={nonlinear} linear_path={linear_path}", figures(dataset, tagger))


def partial(dataset: Dataset) -> None:
    """Half of train, then the other half added without learning or by a further fit, and all of train."""
    train, half = dataset.train, len(dataset.train) // 2
    order = np.random.default_rng(0).permutation(len(train))
    first, second = train.take(np.sort(order[:half])), train.take(np.sort(order[half:]))
    for model in ("mnn", "dxml"):
        start = Dataset(first, test=dataset.test, name=dataset.name)
        tagger = fitted(start, model)
        report(dataset, "partial", f"{model}, half", figures(dataset, tagger))
        tagger.partial_fit(second.X, second.Y)
        drift = {"drift": round(float(tagger.drift_), 3)}
        report(dataset, "partial", f"{model}, half and partial_fit", figures(dataset, tagger) | drift)
        further = fitted(start, model).set_params(warm_start=True)
        further.fit_dataset(Dataset(second, test=dataset.test, name=dataset.name))
        report(dataset, "partial", f"{model}, half and further fit", figures(dataset, further))
        report(dataset, "partial", f"{model}, whole", figures(dataset, fitted(dataset, model)))


TABLES = {"splits": splits, "decoders": decoders, "linear": linear, "partial": partial}


def main(words: list[str]) -> None:
    dataset = featurized(read(words[0]))
    for name in words[1:] or TABLES:
        TABLES[name](dataset)


if __name__ == "__main__":
    main(sys.argv[1:])
