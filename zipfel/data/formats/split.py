"""The repository's split form: `trn_X_Xf.txt` (features), `trn_X_Y.txt` (labels), `tst_*`, `val_*`, `lbl_X_Xf.txt`.

Each file starts with its sizes; rows are `id:value` pairs. A feature file may also be dense: rows of plain numbers,
or `trn_X_Xf.npy`. Names stand in `Y.txt` and `Xf.txt`, pairs to ignore in `filter_labels_*.txt`.
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats import repository
from zipfel.data.formats.files import Growing, find, line_blocks, opened, require
from zipfel.data.formats.sparse_text import (
    Header,
    feature_rows,
    matrix_of,
    parse_value,
    read_header,
    read_rows,
    read_sparse,
    shown,
    write_sparse,
)
from zipfel.errors import DataError

PREFIXES = {"train": "trn", "test": "tst", "validation": "val"}
NAMES = common.Names(labels=("Y.txt", "labels.txt"), features=("Xf.txt", "features.txt"))


def is_here(folder: Path) -> bool:
    """Tell whether the folder holds train labels of this format."""
    return find(folder, "trn_X_Y.txt") is not None


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder."""
    parts, notes = {}, []
    for name, prefix in PREFIXES.items():
        if name == "train" or find(folder, f"{prefix}_X_Y.txt") is not None:
            part, merged = read_part(folder, prefix)
            parts[name], filtered = common.with_filter(folder, name, part)
            notes += merged + filtered
    return repository.with_names(folder, parts, notes, encoding)


def read_part(folder: Path, prefix: str) -> tuple[Part, list[str]]:
    """Read features and labels of one part, with notes on what was merged."""
    x_path = find(folder, f"{prefix}_X_Xf.txt", f"{prefix}_X_Xf.npy")
    if x_path is None:
        raise DataError(f"{prefix}_X_Xf.txt (or .npy) is missing", folder)
    y_path = require(folder, f"{prefix}_X_Y.txt")
    X, repeated = read_features(x_path)
    labels = read_sparse(y_path, ("points", "labels"))
    if (labels.features.data < 0).any():
        row = int(np.searchsorted(labels.features.indptr, np.argmin(labels.features.data), side="right")) - 1
        raise DataError(f"a label has the negative relevance {labels.features.data.min():g}", y_path, row + 2)
    if X.shape[0] != labels.features.shape[0]:
        raise DataError(f"holds {labels.features.shape[0]} points and {x_path.name} {X.shape[0]}", y_path)
    notes = repository.merged_notes(y_path, labels.merged_features, 0)
    return Part(labels.features, X), notes + repository.merged_notes(x_path, 0, repeated)


def read_features(path: Path) -> tuple[csr_array, int]:
    """Read a feature file, sparse or dense, and tell how many features were repeated in a row."""
    if ".npy" in path.suffixes:
        return _read_npy(path), 0
    with opened(path) as stream:
        header = read_header(stream, path, ("points", "features"))
        beginning = stream.peek(4096)  # type: ignore[attr-defined]
        if b":" in beginning or not beginning.strip():
            content = read_rows(stream, path, header)
            return content.features, content.merged_features
        return _read_dense(stream, path, header), 0


def _read_dense(stream: BinaryIO, path: Path, header: Header) -> csr_array:
    """Read rows of plain numbers, as many in each as the header says."""
    counts, ids, values = Growing(np.int64), Growing(np.int32), Growing(np.float32)
    points = 0
    for text in line_blocks(stream):
        block = csr_array(_dense_block(text, path, header.features, first_line=points + 2))
        points += block.shape[0]
        for buffer, part in ((counts, np.diff(block.indptr)), (ids, block.indices), (values, block.data)):
            buffer.append(part)
    if points != header.points:
        raise DataError(f"holds {points} points; the header says {header.points}", path)
    return matrix_of(counts.done(), ids.done(), values.done(), header.features)[0]


def _dense_block(text: bytes, path: Path, features: int, first_line: int) -> NDArray[np.float32]:
    """Parse lines of numbers, [lines, features]; those that are not JSON's numbers go through `parse_value`."""
    lines = [line.replace(b",", b" ").split() for line in text.split(b"\n")[:-1]]
    for number, words in enumerate(lines, start=first_line):
        if len(words) != features:
            found = shown(b" ".join(words))
            raise DataError(f"expected {features} numbers, found {len(words)} in {found}", path, number)
    try:
        rows = orjson.loads(b"[" + b",".join(b",".join(words) for words in lines) + b"]")
        block = np.array(rows, dtype=np.float64)
        if not (np.abs(block) <= np.finfo(np.float32).max).all():
            raise ValueError("too large")
    except (ValueError, TypeError):
        block = np.array([_parse_dense_line(w, path, n) for n, w in enumerate(lines, start=first_line)])
    return block.reshape(len(lines), features).astype(np.float32)


def _parse_dense_line(words: list[bytes], path: Path, number: int) -> list[float]:
    try:
        return [parse_value(word) for word in words]
    except ValueError as error:
        raise DataError(str(error), path, number) from None


def _read_npy(path: Path) -> csr_array:
    try:
        with opened(path) as stream:
            array = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError, MemoryError) as error:
        raise DataError(f"not a numpy array: {error}", path) from None
    if array.ndim != 2 or array.dtype.kind not in "biuf":
        raise DataError(f"expected a matrix of numbers, found shape {array.shape} of {array.dtype}", path)
    if not np.isfinite(array).all():
        raise DataError(f"row {int(np.argwhere(~np.isfinite(array))[0][0])} holds a value that is not finite", path)
    return csr_array(array.astype(np.float32))


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; `suffix` is ".gz" for packed files."""
    for name, part in dataset.parts.items():
        X, stem = common.required_features(dataset, part), folder / PREFIXES[name]
        write_sparse(feature_rows(X), Path(f"{stem}_X_Xf.txt{suffix}"), X.shape)
        write_sparse(feature_rows(part.Y), Path(f"{stem}_X_Y.txt{suffix}"), part.Y.shape)
    if dataset.Z is not None:
        write_sparse(feature_rows(dataset.Z), folder / f"{repository.LABEL_FEATURES}{suffix}", dataset.Z.shape)
    common.write_common(dataset, folder, NAMES)
