"""The processes that train one model together: ranks, each with a range of labels (docs/decisions/020-label-shards.md).

`World` is one process and does nothing; `Ranks` are several, which talk through torch.distributed. Models call the same
methods in both cases, and know no more than their own labels and what to gather or to add up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from zipfel.errors import ConfigError, LostRankError, OtherRankError, ZipfelError
from zipfel.training.meeting import Meeting, patience
from zipfel.types import Share

STOPPED = "stopped"  # what a rank says instead of a problem when Ctrl-C has stopped its work
WAITING = timedelta(days=7)  # a rank may wait for the first one's long stage; one that dies is noticed at once
SENT_AT_ONCE = 1 << 26  # bytes of a table that are sent to the first rank at a time
Ids = Tensor | None
Result = TypeVar("Result")


class World:
    """One process: it has all labels and all points, and no other rank to exchange data with."""

    rank, size = 0, 1
    is_first = True  # the rank that writes and shows progress
    splits = False  # whether labels are split between ranks

    def __init__(self) -> None:
        self.sent: Counter[str] = Counter()  # bytes that this rank has sent, by what they are

    def share(self, total: int) -> Share:
        """Return the rows of this rank, out of this many."""
        return Share.of(self.rank, self.size, total)

    # --- Of vectors and gradients -------------------------------------------------------------------------------------

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """Return the rows of all ranks, [total, D], of which each has its share; gradients are summed back."""
        return rows

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of values over ranks; gradients are summed too."""
        return values

    def part(self, term: Tensor) -> Tensor:
        """Return this rank's part of a term of the loss that all ranks compute."""
        return term

    def sum(self, values: Tensor, kind: str = "sums over labels") -> Tensor:
        """Return the sum of values over ranks, without gradients.  kind: what `sent` counts them as."""
        return values

    def max(self, values: Tensor) -> Tensor:
        """Return the largest of values over ranks, without gradients."""
        return values

    def log_sum(self, values: Tensor) -> Tensor:
        """Return ln Σ exp of values over ranks, without gradients."""
        return values

    def columns(self, values: Tensor) -> Tensor:
        """Return the columns of all ranks beside each other, [B, ranks · W]."""
        return values

    def rows(self, ids: Ids, gradient: Tensor) -> tuple[Ids, Tensor]:
        """Return the rows of a table that any rank touches, [U] (None: all), and the sum of their gradients."""
        return ids, gradient

    def dense(self, gradients: list[Tensor]) -> None:
        """Replace gradients by their sums over ranks."""

    def collected(self, rows: Tensor, own: Share) -> Tensor:
        """Return the rows of all ranks, [total, ...], on the CPU of the first rank; elsewhere an empty tensor."""
        return rows

    def moved(self, rows: Tensor, own: Share, new: Share) -> Tensor:
        """Return this rank's `new` share of the rows of all ranks, on the CPU; `rows` are those of the share `own`."""
        return rows

    # --- Of the run ---------------------------------------------------------------------------------------------------

    def agreed(self, *wishes: bool) -> tuple[bool, ...]:
        """Return for each wish whether any rank has it."""
        return wishes

    def check_stop(self) -> None:
        """Raise KeyboardInterrupt on all ranks if one was asked to stop."""

    def first(self, work: Callable[[], Result]) -> Result:
        """Let the first rank do some work, and return its result on all; if it fails, it fails on all."""
        return work()

    def all(self, work: Callable[[], Result]) -> Result:
        """Do some work on all ranks and return each one's result; if it fails on one, it fails on all."""
        return work()

    def check_same(self, inputs: Mapping[str, Any]) -> None:
        """Raise ConfigError if ranks were started with different inputs."""


class Ranks(World):
    """Several processes, one a GPU or one a few cores, on one machine or more."""

    splits = True

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.rank, self.size, self.is_first = rank, size, rank == 0
        self.stopping = False  # set by a signal; all ranks stop at the same step
        self.works_alone = False  # while others wait for the result
        self.meeting: Meeting | None = None

    @classmethod
    def met(cls, device: torch.device) -> Self:
        """Meet the other ranks, as torchrun or `--workers` started them: gloo between CPUs, NCCL between GPUs."""
        return cls.of(Meeting.joined(), device)

    @classmethod
    def of(cls, meeting: Meeting, device: torch.device) -> Self:
        """Return the ranks that have met, connected to each other."""
        import torch.distributed as dist

        on_gpu, store = device.type == "cuda", dist.PrefixStore("group", meeting.store)  # type: ignore[attr-defined]
        if on_gpu:
            torch.cuda.set_device(device)
        try:
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo", store=store, rank=meeting.rank, world_size=meeting.size,
                timeout=timedelta(seconds=max(30.0, patience())),
            )  # fmt: skip
            dist.barrier(device_ids=[device.index or 0] if on_gpu else None)
        except (RuntimeError, ValueError, OSError) as error:
            raise ConfigError(f"rank {meeting.rank} of {meeting.size} on {meeting.host} cannot talk to the others: "
                              f"{_line(error)}") from None  # fmt: skip
        dist.distributed_c10d._set_pg_timeout(WAITING, None)
        world = cls(meeting.rank, meeting.size)
        world.meeting = meeting
        return world

    def stop(self) -> None:
        """Stop training on all ranks, as a signal asks: after this step, or at once where others wait for this one."""
        if self.works_alone:
            raise KeyboardInterrupt
        self.stopping = True

    def leave(self) -> None:
        """Part from the others once all have come to their end.

        gloo's threads must end before the process does: it aborts otherwise, now and then.
        """
        import torch.distributed as dist

        self._call(dist.barrier)
        if self.meeting is not None:
            self.meeting.leave()
        dist.destroy_process_group()

    # --- Of vectors and gradients -------------------------------------------------------------------------------------

    def gather(self, rows: Tensor, total: int) -> Tensor:
        """Return the rows of all ranks, [total, D], of which each has its share; gradients are summed back."""
        return _Gather.apply(rows, self, total)  # type: ignore[no-any-return, no-untyped-call]

    def total(self, values: Tensor) -> Tensor:
        """Return the sum of values over ranks; gradients are summed too."""
        return _Total.apply(values, self)  # type: ignore[no-any-return, no-untyped-call]

    def part(self, term: Tensor) -> Tensor:
        """Return this rank's part of a term of the loss that all ranks compute."""
        return term / self.size

    def sum(self, values: Tensor, kind: str = "sums over labels") -> Tensor:
        """Return the sum of values over ranks, without gradients."""
        return self._reduced(values.detach().clone(), "SUM", kind)

    def max(self, values: Tensor) -> Tensor:
        """Return the largest of values over ranks, without gradients."""
        return self._reduced(values.detach().clone(), "MAX", "sums over labels")

    def log_sum(self, values: Tensor) -> Tensor:
        """Return ln Σ exp of values over ranks, without gradients."""
        top = self.max(values)
        return top + self.sum((values - top).exp()).log()

    def columns(self, values: Tensor) -> Tensor:
        """Return the columns of all ranks beside each other, [B, ranks · W]."""
        return torch.cat(list(self._gathered(values, "shortlists")), dim=1)

    def rows(self, ids: Ids, gradient: Tensor) -> tuple[Ids, Tensor]:
        """Return the rows of a table that any rank touches, [U] (None: all), and the sum of their gradients.

        Ids are few beside rows: they are gathered, and rows of their union are summed as one dense block.
        """
        if ids is None:
            return None, self._reduced(gradient.contiguous(), "SUM", "gradients of tokens")
        counts = torch.stack(self._gathered(torch.tensor([len(ids)], device=ids.device), "ids of tokens"))[:, 0]
        padded = F.pad(ids, (0, int(counts.max()) - len(ids)), value=-1)
        union = torch.unique(torch.cat(self._gathered(padded, "ids of tokens")))
        union = union[union >= 0]
        block = gradient.new_zeros(len(union), gradient.shape[1])
        block[torch.searchsorted(union, ids)] = gradient
        return union, self._reduced(block, "SUM", "gradients of tokens")

    def dense(self, gradients: list[Tensor]) -> None:
        """Replace gradients by their sums over ranks."""
        if not gradients:
            return
        flat = self._reduced(torch.cat([gradient.reshape(-1) for gradient in gradients]), "SUM", "gradients of layers")
        for gradient, summed in zip(
            gradients, torch.split(flat, [gradient.numel() for gradient in gradients]), strict=True
        ):
            gradient.copy_(summed.view_as(gradient))

    def collected(self, rows: Tensor, own: Share) -> Tensor:
        """Return the rows of all ranks, [total, ...], on the CPU of the first rank; elsewhere an empty tensor.

        Ranks send theirs one after the other, and in pieces: nobody but the first holds more than its own.
        """
        import torch.distributed as dist

        cpu, shares = rows.detach().to("cpu").contiguous(), self.everyone(own)
        whole = cpu.new_empty((own.total if self.is_first else 0, *rows.shape[1:]))
        step = max(1, SENT_AT_ONCE // max(1, rows.element_size() * rows[:1].numel()))
        if self.is_first:
            whole[own.rows] = cpu
        for rank, share in enumerate(shares[1:], 1):
            for start in range(share.start, share.stop, step):
                piece = slice(start, min(start + step, share.stop))
                if self.is_first:
                    self._call(dist.recv, whole[piece], rank)
                elif self.rank == rank:
                    self._call(dist.send, cpu[piece.start - own.start : piece.stop - own.start], 0)
        return whole

    def moved(self, rows: Tensor, own: Share, new: Share) -> Tensor:
        """Return this rank's `new` share of the rows of all ranks, on the CPU; `rows` are those of the share `own`."""
        import torch.distributed as dist

        cpu = rows.detach().to("cpu").contiguous()
        result, everyone = cpu.new_empty((new.size, *rows.shape[1:])), self.everyone((own, new))
        for source, (had, _) in enumerate(everyone):
            for target, (_, gets) in enumerate(everyone):
                start, stop = max(had.start, gets.start), min(had.stop, gets.stop)
                if start >= stop or self.rank not in (source, target):
                    continue
                given, taken = slice(start - had.start, stop - had.start), slice(start - gets.start, stop - gets.start)
                if source == target:
                    result[taken] = cpu[given]
                elif self.rank == source:
                    self._call(dist.send, cpu[given], target)
                else:
                    self._call(dist.recv, result[taken], source)
        return result

    def _gathered(self, values: Tensor, kind: str) -> list[Tensor]:
        import torch.distributed as dist

        values = values.contiguous()
        parts = [torch.empty_like(values) for _ in range(self.size)]
        self._call(dist.all_gather, parts, values)
        self.sent[kind] += (self.size - 1) * values.nbytes
        return parts

    def _reduced(self, values: Tensor, operation: str, kind: str) -> Tensor:
        import torch.distributed as dist

        self._call(dist.all_reduce, values, getattr(dist.ReduceOp, operation))
        self.sent[kind] += 2 * (self.size - 1) * values.nbytes // self.size  # of a ring
        return values

    # --- Of the run ---------------------------------------------------------------------------------------------------

    def everyone(self, value: Result) -> list[Result]:
        """Return the values of all ranks."""
        import torch.distributed as dist

        values: list[Any] = [None] * self.size
        self._call(dist.all_gather_object, values, value)
        return values

    def agreed(self, *wishes: bool) -> tuple[bool, ...]:
        """Return for each wish whether any rank has it."""
        any_has = self._reduced(torch.tensor(wishes, dtype=torch.uint8), "MAX", "agreement")
        return tuple(map(bool, any_has.tolist()))

    def check_stop(self) -> None:
        """Raise KeyboardInterrupt on all ranks if one was asked to stop."""
        if self.agreed(self.stopping)[0]:
            self.stopping = False
            raise KeyboardInterrupt

    def first(self, work: Callable[[], Result]) -> Result:
        """Let the first rank do some work, and return its result on all; if it fails, it fails on all."""
        import torch.distributed as dist

        def alone() -> Result | None:
            self.works_alone = self.is_first
            try:
                return work() if self.is_first else None
            finally:
                self.works_alone = False

        answer: list[Any] = [self.all(alone)]
        self._call(dist.broadcast_object_list, answer, 0)
        return answer[0]  # type: ignore[no-any-return]

    def all(self, work: Callable[[], Result]) -> Result:
        """Do some work on all ranks and return each one's result; if it fails on one, it fails on all."""
        try:
            result = work()
        except LostRankError:
            raise
        except BaseException as error:
            problems = self.everyone(STOPPED if isinstance(error, KeyboardInterrupt) else _line(error))
            self._raise_problem(problems[: self.rank])  # one rank reports what all have found
            if self.meeting is not None:
                self.meeting.is_elected = True
            raise
        self._raise_problem(self.everyone(None))
        return result

    def _raise_problem(self, problems: Sequence[str | None]) -> None:
        """Raise the first problem that another rank has, if there is any."""
        first = next((problem for problem in problems if problem is not None), None)
        if first == STOPPED:
            raise KeyboardInterrupt
        if first is not None:
            raise OtherRankError(first)

    def check_same(self, inputs: Mapping[str, Any]) -> None:
        """Raise ConfigError if ranks were started with different inputs."""
        everyone = self.everyone(dict(inputs))
        for rank, other in enumerate(everyone):
            differ = [name for name in everyone[0] if other.get(name) != everyone[0][name]]
            if differ or other.keys() != everyone[0].keys():
                name = differ[0] if differ else "list of inputs"
                problem = (f"rank {rank} was started with another {name} than rank 0: "
                           f"{other.get(name)!r}, not {everyone[0].get(name)!r}")  # fmt: skip
                raise ConfigError(problem) if self.is_first else OtherRankError(problem)

    def _call(self, collective: Callable[..., Any], *arguments: Any) -> None:
        """Call a collective; where another rank has died, say so instead of showing what its connection did."""
        try:
            collective(*arguments)
        except RuntimeError as error:
            lost = None if self.meeting is None else self.meeting.lost()
            lost = lost or f"rank {self.rank} of {self.size} has lost another one ({_line(error)})"
            raise LostRankError(f"{lost}; run the same command again to resume") from None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, total: int) -> Tensor:
        ctx.ranks, ctx.total, sizes = ranks, total, [Share.of(n, ranks.size, total).size for n in range(ranks.size)]
        padded = F.pad(rows, (0, 0, 0, max(sizes) - len(rows)))
        return torch.cat([part[:size] for part, size in zip(ranks._gathered(padded, "points"), sizes, strict=True)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        summed = ctx.ranks._reduced(gradient.contiguous(), "SUM", "gradients of points")
        return summed[ctx.ranks.share(ctx.total).rows], None, None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return ranks.sum(values, "vectors of labels")

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.ranks.sum(gradient, "vectors of labels"), None


def _line(error: BaseException) -> str:
    """Return an error's message in one line."""
    if isinstance(error, ZipfelError):
        return str(error)
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"
