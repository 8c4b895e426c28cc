"""Parts held out of train, seeded; and labels with too few points left out.

A point goes to a part by a hash of its content, so that equal points never stand on both sides, and the order of the
rows makes no difference.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipfel.config import setting
from zipfel.data.dataset import Dataset, Part, fingerprints, mixed
from zipfel.errors import ConfigError, DataError


@dataclass(frozen=True)
class Preparation:
    """What is done to a data set before it is used."""

    holdout: float = setting(0.2, "share of train held out as test where there is no test file; 0 for none")
    min_label_count: int = setting(0, "leave out labels with fewer points in train; 0 keeps all")
    seed: int = setting(0, "seed of what is held out")

    def __post_init__(self) -> None:
        """Refuse what makes no sense, also where nothing will be held out."""
        if self.holdout:
            _check_share(self.holdout)
        if self.min_label_count < 0:
            raise ConfigError(f"min_label_count must be at least 0; found {self.min_label_count}")
        _check_seed(self.seed)


def prepared(dataset: Dataset, preparation: Preparation) -> Dataset:
    """Hold a test part out of train where there is none, then leave out labels that are too rare."""
    if dataset.test is None and preparation.holdout:
        dataset = hold_out(dataset, preparation.holdout, preparation.seed)
        note = f"no test file: {len(dataset.parts['test'])} points held out of train (seed {preparation.seed})"
        dataset = dataclasses.replace(dataset, notes=(*dataset.notes, note))
    return with_min_label_count(dataset, preparation.min_label_count)


def split_rows(part: Part, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that stay and the rows that are held out, about `share` of all, each in their order."""
    _check_share(share)
    _check_seed(seed)
    keys = mixed(fingerprints(part) ^ mixed(np.array([seed], dtype=np.uint64)))
    groups, sizes = np.unique(keys, return_counts=True)  # equal points have equal keys, so they stay together
    if len(groups) < 2:
        raise DataError(f"{len(part)} points, {len(groups)} of them different, are too few to hold some out")
    last = np.argmin(np.abs(np.cumsum(sizes)[:-1] - share * len(part)))
    held = keys <= groups[last]
    return np.flatnonzero(~held), np.flatnonzero(held)


def hold_out(dataset: Dataset, share: float, seed: int = 0, into: str = "test") -> Dataset:
    """Move about `share` of train into a new `test` or `validation` part."""
    if dataset.parts.get(into) is not None:
        raise DataError(f"{dataset.name or 'the data set'} has a {into} part already")
    stay, held = split_rows(dataset.train, share, seed)
    parts = {"train": dataset.train.take(stay), into: dataset.train.take(held)}
    return dataclasses.replace(dataset, **parts)  # type: ignore[arg-type]


def with_min_label_count(dataset: Dataset, least: int) -> Dataset:
    """Leave out labels with fewer than `least` points in train; points that lose all their labels stay."""
    kept = np.flatnonzero(dataset.label_counts >= least)
    if len(kept) == 0:
        most = dataset.label_counts.max(initial=0)
        raise DataError(f"no label has {least} points in train; the most frequent has {most}")
    if len(kept) == dataset.sizes.labels:
        return dataset
    note = f"{dataset.sizes.labels - len(kept)} labels with fewer than {least} points in train left out"
    return dataclasses.replace(dataset.with_labels(kept), notes=(*dataset.notes, note))


def shared_points(dataset: Dataset) -> dict[str, int]:
    """Count, for test and validation, the points that also stand in train: leaks, if many."""
    known = fingerprints(dataset.train)
    return {
        name: int(np.isin(fingerprints(part), known).sum()) for name, part in dataset.parts.items() if name != "train"
    }


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ConfigError(f"the share to hold out must lie between 0 and 1; found {share}")


def _check_seed(seed: int) -> None:
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed must be a whole number from 0 to 2^64 - 1; found {seed}")
