"""A user's own table: CSV, TSV, JSONL, Parquet or a data frame, with text columns and a label column.

A folder holds `train.csv` (or .tsv, .jsonl, .parquet), and where present `test`, `validation` and `labels` (label
name in the first column, its text in the others). A single table is read as train.
"""

from __future__ import annotations

import ast
import math
import warnings
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
from zipfel.data.dataset import Dataset, Part, Texts
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import find, listed
from zipfel.data.formats.sparse_text import matrix_of
from zipfel.data.formats.table_files import ENDINGS, Table, is_frame, open_frame, open_table, write_table
from zipfel.errors import ConfigError, DataError

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
        """Take one text column as well as several, and a data frame of label texts as well as a file."""
        text = (self.text,) if isinstance(self.text, str) else tuple(dict.fromkeys(self.text))
        object.__setattr__(self, "text", text)
        if self.label_texts is not None and not is_frame(self.label_texts):
            object.__setattr__(self, "label_texts", Path(self.label_texts))
        if self.sep == "":
            raise ConfigError("sep, what separates labels in a cell, must not be empty")


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
class _Gathered:
    """What is gathered from a part's rows."""

    texts: dict[str, list[str]]
    uids: dict[str, int] = field(default_factory=dict)
    counts: array[int] = field(default_factory=lambda: array("q"))
    ids: array[int] = field(default_factory=lambda: array("i"))


def part_file(folder: Path, name: str, ending: str) -> Path | None:
    """Find the table of a part, such as `train.csv`: one with the ending of train, else with any other."""
    stems = PARTS.get(name, (name,))
    same = find(folder, *(stem + ending for stem in stems))
    return same or find(folder, *(stem + other for stem in stems for other in ENDINGS))


def read(ending: str, folder: Path, settings: TableSettings) -> Dataset:
    """Read a folder of tables, of which train has the given ending."""
    metadata = common.read_metadata(folder)
    settings = replace(settings, text=settings.text or metadata.text)
    if settings.label_texts is None:
        settings = replace(settings, label_texts=part_file(folder, "labels", ending))
    paths = {name: path for name in PARTS if (path := part_file(folder, name, ending)) is not None}
    dataset = read_tables({n: open_table(p, settings.encoding) for n, p in paths.items()}, settings)
    notes, parts = list(dataset.notes), {}
    for name, part in dataset.parts.items():
        parts[name], filtered = common.with_filter(folder, name, part)
        notes += filtered
    return replace(
        dataset,
        name=metadata.name,
        propensity=metadata.propensity,
        notes=tuple(notes),
        **parts,  # type: ignore[arg-type]
    )


def read_tables(tables: dict[str, Table], settings: TableSettings) -> Dataset:
    """Put tables together: the labels of all are one set, in the order of the label table, else sorted."""
    labels, notes, columns = _Labels(), [], {}
    text, label_column = _chosen_columns(tables["train"], settings)
    for name, table in tables.items():
        columns[name], repeated = _gather(table, text, label_column, settings.sep, labels)
        notes += [f"{_file_name(table)}: {repeated} labels repeated in a row, merged"] if repeated else []
    given, label_texts = read_label_texts(settings)
    names, final = labels.order(given)
    if not names:
        raise tables["train"].error(f"column {label_column!r} holds no label at all")
    missing = len(names) - len(given)
    if label_texts and missing:
        notes += [f"{missing} labels have no text in the table of labels"]
    notes += _suspicion(names, settings.sep)
    parts = {name: _part(column, final, len(names)) for name, column in columns.items()}
    return Dataset(
        parts["train"],
        parts.get("test"),
        parts.get("validation"),
        name=_file_name(tables["train"]).partition(".")[0],
        label_names=names,
        label_texts={name: column + [""] * missing for name, column in label_texts.items()} or None,
        notes=tuple(notes),
    )


def _file_name(table: Table) -> str:
    return Path(table.path).name


def _suspicion(names: list[str], sep: str | None) -> list[str]:
    """Tell where cells look like several labels and no separator was named."""
    for mark in ";|," if sep is None else "":
        holding = [name for name in names if mark in name]
        if len(holding) > len(names) / 2:
            return [f"most labels hold {mark!r}, as in {holding[0]!r:.60}; name it as separator to split them (--sep)"]
    return []


def _chosen_columns(table: Table, settings: TableSettings) -> tuple[tuple[str, ...], str]:
    """Return the text columns and the label column: those that were named, else those with the usual names."""
    label = settings.labels or next((name for name in LABEL_COLUMNS if name in table.columns), None)
    found = listed(table.columns)
    if label is None:
        raise table.error(f"name the label column with --labels (found: {found})")
    text = settings.text or tuple(name for name in TEXT_COLUMNS if name in table.columns)
    if not text:
        raise table.error(f"name the text columns with --text (found: {found})")
    table.check((*text, label))
    return text, label


def _gather(
    table: Table, text: tuple[str, ...], label_column: str, sep: str | None, labels: _Labels
) -> tuple[_Gathered, int]:
    table.check((*text, label_column))
    uid = ["uid"] if "uid" in table.columns else []
    column, repeated = _Gathered({name: [] for name in text}), 0
    for number, (cell, *values) in table.rows([label_column, *text, *uid]):
        try:
            names, words = label_names(cell, sep), [cell_text(value) for value in values]
        except ValueError as error:
            raise table.error(str(error), number) from None
        if uid and (first := column.uids.setdefault(words[-1], number)) != number:
            raise table.error(f"uid {words[-1]!r:.60} stands in {table.place} {first} already", number)
        for name, word in zip(text, words, strict=False):
            column.texts[name].append(word)
        unique = dict.fromkeys(names)
        repeated += len(names) - len(unique)
        column.counts.append(len(unique))
        column.ids.extend(labels.ids.setdefault(name, len(labels.ids)) for name in unique)
    if not column.counts:
        raise table.error("holds no rows")
    return column, repeated


def _part(column: _Gathered, final: NDArray[np.int32], labels: int) -> Part:
    ids = final[np.array(column.ids, dtype=np.int64)]
    Y, _ = matrix_of(np.array(column.counts), ids, np.ones(len(ids), dtype=np.float32), labels)
    return Part(Y, texts=column.texts, uids=list(column.uids) or None)


def label_names(cell: Any, sep: str | None) -> list[str]:
    """Return the label names of a cell: a list, a list written as text, a text split at `sep`, or one label.

    >>> label_names("a; b;;c", ";"), label_names("a; b", None), label_names('["a", "b"]', None), label_names(None, ";")
    (['a', 'b', 'c'], ['a; b'], ['a', 'b'], [])
    """
    if isinstance(cell, str) and cell.startswith("[") and cell.endswith("]"):
        cell = _written_list(cell)
    if isinstance(cell, str) and sep is not None:
        cell = cell.split(sep)
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
        with warnings.catch_warnings(action="ignore"):  # Python warns of \d in a text
            value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell
    return value if isinstance(value, list) else cell


def cell_text(value: Any) -> str:
    """Return a cell as text: nothing for what is missing, whole numbers without a point."""
    if isinstance(value, str):
        return value
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # as pandas has them
        return ""
    if isinstance(value, float | np.floating):
        return _float_text(float(value))
    if isinstance(value, bool | int | np.generic):
        return str(value)
    raise ValueError(f"expected text, found {type(value).__name__} {str(value)[:40]!r}")


def _float_text(value: float) -> str:
    if math.isnan(value):
        return ""
    if not value.is_integer():
        return str(value)
    if abs(value) >= 2**53:  # JSON numbers of 20 digits and more arrive here, and two of them may be one float
        raise ValueError(f"the number {value:g} is too large to be a name; write it as text")
    return str(int(value))


def read_label_texts(settings: TableSettings) -> tuple[list[str], dict[str, list[str]]]:
    """Read the table of labels, where there is one: names from the first column, texts from the others."""
    source = settings.label_texts
    if source is None:
        return [], {}
    table = open_frame(source) if is_frame(source) else open_table(source, settings.encoding)
    names: dict[str, int] = {}
    rows: list[list[str]] = []
    for number, values in table.rows(table.columns):
        try:
            name, *others = map(cell_text, values)
        except ValueError as error:
            raise table.error(str(error), number) from None
        if not name.strip():
            raise table.error("a label without a name", number)
        if names.setdefault(name.strip(), number) != number:
            raise table.error(f"label {name!r:.60} stands there twice", number)
        rows.append(others)
    return list(names), {field: [row[i] for row in rows] for i, field in enumerate(table.columns[1:])}


def write(dataset: Dataset, folder: Path, ending: str) -> None:
    """Write a folder of tables with a file `train`, ..., and `labels`; a label cell is a list (as JSON in CSV)."""
    common.required_texts(dataset)
    names = list(dataset.label_names or map(str, range(dataset.sizes.labels)))
    _check_names(names)
    _write_labels(names, dataset.label_texts or {}, folder / f"labels{ending}")
    for name, part in dataset.parts.items():
        texts, uids = dict(part.texts or {}), {} if part.uids is None else {"uid": list(part.uids)}
        common.require_unique(uids.get("uid", []), f"{name}: uid")
        if {"uid", "labels"} & set(texts):
            raise DataError("texts called 'uid' or 'labels' cannot stand in a table beside its own such columns")
        bounds = part.Y.indptr.tolist()
        cells = [[names[i] for i in part.Y.indices[a:b].tolist()] for a, b in pairwise(bounds)]
        write_table({**uids, **texts, "labels": cells}, folder / f"{name}{ending}")
    common.write_common(dataset, folder, text=list(dataset.train.texts or {}))


def _check_names(names: list[str]) -> None:
    """Refuse names that would not come back: cells are stripped, and an empty one is no label."""
    common.require_unique(names, "label name")
    for name in names:
        if not name or name != name.strip():
            raise DataError(f"label name {name!r:.60} is empty or has blanks at its ends, which a table does not keep")


def _write_labels(names: list[str], texts: Texts, path: Path) -> None:
    key = "label"
    while key in texts:
        key += "_"
    write_table({key: names, **texts}, path)
