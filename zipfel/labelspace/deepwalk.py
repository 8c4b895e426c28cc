"""DeepWalk: a vector for each label of a graph, by skip-gram over random walks (Perozzi et al., 2014; DXML Sec. 3.2).

A walk is a sentence whose words are labels. How gensim is fed, and why: docs/decisions/008-deepwalk.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.config import Settings, setting
from zipfel.errors import ConfigError, DataError
from zipfel.labelspace.vectors import random_directions

CHUNK = 1 << 16  # walks made at once: 2.6 million steps at the default length, under 100 MB with their text


@dataclass(frozen=True)
class Walks(Settings):
    """Settings of random walks and skip-gram. DXML gives no values; the defaults are ours."""

    walks: int = setting(10, "walks started at each label", at_least=1)
    length: int = setting(40, "labels in a walk", at_least=1)
    window: int = setting(
        5, "labels on either side that a label predicts; drawn from 1 to this number, as in word2vec", at_least=1
    )
    negatives: int = setting(5, "negative labels drawn for each predicted one", at_least=1)
    epochs: int = setting(1, "passes over the walks; more did not help on planted groups", at_least=1)
    hierarchical: bool = setting(False, "hierarchical softmax over a Huffman tree of labels; draws no negatives")


def deepwalk(
    graph: csr_array,
    dimension: int,
    numbers: np.random.Generator,
    settings: Walks | None = None,
    deterministic: bool = True,
) -> NDArray[np.float32]:
    """Return a vector for each label, [L, dimension]; labels that share walks get similar vectors.

    graph: [L, L], symmetric, with positive weights and no diagonal. A label without neighbours gets a random vector.
    deterministic: one thread, and the same bits for the same generator; otherwise all cores, whose updates race.

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
    vectors[alone] = random_directions(int(alone.sum()), dimension, numbers) * length
    return vectors


def random_walks(graph: csr_array, settings: Walks, numbers: np.random.Generator) -> Iterator[NDArray[np.int64]]:
    """Yield walks [up to CHUNK, length]: `walks` passes, each from every label once, in a new random order.

    A label without neighbours starts none: its walk would be the label alone, from which skip-gram learns nothing.
    """
    step = _stepper(graph)
    starts = np.flatnonzero(np.diff(graph.indptr))
    for _ in range(settings.walks):
        order = numbers.permutation(starts)
        for labels in (order[first : first + CHUNK] for first in range(0, len(order), CHUNK)):
            walks = np.empty((settings.length, len(labels)), dtype=np.int64)
            walks[0] = labels
            for position in range(1, settings.length):
                walks[position] = step(walks[position - 1], numbers.random(walks.shape[1]))
            yield walks.T


Step = Callable[[NDArray[np.int64], NDArray[np.float64]], NDArray[np.int64]]


def _stepper(graph: csr_array) -> Step:
    """Return a function from labels [C] and uniform draws [C] to a neighbour of each, drawn by edge weight."""
    first, last, neighbours = graph.indptr[:-1], graph.indptr[1:], graph.indices
    degrees = np.diff(graph.indptr)
    if graph.nnz == 0 or (graph.data == graph.data[0]).all():

        def uniform(labels: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
            edges = first[labels] + (draws * degrees[labels]).astype(np.int64)  # draws < 1, so never the next row
            return np.asarray(neighbours[edges], dtype=np.int64)

        return uniform
    shares = graph.data / np.repeat(graph.sum(axis=1, dtype=np.float64), degrees)  # a row's shares add up to 1
    upto = np.concatenate(([0.0], np.cumsum(shares)))  # [edges + 1]; shares keep light rows as exact as heavy ones

    def weighted(labels: NDArray[np.int64], draws: NDArray[np.float64]) -> NDArray[np.int64]:
        low, high = upto[first[labels]], upto[last[labels]]
        edges = np.searchsorted(upto, low + draws * (high - low), side="right") - 1
        return np.asarray(neighbours[np.clip(edges, first[labels], last[labels] - 1)], dtype=np.int64)

    return weighted


def _skip_gram(
    graph: csr_array, dimension: int, numbers: np.random.Generator, settings: Walks, deterministic: bool
) -> NDArray[np.float32]:
    """Walk, and return the vectors of the labels with neighbours, in order of id, [labels with neighbours, dimension].

    Walking counts the labels, so gensim need not read the file once more to build its vocabulary.
    """
    word2vec, words = _word2vec(), _words(graph.shape[0])
    with tempfile.TemporaryDirectory(prefix="zipfel-walks-") as folder:
        path = Path(folder) / "walks.txt"
        counts = _write_walks(path, words, random_walks(graph, settings, numbers))
        seen = np.flatnonzero(counts)  # every label with neighbours, since each starts a walk
        lines, steps = settings.walks * len(seen), int(counts.sum())
        workers = 1 if deterministic else _workers(steps)
        model = word2vec(
            vector_size=dimension,
            sg=1,
            hs=int(settings.hierarchical),
            negative=0 if settings.hierarchical else settings.negatives,
            window=settings.window,
            min_count=1,
            sample=0,  # word2vec's 1e-3 would drop 84 % of the steps among 20 labels, 44 % among 160
            sorted_vocab=0,  # row i is the i-th word given
            workers=workers,
            seed=int(numbers.integers(2**32)),
        )
        model.build_vocab_from_freq(dict(zip(_keys(words[seen]), counts[seen].tolist(), strict=True)))
        share = -(-lines // workers)  # a thread lowers its learning rate by its own lines as a share of these
        model.train(corpus_file=str(path), total_examples=share, total_words=steps, epochs=settings.epochs)
    return np.asarray(model.wv.vectors, dtype=np.float32)


def _word2vec() -> Any:
    """Return gensim's Word2Vec; raise with instructions if gensim is missing."""
    try:
        from gensim.models import Word2Vec
    except ImportError:
        raise ConfigError("DeepWalk needs gensim: pip install gensim, or provide label vectors instead") from None
    return Word2Vec


def _workers(steps: int) -> int:
    """Return the number of threads: each reads 10,000 words at a time, so few steps need only few of them."""
    return min(torch.get_num_threads(), 1 + steps // 100_000)


def _words(labels: int) -> NDArray[np.uint8]:
    """Return the label ids as text, padded with zeros to one width and followed by a blank, [L, width + 1].

    A thread may start reading in the middle of a word. As all words have one width, the rest of it is no label.
    """
    width = len(str(max(labels - 1, 0)))
    powers = 10 ** np.arange(width - 1, -1, -1)
    words = np.full((labels, width + 1), ord(" "), dtype=np.uint8)
    for column, power in enumerate(powers):
        words[:, column] = ord("0") + np.arange(labels) // power % 10
    return words


def _keys(words: NDArray[np.uint8]) -> list[str]:
    """Return the words [n, width + 1] as strings without the blank."""
    return [word.decode() for word in np.ascontiguousarray(words[:, :-1]).view(f"S{words.shape[1] - 1}").ravel()]


def _write_walks(path: Path, words: NDArray[np.uint8], walks: Iterator[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Write one walk a line, and return the count of each label, [L]."""
    counts = np.zeros(len(words), dtype=np.int64)
    try:
        with path.open("wb") as out:
            for chunk in walks:
                counts += np.bincount(chunk.ravel(), minlength=len(words))
                _write_chunk(out, words, chunk)
    except OSError as error:
        problem = f"cannot write random walks: {error.strerror}; set TMPDIR to another folder"
        raise DataError(problem, path.parent) from None
    return counts


def _write_chunk(out: BinaryIO, words: NDArray[np.uint8], chunk: NDArray[np.int64]) -> None:
    text = words[chunk]  # [C, length, width + 1]
    text[:, -1, -1] = ord("\n")
    out.write(text.tobytes())
