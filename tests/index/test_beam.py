"""Labels in clusters, against loops: members, the clusters that are opened, labels that come later."""

from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.index.beam import BeamIndex, members_of

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(points: int, heads: int, clusters: list[int], beam: int, seed: int) -> tuple[torch.Tensor, BeamIndex]:
    """Whole numbers, whose products are exact, so that many tie."""
    queries, rows = (torch.randint(-2, 3, (size, 2), generator=seeded(seed + size)).float() for size in (points, heads))
    return queries, BeamIndex(rows, torch.tensor(clusters, dtype=torch.int32), beam)


@given(clusters=st.lists(st.integers(0, 4), max_size=12))
def test_members_equal_loops(clusters):
    members = members_of(torch.tensor(clusters, dtype=torch.long), 5)
    for cluster, row in enumerate(members.tolist()):
        own = [label for label, owner in enumerate(clusters) if owner == cluster]
        assert row == own + [-1] * (len(row) - len(own))
    assert members.shape == (5, max((clusters.count(cluster) for cluster in range(5)), default=0))


@given(
    clusters=st.lists(st.integers(0, 5), min_size=1, max_size=14), points=st.integers(0, 4), beam=st.integers(1, 8),
    width=st.integers(1, 20), seed=st.integers(0, 99),
)  # fmt: skip
def test_equal_to_loops_whatever_the_width(clusters, points, beam, width, seed):
    queries, index = drawn(points, 6, clusters, beam, seed)
    found = index.search(queries, width)
    assert found.ids.shape == found.scores.shape == (points, index.width)
    assert index.width == min(beam, 6) * max(map(clusters.count, range(6)))
    for query, ids, scores in zip(queries.tolist(), found.ids.tolist(), found.scores.tolist(), strict=True):
        opened = reference.beam(query, index.heads.tolist(), clusters, beam)
        wanted = sorted((label, score) for labels, score in opened.values() for label in labels)
        assert sorted(pair for pair in zip(ids, scores, strict=True) if pair[0] >= 0) == wanted
        assert all(score == -torch.inf for label, score in zip(ids, scores, strict=True) if label < 0)


@given(beam=st.integers(1, 8), seed=st.integers(0, 99))
def test_the_best_clusters_are_opened_and_of_equal_ones_the_lower(beam, seed):
    queries, index = drawn(3, 6, [0, 1, 2, 3, 4, 5], beam, seed)
    found = index.open(queries)
    assert found.ids.shape == (3, min(beam, 6))
    for query, ids in zip(queries.tolist(), found.ids.tolist(), strict=True):
        assert sorted(ids) == sorted(reference.beam(query, index.heads.tolist(), [], beam))


def test_labels_by_hand():
    heads = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    index = BeamIndex(heads, torch.tensor([2, 0, 1, 0], dtype=torch.int32), 2)
    found = index.search(torch.tensor([[2.0, 1.0]]), 1)
    assert found.ids.tolist() == [[1, 3, 2, -1]]
    assert found.scores.tolist() == [[2.0, 2.0, 1.0, -torch.inf]]
    assert len(index) == 4


def test_a_batch_changes_nothing():
    queries = torch.randn(200, 24, generator=seeded())
    index = BeamIndex(torch.randn(64, 24, generator=seeded(1)), torch.arange(300, dtype=torch.int32) % 64, 5)
    whole = index.search(queries, 1).ids
    for start, end in ((0, 1), (7, 30), (150, 200)):
        assert torch.equal(index.search(queries[start:end], 1).ids, whole[start:end])


def test_the_nearest_cluster_has_the_largest_inner_product():
    heads = torch.tensor([[10.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
    index = BeamIndex(heads, torch.tensor([0, 1, 2], dtype=torch.int32), 2)
    assert index.nearest(torch.tensor([[0.2, 0.5], [0.01, 0.5], [-3.0, 0.1]])).tolist() == [0, 1, 2]
