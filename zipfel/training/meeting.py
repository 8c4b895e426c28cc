"""Where ranks meet: a store that all of them reach, in which each says who it is, and learns who has ended."""

from __future__ import annotations

import os
import socket
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
import torch

from zipfel import __version__
from zipfel.errors import ConfigError, OtherRankError

SECONDS = 300.0  # to wait for the others at the start; ZIPFEL_MEETING_SECONDS changes it
ANSWER = timedelta(seconds=10)  # in which a store that still exists answers
NOTICED = 3.0  # seconds in which a process that has been killed is gone


class Meeting:
    """The ranks of a run, as torchrun or `--workers` have started them.

    The store is on the first rank, or with torchrun in its agent. It outlives collectives: where these fail because a
    rank has died, the others look there for its name, and agree on who reports it.
    """

    def __init__(self, rank: int, size: int, store: Any, watch: Any) -> None:
        self.rank, self.size, self.store, self.watch = rank, size, store, watch
        self.is_elected = False  # this rank reports a problem that others have found too
        self.host, self.cards = socket.gethostname(), list[dict[str, Any]]()

    @classmethod
    def joined(cls) -> Self:
        """Wait until all ranks have come; raise ConfigError if some do not, or if they are of other versions."""
        rank, size, end = _number("RANK"), _number("WORLD_SIZE"), time.monotonic() + patience()
        if not rank < size:
            raise ConfigError(f"RANK must be below WORLD_SIZE; found {rank} and {size}")
        host, port = os.environ.get("MASTER_ADDR", ""), _number("MASTER_PORT")
        who = f"rank {rank} of {size} on {socket.gethostname()}"
        hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        try:
            store = _store(host, port, hosts, end)
            watch = _store(host, port, False, end)
        except (RuntimeError, ValueError, OSError) as error:
            problem = str(error).strip().partition("\n")[0]
            raise ConfigError(f"{who} cannot reach the first one at {host}:{port}: {problem}") from None
        meeting = cls(rank, size, store, watch)
        try:
            meeting._arrive(end, f"{host}:{port}")
        except RuntimeError as error:
            problem = str(error).strip().partition("\n")[0]
            raise ConfigError(f"{who} has lost the first one at {host}:{port}: {problem}") from None
        except ConfigError as error:
            raise error if meeting.is_reporter() else OtherRankError(str(error)) from None
        return meeting

    def _arrive(self, end: float, address: str) -> None:
        card = {"host": self.host, "process": os.getpid(), "number of ranks": self.size,
                "zipfel": __version__, "torch": torch.__version__, "numpy": np.__version__}  # fmt: skip
        if self.watch.add(f"rank/{self.rank}", 1) > 1:
            raise ConfigError(f"two processes have come to {address} as rank {self.rank}")
        self.watch.set(f"card/{self.rank}", orjson.dumps(card))
        names = [f"card/{rank}" for rank in range(self.size)]
        while not self.watch.check(names):
            if time.monotonic() > end:
                absent = [str(rank) for rank in range(self.size) if not self.watch.check([f"card/{rank}"])]
                raise ConfigError(f"only {self.size - len(absent)} of {self.size} ranks came to {address} within "
                                  f"{patience():g} seconds; rank {', '.join(absent[:10])} did not")  # fmt: skip
            time.sleep(0.05)
        self.cards = [orjson.loads(self.watch.get(name)) for name in names]
        self._check_versions()

    def _check_versions(self) -> None:
        first = self.cards[0]
        for rank, card in enumerate(self.cards):
            for name in ("number of ranks", "zipfel", "torch", "numpy"):
                if card[name] != first[name]:
                    problem = f"{name} {card[name]}, but rank 0 has {first[name]}"
                    raise _of_first(self.rank, f"rank {rank} on {card['host']} has {problem}")

    def is_reporter(self) -> bool:
        """Whether this rank is the first that has a problem to report: the others keep silent."""
        try:
            return bool(self.watch.add("reported", 1) == 1)
        except RuntimeError:  # the store has ended with the first rank
            return True

    def is_reported(self, seconds: float) -> bool:
        """Whether a rank reports a problem within this many seconds."""
        end = time.monotonic() + seconds
        try:
            while not self.watch.check(["reported"]):
                if time.monotonic() > end:
                    return False
                time.sleep(0.05)
        except RuntimeError:  # the first rank has ended, and has said why
            return True
        return True

    def leave(self) -> None:
        """Say that this rank ends on its own."""
        try:
            self.watch.set(f"left/{self.rank}", "yes")
        except RuntimeError:  # nobody is there any more
            return

    def lost(self, seconds: float = NOTICED) -> str | None:
        """Return which ranks of this machine have died, and how many processes they were; None if all live."""
        end = time.monotonic() + seconds
        while True:
            dead = [rank for rank, card in enumerate(self.cards) if self._is_dead(rank, card)]
            if dead or time.monotonic() > end:
                break
            time.sleep(0.1)
        if not dead:
            return None
        names = [f"rank {rank} of {self.size} (process {self.cards[rank]['process']})" for rank in dead]
        return f"{', '.join(names)} on {self.host} died"

    def _is_dead(self, rank: int, card: dict[str, Any]) -> bool:
        if card["host"] != self.host or _lives(card["process"]):
            return False
        try:
            return not self.watch.check([f"left/{rank}"])
        except RuntimeError:
            return True


def patience() -> float:
    """Return the seconds to wait for other ranks at the start."""
    text = os.environ.get("ZIPFEL_MEETING_SECONDS", str(SECONDS))
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"ZIPFEL_MEETING_SECONDS must be a number of seconds; found {text!r}") from None


def _store(host: str, port: int, hosts: bool, end: float) -> Any:
    """Return a connection to the store, which the first rank hosts."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    if hosts:
        listening = os.environ.get("ZIPFEL_LISTEN_FD")  # a port that nobody else can have taken meanwhile
        more: dict[str, Any] = {} if listening is None else {"master_listen_fd": int(listening)}
        wait = timedelta(seconds=max(1.0, end - time.monotonic()))
        return TCPStore(host, port, None, True, timeout=wait, wait_for_workers=False, **more)
    _wait_for_port(host, port, end)
    return TCPStore(host, port, None, False, timeout=ANSWER, wait_for_workers=False)


def _wait_for_port(host: str, port: int, end: float) -> None:
    """Wait until something listens there; torch would wait too, but say so in many lines, and ignore signals."""
    while True:
        try:
            socket.create_connection((host, port), timeout=5).close()
            return
        except OSError as error:
            if time.monotonic() > end:
                raise OSError(f"{error.strerror or error} for {patience():g} seconds") from None
            time.sleep(0.1)


def _lives(process: int) -> bool:
    """Whether a process of this machine lives; one that has ended and is not yet waited for does not."""
    try:
        os.kill(process, 0)
        status = Path(f"/proc/{process}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        return True


def _of_first(rank: int, problem: str) -> ConfigError | OtherRankError:
    """Return a problem that all ranks find: an error on the first, which reports it."""
    return ConfigError(problem) if rank == 0 else OtherRankError(problem)


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdigit():
        raise ConfigError(f"the environment variable {name} must be a whole number; found {text!r}")
    return int(text)
