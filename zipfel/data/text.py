"""Turn text into tf-idf features: any script, one vocabulary for documents and labels, fitted on train only."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from zipfel import config
from zipfel.config import Settings, setting
from zipfel.data.dataset import Dataset, Texts
from zipfel.data.formats.files import opened, write_bytes
from zipfel.data.formats.sparse_text import matrix_of
from zipfel.data.points import texts_of
from zipfel.data.tokens import located, tokenize
from zipfel.errors import ConfigError, DataError

SHORTEST_PIECE = 3  # characters
MOST_PIECES = 1 << 18  # words whose pieces are kept in memory
DEFAULT_FIELD_WEIGHTS = {"title": 3.0}  # chosen on the validation parts of three data sets


@dataclass(frozen=True)
class TextSettings(Settings):
    """How text becomes features.

    Example:
        >>> TextSettings(ngrams=2, field_weights={"title": 2}).ngrams
        2
    """

    ngrams: int = setting(1, "longest n-gram of tokens used as a feature; 2 adds bigrams", at_least=1, search=[1, 2, 3])
    min_count: int = setting(
        2, "drop features in fewer train texts than this (documents and labels)", at_least=1, search=[1, 2, 3, 5]
    )
    max_features: int | None = setting(None, "keep only this many features, those in the most texts", at_least=1)
    sublinear: bool = setting(True, "replace a count c by 1 + ln c", search=[True, False])
    symbols: bool = setting(False, "make each symbol a token too (+, #, %, €, emoji)", search=[False, True])
    characters: int = setting(
        0, "use pieces of words too, of 3 up to this many characters; 0: none", at_least=0, search=[0, 4, 5]
    )
    field_weights: dict[str, float] | None = setting(
        None,
        "weights of text fields, such as title:2; fields not named have weight 1; default: title:3",
        search=[1.0, 2.0, 3.0, 5.0],
    )

    def check(self) -> None:
        """Check that all field weights are finite and not negative."""
        for name, weight in (self.field_weights or {}).items():
            if not 0 <= weight < float("inf"):
                raise ConfigError(f"field_weights[{name}] must be finite and at least 0; found {weight}")


@dataclass(frozen=True, eq=False)
class Tfidf:
    """Weights the counts of a row by how rare each feature is, and scales the row to unit length.

    x_f = tf(c_f) · idf_f with idf_f = 1 + ln((1 + n) / (1 + n_f)), where n_f of n rows have feature f.
    """

    idf: NDArray[np.float32]  # [features]
    sublinear: bool = False

    @classmethod
    def fit(cls, *matrices: csr_array, sublinear: bool = False) -> Tfidf:
        """Fit idf weights on all rows of the given matrices: train documents, and label texts if wanted."""
        rows = sum(matrix.shape[0] for matrix in matrices)
        counts = sum(np.bincount(matrix.indices, minlength=matrix.shape[1]) for matrix in matrices)
        return cls(idf_of(np.asarray(counts), rows), sublinear)

    def transform(self, X: csr_array) -> csr_array:
        """Return the weighted rows, [rows, features]."""
        return csr_array((self.weights(X), X.indices, X.indptr), shape=X.shape)

    def weights(self, X: csr_array) -> NDArray[np.float32]:
        """Return the weights that replace the stored counts of X, [nnz]; rows have unit length, or are all 0."""
        if X.shape[1] != len(self.idf):
            raise DataError(f"the rows have {X.shape[1]} features, but tf-idf was fitted on {len(self.idf)}")
        values: NDArray[np.float32] = X.data.astype(np.float32)
        if self.sublinear:  # counts below 1, which small field weights cause, stay unchanged
            size = np.abs(values)
            values = np.sign(values) * np.where(size >= 1, 1 + np.log(np.maximum(size, 1)), size)
        values *= self.idf[X.indices]
        counts = np.diff(X.indptr)
        filled = counts > 0
        lengths = np.sqrt(np.add.reduceat(values.astype(np.float64) ** 2, X.indptr[:-1][filled]))
        lengths[lengths == 0] = 1  # rows of zeros stay zeros
        values /= np.repeat(lengths, counts[filled])
        return values

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with X of all parts, and Z, weighted."""
        if dataset.train.X is None:
            raise DataError(f"{dataset.name or 'the data set'} has no features to weight")
        Z = None if dataset.Z is None else self.transform(dataset.Z)
        return dataset.with_parts(lambda part: dataclasses.replace(part, X=self.transform(part.X)), Z=Z)


def idf_of(counts: NDArray[np.int64], rows: int) -> NDArray[np.float32]:
    """Return 1 + ln((1 + rows) / (1 + counts)), [features]."""
    return (1 + np.log((1 + rows) / (1 + counts))).astype(np.float32)


@dataclass(frozen=True, eq=False)
class TextFeatures:
    """A vocabulary with idf weights, fitted on the texts of train.

    Args:
        settings: how text becomes features.
        terms: tokens, n-grams and pieces of words, most frequent first.
        idf: how rare each term is, [terms].
        vectors: fields of vectors and their widths; they come before the terms.

    Example:
        >>> features = TextFeatures.fit(["red apple", "green apple"], settings=TextSettings(min_count=1))
        >>> features.terms, features.transform(["an apple"]).toarray().tolist()
        (['apple', 'green', 'red'], [[1.0, 0.0, 0.0]])
    """

    settings: TextSettings
    terms: list[str]
    idf: NDArray[np.float32]  # [terms]
    vectors: Mapping[str, int] = field(default_factory=dict)  # fields of vectors and their widths: the first "terms"

    @classmethod
    def fit(
        cls,
        texts: Texts | Sequence[str],
        label_texts: Texts | Sequence[str] | None = None,
        settings: TextSettings | None = None,
    ) -> TextFeatures:
        """Fit a vocabulary on documents and label texts: the terms that are frequent enough, most frequent first."""
        settings = settings or TextSettings()
        documents, labels = texts_of(texts), texts_of(label_texts or {})
        check_weights(settings, [*documents, *labels])
        return cls.of_counts(settings, term_counts(settings, documents, labels), _size(documents) + _size(labels))

    @classmethod
    def of_counts(cls, settings: TextSettings, counts: Counter[str], rows: int) -> TextFeatures:
        """Return the vocabulary of the terms that are frequent enough.  counts: in how many of `rows` texts each is."""
        kept = _frequent(counts, settings.min_count)[: settings.max_features]
        if not counts and rows:
            raise DataError(f"none of the {rows} texts has a word; check the text columns")
        if not kept:
            raise DataError(f"none of {len(counts)} terms is in {settings.min_count} of {rows} texts; lower min_count")
        frequencies = np.array([-count for count, _ in kept], dtype=np.int64)
        return cls(settings, [term for _, term in kept], idf_of(frequencies, rows))

    def extended(self, texts: Texts, label_texts: Texts | None, rows: int) -> TextFeatures:
        """Return the vocabulary with the terms appended that are frequent enough in more texts.

        Known terms keep their ids and idf weights. A new term's idf weight counts the texts learned from before,
        `rows`, as texts without it. `max_features` limits all terms together.
        """
        labels = label_texts or {}
        counts = term_counts(self.settings, texts, labels)
        for term in self.terms:
            counts.pop(term, None)
        most = self.settings.max_features
        words = len(self.terms) - sum(self.vectors.values())
        kept = _frequent(counts, self.settings.min_count)[: None if most is None else max(0, most - words)]
        if not kept:
            return self
        frequencies = np.array([-count for count, _ in kept], dtype=np.int64)
        idf = idf_of(frequencies, rows + _size(texts) + _size(labels))
        terms = [*self.terms, *(term for _, term in kept)]
        return dataclasses.replace(self, terms=terms, idf=np.concatenate([self.idf, idf]))

    def with_vectors(self, widths: Mapping[str, int]) -> TextFeatures:
        """Return the vocabulary with the numbers of vectors before its terms, named such as `embedding[0]`."""
        names = [f"{name}[{number}]" for name, width in widths.items() for number in range(width)]  # no text has these
        idf = np.concatenate([np.ones(len(names), dtype=np.float32), self.idf])
        return dataclasses.replace(self, terms=[*names, *self.terms], idf=idf, vectors=dict(widths))

    @cached_property
    def _term_ids(self) -> dict[str | tuple[str, ...], int]:
        """Ids of terms; n-grams are keyed by tuples, so that `count` need not join the n-grams of a text."""
        return {tuple(term.split(" ")) if " " in term else term: number for number, term in enumerate(self.terms)}

    @cached_property
    def _pieces(self) -> dict[str, list[int]]:
        """Ids of the pieces of words seen so far; words repeat, and cutting them takes time."""
        return {}

    def _piece_ids(self, token: str) -> list[int]:
        if token not in self._pieces:
            if len(self._pieces) >= MOST_PIECES:
                self._pieces.clear()
            cut = (self._term_ids.get(piece) for piece, _, _ in pieces_of(token, self.settings.characters))
            self._pieces[token] = [i for i in cut if i is not None]
        return self._pieces[token]

    def transform(self, texts: Texts | Sequence[str]) -> csr_array:
        """Return tf-idf rows of unit length, [texts, terms]; terms outside the vocabulary are ignored."""
        rows = self.count(texts)
        rows.data = Tfidf(self.idf, self.settings.sublinear).weights(rows)
        return rows

    def rows(self, texts: Texts, vectors: Mapping[str, csr_array] | None) -> csr_array:
        """Return the features of points: their vectors, where the vocabulary has such fields, then tf-idf rows."""
        given = {name: matrix.shape[1] for name, matrix in (vectors or {}).items()}
        if given != self.vectors:
            expected, found = (
                ", ".join(f"{name!r} of {width} numbers" for name, width in widths.items()) or "none"
                for widths in (self.vectors, given)
            )
            raise DataError(f"the model expects as vectors beside the texts: {expected}; found: {found}")
        rows = self.transform(texts)
        if not vectors:
            return rows
        words = rows[:, sum(given.values()) :]
        return csr_array(hstack([*(vectors[name] for name in self.vectors), words], format="csr"))

    def count(self, texts: Texts | Sequence[str]) -> csr_array:
        """Return the count of each term in each text, weighted by field, [texts, terms]."""
        fields, term_id = texts_of(texts), self._term_ids.get
        weights = _weights(self.settings, fields)
        lengths, ids = array("q"), array("i")
        for row in zip(*(fields[name] for name in weights), strict=True):
            for text in row:
                tokens = tokenize(text, self.settings.symbols)
                grams: Iterable[str | tuple[str, ...]] = chain(tokens, *_runs(tokens, self.settings.ngrams))
                known = [i for i in map(term_id, grams) if i is not None]
                if self.settings.characters:
                    known += chain.from_iterable(map(self._piece_ids, tokens))
                ids.fromlist(known)
                lengths.append(len(known))
        counts = np.asarray(lengths).reshape(_size(fields), len(weights))  # [texts, fields]
        values = np.repeat(np.tile(np.array([*weights.values()], dtype=np.float32), len(counts)), counts.ravel())
        return matrix_of(counts.sum(axis=1), np.asarray(ids), len(self.terms), values)[0]

    def places(self, text: str) -> dict[int, list[tuple[int, int]]]:
        """Return the character ranges [start, end) of each known term in a text, in order of occurrence, by term id."""
        tokens = located(text, self.settings.symbols)
        spans: dict[int, list[tuple[int, int]]] = {}
        for length in range(1, self.settings.ngrams + 1):
            for first in range(len(tokens) - length + 1):
                run = tokens[first : first + length]
                term = self._term_ids.get(run[0].token if length == 1 else tuple(piece.token for piece in run))
                if term is not None:
                    spans.setdefault(term, []).append((run[0].start, run[-1].end))
        for token, start, end in tokens:
            whole = end - start != len(token)  # the word was folded, so that its characters cannot be told apart
            for piece, first, last in pieces_of(token, self.settings.characters):
                term = self._term_ids.get(piece)
                if term is not None:
                    span = (start, end) if whole else (start + first, start + last)
                    spans.setdefault(term, []).append(span)
        return spans

    def places_by_field(self, texts: Mapping[str, str]) -> dict[str, dict[int, list[tuple[int, int]]]]:
        """Return `places` in each field of a document; fields with weight 0 are left out."""
        return {name: self.places(texts[name]) for name in _weights(self.settings, texts)}

    def apply(self, dataset: Dataset) -> Dataset:
        """Return the data set with X made from its texts, and Z from its label texts if it has any."""
        if dataset.train.texts is None:
            raise DataError(f"{dataset.name or 'the data set'} has no texts to turn into features")
        Z = self.transform(dataset.label_texts) if dataset.label_texts else None
        return dataset.with_parts(
            lambda part: dataclasses.replace(part, X=self.rows(part.texts or {}, part.vectors)),
            Z=Z,
            feature_names=self.terms,
            vocabulary=self,
        )

    def as_json(self) -> dict[str, Any]:
        """Return settings, terms and idf weights as JSON values."""
        vectors = {"vectors": dict(self.vectors)} if self.vectors else {}
        return {"settings": dataclasses.asdict(self.settings), "terms": self.terms, "idf": self.idf.tolist()} | vectors

    @classmethod
    def of_json(cls, values: Any, path: Path | str | None = None) -> TextFeatures:
        """Make a vocabulary from the values of `as_json`; `path` is the file they come from, for error messages."""
        try:
            settings = config.from_mapping(TextSettings, values["settings"])
            terms, idf = values["terms"], np.array(values["idf"], dtype=np.float32)
            if not all(isinstance(term, str) for term in terms) or len(set(terms)) != len(terms):
                raise ValueError("the terms must be unique strings")
            if idf.shape != (len(terms),) or not np.isfinite(idf).all():
                raise ValueError(f"expected {len(terms)} finite idf weights, found {idf.tolist()!s:.60}")
        except (KeyError, TypeError, ValueError) as error:  # unknown settings are ValueErrors too
            raise DataError(f"not a saved vocabulary: {error!r}", path) from None
        return cls(settings, list(terms), idf, dict(values.get("vectors", {})))

    def save(self, path: Path | str) -> None:
        """Write the vocabulary as JSON."""
        write_bytes(Path(path), orjson.dumps(self.as_json()))

    @classmethod
    def load(cls, path: Path | str) -> TextFeatures:
        """Read a vocabulary that `save` wrote."""
        with opened(Path(path)) as file:
            content = file.read()
        try:
            return cls.of_json(orjson.loads(content), path)
        except orjson.JSONDecodeError as error:
            raise DataError(f"not a saved vocabulary: {error!r}", path) from None


def featurized(dataset: Dataset, settings: TextSettings | None = None) -> Dataset:
    """Return the data set with features: unchanged if it has them, else with tf-idf of its texts.

    Args:
        dataset: points as texts or features.
        settings: how text becomes features.

    Returns:
        The data set with X, and with Z where it has label texts; the vocabulary is that of train.

    Example:
        >>> from zipfel import Part
        >>> dataset = Dataset(Part(csr_array([[1], [1]]), texts={"text": ["red apple", "an apple"]}))
        >>> featurized(dataset).sizes
        Sizes(points=2, features=1, labels=1)
    """
    if dataset.train.X is not None:
        return dataset
    return TextFeatures.fit(dataset.train.texts or {}, dataset.label_texts, settings).apply(dataset)


def term_counts(settings: TextSettings, *texts: Texts) -> Counter[str]:
    """Return in how many texts each term is."""
    counts: Counter[str] = Counter()
    for fields in texts:
        columns = [fields[name] for name in _weights(settings, fields)]
        for row in zip(*columns, strict=True):
            counts.update({term for text in row for term in _terms(text, settings)})
    return counts


def _frequent(counts: Counter[str], least: int) -> list[tuple[int, str]]:
    """Return (-count, term) of the terms that are in enough texts, most frequent first."""
    return sorted((-count, term) for term, count in counts.items() if count >= least)


def _terms(text: str, settings: TextSettings) -> Iterator[str]:
    """Return the tokens of a text, then its bigrams, trigrams, ..., and the pieces of its words."""
    tokens = tokenize(text, settings.symbols)
    pieces = (piece for token in tokens for piece, _, _ in pieces_of(token, settings.characters))
    return chain(tokens, *(map(" ".join, runs) for runs in _runs(tokens, settings.ngrams)), pieces)


@lru_cache(1 << 16)
def pieces_of(token: str, longest: int) -> tuple[tuple[str, int, int], ...]:
    """Return the pieces of a word, of 3 to `longest` characters, and the characters [start, end) they come from.

    < and > mark the ends of the word and count as characters, as in fastText; ~ tells a piece from a word.

    >>> [piece for piece, _, _ in pieces_of("acid", 4)]
    ['~<ac', '~aci', '~cid', '~id>', '~<aci', '~acid', '~cid>']
    """
    if len(token) < SHORTEST_PIECE:
        return ()
    marked, last = f"<{token}>", len(token)
    return tuple(
        (f"~{marked[start : start + length]}", max(start - 1, 0), min(start + length - 1, last))
        for length in range(SHORTEST_PIECE, min(longest, len(marked) - 1) + 1)
        for start in range(len(marked) - length + 1)
    )


def _runs(tokens: list[str], longest: int) -> Iterator[Iterator[tuple[str, ...]]]:
    """Yield all bigrams, then all trigrams, ..., up to n-grams of `longest` tokens."""
    for length in range(2, longest + 1):
        yield zip(*(tokens[start:] for start in range(length)), strict=False)


def _size(fields: Texts) -> int:
    return len(next(iter(fields.values()), ()))


def check_weights(settings: TextSettings, fields: Iterable[str]) -> None:
    """Raise ConfigError if the settings weight a field that is not there."""
    for name in settings.field_weights or {}:
        if name not in fields:
            raise ConfigError(f"field_weights names {name!r}; the text fields are {', '.join(dict.fromkeys(fields))}")


def _weights(settings: TextSettings, fields: Texts) -> dict[str, float]:
    """Return the weights of all fields whose weight is not 0; a single field always has weight 1."""
    if len(fields) == 1:
        return dict.fromkeys(fields, 1.0)
    given = DEFAULT_FIELD_WEIGHTS if settings.field_weights is None else settings.field_weights
    weights = {name: given.get(name, 1.0) for name in fields}
    if fields and not any(weights.values()):
        raise ConfigError(f"field_weights must leave a text field: {', '.join(fields)} all have weight 0")
    return {name: weight for name, weight in weights.items() if weight}
