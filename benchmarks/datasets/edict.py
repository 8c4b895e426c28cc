"""Japanese words: an entry of EDICT, labelled with the English words of its translation.

A point is a word: its spellings as title, its readings as content. Lines with equal translations are one word. Labels
are the words in its translation, without remarks in parentheses and a few function words; a label's text is the word.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, debian

_ENTRY = re.compile(r"(?P<spelling>\S+) (?:\[(?P<reading>[^]]+)\] )?/(?P<translation>.*)/$")
_REMARK = re.compile(r"\([^()]*\)|\{[^{}]*\}")
_WORD = re.compile(r"[a-z][a-z'-]*[a-z]")
_FUNCTION_WORD = re.compile(r"an|and|as|at|be|by|for|from|in|into|is|it|of|off|on|one's|or|out|that|the|to|up|with")


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the package, and parse the dictionary; its first line is a notice."""
    packages = debian(["edict"], folder)
    text = (packages[0].folder / "usr/share/edict/edict").read_text(encoding="euc_jp", errors="replace")
    return parse(text.splitlines()[1:]), packages


def parse(lines: Iterable[str]) -> Corpus:
    """Parse lines of EDICT."""
    entries: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in lines:
        if entry := _ENTRY.match(line):
            translation = entry["translation"].removesuffix("/(P)")  # a mark of common spellings
            entries[translation].append((entry["spelling"], entry["reading"] or ""))
    points = []
    for translation, forms in entries.items():
        title, content = (" ".join(dict.fromkeys(form)).strip() for form in zip(*forms, strict=True))
        points.append(Point(" ".join(forms[0]).strip(), title, content, words(translation)))
    return Corpus(list({point.uid: point for point in points}.values()), {})


def words(translation: str) -> frozenset[str]:
    """Return the words of a translation.

    >>> sorted(words("(n,vs) (1) return (to)/revolution/(P)"))
    ['return', 'revolution']
    """
    found = _WORD.findall(_REMARK.sub(" ", translation).lower())
    return frozenset(word for word in found if not _FUNCTION_WORD.fullmatch(word))
