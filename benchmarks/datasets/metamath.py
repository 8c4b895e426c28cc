"""Formal text: a theorem of Metamath's set.mm, labelled with the theorems, axioms and definitions that its proof uses.

A point is a theorem's hypotheses (content) and its assertion (title), without the comment. Labels are the names in the
header of its compressed proof; those of syntax (`wi`, `cA`) and hypotheses are no labels. A label's text is its own
assertion. Of theorems with equal texts (other proofs, old ones), the first is taken. Theorems that are labels
themselves get filter pairs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, debian

_COMMENT = re.compile(r"\$\(.*?\$\)", re.DOTALL)
_TURNSTILE = "|-"


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the package, and parse set.mm."""
    packages = debian(["metamath-databases"], folder)
    database = packages[0].folder / "usr/share/metamath/databases/set.mm"
    return parse(database.read_text(encoding="ascii")), packages


def parse(text: str) -> Corpus:
    """Parse a Metamath database."""
    assertions: dict[str, str] = {}
    points: dict[tuple[str, str], Point] = {}
    for name, kind, hypotheses, body in statements(_COMMENT.sub(" ", text)):
        assertion, _, proof = body.partition("$=")
        symbols = assertion.split()
        if symbols[0] != _TURNSTILE:  # a construct of the syntax
            continue
        assertions[name] = " ".join(symbols[1:])
        used = frozenset(cited(proof)) & assertions.keys()
        if kind == "$p" and used:
            point = Point(name, assertions[name], " ; ".join(hypotheses), used)
            points.setdefault((point.title, point.content), point)
    return Corpus(list(points.values()), assertions)


def statements(text: str) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield (name, "$a" or "$p", logical hypotheses in scope, body) for each assertion."""
    scopes: list[list[str]] = [[]]
    tokens = iter(text.split())
    previous = ""
    for token in tokens:
        if token == "${":
            scopes.append([])
        elif token == "$}":
            scopes.pop()
        elif token in ("$a", "$p", "$e", "$f", "$c", "$v", "$d"):
            body = " ".join(iter(lambda: next(tokens), "$."))
            if token == "$e":
                scopes[-1].append(body.removeprefix(_TURNSTILE).strip())
            elif token in ("$a", "$p"):
                yield previous, token, [hypothesis for scope in scopes for hypothesis in scope], body
        previous = token


def cited(proof: str) -> list[str]:
    """Return the names in the header of a compressed proof.

    >>> cited("( biimpi syl5 ) ABCDABEGFH")
    ['biimpi', 'syl5']
    """
    words = proof.split()
    return words[1 : words.index(")")] if words[:1] == ["("] else words
