"""Adam by rows against torch's SparseAdam, by dense parameters against torch's Adam; SGD against torch's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from zipfel.nn import optim
from zipfel.nn.encoders import EmbeddingTable
from zipfel.nn.optim import Adam, Sgd, merged
from zipfel.types import Bags

SIZE, WIDTH, RATE = 40, 5, 0.05


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def drawn(seed, size=SIZE, bags=6, tokens=4):
    generator = seeded(seed)
    ids = torch.randint(size, (bags * tokens,), generator=generator)
    weights = torch.rand(len(ids), generator=generator) + 0.1
    return Bags(ids, weights, torch.arange(0, len(ids) + 1, tokens))


class Net(nn.Module):
    """A table and a dense layer."""

    def __init__(self):
        super().__init__()
        self.table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
        self.layer = nn.Linear(WIDTH, 2)
        with torch.no_grad():
            for parameter in self.layer.parameters():
                parameter.normal_(generator=seeded(1))

    def loss(self, seed):
        return self.layer(self.table(drawn(seed))).square().mean()


def trained(net, optimiser, steps):
    for seed in steps:
        net.loss(seed).backward()
        optimiser.step(RATE)
    return net


@pytest.mark.parametrize("block", [1, 3 * WIDTH, 1 << 18])
def test_rows_move_as_by_sparse_adam(block, monkeypatch):
    monkeypatch.setattr(optim, "BLOCK", block)  # updated a row, three rows, or all at a time
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
    ours = Adam(table, RATE)
    weight = table.rows.clone().requires_grad_()
    theirs = torch.optim.SparseAdam([weight], lr=RATE)
    for seed in range(12):
        bags = drawn(seed)
        (table(bags) - 1).square().sum().backward()
        ours.step(RATE)
        rows = F.embedding(bags.ids, weight, sparse=True) * bags.weights[:, None]
        (rows.view(6, 4, WIDTH).sum(dim=1) - 1).square().sum().backward()
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(table.rows, weight.detach(), atol=1e-5, rtol=1e-4)
    state = theirs.state[weight]
    torch.testing.assert_close(ours.state[""][0], state["exp_avg"], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.state[""][1], state["exp_avg_sq"], atol=1e-5, rtol=1e-4)


def test_only_touched_rows_and_their_state_change():
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
    optimiser = Adam(table, RATE)
    for seed in (1, 2):
        before = [part.clone() for part in (table.rows, *optimiser.state[""])]
        bags = drawn(seed)
        table(bags).sum().backward()
        optimiser.step(RATE)
        touched = torch.zeros(SIZE, dtype=torch.bool)
        touched[bags.ids] = True
        assert 0 < touched.sum() < SIZE
        for old, new in zip(before, (table.rows, *optimiser.state[""]), strict=True):
            assert torch.equal(old[~touched], new[~touched])
            assert (old[touched] != new[touched]).all()


def test_a_row_touched_twice_is_one_touch_with_the_summed_gradient():
    twice, once = (EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0) for _ in range(2))
    slopes = torch.randn(6, WIDTH, generator=seeded(5))
    for ids, part in (([3, 8, 9], slopes[:3]), ([2, 8, 3], slopes[3:])):
        twice.gather(torch.tensor(ids)).backward(part)
    summed = torch.stack([slopes[3], slopes[0] + slopes[5], slopes[1] + slopes[4], slopes[2]])
    once.gather(torch.tensor([2, 3, 8, 9])).backward(summed)
    ids, gradient = merged(twice.touched)
    assert ids.tolist() == [2, 3, 8, 9]
    torch.testing.assert_close(gradient, summed)
    for table in (twice, once):
        Adam(table, RATE).step(RATE)
    torch.testing.assert_close(twice.rows, once.rows)


@pytest.mark.parametrize("kind", [Adam, Sgd])
@pytest.mark.parametrize("also", [False, True])
def test_all_rows_at_once_move_as_by_their_ids(kind, also):
    """Without ids nothing is copied; bags of the same step, which touch some rows besides, join them."""
    tables = whole, named = [EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0) for _ in range(2)]
    optimisers = [kind(table, RATE) for table in tables]
    for step in range(4):
        for table, optimiser, ids in zip(tables, optimisers, (None, torch.arange(SIZE)), strict=True):
            slopes = torch.randn(SIZE, WIDTH, generator=seeded(step))
            loss = (table.gather(ids) * slopes).sum() + (table(drawn(step)).square().sum() if also else 0)
            loss.backward()
            optimiser.step(RATE)
    torch.testing.assert_close(whole.rows, named.rows)
    torch.testing.assert_close(optimisers[0].state_dict(), optimisers[1].state_dict())
    assert whole.gather().data_ptr() == whole.rows.data_ptr()
    assert (whole.rows != EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0).rows).all()


def test_what_was_touched_but_not_learned_from_is_forgotten():
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
    optimiser, before = Adam(table, RATE), table.rows.clone()
    table(drawn(0))  # no backward pass
    optimiser.step(RATE)
    assert torch.equal(table.rows, before)
    assert table.touched == []
    table(drawn(0))
    table.gather(torch.tensor([7])).sum().backward()  # only one of two takes part in the loss
    optimiser.step(RATE)
    assert torch.nonzero((table.rows != before).any(dim=1))[:, 0].tolist() == [7]


def test_gradients_of_several_passes_add_up():
    apart, together = Net(), Net()
    apart.loss(1).backward()
    apart.loss(2).backward()
    (together.loss(1) + together.loss(2)).backward()
    for net in (apart, together):
        Adam(net, RATE).step(RATE)
    torch.testing.assert_close(apart.state_dict(), together.state_dict())


def test_dense_parameters_move_as_by_adam_and_the_rate_is_the_step_s():
    layers = [nn.Linear(4, 3), nn.Linear(4, 3)]
    layers[1].load_state_dict(layers[0].state_dict())
    ours, theirs = Adam(layers[0], rate=99.0), torch.optim.Adam(layers[1].parameters())
    for step in range(5):
        x = torch.randn(6, 4, generator=seeded(step))
        for layer in layers:
            layer(x).square().mean().backward()
        ours.step(RATE / (1 + step))
        theirs.param_groups[0]["lr"] = RATE / (1 + step)
        theirs.step()
        theirs.zero_grad()
        assert all(parameter.grad is None for parameter in layers[0].parameters())
    torch.testing.assert_close(layers[0].state_dict(), layers[1].state_dict())


def test_frozen_parameters_stay():
    net = Net()
    net.layer.bias.requires_grad_(False)
    before = net.layer.bias.clone()
    trained(net, Adam(net, RATE), range(3))
    assert torch.equal(net.layer.bias, before)


def test_a_saved_state_goes_on_bit_for_bit():
    undisturbed = Net()
    trained(undisturbed, Adam(undisturbed, RATE), range(9))
    first = Net()
    optimiser = Adam(first, RATE)
    trained(first, optimiser, range(4))
    saved = {name: value.clone() for name, value in optimiser.state_dict().items()}
    second = Net()
    second.load_state_dict(first.state_dict())
    resumed = Adam(second, RATE)
    resumed.load_state_dict(saved)
    kept = {name: value.clone() for name, value in saved.items()}
    trained(second, resumed, range(4, 9))
    for name, value in undisturbed.state_dict().items():
        assert torch.equal(second.state_dict()[name], value)
    for name, value in saved.items():  # what was loaded is not written to
        assert torch.equal(value, kept[name])


def test_a_state_from_before_the_first_step_starts_over():
    net = Net()
    optimiser = Adam(net, RATE)
    fresh = {name: value.clone() for name, value in optimiser.state_dict().items()}
    trained(net, optimiser, range(3))
    optimiser.load_state_dict(fresh)
    net.load_state_dict(Net().state_dict())
    trained(net, optimiser, range(2))
    other = Net()
    trained(other, Adam(other, RATE), range(2))
    for name, value in other.state_dict().items():
        assert torch.equal(net.state_dict()[name], value)


# --- SGD ---


def test_dense_parameters_move_as_by_sgd_and_the_rate_is_the_step_s():
    layers = [nn.Linear(4, 3), nn.Linear(4, 3)]
    layers[1].load_state_dict(layers[0].state_dict())
    ours = Sgd(layers[0], rate=99.0, momentum=0.8, decay=0.1)
    theirs = torch.optim.SGD(layers[1].parameters(), lr=RATE, momentum=0.8, weight_decay=0.1)
    for step in range(6):
        x = torch.randn(6, 4, generator=seeded(step))
        for layer in layers:
            layer(x).square().mean().backward()
        ours.step(RATE / (1 + step))
        theirs.param_groups[0]["lr"] = RATE / (1 + step)
        theirs.step()
        theirs.zero_grad()
    torch.testing.assert_close(layers[0].state_dict(), layers[1].state_dict())


def test_sgd_has_dxml_s_momentum_and_decay():
    layers = [nn.Linear(4, 3), nn.Linear(4, 3)]
    layers[1].load_state_dict(layers[0].state_dict())
    ours = Sgd(layers[0], 0.015)
    theirs = torch.optim.SGD(layers[1].parameters(), lr=0.015, momentum=0.9, weight_decay=0.0005)  # Sec. 4.1
    for step in range(6):
        for layer in layers:
            layer(torch.randn(6, 4, generator=seeded(step))).square().mean().backward()
        ours.step(0.015)
        theirs.step()
        theirs.zero_grad()
    torch.testing.assert_close(layers[0].state_dict(), layers[1].state_dict(), atol=1e-8, rtol=1e-6)


def test_rows_that_every_step_touches_move_as_by_sgd():
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
    weight = table.rows.clone().requires_grad_()
    ours = Sgd(table, RATE, momentum=0.7, decay=0.2)
    theirs = torch.optim.SGD([weight], lr=RATE, momentum=0.7, weight_decay=0.2)
    every = torch.arange(SIZE)
    for step in range(8):
        values = torch.rand(SIZE, generator=seeded(step)) + 0.1
        (table(Bags(every, values, torch.arange(0, SIZE + 1, 4))) - 1).square().sum().backward()
        ours.step(RATE / (1 + step))
        ((weight * values[:, None]).view(SIZE // 4, 4, WIDTH).sum(dim=1) - 1).square().sum().backward()
        theirs.param_groups[0]["lr"] = RATE / (1 + step)
        theirs.step()
        theirs.zero_grad()
        torch.testing.assert_close(table.rows, weight.detach(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(ours.state[""][0], theirs.state[weight]["momentum_buffer"], atol=1e-5, rtol=1e-4)


def test_rows_that_sgd_does_not_touch_neither_decay_nor_move_on():
    table = EmbeddingTable(SIZE, WIDTH, seeded(), std=1.0)
    optimiser = Sgd(table, RATE, decay=0.5)
    for seed in (1, 2, 3):
        before = [part.clone() for part in (table.rows, *optimiser.state[""])]
        bags = drawn(seed)
        table(bags).sum().backward()
        optimiser.step(RATE)
        touched = torch.zeros(SIZE, dtype=torch.bool)
        touched[bags.ids] = True
        for old, new in zip(before, (table.rows, *optimiser.state[""]), strict=True):
            assert torch.equal(old[~touched], new[~touched])
            assert (old[touched] != new[touched]).all()


def test_a_saved_state_of_sgd_goes_on_bit_for_bit():
    undisturbed, first, second = Net(), Net(), Net()
    trained(undisturbed, Sgd(undisturbed, RATE), range(9))
    optimiser = Sgd(first, RATE)
    trained(first, optimiser, range(4))
    saved = {name: value.clone() for name, value in optimiser.state_dict().items()}
    assert {"steps", "table.table.velocity", "dense.0.momentum_buffer", "dense.1.momentum_buffer"} == set(saved)
    second.load_state_dict(first.state_dict())
    resumed = Sgd(second, RATE)
    resumed.load_state_dict(saved)
    assert resumed.steps == 4
    trained(second, resumed, range(4, 9))
    for name, value in undisturbed.state_dict().items():
        assert torch.equal(second.state_dict()[name], value)
    forgetful = Net()
    forgetful.load_state_dict(first.state_dict())
    trained(forgetful, Sgd(forgetful, RATE), range(4, 9))
    assert not torch.equal(forgetful.table.rows, undisturbed.table.rows)  # its state matters
