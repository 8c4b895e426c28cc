"""What tests of whole training steps share: stages as the trainer sees them, held next to slow twins in plain loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from torch import nn

from zipfel.nn.encoders import EmbeddingTable
from zipfel.nn.optim import merged
from zipfel.training.trainer import Objective

Weights = dict[str, list[list[float]]]
Text = list[tuple[int, float]]  # (token, weight)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def texts_of(matrix: csr_array) -> list[Text]:
    rows = [matrix[[row]] for row in range(matrix.shape[0])]
    return [list(zip(row.indices.tolist(), row.data.tolist(), strict=True)) for row in rows]


def labels_in(matrix: csr_array | None, rows: list[int]) -> list[set[int]]:
    return [set() if matrix is None else set(matrix[[row]].indices.tolist()) for row in rows]


def weights_of(module: nn.Module) -> Weights:
    numbers = {name: value.detach().double() for name, value in module.named_parameters()}
    return {name: value.tolist() if value.ndim == 2 else [value.flatten().tolist()] for name, value in numbers.items()}


def disturb(module: nn.Module, seed: int) -> None:
    """Stand in for learning: draw all weights at random; R is orthogonal, and its own spectral norm."""
    generator = seeded(seed)
    with torch.no_grad():
        for name, value in module.named_parameters():
            if name.endswith(".R"):
                value.copy_(torch.linalg.qr(torch.randn(value.shape, generator=generator)).Q)
            elif value.ndim:
                value.normal_(0, 0.7, generator=generator)


class Stage(NamedTuple):
    """A stage as the trainer sees it: weights before it, and its objective's terms and gradients for some rows."""

    before: Weights
    terms: dict[str, float]
    gradients: dict[str, torch.Tensor]
    again: dict[str, float]  # with other draws
    learning: set[str]  # weights that the stage may change


def measured(module: nn.Module, objective: Objective, rows: list[int]) -> Stage:
    module.train()
    before = weights_of(module)
    terms = objective(np.array(rows), seeded(0))
    sum(terms.values()).backward()
    gradients = {name: value.grad for name, value in module.named_parameters() if value.grad is not None}
    for name, table in module.named_modules():
        if isinstance(table, EmbeddingTable) and any(leaf.grad is not None for _, leaf in table.touched):
            ids, gradient = merged(table.touched)
            whole = torch.zeros_like(table.rows)
            whole[slice(None) if ids is None else ids] = gradient
            gradients[f"{name}.rows"] = whole
            table.touched.clear()
    module.zero_grad()
    again = objective(np.array(rows), seeded(1))
    for table in module.modules():
        if isinstance(table, EmbeddingTable):
            table.touched.clear()
    first, second = ({name: term.item() for name, term in some.items()} for some in (terms, again))
    learning = {name for name, value in module.named_parameters() if value.requires_grad or name.endswith("rows")}
    return Stage(before, first, gradients, second, learning)


def assert_same_step(
    stage: Stage, name: str, loss: Callable[[Weights], float], step: float = 1e-5,
    skipped: tuple[str, ...] = (),
) -> None:  # fmt: skip
    """Compare the loss with the twin's, and gradients with its central differences.

    skipped: the ends of names of parameters that a step does not train. R's gradient goes through its spectral norm,
    which is tested elsewhere.
    """
    weights = stage.before
    assert stage.terms == pytest.approx({name: loss(weights)}, rel=1e-5)
    for name, rows in weights.items():
        if name.endswith((".R", *skipped)) or name not in stage.learning or not rows:
            continue
        slopes = [[0.0] * len(row) for row in rows]
        for r, row in enumerate(rows):
            for c, value in enumerate(row):
                row[c] = value + step
                above = loss(weights)
                row[c] = value - step
                slopes[r][c] = (above - loss(weights)) / (2 * step)
                row[c] = value
        found = stage.gradients.get(name, torch.zeros(np.shape(slopes))).reshape(np.shape(slopes))
        np.testing.assert_allclose(found, slopes, rtol=1e-3, atol=3e-5, err_msg=name)
