"""Input files of contestants: tf-idf features of a data set, made once, in a format that all of them can read.

A stage is a folder with X.trn, Y.trn, X.tst (and Z; and F.trn, the filtered pairs of train) as scipy npz files, and
`about.json`. It does not have the labels of the points to rank.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from scipy.sparse import save_npz

from zipfel import config
from zipfel.bench.origin import Origin, with_names_as_texts
from zipfel.bench.results import CHOSEN, PLAIN
from zipfel.data.dataset import Dataset, fingerprint
from zipfel.data.formats import read
from zipfel.data.formats.atomic import new_folder
from zipfel.data.splits import Preparation, hold_out, prepared
from zipfel.data.text import TextSettings, Tfidf, featurized
from zipfel.errors import ConfigError, DataError
from zipfel.evaluate import Report, evaluate
from zipfel.types import Ranking

TOP = 5  # top labels of a document that are evaluated
VALIDATION = 0.1  # share of train held out to choose settings and models, if the data set has no validation part


@dataclass(frozen=True)
class Stage:
    """Points to train on, points to rank, and the evaluation of the ranking."""

    dataset: Dataset
    part: str  # "test" or "validation"
    folder: Path
    origin: Origin = Origin()

    @property
    def k(self) -> int:
        """Number of labels to rank, so that at least TOP remain without the filtered pairs."""
        pairs = self.dataset.parts[self.part].filtered
        filtered = 0 if pairs is None else int(np.diff(pairs.indptr).max(initial=0))
        return min(TOP + filtered, self.dataset.sizes.labels)

    def evaluate(self, ranking: Ranking) -> Report:
        """Evaluate a ranking without the filtered pairs."""
        return evaluate(ranking, self.dataset, self.part)


def loaded(path: Path) -> Dataset:
    """Read a data set, with a test part."""
    dataset = prepared(read(path), Preparation())
    if dataset.test is None:
        raise DataError("the bench needs a test part", path)
    return dataset


def featured(dataset: Dataset, origin: Origin | None = None) -> Dataset:
    """Return a data set with features instead of texts: tf-idf of texts or counts; else given weights.

    origin: the settings of texts; those of `chosen` features read names of labels as `zipfel train` does.
    """
    origin = origin or Origin()
    if origin.features_from == CHOSEN:
        dataset = with_names_as_texts(dataset)
    if dataset.train.X is None:
        dataset = featurized(dataset, config.from_mapping(TextSettings, origin.text))
    elif (dataset.train.X.data % 1 == 0).all():
        dataset = Tfidf.fit(dataset.train.X).apply(dataset)
    return dataset.with_parts(lambda part: dataclasses.replace(part, texts=None), label_texts=None)  # to save memory


def stage(dataset: Dataset, part: str, folder: Path, origin: Origin | None = None) -> Stage:
    """Return a stage of the bench; write its files if they do not exist yet.  origin: that of the features."""
    if part == "validation" and dataset.validation is None:
        dataset = hold_out(dataset, VALIDATION, into="validation")
    result = Stage(dataset, part, folder / part, origin or Origin())
    about = {"data": dataset.name, **dataset.sizes._asdict(), "propensity": list(dataset.propensity), "k": result.k,
             "fingerprint": fingerprint(dataset, (dataset.train, dataset.parts[part])),
             **result.origin.about}  # fmt: skip
    written = result.folder / "about.json"
    if not written.is_file():
        _write(result, about)
    elif {"features_from": PLAIN, **orjson.loads(written.read_bytes())} != about:  # old stages are plain
        raise ConfigError(f"{result.folder} has features of another data set named {dataset.name!r}; use another --out")
    return result


def _write(stage: Stage, about: dict[str, object]) -> None:
    dataset, train, ranked = stage.dataset, stage.dataset.train, stage.dataset.parts[stage.part]
    matrices = {"X.trn": train.X, "Y.trn": train.Y, "F.trn": train.filtered, "X.tst": ranked.X, "Z": dataset.Z}
    with new_folder(stage.folder) as target:
        for name, matrix in matrices.items():
            if matrix is not None:
                save_npz(target / f"{name}.npz", matrix, compressed=False)
        (target / "about.json").write_bytes(orjson.dumps(about))
