"""Precision, recall and F1 of each label, where tags are those above a threshold; micro and macro averages."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from zipfel.data.formats.files import write_bytes
from zipfel.errors import DataError
from zipfel.types import Ids, Ranking, stored

COLUMNS = ("label", "precision", "recall", "f1", "support", "predicted", "threshold")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class LabelReport:
    """Counts of each label [L]: points tagged with it, points that have it, and points where both hold."""

    names: Sequence[str]
    predicted: Ids
    support: Ids
    right: Ids
    thresholds: Floats  # [L], least score of a tag; NaN for labels that the model lacks
    titles: Sequence[str] | None = None  # names that people see, where labels have some

    @classmethod
    def of(cls, ranking: Ranking, truth: csr_array, names: Sequence[str], threshold: ArrayLike) -> LabelReport:
        """Count the labels of a ranking, which holds only labels above the threshold.

        truth: [points, labels].  threshold: one number, or one for each label.

        >>> ranking = Ranking(np.array([[0, 1], [0, -1]]), np.array([[0.9, 0.8], [0.7, -np.inf]], dtype=np.float32))
        >>> LabelReport.of(ranking, csr_array([[1, 1], [0, 1]]), ["a", "b"], 0.5).precision
        array([0.5, 1. ])
        """
        labels = truth.shape[1]
        if (len(ranking), len(names)) != truth.shape:
            raise DataError(f"expected {truth.shape[0]} points and {labels} names; found {len(ranking)}, {len(names)}")
        hits = stored(truth, np.arange(len(ranking))[:, None], ranking.ids)
        return cls(
            names,
            np.bincount(ranking.ids[ranking.ids >= 0], minlength=labels),
            np.asarray((truth != 0).sum(axis=0)).ravel().astype(np.int64),
            np.bincount(ranking.ids[hits], minlength=labels),
            np.broadcast_to(np.asarray(threshold, dtype=np.float64), labels),
        )

    def with_unknown(self, truth: csr_array, names: Sequence[str]) -> LabelReport:
        """Return the report with labels that the model lacks, which it never predicts.  truth: [points, labels]."""
        support = np.bincount(truth.indices, minlength=len(names))
        none, missing = np.zeros_like(support), np.full(len(names), np.nan)
        return LabelReport(
            [*self.names, *names],
            np.concatenate([self.predicted, none]),
            np.concatenate([self.support, support]),
            np.concatenate([self.right, none]),
            np.concatenate([self.thresholds, missing]),
            self.titles and [*self.titles, *names],
        )

    def threshold_text(self) -> str:
        """Return the distinct thresholds as text."""
        return " or ".join(sorted({f"{value:.3g}" for value in self.thresholds if not np.isnan(value)}))

    @property
    def precision(self) -> Floats:
        """The share of the tags that are right, [L]; NaN for a label that is never predicted."""
        return _share(self.right, self.predicted)

    @property
    def recall(self) -> Floats:
        """The share of the label's points that are tagged with it, [L]; NaN for a label without points."""
        return _share(self.right, self.support)

    @property
    def f1(self) -> Floats:
        """The harmonic mean of precision and recall, [L]; NaN for a label with neither tags nor points."""
        return _share(2 * self.right, self.predicted + self.support)

    def averages(self) -> dict[str, float]:
        """Return precision, recall and F1 in percent: micro (over tags) and macro (over labels that have points).

        In macro averages a label that is never predicted counts as 0.
        """
        right, predicted, support = (int(counts.sum()) for counts in (self.right, self.predicted, self.support))
        occurring = self.support > 0
        micro = (right / max(predicted, 1), right / max(support, 1), 2 * right / max(predicted + support, 1))
        macro = (
            float(np.nan_to_num(values[occurring]).mean()) if occurring.any() else 0.0
            for values in (self.precision, self.recall, self.f1)
        )
        names = [f"{kind}{name}" for kind in ("micro", "macro") for name in ("P", "R", "F1")]
        return {name: 100 * value for name, value in zip(names, (*micro, *macro), strict=True)}

    @property
    def columns(self) -> tuple[str, ...]:
        """COLUMNS, with the title where labels have titles."""
        return COLUMNS if self.titles is None else (*COLUMNS, "title")

    def rows(self, most: int | None = None) -> list[list[str]]:
        """Return a row of `columns` for each label, or for `most` of them: those with most points first, then by name.

        Shares are in [0, 1]; those that are not defined are empty.
        """
        order = sorted(range(len(self.names)), key=lambda label: (-self.support[label], self.names[label]))[:most]
        shares = [self.precision, self.recall, self.f1]
        return [
            [
                self.names[label],
                *("" if np.isnan(values[label]) else f"{values[label]:.4f}" for values in shares),
                str(self.support[label]),
                str(self.predicted[label]),
                "" if np.isnan(self.thresholds[label]) else f"{self.thresholds[label]:.4g}",
                *([] if self.titles is None else [self.titles[label]]),
            ]
            for label in order
        ]

    def write(self, path: Path) -> None:
        """Write a CSV file with a row for each label."""
        text = io.StringIO(newline="")
        csv.writer(text).writerows([self.columns, *self.rows()])
        write_bytes(path, text.getvalue().encode("utf-8", "replace"))


def _share(above: Ids, below: Ids) -> Floats:
    return np.asarray(np.divide(above, below, out=np.full(len(above), np.nan), where=below > 0))
