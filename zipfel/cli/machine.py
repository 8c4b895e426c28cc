"""The options --device and --threads, which all commands that run a model share."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Self

from zipfel.cli.launch import is_rank
from zipfel.config import Settings, setting


@dataclass(frozen=True)
class Machine(Settings):
    """Device and threads."""

    device: str = setting("auto", "device: auto (the GPU if there is one), cpu, cuda, cuda:1 or mps")
    threads: int | None = setting(None, "threads on the CPU; default: one for each core that it may use", at_least=1)

    def used(self) -> Self:
        """Set the number of threads and check the device, before anything is read; return it with the device.

        Of several ranks on a machine, each has a GPU of its own, or its share of the cores. torch counts all cores of a
        machine, also in a container that may use a few: threads without a core would wait for each other.
        """
        import torch

        from zipfel.data.processes import cores
        from zipfel.fitting import chosen_device
        from zipfel.training.machine import set_threads

        ranks = _number("LOCAL_WORLD_SIZE", 1) if is_rank() else 1
        kind = chosen_device(self.device).type
        threads = self.threads or max(1, cores() // ranks)
        if self.threads or ranks > 1 or threads < torch.get_num_threads():
            set_threads(threads)
        if not is_rank() or kind != "cuda" or ":" in self.device:
            return self
        device = f"cuda:{_number('LOCAL_RANK', 0)}"
        chosen_device(device)
        return replace(self, device=device)


def _number(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else otherwise
