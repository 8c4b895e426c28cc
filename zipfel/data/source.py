"""The origin of a model's points: its text fields, the columns of its table, and fingerprints of its points."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipfel.data.dataset import Columns, Dataset, Part, Texts, fingerprints
from zipfel.data.disk import distinct
from zipfel.data.points import texts_of
from zipfel.errors import ConfigError, did_you_mean


def _none() -> NDArray[np.uint64]:
    return np.empty(0, dtype=np.uint64)


@dataclass(frozen=True, eq=False)
class Source:
    """The origin of a model's training data; empty for models that were saved without it.

    points: number of training points.  prints: sorted fingerprints of all points that the model has used, validation
    included.  name: of the data set, if it has one.
    """

    columns: Columns = Columns()
    points: int = 0
    prints: NDArray[np.uint64] = field(default_factory=_none)
    name: str = ""

    @classmethod
    def of(cls, dataset: Dataset) -> Source:
        """Return the source that a data set is."""
        columns = dataset.columns or Columns(tuple(dataset.train.texts or ()))
        return cls(columns, name=dataset.name).extended(dataset)

    def extended(self, dataset: Dataset) -> Source:
        """Return the source with the points of a further data set."""
        parts = [dataset.train, *([dataset.validation] if dataset.validation is not None else [])]
        prints = distinct([self.prints, *map(fingerprints, parts)])
        return dataclasses.replace(self, points=self.points + len(dataset.train), prints=prints)

    def learned(self, part: Part) -> NDArray[np.bool_]:
        """Return for each point whether the model learned from an equal one, [points]."""
        return np.isin(fingerprints(part), self.prints)

    # --- Fields -------------------------------------------------------------------------------------------------------

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the text fields; empty for a matrix of features, or if they are unknown."""
        return self.columns.text

    def field(self, name: str) -> str:
        """Return the text field of this name, else the only one that differs from it in case, else the name itself."""
        alike = [own for own in self.fields if own.casefold() == str(name).casefold()]
        return name if name in self.fields or len(alike) != 1 else alike[0]

    def check_fields(self, names: Iterable[str]) -> None:
        """Raise ConfigError for the first name that is not a text field of the model; case does not matter."""
        unknown = next((name for name in names if self.field(name) not in self.fields), None)
        if unknown is not None and self.fields:
            raise ConfigError(f"the model has no text field {unknown!r:.60}{did_you_mean(str(unknown), self.fields)}")

    def texts(self, X: Any) -> Texts:
        """Return texts by field, as the vocabulary reads them; a field that is missing is empty.

        X: a list of texts without fields, lists by field, or a list of documents such as {"title": ..., "body": ...}.
        """
        if not is_fielded(X) or not self.fields:
            return texts_of(X)
        if isinstance(X, Mapping):
            X = self._renamed(X)
        else:
            blank = dict.fromkeys(self.fields, "")
            X = [{**blank, **self._renamed(item)} if isinstance(item, Mapping) else item for item in X]
        texts = texts_of(X)
        self.check_fields(texts)
        points = len(next(iter(texts.values()), ()))
        return {name: texts.get(name, [""] * points) for name in self.fields}

    def _renamed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return values given by field, under the names of the model's fields."""
        renamed = {self.field(name): value for name, value in given.items()}
        if len(renamed) < len(given):
            raise ConfigError(f"two text fields differ only in case: {', '.join(map(str, given))}")
        return renamed

    # --- Saving -------------------------------------------------------------------------------------------------------

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON, without the fingerprints."""
        return {"name": self.name, "columns": dataclasses.asdict(self.columns), "points": self.points}

    @classmethod
    def of_json(cls, document: Mapping[str, Any] | None, prints: NDArray[np.uint64] | None) -> Source:
        """Return the source that `as_json` was called on; an empty one for models that were saved without it."""
        if document is None:
            return cls()
        columns = Columns(**{**document["columns"], "text": tuple(document["columns"]["text"])})
        return cls(columns, document["points"], _none() if prints is None else prints, document.get("name", ""))


def is_fielded(X: Any) -> bool:
    """Whether texts are given by field: lists by field, or documents that have fields."""
    return isinstance(X, Mapping) or (isinstance(X, Sequence) and any(isinstance(item, Mapping) for item in X[:1]))
