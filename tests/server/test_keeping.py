"""Files of corrections: what is acknowledged is on disk, and a failure leaves whole lines."""

from __future__ import annotations

import errno
import os
import stat
from datetime import UTC, datetime
from pathlib import Path

import pytest

from zipfel.errors import DataError
from zipfel.server import keeping
from zipfel.server.keeping import Keeper, check_folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_line_and_the_name_of_its_file_are_flushed_before_it_counts_as_kept(tmp_path, monkeypatch):
    steps = []
    for name in ("write", "fsync"):
        real = getattr(os, name)

        def noted(file, *more, real=real, name=name):
            steps.append((name, str(Path(f"/proc/self/fd/{file}").readlink())))
            return real(file, *more)

        monkeypatch.setattr(keeping.os, name, noted)
    Keeper(tmp_path).keep(b"one\n")
    file = str(next(tmp_path.iterdir()))
    assert steps == [("fsync", str(tmp_path)), ("write", file), ("fsync", file)]


def test_files_begin_anew_by_day_and_by_size(tmp_path, monkeypatch):
    today = [datetime(2026, 11, 18, 23, 59, tzinfo=UTC)]

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return today[0]

    monkeypatch.setattr(keeping, "datetime", Clock)
    keeper = Keeper(tmp_path, worker=3, size=8)
    for line in (b"1234\n", b"12\n", b"5\n", b"a long line\n"):
        keeper.keep(line)
    today[0] = today[0].replace(day=19)
    keeper.keep(b"next\n")
    assert names(tmp_path) == [*(f"2026-11-18-3-000{number}.jsonl" for number in (1, 2, 3)), "2026-11-19-3-0001.jsonl"]
    assert [path.read_bytes() for path in sorted(tmp_path.iterdir())] == [
        b"1234\n12\n", b"5\n", b"a long line\n", b"next\n",
    ]  # fmt: skip


def test_two_services_and_a_restarted_one_never_share_a_file(tmp_path):
    keepers = [Keeper(tmp_path), Keeper(tmp_path), Keeper(tmp_path, worker=1)]
    for keeper in [*keepers, *keepers]:
        keeper.keep(b"line\n")
    assert len(names(tmp_path)) == 3
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"line\nline\n"}


def test_a_full_disk_leaves_whole_lines_and_later_ones_are_kept(tmp_path, monkeypatch):
    keeper, write, room = Keeper(tmp_path), os.write, [7]

    def limited(file, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = write(file, data[: room[0]])
        room[0] -= count
        return count

    monkeypatch.setattr(keeping.os, "write", limited)
    keeper.keep(b"one\n")
    for _ in range(3):
        with pytest.raises(OSError, match="No space"):
            keeper.keep(b"two\n")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"one\n"]  # and no empty files
    room[0] = 100
    keeper.keep(b"three\n")
    assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == [b"one\n", b"three\n"]


def test_a_line_that_cannot_be_flushed_is_not_kept(tmp_path, monkeypatch):
    keeper, fsync = Keeper(tmp_path), os.fsync
    keeper.keep(b"one\n")
    monkeypatch.setattr(keeping.os, "fsync", lambda file: (_ for _ in ()).throw(OSError(errno.EIO, "broken")))
    with pytest.raises(OSError, match="broken"):
        keeper.keep(b"two\n")
    monkeypatch.setattr(keeping.os, "fsync", fsync)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"one\n"]


def test_a_file_whose_name_is_not_on_disk_is_not_used(tmp_path, monkeypatch):
    fsync, flushed = os.fsync, []

    def fails_once(file):
        flushed.append(stat.S_ISDIR(os.fstat(file).st_mode))
        if len(flushed) == 1:
            raise OSError(errno.EIO, "broken")
        fsync(file)

    monkeypatch.setattr(keeping.os, "fsync", fails_once)
    keeper = Keeper(tmp_path)
    with pytest.raises(OSError, match="broken"):
        keeper.keep(b"one\n")
    assert names(tmp_path) == []
    keeper.keep(b"two\n")
    assert flushed == [True, True, False]  # the folder again, then the file


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    check_folder(tmp_path / "new" / "folder")
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file: corrections cannot be written here: (File exists|Not a directory)"):
        check_folder(tmp_path / "file")
