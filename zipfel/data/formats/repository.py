"""The Extreme Classification Repository's text format: `N D L`, then `l,l,l f:v f:v` for each point.

Files are `train.txt` and `test.txt`, or `*_train.txt` and `*_test.txt`, with `validation` or `val` where present;
a single file of this format is read as train. Beside them may lie `labels.txt` and `features.txt` (names, one a
line), `lbl_X_Xf.txt` (label features) and filter files.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import find, listed, new_file
from zipfel.data.formats.sparse_text import read_sparse
from zipfel.errors import DataError

NAMES = common.Names(labels=("labels.txt", "Y.txt"), features=("features.txt", "Xf.txt"))
LABEL_FEATURES = "lbl_X_Xf.txt"
_HEADER = ("points", "features", "labels")
_ENDINGS = {"train": ("train",), "test": ("test",), "validation": ("validation", "val", "valid", "dev")}


def part_file(folder: Path, name: str) -> Path | None:
    """Find `train.txt`, or the one `*_train.txt`, plain or gzip."""
    patterns = [f"{start}{end}.txt{gz}" for end in _ENDINGS[name] for start in ("", "*_") for gz in ("", ".gz")]
    matches = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    found = [path for path in matches if not path.name.startswith("filter_labels_")]
    if len(found) > 1:
        names = listed(path.name for path in found)
        raise DataError(f"holds more than one {name} file: {names}; remove all but one", folder)
    return found[0] if found else None


def is_here(folder: Path) -> bool:
    """Tell whether the folder holds a train file of this format."""
    return part_file(folder, "train") is not None


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder."""
    parts, notes = {}, []
    for name in _ENDINGS:
        path = part_file(folder, name)
        if path is not None:
            part, merged = read_part(path)
            parts[name], filtered = common.with_filter(folder, name, part)
            notes += merged + filtered
    return common.assembled(folder, parts, notes, NAMES, read_label_features(folder), encoding)


def read_label_features(folder: Path) -> csr_array | None:
    """Read the features of the label texts where the folder has them."""
    path = find(folder, LABEL_FEATURES)
    return None if path is None else read_sparse(path, ("labels", "features")).features


def read_part(path: Path) -> tuple[Part, list[str]]:
    """Read one file, with notes on what was merged."""
    content = read_sparse(path, _HEADER)
    return Part(content.labels, content.features), merged_notes(path, content.merged_labels, content.merged_features)


def merged_notes(path: Path, labels: int, features: int) -> list[str]:
    """Tell how many labels were repeated in a row, and how many features."""
    notes = [f"{path.name}: {labels} labels repeated in a row, merged"] if labels else []
    return notes + ([f"{path.name}: {features} features repeated in a row, added up"] if features else [])


def read_file(path: Path) -> Dataset:
    """Read a single file as train."""
    part, notes = read_part(path)
    name = path.name.removesuffix(".gz").removesuffix(".txt").removesuffix("_train")
    return Dataset(part, name=name, propensity=common.read_metadata(path.parent)[1], notes=tuple(notes))


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; `suffix` is ".gz" for packed files."""
    for name, part in dataset.parts.items():
        X = common.required_features(dataset, part)
        rows = (labels + b" " + features for labels, features in zip(label_rows(part.Y), feature_rows(X), strict=True))
        write_sparse(rows, folder / f"{name}.txt{suffix}", (len(part), X.shape[1], part.Y.shape[1]))
    if dataset.Z is not None:
        write_sparse(feature_rows(dataset.Z), folder / f"{LABEL_FEATURES}{suffix}", dataset.Z.shape)
    common.write_common(dataset, folder, NAMES)


def write_sparse(rows: Iterator[bytes], path: Path, header: Sequence[int]) -> None:
    """Write a header of sizes and the rows."""
    with new_file(path) as out:
        out.write(" ".join(map(str, header)).encode() + b"\n")
        for row in rows:
            out.write(row + b"\n")


def feature_rows(matrix: csr_array) -> Iterator[bytes]:
    """Yield `f:v f:v` for each row, with the shortest digits that give the same float32 back."""
    step = 1024
    for start in range(0, matrix.shape[0], step):
        part = matrix[start : start + step]
        values = orjson.dumps(part.data, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        pairs = list(map(b"%d:%b".__mod__, zip(part.indices.tolist(), values, strict=False)))
        bounds = part.indptr.tolist()
        for first, last in itertools.pairwise(bounds):
            yield b" ".join(pairs[first:last])


def label_rows(matrix: csr_array) -> Iterator[bytes]:
    """Yield `l,l,l` for each row."""
    ids, bounds = matrix.indices.tolist(), matrix.indptr.tolist()
    for first, last in itertools.pairwise(bounds):
        yield ",".join(map(str, ids[first:last])).encode()
