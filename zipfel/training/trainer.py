"""The one trainer: every stage with gradients goes through `train`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipfel.nn.optim import Adam, Optimiser, Sgd
from zipfel.training.machine import keep_freed_memory
from zipfel.training.progress import Moment
from zipfel.training.run import Run, State

Rows = NDArray[np.int64]
Objective = Callable[[Rows, torch.Generator], Mapping[str, Tensor]]  # rows of train -> named terms of the loss
Turn = Callable[[int, bool], None]  # epochs done, whether a stopped stage goes on


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a stage learns. The rate rises over `warmup` of all steps, then falls to 0 in a line."""

    epochs: int
    batch: int
    rate: float
    warmup: float = 0.1
    fixed: bool = False  # the rate stays as it is
    halve: bool = False  # the rate stays as it is until half-way, and is half of it then
    optimiser: Literal["adam", "sgd"] = "adam"
    patience: int | None = None  # epochs without a better validation after which to stop; None never stops
    clip: float | None = None  # longest gradient, of all parameters as one vector
    half: bool = False  # products in bfloat16 on a CPU too; on a GPU they always are
    checkpoint_seconds: float = 60

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if self.fixed or self.halve:
            return self.rate / 2 if self.halve and 2 * step >= steps else self.rate
        done, rising = (step + 1) / (steps + 1), self.warmup
        return self.rate * (done / rising if done < rising else (1 - done) / (1 - rising))


@dataclass
class _Place:
    """Where a stage stands; kept in every checkpoint."""

    epoch: int = 0
    step: int = 0  # of the epoch
    best: float | None = None
    best_epoch: int = -1
    seconds: float = 0.0


@dataclass
class Outcome:
    """How a stage ended."""

    best: float | None  # best validation; None where nothing was validated
    best_epoch: int  # from 0; -1 where nothing was validated
    epochs: int  # that were finished
    seconds: float
    interrupted: bool = False


def train(
    run: Run, stage: str, module: nn.Module, points: int, objective: Objective, schedule: Schedule,
    validate: Callable[[], float] | None = None, turn: Turn | None = None,
) -> Outcome:  # fmt: skip
    """Let `module` learn, and leave it with its best weights (its last, where nothing is validated).

    turn: what happens between epochs, with one optimiser and one schedule for all of them. It is called with the number
    of epochs that are done: before the first, after each (before it is validated), and where a stopped stage goes on.
    There it is told so: what it did to `module` is in the checkpoint, and so may be some steps of the next epoch.

    A stage that is done is loaded; one that was stopped goes on at its last checkpoint, with the same draws. Ctrl-C
    ends it early, with the best weights so far.
    """
    keep_freed_memory()
    done = run.load(stage)
    if done is not None:
        module.load_state_dict(done[0])
        module.eval()
        run.forget(f"{stage}.checkpoint")  # where the run was killed just before that
        return Outcome(**done[1])
    learner = _Learner(run, stage, module, points, objective, schedule, validate, turn)
    resumed = learner.resume()
    try:
        learner.turn(learner.place.epoch, resumed)
        learner.learn()
    except KeyboardInterrupt:
        return learner.finish(interrupted=True)
    return learner.finish()


class _Learner:
    """One call of `train`, with what it keeps between steps."""

    def __init__(
        self, run: Run, stage: str, module: nn.Module, points: int, objective: Objective, schedule: Schedule,
        validate: Callable[[], float] | None, turn: Turn | None,
    ) -> None:  # fmt: skip
        self.run, self.stage, self.module, self.points = run, stage, module, points
        self.objective, self.schedule, self.validate = objective, schedule, validate
        self.turn: Turn = turn or (lambda epochs, resumed: None)
        kinds: dict[str, type[Adam | Sgd]] = {"adam": Adam, "sgd": Sgd}
        self.optimiser: Optimiser = kinds[schedule.optimiser](module, schedule.rate, clip=schedule.clip)
        self._forget_gradients()
        self.place = _Place()
        self.best_weights: State | None = None
        self.steps_an_epoch = max(1, points // schedule.batch)
        self.steps = self.steps_an_epoch * schedule.epochs
        self.sums: dict[str, Tensor] = {}  # of the terms of the loss, since the epoch began (or went on)
        self.summed = 0
        self.told = self.saved = time.monotonic()
        self.device = next(iter(module.parameters())).device

    def learn(self) -> None:
        """Go through all epochs that are left."""
        place, started = self.place, time.monotonic()
        before = place.seconds
        for epoch in range(place.epoch, self.schedule.epochs):
            if self._is_stale(epoch) or self._is_enough(epoch, 0):  # also of a run that was killed after its last epoch
                break
            self.module.train()
            self.sums, self.summed = {}, 0
            order = self.run.numbers(self.stage, epoch).permutation(self.points)
            for step in range(place.step, self.steps_an_epoch):
                batch = order[step :: self.steps_an_epoch]
                self._step(batch, epoch, step)
                place.step, place.seconds = step + 1, before + time.monotonic() - started
                self._tell(len(batch), started, before)
                if time.monotonic() - self.saved > self.schedule.checkpoint_seconds:
                    self.checkpoint()
                if self._is_enough(epoch, step + 1):
                    break
            self._end_epoch(epoch)
            place.epoch, place.step = epoch + 1, 0
            self.checkpoint()

    def _is_stale(self, epoch: int) -> bool:
        """Tell whether validation has not become better for as long as patience lasts, before an epoch."""
        patience = self.schedule.patience
        return self.validate is not None and patience is not None and epoch - 1 - self.place.best_epoch >= patience

    def _is_enough(self, epoch: int, step: int) -> bool:
        done = epoch * self.steps_an_epoch + step
        return self.run.is_enough(self.stage, self.schedule.epochs, self.steps_an_epoch, done)

    def _step(self, rows: Rows, epoch: int, step: int) -> None:
        generator = self.run.generator(self.stage, epoch, step + 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.schedule.half or self.device.type == "cuda"):
            terms = self.objective(np.sort(rows), generator)
            loss = sum(terms.values(), start=torch.zeros((), device=self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimiser.step(self.schedule.rate_at(epoch * self.steps_an_epoch + step, self.steps))
        self.summed += 1
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach()

    def _tell(self, points: int, started: float, before: float) -> None:
        """Tell how it goes, twice a second; only then are losses fetched from the device."""
        now = time.monotonic()
        if now - self.told < 0.5:
            return
        self.told = now
        step = self.place.epoch * self.steps_an_epoch + self.place.step
        rate = step / max(self.place.seconds, 1e-9)
        moment = Moment(self.stage, self.place.epoch, self.schedule.epochs, step, self.steps,
                        rate * points, (self.steps - step) / rate, self._losses())  # fmt: skip
        self.run.progress.update(moment)

    def _losses(self) -> dict[str, float]:
        return {name: float(total) / self.summed for name, total in self.sums.items()}

    def _end_epoch(self, epoch: int) -> None:
        self.turn(epoch + 1, False)
        score = None
        if self.validate is not None:
            self.module.eval()
            with torch.no_grad():
                score = self.validate()
            if self.place.best is None or score > self.place.best:
                self.place.best, self.place.best_epoch = score, epoch
                self.best_weights = {name: value.clone() for name, value in self.module.state_dict().items()}
        seconds = round(self.place.seconds, 2)
        self.run.log(stage=self.stage, epoch=epoch + 1, seconds=seconds, validation=score, **self._losses())

    def checkpoint(self) -> None:
        """Keep everything that it takes to go on from here."""
        self.saved = time.monotonic()
        if self.run.folder is None:
            return
        state: State = {f"module.{name}": value for name, value in self.module.state_dict().items()}
        state |= {f"best.{name}": value for name, value in (self.best_weights or {}).items()}
        state |= {f"optimiser.{name}": value for name, value in self.optimiser.state_dict().items()}
        self.run.keep(f"{self.stage}.checkpoint", state, vars(self.place))

    def resume(self) -> bool:
        """Go on at the last checkpoint, and tell whether there is one."""
        kept = self.run.load(f"{self.stage}.checkpoint")
        if kept is None:
            return False
        state, notes = kept
        self.module.load_state_dict(_part(state, "module."))
        self.best_weights = _part(state, "best.") or None
        self.optimiser.load_state_dict(_part(state, "optimiser."))
        self.place = _Place(**notes)
        self.run.log(stage=self.stage, resumed_at_epoch=self.place.epoch, step=self.place.step)
        return True

    def finish(self, interrupted: bool = False) -> Outcome:
        """Take the best weights, and keep them as the stage's result unless it was interrupted."""
        if self.best_weights is not None:
            self.module.load_state_dict(self.best_weights)
        self.module.eval()
        self._forget_gradients()
        place = self.place
        outcome = Outcome(place.best, place.best_epoch, place.epoch, place.seconds, interrupted)
        if not interrupted:
            self.run.keep(self.stage, self.module.state_dict(), vars(outcome))
            self.run.forget(f"{self.stage}.checkpoint")
        return outcome

    def _forget_gradients(self) -> None:
        """Drop what a step that was stopped half-way has left behind."""
        self.module.zero_grad(set_to_none=True)
        for table in self.optimiser.tables.values():
            table.touched.clear()


def _part(state: State, prefix: str) -> State:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
