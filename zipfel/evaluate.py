"""Evaluation of predictions, zipfel's or other tools': a ranking of a part's points against their true labels."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part, Propensity, without_pairs
from zipfel.data.formats.files import opened
from zipfel.data.formats.npz import read_counted
from zipfel.data.formats.sparse_text import Header, read_rows, shown
from zipfel.data.hierarchy import Hierarchy, spread
from zipfel.data.labels import names_of
from zipfel.errors import DataError
from zipfel.types import Ranking

LEVELS = 50  # ranking for metrics at the levels of a hierarchy, where several labels share an ancestor


@dataclass(frozen=True)
class Level:
    """Metrics at one level of a hierarchy, over the points with labels at or below it.

    A label counts there as its ancestors of that level, with the highest score of the labels below them.
    """

    level: int  # 1 is the top
    labels: int
    points: int
    values: dict[str, float]  # P@1, nDCG@1, R@1, ... in percent

    def __str__(self) -> str:
        """Return the level in words."""
        return f"Level {self.level} of the hierarchy: {self.labels:,} labels, {self.points:,} points"


@dataclass(frozen=True)
class Report:
    """Metrics of a ranking, in percent.

    Args:
        values: P@1, nDCG@1, ... by name.
        macro: averages over labels.
        only_tail: `values` over the points that have only tail labels.
        only_tail_points: how many points these are.
        bins: contributions of label frequencies to P@k for the largest k.
        propensity: constants of the propensity-scored metrics.
        points: how many were evaluated.
        labels: how many there are.
        levels: metrics at each level of a hierarchy, from the top.

    Example:
        >>> part = Part(csr_array([[1, 0], [0, 1]]))
        >>> report = evaluate(Ranking.of_scores(part.Y, k=1), Dataset(part, test=part), ks=[1])
        >>> report.values["P@1"], report.points
        (100.0, 2)
    """

    values: dict[str, float]  # P@1, nDCG@1, ... by name
    macro: dict[str, float]  # averages over labels
    only_tail: dict[str, float]  # `values` over the points that have only tail labels
    only_tail_points: int
    bins: tuple[metrics.Bin, ...]  # contributions of label frequencies to P@k for the largest k
    propensity: Propensity
    points: int
    labels: int
    levels: tuple[Level, ...] = ()  # of a hierarchy, from the top

    def as_json(self) -> dict[str, Any]:
        """Return all figures as one object, as `zipfel evaluate --json` writes it.

        Returns:
            Metrics by name, sizes, constants of the propensities, and contributions of label frequencies.

        Example:
            >>> part = Part(csr_array([[1, 0], [0, 1]]))
            >>> figures = evaluate(Ranking.of_scores(part.Y, k=1), Dataset(part, test=part), ks=[1]).as_json()
            >>> figures["P@1"], figures["labels"]
            (100.0, 2)
        """
        tail = {f"tail {name}": value for name, value in self.only_tail.items()}
        sizes = {"points": self.points, "labels": self.labels, "tail points": self.only_tail_points}
        bins = [dataclasses.asdict(piece) for piece in self.bins]
        levels = {"levels": [{**about, **about.pop("values")} for about in map(dataclasses.asdict, self.levels)]}
        figures = {**self.values, **self.macro, **tail, **sizes, **self.propensity._asdict(), "contributions": bins}
        return figures | (levels if self.levels else {})


def metric_rows(values: Mapping[str, float], ks: Sequence[int]) -> list[list[str]]:
    """Return a row of a table for each metric: its name, and its value for each k."""
    names = dict.fromkeys(name.partition("@")[0] for name in values)
    return [[name, *(f"{values[f'{name}@{k}']:.2f}" for k in ks)] for name in names]


def evaluate(
    ranking: Ranking,
    dataset: Dataset,
    part: str = "test",
    ks: Sequence[int] = (1, 3, 5),
    propensity: Propensity | None = None,
) -> Report:
    """Evaluate a ranking of the points of a part; filtered pairs are removed from ranking and truth alike.

    Args:
        ranking: of the points of the part, in their order.
        dataset: the truth, and how frequent labels are in train.
        part: "test", "validation" or "train".
        ks: how many of the best labels to judge.
        propensity: constants A and B; None takes those of the data set.

    Returns:
        All metrics; `values` has P@k, nDCG@k, PSP@k and others.

    Example:
        >>> part = Part(csr_array([[1, 0], [0, 1]]))
        >>> ranking = Ranking.of_scores(csr_array([[0.9, 0.1], [0.6, 0.4]]), k=1)
        >>> evaluate(ranking, Dataset(part, test=part), ks=[1]).values["P@1"]
        50.0
    """
    points = dataset.parts.get(part)
    if points is None:
        raise DataError(f"{dataset.name or 'the data set'} has no {part} part")
    if len(ranking) != len(points):
        raise DataError(f"expected predictions for the {len(points)} points of {part}; found {len(ranking)}")
    if points.filtered is not None:
        ranking = ranking.without(points.filtered)
    counts = dataset.label_counts
    propensity = propensity or dataset.propensity
    train_points = len(dataset.train) if dataset.trained_on is None else dataset.trained_on.points
    inverse = metrics.inverse_propensities(counts, train_points, *propensity)
    tail = metrics.only_tail(points.Y, metrics.tail_labels(counts))
    tail_ranking = Ranking(ranking.ids[tail], ranking.scores[tail])
    return Report(
        values=metrics.measure(ranking, points.Y, inverse, ks),
        macro=metrics.macro(ranking, points.Y, ks),
        only_tail=metrics.measure(tail_ranking, points.Y[tail], inverse, ks) if tail.any() else {},
        only_tail_points=int(tail.sum()),
        bins=metrics.contributions(ranking, points.Y, counts, k=max(ks)),
        propensity=propensity,
        points=len(points),
        labels=dataset.sizes.labels,
        levels=() if dataset.hierarchy is None else tuple(_levels(dataset.hierarchy, ranking, dataset, points, ks)),
    )


def _levels(
    hierarchy: Hierarchy, ranking: Ranking, dataset: Dataset, points: Part, ks: Sequence[int]
) -> Iterator[Level]:
    """Yield the metrics at each level; the ranking should be long, since labels of a level share their ancestors."""
    names = names_of(dataset)
    for level in range(1, max(hierarchy.levels.values()) + 1):
        nodes = [name for name, own in hierarchy.levels.items() if own == level]
        membership = hierarchy.membership(names, nodes)
        truth = csr_array(points.Y @ membership)
        truth.data[:] = 1
        some = np.diff(truth.indptr) > 0
        if some.any():
            rolled = spread(ranking, membership)
            values = metrics.measure(Ranking(rolled.ids[some], rolled.scores[some]), truth[some], ks=ks)
            yield Level(level, len(nodes), int(some.sum()), values)


def ranked(scores: csr_array, dataset: Dataset, part: str = "test", k: int = 5) -> Ranking:
    """Rank scores of a part's points; filtered pairs are removed first, so that k labels remain.

    Args:
        scores: sparse, [points, labels]; only stored entries are ranked.
        dataset: the data set, which may have filtered pairs.
        part: "test", "validation" or "train".
        k: how many labels of each point.

    Returns:
        Ids of labels and their scores, [points, k].

    Example:
        >>> part = Part(csr_array([[1, 0]]))
        >>> ranked(csr_array([[0.2, 0.7]]), Dataset(part, test=part), k=1).ids
        array([[1]])
    """
    filtered = dataset.parts[part].filtered
    return Ranking.of_scores(scores if filtered is None else without_pairs(scores, filtered), k)


def read_predictions(path: Path, points: int, labels: int) -> csr_array:
    """Read scores of any tool, [points, labels], from a scipy npz file or from text.

    Text has a line `label:score label:score` for each point; a header line `points labels` is optional.
    """
    if path.suffix == ".npy":
        raise DataError("scores are sparse: save them with scipy.sparse.save_npz, or as text", path)
    scores, repeated = read_counted(path) if path.suffix == ".npz" else _read_text(path, points, labels)
    if scores.shape != (points, labels):
        raise DataError(f"expected {points} × {labels} scores; found {scores.shape[0]} × {scores.shape[1]}", path)
    if repeated:
        raise DataError(f"labels must not repeat within a row; {repeated} repeated", path)
    return scores


def _read_text(path: Path, points: int, labels: int) -> tuple[csr_array, int]:
    """Read lines of `label:score` pairs, and count labels that repeat in a line."""
    with opened(path) as stream:
        first = stream.peek(256).split(b"\n")[0]  # type: ignore[attr-defined]
        with_header = bool(first.strip()) and b":" not in first
        if with_header and stream.readline(256).split() != [b"%d" % points, b"%d" % labels]:
            raise DataError(f"expected the header '{points} {labels}' or pairs, found {shown(first)}", path, 1)
        header = Header(points, labels, 0, "label", "the data set has")
        content = read_rows(stream, path, header, first_line=1 + with_header, zeros=True)
    return content.features, content.merged_features
