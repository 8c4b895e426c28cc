"""Tables with text columns and a label column: CSV, TSV, JSONL, JSON, Parquet, Excel, or a data frame.

A folder holds `train.csv` (or .tsv, .jsonl, ...), and optionally `test`, `validation` and `labels` (label name
in the first column, its text in the others). A single table is read as train.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from zipfel.config import Settings, setting
from zipfel.data.cells import MARKS, cell_text, label_name, label_names
from zipfel.data.dataset import Columns, Dataset, Part
from zipfel.data.formats import folder as common
from zipfel.data.formats.concepts import Thesaurus, some
from zipfel.data.formats.files import find, listed, unpacked_name
from zipfel.data.formats.table_files import ENDINGS, READ_ONLY, Table, is_frame, open_frame, open_table, write_table
from zipfel.data.formats.thesaurus import is_thesaurus, read_thesaurus
from zipfel.data.hierarchy import with_hierarchy
from zipfel.data.labels import names_of
from zipfel.errors import ConfigError, DataError, quoted

PARTS = {"train": ("train",), "test": ("test",), "validation": ("validation", "val", "dev")}
TEXT_COLUMNS = ("title", "text", "content", "body", "abstract", "description")
LABEL_COLUMNS = ("labels", "tags", "label", "tag", "subject_uris", "subjects")  # the last two are those of Annif
NONE = "none"  # in place of a hierarchy: read none


@dataclass(frozen=True)
class TableSettings(Settings):
    """Columns of a table, label texts, hierarchy and encoding.

    Example:
        >>> TableSettings(text=("title", "body"), labels="tags", sep=";").labels
        'tags'
    """

    text: tuple[str, ...] = setting(
        (), f"text columns, such as title,body; default: all that are called {', '.join(TEXT_COLUMNS)}"
    )
    labels: str | None = setting(None, f"label column; default: the first that is called {', '.join(LABEL_COLUMNS)}")
    sep: str | None = setting(None, "separator of labels in a cell; without one, a cell is a list or a single label")
    label_texts: Path | None = setting(
        None,
        "label texts: a table (name in the first column, then the text), or a thesaurus: SKOS in .ttl, .nt, "
        ".rdf or .jsonld, or a vocabulary of Annif",
    )
    language: str | None = setting(
        None, "language of the names in a thesaurus, such as en; default: the one that most names have"
    )
    parents: str = setting(  # a plain str, in which the word none stays a word
        "",
        "hierarchy of labels: a file of 'label<TAB>parent' lines or a table, or a column of --label-texts; "
        "default: parents.csv of the folder, or the broader concepts of a thesaurus; `none` reads no hierarchy",
    )
    ancestors: bool = setting(False, "give each point the ancestors of its labels too; needs a hierarchy")
    encoding: str | None = setting(None, "encoding of CSV, TSV and text files, such as cp1252; default: utf-8")

    def __post_init__(self) -> None:
        """Accept a single text column as a string, and label texts as a data frame or a path in a string."""
        text = (self.text,) if isinstance(self.text, str) else tuple(dict.fromkeys(self.text))
        object.__setattr__(self, "text", text)
        if self.label_texts is not None and not is_frame(self.label_texts):
            object.__setattr__(self, "label_texts", Path(self.label_texts))
        super().__post_init__()

    def or_else(self, columns: Columns) -> TableSettings:
        """Return the settings with those of a model for all that are not set."""
        named = columns.labels is not None or len(columns.text) > 1  # the one field of a list is called what it may be
        text, labels = self.text or (columns.text if named else ()), self.labels or columns.labels
        sep = columns.sep if self.sep is None else self.sep
        return replace(self, text=text, labels=labels, sep=sep, encoding=self.encoding or columns.encoding)

    def check(self) -> None:
        """Check that the separator is not empty."""
        if self.sep == "":
            raise ConfigError("sep, the separator of labels in a cell, must not be empty")


def part_file(folder: Path, name: str, ending: str) -> Path | None:
    """Return the table of a part, such as `train.csv`: with the given ending, else with any other; None if missing."""
    stems = PARTS.get(name, (name,))
    same = find(folder, *(stem + ending for stem in stems))
    return same or find(folder, *(stem + other for stem in stems for other in (*ENDINGS, *READ_ONLY)))


def numbered_files(folder: Path, part: str) -> list[Path]:
    """Return the tables of a part that are called such as train-00.jsonl, in order of their names."""
    paths = (path for stem in PARTS[part] for path in folder.glob(f"{stem}-*"))
    return sorted(path for path in paths if unpacked_name(path).endswith(ENDINGS))


def read(ending: str, folder: Path, settings: TableSettings) -> Dataset:
    """Read a folder of tables whose train table has the given ending."""
    known = common.read_metadata(folder)
    settings = replace(settings, text=settings.text or known.text, labels=settings.labels or known.labels)
    if settings.label_texts is None:
        settings = replace(settings, label_texts=part_file(folder, "labels", ending))
    paths = {name: path for name in PARTS if (path := part_file(folder, name, ending))}
    tables = read_tables({name: open_table(path, settings.encoding) for name, path in paths.items()}, settings)
    parts: dict[str, tuple[Part, list[str]]] = {name: (part, []) for name, part in tables.parts.items()}
    names, texts = tables.label_names, tables.label_texts
    others: dict[str, Any] = {"label_names": names, "label_texts": texts, "columns": tables.columns}
    return common.assembled(folder, parts, notes=[*tables.notes, *_not_read(folder)], **others)


def _not_read(folder: Path) -> list[str]:
    """Return a note on further tables of parts, which only a conversion to mapped data reads."""
    with suppress(DataError):  # a .zip that holds something else
        names = [path.name for part in PARTS for path in numbered_files(folder, part)]
        return [f"not read: {some(names)}; only `zipfel data convert --to mapped` reads such tables"] if names else []
    return []


def with_others(dataset: Dataset, source: Path, ending: str, settings: TableSettings) -> Dataset:
    """Return a data set with all columns of the tables that it was just read from, so that `write` keeps them.

    ending: that of the train table, if the source is a folder.
    """
    columns = dataset.columns
    if columns is None:
        return dataset
    parts: dict[str, Any] = {}
    for name, part in dataset.parts.items():
        path = source if source.is_file() else part_file(source, name, ending)
        assert path is not None
        table = open_table(path, settings.encoding)
        used = table.present([*columns.text, columns.labels or "", "uid"])
        others = [other for other in table.columns if other not in used]
        rows = [values for _, values in table.rows(others)] if others else []
        parts[name] = replace(part, others={other: [row[i] for row in rows] for i, other in enumerate(others)})
    return replace(dataset, **parts)


def read_tables(tables: dict[str, Table], settings: TableSettings) -> Dataset:
    """Make a data set of tables that share their labels: in the order of the label table, others sorted after them."""
    ids: dict[str, int] = {}  # provisional label ids, in order of occurrence
    text, label_column = chosen_columns(tables["train"], settings)
    gathered = {name: _gather(table, text, label_column, settings.sep, ids) for name, table in tables.items()}
    if not ids and settings.label_texts is None:
        raise tables["train"].error(f"column {label_column!r} holds no labels")
    dataset = of_documents(gathered, ids, settings, {name: table.file for name, table in tables.items()})
    hint = separator_hint(names_of(dataset), settings.sep, tables["train"].option("sep"))
    stem = tables["train"].file.partition(".")[0]
    chosen = Columns(text, label_column, settings.sep, settings.encoding)
    return replace(dataset, name=stem, notes=(*dataset.notes, *hint), columns=chosen)


def of_documents(
    gathered: Mapping[str, common.Documents], ids: Mapping[str, int], settings: TableSettings, files: Mapping[str, str]
) -> Dataset:
    """Make a data set of the documents of its parts, with the label texts that the settings name.

    ids: provisional ids of labels, in order of occurrence.  files: name of the file of each part, for notes.
    """
    thesaurus = thesaurus_of(settings)
    given, label_texts = (thesaurus.ids, thesaurus.fields) if thesaurus else read_label_texts(settings)
    meant = {} if thesaurus is None else _by_name(thesaurus, ids)
    own = [meant.get(name, name) for name in ids]
    names = [*given, *sorted(set(own) - set(given))]
    if not names:
        raise DataError("no document has a label, and there are no label texts")
    number_of = {name: number for number, name in enumerate(names)}
    final = np.array([number_of[name] for name in own], dtype=np.int32)  # the final id of each provisional one
    parts: dict[str, Any] = {}
    notes = [] if thesaurus is None else [f"{thesaurus.path.name}: {note}" for note in thesaurus.notes]
    for name, columns in gathered.items():
        parts[name], repeated = columns.part(final[np.array(columns.ids)], len(names), files[name])
        notes += repeated
    missing = len(names) - len(given)
    if meant:
        notes += [f"{len(meant):,} subjects are given by their names"]
    if label_texts and missing:
        notes += [_without_text(missing, len(own)) if thesaurus is None else _unknown(thesaurus, names, parts)]
    texts = {name: column + [""] * missing for name, column in label_texts.items()} or None
    dataset = Dataset(**parts, label_names=names, label_texts=texts, notes=tuple(notes))
    if thesaurus is None or thesaurus.hierarchy is None:
        return dataset
    return with_hierarchy(dataset, thesaurus.hierarchy, settings.ancestors)


def _without_text(missing: int, labels: int) -> str:
    """Return the note on labels that are not in the table of label texts; it is the wrong table if none of them is."""
    if missing < labels:
        return f"{missing} labels are not in the table of label texts"
    return f"none of the {labels} labels is in the table of label texts; its first column must hold their names"


def thesaurus_of(settings: TableSettings) -> Thesaurus | None:
    """Return the thesaurus that the label texts are; None if they are a table or missing."""
    source = settings.label_texts
    if isinstance(source, Path) and (settings.language is not None or is_thesaurus(source, settings.encoding)):
        return read_thesaurus(source, settings.language, not settings.parents, settings.encoding)
    if settings.language is not None:
        raise ConfigError("language is that of the names in a thesaurus; give one with label_texts (--label-texts)")
    return None


def _by_name(thesaurus: Thesaurus, ids: Iterable[str]) -> dict[str, str]:
    """Return the URIs of subjects that documents call by their names."""
    known, named = set(thesaurus.ids), thesaurus.named()
    return {name: named[name] for name in ids if name not in known and name in named}


def _unknown(thesaurus: Thesaurus, names: Sequence[str], parts: Mapping[str, Part]) -> str:
    """Return a note on the subjects of documents that a thesaurus lacks."""
    known = len(thesaurus.ids)
    tags = sum(int((part.Y.indices >= known).sum()) for part in parts.values())
    return (
        f"{len(names) - known:,} subjects of {tags:,} tags are not in {thesaurus.path.name}; they stay labels, without "
        f"a name: {some(names[known:])}"
    )


def separator_hint(names: Sequence[str], sep: str | None, option: str) -> list[str]:
    """Return a note if no separator was set but most cells look like several labels.  option: that sets it."""
    for mark in MARKS if sep is None else "":
        suspects = [name for name in names if mark in name]
        if len(suspects) > len(names) / 2:
            example = f"most labels contain {mark!r}, as in {quoted(suspects[0])}"
            return [f"{example}; to split them there, set it with {option}"]
    return []


def chosen_columns(table: Table, settings: TableSettings) -> tuple[tuple[str, ...], str]:
    """Return the text columns and the label column: those in the settings, else those with default names."""
    label = settings.labels or next(iter(table.present(LABEL_COLUMNS)), None)
    columns = listed(table.columns)
    if label is None:
        raise table.error(f"no label column found; set it with {table.option('labels')} (columns: {columns})")
    text = settings.text or tuple(table.present(TEXT_COLUMNS))
    if not text:
        raise table.error(f"no text column found; set it with {table.option('text')} (columns: {columns})")
    label, *own = table.own((label, *text))
    return tuple(own), label


def _gather(
    table: Table, text: tuple[str, ...], label_column: str, sep: str | None, ids: dict[str, int]
) -> common.Documents:
    """Read the rows of a table; labels that are not in `ids` yet get the next id."""
    uid = table.present(["uid"])
    documents = common.Documents({name: [] for name in text})
    for number, names, words in read_rows(table, (*text, *uid), label_column, sep):
        if uid and (first := documents.uids.setdefault(words[-1], number)) != number:
            raise table.error(f"uid {quoted(words[-1])} is already in {table.row_unit} {first}", number)
        for name, word in zip(text, words, strict=False):
            documents.texts[name].append(word)
        documents.counts.append(len(names))
        documents.ids.extend(ids.setdefault(name, len(ids)) for name in names)
    return documents


def read_rows(
    table: Table, text: Sequence[str], label_column: str, sep: str | None
) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield number, names of labels and texts of each row; raise DataError for a bad row, or if there is none."""
    number: int | None = None
    for number, (cell, *values) in table.rows(table.own((label_column, *text))):
        try:
            names, words = label_names(cell, sep), [cell_text(value) for value in values]
        except ValueError as error:
            raise table.error(str(error), number) from None
        yield number, names, words
    if number is None:
        raise table.error("holds no rows")


def read_label_texts(settings: TableSettings) -> tuple[list[str], dict[str, list[str]]]:
    """Return label names (first column) and label texts (other columns) of the table of labels; empty without one."""
    source = settings.label_texts
    if source is None:
        return [], {}
    table = open_frame(source) if is_frame(source) else open_table(source, settings.encoding)
    names: dict[str, int] = {}
    rows: list[list[str]] = []
    parents = table.column(settings.parents) if settings.parents else None
    fields = [name for name in table.columns[1:] if name != parents]
    for number, values in table.rows([*table.columns[:1], *fields]):
        try:
            name, *others = label_name(values[0]), *map(cell_text, values[1:])
        except ValueError as error:
            raise table.error(str(error), number) from None
        if not name:
            raise table.error("the name of the label is empty", number)
        if names.setdefault(name, number) != number:
            raise table.error(f"label {quoted(name)} is repeated", number)
        rows.append(others)
    return list(names), {field: [row[i] for row in rows] for i, field in enumerate(fields)}


def write(ending: str, dataset: Dataset, folder: Path, suffix: str) -> None:
    """Write a folder with a table for each part, and `labels`; a label cell is a list (in CSV and TSV as JSON).

    suffix: ".gz" for compressed files; Parquet, which is always compressed, ignores it.
    """
    common.required_texts(dataset)
    names, ending = names_of(dataset), ending + ("" if ending == ".parquet" else suffix)
    common.require_unique(names, "label name")
    for name in names:
        if not name or name != name.strip():  # cells are stripped when read, and an empty one is no label
            raise DataError(f"label name {quoted(name)} is empty or has outer blanks, which a table does not keep")
    texts, key = dataset.label_texts or {}, "label"
    while key in texts:
        key += "_"
    write_table({key: names, **texts}, folder / f"labels{ending}")
    column = (dataset.columns and dataset.columns.labels) or "labels"
    for name, part in dataset.parts.items():
        texts, uids = part.texts or {}, {} if part.uids is None else {"uid": part.uids}
        common.require_unique(part.uids or (), f"{name}: uid")
        if {"uid", column} & set(texts):
            raise DataError(
                f"a table has columns 'uid' and {column!r} of its own; rename the text fields of these names"
            )
        cells = [[names[i] for i in ids] for ids in common.label_ids(part.Y)]
        write_table({**uids, **(part.others or {}), **texts, column: cells}, folder / f"{name}{ending}")
    common.write_common(dataset, folder, text=list(dataset.train.texts or {}), labels=column)
