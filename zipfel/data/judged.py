"""Which points of a data set a model is judged on, with the labels and text fields of the model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part, TrainedOn, without_pairs
from zipfel.data.hierarchy import with_hierarchy
from zipfel.data.labels import LabelSpace, names_of
from zipfel.data.source import Source
from zipfel.data.splits import Preparation, prepared, with_min_label_count
from zipfel.errors import ConfigError, DataError


class Judged(NamedTuple):
    """A part of a data set to judge a model on. dataset: its labels are the model's, then those the model lacks.

    learned: points of the part that the model was trained on.  left_out: points left out because of that.
    unseen: labels of the part that the model lacks, and how many (point, label) pairs they have.
    traced: whether the model knows the points that it was trained on; models saved by old versions do not.
    """

    dataset: Dataset
    part: str
    learned: int = 0
    left_out: int = 0
    unseen: tuple[int, int] = (0, 0)
    traced: bool = True

    def lines(self) -> list[str]:
        """Return notes that a reader of the figures must know first."""
        points, (labels, pairs) = self.dataset.parts[self.part], self.unseen
        lines = []
        if not self.traced:
            lines.append("warning: the model does not know its training points (it was saved without them); "
                         "if some are judged here, these figures are too good")  # fmt: skip
        if self.left_out:
            lines.append(f"{self.left_out:,} points were used in training and are left out; {len(points):,} are judged")
        if self.learned:
            share = f"{self.learned:,} of {len(points):,} points ({self.learned / len(points):.1%})"
            lines.append(f"warning: {share} were used in training: these figures are too good for new points")
        if labels:
            total = f"{pairs:,} of {points.Y.nnz:,} tags"
            lines.append(f"{labels:,} labels are unknown to the model: {total}, which count as missed")
        return lines

    def as_json(self) -> dict[str, int]:
        """Return the counts that are not 0."""
        names = ("points used in training", "points left out", "unknown labels", "tags of unknown labels")
        return {name: n for name, n in zip(names, (self.learned, self.left_out, *self.unseen), strict=True) if n}


def check_kind(dataset: Dataset, reads_texts: bool, path: Path) -> None:
    """Check that a data set has what a model reads: texts, or else features."""
    train = dataset.train
    if reads_texts and train.texts is None:
        texts = "the texts that these were made of" if dataset.vocabulary is not None else "a data set with texts"
        raise DataError(f"has features, but the model reads texts; give {texts}", path)
    if not reads_texts and train.X is None:
        raise DataError("has texts, but the model reads the features of a matrix; give a data set with features", path)


def judged(dataset: Dataset, labels: LabelSpace, source: Source, part: str, preparation: Preparation) -> Judged:
    """Return the points of a part to judge a model on.

    Without a test part, these are all points that the model was not trained on; with `holdout` 0, all points.
    """
    dataset = as_trained(dataset, labels).with_parts(lambda points: _with_fields(points, source))
    alone, least, left_out = dataset.test is None and source.points > 0, preparation.min_label_count, 0
    if alone:
        dataset, left_out = _unlearned(dataset, source, whole=not preparation.holdout)
    elif dataset.test is None and not preparation.holdout:
        dataset = dataclasses.replace(with_min_label_count(dataset, least), test=dataset.train)
    else:
        dataset = prepared(dataset, preparation)
    points = _part(dataset, part)
    if not set(names_of(dataset)) & set(labels.live):
        raise DataError(f"none of the {dataset.sizes.labels} labels of {dataset.name} is one of the model's "
                        f"{len(labels.live)}; check the label column, and the model")  # fmt: skip
    known = labels.extended(dataset)
    dataset = _aligned(dataset, labels, known)
    if alone:
        counts = np.array(known.counts, dtype=np.int64)
        dataset = _without_rare(dataset, counts, least)
        dataset = dataclasses.replace(dataset, trained_on=TrainedOn(source.points, counts))
    unseen = _part(dataset, part).Y.indices
    unseen = unseen[unseen >= len(labels)]
    learned = int(source.learned(points).sum()) if len(source.prints) else 0
    missing, traced = (len(np.unique(unseen)), len(unseen)), len(source.prints) > 0
    return Judged(dataset, part, learned, left_out if part == "test" else 0, missing, traced)


def as_trained(dataset: Dataset, labels: LabelSpace) -> Dataset:
    """Return a data set with its hierarchy, or that of a model; ancestors are filled in as in training."""
    known, own = labels.hierarchy, dataset.hierarchy
    if known is None or (own is not None and own.filled >= known.filled):
        return dataset
    hierarchy = own or known
    if not hierarchy.above(names_of(dataset)).parents:
        return dataset
    return with_hierarchy(dataset, hierarchy, known.filled)


def filtered_of(points: Part, labels: int) -> csr_array | None:
    """Return the filtered pairs of points with the labels of the model, which come first."""
    return None if points.filtered is None else points.filtered[:, :labels]


def _with_fields(points: Part, source: Source) -> Part:
    """Return the points with the text fields of a model; one field may replace the only one, whatever its name."""
    if not points.texts or not source.fields:
        return points
    same = len(points.texts) == len(source.fields) == 1
    texts = dict(zip(source.fields, points.texts.values(), strict=True)) if same else source.texts(points.texts)
    return dataclasses.replace(points, texts=texts)


def _unlearned(dataset: Dataset, source: Source, whole: bool) -> tuple[Dataset, int]:
    """Make a test part of the points that the model was not trained on, or of all; return how many are left out."""
    points = dataset.train
    learned = source.learned(points)
    if learned.all() and not whole:
        raise DataError(f"the model was trained on all {len(points)} points of {dataset.name}; "
                        "give other data, or evaluate on these points anyway with --holdout 0")  # fmt: skip
    test = points if whole else points.take(np.flatnonzero(~learned))
    train = points.take(np.flatnonzero(learned))
    return dataclasses.replace(dataset, train=train, test=test), len(points) - len(test)


def _part(dataset: Dataset, name: str) -> Part:
    if name not in dataset.parts:
        raise ConfigError(f"part must be one of {', '.join(dataset.parts)}; found {name!r}")
    return dataset.parts[name]


def _aligned(dataset: Dataset, labels: LabelSpace, known: LabelSpace) -> Dataset:
    """Return the data set with the label ids of the model; labels that it lacks follow."""
    if names_of(dataset) == labels.unique_names:
        return dataset
    texts = None if known.texts is None else {"text": known.texts}
    return dataclasses.replace(known.aligned(dataset), label_texts=texts, Z=None)


def _without_rare(dataset: Dataset, counts: np.ndarray[tuple[int], np.dtype[np.int64]], least: int) -> Dataset:
    """Remove the tags of labels with fewer than `least` training points."""
    rare = np.flatnonzero(counts < least)
    if not len(rare):
        return dataset
    note = f"tags of {len(rare)} labels with fewer than {least} points in training left out"

    def change(points: Part) -> Part:
        wrong = np.isin(points.Y.indices, rare)
        rows = np.repeat(np.arange(len(points)), np.diff(points.Y.indptr))[wrong]
        pairs = csr_array((points.Y.data[wrong], (rows, points.Y.indices[wrong])), shape=points.Y.shape)
        return dataclasses.replace(points, Y=without_pairs(points.Y, pairs))

    return dataset.with_parts(change, notes=(*dataset.notes, note))
