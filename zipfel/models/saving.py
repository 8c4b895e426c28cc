"""Tensors of saved models: which a model has, and how they are put back. Written once for all models."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import nn

from zipfel.errors import DataError
from zipfel.training.run import State


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
    missing = sorted(set(expected) - set(state))
    if missing:
        raise DataError(f"the saved model lacks tensors: {', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''}")
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


def sparse_matrix(name: str, state: State, width: int) -> csr_array:
    """Return the matrix [rows, width] that `sparse_tensors` was given."""
    indices, indptr = state[f"{name}.indices"].numpy(), state[f"{name}.indptr"].numpy()
    data = state[f"{name}.data"].numpy() if f"{name}.data" in state else np.ones(len(indices), dtype=np.float32)
    return csr_array((data, indices, indptr), shape=(len(indptr) - 1, width))
