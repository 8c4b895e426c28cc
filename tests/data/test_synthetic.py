import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, diags_array

from zipfel.config import from_mapping, words_of
from zipfel.data.dataset import Dataset, Part
from zipfel.data.synthetic import OWN, SHARED, TOPIC_SIZE, Synthetic, make, oracle, world
from zipfel.errors import ConfigError
from zipfel.types import Ranking, stored

MIDDLE = Synthetic(points=12_000, labels=5_000, noise=0.3, seed=1)


@pytest.fixture(scope="module")
def middle() -> Dataset:
    return make(MIDDLE)


def test_same_settings_same_arrays():
    one, other = make(Synthetic(seed=3)), make(Synthetic(seed=3))
    for a, b in zip(_matrices(one), _matrices(other), strict=True):
        assert np.array_equal(a.indptr, b.indptr)
        assert np.array_equal(a.indices, b.indices)
        assert np.array_equal(a.data, b.data)
    assert one.label_names == other.label_names
    assert one.feature_names == other.feature_names


def test_another_seed_gives_other_arrays():
    for a, b in zip(_matrices(make(Synthetic(seed=3))), _matrices(make(Synthetic(seed=4))), strict=True):
        assert not np.array_equal(a.indices, b.indices)


def test_train_and_test_are_different_draws(middle: Dataset):
    rows = {tuple(row) for row in np.split(middle.train.X.indices, middle.train.X.indptr[1:-1])}
    again = [tuple(row) in rows for row in np.split(middle.test.X.indices, middle.test.X.indptr[1:-1])]
    assert np.mean(again) < 0.01


def test_sizes_and_means_are_as_asked(middle: Dataset):
    assert middle.sizes == (9_600, MIDDLE.vocabulary, 5_000)
    assert len(middle.test) == 2_400
    assert middle.train.Y.nnz / len(middle.train) == pytest.approx(3, abs=0.1)
    assert middle.train.X.sum() / len(middle.train) == pytest.approx(30, abs=0.3)
    assert middle.label_name(17) == "label-0000017"
    assert middle.train.X.dtype == middle.Z.dtype == np.float32
    assert np.array_equal(middle.train.X.data, np.round(middle.train.X.data))


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1.3])
def test_label_counts_fall_as_asked(exponent: float):
    made = make(Synthetic(points=50_000, labels=1_000, zipf=exponent, tokens_per_point=1, test_share=0, seed=3))
    counts = np.sort(made.label_counts)[::-1]
    ranks = np.arange(4, 251)  # the very head is flattened: a point has a label once, however likely it is
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks - 1]), 1)[0]
    assert slope == pytest.approx(-exponent, abs=0.1)


def test_the_tail_is_long_and_the_head_is_heavy():
    counts = make(Synthetic(points=30_000, labels=100_000, tokens_per_point=1, seed=5)).label_counts
    assert (counts == 0).mean() > 0.2
    assert (counts[counts > 0] <= 5).mean() > 0.8
    assert counts.max() > 1_000


def test_labels_of_a_point_come_largely_from_one_topic(middle: Dataset):
    """Labels that stand together share their topic's tokens; labels drawn at random hardly ever do."""
    signatures = world(MIDDLE).probabilities
    Y = middle.train.Y
    pairs = np.flatnonzero(np.diff(Y.indptr) >= 2)
    first, second = Y.indices[Y.indptr[pairs]], Y.indices[Y.indptr[pairs] + 1]
    together = (signatures[first].multiply(signatures[second])).sum(axis=1) > 0
    rng = np.random.default_rng(0)
    apart = (signatures[first].multiply(signatures[rng.permutation(second)])).sum(axis=1) > 0
    assert together.mean() > 0.6
    assert apart.mean() < 0.3
    assert MIDDLE.labels > 100 * TOPIC_SIZE


def test_planted_signatures_are_probabilities():
    signatures = world(MIDDLE).probabilities
    assert signatures.shape == (5_000, MIDDLE.vocabulary)
    assert np.allclose(signatures.sum(axis=1), 1)
    assert np.diff(signatures.indptr).max() == OWN + SHARED


def test_without_noise_points_speak_only_signatures():
    clean = Synthetic(points=300, labels=50, noise=0, seed=2)
    made = make(clean)
    allowed = made.train.Y @ world(clean).probabilities
    assert stored(allowed, *_pairs(made.train.X)).all()
    assert stored(world(clean).probabilities, *_pairs(made.Z)).all()


def test_oracle_knows_and_noise_costs():
    found = []
    for noise in (0.0, 0.5, 0.8, 0.95, 1.0):
        asked = dataclasses.replace(MIDDLE, noise=noise)
        test = make(asked).test
        found.append(_precision(test, oracle(asked, test.X, k=5)))
    assert found[0] > 0.98
    assert found[1] > 0.95
    assert found == sorted(found, reverse=True)
    assert found[2] > found[3] + 0.1 > found[4] + 0.2


def test_oracle_equals_its_formula():
    asked = Synthetic(points=40, labels=30, labels_per_point=2, noise=0.4, seed=9)
    made, S = make(asked), world(asked).probabilities.toarray().astype(float)
    frequencies, background = world(asked).frequencies, world(asked).background
    q = 0.4 * background + 0.6 * frequencies @ S
    X = made.train.X.toarray()
    scores = np.log(frequencies) + X @ np.log(0.7 * q + 0.3 * S).T - (X @ np.log(0.7 * q))[:, None]
    scores[X @ S.T == 0] = -np.inf
    ranking = oracle(asked, made.train.X, k=30)
    rows, places = np.nonzero(ranking.ids >= 0)
    assert len(rows) == np.isfinite(scores).sum()
    assert np.allclose(ranking.scores[rows, places], scores[rows, ranking.ids[rows, places]], rtol=1e-4, atol=1e-4)


def test_oracle_ranks_no_points_and_more_than_there_are():
    asked = Synthetic(points=5, labels=3)
    X = make(asked).train.X
    assert oracle(asked, X[:0]).ids.shape == (0, 5)
    assert oracle(asked, X, k=7).ids.shape == (4, 7)
    assert (oracle(asked, X, k=7).ids[:, 3:] == -1).all()


def test_oracle_does_not_depend_on_the_batch(middle: Dataset):
    whole = oracle(MIDDLE, middle.test.X)
    assert np.array_equal(oracle(MIDDLE, middle.test.X[1000:1100]).ids, whole.ids[1000:1100])


def test_label_texts_alone_predict_labels_even_unseen_ones(middle: Dataset):
    ranking = _by_text(middle)
    frequent = np.argmax(middle.label_counts)
    guess = np.full((len(middle.test), 1), frequent)
    assert _precision(middle.test, ranking) > 0.9
    assert _precision(middle.test, ranking) > 0.4 + _precision(middle.test, Ranking(guess, guess.astype(np.float32)))
    unseen = np.flatnonzero(middle.label_counts == 0)
    truth = middle.test.Y[:, unseen]
    assert truth.nnz > 50
    rows, places = np.nonzero(ranking.ids >= 0)
    found = stored(middle.test.Y, rows, ranking.ids[rows, places]) & np.isin(ranking.ids[rows, places], unseen)
    assert found.sum() / truth.nnz > 0.5


def test_text_version_is_the_same_bag():
    asked = Synthetic(points=60, labels=40, seed=6)
    matrices, texts = make(asked), make(dataclasses.replace(asked, texts=True))
    assert texts.train.X is None
    assert texts.Z is None
    assert texts.sizes.features == 0
    for name, part in matrices.parts.items():
        assert (part.Y != texts.parts[name].Y).nnz == 0
        assert _bags_of(part.X, matrices.feature_names) == [Counter(t.split()) for t in texts.parts[name].texts["text"]]
    assert _bags_of(matrices.Z, matrices.feature_names) == [Counter(t.split()) for t in texts.label_texts["title"]]


sizes = st.integers(1, 40)


@settings(max_examples=150, deadline=None)
@given(
    points=sizes,
    labels=sizes,
    features=st.none() | st.integers(1, 12),
    labels_per_point=st.floats(1, 6),
    tokens_per_point=st.floats(1, 8),
    noise=st.floats(0, 1),
    zipf=st.floats(0, 2),
    test_share=st.floats(0, 0.99),
    seed=st.integers(0, 2**40),
)
def test_any_small_size_is_a_valid_data_set(**values):
    asked = Synthetic(**values)
    made = make(asked)
    assert made.sizes.labels == len(made.label_names) == asked.labels == made.Z.shape[0]
    assert made.sizes.features == len(made.feature_names) == asked.vocabulary == made.Z.shape[1]
    assert sum(map(len, made.parts.values())) == asked.points
    assert len(made.train) >= 1
    assert np.diff(made.Z.indptr).min() >= 1
    for part in made.parts.values():
        assert np.diff(part.Y.indptr).min() >= 1
        assert np.diff(part.X.indptr).min() >= 1
        assert (part.Y.data == 1).all()
        assert part.Y.has_canonical_format
        assert part.Y.indices.max() < asked.labels
        assert oracle(asked, part.X, k=3).ids.max() < asked.labels


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("points", 0, "at least 1"),
        ("labels", 0, "at least 1"),
        ("features", 0, "at least 1"),
        ("labels_per_point", 0.5, "at least 1"),
        ("labels_per_point", float("inf"), "at least 1"),
        ("tokens_per_point", 0, "at least 1"),
        ("noise", -0.1, "at least 0 and at most 1"),
        ("noise", 1.1, "at least 0 and at most 1"),
        ("noise", float("nan"), "at least 0 and at most 1"),
        ("zipf", 2.5, "at least 0 and at most 2"),
        ("test_share", 1, "below 1"),
        ("seed", -1, "at least 0"),
    ],
)
def test_bad_settings_are_named(name: str, value: object, allowed: str):
    with pytest.raises(ConfigError, match=f"^{name} must be .*{allowed}.*found"):
        Synthetic(**{name: value})


def test_settings_come_from_words_and_numpy_numbers():
    asked = from_mapping(Synthetic, words_of(["labels=1000", "features=none", "noise=0.5", "texts=yes"]))
    assert asked == Synthetic(labels=1000, noise=0.5, texts=True)
    assert Synthetic(points=np.int64(5), noise=np.float32(0.5)).points == 5
    assert Synthetic(labels=1_000_000).vocabulary == 160_000


def _matrices(made: Dataset) -> list[csr_array]:
    return [made.train.X, made.train.Y, made.test.X, made.test.Y, made.Z]


def _pairs(matrix: csr_array) -> tuple[np.ndarray, np.ndarray]:
    return np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr)), matrix.indices


def _precision(part: Part, ranking: Ranking) -> float:
    """P@1."""
    return float(stored(part.Y, np.arange(len(part)), ranking.ids[:, 0]).mean())


def _by_text(made: Dataset) -> Ranking:
    """Rank labels by the words that test points and label texts share, rare ones first; nothing is learned."""
    rarity = np.log((1 + len(made.train)) / (1 + np.bincount(made.train.X.indices, minlength=made.sizes.features)))
    labels = made.Z @ diags_array(rarity)
    lengths = np.sqrt(labels.multiply(labels).sum(axis=1))
    labels = diags_array(1 / np.maximum(lengths, 1e-9)) @ labels
    return Ranking.of_scores(csr_array(made.test.X @ diags_array(rarity) @ labels.T), 5)


def _bags_of(matrix: csr_array, names: list[str]) -> list[Counter]:
    rows = zip(np.split(matrix.indices, matrix.indptr[1:-1]), np.split(matrix.data, matrix.indptr[1:-1]), strict=True)
    return [Counter({names[i]: int(n) for i, n in zip(ids, counts, strict=True)}) for ids, counts in rows]
