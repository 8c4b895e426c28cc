"""Encoders against dense products, gradients against a dense embedding and against numerical ones."""

from __future__ import annotations

import itertools
import math
from unittest.mock import patch

import numpy as np
import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.nn import encoders
from zipfel.nn.encoders import (
    LONG,
    SHORT,
    AveragingNetwork,
    EmbeddingTable,
    NormedLinear,
    QuantizedTextBlock,
    TextBlock,
    averaged,
    drop_features,
    dropped,
    in_parts,
    steady_linear,
    unique_ids,
    whole,
    whole_product,
    whole_products_are_sound,
)
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
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0).train(training)
    bags = packed(rows)
    sums = table(bags)
    assert sums.shape == (len(rows), WIDTH)
    torch.testing.assert_close(sums.detach(), dense(bags) @ table.rows, atol=1e-5, rtol=1e-5)
    slow = torch.tensor(reference.bag_sums(table.rows.tolist(), rows, WIDTH)).reshape(-1, WIDTH)
    torch.testing.assert_close(sums.detach(), slow, atol=1e-5, rtol=1e-5)


@given(lists)
def test_gradients_are_those_of_a_dense_embedding(rows):
    table, bags = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0), packed(rows)
    weight = table.rows.clone().requires_grad_()
    for sums in (table(bags), dense(bags) @ weight):
        (sums.square().sum() + sums.sum()).backward()
    [(ids, leaf)] = table.touched
    assert ids.tolist() == sorted(set(bags.ids.tolist()))
    found = torch.zeros(SIZE, WIDTH)
    found[ids] = torch.zeros(0, WIDTH) if leaf.grad is None else leaf.grad
    torch.testing.assert_close(found, weight.grad, atol=1e-4, rtol=1e-4)


def test_empty_bags_are_zero_and_take_no_gradient():
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
    sums = table(packed([[], [(2, 1.0)], []]))
    assert sums[0].tolist() == sums[2].tolist() == [0.0] * WIDTH
    sums[0].sum().backward()
    assert table.touched[0][1].grad.abs().sum() == 0


def test_nothing_is_remembered_but_in_training():
    table, bags = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0), packed([[(1, 1.0)]])
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
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
    before = table.rows.clone()
    leaf = table.gather(torch.tensor([4, 6]))
    torch.testing.assert_close(leaf.detach(), before[[4, 6]])
    leaf.detach().zero_()
    assert torch.equal(table.rows, before)


def test_a_table_starts_by_generator_and_scale():
    same = [EmbeddingTable(2000, 8, seeded(3), std=0.5).rows for _ in range(2)]
    assert torch.equal(*same)
    assert same[0].mean().item() == pytest.approx(0, abs=0.02)
    assert same[0].std().item() == pytest.approx(0.5, rel=0.05)
    assert not torch.equal(same[0], EmbeddingTable(2000, 8, seeded(4), std=0.5).rows)


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


def test_a_normed_layer_starts_by_generator_in_all_directions():
    same, other = [NormedLinear(60, 50, seeded(3)).directions for _ in range(2)], NormedLinear(60, 50, seeded(4))
    assert torch.equal(*same)
    assert not torch.equal(same[0], other.directions)
    assert same[0].mean().item() == pytest.approx(0, abs=0.1)
    assert same[0].std().item() == pytest.approx(1, rel=0.05)
    assert other.length.item() ** 2 == pytest.approx(2)  # as long as a ReLU's inputs are kept by (He et al., 2015)
    assert not other.bias.any()


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
    kept = drop_features(bags, 1 - share, seeded())
    assert torch.equal(kept.ids, bags.ids)
    assert torch.equal(kept.offsets, bags.offsets)
    there = kept.weights != 0
    deviation = math.sqrt(share * (1 - share) / len(bags.ids))
    assert abs(there.float().mean().item() - share) < 5 * deviation
    assert torch.equal(kept.weights[there], bags.weights[there])  # Sec. 3.3 multiplies by a Bernoulli draw, no more


def test_the_generator_decides_what_is_kept():
    bags = many()
    before = bags.weights.clone()
    first, again, other = (drop_features(bags, 0.5, seeded(seed)).weights for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(bags.weights, before)


def test_all_are_kept_without_dropout():
    bags = many()
    assert torch.equal(drop_features(bags, 0.0, seeded()).weights, bags.weights)


# --- Averages ---


def kept_of(rows, share, seed):
    """Return the mask that a generator draws: a list of 0 and 1 for each bag, 1 for kept entries."""
    draws = iter((torch.rand(sum(map(len, rows)), generator=seeded(seed)) < 1 - (1 - share)).int().tolist())
    return [[next(draws) for _ in row] for row in rows]


@given(rows=lists, share=st.sampled_from([0.3, 0.8, 1.0]), seed=st.integers(0, 99))
def test_averages_equal_loops(rows, share, seed):
    table, bags = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0), packed(rows)
    kept = [[1] * len(row) for row in rows] if share == 1 else kept_of(rows, share, seed)
    slow = torch.tensor(reference.averages(table.rows.tolist(), rows, kept, WIDTH)).reshape(-1, WIDTH)
    before = bags.weights.clone()
    found = averaged(bags, 1 - share, seeded(seed))
    torch.testing.assert_close(table(found).detach(), slow, atol=1e-5, rtol=1e-5)
    assert torch.equal(found.ids, bags.ids)
    assert torch.equal(found.offsets, bags.offsets)
    assert torch.equal(bags.weights, before)


def test_an_average_by_hand():
    found = averaged(packed([[(1, 2.0), (3, 4.0)], [], [(0, 5.0)]]), 0.0, seeded())
    assert found.weights.tolist() == [1.0, 2.0, 5.0]  # of a mean, 1/K: weights are not made to add up to 1


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_an_average_keeps_about_the_share_and_divides_by_what_it_kept(share):
    bags = many()
    found = averaged(bags, 1 - share, seeded())
    there = found.weights != 0
    assert abs(there.float().mean().item() - share) < 5 * math.sqrt(share * (1 - share) / len(bags.ids))
    for start, end in ((0, 100), (100, len(bags.ids))):
        count = there[start:end].sum()
        torch.testing.assert_close(found.weights[start:end], bags.weights[start:end] * there[start:end] / count)
    first, again, other = (averaged(bags, 1 - share, seeded(seed)).weights for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_all_are_averaged_without_dropout_whatever_the_generator():
    bags = many()
    assert torch.equal(averaged(bags, 0.0, seeded(1)).weights, averaged(bags, 0.0, seeded(2)).weights)
    assert (averaged(bags, 0.0, seeded()).weights > 0).all()


def test_an_averaging_network_gives_unit_vectors_and_zero_for_nothing():
    network = AveragingNetwork(SIZE, WIDTH, seeded())
    rows = [[(1, 2.0), (3, 4.0)], [], [(0, 5.0)], [(1, 1.0), (3, 2.0)]]
    found = network(packed(rows)).detach()
    torch.testing.assert_close(found.norm(dim=1), torch.tensor([1.0, 0.0, 1.0, 1.0]))
    sums = torch.tensor(reference.bag_sums(network.table.rows.tolist(), rows, WIDTH))
    cosines = [reference.cosine(one, other) for one, other in zip(found.tolist(), sums.tolist(), strict=True)]
    assert cosines == pytest.approx([1, 0, 1, 1], abs=1e-6)
    torch.testing.assert_close(found[0], found[3])  # only the direction counts


def test_a_point_that_loses_all_its_features_is_zero_and_so_is_its_gradient():
    network = AveragingNetwork(SIZE, WIDTH, seeded())
    found = network(packed([[(1, 2.0), (3, 4.0)], [(2, 1.0)], []]), 1 - 1e-9, seeded())
    assert found.abs().max() == 0
    (found * torch.randn(3, WIDTH, generator=seeded(2))).sum().backward()
    [(ids, leaf)] = network.table.touched
    assert ids.tolist() == [1, 2, 3]
    assert leaf.grad.tolist() == [[0.0] * WIDTH] * 3


def test_dropped_features_take_no_gradient_and_kept_ones_do():
    network, bags = AveragingNetwork(SIZE, WIDTH, seeded()), packed([[(k, 1.0) for k in range(SIZE)]])
    there = averaged(bags, 0.5, seeded(1)).weights != 0
    assert 0 < there.sum() < SIZE
    (network(bags, 0.5, seeded(1)) * torch.randn(WIDTH, generator=seeded(2))).sum().backward()
    [(_, leaf)] = network.table.touched
    assert torch.equal((leaf.grad != 0).any(dim=1), there)


# --- Steady products ---


def test_a_steady_product_has_the_same_bits_in_every_batch():
    generator = seeded(4)
    x, weight, bias = (torch.randn(shape, generator=generator) for shape in ((300, 96), (40, 96), (40,)))
    with torch.no_grad():
        whole = steady_linear(x, weight, bias)
        for size in (1, 3, 17, 128):
            parts = torch.cat([steady_linear(part, weight, bias) for part in x.split(size)])
            assert torch.equal(parts, whole), size
    assert whole.dtype == torch.float32
    exact = x.double() @ weight.double().T + bias.double()
    assert (whole - exact).abs().max() <= 1e-6 * exact.abs().max()


def test_a_steady_product_learns():
    layer = torch.nn.Linear(3, 4).double()
    x = torch.randn(2, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(steady_linear, (x, layer.weight, layer.bias))
    narrow = torch.nn.Linear(3, 4)
    assert steady_linear(x.float(), narrow.weight, narrow.bias).requires_grad
    torch.testing.assert_close(steady_linear(x.float(), narrow.weight, narrow.bias), narrow(x.float()))


# --- DECAF's text block ---


def text_block(width=5, seed=0):
    block, generator = TextBlock(width), seeded(seed)
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.normal_(0, 1, generator=generator)
    return block


def test_a_text_block_begins_as_the_identity():
    """R = I and α = β = 0: half of r̂, and half of what its ReLU lets through."""
    sums = torch.tensor([[4.0, -2.0, 0.0]])
    assert TextBlock(3)(sums).tolist() == [[4.0, -1.0, 0.0]]
    assert TextBlock(3).eval()(sums).tolist() == [[4.0, -1.0, 0.0]]


def test_a_text_block_equals_loops():
    block, sums = text_block().eval(), torch.randn(4, 5, generator=seeded(1))
    R = (block.R / torch.linalg.svdvals(block.R).max()).tolist()
    for _ in range(300):
        block.train().spectral()
    slow = torch.tensor(reference.text_block(sums.tolist(), R, block.alpha.tolist(), block.beta.tolist()))
    torch.testing.assert_close(block.eval()(sums).detach(), slow, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(block(sums), slow, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_singular_value_of_a_residual_layer_becomes_1(seed):
    block = text_block(16, seed)
    before = block.R.detach().clone()
    for _ in range(300):
        block.spectral()
    found = block.spectral().detach()
    assert torch.linalg.matrix_norm(found, 2).item() == pytest.approx(1, abs=1e-3)
    torch.testing.assert_close(found / found[0, 0], before / before[0, 0])  # divided by a number, no more
    assert torch.equal(block.R, before)


def test_singular_vectors_move_in_training_only():
    block = text_block()
    start = block.left.clone()
    block.eval().spectral()
    assert torch.equal(block.left, start)
    block.train().spectral()
    assert not torch.equal(block.left, start)
    assert block.left.norm().item() == pytest.approx(1)


def test_a_reset_leaves_combinations_as_they_are():
    block = text_block().train()
    block.spectral()
    alpha, beta = block.alpha.clone(), block.beta.clone()
    block.reset()
    assert torch.equal(block.R, torch.eye(5))
    assert torch.equal(block.left, TextBlock(5).left)
    torch.testing.assert_close(block.spectral(), torch.eye(5))
    assert torch.equal(block.alpha, alpha)
    assert torch.equal(block.beta, beta)


def test_gradients_of_a_text_block():
    block = text_block(3).double().eval()  # in eval, so that a step of power iteration does not change the function
    sums = torch.randn(2, 3, generator=seeded(1), dtype=torch.float64, requires_grad=True)
    with torch.no_grad():
        U, _, _ = torch.linalg.svd(block.R)
        block.left.copy_(U[:, 0])

    def outputs(sums, R, alpha, beta):
        return torch.func.functional_call(block, {"R": R, "alpha": alpha, "beta": beta}, (sums,))

    assert torch.autograd.gradcheck(outputs, (sums, block.R, block.alpha, block.beta))


def test_a_text_block_drops_only_behind_its_relu():
    block, sums = TextBlock(400), torch.ones(50, 400)
    found = block(sums, 0.5, seeded()).detach()  # ½ of r̂, and ½ of 0 or 2
    assert found.round(decimals=3).unique().tolist() == [0.5, 1.5]
    assert found.mean().item() == pytest.approx(1, abs=0.03)
    torch.testing.assert_close(block(sums, 0.5), torch.ones(50, 400))  # not without a generator


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_about_the_share_is_dropped_and_the_mean_is_kept(share):
    values = torch.full((300, 101), 3.0)
    found = dropped(values, share, seeded())
    assert found.shape == values.shape
    assert (found == 0).float().mean().item() == pytest.approx(share, abs=0.015)
    assert found.mean().item() == pytest.approx(3, rel=0.05)
    assert len(found.unique()) == 2
    first, again, other = (dropped(values, share, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("shape", [(0, 4), (1, 1), (3, 5), (2, 8)])
def test_any_number_of_numbers_may_be_dropped(shape):
    assert dropped(torch.ones(shape), 0.5, seeded()).shape == shape


def test_what_is_not_dropped():
    values = torch.randn(20, 9, generator=seeded())
    assert dropped(values, 0.5, None) is values
    assert dropped(values, 0.0, seeded()) is values
    assert dropped(values, 0.9999, seeded()).isfinite().all()


def test_what_is_dropped_takes_no_gradient():
    values = torch.randn(20, 9, generator=seeded(), requires_grad=True)
    found = dropped(values, 0.5, seeded(1))
    found.sum().backward()
    assert torch.equal(values.grad, 2.0 * (found != 0))


@given(sizes=st.lists(st.integers(1, 9), max_size=6), piece=st.integers(1, 4), seed=st.integers(0, 99))
def test_sums_of_pieces_are_sums(sizes, piece, seed):
    generator = torch.Generator().manual_seed(seed)
    total, rows = sum(sizes), torch.randn(5, 3, generator=generator)
    ids, weights = torch.randint(5, (total,), generator=generator), torch.randn(total, generator=generator)
    bags = Bags(ids, weights, torch.tensor([0, *itertools.accumulate(sizes)]))
    with patch.object(encoders, "PIECE", piece):
        found = encoders.sum_of_pieces(ids, rows, bags)
    torch.testing.assert_close(found, encoders.weighted_sum(ids, rows, bags))


def test_bags_that_are_reused_give_the_same_gradients_and_are_transposed_once():
    ids, weights, offsets = torch.tensor([1, 0, 1, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 2, 2, 4])
    slopes = []
    for bags in (Bags(ids, weights, offsets), encoders.Reused(ids, weights, offsets)):
        table = EmbeddingTable(5, 2, torch.Generator().manual_seed(0), std=1.0).train()
        (table(bags) * torch.arange(6.0).view(3, 2)).sum().backward()
        slopes.append((table.touched[0][0].tolist(), table.touched[0][1].grad.tolist()))
    assert slopes[0] == slopes[1]
    assert slopes[0][0] == [0, 1, 3]
    with patch.object(encoders.TransposedBags, "of", side_effect=AssertionError):
        EmbeddingTable(5, 2, torch.Generator(), std=1.0).train()(bags)


# --- text blocks for prediction ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 2, 7, 64, 300])
def test_a_ready_block_is_the_block_and_the_batch_changes_nothing(width):
    block = text_block(width).eval()
    sums = torch.randn(9, width, generator=seeded(3)) * 10.0 ** torch.arange(-4, 5)[:, None]  # rows small and large
    sums[4] = 0
    quantized = QuantizedTextBlock(block)
    found = quantized(sums)
    assert found.dtype == torch.float64
    lengths = sums.norm(dim=1, keepdim=True).clamp_min(1e-9)
    with torch.no_grad():
        torch.testing.assert_close(found.float() / lengths, block(sums) / lengths, rtol=1e-4, atol=3e-6)
    for place in range(9):
        assert torch.equal(quantized(sums[place : place + 1]), found[place : place + 1])
    assert (found[4] == 0).all()


@pytest.mark.parametrize("points", [1, 5])
def test_the_slope_of_a_ready_block_is_that_of_the_block(points):
    block = text_block(16).eval()
    sums = torch.randn(points, 16, generator=seeded(3)).requires_grad_()
    aim = torch.randn(points, 16, generator=seeded(4))
    slopes = [torch.autograd.grad((encode(sums) * aim).sum(), sums)[0] for encode in (QuantizedTextBlock(block), block)]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-4)


@given(numbers=st.lists(st.integers(-LONG, LONG), min_size=2, max_size=40), seed=st.integers(0, 99))
def test_products_of_whole_numbers_are_exact(numbers, seed):
    generator = seeded(seed)
    others = torch.randint(-SHORT, SHORT + 1, (5, len(numbers)), generator=generator)
    row = np.array([numbers], dtype=np.float32)
    parts = in_parts(row, 3)
    assert parts.dtype == np.int8
    assert (parts.T @ np.array([1.0, 256.0, 256.0**2])).tolist() == numbers
    assert not in_parts(others.numpy(), 3)[10:].any()  # two are enough
    if whole_products_are_sound(len(numbers)):  # else nobody asks for them
        found = whole_product(row, torch.from_numpy(in_parts(others.float().numpy(), 2)).T).tolist()
        assert found == [[sum(a * b for a, b in zip(numbers, other, strict=True)) for other in others.tolist()]]


def test_whole_numbers_are_rounded_by_row_and_none_is_too_long():
    values = torch.tensor([[0.5, -1.0, 1 / 3], [0.0, 0.0, 0.0], [1e-20, 2e-20, -4e-20]])
    numbers, steps = whole(values, LONG)
    assert numbers.abs().amax(dim=1).tolist() == [LONG, 0, LONG]
    assert (numbers == numbers.round()).all()
    torch.testing.assert_close(numbers * steps, values, rtol=1e-5, atol=1e-30)


def test_where_whole_numbers_are_multiplied_wrong_the_result_is_the_same(monkeypatch):
    block, sums = text_block(32).eval(), torch.randn(1, 32, generator=seeded(3))
    wanted = QuantizedTextBlock(block)(sums)
    monkeypatch.setattr(torch, "_int_mm", lambda a, b: torch.zeros(len(a), b.shape[1], dtype=torch.int32))
    whole_products_are_sound.cache_clear()
    quantized = QuantizedTextBlock(block)
    whole_products_are_sound.cache_clear()
    assert quantized.short is None
    assert torch.equal(quantized(sums), wanted)
