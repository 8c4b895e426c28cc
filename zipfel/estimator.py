"""The scikit-learn interface of `Tagger`, apart from fitting and tagging: parameters, tags, fitted attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from zipfel.calibration import Calibration
from zipfel.choice import Choice
from zipfel.data.labels import LabelSpace
from zipfel.data.source import Source
from zipfel.data.text import TextFeatures
from zipfel.fitting import Fitted
from zipfel.models.base import Model, Predictor
from zipfel.text_choice import TextChoice
from zipfel.training.trainer import Outcome

NESTED = ("settings", "text")  # parameters that hold others


class Estimator(BaseEstimator):  # type: ignore[misc]
    """An estimator whose parameters `settings` and `text` may hold others, and that keeps a `Fitted`."""

    fitted_: Fitted | None = None  # None before a fit, and after one that did not finish
    unfinished_ = False  # whether the last fit did not finish

    # --- Parameters ---------------------------------------------------------------------------------------------------

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the parameters; if deep, also each of `settings` and `text`, such as `settings__dimension`."""
        params: dict[str, Any] = super().get_params(deep)
        inner = {f"{name}__{key}": value for name in NESTED for key, value in _mapping(params[name]).items()}
        return params | inner if deep else params

    def set_params(self, **params: Any) -> Self:
        """Change parameters; `settings__dimension=64` changes one of the settings, `text__ngrams=2` one of `text`."""
        inner = {name: name.partition("__") for name in params if name.startswith(tuple(f"{n}__" for n in NESTED))}
        super().set_params(**{name: value for name, value in params.items() if name not in inner})
        for name, (outer, _, key) in inner.items():
            setattr(self, outer, {**_mapping(getattr(self, outer)), key: params[name]})
        return self

    def __sklearn_tags__(self) -> Any:
        """Return tags for scikit-learn: the estimator takes texts and sparse matrices, and needs y."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.string = tags.target_tags.required = True
        return tags

    # --- Fitted attributes --------------------------------------------------------------------------------------------

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
    def n_features_in_(self) -> int:
        """Number of features; for texts, of terms."""
        return self._fitted().model.features

    @property
    def labels_(self) -> LabelSpace:
        """Names, texts and counts of labels."""
        return self._fitted().labels

    @property
    def chosen_(self) -> Choice:
        """The fitted model and preset, and why they were chosen."""
        return self._fitted().blueprint.choice

    @property
    def text_choice_(self) -> TextChoice:
        """The text settings that were given or chosen, and the trials that chose them."""
        return self._fitted().blueprint.text

    @property
    def settings_(self) -> Any:
        """The settings of the fitted model."""
        return self._fitted().blueprint.settings

    @property
    def source_(self) -> Source:
        """The text fields and table columns that it was fitted on, and fingerprints of its points."""
        return self._fitted().blueprint.source

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
        """The predictor, which ranks points: one learner, or an average of several."""
        return self._fitted().predictor

    @property
    def calibration_(self) -> Calibration | None:
        """The map from scores to probabilities; None where held-out points were too few."""
        return self._fitted().calibration

    @property
    def outcome_(self) -> Outcome:
        """How training ended."""
        return self._fitted().outcome


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}  # a wrong value is an error of `fit`
