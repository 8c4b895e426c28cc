"""Our model on a data set against every peer: ahead, level or behind, by means and standard errors over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from zipfel.bench.results import CHOSEN, OK, Line, features_from, latest
from zipfel.bench.rows import Row, rows, settings_of, tested_lines
from zipfel.choice import AUTO

GOALS = ("P@1", "P@5", "PSP@1", "PSP@5")  # metrics in which a model is compared with its peers
ERRORS = 2.0  # standard errors of the difference of two means, within which they are level
ROUNDING = 0.05  # a smaller difference would not be seen in README's table
BEHIND, LEVEL, AHEAD = -1, 0, 1


def chosen(lines: Sequence[Line], data: str) -> Row | None:
    """Return our model: `auto`, as `zipfel train` has it; without it, the one with the best P@1 on validation.

    A rule and held-out points of train choose what `auto` is, so it needs no validation. None if no model has a test,
    or if `auto` was tried and did not finish.
    """
    auto = [row for row in rows(lines, data) if row.is_auto]
    if auto:
        best = min(auto, key=lambda row: (row.contestant != AUTO, row.features != CHOSEN, row.contestant))
        return best if best.seeds else None
    return _best_on_validation(lines, data)


def _best_on_validation(lines: Sequence[Line], data: str) -> Row | None:
    ours = {row.key: row for row in rows(lines, data) if row.ours and row.seeds}
    settings = {key: settings_of(tested[-1]) for key, tested in tested_lines(lines, data).items() if key in ours}
    evaluated = [
        line
        for line in latest(lines)
        if (line["part"], line["data"], line["status"]) == ("validation", data, OK)
        and settings.get((line["contestant"], features_from(line))) == settings_of(line)
    ]
    best = max(evaluated, key=lambda line: line["P@1"], default=None)
    return None if best is None else ours[best["contestant"], features_from(best)]


def peers(lines: Sequence[Line], data: str) -> list[Row]:
    """Return the peers with results, with plain and with chosen features."""
    return [row for row in rows(lines, data) if not row.ours and row.seeds]


def best_peers(lines: Sequence[Line], data: str) -> dict[str, Row]:
    """Return the best peer for each goal, by its mean."""
    others = peers(lines, data)
    return {goal: max(others, key=lambda row: row.means[goal]) for goal in GOALS} if others else {}


def error_of_difference(a: Row, b: Row, name: str) -> float:
    """Return the standard error of the difference of two means, √(s_a² / n_a + s_b² / n_b).

    A contestant that ran once counts as one without randomness, so that the error is the other's; 0 if both ran once.
    """
    return math.hypot(*(row.spreads[name] / math.sqrt(row.seeds) for row in (a, b) if name in row.spreads))


def verdict(ours: Row, peer: Row, name: str) -> int:
    """Return whether ours is AHEAD, BEHIND, or LEVEL: a difference within two standard errors."""
    lead = ours.means[name] - peer.means[name]
    if abs(lead) <= ERRORS * error_of_difference(ours, peer, name) or abs(lead) < ROUNDING:
        return LEVEL
    return AHEAD if lead > 0 else BEHIND


@dataclass(frozen=True)
class Comparison:
    """Our model against every peer in one metric; `rival` is the peer that is hardest to beat."""

    verdict: int  # AHEAD only of every peer, BEHIND of any
    lead: float
    rival: Row


def comparisons(lines: Sequence[Line], data: str) -> dict[str, Comparison]:
    """Return the comparison of our model with every peer, for each goal; empty without a model or a peer."""
    ours, others = chosen(lines, data), peers(lines, data)
    if ours is None or not others:
        return {}
    return {goal: _against(ours, others, goal) for goal in GOALS}


def _against(ours: Row, others: Sequence[Row], goal: str) -> Comparison:
    every = [Comparison(verdict(ours, row, goal), ours.means[goal] - row.means[goal], row) for row in others]
    return min(every, key=lambda one: (one.verdict, one.lead))


def standing(lines: Sequence[Line], data: str) -> str:
    """Return a sentence on where our model loses to a peer, where it is level, and where it is ahead of all."""
    ours, compared = chosen(lines, data), comparisons(lines, data)
    if ours is None:
        return f"{data}: no model of ours has results, neither auto nor one with validation and test."
    if not compared:
        return f"{data}: {ours.name}, and no peer to compare it with."
    groups = {kind: [(goal, one) for goal, one in compared.items() if one.verdict == kind]
              for kind in (BEHIND, LEVEL, AHEAD)}  # fmt: skip
    behind = ", ".join(f"{goal} ({-one.lead:.2f} behind {one.rival.title})" for goal, one in groups[BEHIND])
    level = ", ".join(f"{goal} ({one.lead:+.2f} against {one.rival.title})" for goal, one in groups[LEVEL])
    ahead = ", ".join(f"{goal} (by {one.lead:.2f})" for goal, one in groups[AHEAD])
    said = [
        *([f"**loses** in {behind}"] if behind else []),
        *([f"is **level** in {level}"] if level else []),
        *([f"is ahead of every peer in {ahead}" if not behind + level else f"is ahead in {ahead}"] if ahead else []),
    ]
    subject = f"{ours.name}{',' * (ours.features == CHOSEN)}"
    return f"{data}: {subject} {'. It '.join(said)}."
