"""Clusters are balanced at every level, reproducible, and hold similar labels; centroids equal their formula."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array

from zipfel.errors import ConfigError
from zipfel.labelspace import centroids as centroids_module
from zipfel.labelspace import clusters as module
from zipfel.labelspace.centroids import sparse_centroids
from zipfel.labelspace.clusters import balanced_clusters


def some_vectors(labels, width, seed=0, filled=0.6):
    """Return vectors some of whose entries, and some of whose rows, are zero."""
    numbers = np.random.default_rng(seed)
    vectors = numbers.random((labels, width)) * (numbers.random((labels, width)) < filled)
    return (vectors * numbers.integers(1, 9, (labels, 1))).astype(np.float32)


def clusters_of(vectors, count, seed=0):
    return balanced_clusters(torch.from_numpy(vectors), count, np.random.default_rng(seed))


def assert_balanced(clusters, count):
    """At every level sizes differ by at most one; the ids of an earlier level are those of a later one less a bit."""
    for back in range(count.bit_length()):
        sizes = np.bincount(clusters >> back, minlength=count >> back)
        assert len(sizes) == count >> back
        assert sizes.max() - sizes.min() <= 1


def similarity(vectors, clusters):
    """Return the mean cosine of a label and its cluster's centre, which 2-means maximises."""
    units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    sums = np.zeros((clusters.max() + 1, units.shape[1]))
    np.add.at(sums, clusters, units)
    return np.linalg.norm(sums, axis=1).sum() / len(units)


def dot(one, other):
    return sum(a * b for a, b in zip(one, other, strict=True))


def unit(row):
    length = math.sqrt(dot(row, row))
    return [value / length for value in row]


def centre(rows):
    return unit([sum(column) for column in zip(*rows, strict=True)])


def slow_halves(labels, rows, draw):
    """Split labels in two by balanced spherical 2-means, one at a time."""
    one = labels[int(draw * len(labels))]
    other = min(labels, key=lambda label: dot(rows[label], rows[one]))
    centres, before = (rows[one], rows[other]), None
    for _ in range(module.STEPS):
        labels = sorted(labels, key=lambda label: dot(rows[label], centres[1]) - dot(rows[label], centres[0]))
        middle = (len(labels) + 1) // 2
        if set(labels[:middle]) == before:
            break
        before = set(labels[:middle])
        centres = [centre([rows[label] for label in half]) for half in (labels[:middle], labels[middle:])]
    return labels[:middle], labels[middle:]


def slow_clusters(vectors, levels, numbers):
    """Return clusters of vectors none of which is zero: each cluster by itself, in order."""
    rows = [unit(row) for row in vectors.astype(float).tolist()]
    parts = [list(range(len(rows)))]
    for _ in range(levels):
        draws = numbers.random(len(parts)) if max(map(len, parts)) > 1 else [0.0] * len(parts)
        halves = [
            slow_halves(part, rows, draw) if len(part) > 1 else (part, [])
            for part, draw in zip(parts, draws, strict=True)
        ]
        parts = [half for pair in halves for half in pair]
    clusters = np.empty(len(rows), dtype=int)
    for cluster, part in enumerate(parts):
        clusters[part] = cluster
    return clusters


@pytest.mark.parametrize("kind", ["dense", "sparse"])
@pytest.mark.parametrize(("labels", "levels"), [(2, 1), (3, 1), (9, 1), (40, 1), (45, 2), (63, 4), (64, 6), (97, 6)])
def test_clusters_equal_those_of_plain_loops(labels, levels, kind):
    vectors = some_vectors(labels, 12, seed=labels) + np.eye(labels, 12, dtype=np.float32)
    vectors[:, 0] += 0.01  # none is zero
    wanted = slow_clusters(vectors, levels, np.random.default_rng(5))
    stored = torch.from_numpy(vectors) if kind == "dense" else csr_array(vectors)
    np.testing.assert_array_equal(balanced_clusters(stored, 2**levels, np.random.default_rng(5)), wanted)


def test_four_labels_by_hand():
    """Angles 0, 10, 50, 90 degrees: whichever of them comes first, the lower two and the upper two belong together."""
    angles = np.radians([90, 0, 50, 10])
    vectors = np.stack((np.cos(angles), np.sin(angles)), axis=1).astype(np.float32)
    lengths = np.array([[1], [9], [0.1], [4]], dtype=np.float32)  # these do not count
    for seed in range(20):
        clusters = clusters_of(vectors * lengths, 2, seed)
        assert clusters[0] == clusters[2] != clusters[1] == clusters[3]
    clusters = clusters_of(vectors, 4)
    assert sorted(clusters) == [0, 1, 2, 3]
    assert clusters.dtype == np.int32
    assert clusters[0] // 2 == clusters[2] // 2 != clusters[1] // 2 == clusters[3] // 2


@settings(deadline=None, max_examples=60)
@given(labels=st.integers(1, 70), data=st.data())
def test_every_level_is_balanced_whatever_is_zero(labels, data):
    count = 2 ** data.draw(st.integers(0, labels.bit_length() - 1))
    filled = data.draw(st.integers(0, labels))
    vectors = some_vectors(labels, 6, seed=labels, filled=0.9)
    vectors[np.random.default_rng(1).permutation(labels)[filled:]] = 0
    clusters = clusters_of(vectors, count)
    assert_balanced(clusters, count)
    assert_balanced_where(clusters, vectors.any(axis=1), count)
    np.testing.assert_array_equal(balanced_clusters(csr_array(vectors), count, np.random.default_rng(0)), clusters)


def assert_balanced_where(clusters, chosen, count):
    """Zero rows are spread evenly, and so are the others."""
    for part in (clusters[chosen], clusters[~chosen]):
        sizes = np.bincount(part, minlength=count)
        assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("labels", [1, 2, 3, 5, 64, 65, 127, 1000])
def test_as_many_clusters_as_labels_allow(labels):
    count = 2 ** (labels.bit_length() - 1)
    assert_balanced(clusters_of(some_vectors(labels, 5, filled=1), count), count)
    np.testing.assert_array_equal(clusters_of(some_vectors(labels, 5), 1), np.zeros(labels))


@pytest.mark.parametrize("vectors", [np.zeros((50, 4)), np.ones((50, 4)), np.zeros((50, 0))])
def test_labels_that_are_all_the_same_are_spread(vectors):
    vectors = vectors.astype(np.float32)
    clusters = clusters_of(vectors, 16)
    assert_balanced(clusters, 16)
    assert_balanced(balanced_clusters(csr_array(vectors), 16, np.random.default_rng(0)), 16)


def test_copies_stay_together():
    """Each of 32 vectors four times, in mixed order: a cluster of four holds the copies of one."""
    owners = np.random.default_rng(3).permutation(np.arange(128) % 32)
    vectors = np.eye(32, dtype=np.float32)[owners] + some_vectors(32, 32, filled=0.3)[owners] / 40
    for stored in (torch.from_numpy(vectors), csr_array(vectors)):
        clusters = balanced_clusters(stored, 32, np.random.default_rng(0))
        assert_balanced(clusters, 32)
        assert similarity(vectors, clusters) > 0.9


def planted(depth=5, size=8, width=64, seed=0):
    """Return vectors of a hierarchy of groups, [2 ** depth * size, width], and the groups, of mixed order."""
    numbers = np.random.default_rng(seed)
    groups = numbers.permutation(np.repeat(np.arange(2**depth), size))
    vectors = 0.3 * numbers.standard_normal((len(groups), width))
    for level in range(1, depth + 1):
        parts = numbers.standard_normal((2**level, width)) * 3 / level
        vectors += parts[groups >> (depth - level)]
    return vectors.astype(np.float32), groups


def test_planted_groups_are_found_at_every_level():
    vectors, groups = planted()
    clusters = clusters_of(vectors, 32)
    for back in range(5):
        pairs = np.unique(np.stack((clusters >> back, groups >> back)), axis=1)
        assert pairs.shape[1] == 32 >> back  # each cluster is one group
    chance = np.random.default_rng(0).permutation(clusters)
    assert similarity(vectors, clusters) > 0.95 > 0.75 > similarity(vectors, chance)


def test_clusters_of_sparse_rows_beat_chance():
    """600 labels of 60 topics with 15 features each, of which a label has some 9, and some of all others."""
    numbers = np.random.default_rng(1)
    own = np.kron(np.eye(60, dtype=bool), np.ones((10, 15), dtype=bool))  # [600, 900]
    vectors = (numbers.random((600, 900)) * (numbers.random((600, 900)) < np.where(own, 0.6, 0.01))).astype(np.float32)
    clusters = balanced_clusters(csr_array(vectors), 64, numbers)
    assert similarity(vectors, clusters) > 1.3 * similarity(vectors, numbers.permutation(clusters))


def test_a_seed_decides_whatever_the_number_of_threads(monkeypatch):
    vectors = some_vectors(5000, 40, filled=0.9)
    product, used = torch.bmm, set()
    monkeypatch.setattr(torch, "bmm", lambda *both: used.add(torch.get_num_threads()) or product(*both))
    threads = torch.get_num_threads()
    try:
        found = []
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            found.append(clusters_of(vectors, 512))
            assert torch.get_num_threads() == number  # it is put back
    finally:
        torch.set_num_threads(threads)
    assert used == {1}
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    assert (clusters_of(vectors, 512, seed=1) != found[0]).any()


def test_what_is_given_stays_as_it_is():
    vectors = some_vectors(50, 8)
    dense, sparse = torch.from_numpy(vectors.copy()).requires_grad_(), csr_array(vectors)
    balanced_clusters(dense, 8, np.random.default_rng(0))
    balanced_clusters(sparse, 8, np.random.default_rng(0))
    np.testing.assert_array_equal(dense.detach().numpy(), vectors)
    np.testing.assert_array_equal(sparse.toarray(), vectors)


def test_half_precision_is_taken():
    vectors, groups = planted(depth=3)
    clusters = balanced_clusters(torch.from_numpy(vectors).bfloat16(), 8, np.random.default_rng(0))
    assert np.unique(np.stack((clusters, groups)), axis=1).shape[1] == 8


@pytest.mark.parametrize(
    ("count", "message"),
    [
        (3, "the number of clusters must be a power of two; found 3"),
        (0, "the number of clusters must be a power of two; found 0"),
        (16, "the number of clusters must be at most that of labels, 10; found 16"),
    ],
)
def test_a_count_that_cannot_be(count, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        clusters_of(some_vectors(10, 3), count)


def test_a_step_costs_memory_linear_in_the_entries():
    """2,000 clusters of sparse rows over 200,000 features: dense centres would take 1.6 GB."""
    vectors = random_array((4000, 200_000), density=1e-4, format="csr", rng=np.random.default_rng(1), dtype=np.float32)
    tracemalloc.start()
    balanced_clusters(csr_array(vectors), 2048, np.random.default_rng(0))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * vectors.nnz + 100 * vectors.shape[1]


def some_data(seed=0):
    numbers = np.random.default_rng(seed)
    X, Z = (
        csr_array(some_vectors(rows, 15, seed=seed + rows, filled=0.3) * numbers.choice([-1, 1], 15).astype(np.float32))
        for rows in (40, 12)
    )
    Y = (numbers.random((40, 12)) < 0.1).astype(np.float32) * 3
    Y[:, [2, 7]] = 0
    return X, csr_array(Y), Z


def slow_centroids(X, Y, Z):
    rows = []
    for label in range(Y.shape[1]):
        row = sum((X.toarray()[point] for point in Y.toarray()[:, label].nonzero()[0]), np.zeros(X.shape[1]))
        rows.append(Z.toarray()[label].astype(float) if Z is not None and not row.any() else row)
    return rows


@pytest.mark.parametrize("chunk", [1, 15, 30, 1 << 24])  # 15: the first label fills a chunk
@pytest.mark.parametrize("text", [True, False])
def test_centroids_equal_those_of_plain_loops(text, chunk, monkeypatch):
    monkeypatch.setattr(centroids_module, "CHUNK", chunk)
    X, Y, Z = some_data()
    found = sparse_centroids(X, Y, Z if text else None)
    np.testing.assert_allclose(found.toarray(), slow_centroids(X, Y, Z if text else None), rtol=1e-5)
    assert found.dtype == np.float32
    assert found.nnz == np.count_nonzero(found.toarray())


def test_a_label_without_points_or_text_is_empty():
    X, Y, Z = some_data()
    texts = Z.toarray()
    texts[7] = 0
    found = sparse_centroids(X, Y, csr_array(texts)).toarray()
    assert found[2].any()
    assert not found[7].any()
