"""Matrices as plain arrays in files that are mapped into memory: data that may be larger than memory.

`X.trn` and `Y.trn` (and `tst`, `val`, and `Z`) are three files each, which NumPy reads too: `X.trn.indptr.npy`,
`X.trn.indices.npy`, `X.trn.data.npy`, the arrays of a CSR matrix. `mapped.json` is written last and has the shapes, the
sizes and checksums of these files, and the columns of the texts. `labels.txt`, `features.txt`, `label_texts.json` hold
names and texts; `vocabulary.json` is there if features were made from texts. (docs/decisions/023-mapped-data.md)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from zipfel.data.dataset import Columns, Dataset, Part
from zipfel.data.disk import row_pieces
from zipfel.data.formats import folder as common
from zipfel.data.formats.checksums import chunk_sums
from zipfel.data.formats.files import opened, reason, write_bytes
from zipfel.data.formats.folder import PREFIXES
from zipfel.errors import DataError
from zipfel.types import csr_problem, pieces

ABOUT, VOCABULARY, LABEL_TEXTS = "mapped.json", "vocabulary.json", "label_texts.json"
NAMES = common.Names(labels=("labels.txt",), features=("features.txt",))
FORMAT = 1
LARGEST = np.iinfo(np.int32).max  # entries up to which their ends are 32-bit numbers, as scipy has them
_HEADER = 128  # bytes before the numbers of a .npy file


# --- Writing ----------------------------------------------------------------------------------------------------------


class ArrayFile:
    """A .npy file of numbers that are appended; its header is written at the end."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self.path, self.dtype, self.count = path, np.dtype(dtype).newbyteorder("<"), 0
        self.file: BinaryIO = path.open("wb")
        self.file.write(bytes(_HEADER))

    def append(self, values: NDArray[Any]) -> None:
        """Append numbers."""
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.count += len(values)

    def close(self) -> None:
        """Write the header."""
        self.file.seek(0)
        about = {"shape": (self.count,), "fortran_order": False, "descr": self.dtype.str}
        np.lib.format.write_array_header_1_0(self.file, about)
        assert self.file.tell() == _HEADER
        self.file.close()


class MatrixFiles:
    """The files of a CSR matrix, to which rows are appended."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name, self.columns = name, -1  # not known yet
        self.ends, self.indices, self.data = (
            ArrayFile(folder / f"{name}.{array}.npy", kind)
            for array, kind in (("indptr", np.int64), ("indices", np.int32), ("data", np.float32))
        )
        self.ends.append(np.zeros(1, np.int64))

    def append(self, rows: csr_array) -> None:
        """Append rows in canonical form; raise DataError if they have other columns than those before."""
        if self.columns not in (-1, rows.shape[1]):
            raise DataError(f"{self.name}: expected rows with {self.columns} columns, found {rows.shape[1]}")
        self.columns = rows.shape[1]
        self.ends.append(rows.indptr[1:].astype(np.int64) + self.data.count)
        self.indices.append(rows.indices)
        self.data.append(rows.data)

    def close(self) -> list[int]:
        """Finish the files; return the shape."""
        for file in (self.ends, self.indices, self.data):
            file.close()
        narrow = self.data.count <= LARGEST  # scipy needs ends and columns of one type, and would else copy one
        _converted(self.ends if narrow else self.indices, np.int32 if narrow else np.int64)
        return [self.ends.count - 1, self.columns]

    def release(self) -> None:
        """Close the files as they are, after an error."""
        for file in (self.ends, self.indices, self.data):
            file.file.close()


def _converted(old: ArrayFile, dtype: DTypeLike) -> None:
    """Write the numbers of a finished file with another type."""
    values = np.load(old.path, mmap_mode="r")
    new = ArrayFile(old.path.with_suffix(".part"), dtype)
    for piece in pieces(len(values)):
        new.append(values[piece])
    new.close()
    new.path.replace(old.path)


class Writer:
    """Writes a data set piece by piece into a new folder, which the caller has made."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder, dict[str, MatrixFiles]()

    def append(self, part: str, Y: csr_array, X: csr_array) -> None:
        """Append points of a part ("train", ...), with labels [points, labels] and features [points, features]."""
        if Y.shape[0] != X.shape[0]:
            raise DataError(f"{part}: labels of {Y.shape[0]} points, but features of {X.shape[0]}")
        for kind, rows in (("Y", Y), ("X", X)):
            self.matrix(f"{kind}.{PREFIXES[part]}", rows)

    def matrix(self, name: str, rows: csr_array) -> None:
        """Append rows to a matrix."""
        if name not in self.files:
            self.files[name] = MatrixFiles(self.folder, name)
        self.files[name].append(rows)

    def close(self) -> None:
        """Finish the matrices of points."""
        self.shapes = {name: self.files[name].close() for name in sorted(self.files)}

    def release(self) -> None:
        """Close all files, finished or not."""
        for files in self.files.values():
            files.release()

    def finish(self, dataset: Dataset) -> None:
        """Write the rest of the data set besides matrices of points, and the list of all files."""
        folder = self.folder
        if dataset.Z is not None:
            for _, rows in row_pieces(dataset.Z):
                self.matrix("Z", rows)
            self.shapes["Z"] = self.files["Z"].close()
        if dataset.vocabulary is not None:
            dataset.vocabulary.save(folder / VOCABULARY)
            dataset = dataclasses.replace(dataset, feature_names=None)
        if dataset.label_texts:
            write_bytes(folder / LABEL_TEXTS, orjson.dumps({k: list(v) for k, v in dataset.label_texts.items()}))
        common.write_common(dataset, folder, NAMES)
        paths = {path.name: path for path in sorted(folder.iterdir())}
        sums = chunk_sums(paths)
        files = {name: {"bytes": path.stat().st_size, "crc32": sums[name]} for name, path in paths.items()}
        columns = None if dataset.columns is None else dataclasses.asdict(dataset.columns)
        about = {"format": FORMAT, "shapes": self.shapes, "columns": columns, "files": files}
        write_bytes(folder / ABOUT, orjson.dumps(about, option=orjson.OPT_INDENT_2) + b"\n")


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; files cannot be mapped if they are compressed, so `suffix` is ignored."""
    writer = Writer(folder)
    try:
        for name, part in dataset.parts.items():
            X = common.required_features(dataset, part)
            for rows, Y in row_pieces(part.Y):
                writer.append(name, Y, X[rows])
        writer.close()
        writer.finish(dataset)
    finally:
        writer.release()


# --- Reading ----------------------------------------------------------------------------------------------------------


class About(NamedTuple):
    """What mapped.json says."""

    shapes: Mapping[str, Sequence[int]]
    columns: Columns | None
    files: Mapping[str, Mapping[str, Any]]


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Map the matrices of a folder into memory, and check all of its files."""
    about = _about(folder)
    _check_files(folder, about.files)
    parts = {
        name: (Part(_mapped(folder, f"Y.{prefix}", about), _mapped(folder, f"X.{prefix}", about)), list[str]())
        for name, prefix in PREFIXES.items()
        if f"Y.{prefix}" in about.shapes
    }
    if "train" not in parts:
        raise DataError("has no matrices of train", folder / ABOUT)
    others: dict[str, Any] = {"columns": about.columns}
    if "Z" in about.shapes:
        others["Z"] = _mapped(folder, "Z", about)
    if LABEL_TEXTS in about.files:
        others["label_texts"] = _label_texts(folder / LABEL_TEXTS)
    dataset = common.assembled(folder, parts, NAMES, encoding, **others)
    return _with_vocabulary(dataset, folder) if VOCABULARY in about.files else dataset


def _with_vocabulary(dataset: Dataset, folder: Path) -> Dataset:
    from zipfel.data.text import TextFeatures  # which imports this package

    vocabulary = TextFeatures.load(folder / VOCABULARY)
    return dataclasses.replace(dataset, vocabulary=vocabulary, feature_names=vocabulary.terms)


def _label_texts(path: Path) -> dict[str, list[str]]:
    """Return texts of labels by field."""
    fields: dict[str, list[str]] = _json(path)
    columns = fields.values() if isinstance(fields, dict) else [None]
    if not all(isinstance(column, list) and all(isinstance(text, str) for text in column) for column in columns):
        raise DataError("expected an object of lists of texts", path)
    return fields


def _about(folder: Path) -> About:
    path = folder / ABOUT
    values = _json(path)
    version = values.get("format") if isinstance(values, dict) else None
    if isinstance(version, int) and version > FORMAT:
        raise DataError(f"format {version}, but this version reads {FORMAT}; update zipfel", path)
    try:
        columns = values["columns"]
        if columns is not None:
            columns = Columns(**{**columns, "text": tuple(columns["text"])})
            if not all(isinstance(name, str) for name in (*columns.text, columns.labels or "")):
                raise ValueError("columns without names")
        shapes = {str(name): (int(rows), int(width)) for name, (rows, width) in values["shapes"].items()}
        if max(map(max, shapes.values()), default=0) >= 1 << 62:
            raise ValueError(f"a matrix of {max(shapes.values())}")
        files = {
            str(name): {"bytes": int(f["bytes"]), "crc32": list(f["crc32"])} for name, f in values["files"].items()
        }
        return About(shapes, columns, files)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"not the list of files of a mapped data set: {error!r:.80}", path) from None


def _json(path: Path) -> Any:
    try:
        with opened(path) as file:
            return orjson.loads(file.read())
    except orjson.JSONDecodeError as error:
        raise DataError(f"broken JSON: {reason(error)}", path) from None


def _check_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise DataError if a file is missing, or not as it was written."""
    for name, about in files.items():
        path = folder / name
        if Path(name).name != name or not path.is_file():
            raise DataError(f"{name} is missing", folder)
        if path.stat().st_size != about["bytes"]:
            raise DataError(f"has {path.stat().st_size} bytes, expected {about['bytes']}; convert the data again", path)
    for name, sums in chunk_sums({name: folder / name for name in files}).items():
        if sums != files[name]["crc32"]:
            raise DataError("was changed after it was written; convert the data again", folder / name)


def _mapped(folder: Path, name: str, about: About) -> csr_array:
    """Return a matrix whose arrays are mapped, and check them piece by piece."""
    if name not in about.shapes:
        raise DataError(f"has no matrix {name}", folder / ABOUT)
    ends, indices, values = (_array(folder / f"{name}.{array}.npy", about) for array in ("indptr", "indices", "data"))
    rows, columns = about.shapes[name]
    path = folder / f"{name}.indptr.npy"
    if len(ends) != rows + 1 or ends.dtype != indices.dtype or values.dtype != np.float32:
        raise DataError(f"{len(ends) - 1} rows of {ends.dtype}; expected {rows}, of the type of the columns", path)
    if problem := csr_problem(ends, indices, columns, len(values)):
        raise DataError(f"the matrix is broken: {problem}", path)
    return csr_array((values, indices, ends), shape=(rows, columns))


def _array(path: Path, about: About) -> NDArray[Any]:
    if path.name not in about.files:
        raise DataError(f"does not list {path.name}", path.parent / ABOUT)
    try:
        array: NDArray[Any] = np.lib.format.open_memmap(path, mode="r")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"not an array of NumPy: {reason(error)}", path) from None
    if array.ndim != 1 or array.dtype.kind not in "if" or not array.dtype.isnative:
        raise DataError(f"expected a flat array of numbers, found {array.dtype} of shape {array.shape}", path)
    return array
