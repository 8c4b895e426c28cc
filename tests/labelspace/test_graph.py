"""Co-occurrence, adjacency and label graph against slow loops; that they are those of the whole set, not of a batch.

And edges as users write them, rightly and wrongly.
"""

from __future__ import annotations

import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from zipfel.labelspace.graph import adjacency, cooccurrence, label_graph

LABELS = 6
KINDS = ["arithmetic", "geometric", "pmi", "jaccard"]
truths = st.lists(st.sets(st.integers(0, LABELS - 1)), min_size=1, max_size=8)
batches = st.lists(st.integers(0, LABELS - 1), min_size=1, max_size=8)  # labels may repeat, and come in any order


def matrix(truth, labels=LABELS):
    Y = np.zeros((len(truth), labels), dtype=np.float32)
    for point, right in enumerate(truth):
        Y[point, sorted(right)] = 1
    return csr_array(Y)


@given(truths)
def test_cooccurrence_equals_loops(truth):
    A = cooccurrence(matrix(truth)).toarray()
    for a in range(LABELS):
        for b in range(LABELS):
            assert A[a, b] == reference.shared_points(truth, a, b)


@pytest.mark.parametrize("rows", [1, 2, 3, 7])
def test_cooccurrence_of_many_points_is_the_sum_over_pieces(monkeypatch, rows):
    Y = matrix([{0, 1}, {1, 2}, {0, 1, 5}, set(), {2}, {0, 1}, {3, 4}])
    at_once = cooccurrence(Y).toarray()
    monkeypatch.setattr("zipfel.labelspace.graph.ROWS", rows)
    np.testing.assert_array_equal(cooccurrence(Y).toarray(), at_once)


@pytest.mark.parametrize("kind", KINDS)
@given(truth=truths, labels=batches)
def test_adjacency_equals_loops(kind, truth, labels):
    U = adjacency(cooccurrence(matrix(truth)), np.array(labels), kind, len(truth))
    assert U.dtype == np.float32
    np.testing.assert_allclose(U, reference.adjacency(truth, labels, kind), atol=1e-6)


def test_by_hand():
    # label 0 has four points, label 1 has one, which they share: F(0|1) = 1, F(1|0) = 1/4
    A = cooccurrence(matrix([{0, 1}, {0}, {0}, {0}]))
    assert adjacency(A, np.array([0, 1]), "arithmetic")[0, 1] == pytest.approx(0.625)
    assert adjacency(A, np.array([0, 1]), "geometric")[0, 1] == pytest.approx(0.5)


def test_jaccard_by_hand():
    # labels 0 and 1 share two of the four points that have either
    A = cooccurrence(matrix([{0, 1}, {0, 1}, {0}, {1}, {2}, {2}, {2}, {2}]))
    assert adjacency(A, np.array([0, 1]), "jaccard")[0, 1] == pytest.approx(2 / 4)
    assert adjacency(A, np.array([0, 2]), "jaccard")[0, 1] == 0


def test_pmi_by_hand():
    # p_0 = p_1 = 3/8, p_01 = 2/8: ln(1/4 · 64/9) = ln(16/9), of at most ln 4
    truth = [{0, 1}, {0, 1}, {0}, {1}, {2}, {2}, {2}, {2}]
    U = adjacency(cooccurrence(matrix(truth)), np.array([0, 1, 2]), "pmi", len(truth))
    assert U[0, 1] == pytest.approx(np.log(16 / 9) / np.log(4))
    assert U[0, 2] == 0  # never together, not −1


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ([{0, 1}, {0, 1}, {2}], 1),  # only together
        ([{0, 1}, {0}, {1}, set()], 0),  # as often as by chance
        ([{0, 1}, {0}, {0}, {1}, {1}], 0),  # more rarely
        ([{0, 1}, {0, 1}], 0),  # on every point
        ([{0, 1}], 0),
    ],
)
def test_pmi_is_from_0_to_1(truth, expected):
    U = adjacency(cooccurrence(matrix(truth)), np.array([0, 1, 5]), "pmi", len(truth))
    assert U[0, 1] == pytest.approx(expected, abs=1e-7)
    np.testing.assert_array_equal(U[2], [0, 0, 1])


def test_arithmetic_is_the_default():
    A = cooccurrence(matrix([{0, 1}, {0}, {0}, {0}]))
    assert adjacency(A, np.array([0, 1]))[0, 1] == pytest.approx(0.625)


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_labels_and_a_label_without_a_point(kind):
    U = adjacency(cooccurrence(matrix([{0, 1}, {0}, {2}])), np.array([1, 5, 1, 5, 0]), kind, 3)
    np.testing.assert_array_equal(U[:4, :4], [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]])
    assert U[0, 4] == U[2, 4] > 0
    np.testing.assert_array_equal(U, U.T)


@pytest.mark.parametrize("kind", KINDS)
def test_adjacency_is_that_of_the_whole_set(kind):
    """In the batch labels 0 and 1 always come together; in train they rarely do, and 2 and 3 only meet outside it."""
    train = [{0, 1}, {0}, {0}, {0}, {1}, {2}, {3}, {2, 3}]
    batch = [train[0], train[5], train[6]]
    labels = np.array([0, 1, 2, 3])
    whole = adjacency(cooccurrence(matrix(train)), labels, kind, len(train))
    of_batch = adjacency(cooccurrence(matrix(batch)), labels, kind, len(batch))
    assert of_batch[0, 1] == pytest.approx(1)  # what a batch version would say
    assert of_batch[2, 3] == 0
    # 0 and 1 meet as often as by chance, 1/8 = 1/2 · 1/4; 2 and 3 twice as often, and 8 times would be the most
    expected = {"arithmetic": 3 / 8, "geometric": (1 / 8) ** 0.5, "pmi": 0, "jaccard": 1 / 5}[kind]
    assert whole[0, 1] == pytest.approx(expected, abs=1e-7)
    assert whole[2, 3] == pytest.approx(0.5 if kind in ("arithmetic", "geometric") else 1 / 3)


def test_only_the_part_of_the_batch_is_dense():
    labels = 200_000  # a dense A would need 160 GB
    Y = csr_array((np.ones(3, np.float32), ([0, 0, 1], [7, 199_999, 7])), shape=(2, labels))
    U = adjacency(cooccurrence(Y), np.array([199_999, 7, 11]))
    np.testing.assert_allclose(U, [[1, 0.75, 0], [0.75, 1, 0], [0, 0, 1]])


@pytest.mark.parametrize("weighted", [False, True])
@given(truth=truths)
def test_label_graph_equals_loops(weighted, truth):
    graph = label_graph(matrix(truth), weighted)
    assert isinstance(graph, csr_array)
    assert graph.dtype == np.float32
    assert graph.has_canonical_format
    assert graph.data.all()  # nothing is stored where there is no edge
    np.testing.assert_array_equal(graph.toarray(), reference.label_graph(truth, LABELS, weighted))


def test_label_graph_is_not_weighted_unless_asked():
    Y = matrix([{0, 1}, {0, 1}, {1, 2}])
    assert label_graph(Y).toarray()[0, 1] == 1
    assert label_graph(Y, weighted=True).toarray()[0, 1] == 2
