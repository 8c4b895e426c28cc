"""Matrices in scipy's npz files, in the folder layout of PECOS.

`X.trn.npz`, `Y.trn.npz`, `X.tst.npz`, `Y.tst.npz` (and `val`), `Z.npz` (label features), `output-items.txt` (label
names). The X files may be one folder deeper (`tfidf-attnxml/X.trn.npz`), or text, one point per line (`X.trn.txt`).
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import numpy as np
from scipy.sparse import csr_array, load_npz, save_npz

from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import find, listed, new_file, opened, read_names, reason
from zipfel.data.formats.folder import PREFIXES, merged_notes
from zipfel.data.formats.sparse_text import LARGEST
from zipfel.errors import DataError
from zipfel.types import matrix_problem

NAMES = common.Names(labels=("output-items.txt",), features=("features.txt",))


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder."""
    parts = {
        name: _read_part(folder, prefix, encoding)
        for name, prefix in PREFIXES.items()
        if (folder / f"Y.{prefix}.npz").is_file() or _feature_file(folder, prefix)
    }
    Z = read_counted(folder / "Z.npz")[0] if (folder / "Z.npz").is_file() else None
    return common.assembled(folder, parts, NAMES, encoding, Z=Z)


def _read_part(folder: Path, prefix: str, encoding: str) -> tuple[Part, list[str]]:
    y_path, x_path = folder / f"Y.{prefix}.npz", _feature_file(folder, prefix)
    if x_path is None:
        raise DataError(f"X.{prefix}.npz (here or one folder deeper) or X.{prefix}.txt is missing", folder)
    Y, merged = read_counted(y_path)
    if (Y.data < 0).any():
        raise DataError(f"a label has a negative relevance: {Y.data.min():g}", y_path)
    notes = merged_notes(y_path.name, labels=merged)
    if x_path.suffix != ".npz":
        return Part(Y, texts={"text": read_names(x_path, Y.shape[0], f"points of {y_path.name}", encoding)}), notes
    X, merged = read_counted(x_path)
    if X.shape[0] != Y.shape[0]:
        raise DataError(f"holds {X.shape[0]} points, but {y_path.name} holds {Y.shape[0]}", x_path)
    return Part(Y, X), notes + merged_notes(x_path.name, features=merged)


def _feature_file(folder: Path, prefix: str) -> Path | None:
    """Return the feature file of a part: a matrix here, else one folder deeper, else text; None if missing."""
    name = f"X.{prefix}.npz"
    if (folder / name).is_file():
        return folder / name
    deeper = sorted(path for path in folder.glob(f"*/{name}") if path.is_file())
    if len(deeper) > 1:
        folders = listed(path.parent.name for path in deeper)
        raise DataError(f"{name} is in more than one folder: {folders}; keep one", folder)
    return deeper[0] if deeper else find(folder, f"X.{prefix}.txt")


def read_counted(path: Path) -> tuple[csr_array, int]:
    """Read a sparse matrix of finite numbers, saved by scipy; return it and how many repeated entries were summed."""
    with opened(path) as stream:
        try:
            loaded = _load_csr(stream)
            loaded = load_npz(stream) if loaded is None else loaded
            if problem := matrix_problem(loaded):
                raise ValueError(problem)
            matrix = csr_array(loaded)
            stored = loaded.nnz if loaded.format == "coo" else matrix.nnz  # coo to csr sums repeated entries
            del loaded
        except Exception as error:  # scipy, numpy and zipfile raise nearly anything on a mangled file
            raise DataError(f"not a sparse matrix saved by scipy: {reason(error)}", path) from None
    if matrix.ndim != 2 or min(matrix.shape) < 1 or max(matrix.shape) > LARGEST:
        raise DataError(f"expected a matrix with 1 to {LARGEST} rows and columns, found shape {matrix.shape}", path)
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"holds {matrix.dtype} values instead of real numbers", path)
    with np.errstate(over="ignore"):  # values too large become infinite and are rejected below
        matrix = matrix.astype(np.float32, copy=False)
    matrix.sum_duplicates()
    if not np.isfinite(matrix.data).all():
        raise DataError("holds values that are not finite float32 numbers", path)
    return matrix, stored - matrix.nnz


def _load_csr(stream: BinaryIO) -> csr_array | None:
    """Load a CSR matrix array by array, each narrowed before the next is read, so that memory stays near the result's.

    Returns None, with the stream rewound, for what load_npz must handle: other layouts, ids out of range, other values.
    """
    with np.load(stream) as arrays:
        if arrays["format"].item() in (b"csr", "csr") and max(arrays["shape"]) <= LARGEST:
            indptr = arrays["indptr"]
            if indptr.dtype == np.int64 and abs(indptr).max(initial=0) <= LARGEST:
                indptr = indptr.astype(np.int32)
            indices = arrays["indices"]
            if indices.dtype.kind in "iu" and indices.min(initial=0) >= 0 and indices.max(initial=0) <= LARGEST:
                indices = indices.astype(np.int32, copy=False)
                data = arrays["data"]
                if data.dtype.kind in "biuf":
                    with np.errstate(over="ignore"):
                        data = data.astype(np.float32, copy=False)
                    return csr_array((data, indices, indptr), shape=tuple(arrays["shape"]))
    stream.seek(0)
    return None


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; npz files are always compressed, so `suffix` is ignored."""
    for name, part in dataset.parts.items():
        _write_matrix(common.required_features(dataset, part), folder / f"X.{PREFIXES[name]}.npz")
        _write_matrix(part.Y, folder / f"Y.{PREFIXES[name]}.npz")
    if dataset.Z is not None:
        _write_matrix(dataset.Z, folder / "Z.npz")
    common.write_common(dataset, folder, NAMES)


def _write_matrix(matrix: csr_array, path: Path) -> None:
    with new_file(path) as out:
        save_npz(out, matrix)
