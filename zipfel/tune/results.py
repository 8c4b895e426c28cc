"""Results of a search: its trials, the best of them, and the files of both."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import orjson

from zipfel.data.formats.files import write_bytes
from zipfel.tune.judging import OBJECTIVE

if TYPE_CHECKING:
    from zipfel.tagger import Tagger

STUDY, CSV, JSON, TOML, PLOT = "study.jsonl", "trials.csv", "trials.json", "best.toml", "tune.svg"
FILES = (STUDY, CSV, JSON, TOML, PLOT)  # of a search's folder

Status = Literal["complete", "pruned", "failed", "stopped"]


@dataclass(frozen=True)
class Trial:
    """One combination of settings, and how well it did.

    status: pruned ones were not trained on more points, because others did better; stopped ones were interrupted by
    Ctrl-C or by the end of the budget.  values: of the searched settings, by name.  points: the largest number that it
    was trained on and judged with; `figures` are the metrics then.
    """

    number: int
    status: Status
    values: Mapping[str, Any]
    points: int = 0
    figures: Mapping[str, float] | None = None
    seconds: float = 0.0
    error: str = ""

    @property
    def objective(self) -> float | None:
        """What is maximised; None if the trial was never judged."""
        return None if self.figures is None else sum(self.figures.values())


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Return the best of the trials with the most points, the first of equals; None if none was judged.

    A trial that failed with more points is none to train with.
    """
    judged = [trial for trial in trials if trial.objective is not None and trial.status != "failed"]
    return max(judged, key=lambda trial: (trial.points, trial.objective, -trial.number), default=None)


@dataclass(frozen=True)
class Tuned:
    """What a search returns.

    tagger: unfitted, with the best settings.  importance: share of the differences between trials that a setting
    explains, largest first; empty with too few trials.  judged_on: held-out points.  changes: settings and text
    settings of the tagger's model, converted and checked.
    """

    tagger: Tagger
    trials: tuple[Trial, ...]
    best: Trial
    importance: Mapping[str, float]
    judged_on: int
    changes: tuple[Mapping[str, Any], Mapping[str, Any]]
    interrupted: bool = False

    @property
    def default(self) -> Trial:
        """The first trial, with the tagger's own settings."""
        return self.trials[0]

    @property
    def seconds(self) -> float:
        """Time of all trials."""
        return sum(trial.seconds for trial in self.trials)

    def toml(self) -> str:
        """Return the best settings as a file for `zipfel train --config`."""
        settings, text = self.changes
        about = f"{OBJECTIVE} {self.best.objective:.2f} on {self.judged_on:,} held-out points"
        lines = [
            f"# Best of {len(self.trials)} trials of zipfel tune (trial {self.best.number}): {about}.",
            f"model = {_toml(self.tagger.model)}",
            f"preset = {_toml(self.tagger.preset)}",
            *(f"{name} = {_toml(value)}" for name, value in settings.items()),
        ]
        if text:
            lines += ["", "[text]", *(f"{name} = {_toml(value)}" for name, value in text.items())]
        return "\n".join(lines) + "\n"

    def write(self, folder: Path) -> None:
        """Write the table of trials and the best settings."""
        write_bytes(folder / CSV, self.csv().encode())
        write_bytes(folder / JSON, orjson.dumps(self.as_json(), option=orjson.OPT_INDENT_2) + b"\n")
        write_bytes(folder / TOML, self.toml().encode())

    def csv(self) -> str:
        """Return all trials as a table."""
        metrics, out = OBJECTIVE.split(" + "), io.StringIO(newline="")
        names = list(self.default.values)
        rows = csv.writer(out)
        rows.writerow(["trial", "status", "points", OBJECTIVE, *metrics, "seconds", *names, "error"])
        for trial in self.trials:
            figures = ["", *("" for _ in metrics)]
            if trial.figures is not None:
                figures = [f"{trial.objective:.4f}", *(f"{trial.figures[name]:.4f}" for name in metrics)]
            values = ["none" if trial.values[name] is None else trial.values[name] for name in names]
            start = [trial.number, trial.status, trial.points, *figures, f"{trial.seconds:.2f}"]
            rows.writerow([*start, *values, trial.error])
        return out.getvalue()

    def as_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        trials = [asdict(trial) | {"objective": trial.objective} for trial in self.trials]
        return {
            "objective": OBJECTIVE,
            "held-out points": self.judged_on,
            "model": self.tagger.model,
            "preset": self.tagger.preset,
            "best": self.best.number,
            "importance": dict(self.importance),
            "trials": trials,
        }


def _toml(value: Any) -> str:
    """Return a value of a setting as TOML, which has no null: the settings read "none" as None."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_toml(str(name))} = {_toml(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float):
        return repr(value)
    return orjson.dumps("none" if value is None else value).decode()  # strings, whole numbers, true and false
