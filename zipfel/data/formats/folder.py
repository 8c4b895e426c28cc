"""What the folder formats share: names, filter pairs, label features, and `dataset.json` with name and propensities."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part, Propensity
from zipfel.data.formats.files import byte_lines, find, new_file, opened, read_names, write_names
from zipfel.data.formats.sparse_text import parse_id, shown
from zipfel.errors import DataError

FILTERS = {
    "train": ("filter_labels_train.txt",),
    "test": ("filter_labels_test.txt",),
    "validation": ("filter_labels_val.txt", "filter_labels_validation.txt"),
}
METADATA = "dataset.json"

# The repository's propensity constants by family (Jain et al., 2016, Sec. 4.1), where a folder has no dataset.json; the
# first that fits holds. The field measures these Wikipedia and Amazon sets with the constants of all others.
_FAMILIES = {
    "wiki10": Propensity(),
    "wikiseealso": Propensity(),
    "amazoncat": Propensity(),
    "wiki": Propensity(0.5, 0.4),
    "amazon": Propensity(0.6, 2.6),
}


class Names(NamedTuple):
    """Files with one name a line, by the names that a format gives them."""

    labels: tuple[str, ...]
    features: tuple[str, ...]


class Metadata(NamedTuple):
    """What dataset.json holds. text: the text columns of tables."""

    name: str
    propensity: Propensity
    text: tuple[str, ...] = ()


def assembled(
    folder: Path, parts: dict[str, Part], notes: list[str], names: Names, Z: csr_array | None, encoding: str
) -> Dataset:
    """Put parts, label features, names and metadata of a folder together."""
    train, metadata = parts["train"], read_metadata(folder)
    features = 0 if train.X is None else train.X.shape[1]
    return Dataset(
        train,
        parts.get("test"),
        parts.get("validation"),
        name=metadata.name,
        label_names=_names(folder, names.labels, train.Y.shape[1], "labels", encoding),
        feature_names=_names(folder, names.features, features, "features", encoding),
        Z=Z,
        propensity=metadata.propensity,
        notes=tuple(notes),
    )


def _names(folder: Path, files: tuple[str, ...], size: int, kind: str, encoding: str) -> list[str] | None:
    path = find(folder, *files)
    return None if path is None else read_names(path, size, kind, encoding)


def with_filter(folder: Path, name: str, part: Part) -> tuple[Part, list[str]]:
    """Return the part with the pairs of its filter file left out, and notes on what that did."""
    path = find(folder, *FILTERS[name])
    if path is None:
        return part, []
    filtered = dataclasses.replace(part, filtered=read_filter(path, *part.Y.shape))
    dropped = part.Y.nnz - filtered.Y.nnz
    return filtered, [f"{name}: {dropped} labels of points left out by {path.name}"] if dropped else []


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
    return csr_array((values, (np.array(rows, dtype=np.int32), np.array(columns, dtype=np.int32))), (points, labels))


def read_metadata(folder: Path) -> Metadata:
    """Return a data set's name and propensity constants: from dataset.json, else from the folder's name."""
    path = find(folder, METADATA)
    if path is None:
        name = folder.resolve().name
        return Metadata(name, next((p for word, p in _FAMILIES.items() if word in name.lower()), Propensity()))
    with opened(path) as stream:
        text = stream.read()
    try:
        values = orjson.loads(text)
        propensity = Propensity(float(values["propensity"]["A"]), float(values["propensity"]["B"]))
        name, columns = values["name"], values.get("text", [])
        if not (all(map(math.isfinite, propensity)) and all(isinstance(word, str) for word in (name, *columns))):
            raise ValueError("a constant is not finite, or a name is not text")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f'expected {{"name": …, "propensity": {{"A": …, "B": …}}}}; {error!r:.80}', path) from None
    return Metadata(name, propensity, tuple(columns))


def write_common(dataset: Dataset, folder: Path, names: Names | None = None, text: Sequence[str] = ()) -> None:
    """Write filters, metadata (with the text columns of tables) and, where a format has files for them, names."""
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
    with new_file(folder / METADATA) as out:
        out.write(orjson.dumps(metadata, option=orjson.OPT_INDENT_2) + b"\n")


def write_filter(pairs: csr_array, path: Path) -> None:
    """Write `document label` pairs, one a line."""
    rows = np.repeat(np.arange(pairs.shape[0]), np.diff(pairs.indptr))
    with new_file(path) as out:
        out.writelines(b"%d %d\n" % pair for pair in zip(rows.tolist(), pairs.indices.tolist(), strict=True))


def required_features(dataset: Dataset, part: Part) -> csr_array:
    """Return a part's features, or say that its texts must be turned into features first."""
    if part.X is None:
        raise DataError(f"{dataset.name or 'the data set'} has texts and no features; apply TextFeatures first")
    return part.X


def required_texts(dataset: Dataset) -> None:
    """Refuse a data set without texts."""
    if dataset.train.texts is None:
        raise DataError(f"{dataset.name or 'the data set'} has features and no texts; this format holds texts")


def require_unique(names: Sequence[str], kind: str) -> None:
    """Refuse names that stand there twice, where a format tells rows by them."""
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise DataError(f"{kind} {name!r:.60} stands there {count} times; this format holds each once")
