"""Labels in the leaves of a tree, against loops: the leaves that a beam search reaches, and the nodes on the way."""

from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.index.tree import TreeIndex, nodes_on_the_way

pytestmark = pytest.mark.usefixtures("one_thread")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def drawn(points: int, depth: int, beam: int, seed: int, labels: int = 40) -> tuple[torch.Tensor, TreeIndex]:
    queries = torch.randn(points, 3, generator=seeded(seed))
    nodes = torch.randn(2 ** (depth + 1) - 2, 4, generator=seeded(seed + 1))
    leaves = torch.randint(2**depth, (labels,), generator=seeded(seed + 2), dtype=torch.int32)
    return queries, TreeIndex(nodes, leaves, beam)


@given(points=st.integers(0, 4), depth=st.integers(0, 5), beam=st.integers(1, 40), seed=st.integers(0, 99))
def test_equal_to_loops(points, depth, beam, seed):
    queries, index = drawn(points, depth, beam, seed)
    found = index.search(queries, 1)
    assert found.ids.shape == found.scores.shape == (points, index.width)
    for query, ids, scores in zip(queries.tolist(), found.ids.tolist(), found.scores.tolist(), strict=True):
        reached = reference.tree(query, index.heads.tolist(), index.clusters.tolist(), beam)
        wanted = {label: score for labels, score in reached.values() for label in labels}
        ours = {label: score for label, score in zip(ids, scores, strict=True) if label >= 0}
        assert ours == pytest.approx(wanted, rel=1e-4)
        assert all(score == -torch.inf for label, score in zip(ids, scores, strict=True) if label < 0)


@given(seed=st.integers(0, 99))
def test_a_beam_as_wide_as_the_tree_reaches_each_leaf_by_its_own_way(seed):
    """Without a search: ln σ is summed over the nodes above a leaf."""
    queries, index = drawn(2, 3, 8, seed)
    found = index.open(queries)
    assert found.ids.tolist() == [list(range(8))] * 2
    for query, scores in zip(queries.tolist(), found.scores.tolist(), strict=True):
        for leaf, score in enumerate(scores):
            above = [leaf >> 2, 2 + (leaf >> 1), 6 + leaf]
            steps = (index.heads[node].tolist() for node in above)
            logs = [torch.tensor(reference.sigmoid(reference.dot(query, w) + b)).log().item() for *w, b in steps]
            assert score == pytest.approx(sum(logs), rel=1e-4, abs=1e-5)


def test_a_narrow_beam_does_not_turn_back():
    """The way to the second half is less likely at first, though its leaves would be the best."""
    nodes = torch.tensor([[0.0, 1.0], [0.0, 0.5], [0.0, -3.0], [0.0, -3.0], [0.0, 5.0], [0.0, 4.0]])
    leaves = torch.tensor([0, 1, 2, 3, 3], dtype=torch.int32)
    found = [TreeIndex(nodes, leaves, beam).open(torch.ones(1, 1)).ids.tolist()[0] for beam in (1, 2)]
    assert found == [[0], [2, 3]]  # of equals the lower
    wide = TreeIndex(nodes, leaves, 2)
    assert wide.search(torch.ones(1, 1), 9).ids.tolist() == [[2, -1, 3, 4]]
    assert (len(wide), wide.width) == (5, 4)
    assert wide.nearest(torch.ones(1, 1)).tolist() == [2]


def test_a_batch_changes_nothing():
    queries = torch.randn(200, 24, generator=seeded())
    nodes = torch.randn(126, 25, generator=seeded(1))
    index = TreeIndex(nodes, torch.arange(300, dtype=torch.int32) % 64, 5)
    whole = index.search(queries, 1)
    for start, end in ((0, 1), (7, 30), (150, 200)):
        part = index.search(queries[start:end], 1)
        assert torch.equal(part.ids, whole.ids[start:end])
        assert torch.equal(part.scores, whole.scores[start:end])


def test_the_nearest_leaf_is_the_likeliest_one():
    queries, index = drawn(6, 4, 3, 0)
    likeliest = []
    for query in queries.tolist():
        reached = reference.tree(query, index.heads.tolist(), [], 3)
        likeliest.append(max(reached, key=lambda leaf: reached[leaf][1]))
    assert index.nearest(queries).tolist() == likeliest


@given(leaves=st.sets(st.integers(0, 7)))
def test_a_point_comes_by_the_children_of_nodes_that_hold_its_labels(leaves):
    held = [(level, node) for level in (1, 2, 3) for node in range(2**level)]
    targets = [any(leaf >> (3 - level) == node for leaf in leaves) for level, node in held]
    wanted = [level == 1 or targets[held.index((level - 1, node // 2))] for level, node in held]
    assert nodes_on_the_way(torch.tensor([targets]).float()).tolist() == [wanted]
