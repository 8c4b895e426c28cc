"""Positives and negatives of a step, against slow loops and against what chance allows."""

from __future__ import annotations

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.negatives import hardest, holds, pooled, sampled_negatives, sampled_positives, within
from zipfel.types import Bags

LABELS = 9
owned = st.lists(st.lists(st.integers(0, LABELS - 1), max_size=4, unique=True), min_size=1, max_size=6)


def packed(rows):
    ids = torch.tensor([label for row in rows for label in row], dtype=torch.long)
    return Bags(ids, torch.ones(len(ids)), torch.tensor([0, *(len(row) for row in rows)]).cumsum(0))


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@given(rows=owned, pool=st.sets(st.integers(0, LABELS - 1), min_size=1))
def test_holds_equals_loops(rows, pool):
    labels = sorted(pool)
    held = holds(packed(rows), torch.tensor(labels))
    assert held.tolist() == [[label in row for label in labels] for row in rows]


@given(rows=owned, pool=st.sets(st.integers(0, LABELS - 1), min_size=1))
def test_within_equals_loops(rows, pool):
    labels = sorted(pool)
    found = within(packed(rows), torch.tensor(labels))
    wanted = [[labels.index(label) for label in row if label in pool] for row in rows]
    assert [found.ids[low:high].tolist() for low, high in found.offsets.unfold(0, 2, 1).tolist()] == wanted
    assert len(found.weights) == len(found.ids)


@given(rows=owned, seed=st.integers(0, 99))
def test_positives_are_a_point_s_own(rows, seed):
    points, labels = sampled_positives(packed(rows), seeded(seed))
    assert points.tolist() == [number for number, row in enumerate(rows) if row]
    assert all(label in rows[point] for point, label in zip(points.tolist(), labels.tolist(), strict=True))


def test_positives_are_drawn_uniformly():
    draws, rows = 6000, [[4], [], [0, 1, 2], [8, 3, 5, 6, 7]]
    counts = torch.zeros(len(rows), LABELS)
    generator = seeded()
    many = packed(rows * (draws // 10))
    for _ in range(10):
        points, labels = sampled_positives(many, generator)
        counts.index_put_((points % len(rows), labels), torch.ones(len(points)), accumulate=True)
    for row, found in zip(rows, counts, strict=True):
        assert found.sum() == (draws if row else 0)
        if row:
            expected = draws / len(row)
            chi_square = ((found[row] - expected) ** 2 / expected).sum().item()
            assert chi_square < 25  # p < 1e-4 for four degrees of freedom


def test_the_generator_decides():
    many = packed([[0, 1, 2, 3, 4]] * 50)
    first, again, other = (sampled_positives(many, seeded(seed))[1] for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 9), st.integers(0, 999))
def test_hardest_equals_loops(points, labels, count, seed):
    generator = seeded(seed)
    scores = torch.randn(points, labels, generator=generator)
    left_out = torch.rand(points, labels, generator=generator) < 0.5
    values, mask = hardest(scores, left_out, count)
    assert values.shape == mask.shape == (points, min(count, labels))
    found = [sorted(row[kept].tolist(), reverse=True) for row, kept in zip(values, mask, strict=True)]
    assert found == reference.hardest_negatives(scores.tolist(), left_out.tolist(), count)


def test_own_and_filtered_labels_are_never_negatives():
    pool = torch.arange(5)
    scores = torch.tensor([[9.0, 8.0, 1.0, 7.0, 0.0], [5.0, 9.0, 8.0, 7.0, 6.0]])
    own, filtered = holds(packed([[0], [1, 2, 3]]), pool), holds(packed([[1], [4]]), pool)
    values, mask = hardest(scores, own | filtered, 2)
    assert values[0].tolist() == [7.0, 1.0]
    assert mask.tolist() == [[True, True], [True, False]]  # the second point has but one negative
    assert values[1, 0] == 5.0
    assert torch.isfinite(values).all()  # what is masked must not turn a loss into nan


def test_a_point_that_owns_every_label_has_no_negative():
    values, mask = hardest(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), 2)
    assert not mask.any()
    assert torch.isfinite(values).all()


def test_gradients_reach_only_the_hardest():
    scores = torch.tensor([[3.0, 2.0, 1.0]], requires_grad=True)
    values, mask = hardest(scores, torch.tensor([[True, False, False]]), 1)
    (values * mask).sum().backward()
    assert scores.grad.tolist() == [[0.0, 1.0, 0.0]]


@given(st.integers(1, 4), st.integers(1, 7), st.integers(1, 9), st.integers(0, 999))
def test_sampled_negatives_are_drawn_without_replacement_from_those_not_excluded(points, labels, count, seed):
    generator = seeded(seed)
    scores = torch.randn(points, labels, generator=generator)  # no two are equal
    left_out = torch.rand(points, labels, generator=generator) < 0.5
    values, weights = sampled_negatives(scores, left_out, count, generator)
    assert values.shape == weights.shape == (points, min(count, labels))
    for row, out, drawn, weight in zip(scores, left_out, values, weights, strict=True):
        allowed, taken = set(row[~out].tolist()), drawn[weight > 0].tolist()
        assert len(set(taken)) == len(taken) == min(count, len(allowed))
        assert set(taken) <= allowed
        assert weight.sum().item() == pytest.approx(len(allowed), rel=1e-6)
        assert len(set(weight[weight > 0].tolist())) <= 1


def test_sampled_negatives_are_drawn_uniformly_and_by_the_generator():
    draws, scores = 6000, torch.arange(5.0).repeat(6000, 1)
    left_out = torch.tensor([False, True, False, False, False]).repeat(draws, 1)
    values, weights = sampled_negatives(scores, left_out, 2, seeded())
    assert (weights == 2).all()  # two of four
    counts = values.long().flatten().bincount(minlength=5)[[0, 2, 3, 4]]
    assert ((counts - draws / 2) ** 2 / (draws / 2)).sum().item() < 25
    again, other = (sampled_negatives(scores, left_out, 2, seeded(seed))[0] for seed in (0, 1))
    assert torch.equal(values, again)
    assert not torch.equal(values, other)


def test_a_weighted_sum_over_sampled_negatives_estimates_the_sum_over_all():
    scores, left_out = torch.tensor([[1.0, 2.0, 4.0, 8.0, 100.0]]), torch.tensor([[False] * 4 + [True]])
    values, weights = sampled_negatives(scores.repeat(20_000, 1), left_out.repeat(20_000, 1), 3, seeded())
    assert (values * weights).sum(dim=1).mean().item() == pytest.approx(15, rel=0.01)


def test_a_point_that_owns_every_label_has_no_sampled_negative():
    values, weights = sampled_negatives(torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), 2, seeded())
    assert not weights.any()
    assert torch.isfinite(values).all()


@pytest.mark.parametrize("rows", [[[]], [[], []]])
def test_no_positives_at_all(rows):
    points, labels = sampled_positives(packed(rows), seeded())
    assert len(points) == len(labels) == 0
    assert not holds(packed(rows), torch.tensor([1, 2])).any()


# --- Shortlists of a batch ---


@given(rows=owned, missed=st.booleans(), data=st.data())
def test_pooled_equals_loops(rows, missed, data):
    """True labels that are not on the shortlist count with `missed`, and else do not; filtered labels never count."""
    near = [data.draw(st.lists(st.integers(0, LABELS - 1), min_size=1, max_size=4)) for _ in rows]
    out = [data.draw(st.sets(st.integers(0, LABELS - 1))) for _ in rows]
    for filtered in (None, packed([sorted(labels) for labels in out])):
        found = pooled(packed(rows), packed(near), filtered, missed)
        lists = [set(listed) | set(own) if missed else set(listed) for own, listed in zip(rows, near, strict=True)]
        pool = sorted(set().union(*lists))
        assert found.labels.tolist() == pool
        for row, (own, listed) in enumerate(zip(rows, lists, strict=True)):
            left = set() if filtered is None else out[row]
            assert found.mask[row].tolist() == [label in listed - left for label in pool]
            assert found.targets[row].tolist() == [float(label in own) for label in pool]


def test_labels_missing_from_the_shortlist_are_added_by_default():
    own, near = packed([[3], [1]]), packed([[0, 1], [1, 2]])
    with_them, without = pooled(own, near, None), pooled(own, near, None, missed=False)
    assert with_them.labels.tolist() == [0, 1, 2, 3]
    assert with_them.mask.tolist() == [[True, True, False, True], [False, True, True, False]]
    assert without.labels.tolist() == [0, 1, 2]
    assert without.targets.tolist() == [[0, 0, 0], [0, 1, 0]]  # 3 is lost
