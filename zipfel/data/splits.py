"""Hold points out of train, by seed, and drop labels with too few points.

A hash of its content decides on which side a point goes. So equal points always stay together, and the order of the
rows does not matter.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from zipfel.config import Settings, setting
from zipfel.data.dataset import Dataset, Part, fingerprints, mixed
from zipfel.errors import ConfigError, DataError


@dataclass(frozen=True)
class Preparation(Settings):
    """How a data set is prepared before it is used."""

    holdout: float = setting(
        0.2, "share of train to hold out as test if there is no test file; 0 for none", at_least=0, below=1
    )
    min_label_count: int = setting(0, "drop labels with fewer points in train; 0 keeps all", at_least=0)
    seed: int = setting(0, "seed that decides which points are held out", at_least=0, below=2**64)


def prepared(dataset: Dataset, preparation: Preparation) -> Dataset:
    """Hold out a test part if there is none, then drop labels with too few points in train."""
    if dataset.test is None and preparation.holdout:
        dataset = hold_out(dataset, preparation.holdout, preparation.seed)
        note = f"no test file: {len(dataset.parts['test'])} points held out of train (seed {preparation.seed})"
        dataset = dataclasses.replace(dataset, notes=(*dataset.notes, note))
    return with_min_label_count(dataset, preparation.min_label_count)


def split_rows(part: Part, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that stay and the rows to hold out, about `share` of all; both ascending."""
    if not 0 < share < 1:
        raise ConfigError(f"the share to hold out must be above 0 and below 1; found {share}")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed must be at least 0 and below 2^64; found {seed}")
    keys = mixed(fingerprints(part) ^ mixed(np.array([seed], dtype=np.uint64)))
    groups, sizes = np.unique(keys, return_counts=True)  # equal points have equal keys, so they stay together
    if len(groups) < 2:
        raise DataError(f"holding out needs 2 distinct points; found {len(part)} points, {len(groups)} distinct")
    last = np.argmin(np.abs(np.cumsum(sizes)[:-1] - share * len(part)))
    held = keys <= groups[last]
    return np.flatnonzero(~held), np.flatnonzero(held)


def hold_out(dataset: Dataset, share: float, seed: int = 0, into: str = "test") -> Dataset:
    """Move about `share` of train into a new `test` or `validation` part."""
    if dataset.parts.get(into) is not None:
        raise DataError(f"{dataset.name or 'the data set'} already has a {into} part")
    stay, held = split_rows(dataset.train, share, seed)
    parts = {"train": dataset.train.take(stay), into: dataset.train.take(held)}
    return dataclasses.replace(dataset, **parts)  # type: ignore[arg-type]


def with_min_label_count(dataset: Dataset, least: int) -> Dataset:
    """Drop labels with fewer than `least` points in train; points that lose all their labels stay."""
    kept = np.flatnonzero(dataset.label_counts >= least)
    if len(kept) == 0:
        most = dataset.label_counts.max(initial=0)
        raise DataError(f"no label has at least {least} points in train; the most frequent has {most}")
    if len(kept) == dataset.sizes.labels:
        return dataset
    note = f"{dataset.sizes.labels - len(kept)} labels with fewer than {least} points in train dropped"
    return dataclasses.replace(dataset.with_labels(kept), notes=(*dataset.notes, note))


def shared_points(dataset: Dataset) -> dict[str, int]:
    """Return how many points of test and of validation are also in train; many of them mean a leak."""
    known = fingerprints(dataset.train)
    return {
        name: int(np.isin(fingerprints(part), known).sum()) for name, part in dataset.parts.items() if name != "train"
    }
