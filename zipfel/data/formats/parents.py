"""Parents of labels: a file of its own, `parents.csv` of a folder, or a column of the table of label texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from zipfel.data.cells import checked_name, label_name, label_names
from zipfel.data.formats.files import text_lines, unpacked_name
from zipfel.data.formats.table import TableSettings
from zipfel.data.formats.table_files import (
    ENDINGS,
    FRAME,
    READ_ONLY,
    Table,
    is_column,
    is_frame,
    open_frame,
    open_table,
    write_table,
)
from zipfel.data.hierarchy import Hierarchy
from zipfel.errors import DataError, quoted

COLUMNS = ("parents", "parent")
FILE = "parents.csv"


def read_parents(settings: TableSettings, labels: Path | None) -> Hierarchy:
    """Return the hierarchy that `settings.parents` names: a column of the table `labels`, or else a file."""
    given = settings.parents
    table = None if labels is None else _opened(labels, settings)
    column = None if table is None else table.column(given)
    if table is not None and column is not None:
        return _hierarchy(_cells(table, column, settings.sep), table.path)
    path = Path(given)
    if not path.is_file():
        known = "" if table is None else f", and {table.file} has no such column (columns: {', '.join(table.columns)})"
        raise DataError(f"no such file{known}", path)
    name = unpacked_name(path)
    if name.endswith((*ENDINGS, *READ_ONLY)):
        table = _opened(path, settings)
        if not name.endswith(".tsv") or _parent_columns(table):  # else lines, which are often called .tsv too
            return _hierarchy(_cells(*_parent_column(table), settings.sep), path)
    return _hierarchy(_lines(path, settings.encoding or "utf-8"), path)


def given_parents(given: Any, sep: str | None = None) -> Hierarchy:
    """Return a hierarchy that is given in Python: a dict, a series with labels as its index, or a frame."""
    if is_frame(given):
        return _hierarchy(_cells(*_parent_column(open_frame(given)), sep), FRAME)
    pairs = given.items() if isinstance(given, Mapping) or (is_column(given) and hasattr(given, "items")) else None
    if pairs is None:
        raise DataError(f"parents must be a dict, a series or a frame; found {type(given).__name__}")
    parents: dict[str, list[str]] = {}
    for label, cell in pairs:
        name = checked_name(label)
        try:
            parents.setdefault(name, []).extend(label_names(cell, sep))
        except ValueError as error:
            raise DataError(f"parents of label {name!r:.60}: {error}") from None
    return Hierarchy.of({name: above for name, above in parents.items() if above})


def write_parents(hierarchy: Hierarchy, names: Sequence[str], folder: Path, suffix: str = "") -> None:
    """Write the parents of labels and of their ancestors, each cell a list; nothing if no label has a parent."""
    parents = hierarchy.above(names).parents
    for name in {*parents, *chain.from_iterable(parents.values())}:
        if not name or name != name.strip():  # names are stripped when read
            raise DataError(f"label name {quoted(name)} is empty or has outer blanks, which {FILE} does not keep")
    if parents:
        write_table(
            {"label": [*parents], "parents": [list(above) for above in parents.values()]}, folder / f"{FILE}{suffix}"
        )


def _opened(source: Path, settings: TableSettings) -> Table:
    return open_frame(source) if is_frame(source) else open_table(source, settings.encoding)


def _parent_columns(table: Table) -> list[str]:
    return [name for name in table.present(COLUMNS) if name != table.columns[0]]


def _parent_column(table: Table) -> tuple[Table, str]:
    found = _parent_columns(table)
    if not found:
        raise table.error(
            f"expected labels in the first column and a column 'parent'; found {', '.join(table.columns)}"
        )
    return table, found[0]


def _cells(table: Table, column: str, sep: str | None) -> dict[str, list[str]]:
    """Return the parents in a column; a label may have several rows."""
    parents: dict[str, list[str]] = {}
    for number, (label, cell) in table.rows([table.columns[0], column]):
        try:
            name, above = label_name(label), label_names(cell, sep)
        except ValueError as error:
            raise table.error(str(error), number) from None
        if not name:
            raise table.error("the name of the label is empty", number)
        parents.setdefault(name, []).extend(above)
    return parents


def _lines(path: Path, encoding: str) -> dict[str, list[str]]:
    """Return the parents in lines `label<TAB>parent[<TAB>parent ...]`; blank lines and those with # are skipped."""
    parents: dict[str, list[str]] = {}
    for number, line in enumerate(text_lines(path, encoding), start=1):
        cells = [cell.strip() for cell in line.rstrip("\r\n").split("\t")]
        if not any(cells) or line.startswith("#"):
            continue
        if len(cells) < 2 or not all(cells):
            raise DataError(f"expected label<TAB>parent, found {line.strip()[:60]!r}", path, number)
        parents.setdefault(cells[0], []).extend(cells[1:])
    return parents


def _hierarchy(parents: dict[str, list[str]], path: Path | str) -> Hierarchy:
    try:
        return Hierarchy.of({name: above for name, above in parents.items() if above})
    except DataError as error:
        raise DataError(error.problem, path) from None
