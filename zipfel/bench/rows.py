"""Results by contestant: mean and standard deviation over seeds.

A contestant with plain and with chosen features is two contestants.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zipfel.bench.results import CHOSEN, NOT_INSTALLED, OK, PLAIN, Line, features_from, latest
from zipfel.choice import AUTO

ACCURACIES = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "coverage@5")
COSTS = {  # measurement to column heading
    "train_seconds": "train s",
    "train_cpu_seconds": "CPU s",
    "batch_ms": "ms/doc in batches",
    "alone_p50_ms": "ms alone p50",
    "alone_p99_ms": "p99",
    "startup_seconds": "start s",
    "model_mb": "model MB",
    "train_peak_mb": "peak MB, train",
    "predict_peak_mb": "peak MB, predict",
}
SUFFIXES = {PLAIN: "", CHOSEN: ", chosen features"}  # of titles
Key = tuple[str, str]  # contestant and kind of features


@dataclass(frozen=True)
class Row:
    """A contestant on a data set: means and standard deviations over its successful seeds."""

    data: str
    contestant: str
    base: str  # title without the kind of features
    ours: bool
    seeds: int
    means: dict[str, float]
    spreads: dict[str, float]  # empty for one seed
    failures: tuple[Line, ...]
    bins: tuple[tuple[int, int, float], ...] = ()  # lowest and highest frequency, contribution to P@5
    features: str = PLAIN
    main: str | None = None  # main model that `auto` chose

    @property
    def title(self) -> str:
        """The contestant and its features, if these are chosen: `omikuji Bonsai, chosen features`."""
        return f"{self.base}{SUFFIXES[self.features]}"

    @property
    def key(self) -> Key:
        """The contestant and its kind of features."""
        return self.contestant, self.features

    @property
    def is_auto(self) -> bool:
        """Whether zipfel has chosen the model by itself."""
        return self.ours and self.contestant.partition(":")[0] == AUTO

    @property
    def name(self) -> str:
        """The title, with the model that `auto` chose: `zipfel auto (MODEL), chosen features`."""
        return f"{self.base} ({self.main}){SUFFIXES[self.features]}" if self.main and self.is_auto else self.title

    def cell(self, name: str) -> str:
        """Return a table cell: `63.46 ± 0.12`; empty without a value."""
        if name not in self.means:
            return ""
        formatted = "{:.2f}".format if name in ACCURACIES else cost_cell
        spread = f" ± {formatted(self.spreads[name])}" if name in self.spreads else ""
        return formatted(self.means[name]) + spread


def cost_cell(value: float) -> str:
    """Return a time or size with at least two significant digits.

    >>> cost_cell(0.01234), cost_cell(1.26), cost_cell(312.6)
    ('0.012', '1.3', '313')
    """
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def data_sets(lines: Iterable[Line]) -> list[str]:
    """Return the names of the data sets, in the order they were run."""
    return list(dict.fromkeys(line["data"] for line in lines))


def rows(lines: Sequence[Line], data: str) -> list[Row]:
    """Return the contestants on a data set, best P@1 first, failed ones last."""
    unsorted = [_row(tested) for tested in tested_lines(lines, data).values()]
    return sorted(unsorted, key=lambda row: (-row.means.get("P@1", -1.0), row.key))


def tested_lines(lines: Sequence[Line], data: str) -> dict[Key, list[Line]]:
    """Return the test lines of each contestant, with its latest settings and features only."""
    tests: dict[Key, list[Line]] = {}
    for line in latest(lines):
        if line["part"] == "test" and line["data"] == data:
            tests.setdefault((line["contestant"], features_from(line)), []).append(line)
    return {key: [one for one in own if settings_of(one) == settings_of(own[-1])] for key, own in tests.items()}


def titled(line: Line) -> str:
    """Return the title of a line's contestant, with the kind of features."""
    return f"{line['title']}{SUFFIXES[features_from(line)]}"


def settings_of(line: Line) -> tuple[object, object]:
    """Return the settings of a contestant and those of its text features."""
    return line["settings"], line.get("text")


def _row(lines: Sequence[Line]) -> Row:
    first, good = lines[0], [line for line in lines if line["status"] == OK]
    figures = {
        name: [line[name] for line in good] for name in (*ACCURACIES, *COSTS) if good and all(name in g for g in good)
    }
    return Row(
        first["data"],
        first["contestant"],
        first["title"],
        first["ours"],
        len(good),
        {name: statistics.mean(values) for name, values in figures.items()},
        {name: statistics.stdev(values) for name, values in figures.items() if len(values) > 1},
        tuple(line for line in lines if line["status"] not in (OK, *([NOT_INSTALLED] if good else []))),
        _bins(good),
        features_from(first),
        next((line["chosen"]["main"] for line in good if "chosen" in line), None),
    )


def _bins(lines: Sequence[Line]) -> tuple[tuple[int, int, float], ...]:
    """Return the bins of label frequency with their mean contribution."""
    columns = zip(*(line["bins"] for line in lines), strict=True)
    return tuple(
        (column[0]["lowest"], column[0]["highest"], statistics.mean(one["contribution"] for one in column))
        for column in columns
    )
