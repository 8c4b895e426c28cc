"""Synthetic data with a known answer: Zipfian labels in topics, planted token signatures, informative label texts.

How a data set is drawn:

1. Labels have Zipfian frequencies. Labels of similar frequency are grouped in topics of `TOPIC_SIZE`.
2. The signature of a label is `OWN` tokens of its own and `SHARED` tokens of its topic. Its text is a part of those.
3. A point draws a first label by frequency, and more labels mostly from the topic of the first.
4. A token of a point comes from the signature of one of its labels, or is noise: a Zipfian background word.

Since signatures, frequencies and noise are known, `oracle` ranks labels about as well as any model could.

>>> settings = Synthetic(points=100, labels=50, seed=7)
>>> make(settings).sizes
Sizes(points=80, features=218, labels=50)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from zipfel.config import Settings, setting
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats.sparse_text import matrix_of
from zipfel.types import Ids, Ranking

TOPIC_SIZE = 20  # labels per topic
FAITHFULNESS = 0.8  # chance that a further label of a point is drawn from the topic of its first
OWN, SHARED = 4, 2  # tokens of a signature that belong to the label alone, and that it shares with its topic
TEXT = slice(1, OWN + 1)  # part of a signature in the label text: all own tokens but one, and one of the topic
ROUNDS = 12  # how often labels that a point already has are redrawn
CHUNK = 1 << 16  # points drawn at once: bounds memory; a change changes the data

Masses = NDArray[np.float64]


@dataclass(frozen=True)
class Synthetic(Settings):
    """Settings of a synthetic data set. Equal settings give equal arrays, bit for bit."""

    points: int = setting(2000, "number of points, train and test together", at_least=1)
    labels: int = setting(200, "number of labels; some may have no points", at_least=1)
    features: int | None = setting(None, "number of features; none: 16 · labels^(2/3)", at_least=1)
    labels_per_point: float = setting(3.0, "mean number of labels per point; fewer if labels are few", at_least=1)
    tokens_per_point: float = setting(30.0, "mean number of tokens per point", at_least=1)
    noise: float = setting(0.3, "share of tokens that do not depend on the labels", at_least=0, at_most=1)
    zipf: float = setting(1.0, "exponent of the label frequencies; 0: all equal", at_least=0, at_most=2)
    test_share: float = setting(0.2, "share of the points held out as test", at_least=0, below=1)
    texts: bool = setting(False, "make texts (fields `text` and `title`) instead of X and Z")
    seed: int = setting(0, "seed of all draws", at_least=0)

    @property
    def vocabulary(self) -> int:
        """The number of features: as set, or derived from the number of labels."""
        return math.ceil(16 * self.labels ** (2 / 3)) if self.features is None else self.features


@dataclass(frozen=True, eq=False)
class World:
    """The planted truth. L labels, V features.

    frequencies: [L], sum to 1.  signatures: [L, OWN + SHARED] token ids.  background: [V], sums to 1.
    order: [L] labels sorted by topic.  mass: [L + 1] cumulative frequencies along `order`, from 0 to 1.
    """

    frequencies: Masses
    signatures: Ids
    background: Masses
    order: Ids
    mass: Masses

    @property
    def probabilities(self) -> csr_array:
        """The signatures as probabilities of tokens, [L, V]; rows sum to 1."""
        return _bags(self.signatures, len(self.background)) / np.float32(OWN + SHARED)


def make(settings: Synthetic) -> Dataset:
    """Draw a data set: Y, and X and Z as token counts or as texts; without a test part if that would be empty."""
    truth, names = world(settings), _names(settings)
    parts = {name: _part(settings, truth, points, names, stream) for name, points, stream in _parts(settings) if points}
    return _dataset(settings, truth, names, parts["train"], parts.get("test"))


def streamed(settings: Synthetic) -> Iterator[tuple[str, csr_array, csr_array]]:
    """Yield the points of `make` piece by piece: part, Y and X. Only ids of labels are held, 4 bytes each.

    All labels of a part are drawn before its first token, as in `make`.
    """
    truth = world(settings)
    for name, points, stream in _parts(settings):
        drawn = (_labels(settings, truth, size, stream) for size in _sizes(points))
        for ends, indices in [(Y.indptr, Y.indices) for Y in drawn]:
            shape = (len(ends) - 1, settings.labels)
            Y = csr_array((np.ones(len(indices), dtype=np.float32), indices, ends), shape=shape)
            yield name, Y, _tokens(settings, truth, Y, stream)


def without_points(settings: Synthetic) -> Dataset:
    """Return the data set of `make` without its points: names of labels and features, and features of labels."""
    empty = Part(csr_array((0, settings.labels)), csr_array((0, settings.vocabulary)))
    return _dataset(replace(settings, texts=False), world(settings), _names(settings), empty, None)


def _names(settings: Synthetic) -> list[str]:
    return [f"token{i:07d}" for i in range(settings.vocabulary)]  # a single token each for any tokenizer


def _parts(settings: Synthetic) -> list[tuple[str, int, Generator]]:
    """Return name, points and generator of each part."""
    held_out = int(settings.points * settings.test_share)
    _, _, train, test = _streams(settings)
    return [("train", settings.points - held_out, train), ("test", held_out, test)]


def _dataset(settings: Synthetic, truth: World, names: list[str], train: Part, test: Part | None) -> Dataset:
    label_bags = _label_bags(settings, truth, _streams(settings)[1])
    return Dataset(
        train=train,
        test=test,
        name=f"synthetic-{settings.labels}",
        label_names=[f"label-{i:07d}" for i in range(settings.labels)],
        label_texts={"title": _render(label_bags, names)} if settings.texts else None,
        Z=None if settings.texts else label_bags,
        feature_names=names,
    )


def world(settings: Synthetic) -> World:
    """Plant frequencies, topics and signatures."""
    L, V, rng = settings.labels, settings.vocabulary, _streams(settings)[0]
    ranks = 1 + rng.permutation(L)  # so that ids do not reveal how frequent labels are
    frequencies = _zipf(ranks, settings.zipf)
    # Topics group labels of similar rank, blurred by a factor of about e. In random topics, one label would have nearly
    # all points of a topic, and these points could hardly draw a second label from it.
    order = np.argsort(np.log(ranks) + rng.standard_normal(L))
    topics = np.empty(L, dtype=np.int64)
    topics[order] = np.arange(L) // TOPIC_SIZE
    shared = rng.integers(V, size=(L // TOPIC_SIZE + 1, SHARED))
    signatures = np.hstack([rng.integers(V, size=(L, OWN)), shared[topics]])
    background = _zipf(1 + rng.permutation(V), 1.0)
    return World(frequencies, signatures, background, order, _cumulated(frequencies[order]))


def oracle(settings: Synthetic, X: csr_array, k: int = 5) -> Ranking:
    """Rank labels for points X, [points, features], from the planted truth: about the ceiling for a learner.

    A token t of a point with label l is drawn from (1 - α) q_t + α s_lt, of any other point from q_t; s are the
    signatures, q the token distribution over all points, α the share of a point's tokens that come from one label. So
    the log odds of l are, up to a constant of the point, log π_l + Σ_t x_t log(1 + α s_lt / ((1 - α) q_t)).
    Labels are scored independently (co-occurrence within topics is ignored), and labels whose signature shares no
    token with the point are not ranked.
    """
    truth = world(settings)
    S = truth.probabilities  # [L, V]
    q = settings.noise * truth.background + (1 - settings.noise) * (S.T @ truth.frequencies)  # [V]
    alpha = min((1 - settings.noise) / min(settings.labels_per_point, settings.labels), 0.9)  # 1: infinite odds
    weights = np.log1p(alpha / (1 - alpha) * S.data / q[S.indices])
    W = csr_array((weights, S.indices, S.indptr), shape=S.shape).T.tocsr()  # [V, L]
    priors, rankings = np.log(truth.frequencies), []
    for start in range(0, max(X.shape[0], 1), 1024):  # scores are sparse, but thousands per row
        scores = (X[start : start + 1024] @ W).tocsr()
        scores.data += priors[scores.indices]
        rankings.append(Ranking.of_scores(scores, k))
    return Ranking(np.concatenate([r.ids for r in rankings]), np.concatenate([r.scores for r in rankings]))


def _streams(settings: Synthetic) -> list[Generator]:
    """Return independent generators for the world, the label texts, train and test."""
    return Generator(PCG64(settings.seed)).spawn(4)


def _zipf(ranks: Ids, exponent: float) -> Masses:
    """Return probabilities proportional to rank^-exponent, which sum to 1."""
    masses: Masses = ranks.astype(np.float64) ** -exponent
    masses /= masses.sum()
    return masses


def _cumulated(masses: Masses) -> Masses:
    return np.concatenate(([0.0], np.cumsum(masses)))


def _draw(mass: Masses, first: Ids, past: Ids, rng: Generator) -> Ids:
    """Draw an index from each range first..past - 1, given cumulative probabilities `mass`."""
    low, high = mass[first], mass[past]
    indices = np.searchsorted(mass, low + (high - low) * rng.random(len(first)), side="right") - 1
    return np.clip(indices, first, past - 1)  # rounding can lead just outside


def _label_bags(settings: Synthetic, truth: World, rng: Generator) -> csr_array:
    """Return label texts as bags, [labels, features]: part of the signature; with probability `noise`, a noise word."""
    words = _noise(truth, settings.labels, rng)
    words[rng.random(settings.labels) >= settings.noise] = -1
    return _bags(np.hstack([truth.signatures[:, TEXT], words[:, None]]), settings.vocabulary)


def _bags(ids: Ids, features: int) -> csr_array:
    """Return rows of token ids, [N, W], as counts, [N, features]; -1 stands for no token."""
    return matrix_of((ids >= 0).sum(axis=1), ids[ids >= 0].astype(np.int32), features)[0]


def _part(settings: Synthetic, truth: World, points: int, names: list[str], rng: Generator) -> Part:
    """Draw the points of one part."""
    labels = [_labels(settings, truth, size, rng) for size in _sizes(points)]
    tokens = [_tokens(settings, truth, Y, rng) for Y in labels]
    Y, X = vstack(labels, format="csr"), vstack(tokens, format="csr")
    return Part(Y, texts={"text": _render(X, names)}) if settings.texts else Part(Y, X)


def _sizes(points: int) -> list[int]:
    """Return how many points are drawn at once."""
    return [min(CHUNK, points - start) for start in range(0, points, CHUNK)]


def _labels(settings: Synthetic, truth: World, points: int, rng: Generator) -> csr_array:
    """Draw labels, Y: [points, labels]; each point has at least one, and none twice."""
    L = settings.labels
    wanted = np.minimum(1 + rng.poisson(min(settings.labels_per_point, L) - 1, points), L)
    firsts = _draw(truth.mass, np.zeros(points, np.int64), np.full(points, L), rng)
    topics = firsts // TOPIC_SIZE * TOPIC_SIZE  # where the topic of each point starts in `order`
    counts = np.ones(points, dtype=np.int64)  # labels of each point so far
    pairs = np.arange(points) * L + truth.order[firsts]  # row · L + label, sorted and unique
    for _ in range(ROUNDS):
        rows = np.repeat(np.arange(points), wanted - counts)
        if len(rows) == 0:
            break
        in_topic = rng.random(len(rows)) < FAITHFULNESS
        first = np.where(in_topic, topics[rows], 0)
        past = np.where(in_topic, np.minimum(topics[rows] + TOPIC_SIZE, L), L)
        pairs = np.unique(np.concatenate([pairs, rows * L + truth.order[_draw(truth.mass, first, past, rng)]]))
        counts = np.bincount(pairs // L, minlength=points)
    return matrix_of(counts, (pairs % L).astype(np.int32), L)[0]


def _tokens(settings: Synthetic, truth: World, Y: csr_array, rng: Generator) -> csr_array:
    """Draw the tokens of points with labels Y, as counts X: [points, features]; each point has at least one."""
    lengths = 1 + rng.poisson(settings.tokens_per_point - 1, Y.shape[0])
    rows = np.repeat(np.arange(Y.shape[0]), lengths)
    label_counts = np.diff(Y.indptr)[rows]
    sources = Y.indices[Y.indptr[rows] + (rng.random(len(rows)) * label_counts).astype(np.int64)]  # a label per token
    tokens = truth.signatures[sources, rng.integers(OWN + SHARED, size=len(rows))]
    noisy = np.flatnonzero(rng.random(len(rows)) < settings.noise)
    tokens[noisy] = _noise(truth, len(noisy), rng)
    return matrix_of(lengths, tokens.astype(np.int32), settings.vocabulary)[0]


def _noise(truth: World, count: int, rng: Generator) -> Ids:
    """Draw background tokens, [count]."""
    start, end = np.zeros(count, dtype=np.int64), np.full(count, len(truth.background))
    return _draw(_cumulated(truth.background), start, end, rng)


def _render(bags: csr_array, names: list[str]) -> list[str]:
    """Return each bag as a text that repeats each token as often as its count."""
    counts = bags.data.astype(np.int64)
    words = [names[token] for token in np.repeat(bags.indices, counts).tolist()]
    ends = np.concatenate(([0], np.cumsum(counts)))[bags.indptr].tolist()
    return [" ".join(words[start:end]) for start, end in pairwise(ends)]
