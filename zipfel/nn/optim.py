"""Optimisers: for dense parameters as torch has them, and for tables on the touched rows only."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from zipfel.nn.encoders import Table, unique_ids

BLOCK = 1 << 22  # numbers of a table updated at a time

Ids = Tensor | None  # rows of a table, [U]; None is all of them


class Optimiser:
    """One optimiser for a module: its tables by rows, its other parameters by one of torch's.

    The state of rows that a step does not touch stays as it is (as in torch's SparseAdam).
    """

    moments: ClassVar[tuple[str, ...]]  # what is kept for each number of a table

    def __init__(self, module: nn.Module, clip: float | None = None) -> None:
        self.clip, self.steps = clip, 0
        self.tables = {name: part for name, part in module.named_modules() if isinstance(part, Table)}
        self.state = {n: [torch.zeros_like(t.rows) for _ in self.moments] for n, t in self.tables.items()}
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.dense = self.dense_part(self.parameters) if self.parameters else None

    def dense_part(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's optimiser for parameters that are no tables."""
        raise NotImplementedError

    def update_rows(self, table: Tensor, state: list[Tensor], ids: Ids, gradient: Tensor, rate: float) -> None:
        """Update rows `ids` [U] of a table [V, D] and of its state by a gradient [U, D]; without ids, all rows."""
        raise NotImplementedError

    def step(self, rate: float) -> None:
        """Update by the gradients of the last backward pass, and forget them."""
        self.steps += 1
        touched = {name: merged(table.touched) for name, table in self.tables.items() if _has_gradient(table)}
        if self.clip is not None:
            gradients = [gradient for _, gradient in touched.values()]
            clip([*gradients, *(p.grad for p in self.parameters if p.grad is not None)], self.clip)
        for name, (ids, gradient) in touched.items():
            self.update_rows(self.tables[name].rows, self.state[name], ids, gradient, rate)
        for table in self.tables.values():
            table.touched.clear()
        if self.dense is not None:
            for group in self.dense.param_groups:
                group["lr"] = rate
            self.dense.step()
            self.dense.zero_grad(set_to_none=True)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the whole state as tensors by name."""
        flat = {"steps": torch.tensor(self.steps)}
        for name, parts in self.state.items():
            flat |= {f"table.{name}.{moment}": part for moment, part in zip(self.moments, parts, strict=True)}
        for number, parameter in enumerate(self.parameters):
            for name, value in (self.dense.state[parameter] if self.dense else {}).items():
                flat[f"dense.{number}.{name}"] = value
        return flat

    def load_state_dict(self, flat: dict[str, Tensor]) -> None:
        """Take back what `state_dict` gave."""
        self.steps = int(flat["steps"])
        for name, parts in self.state.items():
            for moment, part in zip(self.moments, parts, strict=True):
                part.copy_(flat[f"table.{name}.{moment}"])
        if self.dense is not None:
            self.dense.state.clear()
        for number, parameter in enumerate(self.parameters):
            prefix = f"dense.{number}."
            kept = {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
            if self.dense is not None and kept:  # copies: what was read may be mapped, or another's
                self.dense.state[parameter] = {k: v.to(parameter.device, copy=True) for k, v in kept.items()}


class Adam(Optimiser):
    """Adam (Kingma and Ba, 2015); bias correction goes by the number of steps."""

    moments = ("first", "second")

    def __init__(
        self, module: nn.Module, rate: float, betas: tuple[float, float] = (0.9, 0.999), clip: float | None = None
    ) -> None:
        self.rate, self.betas = rate, betas
        super().__init__(module, clip)

    def dense_part(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's fused Adam."""
        return torch.optim.Adam(parameters, lr=self.rate, betas=self.betas, fused=True)

    def update_rows(self, table: Tensor, state: list[Tensor], ids: Ids, gradient: Tensor, rate: float) -> None:
        """Update rows and their moments."""
        adam_rows((table, state[0], state[1]), ids, gradient, rate, self.betas, self.steps)


class Sgd(Optimiser):
    """Stochastic gradient descent with momentum and weight decay, as DXML has it (Sec. 4.1).

    Rows that a step does not touch neither decay nor move on by their momentum.
    """

    moments = ("velocity",)

    def __init__(
        self, module: nn.Module, rate: float, momentum: float = 0.9, decay: float = 0.0005, clip: float | None = None
    ) -> None:
        self.rate, self.momentum, self.decay = rate, momentum, decay
        super().__init__(module, clip)

    def dense_part(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's SGD."""
        return torch.optim.SGD(parameters, lr=self.rate, momentum=self.momentum, weight_decay=self.decay)

    def update_rows(self, table: Tensor, state: list[Tensor], ids: Ids, gradient: Tensor, rate: float) -> None:
        """Update rows and their velocity: v ← μ v + g + δ w, w ← w − η v."""
        ids = torch.arange(len(table), device=table.device) if ids is None else ids
        rows = table.detach().index_select(0, ids)
        velocity = state[0].index_select(0, ids).mul_(self.momentum).add_(gradient).add_(rows, alpha=self.decay)
        state[0].index_copy_(0, ids, velocity)
        table.detach().index_copy_(0, ids, rows.add_(velocity, alpha=-rate))


def clip(gradients: list[Tensor], longest: float) -> None:
    """Shorten gradients, in place, so that all of them as one vector are no longer than `longest`."""
    if gradients:
        total = torch.stack([gradient.norm() for gradient in gradients]).norm()
        share = (longest / (total + 1e-6)).clamp_max(1)
        for gradient in gradients:
            gradient.mul_(share)


def _has_gradient(table: Table) -> bool:
    return any(leaf.grad is not None for _, leaf in table.touched)


def merged(touched: list[tuple[Ids, Tensor]]) -> tuple[Ids, Tensor]:
    """Return ids [U] and gradients [U, D] of all that a step touched of a table, each id once."""
    found = [(ids, leaf.grad) for ids, leaf in touched if leaf.grad is not None]
    if len(found) == 1:
        return found[0]
    everything = [gradient for ids, gradient in found if ids is None]
    if everything:
        total = torch.stack(everything).sum(dim=0)
        for ids, gradient in found:
            if ids is not None:
                total.index_add_(0, ids, gradient)
        return None, total
    unique, places = unique_ids(torch.cat([ids for ids, _ in found if ids is not None]))
    gradients = torch.cat([gradient for _, gradient in found])
    return unique, gradients.new_zeros(len(unique), gradients.shape[1]).index_add_(0, places, gradients)


def adam_rows(
    parts: tuple[Tensor, Tensor, Tensor], ids: Ids, gradient: Tensor,
    rate: float, betas: tuple[float, float], step: int, epsilon: float = 1e-8,
) -> None:  # fmt: skip
    """Update rows `ids` [U] of a table and its first and second moments, each [V, D], by a gradient [U, D].

    All rows are updated where they are, without ids. Else, on a CPU, a block of rows at a time, which keeps the buffers
    small. Blocks that fit the cache are a sixth faster on idle cores, but many times slower on busy ones: each small
    operation waits for all threads.
    """
    steps = torch.tensor(float(step), device=gradient.device)

    def update(rows: Tensor, slope: Tensor, first: Tensor, second: Tensor) -> None:
        torch._fused_adam_(  # what torch.optim.Adam(fused=True) calls; its public door costs a tenth of the step
            [rows], [slope], [first], [second], [], [steps], lr=rate, beta1=betas[0], beta2=betas[1], eps=epsilon,
            weight_decay=0, amsgrad=False, maximize=False,
        )  # fmt: skip

    table = parts[0].detach()
    if ids is None:
        update(table, gradient, parts[1], parts[2])
        return
    block = max(1, len(ids) if table.is_cuda else BLOCK // table.shape[1])
    buffers = [table.new_empty(min(block, len(ids)), table.shape[1]) for _ in parts]
    for start in range(0, len(ids), block):
        chosen = ids[start : start + block]
        rows, first, second = (
            torch.index_select(part.detach(), 0, chosen, out=buffer[: len(chosen)])
            for part, buffer in zip(parts, buffers, strict=True)
        )
        update(rows, gradient[start : start + block], first, second)
        for part, now in zip(parts, (rows, first, second), strict=True):
            part.index_copy_(0, chosen, now)
