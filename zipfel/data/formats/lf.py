"""Raw text as the repository's LF data sets have it: `trn.json`, `tst.json`, `val.json`, `lbl.json`, filter files.

Each line is a JSON object: `uid`, `title` and/or `content`, and for points `target_ind`, a list of label ids, which
are line numbers of `lbl.json` from 0. (`target_rel`, where present, is not used.)
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import byte_lines, checked_encoding, find, json_line, listed, new_file, require
from zipfel.data.formats.sparse_text import matrix_of, shown
from zipfel.errors import DataError

FILES = {"train": "trn.json", "test": "tst.json", "validation": "val.json"}
FIELDS = ("title", "content")


@dataclass
class _Documents:
    """Columns of a file of objects, as they grow."""

    uids: dict[str, int] = field(default_factory=dict)  # uid -> line number, to tell where one stood before
    texts: dict[str, list[str]] = field(default_factory=lambda: {name: [] for name in FIELDS})
    counts: array[int] = field(default_factory=lambda: array("q"))
    labels: array[int] = field(default_factory=lambda: array("i"))


def is_here(folder: Path) -> bool:
    """Tell whether the folder holds train points of this format."""
    return find(folder, FILES["train"]) is not None


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder; JSON is UTF-8 by its standard, so `encoding` must be too."""
    if checked_encoding(encoding) != "utf-8":
        raise DataError(f"JSON is always utf-8, not {encoding}", folder)
    label_texts, label_names = _read_labels(require(folder, "lbl.json"))
    parts, notes = {}, []
    for name, file in FILES.items():
        path = find(folder, file)
        if path is not None:
            part, merged = _read_part(path, len(label_names))
            parts[name], filtered = common.with_filter(folder, name, part)
            notes += merged + filtered
    parts = _with_same_fields(parts)
    metadata = common.read_metadata(folder)
    return Dataset(
        parts["train"],
        parts.get("test"),
        parts.get("validation"),
        name=metadata.name,
        label_names=label_names,
        label_texts=label_texts,
        propensity=metadata.propensity,
        notes=tuple(notes),
    )


def _read_labels(path: Path) -> tuple[dict[str, list[str]], list[str]]:
    documents = _Documents()
    for number, item in objects(path):
        _add_texts(documents, item, path, number)
    if not documents.uids:
        raise DataError("empty: expected one JSON object a line", path, 1)
    return _used(documents.texts), list(documents.uids)


def _read_part(path: Path, labels: int) -> tuple[Part, list[str]]:
    documents = _Documents()
    for number, item in objects(path):
        _add_texts(documents, item, path, number)
        _add_labels(documents, item, labels, path, number)
    if not documents.uids:
        raise DataError("empty: expected one JSON object a line", path, 1)
    ids = np.frombuffer(documents.labels, dtype=np.int32) if documents.labels else np.empty(0, np.int32)
    Y, merged = matrix_of(np.array(documents.counts), ids.copy(), np.ones(len(ids), np.float32), labels)
    notes = [f"{path.name}: {merged} labels repeated in a row, merged"] if merged else []
    return Part(Y, texts=_used(documents.texts), uids=list(documents.uids)), notes


def objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, JSON object) for each line; blank lines at the end are passed over."""
    blank = 0
    for number, line in byte_lines(path):
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise DataError("blank line; expected a JSON object", path, blank)
        try:
            item = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise DataError(f"broken JSON: {error.msg} at column {error.colno}", path, number) from None
        if not isinstance(item, dict):
            raise DataError(f"expected a JSON object, found {shown(line)}", path, number)
        yield number, item


def _add_texts(documents: _Documents, item: dict[str, Any], path: Path, number: int) -> None:
    uid = item.get("uid")
    if not isinstance(uid, str | int) or isinstance(uid, bool):
        raise DataError(f"expected a 'uid' that is text or a number, found {uid!r:.60}", path, number)
    first = documents.uids.setdefault(str(uid), number)
    if first != number:
        raise DataError(f"uid {str(uid)!r:.60} stands on line {first} already", path, number)
    if not any(name in item for name in FIELDS):
        raise DataError(f"expected 'title' or 'content', found {listed(item)}", path, number)
    for name in FIELDS:
        text = item.get(name)
        if text is not None and not isinstance(text, str):
            raise DataError(f"{name!r} must be text, found {type(text).__name__}", path, number)
        documents.texts[name].append(text or "")


def _add_labels(documents: _Documents, item: dict[str, Any], labels: int, path: Path, number: int) -> None:
    targets = item.get("target_ind")
    if not isinstance(targets, list):
        raise DataError(f"expected a list 'target_ind', found {targets!r:.60}", path, number)
    for target in targets:
        if type(target) is not int:
            raise DataError(f"expected label ids in 'target_ind', found {target!r:.60}", path, number)
        if not 0 <= target < labels:
            raise DataError(f"label id {target} is outside 0..{labels - 1} (lbl.json has {labels})", path, number)
    documents.counts.append(len(targets))
    documents.labels.extend(targets)


def _used(texts: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leave out a field that no object has, but keep at least one."""
    kept = {name: column for name, column in texts.items() if any(column)}
    return kept or {FIELDS[0]: texts[FIELDS[0]]}


def _with_same_fields(parts: dict[str, Part]) -> dict[str, Part]:
    """Give every part the fields that any part has; what it lacks is empty."""
    names = [name for name in FIELDS if any(name in (part.texts or {}) for part in parts.values())]
    return {
        key: Part(
            part.Y,
            texts={name: (part.texts or {}).get(name) or [""] * len(part) for name in names},
            uids=part.uids,
            filtered=part.filtered,
        )
        for key, part in parts.items()
    }


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; `suffix` is ".gz" for packed files."""
    common.required_texts(dataset)
    labels = dataset.sizes.labels
    names = dataset.label_names or [str(label) for label in range(labels)]
    common.require_unique(names, "label name")
    texts = dataset.label_texts or {"title": list(names)}
    with new_file(folder / f"lbl.json{suffix}") as out:
        for name, row in zip(names, _rows(texts, labels), strict=True):
            out.write(json_line({"uid": name, **row}))
    for name, part in dataset.parts.items():
        uids = part.uids or [str(row) for row in range(len(part))]
        common.require_unique(uids, f"{name}: uid")
        with new_file(folder / f"{FILES[name]}{suffix}") as out:
            for uid, row, targets in zip(uids, _rows(part.texts or {}, len(part)), _targets(part.Y), strict=True):
                out.write(json_line({"uid": uid, **row, "target_ind": targets}))
    common.write_common(dataset, folder)


def _rows(texts: Any, size: int) -> Iterator[dict[str, str]]:
    """Yield {"title": …, "content": …} for each row; more than two fields, or others, are joined into `content`."""
    names = list(texts)
    if set(names) <= set(FIELDS):
        yield from ({name: texts[name][row] for name in names} for row in range(size))
    elif len(names) == 1:
        yield from ({"title": text} for text in texts[names[0]])
    else:
        first, *others = names
        for row in range(size):
            yield {"title": texts[first][row], "content": " ".join(texts[name][row] for name in others)}


def _targets(Y: csr_array) -> Iterator[list[int]]:
    ids, bounds = Y.indices.tolist(), Y.indptr.tolist()
    yield from (ids[first:last] for first, last in itertools.pairwise(bounds))
