"""From a data set to a fitted model: features, the model, its lesson, training, calibration."""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from zipfel import calibration, config, metrics, persistence
from zipfel.choice import Choice
from zipfel.data.dataset import Dataset
from zipfel.data.disk import counts_of, is_mapped
from zipfel.data.formats.files import reason
from zipfel.data.labels import LabelSpace, have_text, names_as_texts
from zipfel.data.points import is_matrix, matrix_of, points_of, split_vectors
from zipfel.data.source import Source
from zipfel.data.splits import split_rows
from zipfel.data.text import TextFeatures, TextSettings
from zipfel.errors import ConfigError, DataError, ZipfelError, ZipfelWarning, did_you_mean
from zipfel.models.base import BUILT_IN, Abilities, Lesson, Model, Predictor, Tensors, model_class, settings_of
from zipfel.text_choice import TextChoice
from zipfel.training.ranks import World
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome
from zipfel.types import Sizes

FEWEST = 100  # points of train from which some are held out
_PRINTS = "source.prints"  # name of the tensor of fingerprints in a saved model


@dataclass(frozen=True)
class Blueprint:
    """The decisions before training: the model and its settings, the features, the labels, and the source."""

    choice: Choice
    settings: Any
    features: TextFeatures | None  # None where points are rows of a matrix
    labels: LabelSpace
    source: Source = Source()  # the columns and points of the data set
    text: TextChoice = TextChoice()  # the text settings, and what was tried to choose them

    @property
    def kind(self) -> type[Model]:
        """The class of the model."""
        return model_class(self.choice.model)

    @property
    def abilities(self) -> Abilities:
        """The abilities of the model."""
        return self.kind.abilities(self.settings)

    @classmethod
    def of(cls, dataset: Dataset, choice: Choice, settings: Any, text: TextChoice) -> Blueprint:
        """Fit the vocabulary to train, and take the labels of a data set."""
        draft = cls(choice, settings, None, LabelSpace.of(dataset), Source.of(dataset), text)
        if dataset.train.texts is None:
            return dataclasses.replace(draft, features=dataset.vocabulary)
        label_texts = draft.with_label_texts(dataset).label_texts
        settings_of_text = config.from_mapping(TextSettings, text.text)
        features = TextFeatures.fit(dataset.train.texts, label_texts, settings_of_text)
        widths = {name: matrix.shape[1] for name, matrix in (dataset.train.vectors or {}).items()}
        return dataclasses.replace(draft, features=features.with_vectors(widths) if widths else features)

    def with_label_texts(self, dataset: Dataset, known: Container[str] = ()) -> Dataset:
        """Return the data set with names for missing texts of labels, where the model reads them."""
        if not self.abilities.reads_label_texts or not dataset.label_names:
            return dataset
        texts = names_as_texts(dataset.label_names, dataset.label_texts, known)
        return dataclasses.replace(dataset, label_texts=texts)

    def featured(self, dataset: Dataset, known: Container[str] = ()) -> Dataset:
        """Return the data set with features, without its test part."""
        dataset = dataclasses.replace(dataset, test=None)
        if dataset.train.weights is not None and not self.abilities.weights_points:
            raise ConfigError(f"{self.choice.model} cannot weight points, which sample_weight needs; "
                              "`zipfel models` lists the models that can")  # fmt: skip
        if dataset.train.texts is None and dataset.vocabulary is not None:
            self._check_vocabulary(dataset.vocabulary, dataset.name)
            return dataset
        if (dataset.train.texts is not None) != (self.features is not None):
            kind = "texts" if self.features is not None else "a matrix of features"
            raise DataError(f"the model was fitted on {kind}; these points are not of that kind")
        return dataset if self.features is None else self.features.apply(self.with_label_texts(dataset, known))

    def _check_vocabulary(self, vocabulary: TextFeatures, name: str) -> None:
        """Check that features which were made of texts before have the model's vocabulary."""
        if self.features is None or self.features.as_json() != vocabulary.as_json():
            raise DataError(f"the features of {name} were made of texts with another vocabulary than the model's")

    def with_new_words(self, dataset: Dataset, known: Container[str]) -> Blueprint:
        """Return it with the new words of a data set in the vocabulary, or warn that the model cannot take them."""
        old, texts = self.features, dataset.train.texts
        if old is None or texts is None:
            return self
        features = old.extended(texts, self.with_label_texts(dataset, known).label_texts, self.labels.points)
        new = features.terms[len(old.terms) :]
        if new and not self.abilities.takes_new_words:
            note = f"{len(new):,} new words, such as {new[0]!r}, are ignored; to learn them, fit anew on all texts"
            warnings.warn(f"{self.choice.model} keeps its vocabulary: {note}", ZipfelWarning, stacklevel=6)
            return self
        return dataclasses.replace(self, features=features)

    def check_new_labels(self, names: Sequence[str]) -> None:
        """Check that the model can add new labels, if there are any, before it is changed."""
        if names and not self.kind.has("add_labels"):
            raise ConfigError(f"{self.choice.model} cannot add new labels, such as {names[0]!r}; "
                              "fit with warm_start=False on all points")  # fmt: skip

    def built(self, features: int, seed: int, world: World | None = None) -> Model:
        """Return a new model; where several ranks train it, with this rank's labels."""
        start = Run(seed=seed).generator("start")
        if world is None or not world.splits:
            return self.kind(features, len(self.labels), self.settings, start)
        check_split(self.choice, self.settings, world.size, len(self.labels))
        own = self.kind.shared(world, self.labels.counts)
        model: Model = self.kind(features, len(self.labels), self.settings, start, own)  # type: ignore[call-arg]
        model.check_split()
        return model


@dataclass(frozen=True)
class Fitted:
    """A fitted model with everything that tagging needs. It is replaced, not changed, but for the model's weights."""

    blueprint: Blueprint
    model: Model
    predictor: Predictor
    outcome: Outcome
    calibration: calibration.Calibration | None = None  # None where held-out points were too few

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields of texts, and of vectors beside them."""
        features = self.blueprint.features
        return (*self.blueprint.source.fields, *(features.vectors if features is not None else ()))

    @property
    def labels(self) -> LabelSpace:
        """The labels."""
        return self.blueprint.labels

    def rows(self, X: Any) -> csr_array:
        """Return the features of texts, or of rows of a matrix."""
        X, vectors = split_vectors(points_of(X))
        if self.blueprint.features is not None:
            if is_matrix(X):
                raise DataError("the model was fitted on texts; found a matrix")
            return self.blueprint.features.rows(self.blueprint.source.texts(X), vectors)
        rows = matrix_of(np.empty((0, self.model.features)) if isinstance(X, list) and not X else X)
        self.check_width(rows.shape[1])
        return rows

    def check_width(self, features: int) -> None:
        """Check the number of features."""
        if features != self.model.features:
            known = self.model.features
            raise DataError(f"X has {features} features, but Tagger is expecting {known} features as input")

    def with_labels(self, labels: LabelSpace) -> Fitted:
        """Return it with other labels."""
        return dataclasses.replace(self, blueprint=dataclasses.replace(self.blueprint, labels=labels))

    # --- Saving -------------------------------------------------------------------------------------------------------

    def saved(self, parameters: Mapping[str, Any]) -> persistence.Saved:
        """Return the content of a saved model.  parameters: those of the tagger."""
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
            "text": blueprint.text.as_json(),
            "training": dataclasses.asdict(self.outcome),
            "source": blueprint.source.as_json(),
        }
        prints = torch.from_numpy(blueprint.source.prints.view(np.int64))
        return persistence.Saved(about, documents, tensors.serve, {**tensors.train, _PRINTS: prints})

    @classmethod
    def load(cls, path: Path, device: str = "auto", copy: bool = False) -> tuple[Fitted, dict[str, Any]]:
        """Read a saved model; return it and its `model.json`.  copy: as in `persistence.load`.

        A model that cannot be restored, such as one with a tensor of another shape, raises DataError.
        """
        folder, chosen = persistence.located(path), chosen_device(device)
        saved = persistence.load(folder, copy)
        try:
            return cls.restored(saved, path, chosen), saved.about
        except DataError as error:
            raise error if error.path is not None else DataError(error.problem, folder) from None
        except ZipfelError:  # such as a model of a package that is not installed
            raise
        except Exception as error:  # whatever a forged description makes of the code
            raise DataError(f"cannot be restored: {type(error).__name__}: {reason(error)}", folder) from error

    @classmethod
    def restored(cls, saved: persistence.Saved, path: Path, device: torch.device) -> Fitted:
        """Return the model that was saved."""
        about, choice = saved.about, Choice(**saved.about["chosen"])
        settings = settings_of(choice.model, choice.preset, about["settings"])
        vocabulary, learned = saved.documents.get("vocabulary"), saved.documents.get("calibration")
        features = None if vocabulary is None else TextFeatures.of_json(vocabulary, path)
        train = dict(saved.train)
        prints = train.pop(_PRINTS).numpy().view(np.uint64) if _PRINTS in train else None
        source = Source.of_json(about.get("source"), prints)
        blueprint = Blueprint(
            choice,
            settings,
            features,
            LabelSpace.of_json(saved.documents["labels"]),
            source,
            TextChoice.of_json(about["text"]) if "text" in about else TextChoice(),
        )
        _check_sizes(blueprint, **about["sizes"])
        tensors = Tensors(saved.serve, train)
        model = blueprint.kind.restored(**about["sizes"], settings=settings, tensors=tensors).to(device)
        curve = None if learned is None else calibration.Calibration.of_json(learned, len(blueprint.labels))
        return cls(blueprint, model, model.predictor(), Outcome(**about["training"]), curve)


def _check_sizes(blueprint: Blueprint, features: int, labels: int) -> None:
    """Check that a saved model has as many names as labels, and as many terms as features."""
    if len(blueprint.labels) != labels:
        raise DataError(f"labels.json has {len(blueprint.labels)} labels; model.json says {labels}")
    if blueprint.features is not None and len(blueprint.features.terms) != features:
        raise DataError(f"vocabulary.json has {len(blueprint.features.terms)} terms; model.json says {features}")


def unused_label_texts(choice: Choice, settings: Any, dataset: Dataset) -> str | None:
    """Return a note on the label texts that a model will not learn from; None if it learns from all of them."""
    abilities = model_class(choice.model).abilities(settings)
    if abilities.reads_label_texts or not have_text(dataset.label_texts or {}).count(True):
        return None
    use = (
        "uses label texts only for labels without training points"
        if abilities.places_labels_by_text
        else "does not learn from label texts, and only shows them"
    )
    return f"{choice.model} {use}; `zipfel models` lists those that learn from them"


def copied_data(choice: Choice, settings: Any, dataset: Dataset) -> str | None:
    """Return a note if a model copies mapped data into memory, else None."""
    if not is_mapped(dataset.train.X) or model_class(choice.model).abilities(settings).reads_mapped_data:
        return None
    return f"{choice.model} copies mapped data into memory; `zipfel models` lists the models that do not"


def check_remembers(choice: Choice, settings: Any) -> None:
    """Check that a model can add points without training."""
    if not model_class(choice.model).abilities(settings).remembers_points:
        raise ConfigError(f"{choice.model} cannot add points without training; fit with warm_start=True instead")


def extended(old: Fitted, dataset: Dataset, warm: bool) -> tuple[Blueprint, Dataset]:
    """Return the blueprint with a data set's new labels, and the data set with features and the model's label ids.

    warm: add its new words too, and keep the texts of known labels.  Raise an error if the model cannot take it.
    """
    known = frozenset(old.labels.live if warm else ())
    blueprint = old.blueprint.with_new_words(dataset, known) if warm else old.blueprint
    featured = blueprint.featured(dataset, known)
    if blueprint.features is None:
        old.check_width(featured.sizes.features)
    labels = old.labels.extended(featured)
    blueprint.check_new_labels(labels.names[len(old.labels) :])
    source = blueprint.source.extended(dataset)
    return dataclasses.replace(blueprint, labels=labels.counted(dataset), source=source), labels.aligned(featured)


def grow(old: Fitted, sizes: Sizes, seed: int) -> None:
    """Give a model as many features and labels as the data it will learn from has."""
    words, run = sizes.features - old.model.features, Run(seed=seed)
    if words:
        old.model.add_features(words, run.generator(f"words {sizes.features}"))
    if old.model.has("add_labels"):
        old.model.add_labels(sizes.labels - len(old.labels), run.generator(f"labels {sizes.labels}"))


def lesson_of(model: Model, dataset: Dataset, names: Sequence[str], validation: float | None, seed: int) -> Lesson:
    """Return the data that a model learns from; without validation points, a share of train is held out.

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
        counts = counts_of((lesson.whole or lesson.train).Y)
        bins = metrics.frequency_bins(counts, calibration.BINS)
        removed = blueprint.labels.mask(len(held_out.ranking))
        ranking = held_out.ranking if removed is None else held_out.ranking.without(removed)
        ranking = blueprint.labels.consistent(ranking)
        curve = calibration.learned(ranking, held_out.Y, bins, method) or curve
    if run.world.splits:
        model.join()
        predictor = model.predictor() if run.world.is_first else predictor
    return Fitted(blueprint, model, predictor, outcome, curve)


def check_split(choice: Choice, settings: Any, ranks: int, labels: int | None = None) -> None:
    """Raise ConfigError if this number of ranks cannot train a model.  labels: their number, if it is known already."""
    if not model_class(choice.model).abilities(settings).splits_labels:
        name = choice.main.model  # of a blend that was chosen, the part that cannot
        able = ", ".join(name for name in BUILT_IN if splits_labels(name))
        these = " with these settings" if splits_labels(name) else ""
        chosen = "" if choice.why == "named" else ", which was chosen for this data,"
        raise ConfigError(f"{name}{these}{chosen} is trained by one process; several ranks can train {able}")
    if labels is not None and labels < ranks:
        raise ConfigError(f"{ranks} ranks cannot share {labels} labels; start fewer")


def splits_labels(name: str) -> bool:
    """Whether several ranks can train a model, with its default settings."""
    kind = model_class(name)
    return kind.abilities(kind.presets["default"]).splits_labels


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
