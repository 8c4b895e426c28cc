"""Open and write tables: CSV, TSV, JSONL, Parquet; open JSON, Excel, MARC, frames of pandas or polars, Arrow tables."""

from __future__ import annotations

import codecs
import csv
import io
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from zipfel.data.cells import csv_text, half_of_pair, json_value
from zipfel.data.formats.files import (
    LONGEST_LINE,
    checked_encoding,
    json_line,
    listed,
    new_file,
    opened,
    reason,
    text_lines,
    unpacked_name,
)
from zipfel.data.formats.lf import objects
from zipfel.errors import DataError, check_installed, nearest, quoted, raised

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
_URI = re.compile(r"<[^<>\s]+:[^<>\s]*>|https?://[^<>\s]+")
READ_ONLY = (".json", ".xlsx", ".mrc")  # tables that are read, not written
_FIRST = 100  # lines looked at to recognise a file
_LARGEST_JSON = 1 << 30  # bytes of a JSON array, which is read as a whole

FRAME = "data frame"  # the path of a table that is one

Rows = Iterator[tuple[int, Sequence[Any]]]  # (number, values)
Bad = Callable[[DataError], None]  # called for a bad row, which is skipped if it returns


@dataclass(frozen=True)
class Table:
    """An open table. rows(columns) yields its rows; their numbers are lines from 1 if `by_line`, else rows from 0.

    kinds: types of the columns as JSON holds their values, where the file states them; None: derived from the values.
    """

    path: Path | str
    columns: list[str]
    rows: Callable[[Sequence[str]], Rows]
    by_line: bool = True
    kinds: Mapping[str, type] | None = None

    def __post_init__(self) -> None:
        """Check that the names of columns are unique."""
        for name, count in Counter(self.columns).most_common(1):
            if count > 1:
                raise self.error(f"{count} columns are called {quoted(name)}; rename them")

    @property
    def file(self) -> str:
        """The name of the file."""
        return Path(self.path).name

    @property
    def row_unit(self) -> str:
        """The unit of row numbers: lines or rows."""
        return "line" if self.by_line else "row"

    def option(self, name: str) -> str:
        """Return how messages name a setting: as an option of the command line, or for a data frame as a parameter."""
        return f"TableSettings({name}=...)" if self.path == FRAME else f"--{name}"

    def error(self, problem: str, number: int | None = None) -> DataError:
        """Return an error about a line or row; without a number, about the columns (line 1 of a file)."""
        if self.by_line:
            return DataError(problem, self.path, 1 if number is None else number)
        return DataError(problem if number is None else f"row {number}: {problem}", self.path)

    def column(self, name: str) -> str | None:
        """Return the column of this name, else the only one whose name differs in case, else None."""
        if name in self.columns:
            return name
        alike = [column for column in self.columns if column.casefold() == name.casefold()]
        return alike[0] if len(alike) == 1 else None

    def present(self, names: Iterable[str]) -> list[str]:
        """Return the columns that have one of these names, in the order of the names; case does not matter."""
        return list(dict.fromkeys(column for name in names if (column := self.column(name)) is not None))

    def own(self, names: Iterable[str]) -> list[str]:
        """Return the columns of these names as the table spells them; raise DataError if one is missing."""
        names = list(names)
        self.check(names)
        return [self.column(name) or name for name in names]

    def check(self, columns: Iterable[str]) -> None:
        """Raise DataError if the table lacks one of these columns."""
        for name in columns:
            if self.column(name) is None:
                near = nearest(name, self.columns)
                hint = f"; did you mean {near!r}?" if near else ""
                raise self.error(f"no column {quoted(name)}{hint} (columns: {listed(self.columns)})")


def open_table(path: Path, encoding: str | None = None, bad: Bad = raised) -> Table:
    """Open a table file; its ending decides the format.

    encoding: of CSV and TSV; None is utf-8.  bad: called for a bad row of CSV, TSV and JSONL.
    """
    name = unpacked_name(path)
    if name.endswith(".tsv") and _is_short_texts(path, encoding or "utf-8"):
        return _open_short_texts(path, encoding or "utf-8", bad)
    if name.endswith((".csv", ".tsv")):
        return _open_csv(path, encoding or "utf-8", bad)
    if name.endswith(".jsonl"):
        return _open_jsonl(path, bad)
    kinds = {".json": _open_json, ".parquet": open_parquet, ".xlsx": _open_excel, ".mrc": _open_marc}
    for ending, opener in kinds.items():
        if name.endswith(ending):
            return opener(path)
    if name.endswith((".xls", ".ods")):
        raise DataError("this kind of spreadsheet cannot be read; save it as .xlsx or .csv", path)
    endings = ", ".join((*ENDINGS, *READ_ONLY))
    raise DataError(f"not a table; expected the ending {endings}, also with .gz or in a .zip", path)


def _open_csv(path: Path, encoding: str, bad: Bad = raised) -> Table:
    csv.field_size_limit(LONGEST_LINE)  # many texts exceed the module's own limit of 131,072 characters
    errors = "strict" if bad is raised else "surrogateescape"
    delimiter = delimiter_of(path, encoding, errors)
    header = next(_csv_rows(path, encoding, delimiter, errors=errors), None)
    if header is None:
        raise DataError("empty: expected a line with the column names", path, 1)
    if problem := _undecoded(header[1], encoding):
        raise DataError(problem, path, header[0])
    columns = [name.strip() for name in header[1]]

    def rows(wanted: Sequence[str]) -> Rows:
        cells = [columns.index(name) for name in wanted]
        lines = _csv_rows(path, encoding, delimiter, bad, errors)
        next(lines)  # the header
        for number, row in lines:
            if len(row) != len(columns):
                bad(DataError(f"expected {len(columns)} cells, found {len(row)}", path, number))
            elif bad is not raised and (problem := _undecoded(row, encoding)):
                bad(DataError(problem, path, number))
            else:
                yield number, [row[cell] for cell in cells]

    return Table(path, columns, rows, kinds=dict.fromkeys(columns, str))


def _is_short_texts(path: Path, encoding: str) -> bool:
    """Whether a file is a corpus of Annif's short texts: lines `text<TAB><uri> <uri>`, and no column names."""
    with closing(text_lines(path, encoding, errors="replace")) as lines:  # type: ignore[type-var]
        cells = (line.partition("\t")[2].split() for line in islice(lines, _FIRST))
        uris = next(filter(None, cells), [])  # of the first text that has subjects
    return bool(uris) and all(_URI.fullmatch(uri) for uri in uris)


def _open_short_texts(path: Path, encoding: str, bad: Bad) -> Table:
    columns = ["text", "subject_uris"]

    def rows(wanted: Sequence[str]) -> Rows:
        for number, line in enumerate(text_lines(path, encoding), start=1):
            text, tab, uris = line.rstrip("\r\n").partition("\t")
            wrong = next((uri for uri in uris.split() if not _URI.fullmatch(uri)), None)
            if not line.strip():
                continue
            if not tab or wrong is not None:
                found = quoted(line.strip()) if wrong is None else quoted(wrong)
                bad(DataError(f"expected a text, a tab and <uri> <uri> ...; found {found}", path, number))
                continue
            values = {"text": text, "subject_uris": [uri.removeprefix("<").removesuffix(">") for uri in uris.split()]}
            yield number, [values[name] for name in wanted]

    return Table(path, columns, rows)


def _undecoded(row: Sequence[str], encoding: str) -> str:
    """Return what is wrong with cells in which "surrogateescape" has kept bytes that are no text; empty if nothing."""
    wrong = half_of_pair("".join(row))
    if wrong is None:
        return ""
    kept = "\udc80" <= wrong <= "\udcff"
    return (
        f"not {checked_encoding(encoding)}: {f'byte 0x{ord(wrong) & 0xFF:02x}' if kept else f'half a pair {wrong!a}'}"
    )


def delimiter_of(path: Path, encoding: str, errors: str = "strict") -> str:
    """Return the separator of cells: a tab in .tsv, else the mark that splits the first line into the most columns."""
    if unpacked_name(path).endswith(".tsv"):
        return "\t"
    lines = text_lines(path, encoding, errors=errors)
    first = next(lines, "")
    lines.close()  # type: ignore[attr-defined]
    return max(",;\t|", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _csv_rows(
    path: Path, encoding: str, delimiter: str, bad: Bad = raised, errors: str = "strict"
) -> Iterator[tuple[int, list[str]]]:
    """Yield (line of its start, cells) for each row.  errors: as in `text_lines`."""
    lines = text_lines(path, encoding, errors=errors)
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        first = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:  # the next row starts on the next line
            problem = DataError(f"broken CSV: {reason(error)} (the row starts here)", path, first)
            problem.__suppress_context__ = True
            bad(problem)
            continue
        if row is None:
            return
        if row:
            yield first, row


def _open_jsonl(path: Path, bad: Bad = raised) -> Table:
    def rows(wanted: Sequence[str]) -> Rows:
        for number, item in objects(path, bad):
            yield number, _values(table, item, wanted, number)

    first = next(objects(path, bad if bad is raised else lambda _: None), (1, dict[str, Any]()))[1]
    table = Table(path, list(first), rows)
    return table


def _values(table: Table, item: Mapping[str, Any], wanted: Sequence[str], number: int) -> list[Any]:
    """Return the values of a JSON object in the order of the columns."""
    for name in wanted:
        if name not in item:
            raise table.error(f"no key {quoted(name)} (keys: {listed(item)})", number)
    return [item[name] for name in wanted]


def _open_json(path: Path) -> Table:
    """Open a JSON array of objects; a file without one is read as JSONL, which is often called .json too."""
    with opened(path) as stream:
        content = stream.read(_LARGEST_JSON + 1).removeprefix(codecs.BOM_UTF8)
    if not content.lstrip().startswith(b"["):
        return _open_jsonl(path)
    if len(content) > _LARGEST_JSON:
        raise DataError(f"larger than {_LARGEST_JSON >> 30} GiB; save it as JSONL, which is read line by line", path)
    try:
        items = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise DataError(f"broken JSON: {error.msg} at column {error.colno}", path, error.lineno) from None

    def rows(wanted: Sequence[str]) -> Rows:
        for number, item in enumerate(items):
            yield number, _values(table, item, wanted, number)

    table = Table(path, list(items[0]) if items and isinstance(items[0], dict) else [], rows, by_line=False)
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise table.error(f"expected a JSON object, found {type(item).__name__}", number)
    if not items:
        raise DataError("empty: expected an array of JSON objects", path)
    return table


def _open_excel(path: Path) -> Table:
    """Open the first sheet of a workbook: column names in its first row; the number of a row is that of the sheet."""
    check_installed("reading Excel", "tables", "openpyxl")
    first, *others = _excel_rows(path) or [(1, ())]
    cells = [cell for cell, name in enumerate(first[1]) if name is not None]
    columns = [str(first[1][cell]).strip() for cell in cells]
    if not columns:
        raise DataError("empty: expected a row with the column names in the first sheet", path, 1)

    def rows(wanted: Sequence[str]) -> Rows:
        chosen = [cells[columns.index(name)] for name in wanted]
        for number, row in others:
            yield number, [row[cell] if cell < len(row) else None for cell in chosen]

    return Table(path, columns, rows)


def _open_marc(path: Path) -> Table:
    from zipfel.data.formats.marc import open_marc  # which makes a Table

    return open_marc(path)


def _excel_rows(path: Path) -> list[tuple[int, tuple[Any, ...]]]:
    """Return (row number from 1, cells) for each row of the first sheet that is not empty; error values are None."""
    import openpyxl
    from openpyxl.cell.cell import ERROR_CODES

    with opened(path) as stream:
        content = io.BytesIO(stream.read())
    try:
        with warnings.catch_warnings(action="ignore"):  # of styles and the like
            sheet = openpyxl.load_workbook(content, read_only=True, data_only=True).worksheets[0]
            sheet.reset_dimensions()  # which some programs write wrong
            rows = [*enumerate(sheet.iter_rows(values_only=True), start=1)]
    except Exception as error:  # openpyxl raises nearly anything on a mangled file
        raise DataError(f"not an Excel workbook, damaged, or protected: {reason(error)}", path) from None
    cells = ((number, tuple(None if cell in ERROR_CODES else cell for cell in row)) for number, row in rows)
    return [(number, row) for number, row in cells if any(cell is not None for cell in row)]


def open_parquet(path: Path | str, start: int = 0, stop: int | None = None, content: Any = None) -> Table:
    """Open a Parquet file, or its rows `start` to `stop`.  content: the open file, if it is remote."""
    check_installed("reading Parquet", "tables", "pyarrow")
    import pyarrow.parquet

    source = path if content is None else content

    def rows(wanted: Sequence[str]) -> Rows:
        with parquet_errors(path), pyarrow.parquet.ParquetFile(source) as file:
            end = file.metadata.num_rows if stop is None else stop
            groups, number = _groups(file.metadata, start, end)
            for batch in file.iter_batches(8192, row_groups=groups, columns=list(dict.fromkeys(wanted))):
                first, number = number, number + batch.num_rows
                batch = batch.slice(max(start - first, 0), max(end - max(start, first), 0))
                columns = [batch.column(name).to_pylist() for name in wanted]
                yield from enumerate(zip(*columns, strict=True), start=max(start, first))
            if number < end:
                raise ValueError(f"expected {end} rows, found {number}")

    with parquet_errors(path), pyarrow.parquet.ParquetFile(source) as file:
        schema = file.schema_arrow
    kinds = dict(zip(schema.names, map(_kind_of, schema.types), strict=True))
    return Table(path, list(schema.names), rows, by_line=False, kinds=kinds)


def _groups(metadata: Any, start: int, stop: int) -> tuple[list[int], int]:
    """Return the row groups that hold rows `start` to `stop`, and the number of their first row."""
    ends = np.cumsum([metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)], dtype=np.int64)
    groups = [group for group, end in enumerate(ends) if end > start and (group == 0 or ends[group - 1] < stop)]
    return groups, int(ends[groups[0] - 1]) if groups and groups[0] else 0


def _kind_of(kind: Any) -> type:
    """Return the type of a Parquet column as JSON holds its values: bool, int, float, else text."""
    import pyarrow.types

    if pyarrow.types.is_boolean(kind):
        return bool
    if pyarrow.types.is_integer(kind):
        return int
    return float if pyarrow.types.is_floating(kind) else str


@contextmanager
def parquet_errors(path: Path | str) -> Iterator[None]:
    """Turn whatever pyarrow raises into a DataError about a file."""
    try:
        yield
    except Exception as error:  # pyarrow raises nearly anything on a mangled file
        raise DataError(f"not a Parquet file, or damaged: {reason(error)}", path) from None


def is_frame(source: object) -> bool:
    """Whether this is a data frame of pandas or polars, or an Arrow table, judged by its attributes."""
    kind = type(source)  # pandas makes attributes of an instance from names of columns and of an index
    return hasattr(kind, "columns") and (hasattr(kind, "to_dict") or hasattr(kind, "to_pydict"))


def is_column(source: object) -> bool:
    """Whether this is one column: a series of pandas or polars, an Arrow array, or a flat array of NumPy."""
    kind, flat = type(source), isinstance(source, np.ndarray) and source.ndim == 1
    return flat or ((hasattr(kind, "to_list") or hasattr(kind, "to_pylist")) and not is_frame(source))


def values_of(column: Any) -> list[Any]:
    """Return the values of a column."""
    if hasattr(type(column), "to_pylist"):  # of Arrow
        return list(column.to_pylist())
    return list(column.to_list() if hasattr(type(column), "to_list") else column)


def columns_of(frame: Any) -> dict[str, Any]:
    """Return the columns of a data frame by name, which must be unique."""
    open_frame(frame)
    if hasattr(type(frame), "column_names"):  # of Arrow
        return dict(zip(frame.column_names, frame.columns, strict=True))
    return {str(key): frame[key] for key in frame.columns}  # in pandas, columns may be called 0, 1, ...


def open_frame(frame: Any) -> Table:
    """Open a data frame as a table."""
    names = list(map(str, frame.column_names if hasattr(type(frame), "column_names") else frame.columns))

    def rows(wanted: Sequence[str]) -> Rows:
        columns = columns_of(frame)
        return enumerate(zip(*(values_of(columns[name]) for name in wanted), strict=True))

    return Table(FRAME, names, rows, by_line=False)


def write_table(columns: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Write columns of text, or of lists of text, as a table; the ending of the path decides the format."""
    name = path.name.removesuffix(".gz")
    with new_file(path) as out:
        if name.endswith(".parquet"):
            _write_parquet(columns, out)
        elif name.endswith(".jsonl"):
            for values in zip(*columns.values(), strict=True):
                out.write(json_line(dict(zip(columns, map(json_value, values), strict=True))))
        else:
            text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
            # Lines end in \r\n, the module's default, because it quotes only line breaks of the kind that it writes.
            writer = csv.writer(text, delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writerow(columns)
            writer.writerows([csv_text(value) for value in row] for row in zip(*columns.values(), strict=True))
            text.detach()


def _write_parquet(columns: Mapping[str, Sequence[Any]], out: Any) -> None:
    check_installed("writing Parquet", "tables", "pyarrow")
    import pyarrow.parquet

    arrays = {name: _arrow(values) for name, values in columns.items()}
    pyarrow.parquet.write_table(pyarrow.table(arrays), out)


def _arrow(values: Sequence[Any]) -> Any:
    """Return a column of Arrow; one of mixed types, such as a spreadsheet may have, becomes text."""
    import pyarrow

    kinds = {type(value) for value in values if value is not None}
    kind = None  # which pyarrow finds itself
    if kinds <= {str}:
        kind = pyarrow.large_string()
    elif kinds == {list} and all(isinstance(item, str) for value in values for item in value or ()):
        kind = pyarrow.list_(pyarrow.string())
    try:
        return pyarrow.array(values, type=kind)
    except (pyarrow.ArrowException, OverflowError):
        return pyarrow.array([None if value is None else csv_text(value) for value in values], pyarrow.large_string())
