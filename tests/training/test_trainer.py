from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from stopped import Stop
from torch import Tensor, nn

from zipfel.data.synthetic import Synthetic, make
from zipfel.nn.encoders import EmbeddingTable
from zipfel.training.progress import Event, Moment, Observer, Progress, StageLength
from zipfel.training.run import Run, State, read_state
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags

POINTS = 20
SCHEDULE = Schedule(epochs=4, batch_size=4, learning_rate=0.1, checkpoint_seconds=0)  # 5 steps an epoch, all kept


class Small(nn.Module):
    """A dense layer over a table: both kinds of parameters that the optimizer knows."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.table = EmbeddingTable(POINTS, 4, generator, std=1.0)
        self.weight = nn.Parameter(torch.rand(4, generator=generator))

    def forward(self, rows: np.ndarray[Any, Any]) -> Tensor:
        ids = torch.from_numpy(rows)
        points = Bags(ids, torch.ones(len(ids)), torch.arange(len(ids) + 1))
        result: Tensor = self.table(points) @ self.weight
        return result


class Steps:
    """An objective with noise, which records its steps and may stop at one of them."""

    def __init__(self, module: Small, stop: int | None = None, error: type[BaseException] = Stop) -> None:
        self.module, self.stop, self.error = module, stop, error
        self.rows: list[list[int]] = []

    def __call__(self, rows: np.ndarray[Any, Any], generator: torch.Generator) -> Mapping[str, Tensor]:
        if len(self.rows) == self.stop:
            self.module(rows)  # leaves rows of the table behind
            raise self.error
        self.rows.append(rows.tolist())
        noise = torch.randn(len(rows), generator=generator)
        return {
            "fit": (self.module(rows) - rows.mean() + noise).square().mean(),
            "small": 0.1 * self.module.weight.square().sum(),
        }


def weights(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def trained(
    run: Run, schedule: Schedule = SCHEDULE, validate: Callable[[], float] | None = None, **options: Any
) -> tuple[Small, Outcome, Steps]:
    module = Small()
    steps = Steps(module, **options)
    outcome = train(run, "small", module, POINTS, steps, schedule, validate)
    return module, outcome, steps


def opened(folder: Path, seed: int = 0) -> Run:
    run = Run(folder, seed)
    run.open({})
    return run


def log(folder: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (folder / "log.jsonl").read_bytes().splitlines()]


@pytest.mark.parametrize(
    ("warmup", "rates"),
    [
        (0.5, [0.4, 0.8, 1.2, 1.6, 2.0, 1.6, 1.2, 0.8, 0.4]),  # tenths of the way; the top is at five
        (0.2, [1.0, 2.0, 1.75, 1.5, 1.25, 1.0, 0.75, 0.5, 0.25]),
        (0.0, [1.8, 1.6, 1.4, 1.2, 1.0, 0.8, 0.6, 0.4, 0.2]),
    ],
)
def test_the_rate_rises_and_falls_linearly(warmup, rates):
    schedule = Schedule(epochs=3, batch_size=1, learning_rate=2.0, warmup=warmup)
    assert [schedule.rate_at(step, 9) for step in range(9)] == pytest.approx(rates)


def test_a_fixed_rate_stays():
    schedule = Schedule(epochs=3, batch_size=1, learning_rate=2.0, fixed=True)
    assert [schedule.rate_at(step, 9) for step in (0, 4, 8)] == [2.0, 2.0, 2.0]


@pytest.mark.parametrize(("steps", "full"), [(8, 4), (9, 5), (1, 1), (2, 1)])
def test_a_rate_is_halved_half_way(steps, full):
    schedule = Schedule(epochs=1, batch_size=1, learning_rate=2.0, halve_at=(0.5,))
    assert [schedule.rate_at(step, steps) for step in range(steps)] == [2.0] * full + [1.0] * (steps - full)


def test_a_rate_is_halved_more_than_once():
    """The authors of DECAF halve Module I's after 10 and 15 of 20 epochs; here with 3 steps an epoch."""
    schedule = Schedule(epochs=20, batch_size=1, learning_rate=0.01, halve_at=(0.5, 0.75))
    rates = [schedule.rate_at(step, 60) for step in range(60)]
    assert rates == [0.01] * 30 + [0.005] * 15 + [0.0025] * 15


def test_every_epoch_sees_every_point_once_in_an_order_of_its_own():
    _, outcome, steps = trained(Run())
    epochs = [steps.rows[start : start + 5] for start in range(0, 20, 5)]
    assert len(steps.rows) == 20
    assert all(sorted(row for batch in epoch for row in batch) == list(range(POINTS)) for epoch in epochs)
    assert all(len(batch) == 4 for batch in steps.rows)
    assert len({str(epoch) for epoch in epochs}) == 4
    assert (outcome.epochs, outcome.interrupted) == (4, False)


@pytest.mark.parametrize(("half", "kind"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_half_schedule_computes_products_in_bfloat16_and_keeps_weights_in_float32(half, kind):
    module, seen = nn.Linear(4, 2), set()

    def objective(rows: np.ndarray[Any, Any], generator: torch.Generator) -> Mapping[str, Tensor]:
        output = module(torch.ones(len(rows), 4))
        seen.add(output.dtype)
        return {"square": output.float().square().mean()}

    before = module.weight.detach().clone()
    train(Run(), "stage", module, POINTS, objective, Schedule(1, 4, 0.1, half=half))
    assert seen == {kind}
    assert module.weight.dtype == torch.float32
    assert (module.weight != before).all()


def test_fewer_points_than_a_batch_are_one_step():
    module = Small()
    steps = Steps(module)
    train(Run(), "small", module, 3, steps, Schedule(epochs=2, batch_size=10, learning_rate=0.1))
    assert steps.rows == [[0, 1, 2], [0, 1, 2]]


def test_terms_are_summed_named_and_logged_as_means_of_the_epoch(tmp_path):
    module = nn.Linear(1, 1, bias=False)
    seen: list[float] = []

    def objective(rows: np.ndarray[Any, Any], generator: torch.Generator) -> Mapping[str, Tensor]:
        seen.append(module.weight.item())
        return {"one": 3 * module.weight.sum(), "two": -3 * module.weight.sum()}

    with torch.no_grad():
        module.weight.fill_(2.0)
    train(opened(tmp_path), "sum", module, 10, objective, Schedule(epochs=1, batch_size=5, learning_rate=0.1))
    assert module.weight.item() == 2.0  # the two terms cancel out in the sum
    (line,) = log(tmp_path)
    assert (line["one"], line["two"]) == (6.0, -6.0)
    assert (line["stage"], line["epoch"], line["validation"]) == ("sum", 1, None)

    def falling(rows: np.ndarray[Any, Any], generator: torch.Generator) -> Mapping[str, Tensor]:
        seen.append(module.weight.item())
        return {"one": 3 * module.weight.sum()}

    seen.clear()
    train(opened(tmp_path), "fall", module, 10, falling, Schedule(epochs=1, batch_size=5, learning_rate=0.1))
    assert module.weight.item() < 2.0
    assert seen[0] != seen[1]
    assert log(tmp_path)[-1]["one"] == pytest.approx(3 * sum(seen) / 2)


def scripted(scores: list[float], module: Small, seen: list[dict[str, Tensor]]) -> Callable[[], float]:
    script = iter(scores)

    def validate() -> float:
        assert not module.training
        assert not torch.is_grad_enabled()
        seen.append(weights(module))
        return next(script)

    return validate


@pytest.mark.parametrize("folder", [False, True])
def test_the_best_weights_are_kept_when_validation_falls_again(tmp_path, folder):
    module, seen = Small(), list[dict[str, Tensor]]()
    run = opened(tmp_path) if folder else Run()
    validate = scripted([0.2, 0.7, 0.7, 0.1], module, seen)
    outcome = train(run, "small", module, POINTS, Steps(module), SCHEDULE, validate)
    assert same(weights(module), seen[1])
    assert not same(seen[1], seen[3])
    assert (outcome.best, outcome.best_epoch, outcome.epochs) == (0.7, 1, 4)
    assert not module.training


@pytest.mark.parametrize(
    ("patience", "scores", "epochs"),
    [(1, [0.5, 0.4], 2), (2, [0.5, 0.4, 0.5], 3), (2, [0.5, 0.4, 0.6, 0.1], 4), (None, [0.5, 0.4, 0.3, 0.2], 4)],
)
def test_patience(patience, scores, epochs):
    module = Small()
    schedule = Schedule(epochs=4, batch_size=4, learning_rate=0.1, patience=patience)
    outcome = train(Run(), "small", module, POINTS, Steps(module), schedule, scripted(scores, module, []))
    assert outcome.epochs == epochs
    assert outcome.best == max(scores)


def test_without_validation_patience_has_no_effect_and_the_last_weights_stay(tmp_path):
    schedule = Schedule(epochs=4, batch_size=4, learning_rate=0.1, patience=1, checkpoint_seconds=0)
    module, outcome, steps = trained(opened(tmp_path), schedule)
    assert len(steps.rows) == 20
    assert (outcome.best, outcome.best_epoch, outcome.epochs) == (None, -1, 4)
    assert same(weights(module), read_state(tmp_path / "small.safetensors")[0])
    assert not same(weights(module), weights(Small()))


def test_a_finished_stage_is_loaded(tmp_path):
    module, outcome, _ = trained(opened(tmp_path))
    assert not (tmp_path / "small.checkpoint.safetensors").exists()
    (tmp_path / "small.checkpoint.safetensors").write_bytes(b"killed before this was removed")
    again, loaded, steps = trained(opened(tmp_path))
    assert steps.rows == []
    assert not (tmp_path / "small.checkpoint.safetensors").exists()
    assert same(weights(again), weights(module))
    assert loaded == outcome
    assert not again.training


def test_seeds():
    one, two, other = (weights(trained(Run(seed=seed))[0]) for seed in (5, 5, 6))
    assert same(one, two)
    assert not same(one, other)


def test_ctrl_c_leaves_the_best_weights_and_the_run_can_resume(tmp_path):
    plain = weights(trained(Run())[0])
    module, seen = Small(), list[dict[str, Tensor]]()
    steps = Steps(module, stop=12, error=KeyboardInterrupt)  # in the third epoch
    validate = scripted([0.7, 0.2], module, seen)
    outcome = train(opened(tmp_path), "small", module, POINTS, steps, SCHEDULE, validate)
    assert outcome.interrupted
    assert (outcome.best, outcome.epochs) == (0.7, 2)
    assert same(weights(module), seen[0])
    assert not (tmp_path / "small.safetensors").exists()  # it is not done
    assert module.table.touched == []
    further, outcome, steps = trained(opened(tmp_path), validate=iter([0.8, 0.9]).__next__)
    assert len(steps.rows) == 8
    assert not outcome.interrupted
    assert same(weights(further), plain)


def test_ctrl_c_before_the_first_validation_leaves_a_model():
    module, outcome, _ = trained(Run(), stop=2, error=KeyboardInterrupt, validate=lambda: 1.0)
    assert (outcome.interrupted, outcome.best, outcome.epochs) == (True, None, 0)
    assert all(value.isfinite().all() for value in weights(module).values())


def test_an_interrupted_step_leaves_no_gradients_to_the_next_training():
    def after(*stops: int) -> dict[str, Tensor]:
        module = Small()
        for stop in stops:
            with pytest.raises(Stop):
                train(Run(), "small", module, POINTS, Steps(module, stop), SCHEDULE)
        module.load_state_dict(weights(Small()))
        train(Run(), "small", module, POINTS, Steps(module), SCHEDULE)
        return weights(module)

    assert same(after(), after(3))


@pytest.mark.parametrize("checkpoint_seconds", [0, 1000])
@pytest.mark.parametrize("stop", [0, 1, 4, 5, 7, 10, 19])
def test_a_stopped_run_ends_with_the_same_weights(tmp_path, stop, checkpoint_seconds):
    schedule = Schedule(epochs=4, batch_size=4, learning_rate=0.1, checkpoint_seconds=checkpoint_seconds)
    plain, _, whole = trained(Run(), schedule)
    with pytest.raises(Stop):
        trained(opened(tmp_path), schedule, stop=stop)
    further, outcome, steps = trained(opened(tmp_path), schedule)
    done = stop if checkpoint_seconds == 0 else stop // 5 * 5  # else only whole epochs are kept
    assert steps.rows == whole.rows[done:]
    assert same(weights(further), weights(plain))
    assert outcome.epochs == 4
    assert any("resumed_at_epoch" in line for line in log(tmp_path)) == (done > 0)


@pytest.mark.parametrize("stop", [1, 7, 19])
def test_a_stopped_run_of_sgd_ends_with_the_same_weights(tmp_path, stop):
    schedule = Schedule(epochs=4, batch_size=4, learning_rate=0.02, fixed=True, optimizer="sgd", checkpoint_seconds=0)
    plain, _, whole = trained(Run(), schedule)
    with pytest.raises(Stop):
        trained(opened(tmp_path), schedule, stop=stop)
    further, _, steps = trained(opened(tmp_path), schedule)
    assert steps.rows == whole.rows[stop:]
    assert same(weights(further), weights(plain))
    adam = Schedule(epochs=4, batch_size=4, learning_rate=0.02, fixed=True, checkpoint_seconds=0)
    assert not same(weights(plain), weights(trained(Run(), adam)[0]))


def test_a_run_stopped_at_every_step_ends_with_the_same_weights(tmp_path):
    plain, _, _ = trained(Run())
    for _ in range(19):
        with pytest.raises(Stop):
            trained(opened(tmp_path), stop=1)
    further, _, steps = trained(opened(tmp_path))
    assert len(steps.rows) == 1
    assert same(weights(further), weights(plain))


class BreaksAt(Run):
    """A run that fails at its n-th `keep`, before or after the file is written."""

    def __init__(self, folder: Path, at: int, after: bool) -> None:
        super().__init__(folder)
        self.left, self.after = at, after

    def keep(self, name: str, state: State, notes: Any = None, split: Any = None) -> None:
        self.left -= 1
        if self.left < 0 and not self.after:
            raise Stop
        super().keep(name, state, notes, split)
        if self.left < 0:
            raise Stop


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(0, 19, 3))
def test_a_run_stopped_around_a_checkpoint_keeps_best_weights_and_patience(tmp_path, at, after):
    """Validation is best after two epochs, and patience ends the stage after four of six."""
    schedule = Schedule(epochs=6, batch_size=4, learning_rate=0.1, patience=2, checkpoint_seconds=0)

    def validated(run: Run) -> tuple[dict[str, Tensor], Outcome]:
        module = Small()
        steps = Steps(module)
        origin = weights(module)

        def validate() -> float:  # depends on the weights only, as validation does; peaks on the way
            moved = (module.table.rows - origin["table.rows"]).norm().item()
            return -abs(moved - 0.75)

        outcome = train(run, "small", module, POINTS, steps, schedule, validate)
        return weights(module), outcome

    plain, expected = validated(Run())
    assert 0 < expected.best_epoch < expected.epochs - 1 < 5  # otherwise this tests nothing
    run = BreaksAt(tmp_path, at, after)
    run.open({})
    with pytest.raises(Stop):
        validated(run)
    further, outcome = validated(opened(tmp_path))
    assert same(further, plain)
    assert (outcome.best, outcome.best_epoch, outcome.epochs) == (
        expected.best,
        expected.best_epoch,
        expected.epochs,
    )


def test_progress_receives_every_step_with_the_time_left(monkeypatch):
    moments: list[Moment] = []

    class Listener(Progress):
        def update(self, moment: Moment) -> None:
            moments.append(moment)

    clock = iter(range(10_000))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    trained(Run(progress=Listener()))
    assert [moment.step for moment in moments] == list(range(1, 21))
    assert {(moment.stage, moment.epochs, moment.steps) for moment in moments} == {("small", 4, 20)}
    assert [moment.epoch for moment in moments] == [step // 5 for step in range(20)]
    assert moments[-1].seconds_left == 0
    assert all(set(moment.losses) == {"fit", "small"} for moment in moments)
    first = moments[0]
    assert first.seconds_left == pytest.approx(19 * 4 / first.points_a_second)  # 19 steps of 4 points are left


# --- Observers --------------------------------------------------------------------------------------------------------


class Recorder(Observer):
    """Records what a run does, and ends stages after some steps."""

    def __init__(self, enough: int = 1000) -> None:
        self.events: list[Any] = []
        self.lengths: dict[str, StageLength] = {}
        self.enough = enough

    def began(self, stage: str, length: StageLength) -> None:
        self.events.append(f"began {stage}")
        self.lengths[stage] = length

    def did(self, event: Event) -> None:
        self.events.append(event)

    def is_enough(self) -> bool:
        return self.events.count("step") >= self.enough

    def ended(self) -> None:
        self.events.append("ended")


@pytest.mark.parametrize("validate", [None, lambda: 1.0])
def test_an_observer_follows_a_stage(validate):
    recorder = Recorder()
    schedule = Schedule(epochs=2, batch_size=10, learning_rate=0.1)
    trained(Run(observer=recorder), schedule, validate)
    epoch = ["step", "step", "turn", "validation"]
    assert recorder.events == ["began small", "turn", *epoch, *epoch, "ended"]
    assert recorder.lengths == {"small": StageLength(epochs=2, steps=2, turns=3)}


@pytest.mark.parametrize(("enough", "steps", "epochs"), [(1, 1, 1), (5, 5, 1), (7, 7, 2)])
def test_an_observer_may_end_a_stage_early_and_the_epoch_is_still_validated(enough, steps, epochs):
    recorder = Recorder(enough)
    _, outcome, objective = trained(Run(observer=recorder), validate=lambda: 1.0)
    assert len(objective.rows) == steps
    assert (outcome.epochs, outcome.best, outcome.interrupted) == (epochs, 1.0, False)
    assert recorder.events[-3:] == ["turn", "validation", "ended"]


def test_an_observer_changes_no_weight():
    assert same(weights(trained(Run(observer=Recorder()))[0]), weights(trained(Run())[0]))


def test_an_observer_hears_of_the_end_of_an_interrupted_stage_and_nothing_of_a_finished_one(tmp_path):
    run = opened(tmp_path)
    run.observer = Recorder()
    trained(run, stop=2, error=KeyboardInterrupt)
    assert run.observer.events == ["began small", "turn", "step", "step", "ended"]
    trained(opened(tmp_path))
    run.observer = Recorder()
    trained(run)
    assert run.observer.events == []


# --- Twenty kills -----------------------------------------------------------------------------------------------------


def train_glas(folder: Path, pause: float) -> None:
    """Train a small GLaS in a process that may be killed; a checkpoint is written after each step."""
    from zipfel.models import glas
    from zipfel.tagger import Tagger

    def slow(self: glas.Glas, *given: Any) -> Mapping[str, Tensor]:
        time.sleep(pause)
        return plain(self, *given)

    torch.set_num_threads(1)  # so that a busy second core does not make it wait
    plain = glas.Glas.loss
    glas.Glas.loss = slow  # type: ignore[method-assign]
    glas.Schedule = partial(Schedule, checkpoint_seconds=0)  # type: ignore[misc, assignment]
    settings = {"dimension": 16, "layers": 2, "batch_size": 16, "epochs": 12, "patience": 12, "feature_dropout": 0.3}
    dataset = make(Synthetic(points=700, labels=60, test_share=0, seed=1))
    run = Run(folder, seed=2)
    run.open({"settings": settings})
    Tagger("glas", settings=settings, validation=0.1, seed=2, device="cpu").fit_dataset(dataset, run)


@pytest.fixture
def started() -> Iterator[Callable[[Path, float], Any]]:
    """Start `train_glas` in a process forked from one that has imported all it needs: quicker than starting Python."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zipfel.tagger", "zipfel.models.glas", "torch._dynamo"])
    running = []

    def start(folder: Path, pause: float) -> Any:
        process = context.Process(target=train_glas, args=(folder, pause))
        process.start()
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.join()


def wait_for(condition: Callable[[], bool], seconds: float = 30) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
    return True


def test_twenty_kills_change_no_weight(tmp_path, started):
    plain, killed = tmp_path / "plain", tmp_path / "killed"
    process = started(plain, 0)
    process.join(60)
    assert process.exitcode == 0

    draws, while_written, unfinished = random.Random(0), 0, 0
    for kill in range(20):
        process = started(killed, 0.01)
        if kill % 2:  # wait until it learns, then for a moment
            lines = len(log(killed)) if (killed / "log.jsonl").exists() else 0
            wait_for(lambda lines=lines: (killed / "log.jsonl").exists() and len(log(killed)) > lines, 10)
            time.sleep(draws.uniform(0, 0.1))
        else:  # while a checkpoint is written
            known = set(killed.glob(".*.part"))
            wait_for(lambda known=known: bool(set(killed.glob(".glas.*.part")) - known), 10)
        assert process.is_alive(), "the training ended before it was killed; make it longer"
        process.kill()
        process.join()
        while_written += any(killed.glob(".glas.*.part"))
        unfinished += not (killed / "glas.safetensors").exists()
    assert unfinished == 20
    assert while_written >= 3

    process = started(killed, 0)
    process.join(60)
    assert process.exitcode == 0
    assert sum("resumed_at_epoch" in line for line in log(killed)) >= 15
    assert same(read_state(killed / "glas.safetensors")[0], read_state(plain / "glas.safetensors")[0])
    left = {path.name for path in killed.iterdir()}
    assert left == {".lock", "run.json", "log.jsonl", "glas.safetensors"}
