"""Input of `zipfel predict`: texts given as arguments, lines of a file or of standard input, or rows of a table."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zipfel.data.cells import cell_text
from zipfel.data.formats.files import checked_encoding, reason, text_lines, unpacked_name
from zipfel.data.formats.lf import objects
from zipfel.data.formats.mapped import ABOUT
from zipfel.data.formats.table import LABEL_COLUMNS, TEXT_COLUMNS
from zipfel.data.formats.table_files import Bad, Table, open_table
from zipfel.data.source import Source
from zipfel.errors import ConfigError, DataError, raised

STDIN = Path("-")


@dataclass(frozen=True)
class Row:
    """A document to tag: a text, or texts by field; and the cells to copy to the output, by column."""

    document: str | Mapping[str, str]
    kept: Mapping[str, Any]

    def __len__(self) -> int:
        """Return the number of characters of its texts."""
        return len(self.text)

    @property
    def text(self) -> str:
        """Its texts, joined with blanks."""
        return self.document if isinstance(self.document, str) else " ".join(self.document.values())


@dataclass(frozen=True)
class Input:
    """Documents to tag. columns: those to copy to the output.  about: which columns are read; empty without columns.

    kinds: types of the columns; None: derived from the values.
    """

    rows: Callable[[], Iterator[Row]]
    columns: Sequence[str] = ("text",)
    about: str = ""
    kinds: Mapping[str, type] | None = None


@dataclass(frozen=True)
class Chosen:
    """The columns that are read from a table. text: own name by field.  kept: to copy to the output.

    fielded: whether a document has its texts by field, or joined with blanks.
    """

    text: Mapping[str, str]
    kept: Sequence[str]
    fielded: bool
    about: str = ""

    @classmethod
    def of(cls, table: Table, source: Source, text: str | None, keep: str | None) -> Chosen:
        """Choose columns: those that are named, else those of the model's source; copy all but the labels."""
        columns, document = _columns(table, source, _names(text))
        labels = next(iter(table.present([source.columns.labels] if source.columns.labels else LABEL_COLUMNS)), None)
        kept = table.own(_names(keep)) if keep is not None else [name for name in table.columns if name != labels]
        own = table.own(columns)
        left = [name for name in source.fields if name not in columns] if document is dict else []
        about = f"text from {', '.join(own)}" + (f"; {', '.join(left)} left empty" if left else "")
        return cls(dict(zip(columns, own, strict=True)), kept, document is dict, about)

    def rows(self, table: Table, bad: Bad = raised) -> Iterator[Row]:
        """Yield the documents of a table that has these columns.  bad: called for a row that is none."""
        for number, texts, kept in self._cells(table, bad):
            try:
                words = list(map(cell_text, texts))
            except ValueError as error:
                problem = table.error(str(error), number)
                problem.__suppress_context__ = True
                bad(problem)
                continue
            document = dict(zip(self.text, words, strict=True)) if self.fielded else " ".join(words)
            yield Row(document, dict(zip(self.kept, kept, strict=True)))

    def _cells(self, table: Table, bad: Bad) -> Iterator[tuple[int, Sequence[Any], Sequence[Any]]]:
        """Yield (number, cells of text, cells to copy); in lines of JSON, keys that are only copied may be missing."""
        own = list(self.text.values())
        if not unpacked_name(Path(table.path)).endswith(".jsonl"):
            for number, values in table.rows([*own, *self.kept]):
                yield number, values[: len(own)], values[len(own) :]
            return
        for number, item in objects(Path(table.path), bad):
            missing = next((name for name in own if name not in item), None)
            if missing is None:
                yield number, [item[name] for name in own], [item.get(name) for name in self.kept]
            else:
                bad(table.error(f"no key {missing!r:.60} (keys: {', '.join(item)})", number))


def check_has_texts(path: Path) -> None:
    """Check that a path is no mapped data set, in which only names of labels and features are texts."""
    if (path / ABOUT).is_file():
        raise DataError("a mapped data set, which has features; give files of the texts that these were made of", path)


def texts_input(texts: Iterable[str]) -> Input:
    """Return texts as input."""
    return Input(lambda: (Row(text, {"text": text}) for text in texts), kinds={"text": str})


def opened_input(
    path: Path, source: Source, text: str | None = None, keep: str | None = None, encoding: str | None = None
) -> Input:
    """Open a file of texts, or standard input; columns and encoding default to those of the model's source.

    text: text columns.  keep: columns to copy; None is all but the labels.
    """
    encoding = encoding or source.columns.encoding or "utf-8"
    if path == STDIN:
        return texts_input(_stdin(encoding))
    if unpacked_name(path).endswith(".txt"):
        return texts_input(line.rstrip("\r\n") for line in text_lines(path, encoding))
    table = open_table(path, encoding)
    chosen = Chosen.of(table, source, text, keep)
    return Input(lambda: chosen.rows(table), chosen.kept, chosen.about, table.kinds)


def _names(text: str | None) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip())) if text else []


def _columns(table: Table, source: Source, given: list[str]) -> tuple[list[str], type]:
    """Return the text columns, and how they make a document: `dict` by field, or `str` joined with blanks."""
    fields = source.fields
    spelled = {name.casefold(): name for name in fields}
    given = [name if name in fields else spelled.get(name.casefold(), name) for name in given]
    if given and fields and set(given) <= set(fields):
        return given, dict
    if len(given) == 1 or (given and len(fields) < 2):
        return given, str
    if given:
        source.check_fields(given)
    if fields and all(table.column(name) for name in fields):
        return list(fields), dict
    found = table.present(TEXT_COLUMNS)
    if len(fields) > 1:
        missing = next(name for name in fields if table.column(name) is None)
        raise table.error(f"no column {missing!r:.60}: the model reads {', '.join(fields)}; "
                          f"name the text columns with --text (columns: {', '.join(table.columns)})")  # fmt: skip
    if not found:
        raise table.error(f"no text column found; name it with --text (columns: {', '.join(table.columns)})")
    return found, str


def _stdin(encoding: str) -> Iterator[str]:
    """Yield the lines of standard input."""
    lines = io.TextIOWrapper(sys.stdin.buffer, checked_encoding(encoding), newline=None)
    try:
        for number, line in enumerate(lines):
            yield (line.removeprefix("\ufeff") if number == 0 else line).rstrip("\n")
    except UnicodeError as error:
        raise DataError(
            f"not {encoding}: {reason(error)}; set the right one with --encoding", "standard input"
        ) from None
    finally:
        lines.detach()


def check_names(kept: Sequence[str], own: Sequence[str]) -> None:
    """Raise ConfigError if a copied column has the name of a column of the output."""
    clash = next((name for name in kept if name in own), None)
    if clash is not None:
        raise ConfigError(f"the input has a column {clash!r}, and so has the output; choose those to copy with --keep")
