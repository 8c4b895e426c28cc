"""Work between epochs: when a turn is called, and that an interrupted stage resumes as if it had not been."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stopped import Stop
from torch import Tensor, nn

from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, Schedule, train

POINTS = 20
SCHEDULE = Schedule(epochs=4, batch_size=4, learning_rate=0.1, checkpoint_seconds=0)  # 5 steps an epoch, all kept


class Moved(nn.Module):
    """A weight that is learned, and a target for it that turns move."""

    target: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("target", torch.zeros(()))


def trained(
    run: Run, stop: int | None = None, error: type[BaseException] = Stop, schedule: Schedule = SCHEDULE, **more: Any
) -> tuple[Moved, list[Any], Outcome]:
    """Record turns, steps (s) and validations (v), and stop at a step, counted from 0 in each call."""
    module, seen = Moved(), list[Any]()

    def turn(done: int, resumed: bool) -> None:
        seen.append((done, resumed))
        if not resumed:
            module.target += 1 + module.weight.detach()  # so that an extra turn would show

    def objective(rows: np.ndarray[Any, Any], generator: torch.Generator) -> Mapping[str, Tensor]:
        if seen.count("s") == stop:
            raise error
        seen.append("s")
        return {"fit": (module.weight - module.target + torch.randn((), generator=generator)).square()}

    def validate() -> float:
        seen.append("v")
        return module.target.item()  # which grows with each turn

    validated = validate if more.get("validation", True) else None
    outcome = train(run, "moved", module, POINTS, objective, schedule, validated, more.get("turn", turn))
    return module, seen, outcome


def opened(folder: Path) -> Run:
    run = Run(folder)
    run.open({})
    return run


def test_turns_come_before_the_first_epoch_and_between_each_epoch_and_its_validation():
    _, seen, _ = trained(Run())
    epochs = [[*"sssss", (done, False), "v"] for done in (1, 2, 3, 4)]
    assert seen == [(0, False), *(event for epoch in epochs for event in epoch)]


def test_a_stage_without_turns_trains_and_validates():
    module, seen, _ = trained(Run(), turn=None)
    assert module.target == 0
    assert seen == [*"sssssv"] * 4


@pytest.mark.parametrize("validation", [True, False])
@pytest.mark.parametrize("stop", [0, 1, 5, 7, 10, 19])
def test_an_interrupted_stage_resumes_with_the_results_of_its_turns(tmp_path, stop, validation):
    plain, _, _ = trained(Run(), validation=validation)
    with pytest.raises(Stop):
        trained(opened(tmp_path), stop, validation=validation)
    resumed, seen, _ = trained(opened(tmp_path), validation=validation)
    assert seen[0] == (stop // 5, stop > 0)  # at step 0 nothing had been kept yet
    assert [event for event in seen[1:] if isinstance(event, tuple)] == [(n, False) for n in range(stop // 5 + 1, 5)]
    assert torch.equal(resumed.target, plain.target)
    assert torch.equal(resumed.weight, plain.weight)


EVERY_OTHER = replace(SCHEDULE, turn_every=2)


@pytest.mark.parametrize(("turn_every", "turns"), [(2, [2, 4]), (3, [3]), (4, [4]), (5, [])])
def test_turns_come_only_after_every_few_epochs(turn_every, turns):
    _, seen, _ = trained(Run(), schedule=replace(SCHEDULE, turn_every=turn_every))
    epochs = [[*"sssss", *([(done, False)] if done in turns else []), "v"] for done in (1, 2, 3, 4)]
    assert seen == [(0, False), *(event for epoch in epochs for event in epoch)]


@pytest.mark.parametrize("stop", [0, 3, 5, 8, 10, 19])
def test_an_interrupted_stage_with_few_turns_resumes_with_their_results(tmp_path, stop):
    plain, _, _ = trained(Run(), schedule=EVERY_OTHER)
    with pytest.raises(Stop):
        trained(opened(tmp_path), stop, schedule=EVERY_OTHER)
    resumed, seen, _ = trained(opened(tmp_path), schedule=EVERY_OTHER)
    assert seen[0] == (stop // 5, stop > 0)
    turns = [event for event in seen[1:] if isinstance(event, tuple)]
    assert turns == [(done, False) for done in (2, 4) if done > stop // 5]
    assert torch.equal(resumed.target, plain.target)
    assert torch.equal(resumed.weight, plain.weight)


def test_a_finished_stage_has_no_turns(tmp_path):
    trained(opened(tmp_path))
    again, seen, _ = trained(opened(tmp_path))
    assert seen == []
    assert again.target != 0


def test_patience_ends_turns_too():
    schedule = Schedule(epochs=4, batch_size=4, learning_rate=0.1, patience=1)
    turns: list[int] = []
    scores = iter([0.5, 0.4, 0.6])
    module = Moved()
    train(Run(), "moved", module, POINTS, lambda rows, generator: {"fit": module.weight.square()}, schedule,
          scores.__next__, lambda done, resumed: turns.append(done))  # fmt: skip
    assert turns == [0, 1, 2]


@pytest.mark.parametrize("at", [0, 2])
def test_ctrl_c_in_a_turn_ends_the_stage_with_the_best_weights(tmp_path, at):
    best: list[Tensor] = []

    def turn(done: int, resumed: bool) -> None:
        if done == at:
            raise KeyboardInterrupt

    module = Moved()

    def validate() -> float:
        best.append(module.weight.detach().clone())
        return 1.0

    def objective(rows: np.ndarray[Any, Any], generator: torch.Generator) -> Mapping[str, Tensor]:
        return {"fit": (module.weight - 1).square()}

    outcome = train(opened(tmp_path), "moved", module, POINTS, objective, SCHEDULE, validate, turn)
    assert outcome.interrupted
    assert (outcome.epochs, len(best)) == ((1, 1) if at else (0, 0))
    assert module.weight == (best[0] if at else 0)
    assert not (tmp_path / "moved.safetensors").exists()


def test_one_optimizer_outlives_all_turns():
    """A turn that does nothing changes nothing: moments and the schedule go on."""

    def idle(done: int, resumed: bool) -> None:
        pass

    often, never = (
        trained(Run(), schedule=replace(SCHEDULE, turn_every=every), turn=idle, validation=False)[0].weight.item()
        for every in (1, 100)
    )
    assert often == never
