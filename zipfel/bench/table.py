"""Results as tables and sentences: mean and standard deviation over seeds, the chosen model, and where it loses."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from zipfel.bench.results import NOT_INSTALLED, OK, Line, latest

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
GOALS = ("P@1", "P@5", "PSP@1", "PSP@5")  # metrics in which a model is compared with its peers


@dataclass(frozen=True)
class Row:
    """A contestant on a data set: means and standard deviations over its successful seeds."""

    data: str
    contestant: str
    title: str
    ours: bool
    seeds: int
    means: dict[str, float]
    spreads: dict[str, float]  # empty for one seed
    failures: tuple[Line, ...]
    bins: tuple[tuple[int, int, float], ...] = ()  # lowest and highest frequency, contribution to P@5

    def cell(self, name: str) -> str:
        """Return a table cell: `63.46 ± 0.12`; empty without a value."""
        if name not in self.means:
            return ""
        formatted = "{:.2f}".format if name in ACCURACIES else _cost
        spread = f" ± {formatted(self.spreads[name])}" if name in self.spreads else ""
        return formatted(self.means[name]) + spread


def _cost(value: float) -> str:
    """Return a time or size with at least two significant digits.

    >>> _cost(0.01234), _cost(1.26), _cost(312.6)
    ('0.012', '1.3', '313')
    """
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def data_sets(lines: Iterable[Line]) -> list[str]:
    """Return the names of the data sets, in the order they were run."""
    return list(dict.fromkeys(line["data"] for line in lines))


def rows(lines: Sequence[Line], data: str) -> list[Row]:
    """Return the contestants on a data set, best P@1 first, failed ones last."""
    unsorted = [_row(tested) for tested in _tested(lines, data).values()]
    return sorted(unsorted, key=lambda row: (-row.means.get("P@1", -1.0), row.contestant))


def _tested(lines: Sequence[Line], data: str) -> dict[str, list[Line]]:
    """Return the test lines of each contestant, with its latest settings only."""
    tests: dict[str, list[Line]] = {}
    for line in latest(lines):
        if line["part"] == "test" and line["data"] == data:
            tests.setdefault(line["contestant"], []).append(line)
    return {name: [one for one in own if one["settings"] == own[-1]["settings"]] for name, own in tests.items()}


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
    )


def _bins(lines: Sequence[Line]) -> tuple[tuple[int, int, float], ...]:
    """Return the bins of label frequency with their mean contribution."""
    columns = zip(*(line["bins"] for line in lines), strict=True)
    return tuple(
        (column[0]["lowest"], column[0]["highest"], statistics.mean(one["contribution"] for one in column))
        for column in columns
    )


def chosen(lines: Sequence[Line], data: str) -> Row | None:
    """Return our model with the best P@1 on validation among those with a test; None if there is none."""
    ours = {row.contestant: row for row in rows(lines, data) if row.ours and row.seeds}
    settings = {name: tested[-1]["settings"] for name, tested in _tested(lines, data).items() if name in ours}
    evaluated = [
        line
        for line in latest(lines)
        if (line["part"], line["data"], line["status"]) == ("validation", data, OK)
        and settings.get(line["contestant"]) == line["settings"]
    ]
    best = max(evaluated, key=lambda line: line["P@1"], default=None)
    return None if best is None else ours[best["contestant"]]


def best_peers(lines: Sequence[Line], data: str) -> dict[str, Row]:
    """Return the best peer for each goal."""
    others = [row for row in rows(lines, data) if not row.ours and row.seeds]
    return {goal: max(others, key=lambda row: row.means[goal]) for goal in GOALS} if others else {}


def standing(lines: Sequence[Line], data: str) -> str:
    """Return a sentence on where our model, chosen on validation, is ahead of every peer and where it loses."""
    ours, peers = chosen(lines, data), best_peers(lines, data)
    if ours is None:
        return f"{data}: no model of ours has results on validation and on test."
    if not peers:
        return f"{data}: {ours.title}, and no peer to compare it with."
    leads = {goal: ours.means[goal] - peer.means[goal] for goal, peer in peers.items()}
    ahead = [f"{goal} (by {lead:.2f})" for goal, lead in leads.items() if lead > 0]
    behind = [f"{goal} ({_gap(lead)} {peers[goal].title})" for goal, lead in leads.items() if lead <= 0]
    if not behind:
        return f"{data}: {ours.title} is ahead of every peer in {', '.join(ahead)}."
    leading = f" It is ahead in {', '.join(ahead)}." if ahead else ""
    return f"{data}: {ours.title} **loses** in {', '.join(behind)}.{leading}"


def _gap(lead: float) -> str:
    return f"{-lead:.2f} behind" if lead <= -0.005 else "level with"


def markdown(lines: Sequence[Line]) -> str:
    """Return a Markdown page: for each data set a table of all contestants, the failures, and our standing."""
    return "\n".join(_section(lines, data) for data in data_sets(lines))


def _section(lines: Sequence[Line], data: str) -> str:
    contestants = rows(lines, data)
    if not contestants:
        return f"## {data}\n\nNo tests yet.\n"
    picked = chosen(lines, data)
    tested = [line for own in _tested(lines, data).values() for line in own]
    about = "; ".join([together(tested, "machine"), f"threads {together(tested, 'threads')}",
                       f"limit {together(tested, 'limit')} s", f"commit {together(tested, 'commit')}"])  # fmt: skip
    seeds = max(row.seeds for row in contestants)
    heads = ["contestant", *ACCURACIES, *COSTS.values()]
    names = (*ACCURACIES, *COSTS)
    body = [[_name(row, picked), *(_best(row, name, contestants) for name in names)] for row in contestants]
    failed = [f"- {row.title}: {why}" for row in contestants for why in dict.fromkeys(map(_failure, row.failures))]
    parts = [
        f"## {data}\n",
        f"Mean ± standard deviation of {seeds} seed{'s' * (seeds != 1)}. {about}.\n",
        pipes(heads, body),
        *(["", *failed] if failed else []),
        "",
        standing(lines, data),
        "",
    ]
    return "\n".join(parts)


def together(lines: Iterable[Line], name: str) -> str:
    """Return all values of an entry, so that lines of different runs cannot pass for one run."""
    values = dict.fromkeys(line[name] for line in lines)
    return ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)


def _name(row: Row, picked: Row | None) -> str:
    marked = f"**{row.title}** (chosen on validation)" if row == picked else row.title
    statuses = dict.fromkeys(line["status"] for line in row.failures)
    return f"{marked}: {', '.join(statuses)}" if statuses else marked


def _best(row: Row, name: str, contestants: Sequence[Row]) -> str:
    """Return a cell, bold if its accuracy is the best of all."""
    cell = row.cell(name)
    most = max(other.means.get(name, -1.0) for other in contestants)
    return f"**{cell}**" if cell and name in ACCURACIES and row.means[name] == most else cell


def _failure(line: Line) -> str:
    last = next((text for text in reversed(str(line.get("why", "")).splitlines()) if text.strip()), "")
    return f"{line['status']}: {last.strip()[:200]}"


def pipes(heads: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    table = [heads, ["---"] + ["--:"] * (len(heads) - 1), *body]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in table)
