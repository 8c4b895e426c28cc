"""HNSW's own behaviour: vectors of one length, a node for each unique vector, effort that follows the width."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch.nn.functional import normalize

from zipfel.errors import DataError
from zipfel.index import hnsw, recall
from zipfel.index.exact import ExactIndex
from zipfel.index.hnsw import HnswIndex, distinct

pytestmark = pytest.mark.usefixtures("one_thread")
VECTORS = normalize(torch.randn(3000, 24, generator=torch.Generator().manual_seed(0)))
QUERIES = normalize(torch.randn(64, 24, generator=torch.Generator().manual_seed(1)))


def linked(vectors, links):
    """Build an index with this many links of a vector, chosen among as many candidates."""
    with patch.multiple(hnsw, LINKS=links, EF_CONSTRUCTION=links):
        return HnswIndex.build(vectors)


@pytest.mark.parametrize("factor", [0.5, 0.98, 1.02, 3.0])
def test_vectors_of_different_lengths_are_refused(factor):
    longer = VECTORS.clone()
    longer[7] *= factor
    with pytest.raises(DataError, match=r"one length; found .* normalise them, or use an ivf or exact index"):
        HnswIndex.build(longer)
    index = HnswIndex.build(VECTORS[:50])
    with pytest.raises(DataError, match="one length"):
        index.add(factor * VECTORS[:3])
    assert len(index) == 50


def test_one_length_need_not_be_one_nor_exact():
    index, exact = HnswIndex.build(5 * VECTORS.half()), ExactIndex(5 * VECTORS.half().float())
    assert recall(index, exact, QUERIES, 20) >= 0.95


def test_what_is_not_a_number_is_refused():
    broken = VECTORS[:9].clone()
    broken[2, 3] = float("nan")
    with pytest.raises(DataError, match="one length"):
        HnswIndex.build(broken)


def test_effort_follows_the_width():
    index, exact = HnswIndex.build(VECTORS), ExactIndex(VECTORS)
    for width in (1, 30, 300, 1000):
        assert recall(index, exact, QUERIES, width) >= 0.95


def test_more_links_find_more():
    few, many = (linked(VECTORS, links) for links in (3, 32))
    exact = ExactIndex(VECTORS)
    assert recall(few, exact, QUERIES, 50) < 0.9 < recall(many, exact, QUERIES, 50)


def test_who_wants_half_of_the_rows_gets_them_all_however_poor_the_graph():
    index, exact = linked(VECTORS, 2), ExactIndex(VECTORS)
    assert recall(index, exact, QUERIES, 1000) < 0.9
    for width in (1500, 3000):
        assert recall(index, exact, QUERIES, width) == 1


def test_the_state_does_not_hold_the_vectors():
    narrow, wide = (HnswIndex.build(normalize(torch.cat([VECTORS] * times, dim=1))).state() for times in (1, 8))
    assert abs(narrow["graph"].numel() - wide["graph"].numel()) < 100


def test_different_vectors_in_the_order_in_which_they_come():
    rows = torch.tensor([[2.0, 1.0], [0.0, 1.0], [2.0, 1.0], [-0.0, 1.0], [1.0, 1.0], [0.0, 1.0]]).numpy()
    found, nodes = distinct(rows)
    assert found.tolist() == [[2, 1], [0, 1], [1, 1]]
    assert nodes.tolist() == [0, 1, 0, 1, 2, 1]


def test_copies_come_in_the_place_of_their_node_lower_ids_first():
    vectors = torch.eye(8)[[0, 1, 0, 2, 1, 3, 4, 5, 6, 7, 0]]
    query = torch.tensor([[3.0, 2.0, 1.0, 0, 0, 0, 0, 0]])
    index = HnswIndex.build(vectors)
    for width in range(1, 7):
        assert index.search(query, width).ids[0].tolist() == [0, 2, 10, 1, 4, 3][:width]
    index.add(torch.eye(8)[[1, 0]])
    assert index.search(query, 8).ids[0].tolist() == [0, 2, 10, 12, 1, 4, 11, 3]
