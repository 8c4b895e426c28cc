"""Label vectors without walks equal loops over the graph; labels that come later are placed by their neighbours."""

from __future__ import annotations

import math

import numpy as np
import pytest
import reference_neighbours as slow
from scipy.sparse import csr_array

from zipfel.labelspace.vectors import extended, random_directions, smoothed


def graph_of(labels, *edges):
    """Return the graph of (a, b, weight)."""
    dense = np.zeros((labels, labels), dtype=np.float32)
    for a, b, weight in edges:
        dense[a, b] = dense[b, a] = weight
    return csr_array(dense)


def unit(vector: list[float]) -> list[float]:
    return [x / math.sqrt(sum(y * y for y in vector)) for x in vector]


@pytest.mark.parametrize("weight", [0.0, 0.5, 2.0])
def test_smoothed_vectors_equal_loops(weight):
    graph = [[0, 3, 1], [3, 0, 0], [1, 0, 0], [0, 0, 0]]
    edges = csr_array(np.array([[*row, 0] for row in graph], dtype=np.float32))
    own = random_directions(4, 3, np.random.default_rng(7)).tolist()
    wanted = []
    for label, row in enumerate(graph):
        near = [sum(edge * own[other][i] for other, edge in enumerate(row)) for i in range(3)]
        near = unit(near) if any(near) else near
        wanted.append(unit([a + weight * b for a, b in zip(own[label], near, strict=True)]))
    np.testing.assert_allclose(smoothed(edges, 3, np.random.default_rng(7), weight), wanted, atol=1e-6)


@pytest.mark.parametrize("dimension", [4, 6])
def test_labels_are_orthogonal_where_there_is_room_for_all(dimension):
    V = smoothed(graph_of(4, (0, 1, 3), (2, 3, 1)), dimension, np.random.default_rng(0), weight=0.0)
    np.testing.assert_allclose(V @ V.T, np.eye(4), atol=1e-6)


def new_labels(known, labels, seed=0):
    """Return vectors of known labels, and a graph of these and new ones; the last new label has no neighbours."""
    numbers = np.random.default_rng(seed)
    V = numbers.standard_normal((known, 5)).astype(np.float32) * numbers.uniform(0.5, 2, (known, 1)).astype(np.float32)
    upper = np.triu(numbers.integers(0, 4, (labels, labels)) * (numbers.random((labels, labels)) < 0.4), 1)
    upper[:, -1] = 0
    return V, csr_array((upper + upper.T).astype(np.float32))


@pytest.mark.parametrize("seed", range(3))
def test_new_labels_are_placed_by_their_known_neighbours(seed):
    V, graph = new_labels(9, 14, seed)
    found = extended(V, graph, np.random.default_rng(0))
    assert (found.shape, found.dtype) == ((14, 5), np.float32)
    assert np.array_equal(found[:9], V)
    length, placed = np.median(np.linalg.norm(V, axis=1)), 0
    for label in range(9, 14):
        row = graph[[label]].toarray()[0, :9]
        wanted = slow.dxml_new_vector(V.tolist(), [(other, row[other]) for other in np.flatnonzero(row)])
        if wanted is not None:
            placed += 1
            np.testing.assert_allclose(found[label], wanted, rtol=1e-4, atol=1e-5)
        assert np.linalg.norm(found[label]) == pytest.approx(length, rel=1e-4)
    assert 2 <= placed <= 4
    other = extended(V, graph, np.random.default_rng(1))
    assert (other[13] != found[13]).all()  # a random direction
    assert np.array_equal(other[:9], V)


def test_neighbours_that_cancel_out_leave_a_random_direction():
    V = np.array([[2, 0], [-2, 0]], dtype=np.float32)
    found = extended(V, graph_of(3, (0, 2, 1), (1, 2, 1)), np.random.default_rng(0))
    assert np.linalg.norm(found[2]) == pytest.approx(2, rel=1e-5)
    assert np.array_equal(extended(V, graph_of(2, (0, 1, 1)), np.random.default_rng(0)), V)  # no new label


def test_the_first_labels_of_all_have_length_1():
    found = extended(np.zeros((0, 4), dtype=np.float32), csr_array((3, 3), dtype=np.float32), np.random.default_rng(0))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), np.ones(3), rtol=1e-5)
