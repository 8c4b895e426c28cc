"""A user's own table: CSV, TSV, JSONL, Parquet or a data frame, with text columns and a label column.

A folder holds `train.csv` (or .tsv, .jsonl, .parquet), and where present `test`, `validation` and `labels` (label
name in the first column, its text in the others). A single table is read as train.
"""

from __future__ import annotations

import ast
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from zipfel.config import setting
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import find
from zipfel.data.formats.sparse_text import matrix_of
from zipfel.data.formats.table_files import ENDINGS, Table, open_table, write_table
from zipfel.errors import DataError

PARTS = {"train": ("train",), "test": ("test",), "validation": ("validation", "val", "dev")}
TEXT_COLUMNS = ("title", "text", "content", "body", "abstract", "description")
LABEL_COLUMNS = ("labels", "tags", "label", "tag")


@dataclass(frozen=True)
class TableSettings:
    """Which columns of a table hold what."""

    text: tuple[str, ...] = setting((), f"text columns, such as title,body; else those of {', '.join(TEXT_COLUMNS)}")
    labels: str | None = setting(None, f"label column; else one of {', '.join(LABEL_COLUMNS)}")
    sep: str | None = setting(None, "what separates labels in a cell; without it a cell is a list or one label")
    label_texts: Path | None = setting(None, "second table: a label's name in the first column, then its text")
    encoding: str = setting("utf-8", "encoding of CSV, TSV and text files, such as cp1252")

    def __post_init__(self) -> None:
        """Take one text column as well as several."""
        if isinstance(self.text, str):
            object.__setattr__(self, "text", (self.text,))
        if self.label_texts is not None:
            object.__setattr__(self, "label_texts", Path(self.label_texts))


@dataclass
class _Labels:
    """Label names and their provisional ids, shared by all parts. counts and ids of a part are kept by the part."""

    ids: dict[str, int] = field(default_factory=dict)

    def order(self, first: Sequence[str]) -> tuple[list[str], NDArray[np.int32]]:
        """Return the final names, `first` and then the others sorted, and the final id of each provisional one."""
        known = set(first)
        names = [*first, *sorted(name for name in self.ids if name not in known)]
        places = {name: place for place, name in enumerate(names)}
        return names, np.array([places[name] for name in self.ids], dtype=np.int32)


@dataclass
class _Column:
    """What is gathered from a part's rows."""

    texts: dict[str, list[str]]
    uids: dict[str, int] = field(default_factory=dict)
    counts: array[int] = field(default_factory=lambda: array("q"))
    ids: array[int] = field(default_factory=lambda: array("i"))


def is_here(folder: Path) -> bool:
    """Tell whether the folder holds a train table."""
    return part_file(folder, "train") is not None


def part_file(folder: Path, name: str) -> Path | None:
    """Find the table of a part, such as `train.csv`."""
    return find(folder, *(stem + ending for stem in PARTS.get(name, (name,)) for ending in ENDINGS))


def read(folder: Path, settings: TableSettings) -> Dataset:
    """Read a folder of tables."""
    paths = {name: path for name in PARTS if (path := part_file(folder, name)) is not None}
    if settings.label_texts is None:
        settings = replace(settings, label_texts=part_file(folder, "labels"))
    dataset = read_tables({n: open_table(p, settings.encoding) for n, p in paths.items()}, settings)
    notes, parts = list(dataset.notes), {}
    for name, part in dataset.parts.items():
        parts[name], filtered = common.with_filter(folder, name, part)
        notes += filtered
    title, propensity = common.read_metadata(folder)
    return replace(dataset, **parts, name=title, propensity=propensity, notes=tuple(notes))  # type: ignore[arg-type]


def read_tables(tables: dict[str, Table], settings: TableSettings) -> Dataset:
    """Put tables together: the labels of all are one set, in the order of the label table, else sorted."""
    labels, notes, columns = _Labels(), [], {}
    text, label_column = _chosen_columns(tables["train"], settings)
    for name, table in tables.items():
        columns[name], repeated = _gather(table, text, label_column, settings.sep, labels)
        notes += [f"{table.path}: {repeated} labels repeated in a row, merged"] if repeated else []
    given: list[str] = []
    label_texts: dict[str, list[str]] | None = None
    if settings.label_texts is not None:
        given, label_texts = read_label_texts(settings.label_texts, settings.encoding)
    names, final = labels.order(given)
    if not names:
        raise DataError(f"column {label_column!r} holds no label at all", tables["train"].path)
    if label_texts is not None:
        missing = len(names) - len(given)
        notes += [f"{missing} labels have no text in {settings.label_texts}"] if missing else []
        label_texts = {name: column + [""] * missing for name, column in label_texts.items()}
    parts = {name: _part(column, final, len(names)) for name, column in columns.items()}
    title = Path(str(tables["train"].path)).name.partition(".")[0]
    notes += _suspicion(names, settings.sep)
    return Dataset(
        parts["train"],
        parts.get("test"),
        parts.get("validation"),
        name=title,
        label_names=names,
        label_texts=label_texts or None,
        notes=tuple(notes),
    )


def _suspicion(names: list[str], sep: str | None) -> list[str]:
    """Tell where cells look like several labels and no separator was named."""
    for mark in ";|," if sep is None else "":
        if sum(mark in name for name in names) > len(names) / 2:
            return [f"most labels hold {mark!r}, as in {names[0]!r}; name it as separator to split them (--sep)"]
    return []


def _chosen_columns(table: Table, settings: TableSettings) -> tuple[tuple[str, ...], str]:
    """Return the text columns and the label column: those that were named, else those with the usual names."""
    label = settings.labels or next((name for name in LABEL_COLUMNS if name in table.columns), None)
    found = ", ".join(table.columns)
    if label is None:
        raise DataError(f"name the label column with --labels (found: {found})", table.path)
    text = settings.text or tuple(name for name in TEXT_COLUMNS if name in table.columns)
    if not text:
        raise DataError(f"name the text columns with --text (found: {found})", table.path)
    table.check((*text, label))
    return text, label


def _gather(
    table: Table, text: tuple[str, ...], label_column: str, sep: str | None, labels: _Labels
) -> tuple[_Column, int]:
    table.check((*text, label_column))
    uid = ["uid"] if "uid" in table.columns else []
    column, repeated = _Column({name: [] for name in text}), 0
    for number, (cell, *values) in table.rows([label_column, *text, *uid]):
        try:
            names = label_names(cell, sep)
            for name, value in zip(text, values, strict=False):
                column.texts[name].append(cell_text(value))
        except ValueError as error:
            raise table.error(str(error), number) from None
        if uid and column.uids.setdefault(cell_text(values[-1]), number) != number:
            raise table.error(f"uid {values[-1]!r} stands there twice", number)
        unique = dict.fromkeys(names)
        repeated += len(names) - len(unique)
        column.counts.append(len(unique))
        column.ids.extend(labels.ids.setdefault(name, len(labels.ids)) for name in unique)
    if not column.counts:
        raise DataError("holds no rows", table.path)
    return column, repeated


def _part(column: _Column, final: NDArray[np.int32], labels: int) -> Part:
    ids = final[np.array(column.ids, dtype=np.int64)]
    Y, _ = matrix_of(np.array(column.counts), ids, np.ones(len(ids), dtype=np.float32), labels)
    return Part(Y, texts=column.texts, uids=list(column.uids) or None)


def label_names(cell: Any, sep: str | None) -> list[str]:
    """Return the label names of a cell: a list, a text split at `sep`, a list written as text, or one label.

    >>> label_names("a; b;;c", ";"), label_names("a; b", None), label_names('["a", "b"]', None), label_names(None, ";")
    (['a', 'b', 'c'], ['a; b'], ['a', 'b'], [])
    """
    if isinstance(cell, str) and sep is not None:
        cell = cell.split(sep)
    elif isinstance(cell, str) and cell.startswith("[") and cell.endswith("]"):
        cell = _written_list(cell)
    if isinstance(cell, list | tuple | np.ndarray):
        return [name for item in cell if (name := cell_text(item).strip())]
    name = cell_text(cell).strip()
    return [name] if name else []


def _written_list(cell: str) -> list[Any] | str:
    """Read a list as JSON or Python writes it; what is neither is one label that happens to stand in brackets."""
    try:
        return list(orjson.loads(cell))
    except orjson.JSONDecodeError:
        pass
    try:
        value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell
    return value if isinstance(value, list) else cell


def cell_text(value: Any) -> str:
    """Return a cell as text: nothing for what is missing, whole numbers without a point."""
    if value is None or value != value or type(value).__name__ == "NAType":  # None, NaN, pandas.NA
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, float | np.floating) and float(value).is_integer():
        return str(int(value))
    if isinstance(value, bool | int | float | np.generic):
        return str(value)
    raise ValueError(f"expected text, found {type(value).__name__} {str(value)[:40]!r}")


def read_label_texts(path: Path, encoding: str) -> tuple[list[str], dict[str, list[str]]]:
    """Read a table of labels: names from the first column, texts from the others."""
    table = open_table(path, encoding)
    fields = table.columns[1:]
    names: dict[str, int] = {}
    texts: dict[str, list[str]] = {name: [] for name in fields}
    for number, values in table.rows(table.columns):
        try:
            name, *others = map(cell_text, values)
        except ValueError as error:
            raise table.error(str(error), number) from None
        if not name.strip():
            raise table.error("a label without a name", number)
        if names.setdefault(name.strip(), number) != number:
            raise table.error(f"label {name!r} stands there twice", number)
        for field_name, text in zip(fields, others, strict=True):
            texts[field_name].append(text)
    return list(names), texts


def write(dataset: Dataset, folder: Path, ending: str) -> None:
    """Write a folder of tables with a file `train`, ..., and `labels`; a label cell is a list (as JSON in CSV)."""
    common.required_texts(dataset)
    names = list(dataset.label_names or map(str, range(dataset.sizes.labels)))
    if len(set(names)) < len(names):
        raise DataError(f"{len(names) - len(set(names))} label names are not unique, so a table cannot hold them")
    write_table({"label": names, **dict(dataset.label_texts or {})}, folder / f"labels{ending}")
    for name, part in dataset.parts.items():
        bounds = part.Y.indptr.tolist()
        cells = [[names[i] for i in part.Y.indices[a:b].tolist()] for a, b in pairwise(bounds)]
        uids = {} if part.uids is None else {"uid": list(part.uids)}
        write_table({**uids, **dict(part.texts or {}), "labels": cells}, folder / f"{name}{ending}")
    common.write_common(dataset, folder)
