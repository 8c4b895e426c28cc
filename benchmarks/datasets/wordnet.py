"""Dictionary definitions: a noun's or verb's sense in WordNet, labelled with the senses above it.

A point is the gloss of a synset: its definition as title, and its examples as content. The words that it defines are
left out. Labels are its direct hypernyms (of instances too) and theirs, up to two levels; deeper ones are nearly
constant. A label's text is its words. Synsets that are labels themselves get filter pairs.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, debian

LEVELS = 2
_HYPERNYM = ("@", "@i")


class Synset(NamedTuple):
    """A line of a data file: its words, its gloss, and the uids of its hypernyms."""

    words: list[str]
    gloss: str
    hypernyms: list[str]


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the package, and parse its nouns and verbs."""
    packages = debian(["wordnet-base"], folder)
    lines: list[str] = []
    for kind in ("noun", "verb"):
        lines += (packages[0].folder / f"usr/share/wordnet/data.{kind}").read_text(encoding="utf-8").splitlines()
    return parse(lines), packages


def parse(lines: Iterable[str]) -> Corpus:
    """Parse lines of data files; those of the licence start with spaces."""
    synsets = dict(synset(line) for line in lines if not line.startswith("  "))
    points = []
    for uid, (_, gloss, _) in synsets.items():
        definition, _, examples = gloss.partition('; "')
        points.append(Point(uid, definition, examples.replace('"', ""), frozenset(above(uid, synsets))))
    return Corpus(points, {uid: ", ".join(item.words) for uid, item in synsets.items()})


def synset(line: str) -> tuple[str, Synset]:
    """Parse a line; the uid is the part of speech and the offset, since offsets of nouns and verbs may be equal."""
    data, _, gloss = line.partition(" | ")
    fields = data.split()
    count = int(fields[3], 16)
    words = [word.replace("_", " ") for word in fields[4 : 4 + 2 * count : 2]]
    first = 5 + 2 * count  # after the count of pointers: four fields each
    pointers = [fields[start : start + 4] for start in range(first, first + 4 * int(fields[first - 1]), 4)]
    hypernyms = [part + offset for symbol, offset, part, _ in pointers if symbol in _HYPERNYM]
    return fields[2] + fields[0], Synset(words, gloss.strip(), hypernyms)


def above(uid: str, synsets: dict[str, Synset]) -> set[str]:
    """Return the hypernyms of a synset and theirs, up to LEVELS."""
    found: set[str] = set()
    level = {uid}
    for _ in range(LEVELS):
        level = {hypernym for item in level for hypernym in synsets[item].hypernyms}
        found |= level
    return found - {uid}
