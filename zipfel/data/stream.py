"""Texts of tables as a mapped folder of features, piece by piece: neither texts nor features are held in memory.

The tables are read once for labels and the vocabulary, and once for features; once more before, if points are held out.
Processes share the work on texts. The folder is the one that the same tables give in memory, byte for byte.
"""

from __future__ import annotations

import dataclasses
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.dataset import SAME_POINTS, Columns, Dataset, Part, fingerprints, pick
from zipfel.data.formats import format_of, table
from zipfel.data.formats.atomic import new_folder
from zipfel.data.formats.files import find, unpacked_name
from zipfel.data.formats.folder import FILTERS, Documents, merged_notes, read_metadata
from zipfel.data.formats.mapped import Writer
from zipfel.data.formats.parents import FILE as PARENTS
from zipfel.data.formats.sparse_text import matrix_of
from zipfel.data.formats.table import TableSettings
from zipfel.data.formats.table_files import ENDINGS, Table, open_table
from zipfel.data.formats.thesaurus import is_thesaurus
from zipfel.data.labels import names_of
from zipfel.data.processes import cores, spread
from zipfel.data.splits import Preparation, held_out_note, split_keys, with_min_label_count
from zipfel.data.text import TextFeatures, TextSettings, check_weights, term_counts
from zipfel.errors import DataError

ROWS, CHARACTERS = 1 << 13, 1 << 22  # most rows of a piece, and about its longest texts
SMALL = 1 << 24  # bytes of tables up to which other processes would take longer to start than they save


class Piece(NamedTuple):
    """Some rows of a part, the first of which is row `start` of it: texts by field, and names of labels."""

    part: str
    start: int
    texts: dict[str, list[str]]
    labels: list[list[str]]


@dataclass(frozen=True)
class Tables:
    """The tables to read: those of each part, one after the other."""

    files: Mapping[str, Sequence[Path]]
    settings: TableSettings
    folder: Path | None = None  # that they are in, unless a single table was named

    @property
    def size(self) -> int:
        """Bytes of all tables."""
        return sum(path.stat().st_size for paths in self.files.values() for path in paths)

    def open(self, path: Path) -> Table:
        """Open a table."""
        return open_table(path, self.settings.encoding)

    def columns(self) -> Columns:
        """Return the columns to read, as the first table of train has them."""
        text, labels = table.chosen_columns(self.open(self.files["train"][0]), self.settings)
        return Columns(text, labels, self.settings.sep, self.settings.encoding)


def tables_of(path: Path, settings: TableSettings, format: str | None = None) -> Tables | None:
    """Return the tables of a source that can be read piece by piece; None if it must be read as a whole.

    A folder may hold several tables of a part: train-00.jsonl, train-01.jsonl, ...
    """
    if not path.is_dir():
        streams = path.is_file() and unpacked_name(path).endswith(ENDINGS) and _is_plain(settings)
        return Tables({"train": [path]}, settings) if streams else None
    files = _files(path, format)
    if "train" not in files:
        return None
    if settings.label_texts is None:
        labels = table.part_file(path, "labels", f".{format_of(files['train'][0])}")
        settings = dataclasses.replace(settings, label_texts=labels)
    others = find(path, PARENTS, *(name for names in FILTERS.values() for name in names))
    if others is not None or not _is_plain(settings):
        several = [name.name for part in files for name in table.numbered_files(path, part)]
        if several:
            needed = "labels without a hierarchy or thesaurus, and no filter pairs"
            raise DataError(f"several tables of a part, such as {several[0]}, need {needed}; join them first", path)
        return None
    known = read_metadata(path)
    settings = dataclasses.replace(settings, text=settings.text or known.text, labels=settings.labels or known.labels)
    return Tables(files, settings, path)


def _files(folder: Path, format: str | None) -> dict[str, Sequence[Path]]:
    """Return the tables of each part of a folder, in order of their names; nothing if train is in another format."""
    numbered = {part: table.numbered_files(folder, part) for part in table.PARTS}
    kind = format_of((numbered["train"] or [folder])[0], format)
    if f".{kind}" not in ENDINGS:
        return {}
    found = dict[str, Sequence[Path]]()
    for part, several in numbered.items():
        one = table.part_file(folder, part, f".{kind}")
        for first, second in pairwise([*([one] if one else []), *several]):
            if first == one or unpacked_name(first) == unpacked_name(second):
                raise DataError(f"holds both {first.name} and {second.name}; remove one", folder)
        paths = several if one is None else [one]
        if paths:
            found[part] = paths
    return found


def _is_plain(settings: TableSettings) -> bool:
    """Whether labels have no hierarchy, which is read as a whole."""
    labels = settings.label_texts
    return (
        settings.parents in ("", table.NONE)
        and not settings.ancestors
        and not (isinstance(labels, Path) and is_thesaurus(labels, settings.encoding))
    )


@dataclass
class Seen:
    """What the first reading has found. labels: points of train by label; of all labels, also those with none."""

    labels: Counter[str] = field(default_factory=Counter)
    terms: Counter[str] = field(default_factory=Counter)
    points: Counter[str] = field(default_factory=Counter)  # by part
    merged: Counter[str] = field(default_factory=Counter)  # by part: labels repeated in a row
    prints: Counter[str] = field(default_factory=Counter)  # sums of fingerprints of test and validation


class Stream:
    """Turns tables into a mapped folder."""

    def __init__(self, tables: Tables, preparation: Preparation, text: TextSettings, processes: int | None) -> None:
        self.tables, self.preparation, self.text = tables, preparation, text
        self.columns, self.seen = tables.columns(), Seen()
        self.processes = processes or (1 if tables.size < SMALL else cores())
        self.holds_out = "test" not in tables.files and preparation.holdout > 0
        self.held: tuple[NDArray[np.uint64], np.uint64] | None = None  # keys of train, and the largest held out

    def written(self, folder: Path) -> Dataset:
        """Write the folder; return the data set without its points."""
        _, label_fields = table.read_label_texts(self.tables.settings)  # before hours of work: it may have errors
        check_weights(self.text, [*self.columns.text, *label_fields])
        self._split(folder)
        self._count()
        dataset = self._without_points()
        vocabulary = self._vocabulary(dataset)
        if dataset.label_texts:
            dataset = dataclasses.replace(dataset, Z=vocabulary.transform(dataset.label_texts))
        writer = Writer(folder)
        try:
            self._write(writer, vocabulary, {name: label for label, name in enumerate(names_of(dataset))})
            writer.close()
            writer.finish(dataclasses.replace(dataset, vocabulary=vocabulary))
        finally:
            writer.release()
        return dataset

    def pieces(self, *parts: str) -> Iterator[Piece]:
        """Read the tables of some parts, or of all."""
        for part in parts or self.tables.files:
            start = 0
            for path in self.tables.files[part]:
                for texts, labels in self._pieces(path):
                    yield Piece(part, start, texts, labels)
                    start += len(labels)

    def _pieces(self, path: Path) -> Iterator[tuple[dict[str, list[str]], list[list[str]]]]:
        text, label_column = self.columns.text, self.columns.labels or ""
        texts: list[list[str]] = [[] for _ in text]
        labels, size = list[list[str]](), 0
        for _, names, words in table.read_rows(self.tables.open(path), text, label_column, self.columns.sep):
            labels.append(names)
            for column, word in zip(texts, words, strict=True):
                column.append(word)
                size += len(word)
            if len(labels) == ROWS or size >= CHARACTERS:
                yield dict(zip(text, texts, strict=True)), labels
                texts, labels, size = [[] for _ in text], [], 0
        if labels:
            yield dict(zip(text, texts, strict=True)), labels

    # --- What the first reading finds -----------------------------------------------------------------------------

    def _split(self, folder: Path) -> None:
        """Choose the points to hold out; their keys lie in a file without a name."""
        if self.holds_out:
            with TemporaryFile(dir=folder) as file:
                for piece in self.pieces("train"):
                    file.write(_prints(piece).tobytes())
                file.flush()
                keys = np.memmap(file, np.uint64, "r+")
            self.held = keys, split_keys(keys, self.preparation.holdout, self.preparation.seed)

    def _is_held(self, piece: Piece) -> NDArray[np.bool_]:
        """Return which points of a piece are held out, [rows]."""
        rows = slice(piece.start, piece.start + len(piece.labels))
        if self.held is None or piece.part != "train":
            return np.zeros(len(piece.labels), dtype=bool)
        keys, last = self.held
        if rows.stop > len(keys):
            raise self._changed("train")
        return np.asarray(keys[rows] <= last)

    def _count(self) -> None:
        """Count labels, the terms of train, and points."""
        for counts in spread(_counted, self.text, self._texts_of_train(), self.processes):
            self.seen.terms.update(counts)
        if not self.seen.labels and self.tables.settings.label_texts is None:
            first = self.tables.open(self.tables.files["train"][0])
            raise first.error(f"column {self.columns.labels!r} holds no labels")
        points, prints = self.seen.points, self.seen.prints
        test = (points["test"] or points["held"], prints["test"] % 2**64)
        if points["validation"] and test == (points["validation"], prints["validation"] % 2**64):
            raise DataError(SAME_POINTS, self.tables.files["validation"][0])

    def _texts_of_train(self) -> Iterator[dict[str, list[str]]]:
        """Yield the texts of train that are not held out; count labels and points on the way."""
        for piece in self.pieces():
            held = self._is_held(piece)
            self._see(piece, held)
            if piece.part == "train":
                stay = np.flatnonzero(~held)
                yield {name: pick(texts, stay) for name, texts in piece.texts.items()}

    def _see(self, piece: Piece, held: NDArray[np.bool_]) -> None:
        """Count the points and labels of a piece.  held: which points are held out."""
        seen = self.seen
        seen.points[piece.part] += len(piece.labels)
        seen.points["held"] += int(held.sum())
        for names, is_held in zip(piece.labels, held.tolist(), strict=True):
            own = set(names)
            seen.merged[piece.part] += len(names) - len(own)
            seen.labels.update(dict.fromkeys(own, int(piece.part == "train" and not is_held)))
        if "validation" in self.tables.files and (piece.part != "train" or held.any()):
            prints = _prints(piece)[held if piece.part == "train" else slice(None)]
            seen.prints[piece.part.replace("train", "test")] += int(prints.sum())

    def _without_points(self) -> Dataset:
        """Return the data set without its points: names and texts of labels, and all notes."""
        tables, seen = self.tables, self.seen
        files = {part: paths[0].name if len(paths) == 1 else part for part, paths in tables.files.items()}
        several = [
            f"{part}: {len(paths):,} tables, {paths[0].name} to {paths[-1].name}"
            for part, paths in tables.files.items()
            if len(paths) > 1
        ]
        empty = {part: Documents({name: [] for name in self.columns.text}) for part in files}
        ids = {name: number for number, name in enumerate(seen.labels)}
        dataset = table.of_documents(empty, ids, tables.settings, files)
        merged = [note for part in files for note in merged_notes(files[part], labels=seen.merged[part])]
        option = tables.open(tables.files["train"][0]).option("sep")
        hint = table.separator_hint(names_of(dataset), self.columns.sep, option)
        held = [held_out_note(seen.points["held"], self.preparation.seed)] if self.holds_out else []
        others: dict[str, Any] = {"name": files["train"].partition(".")[0]}
        if tables.folder is not None:
            known = read_metadata(tables.folder)
            others = {"name": known.name, "propensity": known.propensity}
        notes = (*several, *merged, *dataset.notes, *hint, *held)
        dataset = dataclasses.replace(dataset, notes=notes, columns=self.columns, **others)
        counts = np.array([seen.labels[name] for name in names_of(dataset)], dtype=np.int64)
        return with_min_label_count(dataset, self.preparation.min_label_count, counts)

    def _vocabulary(self, dataset: Dataset) -> TextFeatures:
        """Return the vocabulary of train and of the texts of labels."""
        labels = dataset.label_texts or {}
        self.seen.terms.update(term_counts(self.text, labels))
        rows = self.seen.points["train"] - self.seen.points["held"] + len(next(iter(labels.values()), ()))
        return TextFeatures.of_counts(self.text, self.seen.terms, rows)

    # --- What the second reading writes ---------------------------------------------------------------------------

    def _write(self, writer: Writer, vocabulary: TextFeatures, ids: Mapping[str, int]) -> None:
        """Write labels and features of all points."""
        read = deque[Piece]()

        def texts() -> Iterator[dict[str, list[str]]]:
            for piece in self.pieces():
                read.append(piece)
                yield piece.texts

        points = Counter[str]()
        for X in spread(TextFeatures.transform, vocabulary, texts(), self.processes):
            piece = read.popleft()
            rows = Part(self._labels(piece, ids), X)
            held = self._is_held(piece)
            for part, some in ((piece.part, ~held), ("test", held)):
                if some.any():
                    writer.append(part, rows.Y[some], rows.X[some])  # type: ignore[index]
            points[piece.part] += len(piece.labels)
        for part in self.tables.files:
            if points[part] != self.seen.points[part]:
                raise self._changed(part)

    def _labels(self, piece: Piece, ids: Mapping[str, int]) -> csr_array:
        """Return the labels of a piece that are kept, [rows, labels]."""
        if any(name not in self.seen.labels for names in piece.labels for name in names):
            raise self._changed(piece.part)
        known = [[ids[name] for name in names if name in ids] for names in piece.labels]
        flat = np.array([label for labels in known for label in labels], dtype=np.int32)
        return matrix_of(np.array([len(labels) for labels in known], dtype=np.int64), flat, len(ids))[0]

    def _changed(self, part: str) -> DataError:
        return DataError("changed while it was converted; convert it again", self.tables.files[part][0])


def convert(
    tables: Tables, target: Path, preparation: Preparation, text: TextSettings, processes: int | None = None
) -> tuple[Dataset, dict[str, int]]:
    """Write tables as a new mapped folder; return the data set without its points, and how many each part has.

    processes: default: one for each core, or one alone for small tables.
    """
    with new_folder(target) as folder:
        stream = Stream(tables, preparation, text, processes)
        dataset = stream.written(folder)
    points, held = stream.seen.points, stream.seen.points["held"]
    counts = {part: points[part] for part in tables.files} | ({"test": held} if held else {})
    counts["train"] -= held
    return dataset, counts


def _prints(piece: Piece) -> NDArray[np.uint64]:
    """Return the fingerprints of points."""
    return fingerprints(Part(csr_array((len(piece.labels), 0)), texts=piece.texts))


def _counted(settings: TextSettings, texts: dict[str, list[str]]) -> Counter[str]:
    """Return in how many texts each term is."""
    return term_counts(settings, texts)
