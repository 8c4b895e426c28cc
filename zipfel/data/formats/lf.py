"""Raw text in the format of the repository's LF data sets: `trn.json`, `tst.json`, `val.json`, `lbl.json`, filters.

Each line is a JSON object: `uid`, `title` and/or `content`, and for points `target_ind`, a list of label ids, which
are line numbers of `lbl.json` from 0. `target_rel` is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from zipfel.data.cells import label_name
from zipfel.data.dataset import Dataset, Texts
from zipfel.data.formats import folder as common
from zipfel.data.formats.files import byte_lines, checked_encoding, find, json_line, listed, new_file, require
from zipfel.data.formats.sparse_text import shown
from zipfel.data.labels import names_of
from zipfel.errors import DataError, quoted, raised

FIELDS = ("title", "content")


def read(folder: Path, encoding: str = "utf-8") -> Dataset:
    """Read a folder; `encoding` must be UTF-8, as the JSON standard requires."""
    if checked_encoding(encoding) != "utf-8":
        raise DataError(f"JSON is always utf-8, not {encoding}; leave the encoding unset", folder)
    labels = _read_documents(require(folder, "lbl.json"))
    paths = {name: path for name, prefix in common.PREFIXES.items() if (path := find(folder, f"{prefix}.json"))}
    documents = {name: _read_documents(path, labels=len(labels.uids)) for name, path in paths.items()}
    _keep_fields([labels])
    _keep_fields(list(documents.values()))
    parts = {
        name: columns.part(np.array(columns.ids), len(labels.uids), paths[name].name)
        for name, columns in documents.items()
    }
    return common.assembled(folder, parts, label_names=list(labels.uids), label_texts=labels.texts)


def _read_documents(path: Path, labels: int | None = None) -> common.Documents:
    """Read documents with their label ids, which must be below `labels`; None: without label ids."""
    documents = common.Documents({name: [] for name in FIELDS})
    for number, item in objects(path):
        _add_texts(documents, item, path, number, named=labels is None)
        if labels is not None:
            _add_labels(documents, item, labels, path, number)
    return documents


def _keep_fields(files: list[common.Documents]) -> None:
    """Drop the text fields that are empty in all these files; a file without any text keeps its title."""
    used: set[str] = set()
    for file in files:
        used.update([name for name in FIELDS if any(file.texts[name])] or FIELDS[:1])
    for file in files:
        file.texts = {name: file.texts[name] for name in FIELDS if name in used}


def objects(path: Path, bad: Callable[[DataError], None] = raised) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number, JSON object) for each line, at least one; blank lines at the end are skipped.

    bad: called for a bad line, which is skipped if it returns.
    """
    blank, empty = 0, True
    for number, line in byte_lines(path):
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            bad(DataError("blank line; expected a JSON object", path, blank))
            blank = 0
        empty = False
        item = _parsed(line, path, number, bad)
        if item is not None:
            yield number, item
    if empty:
        raise DataError("empty: expected one JSON object per line", path, 1)


def _parsed(line: bytes, path: Path, number: int, bad: Callable[[DataError], None]) -> dict[str, Any] | None:
    """Return a line as a JSON object; None for a bad one, if `bad` returns."""
    try:
        item = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        problem = DataError(f"broken JSON: {error.msg} at column {error.colno}", path, number)
        problem.__suppress_context__ = True
        bad(problem)
        return None
    if isinstance(item, dict):
        return item
    bad(DataError(f"expected a JSON object, found {shown(line)}", path, number))
    return None


def _add_texts(documents: common.Documents, item: dict[str, Any], path: Path, number: int, named: bool) -> None:
    """Add the uid and the texts of a document.  named: the uid is the name of a label."""
    uid = item.get("uid")
    if not isinstance(uid, str | int) or isinstance(uid, bool):
        raise DataError(f"expected a 'uid' that is text or a number, found {quoted(uid)}", path, number)
    own = label_name(uid) if named else str(uid)
    if named and not own:
        raise DataError("the name of the label ('uid') is empty", path, number)
    first = documents.uids.setdefault(own, number)
    if first != number:
        raise DataError(f"uid {quoted(own)} is already on line {first}", path, number)
    if not any(name in item for name in FIELDS):
        raise DataError(f"expected 'title' or 'content', found {listed(item)}", path, number)
    for name in FIELDS:
        text = item.get(name)
        if text is not None and not isinstance(text, str):
            raise DataError(f"{name!r} must be text, found {type(text).__name__}", path, number)
        documents.texts[name].append(text or "")


def _add_labels(documents: common.Documents, item: dict[str, Any], labels: int, path: Path, number: int) -> None:
    targets = item.get("target_ind")
    if not isinstance(targets, list):
        raise DataError(f"expected a list 'target_ind', found {quoted(targets)}", path, number)
    for target in targets:
        if type(target) is not int:
            raise DataError(f"expected label ids in 'target_ind', found {quoted(target)}", path, number)
        if not 0 <= target < labels:
            raise DataError(f"label id {target} is outside 0..{labels - 1} (lbl.json has {labels})", path, number)
    documents.counts.append(len(targets))
    documents.ids.extend(targets)


def write(dataset: Dataset, folder: Path, suffix: str = "") -> None:
    """Write a folder; `suffix` is ".gz" for compressed files."""
    common.required_texts(dataset)
    names = names_of(dataset)
    common.require_unique(names, "label name")
    with new_file(folder / f"lbl.json{suffix}") as out:
        for name, row in zip(names, _rows(dataset.label_texts or {"title": names}), strict=True):
            out.write(json_line({"uid": name, **row}))
    for name, part in dataset.parts.items():
        uids = part.uids or [str(row) for row in range(len(part))]
        common.require_unique(uids, f"{name}: uid")
        with new_file(folder / f"{common.PREFIXES[name]}.json{suffix}") as out:
            for uid, row, targets in zip(uids, _rows(part.texts or {}), common.label_ids(part.Y), strict=True):
                out.write(json_line({"uid": uid, **row, "target_ind": targets}))
    common.write_common(dataset, folder)


def _rows(texts: Texts) -> Iterator[dict[str, str]]:
    """Yield {"title": …, "content": …} for each row.

    A single field of another name becomes `title`; of several, the first becomes `title`, and the others are joined
    into `content`.
    """
    known = set(texts) <= set(FIELDS)
    for row in zip(*texts.values(), strict=True):
        if known:
            yield dict(zip(texts, row, strict=True))
        else:
            title, *others = row
            yield {"title": title, "content": " ".join(others)} if others else {"title": title}
