"""Progress at the command line: a bar where somebody looks, lines where the output goes to a file."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any

from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn

from zipfel.cli.show import warnings
from zipfel.training.progress import Moment

_SECONDS_BETWEEN_LINES = 30.0


class Shown:
    """Shows rate, losses and time left of each stage, and a line for each epoch."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TextColumn("{task.fields[about]}"))
        self._bar = Progress(*columns, console=warnings, transient=True)
        self._task: TaskID | None = None
        self._told = time.monotonic()

    def __enter__(self) -> Shown:
        """Start to show."""
        if warnings.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Take the bar away."""
        if warnings.is_terminal:
            self._bar.stop()

    def update(self, moment: Moment) -> None:
        """Move the bar, or print a line now and then."""
        losses = ", ".join(f"{name} {value:.3f}" for name, value in moment.losses.items())
        about = f"{losses}; {moment.points_a_second:,.0f} points/s; {span(moment.seconds_left)} left"
        description = f"{moment.stage}, epoch {moment.epoch + 1} of {moment.epochs}"
        if warnings.is_terminal:
            if self._task is None:
                self._task = self._bar.add_task(description, total=moment.steps, about="")
            self._bar.update(self._task, description=description, completed=moment.step, about=escape(about))
        elif time.monotonic() - self._told > _SECONDS_BETWEEN_LINES:
            self._told = time.monotonic()
            warnings.print(f"{description}: {escape(about)}", soft_wrap=True)

    def log(self, values: Mapping[str, Any]) -> None:
        """Print a line of the run's log."""
        if "resumed_at_epoch" in values:
            where = f"epoch {values['resumed_at_epoch'] + 1}, step {values['step'] + 1}"
            warnings.print(f"{values['stage']}: going on at {where}, where the last run stopped", soft_wrap=True)
        elif "epoch" in values:
            numbers = {k: v for k, v in values.items() if k not in ("stage", "epoch", "seconds") and v is not None}
            shown = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
            line = f"{values['stage']}, epoch {values['epoch']}: {shown}; {span(values['seconds'])}"
            warnings.print(line, soft_wrap=True)


class Counted:
    """Shows how many texts are done, and how many a second; how many there are is not known before the end."""

    def __init__(self, first: int = 0) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24))
        self._bar = Progress(*columns, console=warnings, transient=True, disable=not warnings.is_terminal)
        self._task = self._bar.add_task("", total=None)
        self._first, self._start = first, time.monotonic()
        self._told = self._start

    def __enter__(self) -> Counted:
        """Start to show."""
        self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        """Take the bar away."""
        self._bar.stop()

    def update(self, done: int) -> None:
        """Move the bar, or print a line now and then."""
        now = time.monotonic()
        line = f"{done:,} texts; {(done - self._first) / max(now - self._start, 1e-9):,.0f} texts/s"
        self._bar.update(self._task, description=line)
        if not warnings.is_terminal and now - self._told > _SECONDS_BETWEEN_LINES:
            self._told = now
            warnings.print(line, soft_wrap=True)


def span(seconds: float) -> str:
    """Return a time as people say it.

    >>> span(4.2), span(75), span(7300)
    ('4 s', '1:15 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    unit, name = (60, "min") if seconds < 3600 else (3600, "h")
    return f"{int(seconds // unit)}:{int(seconds % unit / unit * 60):02d} {name}"
