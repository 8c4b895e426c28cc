"""The points that trials are trained and judged on, the same for all trials; never test."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.data.judged import filtered_of
from zipfel.data.splits import split_rows
from zipfel.errors import DataError
from zipfel.models.base import evenly_spaced, labelled

if TYPE_CHECKING:
    from zipfel.tagger import Tagger

OBJECTIVE = "nDCG@5 + PSnDCG@5"  # both in percent: right labels, and right rare labels
SHARE = 0.2  # of train that is held out to judge, where there is no validation part
MOST = 5_000  # points that judge
FEWEST = 10
REDUCTION = 3  # each size is this many times the one before
SIZES = 3
SMALLEST = 1_000  # points of train, below which there is no smaller size


@dataclass(frozen=True)
class Judge:
    """Trains on more and more points, and judges on held-out ones.

    dataset: to learn from, without validation and test.  held_out: points that judge.  sizes: numbers of points to
    train on, one after the other; the last is all.  order: of points; the first of them are a smaller size.
    """

    dataset: Dataset
    held_out: Part
    sizes: tuple[int, ...]
    order: NDArray[np.int64]
    weights: NDArray[np.float64]  # inverse propensities

    @classmethod
    def of(cls, dataset: Dataset, seed: int) -> Judge:
        """Take the validation part of a data set to judge, or hold out some points of train."""
        train, held_out = dataset.train, dataset.validation
        propensity = dataset.propensity
        weights = metrics.inverse_propensities(dataset.label_counts, len(train), propensity.A, propensity.B)
        if held_out is None:
            share = min(SHARE, MOST / max(len(train), 1))
            stay, held = split_rows(train, share, seed)
            train, held_out = train.take(stay), train.take(held)
        held_out = evenly_spaced(labelled(held_out), MOST)
        if len(held_out) < FEWEST:
            kind = "a share of train" if dataset.validation is None else "the validation part"
            raise DataError(f"settings are judged on at least {FEWEST} held-out points with labels; "
                            f"{kind} has {len(held_out)}: give it more points")  # fmt: skip
        order = np.random.default_rng(seed).permutation(len(train))
        learned = dataclasses.replace(dataset, train=train, validation=None, test=None)
        return cls(learned, held_out, sizes_of(len(train)), order, weights)

    def smaller(self, size: int) -> Dataset:
        """Return the data set with only this many points of train."""
        if size == len(self.dataset.train):
            return self.dataset
        rows = np.sort(self.order[:size])
        return dataclasses.replace(self.dataset, train=self.dataset.train.take(rows))

    def figures(self, tagger: Tagger) -> dict[str, float]:
        """Return the metrics of a fitted tagger on the held-out points, in percent; the objective is their sum."""
        points: Any = self.held_out.X if tagger.features_ is None else self.held_out.texts
        ranking = tagger.rank(points, 5, filtered_of(self.held_out, len(tagger.labels_)))
        measured = metrics.measure(ranking, self.held_out.Y, self.weights, ks=[5])
        return {name: measured[name] for name in OBJECTIVE.split(" + ")}


def sizes_of(points: int) -> tuple[int, ...]:
    """Return the numbers of points that a trial is trained on, one after the other.

    >>> sizes_of(36_000), sizes_of(3_000), sizes_of(500)
    ((4000, 12000, 36000), (1000, 3000), (500,))
    """
    sizes = [points // REDUCTION**power for power in reversed(range(SIZES))]
    return tuple(size for size in sizes if size >= SMALLEST or size == points)
