"""Tables of MNN and DXML: `python -m benchmarks.neighbour_tables DATA [TABLE ...] [--models mnn,dxml] [--seed 0]`.

splits: ten random splits of all points into train and test of the same sizes, both models.  decoders: both of MNN.
linear: DXML with and without its ReLU and its linear path.  partial: a fit on half of train, the other half added by
`partial_fit`, or learned from by a further fit (`warm_start`), and a fit on all of train. Evaluates on test, and
separately on the points of test that have only tail labels. One JSON line per row. --models: of splits and partial.
--seed: of training, and in partial of the halves.
"""

from __future__ import annotations

import argparse
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


def fitted(dataset: Dataset, model: str, seed: int, **settings: Any) -> Tagger:
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


def report(dataset: Dataset, table: str, row: str, seed: int, values: dict[str, Any]) -> None:
    """Print a row of a table."""
    record("neighbour_tables", {"data": dataset.name, "table": table, "row": row, **values}, seed, ("torch",))
    sys.stdout.flush()


def splits(dataset: Dataset, models: list[str], seed: int) -> None:
    """Ten random splits, as in the papers."""
    for model in models:
        found = [figures(part, fitted(part, model, seed)) for part in (resplit(dataset, split) for split in range(10))]
        means = {name: round(statistics.mean(row[name] for row in found), 2) for name in NAMES}
        report(dataset, "splits", model, seed, means | {"P@1 sd": round(statistics.stdev(r["P@1"] for r in found), 2)})


def decoders(dataset: Dataset, _: list[str], seed: int) -> None:
    """Both decoders of MNN."""
    for decoder in ("neighbours", "labels"):
        report(dataset, "decoders", decoder, seed, figures(dataset, fitted(dataset, "mnn", seed, decoder=decoder)))


def linear(dataset: Dataset, _: list[str], seed: int) -> None:
    """DXML's Fig. 2: non-linear and linear, each with and without the linear path."""
    for nonlinear in (True, False):
        for linear_path in (True, False):
            tagger = fitted(dataset, "dxml", seed, nonlinear=nonlinear, linear_path=linear_path)
            row = f"nonlinear={nonlinear} linear_path={linear_path}"
            report(dataset, "linear", row, seed, figures(dataset, tagger))


def partial(dataset: Dataset, models: list[str], seed: int) -> None:
    """Half of train, then the other half added without learning or by a further fit, and all of train."""
    train, half = dataset.train, len(dataset.train) // 2
    order = np.random.default_rng(seed).permutation(len(train))
    first, second = train.take(np.sort(order[:half])), train.take(np.sort(order[half:]))
    start = Dataset(first, test=dataset.test, name=dataset.name)
    for model in models:
        tagger = fitted(start, model, seed)
        report(dataset, "partial", f"{model}, half", seed, figures(dataset, tagger))
        tagger.partial_fit(second.X, second.Y)
        drift = {"drift": round(float(tagger.drift_), 3)}
        report(dataset, "partial", f"{model}, half and partial_fit", seed, figures(dataset, tagger) | drift)
        further = fitted(start, model, seed).set_params(warm_start=True)
        further.fit_dataset(Dataset(second, test=dataset.test, name=dataset.name))
        report(dataset, "partial", f"{model}, half and further fit", seed, figures(dataset, further))
        report(dataset, "partial", f"{model}, whole", seed, figures(dataset, fitted(dataset, model, seed)))


TABLES = {"splits": splits, "decoders": decoders, "linear": linear, "partial": partial}


def main(options: argparse.Namespace) -> None:
    dataset = featurized(read(options.data))
    for name in options.tables or TABLES:
        TABLES[name](dataset, options.models.split(","), options.seed)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data")
    parser.add_argument("tables", nargs="*", metavar="TABLE", help=f"of {', '.join(TABLES)}; by default all")
    parser.add_argument("--models", default="mnn,dxml")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    if unknown := set(asked.tables) - set(TABLES):
        parser.error(f"unknown tables {', '.join(sorted(unknown))}; known are {', '.join(TABLES)}")
    main(asked)
