"""`Tagger`: texts in, named and scored tags out, with scikit-learn's conventions."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import calibration, fitting, grounding, metrics, persistence, tagging
from zipfel.choice import AUTO, Choice, chosen
from zipfel.data.dataset import Dataset, fingerprint
from zipfel.data.formats.files import reason
from zipfel.data.given import checked_texts, dataset_of, label_matrix
from zipfel.data.labels import names_as_texts
from zipfel.data.points import points_of
from zipfel.errors import ConfigError, DataError, ZipfelWarning, did_you_mean
from zipfel.estimator import Estimator
from zipfel.explain import Reason, reasons
from zipfel.fitting import Blueprint, Fitted, chosen_device, lesson_of, trained
from zipfel.label_report import LabelReport
from zipfel.models.base import Model, settings_of
from zipfel.tagging import Request, Tag, Tagged
from zipfel.text_choice import TextChoice, chosen_text, seconds_of_choice
from zipfel.training.run import Run
from zipfel.types import Ranking


class Tagger(Estimator):
    """Tags texts, or rows of sparse features, with labels.

    model: a name out of `zipfel models`, or "auto": chosen by the size of the data, its label texts and the device;
    `chosen_` says which it was.  preset: "default", "fast" or "paper".  settings: changes to the preset, by name.
    text: how texts become features (`TextSettings`), by name; with "auto", held-out points choose those that are not
    named (`text_choice_`).  validation: share of the points that is held out to choose an epoch, calibrate, and so on;
    None is the model's own share.  warm_start: a further `fit` continues from the current weights, with the settings
    they were made with; new labels are added.  calibration: how held-out points turn scores into probabilities:
    "isotonic", "platt", "none", or "auto", the better of the first two.
    text_columns: the text columns of data frames; None takes those that the command line takes (title, text, ...).
    sep: the separator of labels in strings.  output: what `predict` returns: "tags", or "indicator", a sparse matrix of
    0 and 1, which the metrics of scikit-learn need.  verbose: 1 shows the progress of `fit` on standard error; the
    `logging` module gets it in any case ("zipfel", INFO).

    >>> tagger = Tagger("glas", settings={"epochs": 20, "dimension": 16}, text={"min_count": 1}, validation=0)
    >>> texts, tags = ["red apple", "green pear", "fast car", "slow car"], [["fruit"], ["fruit"], ["car"], ["car"]]
    >>> tagger = tagger.fit(texts, tags)
    >>> tagger.predict(["a green apple"], k=1)[0][0].label
    'fruit'
    """

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
        text_columns: Sequence[str] | None = None,
        sep: str | None = None,
        output: Literal["tags", "indicator"] = "tags",
        verbose: int = 0,
    ) -> None:
        self.model, self.preset, self.settings, self.text = model, preset, settings, text
        self.validation, self.warm_start, self.device, self.seed = validation, warm_start, device, seed
        self.calibration, self.text_columns, self.sep, self.output = calibration, text_columns, sep, output
        self.verbose = verbose

    # --- Learning -----------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        label_texts: Any = None,
        label_names: Any = None,
        parents: Any = None,
        ancestors: bool = False,
        sample_weight: Any = None,
    ) -> Self:
        """Learn from points and tags.

        X: texts (a list, a series, lists by field, a data frame) or features (a matrix, an array of embeddings); a
        field, or a column that `text_columns` names, may hold vectors beside texts.  y:
        lists of names, a series of lists or of strings, an indicator frame, or a matrix, whose columns `label_names`
        may name.  label_texts: by name, as a dict, a series or a frame.  parents: {tag: parent or list of parents}, a
        hierarchy, also as a series or a frame.  ancestors: give each point the ancestors of its tags too.
        sample_weight: a number for each point, relative to the others: how often training draws it; 0 leaves it out.
        """
        points = self._points(X, self.warm_start)
        dataset = dataset_of(points, y, label_texts, label_names, self.sep, parents, ancestors, sample_weight)
        old = self.fitted_.blueprint if self.warm_start and self.fitted_ else None
        choice = self.choice(dataset) if old is None else (old.choice, old.settings)
        if note := fitting.unused_label_texts(*choice, dataset):
            warnings.warn(note, ZipfelWarning, stacklevel=2)
        return self.fit_dataset(dataset)

    def fit_dataset(self, dataset: Dataset, run: Run | None = None) -> Self:
        """Learn from a data set; the stages are kept in the folder of `run`, where it has one, and resumed from it."""
        if run is None and self.verbose:
            return self._shown_fit(dataset)
        device, run = chosen_device(self.device), run or Run(seed=self.seed)
        _check_one_of("calibration", self.calibration, calibration.METHODS)
        _check_one_of("output", self.output, tagging.OUTPUTS)
        if not dataset.train.Y.nnz:
            raise DataError("no point has a label, so there is nothing to learn")
        if not run.is_open:
            run.open(self.run_inputs(dataset))
        if self.warm_start and self.unfinished_:
            self._fitted()
        old = self.fitted_ if self.warm_start else None
        if old is None:
            text = run.world.first(lambda: self.text_choice(dataset, run.aside(), device))
            blueprint = Blueprint.of(dataset, *self.choice(dataset), text)
            featured = blueprint.featured(dataset)
            model = blueprint.built(featured.sizes.features, self.seed, run.world)
        else:
            blueprint, model, featured = self._extended(old, dataset, warm=True)
        self.fitted_, self.unfinished_ = None, True
        model.to(device)
        lesson = lesson_of(model, featured, blueprint.labels.names, self.validation, self.seed)
        self.fitted_, self.unfinished_ = trained(blueprint, model, lesson, run, self.calibration, old), False
        return self

    def _shown_fit(self, dataset: Dataset) -> Self:
        from zipfel.display import Shown

        with Shown() as shown:
            self.fit_dataset(dataset, Run(seed=self.seed, progress=shown))
        shown.say(f"{self.chosen_.model}, preset {self.chosen_.preset} ({self.chosen_.why}): {self.outcome_}")
        return self

    def partial_fit(self, X: Any, y: Any) -> Self:
        """Remember more points without learning, where the model remembers points (`zipfel models` says which do).

        It changes no weight: the points only join those that vote, and new tags become predictable. To learn from new
        points, call `fit` with `warm_start=True`. `drift_` says how far these points are from the known ones, as a
        multiple of the usual distance: well above 1, it is time to fit again. The first call is a `fit`.
        """
        dataset = dataset_of(self._points(X), y, sep=self.sep)
        if self.fitted_ is None and not self.unfinished_:
            fitting.check_remembers(*self.choice(dataset))  # or the next call would be refused, after all the training
            return self.fit_dataset(dataset)
        old = self._fitted()
        fitting.check_remembers(old.blueprint.choice, old.blueprint.settings)
        if not dataset.train.Y.nnz:
            raise DataError("no point has a label, so there is nothing to remember")
        blueprint, model, featured = self._extended(old, dataset)
        self.drift_ = model.add_points(featured.train)
        fitted = dataclasses.replace(old, blueprint=blueprint, predictor=model.predictor())
        self.fitted_, self.unfinished_ = fitted, False
        return self

    def _extended(self, old: Fitted, dataset: Dataset, warm: bool = False) -> tuple[Blueprint, Model, Dataset]:
        """Add a data set's new labels to a model, and new words if warm; also return the data set with features."""
        blueprint, featured = fitting.extended(old, dataset, warm)
        self.fitted_, self.unfinished_ = None, True
        fitting.grow(old, featured.sizes, self.seed)
        return dataclasses.replace(blueprint, settings=old.model.settings), old.model, featured

    def choice(self, dataset: Dataset) -> tuple[Choice, Any]:
        """Return the model and preset that `fit` would use for a data set, named or chosen, and the settings."""
        choice = chosen(dataset, self.model, self.preset, chosen_device(self.device).type)
        try:
            return choice, settings_of(choice.model, choice.preset, choice.with_settings(self.settings))
        except ConfigError as error:
            if self.model != AUTO:
                raise
            raise ConfigError(f"model auto is {choice.model} here ({choice.why}): {error}") from None

    def text_choice(self, dataset: Dataset, run: Run, device: torch.device) -> TextChoice:
        """Return the text settings that `fit` uses: those given, and for model "auto" others that the data chooses."""
        if self.model != AUTO or self.preset == "paper":
            return TextChoice(dict(self.text or {}))
        return chosen_text(dataset, self.text, run, device)

    def text_choice_seconds(self, dataset: Dataset) -> float:
        """Return about how long `text_choice` takes, from one of its trials."""
        if self.model != AUTO or self.preset == "paper":
            return 0.0
        return seconds_of_choice(dataset, self.text, self.seed, chosen_device(self.device))

    def run_inputs(self, dataset: Dataset) -> dict[str, Any]:
        """Return the inputs of a run with a folder; only a run with equal inputs is resumed."""
        choice, settings = self.choice(dataset)
        return {"model": choice.model, "settings": dataclasses.asdict(settings), "text": dict(self.text or {}),
                "data": fingerprint(dataset, dataset.parts.values())}  # fmt: skip

    # --- Labels -------------------------------------------------------------------------------------------------------

    def add_labels(self, label_texts: Any) -> Self:
        """Add labels that are scored by their texts at once, where the model can (`zipfel models` says which can)."""
        old = self._fitted()
        if not old.blueprint.abilities.takes_labels_by_text:
            raise ConfigError(f"{old.blueprint.choice.model} cannot take labels by their text; "
                              "fit with warm_start=True on points with them")  # fmt: skip
        if old.blueprint.features is None:
            raise ConfigError("the model was fitted on a matrix of features, and knows no words")
        texts = checked_texts(label_texts)
        labels = old.labels.described(texts)
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
        return tagging.nearest(self._fitted(), label, k)

    # --- Tagging ------------------------------------------------------------------------------------------------------

    def predict(
        self,
        X: Any,
        k: int | None = None,
        threshold: float | Sequence[float] | None = None,
        extra: Any = None,
    ) -> Any:
        """Return up to k tags of each point, best first, with scores in [0, 1] that are probabilities.

        A point without a known word (see `known`) gets the most frequent labels, by their share of training points.
        k, threshold, extra: as in `zipfel.tagging.Request`.  With output="indicator", return a sparse matrix [points,
        labels] of 0 and 1 instead; without k and threshold, it marks the labels with a probability of 0.5 and more.
        """
        if self.output == "indicator":
            threshold = tagging.LIKELY if k is None and threshold is None else threshold
        tagged = self.tag([Request(X, k, threshold, checked_texts(extra))])[0]
        return tagged.tags() if self.output == "tags" else tagged.indicator()

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the probability of each label, [points, labels]; 0 for labels that the model does not rank."""
        return tagging.probabilities(self._fitted(), self._points(X))

    def tag(self, requests: Sequence[Request]) -> list[Tagged]:
        """Answer several requests at once, which is faster than one after the other; the answers are the same."""
        fitted = self._fitted()
        return tagging.tag(fitted, [dataclasses.replace(request, X=self._points(request.X)) for request in requests])

    def known(self, X: Any) -> NDArray[np.bool_]:
        """Return for each point whether it has a known word; one that has none gets the most frequent labels."""
        return tagging.known_rows(self._fitted().rows(self._points(X)))

    def check(self, request: Request) -> None:
        """Raise ConfigError if the model cannot answer a request."""
        request.check(self._fitted())

    def rank(self, X: Any, k: int = 5, filtered: csr_array | None = None) -> Ranking:
        """Return the best k labels of each point as ids and the model's own scores, [points, k]."""
        return tagging.rank(self._fitted(), self._fitted().rows(self._points(X)), Request(X, k).depth, filtered)

    def choose_threshold(self, precision: float | None = None, by_frequency: bool = False) -> float | tuple[float, ...]:
        """Return the lowest threshold with this precision on held-out points; None: that with the best micro-F1.

        by_frequency: three thresholds, for rare, medium and frequent labels.
        """
        return tagging.choose_threshold(self._fitted(), precision, by_frequency)

    def per_label(
        self, X: Any, y: Any, threshold: float | Sequence[float] | None = None, filtered: csr_array | None = None
    ) -> LabelReport:
        """Return precision, recall, F1 and support of each label, at a threshold (as in `zipfel.tagging.per_label`)."""
        truth = label_matrix(y, self.labels_.unique_names, self.sep)
        return tagging.per_label(self._fitted(), self._points(X), truth, threshold, filtered)

    def explain(self, document: str | Mapping[str, str], label: str) -> list[Reason]:
        """Return the contribution of each known term of a document to the score of a label, largest first.

        document: a text, or texts by field, such as {"title": ..., "body": ...}; a field that is missing is empty.
        """
        fitted = self._fitted()
        if fitted.blueprint.features is None:
            raise DataError("the model was fitted on a matrix of features: it has no words to explain a label by")
        if isinstance(document, Mapping):
            texts = fitted.blueprint.source.texts([document])
            document = {name: column[0] for name, column in texts.items()}
        elif not isinstance(document, str):
            raise DataError(f"expected one text, or texts by field; found {type(document).__name__}")
        return reasons(fitted.predictor, fitted.blueprint.features, document, *fitted.labels.ids([label]))

    def candidates(self, text: str | Mapping[str, str], k: int = grounding.CANDIDATES) -> list[grounding.Candidate]:
        """Return k labels that may fit a document, with what a person or a language model needs to choose among them.

        They are the model's best, and labels that the document names. `grounding.prompt` writes them into a prompt.
        """
        return grounding.candidates(self._fitted(), text, k)

    def ground(self, phrase: str, k: int = 5) -> list[grounding.Candidate]:
        """Return up to k labels that a free phrase may mean, best first, by names, synonyms, spelling and the model.

        The score is the probability that the label is meant, so that a caller may ask back where it is low.
        """
        return grounding.ground(self._fitted(), phrase, k)

    def index_recall(self, X: Any, k: int = 5) -> float | None:
        """Return the share of an exact search's candidates that the model's index finds; None if it is exact."""
        return self._fitted().predictor.recall(self._fitted().rows(self._points(X)), k)

    def score(self, X: Any, y: Any) -> float:
        """Return P@1 as a share: how often the first tag is right."""
        truth = label_matrix(y, self.labels_.unique_names, self.sep)
        return metrics.measure(self.rank(X, 1), truth, ks=(1,))["P@1"] / 100

    def _points(self, X: Any, fitted: bool = True) -> Any:
        """Return points as texts or a matrix.  fitted: take the text fields of the fitted model from a data frame."""
        fields = self.fitted_.fields if fitted and self.fitted_ else ()
        return points_of(X, self.text_columns or (), fields)

    # --- Saving -------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str, replace: bool = False) -> None:
        """Write the model into a new folder; `replace` allows that an older model is there."""
        persistence.save(self.saved(), Path(path), replace)

    def saved(self) -> persistence.Saved:
        """Return the content of a saved model."""
        return self._fitted().saved(self.get_params(deep=False) | {"warm_start": False, "verbose": 0})

    @classmethod
    def load(cls, path: Path | str, device: str = "auto", copy: bool = False) -> Self:
        """Read a saved model, and check it against its checksums.

        Its weights are mapped into memory, so that several processes share them: the files must not be overwritten
        while the model is used (`save` never does that).  copy: read them into the memory of this process instead.
        """
        fitted, about = Fitted.load(Path(path), device, copy)
        try:
            tagger = cls(**{**about["tagger"], "device": device})
        except (KeyError, TypeError) as error:
            raise DataError(f"cannot be restored: {reason(error)}", Path(path) / "model.json") from None
        tagger.fitted_ = fitted
        return tagger


def _check_one_of(parameter: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise ConfigError(f"unknown {parameter} {value!r}{did_you_mean(str(value), known)}")
