"""`zipfel train --workers N`: starts the ranks of one machine, and waits until all have ended.

torch's own launcher kills ranks 30 seconds after Ctrl-C, while the best model may still be saved, and reports a dead
rank in many lines. So ranks are processes of this command; several machines need torchrun.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from zipfel.cli.show import warn
from zipfel.errors import INTERRUPTED, ConfigError

LAUNCHED = "ZIPFEL_LAUNCHED"  # environment variable of ranks that this module has started
PAUSE = 0.05  # seconds between looks at the ranks
PATIENCE = 5.0  # seconds for ranks to end by themselves after another one has failed
GRACE = 10.0  # seconds between SIGTERM and SIGKILL


def is_rank() -> bool:
    """Whether torchrun, or this module, has started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_launcher(workers: int | None) -> bool:
    """Whether this process starts the ranks and does not train; raise ConfigError if it cannot."""
    if workers is None or LAUNCHED in os.environ:
        return False
    if workers < 1:
        raise ConfigError(f"workers must be at least 1; found {workers}")
    if is_rank():
        raise ConfigError("this process is a rank already (RANK and WORLD_SIZE are set): leave out --workers")
    return workers > 1


def launched(size: int) -> int:
    """Run this command in several processes, the ranks of one training, and return its exit code."""
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        processes = [_started(rank, size, meeting) for rank in range(size)]
    return _Ranks(processes).code()


def _started(rank: int, size: int, meeting: socket.socket) -> subprocess.Popen[bytes]:
    """Start a rank in a session of its own: Ctrl-C is for the launcher. It ends when the launcher's pipe is closed."""
    loopback = "lo" if sys.platform.startswith("linux") else "lo0"
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    environment = {"GLOO_SOCKET_IFNAME": loopback} | os.environ | {name: str(n) for name, n in numbers.items()}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(meeting.getsockname()[1]), LAUNCHED: "1"}
    if rank == 0:
        environment["ZIPFEL_LISTEN_FD"] = str(meeting.fileno())
    return subprocess.Popen(
        [*_python(), "-m", "zipfel", *sys.argv[1:]], env=environment, stdin=subprocess.PIPE,
        pass_fds=[meeting.fileno()] if rank == 0 else [], start_new_session=True,
    )  # fmt: skip


def _python() -> list[str]:
    """Return Python; unless it did so for this process, it does not look for modules in the current folder."""
    return [sys.executable] if sys.path[:1] in ([""], [str(Path.cwd())]) else [sys.executable, "-P"]


class _Ranks:
    """The processes of all ranks, until they have ended."""

    def __init__(self, processes: list[subprocess.Popen[bytes]]) -> None:
        self.processes = processes
        self.codes: dict[int, int] = {}  # of ranks that have ended, in this order
        self.ended_by_us: set[int] = set()
        self.due = [float("inf"), float("inf")]  # when to send SIGTERM and SIGKILL
        self.asked = 0  # how often Ctrl-C was pressed
        self.code_by_signal: int | None = None

    def code(self) -> int:
        """Wait for all ranks, and return the exit code of the command; report a rank that was killed."""
        handlers = {signal.SIGINT: self._interrupt, signal.SIGTERM: self._terminate}
        before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
        try:
            while len(self.codes) < len(self.processes):
                self._look()
                for number, kind in enumerate((signal.SIGTERM, signal.SIGKILL)):
                    if time.monotonic() > self.due[number]:
                        self.due[number] = float("inf")
                        self._end(kind)
                time.sleep(PAUSE)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            for process in self.processes:
                if process.stdin is not None:
                    process.stdin.close()  # also the end of ranks that still run, if this one fails
        return self._outcome()

    def _look(self) -> None:
        for rank, process in enumerate(self.processes):
            code = process.poll()
            if code is None or rank in self.codes:
                continue
            self.codes[rank] = INTERRUPTED if code == -signal.SIGINT and self.asked else code  # before Python heard it
            if code:
                self._end_within(0 if code < 0 else PATIENCE)

    def _end_within(self, seconds: float) -> None:
        """End the ranks that have not ended by themselves within these seconds."""
        if max(self.due) == float("inf") and not self.ended_by_us:
            now = time.monotonic()
            self.due = [now + seconds, now + seconds + GRACE]

    def _end(self, kind: signal.Signals) -> None:
        for rank, process in enumerate(self.processes):
            if process.poll() is None:
                self.ended_by_us.add(rank)
                process.send_signal(kind)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Ask the first rank to stop, which then saves the best model; a second Ctrl-C does not wait for that."""
        self.asked += 1
        if self.asked == 1 and self.processes[0].poll() is None:
            self.processes[0].send_signal(signal.SIGINT)
        elif self.asked > 1:
            self.code_by_signal = INTERRUPTED
            self._end_within(0)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        self.code_by_signal = 143
        self._end_within(0)

    def _outcome(self) -> int:
        if self.code_by_signal is not None:
            return self.code_by_signal
        killed = [rank for rank, code in self.codes.items() if code < 0 and rank not in self.ended_by_us]
        if killed:
            rank = killed[0]
            name, size = _signal_name(-self.codes[rank]), len(self.processes)
            hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
            warn(f"error: rank {rank} of {size} (process {self.processes[rank].pid}) was killed by {name}{hint}; "
                 "run the same command again to resume")  # fmt: skip
            return 1
        codes = [code for rank, code in sorted(self.codes.items()) if code and rank not in self.ended_by_us]
        return INTERRUPTED if INTERRUPTED in codes else next(iter(codes), 1 if self.ended_by_us else 0)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def end_with_launcher(ended: Callable[[int], None]) -> None:
    """Wait until the launcher has died, then end this rank; for a thread of its own."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)  # the main thread may wait for another rank
    ended(143)
