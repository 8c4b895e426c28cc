"""Code that the folder formats share: names, filter files, and `dataset.json` with name and propensity constants."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part, Propensity
from zipfel.data.formats.files import byte_lines, find, new_file, opened, read_names, write_bytes, write_names
from zipfel.data.formats.sparse_text import matrix_of, parse_id, shown
from zipfel.errors import DataError, quoted

PREFIXES = {"train": "trn", "test": "tst", "validation": "val"}  # of files, by part
FILTERS = {
    "train": ("filter_labels_train.txt",),
    "test": ("filter_labels_test.txt",),
    "validation": ("filter_labels_val.txt", "filter_labels_validation.txt"),
}
METADATA = "dataset.json"

# The repository's propensity constants by family (Jain et al., 2016, Sec. 4.1), for folders without dataset.json; the
# first name that matches decides. For the first three, the field uses the default constants although they are Wikipedia
# and Amazon data.
_FAMILIES = {
    "wiki10": Propensity(),
    "wikiseealso": Propensity(),
    "amazoncat": Propensity(),
    "wiki": Propensity(0.5, 0.4),
    "amazon": Propensity(0.6, 2.6),
}


class Names(NamedTuple):
    """The names that a format gives its files of label names and feature names; the first is the one written."""

    labels: tuple[str, ...]
    features: tuple[str, ...]


class Metadata(NamedTuple):
    """The content of dataset.json. text, labels: the text columns and the label column of tables.

    ancestors: whether points have the ancestors of their labels too, by the hierarchy in parents.csv.  implied: whether
    a label implies these.
    """

    name: str
    propensity: Propensity
    text: tuple[str, ...] = ()
    labels: str | None = None
    ancestors: bool = False
    implied: bool = True


@dataclass
class Documents:
    """Columns of documents, filled row by row: texts by field, uids with their row, label counts and label ids."""

    texts: dict[str, list[str]]
    uids: dict[str, int] = field(default_factory=dict)
    counts: array[int] = field(default_factory=lambda: array("q"))
    ids: array[int] = field(default_factory=lambda: array("i"))

    def part(self, ids: NDArray[np.int32], labels: int, file: str) -> tuple[Part, list[str]]:
        """Return the part with the given label ids, and a note if a row repeats labels.  file: its name, for that."""
        Y, merged = matrix_of(np.array(self.counts), ids, labels)
        return Part(Y, texts=self.texts, uids=list(self.uids) or None), merged_notes(file, labels=merged)


def merged_notes(file: str, labels: int = 0, features: int = 0) -> list[str]:
    """Return notes on the labels and features that were repeated in a row of a file, if there are any."""
    notes = [f"{file}: {labels} labels repeated in a row, merged"] if labels else []
    return notes + ([f"{file}: {features} features repeated in a row, summed"] if features else [])


def assembled(
    folder: Path,
    parts: Mapping[str, tuple[Part, list[str]]],
    names: Names | None = None,
    encoding: str = "utf-8",
    notes: Sequence[str] = (),
    **others: Any,
) -> Dataset:
    """Make a data set of parts with notes, and of the filters, names and metadata in the folder.

    names: the files of names, if the format has them.  others: further attributes of the data set.
    """
    metadata, notes = read_metadata(folder), list(notes)
    kept: dict[str, Any] = {}
    for name, (part, merged) in parts.items():
        kept[name], dropped = _filtered(folder, name, part)
        notes += merged + dropped
    if names is not None:
        train = kept["train"]
        features = 0 if train.X is None else train.X.shape[1]
        others["label_names"] = _names(folder, names.labels, train.Y.shape[1], "labels", encoding)
        others["feature_names"] = _names(folder, names.features, features, "features", encoding)
    return Dataset(**kept, name=metadata.name, propensity=metadata.propensity, notes=tuple(notes), **others)


def _names(folder: Path, files: tuple[str, ...], size: int, kind: str, encoding: str) -> list[str] | None:
    path = find(folder, *files)
    return None if path is None else read_names(path, size, kind, encoding)


def _filtered(folder: Path, name: str, part: Part) -> tuple[Part, list[str]]:
    """Return the part without the pairs of its filter file, and a note if any were dropped."""
    path = find(folder, *FILTERS[name])
    if path is None:
        return part, []
    filtered = dataclasses.replace(part, filtered=read_filter(path, *part.Y.shape))
    dropped = part.Y.nnz - filtered.Y.nnz
    return filtered, [f"{name}: {dropped} labels of points dropped by {path.name}"] if dropped else []


def read_filter(path: Path, points: int, labels: int) -> csr_array:
    """Read `document label` pairs as a [points, labels] matrix."""
    rows, columns = array("i"), array("i")
    for number, line in byte_lines(path):
        words = line.replace(b",", b" ").split()
        if not words:
            continue
        if len(words) != 2:
            raise DataError(f"expected 'document label', found {shown(line)}", path, number)
        try:
            rows.append(parse_id(words[0], "document", points, "the data set has"))
            columns.append(parse_id(words[1], "label", labels, "the data set has"))
        except ValueError as error:
            raise DataError(str(error), path, number) from None
    values = np.ones(len(rows), dtype=np.float32)
    return csr_array((values, (np.array(rows), np.array(columns))), (points, labels))


def read_metadata(folder: Path) -> Metadata:
    """Return name, propensity constants and text columns from dataset.json, else derived from the folder's name."""
    path = find(folder, METADATA)
    if path is None:
        name = folder.resolve().name
        return Metadata(name, next((p for word, p in _FAMILIES.items() if word in name.lower()), Propensity()))
    with opened(path) as stream:
        text = stream.read()
    try:
        values = orjson.loads(text)
        propensity = Propensity(float(values["propensity"]["A"]), float(values["propensity"]["B"]))
        name, columns, labels = values["name"], values.get("text", []), values.get("labels")
        words = (name, *columns, *([] if labels is None else [labels]))
        if not (all(map(math.isfinite, propensity)) and all(isinstance(word, str) for word in words)):
            raise ValueError("A and B must be finite, and names must be text")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f'expected {{"name": …, "propensity": {{"A": …, "B": …}}}}; {error!r:.80}', path) from None
    return Metadata(name, propensity, tuple(columns), labels, values.get("ancestors") is True,
                    values.get("implied") is not False)  # fmt: skip


def write_common(
    dataset: Dataset, folder: Path, names: Names | None = None, text: Sequence[str] = (), labels: str | None = None
) -> None:
    """Write filter files, dataset.json, and the files of names if a format has them.

    text, labels: the text columns and the label column of tables.
    """
    for name, part in dataset.parts.items():
        if part.filtered is not None:
            write_filter(part.filtered, folder / FILTERS[name][0])
    if names is not None and dataset.label_names is not None:
        write_names(folder / names.labels[0], dataset.label_names)
    if names is not None and dataset.feature_names is not None:
        write_names(folder / names.features[0], dataset.feature_names)
    metadata: dict[str, object] = {"name": dataset.name, "propensity": dataset.propensity._asdict()}
    if text:
        metadata["text"] = list(text)
    if labels is not None:
        metadata["labels"] = labels
    if dataset.hierarchy is not None and dataset.hierarchy.filled:
        metadata["ancestors"] = True
    if dataset.hierarchy is not None and not dataset.hierarchy.implied:
        metadata["implied"] = False
    write_bytes(folder / METADATA, orjson.dumps(metadata, option=orjson.OPT_INDENT_2) + b"\n")


def label_ids(Y: csr_array) -> Iterator[list[int]]:
    """Yield the label ids of each point."""
    ids = Y.indices.tolist()
    yield from (ids[first:last] for first, last in pairwise(Y.indptr.tolist()))


def write_filter(pairs: csr_array, path: Path) -> None:
    """Write `document label` pairs, one per line."""
    rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
    with new_file(path) as out:
        out.writelines(b"%d %d\n" % pair for pair in zip(rows.tolist(), pairs.indices.tolist(), strict=True))


def required_features(dataset: Dataset, part: Part) -> csr_array:
    """Return the features of a part; raise DataError if it has only texts."""
    if part.X is None:
        raise DataError(f"{dataset.name or 'the data set'} has texts but no features; apply TextFeatures first")
    return part.X


def required_texts(dataset: Dataset) -> None:
    """Raise DataError if a data set has no texts."""
    if not dataset.train.texts:
        raise DataError(f"{dataset.name or 'the data set'} has features but no texts, which this format needs")


def require_unique(names: Sequence[str], kind: str) -> None:
    """Raise DataError if a name is repeated, for formats that identify rows by name."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise DataError(f"{kind} {quoted(name)} occurs {count} times; this format needs unique ones")
