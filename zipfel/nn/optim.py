"""Optimisers: torch's for dense parameters, and for tables updates of the touched rows only."""

from __future__ import annotations

from typing import ClassVar, Protocol

import torch
from torch import Tensor, nn

from zipfel.nn.encoders import EmbeddingTable, unique_ids
from zipfel.types import Share

BETAS = (0.9, 0.999)  # of Adam
BLOCK = 1 << 22  # numbers of a table updated at a time

Ids = Tensor | None  # rows of a table, [U]; None means all rows


class Sums(Protocol):
    """Adds up the gradients of several processes, of parameters that each of them has."""

    def rows(self, ids: Ids, gradient: Tensor) -> tuple[Ids, Tensor]:
        """Return the rows of a table that any process touches, [U] (None: all), and the sum of their gradients."""
        ...

    def dense(self, gradients: list[Tensor]) -> None:
        """Replace gradients by their sums over the processes."""
        ...


class Optimiser:
    """One optimiser for a module: tables are updated by rows, other parameters by one of torch's optimisers.

    A step does not change the state of rows that it does not touch (as in torch's SparseAdam).
    """

    moments: ClassVar[tuple[str, ...]]  # the optimiser's state for each number of a table

    def __init__(self, module: nn.Module) -> None:
        self.steps = 0
        self.tables = {name: part for name, part in module.named_modules() if isinstance(part, EmbeddingTable)}
        self.state = {n: [torch.zeros_like(t.rows) for _ in self.moments] for n, t in self.tables.items()}
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        self.dense = self.dense_part(self.parameters) if self.parameters else None

    def dense_part(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's optimiser for the parameters that are not tables."""
        raise NotImplementedError

    def update_rows(self, table: Tensor, state: list[Tensor], ids: Ids, gradient: Tensor, rate: float) -> None:
        """Update rows `ids` [U] of a table [V, D] and its state by a gradient [U, D]; ids None: all rows."""
        raise NotImplementedError

    def step(self, rate: float, sums: Sums | None = None) -> None:
        """Update by the gradients of the last backward pass at learning rate `rate`, then clear them.

        sums: adds those of other processes, but for tables that are split between them.
        """
        self.steps += 1
        touched = {name: merged(table.touched) for name, table in self.tables.items() if _has_gradient(table)}
        if sums is not None:
            touched |= {name: sums.rows(*touched[name]) for name in touched if self.tables[name].own is None}
            sums.dense([parameter.grad for parameter in self.parameters if parameter.grad is not None])
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

    def split(self) -> dict[str, Share]:
        """Return which entries of `state_dict` hold a share of the rows only."""
        shares = {name: table.own for name, table in self.tables.items() if table.own is not None}
        return {f"table.{name}.{moment}": own for name, own in shares.items() for moment in self.moments}

    def load_state_dict(self, flat: dict[str, Tensor]) -> None:
        """Restore the state that `state_dict` returned."""
        self.steps = int(flat["steps"])
        for name, parts in self.state.items():
            for moment, part in zip(self.moments, parts, strict=True):
                part.copy_(flat[f"table.{name}.{moment}"])
        if self.dense is not None:
            self.dense.state.clear()
        for number, parameter in enumerate(self.parameters):
            prefix = f"dense.{number}."
            kept = {key.removeprefix(prefix): value for key, value in flat.items() if key.startswith(prefix)}
            if self.dense is not None and kept:  # copied: the tensors may be memory-mapped or shared
                self.dense.state[parameter] = {k: v.to(parameter.device, copy=True) for k, v in kept.items()}


class Adam(Optimiser):
    """Adam (Kingma and Ba, 2015); bias correction counts all steps, not those that touch a row."""

    moments = ("first", "second")

    def __init__(self, module: nn.Module, rate: float) -> None:
        self.rate = rate
        super().__init__(module)

    def dense_part(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return torch's fused Adam."""
        return torch.optim.Adam(parameters, lr=self.rate, betas=BETAS, fused=True)

    def update_rows(self, table: Tensor, state: list[Tensor], ids: Ids, gradient: Tensor, rate: float) -> None:
        """Update rows and their moments."""
        adam_rows((table, state[0], state[1]), ids, gradient, rate, self.steps)


class Sgd(Optimiser):
    """Stochastic gradient descent with momentum and weight decay, as in DXML (Sec. 4.1).

    Rows that a step does not touch neither decay nor move by their momentum.
    """

    moments = ("velocity",)

    def __init__(self, module: nn.Module, rate: float, momentum: float = 0.9, decay: float = 0.0005) -> None:
        self.rate, self.momentum, self.decay = rate, momentum, decay
        super().__init__(module)

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


def _has_gradient(table: EmbeddingTable) -> bool:
    return any(leaf.grad is not None for _, leaf in table.touched)


def merged(touched: list[tuple[Ids, Tensor]]) -> tuple[Ids, Tensor]:
    """Sum the gradients of a table's uses in a step: unique ids [U], or None for all rows, and gradients [U, D]."""
    uses = [(ids, leaf.grad) for ids, leaf in touched if leaf.grad is not None]
    if len(uses) == 1:
        return uses[0]
    of_all_rows = [gradient for ids, gradient in uses if ids is None]
    if of_all_rows:
        total = torch.stack(of_all_rows).sum(dim=0)
        for ids, gradient in uses:
            if ids is not None:
                total.index_add_(0, ids, gradient)
        return None, total
    unique, inverse = unique_ids(torch.cat([ids for ids, _ in uses if ids is not None]))
    gradients = torch.cat([gradient for _, gradient in uses])
    return unique, gradients.new_zeros(len(unique), gradients.shape[1]).index_add_(0, inverse, gradients)


def adam_rows(parts: tuple[Tensor, Tensor, Tensor], ids: Ids, gradient: Tensor, rate: float, step: int) -> None:
    """Update rows `ids` [U] of a table and its first and second moments, each [V, D], by a gradient [U, D].

    Without ids, all rows are updated in place. With ids, a CPU updates a block of rows at a time, which keeps the
    buffers small. Blocks that fit the cache are a sixth faster on idle cores, but many times slower on busy ones: each
    small operation waits for all threads.
    """
    steps = torch.tensor(float(step), device=gradient.device)

    def update(rows: Tensor, slope: Tensor, first: Tensor, second: Tensor) -> None:
        torch._fused_adam_(  # torch.optim.Adam(fused=True) calls it; calling it that way costs a tenth of the step
            [rows], [slope], [first], [second], [], [steps], lr=rate, beta1=BETAS[0], beta2=BETAS[1], eps=1e-8,
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
        for part, updated in zip(parts, (rows, first, second), strict=True):
            part.index_copy_(0, chosen, updated)
