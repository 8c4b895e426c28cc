"""Progress of the command line on standard error: a bar in a terminal, occasional lines otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import Progress, ProgressColumn

from zipfel import display
from zipfel.cli.show import warn, warnings
from zipfel.training.progress import span as span


def bar(*columns: ProgressColumn) -> Progress:
    """Return a bar on standard error."""
    return display.bar(warnings, *columns)


class Shown(display.Shown):
    """Shows the progress of training on standard error."""

    def __init__(self) -> None:
        super().__init__(warnings)


@contextmanager
def counted(first: int) -> Iterator[Callable[[int], None]]:
    """Yield a function that shows the number of tagged texts and texts per second; their total is unknown."""
    start = printed = time.monotonic()

    def show(done: int) -> None:
        nonlocal printed
        now = time.monotonic()
        line = f"{done:,} texts; {(done - first) / max(now - start, 1e-9):,.0f} texts/s"
        shown.update(task, description=line)
        if not warnings.is_terminal and now - printed > display.SECONDS_BETWEEN_LINES:
            printed = now
            warn(line)

    with bar() as shown:
        task = shown.add_task("", total=None)
        yield show
