"""Short fields: an icon of a web icon set, labelled with its search words.

A point is an icon: its name as title; its set, category and author as content. Labels are its tags and other names, in
lower case, but for those that are made of words of its own name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.datasets.corpus import Corpus, Point
from benchmarks.datasets.packages import Package, npm


class Icon(NamedTuple):
    """An entry of an icon set."""

    name: str
    fields: list[str]
    tags: list[str]


def fetch(folder: Path) -> tuple[Corpus, list[Package]]:
    """Download the packages, and parse their metadata."""
    packages = npm(READERS, folder)
    sets = {}
    for package in packages:
        file, reader = READERS[package.name]
        sets[package.name] = reader(json.loads((package.folder / file).read_bytes()))
    return parse(sets), packages


def material(entries: list[dict[str, Any]]) -> list[Icon]:
    """Read Material Design Icons; its tags are categories."""
    return [Icon(item["name"], [*item["tags"], item["author"]], item["aliases"]) for item in entries]


def tabler(entries: dict[str, dict[str, Any]]) -> list[Icon]:
    """Read Tabler Icons."""
    return [Icon(name, [item.get("category", "")], list(map(str, item["tags"]))) for name, item in entries.items()]


def lucide(entries: dict[str, list[str]]) -> list[Icon]:
    """Read Lucide."""
    return [Icon(name, [], tags) for name, tags in entries.items()]


def awesome(entries: dict[str, dict[str, Any]]) -> list[Icon]:
    """Read Font Awesome."""
    return [Icon(name, [item["label"]], list(map(str, item["search"]["terms"]))) for name, item in entries.items()]


READERS: dict[str, tuple[str, Callable[[Any], list[Icon]]]] = {
    "@mdi/svg": ("meta.json", material),
    "@tabler/icons": ("icons.json", tabler),
    "lucide-static": ("tags.json", lucide),
    "@fortawesome/fontawesome-free": ("metadata/icon-families.json", awesome),
}


def parse(sets: Mapping[str, Iterable[Icon]]) -> Corpus:
    """Make points of the icons of sets."""
    points = []
    for collection, icons in sets.items():
        for name, fields, tags in icons:
            words = set(_words(name))
            labels = {" ".join(_words(tag)) for tag in tags if not words.issuperset(_words(tag))}
            if labels:
                content = ", ".join(filter(None, (collection, *fields)))
                points.append(Point(f"{collection}/{name}", " ".join(_words(name)), content, frozenset(labels)))
    return Corpus(points, {})


def _words(name: str) -> list[str]:
    return name.lower().replace("-", " ").replace("_", " ").split()
