"""Results as lines of JSON: one per finished contestant, data set and seed, whether it succeeded or not."""

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
PLAIN, CHOSEN = "plain", "chosen"  # features: of the usual text settings, or of those that train chooses
Line = dict[str, Any]


def read_results(path: Path) -> list[Line]:
    """Return all lines, except a last one that a crash of the machine has cut off."""
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
            raise DataError("not a line of results: invalid JSON", path, number) from None
    return lines


def append(path: Path, line: Line) -> None:
    """Append a line in one write; first remove a last line that was cut off."""
    if path.exists():
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    with path.open("ab", buffering=0) as file:
        file.write(json_line(line))
        os.fsync(file.fileno())


def key(line: Line) -> tuple[Any, ...]:
    """Return the identity of a line. Settings are part of it, so that a changed recipe runs again; so are features."""
    settings, text = (orjson.dumps(line.get(name), option=orjson.OPT_SORT_KEYS) for name in ("settings", "text"))
    return (line["part"], line["data"], line["contestant"], features_from(line), line["seed"], settings, text)


def features_from(line: Line) -> str:
    """Return where the features come from, `plain` or `chosen`; results from before there was a choice are plain."""
    return str(line.get("features_from", PLAIN))


def finished(lines: Iterable[Line], limit: float = 0) -> set[tuple[Any, ...]]:
    """Return the keys that need not run again: neither missing peers nor time-outs with a lower limit."""
    return {
        key(line)
        for line in lines
        if line["status"] != NOT_INSTALLED and (line["status"] != TIMED_OUT or line["limit"] >= limit)
    }


def latest(lines: Iterable[Line]) -> list[Line]:
    """Return the last line of each contestant, kind of features, data set, seed and part.

    For validation also of each setting.
    """
    last: dict[tuple[Any, ...], Line] = {}
    for line in lines:
        about = key(line) if line["part"] == "validation" else key(line)[:5]
        last.pop(about, None)
        last[about] = line
    return list(last.values())
