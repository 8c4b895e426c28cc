"""Synthetic data with a known answer: Zipfian labels in topics, planted token signatures, label text with signal.

How a data set comes about:

1. Labels have Zipfian frequencies. Labels of similar frequency are grouped in topics of `TOPIC_SIZE`.
2. A label's signature is `OWN` tokens of its own and `SHARED` tokens of its topic. Its text is a part of those.
3. A point draws a first label by frequency, and more labels mostly from the topic of the first.
4. A token of a point comes from the signature of one of its labels, or is noise: a Zipfian background word.

Since signatures, frequencies and noise are known, `oracle` can rank labels as well as about anybody could.

>>> settings = Synthetic(points=100, labels=50, seed=7)
>>> make(settings).sizes
Sizes(points=80, features=218, labels=50)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.random import PCG64, Generator
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from zipfel.config import setting
from zipfel.data.dataset import Dataset, Part
from zipfel.errors import ConfigError
from zipfel.types import Ids, Ranking

TOPIC_SIZE = 20  # labels of a topic
FAITHFULNESS = 0.8  # chance that a further label of a point is drawn from the topic of its first
OWN, SHARED = 4, 2  # tokens of a signature that are the label's own, and those that it shares with its topic
TEXT = slice(1, OWN + 1)  # what of a signature the label text tells: all own tokens but one, and one of the topic
ROUNDS = 12  # how often labels that a point already has are drawn anew
CHUNK = 1 << 16  # points drawn at once: bounds memory; a change changes the data

Masses = NDArray[np.float64]


@dataclass(frozen=True)
class Synthetic:
    """What a synthetic data set is like. Equal settings give equal arrays, bit for bit."""

    points: int = setting(2000, "points of train and test together")
    labels: int = setting(200, "number of labels; those that no point draws stay without a point")
    features: int | None = setting(None, "number of features; none: grows with the labels, 16 · labels^(2/3)")
    labels_per_point: float = setting(3.0, "labels a point, on average; fewer where there are hardly that many")
    tokens_per_point: float = setting(30.0, "tokens a point, on average")
    noise: float = setting(0.3, "share of tokens that tell nothing about the labels, 0 to 1")
    zipf: float = setting(1.0, "exponent of the label frequencies, 0 (all equal) to 2")
    test_share: float = setting(0.2, "share of the points that are held out as test, 0 to below 1")
    texts: bool = setting(False, "give texts (fields `text` and `title`) in place of X and Z")
    seed: int = setting(0, "seed of all draws")

    def __post_init__(self) -> None:
        """Check each setting against what is allowed."""
        _whole("points", self.points, 1)
        _whole("labels", self.labels, 1)
        if self.features is not None:
            _whole("features", self.features, 1)
        _number("labels_per_point", self.labels_per_point, 1, math.inf)
        _number("tokens_per_point", self.tokens_per_point, 1, math.inf)
        _number("noise", self.noise, 0, 1)
        _number("zipf", self.zipf, 0, 2)
        _number("test_share", self.test_share, 0, 1)
        if self.test_share == 1:
            raise ConfigError("test_share must be below 1, or no point is left to train on; found 1")
        _whole("seed", self.seed, 0)

    @property
    def vocabulary(self) -> int:
        """The number of features: as asked for, or derived from the number of labels."""
        return math.ceil(16 * self.labels ** (2 / 3)) if self.features is None else self.features


@dataclass(frozen=True, eq=False)
class World:
    """What is planted. L labels, V features.

    frequencies: [L], sum to 1.  signatures: [L, OWN + SHARED] token ids.  background: [V], sums to 1.
    order: [L] labels, those of a topic side by side.  mass: [L + 1] frequencies summed along `order`, from 0 to 1.
    """

    frequencies: Masses
    signatures: Ids
    background: Masses
    order: Ids
    mass: Masses

    @property
    def chances(self) -> csr_array:
        """The signatures as chances of tokens, [L, V]; rows sum to 1."""
        return _bags(self.signatures, len(self.background)) / np.float32(OWN + SHARED)


def make(settings: Synthetic) -> Dataset:
    """Draw a data set: X, Y and Z as CSR with token counts, or texts; test is absent where it would be empty."""
    _, text_stream, train_stream, test_stream = _streams(settings)
    truth = world(settings)
    held_out = int(settings.points * settings.test_share)
    names = [f"token{i:07d}" for i in range(settings.vocabulary)]  # one word each, whatever splits the text
    label_bags = _label_bags(settings, truth, text_stream)
    return Dataset(
        train=_part(settings, truth, settings.points - held_out, names, train_stream),
        test=_part(settings, truth, held_out, names, test_stream) if held_out else None,
        name=f"synthetic-{settings.labels}",
        label_names=[f"label-{i:07d}" for i in range(settings.labels)],
        label_texts={"title": _render(label_bags, names)} if settings.texts else None,
        Z=None if settings.texts else label_bags,
        feature_names=names,
    )


def world(settings: Synthetic) -> World:
    """Plant frequencies, topics and signatures."""
    L, V, rng = settings.labels, settings.vocabulary, _streams(settings)[0]
    ranks = 1 + rng.permutation(L)  # so that an id does not tell how frequent a label is
    frequencies = _zipf(ranks, settings.zipf)
    # Topics along the ranks, blurred by a factor of about e: were they drawn at random, then one label would have
    # nearly all points of a topic, and its points would find no second label there.
    order = np.argsort(np.log(ranks) + rng.standard_normal(L))
    topics = np.empty(L, dtype=np.int64)
    topics[order] = np.arange(L) // TOPIC_SIZE
    shared = rng.integers(V, size=(L // TOPIC_SIZE + 1, SHARED))
    signatures = np.hstack([rng.integers(V, size=(L, OWN)), shared[topics]])
    background = _zipf(1 + rng.permutation(V), 1.0)
    return World(frequencies, signatures, background, order, _cumulated(frequencies[order]))


def planted(settings: Synthetic) -> csr_array:
    """Return the planted signatures, [labels, features]: the chance of each token where a label speaks."""
    return world(settings).chances


def oracle(settings: Synthetic, X: csr_array, k: int = 5) -> Ranking:
    """Rank labels for points X, [points, features], by what was planted: about the ceiling for a learner.

    A token t of a point that has label l is drawn from (1 - α) q_t + α s_lt, of any other point from q_t; s are the
    signatures, q what tokens are like over all points, α the share of a point's tokens that one label speaks. So
    the log odds of l are, up to a constant of the point, log π_l + Σ_t x_t log(1 + α s_lt / ((1 - α) q_t)).
    Labels are weighed one by one (that labels of a topic go together is left out), and those whose signature has no
    token in common with the point are not ranked.
    """
    truth = world(settings)
    S = truth.chances  # [L, V]
    q = settings.noise * truth.background + (1 - settings.noise) * (S.T @ truth.frequencies)  # [V]
    alpha = min((1 - settings.noise) / min(settings.labels_per_point, settings.labels), 0.9)  # 1 would leave no odds
    weights = np.log1p(alpha / (1 - alpha) * S.data / q[S.indices])
    W = csr_array((weights, S.indices, S.indptr), shape=S.shape).T.tocsr()  # [V, L]
    priors, rankings = np.log(truth.frequencies), []
    for start in range(0, max(X.shape[0], 1), 1024):  # a chunk's scores are sparse, but thousands a row
        scores = (X[start : start + 1024] @ W).tocsr()
        scores.data += priors[scores.indices]
        rankings.append(Ranking.of_scores(scores, k))
    return Ranking(np.concatenate([r.ids for r in rankings]), np.concatenate([r.scores for r in rankings]))


def _streams(settings: Synthetic) -> list[Generator]:
    """Return independent generators for the world, the label texts, train and test."""
    return Generator(PCG64(settings.seed)).spawn(4)


def _zipf(ranks: Ids, exponent: float) -> Masses:
    """Return chances that fall with the rank, rank^-exponent, and sum to 1."""
    masses: Masses = ranks.astype(np.float64) ** -exponent
    masses /= masses.sum()
    return masses


def _cumulated(masses: Masses) -> Masses:
    return np.concatenate(([0.0], np.cumsum(masses)))


def _draw(mass: Masses, first: Ids, past: Ids, rng: Generator) -> Ids:
    """Draw a place from each range first..past - 1 of places, with the chances that were summed up in `mass`."""
    low, high = mass[first], mass[past]
    places = np.searchsorted(mass, low + (high - low) * rng.random(len(first)), side="right") - 1
    return np.clip(places, first, past - 1)  # rounding can lead just outside


def _label_bags(settings: Synthetic, truth: World, rng: Generator) -> csr_array:
    """Return label texts as bags, [labels, features]: a part of the signature, and with chance `noise` a noise word."""
    words = _noise(truth, settings.labels, rng)
    words[rng.random(settings.labels) >= settings.noise] = -1
    return _bags(np.hstack([truth.signatures[:, TEXT], words[:, None]]), settings.vocabulary)


def _bags(ids: Ids, features: int) -> csr_array:
    """Return rows of token ids, [N, W], as counts, [N, features]; -1 is no token."""
    lengths = (ids >= 0).sum(axis=1)
    return _counts(ids[ids >= 0], lengths, features)


def _counts(tokens: Ids, lengths: Ids, features: int) -> csr_array:
    """Return the tokens of N rows, one row after the other, as counts, [N, features]."""
    starts = np.concatenate(([0], np.cumsum(lengths)))
    ones = np.ones(len(tokens), dtype=np.float32)
    bags = csr_array((ones, tokens.astype(np.int32), starts), shape=(len(lengths), features))
    bags.sum_duplicates()
    return bags


def _part(settings: Synthetic, truth: World, points: int, names: list[str], rng: Generator) -> Part:
    """Draw the points of one part."""
    sizes = [min(CHUNK, points - start) for start in range(0, points, CHUNK)]
    labels = [_labels(settings, truth, size, rng) for size in sizes]
    tokens = [_tokens(settings, truth, Y, rng) for Y in labels]
    Y, X = vstack(labels, format="csr"), vstack(tokens, format="csr")
    return Part(Y, texts={"text": _render(X, names)}) if settings.texts else Part(Y, X)


def _labels(settings: Synthetic, truth: World, points: int, rng: Generator) -> csr_array:
    """Draw the labels of some points, Y: [points, labels]; each has at least one, and none twice."""
    L = settings.labels
    wanted = np.minimum(1 + rng.poisson(min(settings.labels_per_point, L) - 1, points), L)
    firsts = _draw(truth.mass, np.zeros(points, np.int64), np.full(points, L), rng)
    topics = firsts // TOPIC_SIZE * TOPIC_SIZE  # where the topic of each point starts in `order`
    found = np.ones(points, dtype=np.int64)
    pairs = np.arange(points) * L + truth.order[firsts]  # row · L + label, sorted and unique
    for _ in range(ROUNDS):
        rows = np.repeat(np.arange(points), wanted - found)
        if len(rows) == 0:
            break
        loyal = rng.random(len(rows)) < FAITHFULNESS
        first = np.where(loyal, topics[rows], 0)
        past = np.where(loyal, np.minimum(topics[rows] + TOPIC_SIZE, L), L)
        pairs = np.unique(np.concatenate([pairs, rows * L + truth.order[_draw(truth.mass, first, past, rng)]]))
        found = np.bincount(pairs // L, minlength=points)
    return _counts(pairs % L, found, L)


def _tokens(settings: Synthetic, truth: World, Y: csr_array, rng: Generator) -> csr_array:
    """Draw the tokens of points with labels Y, as counts X: [points, features]; each point has at least one."""
    lengths = 1 + rng.poisson(settings.tokens_per_point - 1, Y.shape[0])
    rows = np.repeat(np.arange(Y.shape[0]), lengths)
    owned = np.diff(Y.indptr)[rows]
    speakers = Y.indices[Y.indptr[rows] + (rng.random(len(rows)) * owned).astype(np.int64)]
    tokens = truth.signatures[speakers, rng.integers(OWN + SHARED, size=len(rows))]
    noisy = np.flatnonzero(rng.random(len(rows)) < settings.noise)
    tokens[noisy] = _noise(truth, len(noisy), rng)
    return _counts(tokens, lengths, settings.vocabulary)


def _noise(truth: World, count: int, rng: Generator) -> Ids:
    """Draw background tokens, [count]."""
    start, end = np.zeros(count, dtype=np.int64), np.full(count, len(truth.background))
    return _draw(_cumulated(truth.background), start, end, rng)


def _render(bags: csr_array, names: list[str]) -> list[str]:
    """Return each row's bag as a text in which each token stands as often as it counts."""
    counts = bags.data.astype(np.int64)
    words = [names[token] for token in np.repeat(bags.indices, counts).tolist()]
    ends = np.concatenate(([0], np.cumsum(counts)))[bags.indptr].tolist()
    return [" ".join(words[start:end]) for start, end in pairwise(ends)]


def _whole(name: str, value: object, lowest: int) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < lowest:
        raise ConfigError(f"{name} must be a whole number of at least {lowest}; found {value!r}")


def _number(name: str, value: object, low: float, high: float) -> None:
    given = math.nan  # which is in no range
    if isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool):
        given = float(value)
    if not low <= given <= high or given == math.inf:
        allowed = f"finite and at least {low}" if high == math.inf else f"from {low} to {high}"
        raise ConfigError(f"{name} must be a number, {allowed}; found {value!r}")
