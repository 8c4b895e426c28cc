"""Text to features: tokens of any script, one vocabulary for documents and labels, tf-idf. Fitted on train only."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import config
from zipfel.config import setting
from zipfel.data.dataset import Dataset, Texts
from zipfel.data.formats.files import new_file
from zipfel.data.formats.sparse_text import matrix_of
from zipfel.data.tokens import located, tokenize
from zipfel.errors import ConfigError, DataError

USUAL = {"title": 3.0}  # weights of fields where none are told: chosen on validation of three data sets


@dataclass(frozen=True)
class TextSettings:
    """How text becomes features."""

    ngrams: int = setting(1, "longest run of tokens that counts as a feature; 2 adds pairs")
    min_count: int = setting(2, "leave out a feature that occurs in fewer texts of train (documents and labels)")
    max_features: int | None = setting(None, "keep this many features, those in the most texts")
    sublinear: bool = setting(True, "count a token that occurs c times as 1 + ln c")
    symbols: bool = setting(False, "make tokens of symbols too (+, #, %, €, emoji), one each")
    field_weights: dict[str, float] | None = setting(
        None, "weights of text fields against each other, such as title:2; 1 if not named; left open: title:3"
    )

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, least in (("ngrams", 1), ("min_count", 1), ("max_features", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}; found {value}")
        for name, weight in (self.field_weights or {}).items():
            if not 0 <= weight < float("inf"):
                raise ConfigError(f"field_weights[{name}] must be a number from 0; found {weight}")


@dataclass(frozen=True, eq=False)
class Tfidf:
    """Weights a row's counts by how rare each feature is, and scales the row to length 1.

    x_f = tf(c_f) · idf_f with idf_f = 1 + ln((1 + n) / (1 + n_f)), n rows of which n_f have the feature.
    """

    idf: NDArray[np.float32]  # [features]
    sublinear: bool = False

    @classmethod
    def fit(cls, *matrices: csr_array, sublinear: bool = False) -> Tfidf:
        """Count the features of all rows of all matrices, which are documents of train, and maybe labels."""
        rows = sum(matrix.shape[0] for matrix in matrices)
        counts = sum(np.bincount(matrix.indices, minlength=matrix.shape[1]) for matrix in matrices)
        return cls(idf_of(np.asarray(counts), rows), sublinear)

    def transform(self, X: csr_array) -> csr_array:
        """Return the weighted rows, [rows, features]."""
        return csr_array((self.weights(X), X.indices, X.indptr), shape=X.shape)

    def weights(self, X: csr_array) -> NDArray[np.float32]:
        """Return what stands for the counts that X stores, [nnz]."""
        if X.shape[1] != len(self.idf):
            raise DataError(f"rows have {X.shape[1]} features, and tf-idf was fitted on {len(self.idf)}")
        values = X.data.astype(np.float32)
        if self.sublinear:  # below 1, as a small field weight can make it, a count stays as it is
            size = np.abs(values)
            values = np.sign(values) * np.where(size >= 1, 1 + np.log(np.maximum(size, 1)), size)
        values *= self.idf[X.indices]
        return _unit_rows(values, X.indptr)

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with all its features weighted."""
        if dataset.train.X is None:
            raise DataError(f"{dataset.name or 'the data set'} has no features to weight")
        Z = None if dataset.Z is None else self.transform(dataset.Z)
        return dataset.with_parts(lambda part: dataclasses.replace(part, X=self.transform(part.X)), Z=Z)


def idf_of(counts: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    """Return 1 + ln((1 + rows) / (1 + counts)), [features]."""
    return (1 + np.log((1 + rows) / (1 + counts))).astype(np.float32)


def _unit_rows(values: NDArray[np.float32], indptr: NDArray[np.integer]) -> NDArray[np.float32]:
    """Scale the values of each row to length 1, in place; an empty row stays empty."""
    counts = np.diff(indptr)
    filled = counts > 0
    lengths = np.sqrt(np.add.reduceat(values.astype(np.float64) ** 2, indptr[:-1][filled]))
    lengths[lengths == 0] = 1  # zeros stay zeros
    values /= np.repeat(lengths, counts[filled])
    return values


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """A vocabulary and its tf-idf weights, fitted on the texts of train.

    >>> features = TextFeatures.fit(["red apple", "green apple"], settings=TextSettings(min_count=1))
    >>> features.terms, features.transform(["an apple"]).toarray().tolist()
    (['apple', 'green', 'red'], [[1.0, 0.0, 0.0]])
    """

    settings: TextSettings
    terms: list[str]
    idf: NDArray[np.float32]  # [terms]

    @classmethod
    def fit(
        cls,
        texts: Texts | Sequence[str],
        label_texts: Texts | Sequence[str] | None = None,
        settings: TextSettings | None = None,
    ) -> TextFeatures:
        """Count the terms of documents and labels, and keep those that occur often enough, most frequent first."""
        settings = settings or TextSettings()
        documents, labels = _fields(texts), _fields(label_texts or {})
        _check_weights(settings, [*documents, *labels])
        counts: Counter[str] = Counter()
        for fields in (documents, labels):
            columns = [fields[name] for name in _weights(settings, fields)]
            for row in zip(*columns, strict=True):
                counts.update({term for text in row for term in _terms(text, settings)})
        kept = sorted((-count, term) for term, count in counts.items() if count >= settings.min_count)
        kept = kept[: settings.max_features]
        rows = _size(documents) + _size(labels)
        if not kept:
            raise DataError(f"none of {len(counts)} terms occurs in {settings.min_count} of {rows} texts (min_count)")
        frequencies = np.array([-count for count, _ in kept], dtype=np.int64)
        return cls(settings, [term for _, term in kept], idf_of(frequencies, rows))

    @cached_property
    def _places(self) -> dict[str | tuple[str, ...], int]:
        """Places of words, and of runs of words as tuples, which spares `count` from joining all that it meets."""
        return {tuple(term.split(" ")) if " " in term else term: place for place, term in enumerate(self.terms)}

    def transform(self, texts: Texts | Sequence[str]) -> csr_array:
        """Return tf-idf rows of unit length, [texts, terms]; terms that train does not have are left out."""
        rows = self.count(texts)
        rows.data = Tfidf(self.idf, self.settings.sublinear).weights(rows)
        return rows

    def count(self, texts: Texts | Sequence[str]) -> csr_array:
        """Return how often each text has each term, weighted by field, [texts, terms]."""
        fields, place = _fields(texts), self._places.get
        weights = _weights(self.settings, fields)
        lengths, ids = array("q"), array("i")
        for row in zip(*(fields[name] for name in weights), strict=True):
            for text in row:
                tokens = tokenize(text, self.settings.symbols)
                grams: Iterable[str | tuple[str, ...]] = chain(tokens, *_runs(tokens, self.settings.ngrams))
                found = [i for i in map(place, grams) if i is not None]
                ids.fromlist(found)
                lengths.append(len(found))
        counts = np.asarray(lengths).reshape(_size(fields), len(weights))  # [texts, fields]
        values = np.repeat(np.tile(np.array([*weights.values()], dtype=np.float32), len(counts)), counts.ravel())
        return matrix_of(counts.sum(axis=1), np.asarray(ids), values, len(self.terms))[0]

    def places(self, text: str) -> dict[int, list[tuple[int, int]]]:
        """Return the characters [start, end) at which each known term stands in a text, from its first to its last."""
        tokens = located(text, self.settings.symbols)
        found: dict[int, list[tuple[int, int]]] = {}
        for length in range(1, self.settings.ngrams + 1):
            for first in range(len(tokens) - length + 1):
                run = tokens[first : first + length]
                term = self._places.get(run[0].token if length == 1 else tuple(piece.token for piece in run))
                if term is not None:
                    found.setdefault(term, []).append((run[0].start, run[-1].end))
        return found

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with features X made from its texts, and Z from its label texts."""
        if dataset.train.texts is None:
            raise DataError(f"{dataset.name or 'the data set'} has no texts to make features of")
        Z = self.transform(dataset.label_texts) if dataset.label_texts else None
        return dataset.with_parts(
            lambda part: dataclasses.replace(part, X=self.transform(part.texts or {})), Z=Z, feature_names=self.terms
        )

    def as_json(self) -> dict[str, Any]:
        """Return settings, terms and weights as JSON has them."""
        return {"settings": dataclasses.asdict(self.settings), "terms": self.terms, "idf": self.idf.tolist()}

    @classmethod
    def of_json(cls, values: Any, path: Path | str | None = None) -> TextFeatures:
        """Take back what `as_json` gave; `path` is where it was read, for messages."""
        try:
            settings = config.from_mapping(TextSettings, values["settings"])
            terms, idf = values["terms"], np.array(values["idf"], dtype=np.float32)
            if not all(isinstance(term, str) for term in terms) or len(set(terms)) != len(terms):
                raise ValueError("the terms are not texts that occur once each")
            if idf.shape != (len(terms),) or not np.isfinite(idf).all():
                raise ValueError(f"{len(terms)} terms, and weights of shape {idf.shape} or not finite")
        except (KeyError, TypeError, ValueError) as error:  # unknown settings are ValueErrors too
            raise DataError(f"not a saved vocabulary: {error!r}", path) from None
        return cls(settings, list(terms), idf)

    def save(self, path: Path | str) -> None:
        """Write the vocabulary as JSON."""
        with new_file(Path(path)) as out:
            out.write(orjson.dumps(self.as_json()))

    @classmethod
    def load(cls, path: Path | str) -> TextFeatures:
        """Read what `save` wrote."""
        try:
            return cls.of_json(orjson.loads(Path(path).read_bytes()), path)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", path) from None
        except orjson.JSONDecodeError as error:
            raise DataError(f"not a saved vocabulary: {error!r}", path) from None


def featurized(dataset: Dataset, settings: TextSettings | None = None) -> Dataset:
    """Return a data set with features: those that it has, else tf-idf of its texts, fitted on train."""
    if dataset.train.X is not None:
        return dataset
    return TextFeatures.fit(dataset.train.texts or {}, dataset.label_texts, settings).apply(dataset)


def _terms(text: str, settings: TextSettings) -> Iterator[str]:
    """Return the tokens of a text, followed by its pairs, triples, ... of tokens."""
    tokens = tokenize(text, settings.symbols)
    return chain(tokens, *(map(" ".join, runs) for runs in _runs(tokens, settings.ngrams)))


def _runs(tokens: list[str], longest: int) -> Iterator[Iterator[tuple[str, ...]]]:
    """Yield all pairs of neighbouring tokens, then all triples, ..."""
    for length in range(2, longest + 1):
        yield zip(*(tokens[start:] for start in range(length)), strict=False)


def _fields(texts: Texts | Sequence[str]) -> Texts:
    """Return texts by field, all of one length; a plain list is one field."""
    if isinstance(texts, str):
        raise DataError("expected a list of texts, found one text")
    fields = texts if isinstance(texts, Mapping) else {"text": texts}
    for name, column in fields.items():
        if len(column) != _size(fields):
            first = next(iter(fields))
            raise DataError(f"{len(column)} texts of {name!r} and {_size(fields)} of {first!r} must be as many")
        for row, text in enumerate(column):
            if not isinstance(text, str):
                raise DataError(f"row {row} of {name!r} must be text; found {type(text).__name__}")
    return fields


def _size(fields: Texts) -> int:
    return len(next(iter(fields.values()), ()))


def _check_weights(settings: TextSettings, fields: Iterable[str]) -> None:
    for name in settings.field_weights or {}:
        if name not in fields:
            raise ConfigError(f"field_weights names {name!r}, and the texts have {', '.join(dict.fromkeys(fields))}")


def _weights(settings: TextSettings, fields: Texts) -> dict[str, float]:
    """Return the fields that count, with their weights; one that stands alone has nothing to be weighed against."""
    if len(fields) == 1:
        return dict.fromkeys(fields, 1.0)
    given = USUAL if settings.field_weights is None else settings.field_weights
    weights = {name: given.get(name, 1.0) for name in fields}
    if fields and not any(weights.values()):
        raise ConfigError(f"field_weights leaves nothing of the texts: {', '.join(fields)} all have weight 0")
    return {name: weight for name, weight in weights.items() if weight}
