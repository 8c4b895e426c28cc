"""Matrices in scipy's npz files, in a folder as PECOS has it.

`X.trn.npz`, `Y.trn.npz`, `X.tst.npz`, `Y.tst.npz` (and `val`), `Z.npz` (label features), `output-items.txt` (label
names). The X files may lie one folder deeper (`tfidf-attnxml/X.trn.npz`), or be text, one point a line (`X.trn.txt`).
"""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np
from scipy.sparse import csr_array, issparse, load_npz, save_npz

from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import find, new_file, read_names
from zipfel.errors import DataError

PREFIXES = {"train": "trn", "test": "tst", "validation": "val"}
NAMES = common.Names(labels=("output-items.txt",), features=("features.txt",))


def is_here(folder: Path) -> bool:
    """Tell whether the folder holds train labels of this format."""
    return (folder / "Y.trn.npz").is_file()


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder."""
    parts, notes = {}, []
    for name, prefix in PREFIXES.items():
        if (folder / f"Y.{prefix}.npz").is_file():
            parts[name], filtered = common.with_filter(folder, name, _read_part(folder, prefix, encoding))
            notes += filtered
    train = parts["train"]
    features = 0 if train.X is None else train.X.shape[1]
    name, propensity = common.read_metadata(folder)
    return Dataset(
        parts["train"],
        parts.get("test"),
        parts.get("validation"),
        name=name,
        label_names=common.read_names_file(folder, NAMES.labels, train.Y.shape[1], "labels", encoding),
        feature_names=common.read_names_file(folder, NAMES.features, features, "features", encoding),
        Z=read_matrix(folder / "Z.npz") if (folder / "Z.npz").is_file() else None,
        propensity=propensity,
        notes=tuple(notes),
    )


def _read_part(folder: Path, prefix: str, encoding: str) -> Part:
    Y = read_matrix(folder / f"Y.{prefix}.npz")
    if (Y.data < 0).any():
        raise DataError(f"a label has the negative relevance {Y.data.min():g}", folder / f"Y.{prefix}.npz")
    path = _feature_file(folder, prefix)
    if path is not None:
        X = read_matrix(path)
        if X.shape[0] != Y.shape[0]:
            raise DataError(f"holds {X.shape[0]} points and Y.{prefix}.npz {Y.shape[0]}", path)
        return Part(Y, X)
    path = find(folder, f"X.{prefix}.txt")
    if path is None:
        raise DataError(f"X.{prefix}.npz (here or one folder deeper) or X.{prefix}.txt is missing", folder)
    texts = read_names(path, encoding)
    if len(texts) != Y.shape[0]:
        raise DataError(f"holds {len(texts)} lines and Y.{prefix}.npz {Y.shape[0]} points", path)
    return Part(Y, texts={"text": texts})


def _feature_file(folder: Path, prefix: str) -> Path | None:
    name = f"X.{prefix}.npz"
    if (folder / name).is_file():
        return folder / name
    deeper = sorted(folder.glob(f"*/{name}"))
    if len(deeper) > 1:
        places = ", ".join(path.parent.name for path in deeper)
        raise DataError(f"{name} lies in more than one folder: {places}; keep one", folder)
    return deeper[0] if deeper else None


def read_matrix(path: Path) -> csr_array:
    """Read a sparse matrix of finite numbers from a scipy npz file, checked before anything indexes by it."""
    try:
        matrix = load_npz(path)
        if not issparse(matrix):
            raise ValueError("not a sparse matrix")
        matrix.check_format(full_check=True) if hasattr(matrix, "check_format") else None
        matrix = csr_array(matrix)
    except FileNotFoundError:
        raise DataError("no such file", path) from None
    except (ValueError, TypeError, KeyError, IndexError, OSError, EOFError, MemoryError, NotImplementedError) as error:
        raise DataError(f"not a sparse matrix as scipy saves it: {error}", path) from None
    except (zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"broken npz file: {error}", path) from None
    if matrix.dtype.kind not in "biuf" or not np.isfinite(matrix.data).all():
        raise DataError("holds values that are not finite numbers", path)
    return matrix


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; npz files are packed in any case."""
    for name, part in dataset.parts.items():
        _write_matrix(common.required_features(dataset, part), folder / f"X.{PREFIXES[name]}.npz")
        _write_matrix(part.Y, folder / f"Y.{PREFIXES[name]}.npz")
    if dataset.Z is not None:
        _write_matrix(dataset.Z, folder / "Z.npz")
    common.write_common(dataset, folder, NAMES)


def _write_matrix(matrix: csr_array, path: Path) -> None:
    with new_file(path) as out:
        save_npz(out, matrix)
