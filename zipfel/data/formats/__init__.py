"""Read and write data sets; `read` recognises the format by the files in a folder or by the ending of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from zipfel.data.dataset import Dataset
from zipfel.data.formats import annif, lf, mapped, npz, repository, split, table
from zipfel.data.formats.atomic import new_folder
from zipfel.data.formats.files import find, listed, unpacked_name
from zipfel.data.formats.folder import read_metadata
from zipfel.data.formats.parents import FILE, read_parents, write_parents
from zipfel.data.formats.table import TableSettings
from zipfel.data.formats.table_files import ENDINGS, READ_ONLY, is_frame, open_frame, open_table
from zipfel.data.formats.thesaurus import is_thesaurus
from zipfel.data.hierarchy import with_hierarchy
from zipfel.data.labels import names_of
from zipfel.errors import ConfigError, DataError, did_you_mean

__all__ = ["FORMATS", "WRITABLE", "Format", "TableSettings", "format_of", "known_format", "read", "writable_format",
           "write"]  # fmt: skip


@dataclass(frozen=True)
class Format:
    """A folder format. holds: "texts" or "features" of points.  shown_by: the files that a folder is recognised by."""

    is_here: Callable[[Path], object]  # true or not
    read: Callable[[Path, TableSettings], Dataset]
    write: Callable[[Dataset, Path, str], None] | None  # None: it is read only
    holds: str
    shown_by: str


def _format(module: ModuleType, holds: str, is_here: Callable[[Path], object], shown_by: str) -> Format:
    def read(path: Path, settings: TableSettings) -> Dataset:
        dataset: Dataset = module.read(path, settings.encoding or "utf-8")
        return dataset

    return Format(is_here, read, module.write, holds, shown_by)


def _table(ending: str) -> Format:
    reader, train = partial(table.read, ending), f"train{ending}"
    writer = partial(table.write, ending) if ending in ENDINGS else None
    return Format(lambda folder: find(folder, train), reader, writer, "texts", train)


FORMATS: dict[str, Format] = {
    "lf": _format(lf, "texts", lambda folder: find(folder, "trn.json"), "trn.json and lbl.json"),
    "repository": _format(
        repository, "features", lambda folder: repository.part_file(folder, "train"), "train.txt or *_train.txt"
    ),
    "split": _format(split, "features", lambda folder: find(folder, "trn_X_Y.txt"), "trn_X_Xf.txt, trn_X_Y.txt"),
    "npz": _format(npz, "features", lambda folder: (folder / "Y.trn.npz").is_file(), "X.trn.npz and Y.trn.npz"),
    "mapped": _format(mapped, "features", lambda folder: (folder / mapped.ABOUT).is_file(), mapped.ABOUT),
    "annif": Format(annif.is_corpus, annif.read, None, "texts", "NAME.txt and NAME.tsv or NAME.key, or NAME.json"),
    **{ending[1:]: _table(ending) for ending in (*ENDINGS, *READ_ONLY)},
}
WRITABLE = tuple(name for name, kind in FORMATS.items() if kind.write is not None)


def read(source: Any, settings: TableSettings | None = None, format: str | None = None) -> Dataset:
    """Read a data set from a folder, a file, or a data frame of pandas or polars.

    Args:
        source: a path or a data frame.
        settings: the columns of tables, and the encoding.
        format: one of FORMATS, needed if a folder holds several.

    Returns:
        The data set, checked; its `notes` say what was merged or left out.

    Example:
        >>> import pandas
        >>> frame = pandas.DataFrame({"text": ["red apple", "fast car"], "tags": ["fruit;red", "car"]})
        >>> read(frame, TableSettings(sep=";")).sizes
        Sizes(points=2, features=0, labels=3)
    """
    settings = settings or TableSettings()
    if is_frame(source):
        return _with_parents(table.read_tables({"train": open_frame(source)}, settings), settings)
    if not isinstance(source, str | os.PathLike):
        raise DataError(f"expected a path or a data frame, found {type(source).__name__}")
    path = Path(source)
    try:
        dataset = _read_folder(path, settings, format) if path.is_dir() else _read_file(path, settings)
        return _with_parents(dataset, settings, path if path.is_dir() else None)
    except DataError as error:
        if error.path is not None:
            raise
        raise DataError(error.problem, path) from None  # parts that contradict each other, such as in size
    except OSError as error:  # such as a folder without read permission
        raise DataError(f"cannot be read: {error.strerror or error}", path) from None


def _with_parents(dataset: Dataset, settings: TableSettings, folder: Path | None = None) -> Dataset:
    """Add the hierarchy of labels that the settings name, else that of the folder, if it has one."""
    own = None if folder is None or settings.parents else find(folder, FILE)
    if settings.parents == table.NONE or (not settings.parents and dataset.hierarchy is not None):
        return dataset  # none is wanted, or a thesaurus has brought its own
    if own is not None and folder is not None:
        hierarchy = read_parents(replace(settings, parents=str(own)), None)
        about = read_metadata(folder)
        hierarchy = replace(hierarchy, implied=about.implied)
        dataset = replace(dataset, notes=(*dataset.notes, f"hierarchy of labels from {own.name}"))
        return with_hierarchy(dataset, hierarchy, settings.ancestors or about.ancestors)
    if not settings.parents:
        if settings.ancestors:
            raise ConfigError("ancestors needs a hierarchy; set it with parents (--parents)")
        return dataset
    labels = settings.label_texts
    if labels is not None and not is_frame(labels) and is_thesaurus(labels, settings.encoding):
        labels = None
    elif labels is None and folder is not None:
        labels = table.part_file(folder, "labels", ENDINGS[0])
    return with_hierarchy(dataset, read_parents(settings, labels), settings.ancestors)


def _read_folder(path: Path, settings: TableSettings, format: str | None) -> Dataset:
    kind = FORMATS[format_of(path, format)]
    if not kind.is_here(path):
        raise DataError(f"{kind.shown_by} is missing", path)
    return kind.read(path, settings)


def _read_file(path: Path, settings: TableSettings) -> Dataset:
    """Read a single file as train."""
    if not path.exists():
        raise DataError("no such file or folder", path)
    name, endings = unpacked_name(path), (*ENDINGS, *READ_ONLY)
    if path.is_file() and name.endswith((*endings, ".xls", ".ods")):
        return table.read_tables({"train": open_table(path, settings.encoding)}, settings)
    if path.is_file() and name.endswith(".txt"):
        return repository.read_file(path)
    raise DataError(f"not a data set; expected a folder, a .txt file or a table ({', '.join(endings)})", path)


def format_of(path: Path | str, format: str | None = None) -> str:
    """Return the given format if it is known; without one, recognise that of a folder or file."""
    folder = Path(path)
    if format is not None:
        return known_format(format)
    if not folder.is_dir():
        name = unpacked_name(folder)
        return next((ending[1:] for ending in (*ENDINGS, *READ_ONLY) if name.endswith(ending)), "repository")
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


def writable_format(name: str) -> str:
    """Return the name of a format that can be written; else raise an error that lists those."""
    if FORMATS[known_format(name)].write is None:
        others = ", ".join(WRITABLE)
        raise DataError(f"format {name} can be read, not written; choose one of {others} with format= (--to)")
    return name


def write(dataset: Dataset, path: Path | str, format: str, gzip: bool = False) -> None:
    """Write a data set to a new folder; a failure leaves nothing behind.

    Args:
        dataset: what to write; texts become tf-idf features where the format holds features.
        path: the folder, which must not exist yet.
        format: one of WRITABLE.
        gzip: compress text files.

    Example:
        >>> import tempfile
        >>> from zipfel.data.synthetic import Synthetic, make
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(make(Synthetic(points=50, labels=5)), f"{folder}/new", "repository")
        ...     read(f"{folder}/new").sizes.points
        40
    """
    writer = FORMATS[writable_format(format)].write
    assert writer is not None
    with new_folder(Path(path)) as folder:
        writer(dataset, folder, ".gz" if gzip else "")
        if dataset.hierarchy is not None:
            write_parents(dataset.hierarchy, names_of(dataset), folder, ".gz" if gzip else "")
