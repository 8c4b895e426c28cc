"""Takes a few steps of each stage of a run and measures them."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import torch

from zipfel.training.progress import Event, Growth, Observer, StageLength

MOST_STEPS = 60  # of a stage
FEWEST_STEPS = 3
SECONDS = 4.0  # spent on the steps of a stage, after which it ends


@dataclass
class Act:
    """Seconds that a stage with gradients took in a rehearsal, and the length of the full stage."""

    stage: str
    length: StageLength
    turns: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    validation: float = 0.0

    @property
    def turn(self) -> float:
        """Seconds of a turn."""
        return self.turns[0] if self.turns else 0.0

    @property
    def step(self) -> float:
        """Seconds of a step; the first quarter, which touches new memory and takes longer, does not count."""
        later = self.steps[max(len(self.steps) > 1, len(self.steps) // 4) :]
        return sum(later) / max(len(later), 1)

    @property
    def total(self) -> float:
        """Seconds that the rehearsal of the stage took."""
        return sum(self.turns) + sum(self.steps) + self.validation


class Rehearsal(Observer):
    """Observes a run and ends each stage after a few steps; a stage within a turn of another runs to its end."""

    is_logged = False  # its few steps are no epochs of a training

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device("cpu")
        self.acts: list[Act] = []
        self.stages: dict[str, tuple[float, Growth]] = {}  # without gradients and outside of turns
        self._depth = 0  # stages that have begun and not ended
        self._last = 0.0

    def began(self, stage: str, length: StageLength) -> None:
        """Start the clock of a stage."""
        self._depth += 1
        if self._depth == 1:
            self.acts.append(Act(stage, length))
            self._lap()

    def did(self, event: Event) -> None:
        """Note how long a turn, a step or a validation took."""
        if self._depth != 1:
            return
        act, seconds = self.acts[-1], self._lap()
        if event == "turn":
            act.turns.append(seconds)
        elif event == "step":
            act.steps.append(seconds)
        else:
            act.validation += seconds

    def is_enough(self) -> bool:
        """Whether enough steps of the stage have been timed."""
        if self._depth != 1:
            return False
        steps, length = self.acts[-1].steps, self.acts[-1].length
        return len(steps) >= min(length.steps, MOST_STEPS) or (len(steps) >= FEWEST_STEPS and sum(steps) > SECONDS)

    def ended(self) -> None:
        """Leave the stage."""
        self._depth -= 1

    def made(self, stage: str, seconds: float, grows_with: Growth) -> None:
        """Note the seconds of a stage without gradients."""
        if self._depth == 0:
            self.stages[stage] = (seconds, grows_with)

    def _lap(self) -> float:
        """Return the seconds since the last call, once the device has finished its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        last, self._last = self._last, now
        return now - last
