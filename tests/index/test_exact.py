"""Exact search against a full sort, for chunks of any size."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.index import exact
from zipfel.index.exact import ExactIndex, largest_alone


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def sorted_by_hand(queries, vectors, width):
    """Return for each query the (id, score) pairs of the best vectors, ties to the lower id, in the order of ids."""
    rows = []
    for query in queries.tolist():
        scores = [sum(a * b for a, b in zip(query, vector, strict=True)) for vector in vectors.tolist()]
        best = sorted(range(len(scores)), key=lambda label, s=scores: (-s[label], label))[:width]
        rows.append([(label, scores[label]) for label in sorted(best)])
    return rows


def found(shortlist):
    return [
        sorted(zip(ids.tolist(), scores.tolist(), strict=True))
        for ids, scores in zip(shortlist.ids, shortlist.scores, strict=True)
    ]


@given(
    points=st.integers(1, 4),
    labels=st.integers(1, 30),
    width=st.integers(1, 35),
    chunk=st.integers(1, 130),
    seed=st.integers(0, 999),
)
def test_equal_to_a_full_sort_in_chunks_of_any_size(points, labels, width, chunk, seed):
    generator = seeded(seed)
    queries = torch.randint(-2, 3, (points, 2), generator=generator).float()  # whole numbers: sums are exact,
    vectors = torch.randint(-2, 3, (labels, 2), generator=generator).float()  # and many of them tie
    with patch.object(exact, "CHUNK", chunk):
        shortlist = ExactIndex(vectors).search(queries, width)
    assert shortlist.ids.dtype == torch.long
    assert shortlist.scores.dtype == torch.float32
    assert found(shortlist) == sorted_by_hand(queries, vectors, width)


def test_equal_to_a_sort_of_real_scores():
    vectors = torch.randn(5000, 16, generator=seeded(1))
    queries = torch.randn(3, 16, generator=seeded(2))
    with patch.object(exact, "CHUNK", 3 * 700):
        shortlist = ExactIndex(vectors).search(queries, 20)
    order = (queries @ vectors.T).sort(dim=1, descending=True).indices[:, :20]
    assert torch.equal(shortlist.ids.sort(dim=1).values, order.sort(dim=1).values)
    torch.testing.assert_close(shortlist.scores, (queries @ vectors.T).gather(1, shortlist.ids))


@pytest.mark.parametrize("chunk", [1, 4, 1 << 24])
def test_of_equal_vectors_the_lower_ids_come(chunk):
    vectors = torch.ones(50, 2)
    vectors[30] = 2
    with patch.object(exact, "CHUNK", chunk):
        shortlist = ExactIndex(vectors).search(torch.ones(2, 2), 4)
    assert [sorted(row) for row in shortlist.ids.tolist()] == [[0, 1, 2, 30]] * 2


def test_an_empty_query_gets_the_first_labels():
    shortlist = ExactIndex(torch.randn(100, 3, generator=seeded())).search(torch.zeros(1, 3), 5)
    assert sorted(shortlist.ids[0].tolist()) == [0, 1, 2, 3, 4]


def test_more_wanted_than_there_are_and_no_queries():
    index = ExactIndex(torch.eye(3))
    assert index.search(torch.eye(3)[:1], 10).ids.shape == (1, 3)
    assert index.search(torch.empty(0, 3), 2).ids.shape == (0, 2)


def test_no_more_scores_than_a_chunk_are_held(monkeypatch):
    monkeypatch.setattr(exact, "CHUNK", 64)
    seen, largest = [], exact.largest
    monkeypatch.setattr(exact, "largest", lambda scores, width: seen.append(scores.numel()) or largest(scores, width))
    ExactIndex(torch.randn(1000, 2, generator=seeded())).search(torch.randn(4, 2, generator=seeded()), 3)
    assert max(seen) <= 64
    assert len(seen) > 50


@given(scores=st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=1, max_size=30), width=st.integers(1, 35))
def test_of_equal_scores_of_a_single_query_the_first_are_kept(scores, width):
    best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:width]
    assert largest_alone(np.array(scores, dtype=np.float32), width).tolist() == sorted(best)


@given(
    points=st.integers(0, 4), vectors=st.integers(1, 90), width=st.integers(1, 50), group=st.integers(1, 5),
    chunk=st.integers(1, 400), seed=st.integers(0, 99),
)  # fmt: skip
def test_the_way_of_a_gpu_finds_the_same(points, vectors, width, group, chunk, seed):
    """Its short numbers are whole ones here, and many tie."""
    queries, rows = (torch.randint(-3, 4, (size, 3), generator=seeded(seed)).float() for size in (points, vectors))
    index = ExactIndex(rows)
    with patch.multiple(exact, GROUP=group, WIDE=chunk, SLACK=2):
        found = index._search_on_gpu(queries, width)
    wanted = index.search(queries, width)
    assert torch.equal(found.ids, wanted.ids)
    assert torch.equal(found.scores, wanted.scores)
