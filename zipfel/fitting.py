"""From a data set to a fitted model: features, the model, its lesson, training, calibration."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from scipy.sparse import csr_array

from zipfel import calibration, config, metrics, persistence
from zipfel.choice import Choice
from zipfel.data.dataset import Dataset
from zipfel.data.given import is_matrix, matrix_of, texts_of
from zipfel.data.labels import LabelSpace, names_as_texts
from zipfel.data.splits import split_rows
from zipfel.data.text import TextFeatures, TextSettings
from zipfel.errors import ConfigError, DataError, did_you_mean
from zipfel.models.base import Abilities, Lesson, Model, Predictor, Tensors, model_class, settings_of
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome

FEWEST = 100  # points of train from which some are held out


@dataclass(frozen=True)
class Blueprint:
    """What is decided before training: the model and its settings, the features, and the labels."""

    choice: Choice
    settings: Any
    features: TextFeatures | None  # None where points are rows of a matrix
    labels: LabelSpace

    @property
    def kind(self) -> type[Model]:
        """The class of the model."""
        return model_class(self.choice.model)

    @property
    def abilities(self) -> Abilities:
        """What the model can do."""
        return self.kind.abilities(self.settings)

    @classmethod
    def of(cls, dataset: Dataset, choice: Choice, settings: Any, text: Mapping[str, Any] | None) -> Blueprint:
        """Fit the vocabulary to train, and take the labels of a data set."""
        draft = cls(choice, settings, None, LabelSpace.of(dataset))
        if dataset.train.texts is None:
            return draft
        label_texts = draft.with_label_texts(dataset).label_texts
        chosen = config.from_mapping(TextSettings, text or {})
        return dataclasses.replace(draft, features=TextFeatures.fit(dataset.train.texts, label_texts, chosen))

    def with_label_texts(self, dataset: Dataset, known: Container[str] = ()) -> Dataset:
        """Return the data set with names for missing texts of labels, where the model reads them."""
        if not self.abilities.reads_label_texts or not dataset.label_names:
            return dataset
        texts = names_as_texts(dataset.label_names, dataset.label_texts, known)
        return dataclasses.replace(dataset, label_texts=texts)

    def featured(self, dataset: Dataset, known: Container[str] = ()) -> Dataset:
        """Return the data set with features, without its test part."""
        dataset = dataclasses.replace(dataset, test=None)
        if (dataset.train.texts is not None) != (self.features is not None):
            kind = "texts" if self.features is not None else "a matrix of features"
            raise DataError(f"the model was fitted on {kind}; these points are not of that kind")
        return dataset if self.features is None else self.features.apply(self.with_label_texts(dataset, known))

    def built(self, features: int, seed: int) -> Model:
        """Return a new model."""
        return self.kind(features, len(self.labels), self.settings, Run(seed=seed).generator("start"))


@dataclass(frozen=True)
class Fitted:
    """A fitted model with everything that tagging needs. It is replaced, not changed, but for the model's weights."""

    blueprint: Blueprint
    model: Model
    predictor: Predictor
    outcome: Outcome
    calibration: calibration.Calibration | None = None  # None where held-out points were too few

    @property
    def labels(self) -> LabelSpace:
        """The labels."""
        return self.blueprint.labels

    def rows(self, X: Any) -> csr_array:
        """Return the features of texts, or of rows of a matrix."""
        if self.blueprint.features is not None:
            if is_matrix(X):
                raise DataError("the model was fitted on texts; found a matrix")
            return self.blueprint.features.transform(texts_of(X))
        rows = matrix_of(X)
        self.check_width(rows.shape[1])
        return rows

    def check_width(self, features: int) -> None:
        """Check the number of features."""
        if features != self.model.features:
            raise DataError(f"points have {features} features, and the model was fitted on {self.model.features}")

    def with_labels(self, labels: LabelSpace) -> Fitted:
        """Return it with other labels."""
        return dataclasses.replace(self, blueprint=dataclasses.replace(self.blueprint, labels=labels))

    # --- Saving -------------------------------------------------------------------------------------------------------

    def saved(self, parameters: Mapping[str, Any]) -> persistence.Saved:
        """Return what a saved model holds.  parameters: those of the tagger."""
        blueprint, tensors = self.blueprint, self.model.tensors()
        documents: dict[str, Any] = {"labels": self.labels.as_json()}
        if blueprint.features is not None:
            documents["vocabulary"] = blueprint.features.as_json()
        if self.calibration is not None:
            documents["calibration"] = self.calibration.as_json()
        about = {
            "model": blueprint.choice.model,
            "chosen": dataclasses.asdict(blueprint.choice),
            "tagger": dict(parameters),
            "settings": dataclasses.asdict(blueprint.settings),
            "sizes": {"features": self.model.features, "labels": len(self.labels)},
            "training": dataclasses.asdict(self.outcome),
        }
        return persistence.Saved(about, documents, tensors.serve, tensors.train)

    @classmethod
    def restored(cls, saved: persistence.Saved, path: Path, device: torch.device) -> Fitted:
        """Return the model that was saved."""
        about, choice = saved.about, Choice(**saved.about["chosen"])
        settings = settings_of(choice.model, choice.preset, about["settings"])
        vocabulary, learned = saved.documents.get("vocabulary"), saved.documents.get("calibration")
        features = None if vocabulary is None else TextFeatures.of_json(vocabulary, path)
        blueprint = Blueprint(choice, settings, features, LabelSpace.of_json(saved.documents["labels"]))
        tensors = Tensors(saved.serve, saved.train)
        model = blueprint.kind.restored(**about["sizes"], settings=settings, tensors=tensors).to(device)
        curve = None if learned is None else calibration.Calibration.of_json(learned)
        return cls(blueprint, model, model.predictor(), Outcome(**about["training"]), curve)


def lesson_of(model: Model, dataset: Dataset, names: Sequence[str], validation: float | None, seed: int) -> Lesson:
    """Return what a model learns from; without validation points, a share of train is held out.

    names: of labels.  validation: that share; None is the model's own.
    """
    train = dataset.train
    lesson = Lesson(train, dataset.validation, None, names, dataset.Z, dataset.feature_names, dataset.propensity)
    most = len(train) if model.most_held_out is None else model.most_held_out
    share = min(model.held_out, most / max(len(train), 1)) if validation is None else validation
    if dataset.validation is not None or not share or len(train) < FEWEST:
        return lesson
    stay, held = split_rows(train, share, seed)
    return dataclasses.replace(lesson, train=train.take(stay), validation=train.take(held), whole=train)


def trained(
    blueprint: Blueprint, model: Model, lesson: Lesson, run: Run, method: calibration.Method, old: Fitted | None = None
) -> Fitted:
    """Train a model on a lesson and calibrate its scores; with too few held-out points, the old calibration stays."""
    outcome = model.fit(lesson, run)
    predictor = model.predictor()
    curve = old.calibration if old is not None else None
    held_out = None if lesson.validation is None else model.ranked_held_out(predictor, lesson.validation)
    if held_out is not None:
        counts = (lesson.whole or lesson.train).Y.sum(axis=0)
        bins = metrics.frequency_bins(counts, calibration.BINS)
        removed = blueprint.labels.mask(len(held_out.ranking))
        ranking = held_out.ranking if removed is None else held_out.ranking.without(removed)
        ranking = blueprint.labels.consistent(ranking)
        curve = calibration.learned(ranking, held_out.Y, bins, method) or curve
    return Fitted(blueprint, model, predictor, outcome, curve)


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is the first NVIDIA GPU where there is one, else the CPU."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return torch.device("cuda" if count else "cpu")
    if not isinstance(name, str) or not re.fullmatch(r"cpu|mps|cuda(:[0-9]+)?", name):
        raise ConfigError(f"unknown device {name!r}{did_you_mean(str(name), ('auto', 'cpu', 'cuda', 'cuda:1', 'mps'))}")
    if name == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device is mps, but torch finds no Apple GPU here")
    if name.startswith("cuda") and int(name.partition(":")[2] or 0) >= count:
        GPUs = f"only {', '.join(f'cuda:{number}' for number in range(count))}" if count else "no GPU"
        raise ConfigError(f"device is {name}, but torch finds {GPUs} here")
    return torch.device(name)
