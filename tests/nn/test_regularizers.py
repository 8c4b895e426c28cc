"""Regularizers against slow loops, against numerical gradients, against each other, against values worked by hand."""

from __future__ import annotations

import pytest
import reference
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from zipfel.nn import regularizers

CALLS = {
    "glas": lambda X, V, U: regularizers.glas(V, U),
    "spread_out": lambda X, V, U: regularizers.spread_out(V),
    "laplacian": lambda X, V, U: regularizers.laplacian(V, U),
    "gravity": lambda X, V, U: regularizers.gravity(X, V),
}
SLOW = {
    "glas": lambda X, V, U: reference.glas_regularizer(V, U),
    "spread_out": lambda X, V, U: reference.spread_out_regularizer(V),
    "laplacian": lambda X, V, U: reference.laplacian_regularizer(V, U),
    "gravity": lambda X, V, U: reference.gravity_regularizer(X, V),
}


def drawn(points, labels, width, seed):
    """Return X, V (of any length) and a symmetric U with ones on its diagonal."""
    generator = torch.Generator().manual_seed(seed)
    X = torch.randn(points, width, generator=generator, dtype=torch.float64)
    V = torch.randn(labels, width, generator=generator, dtype=torch.float64)
    half = torch.rand(labels, labels, generator=generator, dtype=torch.float64).tril(-1)
    return X, V, half + half.T + torch.eye(labels, dtype=torch.float64)


@pytest.mark.parametrize("name", CALLS)
@given(points=st.integers(1, 4), labels=st.integers(1, 5), width=st.integers(1, 4), seed=st.integers(0, 999))
def test_equal_to_loops(name, points, labels, width, seed):
    X, V, U = drawn(points, labels, width, seed)
    value = CALLS[name](X, V, U)
    assert value.item() == pytest.approx(SLOW[name](X.tolist(), V.tolist(), U.tolist()), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", CALLS)
def test_gradients(name):
    X, V, U = drawn(3, 4, 3, 0)
    assert torch.autograd.gradcheck(lambda X, V: CALLS[name](X, V, U), (X.requires_grad_(), V.requires_grad_()))


@given(labels=st.integers(1, 6), width=st.integers(1, 5), seed=st.integers(0, 999))
def test_laplacian_and_spread_out_are_glas_and_a_constant(labels, width, seed):
    _, V, U = drawn(1, labels, width, seed)
    _, other, _ = drawn(1, labels, width, seed + 1000)
    differences = [
        regularizers.laplacian(unit, U) + regularizers.spread_out(unit) - regularizers.glas(unit, U)
        for unit in (F.normalize(V, dim=1), F.normalize(other, dim=1))
    ]
    constant = (2 * U - U.square()).mean()  # Sec. 3.2 (a): depends on the graph alone
    assert differences[0].item() == pytest.approx(constant.item(), abs=1e-12)
    assert differences[1].item() == pytest.approx(constant.item(), abs=1e-12)


def test_the_sum_is_not_glas_where_vectors_are_not_unit():
    _, V, U = drawn(1, 4, 3, 5)
    gaps = [
        (regularizers.laplacian(part, U) + regularizers.spread_out(part) - regularizers.glas(part, U)).item()
        for part in (V, 2 * V)
    ]
    assert gaps[0] != pytest.approx(gaps[1], abs=0.1)


def test_by_hand():
    V = torch.tensor([[1.0, 0.0], [0.6, 0.8]])  # inner product 0.6, squared distance 0.8
    U = torch.tensor([[1.0, 0.5], [0.5, 1.0]])
    assert regularizers.glas(V, U).item() == pytest.approx(2 * 0.1**2 / 4)
    assert regularizers.spread_out(V).item() == pytest.approx((2 + 2 * 0.36) / 4)
    assert regularizers.laplacian(V, U).item() == pytest.approx(2 * 0.8 * 0.5 / 4)
    assert regularizers.gravity(torch.tensor([[0.0, 1.0]]), V).item() == pytest.approx((0 + 0.64) / 2)


def test_labels_that_never_meet_leave_spread_out_but_for_the_diagonal():
    V = F.normalize(torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64), dim=1)
    U = torch.eye(5, dtype=torch.float64)
    assert (regularizers.spread_out(V) - regularizers.glas(V, U)).item() == pytest.approx(1 / 5)
