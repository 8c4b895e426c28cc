"""Judging predictions, ours or anybody's: the ranking of a part's points against their labels, filters applied."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Propensity, without_pairs
from zipfel.data.formats.files import opened
from zipfel.data.formats.npz import read_counted
from zipfel.data.formats.sparse_text import Header, read_rows, shown
from zipfel.errors import DataError
from zipfel.types import Ranking


@dataclass(frozen=True)
class Report:
    """What a ranking is worth, in percent."""

    values: dict[str, float]  # P@1, nDCG@1, ..., by name
    macro: dict[str, float]  # averages over labels
    only_tail: dict[str, float]  # values over the points that have only tail labels
    only_tail_points: int
    bins: tuple[metrics.Bin, ...]  # what labels of each frequency contribute to P@k, k the largest
    propensity: Propensity
    points: int
    labels: int

    def as_json(self) -> dict[str, Any]:
        """Return one object with all figures, as `zipfel evaluate --json` writes it."""
        tail = {f"tail {name}": value for name, value in self.only_tail.items()}
        sizes = {"points": self.points, "labels": self.labels, "tail points": self.only_tail_points}
        bins = [dataclasses.asdict(piece) for piece in self.bins]
        return {**self.values, **self.macro, **tail, **sizes, **self.propensity._asdict(), "contributions": bins}


def evaluate(
    ranking: Ranking,
    dataset: Dataset,
    part: str = "test",
    ks: Sequence[int] = (1, 3, 5),
    propensity: Propensity | None = None,
) -> Report:
    """Judge a ranking of the points of `part`; filtered pairs are left out of ranking and truth alike."""
    points = dataset.parts.get(part)
    if points is None:
        raise DataError(f"{dataset.name or 'the data set'} has no {part} part")
    if len(ranking) != len(points):
        raise DataError(f"predictions for {len(ranking)} points, and {part} has {len(points)}")
    if points.filtered is not None:
        ranking = ranking.without(points.filtered)
    counts = dataset.label_counts
    propensity = propensity or dataset.propensity
    inverse = metrics.inverse_propensities(counts, len(dataset.train), *propensity)
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
    )


def ranked(scores: csr_array, dataset: Dataset, part: str = "test", k: int = 5) -> Ranking:
    """Rank scores [points, labels] of a part's points; filtered pairs go first, so that k labels are left."""
    filtered = dataset.parts[part].filtered
    return Ranking.of_scores(scores if filtered is None else without_pairs(scores, filtered), k)


def read_predictions(path: Path, points: int, labels: int) -> csr_array:
    """Read anybody's scores, [points, labels]: a scipy npz file, or text.

    Text has a line `label:score label:score` for each point, after a header `points labels` or without one.
    """
    if path.suffix == ".npy":
        raise DataError("scores are sparse: save them with scipy.sparse.save_npz, or as text", path)
    scores, repeated = read_counted(path) if path.suffix == ".npz" else _read_text(path, points, labels)
    if scores.shape != (points, labels):
        raise DataError(f"holds {scores.shape[0]} × {scores.shape[1]} scores, expected {points} × {labels}", path)
    if repeated:
        raise DataError(f"{repeated} labels stand twice in a row", path)
    return scores


def _read_text(path: Path, points: int, labels: int) -> tuple[csr_array, int]:
    """Read lines of `label:score` pairs, and count labels that repeat in a row."""
    with opened(path) as stream:
        first = stream.peek(256).split(b"\n")[0]  # type: ignore[attr-defined]
        with_header = bool(first.strip()) and b":" not in first
        if with_header and stream.readline().split() != [b"%d" % points, b"%d" % labels]:
            raise DataError(f"expected the header '{points} {labels}' or pairs, found {shown(first)}", path, 1)
        header = Header(points, labels, 0, "label", "the data set has")
        content = read_rows(stream, path, header, first_line=1 + with_header, zeros=True)
    return content.features, content.merged_features
