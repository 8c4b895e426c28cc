"""The door: texts in, named and scored tags out, with scikit-learn's conventions."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array, issparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from zipfel import calibration, config, metrics, persistence
from zipfel.choice import AUTO, Choice, are_told, chosen, has_letters
from zipfel.data.dataset import Dataset, Part, Texts
from zipfel.data.label_notes import LabelNotes
from zipfel.data.splits import split_rows
from zipfel.data.text import TextFeatures, TextSettings
from zipfel.errors import ConfigError, DataError, did_you_mean
from zipfel.explain import Reason, reasons
from zipfel.models.base import Lesson, unseen
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome
from zipfel.types import Ranking

MODELS = {name: f"zipfel.models.{name}" for name in ("glas", "mnn", "dxml", "lightdxml", "decaf")}

CHUNK = 1 << 16  # vectors of labels that are compared at a time


class Tag(NamedTuple):
    """A label and its score in [0, 1]."""

    label: str
    score: float


def settings_of(model: str, preset: str = "default", changes: Mapping[str, Any] | None = None) -> Any:
    """Return the settings of a model: those of a preset, and what differs from it."""
    presets = model_presets(model)
    if preset not in presets:
        raise ConfigError(f"unknown preset {preset!r}{did_you_mean(preset, presets)}")
    base = presets[preset]
    if not isinstance(changes or {}, Mapping):
        raise ConfigError(f"settings must be given by name; found {changes!r}")
    return config.from_mapping(type(base), {**dataclasses.asdict(base), **(changes or {})})


def model_presets(model: str) -> dict[str, Any]:
    """Return the settings of each preset of a model."""
    if model not in MODELS:
        raise ConfigError(f"unknown model {model!r}{did_you_mean(model, [*MODELS, AUTO])}")
    presets: dict[str, Any] = import_module(MODELS[model]).PRESETS
    return presets


class Tagger(BaseEstimator):  # type: ignore[misc]
    """Tags texts, or rows of sparse features, with labels.

    model: one of MODELS, or "auto": what fits the data, by its size, the texts of its labels and the device; `chosen_`
    tells which it was.  preset: "default", "fast" or "paper".  settings: what differs from the preset, by name.
    text: how texts become features (`TextSettings`), by name.  validation: share of the points that decides on what is
    left open, such as when to stop; None is the model's usual share.  warm_start: a further `fit` goes on from the
    weights that are there, with the settings they were made with; labels it has not seen are added.  calibration: how
    validation turns scores into probabilities: "isotonic", "platt", "none", or "auto", the better of the first two.

    >>> tagger = Tagger("glas", settings={"epochs": 20, "dimension": 16}, text={"min_count": 1}, validation=0)
    >>> texts, tags = ["red apple", "green pear", "fast car", "slow car"], [["fruit"], ["fruit"], ["car"], ["car"]]
    >>> tagger = tagger.fit(texts, tags)
    >>> tagger.predict(["a green apple"], k=1)[0][0].label
    'fruit'
    """

    model_: Any
    chosen_: Choice  # the model and preset that were fitted, and why these
    classes_: list[str]
    removed_: list[int]  # ids of labels that are never predicted again
    label_notes_ = LabelNotes()  # none until it is fitted
    calibration_: calibration.Calibration | None = None  # none where there were too few points to learn it from

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

    def fit(self, X: Any, y: Any, label_texts: Mapping[str, str] | None = None) -> Tagger:
        """Learn from texts (a list, or lists by field) or a sparse matrix, and tags: lists of names, or a matrix."""
        return self.fit_dataset(dataset_of(X, y, label_texts))

    def fit_dataset(self, dataset: Dataset, run: Run | None = None) -> Tagger:
        """Learn from a data set; its stages are kept in the folder of `run`, where it has one."""
        device, given = chosen_device(self.device), dataset
        _check_method(self.calibration)
        if not dataset.train.Y.nnz:
            raise DataError("no point has a label, so there is nothing to learn")
        if self.warm_start and hasattr(self, "model_"):
            self._check_fitted()
            dataset = self._continued(self._featured(dataset, self.live_labels()))
        else:
            self._start(dataset)
            dataset = self._featured(dataset)
        self.label_notes_ = self.label_notes_.grown(self._unique_names(), given)
        self.model_.to(device)
        lesson = self._lesson(dataset)
        self.outcome_ = self.model_.fit(lesson, run or Run(seed=self.seed))
        self.learner_ = self.model_.learner()
        self._calibrate(lesson)
        return self

    def _calibrate(self, lesson: Lesson) -> None:
        """Learn what scores are worth from validation, where it was ranked before it was learned from."""
        if lesson.validation is None:
            return
        remembers = getattr(self.model_, "remembers", False)  # and by now maybe validation too
        held_out = self.model_.unseen if remembers else unseen(self.learner_, lesson.validation)
        if held_out is not None:
            counts = (lesson.whole or lesson.train).Y.sum(axis=0)
            bins = metrics.frequency_bins(counts, calibration.BINS)
            gone = self._left_out(None, len(held_out.ranking))
            ranking = held_out.ranking if gone is None else held_out.ranking.without(gone)
            found = calibration.learned(ranking, held_out.Y, bins, self.calibration)
            self.calibration_ = found or self.calibration_  # of an earlier fit, where there are too few points

    def partial_fit(self, X: Any, y: Any) -> Tagger:
        """Remember more points without learning, where the model is one of remembered points (mnn, dxml).

        Tags that are new become predictable. `drift_` tells how far these points lie off, as a multiple of what is
        usual among those that were learned from: well above 1, it is time to fit again. The first call is a `fit`.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y)
        self._check_fitted()
        if not getattr(self.model_, "remembers", False):
            raise ConfigError(
                f"{self.chosen_.model} cannot take points without learning; fit with warm_start=True instead"
            )
        given = dataset_of(X, y)
        if not given.train.Y.nnz:
            raise DataError("no point has a label, so there is nothing to remember")
        dataset = self._continued(self._featured(given))
        self.label_notes_ = self.label_notes_.grown(self._unique_names(), given)
        self.drift_ = self.model_.add_points(dataset.train)
        self.learner_ = self.model_.learner()
        return self

    def add_labels(self, label_texts: Mapping[str, str]) -> Tagger:
        """Take new labels, which are scored by their texts at once, where the model reads texts of labels (decaf)."""
        self._check_fitted()
        if not hasattr(self.model_, "add_label_texts"):
            raise ConfigError(
                f"{self.chosen_.model} does not read texts of labels; fit with warm_start=True on points with them"
            )
        if self.features_ is None:
            raise ConfigError("the model was fitted on a matrix of features, and knows no words")
        texts = checked_texts(label_texts)
        known = _first_twice([*self.live_labels(), *map(str, label_texts)])
        if known is not None:
            raise ConfigError(f"there is a label {known!r} already")
        read = [name if not text.strip() and has_letters(name) else text for name, text in texts.items()]
        self.model_.add_label_texts(self.features_.transform(read))
        self.classes_ = [*self.classes_, *texts]
        self.label_notes_ = self.label_notes_.added(len(self.classes_), list(texts.values()))
        self.learner_ = self.model_.learner()
        return self

    def remove_labels(self, names: Iterable[str]) -> Tagger:
        """Never predict these labels again. The ids of all others stay as they are."""
        ids = self._label_ids(names)
        self.removed_ = sorted({*self.removed_, *ids})
        return self

    def rename_labels(self, names: Mapping[str, str]) -> Tagger:
        """Give labels other names."""
        ids, others = self._label_ids(names), set(self.live_labels()) - set(names)
        taken = _first_twice([*others, *map(str, names.values())])
        if taken is not None:
            raise ConfigError(f"two labels would be called {taken!r}")
        classes = list(self.classes_)
        for place, name in zip(ids, names.values(), strict=True):
            classes[place] = str(name)
        self.classes_ = classes
        return self

    def live_labels(self) -> dict[str, int]:
        """Return the labels that can be predicted, and their ids."""
        removed = set(self.removed_)
        return {name: place for place, name in enumerate(self.classes_) if place not in removed}

    def _label_ids(self, names: Iterable[str]) -> list[int]:
        self._check_fitted()
        if isinstance(names, str):
            raise ConfigError(f"expected a list of labels, found one: {names!r}")
        places, wanted = self.live_labels(), list(names)
        unknown = next((name for name in wanted if name not in places), None)
        if unknown is not None:
            near = [name for name in places if name[:1] == str(unknown)[:1]][:10_000]  # of a million it takes long
            raise ConfigError(f"unknown label {unknown!r}{did_you_mean(str(unknown), near or list(places)[:100])}")
        return [places[name] for name in wanted]

    def choice(self, dataset: Dataset) -> tuple[Choice, Any]:
        """Return what `fit` would take for a data set: the model and preset that are named or chosen, and settings."""
        found = chosen(dataset, self.model, self.preset, chosen_device(self.device).type)
        try:
            return found, settings_of(found.model, found.preset, self.settings)
        except ConfigError as error:
            if self.model != AUTO:
                raise
            raise ConfigError(f"model auto is {found.model} here ({found.why}): {error}") from None

    def _start(self, dataset: Dataset) -> None:
        """Fit the vocabulary, and make a new model for this many features and labels."""
        self.chosen_, self.settings_ = self.choice(dataset)
        self.__dict__.pop("learner_", None)  # what is there from now on belongs to the new one
        self.features_, self.calibration_ = None, None
        if dataset.train.texts is not None:
            text = config.from_mapping(TextSettings, self.text or {})
            texts = self._with_label_texts(dataset).label_texts
            self.features_ = TextFeatures.fit(dataset.train.texts, texts, text)
        self.classes_, self.removed_ = list(dataset.label_names or map(str, range(dataset.sizes.labels))), []
        self.label_notes_ = LabelNotes(counts=[])
        inputs = len(self.features_.terms) if self.features_ is not None else dataset.sizes.features
        self.model_ = self._built(inputs, len(self.classes_))

    def _built(self, features: int, labels: int) -> Any:
        build = import_module(MODELS[self.chosen_.model]).build
        return build(features, labels, self.settings_, Run(seed=self.seed).generator("start"))

    def _featured(self, dataset: Dataset, known: Container[str] = ()) -> Dataset:
        if (dataset.train.texts is not None) != (self.features_ is not None):
            kind = "texts" if self.features_ is not None else "a sparse matrix"
            raise DataError(f"the model was fitted on {kind}; these points are not of that kind")
        if self.features_ is not None:
            return self.features_.apply(self._with_label_texts(dataset, known))
        self._check_width(dataset.sizes.features)
        return dataset

    def _with_label_texts(self, dataset: Dataset, known: Container[str] = ()) -> Dataset:
        """Return the data set with names for texts of the labels that have none, where the model reads them.

        Names that are mere numbers, as columns of a matrix have, tell nothing.
        Of labels that are known to the model nothing is told, so that they keep the texts that they have.
        """
        reads = getattr(import_module(MODELS[self.chosen_.model]).build, "reads_label_texts", False)
        if not reads or not dataset.label_names:
            return dataset
        texts = dataset.label_texts or {"text": [""] * len(dataset.label_names)}
        field, column = next(iter(texts.items()))
        names = zip(column, are_told(texts), dataset.label_names, strict=True)
        filled = [name if not told and name not in known and has_letters(name) else text for text, told, name in names]
        return dataclasses.replace(dataset, label_texts={**texts, field: filled})

    def _check_width(self, features: int) -> None:
        if features != self.model_.features:
            raise DataError(f"points have {features} features, and the model was fitted on {self.model_.features}")

    def _lesson(self, dataset: Dataset) -> Lesson:
        """Return what the model learns from; where there is no validation part, a share of train becomes one."""
        lesson = Lesson(dataset.train, dataset.validation, None, self.classes_, dataset.Z, dataset.feature_names,
                        dataset.propensity)  # fmt: skip
        share = self._usual_share(len(dataset.train)) if self.validation is None else self.validation
        if dataset.validation is not None or not share or len(dataset.train) < 100:
            return lesson
        stay, held = split_rows(dataset.train, share, self.seed)
        train, validation = dataset.train.take(stay), dataset.train.take(held)
        return dataclasses.replace(lesson, train=train, validation=validation, whole=dataset.train)

    def _usual_share(self, points: int) -> float:
        """Return the share of so many points that the model wants held out."""
        most = getattr(self.model_, "most_held_out", points)
        return min(float(self.model_.held_out), most / max(points, 1))

    def _continued(self, dataset: Dataset) -> Dataset:
        """Return the data set with this tagger's labels first, and add those that it has not seen."""
        self.__dict__.pop("learner_", None)  # until there is one again that knows them
        names = list(dataset.label_names or map(str, range(dataset.sizes.labels)))
        places, known = self.live_labels(), len(self.classes_)
        added = [name for name in names if name not in places]
        self.classes_ = [*self.classes_, *added]
        self.model_.add_labels(len(added), Run(seed=self.seed).generator(f"labels {len(self.classes_)}"))
        columns = np.array([{**places, **_numbered(added, known)}[name] for name in names])

        def moved(part: Part) -> Part:
            filtered = part.filtered if part.filtered is None else _moved(part.filtered, columns, len(self.classes_))
            return dataclasses.replace(part, Y=_moved(part.Y, columns, len(self.classes_)), filtered=filtered)

        Z = None if dataset.Z is None else csr_array(_moved(csr_array(dataset.Z.T), columns, len(self.classes_)).T)
        return dataset.with_parts(moved, label_names=self._unique_names(), label_texts=None, Z=Z)

    def _unique_names(self) -> list[str]:
        """Return names of all labels, of which removed ones may be called as others are."""
        removed = set(self.removed_)
        return [f"removed {place}: {name}" if place in removed else name for place, name in enumerate(self.classes_)]

    def rank(self, X: Any, k: int = 5, filtered: csr_array | None = None) -> Ranking:
        """Return the best k labels of each point as ids and scores, [points, k]."""
        self._check_fitted()
        if not isinstance(k, int | np.integer) or k < 1:
            raise ConfigError(f"k must be a whole number of at least 1; found {k!r}")
        rows, labels = self._rows(X), len(self.classes_)
        if filtered is not None and filtered.shape != (rows.shape[0], labels):
            raise DataError(f"filtered pairs must be {rows.shape[0]} × {labels}; found shape {filtered.shape}")
        live = labels - len(self.removed_)
        ranking: Ranking = self.learner_.rank(rows, min(int(k), live), self._left_out(filtered, rows.shape[0]))
        return ranking

    def _left_out(self, filtered: csr_array | None, points: int) -> csr_array | None:
        """Return the pairs that must not be ranked: those that are filtered, and labels that were removed."""
        if not self.removed_:
            return filtered
        count, shape = len(self.removed_), (points, len(self.classes_))
        ids = np.tile(np.array(self.removed_), points)
        gone = csr_array((np.ones(len(ids), dtype=np.float32), ids, np.arange(points + 1) * count), shape=shape)
        return gone if filtered is None else csr_array(gone + filtered)

    def _rows(self, X: Any) -> csr_array:
        if self.features_ is not None:
            if is_matrix(X):
                raise DataError("the model was fitted on texts; found a matrix")
            return self.features_.transform(_texts(X))
        if not is_matrix(X):
            raise DataError(f"the model was fitted on a matrix of features; found {type(X).__name__}")
        rows = Part(csr_array((X.shape[0], 0)), X=X).X  # checked, and in the form that learning saw
        assert rows is not None
        self._check_width(rows.shape[1])
        return rows

    def predict(
        self,
        X: Any,
        k: int | None = None,
        threshold: float | Sequence[float] | None = None,
        extra: Mapping[str, str] | None = None,
    ) -> list[list[Tag]]:
        """Return the best k tags of each point, best first, with scores in [0, 1] that are probabilities.

        threshold: the least score of a tag; one for all, or what `choose_threshold` gives.  k: 5, and 50 where there is
        a threshold, so that it and not k decides.  extra: texts of labels that the model has not learned, by name; they
        compete with its own, and one of which no word is known scores 0.
        """
        depth = (calibration.SHOWN if threshold is None else calibration.DEPTH) if k is None else k
        ranking, names = self.rank(X, depth), self.classes_
        if extra:
            ranking, names = self._with_extra(ranking, X, list(extra.values())).top(depth), [*names, *extra]
        ranking = self.calibrated(ranking, threshold)
        return [
            [Tag(names[label], score) for label, score in zip(*row, strict=True) if label >= 0]
            for row in zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True)
        ]

    def _with_extra(self, ranking: Ranking, X: Any, texts: Sequence[str]) -> Ranking:
        """Rank labels that are known by their texts only among the others; their ids follow those of the model's."""
        if self.features_ is None:
            raise ConfigError("a model that was fitted on a matrix cannot score a label by its text")
        Z = self.features_.transform(list(texts))
        scores = self.model_.text_scores(self.learner_.first, self._rows(X), Z).cpu().numpy()
        scores[:, np.diff(Z.indptr) == 0] = 0
        rows, places = np.nonzero(ranking.ids >= 0)
        added = np.indices(scores.shape).reshape(2, -1)
        ids = np.concatenate([ranking.ids[rows, places], len(self.classes_) + added[1]])
        values = np.concatenate([ranking.scores[rows, places], scores.ravel()])
        return Ranking.of_pairs(np.concatenate([rows, added[0]]), ids, values, len(ranking), ranking.k + len(texts))

    def nearest_labels(self, label: str, k: int = 5) -> list[Tag]:
        """Return the k labels whose vectors are nearest to that of a label, by cosine, nearest first."""
        self._check_fitted()
        places = self.live_labels()
        if label not in places:
            raise ConfigError(f"the model has no label {label!r}")
        if getattr(self.model_, "remembers", False):
            raise ConfigError(f"{self.chosen_.model} has vectors of points, not of labels")
        vectors = self.learner_.first.classifier.vectors
        own = F.normalize(vectors[places[label]], dim=0)
        chunks = torch.split(vectors, CHUNK)
        cosines = torch.cat([chunk @ own / chunk.norm(dim=1).clamp_min(1e-12) for chunk in chunks])
        cosines[[places[label], *self.removed_]] = -torch.inf
        best = cosines.cpu().sort(descending=True, stable=True)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [Tag(self.classes_[other], score) for other, score in islice(pairs, min(k, len(places) - 1))]

    def calibrated(self, ranking: Ranking, threshold: float | Sequence[float] | None = None) -> Ranking:
        """Return what `rank` gave with probabilities for scores, less the labels below a threshold."""
        if isinstance(threshold, int | float) and not 0 <= threshold <= 1:  # a bin's may be ∞, which leaves it out
            raise ConfigError(f"a threshold must lie in [0, 1]; found {threshold}")
        if self.calibration_ is not None:
            return self.calibration_.applied(ranking, threshold)
        return ranking if threshold is None else calibration.cut(ranking, threshold)

    def choose_threshold(self, precision: float | None = None, by_frequency: bool = False) -> float | tuple[float, ...]:
        """Return the lowest threshold with that share of right tags on held-out points, or that of the best micro-F1.

        by_frequency: three thresholds, for labels that are rare, between, and frequent in train.
        """
        self._check_fitted()
        if self.calibration_ is None:
            raise ConfigError("the model has no held-out points to choose a threshold by; give one, or train with more")
        return self.calibration_.threshold(precision, by_frequency)

    def explain(self, text: str, label: str) -> list[Reason]:
        """Return what each known term of a text adds to the score of a label, the largest part first."""
        self._check_fitted()
        if self.features_ is None:
            raise DataError("the model was fitted on a matrix of features: it knows no words to explain a label by")
        if not isinstance(text, str):
            raise DataError(f"expected one text, found {type(text).__name__}")
        return reasons(self.learner_, self.features_, text, *self._label_ids([label]))

    def index_recall(self, X: Any, k: int = 5) -> float | None:
        """Return the share of candidates of an exact search that the model's index finds; None if it is exact."""
        self._check_fitted()
        share: float | None = self.learner_.recall(self._rows(X), k)
        return share

    def score(self, X: Any, y: Any) -> float:
        """Return P@1, as a share: how often the first tag is right."""
        self._check_fitted()
        truth = label_matrix(y, self._unique_names())
        return metrics.measure(self.rank(X, 1), truth, ks=(1,))["P@1"] / 100

    def _check_fitted(self) -> None:
        if not hasattr(self, "model_"):
            raise NotFittedError("this Tagger has not been fitted; call fit first")
        if not hasattr(self, "learner_"):
            raise NotFittedError(
                "the last fit of this Tagger did not end, so it knows neither what it knew nor what it was to learn; "
                "load a saved one, or fit with warm_start=False"
            )

    def save(self, path: Path | str, replace: bool = False) -> None:
        """Write the model into a new folder; `replace` allows that an older model is there."""
        persistence.save(self.saved(), Path(path), replace)

    def saved(self) -> persistence.Saved:
        """Return what a saved model holds."""
        self._check_fitted()
        serve, train = self.model_.saved()
        documents: dict[str, Any] = {"labels": self.classes_, "label_notes": dataclasses.asdict(self.label_notes_)}
        if self.removed_:
            documents["removed"] = self.removed_
        if self.features_ is not None:
            documents["vocabulary"] = self.features_.as_json()
        if self.calibration_ is not None:
            documents["calibration"] = self.calibration_.as_json()
        about = {
            "model": self.chosen_.model,
            "chosen": dataclasses.asdict(self.chosen_),
            "tagger": self.get_params() | {"warm_start": False},
            "settings": dataclasses.asdict(self.settings_),
            "sizes": {"features": self.model_.features, "labels": len(self.classes_)},
            "training": dataclasses.asdict(self.outcome_),
        }
        return persistence.Saved(about, documents, serve, train)

    @classmethod
    def load(cls, path: Path | str, device: str = "auto") -> Tagger:
        """Read a saved model; its weights are mapped into memory and read when they are needed."""
        saved = persistence.load(persistence.located(Path(path)))
        about = saved.about
        tagger = cls(**{**about["tagger"], "device": device})
        named = {"model": about["model"], "preset": tagger.preset}  # as in older models
        tagger.chosen_ = Choice(**about.get("chosen", named))
        tagger.settings_ = settings_of(tagger.chosen_.model, tagger.chosen_.preset, about["settings"])
        tagger.classes_, tagger.removed_ = saved.documents["labels"], saved.documents.get("removed", [])
        tagger.label_notes_ = LabelNotes(**saved.documents.get("label_notes", {}))
        vocabulary = saved.documents.get("vocabulary")
        tagger.features_ = None if vocabulary is None else TextFeatures.of_json(vocabulary, path)
        learned = saved.documents.get("calibration")  # none in older models
        tagger.calibration_ = None if learned is None else calibration.Calibration.of_json(learned)
        module = import_module(MODELS[tagger.chosen_.model])
        model = module.restored(about["sizes"], tagger.settings_, saved.serve, saved.train)
        tagger.model_ = model.to(chosen_device(device))
        tagger.learner_ = tagger.model_.learner()
        tagger.outcome_ = Outcome(**about["training"])
        return tagger


def chosen_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is the GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    known = {"auto", "cpu", "cuda", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))}
    if name not in known:
        raise ConfigError(f"unknown device {name!r}{did_you_mean(str(name), sorted(known))}")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, and torch finds no GPU here")
    return torch.device(name)


def _check_method(name: str) -> None:
    if name not in calibration.METHODS:
        raise ConfigError(f"unknown calibration {name!r}{did_you_mean(str(name), calibration.METHODS)}")


def dataset_of(X: Any, y: Any, label_texts: Mapping[str, str] | None = None) -> Dataset:
    """Make a data set of what users have: texts or a sparse matrix, and tag names or a sparse matrix."""
    about = checked_texts(label_texts or {})
    if is_matrix(y):
        names = [str(label) for label in range(y.shape[1])]
        unknown = next((name for name in about if name not in set(names)), None)
        if unknown is not None:
            raise DataError(f"label_texts names {unknown!r}; the labels of a matrix are called 0 to {len(names) - 1}")
    else:
        y = checked_tags(y)
        names = sorted({str(tag) for tags in y for tag in tags} | set(about))
    Y = label_matrix(y, names)
    texts = None if is_matrix(X) else _texts(X)
    points = X.shape[0] if texts is None else len(next(iter(texts.values()), ()))
    if points != Y.shape[0]:
        raise DataError(f"{points} points and {Y.shape[0]} rows of tags must be as many")
    part = Part(Y, X=X if texts is None else None, texts=texts)
    descriptions = {"text": [about.get(name, "") for name in names]} if about else None
    return Dataset(part, label_names=names, label_texts=descriptions)


def checked_texts(label_texts: Mapping[Any, Any]) -> dict[str, str]:
    """Return texts of labels by name; what is no text, as a missing value in a table, is refused."""
    for name, text in label_texts.items():
        if not isinstance(text, str):
            raise DataError(f"the text of label {str(name)!r} must be text; found {type(text).__name__}")
    return {str(name): text for name, text in label_texts.items()}


def is_matrix(values: Any) -> bool:
    """Tell whether these are numbers in rows and columns: a sparse matrix, or a dense array."""
    return issparse(values) or (isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind in "biuf")


def _texts(X: Any) -> Texts:
    """Return texts by field; a plain list is one field."""
    if isinstance(X, str):
        raise DataError("expected a list of texts, found one text")
    if isinstance(X, Mapping):
        return {name: list(column) for name, column in X.items()}
    if not isinstance(X, Iterable):
        raise DataError(f"expected a list of texts or a matrix of features, found {type(X).__name__}")
    texts = list(X)
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise DataError(f"row {row} must be text; found {type(text).__name__}")
    return {"text": texts}


def checked_tags(y: Any) -> list[list[Any]]:
    """Return a list of names for each point, or refuse what is none."""
    if isinstance(y, str) or not isinstance(y, Iterable):
        raise DataError(f"expected a list of tags for each point, found {y!r:.60}")
    rows = list(y)
    for row, tags in enumerate(rows):
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise DataError(f"row {row} of the tags must be a list of names; found {tags!r:.60}")
    return [list(tags) for tags in rows]


def label_matrix(y: Any, names: Sequence[str]) -> csr_array:
    """Return tags as a [points, names] matrix; tags that are not among the names are left out."""
    if is_matrix(y):
        return csr_array(y)
    places = {name: place for place, name in enumerate(names)}
    rows = [[places[str(tag)] for tag in dict.fromkeys(tags) if str(tag) in places] for tags in checked_tags(y)]
    counts = np.array([len(row) for row in rows], dtype=np.int64)
    ids = np.array([place for row in rows for place in row], dtype=np.int32)
    indptr = np.concatenate(([0], np.cumsum(counts)))
    return csr_array((np.ones(len(ids), dtype=np.float32), ids, indptr), shape=(len(rows), len(names)))


def _first_twice(names: Iterable[str]) -> str | None:
    """Return the first name that was there before."""
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _numbered(names: Sequence[str], first: int) -> dict[str, int]:
    return {name: first + place for place, name in enumerate(names)}


def _moved(matrix: csr_array, columns: np.ndarray[Any, Any], width: int) -> csr_array:
    """Return the matrix with its columns at other places, [rows, width]."""
    return csr_array((matrix.data, columns[matrix.indices], matrix.indptr), shape=(matrix.shape[0], width))
