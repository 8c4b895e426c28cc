"""Opening and writing the tables themselves: CSV, TSV, JSONL, Parquet, and data frames of pandas or polars."""

from __future__ import annotations

import csv
import difflib
import io
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from zipfel.data.formats.files import json_line, listed, new_file, reason, text_lines
from zipfel.data.formats.lf import objects
from zipfel.errors import DataError, MissingDependencyError

ENDINGS = (".csv", ".tsv", ".jsonl", ".parquet")
_LONGEST_CELL = 2**31 - 1  # the csv module's own limit of 131,072 characters is less than many a text


@dataclass(frozen=True)
class Table:
    """An opened table. rows(columns) yields (number, values); number is a line of a file, else a row from 0."""

    path: Path | str
    columns: list[str]
    rows: Callable[[Sequence[str]], Iterator[tuple[int, Sequence[Any]]]]
    by_line: bool = True

    def __post_init__(self) -> None:
        """Refuse two columns of one name."""
        for name, count in Counter(self.columns).most_common(1):
            if count > 1:
                raise self.error(f"{count} columns are called {name!r:.60}")

    @property
    def place(self) -> str:
        """What the numbers of rows count."""
        return "line" if self.by_line else "row"

    def error(self, problem: str, number: int | None = None) -> DataError:
        """Return an error that names the line or the row; without either it is about the columns, on line 1."""
        if self.by_line:
            return DataError(problem, self.path, 1 if number is None else number)
        return DataError(problem if number is None else f"row {number}: {problem}", self.path)

    def check(self, columns: Iterable[str]) -> None:
        """Refuse columns that the table does not have."""
        for name in columns:
            if name not in self.columns:
                nearest = difflib.get_close_matches(name, self.columns, n=1)
                hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
                raise self.error(f"no column {name!r:.60}{hint} (found: {listed(self.columns)})")


def open_table(path: Path, encoding: str = "utf-8") -> Table:
    """Open a table file, by its ending."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(".jsonl"):
        return _open_jsonl(path)
    if name.endswith(".parquet"):
        return _open_parquet(path)
    if name.endswith((".csv", ".tsv")):
        return _open_csv(path, encoding)
    raise DataError(f"not a table; the known endings are {', '.join(ENDINGS)}, also with .gz", path)


def _open_csv(path: Path, encoding: str) -> Table:
    csv.field_size_limit(_LONGEST_CELL)
    delimiter = _delimiter(path, encoding)
    header = next(_csv_rows(path, encoding, delimiter), None)
    if header is None:
        raise DataError("empty: expected a line with the names of the columns", path, 1)
    columns = [name.strip() for name in header[1]]
    return Table(path, columns, partial(_csv_values, path, encoding, delimiter, columns))


def _delimiter(path: Path, encoding: str) -> str:
    """Return what separates cells: a tab in .tsv, else whatever splits the first line into the most columns."""
    if ".tsv" in path.name.lower():
        return "\t"
    lines = text_lines(path, encoding)
    first = next(lines, "")
    lines.close()  # type: ignore[attr-defined]
    return max(",;\t|", key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))


def _csv_rows(path: Path, encoding: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(text_lines(path, encoding), delimiter=delimiter, strict=True)
    first = 1
    try:
        for row in reader:
            if row:
                yield first, row
            first = reader.line_num + 1
    except csv.Error as error:
        raise DataError(f"broken CSV: {reason(error)} (the row starts here)", path, first) from None


def _csv_values(
    path: Path, encoding: str, delimiter: str, columns: list[str], wanted: Sequence[str]
) -> Iterator[tuple[int, Sequence[Any]]]:
    places = [columns.index(name) for name in wanted]
    rows = _csv_rows(path, encoding, delimiter)
    next(rows)  # the header
    for number, row in rows:
        if len(row) != len(columns):
            raise DataError(f"expected {len(columns)} cells, found {len(row)}", path, number)
        yield number, [row[place] for place in places]


def _open_jsonl(path: Path) -> Table:
    first = next(objects(path), None)
    if first is None:
        raise DataError("empty: expected one JSON object a line", path, 1)
    return Table(path, list(first[1]), partial(_jsonl_values, path))


def _jsonl_values(path: Path, wanted: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
    for number, item in objects(path):
        for name in wanted:
            if name not in item:
                raise DataError(f"no {name!r:.60} here (found: {listed(item)})", path, number)
        yield number, [item[name] for name in wanted]


def _open_parquet(path: Path) -> Table:
    try:
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", "reading Parquet", "tables") from None

    def rows(wanted: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        number = 0
        with _parquet_errors(path), pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(8192, columns=list(dict.fromkeys(wanted))):
                columns = [batch.column(name).to_pylist() for name in wanted]
                for values in zip(*columns, strict=True):
                    yield number, values
                    number += 1
            if number != file.metadata.num_rows:
                raise ValueError(f"{number} rows of {file.metadata.num_rows}")

    with _parquet_errors(path), pyarrow.parquet.ParquetFile(path) as file:
        names = list(file.schema_arrow.names)
    return Table(path, names, rows, by_line=False)


@contextmanager
def _parquet_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pyarrow raises nearly anything on a mangled file
        raise DataError(f"not a Parquet file, or a broken one: {reason(error)}", path) from None


def is_frame(source: object) -> bool:
    """Tell a data frame (pandas, polars) by what it can do."""
    return hasattr(source, "to_dict") and hasattr(source, "columns")


def open_frame(frame: Any) -> Table:
    """Open a data frame as a table."""
    keys = {str(key): key for key in frame.columns}  # pandas also has columns called 0, 1, ...

    def rows(wanted: Sequence[str]) -> Iterator[tuple[int, Sequence[Any]]]:
        return enumerate(zip(*(frame[keys[name]].to_list() for name in wanted), strict=True))

    return Table("data frame", [str(key) for key in frame.columns], rows, by_line=False)


def write_table(columns: Mapping[str, Sequence[Any]], path: Path) -> None:
    """Write columns of text, or of lists of text, as a table of the kind that the path's ending names."""
    name = path.name.removesuffix(".gz")
    with new_file(path) as out:
        if name.endswith(".parquet"):
            _write_parquet(columns, out)
        elif name.endswith(".jsonl"):
            for values in zip(*columns.values(), strict=True):
                out.write(json_line(dict(zip(columns, values, strict=True))))
        else:
            text = io.TextIOWrapper(out, encoding="utf-8", newline="", write_through=True)
            # Lines end in \r\n, the module's default, because it quotes only the line breaks that it ends lines with.
            writer = csv.writer(text, delimiter="\t" if name.endswith(".tsv") else ",")
            writer.writerow(columns)
            writer.writerows(map(_csv_cells, zip(*columns.values(), strict=True)))
            text.detach()


def _csv_cells(values: Iterable[Any]) -> list[str]:
    return [value if isinstance(value, str) else json_line(value).decode().rstrip("\n") for value in values]


def _write_parquet(columns: Mapping[str, Sequence[Any]], out: Any) -> None:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingDependencyError("pyarrow", "writing Parquet", "tables") from None
    text, lists = pyarrow.large_string(), pyarrow.list_(pyarrow.string())
    arrays = {
        name: pyarrow.array(values, type=text if not len(values) or isinstance(values[0], str) else lists)
        for name, values in columns.items()
    }
    pyarrow.parquet.write_table(pyarrow.table(arrays), out)
