"""Read catalogue records in MARC 21 (.mrc) as a table: titles, abstracts and subjects."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from zipfel.data.formats.files import opened, reason
from zipfel.data.formats.table_files import Rows, Table
from zipfel.errors import DataError, check_installed

ENDING = ".mrc"
COLUMNS = ["uid", "title", "abstract", "subjects"]
SUBJECTS = ("600", "610", "611", "630", "647", "648", "650", "651", "655")  # fields of subjects and genres
HEADING = "abcdnpqtvxyz"  # subfields of a subject's name


def open_marc(path: Path) -> Table:
    """Open a file of records as a table with COLUMNS; the number of a row counts records from 0."""
    check_installed("reading MARC", "marc", "pymarc")

    def rows(wanted: Sequence[str]) -> Rows:
        for number, record in _records(path):
            values = _values(record, number)
            yield number, [values[name] for name in wanted]

    if next(_records(path), None) is None:
        raise DataError("holds no MARC record", path)
    return Table(path, list(COLUMNS), rows, by_line=False)


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield (number, record); raise DataError for one that is broken."""
    from pymarc import MARCReader

    with opened(path) as stream:
        reader = MARCReader(stream)
        for number in count():
            try:
                record = next(reader)
            except StopIteration:
                return
            except ValueError as error:  # such as a record of length 0
                raise _broken(path, number, error) from None
            if record is None:
                raise _broken(path, number, reader.current_exception or ValueError("not a record"))
            yield number, record


def _broken(path: Path, number: int, error: Exception) -> DataError:
    return DataError(f"record {number + 1}: broken MARC: {reason(error)}", path)


def _values(record: Any, number: int) -> dict[str, Any]:
    uids = [field.data for field in record.get_fields("001")]
    return {
        "uid": uids[0].strip() if uids else f"record {number + 1}",
        "title": _joined(record.get_fields("245"), "abnp").rstrip(" /:;"),
        "abstract": _joined(record.get_fields("520"), "ab"),
        "subjects": list(dict.fromkeys(filter(None, map(_subject, record.get_fields(*SUBJECTS))))),
    }


def _joined(fields: Sequence[Any], codes: str) -> str:
    return " ".join(" ".join(field.get_subfields(*codes)) for field in fields)


def _subject(field: Any) -> str:
    """Return the URI of a subject in $0 or $1, else its name: the heading and its subdivisions."""
    uris = [value.removeprefix("(uri)").strip() for value in field.get_subfields("0", "1")]
    uri = next((uri for uri in uris if uri.startswith(("http://", "https://"))), "")
    return uri or " -- ".join(value.strip(" .,") for value in field.get_subfields(*HEADING))
