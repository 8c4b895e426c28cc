"""A thesaurus: concepts with names, synonyms, notes and broader concepts, in the language that people read."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zipfel.data.formats.files import printable
from zipfel.data.hierarchy import Hierarchy
from zipfel.data.labels import NOTATION, TITLE
from zipfel.errors import DataError, did_you_mean

NAME, LABEL, SYNONYM, MEANING, NOTE, CODE = range(6)  # kinds of text; LABEL is a name where there is no NAME
FIELDS = {NAME: TITLE, SYNONYM: "altLabel", MEANING: "definition", NOTE: "note", CODE: NOTATION}
_BETWEEN = {SYNONYM: " | "}  # texts of a field; others are joined by a blank
LISTED = 5  # examples in a note


@dataclass(frozen=True)
class Thesaurus:
    """Concepts as labels: URIs, fields of text by name, parents, the language, and notes on what was found.

    Each field has a text for each concept, which may be empty; the field of names is called such as `prefLabel@en`.
    """

    path: Path
    ids: list[str]
    fields: Mapping[str, list[str]]
    hierarchy: Hierarchy | None = None
    language: str = ""
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The name of each concept."""
        return next(iter(self.fields.values()))

    def named(self) -> dict[str, str]:
        """Return the URIs of concepts by name, without names that several concepts have."""
        counts = Counter(self.names)
        return {name: uri for name, uri in zip(self.names, self.ids, strict=True) if counts[name] == 1}

    def by_field(self) -> dict[str, dict[str, str]]:
        """Return the texts by field and URI."""
        return {field: dict(zip(self.ids, texts, strict=True)) for field, texts in self.fields.items()}


class Concepts:
    """Concepts as a file lists them, in all its languages; texts apart, they are flat arrays, so that millions fit."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}  # by URI
        self.declared, self.withdrawn = bytearray(), bytearray()  # whether it is a concept; whether it is deprecated
        self.languages: dict[str, int] = {"": 0}
        self.owners, self.kinds, self.spoken = array("i"), array("b"), array("i")  # of each text
        self.texts: list[str] = []
        self.children, self.parents = array("i"), array("i")
        self.unread = 0  # notes that are resources, not texts
        self.anonymous = 0  # concepts without a URI

    def number(self, uri: str) -> int:
        """Return the number of a URI, a new one if it is new."""
        number = self.numbers.get(uri)
        if number is None:
            number = self.numbers[uri] = len(self.declared)
            self.declared.append(0)
            self.withdrawn.append(0)
        return number

    def declare(self, uri: str) -> None:
        """Say that a URI is a concept."""
        self.declared[self.number(uri)] = 1

    def withdraw(self, uri: str) -> None:
        """Say that a concept is deprecated."""
        self.withdrawn[self.number(uri)] = 1

    def text(self, uri: str, kind: int, text: str, language: str = "") -> None:
        """Add a text of a concept, unless it is blank."""
        text = " ".join(text.split())
        if not text:
            return
        self.owners.append(self.number(uri))
        self.kinds.append(kind)
        self.spoken.append(self.languages.setdefault(language.lower(), len(self.languages)))
        self.texts.append(text)

    def broader(self, child: str, parent: str) -> None:
        """Add a broader concept."""
        self.children.append(self.number(child))
        self.parents.append(self.number(parent))

    def thesaurus(self, path: Path, language: str | None = None, hierarchy: bool = True) -> Thesaurus:
        """Return the concepts that are not deprecated, with names in a language; None is that of most names.

        hierarchy: whether to read it; one with a cycle is an error.
        """
        owners, kinds, spoken = (np.asarray(column) for column in (self.owners, self.kinds, self.spoken))
        kept, rows = self._kept(path, owners[kinds <= LABEL])
        named = (kinds <= LABEL) & (rows[owners] >= 0)
        chosen, ranks = self._ranks(path, spoken[named], language)
        texts = _Texts(rows[owners], kinds, spoken, ranks, self.texts)
        ids = list(compress(self.numbers, kept))
        best = texts.best(len(ids))
        notes = [*self._notes(kept, language, chosen), *_unnamed(ids, best, texts, self.languages, chosen)]
        fields = texts.fields(ids, best)
        title = f"{TITLE}@{chosen}" if chosen else TITLE
        named_fields = {title if kind == NAME else FIELDS[kind]: column for kind, column in fields.items()}
        return Thesaurus(
            path, ids, named_fields, self._hierarchy(path, ids, rows) if hierarchy else None, chosen, tuple(notes)
        )

    def _kept(self, path: Path, named: NDArray[np.int32]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Return which URIs are concepts to keep, and the row of each, -1 for others.  named: those with a name."""
        has_name = np.zeros(len(self.declared), dtype=bool)
        has_name[named] = True
        declared = np.frombuffer(bytes(self.declared), dtype=bool)
        kept = (declared if declared.any() else has_name) & ~np.frombuffer(bytes(self.withdrawn), dtype=bool)
        if not (kept & has_name).any():
            counts = {"without one": kept.sum(), "without a URI": self.anonymous, "deprecated": sum(self.withdrawn)}
            found = ", ".join(f"{count:,} {kind}" for kind, count in counts.items() if count) or "no concept"
            raise DataError(f"expected concepts with a name, such as a skos:prefLabel; found {found}", path)
        return kept, np.where(kept, np.cumsum(kept) - 1, -1)

    def _ranks(self, path: Path, spoken: NDArray[np.int32], language: str | None) -> tuple[str, NDArray[np.int64]]:
        """Return the language of names, and how far each language is from it: 0 is the same, 1 a variant, 2 none.

        Others follow, the most frequent first.
        """
        codes = list(self.languages)
        counts = np.bincount(spoken, minlength=len(codes))
        order = sorted(range(len(codes)), key=lambda code: (-counts[code], codes[code]))
        wanted = codes[order[0]] if language is None else language.lower()
        family = wanted.partition("-")[0]
        ranks = np.empty(len(codes), dtype=np.int64)
        for place, code in enumerate(order):
            own = codes[code]
            alike = own.partition("-")[0] == family
            ranks[code] = 0 if own == wanted else 1 if alike else 2 if not own else 3 + place
        if language is not None and not counts[ranks <= 1].any():
            known = [codes[code] for code in order if counts[code] and codes[code]]
            hint = did_you_mean(wanted, known) or "; names have no language there"
            raise DataError(f"no concept has a name in language {language!r:.40}{hint}", path)
        return wanted, ranks

    def _notes(self, kept: NDArray[np.bool_], language: str | None, chosen: str) -> list[str]:
        shown = f"names in language {chosen!r}" if chosen else "names without a language"
        notes = [f"{kept.sum():,} concepts, {shown}" + ("" if language else ", that of most names (--language)")]
        if any(self.withdrawn):
            notes.append(f"{sum(self.withdrawn):,} deprecated concepts left out")
        if self.anonymous:
            notes.append(f"{self.anonymous:,} concepts without a URI (blank nodes) left out")
        if self.unread:
            notes.append(f"{self.unread:,} definitions and notes are resources, not texts, and are not read")
        return notes

    def _hierarchy(self, path: Path, ids: Sequence[str], rows: NDArray[np.int64]) -> Hierarchy | None:
        """Return the broader concepts of those in `ids`; None if there are none.  A label does not imply these."""
        above: dict[str, list[str]] = {}
        pairs = zip(rows[np.asarray(self.children)].tolist(), rows[np.asarray(self.parents)].tolist(), strict=True)
        for child, parent in pairs if len(self.children) else ():
            if child >= 0 and parent >= 0:
                above.setdefault(ids[child], []).append(ids[parent])
        try:
            return Hierarchy.of(above, implied=False) if above else None
        except DataError as error:
            raise DataError(f"{error.problem}, or read no hierarchy with --parents none", path) from None


@dataclass(frozen=True)
class _Texts:
    """Texts of concepts with their rows (-1: of none that is kept), kinds and languages, and ranks of languages."""

    rows: NDArray[np.int64]
    kinds: NDArray[np.int8]
    spoken: NDArray[np.int32]
    ranks: NDArray[np.int64]
    texts: Sequence[str]

    def best(self, count: int) -> NDArray[np.int64]:
        """Return the number of the text that names each concept, -1 if none does."""
        numbers = np.flatnonzero((self.kinds <= LABEL) & (self.rows >= 0))
        order = np.lexsort((self.kinds[numbers], self.ranks[self.spoken[numbers]], self.rows[numbers]))
        numbers = numbers[order]
        owners, first = np.unique(self.rows[numbers], return_index=True)
        best = np.full(count, -1, dtype=np.int64)
        best[owners] = numbers[first]
        return best

    def fields(self, ids: Sequence[str], best: NDArray[np.int64]) -> dict[int, list[str]]:
        """Return the texts of concepts by kind: the name, and others in the language of the name or in none.

        A concept without a name is called by its URI.
        """
        names = [self.texts[number] if number >= 0 else uri for number, uri in zip(best.tolist(), ids, strict=True)]
        own = np.where(best >= 0, self.spoken[best], -1)[self.rows]  # language of the concept's name, by text
        right = (self.spoken == own) | (self.ranks[self.spoken] <= 2) | (self.kinds == CODE)
        right &= self.rows >= 0
        right[best[best >= 0]] = False
        kinds = np.where(self.kinds <= LABEL, SYNONYM, self.kinds)  # further names are synonyms
        fields = {NAME: names} | {int(kind): [""] * len(ids) for kind in np.unique(kinds[right])}
        for number in np.flatnonzero(right).tolist():
            kind, row, text = int(kinds[number]), int(self.rows[number]), self.texts[number]
            column = fields[kind]
            before = column[row]
            if text and text != names[row]:
                column[row] = f"{before}{_BETWEEN.get(kind, ' ')}{text}" if before else text
        return {kind: fields[kind] for kind in FIELDS if any(fields.get(kind, ()))}


def _unnamed(
    ids: Sequence[str], best: NDArray[np.int64], texts: _Texts, languages: Iterable[str], chosen: str
) -> list[str]:
    """Return notes on concepts without a name in the language: which other names they have, and which have none."""
    codes, spoken = list(languages), texts.spoken[best[best >= 0]]
    others = Counter(codes[code] for code in spoken[texts.ranks[spoken] >= 2].tolist() if codes[code] != chosen)
    notes = []
    if others:
        kinds = ", ".join(f"{count:,} {name or 'without a language'}" for name, count in others.most_common())
        notes.append(f"{others.total():,} concepts without a name in {chosen!r} have another one instead: {kinds}")
    missing = [uri for uri, number in zip(ids, best.tolist(), strict=True) if number < 0]
    if missing:
        notes.append(f"{len(missing):,} concepts without any name are called by their URI: {some(missing)}")
    return notes


def some(names: Iterable[str]) -> str:
    """Return the first names for a one-line message, long ones in full as far as 100 characters."""
    every = list(names)
    return ", ".join(printable(name, 100) for name in every[:LISTED]) + (", …" if len(every) > LISTED else "")
