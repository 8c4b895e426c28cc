"""Token vectors for a vocabulary: trained with FastText on the texts, or read from a file of pretrained vectors.

The vector of a term of several words ("heart attack") is the mean of its words' vectors, unless a file has the term.
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

Vectors = tuple[NDArray[np.float32], NDArray[np.bool_]]  # vectors [words, D], and which words have one [words]

RARE = 5  # FastText's default minimum count, applied to words that are in no term
WORDS_READ = 10_000_000  # 5 passes over fewer words leave all vectors pointing the same way
PASSES = range(5, 101)  # over the texts
BUCKETS = 2_000_000  # FastText's default number of vectors that subwords share
LONGEST = 10_000  # words of a sentence that gensim reads; it silently drops the rest
_MAGIC, _COUNT_AT, _WORDS_AT = struct.pack("<i", 793712314), 64, 92  # start of a .bin; offsets of word count and words
_HEADER = re.compile(rb"(\d{1,18}) ([1-9]\d{0,17})")  # count and dimension
_NUMBER = re.compile(rb"[-+]?[\d.]*\d[\d.]*([eE][-+]?\d+)?")


def train_fasttext(
    texts: Texts,
    terms: Sequence[str],
    dimension: int,
    numbers: np.random.Generator,
    deterministic: bool = True,
    symbols: bool = False,
    epochs: int | None = None,
) -> NDArray[np.float32]:
    """Return vectors [terms, dimension], trained by skip-gram with subwords, which also make vectors of unseen words.

    terms: must be unique.  deterministic: use one thread, so that equal generators give equal bits; otherwise up to all
    cores.  epochs: passes over the texts; None means `passes`. A sentence is one text of one field, since terms of
    several words do not span fields either. Each pass tokenizes the texts again, to save memory. Memory:
    [3 · words + buckets, dimension], with at most BUCKETS buckets.

    >>> texts = {"title": ["red apple", "green apple"]}
    >>> train_fasttext(texts, ["apple", "red apple"], 8, np.random.default_rng(0)).shape
    (2, 8)
    """
    rows, sentences = _word_rows(terms), _Sentences(texts, symbols)
    counts: Counter[str] = Counter()
    lines = 0
    for sentence in sentences:
        counts.update(sentence)
        lines += 1
    kept = {word: count for word, count in counts.items() if word in rows or count >= RARE}
    if not any(sum(word in kept for word in sentence) > 1 for sentence in sentences):
        raise DataError(
            f"cannot train token vectors: none of {lines} texts has two words that are frequent or in a term"
        )
    model = _fasttext().FastText(
        vector_size=dimension,
        sg=1,
        min_count=1,  # rare words were removed above
        bucket=min(BUCKETS, sum(map(_letter_runs, kept))),  # BUCKETS take 2.4 GB at dimension 300; no more than needed
        workers=1 if deterministic else min(_threads(), 1 + counts.total() // 100_000),
        seed=int(numbers.integers(2**32)),
    )
    model.build_vocab_from_freq(kept, corpus_count=lines)
    model.train(sentences, total_examples=lines, total_words=counts.total(), epochs=epochs or passes(counts.total()))
    return _with_phrases(rows, *_look_up(model.wv, rows))[0][: len(terms)]


def passes(words: int) -> int:
    """Return how often FastText reads texts of this many words: 5 times, or for few words up to 100 times.

    >>> passes(133_212), passes(10_000_000)
    (76, 5)
    """
    return min(max(-(-WORDS_READ // max(words, 1)), PASSES[0]), PASSES[-1])


def _threads() -> int:
    import torch  # takes seconds

    return torch.get_num_threads()


def read_vectors(path: Path, terms: Sequence[str]) -> Vectors:
    """Return vectors [terms, D] from a file, and which terms have one, [terms]; the rows of the others are zeros.

    A `.bin` file is a model of Facebook's fastText: it is loaded whole, and words it lacks get subword vectors. Any
    other file is text, plain or gzip: lines `word v1 … vD`, optionally after a line `count D`; numbers are parsed only
    on lines of terms. A word matches the term it equals, else the term it equals when case is ignored; of two equally
    good matches the first counts.  terms: must be unique.
    """
    rows = _word_rows(terms)
    known = _read_binary(path, rows) if path.suffix == ".bin" else _read_text(path, rows)
    vectors, has = _with_phrases(rows, *known)
    return vectors[: len(terms)], has[: len(terms)]


def _word_rows(terms: Sequence[str]) -> dict[str, int]:
    """Return a row for each term, in their order, and then for each of their words that is no term."""
    words = chain.from_iterable(term.split(" ") for term in terms)
    return {word: row for row, word in enumerate(dict.fromkeys(chain(terms, words)))}


def _with_phrases(rows: Mapping[str, int], vectors: NDArray[np.float32], has: NDArray[np.bool_]) -> Vectors:
    """Give each term of several words without a vector the mean of its words' vectors, in place."""
    for term, row in rows.items():
        if " " in term and not has[row]:
            words = [rows[word] for word in term.split(" ") if has[rows[word]]]
            if words:
                vectors[row], has[row] = vectors[words].mean(axis=0), True
    return vectors, has


@dataclass(frozen=True)
class _Sentences:
    """The tokens of each text, made again in each iteration; gensim iterates once per epoch."""

    texts: Texts
    symbols: bool

    def __iter__(self) -> Iterator[list[str]]:
        for text in chain.from_iterable(zip(*self.texts.values(), strict=True)):
            tokens = tokenize(text, self.symbols)
            yield from (tokens[first : first + LONGEST] for first in range(0, len(tokens), LONGEST))


def _letter_runs(word: str) -> int:
    """Return how many subwords of 3 to 6 letters FastText takes from a word with a marker at both ends."""
    return sum(max(len(word) + 3 - length, 0) for length in range(3, 7))


def _fasttext() -> Any:
    """Return gensim's fasttext module; raise ConfigError without gensim."""
    try:
        from gensim.models import fasttext
    except ImportError:
        raise ConfigError("FastText needs gensim: pip install gensim, or give token vectors as text (.vec)") from None
    return fasttext


def _look_up(model: Any, rows: Mapping[str, int]) -> Vectors:
    """Return the vectors of words in a FastText model: of the word, else of its other case, else of its subwords."""
    vectors, has = np.zeros((len(rows), model.vector_size), dtype=np.float32), np.zeros(len(rows), dtype=bool)
    other_case: dict[str, str] = {}
    for word in model.index_to_key:
        if (folded := word.casefold()) in rows:
            other_case.setdefault(folded, word)
    for word, row in rows.items():
        name = word if word in model.key_to_index else other_case.get(word, word)
        subwords = " " not in name and model.bucket > 0 and len(name) + 2 >= model.min_n
        if name in model.key_to_index or subwords:
            vectors[row], has[row] = model[name], True
    return vectors, has


def _read_binary(path: Path, rows: Mapping[str, int]) -> Vectors:
    _check_binary(path)
    fasttext = _fasttext()
    try:
        model = fasttext.load_facebook_vectors(str(path))
    except (ArithmeticError, AssertionError, EOFError, MemoryError, RuntimeError, ValueError, struct.error) as error:
        raise DataError(f"not a complete FastText model: {reason(error)}", path) from None
    vectors, has = _look_up(model, rows)
    for word, row in rows.items():
        if not np.isfinite(vectors[row]).all():
            raise DataError(f"the vector of {word!r} has a value that is not finite", path)
    return vectors, has


def _check_binary(path: Path) -> None:
    """Raise DataError if this is no FastText model, or ends among its words, where gensim 4.4 loops for ever."""
    problem = "not a FastText model (.bin) of Facebook's fastText"
    with opened(path) as file:
        if os.fstat(file.fileno()).st_size < _WORDS_AT:
            raise DataError(problem, path)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(_MAGIC)] != _MAGIC:
                raise DataError(problem, path)
            (words,), end = struct.unpack_from("<i", data, _COUNT_AT), _WORDS_AT
            for number in range(words):
                end = data.find(b"\0", end) + 10  # the zero byte, a count of eight bytes, and a type of one
                if end < 10:
                    raise DataError(f"not a complete FastText model: ends after {number} of {words} words", path)


def _read_text(path: Path, rows: Mapping[str, int]) -> Vectors:
    vectors = np.zeros((len(rows), 0), dtype=np.float32)
    matches = np.zeros(len(rows), dtype=np.int8)  # 0: none yet, 1: if case is ignored, 2: exact
    for number, line, dimension in _vector_lines(path):
        try:
            word, values = _cut(line, dimension)
            if not vectors.shape[1]:  # always parse the first line, since any line looks like a word and a rest
                vectors = np.zeros((len(rows), len(_numbers(values))), dtype=np.float32)
            row, match = (rows[word], 2) if word in rows else (rows.get(word.casefold()), 1)
            if row is not None and match > matches[row]:
                vectors[row], matches[row] = _numbers(values), match
        except ValueError as error:
            raise DataError(reason(error), path, number) from None
    return vectors, matches > 0


def _vector_lines(path: Path) -> Iterator[tuple[int, bytes, int]]:
    """Yield (line number, line, dimension) for each line with a vector."""
    expected: int | None = None
    dimension = count = number = 0
    for number, line in byte_lines(path):
        line = line.rstrip()  # fastText ends its lines with a blank
        if number == 1 and (header := _HEADER.fullmatch(line)):
            expected, dimension = int(header[1]), int(header[2])
        elif line:
            dimension = dimension or line.count(b" ")
            yield number, line, dimension
            count += 1
    if expected is not None and count != expected:
        raise DataError(f"holds {count} vectors, but its header says {expected}", path, number)
    if not count:
        raise DataError("holds no vectors", path)


def _cut(line: bytes, dimension: int) -> tuple[str, bytes]:
    """Return word and numbers of a line; a word may contain blanks, as in GloVe, but not end in a number."""
    more = line.count(b" ") - dimension
    *words, values = line.split(b" ", max(more, 0) + 1)
    if not words or more < 0 or (more > 0 and _NUMBER.fullmatch(words[-1])):
        raise ValueError(f"expected a word and {dimension or 'its'} numbers, found {line.count(b' ') + 1} parts")
    return b" ".join(words).decode(), values


def _numbers(values: bytes) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # values too large for float32 become infinite
        vector = np.array([float(value) for value in values.split(b" ")], dtype=np.float32)
    if not np.isfinite(vector).all():
        raise ValueError("expected finite numbers, found inf, nan, or one too large for float32")
    return vector
