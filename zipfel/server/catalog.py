"""The models that are served, each in a slot in which one version follows the other."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from zipfel import persistence
from zipfel.errors import DataError, did_you_mean
from zipfel.index.exact import PATIENCE
from zipfel.server.problem import Problem
from zipfel.tagger import Tagger

_LABEL, _TEXT = "\x1e", "\x1f"  # what stands before a label's name, and before its text


@dataclass(frozen=True)
class Loaded:
    """One version of a model."""

    id: str
    version: str
    tagger: Tagger

    @cached_property
    def places(self) -> dict[str, int]:
        """Where each label stands that can be predicted."""
        return self.tagger.live_labels()

    @cached_property
    def _haystack(self) -> tuple[str, list[int]]:
        """All names and texts as one string, in which a search takes no Python for each label, and their starts."""
        texts = self.tagger.label_notes_.texts or [""] * len(self.tagger.classes_)
        entries = [f"{_LABEL}{_folded(name)}{_TEXT}{_folded(texts[place])}" for name, place in self.places.items()]
        starts, position = [], 0
        for entry in entries:
            starts.append(position)
            position += len(entry)
        return "".join(entries), starts

    def search(self, query: str, limit: int) -> list[int]:
        """Return labels that have the query in their name or text: those that begin with it first, by name, by text."""
        wanted, found = _folded(query), dict[int, None]()
        for before in (_LABEL, _TEXT, ""):
            self._search(before + wanted, limit, found)
        places = list(self.places.values())
        return [places[number] for number in found]

    def _search(self, wanted: str, limit: int, found: dict[int, None]) -> None:
        haystack, starts = self._haystack
        position = haystack.find(wanted)
        while 0 <= position < len(haystack) and len(found) < limit:  # nothing is found at the very end too
            label = bisect_right(starts, position) - 1
            found[label] = None
            after = starts[label + 1] if label + 1 < len(starts) else len(haystack)
            position = haystack.find(wanted, after)

    def about(self, label: int) -> dict[str, Any]:
        """Return name, text and number of training points of a label."""
        texts, counts = self.tagger.label_notes_.texts, self.tagger.label_notes_.counts
        return {
            "name": self.tagger.classes_[label],
            "text": None if texts is None else texts[label],
            "count": None if counts is None else counts[label],
        }


def _folded(text: str) -> str:
    return text.casefold().replace(_LABEL, " ").replace(_TEXT, " ")


class Slot:
    """A model's place: what is current answers; a newer version takes its place when it is ready to answer."""

    def __init__(self, id: str, folder: Path) -> None:
        self.id, self.folder = id, folder
        self.current = load(id, folder)

    def newer(self) -> Loaded | None:
        """Return what the folder holds now, ready to answer, or None where that is what is current."""
        return None if version_of(self.folder) == self.current.version else load(self.id, self.folder)


def version_of(folder: Path) -> str:
    """Return a short name of a saved model's content."""
    return str(persistence.read_about(persistence.located(folder))["sha256"])[:12]


def load(id: str, folder: Path) -> Loaded:
    """Load a model, and let it tag a text as often as it takes until all is in place for single texts."""
    for _ in range(5):
        real = folder.resolve()  # a link that is turned while we read must not mix two models
        version = version_of(real)
        tagger = Tagger.load(real, device="cpu")
        if version_of(real) == version:
            break
    else:
        raise DataError("is being changed again and again; gave up loading it", folder)
    if tagger.features_ is None:
        raise DataError("was fitted on a matrix of features; only models of texts can be served", folder)
    for _ in range(PATIENCE + 1):
        tagger.predict(["ready"], 1)
    loaded = Loaded(id, version, tagger)
    loaded.places.get("")  # made here, not while others wait
    return loaded


class Catalog:
    """All slots; the first answers where no model is named."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.slots = {id: Slot(id, folder) for id, folder in folders.items()}
        self.default = next(iter(self.slots))

    def slot(self, id: str | None) -> Slot:
        """Return the slot of that name."""
        found = self.slots.get(self.default if id is None else id)
        if found is None:
            raise Problem(404, f"unknown model {id!r}{did_you_mean(str(id), self.slots)}")
        return found
