"""Losses against slow loops, against numerical gradients, against values worked by hand."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.nn import losses
from zipfel.types import Bags

LOSSES = ["margin", "softmax", "logistic", "decoupled"]


def call(name, positive, scores, targets, mask):
    if name == "margin":
        return losses.margin(positive, scores, 0.3, mask)
    if name == "softmax":
        return losses.softmax(positive, scores, mask)
    if name == "decoupled":
        return losses.decoupled(scores, targets, mask)
    return losses.logistic(scores, targets, mask)


def slow(name, positive, scores, targets, mask):
    positive, scores, targets, mask = (part.tolist() for part in (positive, scores, targets, mask))
    if name == "margin":
        return reference.margin_loss(positive, scores, 0.3, mask)
    if name == "softmax":
        return reference.softmax_loss(positive, scores, mask)
    if name == "decoupled":
        return reference.decoupled_loss(scores, targets, mask)
    return reference.logistic_loss(scores, targets, mask)


def drawn(points, labels, seed):
    generator = torch.Generator().manual_seed(seed)
    positive = torch.randn(points, generator=generator, dtype=torch.float64)
    scores = 2 * torch.randn(points, labels, generator=generator, dtype=torch.float64)
    targets = torch.randint(2, (points, labels), generator=generator).double()
    mask = torch.rand(points, labels, generator=generator) < 0.6
    return positive, scores, targets, mask


@pytest.mark.parametrize("name", LOSSES)
@given(points=st.integers(1, 5), labels=st.integers(0, 6), seed=st.integers(0, 999))
def test_equal_to_loops(name, points, labels, seed):
    positive, scores, targets, mask = drawn(points, labels, seed)
    masked = call(name, positive, scores, targets, mask)
    assert masked.item() == pytest.approx(slow(name, positive, scores, targets, mask), abs=1e-12)
    whole = call(name, positive, scores, targets, None)
    assert whole.item() == pytest.approx(slow(name, positive, scores, targets, torch.ones_like(mask)), abs=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("masked", [False, True])
def test_gradients(name, masked):
    positive, scores, targets, mask = drawn(4, 5, 1)
    mask[0] = False  # a point with nothing to be held against
    inputs = (positive.requires_grad_(), scores.requires_grad_())
    assert torch.autograd.gradcheck(lambda p, s: call(name, p, s, targets, mask if masked else None), inputs)


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_masked_has_no_gradient(name):
    positive, scores, targets, mask = drawn(4, 5, 2)
    mask[0] = False
    call(name, positive.requires_grad_(), scores.requires_grad_(), targets, mask).backward()
    assert torch.isfinite(scores.grad).all()
    assert (scores.grad[~mask] == 0).all()
    assert (scores.grad[mask] != 0).any()


def test_margin_by_hand():
    positive, negatives = torch.tensor([0.9, 0.1]), torch.tensor([[0.8, 0.2], [0.1, 0.4]])
    # first point: [0.8 - 0.9 + 0.2]+ = 0.1 and 0;  second: 0.2 and 0.5
    assert losses.margin(positive, negatives, 0.2).item() == pytest.approx((0.1 + 0.7) / 2)
    mask = torch.tensor([[True, True], [True, False]])
    assert losses.margin(positive, negatives, 0.2, mask).item() == pytest.approx((0.1 + 0.2) / 2)


def test_softmax_by_hand():
    equal = losses.softmax(torch.zeros(1), torch.zeros(1, 3))
    assert equal.item() == pytest.approx(math.log(4))
    assert losses.softmax(torch.zeros(1), torch.zeros(1, 3), torch.zeros(1, 3, dtype=torch.bool)).item() == 0


def test_weights_of_negatives_by_hand():
    """A pair with weight 3 counts as three equal ones; one with weight 0 is left out."""
    positive, negatives = torch.tensor([0.9, 0.1]), torch.tensor([[0.8, 0.2], [0.1, 0.4]])
    weights = torch.tensor([[3.0, 1.0], [0.0, 2.0]])
    assert losses.margin(positive, negatives, 0.2, weights).item() == pytest.approx((0.3 + 1.0) / 2)
    equal = losses.softmax(torch.zeros(1), torch.zeros(1, 2), torch.tensor([[3.0, 0.0]]))
    assert equal.item() == pytest.approx(math.log(4))


@pytest.mark.parametrize("weights", [torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool)])
def test_without_negatives_a_loss_is_0_and_has_no_gradient(weights):
    for loss in (lambda p, n: losses.margin(p, n, 0.2, weights), lambda p, n: losses.softmax(p, n, weights)):
        positive, negatives = torch.zeros(1, requires_grad=True), torch.ones(1, 2, requires_grad=True)
        value = loss(positive, negatives)
        value.backward()
        assert (value.item(), positive.grad.tolist(), negatives.grad.tolist()) == (0, [0], [[0, 0]])


def test_logistic_by_hand():
    scores, targets = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[1.0, 0.0]])
    assert losses.logistic(scores, targets).item() == pytest.approx(math.log(2) + math.log(4))


@pytest.mark.parametrize("name", ["softmax", "logistic"])
def test_large_scores_do_not_overflow(name):
    positive, scores = torch.tensor([300.0]), torch.tensor([[500.0, -500.0]])
    value = call(name, positive, scores, torch.zeros(1, 2), None).item()
    assert value == pytest.approx(200 if name == "softmax" else 500)


# --- MNN's matching loss ---


def cosines(points, others, seed):
    generator = torch.Generator().manual_seed(seed)
    positive, negatives = (2 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1
                           for shape in ((points,), (points, others)))  # fmt: skip
    return positive, negatives, torch.rand(points, others, generator=generator) < 0.6


@given(
    points=st.integers(1, 5),
    others=st.integers(0, 6),
    m=st.sampled_from([-1.0, -0.5, 0.0, 0.1, 0.9]),
    reduction=st.sampled_from(["max", "mean", "sum"]),
    seed=st.integers(0, 999),
)
def test_matching_equals_loops(points, others, m, reduction, seed):
    positive, negatives, mask = cosines(points, others, seed)
    for given_mask, all_of_it in ((mask, mask), (None, torch.ones_like(mask))):
        slow = reference.matching_loss(positive.tolist(), negatives.tolist(), m, all_of_it.tolist(), reduction)
        fast = losses.matching(positive, negatives, m, given_mask, reduction)
        assert fast.item() == pytest.approx(slow, abs=1e-12)


def test_matching_by_hand():
    positive = torch.tensor([0.5, -1.0, 1.0])
    negatives = torch.tensor([[0.3, 0.6], [0.2, -0.9], [0.0, 0.1]])
    # ¼ · 0.25 + 0.36;  ¼ · 4 + 0.04, for -0.9 is below the margin;  0 + 0, for 0.1 is not above it
    assert losses.matching(positive, negatives, 0.1).item() == pytest.approx((0.4225 + 1.04 + 0) / 3)
    # 0.09 + 0.36 = 0.45 of the first, 0.04 of the second
    added = losses.matching(positive, negatives, 0.1, reduction="sum").item()
    assert added == pytest.approx((0.0625 + 0.45 + 1.04 + 0) / 3)
    mean = losses.matching(positive, negatives, 0.1, reduction="mean").item()
    assert mean == pytest.approx((0.0625 + 0.225 + 1.02 + 0) / 3)
    mask = torch.tensor([[True, False], [False, True], [True, True]])
    assert losses.matching(positive, negatives, 0.1, mask).item() == pytest.approx((0.0625 + 0.09 + 1 + 0) / 3)
    mean = losses.matching(positive, negatives, 0.1, mask, "mean").item()  # over the pairs that are left
    assert mean == pytest.approx((0.0625 + 0.09 + 1 + 0) / 3)


def test_a_negative_at_the_margin_costs_nothing_and_a_negative_margin_counts_squares():
    one = torch.ones(1)
    assert losses.matching(one, torch.tensor([[0.5]]), 0.5).item() == 0
    assert losses.matching(one, torch.tensor([[0.5 + 1e-6]]), 0.5).item() == pytest.approx(0.25, abs=1e-5)
    assert losses.matching(one, torch.tensor([[-0.6, 0.5]]), -0.7).item() == pytest.approx(0.36)


@pytest.mark.parametrize("reduction", ["max", "mean", "sum"])
def test_without_negatives_only_the_match_counts(reduction):
    positive = torch.tensor([0.0, 1.0], requires_grad=True)
    loss = losses.matching(positive, torch.empty(2, 0), 0.1, reduction=reduction)
    assert loss.item() == pytest.approx(0.125)
    loss.backward()
    assert positive.grad.tolist() == pytest.approx([-0.25, 0])


@pytest.mark.parametrize("reduction", ["max", "mean", "sum"])
@pytest.mark.parametrize("masked", [False, True])
def test_gradients_of_matching(masked, reduction):
    positive, negatives, mask = cosines(5, 4, 3)
    mask[0] = False
    inputs = (positive.requires_grad_(), negatives.requires_grad_())
    given_mask = mask if masked else None
    assert torch.autograd.gradcheck(lambda p, n: losses.matching(p, n, 0.1, given_mask, reduction), inputs)


def test_only_the_hardest_negative_is_pushed_away():
    negatives = torch.tensor([[0.2, 0.8, 0.5], [0.05, -0.9, 0.0]], requires_grad=True)
    losses.matching(torch.ones(2), negatives, 0.1).backward()
    assert negatives.grad.flatten().tolist() == pytest.approx([0, 0.8, 0, 0, 0, 0])  # 2 · 0.8 / 2


# --- DXML's smooth ℓ1 ---


@given(points=st.integers(1, 5), width=st.integers(1, 6), seed=st.integers(0, 999))
def test_smooth_l1_equals_loops(points, width, seed):
    generator = torch.Generator().manual_seed(seed)
    found, wanted = (torch.randn(points, width, generator=generator, dtype=torch.float64) for _ in range(2))
    slow = reference.smooth_l1_loss(found.tolist(), wanted.tolist())
    assert losses.smooth_l1(found, wanted).item() == pytest.approx(slow, abs=1e-12)
    assert losses.smooth_l1(wanted, found).item() == pytest.approx(slow, abs=1e-12)


def test_smooth_l1_by_hand():
    found, wanted = torch.tensor([[0.0, 1.0, 3.0], [2.0, 2.0, 2.0]]), torch.tensor([[0.5, 0.0, 0.0], [2.0, 2.0, 2.0]])
    # ½ · 0.25, ½ at the seam, 3 - ½; summed over dimensions, the mean over the two points
    assert losses.smooth_l1(found, wanted).item() == pytest.approx((0.125 + 0.5 + 2.5) / 2)


def test_gradients_of_smooth_l1():
    generator = torch.Generator().manual_seed(0)
    found, wanted = (2 * torch.randn(4, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    assert ((found - wanted).abs() > 1).any()
    assert ((found - wanted).abs() < 1).any()
    assert torch.autograd.gradcheck(losses.smooth_l1, (found.requires_grad_(), wanted.requires_grad_()))


# --- LightDXML's distance of points to their labels ---


def owned_labels(points, labels, seed):
    """Draw labels of points as bags: some have none, some have one twice, some labels are nobody's."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 4, (points,), generator=generator)
    places = torch.randint(0, labels, (int(counts.sum()),), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), counts.cumsum(0)])
    x, z = (torch.randn(size, 3, generator=generator, dtype=torch.float64) for size in (points, labels))
    return x, z, offsets, places


@given(points=st.integers(1, 5), labels=st.integers(1, 6), seed=st.integers(0, 999))
def test_log_distance_equals_loops(points, labels, seed):
    x, z, offsets, places = owned_labels(points, labels, seed)
    owned = [places[offsets[i] : offsets[i + 1]].tolist() for i in range(points)]
    slow = reference.log_distance(x.tolist(), z.tolist(), owned)
    assert losses.log_distance(x, z, offsets, places).item() == pytest.approx(slow, abs=1e-12)


def test_log_distance_by_hand():
    x, z = torch.tensor([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]]), torch.tensor([[1.0, 2.0], [1.0, 1.0]])
    offsets, places = torch.tensor([0, 2, 3, 3]), torch.tensor([1, 0, 1])
    # squares 2 and 5 of the first point, 0 of the second, nothing of the third, which still counts as a point
    assert losses.log_distance(x, z, offsets, places).item() == pytest.approx((math.log(3) + math.log(6)) / 3)


def test_gradients_of_log_distance():
    x, z, offsets, places = owned_labels(5, 4, 1)
    assert len(places) > len(places.unique())
    inputs = (x.requires_grad_(), z.requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: losses.log_distance(a, b, offsets, places), inputs)


# --- DECAF's loss against all labels ---

sets = st.sets(st.integers(0, 6))


def packed(rows):
    """Bags of labels, each in an order that is not that of ids."""
    rows = [sorted(row, reverse=True) for row in rows]
    ids = torch.tensor([label for row in rows for label in row], dtype=torch.long)
    return Bags(ids, torch.ones(len(ids)), torch.tensor([0, *(len(row) for row in rows)]).cumsum(0))


def against_all(points, labels, seed):
    generator = torch.Generator().manual_seed(seed)
    x, W = (torch.randn(size, 3, generator=generator).requires_grad_() for size in (points, labels))
    return x, W, torch.randn((), generator=generator).requires_grad_()


def dense_loss(x, W, offset, owned, left_out):
    """The same by a matrix of all scores, with a mask: `logistic` is held against loops above."""
    targets = torch.tensor([[float(label in own) for label in range(len(W))] for own in owned])
    mask = torch.tensor([[label not in out for label in range(len(W))] for out in left_out])
    return losses.logistic(x @ W.T + offset, targets.view(len(x), -1), mask.view(len(x), -1))


@given(owned=st.lists(sets, min_size=1, max_size=5), chunk=st.integers(1, 40), seed=st.integers(0, 99), data=st.data())
def test_all_labels_equal_loops_and_the_dense_loss(owned, chunk, seed, data):
    """Labels come in chunks of any size; points may have none, may have all filtered, and own ones may be filtered."""
    left_out = [data.draw(sets) for _ in owned]
    filtered = packed(left_out) if data.draw(st.booleans()) else None
    left_out = left_out if filtered is not None else [set() for _ in owned]
    inputs = against_all(len(owned), 7, seed)
    with patch.object(losses, "CHUNK", chunk):
        found = losses.all_labels(*inputs, packed(owned), filtered)
        slopes = torch.autograd.grad(3 * found, inputs)
    plain = [part.tolist() for part in inputs]
    assert found.item() == pytest.approx(reference.all_labels_loss(*plain, owned, left_out), rel=1e-4, abs=1e-5)
    wanted = dense_loss(*inputs, owned, left_out)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(slopes, torch.autograd.grad(3 * wanted, inputs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_all_labels_by_hand():
    x, W = torch.tensor([[1.0], [0.0]]), torch.tensor([[math.log(3)], [0.0], [-math.log(3)]])
    # scores ln 3, 0, -ln 3 of the first point, whose label is the last; 0 of the second, which has the first
    loss = losses.all_labels(x, W, torch.tensor(0.0), packed([{2}, {0}]))
    assert loss.item() == pytest.approx((2 * math.log(4) + math.log(2) + 3 * math.log(2)) / 2)


def test_nothing_but_filtered_pairs_costs_nothing():
    inputs = against_all(2, 4, 0)
    everything = packed([set(range(4))] * 2)
    loss = losses.all_labels(*inputs, everything, everything)
    loss.backward()
    assert loss.item() == 0
    assert all((part.grad == 0).all() for part in inputs)


@pytest.mark.parametrize(("points", "labels"), [(0, 5), (3, 0)])
def test_no_points_and_no_labels(points, labels):
    inputs = against_all(points, labels, 0)
    loss = losses.all_labels(*inputs, packed([set()] * points), packed([set()] * points))
    loss.backward()
    assert loss.item() == 0
    assert [part.grad.shape for part in inputs] == [part.shape for part in inputs]


def test_large_scores_against_all_labels_do_not_overflow():
    x, W = torch.tensor([[1.0]]), torch.tensor([[500.0], [-500.0]], requires_grad=True)
    loss = losses.all_labels(x, W, torch.tensor(0.0), packed([{1}]))
    loss.backward()
    assert loss.item() == 1000
    assert W.grad.tolist() == [[1.0], [-1.0]]


@given(rows=st.lists(sets, max_size=5), size=st.integers(1, 9))
def test_pairs_by_chunk_equal_loops(rows, size):
    starts = range(0, 7, size)
    found = losses.pairs_by_chunk(packed(rows), starts)
    assert len(found) == len(starts)
    for start, (owners, labels) in zip(starts, found, strict=True):
        wanted = [
            (row, label - start) for row, own in enumerate(rows) for label in own if start <= label < start + size
        ]
        assert sorted(zip(owners.tolist(), labels.tolist(), strict=True)) == sorted(wanted)


# --- each right label against all wrong ones --------------------------------------------------------------------------


@given(
    owned=st.lists(sets, min_size=1, max_size=5),
    chunk=st.integers(1, 40),
    seed=st.integers(0, 99),
    far=st.sampled_from([1, 8, 60]),
    data=st.data(),
)
def test_decoupled_against_all_labels_equals_the_dense_loss(owned, chunk, seed, far, data):
    """Labels come in chunks of any size; points have none or all, own ones are filtered, scores are far from 0."""
    left_out = [data.draw(sets) for _ in owned]
    points, W, _ = against_all(len(owned), 7, seed)
    W = (far * W.detach()).requires_grad_()
    mask = torch.tensor([[label not in out for label in range(7)] for out in left_out])
    targets = torch.tensor([[float(label in own) for label in range(7)] for own in owned])
    with patch.object(losses, "CHUNK", chunk):
        found = losses.decoupled_all(points, W, packed(owned), packed(left_out))
        slopes = torch.autograd.grad(3 * found, (points, W))
    wanted = losses.decoupled(points @ W.T, targets, mask)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    for ours, theirs in zip(slopes, torch.autograd.grad(3 * wanted, (points, W)), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_decoupled_by_hand():
    """Two right labels do not compete: each stands against the third alone."""
    scores = torch.tensor([[math.log(3), 0.0, 0.0], [0.0, 0.0, 0.0]])
    targets = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    first = (math.log(1 + 1 / 3) + math.log(2)) / 2
    assert losses.decoupled(scores, targets).item() == pytest.approx(first / 2)
    whole = losses.decoupled_all(torch.eye(2), scores.T.contiguous(), packed([{0, 1}, set()]))
    assert whole.item() == pytest.approx(first / 2)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("chunk", [3, 99])
def test_the_farthest_scores_that_need_no_largest_one_neither_overflow_nor_vanish(sign, chunk):
    points, W = torch.tensor([[losses.FAR]]), torch.full((3, 1), float(sign)).requires_grad_()
    with patch.object(losses, "CHUNK", chunk):
        assert losses._Chunks(points, W.detach(), packed([{0}]), None).middle() is not None
        loss = losses.decoupled_all(points, W, packed([{0}]))
        loss.backward()
    assert loss.item() == pytest.approx(math.log(3), rel=1e-5)  # two wrong ones, as good as the right one
    assert W.grad[:, 0].tolist() == pytest.approx([-2 / 3 * losses.FAR, *[losses.FAR / 3] * 2], rel=1e-4)
    assert losses._Chunks(points * 1.01, W.detach(), packed([{0}]), None).middle() is None


@pytest.mark.parametrize("chunk", [64, 1 << 20])
@pytest.mark.parametrize("loss", ["decoupled", "logistic"])
def test_in_short_numbers_losses_and_slopes_are_nearly_the_same(chunk, loss, monkeypatch):
    """As a GPU has it, where lengths are float32 although the products they are taken off are not."""
    norm = torch.Tensor.norm
    monkeypatch.setattr(torch.Tensor, "norm", lambda self, *args, **more: norm(self.float(), *args, **more))
    generator = torch.Generator().manual_seed(0)
    unit = [torch.nn.functional.normalize(torch.randn(size, 64, generator=generator), dim=1) for size in (32, 300)]
    points, W = unit[0].requires_grad_(), (35.37 * unit[1]).requires_grad_()
    owned = [{row, 200 + row} for row in range(32)]

    def worked_out() -> list[torch.Tensor]:
        with patch.object(losses, "CHUNK", chunk):
            if loss == "decoupled":
                found = losses.decoupled_all(points, W, packed(owned))
            else:
                found = losses.all_labels(points, W, torch.tensor(-10.0), packed(owned))
            return [found, *torch.autograd.grad(found, (points, W))]

    wanted = worked_out()
    with torch.autocast("cpu", torch.bfloat16):
        short = worked_out()
    for ours, theirs in zip(short, wanted, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - theirs).norm() < 0.015 * theirs.norm()


def test_short_scores_of_a_pool_are_judged_in_whole_numbers():
    scores = torch.tensor([[30.0, 29.0, 1.0, 2.0]]).bfloat16()
    targets = torch.tensor([[1.0, 0.0, 0.0, 0.0]])
    loss = losses.decoupled(scores, targets)
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(math.log(1 + math.exp(-1)), rel=1e-5)


def test_chunks_of_many_labels_are_even():
    points, W = torch.zeros(2, 3), torch.zeros(1000, 3)
    for room, size in ((2 * 300, 256), (2 * 128, 128), (2 * 127, 127), (1, 1)):
        with patch.object(losses, "CHUNK", room):
            assert losses._Chunks(points, W, packed([set(), set()]), None).size == size


def test_large_scores_do_not_overflow_when_decoupled():
    W = torch.tensor([[500.0], [-500.0]], requires_grad=True)
    loss = losses.decoupled_all(torch.tensor([[1.0]]), W, packed([{1}]))
    loss.backward()
    assert loss.item() == 1000
    assert W.grad.tolist() == [[1.0], [-1.0]]


@pytest.mark.parametrize(("points", "labels"), [(0, 5), (3, 0)])
def test_no_points_and_no_labels_when_decoupled(points, labels):
    x, W, _ = against_all(points, labels, 0)
    loss = losses.decoupled_all(x, W, packed([set()] * points))
    loss.backward()
    assert loss.item() == 0
    assert [part.grad.shape for part in (x, W)] == [x.shape, W.shape]
