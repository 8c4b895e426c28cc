"""Tensors of saved models: parameters and buffers by name, put back as they are, and sparse matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, random_array
from torch import nn

from zipfel.errors import DataError
from zipfel.models.base import Model, Tensors
from zipfel.models.saving import assign, check_tensors, own_tensors, sparse_matrix, sparse_tensors


class Layer(nn.Module):
    """A weight and a bias, which do not warn where they are empty, unlike those of `nn.Linear`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(2, size)), nn.Parameter(torch.randn(2))


class Small(nn.Module):
    """Two names for one layer, a frozen parameter, and buffers, of which one is not part of the state dict."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.one = self.two = Layer(size)
        self.table = nn.Parameter(torch.arange(size, dtype=torch.float32), requires_grad=False)
        self.register_buffer("counts", torch.arange(size))
        self.register_buffer("left", torch.full((size,), 7.0), persistent=False)


NAMES = ["counts", "left", "one.bias", "one.weight", "table"]


def test_a_part_that_is_held_twice_is_saved_once():
    module = Small()
    state = own_tensors(module)
    assert sorted(state) == NAMES
    assert not any(value.requires_grad for value in state.values())
    assert state["table"].data_ptr() == module.table.data_ptr()  # nothing is copied


def test_tensors_are_put_back_without_a_copy_whatever_their_size():
    state, empty = own_tensors(Small(5)), Small(0)
    rest = assign(empty, {**state, "index.graph": torch.ones(2)})
    assert list(rest) == ["index.graph"]
    for name, value in own_tensors(empty).items():
        assert value.data_ptr() == state[name].data_ptr(), name
    assert empty.two.weight.data_ptr() == state["one.weight"].data_ptr()
    assert isinstance(empty.table, nn.Parameter)
    assert [parameter.requires_grad for parameter in (empty.table, empty.one.weight)] == [False, True]


def test_missing_tensors_are_named():
    state = own_tensors(Small())
    with pytest.raises(DataError, match=r"^the saved model lacks tensors: counts, one\.bias$"):
        check_tensors({name: state[name] for name in ("left", "one.weight", "table")}, Small(), Small(), 0, 0)
    many = nn.ModuleList(Layer(1) for _ in range(3))
    with pytest.raises(DataError, match=r"^the saved model lacks tensors: 0\.bias, .*, 2\.bias, \.\.\.$"):
        check_tensors({}, many, many, 0, 0)


class Halves(Model):
    """A model with state of its own, parts of which only training needs."""

    train_only = ("one.*", "note")

    def __init__(self, features, labels, settings, generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.one, self.two = Layer(labels), Layer(labels)
        self.note = 1.0

    def more_tensors(self):
        return {"note": torch.tensor(self.note), "two.weight": self.two.weight.detach().half()}

    def take_tensors(self, more):
        self.note = float(more.pop("note"))
        assert more == {}


def test_a_model_is_saved_in_two_parts_and_restored_without_further_code():
    model = Halves(4, 3, "settings", torch.Generator())
    model.note = 2.0
    with torch.no_grad():
        model.two.weight.copy_(model.two.weight.half().float())
    tensors = model.tensors()
    assert sorted(tensors.serve) == ["two.bias", "two.weight"]
    assert sorted(tensors.train) == ["note", "one.bias", "one.weight"]
    assert tensors.serve["two.weight"].dtype == torch.float16  # its own form replaces that of the parameter
    restored = Halves.restored(4, 3, "settings", tensors)
    assert (restored.features, restored.label_count, restored.settings, restored.note) == (4, 3, "settings", 2.0)
    assert not restored.training
    for name, value in model.state_dict().items():
        assert torch.equal(restored.state_dict()[name], value), name
        assert restored.state_dict()[name].dtype == torch.float32
    assert restored.one.weight.data_ptr() == model.one.weight.data_ptr()
    with pytest.raises(DataError, match=r"lacks tensors: one\.bias, one\.weight"):
        Halves.restored(4, 3, "settings", Tensors(tensors.serve, {}))


@given(rows=st.integers(0, 5), width=st.integers(1, 7), values=st.booleans(), seed=st.integers(0, 99))
def test_a_sparse_matrix_comes_back(rows, width, values, seed):
    matrix = csr_array(random_array((rows, width), density=0.4, rng=seed, dtype=np.float32))
    if not values:
        matrix.data[:] = 1
    state = sparse_tensors("Z", matrix, values)
    assert sorted(state) == ["Z.data", "Z.indices", "Z.indptr"][not values :]
    back = sparse_matrix("Z", {**state, "other": torch.ones(1)}, width)
    assert (back.shape, back.dtype) == (matrix.shape, np.float32)
    assert np.array_equal(back.toarray(), matrix.toarray())
