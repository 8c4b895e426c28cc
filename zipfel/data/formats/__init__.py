"""Read and write data sets; `read` recognises the format by the files in a folder or by the ending of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from zipfel.data.dataset import Dataset
from zipfel.data.formats import lf, npz, repository, split, table
from zipfel.data.formats.files import find, listed, new_folder
from zipfel.data.formats.table import TableSettings
from zipfel.data.formats.table_files import ENDINGS, is_frame, open_frame, open_table
from zipfel.errors import DataError, did_you_mean

__all__ = ["FORMATS", "Format", "TableSettings", "format_of", "known_format", "read", "write"]


@dataclass(frozen=True)
class Format:
    """A folder format. holds: "texts" or "features" of points.  shown_by: the files that a folder is recognised by."""

    is_here: Callable[[Path], object]  # true or not
    read: Callable[[Path, TableSettings], Dataset]
    write: Callable[[Dataset, Path, str], None]
    holds: str
    shown_by: str


def _format(module: ModuleType, holds: str, is_here: Callable[[Path], object], shown_by: str) -> Format:
    def read(path: Path, settings: TableSettings) -> Dataset:
        dataset: Dataset = module.read(path, settings.encoding or "utf-8")
        return dataset

    return Format(is_here, read, module.write, holds, shown_by)


def _table(ending: str) -> Format:
    reader, writer, train = partial(table.read, ending), partial(table.write, ending), f"train{ending}"
    return Format(lambda folder: find(folder, train), reader, writer, "texts", train)


FORMATS: dict[str, Format] = {
    "lf": _format(lf, "texts", lambda folder: find(folder, "trn.json"), "trn.json and lbl.json"),
    "repository": _format(
        repository, "features", lambda folder: repository.part_file(folder, "train"), "train.txt or *_train.txt"
    ),
    "split": _format(split, "features", lambda folder: find(folder, "trn_X_Y.txt"), "trn_X_Xf.txt, trn_X_Y.txt"),
    "npz": _format(npz, "features", lambda folder: (folder / "Y.trn.npz").is_file(), "X.trn.npz and Y.trn.npz"),
    **{ending[1:]: _table(ending) for ending in ENDINGS},
}


def read(source: Any, settings: TableSettings | None = None, format: str | None = None) -> Dataset:
    """Read a data set from a folder, a file, or a data frame of pandas or polars.

    settings: the columns of tables, and the encoding.  format: one of FORMATS, needed if a folder holds several.

    >>> read("no/such/folder")
    Traceback (most recent call last):
    zipfel.errors.DataError: no/such/folder: no such file or folder
    """
    settings = settings or TableSettings()
    if is_frame(source):
        return table.read_tables({"train": open_frame(source)}, settings)
    if not isinstance(source, str | os.PathLike):
        raise DataError(f"expected a path or a data frame, found {type(source).__name__}")
    path = Path(source)
    try:
        return _read_folder(path, settings, format) if path.is_dir() else _read_file(path, settings)
    except DataError as error:
        if error.path is not None:
            raise
        raise DataError(error.problem, path) from None  # parts that contradict each other, such as in size
    except OSError as error:  # such as a folder without read permission
        raise DataError(f"cannot be read: {error.strerror or error}", path) from None


def _read_folder(path: Path, settings: TableSettings, format: str | None) -> Dataset:
    kind = FORMATS[format_of(path, format)]
    if not kind.is_here(path):
        raise DataError(f"{kind.shown_by} is missing", path)
    return kind.read(path, settings)


def _read_file(path: Path, settings: TableSettings) -> Dataset:
    """Read a single file as train."""
    name = path.name.lower().removesuffix(".gz")
    if not path.exists():
        raise DataError("no such file or folder", path)
    if path.is_file() and name.endswith(ENDINGS):
        return table.read_tables({"train": open_table(path, settings.encoding)}, settings)
    if path.is_file() and name.endswith(".txt"):
        return repository.read_file(path)
    raise DataError(f"not a data set; expected a folder, a .txt file or a table ({', '.join(ENDINGS)})", path)


def format_of(path: Path | str, format: str | None = None) -> str:
    """Return the given format if it is known; without one, recognise that of a folder or file."""
    folder = Path(path)
    if format is not None:
        return known_format(format)
    if not folder.is_dir():
        name = folder.name.lower().removesuffix(".gz")
        return next((ending[1:] for ending in ENDINGS if name.endswith(ending)), "repository")
    formats = [name for name, kind in FORMATS.items() if kind.is_here(folder)]
    if len(formats) > 1:
        raise DataError(f"holds more than one format: {', '.join(formats)}; choose one with format= (--from)", folder)
    if not formats:
        wanted = "; ".join(f"{kind.shown_by} ({name})" for name, kind in FORMATS.items())
        inside = listed(sorted(path.name for path in folder.iterdir()), most=8) or "nothing"
        raise DataError(f"no data set here: expected {wanted}; found {inside}", folder)
    return formats[0]


def known_format(name: str) -> str:
    """Return the name if FORMATS has it; else raise an error that suggests one."""
    if name not in FORMATS:
        raise DataError(f"unknown format {name!r}{did_you_mean(name, FORMATS)}")
    return name


def write(dataset: Dataset, path: Path | str, format: str, gzip: bool = False) -> None:
    """Write a data set to a new folder, in one of FORMATS; a failure leaves nothing behind."""
    kind = FORMATS[known_format(format)]
    with new_folder(Path(path)) as folder:
        kind.write(dataset, folder, ".gz" if gzip else "")
