"""Source code: a C file of the Linux kernel, labelled with the headers that it includes.

A point is a file: its code as content, at most 1,500 words and symbols, without comments, preprocessor lines and
strings; no title. Labels are the paths in `#include <...>`, and a label's text is its path. Headers that more than a
tenth of all files include (`linux/module.h`, `linux/slab.h`) are no labels.
"""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, debian

FOLDERS = ("block", "crypto", "drivers", "fs", "kernel", "lib", "mm", "net", "security", "sound", "virt")
LONGEST = 1_500  # words and symbols
COMMONEST = 0.1  # of the files

_INCLUDE = re.compile(r"^\s*#\s*include\s*<([^>]+)>", re.MULTILINE)
_LEFT_OUT = re.compile(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|^\s*#(?:\\\n|[^\n])*', re.DOTALL | re.MULTILINE)
_TOKEN = re.compile(r"\w+|[^\w\s]")


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the package, and parse the C files of some folders."""
    packages = debian(["linux-source-6.1"], folder)
    archive = next(packages[0].folder.glob("usr/src/linux-source-*.tar.xz"))
    return parse(files(archive)), packages


def files(archive: Path) -> Iterator[tuple[str, str]]:
    """Yield (path below the top folder, content) of C files."""
    with tarfile.open(archive, "r|xz") as members:
        for member in members:
            _, _, path = member.name.partition("/")
            if member.isfile() and path.endswith(".c") and path.startswith(FOLDERS):
                content = members.extractfile(member)
                assert content is not None
                yield path, content.read().decode("utf-8", "replace")


def parse(sources: Iterable[tuple[str, str]]) -> Corpus:
    """Parse (path, content) of C files."""
    points = []
    for path, text in sources:
        content = " ".join(_TOKEN.findall(_LEFT_OUT.sub(" ", text))[:LONGEST])
        points.append(Point(path, "", content, frozenset(_INCLUDE.findall(text))))
    counts = Counter(label for point in points for label in point.labels)
    common = {label for label, count in counts.items() if count > max(1, COMMONEST * len(points))}
    reduced = [point._replace(labels=point.labels - common) for point in points]
    return Corpus([point for point in reduced if point.labels], {})
