"""The Extreme Classification Repository's text format: `N D L`, then `l,l,l f:v f:v` for each point.

Files are `train.txt` and `test.txt`, or `*_train.txt` and `*_test.txt`, with `validation` or `val` where present;
a single file of this format is read as train. Beside them may lie `labels.txt` and `features.txt` (names, one a
line), `lbl_X_Xf.txt` (label features) and filter files.
"""

from __future__ import annotations

from pathlib import Path

from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import find
from zipfel.data.formats.sparse_text import feature_rows, label_rows, read_sparse, write_sparse
from zipfel.errors import DataError

NAMES = common.Names(labels=("labels.txt", "Y.txt"), features=("features.txt", "Xf.txt"))
LABEL_FEATURES = "lbl_X_Xf.txt"
_HEADER = ("points", "features", "labels")
_ENDINGS = {"train": ("train",), "test": ("test",), "validation": ("validation", "val", "valid", "dev")}


def part_file(folder: Path, name: str) -> Path | None:
    """Find `train.txt`, or the one `*_train.txt`, plain or gzip."""
    for ending in _ENDINGS[name]:
        found = find(folder, f"{ending}.txt")
        matches = [path for end in ("", ".gz") for path in sorted(folder.glob(f"*_{ending}.txt{end}"))]
        matches = [path for path in matches if not path.name.startswith("filter_labels_")]
        if len(matches) + (found is not None) > 1:
            names = ", ".join(path.name for path in ([found] if found else []) + matches)
            raise DataError(f"holds more than one {name} file: {names}; remove all but one", folder)
        if found or matches:
            return found or matches[0]
    return None


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
    return with_names(folder, parts, notes, encoding)


def with_names(folder: Path, parts: dict[str, Part], notes: list[str], encoding: str) -> Dataset:
    """Put parts, names, label features and metadata together."""
    name, propensity = common.read_metadata(folder)
    train = parts["train"]
    features, labels = common.required_features(Dataset(train), train).shape[1], train.Y.shape[1]
    return Dataset(
        parts["train"],
        parts.get("test"),
        parts.get("validation"),
        name=name,
        label_names=common.read_names_file(folder, NAMES.labels, labels, "labels", encoding),
        feature_names=common.read_names_file(folder, NAMES.features, features, "features", encoding),
        Z=read_label_features(folder),
        propensity=propensity,
        notes=tuple(notes),
    )


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
