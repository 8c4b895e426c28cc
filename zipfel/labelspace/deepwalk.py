"""DeepWalk: a vector for each label of a graph, by skip-gram over random walks (Perozzi et al., 2014; DXML Sec. 3.2).

A walk is a sentence whose words are labels. Why it is fed to gensim as it is: docs/decisions/008-deepwalk.md.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.config import setting
from zipfel.errors import ConfigError, DataError

CHUNK = 1 << 16  # walks made at once: 2.6 million steps at the default length, under 100 MB with their text


@dataclass(frozen=True)
class Walks:
    """How labels are walked and learned. DXML names none of these; the defaults are ours."""

    walks: int = setting(10, "walks that start at each label")
    length: int = setting(40, "labels in a walk")
    window: int = setting(5, "labels on either side that a label predicts; a random 1 to this many, as in word2vec")
    negatives: int = setting(5, "labels drawn against each that is predicted")
    epochs: int = setting(1, "passes over the walks; more of them did not help on planted groups")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise ConfigError(f"{field.name} must be at least 1; found {getattr(self, field.name)}")


def deepwalk(
    graph: csr_array,
    dimension: int,
    numbers: np.random.Generator,
    settings: Walks | None = None,
    deterministic: bool = True,
) -> NDArray[np.float32]:
    """Return a vector for each label, [L, dimension]: labels that share walks lie close.

    graph: [L, L] symmetric, without diagonal, weights positive.  deterministic: one thread, and the same bits for the
    same generator; otherwise all cores, which write into one another's updates.

    >>> graph = csr_array(np.array([[0, 1, 0], [1, 0, 0], [0, 0, 0]], dtype=np.float32))
    >>> deepwalk(graph, 8, np.random.default_rng(0)).shape
    (3, 8)
    """
    alone = np.diff(graph.indptr) == 0  # [L], labels without neighbours
    vectors = np.empty((graph.shape[0], dimension), dtype=np.float32)
    length = 1.0
    if not alone.all():
        learned = _skip_gram(graph, dimension, numbers, settings or Walks(), deterministic)
        length = float(np.median(np.linalg.norm(learned, axis=1)))
        vectors[~alone] = learned
    vectors[alone] = _directions(int(alone.sum()), dimension, numbers) * length
    return vectors


def _directions(count: int, dimension: int, numbers: np.random.Generator) -> NDArray[np.float32]:
    """Return random unit vectors [count, dimension]: about at right angles to each other, and to all else."""
    vectors: NDArray[np.float32] = numbers.standard_normal((count, dimension), dtype=np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def random_walks(graph: csr_array, settings: Walks, numbers: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield walks [up to CHUNK, length]: as often as wanted from each label, each time in a new random order.

    A label without neighbours starts none: its walk would be the label alone, which tells skip-gram nothing.
    """
    step = _stepper(graph)
    starts = np.flatnonzero(np.diff(graph.indptr))
    for _ in range(settings.walks):
        order = numbers.permutation(starts)
        for labels in (order[first : first + CHUNK] for first in range(0, len(order), CHUNK)):
            walks = np.empty((settings.length, len(labels)), dtype=np.int64)
            walks[0] = labels
            for place in range(1, settings.length):
                walks[place] = step(walks[place - 1], numbers.random(walks.shape[1]))
            yield walks.T


Step = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.int64]]


def _stepper(graph: csr_array) -> Step:
    """Return the function that takes labels [C] and uniform draws [C] to a neighbour of each, as weights have it."""
    first, last, neighbours = graph.indptr[:-1], graph.indptr[1:], graph.indices
    degrees = np.diff(graph.indptr)
    if graph.nnz == 0 or (graph.data == graph.data[0]).all():

        def uniform(labels: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
            place = first[labels] + (draws * degrees[labels]).astype(np.int64)  # draws < 1, so never the next row
            return np.asarray(neighbours[place], dtype=np.int64)

        return uniform
    shares = graph.data / np.repeat(graph.sum(axis=1, dtype=np.float64), degrees)  # of a row they add up to 1
    upto = np.concatenate(([0.0], np.cumsum(shares)))  # [edges + 1]; shares make light rows as exact as heavy ones

    def weighted(labels: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
        low, high = upto[first[labels]], upto[last[labels]]
        place = np.searchsorted(upto, low + draws * (high - low), side="right") - 1
        return np.asarray(neighbours[np.clip(place, first[labels], last[labels] - 1)], dtype=np.int64)

    return weighted


def _skip_gram(
    graph: csr_array, dimension: int, numbers: np.random.Generator, settings: Walks, deterministic: bool
) -> NDArray[np.float32]:
    """Walk, and return vectors of the labels that have neighbours, in their order, [labels with neighbours, dimension].

    The counts of labels are known from walking, so that gensim need not read the file once more to find its words.
    """
    word2vec, words = _word2vec(), _words(graph.shape[0])
    with tempfile.TemporaryDirectory(prefix="zipfel-walks-") as folder:
        path = Path(folder) / "walks.txt"
        counts = _write_walks(path, words, random_walks(graph, settings, numbers))
        seen = np.flatnonzero(counts)  # every label that has neighbours, for each starts a walk
        lines, steps = settings.walks * len(seen), int(counts.sum())
        workers = 1 if deterministic else _workers(steps)
        model = word2vec(
            vector_size=dimension,
            sg=1,
            negative=settings.negatives,
            window=settings.window,
            min_count=1,
            sample=0,  # word2vec's 1e-3 would drop 84 % of the steps among 20 labels, 44 % among 160
            sorted_vocab=0,  # row i is the i-th word given
            workers=workers,
            seed=int(numbers.integers(2**32)),
        )
        model.build_vocab_from_freq(dict(zip(_keys(words[seen]), counts[seen].tolist(), strict=True)))
        share = -(-lines // workers)  # a thread holds its own lines against this to lower its learning rate
        model.train(corpus_file=str(path), total_examples=share, total_words=steps, epochs=settings.epochs)
    return np.asarray(model.wv.vectors, dtype=np.float32)


def _word2vec() -> Any:
    """Return gensim's class, or say what to do without it."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise ConfigError("DeepWalk needs gensim: pip install gensim, or give ready label vectors") from None
    return Word2Vec


def _workers(steps: int) -> int:
    """Return how many threads to use: each reads 10,000 words at a time, so few of them where there is little."""
    return min(os.cpu_count() or 1, 1 + steps // 100_000)


def _words(labels: int) -> NDArray[np.uint8]:
    """Return the label ids as text of one width and a blank, [L, width + 1].

    Of one width, so that a word that a second thread finds cut in two, where its part of the file starts, is no label.
    """
    width = len(str(max(labels - 1, 0)))
    powers = 10 ** np.arange(width - 1, -1, -1)
    words = np.full((labels, width + 1), ord(" "), dtype=np.uint8)
    for place, power in enumerate(powers):
        words[:, place] = ord("0") + np.arange(labels) // power % 10
    return words


def _keys(words: NDArray[np.uint8]) -> list[str]:
    """Return words as strings."""
    return [word.decode() for word in np.ascontiguousarray(words[:, :-1]).view(f"S{words.shape[1] - 1}").ravel()]


def _write_walks(path: Path, words: NDArray[np.uint8], walks: Iterator[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Write one walk a line, and return how often each label came, [L]."""
    counts = np.zeros(len(words), dtype=np.int64)
    try:
        with path.open("wb") as out:
            for chunk in walks:
                counts += np.bincount(chunk.ravel(), minlength=len(words))
                _write_chunk(out, words, chunk)
    except OSError as error:
        raise DataError(f"walks cannot be written: {error.strerror}; TMPDIR names another place", path.parent) from None
    return counts


def _write_chunk(out: BinaryIO, words: NDArray[np.uint8], chunk: NDArray[np.int64]) -> None:
    text = words[chunk]  # [C, length, width + 1]
    text[:, -1, -1] = ord("\n")
    out.write(text.tobytes())
