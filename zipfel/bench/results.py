"""Results as lines of JSON: one for each contestant, data set and seed that is done, whatever came of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from zipfel.data.formats.files import json_line
from zipfel.errors import DataError

NAME = "results.jsonl"
OK, TIMED_OUT, CRASHED, NOT_INSTALLED, NOT_APPLICABLE = "ok", "time-out", "crash", "not installed", "not applicable"
Line = dict[str, Any]


def read_results(path: Path) -> list[Line]:
    """Return all lines; a last one that was cut off by a crash of the machine does not count."""
    if not path.exists():
        return []
    lines = []
    content = path.read_bytes()
    rows = content.splitlines()
    for number, row in enumerate(rows, 1):
        try:
            lines.append(orjson.loads(row))
        except orjson.JSONDecodeError:
            if number == len(rows) and not content.endswith(b"\n"):
                break
            raise DataError("not a line of results", path, number) from None
    return lines


def append(path: Path, line: Line) -> None:
    """Add a line, in one piece; what is left of one that was cut off is taken away first."""
    torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
    if torn:
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, json_line(line))
        os.fsync(file)
    finally:
        os.close(file)


def key(line: Line) -> tuple[Any, ...]:
    """Return what a line is about; settings count, so that a recipe that was changed is run again."""
    settings = orjson.dumps(line.get("settings"), option=orjson.OPT_SORT_KEYS)
    return (line["part"], line["data"], line["contestant"], line["seed"], settings)


def finished(lines: Iterable[Line], limit: float = 0) -> set[tuple[Any, ...]]:
    """Return what need not be run again; what was not installed may be by now, and a time-out ends with more time."""
    return {
        key(line)
        for line in lines
        if line["status"] != NOT_INSTALLED and (line["status"] != TIMED_OUT or line["limit"] >= limit)
    }


def latest(lines: Iterable[Line]) -> list[Line]:
    """Return the last line of each contestant, data set, seed and part; of validation, of each setting."""
    found: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        about = key(line) if line["part"] == "validation" else key(line)[:4]
        found.pop(about, None)
        found[about] = line
    return list(found.values())
