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


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
@given(truth=truths, labels=batches)
def test_adjacency_equals_loops(mean, truth, labels):
    U = adjacency(cooccurrence(matrix(truth)), np.array(labels), mean)
    assert U.dtype == np.float32
    np.testing.assert_allclose(U, reference.adjacency(truth, labels, mean), atol=1e-6)


def test_by_hand():
    # label 0 has four points, label 1 has one, which they share: F(0|1) = 1, F(1|0) = 1/4
    A = cooccurrence(matrix([{0, 1}, {0}, {0}, {0}]))
    assert adjacency(A, np.array([0, 1]), "arithmetic")[0, 1] == pytest.approx(0.625)
    assert adjacency(A, np.array([0, 1]), "geometric")[0, 1] == pytest.approx(0.5)


def test_arithmetic_is_the_default():
    A = cooccurrence(matrix([{0, 1}, {0}, {0}, {0}]))
    assert adjacency(A, np.array([0, 1]))[0, 1] == pytest.approx(0.625)


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_repeated_labels_and_a_label_without_a_point(mean):
    U = adjacency(cooccurrence(matrix([{0, 1}, {0}])), np.array([1, 5, 1, 5, 0]), mean)
    np.testing.assert_array_equal(U[:4, :4], [[1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1]])
    assert U[0, 4] == U[2, 4] > 0
    np.testing.assert_array_equal(U, U.T)


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_adjacency_is_that_of_the_whole_set(mean):
    """In the batch labels 0 and 1 always come together; in train they rarely do, and 2 and 3 only meet outside it."""
    train = [{0, 1}, {0}, {0}, {0}, {1}, {2}, {3}, {2, 3}]
    batch = [train[0], train[5], train[6]]
    labels = np.array([0, 1, 2, 3])
    whole = adjacency(cooccurrence(matrix(train)), labels, mean)
    of_batch = adjacency(cooccurrence(matrix(batch)), labels, mean)
    assert of_batch[0, 1] == 1  # what a batch version would say
    assert of_batch[2, 3] == 0
    expected = (1 / 4 + 1 / 2) / 2 if mean == "arithmetic" else (1 / 8) ** 0.5
    assert whole[0, 1] == pytest.approx(expected)
    assert whole[2, 3] == pytest.approx(0.5)


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
