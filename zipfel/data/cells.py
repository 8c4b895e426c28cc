"""Convert a cell of a table, or an item of a list, to a text or to names of labels; the same for all inputs."""

from __future__ import annotations

import ast
import datetime
import math
import re
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import orjson

from zipfel.errors import DataError

MARKS = ";|,"  # that often separate labels
_ITEM = re.compile(r"""(u?'(?:[^'\\]|\\.)*'|u?"(?:[^"\\]|\\.)*"|[^\s,'"]+)\s*(,?)\s*""", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_URIS = re.compile(r"<[^<>\s]+:[^<>\s]*>(\s+<[^<>\s]+:[^<>\s]*>)*|https?://[^<>\s]+(\s+https?://[^<>\s]+)+")
_WORDS = {"nan": None, "None": None, "NaT": None, "<NA>": None, "True": True, "False": False}


def label_names(cell: Any, sep: str | None) -> list[str]:
    """Return the label names of a cell: a list, a list written as text, text split at `sep`, or a single label.

    >>> label_names("a; b;;c", ";"), label_names("a; b", None), label_names('["a", "b"]', None), label_names(None, ";")
    (['a', 'b', 'c'], ['a; b'], ['a', 'b'], [])
    >>> label_names("['a' 'b']", None), label_names([2.0, " a ", "", float("nan")], None)
    (['a', 'b'], ['2', 'a'])

    URIs with blanks between them are a list, and subjects as Annif writes them are objects with a URI or a name.

    >>> label_names("<http://a> <http://b>", None), label_names([{"uri": "http://a", "label": "A"}, {"label": "B"}], "")
    (['http://a', 'http://b'], ['http://a', 'B'])
    """
    if isinstance(cell, str) and cell.startswith(("<", "http")) and _URIS.fullmatch(cell.rstrip()):
        cell = [uri.removeprefix("<").removesuffix(">") for uri in cell.split()]
    if isinstance(cell, str) and cell.startswith("[") and cell.endswith("]"):
        cell = _parsed_list(cell)
    if isinstance(cell, str) and sep is not None:
        cell = cell.split(sep)
    return [name for item in (cell if is_list(cell) else [cell]) if (name := label_name(_subject(item)))]


def _subject(item: Any) -> Any:
    """Return the URI, else the name, of a subject that is an object; any other item as it is."""
    if isinstance(item, dict) and item.keys() <= {"uri", "label"} and item:
        return item.get("uri") or item.get("label")
    return item


def is_list(cell: Any) -> bool:
    """Whether a cell holds several items, such as a list, a set, or an array."""
    return isinstance(cell, Iterable) and not isinstance(cell, str | bytes | dict)


def label_name(value: Any) -> str:
    """Return the name of a label: text without outer blanks, a number as `cell_text` writes it; empty if missing."""
    return cell_text(value).strip()


def checked_name(value: Any) -> str:
    """Return the name of a label; raise DataError for a value that names none."""
    try:
        name = label_name(value)
    except ValueError as error:
        raise DataError(f"the name of a label must be text or a number: {error}") from None
    if not name:
        raise DataError(f"the name of a label must not be empty; found {value!r:.60}")
    return name


def cell_text(value: Any) -> str:
    """Return a cell as text: empty if the value is missing, whole numbers without a decimal point."""
    if isinstance(value, str):
        if (half := half_of_pair(value)) is not None:
            raise ValueError(f"{half!a} is half of a surrogate pair, and no character: no file can hold it")
        return str(value)  # a str of NumPy too
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # missing values of pandas
        return ""
    if isinstance(value, float | np.floating):
        return _float_text(float(value))
    if isinstance(value, bool | int | np.generic) and not isinstance(value, bytes):
        return str(value)
    raise ValueError(f"expected text, found {type(value).__name__} {str(value)[:40]!r}")


def half_of_pair(text: str) -> str | None:
    r"""Return the first half of a surrogate pair that stands alone in a text, which UTF-8 cannot hold; None if none.

    >>> half_of_pair("a\ud800b"), half_of_pair("äb")
    ('\ud800', None)
    """
    if text.isascii():
        return None
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return text[error.start]
    return None


def json_value(value: Any) -> Any:
    """Return a cell of any table as JSON can hold it; numbers that are missing or infinite become None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, list | tuple):
        return [json_value(item) for item in value]
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value if isinstance(value, str | bool | None) else str(value)


def csv_text(value: Any) -> str:
    """Return a cell of any table as text for CSV: lists and objects as JSON, empty if it is missing."""
    value = json_value(value)
    return value if isinstance(value, str) else "" if value is None else orjson.dumps(value).decode()


def _float_text(value: float) -> str:
    if math.isnan(value):
        return ""
    if not value.is_integer():
        return str(value)
    if abs(value) >= 2**53:  # JSON numbers of 20 digits and more become floats, and different ones may become equal
        raise ValueError(f"the number {value:g} is too large for a name; write it as text")
    return str(int(value))


def _parsed_list(cell: str) -> list[Any] | str:
    """Parse a list as JSON, NumPy or Python writes it; return any other text unchanged, as one label in brackets."""
    try:
        return list(orjson.loads(cell))
    except orjson.JSONDecodeError:
        pass
    items = _written_items(cell[1:-1])
    if items is None:
        return _python_list(cell)
    try:
        return [_item(item) for item in items]
    except SyntaxError:  # such as an unfinished \\x in a string
        return cell


def _written_items(inside: str) -> list[str] | None:
    """Return items written with commas (Python) or with blanks only (NumPy) between them; None if it is neither."""
    items, commas, at = list[str](), list[bool](), len(inside) - len(inside.lstrip())
    while at < len(inside):
        found = _ITEM.match(inside, at)
        if found is None or not _is_item(found[1]):
            return None
        items.append(found[1])
        commas.append(bool(found[2]))
        at = found.end()
    if not any(commas) and "..." in items:
        raise ValueError("a NumPy array that was shortened with '...'; write the whole list, best as JSON")
    if "..." in items:
        return None
    if any(commas) and not all(commas[:-1]):
        number = commas.index(False)
        raise ValueError(f"no comma between {items[number]:.30} and {items[number + 1]:.30}; write the list as JSON")
    return items


def _is_item(item: str) -> bool:
    quoted = item[-1] in "'\"" and len(item) > 1
    return quoted or item in _WORDS or item == "..." or _NUMBER.fullmatch(item) is not None


def _item(item: str) -> Any:
    if item in _WORDS:
        return _WORDS[item]
    if item[-1] not in "'\"":
        return float(item) if set(item) & set(".eE") else int(item)
    with warnings.catch_warnings(action="ignore"):  # Python warns of \d in a string
        return ast.literal_eval(item)


def _python_list(cell: str) -> list[Any] | str:
    """Parse any other list in Python syntax, such as one of lists."""
    try:
        with warnings.catch_warnings(action="ignore"):
            value = ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell
    return value if isinstance(value, list) else cell
