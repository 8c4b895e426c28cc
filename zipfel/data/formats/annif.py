"""A full-text corpus of Annif: a folder with `NAME.txt` and its subjects in `NAME.tsv` or `NAME.key`, or `NAME.json`.

Subfolders `train`, `test` and `validation` are read as these parts.
"""

from __future__ import annotations

from collections.abc import Iterator
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

SUBJECTS = (".tsv", ".key")  # endings of the files with the subjects of a text
TEXT = "text"


def is_corpus(folder: Path) -> bool:
    """Whether a folder, or one of its subfolders for parts, holds a text with subjects beside it."""
    return bool(_folders(folder))


def _folders(folder: Path) -> dict[str, Path]:
    """Return the folder of each part."""
    if _has_documents(folder):
        return {"train": folder}
    inside = {part: folder / stem for part, stems in PARTS.items() for stem in stems}
    return {part: path for part, path in inside.items() if _has_documents(path)}


def _has_documents(folder: Path) -> bool:
    return any(_subjects_of(path) is not None for path in folder.glob("*.txt"))


def _subjects_of(text: Path) -> Path | None:
    return next((path for ending in SUBJECTS if (path := text.with_suffix(ending)).is_file()), None)


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
        if left:
            notes.append(f"{path.name}: {len(left):,} documents without subjects left out: {some(left)}")
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


def _files(folder: Path, encoding: str) -> Iterator[tuple[Path, str, list[str]]]:
    """Yield (file, text, subjects), by name; subjects are URIs or names."""
    for path in sorted(folder.glob("*.txt")):
        subjects = _subjects_of(path)
        text = "".join(text_lines(path, encoding))
        yield path, text, [] if subjects is None else _subjects(subjects, encoding)
    for path in sorted(folder.glob("*.json")):
        if path.name != common.METADATA:
            yield (path, *_json(path))


def _subjects(path: Path, encoding: str) -> list[str]:
    """Return the subjects in lines `<uri><TAB>name`, or names; each once."""
    names = list[str]()
    for number, line in enumerate(text_lines(path, encoding), start=1):
        first = line.partition("\t")[0].strip()
        if first.startswith("<") and not first.endswith(">"):
            raise DataError(f"expected <uri>, a tab and a name; found {quoted(line.strip())}", path, number)
        names.append(first[1:-1] if first.startswith("<") else first)
    return list(dict.fromkeys(filter(None, names)))


def _json(path: Path) -> tuple[str, list[str]]:
    """Return text and subjects of a document in JSON."""
    with opened(path) as stream:
        content = stream.read()
    try:
        document = orjson.loads(content)
        if not isinstance(document, dict) or not isinstance(document.get(TEXT, ""), str):
            raise ValueError('expected an object with "text" and "subjects"')
        return document.get(TEXT, ""), list(dict.fromkeys(label_names(document.get("subjects", []), None)))
    except orjson.JSONDecodeError as error:
        raise DataError(f"broken JSON: {error.msg}", path, error.lineno) from None
    except ValueError as error:
        raise DataError(reason(error), path) from None
