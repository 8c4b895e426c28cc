"""A run that takes only a few steps of each stage, and notes what they cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from zipfel.training.run import Run, State

MOST = 60  # steps of a stage that are taken
LEAST = 3
SECONDS = 4.0  # of steps of a stage, after which it is enough


@dataclass
class Act:
    """What a stage with gradients cost in a rehearsal, in seconds, and how long it would have been."""

    stage: str
    epochs: int = 0
    steps: int = 0  # an epoch
    turn: float = 0.0  # what is done before the first epoch
    took: list[float] = field(default_factory=list)  # by each step that was taken
    end: float = 0.0  # of an epoch: what is done between epochs, and validation
    over: bool = False  # no more steps are taken

    @property
    def step(self) -> float:
        """What a step takes; the first ones, which touch new memory, take longer and do not count."""
        later = self.took[max(len(self.took) > 1, len(self.took) // 4) :]
        return sum(later) / max(len(later), 1)

    @property
    def total(self) -> float:
        """What the act took."""
        return self.turn + sum(self.took) + self.end


class Rehearsal(Run):
    """Takes a few steps of one epoch of each stage. A stage within another, as part of a turn, is taken as a whole."""

    def __init__(self, seed: int = 0, device: torch.device | None = None) -> None:
        super().__init__(None, seed)
        self.device = device or torch.device("cpu")
        self.acts: list[Act] = []
        self.given: dict[str, State] = {}  # results of stages that were worked out before
        self.made: dict[str, float] = {}  # seconds of stages without gradients, other than those within an act
        self._open: list[Act] = []
        self._last = 0.0

    def stage(self, name: str, make: Callable[[], State]) -> State:
        """Return a stage's result: the one that is given, else the one that is made now."""
        if name in self.given:
            return self.given[name]
        start = time.perf_counter()
        result = super().stage(name, make)
        if not self._open:
            self.made[name] = time.perf_counter() - start
        return result

    def load(self, name: str) -> tuple[State, dict[str, Any]] | None:
        """Return nothing, for nothing is kept; a stage with gradients that asks for its checkpoint begins."""
        if name.endswith(".checkpoint"):
            self._open.append(Act(name.removesuffix(".checkpoint")))
            if len(self._open) == 1:
                self._since()
        return None

    def is_enough(self, stage: str, epochs: int, steps: int, done: int) -> bool:
        """Tell whether a stage may end, and take down the time."""
        if len(self._open) > 1:
            return False
        act = self._open[0]
        if done == 0:
            act.epochs, act.steps, act.turn = epochs, steps, self._since()
            return False
        if not act.over:
            act.took.append(self._since())
            act.over = done >= min(steps, MOST) or (done >= LEAST and sum(act.took) > SECONDS)
        return act.over

    def log(self, **values: Any) -> None:
        """Take down the time of the end of an epoch."""
        super().log(**values)
        if len(self._open) == 1 and "epoch" in values:
            self._open[0].end = self._since()

    def keep(self, name: str, state: State, notes: Mapping[str, Any] | None = None) -> None:
        """Keep nothing; a stage with gradients that keeps its result has ended."""
        if self._open and self._open[-1].stage == name:
            act = self._open.pop()
            if not self._open:
                self.acts.append(act)

    def _since(self) -> float:
        """Return the seconds since it was last asked, when all that was begun on the device is done."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        last, self._last = self._last, now
        return now - last
