"""`Tagger`: texts in, named and scored tags out, with scikit-learn's conventions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from zipfel import calibration, metrics, persistence, tagging
from zipfel.choice import AUTO, Choice, chosen
from zipfel.data.dataset import Dataset, fingerprint
from zipfel.data.given import checked_texts, dataset_of, label_matrix
from zipfel.data.labels import LabelSpace, names_as_texts
from zipfel.data.text import TextFeatures
from zipfel.errors import ConfigError, DataError, did_you_mean
from zipfel.explain import Reason, reasons
from zipfel.fitting import Blueprint, Fitted, chosen_device, lesson_of, trained
from zipfel.models.base import Model, Predictor, settings_of
from zipfel.tagging import Request, Tag, Tagged
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome
from zipfel.types import Ranking

CHUNK = 1 << 16  # vectors of labels that are compared at a time


class Tagger(BaseEstimator):  # type: ignore[misc]
    """Tags texts, or rows of sparse features, with labels.

    model: a name out of `zipfel models`, or "auto": what fits the data, by its size, its label texts and the device;
    `chosen_` says which it was.  preset: "default", "fast" or "paper".  settings: changes to the preset, by name.
    text: how texts become features (`TextSettings`), by name.  validation: share of the points that is held out to
    decide what is open, such as when to stop; None is the model's own share.  warm_start: a further `fit` continues
    from the current weights, with the settings they were made with; new labels are added.  calibration: how held-out
    points turn scores into probabilities: "isotonic", "platt", "none", or "auto", the better of the first two.

    >>> tagger = Tagger("glas", settings={"epochs": 20, "dimension": 16}, text={"min_count": 1}, validation=0)
    >>> texts, tags = ["red apple", "green pear", "fast car", "slow car"], [["fruit"], ["fruit"], ["car"], ["car"]]
    >>> tagger = tagger.fit(texts, tags)
    >>> tagger.predict(["a green apple"], k=1)[0][0].label
    'fruit'
    """

    fitted_: Fitted | None = None  # None before a fit, and after one that did not finish
    unfinished_ = False  # whether the last fit did not finish
    drift_: float  # of the last `partial_fit`

    def __init__(
        self,
        model: str = AUTO,
        preset: str = "default",
        settings: Mapping[str, Any] | None = None,
        text: Mapping[str, Any] | None = None,
        validation: float | None = None,
        warm_start: bool = False,
        device: str = "auto",
        seed: int = 0,
        calibration: calibration.Method = "auto",
    ) -> None:
        self.model, self.preset, self.settings, self.text = model, preset, settings, text
        self.validation, self.warm_start, self.device, self.seed = validation, warm_start, device, seed
        self.calibration = calibration

    # --- Learning -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        label_texts: Mapping[str, str] | None = None,
        parents: Mapping[str, Any] | None = None,
        ancestors: bool = False,
    ) -> Self:
        """Learn from texts (a list, or lists by field) or a sparse matrix, and tags: lists of names, or a matrix.

        parents: {tag: parent or list of parents}, a hierarchy.  ancestors: give each point the ancestors of its tags.
        """
        return self.fit_dataset(dataset_of(X, y, label_texts, parents, ancestors))

    def fit_dataset(self, dataset: Dataset, run: Run | None = None) -> Self:
        """Learn from a data set; the stages are kept in the folder of `run`, where it has one, and resumed from it."""
        device, run = chosen_device(self.device), run or Run(seed=self.seed)
        _check_method(self.calibration)
        if not dataset.train.Y.nnz:
            raise DataError("no point has a label, so there is nothing to learn")
        if not run.is_open:
            run.open(self.run_inputs(dataset))
        if self.warm_start and self.unfinished_:
            self._fitted()
        old = self.fitted_ if self.warm_start else None
        if old is None:
            blueprint = Blueprint.of(dataset, *self.choice(dataset), self.text)
            featured = blueprint.featured(dataset)
            model = blueprint.built(featured.sizes.features, self.seed)
        else:
            blueprint, model, featured = self._extended(old, dataset, old.labels.live)
        self.fitted_, self.unfinished_ = None, True
        model.to(device)
        lesson = lesson_of(model, featured, blueprint.labels.names, self.validation, self.seed)
        self.fitted_, self.unfinished_ = trained(blueprint, model, lesson, run, self.calibration, old), False
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Remember more points without learning, where the model remembers points (`zipfel models` says which do).

        New tags become predictable. `drift_` says how far these points are from the known ones, as a multiple of the
        usual distance: well above 1, it is time to fit again. The first call is a `fit`.
        """
        if self.fitted_ is None and not self.unfinished_:
            return self.fit(X, y)
        old = self._fitted()
        if not old.blueprint.abilities.remembers_points:
            raise ConfigError(f"{old.blueprint.choice.model} cannot take points without learning; "
                              "fit with warm_start=True instead")  # fmt: skip
        dataset = dataset_of(X, y)
        if not dataset.train.Y.nnz:
            raise DataError("no point has a label, so there is nothing to remember")
        blueprint, model, featured = self._extended(old, dataset)
        self.drift_ = model.add_points(featured.train)
        fitted = dataclasses.replace(old, blueprint=blueprint, predictor=model.predictor())
        self.fitted_, self.unfinished_ = fitted, False
        return self

    def _extended(self, old: Fitted, dataset: Dataset, known: Iterable[str] = ()) -> tuple[Blueprint, Model, Dataset]:
        """Add a data set's new labels to a model; return the data set with features and the model's label ids."""
        featured = old.blueprint.featured(dataset, frozenset(known))
        old.check_width(featured.sizes.features)
        labels = old.labels.extended(featured)
        self.fitted_, self.unfinished_ = None, True
        generator = Run(seed=self.seed).generator(f"labels {len(labels)}")
        old.model.add_labels(len(labels) - len(old.labels), generator)
        blueprint = dataclasses.replace(old.blueprint, labels=labels.counted(dataset))
        return blueprint, old.model, labels.aligned(featured)

    def choice(self, dataset: Dataset) -> tuple[Choice, Any]:
        """Return the model and preset that `fit` would use for a data set, named or chosen, and the settings."""
        choice = chosen(dataset, self.model, self.preset, chosen_device(self.device).type)
        try:
            return choice, settings_of(choice.model, choice.preset, self.settings)
        except ConfigError as error:
            if self.model != AUTO:
                raise
            raise ConfigError(f"model auto is {choice.model} here ({choice.why}): {error}") from None

    def run_inputs(self, dataset: Dataset) -> dict[str, Any]:
        """Return what a run with a folder is made from; only a run with equal inputs is resumed."""
        choice, settings = self.choice(dataset)
        return {"model": choice.model, "settings": dataclasses.asdict(settings), "text": dict(self.text or {}),
                "data": fingerprint(dataset, dataset.parts.values())}  # fmt: skip

    # --- Labels -------------------------------------------------------------------------------------------------------

    def add_labels(self, label_texts: Mapping[str, str]) -> Self:
        """Add labels that are scored by their texts at once, where the model can (`zipfel models` says which can)."""
        old = self._fitted()
        if not old.blueprint.abilities.takes_labels_by_text:
            raise ConfigError(f"{old.blueprint.choice.model} cannot take labels by their text; "
                              "fit with warm_start=True on points with them")  # fmt: skip
        if old.blueprint.features is None:
            raise ConfigError("the model was fitted on a matrix of features, and knows no words")
        texts = checked_texts(label_texts)
        labels = old.labels.described(label_texts)
        read = names_as_texts(list(texts), {"text": list(texts.values())})
        old.model.add_label_texts(old.blueprint.features.transform(read))
        self.fitted_ = dataclasses.replace(old.with_labels(labels), predictor=old.model.predictor())
        return self

    def remove_labels(self, names: Iterable[str]) -> Self:
        """Never predict these labels again. The ids of all others stay as they are."""
        self.fitted_ = self._fitted().with_labels(self._fitted().labels.without(names))
        return self

    def rename_labels(self, names: Mapping[str, str]) -> Self:
        """Rename labels, from old names to new ones."""
        self.fitted_ = self._fitted().with_labels(self._fitted().labels.renamed(names))
        return self

    def nearest_labels(self, label: str, k: int = 5) -> list[Tag]:
        """Return the k labels whose vectors are nearest to that of a label, by cosine, nearest first."""
        fitted, labels = self._fitted(), self.labels_
        if label not in labels.live:
            raise ConfigError(f"the model has no label {label!r}")
        classifier = fitted.predictor.first.classifier
        if classifier.point_labels is not None:
            raise ConfigError(f"{fitted.blueprint.choice.model} has vectors of points, not of labels")
        vectors = classifier.vectors
        own = F.normalize(vectors[labels.live[label]], dim=0)
        chunks = torch.split(vectors, CHUNK)
        cosines = torch.cat([chunk @ own / chunk.norm(dim=1).clamp_min(1e-12) for chunk in chunks])
        cosines[[labels.live[label], *labels.removed]] = -torch.inf
        best = cosines.cpu().sort(descending=True, stable=True)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [Tag(labels.names[other], score) for other, score in islice(pairs, min(k, len(labels.live) - 1))]

    # --- Tagging ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        X: Any,
        k: int | None = None,
        threshold: float | Sequence[float] | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> list[list[Tag]]:
        """Return up to k tags of each point, best first, with scores in [0, 1] that are probabilities.

        k, threshold, extra: as in `zipfel.tagging.Request`.
        """
        return self.tag([Request(X, k, threshold, extra or {})])[0].tags()

    def tag(self, requests: Sequence[Request]) -> list[Tagged]:
        """Answer several requests at once, which is faster than one after the other; the answers are the same."""
        return tagging.tag(self._fitted(), requests)

    def check(self, request: Request) -> None:
        """Raise ConfigError if the model cannot answer a request."""
        request.check(self._fitted())

    def rank(self, X: Any, k: int = 5, filtered: csr_array | None = None) -> Ranking:
        """Return the best k labels of each point as ids and the model's own scores, [points, k]."""
        return tagging.rank(self._fitted(), self._fitted().rows(X), Request(X, k).depth, filtered)

    def choose_threshold(self, precision: float | None = None, by_frequency: bool = False) -> float | tuple[float, ...]:
        """Return the lowest threshold with this precision on held-out points; None: that with the best micro-F1.

        by_frequency: three thresholds, for rare, medium and frequent labels.
        """
        curve = self._fitted().calibration
        if curve is None:
            raise ConfigError("the model has too few held-out points to choose a threshold; give one, or hold out more")
        return curve.threshold(precision, by_frequency)

    def explain(self, text: str, label: str) -> list[Reason]:
        """Return what each known term of a text adds to the score of a label, largest first."""
        fitted = self._fitted()
        if fitted.blueprint.features is None:
            raise DataError("the model was fitted on a matrix of features: it has no words to explain a label by")
        if not isinstance(text, str):
            raise DataError(f"expected one text; found {type(text).__name__}")
        return reasons(fitted.predictor, fitted.blueprint.features, text, *fitted.labels.ids([label]))

    def index_recall(self, X: Any, k: int = 5) -> float | None:
        """Return the share of an exact search's candidates that the model's index finds; None if it is exact."""
        return self._fitted().predictor.recall(self._fitted().rows(X), k)

    def score(self, X: Any, y: Any) -> float:
        """Return P@1 as a share: how often the first tag is right."""
        truth = label_matrix(y, self.labels_.unique_names)
        return metrics.measure(self.rank(X, 1), truth, ks=(1,))["P@1"] / 100

    # --- Saving -------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str, replace: bool = False) -> None:
        """Write the model into a new folder; `replace` allows that an older model is there."""
        persistence.save(self.saved(), Path(path), replace)

    def saved(self) -> persistence.Saved:
        """Return what a saved model holds."""
        return self._fitted().saved(self.get_params() | {"warm_start": False})

    @classmethod
    def load(cls, path: Path | str, device: str = "auto") -> Self:
        """Read a saved model; its weights are mapped into memory and read when they are needed."""
        saved = persistence.load(persistence.located(Path(path)))
        tagger = cls(**{**saved.about["tagger"], "device": device})
        tagger.fitted_ = Fitted.restored(saved, Path(path), chosen_device(device))
        return tagger

    # --- What a fit leaves, by scikit-learn's naming ------------------------------------------------------------------

    def _fitted(self) -> Fitted:
        if self.fitted_ is not None:
            return self.fitted_
        if self.unfinished_:
            raise NotFittedError("the last fit did not finish; load a saved model, or fit with warm_start=False")
        raise NotFittedError("this Tagger has not been fitted; call fit first")

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether it is fitted."""
        return self.fitted_ is not None

    @property
    def classes_(self) -> list[str]:
        """Names of labels by id, removed ones included."""
        return self._fitted().labels.names

    @property
    def labels_(self) -> LabelSpace:
        """Names, texts and counts of labels."""
        return self._fitted().labels

    @property
    def chosen_(self) -> Choice:
        """The fitted model and preset, and why they were chosen."""
        return self._fitted().blueprint.choice

    @property
    def settings_(self) -> Any:
        """The settings of the fitted model."""
        return self._fitted().blueprint.settings

    @property
    def features_(self) -> TextFeatures | None:
        """The vocabulary; None where points are rows of a matrix."""
        return self._fitted().blueprint.features

    @property
    def model_(self) -> Model:
        """The model, a `torch.nn.Module`."""
        return self._fitted().model

    @property
    def predictor_(self) -> Predictor:
        """What ranks points: one learner, or an average of several."""
        return self._fitted().predictor

    @property
    def calibration_(self) -> calibration.Calibration | None:
        """The map from scores to probabilities; None where held-out points were too few."""
        return self._fitted().calibration

    @property
    def outcome_(self) -> Outcome:
        """How training ended."""
        return self._fitted().outcome


def _check_method(name: str) -> None:
    if name not in calibration.METHODS:
        raise ConfigError(f"unknown calibration {name!r}{did_you_mean(str(name), calibration.METHODS)}")
