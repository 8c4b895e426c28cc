"""ICD-10-CM as a data set: a clinical phrase -> the diagnosis codes it is filed under.

The wheel of `simple-icd-10-cm` holds the official tabular list as XML, so that any machine with that package has a
real data set with label texts, a hierarchy and a long tail. Phrases come from two places:

- An inclusion term or an "includes" note of a code is filed under that code. Left out are those that cite a code
  ("Conditions classifiable to C81": without the code they say nothing), heads of lists ("Angiostrongyliasis due to:"),
  sentences on the use of a category, and what a section or chapter includes, as those are no codes.
- A note that cites codes in parentheses (excludes 1 and 2, use additional code, code first, code also) is filed under
  those, with the parentheses cut out. Words of the instruction ("code to identify any associated", "if applicable")
  are cut too. Left out are notes that still have a code ("tendinitis as classified in M75-M77") and notes with no code
  that the list knows. Items of a list ("heart disease (in):", "gonococcal infection (A54.83)") stand alone, as nothing
  marks where such a list ends.

In parentheses, `J20.9`, `J20.-` and `J20` are that code. A range (`K92.0-K92.2`) is the topmost codes in it, if those
are at most ten; a wider one (`A00-B99`) names no diagnosis, and its note is left out. What only narrows a code (`T22.-
with fifth character 4`, a seventh character) is ignored: the phrase is filed under the code before it.

A phrase has its codes and all above them, up to the category of three characters: J20.9 -> J20, J20.9. The same phrase
from several places (but for case and spaces) is one point with all their codes. A hash of the phrase sends a quarter
of the phrases to test, so that a phrase stays in its part when the list changes. Labels are the codes that train has:
others are left out of test, and so are test phrases that have no other; `Dataset.notes` tells how many.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, NamedTuple
from xml.etree import ElementTree

import numpy as np
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part
from zipfel.errors import DataError, MissingDependencyError

WIDEST_RANGE = 10  # codes; a range of more is a chapter or section rather than a diagnosis
TEST_SHARE = 64  # of the 256 values of a hash's first byte

_TERMS = ("inclusionTerm", "includes")
_NOTES = ("excludes1", "excludes2", "useAdditionalCode", "codeFirst", "codeAlso")

_CODE = r"\b[A-Z]\d[0-9A-Z](?:\.[0-9A-Z]{1,4})?(?![0-9A-Za-z])"
_SINGLE = re.compile(_CODE)
_RANGE = re.compile(rf"({_CODE})(?:[.\s-]*-\s*| to )({_CODE})")  # A04.0-A04.4, F10.- -F19.-, S12.0--S12.3-
_CITATION = re.compile(rf"\([^()]*{_CODE}[^()]*\)")
_USAGE = re.compile(r"^(?:This (?:category|code)|These codes|Use two codes)\b|:$")  # sentences, heads of lists
_ASIDE = re.compile(r"[\s,]*\bif (?:applicable|known|present)\b[\s,:]*|\s*-\s*code to .*")
_LEAD = re.compile(
    r"^(?:[\s,:]*(?:(?:(?:external )?cause )?code(?:s|\(s\))?|to (?:further )?(?:identify|specify|indicate)"
    r"|for|the|any|associated|such as)(?![\w-]))+"
)

Source = str | Path | IO[bytes]


class TabularList(NamedTuple):
    """What the XML holds: codes with descriptions and parents (None for a category), and its phrases."""

    descriptions: dict[str, str]
    parents: dict[str, str | None]
    terms: list[tuple[str, str]]  # (code, phrase filed under it)
    notes: list[str]  # those that may cite codes

    def with_parents(self, code: str) -> Iterator[str]:
        """Yield the code, its parent, and so on up to the category."""
        above: str | None = code
        while above is not None:
            yield above
            above = self.parents[above]


class Point(NamedTuple):
    """A phrase and all its codes."""

    text: str
    codes: set[str]


def load() -> Dataset:
    """Return ICD-10-CM, of the edition that the installed `simple-icd-10-cm` holds."""
    spec = find_spec("simple_icd_10_cm")  # to import the package would parse the list a second time
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError("simple-icd-10-cm", "the ICD-10-CM data set", "demo")
    folder = Path(spec.submodule_search_locations[0])
    editions = sorted(folder.glob("data/*.xml"))
    if not editions:
        raise DataError("the package simple-icd-10-cm has no data/*.xml", folder)
    return from_xml(editions[-1])


def from_xml(source: Source) -> Dataset:
    """Return the data set of a tabular list in XML."""
    tabular = read(source)
    parts: dict[bool, list[Point]] = {False: [], True: []}
    for key, point in phrases(tabular).items():
        parts[_digest(key)[0] < TEST_SHARE].append(point)
    train, held_out = parts[False], parts[True]
    if not train:
        raise DataError("the tabular list has no phrase to learn from", _path(source))
    seen = set().union(*(point.codes for point in train))
    unseen = set().union(*(point.codes for point in held_out)) - seen
    test = [point for point in held_out if point.codes & seen]
    labels = sorted(seen)
    texts = ["; ".join(tabular.descriptions[above] for above in tabular.with_parents(code)) for code in labels]
    return Dataset(
        train=_part(train, labels),
        test=_part(test, labels),
        name="icd10cm",
        label_names=labels,
        label_texts={"title": texts},
        notes=(
            f"{len(unseen)} codes that no phrase of train has were left out, "
            f"and {len(held_out) - len(test)} test phrases that have no other",
        ),
    )


def read(source: Source) -> TabularList:
    """Read a tabular list in XML."""
    try:
        root = ElementTree.parse(source).getroot()
    except ElementTree.ParseError as error:
        raise DataError(f"not an XML file: {error}", _path(source), error.position[0]) from error
    tabular = TabularList({}, {}, [], [])
    for element in root.iter():
        if element.tag in ("chapter", "section"):
            tabular.notes.extend(_notes(element, _NOTES))
        if element.tag == "section":
            _read_codes(element, None, tabular, source)
    if not tabular.descriptions:
        raise DataError("no <section> with a <diag>: not a tabular list of ICD-10-CM", _path(source))
    return tabular


def _read_codes(element: ElementTree.Element, parent: str | None, tabular: TabularList, source: Source) -> None:
    for diag in element.findall("diag"):
        code, description = _tidy(diag.findtext("name", "")), _tidy(diag.findtext("desc", ""))
        if not code or not description:
            raise DataError(f"<diag> {code or description!r} below {parent} lacks <name> or <desc>", _path(source))
        tabular.descriptions[code], tabular.parents[code] = description, parent
        tabular.terms.extend((code, term) for term in _notes(diag, _TERMS))
        tabular.notes.extend(_notes(diag, _NOTES))
        _read_codes(diag, code, tabular, source)


def _notes(element: ElementTree.Element, kinds: Iterable[str]) -> list[str]:
    return [_tidy("".join(note.itertext())) for kind in kinds for note in element.findall(f"{kind}/note")]


def phrases(tabular: TabularList) -> dict[str, Point]:
    """Return the points by their phrase in lower case, in the order of the list: first terms, then notes."""
    order = sorted(tabular.descriptions)
    points: dict[str, Point] = {}
    found = [(term.rstrip("."), [code]) for code, term in tabular.terms if not _USAGE.search(term)]
    found += [(phrase_of(note), cited(note, order)) for note in tabular.notes if not note.endswith(":")]
    for phrase, codes in found:
        if codes and any(map(str.isalpha, phrase)) and not _names_code(phrase, tabular):
            point = points.setdefault(phrase.lower(), Point(phrase, set()))
            point.codes.update(above for code in codes for above in tabular.with_parents(code))
    return points


def phrase_of(note: str) -> str:
    """Return a note without its codes and without the words of the instruction.

    >>> phrase_of("code, if applicable, to identify severe sepsis (R65.2-)")
    'severe sepsis'
    """
    phrase = _tidy(_ASIDE.sub(" ", _CITATION.sub(" ", note)))
    phrase = _LEAD.sub("", phrase).replace(" ,", ",").strip(" ,;:.")
    return phrase.removesuffix(" )")  # the list has a "(J91.0))"


def cited(note: str, order: Sequence[str]) -> list[str]:
    """Return the codes in a note's parentheses; none if one of its ranges is too wide. `order`: all codes, sorted.

    >>> cited("melena and others (K92.0-K92.2, J40)", ["J40", "K92", "K92.0", "K92.1", "K92.2", "K92.8"])
    ['K92.0', 'K92.1', 'K92.2', 'J40']
    """
    citation = " ".join(_CITATION.findall(note))
    ranges = [between(first, last, order) for first, last in _RANGE.findall(citation)]
    if any(len(codes) > WIDEST_RANGE for codes in ranges):
        return []
    singles = (known(code, order) for code in _SINGLE.findall(_RANGE.sub(" ", citation)))
    return [code for codes in (*ranges, *singles) for code in codes]


def between(first: str, last: str, order: Sequence[str]) -> list[str]:
    """Return the topmost codes from `first` to `last`, both included: D06-D07.3 is D06, D07.0, ..., D07.3."""
    inside = order[bisect_left(order, first) : bisect_right(order, last + "~")]  # "~" sorts after what is below last
    topmost: list[str] = []
    for code in inside:
        reaches_beyond = last.startswith(code) and code != last  # as D07 does: it holds D07.3 and what follows
        if not reaches_beyond and not (topmost and code.startswith(topmost[-1])):
            topmost.append(code)
    return topmost


def known(code: str, order: Sequence[str]) -> list[str]:
    """Return the code if the list has it, or what is left of it without its seventh character, or nothing."""
    shorter = [code[:-1], code[:-1].rstrip("X.")] if len(code) == len("S06.0X0A") else []
    return next(([found] for found in (code, *shorter) if between(found, found, order)[:1] == [found]), [])


def _names_code(phrase: str, tabular: TabularList) -> bool:
    """Tell whether a phrase cites a code; B12 is a vitamin, as the list has no such category."""
    return any(code[:3] in tabular.descriptions for code in _SINGLE.findall(phrase))


def _part(points: Sequence[Point], labels: Sequence[str]) -> Part:
    column = {code: place for place, code in enumerate(labels)}
    pairs = [(row, column[code]) for row, point in enumerate(points) for code in point.codes if code in column]
    rows, columns = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    Y = csr_array((np.ones(len(pairs), dtype=np.float32), (rows, columns)), shape=(len(points), len(labels)))
    texts = [point.text for point in points]
    return Part(Y=Y, texts={"title": texts}, uids=[_digest(text.lower()).hex() for text in texts])


def _digest(key: str) -> bytes:
    """Return eight bytes that depend on nothing but the phrase: its uid, and its part by the first of them."""
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def _tidy(text: str) -> str:
    return " ".join(text.split())


def _path(source: Source) -> str | None:
    return str(source) if isinstance(source, str | Path) else None
