"""Ranks that meet, or cannot: who is missing, of another version, or dead, in one line."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest
from torch.distributed import TCPStore

from zipfel import fitting
from zipfel.choice import Choice
from zipfel.errors import ConfigError, OtherRankError
from zipfel.models.base import settings_of
from zipfel.training.meeting import Meeting
from zipfel.training.ranks import Ranks


@pytest.fixture
def store() -> TCPStore:
    return TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Any:
    def as_rank(rank: int, size: int, port: int, **more: str) -> None:
        values = {"RANK": rank, "WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in {**values, "ZIPFEL_MEETING_SECONDS": "0.3", **more}.items():
            monkeypatch.setenv(name, str(value))

    return as_rank


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_ranks_that_do_not_come_are_named(started: Any):
    port = free_port()
    started(0, 3, port)
    line = f"^only 1 of 3 ranks came to 127.0.0.1:{port} within 0.3 seconds; rank 1, 2 did not$"
    with pytest.raises(ConfigError, match=line):
        Meeting.joined()


def test_a_first_rank_that_is_not_there_is_named(started: Any):
    port = free_port()
    started(1, 2, port)
    line = f"^rank 1 of 2 on .* cannot reach the first one at 127.0.0.1:{port}: Connection refused for 0.3 seconds$"
    with pytest.raises(ConfigError, match=line):
        Meeting.joined()


def test_the_same_rank_twice_is_an_error(started: Any, store: TCPStore):
    started(1, 2, store.port)
    store.add("rank/1", 1)
    with pytest.raises(ConfigError, match=r"two processes have come to .* as rank 1$"):
        Meeting.joined()


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("RANK", "x", "RANK must be a whole number; found 'x'"),
        ("RANK", "2", "RANK must be below WORLD_SIZE; found 2 and 2"),
        ("MASTER_PORT", "", "MASTER_PORT must be a whole number; found ''"),
        ("ZIPFEL_MEETING_SECONDS", "long", "ZIPFEL_MEETING_SECONDS must be a number of seconds; found 'long'"),
    ],
)
def test_wrong_variables_are_named(started: Any, name: str, value: str, line: str):
    started(0, 2, free_port(), **{name: value})
    with pytest.raises(ConfigError, match=line):
        Meeting.joined()


def card(**changes: Any) -> dict[str, Any]:
    own = {"host": "here", "process": os.getpid(), "number of ranks": 2, "zipfel": "1", "torch": "2", "numpy": "2"}
    return own | changes


@pytest.mark.parametrize("name", ["zipfel", "torch", "number of ranks"])
def test_another_version_is_refused_by_all_and_reported_by_the_first(name: str):
    for rank, kind in ((0, ConfigError), (1, OtherRankError)):
        meeting = Meeting(rank, 2, None, None)
        meeting.cards = [card(), card(**{name: 9})]
        with pytest.raises(kind, match=f"^rank 1 on here has {name} 9, but rank 0 has {card()[name]}$"):
            meeting._check_versions()
        meeting.cards = [card(), card()]
        meeting._check_versions()


def test_dead_ranks_are_told_from_those_that_left(store: TCPStore):
    meeting = Meeting(0, 3, store, store)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, gone.pid, os.WEXITED | os.WNOWAIT)  # dead, but not yet waited for
    mine = {"host": meeting.host}
    meeting.cards = [card(**mine), card(**mine, process=gone.pid), card(host="elsewhere", process=gone.pid)]
    assert meeting.lost(seconds=0) == f"rank 1 of 3 (process {gone.pid}) on {meeting.host} died"
    gone.wait()
    assert meeting.lost(seconds=0) is not None
    store.set("left/1", "yes")
    assert meeting.lost(seconds=0) is None


def test_one_rank_reports_a_problem(store: TCPStore):
    first, other = Meeting(0, 2, store, store), Meeting(1, 2, store, store)
    assert not other.is_reported(seconds=0)
    assert [other.is_reporter(), first.is_reporter()] == [True, False]
    assert first.is_reported(seconds=0)


@pytest.mark.parametrize("name", ["data", "learning_rate"])
def test_other_inputs_are_named_by_rank(monkeypatch: pytest.MonkeyPatch, name: str):
    own = {"data": "ab12", "learning_rate": 0.1}
    for rank, kind in ((0, ConfigError), (1, OtherRankError)):
        ranks = Ranks(rank, 2)
        monkeypatch.setattr(ranks, "everyone", lambda value: [own, own | {name: "cd34"}])
        with pytest.raises(kind, match=f"^rank 1 was started with another {name} than rank 0: 'cd34', not"):
            ranks.check_same(own)


def test_ctrl_c_on_one_rank_is_ctrl_c_on_all(monkeypatch: pytest.MonkeyPatch):
    ranks = Ranks(1, 2)
    monkeypatch.setattr(ranks, "everyone", lambda value: ["stopped", value])
    with pytest.raises(KeyboardInterrupt):
        ranks.all(lambda: 1)


def test_one_rank_reports_what_all_have_found(monkeypatch: pytest.MonkeyPatch):
    def fails() -> None:
        raise ConfigError("no such file")

    for rank, kind in ((0, ConfigError), (1, OtherRankError)):
        ranks = Ranks(rank, 2)
        monkeypatch.setattr(ranks, "everyone", lambda value: [value, value])
        with pytest.raises(kind, match=r"^no such file$"):
            ranks.all(fails)


def test_a_model_needs_a_label_for_each_rank_and_the_ability():
    fitting.check_split(Choice("decaf", "default", "named"), settings_of("decaf"), 3, 3)
    with pytest.raises(ConfigError, match=r"^3 ranks cannot share 2 labels; start fewer$"):
        fitting.check_split(Choice("decaf", "default", "named"), settings_of("decaf"), 3, 2)
    with pytest.raises(ConfigError, match=r"^mnn is trained by one process; several ranks can train glas, .*decaf"):
        fitting.check_split(Choice("mnn", "default", "named"), settings_of("mnn"), 3)
    with pytest.raises(ConfigError, match=r"^mnn, which was chosen for this data, is trained by one process; several"):
        fitting.check_split(Choice("mnn", "default", "few points"), settings_of("mnn"), 3)
