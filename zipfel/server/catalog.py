"""The served models, each in a slot that holds its current version."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from zipfel import persistence
from zipfel.errors import DataError, did_you_mean, quoted
from zipfel.index.exact import PATIENCE
from zipfel.server.answers import Problem
from zipfel.server.settings import Sources
from zipfel.tagger import Tagger

_LABEL, _TEXT = "\x1e", "\x1f"  # separators before a label's name and before its text


@dataclass(frozen=True)
class Loaded:
    """One version of a model, loaded."""

    id: str
    version: str
    tagger: Tagger
    mapped: Mapping[Path, persistence.Stamp] = field(default_factory=dict)  # files in memory; none if they were copied

    @property
    def label_ids(self) -> dict[str, int]:
        """Ids of the labels that can be predicted, by name."""
        return self.tagger.labels_.live

    @cached_property
    def _haystack(self) -> tuple[str, list[int]]:
        """All names and texts as one string, so that a search needs no Python loop, and where each label starts."""
        texts = self.tagger.labels_.texts or [""] * len(self.tagger.classes_)
        entries = [f"{_LABEL}{_folded(name)}{_TEXT}{_folded(texts[label])}" for name, label in self.label_ids.items()]
        starts, position = [], 0
        for entry in entries:
            starts.append(position)
            position += len(entry)
        return "".join(entries), starts

    def search(self, query: str, limit: int) -> list[int]:
        """Return ids of labels with the query in name or text; first if the name, then if the text begins with it."""
        query, matches = _folded(query), dict[int, None]()
        for prefix in (_LABEL, _TEXT, ""):
            self._search(prefix + query, limit, matches)
        labels = list(self.label_ids.values())
        return [labels[number] for number in matches]

    def _search(self, query: str, limit: int, matches: dict[int, None]) -> None:
        """Add to `matches` the numbers of entries that contain the query, up to the limit."""
        haystack, starts = self._haystack
        position = haystack.find(query)
        while 0 <= position < len(haystack) and len(matches) < limit:  # an empty query also matches at the very end
            number = bisect_right(starts, position) - 1
            matches[number] = None
            next_start = starts[number + 1] if number + 1 < len(starts) else len(haystack)
            position = haystack.find(query, next_start)

    def titled(self, name: str) -> dict[str, str]:
        """Return the title of a label as JSON has it: nothing where no label of the model has a title."""
        labels = self.tagger.labels_
        return {} if labels.titles is None else {"title": labels.title(name)}

    def titles(self, paths: Iterable[Iterable[str]]) -> dict[str, Any]:
        """Return the titles of the labels in paths as JSON has them, by label; nothing where labels have no titles."""
        labels = self.tagger.labels_
        return (
            {} if labels.titles is None else {"titles": {name: labels.title(name) for path in paths for name in path}}
        )

    def about(self, label: int) -> dict[str, Any]:
        """Return a label's name, title where labels have some, text (None if no label has one) and training points."""
        texts, counts = self.tagger.labels_.texts, self.tagger.labels_.counts
        return {
            "name": self.tagger.classes_[label],
            **self.titled(self.tagger.classes_[label]),
            "text": None if texts is None else texts[label],
            "count": counts[label],
        }


def _folded(text: str) -> str:
    return text.casefold().replace(_LABEL, " ").replace(_TEXT, " ")


class Slot:
    """A model's id, folder and current version, which a newer one replaces once it is loaded."""

    def __init__(self, id: str, folder: Path, device: str = "cpu", copy: bool = False) -> None:
        self.id, self.folder, self.device, self.copy = id, folder, device, copy
        self.current = load(id, folder, device, copy)

    def newer(self) -> Loaded | None:
        """Return the folder's model, loaded, if it is not the current version, or not the files in memory; else None.

        Files may be other ones of the same version: sound ones in the place of those that were overwritten.
        """
        mapped = {} if self.copy else persistence.stamps(persistence.located(self.folder.resolve()))
        if version_of(self.folder) == self.current.version and mapped == self.current.mapped:
            return None
        return load(self.id, self.folder, self.device, self.copy)


def version_of(folder: Path) -> str:
    """Return the version of a saved model: the first 12 digits of its checksum."""
    return str(persistence.read_about(persistence.located(folder))["sha256"])[:12]


def load(id: str, folder: Path, device: str = "cpu", copy: bool = False) -> Loaded:
    """Load a model and warm it up: tag single texts until the index has built all that it builds lazily.

    copy: into memory, instead of mapping its files.
    """
    for _ in range(5):
        target = folder.resolve()  # a link that changes while we read must not mix two models
        version, mapped = version_of(target), {} if copy else persistence.stamps(persistence.located(target))
        tagger = Tagger.load(target, device=device, copy=copy)
        if version_of(target) == version:
            break
    else:
        raise DataError("kept changing while it was loaded; try again when it is fully written", folder)
    if tagger.features_ is None:
        raise DataError("was fitted on a feature matrix; only models fitted on texts can be served", folder)
    if tagger.features_.vectors:
        raise DataError("was fitted on vectors beside texts; only models fitted on texts alone can be served", folder)
    for _ in range(PATIENCE + 1):
        tagger.predict(["ready"], 1)
    tagger.labels_.live.get("")  # build the cache now, not during a request
    return Loaded(id, version, tagger, mapped)


class Catalog:
    """All slots by model; the first model is the default, and the first slot of a model its default version."""

    def __init__(self, sources: Sources, device: str = "cpu", copy: bool = False) -> None:
        self.sources, self.device, self.copy = sources, device, copy
        self.versions: dict[str, list[Slot]] = {}
        for id, folders in sources.read().items():
            self.versions[id] = [Slot(id, folder, device, copy) for folder in folders]

    @property
    def default(self) -> str:
        """The model that answers requests which name none."""
        return next(iter(self.versions))

    @property
    def slots(self) -> list[Slot]:
        """All slots."""
        return [slot for slots in self.versions.values() for slot in slots]

    def slot(self, id: str | None, version: str | None = None) -> Slot:
        """Return the slot of a model and a version; None means the default."""
        slots = self.versions.get(self.default if id is None else id)
        if slots is None:
            raise Problem(404, f"unknown model {id!r}{did_you_mean(str(id), self.versions)}")
        if version is None:
            return slots[0]
        for slot in slots:
            if slot.current.version == version:
                return slot
        loaded = ", ".join(slot.current.version for slot in slots)
        raise Problem(404, f"version {quoted(version)} of the model is not loaded; loaded are {loaded}")
