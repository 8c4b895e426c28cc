"""The one trainer: every stage with gradients goes through `train`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipfel.data.disk import permuted
from zipfel.nn.encoders import EmbeddingTable
from zipfel.nn.optim import Adam, Optimiser, Sgd
from zipfel.training.machine import keep_freed_memory
from zipfel.training.progress import Moment, StageLength, span
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.types import Share

Rows = NDArray[np.int64]
Weights = NDArray[np.float64]
Objective = Callable[[Rows, torch.Generator], Mapping[str, Tensor]]  # rows of train -> named terms of the loss
Turn = Callable[[int, bool], None]  # epochs done, whether an interrupted stage resumes


@dataclass(frozen=True)
class Schedule:
    """How long and how fast a stage learns. The rate rises over `warmup` of all steps, then falls linearly to 0."""

    epochs: int
    batch_size: int
    learning_rate: float
    warmup: float = 0.1
    fixed: bool = False  # constant learning rate
    halve_at: tuple[float, ...] = ()  # constant learning rate, halved after each of these shares of all steps
    optimizer: Literal["adam", "sgd"] = "adam"
    patience: int | None = None  # epochs without a better validation after which to stop; None never stops
    half: bool = False  # bfloat16 products on a CPU too; a GPU always uses them
    turn_every: int = 1  # epochs between turns
    checkpoint_seconds: float = 60
    asked: int | None = None  # epochs in the settings; `epochs` are more where they made fewer steps than min_steps

    def rate_at(self, step: int, steps: int) -> float:
        """Return the learning rate of a step, counted from 0."""
        if self.fixed or self.halve_at:
            return self.learning_rate * 0.5 ** sum(step >= share * steps for share in self.halve_at)
        done, rising = (step + 1) / (steps + 1), self.warmup
        return self.learning_rate * (done / rising if done < rising else (1 - done) / (1 - rising))


@dataclass(frozen=True)
class Validation:
    """How a stage is validated: a measure on held-out points, larger is better, and its name."""

    metric: str
    measure: Callable[[], float]

    def __call__(self) -> float:
        """Return the measure now."""
        return self.measure()


@dataclass
class _Position:
    """How far a stage has come; kept in every checkpoint."""

    epoch: int = 0
    step: int = 0  # of the epoch
    best: float | None = None
    best_epoch: int = -1
    seconds: float = 0.0


@dataclass
class Outcome:
    """How a stage ended."""

    best: float | None  # best validation; None without validation
    best_epoch: int  # from 0; -1 without validation
    epochs: int  # finished ones
    seconds: float
    interrupted: bool = False
    metric: str | None = None  # what `best` measures

    def __str__(self) -> str:
        """Return the outcome in words."""
        metric = "" if self.metric is None else f" {self.metric}"
        best = (
            f", best{metric} on validation {self.best:.4f} in epoch {self.best_epoch + 1}"
            if self.best_epoch >= 0
            else ""
        )
        return f"{'stopped early' if self.interrupted else 'trained'} in {span(self.seconds)}{best}"


def train(
    run: Run, stage: str, module: nn.Module, points: int | Weights, objective: Objective, schedule: Schedule,
    validate: Callable[[], float] | None = None, turn: Turn | None = None,
) -> Outcome:  # fmt: skip
    """Train `module`, and leave it with its best weights, or with its last where nothing is validated.

    points: the number of points, each of which an epoch sees once; or their weights [points], see `drawn`.

    turn: work between epochs, under one optimizer and one schedule. It is called with the number of finished epochs:
    before the first one, after every `schedule.turn_every` epochs (before validation), and when an interrupted stage
    resumes; its second argument is true then. The checkpoint already holds the changes that the last turn made to
    `module`, and maybe some steps of the next epoch.

    A finished stage is loaded; an interrupted one resumes at its last checkpoint with the same draws. Ctrl-C ends it
    early with the best weights so far.
    """
    keep_freed_memory()
    done = run.load(stage, split_of(module))
    if done is not None:
        module.load_state_dict(done[0])
        module.eval()
        run.forget(f"{stage}.checkpoint")  # left over if the run was killed just before removing it
        return Outcome(**done[1])
    training = _Training(run, stage, module, points, objective, schedule, validate, turn)
    if schedule.asked is not None and schedule.epochs > schedule.asked:
        why = "small data needs more of them for enough steps (min_steps sets how many)"
        run.note(f"{schedule.epochs} epochs instead of {schedule.asked}: {why}")
    resumed = training.resume()
    try:
        training.start(resumed)
        training.learn()
    except KeyboardInterrupt:
        return training.finish(interrupted=True)
    return training.finish()


def split_of(module: nn.Module) -> dict[str, Share]:
    """Return which parameters and buffers of a module hold a share of the labels' rows only.

    A module says so by its attribute `own`, its share, and `by_label`, names of its tensors.
    """
    shares: dict[str, Share] = {}
    for prefix, part in module.named_modules():
        own = getattr(part, "own", None)
        if own is not None:
            names = getattr(part, "by_label", ("rows",) if isinstance(part, EmbeddingTable) else ())
            shares |= {f"{prefix}.{name}" if prefix else name: own for name in names}
    return shares


def drawn(points: int | Weights, numbers: np.random.Generator) -> Rows:
    """Return the rows that an epoch sees, in random order: each once, or as often as its weight says.

    Of n weighted points, n are drawn. One with weight w is drawn n w / Σ w times, rounded up or down at random, so that
    epochs differ and their mean is right (systematic sampling).
    """
    if isinstance(points, int):
        return permuted(points, numbers)
    order = numbers.permutation(len(points))
    shares = np.cumsum(points[order])
    ends = np.floor(shares / shares[-1] * len(points) + numbers.random()).astype(np.int64)
    return numbers.permutation(np.repeat(order, np.diff(ends, prepend=0)))


class _Training:
    """One call of `train`, with its state between steps."""

    def __init__(
        self, run: Run, stage: str, module: nn.Module, points: int | Weights, objective: Objective, schedule: Schedule,
        validate: Callable[[], float] | None, turn: Turn | None,
    ) -> None:  # fmt: skip
        self.run, self.stage, self.module, self.points = run, stage, module, points
        self.objective, self.schedule, self.validate = objective, schedule, validate
        self.metric = validate.metric if isinstance(validate, Validation) else None
        self.turn: Turn = turn or (lambda epochs, resumed: None)
        kinds: dict[str, type[Adam | Sgd]] = {"adam": Adam, "sgd": Sgd}
        self.optimizer: Optimiser = kinds[schedule.optimizer](module, schedule.learning_rate)
        self._clear_gradients()
        self.position = _Position()
        self.best_weights: State | None = None
        self.steps_an_epoch = max(1, (points if isinstance(points, int) else len(points)) // schedule.batch_size)
        self.steps = self.steps_an_epoch * schedule.epochs
        self.sums: dict[str, Tensor] = {}  # of the terms of the loss, since the epoch began or resumed
        self.summed = 0
        self.sent: Counter[str] = Counter()  # bytes that this rank has sent in these steps, by what they are
        self.reported = self.saved = time.monotonic()
        self.device = next(iter(module.parameters())).device

    def start(self, resumed: bool) -> None:
        """Do the turn before the first epoch, or the one of a resumed stage."""
        turns = self.schedule.epochs // self.schedule.turn_every + 1
        self.run.observer.began(self.stage, StageLength(self.schedule.epochs, self.steps_an_epoch, turns))
        self.turn(self.position.epoch, resumed)
        self.run.observer.did("turn")

    def learn(self) -> None:
        """Train for the remaining epochs."""
        position, observer, started = self.position, self.run.observer, time.monotonic()
        before = position.seconds
        for epoch in range(position.epoch, self.schedule.epochs):
            if self._is_stale(epoch) or observer.is_enough():  # stale: also a run that was killed after its last epoch
                break
            self.module.train()
            self.sums, self.summed, self.sent = {}, 0, Counter()
            order = drawn(self.points, self.run.numbers(self.stage, epoch))
            for step in range(position.step, self.steps_an_epoch):
                batch = order[step :: self.steps_an_epoch]
                self._step(batch, epoch, step)
                position.step, position.seconds = step + 1, before + time.monotonic() - started
                self._look_up(len(batch))
                observer.did("step")
                if observer.is_enough():
                    break
            self._end_epoch(epoch)
            position.epoch, position.step = epoch + 1, 0
            self.checkpoint()

    def _is_stale(self, epoch: int) -> bool:
        """Whether validation has not improved in the last `patience` epochs before this one."""
        patience = self.schedule.patience
        return self.validate is not None and patience is not None and epoch - 1 - self.position.best_epoch >= patience

    def _step(self, rows: Rows, epoch: int, step: int) -> None:
        generator = self.run.generator(self.stage, epoch, step + 1)
        sums = self.run.world if self.run.world.splits else None
        before = Counter(self.run.world.sent)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.schedule.half or self.device.type == "cuda"):
            terms = self.objective(np.sort(rows), generator)
            loss = sum(terms.values(), start=torch.zeros((), device=self.device))
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step(self.schedule.rate_at(epoch * self.steps_an_epoch + step, self.steps), sums)
        self.summed += 1
        self.sent += self.run.world.sent - before
        for name, term in terms.items():
            self.sums[name] = self.sums.get(name, 0) + term.detach()

    def _look_up(self, points: int) -> None:
        """Report progress twice a second, and keep a checkpoint now and then; all ranks agree on when, and to stop."""
        now, world = time.monotonic(), self.run.world
        late, old = now - self.reported >= 0.5, now - self.saved > self.schedule.checkpoint_seconds
        late, old = world.agreed(late and world.is_first, old and world.is_first)
        if late:
            self._report(points, now)
        if old:
            self.checkpoint()
        world.check_stop()

    def _report(self, points: int, now: float) -> None:
        """Report progress; only now are losses fetched from the device."""
        self.reported = now
        step = self.position.epoch * self.steps_an_epoch + self.position.step
        rate = step / max(self.position.seconds, 1e-9)
        moment = Moment(self.stage, self.position.epoch, self.schedule.epochs, step, self.steps,
                        rate * points, (self.steps - step) / rate, self._losses())  # fmt: skip
        self.run.progress.update(moment)

    def _losses(self) -> dict[str, float]:
        return {name: float(self.run.world.sum(total)) / self.summed for name, total in self.sums.items()}

    def _end_epoch(self, epoch: int) -> None:
        if (epoch + 1) % self.schedule.turn_every == 0:
            self.turn(epoch + 1, False)
            self.run.observer.did("turn")
        score = None
        if self.validate is not None:
            self.module.eval()
            with torch.no_grad():
                score = self.validate()
            if self.position.best is None or score > self.position.best:
                self.position.best, self.position.best_epoch = score, epoch
                self.best_weights = {name: value.clone() for name, value in self.module.state_dict().items()}
        self.run.observer.did("validation")
        seconds = round(self.position.seconds, 2)
        named: dict[str, Any] = {} if self.metric is None else {"metric": self.metric}
        losses = self._losses()
        if self.sent:  # a rank receives as much as it sends
            named |= {"bytes_a_step": {kind: count // max(1, self.summed) for kind, count in self.sent.items()}}
        self.run.log(stage=self.stage, epoch=epoch + 1, seconds=seconds, validation=score, **named, **losses)

    def checkpoint(self) -> None:
        """Keep everything needed to resume from here."""
        self.saved = time.monotonic()
        if self.run.folder is None:
            return
        state = with_prefix("module.", self.module.state_dict())
        state |= with_prefix("best.", self.best_weights or {})
        state |= with_prefix("optimizer.", self.optimizer.state_dict())
        self.run.keep(f"{self.stage}.checkpoint", state, vars(self.position), self._split())

    def _split(self) -> dict[str, Share]:
        """Return which tensors of a checkpoint are a share of all rows."""
        own = split_of(self.module)
        shares = {f"{part}{name}": share for part in ("module.", "best.") for name, share in own.items()}
        return shares | {f"optimizer.{name}": share for name, share in self.optimizer.split().items()}

    def resume(self) -> bool:
        """Load the last checkpoint; return whether there is one."""
        kept = self.run.load(f"{self.stage}.checkpoint", self._split())
        if kept is None:
            return False
        state, notes = kept
        self.module.load_state_dict(part_of(state, "module."))
        self.best_weights = part_of(state, "best.") or None
        self.optimizer.load_state_dict(part_of(state, "optimizer."))
        self.position = _Position(**notes)
        self.run.log(stage=self.stage, resumed_at_epoch=self.position.epoch, step=self.position.step)
        return True

    def finish(self, interrupted: bool = False) -> Outcome:
        """Load the best weights, and keep them as the stage's result unless it was interrupted."""
        if self.best_weights is not None:
            self.module.load_state_dict(self.best_weights)
        self.module.eval()
        self.run.observer.ended()
        self._clear_gradients()
        position = self.position
        outcome = Outcome(position.best, position.best_epoch, position.epoch, position.seconds, interrupted,
                          self.metric)  # fmt: skip
        if not interrupted:
            self.run.keep(self.stage, self.module.state_dict(), vars(outcome), split_of(self.module))
            self.run.forget(f"{self.stage}.checkpoint")
        return outcome

    def _clear_gradients(self) -> None:
        """Drop gradients of a step that was interrupted."""
        self.module.zero_grad(set_to_none=True)
        for table in self.optimizer.tables.values():
            table.touched.clear()
