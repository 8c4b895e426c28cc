"""What training will take, before it is done: memory, disk and time, out of a rehearsal on the data itself.

A rehearsal makes the features and the model in full size, takes a few steps of each stage on a part of the points,
validates, predicts, and is scaled up: steps by their number, what is done for each point by the number of points.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import nn

from zipfel import persistence
from zipfel.data.dataset import Dataset, Part
from zipfel.errors import ZipfelError
from zipfel.models.base import Lesson, labelled
from zipfel.models.neighbours import Memory, NeighbourModel, NeighbourSettings
from zipfel.tagger import MODELS, Tagger, chosen_device
from zipfel.training.memory import free_memory, watched
from zipfel.training.rehearsal import Act, Rehearsal
from zipfel.training.run import Run

POINTS = 4096  # of train that are rehearsed with; at least ten batches
VALIDATED = 8192
PREDICTED = 1024
LONG = 5.0  # seconds, of which what is loaded late is a small part
COPIES = 4  # of a model's weights in training: themselves, two moments, and the best so far
BASE = 400 << 20  # bytes of an interpreter with torch
FEWER = {"walks": 1, "cycle": 1}  # settings of a rehearsal, where the model has them


@dataclass(frozen=True)
class Plan:
    """What a training run is expected to take. A time is None where there is too little memory to rehearse."""

    model: str
    preset: str
    why: str
    device: str
    points: int
    features: int
    labels: int
    memory_bytes: int  # most that the process holds
    gpu_bytes: int | None  # most that is held on the GPU, where there is one
    disk_bytes: int  # of the saved model
    training_seconds: float | None  # from texts or features to a fitted tagger
    predict_ms: float | None  # a document, in batches
    rests_on: Mapping[str, str]  # figure -> how it came about
    warnings: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the figures as JSON has them."""
        return dataclasses.asdict(self)


class TooLargeError(ZipfelError):
    """The model does not fit this machine; no message of it reaches a user."""

    def __init__(self, weights: int, features: int) -> None:
        super().__init__(f"{weights} bytes of weights do not fit")
        self.weights, self.features = weights, features


def plan(
    dataset: Dataset,
    model: str = "auto",
    preset: str = "default",
    settings: Mapping[str, Any] | None = None,
    text: Mapping[str, Any] | None = None,
    device: str = "auto",
) -> Plan:
    """Tell what `Tagger(model, preset, settings, text, device=device).fit_dataset(dataset)` will take.

    It rehearses for some seconds, and more where labels are many.
    """
    wanted = Tagger(model, preset, settings, text, device=device)
    choice, full = wanted.choice(dataset)
    fewer = {name: value for name, value in FEWER.items() if hasattr(full, name)}
    short = dataclasses.asdict(dataclasses.replace(full, **fewer))
    tagger = _Rehearsed(choice.model, choice.preset, short, text, device=device)
    tagger.rehearsal_ = Rehearsal(device=chosen_device(device))
    about = {"model": choice.model, "preset": choice.preset, "why": choice.why, "device": tagger.rehearsal_.device.type}
    with watched() as peak:
        try:
            start = time.perf_counter()
            tagger.fit_dataset(dataset, tagger.rehearsal_)
            seconds = time.perf_counter() - start
        except TooLargeError as error:
            return _too_large(error, about, dataset)
        if tagger.outcome_.interrupted:
            raise KeyboardInterrupt
        return _scaled(_Facts(tagger, full, seconds, about), peak)


def _too_large(error: TooLargeError, about: dict[str, Any], dataset: Dataset) -> Plan:
    """Return what can be said by arithmetic."""
    memory, points, labels = COPIES * error.weights + BASE, dataset.sizes.points, dataset.sizes.labels
    copies = f"{COPIES} × {spoken_size(error.weights)} of weights (themselves, two moments, the best so far)"
    rests_on = {
        "memory": copies,
        "GPU memory": copies,
        "disk": "the weights",
        "training": "too little memory to rehearse",
        "prediction": "too little memory to rehearse",
    }
    gpu = memory if about["device"] == "cuda" else None
    return Plan(**about, points=points, features=error.features, labels=labels, memory_bytes=memory, gpu_bytes=gpu,
                disk_bytes=error.weights, training_seconds=None, predict_ms=None, rests_on=rests_on,
                warnings=(_does_not_fit(memory, about["device"]),))  # fmt: skip


def _does_not_fit(needed: int, device: str) -> str:
    where = "the GPU" if device == "cuda" else "this machine"
    return f"about {spoken_size(needed)} of memory are needed, and {where} has {spoken_size(free_memory(device))} free"


class _Rehearsed(Tagger):
    """A tagger that learns from a part of the points, and keeps what the whole would be."""

    rehearsal_: Rehearsal
    lesson_: Lesson  # as it would be
    short_: Lesson
    label_seconds_ = 0.0  # DeepWalk's, of one walk a label
    lost_ = 0.0  # seconds that were spent on finding that out

    def _built(self, features: int, labels: int) -> Any:
        weights = weight_bytes(self.chosen_.model, self.settings_, features, labels)
        if COPIES * weights + BASE > free_memory(chosen_device(self.device).type):
            raise TooLargeError(weights, features)
        return super()._built(features, labels)

    def _lesson(self, dataset: Dataset) -> Lesson:
        self.lesson_ = super()._lesson(dataset)
        train, validation = labelled(self.lesson_.train), self.lesson_.validation
        some = max(POINTS, 10 * getattr(self.settings_, "batch", 1))
        judged = None if validation is None else _some(validation, VALIDATED)
        self.short_ = dataclasses.replace(self.lesson_, train=_some(train, some), validation=judged, whole=None)
        if hasattr(self.settings_, "steps"):  # so that batches and epochs come out as those of all points
            steps = max(1, round(self.settings_.steps * len(self.short_.train) / max(len(train), 1)))
            self.model_.settings = dataclasses.replace(self.settings_, steps=steps)
        if hasattr(self.model_, "label_vectors"):  # the graph of labels is that of all points
            self.model_.label_names = self.lesson_.label_names
            for _ in range(2):  # the first time, libraries may be loaded; it is done again unless it is long
                start = time.perf_counter()
                vectors = self.model_.label_vectors(train.Y, Run(seed=self.seed))
                self.label_seconds_ = time.perf_counter() - start
                self.lost_ += self.label_seconds_
                if self.label_seconds_ > LONG:
                    break
            self.rehearsal_.given[f"{self.model_.name}-labels"] = {"V": vectors}
        return self.short_


def _some(part: Part, most: int) -> Part:
    """Return at most so many points, from the first to the last."""
    return part if len(part) <= most else part.take(np.linspace(0, len(part) - 1, most).astype(np.int64))


@dataclass(frozen=True)
class _Facts:
    """A rehearsed tagger, the settings that it was asked for, and how long the rehearsal took."""

    tagger: _Rehearsed
    settings: Any
    seconds: float
    about: dict[str, Any]

    @property
    def rounds(self) -> list[int]:
        """How many points are learned from, once or, where what was held out is given back, twice."""
        lesson, settings = self.tagger.lesson_, self.settings
        points = [len(labelled(lesson.train))]
        if isinstance(settings, NeighbourSettings) and lesson.whole is not None and lesson.validation is not None:
            open_vote = settings.neighbours is None or settings.sharpness is None
            points = [*points, len(labelled(lesson.whole))] if open_vote else [len(labelled(lesson.whole))]
        return points

    @property
    def rehearsed(self) -> int:
        """How many points were learned from in the rehearsal."""
        return len(self.tagger.short_.train)

    @property
    def judged(self) -> float:
        """How many times as many points are validated as were in the rehearsal."""
        full, short = self.tagger.lesson_.validation, self.tagger.short_.validation
        return len(full) / len(short) if full and short else 1.0

    def length(self, act: Act, points: int) -> tuple[int, int]:
        """Return the epochs of a stage, and the steps of each."""
        return act.epochs, max(1, points * act.steps // self.rehearsed)

    def act_seconds(self, act: Act) -> float:
        """Return what a stage will take: its steps, what is done between epochs, and validation."""
        total = 0.0
        for points in self.rounds:
            epochs, steps = self.length(act, points)
            total += epochs * steps * act.step
            if hasattr(self.settings, "cycle"):  # the end of an epoch was a turn as well
                cycle = self.settings.cycle or max(1, epochs // 4)
                total += (epochs // cycle + 1) * act.turn * points / self.rehearsed
                total += epochs * max(0.0, act.end - act.turn) * self.judged
            else:
                total += epochs * act.end * self.judged
        return total

    def more_seconds(self) -> float:
        """Return what stages without gradients take beyond their rehearsal: but for clusters they go by points."""
        made = self.tagger.rehearsal_.made
        by_points = sum(seconds for name, seconds in made.items() if not name.startswith("clusters"))
        return by_points * (max(self.rounds) / self.rehearsed - 1)


def _scaled(facts: _Facts, peak: list[int]) -> Plan:
    """Return the plan that a rehearsal speaks for."""
    tagger, acts = facts.tagger, facts.tagger.rehearsal_.acts
    rest = facts.seconds - sum(act.total for act in acts) - tagger.lost_
    seconds = rest + sum(facts.act_seconds(act) for act in acts) + facts.more_seconds()
    seconds += len(facts.rounds) * tagger.label_seconds_ * getattr(facts.settings, "walks", 1)
    predict = _predict_seconds(tagger)
    if isinstance(tagger.model_, NeighbourModel):
        seconds += _remember_all(facts)
        slower = _predict_seconds(tagger)
        seconds += 2 * len(tagger.lesson_.validation or ()) * (slower - predict)  # the vote, and calibration
        predict = slower
    files = persistence.sizes(tagger.saved())
    memory = peak[0] + _beyond(facts)
    device = facts.about["device"]
    gpu = torch.cuda.max_memory_allocated() + _beyond(facts) if device == "cuda" else None
    ours = peak[0] if gpu is None else torch.cuda.memory_reserved()
    fits = (memory if gpu is None else gpu) <= free_memory(device) + ours
    return Plan(
        **facts.about,
        points=max(facts.rounds),
        features=tagger.model_.features,
        labels=len(tagger.classes_),
        memory_bytes=memory,
        gpu_bytes=gpu,
        disk_bytes=sum(files.values()),
        training_seconds=seconds,
        predict_ms=1000 * predict,
        rests_on=_rests_on(facts, peak[0], len(files)),
        warnings=() if fits else (_does_not_fit(gpu or memory, device),),
    )


def _rests_on(facts: _Facts, peak: int, files: int) -> dict[str, str]:
    steps = sum(math.prod(facts.length(act, points)) for act in facts.tagger.rehearsal_.acts for points in facts.rounds)
    taken = sum(len(act.took) for act in facts.tagger.rehearsal_.acts)
    beyond = "and what comes with more points and epochs"
    return {
        "GPU memory": f"what was held there in the rehearsal, {beyond}",
        "memory": f"{spoken_size(peak)} held in the rehearsal, {beyond}",
        "disk": f"the shapes of what is saved, in {files} files",
        "training": f"{taken:,} of {steps:,} steps rehearsed in {facts.seconds:.0f} s, with {facts.rehearsed:,} of "
        f"{max(facts.rounds):,} points, on {torch.get_num_threads()} threads",
        "prediction": f"{_predicted(facts.tagger):,} documents in batches, by the rehearsed model",
    }


def _predicted(tagger: _Rehearsed) -> int:
    return min(PREDICTED, len(tagger.lesson_.train))


def _predict_seconds(tagger: _Rehearsed) -> float:
    """Return the time to tag a document, in batches, once that has been done."""
    took: list[float] = []
    part = _some(tagger.lesson_.train, PREDICTED)
    inputs = part.X if tagger.features_ is None else part.texts
    while len(took) < 2 or (len(took) < 9 and sum(took) < 1):  # short times are told apart by several
        start = time.perf_counter()
        tagger.rank(inputs)
        took.append(time.perf_counter() - start)
    return statistics.median(took[1:]) / max(len(part), 1)


def _remember_all(facts: _Facts) -> float:
    """Let a model of remembered points have as many as it will have, and return what that takes in training.

    Their vectors are those of the points of the rehearsal, over and over.
    """
    model, lesson, rounds = facts.tagger.model_, facts.tagger.lesson_, facts.rounds
    short = facts.tagger.short_.train
    start = time.perf_counter()
    model.encoded(short)
    more = (time.perf_counter() - start) * (sum(rounds) / len(short) - 1)
    whole = labelled(lesson.whole or lesson.train)
    vectors = model.memory.vectors[torch.arange(len(whole)) % len(model.memory)]
    model.memory = Memory(vectors, whole.Y, whole.X)
    start = time.perf_counter()
    model.index = facts.settings.built(vectors, 0)
    more += (time.perf_counter() - start) * len(rounds)
    facts.tagger.learner_ = model.learner()
    return more


def _beyond(facts: _Facts) -> int:
    """Return the bytes that training will hold beyond its rehearsal: for more points, and for weights that are kept."""
    model, more = facts.tagger.model_, max(facts.rounds) - facts.rehearsed
    kept = module_bytes(model) if len(facts.rounds) > 1 or facts.tagger.lesson_.validation is not None else 0
    if isinstance(model, NeighbourModel):  # the first round's points; DXML's targets
        width = int(facts.settings.width(model.features))
        return kept + 4 * width * (len(facts.rounds) - 1 + (model.name == "dxml")) * max(more, 0)
    if not hasattr(facts.settings, "cycle"):
        return kept
    wide = int(facts.settings.dimension + facts.settings.width(len(facts.tagger.classes_)))
    return kept + 4 * wide * max(more, 0)  # LightDXML's vectors and shortlists of points


def weight_bytes(model: str, settings: Any, features: int, labels: int) -> int:
    """Return the bytes of a model's weights, which grow in a line with features and with labels: three small ones tell.

    >>> from zipfel.tagger import settings_of
    >>> weight_bytes("mnn", settings_of("mnn", changes={"dimension": 10}), 100, 50)
    6000
    """
    if isinstance(settings, NeighbourSettings):
        settings = dataclasses.replace(settings, dimension=settings.width(features))
    build = import_module(MODELS[model]).build
    few, wide, tall = (module_bytes(build(*sizes, settings, torch.Generator())) for sizes in ((8, 8), (16, 8), (8, 16)))
    return few + (wide - few) // 8 * (features - 8) + (tall - few) // 8 * (labels - 8)


def module_bytes(module: nn.Module) -> int:
    """Return the bytes of a module's numbers."""
    return sum(value.numel() * value.element_size() for value in module.state_dict().values())


def spoken_size(count: int) -> str:
    """Return bytes as people say them.

    >>> spoken_size(1_500_000), spoken_size(2_340_000_000)
    ('2 MB', '2.34 GB')
    """
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
