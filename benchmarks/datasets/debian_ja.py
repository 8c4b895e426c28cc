"""Japanese text: a Debian package's description in Japanese, labelled with its debtags.

A point is a package: the short description as title, the long one as content. Labels are debtags such as
`implemented-in::c++`; a label's text is the tag.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, output

_DESCRIPTION = "Description-ja"


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the lists of packages and of Japanese descriptions of the archives that apt knows."""
    lists = folder / "lists"
    (lists / "partial").mkdir(parents=True)
    options = ["-o", f"Dir::State::Lists={lists}", "-o", "Acquire::Languages=ja", "-o", "APT::Sandbox::User=root"]
    output(["apt-get", *options, "update"], folder)
    wanted = {"Packages", "Translations"}
    names = output(["apt-get", *options, "indextargets", "--format", "$(CREATED_BY) $(FILENAME)"], folder).splitlines()
    paths = [path for kind, _, path in (name.partition(" ") for name in sorted(names)) if kind in wanted]
    text = "".join(output(["/usr/lib/apt/apt-helper", *options, "cat-file", path], folder) + "\n" for path in paths)
    return parse(text.splitlines()), [Package("Translation-ja", released(lists), lists)]


def released(lists: Path) -> str:
    """Return the dates of the archives' releases."""
    dates: set[str] = set()
    for path in lists.glob("*Release"):
        dates.update(line.partition(" ")[2] for line in path.read_text().splitlines() if line.startswith("Date: "))
    return ", ".join(sorted(dates))


def parse(lines: Iterable[str]) -> Corpus:
    """Parse paragraphs of lists of packages and of descriptions, in any order."""
    tags: dict[str, set[str]] = {}
    texts: dict[str, str] = {}
    for fields in paragraphs(lines):
        name = fields.get("Package", "")
        tags.setdefault(name, set()).update(filter(None, fields.get("Tag", "").replace(",", " ").split()))
        if _DESCRIPTION in fields:
            texts[name] = fields[_DESCRIPTION]
    points: dict[str, Point] = {}
    for name, text in texts.items():
        title, _, content = text.partition("\n")
        if tags[name]:
            points.setdefault(text, Point(name, title, " ".join(content.split()), frozenset(tags[name])))
    return Corpus(list(points.values()), {})


def paragraphs(lines: Iterable[str]) -> Iterator[dict[str, str]]:
    """Yield the fields of each paragraph; lines that start with a space continue a field, and " ." is an empty one."""
    fields: dict[str, str] = {}
    name = ""
    for line in (*lines, ""):
        if not line.strip():
            if fields:
                yield fields
            fields = {}
        elif line.startswith(" "):
            fields[name] += "\n" + line.strip().removeprefix(".")
        else:
            name, _, value = line.partition(":")
            fields[name] = value.strip()
