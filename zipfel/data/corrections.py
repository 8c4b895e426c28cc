"""Corrections: labels that people accepted and rejected, read from JSONL, and the last decision on each.

The page's download and the files that `zipfel serve --corrections` writes have the same lines: the texts by field (or
`text`), `labels` (accepted), `rejected`, `model`. The service adds an object `correction`: time, version, undone, shown
(rank and score by label), request, token.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from zipfel.data.cells import checked_name
from zipfel.data.formats.files import opened
from zipfel.data.formats.lf import objects
from zipfel.errors import DataError, quoted

OWN = ("labels", "rejected", "model", "correction")  # keys of a line that are no text fields

Document = tuple[tuple[str, str], ...]  # texts by field, sorted; a plain text has the field "text"


class Decision(NamedTuple):
    """What somebody decided on a label of a document.

    accepted: None cancels earlier decisions.  rank: at which the label was shown; 0 if the person added it,
    None if that is unknown.  time: ISO 8601 in UTC; empty if unknown.
    """

    document: Document
    label: str
    accepted: bool | None
    rank: int | None = None
    score: float | None = None
    time: str = ""
    model: str = ""
    user: str | None = None


@dataclass(frozen=True)
class Corrections:
    """Decisions, oldest first.  notes: on lines that were skipped."""

    decisions: Sequence[Decision]
    notes: tuple[str, ...] = ()

    def settled(self) -> tuple[list[Decision], int]:
        """Return the last decision on each label of each document, and how many opposite ones it overruled."""
        last: dict[tuple[Document, str], Decision] = {}
        overruled = 0
        for each in self.decisions:
            key = (each.document, each.label)
            before = last.pop(key, None)
            if each.accepted is not None:
                overruled += before is not None and before.accepted != each.accepted
                last[key] = each
        return list(last.values()), overruled


def read_corrections(path: Path) -> Corrections:
    """Read a file of corrections, or all of a folder. A torn last line, of a process that was killed, is skipped."""
    decisions, notes = list[Decision](), list[str]()
    for file in _files(path):
        read, note = _read(file)
        decisions += read
        notes += [note] if note else []
    return Corrections(sorted(decisions, key=lambda each: each.time), tuple(notes))  # stable: then by file and line


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.iterdir() if file.name.endswith((".jsonl", ".jsonl.gz")))
    if not files:
        raise DataError("has no corrections: no file NAME.jsonl", path)
    return [file for file in files if file.stat().st_size]  # one that is empty was only just begun


def _read(file: Path) -> tuple[list[Decision], str]:
    """Return the decisions of a file, and a note on its last line if that is torn."""
    decisions, broken = list[Decision](), list[DataError]()
    for line, item in objects(file, broken.append):
        if broken:
            raise broken[0]  # a good line follows
        try:
            decisions += _parsed(item)
        except DataError as error:
            raise DataError(error.problem, file, line) from None
    if not broken:
        return decisions, ""
    if len(broken) > 1 or not _is_torn(file):
        raise broken[0]
    return decisions, f"{file}:{broken[0].line}: skipped: the last line is torn"


def _is_torn(file: Path) -> bool:
    """Whether the last line has no end, or zeros, as a kill and a power cut leave it."""
    with opened(file) as stream:
        last = deque(stream, maxlen=1)[-1]
    return not last.endswith(b"\n") or b"\0" in last


def _parsed(item: Mapping[str, Any]) -> list[Decision]:
    """Return the decisions of a line."""
    document = _document({key: value for key, value in item.items() if key not in OWN})
    about = _object(item, "correction")
    lists = [_labels(item, "labels"), _labels(item, "rejected"), _labels(about, "undone")]
    return list(_decisions(document, lists, str(item.get("model", "")), about))


def _object(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = item.get(key, {})
    if not isinstance(value, Mapping):
        raise DataError(f"expected an object under {key!r:.60}; found {quoted(value)}")
    return value


def _document(texts: Mapping[str, Any]) -> Document:
    wrong = next((name for name, text in texts.items() if not isinstance(text, str)), None)
    if wrong is not None:
        raise DataError(f"expected a text under {quoted(wrong)}; found {quoted(texts[wrong])}")
    if not texts:
        raise DataError("expected a text beside the labels; found none")
    return tuple(sorted(texts.items()))


def _labels(item: Mapping[str, Any], key: str) -> list[str]:
    names = item.get(key, [])
    if not isinstance(names, list):
        raise DataError(f"expected a list of labels under {key!r}; found {quoted(names)}")
    return [checked_name(name) for name in names]


def _decisions(
    document: Document, lists: Sequence[list[str]], model: str, about: Mapping[str, Any]
) -> Iterator[Decision]:
    """Yield decisions.  lists: labels accepted, rejected, and undone.  about: the service's part of the line."""
    time, user, shown = _time(about), about.get("token"), _object(about, "shown")
    model = f"{model} {about['version']}" if "version" in about else model
    added = 0 if about else None  # the rank of a label that the service did not show: the person added it
    for labels, accepted in zip(lists, (True, False, None), strict=True):
        for label in labels:
            place = _object(shown, label)
            rank = _number(place, "rank") if label in shown else added
            yield Decision(document, label, accepted, None if rank is None else int(rank), _number(place, "score"),
                           time, model, user)  # fmt: skip


def _number(place: Mapping[str, Any], key: str) -> float | None:
    value = place.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value < 0):
        raise DataError(f"expected a number from 0 on under {key!r}; found {quoted(value)}")
    return value


def _time(about: Mapping[str, Any]) -> str:
    """Return the time of a line in UTC, so that the order of times is that of their texts; empty if it has none."""
    if "time" not in about:
        return ""
    try:
        time = datetime.fromisoformat(about["time"])
        time = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
        return time.isoformat(timespec="milliseconds")
    except (TypeError, ValueError, OverflowError):
        expected = "expected a time such as 2026-11-10T09:12:44+00:00 under 'time'"
        raise DataError(f"{expected}; found {quoted(about['time'])}") from None
