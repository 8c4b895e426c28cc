"""The cost of training: memory, disk and time, from a rehearsal on the data itself.

A rehearsal makes the features and the model in full size, takes a few steps of each stage on a part of the points,
validates and predicts. Its times are scaled up: steps by their number, work for each point by the number of points.
Models declare their own costs (`Model.cost`, `rehearse`, `complete`).
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from zipfel import persistence, tagging
from zipfel.data.dataset import Dataset, Part
from zipfel.fitting import Blueprint, Fitted, chosen_device, lesson_of, trained
from zipfel.models.base import Cost, Lesson, Model, evenly_spaced, labelled
from zipfel.tagger import Tagger
from zipfel.text_choice import TextChoice
from zipfel.training.memory import free_memory, watched
from zipfel.training.rehearsal import Act, Rehearsal
from zipfel.training.run import Run

POINTS = 4096  # of train in a rehearsal; at least ten batches
VALIDATED = 8192
PREDICTED = 1024
COPIES = 4  # of a model's weights in training: themselves, two moments, and the best so far
BASE = 400 << 20  # bytes of an interpreter with torch


@dataclass(frozen=True)
class Plan:
    """The expected cost of a training run. A time is None if there is too little memory for a rehearsal."""

    model: str
    preset: str
    why: str
    device: str
    points: int
    features: int
    labels: int
    memory_bytes: int  # peak of the process
    gpu_bytes: int | None  # peak on the GPU, if one is used
    disk_bytes: int  # of the saved model
    training_seconds: float | None  # from texts or features to a fitted tagger
    predict_ms: float | None  # a document, in batches
    rests_on: Mapping[str, str]  # figure -> how it was estimated
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the plan as JSON."""
        return dataclasses.asdict(self)


def plan(
    dataset: Dataset,
    model: str = "auto",
    preset: str = "default",
    settings: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> Plan:
    """Return what `Tagger(model, preset, settings, text, device=device).fit_dataset(dataset)` will cost.

    The rehearsal takes some seconds, and more if labels are many.
    """
    tagger, rehearsal = Tagger(model, preset, settings, text, device=device), Rehearsal(chosen_device(device))
    choice, full = tagger.choice(dataset)
    about = {"model": choice.model, "preset": choice.preset, "why": choice.why, "device": str(rehearsal.device)}
    with watched() as peak:
        start = time.perf_counter()
        blueprint = Blueprint.of(dataset, choice, full, TextChoice(dict(text or {})))
        featured = blueprint.featured(dataset)
        weights = weight_bytes(blueprint.kind, full, featured.sizes.features, len(blueprint.labels))
        if COPIES * weights + BASE > free_memory(about["device"]):
            return _too_large(weights, featured, about)
        made = _scaled(_rehearsed(featured, blueprint, rehearsal, start), about, peak)
    return _with_choice_of_text(made, tagger.text_choice_seconds(dataset))


def _with_choice_of_text(made: Plan, seconds: float) -> Plan:
    """Return a plan with the time that the choice of text features takes; their number may change then."""
    if not seconds or made.training_seconds is None:
        return made
    basis = f"{made.rests_on['training']}; {seconds:.0f} s of it to choose text features, which may change their number"
    return dataclasses.replace(made, training_seconds=made.training_seconds + seconds,
                               rests_on={**made.rests_on, "training": basis})  # fmt: skip


def _too_large(weights: int, dataset: Dataset, about: dict[str, Any]) -> Plan:
    """Return a plan by arithmetic alone, for a model that does not fit this machine."""
    memory = COPIES * weights + BASE
    copies = f"{COPIES} × {spoken_size(weights)} of weights (themselves, two moments, the best so far)"
    rests_on = {
        "memory": copies,
        "GPU memory": copies,
        "disk": "the weights",
        "training": "too little memory to rehearse",
        "prediction": "too little memory to rehearse",
    }
    gpu = memory if about["device"].startswith("cuda") else None
    return Plan(**about, **dataset.sizes._asdict(), memory_bytes=memory, gpu_bytes=gpu, disk_bytes=weights,
                training_seconds=None, predict_ms=None, rests_on=rests_on,
                warnings=(_does_not_fit(memory, about["device"]),))  # fmt: skip


def _does_not_fit(needed: int, device: str) -> str:
    where = "the GPU" if device.startswith("cuda") else "this machine"
    return f"about {spoken_size(needed)} of memory are needed, and {where} has {spoken_size(free_memory(device))} free"


@dataclass(frozen=True)
class _Facts:
    """A rehearsal: the model after it, the lessons in full and in short, and the measured times and costs."""

    fitted: Fitted
    lesson: Lesson
    short: Lesson
    cost: Cost
    rehearsal: Rehearsal
    seconds: float

    @property
    def points(self) -> int:
        """Points of the rehearsal."""
        return len(self.short.train)

    def steps(self, act: Act, points: int) -> int:
        """Return the steps of a stage of full training on this many points."""
        return act.length.epochs * max(1, points * act.length.steps // self.points)

    def act_seconds(self, act: Act) -> float:
        """Return the time of a stage in full training: its steps, its turns, and validation."""
        full, short = self.lesson.validation, self.short.validation
        validated = len(full) / len(short) if full and short else 1.0
        return sum(
            self.steps(act, points) * act.step
            + act.length.turns * act.turn * points / self.points
            + act.length.epochs * act.validation * validated
            for points in self.cost.rounds
        )

    def stage_seconds(self) -> float:
        """Return the seconds of stages without gradients beyond their rehearsal."""
        stages = self.rehearsal.stages.values()
        by_points = sum(seconds for seconds, grows_with in stages if grows_with == "points")
        counted = sum(seconds for seconds, grows_with in stages if grows_with == "counted by the model")
        return by_points * (max(self.cost.rounds) / self.points - 1) + self.cost.seconds - counted

    @property
    def leaves_points(self) -> bool:
        """Whether training leaves held-out points to calibrate on: not if the first round learns from all points."""
        whole = self.lesson.whole
        return whole is None or self.cost.rounds[0] < len(labelled(whole))

    def more_bytes(self) -> int:
        """Return the memory of training beyond its rehearsal: for more points, and for weights that are kept."""
        kept = len(self.cost.rounds) > 1 or self.lesson.validation is not None
        more = max(0, max(self.cost.rounds) - self.points)
        return (module_bytes(self.fitted.model) if kept else 0) + self.cost.bytes_a_point * more


def _rehearsed(featured: Dataset, blueprint: Blueprint, rehearsal: Rehearsal, start: float) -> _Facts:
    """Train on a part of the points, a few steps of each stage.  start: when the features were begun."""
    model = blueprint.built(featured.sizes.features, seed=0).to(rehearsal.device)
    lesson = lesson_of(model, featured, blueprint.labels.names, None, seed=0)
    cost = model.cost(lesson)
    train, validation = labelled(lesson.train), lesson.validation
    some = evenly_spaced(train, max(POINTS, cost.fewest_points))
    held_out = None if validation is None else evenly_spaced(validation, VALIDATED)
    short = dataclasses.replace(lesson, train=some, validation=held_out, whole=None)
    model.rehearse(len(some) / max(len(train), 1))
    fitted = trained(blueprint, model, short, Run(observer=rehearsal), "auto")
    if fitted.outcome.interrupted:
        raise KeyboardInterrupt
    model.settings = blueprint.settings
    return _Facts(fitted, lesson, short, cost, rehearsal, time.perf_counter() - start)


def _scaled(facts: _Facts, about: dict[str, Any], peak: list[int]) -> Plan:
    """Return the plan that a rehearsal suggests."""
    acts, model, device = facts.rehearsal.acts, facts.fitted.model, about["device"]
    seconds = facts.seconds - sum(act.total for act in acts) - facts.cost.lost_seconds
    seconds += sum(facts.act_seconds(act) for act in acts) + facts.stage_seconds()
    predict = _predict_seconds(facts)
    more = model.complete(facts.lesson, facts.short.train)
    if more:  # prediction gets slower with the points that the model has
        facts = dataclasses.replace(facts, fitted=dataclasses.replace(facts.fitted, predictor=model.predictor()))
        slower = _predict_seconds(facts)
        seconds += more + 2 * len(facts.lesson.validation or ()) * (slower - predict)  # to choose, and to calibrate
        predict = slower
    fitted = facts.fitted if facts.leaves_points else dataclasses.replace(facts.fitted, calibration=None)
    files = persistence.sizes(fitted.saved({}))
    memory = peak[0] + facts.more_bytes()
    gpu = torch.cuda.max_memory_allocated(device) + facts.more_bytes() if device.startswith("cuda") else None
    ours = peak[0] if gpu is None else torch.cuda.memory_reserved(device)
    fits = (memory if gpu is None else gpu) <= free_memory(device) + ours
    return Plan(
        **about,
        points=max(facts.cost.rounds),
        features=model.features,
        labels=len(facts.fitted.labels),
        memory_bytes=memory,
        gpu_bytes=gpu,
        disk_bytes=sum(files.values()),
        training_seconds=seconds,
        predict_ms=1000 * predict,
        rests_on=_rests_on(facts, peak[0], len(files)),
        warnings=() if fits else (_does_not_fit(gpu or memory, device),),
    )


def _rests_on(facts: _Facts, peak: int, files: int) -> dict[str, str]:
    acts, rounds = facts.rehearsal.acts, facts.cost.rounds
    steps = sum(facts.steps(act, points) for act in acts for points in rounds)
    taken = sum(len(act.steps) for act in acts)
    beyond = "plus the estimate for the other points and epochs"
    return {
        "GPU memory": f"peak of the rehearsal, {beyond}",
        "memory": f"{spoken_size(peak)} at the peak of the rehearsal, {beyond}",
        "disk": f"shapes of the saved tensors, in {files} files",
        "training": f"{taken:,} of {steps:,} steps rehearsed in {facts.seconds:.0f} s, with {facts.points:,} of "
        f"{max(rounds):,} points, on {torch.get_num_threads()} threads",
        "prediction": f"{len(_predicted(facts)):,} documents in batches, by the rehearsed model",
    }


def _predicted(facts: _Facts) -> Part:
    return evenly_spaced(facts.lesson.train, PREDICTED)


def _predict_seconds(facts: _Facts) -> float:
    """Return the time to rank a document in batches, without the first call."""
    took: list[float] = []
    part, fitted = _predicted(facts), facts.fitted
    inputs = part.X if fitted.blueprint.features is None else part.texts
    while len(took) < 2 or (len(took) < 9 and sum(took) < 1):  # the median of several, where they are short
        start = time.perf_counter()
        tagging.rank(fitted, fitted.rows(inputs), 5)
        took.append(time.perf_counter() - start)
    return statistics.median(took[1:]) / max(len(part), 1)


def weight_bytes(kind: type[Model], settings: Any, features: int, labels: int) -> int:
    """Return the bytes of a model's weights, which are linear in features and labels: extrapolated from small models.

    >>> from zipfel.models.base import model_class, settings_of
    >>> weight_bytes(model_class("mnn"), settings_of("mnn", changes={"dimension": 10}), 100, 50)
    6000
    """
    resolved = kind.resolved(settings, features)
    few, wide, tall = (module_bytes(kind(*sizes, resolved, torch.Generator())) for sizes in ((8, 8), (16, 8), (8, 16)))
    return few + (wide - few) // 8 * (features - 8) + (tall - few) // 8 * (labels - 8)


def module_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's numbers."""
    return sum(value.nbytes for value in module.state_dict().values())


def spoken_size(count: int) -> str:
    """Return bytes in words.

    >>> spoken_size(1_500_000), spoken_size(2_340_000_000)
    ('2 MB', '2.34 GB')
    """
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
