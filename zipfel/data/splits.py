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
from zipfel.data.disk import ones_in, roomy
from zipfel.errors import ConfigError, DataError
from zipfel.types import pieces


@dataclass(frozen=True)
class Preparation(Settings):
    """Preparation of a data set."""

    holdout: float = setting(
        0.2, "share of train to hold out as test if there is no test file; 0 for none", at_least=0, below=1
    )
    min_label_count: int = setting(0, "drop labels with fewer points in train; 0 keeps all", at_least=0)
    seed: int = setting(0, "seed that decides which points are held out", at_least=0, below=2**64)


def prepared(dataset: Dataset, preparation: Preparation) -> Dataset:
    """Hold out a test part if there is none, then drop labels with too few points in train."""
    if dataset.test is None and preparation.holdout:
        dataset = hold_out(dataset, preparation.holdout, preparation.seed)
        note = held_out_note(len(dataset.parts["test"]), preparation.seed)
        dataset = dataclasses.replace(dataset, notes=(*dataset.notes, note))
    return with_min_label_count(dataset, preparation.min_label_count)


def held_out_note(points: int, seed: int) -> str:
    """Return a note on the points that became a test part."""
    return f"no test file: {points} points held out of train (seed {seed})"


def split_rows(part: Part, share: float, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows that stay and the rows to hold out, about `share` of all; both ascending."""
    keys = fingerprints(part)
    last = split_keys(keys, share, seed)
    return ones_in(lambda piece: keys[piece] > last, len(keys)), ones_in(lambda piece: keys[piece] <= last, len(keys))


def split_keys(keys: NDArray[np.uint64], share: float, seed: int) -> np.uint64:
    """Mix the fingerprints of points with the seed, in place; return the largest key that is held out."""
    if not 0 < share < 1:
        raise ConfigError(f"the share to hold out must be above 0 and below 1; found {share}")
    if not 0 <= seed < 2**64:
        raise ConfigError(f"seed must be at least 0 and below 2^64; found {seed}")
    salt = mixed(np.array([seed], dtype=np.uint64))
    for piece in pieces(len(keys)):
        keys[piece] = mixed(keys[piece] ^ salt)
    return _last_held(keys, share * len(keys))


def _last_held(keys: NDArray[np.uint64], wanted: float) -> np.uint64:
    """Return the largest key that is held out, with as near to `wanted` keys as equal ones allow."""
    order = roomy(len(keys), np.uint64)
    order[:] = keys
    order.sort()
    if not len(order) or order[0] == order[-1]:
        found = f"found {len(keys)} points, {min(1, len(keys))} distinct"
        raise DataError(
            f"holding out needs 2 distinct points; {found}; add other points, or, for a test part, set holdout to 0"
        )
    at = order[min(int(wanted), len(order) - 1)]
    fewer, more = (int(np.searchsorted(order, at, side)) for side in ("left", "right"))
    nearer = fewer if more == len(order) or (fewer and wanted - fewer <= more - wanted) else more
    return np.uint64(order[nearer - 1])


def hold_out(dataset: Dataset, share: float, seed: int = 0, into: str = "test") -> Dataset:
    """Move about `share` of train into a new `test` or `validation` part."""
    if dataset.parts.get(into) is not None:
        raise DataError(f"{dataset.name or 'the data set'} already has a {into} part")
    stay, held = split_rows(dataset.train, share, seed)
    parts = {"train": dataset.train.take(stay), into: dataset.train.take(held)}
    return dataclasses.replace(dataset, **parts)  # type: ignore[arg-type]


def with_min_label_count(dataset: Dataset, least: int, counts: NDArray[np.int64] | None = None) -> Dataset:
    """Drop labels with fewer than `least` points in train; points that lose all their labels stay.

    counts: points of each label; default: those of the data set's train part.
    """
    counts = dataset.label_counts if counts is None else counts
    kept = np.flatnonzero(counts >= least)
    if len(kept) == 0:
        most = counts.max(initial=0)
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
