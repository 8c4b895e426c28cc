"""Encoders against dense products, gradients against a dense embedding and against numerical ones."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.nn.encoders import NormedLinear, Table, keep_features, unique_ids
from zipfel.types import Bags

SIZE, WIDTH = 7, 3
entries = st.tuples(st.integers(0, SIZE - 1), st.floats(-2, 2, width=32))
lists = st.lists(st.lists(entries, max_size=5), max_size=5)  # ids may repeat within a bag; bags may be empty


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def packed(rows):
    flat = [entry for row in rows for entry in row]
    ids, weights = torch.tensor([i for i, _ in flat], dtype=torch.long), torch.tensor([w for _, w in flat])
    offsets = torch.tensor([0, *(len(row) for row in rows)]).cumsum(0)
    return Bags(ids, weights.float(), offsets)


def dense(bags):
    """Return the bags as a [B, SIZE] matrix."""
    X = torch.zeros(len(bags), SIZE)
    for b in range(len(bags)):
        for t in range(int(bags.offsets[b]), int(bags.offsets[b + 1])):
            X[b, bags.ids[t]] += bags.weights[t]
    return X


@pytest.mark.parametrize("training", [True, False])
@given(rows=lists)
def test_a_table_is_a_dense_product(training, rows):
    table = Table(SIZE, WIDTH, seeded(), scale=1.0).train(training)
    bags = packed(rows)
    sums = table(bags)
    assert sums.shape == (len(rows), WIDTH)
    torch.testing.assert_close(sums.detach(), dense(bags) @ table.rows, atol=1e-5, rtol=1e-5)
    slow = torch.tensor(reference.bag_sums(table.rows.tolist(), rows, WIDTH)).reshape(-1, WIDTH)
    torch.testing.assert_close(sums.detach(), slow, atol=1e-5, rtol=1e-5)


@given(lists)
def test_gradients_are_those_of_a_dense_embedding(rows):
    table, bags = Table(SIZE, WIDTH, seeded(), scale=1.0), packed(rows)
    weight = table.rows.clone().requires_grad_()
    for sums in (table(bags), dense(bags) @ weight):
        (sums.square().sum() + sums.sum()).backward()
    [(ids, leaf)] = table.touched
    assert ids.tolist() == sorted(set(bags.ids.tolist()))
    found = torch.zeros(SIZE, WIDTH)
    found[ids] = torch.zeros(0, WIDTH) if leaf.grad is None else leaf.grad
    torch.testing.assert_close(found, weight.grad, atol=1e-4, rtol=1e-4)


def test_empty_bags_are_zero_and_take_no_gradient():
    table = Table(SIZE, WIDTH, seeded(), scale=1.0)
    sums = table(packed([[], [(2, 1.0)], []]))
    assert sums[0].tolist() == sums[2].tolist() == [0.0] * WIDTH
    sums[0].sum().backward()
    assert table.touched[0][1].grad.abs().sum() == 0


def test_nothing_is_remembered_but_in_training():
    table, bags = Table(SIZE, WIDTH, seeded(), scale=1.0), packed([[(1, 1.0)]])
    with torch.no_grad():
        table(bags)
        table.gather(bags.ids)
    table.eval()
    assert not table(bags).requires_grad
    table.gather(bags.ids)
    assert table.touched == []
    table.train()
    assert table(bags).requires_grad
    assert len(table.touched) == 1


def test_gathered_rows_are_copies():
    table = Table(SIZE, WIDTH, seeded(), scale=1.0)
    before = table.rows.clone()
    leaf = table.gather(torch.tensor([4, 6]))
    torch.testing.assert_close(leaf.detach(), before[[4, 6]])
    leaf.detach().zero_()
    assert torch.equal(table.rows, before)


def test_a_table_starts_by_generator_and_scale():
    same = [Table(2000, 8, seeded(3), scale=0.5).rows for _ in range(2)]
    assert torch.equal(*same)
    assert same[0].std().item() == pytest.approx(0.5, rel=0.05)
    assert not torch.equal(same[0], Table(2000, 8, seeded(4), scale=0.5).rows)


@given(st.lists(st.integers(0, 9), max_size=12))
def test_unique_ids(numbers):
    unique, places = unique_ids(torch.tensor(numbers, dtype=torch.long))
    assert unique.tolist() == sorted(set(numbers))
    assert [unique.tolist()[place] for place in places] == numbers


# --- The weight-normalised layer ---


def test_a_normed_layer_has_one_length():
    layer = NormedLinear(5, 4, seeded())
    with torch.no_grad():
        layer.length.fill_(1.7)
        layer.bias.uniform_(generator=seeded())
        layer.directions.mul_(torch.tensor([[0.1], [1.0], [10.0], [3.0]]))  # only the direction counts
        weights = layer(torch.eye(5)).T - layer.bias[:, None]  # [4, 5]
    torch.testing.assert_close(weights.norm(dim=1), torch.full((4,), 1.7))
    for weight, direction in zip(weights, layer.directions, strict=True):
        torch.testing.assert_close(weight / 1.7, direction.detach() / math.dist(direction.tolist(), [0.0] * 5))
    assert sum(parameter.numel() for parameter in layer.parameters()) == 4 * 5 + 1 + 4


def test_gradients_of_a_normed_layer():
    layer = NormedLinear(3, 4, seeded()).double()
    x = torch.randn(2, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)

    def outputs(x, directions, length, bias):
        return torch.func.functional_call(layer, {"directions": directions, "length": length, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(outputs, (x, layer.directions, layer.length, layer.bias))
    layer(x).square().sum().backward()
    along = (layer.directions.grad * layer.directions).sum(dim=1)  # directions only turn
    torch.testing.assert_close(along, torch.zeros_like(along), atol=1e-9, rtol=0)


# --- Input dropout ---


def many(entries=20_000):
    generator = seeded(9)
    ids, weights = torch.randint(SIZE, (entries,), generator=generator), torch.rand(entries, generator=generator) + 1
    return Bags(ids, weights, torch.tensor([0, 100, 100, entries]))


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_about_the_share_is_kept_and_not_rescaled(share):
    bags = many()
    kept = keep_features(bags, share, seeded())
    assert torch.equal(kept.ids, bags.ids)
    assert torch.equal(kept.offsets, bags.offsets)
    there = kept.weights != 0
    deviation = math.sqrt(share * (1 - share) / len(bags.ids))
    assert abs(there.float().mean().item() - share) < 5 * deviation
    assert torch.equal(kept.weights[there], bags.weights[there])  # Sec. 3.3 multiplies by a Bernoulli draw, no more


def test_the_generator_decides_what_is_kept():
    bags = many()
    before = bags.weights.clone()
    first, again, other = (keep_features(bags, 0.5, seeded(seed)).weights for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(bags.weights, before)


def test_all_are_kept_at_one():
    bags = many()
    assert torch.equal(keep_features(bags, 1.0, seeded()).weights, bags.weights)
