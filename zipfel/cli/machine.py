"""The options --device and --threads, which all commands that run a model share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from zipfel.config import Settings, setting


@dataclass(frozen=True)
class Machine(Settings):
    """The device and its threads."""

    device: str = setting("auto", "device: auto (the GPU if there is one), cpu, cuda, cuda:1 or mps")
    threads: int | None = setting(None, "threads on the CPU; default: one for each core", at_least=1)

    def used(self) -> Self:
        """Set the number of threads and check the device, before anything is read."""
        from zipfel.fitting import chosen_device
        from zipfel.training.machine import set_threads

        chosen_device(self.device)
        if self.threads is not None:
            set_threads(self.threads)
        return self
