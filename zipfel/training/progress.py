"""Progress reports of long work. Nothing here prints: zipfel/display.py does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Event = Literal["turn", "step", "validation"]  # what a stage with gradients does; a turn is work between epochs
Growth = Literal["points", "labels", "counted by the model"]  # what the time of a stage without gradients grows with


@dataclass(frozen=True, slots=True)
class Moment:
    """How far a stage with gradients has come."""

    stage: str
    epoch: int  # from 0
    epochs: int
    step: int  # steps done, of all epochs
    steps: int
    points_a_second: float
    seconds_left: float
    losses: Mapping[str, float]  # running means of the named terms


@dataclass(frozen=True, slots=True)
class StageLength:
    """How long a stage with gradients is."""

    epochs: int
    steps: int  # per epoch
    turns: int  # work between epochs, how often


class Progress:
    """Receives progress for display; this one shows nothing."""

    def update(self, moment: Moment) -> None:
        """Receive the state of a stage, about twice a second."""

    def log(self, values: Mapping[str, Any]) -> None:
        """Receive a line of the run's log: a finished epoch or stage."""


class Observer:
    """Follows the stages of a run, and may end a stage early; this one lets all run to their end.

    A plan learns in this way what training costs (rehearsal.py).
    """

    is_logged = True  # whether the epochs of the run go to the logging module

    def began(self, stage: str, length: StageLength) -> None:
        """Note that a stage with gradients begins, maybe within a turn of another one."""

    def did(self, event: Event) -> None:
        """Note that the stage that began last has done a turn, a step, or a validation."""

    def is_enough(self) -> bool:
        """Return whether the stage that began last may end now."""
        return False

    def ended(self) -> None:
        """Note that the stage that began last has ended."""

    def made(self, stage: str, seconds: float, grows_with: Growth) -> None:
        """Note that a stage without gradients has ended."""


def line_of(values: Mapping[str, Any]) -> str | None:
    """Return an entry of a run's log as a line for people; None if it is not meant for them.

    >>> line_of({"stage": "glas", "epoch": 2, "seconds": 3.2, "validation": 0.5, "metric": "P@1", "margin": 0.25})
    'glas, epoch 2: validation P@1 0.5000, margin 0.2500; 3 s'
    """
    if "note" in values:
        return f"note: {values['note']}"
    if "resumed_at_epoch" in values:
        return f"{values['stage']}: resuming at epoch {values['resumed_at_epoch'] + 1}, step {values['step'] + 1}"
    if not {"stage", "epoch", "seconds"} <= values.keys():
        return None
    validation = f"validation {values.get('metric', '')}".rstrip()
    metrics = ", ".join(
        f"{validation if name == 'validation' else name} {value:.4f}"
        for name, value in values.items()
        if name not in ("stage", "epoch", "seconds", "metric") and isinstance(value, int | float)
    )
    return f"{values['stage']}, epoch {values['epoch']}: {metrics}; {span(values['seconds'])}"


def span(seconds: float) -> str:
    """Return a duration in the largest fitting unit.

    >>> span(4.2), span(75), span(7300)
    ('4 s', '1:15 min', '2:01 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    unit, name = (60, "min") if seconds < 3600 else (3600, "h")
    return f"{int(seconds // unit)}:{int(seconds % unit / unit * 60):02d} {name}"
