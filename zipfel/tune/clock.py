"""Ends trials with the budget."""

from __future__ import annotations

import time
from collections.abc import Callable

from zipfel.training.progress import Event, Growth, Observer, StageLength

SECONDS_BETWEEN_UPDATES = 0.5


class BudgetSpent(BaseException):
    """Ends the training of a trial; no model catches it."""


class Clock(Observer):
    """Ends training when the budget is spent, and calls `tick` about twice a second until then."""

    def __init__(self, ends: float, tick: Callable[[], None]) -> None:
        self.ends, self.tick, self.ticked = ends, tick, float("-inf")

    def began(self, stage: str, length: StageLength) -> None:
        """Look at the time."""
        self.look()

    def did(self, event: Event) -> None:
        """Look at the time."""
        self.look()

    def made(self, stage: str, seconds: float, grows_with: Growth) -> None:
        """Look at the time."""
        self.look()

    def look(self) -> None:
        """Raise BudgetSpent, or call `tick` if the last call was long ago."""
        now = time.monotonic()
        if now >= self.ends:
            raise BudgetSpent
        if now - self.ticked >= SECONDS_BETWEEN_UPDATES:
            self.ticked = now
            self.tick()
