"""A process as one of several ranks that train a model: what it prints, which signals it obeys, and how it ends."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import typer

from zipfel.cli import show
from zipfel.cli.launch import LAUNCHED, end_with_launcher, is_rank
from zipfel.errors import INTERRUPTED, ConfigError, LostRankError, OtherRankError, ZipfelError

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.cli.machine import Machine
    from zipfel.training.meeting import Meeting
    from zipfel.training.ranks import Ranks, World

FIRST_REPORTS = 3.0  # seconds in which the first rank reports a problem that all have found
LONGEST_WAIT = 8.0  # seconds in which any rank does


@contextmanager
def joined(machine: Machine) -> Iterator[tuple[World, str]]:
    """Yield the ranks that train in this block, which this process has joined, and its device; else it is alone.

    Only the first rank prints. Of a problem, the rank that has it prints one line, or the first if all have it.
    """
    if is_rank():
        _prepare()
    from zipfel.fitting import chosen_device
    from zipfel.training.meeting import Meeting
    from zipfel.training.ranks import Ranks, World

    if not is_rank():
        yield World(), machine.used().device
        return
    meeting: Meeting | None = None
    try:
        meeting = Meeting.joined()
        device = machine.used().device
        world = Ranks.of(meeting, chosen_device(device))
        _obey_signals(world, meeting)
        yield world, device
        world.leave()
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which torchrun sends as soon as one rank has failed
        if meeting is not None:
            raise _told(error, meeting) from None
        if os.environ.get("LOCAL_RANK", "0") == "0":  # ranks that have not met cannot agree who reports it
            show.warnings.quiet = False
        raise _silent(error) if isinstance(error, OtherRankError) else error from None


def _prepare() -> None:
    """Let only the first rank print and hear Ctrl-C; a rank that `--workers` started ends with its launcher."""
    _ends_at_once.append(True)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # no stack traces of connections that another rank has closed
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")  # of processes that a killed rank has started
    if LAUNCHED in os.environ:
        threading.Thread(target=end_with_launcher, args=(os._exit,), daemon=True).start()
    if os.environ["RANK"] != "0":
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        warnings.simplefilter("ignore")
        show.console.quiet = show.warnings.quiet = True


def _obey_signals(world: Ranks, meeting: Meeting) -> None:
    """Stop training on Ctrl-C as one process does; on SIGTERM, which torchrun sends after a rank has died, end."""
    if world.is_first:
        signal.signal(signal.SIGINT, lambda *_: world.stop())

    def terminate(*_: object) -> None:
        lost = meeting.lost(seconds=0)
        if lost is not None:
            raise LostRankError(f"{lost}; run the same command again to resume")
        sys.exit(143)

    signal.signal(signal.SIGTERM, terminate)


def _told(error: BaseException, meeting: Meeting) -> BaseException:
    """Return an error that this rank reports, or one that ends it in silence."""
    tells = _tells(error, meeting)
    meeting.leave()
    if not tells:
        return _silent(error)
    show.warnings.quiet = False
    if meeting.rank and isinstance(error, ZipfelError) and not isinstance(error, LostRankError):
        return ConfigError(f"rank {meeting.rank} on {socket.gethostname()}: {error}")
    return error


def _tells(error: BaseException, meeting: Meeting) -> bool:
    """Whether this rank reports an error: no other does, nor the launcher."""
    if isinstance(error, OtherRankError):
        meeting.is_reported(LONGEST_WAIT)  # the store ends with the first rank
        return False
    if isinstance(error, KeyboardInterrupt):
        return meeting.rank == 0
    if isinstance(error, LostRankError):
        return LAUNCHED not in os.environ and meeting.is_reporter()
    if meeting.rank and not meeting.is_elected and meeting.is_reported(FIRST_REPORTS):
        return False
    return meeting.is_reporter()


def _silent(error: BaseException) -> typer.Exit:
    return typer.Exit(INTERRUPTED if isinstance(error, KeyboardInterrupt) else 2)


_ends_at_once: list[bool] = []  # not empty: this process is, or was, a rank


def end(code: Any) -> None:
    """End a rank after all its output, at once: gloo's threads for ranks that died would abort the process."""
    if not _ends_at_once:
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))
