"""Progress on standard error: a bar in a terminal, occasional lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn

from zipfel.cli.show import warn, warnings
from zipfel.training import progress
from zipfel.training.progress import Moment

_SECONDS_BETWEEN_LINES = 30.0


def bar(*columns: ProgressColumn) -> Progress:
    """Return a bar that disappears at the end; without a terminal it shows nothing."""
    first = (TextColumn("{task.description}"), BarColumn(bar_width=24))
    return Progress(*first, *columns, console=warnings, transient=True, disable=not warnings.is_terminal)


class Shown(progress.Progress):
    """Shows rate, losses and remaining time of each stage, and prints a line per epoch."""

    def __init__(self) -> None:
        self.bar = bar(TextColumn("{task.fields[about]}"))
        self._task: TaskID | None = None
        self._printed = time.monotonic()

    def update(self, moment: Moment) -> None:
        """Update the bar; without a terminal print a line every 30 seconds."""
        losses = ", ".join(f"{name} {value:.3f}" for name, value in moment.losses.items())
        about = f"{losses}; {moment.points_a_second:,.0f} points/s; {span(moment.seconds_left)} left"
        title = f"{moment.stage}, epoch {moment.epoch + 1} of {moment.epochs}"
        if warnings.is_terminal:
            if self._task is None:
                self._task = self.bar.add_task("", about="")
            done, total = moment.step, moment.steps
            self.bar.update(self._task, description=title, completed=done, total=total, about=escape(about))
        elif time.monotonic() - self._printed > _SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            warn(f"{title}: {about}")

    def log(self, values: Mapping[str, Any]) -> None:
        """Print an entry of the run's log."""
        if "note" in values:
            warn(f"note: {values['note']}")
        elif "resumed_at_epoch" in values:
            position = f"epoch {values['resumed_at_epoch'] + 1}, step {values['step'] + 1}"
            warn(f"{values['stage']}: resuming at {position}")
        elif "epoch" in values:
            validation = f"validation {values.get('metric', '')}".rstrip()
            metrics = ", ".join(
                f"{validation if name == 'validation' else name} {value:.4f}"
                for name, value in values.items()
                if name not in ("stage", "epoch", "seconds", "metric") and value is not None
            )
            warn(f"{values['stage']}, epoch {values['epoch']}: {metrics}; {span(values['seconds'])}")


@contextmanager
def counted(first: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows the number of tagged texts and texts per second; their total is unknown."""
    start = printed = time.monotonic()

    def show(done: int) -> None:
        nonlocal printed
        now = time.monotonic()
        line = f"{done:,} texts; {(done - first) / max(now - start, 1e-9):,.0f} texts/s"
        shown.update(task, description=line)
        if not warnings.is_terminal and now - printed > _SECONDS_BETWEEN_LINES:
            printed = now
            warn(line)

    with bar() as shown:
        task = shown.add_task("", total=None)
        yield show


def span(seconds: float) -> str:
    """Return a duration in the largest fitting unit.

    >>> span(4.2), span(75), span(7300)
    ('4 s', '1:15 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    unit, name = (60, "min") if seconds < 3600 else (3600, "h")
    return f"{int(seconds // unit)}:{int(seconds % unit / unit * 60):02d} {name}"
