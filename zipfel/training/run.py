"""A run: stages that keep their results in a folder, so that an interrupted run resumes.

Every random draw derives from (seed, stage, epoch, step): a resumed run draws the same numbers as an uninterrupted one.
"""

from __future__ import annotations

import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from zipfel.data.formats.files import lock, new_file, write_bytes
from zipfel.errors import ConfigError, DataError
from zipfel.training.progress import Growth, Observer, Progress, line_of
from zipfel.training.ranks import World
from zipfel.training.together import Split, read_together, write_together
from zipfel.types import Share

State = dict[str, Tensor]
LOGGER = logging.getLogger("zipfel")  # INFO: a line for each epoch, with the values of the log in `record.zipfel`


class Run:
    """Keeps the results of stages in a folder; without a folder, nowhere.

    A run with a folder must be opened before it is used: `open` checks that the folder's results were made from the
    same inputs.
    """

    def __init__(
        self, folder: Path | None = None, seed: int = 0, progress: Progress | None = None,
        observer: Observer | None = None, world: World | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(seed, int | np.integer) or not 0 <= seed < 2**64:
            raise ConfigError(f"seed must be a whole number from 0 to 2^64 - 1; found {seed!r}")
        self.folder, self.seed, self.world = folder, seed, world or World()
        self.progress, self.observer = progress or Progress(), observer or Observer()
        self.is_open, self.notes = folder is None, set[str]()

    def open(self, inputs: Mapping[str, Any], fresh: bool = False) -> bool:
        """Start a run with these inputs (settings, data), or resume it; return whether it resumes.

        A run that has kept no result, such as one killed before its first checkpoint, does not count: the folder is
        used as if it were new.  fresh: start over. Results of an earlier run are removed, and nothing else.
        """
        self.world.check_same({"seed": self.seed, **_flat(inputs)})
        resumes = self.world.first(lambda: self._opened(inputs, fresh))
        self.is_open = True
        return resumes

    def _opened(self, inputs: Mapping[str, Any], fresh: bool) -> bool:
        if self.folder is None:
            return False
        path = self.folder / "run.json"
        wanted = orjson.loads(orjson.dumps({"seed": self.seed, **inputs}, option=orjson.OPT_SERIALIZE_NUMPY))
        _make_folder(self.folder)
        if path.exists() and self.has_results() and not fresh:
            _check_same(_read_inputs(path), wanted, path)
            return True
        for kept in (*self.folder.glob("*.safetensors"), self.folder / "log.jsonl"):
            kept.unlink(missing_ok=True)
        # last, so that a run interrupted here does not resume with the old results
        write_bytes(path, orjson.dumps(wanted, option=orjson.OPT_INDENT_2))
        return False

    @contextmanager
    def opened(self, inputs: Mapping[str, Any], fresh: bool = False) -> Iterator[None]:
        """Open the run for a block; if the block fails before a stage has kept anything, leave nothing behind.

        A command that failed at once must not block a corrected one, which has other inputs.
        """
        folders = [] if self.folder is None else [self.folder, *self.folder.parents]
        new = [folder for folder in folders if not folder.exists()]  # nearest first
        try:
            self.open(inputs, fresh)
            yield
        except BaseException:
            if not self.world.is_first:
                raise
            if self.is_open and self.folder is not None and not self.has_results():
                self._remove(self.folder)
            for folder in new:
                with suppress(OSError):  # not empty
                    folder.rmdir()
            raise

    def aside(self) -> Run:
        """Return the same run for work that one rank does while others wait: it needs no agreement."""
        if not self.world.splits:
            return self
        run = Run(self.folder, self.seed, self.progress, self.observer)
        run.is_open, run.notes = self.is_open, self.notes
        return run

    def has_results(self) -> bool:
        """Whether the folder holds anything that took time to make."""
        return self.folder is not None and any(self.folder.glob("*.safetensors"))

    def _remove(self, folder: Path) -> None:
        """Remove the files of a run without results."""
        self.is_open = False
        for name in ("log.jsonl", "run.json", ".lock"):  # without run.json, a folder with a log is not a run's
            (folder / name).unlink(missing_ok=True)
        file = _locks.pop((folder / ".lock").absolute(), None)
        if file is not None:
            os.close(file)

    def stage(self, name: str, make: Callable[[], State], grows_with: Growth = "points") -> State:
        """Return a stage's result: the kept one, else the one made now; of several ranks, the first makes it."""
        self.world.check_stop()
        kept = self.load(name)
        if kept is not None:
            return kept[0]
        start = time.perf_counter()
        result = self.world.first(make)
        self.observer.made(name, time.perf_counter() - start, grows_with)
        self.keep(name, result)
        return result

    def stage_of_all(
        self, name: str, make: Callable[[], State], grows_with: Growth = "points", reads: Split | None = None,
        writes: Callable[[State], tuple[State, Mapping[str, Share]]] = lambda state: (state, {}),
    ) -> State:  # fmt: skip
        """Return a stage's result that all ranks make together; without `reads`, it is the same on each of them.

        reads: which part of a kept result is this rank's.  writes: returns the result as it is kept, and which part of
        it this rank has.
        """
        self.world.check_stop()
        kept = self.load(name, reads)
        if kept is not None:
            return kept[0]
        start = time.perf_counter()
        result = self.world.all(make)
        self.observer.made(name, time.perf_counter() - start, grows_with)
        state, split = writes(result)
        self.keep(name, state, split=split)
        return state

    def load(self, name: str, split: Split | None = None) -> tuple[State, dict[str, Any]] | None:
        """Return the tensors and notes kept under a name, or None.  split: tensors of which this rank takes a share."""
        path = self._file(name)
        if path is None or not self.world.first(path.exists):
            return None
        return self.world.all(lambda: read_together(path, split or {}))

    def keep(
        self, name: str, state: State, notes: Mapping[str, Any] | None = None, split: Mapping[str, Share] | None = None
    ) -> None:
        """Keep tensors and notes under a name, atomically.  split: tensors of which this rank has a share only."""
        path = self._file(name)
        if path is None:
            return
        if split:
            write_together(path, state, self.world.first(lambda: dict(notes or {})), split, self.world)
        else:
            self.world.first(lambda: write_state(path, state, notes or {}))

    def forget(self, name: str) -> None:
        """Remove the result of this name."""
        path = self._file(name)
        if path is not None and self.world.is_first:
            path.unlink(missing_ok=True)

    def _file(self, name: str) -> Path | None:
        if not self.is_open:
            raise RuntimeError(f"the run in {self.folder} was not opened: call run.open(inputs) first")
        return None if self.folder is None else self.folder / f"{name}.safetensors"

    def log(self, **values: Any) -> None:
        """Add a line to the log of the run; of several ranks, the first does."""
        if not self.world.is_first:
            return
        self.progress.log(values)
        line = line_of(values)
        if line is not None and self.observer.is_logged:
            LOGGER.info(line, extra={"zipfel": dict(values)})
        if self.folder is not None:
            with (self.folder / "log.jsonl").open("ab", buffering=0) as out:  # the whole line at once
                out.write(orjson.dumps(values) + b"\n")

    def note(self, text: str) -> None:
        """Add a remark to the log, once in a run."""
        if text not in self.notes:
            self.notes.add(text)
            self.log(note=text)

    def numbers(self, stage: str, epoch: int = 0, step: int = 0) -> np.random.Generator:
        """Return the numpy generator for a stage, epoch and step."""
        return np.random.default_rng([self.seed, zlib.crc32(stage.encode()), epoch, step])

    def generator(self, stage: str, epoch: int = 0, step: int = 0) -> torch.Generator:
        """Return the torch generator (on the CPU) for a stage, epoch and step."""
        return torch.Generator().manual_seed(int(self.numbers(stage, epoch, step).integers(2**62)))


def _make_folder(folder: Path) -> None:
    """Make a run's folder and lock it, or refuse a folder that holds something else.

    Half-written files of a killed run are removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        started = (".lock", ".run.json.*.part")
        ours = (folder / "run.json").exists() or all(any(map(path.match, started)) for path in folder.iterdir())
        if not ours:
            raise ConfigError(f"{folder} is not the folder of a run (run.json is missing) and not empty; name another")
        _lock(folder)
        for partial in (*folder.glob(".*.part"), *folder.glob(".tmp*")):  # of new_file, and of safetensors
            partial.unlink()
    except OSError as error:
        raise DataError(f"cannot be the folder of a run: {error.strerror}", folder) from None


def _lock(folder: Path) -> None:
    """Lock a folder against other processes for as long as this one lives."""
    path = (folder / ".lock").absolute()
    if path in _locks and path.exists():
        return
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        lock(file, f"another process is training in {folder}; wait for it, or name another folder")
    except ConfigError:
        os.close(file)
        raise
    _locks[path] = file


_locks: dict[Path, int] = {}  # open files, whose locks end with this process


def _read_inputs(path: Path) -> dict[str, Any]:
    try:
        return dict(orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise DataError(f"is unreadable ({error}); start over with --fresh", path) from None


def _check_same(kept: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    if kept.get("model") != wanted.get("model"):  # then nearly all settings differ
        kept, wanted = ({key: given.get(key) for key in ("seed", "model", "data")} for given in (kept, wanted))
    was, now = _flat(kept), _flat(wanted)
    keys = [key for key in {**now, **was} if was.get(key) != now.get(key)]
    differ = [f"{key} was {was.get(key)!r} and is {now.get(key)!r}" for key in keys]
    if keys:
        raise ConfigError(
            f"{path.parent} holds a run with other inputs: {', '.join(differ)}; "
            "name another folder, or start over with --fresh"
        )


def _flat(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of all groups in one mapping."""
    flat: dict[str, Any] = {}
    for key, value in inputs.items():
        flat |= value if isinstance(value, Mapping) else {key: value}
    return flat


def with_prefix(prefix: str, state: State) -> State:
    """Return tensors with a prefix before their names."""
    return {f"{prefix}{name}": value for name, value in state.items()}


def part_of(state: State, prefix: str) -> State:
    """Return the tensors whose names begin with a prefix, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def write_state(path: Path, state: State, notes: Mapping[str, Any]) -> None:
    """Write tensors and notes into one safetensors file, under a temporary name first."""
    cpu = {name: tensor.detach().to("cpu").contiguous() for name, tensor in state.items()}
    with new_file(path) as out:
        try:
            mode = os.fstat(out.fileno()).st_mode
            save_file(cpu, out.name, metadata={"notes": orjson.dumps(dict(notes)).decode()})  # no copy in memory
            Path(out.name).chmod(mode)  # safetensors puts a file of its own there, which only its owner may read
        except SafetensorError as error:  # a full disk, say
            raise DataError(f"cannot be written: {error}", path) from None


def state_size(state: State) -> int:
    """Return about the size in bytes of the file that `write_state` writes: the numbers, and a header in JSON."""
    return 50 + sum(70 + len(name) + tensor.nbytes for name, tensor in state.items())


def read_state(path: Path) -> tuple[State, dict[str, Any]]:
    """Read a file that `write_state` wrote."""
    return read_together(path, {})
