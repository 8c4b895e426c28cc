"""Tensors of saved models: which a model has, and how they are put back. Written once for all models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.errors import DataError
from zipfel.training.run import State
from zipfel.types import Sizes, csr_problem

PROBE = Sizes(points=0, features=5, labels=70)  # of the model that shows how shapes depend on sizes


class Tensors(NamedTuple):
    """The tensors of a saved model."""

    serve: State  # what prediction needs
    train: State  # what warm starts and new labels need besides

    @property
    def all(self) -> State:
        """Both together."""
        return {**self.serve, **self.train}


def own_tensors(module: nn.Module) -> State:
    """Return parameters and buffers by name; a part that a module holds twice has its first name."""
    return {name: value.detach() for name, value in (*module.named_parameters(), *module.named_buffers())}


def assign(module: nn.Module, state: State) -> State:
    """Replace parameters and buffers by saved tensors of any size; return the tensors that are neither."""
    expected = own_tensors(module)
    for name in expected:
        owner, _, own = name.rpartition(".")
        part = module.get_submodule(owner)
        if isinstance(parameter := part._parameters.get(own), nn.Parameter):
            parameter.data = state[name]
        else:
            part._buffers[own] = state[name]
    return {name: value for name, value in state.items() if name not in expected}


def sparse_tensors(name: str, matrix: csr_array, values: bool = True) -> State:
    """Return a sparse matrix as tensors; without `values`, all stored entries are ones."""
    state = {
        f"{name}.indices": torch.from_numpy(matrix.indices.astype(np.int32)),
        f"{name}.indptr": torch.from_numpy(matrix.indptr.astype(np.int64)),
    }
    return state | ({f"{name}.data": torch.from_numpy(matrix.data.astype(np.float32))} if values else {})


def sparse_matrix(name: str, state: State, width: int, rows: int | None = None) -> csr_array:
    """Return the matrix [rows, width] that `sparse_tensors` was given; raise DataError if it is none."""
    indptr = tensor_of(state, f"{name}.indptr", torch.int64, None if rows is None else rows + 1).numpy()
    indices = tensor_of(state, f"{name}.indices", torch.int32, None).numpy()
    given = f"{name}.data" in state
    data = tensor_of(state, f"{name}.data", torch.float32, None).numpy() if given else np.ones(len(indices), np.float32)
    if problem := csr_problem(indptr, indices, width, len(data)):
        raise DataError(f"matrix {name!r}: {problem}")
    return csr_array((data, indices, indptr), shape=(len(indptr) - 1, width))


# --- Checks: forged or damaged tensors must not reach code that trusts them -------------------------------------------


def tensor_of(state: State, name: str, dtype: torch.dtype, *shape: int | None) -> Tensor:
    """Return the tensor of that name; raise DataError if it is missing, or has another type or shape.  None: any."""
    if name not in state:
        raise DataError(f"the saved model lacks tensors: {name}")
    tensor = state[name]
    fits = len(shape) == tensor.ndim and all(size in (None, own) for size, own in zip(shape, tensor.shape, strict=True))
    if not fits or tensor.dtype != dtype:
        expected = " x ".join("any" if size is None else str(size) for size in shape) or "one number"
        found = " x ".join(map(str, tensor.shape)) or "one number"
        raise DataError(f"tensor {name!r}: expected {dtype} of shape {expected}, found {tensor.dtype} of shape {found}")
    return tensor


def saved_lengths(state: State, labels: int) -> Tensor | None:
    """Return the saved norms of one-vs-all classifiers [L]; None if none are saved."""
    given = "classifier.lengths" in state
    return tensor_of(state, "classifier.lengths", torch.float32, labels) if given else None


def check_range(name: str, ids: Tensor, size: int) -> None:
    """Raise DataError if an id is outside 0..size - 1."""
    if ids.numel():
        least, most = (int(bound) for bound in torch.aminmax(ids))
        if least < 0 or most >= size:
            raise DataError(f"tensor {name!r}: {least if least < 0 else most} is outside 0..{size - 1}")


def check_tensors(state: State, empty: nn.Module, probe: nn.Module, features: int, labels: int) -> None:
    """Raise DataError unless saved tensors have the types and shapes that a model of this size has.

    empty, probe: models without features and labels, and with as many as PROBE says. The difference between their
    shapes says how a size depends on the numbers of features and labels. Where a tensor is empty in both, training
    decides its shape, and the model itself checks it.
    """
    small, large = own_tensors(empty), own_tensors(probe)
    missing = sorted(set(small) - set(state))
    if missing:
        raise DataError(f"the saved model lacks tensors: {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}")
    for name, tensor in small.items():
        sizes = zip(tensor.shape, large[name].shape, strict=True)
        any_size = [None] * tensor.ndim
        expected = [_size(*size, features, labels) for size in sizes] if large[name].numel() else any_size
        tensor_of(state, name, tensor.dtype, *expected)


def _size(small: int, large: int, features: int, labels: int) -> int | None:
    """Return a size for these features and labels, from its values for none and for PROBE; None if it is no sum."""
    by_label, rest = divmod(large - small, PROBE.labels)
    by_feature, rest = divmod(rest, PROBE.features)
    return None if rest or by_feature > 2 else small + by_label * labels + by_feature * features
