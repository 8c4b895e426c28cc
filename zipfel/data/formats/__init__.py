"""Reading and writing data sets: `read` finds the format from what lies in the folder or file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
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
    """A folder format: how to tell it, read it and write it. holds: what a point is in it, text or features."""

    is_here: Callable[[Path], bool]
    read: Callable[[Path, TableSettings], Dataset]
    write: Callable[[Dataset, Path, str], None]
    holds: str
    shown_by: str


def _without_columns(reader: Callable[[Path, str], Dataset]) -> Callable[[Path, TableSettings], Dataset]:
    return lambda folder, settings: reader(folder, settings.encoding)


def _write_table(ending: str, dataset: Dataset, folder: Path, suffix: str) -> None:
    table.write(dataset, folder, ending + ("" if ending == ".parquet" else suffix))


def _table_is_here(ending: str, folder: Path) -> bool:
    return find(folder, f"train{ending}") is not None


FORMATS: dict[str, Format] = {
    "lf": Format(lf.is_here, _without_columns(lf.read), lf.write, "texts", "trn.json and lbl.json"),
    "repository": Format(
        repository.is_here, _without_columns(repository.read), repository.write, "features", "train.txt or *_train.txt"
    ),
    "split": Format(split.is_here, _without_columns(split.read), split.write, "features", "trn_X_Xf.txt, trn_X_Y.txt"),
    "npz": Format(npz.is_here, _without_columns(npz.read), npz.write, "features", "X.trn.npz and Y.trn.npz"),
    **{
        ending[1:]: Format(
            partial(_table_is_here, ending),
            partial(table.read, ending),
            partial(_write_table, ending),
            "texts",
            f"train{ending}",
        )
        for ending in ENDINGS
    },
}


def read(source: Any, settings: TableSettings | None = None, format: str | None = None) -> Dataset:
    """Read a data set from a folder, a file, or a data frame of pandas or polars.

    settings: for tables, which columns hold what. format: one of FORMATS, where a folder holds more than one.

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
        raise DataError(error.problem, path) from None  # what only all files together show, such as other sizes
    except OSError as error:  # such as a folder that may not be looked into
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
    """Return the format of a folder or file: the one that is named, else the one that it shows."""
    folder = Path(path)
    if format is not None:
        return known_format(format)
    if not folder.is_dir():
        name = folder.name.lower().removesuffix(".gz")
        return next((ending[1:] for ending in ENDINGS if name.endswith(ending)), "repository")
    found = [name for name, kind in FORMATS.items() if kind.is_here(folder)]
    if len(found) > 1:
        raise DataError(f"holds more than one format: {', '.join(found)}; name one of them as the format", folder)
    if not found:
        wanted = "; ".join(f"{kind.shown_by} ({name})" for name, kind in FORMATS.items())
        inside = listed(sorted(path.name for path in folder.iterdir()), most=8) or "nothing"
        raise DataError(f"no data set here: expected {wanted}; found {inside}", folder)
    return found[0]


def known_format(name: str) -> str:
    """Return the name of a format, or say which ones there are."""
    if name not in FORMATS:
        raise DataError(f"unknown format {name!r}{did_you_mean(name, FORMATS)}")
    return name


def write(dataset: Dataset, path: Path | str, format: str, gzip: bool = False) -> None:
    """Write a data set into a new folder, in one of FORMATS; nothing is left behind where that fails."""
    kind = FORMATS[known_format(format)]
    with new_folder(Path(path)) as folder:
        kind.write(dataset, folder, ".gz" if gzip else "")
