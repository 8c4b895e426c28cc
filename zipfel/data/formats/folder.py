"""What the folder formats share: names, filter pairs, label features, and `dataset.json` with name and propensities."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part, Propensity, without_pairs
from zipfel.data.formats.files import byte_lines, find, new_file, read_names, write_names
from zipfel.data.formats.sparse_text import shown
from zipfel.errors import DataError

FILTERS = {
    "train": ("filter_labels_train.txt",),
    "test": ("filter_labels_test.txt",),
    "validation": ("filter_labels_val.txt", "filter_labels_validation.txt"),
}
METADATA = "dataset.json"

# The repository's propensity constants by family (Jain et al., 2016, Sec. 4.1), where a folder has no dataset.json.
_FAMILIES = {"wiki": Propensity(0.5, 0.4), "amazon": Propensity(0.6, 2.6)}


@dataclass(frozen=True)
class Names:
    """Files with one name a line, by the names that a format gives them."""

    labels: tuple[str, ...]
    features: tuple[str, ...]


def read_names_file(folder: Path, files: tuple[str, ...], size: int, kind: str, encoding: str) -> list[str] | None:
    """Read the names of labels or features where the folder has them; there must be `size` of them."""
    path = find(folder, *files)
    if path is None:
        return None
    names = read_names(path, encoding)
    if len(names) != size:
        raise DataError(f"holds {len(names)} names for {size} {kind}", path)
    return names


def with_filter(folder: Path, name: str, part: Part) -> tuple[Part, list[str]]:
    """Return the part with the pairs of its filter file left out, and notes on what that did."""
    path = find(folder, *FILTERS[name])
    if path is None:
        return part, []
    pairs = read_filter(path, len(part), part.Y.shape[1])
    dropped = part.Y.nnz - without_pairs(part.Y, pairs).nnz
    filtered = Part(part.Y, part.X, part.texts, part.uids, pairs)
    return filtered, [f"{name}: {dropped} labels of points left out by {path.name}"] if dropped else []


def read_filter(path: Path, points: int, labels: int) -> csr_array:
    """Read `document label` pairs as a [points, labels] matrix."""
    rows, columns = array("q"), array("q")
    for number, line in byte_lines(path):
        words = line.replace(b",", b" ").split()
        if not words:
            continue
        if len(words) != 2 or not (words[0].isdigit() and words[1].isdigit()):
            raise DataError(f"expected 'document label', found {shown(line)}", path, number)
        row, column = int(words[0]), int(words[1])
        if row >= points or column >= labels:
            raise DataError(f"pair {row} {column} is outside {points} documents × {labels} labels", path, number)
        rows.append(row)
        columns.append(column)
    values = np.ones(len(rows), dtype=np.float32)
    return csr_array((values, (np.array(rows, dtype=np.int64), np.array(columns, dtype=np.int64))), (points, labels))


def read_metadata(folder: Path) -> tuple[str, Propensity]:
    """Return a data set's name and propensity constants: from dataset.json, else from the folder's name."""
    path = find(folder, METADATA)
    name = folder.resolve().name
    if path is None:
        family = next((p for word, p in _FAMILIES.items() if word in name.lower()), Propensity())
        return name, family
    try:
        values = orjson.loads(path.read_bytes())
        propensity = Propensity(float(values["propensity"]["A"]), float(values["propensity"]["B"]))
        return str(values["name"]), propensity
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f'expected {{"name": …, "propensity": {{"A": …, "B": …}}}}; {error!r}', path) from None


def write_common(dataset: Dataset, folder: Path, names: Names | None = None) -> None:
    """Write filters, metadata and, where a format has files for them, names."""
    for name, part in dataset.parts.items():
        if part.filtered is not None:
            write_filter(part.filtered, folder / FILTERS[name][0])
    if names is not None and dataset.label_names is not None:
        write_names(folder / names.labels[0], dataset.label_names)
    if names is not None and dataset.feature_names is not None:
        write_names(folder / names.features[0], dataset.feature_names)
    metadata: Mapping[str, object] = {"name": dataset.name, "propensity": dataset.propensity._asdict()}
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
