"""What contestants read: tf-idf features of a data set, made once, in files that any of them can open.

A stage is a folder with X.trn, Y.trn, X.tst (and Z; and F.trn, pairs of train that are no evidence) as scipy's npz
files and `about.json`. The labels of the points that are to be ranked are not in it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from scipy.sparse import save_npz

from zipfel.data.dataset import Dataset, fingerprint
from zipfel.data.formats import read
from zipfel.data.formats.files import new_folder
from zipfel.data.splits import Preparation, hold_out, prepared
from zipfel.data.text import Tfidf, featurized
from zipfel.errors import ConfigError, DataError
from zipfel.evaluate import Report, evaluate
from zipfel.types import Ranking

TOP = 5  # labels of a document that are judged
VALIDATION = 0.1  # share of train that decides between settings and between models, where there is no such part


@dataclass(frozen=True)
class Stage:
    """Points to learn from and points to rank, and who judges the ranking."""

    dataset: Dataset
    part: str  # "test" or "validation"
    folder: Path

    @property
    def k(self) -> int:
        """How many labels must be ranked so that TOP are left behind any filtered pairs."""
        filtered = self.dataset.parts[self.part].filtered
        most = 0 if filtered is None else int(np.diff(filtered.indptr).max(initial=0))
        return min(TOP + most, self.dataset.sizes.labels)

    def judged(self, ranking: Ranking) -> Report:
        """Judge a ranking; filtered pairs are left out."""
        return evaluate(ranking, self.dataset, self.part)


def loaded(path: Path) -> Dataset:
    """Read a data set with features: tf-idf of its texts or of its counts; weights that are given stay."""
    dataset = prepared(read(path), Preparation())
    if dataset.test is None:
        raise DataError("a bench needs points to test on", path)
    if dataset.train.X is None:
        return featurized(dataset)
    counts = bool((dataset.train.X.data % 1 == 0).all())
    return Tfidf.fit(dataset.train.X).apply(dataset) if counts else dataset


def stage(dataset: Dataset, part: str, folder: Path) -> Stage:
    """Return a stage of the bench, whose files are written where they are not there yet."""
    if part == "validation" and dataset.validation is None:
        dataset = hold_out(dataset, VALIDATION, into="validation")
    made = Stage(dataset, part, folder / part)
    about = {"data": dataset.name, **dataset.sizes._asdict(), "propensity": list(dataset.propensity), "k": made.k,
             "fingerprint": fingerprint(dataset, (dataset.train, dataset.parts[part]))}  # fmt: skip
    found = _about(made.folder)
    if found is None:
        _write(made, about)
    elif found != about:
        raise ConfigError(
            f"{made.folder} holds features of another data set called {dataset.name!r}; name another --out"
        )
    return made


def _about(folder: Path) -> object:
    path = folder / "about.json"
    return orjson.loads(path.read_bytes()) if path.is_file() else None


def _write(stage: Stage, about: dict[str, object]) -> None:
    dataset, ranked = stage.dataset, stage.dataset.parts[stage.part]
    train = dataset.train
    matrices = {"X.trn": train.X, "Y.trn": train.Y, "F.trn": train.filtered, "X.tst": ranked.X, "Z": dataset.Z}
    with new_folder(stage.folder) as target:
        for name, matrix in matrices.items():
            if matrix is not None:
                save_npz(target / f"{name}.npz", matrix, compressed=False)
        (target / "about.json").write_bytes(orjson.dumps(about))


def without_texts(dataset: Dataset) -> Dataset:
    """Return the data set without what only takes memory once there are features."""
    return dataset.with_parts(lambda part: dataclasses.replace(part, texts=None), label_texts=None)
