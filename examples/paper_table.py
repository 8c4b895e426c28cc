"""Reproduce a row of a paper: `python examples/paper_table.py [FOLDER MODEL]`, by default MNN on synthetic data.

FOLDER has the files of the Extreme Classification Repository (`train.txt` and `test.txt`: `points features labels`,
then a line `label,label feature:value ...` for each point). The preset `paper` has the settings that the paper states.
PSP uses the repository's constants A and B for the name of FOLDER, or those of a file `dataset.json` in it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import zipfel
from zipfel.data.synthetic import Synthetic, make
from zipfel.evaluate import evaluate, metric_rows

KS = (1, 3, 5)
METRICS = ("P", "nDCG", "PSP")


def synthetic() -> zipfel.Dataset:
    """Write files of 1,000 synthetic points as the repository has them, and read them."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "synthetic"
        zipfel.write(make(Synthetic(points=1000, labels=100, seed=0)), folder, "repository")
        return zipfel.read(folder)


def main(folder: str = "", model: str = "mnn") -> None:
    """Read a data set, train a model with its paper's settings, and print P, nDCG and PSP on test, in percent."""
    dataset = zipfel.read(folder, format="repository") if folder else synthetic()
    assert dataset.test is not None
    tagger = zipfel.Tagger(model, "paper", validation=0).fit_dataset(dataset)
    report = evaluate(tagger.rank(dataset.test.X, k=max(KS)), dataset, ks=KS)
    print(f"{model} on {dataset.name}: {dataset.sizes.points:,} points, {dataset.sizes.labels:,} labels")
    print("".join(f"{title:>9}" for title in ("", *(f"k={k}" for k in KS))))
    for name, *values in metric_rows(report.values, KS):
        if name in METRICS:
            print("".join(f"{cell:>9}" for cell in (name, *values)))


if __name__ == "__main__":
    main(*sys.argv[1:])
