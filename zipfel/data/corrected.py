"""A data set with corrections: accepted labels join their points, rejected ones leave them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_array, vstack

from zipfel.data.corrections import Corrections, Decision
from zipfel.data.dataset import Dataset, Part
from zipfel.data.labels import names_of
from zipfel.errors import ConfigError

Key = tuple[str, ...]  # the texts of a point by the data set's fields, blanks aside


class Point(NamedTuple):
    """The decisions on a document: its texts as they are, by the data set's fields, and labels."""

    texts: tuple[str, ...]
    accepted: set[str]
    rejected: set[str]


class Used(NamedTuple):
    """What corrections changed in a data set, and which were not used."""

    added: int = 0  # labels added to points that were there
    removed: int = 0  # labels removed from them
    points: int = 0  # new points
    labels: int = 0  # labels that the data set did not have
    overruled: int = 0  # decisions overruled by later ones
    rejected_only: int = 0  # new documents without an accepted label
    held_out: int = 0  # documents that are in test or validation
    foreign: int = 0  # documents with other text fields than the data set's

    def lines(self) -> list[str]:
        """Return sentences for people."""
        first = (
            f"{self.added:,} labels added to known texts, {self.removed:,} removed from them, "
            f"{self.points:,} new points, {self.labels:,} new labels"
        )
        left = {
            "decisions overruled by later ones on the same text and label": self.overruled,
            "new texts left out: no label was accepted": self.rejected_only,
            "texts left out: they are in test or validation": self.held_out,
            "texts left out: the data set has other text fields": self.foreign,
        }
        return [f"corrections: {each}" for each in (first, *(f"{left[why]:,} {why}" for why in left if left[why]))]


def corrected(dataset: Dataset, corrections: Corrections) -> tuple[Dataset, Used]:
    """Return a data set with corrections applied to train, and counts of what changed.

    Accepted labels join the points with the same text (blanks aside), or make a new point; rejected ones leave them.
    The last decision on a label of a text counts. Test and validation stay as they are.
    """
    if dataset.train.texts is None or dataset.train.X is not None or dataset.train.vectors:
        raise ConfigError("corrections need a data set of texts alone; this one has features")
    settled, overruled = corrections.settled()
    decided, foreign = _by_point(settled, list(dataset.train.texts))
    held = {key for name, part in dataset.parts.items() if name != "train" for key in _keys(part)}
    wanted = {key: point for key, point in decided.items() if key not in held}
    known = names_of(dataset)
    new = sorted(set().union(*(point.accepted for point in wanted.values())) - set(known))
    if new:
        dataset = _widened(dataset, [*known, *new])
    ids = {name: label for label, name in enumerate([*known, *new])}
    train, used = _changed(dataset.train, wanted, ids)
    counted = used._replace(labels=len(new), overruled=overruled, held_out=len(decided) - len(wanted), foreign=foreign)
    return dataclasses.replace(dataset, train=train), counted


def _key(texts: Iterable[str]) -> Key:
    return tuple(" ".join(text.split()) for text in texts)


def _keys(part: Part) -> Iterator[Key]:
    return map(_key, zip(*(part.texts or {}).values(), strict=True))


def _by_point(settled: Iterable[Decision], fields: Sequence[str]) -> tuple[dict[Key, Point], int]:
    """Return decisions by point, and the number of documents that have other fields."""
    decided, foreign = dict[Key, Point](), set()
    for each in settled:
        texts = _placed(dict(each.document), fields)
        if texts is None:
            foreign.add(each.document)
            continue
        point = decided.setdefault(_key(texts), Point(texts, set(), set()))
        (point.accepted if each.accepted else point.rejected).add(each.label)
        (point.rejected if each.accepted else point.accepted).discard(each.label)
    return decided, len(foreign)


def _placed(document: Mapping[str, str], fields: Sequence[str]) -> tuple[str, ...] | None:
    """Return the texts of a document by the data set's fields, whose case is ignored; None if it has others."""
    if len(fields) == len(document) == 1 and "text" in document:
        return tuple(document.values())
    texts = {name.casefold(): text for name, text in document.items()}
    if len(texts) < len(document) or not set(texts) <= {name.casefold() for name in fields}:
        return None
    return tuple(texts.get(name.casefold(), "") for name in fields)


def _widened(dataset: Dataset, names: list[str]) -> Dataset:
    """Return a data set with more labels, which no point has yet."""
    labels, new = len(names), len(names) - dataset.sizes.labels

    def wide(pairs: csr_array) -> csr_array:
        return csr_array((pairs.data, pairs.indices, pairs.indptr), shape=(pairs.shape[0], labels))

    texts = {field: [*column, *[""] * new] for field, column in (dataset.label_texts or {}).items()}
    Z = dataset.Z if dataset.Z is None else vstack([dataset.Z, csr_array((new, dataset.Z.shape[1]))], format="csr")
    return dataset.with_parts(
        lambda part: dataclasses.replace(
            part, Y=wide(part.Y), filtered=None if part.filtered is None else wide(part.filtered)
        ),
        label_names=names, label_texts=texts or None, Z=Z,
    )  # fmt: skip


def _changed(train: Part, wanted: Mapping[Key, Point], ids: Mapping[str, int]) -> tuple[Part, Used]:
    """Return train with corrected labels and new points, and what changed."""
    rows = [(row, wanted[key]) for row, key in enumerate(_keys(train)) if key in wanted]
    accepted = _pairs(((row, point.accepted) for row, point in rows), ids, train.Y.shape)
    rejected = _pairs(((row, point.rejected) for row, point in rows), ids, train.Y.shape)
    lost = train.Y.multiply(rejected)
    Y = csr_array(train.Y.maximum(accepted) - lost)
    added, removed = accepted.nnz - train.Y.multiply(accepted).nnz, lost.nnz
    known = {_key(point.texts) for _, point in rows}
    unknown = [point for key, point in wanted.items() if key not in known]
    new = [point for point in unknown if point.accepted]
    train = dataclasses.replace(train, Y=Y)
    used = Used(int(added), int(removed), len(new), rejected_only=len(unknown) - len(new))
    return (_with_points(train, new, ids) if new else train), used


def _pairs(labels: Iterable[tuple[int, set[str]]], ids: Mapping[str, int], shape: tuple[int, int]) -> csr_array:
    """Return 1 where a row has a label that has an id, [points, labels]."""
    pairs = [(row, ids[name]) for row, names in labels for name in names if name in ids]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return csr_array((np.ones(len(pairs), dtype=np.float32), (rows, columns)), shape=shape)


def _with_points(train: Part, points: Sequence[Point], ids: Mapping[str, int]) -> Part:
    """Return train with new points at the end, of average weight, and without a table's further columns."""
    more = _pairs(enumerate(point.accepted for point in points), ids, (len(points), train.Y.shape[1]))
    columns = zip(*(point.texts for point in points), strict=True)
    texts = {name: [*old, *new] for (name, old), new in zip((train.texts or {}).items(), columns, strict=True)}
    none = csr_array(more.shape, dtype=np.float32)
    return Part(
        Y=vstack([train.Y, more], format="csr"),
        texts=texts,
        filtered=None if train.filtered is None else vstack([train.filtered, none], format="csr"),
        weights=None if train.weights is None else np.append(train.weights, np.ones(len(points))),
    )
