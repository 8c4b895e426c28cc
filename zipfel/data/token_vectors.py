"""A vector for each term of a vocabulary: FastText, trained on the texts or read from a file that others trained.

A term of several words ("heart attack") is the mean of its words' vectors, unless a file has it as it is.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from zipfel.data.dataset import Texts
from zipfel.data.formats.files import byte_lines, opened, reason
from zipfel.data.tokens import tokenize
from zipfel.errors import ConfigError, DataError

Found = tuple[NDArray[np.float32], NDArray[np.bool_]]  # vectors [words, D], and which words have one [words]

RARE = 5  # FastText's own least count, for words that are in no term
BUCKETS = 2_000_000  # FastText's own number of vectors that runs of letters share
LONGEST = 10_000  # words of a sentence that gensim reads; it drops what follows silently
_MAGIC, _COUNT_AT, _WORDS_AT = struct.pack("<i", 793712314), 64, 92  # where a .bin says how many words, and has them
_HEADER = re.compile(rb"(\d{1,18}) ([1-9]\d{0,17})")  # count and dimension
_NUMBER = re.compile(rb"[-+]?[\d.]*\d[\d.]*([eE][-+]?\d+)?")


def train_fasttext(
    texts: Texts,
    terms: Sequence[str],
    dimension: int,
    numbers: np.random.Generator,
    deterministic: bool = True,
    symbols: bool = False,
    epochs: int = 5,
) -> NDArray[np.float32]:
    """Return vectors [terms, dimension] by skip-gram with subwords; a word that the texts lack is made of its subwords.

    terms: each once.  deterministic: one thread, and the same bits for the same generator; otherwise all cores.
    A sentence is one text of one field, as terms of several words do not reach across fields either. Tokens are made
    anew in each pass, never kept. Memory: [3 · words + buckets, dimension], at most BUCKETS of them.

    >>> texts = {"title": ["red apple", "green apple"]}
    >>> train_fasttext(texts, ["apple", "red apple"], 8, np.random.default_rng(0)).shape
    (2, 8)
    """
    places, sentences = _places(terms), _Sentences(texts, symbols)
    counts: Counter[str] = Counter()
    lines = 0
    for sentence in sentences:
        counts.update(sentence)
        lines += 1
    kept = {word: count for word, count in counts.items() if word in places or count >= RARE}
    if not any(sum(word in kept for word in sentence) > 1 for sentence in sentences):
        raise DataError(f"nothing to learn token vectors from: none of {lines} texts has two words that are kept")
    model = _fasttext().FastText(
        vector_size=dimension,
        sg=1,
        min_count=1,  # of those that are kept
        bucket=min(BUCKETS, sum(map(_letter_runs, kept))),  # 2.4 GB at dimension 300, so no more than are used
        workers=1 if deterministic else min(os.cpu_count() or 1, 1 + counts.total() // 100_000),
        seed=int(numbers.integers(2**32)),
    )
    model.build_vocab_from_freq(kept, corpus_count=lines)
    model.train(sentences, total_examples=lines, total_words=counts.total(), epochs=epochs)
    return _with_runs(places, *_look_up(model.wv, places))[0][: len(terms)]


def read_vectors(path: Path, terms: Sequence[str]) -> Found:
    """Return vectors [terms, D] of a file, and which terms it has, [terms]; the others' rows are zeros.

    `.bin` is a model of Facebook's fastText, which has subwords for words that it lacks, and is loaded as a whole. All
    else is text, plain or gzip: `word v1 … vD` a line, maybe after a line `count D`; only lines of terms are read as
    numbers. A word stands for the term that it equals, else for the one that it equals without regard to case; of two
    that do so alike the first counts.  terms: each once.
    """
    places = _places(terms)
    found = _read_binary(path, places) if path.suffix == ".bin" else _read_text(path, places)
    vectors, has = _with_runs(places, *found)
    return vectors[: len(terms)], has[: len(terms)]


def _places(terms: Sequence[str]) -> dict[str, int]:
    """Return a place for each term, in their order, and after them for those of their words that are no terms."""
    words = chain.from_iterable(term.split(" ") for term in terms)
    return {word: place for place, word in enumerate(dict.fromkeys(chain(terms, words)))}


def _with_runs(places: Mapping[str, int], vectors: NDArray[np.float32], found: NDArray[np.bool_]) -> Found:
    """Give terms of several words that have no vector the mean of those that their words have, in place."""
    for term, place in places.items():
        if " " in term and not found[place]:
            words = [places[word] for word in term.split(" ") if found[places[word]]]
            if words:
                vectors[place], found[place] = vectors[words].mean(axis=0), True
    return vectors, found


@dataclass(frozen=True)
class _Sentences:
    """The tokens of each text, made anew whenever they are gone through, as gensim does once an epoch."""

    texts: Texts
    symbols: bool

    def __iter__(self) -> Iterator[list[str]]:
        for text in chain.from_iterable(zip(*self.texts.values(), strict=True)):
            tokens = tokenize(text, self.symbols)
            yield from (tokens[first : first + LONGEST] for first in range(0, len(tokens), LONGEST))


def _letter_runs(word: str) -> int:
    """Return how many runs of 3 to 6 letters FastText takes from a word, its ends marked by one more each."""
    return sum(max(len(word) + 3 - length, 0) for length in range(3, 7))


def _fasttext() -> Any:
    """Return gensim's module, or say what to do without it."""
    try:
        from gensim.models import fasttext
    except ImportError:
        raise ConfigError("FastText needs gensim: pip install gensim, or give token vectors as text (.vec)") from None
    return fasttext


def _look_up(model: Any, places: Mapping[str, int]) -> Found:
    """Return what a FastText model has for words: their own vectors, else those of another case, else of subwords."""
    vectors, found = np.zeros((len(places), model.vector_size), dtype=np.float32), np.zeros(len(places), dtype=bool)
    other_case: dict[str, str] = {}
    for word in model.index_to_key:
        if (folded := word.casefold()) in places:
            other_case.setdefault(folded, word)
    for word, place in places.items():
        name = word if word in model.key_to_index else other_case.get(word, word)
        subwords = " " not in name and model.bucket > 0 and len(name) + 2 >= model.min_n
        if name in model.key_to_index or subwords:
            vectors[place], found[place] = model[name], True
    return vectors, found


def _read_binary(path: Path, places: Mapping[str, int]) -> Found:
    _check_binary(path)
    fasttext = _fasttext()
    try:
        model = fasttext.load_facebook_vectors(str(path))
    except (ArithmeticError, AssertionError, EOFError, MemoryError, RuntimeError, ValueError, struct.error) as error:
        raise DataError(f"not a whole FastText model: {reason(error)}", path) from None
    vectors, found = _look_up(model, places)
    for word, place in places.items():
        if not np.isfinite(vectors[place]).all():
            raise DataError(f"the vector of {word!r} holds a number that is not finite", path)
    return vectors, found


def _check_binary(path: Path) -> None:
    """Refuse what is no FastText model, and one that ends among its words, which gensim 4.4 would read for ever."""
    problem = "not a FastText model (.bin) as Facebook's fastText writes it"
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size < _WORDS_AT:
            raise DataError(problem, path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(_MAGIC)] != _MAGIC:
                raise DataError(problem, path)
            (words,), end = struct.unpack_from("<i", data, _COUNT_AT), _WORDS_AT
            for number in range(words):
                end = data.find(b"\0", end) + 10  # the zero, a count of eight bytes, and a kind of one
                if end < 10:
                    raise DataError(f"not a whole FastText model: ends after {number} of {words} words", path)


def _read_text(path: Path, places: Mapping[str, int]) -> Found:
    vectors = np.zeros((len(places), 0), dtype=np.float32)
    matches = np.zeros(len(places), dtype=np.int8)  # 0: none yet, 1: but for case, 2: exact
    for number, line, dimension in _rows(path):
        try:
            word, values = _cut(line, dimension)
            if not vectors.shape[1]:  # the first row's numbers are always read, as any line is a word and a rest
                vectors = np.zeros((len(places), len(_numbers(values))), dtype=np.float32)
            place, match = (places[word], 2) if word in places else (places.get(word.casefold()), 1)
            if place is not None and match > matches[place]:
                vectors[place], matches[place] = _numbers(values), match
        except ValueError as error:
            raise DataError(reason(error), path, number) from None
    return vectors, matches > 0


def _rows(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Yield number and content of each line that has a vector, and how many numbers it must hold."""
    promised: int | None = None
    dimension = rows = number = 0
    for number, line in byte_lines(path):
        line = line.rstrip()  # fastText ends its lines with a blank
        if number == 1 and (header := _HEADER.fullmatch(line)):
            promised, dimension = int(header[1]), int(header[2])
        elif line:
            dimension = dimension or line.count(b" ")
            yield number, line, dimension
            rows += 1
    if promised is not None and rows != promised:
        raise DataError(f"holds {rows} vectors, and its header says {promised}", path, number)
    if not rows:
        raise DataError("holds no vectors", path)


def _cut(line: bytes, dimension: int) -> tuple[str, bytes]:
    """Return word and numbers of a line; a word may hold blanks, as some of GloVe's do, but not end in a number."""
    more = line.count(b" ") - dimension
    *words, values = line.split(b" ", max(more, 0) + 1)
    if not words or more < 0 or (more > 0 and _NUMBER.fullmatch(words[-1])):
        raise ValueError(f"expected a word and {dimension or 'its'} numbers; found {line.count(b' ') + 1} parts")
    return b" ".join(words).decode(), values


def _numbers(values: bytes) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite
        vector = np.array([float(value) for value in values.split(b" ")], dtype=np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("expected finite numbers; found inf, nan, or one too large")
    return vector
