"""Tags as a Parquet file: the copied columns, `known`, and the lists `tags` and `scores`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from zipfel.data.formats.files import new_file

BLOCK = 4096  # rows in memory at a time
NOTE = b"zipfel"  # key of a note in the metadata of a file


def write_parquet(
    out: Path,
    part: Path,
    columns: Sequence[str],
    kinds: Mapping[str, type] | None = None,
    note: bytes | None = None,
    titled: bool = False,
) -> None:
    """Write Parquet from lines of JSON, as `--out tags.jsonl` has them; they are read block by block.

    kinds: types of the columns; None: they are read once more to find these.  note: kept in the file under NOTE.
    titled: whether tags have titles.
    """
    import pyarrow
    import pyarrow.parquet

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.large_string()}
    seen = seen_kinds(part, columns) if kinds is None else {name: {kinds[name]} for name in columns}
    kinds = {name: kind_of(found) for name, found in seen.items()}
    lists = {"tags": pyarrow.list_(pyarrow.string()), "scores": pyarrow.list_(pyarrow.float32())}
    if titled:
        lists["titles"] = pyarrow.list_(pyarrow.string())
    own = {"known": pyarrow.bool_(), **lists}
    schema = pyarrow.schema({**{name: types[kind] for name, kind in kinds.items()}, **own})
    schema = schema if note is None else schema.with_metadata({NOTE: note})
    with new_file(out) as file:
        with pyarrow.parquet.ParquetWriter(file, schema) as writer:
            for block in _blocks(part):
                values: dict[str, list[Any]] = {n: [_as(item[n], kind) for item in block] for n, kind in kinds.items()}
                values["known"] = [item["known"] for item in block]
                values["tags"] = [[tag["label"] for tag in item["tags"]] for item in block]
                values["scores"] = [[tag["score"] for tag in item["tags"]] for item in block]
                if titled:
                    values["titles"] = [[tag["title"] for tag in item["tags"]] for item in block]
                writer.write_table(pyarrow.table(values, schema=schema))
        file.flush()
        os.fsync(file.fileno())


def _blocks(part: Path) -> Iterator[list[dict[str, Any]]]:
    with part.open("rb") as file:
        while block := [orjson.loads(line) for line in islice(file, BLOCK)]:
            yield block


def seen_kinds(part: Path, columns: Sequence[str]) -> dict[str, set[type]]:
    """Return the types of the cells of each column."""
    seen: dict[str, set[type]] = {name: set() for name in columns}
    for block in _blocks(part):
        for name in columns:
            seen[name] |= {type(item[name]) for item in block if item[name] is not None}
    return seen


def kind_of(kinds: set[type]) -> type:
    """Return the type of a column: that of all its cells, float for whole and other numbers, else text."""
    if kinds == {int, float}:
        return float
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= {bool, int, float} else str


def _as(value: Any, kind: type) -> Any:
    """Return a cell as a value of its column; lists and objects in a column of text become JSON."""
    if value is None or isinstance(value, kind):
        return value
    return orjson.dumps(value).decode() if kind is str else kind(value)
