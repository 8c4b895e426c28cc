"""ICD-10-CM as a data set: clinical phrases, labelled with the diagnosis codes they are filed under.

The wheel of `simple-icd-10-cm` holds the official tabular list as XML. So any machine with that package has a real
data set with label texts, a hierarchy and a long tail. Phrases come from two sources:

- An inclusion term or "includes" note of a code is filed under that code. Skipped are those that cite a code
  ("Conditions classifiable to C81" is empty without it), heads of lists ("Angiostrongyliasis due to:"), sentences on
  the use of a category, and the "includes" notes of sections and chapters, which are no codes.
- A note that cites codes in parentheses (excludes 1 and 2, use additional code, code first, code also) is filed under
  these codes. The parentheses are removed, and so are words of the instruction ("code to identify any associated", "if
  applicable"). Skipped are notes that still contain a code ("tendinitis as classified in M75-M77") and notes without a
  code of the list. Items of a list ("heart disease (in):", "gonococcal infection (A54.83)") are separate phrases, since
  nothing marks the end of such a list.

In parentheses, `J20.9`, `J20.-` and `J20` are that code. A range (`K92.0-K92.2`) means the topmost codes in it, if they
are at most ten; a wider range (`A00-B99`) names no diagnosis, and its note is skipped. Details that narrow a code
(`T22.- with fifth character 4`, a seventh character) are ignored: the phrase is filed under the code itself.

A phrase has its codes and all their ancestors, up to the category of three characters: J20.9 -> J20, J20.9. Phrases
that are equal but for case and spaces are one point with all their codes. A hash of the phrase sends a quarter of them
to test, so that a phrase stays in its part when the list changes. Labels are the codes in train: other codes are
dropped from test, and so are test phrases without any label; `Dataset.notes` says how many.
"""

from __future__ import annotations

import hashlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

from zipfel.data.dataset import Dataset, Part
from zipfel.data.given import label_matrix
from zipfel.errors import DataError, MissingDependencyError

WIDEST_RANGE = 10  # codes; a wider range is a chapter or section rather than a diagnosis
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


class TabularList(NamedTuple):
    """The content of the XML: codes with descriptions and parents (None for a category), terms and notes."""

    descriptions: dict[str, str]
    parents: dict[str, str | None]
    terms: list[tuple[str, str]]  # (code, phrase filed under it)
    notes: list[str]  # may cite codes

    def with_parents(self, code: str) -> Iterator[str]:
        """Yield the code, its parent, and so on up to the category."""
        ancestor: str | None = code
        while ancestor is not None:
            yield ancestor
            ancestor = self.parents[ancestor]


class Point(NamedTuple):
    """A phrase and all its codes."""

    text: str
    codes: set[str]


def load() -> Dataset:
    """Return ICD-10-CM, in the edition of the installed `simple-icd-10-cm`."""
    spec = find_spec("simple_icd_10_cm")  # importing the package would parse the list a second time
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError("simple-icd-10-cm", "the ICD-10-CM data set", "demo")
    folder = Path(spec.submodule_search_locations[0])
    editions = sorted(folder.glob("data/*.xml"))
    if not editions:
        raise DataError("the package simple-icd-10-cm has no data/*.xml", folder)
    return from_xml(editions[-1])


def from_xml(path: Path) -> Dataset:
    """Make the data set of a tabular list in XML."""
    tabular = read(path)
    parts: dict[bool, list[Point]] = {False: [], True: []}
    for key, point in phrases(tabular).items():
        parts[_digest(key)[0] < TEST_SHARE].append(point)
    train, held_out = parts[False], parts[True]
    if not train:
        raise DataError("the tabular list has no phrases for train", path)
    seen = set().union(*(point.codes for point in train))
    unseen = set().union(*(point.codes for point in held_out)) - seen
    test = [point for point in held_out if point.codes & seen]
    labels = sorted(seen)
    texts = ["; ".join(tabular.descriptions[ancestor] for ancestor in tabular.with_parents(code)) for code in labels]
    return Dataset(
        train=_part(train, labels),
        test=_part(test, labels),
        name="icd10cm",
        label_names=labels,
        label_texts={"title": texts},
        notes=(
            f"{len(unseen)} codes without a phrase in train dropped, "
            f"and {len(held_out) - len(test)} test phrases that have only such codes",
        ),
    )


def read(path: Path) -> TabularList:
    """Read a tabular list in XML."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise DataError(f"not an XML file: {error}", path, error.position[0]) from error
    tabular = TabularList({}, {}, [], [])
    for element in root.iter():
        if element.tag in ("chapter", "section"):
            tabular.notes.extend(_notes(element, _NOTES))
        if element.tag == "section":
            _read_codes(element, None, tabular, path)
    if not tabular.descriptions:
        raise DataError("not a tabular list of ICD-10-CM: no <section> with a <diag>", path)
    return tabular


def _read_codes(element: ElementTree.Element, parent: str | None, tabular: TabularList, path: Path) -> None:
    for diag in element.findall("diag"):
        code, description = _tidy(diag.findtext("name", "")), _tidy(diag.findtext("desc", ""))
        if not code or not description:
            raise DataError(f"<diag> {code or description!r} below {parent} lacks <name> or <desc>", path)
        tabular.descriptions[code], tabular.parents[code] = description, parent
        tabular.terms.extend((code, term) for term in _notes(diag, _TERMS))
        tabular.notes.extend(_notes(diag, _NOTES))
        _read_codes(diag, code, tabular, path)


def _notes(element: ElementTree.Element, kinds: Iterable[str]) -> list[str]:
    return [_tidy("".join(note.itertext())) for kind in kinds for note in element.findall(f"{kind}/note")]


def phrases(tabular: TabularList) -> dict[str, Point]:
    """Return the points by lower-case phrase, in the order of the list: terms first, then notes."""
    order = sorted(tabular.descriptions)
    points: dict[str, Point] = {}
    labelled = [(term.rstrip("."), [code]) for code, term in tabular.terms if not _USAGE.search(term)]
    labelled += [(phrase_of(note), cited(note, order)) for note in tabular.notes if not note.endswith(":")]
    for phrase, codes in labelled:
        if codes and any(map(str.isalpha, phrase)) and not _names_code(phrase, tabular):
            point = points.setdefault(phrase.lower(), Point(phrase, set()))
            point.codes.update(ancestor for code in codes for ancestor in tabular.with_parents(code))
    return points


def phrase_of(note: str) -> str:
    """Return a note without its codes and its words of instruction.

    >>> phrase_of("code, if applicable, to identify severe sepsis (R65.2-)")
    'severe sepsis'
    """
    phrase = _tidy(_ASIDE.sub(" ", _CITATION.sub(" ", note)))
    phrase = _LEAD.sub("", phrase).replace(" ,", ",").strip(" ,;:.")
    return phrase.removesuffix(" )")  # the list contains "(J91.0))"


def cited(note: str, order: Sequence[str]) -> list[str]:
    """Return the codes in the parentheses of a note; none if one of its ranges is too wide. order: all codes, sorted.

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
    past = bisect_right(order, last + "~")  # "~" sorts after all descendants of last
    topmost: list[str] = []
    for code in order[bisect_left(order, first) : past]:
        reaches_beyond = last.startswith(code) and code != last  # as D07 does: it includes D07.3 and later codes
        if not reaches_beyond and not (topmost and code.startswith(topmost[-1])):
            topmost.append(code)
    return topmost


def known(code: str, order: Sequence[str]) -> list[str]:
    """Return the code if it is in the list, else without its seventh character (and placeholders X), else nothing."""
    shorter = [code[:-1], code[:-1].rstrip("X.")] if len(code) == len("S06.0X0A") else []
    return next(([form] for form in (code, *shorter) if between(form, form, order)[:1] == [form]), [])


def _names_code(phrase: str, tabular: TabularList) -> bool:
    """Whether a phrase cites a code of the list; B12 is a vitamin, since the list has no such category."""
    return any(code[:3] in tabular.descriptions for code in _SINGLE.findall(phrase))


def _part(points: Sequence[Point], labels: Sequence[str]) -> Part:
    Y, texts = label_matrix([point.codes for point in points], labels), [point.text for point in points]
    return Part(Y=Y, texts={"title": texts}, uids=[_digest(text.lower()).hex() for text in texts])


def _digest(key: str) -> bytes:
    """Return eight bytes that depend only on the phrase: they are its uid, and the first decides its part."""
    return hashlib.blake2b(key.encode(), digest_size=8).digest()


def _tidy(text: str) -> str:
    return " ".join(text.split())
