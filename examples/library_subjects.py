"""Tag books with subjects of a thesaurus: `python examples/library_subjects.py [THESAURUS]`.

Labels are URIs. The thesaurus (SKOS) gives their names in each language, synonyms, and broader concepts. It needs the
extra `skos`: `pip install 'zipfel[skos]'`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from zipfel import Tagger
from zipfel.data.formats.thesaurus import read_thesaurus

BASE = "http://example.org/subjects/"
BOOKS = {  # titles, and their subjects
    "how a violin is built": ["s3"],
    "violin lessons for adults": ["s3"],
    "varnish and wood of old violins": ["s3"],
    "harps, lutes and guitars": ["s2"],
    "strings and bows of the orchestra": ["s2", "s3"],
    "songs for a village choir": ["s4"],
    "four voices: how choirs sing": ["s4"],
    "a history of music": ["s1"],
    "pruning apple and pear trees": ["s6"],
    "apple varieties of the north": ["s6"],
    "planting a plum tree": ["s6", "s8"],
    "climbing roses for every wall": ["s7"],
    "roses without thorns": ["s7"],
    "worms, leaves and good soil": ["s8"],
    "what your soil needs in spring": ["s8"],
    "the garden through the year": ["s5"],
}
NEW = ("repair of a cracked violin", "the apple harvest", "a choir of children")


def main(thesaurus: str = str(Path(__file__).parent / "subjects.ttl")) -> None:
    """Train, tag with names beside URIs, show broader concepts, and find the subject that a phrase means."""
    english, german = read_thesaurus(thesaurus, language="en"), read_thesaurus(thesaurus, language="de")
    subjects = [[BASE + name for name in names] for names in BOOKS.values()]
    tagger = Tagger("decaf", "fast", text={"min_count": 1}).fit([*BOOKS], subjects, label_texts=english)
    labels, in_german = tagger.labels_, dict(zip(german.ids, german.names, strict=True))
    for text, ((best, score),) in zip(NEW, tagger.predict(NEW, k=1), strict=True):
        path = " > ".join(labels.title(uri) for uri in labels.paths(best)[0])
        print(f"{text}: {labels.title(best)} <{best}> {score:.2f}; {path}; in German: {in_german[best]}")
    for phrase in ("fiddles", "orchards"):  # synonyms, which no title has
        meant = tagger.ground(phrase, k=1)[0]
        print(f"{phrase} means: {meant.title} <{meant.label}>")


if __name__ == "__main__":
    main(*sys.argv[1:])
