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
from zipfel.card.text import card
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

    Args:
        model: a name that `zipfel models` lists, or "auto": chosen by the size of the data, its label texts and the
            device; `chosen_` says which it was.
        preset: "default", "fast" or "paper".
        settings: changes to the preset, by name.
        text: how texts become features (`TextSettings`), by name; with model "auto", held-out points choose those that
            are not named (`text_choice_`).
        validation: share of the points that is held out to choose an epoch, calibrate, and so on; None is the model's
            own share.
        warm_start: a further `fit` continues from the current weights, with the settings they were made with; new
            labels are added.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1" or "mps".
        seed: of all random numbers; on a CPU, equal seeds give equal models.
        calibration: how held-out points turn scores into probabilities: "isotonic", "platt", "none", or "auto", the
            better of the first two.
        text_columns: the text columns of data frames; None takes those that the command line takes (title, text, ...).
        sep: the separator of labels in strings.
        output: what `predict` returns: "tags", or "indicator", a sparse matrix of 0 and 1, which the metrics of
            scikit-learn need.
        verbose: 1 shows the progress of `fit` on standard error; the `logging` module gets it in any case ("zipfel",
            INFO).

    Example:
        >>> settings = {"epochs": 20, "dimension": 16}
        >>> tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0)
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

        Args:
            X: texts (a list, a series, lists by field, a data frame) or features (a matrix, an array of embeddings); a
                field, or a column that `text_columns` names, may hold vectors beside texts.
            y: lists of names, a series of lists or of strings, an indicator frame, or a matrix.
            label_texts: texts of labels by name, as a dict, a series, a frame or a `Thesaurus`.
            label_names: names of the columns of `y`, where it is a matrix.
            parents: {tag: parent or list of parents}, a hierarchy, also as a series or a frame.
            ancestors: give each point the ancestors of its tags too.
            sample_weight: a number for each point, relative to the others: how often training draws it; 0 leaves it
                out.

        Returns:
            This tagger.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.classes_
            ['car', 'fruit']
        """
        points = self._points(X, self.warm_start)
        dataset = dataset_of(points, y, label_texts, label_names, self.sep, parents, ancestors, sample_weight)
        old = self.fitted_.blueprint if self.warm_start and self.fitted_ else None
        choice = self.choice(dataset) if old is None else (old.choice, old.settings)
        if note := fitting.unused_label_texts(*choice, dataset):
            warnings.warn(note, ZipfelWarning, stacklevel=2)
        return self.fit_dataset(dataset)

    def fit_dataset(self, dataset: Dataset, run: Run | None = None) -> Self:
        """Learn from a data set, such as `zipfel.read` returns.

        Args:
            dataset: points, labels and label texts; only its train part is learned, and validation where it has one.
            run: keeps the stages in its folder, where it has one, and resumes from it.

        Returns:
            This tagger.

        Example:
            >>> from zipfel.data.synthetic import Synthetic, make
            >>> dataset = make(Synthetic(points=50, labels=5))
            >>> Tagger("linear").fit_dataset(dataset).chosen_.model
            'linear'
        """
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
        """Add points without training, if the model remembers points (`zipfel models` lists those that do).

        It changes no weight: the points only join those that vote, and new tags become predictable. To learn from new
        points, call `fit` with `warm_start=True`. `drift_` says how far these points are from the known ones, as a
        multiple of the usual distance: well above 1, it is time to fit again. The first call is a `fit`.

        Args:
            X: points, in any form that `fit` takes.
            y: their tags, in any form that `fit` takes.

        Returns:
            This tagger.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("mnn", settings={"dimension": 16}, text={"min_count": 1}).fit(texts, tags)
            >>> tagger = tagger.partial_fit(["a slow apple"], [["dessert"]])
            >>> tagger.predict(["slow apple"], k=1)[0][0].label
            'dessert'
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
        """Return what `fit` would use for a data set.

        Args:
            dataset: the data set.

        Returns:
            The model and preset, named or chosen, with the reason; and the settings.

        Example:
            >>> from zipfel.data.synthetic import Synthetic, make
            >>> choice, settings = Tagger("glas", "fast", {"epochs": 2}).choice(make(Synthetic(points=50, labels=5)))
            >>> choice.model, choice.preset, settings.epochs
            ('glas', 'fast', 2)
        """
        choice = chosen(dataset, self.model, self.preset, chosen_device(self.device).type)
        try:
            return choice, settings_of(choice.model, choice.preset, choice.with_settings(self.settings))
        except ConfigError as error:
            if self.model != AUTO:
                raise
            raise ConfigError(f"model auto is {choice.model} here ({choice.why}): {error}") from None

    def text_choice(self, dataset: Dataset, run: Run, device: torch.device) -> TextChoice:
        """Return the text settings that `fit` uses: those given, and for model "auto" others that the data chooses.

        Args:
            dataset: points as texts.
            run: the run that the trials are a part of.
            device: where the trials are computed.

        Returns:
            The text settings, and the trials that chose them.

        Example:
            >>> from zipfel.data.synthetic import Synthetic, make
            >>> dataset = make(Synthetic(points=50, labels=5, texts=True))
            >>> Tagger("linear", text={"ngrams": 2}).text_choice(dataset, Run(), torch.device("cpu")).text
            {'ngrams': 2}
        """
        if self.model != AUTO or self.preset == "paper":
            return TextChoice(dict(self.text or {}))
        return chosen_text(dataset, self.text, run, device)

    def text_choice_seconds(self, dataset: Dataset) -> float:
        """Return about how long `text_choice` takes, from one of its trials.

        Args:
            dataset: points as texts.

        Returns:
            Seconds; 0 where nothing is chosen.

        Example:
            >>> from zipfel.data.synthetic import Synthetic, make
            >>> Tagger("linear").text_choice_seconds(make(Synthetic(points=50, labels=5, texts=True)))
            0.0
        """
        if self.model != AUTO or self.preset == "paper":
            return 0.0
        return seconds_of_choice(dataset, self.text, self.seed, chosen_device(self.device))

    def run_inputs(self, dataset: Dataset) -> dict[str, Any]:
        """Return the inputs of a run with a folder; only a run with equal inputs is resumed.

        Args:
            dataset: the data set that would be learned.

        Returns:
            Model, settings, text settings, and a fingerprint of the data.

        Example:
            >>> from zipfel.data.synthetic import Synthetic, make
            >>> [*Tagger("linear").run_inputs(make(Synthetic(points=50, labels=5)))]
            ['model', 'settings', 'text', 'data']
        """
        choice, settings = self.choice(dataset)
        return {"model": choice.model, "settings": dataclasses.asdict(settings), "text": dict(self.text or {}),
                "data": fingerprint(dataset, dataset.parts.values())}  # fmt: skip

    # --- Labels -------------------------------------------------------------------------------------------------------

    def add_labels(self, label_texts: Any) -> Self:
        """Add labels that are scored by their texts, without training (`zipfel models` lists the models that can).

        Args:
            label_texts: texts by label name, as a dict, a series or a frame.

        Returns:
            This tagger.

        Example:
            >>> about = {"fruit": "apples and pears", "car": "cars"}
            >>> tagger = Tagger("decaf", "fast", settings={"dimension": 16, "min_steps": 20}, text={"min_count": 1})
            >>> tagger = tagger.fit(["red apples", "green pears", "fast cars"], [["fruit"], ["fruit"], ["car"]], about)
            >>> tagger.add_labels({"colour": "red and green"}).classes_
            ['car', 'fruit', 'colour']
        """
        old = self._fitted()
        if not old.blueprint.abilities.takes_labels_by_text:
            raise ConfigError(f"{old.blueprint.choice.model} cannot add labels from their texts alone; "
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
        """Never predict these labels again. The ids of all others stay as they are.

        Args:
            names: the labels.

        Returns:
            This tagger.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> [tag.label for tag in tagger.remove_labels(["car"]).predict(["a fast car"])[0]]
            ['fruit']
        """
        self.fitted_ = self._fitted().with_labels(self._fitted().labels.without(names))
        return self

    def rename_labels(self, names: Mapping[str, str]) -> Self:
        """Rename labels.

        Args:
            names: new names by old name.

        Returns:
            This tagger.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.rename_labels({"car": "vehicle"}).classes_
            ['vehicle', 'fruit']
        """
        self.fitted_ = self._fitted().with_labels(self._fitted().labels.renamed(names))
        return self

    def nearest_labels(self, label: str, k: int = 5) -> list[Tag]:
        """Return the k labels whose vectors are nearest to that of a label, by cosine, nearest first.

        Args:
            label: the name of the label.
            k: how many.

        Returns:
            Other labels, with cosines as scores.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["apple"], ["pear"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> len(tagger.nearest_labels("apple", k=2))
            2
        """
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

        Args:
            X: points, in any form that `fit` takes.
            k: maximum number of tags of a point; None is 5, or 50 with a threshold, so that the threshold decides.
            threshold: minimum score of a tag, one for all or one for each bin of label frequency.
            extra: texts of labels that exist only for this call, by name; they compete with the model's own.

        Returns:
            A list of tags for each point. With output="indicator", a sparse matrix [points, labels] of 0 and 1; without
            k and threshold, it marks the labels with a probability of 0.5 and more.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.predict(["a green apple", "my car"], k=1)
            [[Tag(label='fruit', score=0...)], [Tag(label='car', score=0...)]]
        """
        if self.output == "indicator":
            threshold = tagging.LIKELY if k is None and threshold is None else threshold
        tagged = self.tag([Request(X, k, threshold, checked_texts(extra))])[0]
        return tagged.tags() if self.output == "tags" else tagged.indicator()

    def predict_proba(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the probability of each label; 0 for labels that the model does not rank.

        Args:
            X: points, in any form that `fit` takes.

        Returns:
            An array [points, labels], with the labels in the order of `classes_`.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.predict_proba(["a green apple", "my car"]).argmax(axis=1)
            array([1, 0])
        """
        return tagging.probabilities(self._fitted(), self._points(X))

    def tag(self, requests: Sequence[Request]) -> list[Tagged]:
        """Answer several requests at once, which is faster than one after the other; the answers are the same.

        Args:
            requests: points, and which tags are wanted.

        Returns:
            For each request a `Tagged`, whose `tags()` are those that `predict` returns.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> fruit, car = tagger.tag([Request(["a green apple"], k=1), Request(["my car"], threshold=0.5)])
            >>> car.tags()[0][0].label
            'car'
        """
        fitted = self._fitted()
        return tagging.tag(fitted, [dataclasses.replace(request, X=self._points(request.X)) for request in requests])

    def known(self, X: Any) -> NDArray[np.bool_]:
        """Return whether each point has a known word; a point without one gets the most frequent labels.

        Args:
            X: points, in any form that `fit` takes.

        Returns:
            True or False for each point, [points].

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.known(["a green apple", "nothing of the kind"])
            array([ True, False])
        """
        return tagging.known_rows(self._fitted().rows(self._points(X)))

    def check(self, request: Request) -> None:
        """Raise ConfigError if the model cannot answer a request.

        Args:
            request: points, and which tags are wanted.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.check(Request(["a pear"], extra={"colour": "red and green"}))
            Traceback (most recent call last):
            zipfel.errors.ConfigError: linear cannot score a label by its text
        """
        request.check(self._fitted())

    def rank(self, X: Any, k: int = 5, filtered: csr_array | None = None) -> Ranking:
        """Return the best k labels of each point, by the model's own scores.

        Args:
            X: points, in any form that `fit` takes.
            k: how many.
            filtered: a sparse matrix [points, labels] of pairs that must not be ranked.

        Returns:
            Ids of labels and their scores, [points, k].

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.rank(["a green apple"], k=2).ids
            array([[1, 0]])
        """
        return tagging.rank(self._fitted(), self._fitted().rows(self._points(X)), Request(X, k).depth, filtered)

    def choose_threshold(self, precision: float | None = None, by_frequency: bool = False) -> float | tuple[float, ...]:
        """Return the lowest threshold that reaches a precision on held-out points.

        Args:
            precision: between 0 and 1; None chooses the threshold with the best micro-F1.
            by_frequency: choose three thresholds, for rare, medium and frequent labels.

        Returns:
            A threshold, or three of them, for `predict`.

        Example:
            >>> texts, tags = [f"{word} {n}" for n in range(60) for word in ("apple", "car")], [["fruit"], ["car"]] * 60
            >>> tagger = Tagger("linear", validation=0.5).fit(texts, tags)
            >>> 0 < tagger.choose_threshold(precision=0.9) <= 1
            True
        """
        return tagging.choose_threshold(self._fitted(), precision, by_frequency)

    def per_label(
        self, X: Any, y: Any, threshold: float | Sequence[float] | None = None, filtered: csr_array | None = None
    ) -> LabelReport:
        """Return precision, recall, F1 and support of each label.

        Args:
            X: points, in any form that `fit` takes.
            y: their true tags, in any form that `fit` takes.
            threshold: minimum score of a tag, as in `predict`; None is 0.5.
            filtered: a sparse matrix [points, labels] of pairs that do not count.

        Returns:
            Counts of each label, from which the report takes precision, recall and F1.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.per_label(["a green apple", "my car"], [["fruit"], ["car"]]).f1
            array([1., 1.])
        """
        truth = label_matrix(y, self.labels_.unique_names, self.sep)
        return tagging.per_label(self._fitted(), self._points(X), truth, threshold, filtered)

    def explain(self, document: str | Mapping[str, str], label: str) -> list[Reason]:
        """Return the contribution of each known term of a document to the score of a label, largest first.

        Args:
            document: a text, or texts by field, such as {"title": ..., "body": ...}; a field that is missing is empty.
            label: the name of the label.

        Returns:
            Terms with their weights, positive where they speak for the label, and with their positions in the document.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> [(reason.term, reason.weight > 0) for reason in tagger.explain("a green car", "car")]
            [('car', True), ('green', False)]
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
        """Return k labels that may fit a document, so that a person or a language model can choose among them.

        They are the model's best, and labels that the document names. `grounding.prompt` writes them into a prompt.

        Args:
            text: a text, or texts by field.
            k: how many.

        Returns:
            Labels with titles, texts, paths in the hierarchy and scores, best first.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.candidates("a green apple", k=1)[0].label
            'fruit'
        """
        return grounding.candidates(self._fitted(), text, k)

    def ground(self, phrase: str, k: int = 5) -> list[grounding.Candidate]:
        """Return up to k labels that a free phrase may mean, by names, synonyms, spelling and the model.

        Args:
            phrase: a few words.
            k: maximum number of labels.

        Returns:
            Labels, best first. The score is the probability that the label is meant, if any label is: if it is low, a
            caller may ask back.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.ground("fruits", k=1)[0].label
            'fruit'
        """
        return grounding.ground(self._fitted(), phrase, k)

    def index_recall(self, X: Any, k: int = 5) -> float | None:
        """Return the share of an exact search's candidates that the model's index finds.

        Args:
            X: points, in any form that `fit` takes.
            k: candidates of each point.

        Returns:
            A share; None if the search is exact.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.index_recall(["a green apple"]) is None
            True
        """
        return self._fitted().predictor.recall(self._fitted().rows(self._points(X)), k)

    def score(self, X: Any, y: Any) -> float:
        """Return P@1 as a share: how often the first tag is right.

        Args:
            X: points, in any form that `fit` takes.
            y: their true tags, in any form that `fit` takes.

        Returns:
            A number between 0 and 1.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.score(["a green apple", "my car"], [["fruit"], ["car"]])
            1.0
        """
        truth = label_matrix(y, self.labels_.unique_names, self.sep)
        return metrics.measure(self.rank(X, 1), truth, ks=(1,))["P@1"] / 100

    def _points(self, X: Any, fitted: bool = True) -> Any:
        """Return points as texts or a matrix.  fitted: take the text fields of the fitted model from a data frame."""
        fields = self.fitted_.fields if fitted and self.fitted_ else ()
        return points_of(X, self.text_columns or (), fields)

    # --- Saving -------------------------------------------------------------------------------------------------------

    def save(self, path: Path | str, replace: bool = False) -> None:
        """Write the model and its card into a new folder.

        Args:
            path: the folder.
            replace: replace an older model that is there, in one step.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> import tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     tagger.save(f"{folder}/model")
            ...     Tagger.load(f"{folder}/model").predict(["a green apple"], k=1)[0][0].label
            'fruit'
        """
        if not replace and (Path(path) / "model.json").is_file():
            raise DataError("exists already; choose another path, or replace the model with replace=True", path)
        saved = self.saved()
        written = card(saved.about, saved.documents)
        persistence.save(dataclasses.replace(saved, card=written), Path(path), replace)

    def saved(self) -> persistence.Saved:
        """Return the content of a saved model.

        Returns:
            What `save` writes, except the card.

        Example:
            >>> texts, tags = ["red apple", "green pear", "fast car"], [["fruit"], ["fruit"], ["car"]]
            >>> tagger = Tagger("linear", text={"min_count": 1}).fit(texts, tags)
            >>> tagger.saved().about["tagger"]["model"]
            'linear'
        """
        return self._fitted().saved(self.get_params(deep=False) | {"warm_start": False, "verbose": 0})

    @classmethod
    def load(cls, path: Path | str, device: str = "auto", copy: bool = False) -> Self:
        """Read a saved model, and check it against its checksums.

        Its weights are mapped into memory, so that several processes share them: the files must not be overwritten
        while the model is used (`save` never does that).

        Args:
            path: the folder.
            device: where it predicts: "auto", "cpu", "cuda", ...
            copy: read the weights into the memory of this process instead.

        Returns:
            A tagger that predicts as the saved one did.

        Example:
            >>> Tagger.load("no/such/folder")
            Traceback (most recent call last):
            zipfel.errors.DataError: no/such/folder: ...
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
