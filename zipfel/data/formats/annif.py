"""A full-text corpus of Annif: a folder with `NAME.txt` and its subjects in `NAME.tsv` or `NAME.key`, or `NAME.json`.

Subfolders `train`, `test` and `validation` are read as these parts.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from zipfel.data.cells import label_names
from zipfel.data.dataset import Columns, Dataset
from zipfel.data.formats import folder as common
from zipfel.data.formats import table
from zipfel.data.formats.concepts import some
from zipfel.data.formats.files import opened, reason, text_lines
from zipfel.data.formats.table import PARTS, TableSettings
from zipfel.errors import ConfigError, DataError, quoted

ENDINGS = (".tsv", ".key")  # of the files with the subjects of a text
TEXT, SUBJECTS = "text", "subjects"  # keys of a document in JSON
_FIRST, _LARGEST = 20, 1 << 20  # files of JSON looked at to recognise a corpus, and their bytes


def is_corpus(folder: Path) -> bool:
    """Whether a folder, or one of its subfolders for parts, holds a text with subjects beside it, or one in JSON."""
    return any(_has_documents(path) for _, path in _candidates(folder))


def _candidates(folder: Path) -> list[tuple[str, Path]]:
    """Return the folders that may hold documents, with their parts: that of train may be the folder itself."""
    return [("train", folder), *((part, folder / stem) for part, stems in PARTS.items() for stem in stems)]


def _folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each part; raise DataError if a part has two."""
    folders = dict[str, Path]()
    for part, path in _candidates(folder):
        if _has_documents(path) and folders.setdefault(part, path) != path:
            raise DataError(f"documents for {part} are also in {path}; keep one of the two", folders[part])
    return folders


def _has_documents(folder: Path) -> bool:
    if any(_subjects_of(path) is not None for path in folder.glob("*.txt")):
        return True
    return any(map(_is_document, islice(_json_files(folder), _FIRST)))


def _json_files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.glob("*.json")) if path.name != common.METADATA)


def _is_document(path: Path) -> bool:
    """Whether a file is a document in JSON with subjects; a large one is part of another format."""
    if not path.is_file() or path.stat().st_size > _LARGEST:
        return False
    try:
        return {TEXT, SUBJECTS} <= _document(path).keys()
    except DataError:
        return False


def _subjects_of(text: Path) -> Path | None:
    return next((path for ending in ENDINGS if (path := text.with_suffix(ending)).is_file()), None)


def read(folder: Path, settings: TableSettings) -> Dataset:
    """Read a folder of texts and their subjects; documents without subjects are left out, with a note."""
    folders = _folders(folder)
    if "train" not in folders:
        raise DataError(f"holds documents for {', '.join(folders)}, but none for train", folder)
    if settings.text or settings.labels:
        raise ConfigError("text and labels name columns of a table; this is a folder of texts")
    ids: dict[str, int] = {}
    notes, gathered = list[str](), dict[str, common.Documents]()
    for part, path in folders.items():
        gathered[part], left = _documents(path, settings.encoding or "utf-8", ids)
        for kind, names in (("documents without subjects", left), ("files of subjects without a text", _lonely(path))):
            if names:
                notes.append(f"{path.name}: {len(names):,} {kind} left out: {some(names)}")
    made = table.of_documents(gathered, ids, settings, {part: path.name for part, path in folders.items()})
    columns = Columns((TEXT,), encoding=settings.encoding)
    others: dict[str, Any] = {"label_names": made.label_names, "label_texts": made.label_texts, "columns": columns}
    parts: Any = {name: (part, []) for name, part in made.parts.items()}
    return common.assembled(folder, parts, notes=[*notes, *made.notes], hierarchy=made.hierarchy, **others)


def _documents(folder: Path, encoding: str, ids: dict[str, int]) -> tuple[common.Documents, list[str]]:
    """Return the documents of a folder, and the names of files without subjects."""
    documents, left = common.Documents({TEXT: []}), list[str]()
    for path, text, subjects in _files(folder, encoding):
        if not subjects:
            left.append(path.name)
            continue
        documents.texts[TEXT].append(text)
        documents.uids[path.name] = len(documents.uids)
        documents.counts.append(len(subjects))
        documents.ids.extend(ids.setdefault(name, len(ids)) for name in subjects)
    return documents, left


def _lonely(folder: Path) -> list[str]:
    """Return the names of files of subjects that have no text."""
    paths = [path for ending in ENDINGS for path in folder.glob(f"*{ending}")]
    return sorted(path.name for path in paths if not path.with_suffix(".txt").is_file())


def _files(folder: Path, encoding: str) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield (file, text, subjects), by name; subjects are URIs or names."""
    for path in sorted(folder.glob("*.txt")):
        subjects = _subjects_of(path)
        text = "".join(text_lines(path, encoding))
        yield path, text, [] if subjects is None else _subjects(subjects, encoding)
    for path in _json_files(folder):
        yield (path, *_json(path))


def _subjects(path: Path, encoding: str) -> list[str]:
    """Return the subjects in lines `<uri><TAB>name`, or names; each once."""
    names = list[str]()
    for number, line in enumerate(text_lines(path, encoding), start=1):
        if not line.strip():
            continue
        first = line.partition("\t")[0].strip()
        if first in ("", "<>") or (first.startswith("<") and not first.endswith(">")):
            raise DataError(f"expected <uri>, a tab and a name; found {quoted(line.rstrip())}", path, number)
        names.append(first[1:-1] if first.startswith("<") else first)
    return list(dict.fromkeys(names))


def _json(path: Path) -> tuple[str, list[str]]:
    """Return text and subjects of a document in JSON."""
    document = _document(path)
    try:
        return document.get(TEXT, ""), list(dict.fromkeys(label_names(document.get(SUBJECTS, []), None)))
    except ValueError as error:
        raise DataError(reason(error), path) from None


def _document(path: Path) -> dict[str, Any]:
    """Return the object in a file of JSON."""
    with opened(path) as stream:
        content = stream.read().removeprefix(codecs.BOM_UTF8)
    try:
        document = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise DataError(f"broken JSON: {error.msg}", path, error.lineno) from None
    if not isinstance(document, dict) or not isinstance(document.get(TEXT, ""), str):
        raise DataError('expected an object with "text" and "subjects"', path)
    return document
