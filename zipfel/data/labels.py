"""The labels of a fitted model: names, texts, counts, and which were removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.cells import checked_name
from zipfel.data.dataset import Dataset, Part, Texts
from zipfel.data.hierarchy import Hierarchy, spread
from zipfel.data.phrases import Phrases
from zipfel.errors import ConfigError, DataError, did_you_mean
from zipfel.types import Ids, Ranking, Scores

TITLE, NOTATION = (
    "prefLabel",
    "notation",
)  # fields of label texts: the name that people see, also with a language (prefLabel@en)
COMPARED = 10_000  # labels that an unknown name is compared with: a million would take long


@dataclass(frozen=True)
class LabelSpace:
    """Labels by id. Ids are stable: a removed label keeps its id, and new labels are appended."""

    names: list[str]
    counts: list[int]  # training points of each label
    texts: list[str] | None = None  # None where no label has one
    removed: tuple[int, ...] = ()  # ids that are never predicted again
    points: int = 0  # training points; 0 where a saved model does not say
    hierarchy: Hierarchy | None = None
    titles: list[str] | None = None  # names that people see, where labels are URIs; None where no label has one
    notations: list[str] | None = None
    language: str = ""  # of the titles, such as en

    @classmethod
    def of(cls, dataset: Dataset) -> LabelSpace:
        """Return the labels of a data set."""
        names = names_of(dataset)
        return cls(names, [0] * len(names)).counted(dataset)

    def __len__(self) -> int:
        """Return the number of labels, removed ones included."""
        return len(self.names)

    @cached_property
    def live(self) -> dict[str, int]:
        """The labels that can be predicted, and their ids."""
        removed = set(self.removed)
        return {name: label for label, name in enumerate(self.names) if label not in removed}

    @cached_property
    def phrases(self) -> Phrases:
        """The names and synonyms of the labels that can be predicted, to find labels by; made on first use."""
        return Phrases.of(self.live, self.texts or [""] * len(self))

    def title(self, name: str) -> str:
        """Return the name that people see for a label: its title, or else its own name."""
        label = self.live.get(name)
        return name if self.titles is None or label is None else self.titles[label] or name

    def named(self, title: str) -> str:
        """Return the label whose title this is; the title itself if it is a label, or the title of none or several."""
        if self.titles is None or title in self.live:
            return title
        found = [name for name, label in self.live.items() if self.titles[label] == title]
        return found[0] if len(found) == 1 else title

    def paths(self, name: str) -> list[list[str]]:
        """Return the paths from the top of the hierarchy to a label; none if it has no parent."""
        return [] if self.hierarchy is None or not self.hierarchy.parents.get(name) else self.hierarchy.paths(name)

    @cached_property
    def _downwards(self) -> tuple[csr_array, NDArray[np.int64]]:
        """[labels, others], 1 where the other is above or the same, and the ids of these others, highest first."""
        assert self.hierarchy is not None
        levels = [self.hierarchy.levels.get(name, 0) for name in self.unique_names]
        order = np.argsort(levels, kind="stable")
        nodes = [self.unique_names[label] for label in order]
        return self.hierarchy.membership(self.unique_names, nodes), order

    def consistent(self, ranking: Ranking, filtered: csr_array | None = None) -> Ranking:
        """Return a ranking in which no label scores higher than a label above it; without a hierarchy, the same one.

        filtered: pairs [points, labels] that must not be ranked.
        """
        if self.hierarchy is None or not self.hierarchy.implied:
            return ranking
        membership, order = self._downwards
        raised = spread(ranking, membership, None if filtered is None else csr_array(filtered[:, order]))
        return Ranking(np.where(raised.ids >= 0, order[raised.ids], -1), raised.scores).set_apart()

    @cached_property
    def unique_names(self) -> list[str]:
        """Names of all labels; removed ones, which may share the name of a live one, are marked."""
        removed = set(self.removed)
        return [f"removed {label}: {name}" if label in removed else name for label, name in enumerate(self.names)]

    def ids(self, names: Iterable[str]) -> list[int]:
        """Return the ids of labels, or raise ConfigError for an unknown one."""
        if isinstance(names, str):
            raise ConfigError(f"expected a list of labels; found a single one, {names!r}")
        wanted = [name if name in self.live else checked_name(name) for name in names]
        unknown = next((name for name in wanted if name not in self.live), None)
        if unknown is not None:
            raise ConfigError(f"unknown label {unknown!r}{did_you_mean(str(unknown), self.live, self._like(unknown))}")
        return [self.live[name] for name in wanted]

    def _like(self, name: object) -> list[str]:
        """Return the labels to compare a name with: all, or up to COMPARED with the same first letter in any case."""
        if len(self.live) <= COMPARED:
            return list(self.live)
        first = str(name)[:1].casefold()
        return list(islice((other for other in self.live if other[:1].casefold() == first), COMPARED))

    @cached_property
    def frequent(self) -> tuple[Ids, Scores]:
        """Ids of the labels that can be predicted, most frequent first, and their shares of the training points."""
        counts = np.array(self.counts, dtype=np.int64)
        shares = (counts / max(self.points or int(counts.sum()), 1)).astype(np.float32)
        order = np.argsort(-shares, kind="stable")
        order = order[~np.isin(order, self.removed)]
        return order, shares[order]

    def mask(self, points: int) -> csr_array | None:
        """Return the removed labels as filtered pairs of each point, [points, labels]; None where there are none."""
        if not self.removed:
            return None
        ids = np.tile(np.array(self.removed), points)
        ends = np.arange(points + 1) * len(self.removed)
        return csr_array((np.ones(len(ids), dtype=np.float32), ids, ends), shape=(points, len(self)))

    # --- Changes ------------------------------------------------------------------------------------------------------

    def extended(self, dataset: Dataset) -> LabelSpace:
        """Return the labels with those of a data set appended that are not known yet."""
        new = [name for name in names_of(dataset) if name not in self.live]
        return self._appended(new, None)

    def counted(self, dataset: Dataset) -> LabelSpace:
        """Return the labels with the counts, texts and hierarchy of a data set.

        Counts and points add up; a new text that is not empty replaces the old one. The fields of a text are joined by
        newlines.
        """
        names = names_of(dataset)
        counts = dict(zip(names, dataset.label_counts.tolist(), strict=True))
        rows = zip(*dataset.label_texts.values(), strict=True) if dataset.label_texts else ()
        texts = {name: "\n".join(filter(None, row)) for name, row in zip(names, rows, strict=False)}
        old = self.texts or [""] * len(self)
        merged = [texts.get(name) or text for name, text in zip(self.unique_names, old, strict=True)]
        totals = [count + counts.get(name, 0) for name, count in zip(self.unique_names, self.counts, strict=True)]
        points = self.points + len(dataset.train) if self.points or not any(self.counts) else 0
        hierarchy = dataset.hierarchy if self.hierarchy is None else self.hierarchy.merged(dataset.hierarchy)
        texts_now = merged if texts or self.texts else None
        return replace(
            self, counts=totals, texts=texts_now, points=points, hierarchy=hierarchy, **self._titled(dataset)
        )

    def _titled(self, dataset: Dataset) -> dict[str, Any]:
        """Return the titles, notations and language that the label texts of a data set bring; they replace old ones."""
        changed: dict[str, Any] = {}
        for attribute, field in (("titles", TITLE), ("notations", NOTATION)):
            own = next((name for name in dataset.label_texts or {} if name.partition("@")[0] == field), None)
            if own is None:
                continue
            given = dict(zip(names_of(dataset), (dataset.label_texts or {})[own], strict=True))
            old = getattr(self, attribute) or [""] * len(self)
            changed[attribute] = [given.get(name) or text for name, text in zip(self.unique_names, old, strict=True)]
            if field == TITLE:
                changed["language"] = own.partition("@")[2] or self.language
        return changed

    def described(self, texts: Mapping[str, str]) -> LabelSpace:
        """Return the labels with new ones appended, which have a text and no points."""
        known = first_duplicate([*self.live, *map(str, texts)])
        if known is not None:
            raise ConfigError(f"there is already a label {known!r}")
        return self._appended(list(map(str, texts)), list(texts.values()))

    def _appended(self, names: list[str], texts: list[str] | None) -> LabelSpace:
        old = self.texts if texts is None else self.texts or [""] * len(self)
        more = None if old is None else [*old, *(texts or [""] * len(names))]
        none = [""] * len(names)
        titles, notations = (old and [*old, *none] for old in (self.titles, self.notations))
        counts = [*self.counts, *[0] * len(names)]
        return replace(self, names=[*self.names, *names], counts=counts, texts=more, titles=titles, notations=notations)

    def without(self, names: Iterable[str]) -> LabelSpace:
        """Return the labels with some removed."""
        return replace(self, removed=tuple(sorted({*self.removed, *self.ids(names)})))

    def renamed(self, names: Mapping[str, str]) -> LabelSpace:
        """Return the labels with some renamed, from old names to new ones."""
        ids, new = self.ids(names), [checked_name(name) for name in names.values()]
        taken = first_duplicate([*(set(self.live) - {self.names[label] for label in ids}), *new])
        if taken is not None:
            raise ConfigError(f"two labels would be called {taken!r}")
        renamed = list(self.names)
        for label, name in zip(ids, new, strict=True):
            renamed[label] = name
        hierarchy = None if self.hierarchy is None else self.hierarchy.renamed(dict(zip(names, new, strict=True)))
        return replace(self, names=renamed, hierarchy=hierarchy)

    def aligned(self, dataset: Dataset) -> Dataset:
        """Return a data set whose labels have the ids of these, which must include them."""
        columns = np.array([self.live[name] for name in names_of(dataset)])

        def moved(matrix: csr_array) -> csr_array:
            shape = (matrix.shape[0], len(self))
            return csr_array((matrix.data, columns[matrix.indices], matrix.indptr), shape=shape)

        def part(old: Part) -> Part:
            return replace(old, Y=moved(old.Y), filtered=None if old.filtered is None else moved(old.filtered))

        Z = None if dataset.Z is None else csr_array(moved(csr_array(dataset.Z.T)).T)
        return dataset.with_parts(part, label_names=self.unique_names, label_texts=None, Z=Z)

    # --- Saving -------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return the labels as JSON."""
        document = dataclasses.asdict(self)
        if self.hierarchy is not None and self.hierarchy.implied:
            del document["hierarchy"]["implied"]
        seldom = ("hierarchy", "titles", "notations", "language")
        return {key: value for key, value in document.items() if value or key not in seldom}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> LabelSpace:
        """Return the labels that `as_json` was called on."""
        hierarchy = document.get("hierarchy")
        given = None if hierarchy is None else Hierarchy(**hierarchy)
        labels = cls(**{**document, "removed": tuple(document["removed"]), "hierarchy": given})
        columns = (labels.names, labels.counts, labels.names if labels.texts is None else labels.texts)
        sizes = [len(column) for column in columns]
        if len({*sizes}) > 1:
            raise DataError(f"labels.json has {sizes[0]} names, {sizes[1]} counts and {sizes[2]} texts")
        for kind in ("titles", "notations"):
            column = getattr(labels, kind)
            if column is not None and (len(column) != len(labels) or not all(isinstance(text, str) for text in column)):
                raise DataError(f"labels.json: expected {len(labels)} {kind} that are text")
        if not all(isinstance(name, str) for name in labels.names):
            raise DataError("labels.json: the name of a label is not text")
        if not all(0 <= label < len(labels) for label in labels.removed):
            raise DataError(f"labels.json: a removed label is outside 0..{len(labels) - 1}")
        return labels


def names_of(dataset: Dataset) -> list[str]:
    """Return the names of a data set's labels; their numbers where they have no names."""
    return list(dataset.label_names or map(str, range(dataset.sizes.labels)))


def first_duplicate(names: Iterable[str]) -> str | None:
    """Return the first name that occurs a second time."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def have_text(texts: Texts) -> list[bool]:
    """Return for each label whether it has a text in one of the fields.

    >>> have_text({"title": ["a", " ", ""], "notes": ["", "b", ""]})
    [True, True, False]
    """
    return [any(text.strip() for text in row) for row in zip(*texts.values(), strict=True)]


def has_letters(name: str) -> bool:
    """Whether a name can be read as text, unlike a number.

    >>> has_letters("html5"), has_letters("35"), has_letters("水")
    (True, False, True)
    """
    return any(map(str.isalpha, name))


def names_as_texts(names: Sequence[str], texts: Texts | None, known: Container[str] = ()) -> Texts:
    """Return label texts in which names fill in for missing ones.

    Names that are mere numbers, such as columns of a matrix, say nothing. Labels in `known` keep their existing text.
    """
    texts = texts or {"text": [""] * len(names)}
    field, column = next(iter(texts.items()))
    rows = zip(column, have_text(texts), names, strict=True)
    filled = [text if has or name in known or not has_letters(name) else name for text, has, name in rows]
    return {**texts, field: filled}
