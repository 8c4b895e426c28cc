"""`zipfel tune`: search for the settings of a model within a time budget."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from zipfel.cli import data
from zipfel.cli.configured import Changes, ConfigFile, Name, Preset, configured
from zipfel.cli.machine import Machine
from zipfel.cli.options import with_options
from zipfel.cli.progress import bar, span
from zipfel.cli.show import console, say, warn
from zipfel.data.formats import TableSettings
from zipfel.data.splits import Preparation
from zipfel.data.text import TextSettings
from zipfel.errors import INTERRUPTED, check_installed
from zipfel.tune import seconds_of
from zipfel.tune import tune as searched
from zipfel.tune.watching import Standing, Watcher

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tune.results import Trial, Tuned

SHOWN = 10  # trials in the printed table; the files have all


@with_options
def tune(
    context: typer.Context,
    source: data.Source,
    columns: TableSettings,
    preparation: Preparation,
    text: TextSettings,
    machine: Machine,
    out: Annotated[Path | None, typer.Option(help="Folder for the study and its results; default: DATA-tuned.")] = None,
    budget: Annotated[str, typer.Option(help="Time for the whole search, such as 90s, 30m or 2h.")] = "30m",
    trials: Annotated[int | None, typer.Option(help="Maximum number of trials.", min=1)] = None,
    model: Name = "auto",
    preset: Preset = "default",
    set: Changes = None,
    config_file: ConfigFile = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over instead of resuming.")] = False,
    format: data.From = None,
) -> None:
    """Search for better settings of a model within a time budget. Run the same command again to resume."""
    check_installed("a search for settings", "tune", "optuna", "matplotlib")  # before anything is read
    seconds_of(budget)
    device = machine.used().device
    asked = configured(context, set, config_file, model, preset)
    dataset = data.load(source, format, columns, preparation)
    from zipfel.tagger import Tagger

    tagger = Tagger(asked.model, asked.preset, asked.settings, asked.text, device=device, seed=preparation.seed)
    choice = tagger.choice(dataset)[0].main
    why = "" if choice.why == "named" else f" ({choice.why})"
    say(f"model {choice.model}, preset {choice.preset}{why}")
    folder = out or Path(f"{source.resolve().name.partition('.')[0]}-tuned")
    shown = _Shown()
    try:
        with shown.bar:
            tuned = searched(tagger, dataset, budget=budget, trials=trials, folder=folder, fresh=fresh, watcher=shown)
    except KeyboardInterrupt:
        warn("stopped by Ctrl-C before the first trial was judged: nothing is kept")
        raise typer.Exit(INTERRUPTED) from None
    show_tuned(tuned)
    say(f"{folder}: trials.csv, trials.json, tune.svg and best.toml; train with the best settings by")
    say(f"zipfel train {source} --config {folder / 'best.toml'} --out FOLDER")
    if tuned.interrupted:
        warn("stopped by Ctrl-C: the best settings so far are saved; run the same command to resume")
        raise typer.Exit(INTERRUPTED)
    if not shown.worked:
        warn("nothing was left to do: continue with a larger --budget or more --trials, or start over with --fresh")
    elif trials is None and sum(trial.objective is not None for trial in tuned.trials) == 1:
        warn("only one trial was judged: continue with a larger --budget, or start from a faster preset")


def show_tuned(tuned: Tuned) -> None:
    """Print the best trials, the best settings, and which settings mattered."""
    from zipfel.tune.judging import OBJECTIVE

    statuses = [trial.status for trial in tuned.trials]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in dict.fromkeys(statuses))
    title = f"{counts} trials in {span(tuned.seconds)}; percent, on {tuned.judged_on:,} held-out points, not on test"
    judged = [trial for trial in tuned.trials if trial.objective is not None]
    ranked = sorted(judged, key=lambda trial: (-trial.points, -(trial.objective or 0), trial.number))
    console.print(f"[bold]{title}[/bold]", soft_wrap=True)
    metrics = OBJECTIVE.split(" + ")
    say("  ".join(["trial", *metrics, "  points", "    time", "settings that differ from trial 0"]))
    for trial in ranked[:SHOWN]:
        figures = [f"{(trial.figures or {})[name]:{len(name)}.2f}" for name in metrics]
        about = _words(_changed(trial, tuned)) or "none"
        say("  ".join([f"{trial.number:5}", *figures, f"{trial.points:8,}", f"{span(trial.seconds):>8}", about]))
    if len(ranked) > SHOWN:
        say(f"… and {len(ranked) - SHOWN} more in trials.csv")
    failed = [trial for trial in tuned.trials if trial.status == "failed"]
    if failed:
        warn(f"warning: trial {failed[-1].number} failed: {failed[-1].error}")
    better = _words(_changed(tuned.best, tuned))
    default = "" if tuned.default.objective is None else f"; default {tuned.default.objective:.2f}"
    say(f"best: trial {tuned.best.number}, {OBJECTIVE} {tuned.best.objective:.2f}{default}: {better or 'the default'}")
    if tuned.importance:
        mattered = ", ".join(f"{name} {share:.0%}" for name, share in list(tuned.importance.items())[:5])
        say(f"what mattered most: {mattered}")


def _changed(trial: Trial, tuned: Tuned) -> dict[str, Any]:
    return {name: value for name, value in trial.values.items() if value != tuned.default.values[name]}


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {'none' if value is None else value}" for name, value in values.items())


class _Shown(Watcher):
    """Shows the trial that runs, the best so far and the time left; prints a line for each trial."""

    def __init__(self) -> None:
        self.bar = bar()
        self.worked = False
        self._task = self.bar.add_task("", total=None)

    def update(self, standing: Standing) -> None:
        """Show the trial that runs."""
        self.worked = True
        line = f"trial {standing.number} on {standing.points:,} points; {_best(standing.best)}"
        self.bar.update(self._task, description=escape(f"{line}; {span(max(0.0, standing.seconds_left))} left"))

    def ended(self, trial: Trial, best: Trial | None, seconds_left: float) -> None:
        """Print the trial."""
        self.worked = True
        result = trial.error if trial.objective is None else f"{trial.objective:.2f} on {trial.points:,} points"
        warn(f"trial {trial.number}, {trial.status}: {result}; {_best(best)}; {span(seconds_left)} left")


def _best(best: Trial | None) -> str:
    return "no best yet" if best is None else f"best {best.objective:.2f} (trial {best.number})"
