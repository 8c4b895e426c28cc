"""What a search reports while it runs. Nothing here prints: zipfel/cli/tune.py does."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tune.results import Trial


class Standing(NamedTuple):
    """How far a search has come.  number: of the trial that runs, from 0.  points: those it is trained on now."""

    number: int
    points: int
    best: Trial | None
    seconds_left: float


class Watcher:
    """Receives the progress of a search; this one shows nothing."""

    def update(self, standing: Standing) -> None:
        """Receive the standing, about twice a second while a trial is trained."""

    def ended(self, trial: Trial, best: Trial | None, seconds_left: float) -> None:
        """Receive a trial that ended."""
