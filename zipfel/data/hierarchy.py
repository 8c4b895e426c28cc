"""A hierarchy of labels: parents by name, several where wanted, and its effects on data and rankings."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

import numpy as np
from scipy.sparse import csr_array, vstack

from zipfel.data.dataset import Dataset, Part
from zipfel.errors import DataError
from zipfel.types import Ranking, stored

ARROW = " › "  # between the labels of a path
PATHS = 3  # that are shown of a label with several


@dataclass(frozen=True)
class Hierarchy:
    """Parents of labels, by name: a graph without cycles. Parents need not be labels of the data set.

    >>> Hierarchy.of({"laser": ["printer", "optics"], "printer": "hardware"}).paths("laser")
    [['optics', 'laser'], ['hardware', 'printer', 'laser']]
    """

    parents: Mapping[str, Sequence[str]]  # of the labels that have any
    filled: bool = False  # whether points have the ancestors of their labels too
    implied: bool = (
        True  # whether a label implies those above it, which then score at least as much; not in a thesaurus
    )

    @classmethod
    def of(cls, parents: Mapping[str, str | Iterable[str]], filled: bool = False, implied: bool = True) -> Hierarchy:
        """Return a hierarchy of one parent or several for each label; raise DataError if it has a cycle."""
        listed = {str(name): (given,) if isinstance(given, str) else given for name, given in parents.items()}
        made = cls({name: tuple(dict.fromkeys(map(str, several))) for name, several in listed.items()}, filled, implied)
        _ = made.order
        return made

    @cached_property
    def order(self) -> list[str]:
        """All names, parents before their children."""
        try:
            return list(TopologicalSorter(self.parents).static_order())
        except CycleError as error:
            cycle = [f"{name!r:.80}" for name in error.args[1]]
            shown = ARROW.join(cycle if len(cycle) <= 8 else [*cycle[:7], "…", cycle[-1]])
            raise DataError(f"the hierarchy of labels has a cycle: {shown}; remove one of these parents") from None

    @cached_property
    def levels(self) -> dict[str, int]:
        """Level of each name: 1 without parents, else one below its lowest parent. No label is below its own level."""
        levels: dict[str, int] = {}
        for name in self.order:
            levels[name] = 1 + max((levels[parent] for parent in self.parents.get(name, ())), default=0)
        return levels

    def ancestors(self, name: str) -> list[str]:
        """Return all ancestors of a label, nearest first; none if it is unknown."""
        found = dict.fromkeys(self.parents.get(name, ()))
        waiting = list(found)
        for ancestor in waiting:  # grows while it is read
            new = [parent for parent in self.parents.get(ancestor, ()) if parent not in found]
            found.update(dict.fromkeys(new))
            waiting += new
        return waiting

    def paths(self, name: str, most: int = PATHS) -> list[list[str]]:
        """Return up to `most` paths from a label without parents down to this one, the shortest first."""
        done, waiting, reached = list[list[str]](), [[name]], Counter[str]()
        while waiting and len(done) < most:
            path = waiting.pop(0)
            reached[path[0]] += 1
            if reached[path[0]] > most:  # `most` shorter paths come this way too; their number may be exponential
                continue
            parents = self.parents.get(path[0], ())
            waiting += [[parent, *path] for parent in parents]
            if not parents:
                done.append(path)
        return done

    def above(self, names: Iterable[str]) -> Hierarchy:
        """Return the part of the hierarchy that these labels and their ancestors are in."""
        wanted = {node for name in names for node in (name, *self.ancestors(name))}
        return dataclasses.replace(self, parents={name: up for name, up in self.parents.items() if name in wanted})

    def merged(self, other: Hierarchy | None) -> Hierarchy:
        """Return this hierarchy with the parents of another, which replace those of the same label."""
        return self if other is None else Hierarchy.of({**self.parents, **other.parents}, self.filled, self.implied)

    def renamed(self, names: Mapping[str, str]) -> Hierarchy:
        """Return the hierarchy with other names for some labels."""
        return Hierarchy.of(
            {names.get(name, name): [names.get(parent, parent) for parent in given]
             for name, given in self.parents.items()},
            self.filled,
            self.implied,
        )  # fmt: skip

    def membership(self, names: Sequence[str], nodes: Sequence[str]) -> csr_array:
        """Return [names, nodes]: 1 where a label is the node or below it."""
        ids = {node: number for number, node in enumerate(nodes)}
        rows = [[ids[node] for node in (name, *self.ancestors(name)) if node in ids] for name in names]
        indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows]))).astype(np.int64)
        indices = np.array([node for row in rows for node in row], dtype=np.int64)
        return csr_array((np.ones(len(indices), np.float32), indices, indptr), shape=(len(names), len(nodes)))


def spread(ranking: Ranking, membership: csr_array, filtered: csr_array | None = None) -> Ranking:
    """Replace each label of a ranking by the nodes that it belongs to; a node's score is the highest of its labels.

    membership: [labels, nodes].  filtered: pairs [points, nodes] that must not be ranked.
    """
    rows, ranks = np.nonzero(ranking.ids >= 0)
    labels, scores = ranking.ids[rows, ranks], ranking.scores[rows, ranks]
    counts = np.diff(membership.indptr)[labels]
    starts = np.repeat(membership.indptr[labels] - np.cumsum(counts) + counts, counts)
    nodes = membership.indices[starts + np.arange(counts.sum())].astype(np.int64)
    rows, scores = np.repeat(rows, counts), np.repeat(scores, counts)
    order = np.lexsort((-scores, nodes, rows))
    rows, nodes, scores = rows[order], nodes[order], scores[order]
    first = np.ones(len(rows), dtype=bool)  # the best of each (row, node)
    first[1:] = (rows[1:] != rows[:-1]) | (nodes[1:] != nodes[:-1])
    if filtered is not None:
        first &= ~stored(filtered, rows, nodes)
    return Ranking.of_pairs(rows[first], nodes[first], scores[first], len(ranking), ranking.k)


def with_hierarchy(dataset: Dataset, hierarchy: Hierarchy, ancestors: bool = False) -> Dataset:
    """Return a data set with a hierarchy of its labels.

    ancestors: give each point the ancestors of its labels too; ancestors that are not labels yet become labels.
    """
    names = list(dataset.label_names or map(str, range(dataset.sizes.labels)))
    kept = hierarchy.above(names)
    if not kept.parents:
        example = next(iter(hierarchy.parents), None)
        found = "the hierarchy is empty" if example is None else f"the hierarchy names {example!r:.60}"
        raise DataError(f"no label of the data set has a parent: {found}, and the first label is {names[0]!r:.60}")
    missing = sum(name not in kept.levels for name in names)
    note = [f"{missing} of {len(names)} labels are not in the hierarchy"] if missing else []
    notes = tuple(dict.fromkeys((*dataset.notes, *note)))
    kept = dataclasses.replace(kept, filled=ancestors, implied=kept.implied or ancestors)
    dataset = dataclasses.replace(dataset, hierarchy=kept, label_names=names, notes=notes)
    return _filled(dataset, kept, names) if ancestors else dataset


def _filled(dataset: Dataset, hierarchy: Hierarchy, names: list[str]) -> Dataset:
    new = sorted(hierarchy.levels.keys() - set(names))
    every = [*names, *new]
    membership = hierarchy.membership(names, every)

    def filled(part: Part) -> Part:
        filtered = None
        if part.filtered is not None:
            filtered = csr_array(vstack([part.filtered.T, csr_array((len(new), len(part)))]).T)
        return dataclasses.replace(part, Y=part.Y @ membership, filtered=filtered)

    texts = {field: [*column, *[""] * len(new)] for field, column in (dataset.label_texts or {}).items()} or None
    Z = None if dataset.Z is None else csr_array(vstack([dataset.Z, csr_array((len(new), dataset.Z.shape[1]))]))
    return dataset.with_parts(filled, label_names=every, label_texts=texts, Z=Z)
