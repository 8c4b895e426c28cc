"""Saving survives kills and links, cleans up after dead processes, and loading notices damaged and changing files."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch

from zipfel import persistence
from zipfel.data.formats import atomic
from zipfel.data.formats.checksums import CHUNK, chunk_sums
from zipfel.errors import DataError
from zipfel.persistence import Saved

ROOT = Path(__file__).parent.parent


def model(version: int, size: int = 10) -> Saved:
    weights = {"a": torch.full((size,), float(version))}
    return Saved({"version": version}, {"labels": {"version": version}}, weights, weights)


def version_in(folder: Path) -> int:
    saved = persistence.load(persistence.located(folder))
    versions = {saved.about["version"], saved.documents["labels"]["version"], *saved.serve["a"].tolist()}
    assert len(versions) == 1
    return int(saved.about["version"])


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(params=["exchange", "two steps"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Replace folders in one step, or as systems do that cannot."""
    if request.param == "two steps":
        monkeypatch.setattr(atomic, "exchange", lambda one, other: False)
    return str(request.param)


# --- Replacing --------------------------------------------------------------------------------------------------------


def test_a_link_stays_a_link_when_the_model_behind_it_is_replaced(tmp_path, way):
    persistence.save(model(1), tmp_path / "monday")
    (tmp_path / "current").symlink_to("monday")
    persistence.save(model(2), tmp_path / "current", replace=True)
    assert (tmp_path / "current").is_symlink()
    assert version_in(tmp_path / "current") == version_in(tmp_path / "monday") == 2
    assert names(tmp_path) == {"monday", "current"}
    with pytest.raises(DataError, match="exists already"):
        persistence.save(model(3), tmp_path / "current")


def test_a_mapped_model_outlives_its_replacement(tmp_path, way):
    persistence.save(model(1), tmp_path / "model")
    old = persistence.load(tmp_path / "model")
    persistence.save(model(2), tmp_path / "model", replace=True)
    assert old.serve["a"].tolist() == [1.0] * 10
    assert version_in(tmp_path / "model") == 2


@pytest.mark.skipif(sys.platform != "linux", reason="renameat2 is a call of Linux")
def test_linux_exchanges_folders_in_one_step(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    assert atomic.exchange(tmp_path / "a", tmp_path / "b")
    assert names(tmp_path / "a") == {"b"}
    assert names(tmp_path / "b") == {"a"}
    assert not atomic.exchange(tmp_path / "a", tmp_path / "missing")


def test_files_and_folders_are_flushed_before_they_take_their_place(tmp_path, monkeypatch, way):
    flushed, real = list[str](), os.fsync

    def fsync(file: int) -> None:
        flushed.append(str(Path(f"/proc/self/fd/{file}").readlink()))
        real(file)

    persistence.save(model(1), tmp_path / "model")
    monkeypatch.setattr(os, "fsync", fsync)
    persistence.save(model(2), tmp_path / "model", replace=True)
    *before, last = flushed
    assert last == str(tmp_path)  # the new name, once it is there
    assert all(".part" in path for path in before)
    written = {path.partition(".part")[2] for path in before}
    files = {p.relative_to(tmp_path / "model").as_posix() for p in (tmp_path / "model").rglob("*")}
    assert written == {"", *(f"/{name}" for name in files)}


def test_a_folder_that_appears_meanwhile_is_not_replaced_unasked(tmp_path):
    with (
        pytest.raises(DataError, match="model: exists already; remove it or choose another path"),
        atomic.new_folder(tmp_path / "model"),
    ):
        persistence.save(model(1), tmp_path / "model")
    assert version_in(tmp_path / "model") == 1
    assert names(tmp_path) == {"model"}


# --- Kills ------------------------------------------------------------------------------------------------------------

KILLED_AT_EVERY_STEP = """
import os, shutil, signal, sys
from pathlib import Path
import torch
from tests.test_atomic_saving import model, names, version_in
from zipfel import persistence
from zipfel.data.formats import atomic

torch.set_num_threads(1)
parent = Path(sys.argv[1])
if sys.argv[2] == "two steps":
    atomic.exchange = lambda one, other: False

def killing(function, steps):
    def step(*given, **more):
        if next(steps, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*given, **more)
    return step

def save_and_die(version, count):
    steps = iter(range(count))
    for owner, name in ((Path, "rename"), (Path, "mkdir"), (Path, "rmdir"), (os, "fsync"), (os, "unlink"),
                        (os, "rmdir"), (os, "replace"), (atomic, "exchange")):
        setattr(owner, name, killing(getattr(owner, name), steps))
    persistence.save(model(version), parent / "model", replace=True)
    os._exit(0)

persistence.save(model(0), parent / "model")
kills, missing, version = 0, 0, 0
for count in range(1000):
    child = os.fork()
    if not child:
        save_and_die(version + 1, count)
    status = os.waitpid(child, 0)[1]
    missing += not (parent / "model").exists()
    found = version_in(parent / "model")
    assert found in (version, version + 1), (count, found, version)
    version = found
    if not os.WIFSIGNALED(status):
        break
    kills += 1
assert os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0, status
assert names(parent) == {"model"}, names(parent)
print(kills, missing)
"""


@pytest.mark.parametrize("way", ["exchange", "two steps"])
def test_a_kill_at_any_step_leaves_the_old_model_or_the_new_one(tmp_path, way):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", KILLED_AT_EVERY_STEP, str(tmp_path), way]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    kills, missing = map(int, done.stdout.split())
    assert kills > 20
    assert (missing > 0) == (way == "two steps")  # the gap was hit, and bridged


def test_forty_kills_lose_nothing():
    fast = {"TMPDIR": "/dev/shm"} if os.access("/dev/shm", os.W_OK) else {}
    environment = {**os.environ, **fast, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "benchmarks.save_kills", "20"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
    ways = json.loads(done.stdout)["ways"]
    assert [(way["kills"], way["lost"], way["leftovers"]) for way in ways] == [(20, 0, [])] * 2, done.stderr
    assert sum(way["in_the_middle"] for way in ways) > 10


def test_a_replacement_that_was_killed_between_its_steps_is_recovered(tmp_path):
    persistence.save(model(1), tmp_path / "run" / "model")
    (tmp_path / "run" / "model").rename(tmp_path / "run" / ".model.older")
    assert version_in(tmp_path / "run" / "model") == version_in(tmp_path / "run") == 1
    assert names(tmp_path / "run") == {".model.older"}  # reading writes nothing
    with pytest.raises(DataError, match="exists already"):
        persistence.save(model(2), tmp_path / "run" / "model")
    assert version_in(tmp_path / "run" / "model") == 1
    persistence.save(model(2), tmp_path / "run" / "model", replace=True)
    assert version_in(tmp_path / "run") == 2
    assert names(tmp_path / "run") == {"model"}


def test_leftovers_of_dead_processes_are_removed_and_others_are_not(tmp_path):
    for name in (".model.123.part", ".model.1.0a1b2c3d.part", ".model.newer", ".model.film.part", ".models.1.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").touch()
    with atomic.new_folder(tmp_path / "model") as busy:
        persistence.save(model(1), tmp_path / "model")
        assert names(tmp_path) == {busy.name, "model", ".model.film.part", ".models.1.part"}
        shutil.rmtree(tmp_path / "model")
        (busy / "whole").touch()
    assert names(tmp_path) == {"model", ".model.film.part", ".models.1.part"}
    assert names(tmp_path / "model") == {"whole"}


# --- Damage -----------------------------------------------------------------------------------------------------------


def test_sums_of_chunks_are_those_of_zlib_and_see_every_byte(tmp_path):
    import zlib

    content = np.random.default_rng(0).integers(0, 256, 2 * CHUNK + 5, dtype=np.uint8).tobytes()
    (tmp_path / "file").write_bytes(content)
    (tmp_path / "empty").touch()
    sums = chunk_sums({"file": tmp_path / "file", "empty": tmp_path / "empty"})
    parts = [content[:CHUNK], content[CHUNK : 2 * CHUNK], content[2 * CHUNK :]]
    assert sums == {"file": [zlib.crc32(part) for part in parts], "empty": []}


@pytest.mark.parametrize("old", [False, True], ids=["with sums of chunks", "of an older version"])
@pytest.mark.parametrize("part", ["serve", "train"])
def test_a_flipped_bit_in_the_weights_is_refused(tmp_path, part, old):
    folder = tmp_path / "model"
    persistence.save(model(1), folder)
    if old:
        strip_sums(folder)
    assert version_in(folder) == 1
    path = folder / part / "weights.safetensors"
    content = bytearray(path.read_bytes())
    for position in (len(content) - 40, len(content) - 1):
        content[position] ^= 4
        path.write_bytes(content)
        for read in (persistence.load, persistence.verify):
            with pytest.raises(DataError, match=f"{part}/weights.safetensors: was changed since the model was saved"):
                read(folder)
        content[position] ^= 4
    path.write_bytes(content)
    assert persistence.verify(folder) == 3


def strip_sums(folder: Path) -> None:
    """Write `model.json` as versions without sums of chunks did."""
    about = orjson.loads((folder / "model.json").read_bytes())
    for entry in about["files"].values():
        del entry["crc32"]
    (folder / "model.json").write_bytes(orjson.dumps({**about, "sha256": persistence._seal(about)}))


# --- Files that change ------------------------------------------------------------------------------------------------


def test_files_that_are_overwritten_in_place_are_noticed(tmp_path):
    folder = tmp_path / "model"
    persistence.save(model(1), folder)
    loaded, path = persistence.stamps(folder), folder / "serve" / "weights.safetensors"
    assert set(loaded) == {path, folder / "train" / "weights.safetensors"}
    assert persistence.overwritten(loaded) == []
    persistence.save(model(2), folder, replace=True)
    assert persistence.overwritten(loaded) == []  # the old files are still mapped
    loaded = persistence.stamps(folder)
    with path.open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"\0\0\0\0")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # clocks of file systems are coarse
    assert persistence.overwritten(loaded) == [path]
    os.truncate(path, 10)
    assert persistence.overwritten(loaded) == [path]
    shutil.rmtree(folder)
    assert persistence.overwritten(loaded) == []


USED_WHILE_CUT = """
import os, sys
from pathlib import Path
from zipfel import persistence
saved = persistence.load(Path(sys.argv[1]), copy=sys.argv[2] == "copy")
os.truncate(Path(sys.argv[1]) / "serve" / "weights.safetensors", 100)
print(saved.serve["a"].sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="signals differ")
def test_a_copied_model_survives_the_end_of_its_file(tmp_path):
    for how in ("copy", "map"):
        persistence.save(model(1, 1_000_000), tmp_path / how)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ends = {
        how: subprocess.run(
            [sys.executable, "-c", USED_WHILE_CUT, tmp_path / how, how], capture_output=True, text=True, env=environment
        )
        for how in ("copy", "map")
    }
    assert ends["copy"].stdout == "1000000.0\n", ends["copy"].stderr
    assert ends["map"].returncode == -signal.SIGBUS  # or the copy would be for nothing


def test_a_copy_is_checked_as_a_mapping_is(tmp_path):
    folder = tmp_path / "model"
    persistence.save(model(1), folder)
    assert persistence.load(folder, copy=True).serve["a"].tolist() == [1.0] * 10
    path = folder / "serve" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\1")
    with pytest.raises(DataError, match=r"model/serve/weights\.safetensors: was changed"):
        persistence.load(folder, copy=True)


def test_a_model_that_is_replaced_while_it_is_read_is_read_again(tmp_path, monkeypatch):
    folder, real, reads = tmp_path / "model", persistence.read_state, list[Path]()
    persistence.save(model(1), folder)

    def meanwhile(path: Path) -> Any:
        reads.append(path)
        if len(reads) == 2:  # one file of the old model, and one of the new
            persistence.save(model(2), folder, replace=True)
        return real(path)

    monkeypatch.setattr(persistence, "read_state", meanwhile)
    saved = persistence.load(folder)
    assert (saved.about["version"], saved.serve["a"][0], saved.train["a"][0]) == (2, 2.0, 2.0)
    assert len(reads) == 4

    def always(path: Path) -> Any:
        persistence.save(model(3), folder, replace=True)
        return real(path)

    monkeypatch.setattr(persistence, "read_state", always)
    with pytest.raises(DataError, match="kept changing while it was loaded"):
        persistence.load(folder)
