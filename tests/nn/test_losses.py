"""Losses against slow loops, against numerical gradients, against values worked by hand."""

from __future__ import annotations

import math

import pytest
import reference
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.nn import losses

LOSSES = ["margin", "softmax", "logistic"]


def call(name, positive, scores, targets, mask):
    if name == "margin":
        return losses.margin(positive, scores, 0.3, mask)
    if name == "softmax":
        return losses.softmax(positive, scores, mask)
    return losses.logistic(scores, targets, mask)


def slow(name, positive, scores, targets, mask):
    positive, scores, targets, mask = (part.tolist() for part in (positive, scores, targets, mask))
    if name == "margin":
        return reference.margin_loss(positive, scores, 0.3, mask)
    if name == "softmax":
        return reference.softmax_loss(positive, scores, mask)
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


def test_logistic_by_hand():
    scores, targets = torch.tensor([[0.0, math.log(3)]]), torch.tensor([[1.0, 0.0]])
    assert losses.logistic(scores, targets).item() == pytest.approx(math.log(2) + math.log(4))


@pytest.mark.parametrize("name", ["softmax", "logistic"])
def test_large_scores_do_not_overflow(name):
    positive, scores = torch.tensor([300.0]), torch.tensor([[500.0, -500.0]])
    value = call(name, positive, scores, torch.zeros(1, 2), None).item()
    assert value == pytest.approx(200 if name == "softmax" else 500)
