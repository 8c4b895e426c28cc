"""Shows the progress of training on standard error: a bar in a terminal or notebook, lines elsewhere.

The command line uses it, and `Tagger(verbose=1)`, which imports it when it is needed.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn

from zipfel.training import progress
from zipfel.training.progress import Moment, line_of, span

SECONDS_BETWEEN_LINES = 30.0  # without a bar


def draws_bars(console: Console) -> bool:
    """Whether a bar can move: in a terminal, and in a notebook that has ipywidgets."""
    return find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal


def bar(console: Console, *columns: ProgressColumn) -> Progress:
    """Return a bar that disappears at the end; where it could not move it shows nothing."""
    first = (TextColumn("{task.description}"), BarColumn(bar_width=24))
    return Progress(*first, *columns, console=console, transient=True, disable=not draws_bars(console))


class Shown(progress.Progress):
    """Shows rate, losses and remaining time of each stage, and prints a line per epoch."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self.bar = bar(self.console, TextColumn("{task.fields[about]}"))
        self._task: TaskID | None = None
        self._printed = time.monotonic()

    def __enter__(self) -> Self:
        """Show the bar."""
        self.bar.start()
        return self

    def __exit__(self, *problem: object) -> None:
        """Remove the bar."""
        self.bar.stop()

    def say(self, line: str) -> None:
        """Print a line as it is: not wrapped, and without markup."""
        self.console.print(line, markup=False, emoji=False, soft_wrap=True)

    def update(self, moment: Moment) -> None:
        """Update the bar; where there is none, print a line every 30 seconds."""
        losses = ", ".join(f"{name} {value:.3f}" for name, value in moment.losses.items())
        speed = f"{moment.points_a_second:,.0f} points/s; {span(moment.seconds_left)} left"
        about = f"{losses}; {speed}" if losses else speed
        title = f"{moment.stage}, epoch {moment.epoch + 1} of {moment.epochs}"
        if not self.bar.disable:
            if self._task is None:
                self._task = self.bar.add_task("", about="")
            done, total = moment.step, moment.steps
            self.bar.update(self._task, description=title, completed=done, total=total, about=escape(about))
        elif time.monotonic() - self._printed > SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            self.say(f"{title}: {about}")

    def log(self, values: Mapping[str, Any]) -> None:
        """Print an entry of the run's log."""
        line = line_of(values)
        if line is not None:
            self.say(line)
