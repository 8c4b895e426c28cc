"""Text to features: tokens of any script, one vocabulary for documents and labels, tf-idf. Fitted on train only."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import DTypeLike, NDArray
from scipy.sparse import csr_array

from zipfel import config
from zipfel.config import setting
from zipfel.data.dataset import Dataset, Texts
from zipfel.data.formats.files import new_file
from zipfel.data.formats.sparse_text import matrix_of
from zipfel.errors import ConfigError, DataError

# Runs of scripts that are written without blanks between words: Thai, Lao, Myanmar, Khmer, kana, Han. They are cut
# into overlapping pairs of characters, which need no dictionary and carry most of what words would.
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_SYMBOLIC_PUNCTUATION = "#%&@"  # the marks that mean something by themselves: C#, 5 %, R&D, @name


class _Characters(dict[int, str | None]):
    """What becomes of each character, for str.translate; filled as characters are met.

    Letters, marks and digits of any script stay; a symbol becomes a token of its own, or a blank like the rest.
    """

    def __init__(self, symbols: bool) -> None:
        super().__init__()
        self._symbols = symbols

    def __missing__(self, code: int) -> str | None:
        """Decide on one character, by its Unicode category."""
        character = chr(code)
        kind = unicodedata.category(character)
        if kind == "Cf" or 0xFE00 <= code <= 0xFE0F:  # invisible: joiners, soft hyphens, variation selectors
            kept: str | None = None
        elif kind[0] in "LMN":
            kept = character
        elif self._symbols and (kind[0] == "S" or character in _SYMBOLIC_PUNCTUATION):
            kept = f" {character} "
        else:
            kept = " "
        self[code] = kept
        return kept


_WORDS, _WORDS_AND_SYMBOLS = _Characters(symbols=False), _Characters(symbols=True)


def tokenize(text: str, symbols: bool = False) -> list[str]:
    """Cut a text into tokens: runs of letters, marks and digits of any script, without regard to case.

    >>> tokenize("Größe: 5% of C++ हिन्दी 東京都", symbols=True)
    ['grösse', '5', '%', 'of', 'c', '+', '+', 'हिन्दी', '東京', '京都']
    """
    characters = _WORDS_AND_SYMBOLS if symbols else _WORDS
    if text.isascii():
        return text.lower().translate(characters).split()
    text = unicodedata.normalize("NFKC", text).casefold()
    return _UNSPACED.sub(_pairs, text).translate(characters).split()


def _pairs(run: re.Match[str]) -> str:
    characters = run.group()
    if len(characters) == 1:
        return f" {characters} "
    return f" {' '.join(map(str.__add__, characters, characters[1:]))} "


@dataclass(frozen=True)
class TextSettings:
    """How text becomes features."""

    ngrams: int = setting(1, "longest run of tokens that counts as a feature; 2 adds pairs")
    min_count: int = setting(2, "leave out a feature that occurs in fewer texts of train (documents and labels)")
    max_features: int | None = setting(None, "keep this many features, those in the most texts")
    sublinear: bool = setting(True, "count a token that occurs c times as 1 + ln c")
    symbols: bool = setting(False, "make tokens of symbols too (+, #, %, €, emoji), one each")
    field_weights: dict[str, float] = setting({}, "weight of a field's tokens, such as title:2; 1 if not named")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name, least in (("ngrams", 1), ("min_count", 1), ("max_features", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}; found {value}")
        for name, weight in self.field_weights.items():
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
        if X.shape[1] != len(self.idf):
            raise DataError(f"rows have {X.shape[1]} features, and tf-idf was fitted on {len(self.idf)}")
        values = X.data.astype(np.float32)
        if self.sublinear:  # below 1, as a small field weight can make it, a count stays as it is
            size = np.abs(values)
            values = np.sign(values) * np.where(size >= 1, 1 + np.log(np.maximum(size, 1)), size)
        values *= self.idf[X.indices]
        return _unit_rows(csr_array((values, X.indices, X.indptr), shape=X.shape))

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with all its features weighted."""
        Z = None if dataset.Z is None else self.transform(dataset.Z)
        return dataset.with_parts(lambda part: dataclasses.replace(part, X=self.transform(part.X)), Z=Z)


def idf_of(counts: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    """Return 1 + ln((1 + rows) / (1 + counts)), [features]."""
    return (1 + np.log((1 + rows) / (1 + counts))).astype(np.float32)


def _unit_rows(X: csr_array) -> csr_array:
    """Scale each row to length 1, in place; an empty row stays empty."""
    sums = np.concatenate(([0.0], np.cumsum(X.data.astype(np.float64) ** 2)))
    lengths = np.sqrt(sums[X.indptr[1:]] - sums[X.indptr[:-1]])
    scales = np.divide(1, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    X.data *= np.repeat(scales, np.diff(X.indptr)).astype(np.float32)
    return X


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
        _check_weights(settings, documents)
        counts: Counter[str] = Counter()
        for fields in (documents, labels):
            for row in zip(*fields.values(), strict=True):
                counts.update(set(chain.from_iterable(_terms(text, settings) for text in row)))
        kept = [(-count, term) for term, count in counts.items() if count >= settings.min_count]
        kept = sorted(kept)[: settings.max_features]
        frequencies = np.array([-count for count, _ in kept], dtype=np.int64)
        return cls(settings, [term for _, term in kept], idf_of(frequencies, _size(documents) + _size(labels)))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {term: place for place, term in enumerate(self.terms)}

    def transform(self, texts: Texts | Sequence[str]) -> csr_array:
        """Return tf-idf rows of unit length, [texts, terms]; terms that train does not have are left out."""
        return Tfidf(self.idf, self.settings.sublinear).transform(self.count(texts))

    def count(self, texts: Texts | Sequence[str]) -> csr_array:
        """Return how often each text has each term, weighted by field, [texts, terms]."""
        fields = _fields(texts)
        by_weight: dict[float, list[Sequence[str]]] = {}
        for name, column in fields.items():
            by_weight.setdefault(self.settings.field_weights.get(name, 1.0), []).append(column)
        total = csr_array((_size(fields), len(self.terms)), dtype=np.float32)
        for weight, columns in by_weight.items():
            part = self._count_terms(columns)
            part.data *= np.float32(weight)
            total = part if len(by_weight) == 1 else csr_array(total + part)
        return total

    def _count_terms(self, columns: Sequence[Sequence[str]]) -> csr_array:
        place, settings = self._places.get, self.settings
        counts, ids = array("q"), array("i")
        for row in zip(*columns, strict=True):
            before = len(ids)
            for text in row:
                ids.fromlist([i for i in map(place, _terms(text, settings)) if i is not None])
            counts.append(len(ids) - before)
        values = np.ones(len(ids), dtype=np.float32)
        return matrix_of(_array(counts, np.int64), _array(ids, np.int32), values, len(self.terms))[0]

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with features X made from its texts, and Z from its label texts."""
        Z = None if dataset.label_texts is None else self.transform(dataset.label_texts)
        return dataset.with_parts(
            lambda part: dataclasses.replace(part, X=self.transform(part.texts or {})), Z=Z, feature_names=self.terms
        )

    def save(self, path: Path | str) -> None:
        """Write settings, terms and weights as JSON."""
        values = {"settings": dataclasses.asdict(self.settings), "terms": self.terms, "idf": self.idf}
        with new_file(Path(path)) as out:
            out.write(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))

    @classmethod
    def load(cls, path: Path | str) -> TextFeatures:
        """Read what `save` wrote."""
        try:
            values = orjson.loads(Path(path).read_bytes())
            settings, terms, idf = values["settings"], values["terms"], np.array(values["idf"], dtype=np.float32)
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror}", path) from None
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            raise DataError(f"not a saved vocabulary: {error!r}", path) from None
        if len(terms) != len(idf) or len(set(terms)) != len(terms):
            raise DataError(f"{len(terms)} terms ({len(set(terms))} of them unique) and {len(idf)} weights", path)
        return cls(config.from_mapping(TextSettings, settings), terms, idf)


def featurized(dataset: Dataset, settings: TextSettings | None = None) -> Dataset:
    """Return a data set with features: those that it has, else tf-idf of its texts, fitted on train."""
    if dataset.train.texts is None:
        return dataset
    return TextFeatures.fit(dataset.train.texts, dataset.label_texts, settings).apply(dataset)


def _terms(text: str, settings: TextSettings) -> list[str]:
    """Return the tokens of a text, followed by its pairs, triples, ... of tokens."""
    tokens = tokenize(text, settings.symbols)
    if settings.ngrams == 1:
        return tokens
    grams: list[Iterable[str]] = [tokens]
    for length in range(2, settings.ngrams + 1):
        grams.append(map(" ".join, zip(*(tokens[start:] for start in range(length)), strict=False)))
    return list(chain.from_iterable(grams))


def _fields(texts: Texts | Sequence[str]) -> Texts:
    """Return texts by field; a plain list is one field."""
    if isinstance(texts, str):
        raise DataError("expected a list of texts, found one text")
    return texts if isinstance(texts, Mapping) else {"text": texts}


def _size(fields: Texts) -> int:
    return len(next(iter(fields.values()), ()))


def _check_weights(settings: TextSettings, fields: Texts) -> None:
    for name in settings.field_weights:
        if name not in fields:
            raise ConfigError(f"field_weights names {name!r}, and the texts have {', '.join(fields)}")


def _array(buffer: array[int], dtype: DTypeLike) -> NDArray[Any]:
    """Return an array over the buffer's memory; numpy cannot make one over nothing."""
    return np.frombuffer(buffer, dtype=dtype) if buffer else np.empty(0, dtype=dtype)
