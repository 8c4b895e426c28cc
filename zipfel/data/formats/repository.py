"""The Extreme Classification Repository's text format: `N D L`, then `l,l,l f:v f:v` for each point.

Files are `train.txt` and `test.txt`, or `*_train.txt` and `*_test.txt`, and optionally `validation` or `val`; a
single file of this format is read as train. Optional files are `labels.txt` and `features.txt` (names, one per line),
`lbl_X_Xf.txt` (label features) and filter files.
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
    """Return `train.txt` or the only `*_train.txt`, plain or gzip, or None; likewise for the other parts."""
    patterns = [f"{start}{end}.txt{gz}" for end in _ENDINGS[name] for start in ("", "*_") for gz in ("", ".gz")]
    matches = [path for pattern in patterns for path in sorted(folder.glob(pattern)) if path.is_file()]
    paths = [path for path in matches if not path.name.startswith("filter_labels_")]
    if len(paths) > 1:
        names = listed(path.name for path in paths)
        raise DataError(f"holds more than one {name} file: {names}; remove all but one", folder)
    return paths[0] if paths else None


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder."""
    parts = {name: read_part(path) for name in _ENDINGS if (path := part_file(folder, name))}
    return common.assembled(folder, parts, NAMES, encoding, Z=read_label_features(folder))


def read_label_features(folder: Path) -> csr_array | None:
    """Read the features of the label texts, [labels, features], or return None if the folder has none."""
    path = find(folder, LABEL_FEATURES)
    return None if path is None else read_sparse(path, ("labels", "features")).features


def read_part(path: Path) -> tuple[Part, list[str]]:
    """Read one file; return its part and notes on merged labels and features."""
    content = read_sparse(path, _HEADER)
    notes = common.merged_notes(path.name, content.merged_labels, content.merged_features)
    return Part(content.labels, content.features), notes


def read_file(path: Path) -> Dataset:
    """Read a single file as train."""
    part, notes = read_part(path)
    name = path.name.removesuffix(".gz").removesuffix(".txt").removesuffix("_train")
    return Dataset(part, name=name, propensity=common.read_metadata(path.parent).propensity, notes=tuple(notes))


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; `suffix` is ".gz" for compressed files."""
    for name, part in dataset.parts.items():
        X = common.required_features(dataset, part)
        labels = (",".join(map(str, ids)).encode() for ids in common.label_ids(part.Y))
        rows = map(b"%b %b".__mod__, zip(labels, feature_rows(X), strict=True))
        write_sparse(rows, folder / f"{name}.txt{suffix}", (len(part), X.shape[1], part.Y.shape[1]))
    write_label_features(dataset, folder, suffix)
    common.write_common(dataset, folder, NAMES)


def write_label_features(dataset: Dataset, folder: Path, suffix: str) -> None:
    """Write the features of the label texts, if there are any."""
    if dataset.Z is not None:
        write_sparse(feature_rows(dataset.Z), folder / f"{LABEL_FEATURES}{suffix}", dataset.Z.shape)


def write_sparse(rows: Iterator[bytes], path: Path, header: Sequence[int]) -> None:
    """Write a header of sizes, then the rows."""
    with new_file(path) as out:
        out.write(" ".join(map(str, header)).encode() + b"\n")
        for row in rows:
            out.write(row + b"\n")


def feature_rows(matrix: csr_array) -> Iterator[bytes]:
    """Yield `f:v f:v` for each row, with the fewest digits that read back as the same float32."""
    step = 1024
    for start in range(0, matrix.shape[0], step):
        part = matrix[start : start + step]
        values = orjson.dumps(part.data, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1].split(b",")
        pairs = list(map(b"%d:%b".__mod__, zip(part.indices.tolist(), values, strict=False)))
        yield from (b" ".join(pairs[first:last]) for first, last in itertools.pairwise(part.indptr.tolist()))
