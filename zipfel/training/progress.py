"""What a long piece of work tells while it runs. Nothing here prints: the command line brings its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Moment:
    """Where a stage with gradients stands."""

    stage: str
    epoch: int  # from 0
    epochs: int
    step: int  # steps done, of all epochs
    steps: int
    points_a_second: float
    seconds_left: float
    losses: Mapping[str, float]  # running means of the named terms


class Progress(Protocol):
    """Takes what a run tells."""

    def update(self, moment: Moment) -> None:
        """Take the state of a stage, about twice a second."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Take a line of the run's log: a finished epoch or stage."""


class Silent:
    """Tells nobody."""

    def update(self, moment: Moment) -> None:
        """Do nothing."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Do nothing."""
