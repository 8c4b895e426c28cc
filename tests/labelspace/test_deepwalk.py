"""Walks keep to the graph and to its weights; vectors separate cliques, are reproducible, and exist for every label."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

from zipfel.errors import ConfigError, DataError
from zipfel.labelspace import deepwalk as module
from zipfel.labelspace.deepwalk import Walks, deepwalk, random_walks


def graph_of(labels, *edges):
    """Return the graph of (a, b, weight)."""
    dense = np.zeros((labels, labels), dtype=np.float32)
    for a, b, weight in edges:
        dense[a, b] = dense[b, a] = weight
    return csr_array(dense)


def cliques(size=10, alone=0):
    """Return two cliques joined by one edge, then isolated labels."""
    within = [(a, b, 1) for first in (0, size) for a in range(first, first + size) for b in range(first, a)]
    return graph_of(2 * size + alone, *within, (0, size, 1))


def all_walks(graph, settings, seed=0):
    return np.concatenate(list(random_walks(graph, settings, np.random.default_rng(seed))))


SPARSE = csr_array(np.triu(np.random.default_rng(3).random((50, 50)) < 0.06, 1).astype(np.float32))
SPARSE = csr_array(SPARSE + SPARSE.T)  # 50 labels, about three neighbours each


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("chunk", [7, 1 << 16])
def test_walks_follow_edges_and_start_everywhere_as_often_as_wanted(weighted, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    graph = csr_array(SPARSE.multiply(np.add.outer(np.arange(50), np.arange(50)) + 1.0)) if weighted else SPARSE
    chunks = list(random_walks(graph, Walks(walks=4, length=15), np.random.default_rng(0)))
    assert max(map(len, chunks)) <= chunk
    walks = np.concatenate(chunks)
    assert walks.shape == (4 * np.count_nonzero(np.diff(graph.indptr)), 15)
    assert (graph.toarray()[walks[:, :-1], walks[:, 1:]] > 0).all()
    connected = np.flatnonzero(np.diff(graph.indptr))
    np.testing.assert_array_equal(np.unique(walks[:, 0], return_counts=True), [connected, np.full(len(connected), 4)])


def test_walks_come_again_and_differ_by_seed_and_by_pass():
    settings = Walks(walks=2, length=10)
    walks = all_walks(SPARSE, settings)
    np.testing.assert_array_equal(walks, all_walks(SPARSE, settings))
    assert (walks != all_walks(SPARSE, settings, seed=1)).any()
    first, second = np.split(walks, 2)
    assert (first[:, 0] != second[:, 0]).any()  # a new order
    assert (first[first[:, 0].argsort()] != second[second[:, 0].argsort()]).any()  # and new steps


@pytest.mark.parametrize(
    "weights",
    [(1, 1, 1, 1), (2, 2, 2, 2), (1, 2, 3, 10), (1e-20, 1e-20, 2e-20, 6e-20), (1e20, 3e20, 1e20, 1e20)],
)
def test_steps_come_in_the_ratio_of_weights(weights):
    """A star, whose middle steps to its four ends; another, of quite other weights, stands beside it."""
    star = [(0, end, weight) for end, weight in enumerate(weights, start=1)]
    graph = graph_of(8, *star, (5, 6, 1.0), (5, 7, 4.0))
    walks = all_walks(graph, Walks(walks=200, length=41))
    before, after = walks[:, :-1].ravel(), walks[:, 1:].ravel()
    for middle, ends, shares in ((0, slice(1, 5), np.array(weights) / sum(weights)), (5, slice(6, 8), [0.2, 0.8])):
        counts = np.bincount(after[before == middle], minlength=8)[ends]
        expected = counts.sum() * np.array(shares)
        assert counts.sum() > 5000
        assert ((counts - expected) ** 2 / expected).sum() < 16.3  # chi-square of 3 degrees, one in a thousand


def test_uniform_steps_of_many_neighbours():
    graph = graph_of(101, *((0, end, 1) for end in range(1, 101)))
    walks = all_walks(graph, Walks(walks=20, length=41))
    counts = np.bincount(walks[:, 1:][walks[:, :-1] == 0], minlength=101)[1:]
    expected = counts.sum() / 100
    assert 50 < ((counts - expected) ** 2 / expected).sum() < 149  # 99 degrees; even counts would be no chance either


def unit(vectors):
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def test_cliques_lie_apart():
    vectors = deepwalk(cliques(), 16, np.random.default_rng(0))
    cosines = unit(vectors) @ unit(vectors).T
    side = np.arange(20) // 10
    same = (side[:, None] == side) & ~np.eye(20, dtype=bool)
    for label in range(20):
        if label not in (0, 10):  # which are the bridge
            assert cosines[label, same[label]].min() > cosines[label, side != side[label]].mean()
    assert cosines[same].mean() > cosines[side[:, None] != side].mean() + 0.3


def test_hierarchical_softmax_learns_from_the_same_walks():
    settings = Walks(walks=80, window=10, hierarchical=True)
    vectors = deepwalk(cliques(alone=2), 16, np.random.default_rng(0), settings)
    cosines = unit(vectors) @ unit(vectors).T
    assert min(cosines[:10, :10].mean(), cosines[10:20, 10:20].mean()) > cosines[:10, 10:20].mean() + 0.2
    np.testing.assert_array_equal(vectors, deepwalk(cliques(alone=2), 16, np.random.default_rng(0), settings))
    negatives = deepwalk(cliques(alone=2), 16, np.random.default_rng(0), Walks(walks=80, window=10))
    assert (vectors[:20] != negatives[:20]).any()
    pair = deepwalk(graph_of(2, (0, 1, 1)), 8, np.random.default_rng(0), settings)  # the smallest tree
    assert np.isfinite(pair).all()


def test_rows_are_labels_whatever_their_order():
    """The same cliques with labels shuffled, and some alone: row l is still label l's."""
    order = np.random.default_rng(5).permutation(25)
    graph = csr_array(cliques(alone=5).toarray()[order][:, order])
    vectors = deepwalk(graph, 16, np.random.default_rng(0))
    side = order // 10  # 2: alone
    cosines = unit(vectors) @ unit(vectors).T
    within = [cosines[np.ix_(side == s, side == s)].mean() for s in (0, 1)]
    assert min(within) > cosines[np.ix_(side == 0, side == 1)].mean() + 0.3
    assert np.abs(cosines[np.ix_(side == 2, side < 2)]).mean() < 0.5


def test_more_than_one_thread_learns_as_well(monkeypatch):
    monkeypatch.setattr(module, "_workers", lambda steps: 3)
    settings = Walks(walks=40)
    vectors = deepwalk(cliques(), 16, np.random.default_rng(0), settings, deterministic=False)
    cosines = unit(vectors) @ unit(vectors).T
    assert cosines[:10, :10].mean() > cosines[:10, 10:].mean() + 0.3


def test_threads_lower_their_rate_over_their_own_share_of_the_walks(monkeypatch):
    """gensim holds the lines that one thread has read against `total_examples`, and would else stop half-way down."""
    from gensim.models import Word2Vec

    calls = []

    class Watched(Word2Vec):
        def train(self, **arguments):
            calls.append((self.workers, arguments["total_examples"], arguments["total_words"], arguments["epochs"]))
            return super().train(**arguments)

    monkeypatch.setattr(module, "_word2vec", lambda: Watched)
    monkeypatch.setattr("torch.get_num_threads", lambda: 4)
    settings = Walks(walks=100, length=60, epochs=2)  # 120,000 steps
    deepwalk(cliques(), 4, np.random.default_rng(0), settings, deterministic=False)
    deepwalk(cliques(), 4, np.random.default_rng(0), settings)
    assert calls == [(2, 1000, 120_000, 2), (1, 2000, 120_000, 2)]


def test_isolated_labels_have_seeded_vectors_of_the_usual_length():
    graph = cliques(alone=6)
    vectors = deepwalk(graph, 64, np.random.default_rng(0))
    assert vectors.shape == (26, 64)
    assert vectors.dtype == np.float32
    lengths = np.linalg.norm(vectors, axis=1)
    np.testing.assert_allclose(lengths[20:], np.median(lengths[:20]), rtol=1e-5)
    cosines = unit(vectors[20:]) @ unit(vectors).T
    assert cosines[:, 20:][~np.eye(6, dtype=bool)].max() < 0.6  # apart from each other
    assert cosines[:, :20].max() < 0.6  # and from all else
    assert (vectors[20:] != deepwalk(graph, 64, np.random.default_rng(1))[20:]).all()


def test_a_label_without_neighbours_starts_no_walk():
    walks = all_walks(graph_of(3, (0, 2, 1)), Walks(walks=2, length=5))
    assert set(walks.ravel().tolist()) == {0, 2}


@pytest.mark.parametrize("labels", [0, 1, 5])
def test_a_graph_without_edges(labels):
    graph = csr_array((labels, labels), dtype=np.float32)
    assert list(random_walks(graph, Walks(), np.random.default_rng(0))) == []
    vectors = deepwalk(graph, 8, np.random.default_rng(0))
    assert vectors.shape == (labels, 8)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(vectors, deepwalk(graph, 8, np.random.default_rng(0)))


def test_one_edge():
    vectors = deepwalk(graph_of(2, (0, 1, 1)), 8, np.random.default_rng(0))
    assert np.isfinite(vectors).all()
    assert (np.linalg.norm(vectors, axis=1) > 0).all()


def test_a_walk_of_one_label_teaches_nothing_and_harms_nothing():
    assert np.isfinite(deepwalk(cliques(), 8, np.random.default_rng(0), Walks(length=1))).all()


DIGEST = """
import hashlib, numpy as np
from test_deepwalk import cliques
from zipfel.labelspace.deepwalk import deepwalk
vectors = deepwalk(cliques(alone=3), 16, np.random.default_rng(7))
print(hashlib.sha256(vectors.tobytes()).hexdigest())
"""


def test_the_same_bits_in_every_process(in_other_processes):
    digests = in_other_processes(DIGEST, Path(__file__).parent)
    here = deepwalk(cliques(alone=3), 16, np.random.default_rng(7))
    assert digests == {hashlib.sha256(here.tobytes()).hexdigest()}
    assert (here != deepwalk(cliques(alone=3), 16, np.random.default_rng(8))).all()


def test_the_file_of_walks_holds_them_and_is_gone_afterwards(tmp_path, monkeypatch):
    walks = all_walks(graph_of(12, (1, 10, 1), (10, 11, 1)), Walks(walks=2, length=4))
    counts = module._write_walks(tmp_path / "walks.txt", module._words(12), iter([walks[:3], walks[3:]]))
    lines = [list(map(int, line.split(" "))) for line in (tmp_path / "walks.txt").read_text().splitlines()]
    assert lines == walks.tolist()
    assert {len(word) for line in (tmp_path / "walks.txt").read_text().splitlines() for word in line.split()} == {2}
    np.testing.assert_array_equal(counts, np.bincount(walks.ravel(), minlength=12))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    deepwalk(cliques(), 8, np.random.default_rng(0))
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_full_disk_is_named(tmp_path):
    with pytest.raises(DataError, match="cannot write random walks: No such file or directory; set TMPDIR"):
        module._write_walks(tmp_path / "gone" / "walks.txt", module._words(2), iter([]))


def test_without_gensim_the_message_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "gensim.models", None)
    with pytest.raises(ConfigError, match="pip install gensim, or provide label vectors"):
        deepwalk(cliques(), 8, np.random.default_rng(0))
    assert deepwalk(csr_array((3, 3), dtype=np.float32), 8, np.random.default_rng(0)).shape == (3, 8)  # needs none


@pytest.mark.parametrize("name", ["walks", "length", "window", "negatives", "epochs"])
def test_settings_are_at_least_one(name):
    with pytest.raises(ConfigError, match=f"{name} must be at least 1; found 0"):
        Walks(**{name: 0})


@pytest.mark.parametrize(("labels", "width"), [(1, 1), (10, 1), (11, 2), (100, 2)])
def test_words_are_no_longer_than_the_last_label(labels, width):
    assert module._words(labels).shape == (labels, width + 1)


@pytest.mark.parametrize(("steps", "workers"), [(99_999, 1), (100_000, 2), (200_000, 3), (10_000_000, 4)])
def test_few_steps_need_few_threads(steps, workers, monkeypatch):
    monkeypatch.setattr(module.torch, "get_num_threads", lambda: 4)
    assert module._workers(steps) == workers
