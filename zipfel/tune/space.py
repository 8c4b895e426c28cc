"""What is searched: the settings and text settings that declare a search range and that the user has not named."""

from __future__ import annotations

import dataclasses
import typing
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zipfel import config
from zipfel.config import Span
from zipfel.data.dataset import Dataset, Texts
from zipfel.data.text import DEFAULT_FIELD_WEIGHTS, TextSettings
from zipfel.errors import ConfigError

TEXT = "text"  # prefix of the names of text settings
FIELDS = "field_weights"


@dataclass(frozen=True)
class Parameter:
    """A value to search.

    path: where it belongs: a setting, or `text` and a text setting, maybe with one of its entries.  values: a span, or
    choices.  start: its value in the first trial.  whole: whether a span is one of whole numbers.
    """

    path: tuple[str, ...]
    values: Span | tuple[Any, ...]
    start: Any
    whole: bool = False

    @property
    def name(self) -> str:
        """Its name in tables, such as `learning_rate` or `text.ngrams`."""
        return ".".join(self.path)

    def suggested(self, trial: Any) -> Any:
        """Return the value that Optuna suggests for a trial."""
        if not isinstance(self.values, Span):
            return trial.suggest_categorical(self.name, self.values)
        low, high, log = self.values
        if self.whole:
            return trial.suggest_int(self.name, int(low), int(high), log=log)
        return self.read(trial.suggest_float(self.name, low, high, log=log))

    def read(self, value: Any) -> Any:
        """Return a value that Optuna drew as it is used: numbers with three digits, as people write them."""
        exact = self.whole or not isinstance(self.values, Span) or value == self.start
        return value if exact else float(f"{value:.3g}")


@dataclass(frozen=True)
class Space:
    """All parameters of a search."""

    parameters: tuple[Parameter, ...]

    @property
    def start(self) -> dict[str, Any]:
        """Values of the first trial."""
        return {parameter.name: parameter.start for parameter in self.parameters}

    @property
    def digest(self) -> str:
        """A short hash of the space: a study is resumed only if this is unchanged."""
        return f"{zlib.crc32(repr([(p.name, tuple(p.values), p.start) for p in self.parameters]).encode()):08x}"

    def suggested(self, trial: Any) -> dict[str, Any]:
        """Return the values that Optuna suggests for a trial, by name."""
        return {parameter.name: parameter.suggested(trial) for parameter in self.parameters}

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a trial as they were used, by name."""
        return {parameter.name: parameter.read(values[parameter.name]) for parameter in self.parameters}

    def divided(self, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return values as settings of the model, and as text settings."""
        settings: dict[str, Any] = {}
        text: dict[str, Any] = {}
        for parameter in self.parameters:
            value, (first, *rest) = values[parameter.name], parameter.path
            if not rest:
                settings[first] = value
            elif len(rest) == 1:
                text[rest[0]] = value
            else:
                text.setdefault(rest[0], {})[rest[1]] = value
        return settings, text


def space_of(settings: config.Settings, named: Mapping[str, Any], text: Mapping[str, Any], dataset: Dataset) -> Space:
    """Return what is searched.

    settings: the model's, with which the search starts.  named, text: settings and text settings that stay.
    """
    parameters = _declared(settings, named, ())
    if dataset.train.texts is not None:
        start = config.from_mapping(TextSettings, text)
        parameters += _declared(start, text, (TEXT,))
        if FIELDS not in text:
            parameters += _field_weights(dataset.train.texts)
    if not parameters:
        raise ConfigError("nothing to search: no setting that you left open declares values to search")
    return Space(tuple(parameters))


def _declared(start: config.Settings, named: Mapping[str, Any], path: tuple[str, ...]) -> list[Parameter]:
    """Return the settings of a class that declare what to search, except dicts, whose entries the data has.

    A setting that a preset leaves open (None) is not searched in a span, which None is not in.
    """
    values, types = dataclasses.asdict(start), config.field_types(type(start))
    parameters = []
    for field in dataclasses.fields(start):
        search, value = field.metadata.get("search"), values[field.name]
        if search is None or field.name in (*named, FIELDS) or (value is None and isinstance(search, Span)):
            continue
        whole = int in (types[field.name], *typing.get_args(types[field.name]))
        parameters.append(Parameter((*path, field.name), _widened(search, value), value, whole))
    return parameters


def _field_weights(texts: Texts) -> list[Parameter]:
    """Return the weights of text fields; the longest field with weight 1 keeps it, because only ratios matter."""
    search = next(field.metadata["search"] for field in dataclasses.fields(TextSettings) if field.name == FIELDS)
    starts = {name: DEFAULT_FIELD_WEIGHTS.get(name, 1.0) for name in texts}
    fixed = max((name for name in texts if starts[name] == 1), key=lambda name: sum(map(len, texts[name])), default="")
    if len(texts) == 1:
        return []
    return [
        Parameter((TEXT, FIELDS, name), _widened(search, start), start)
        for name, start in starts.items()
        if name != fixed
    ]


def _widened(search: Span | Sequence[Any], start: Any) -> Span | tuple[Any, ...]:
    """Return what to search, with the value at the start among it."""
    if isinstance(search, Span):
        return Span(min(search.low, start), max(search.high, start), search.log)
    return (*search, *(() if start in search else (start,)))
