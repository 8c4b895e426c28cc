"""Tags as a Parquet file: the copied columns, `known`, and the lists `tags` and `scores`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from zipfel.data.formats.files import new_file

BLOCK = 4096  # rows in memory at a time


def write_parquet(out: Path, part: Path, columns: Sequence[str]) -> None:
    """Write Parquet from lines of JSON, as `--out tags.jsonl` has them; it is read twice, block by block."""
    import pyarrow
    import pyarrow.parquet

    types = {bool: pyarrow.bool_(), int: pyarrow.int64(), float: pyarrow.float64(), str: pyarrow.large_string()}
    kinds = _kinds(part, columns)
    lists = {"tags": pyarrow.list_(pyarrow.string()), "scores": pyarrow.list_(pyarrow.float32())}
    own = {"known": pyarrow.bool_(), **lists}
    schema = pyarrow.schema({**{name: types[kind] for name, kind in kinds.items()}, **own})
    with new_file(out) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for block in _blocks(part):
            values: dict[str, list[Any]] = {n: [_as(item[n], kind) for item in block] for n, kind in kinds.items()}
            values["known"] = [item["known"] for item in block]
            values["tags"] = [[tag["label"] for tag in item["tags"]] for item in block]
            values["scores"] = [[tag["score"] for tag in item["tags"]] for item in block]
            writer.write_table(pyarrow.table(values, schema=schema))


def _blocks(part: Path) -> Iterator[list[dict[str, Any]]]:
    with part.open("rb") as file:
        while block := [orjson.loads(line) for line in islice(file, BLOCK)]:
            yield block


def _kinds(part: Path, columns: Sequence[str]) -> dict[str, type]:
    """Return the type of each column: that of all its cells, float for whole and other numbers, else text."""
    seen: dict[str, set[type]] = {name: set() for name in columns}
    for block in _blocks(part):
        for name in columns:
            seen[name] |= {type(item[name]) for item in block if item[name] is not None}
    return {name: _kind(kinds) for name, kinds in seen.items()}


def _kind(kinds: set[type]) -> type:
    if kinds == {int, float}:
        return float
    return next(iter(kinds)) if len(kinds) == 1 and kinds <= {bool, int, float} else str


def _as(value: Any, kind: type) -> Any:
    """Return a cell as a value of its column; lists and objects in a column of text become JSON."""
    if value is None or isinstance(value, kind):
        return value
    return orjson.dumps(value).decode() if kind is str else kind(value)
