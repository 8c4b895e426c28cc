"""A run: stages that leave their results in a folder, so that a run which was stopped goes on where it was.

Every random draw derives from (seed, stage, epoch, step): a resumed run draws what an undisturbed one draws.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from zipfel.data.formats.files import new_file
from zipfel.errors import ConfigError, DataError
from zipfel.training.progress import Progress, Silent

State = dict[str, Tensor]


class Run:
    """Where stages keep their results; without a folder, nowhere."""

    def __init__(self, folder: Path | None = None, seed: int = 0, progress: Progress | None = None) -> None:
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed must be a whole number from 0 to 2^64 - 1; found {seed}")
        self.folder, self.seed, self.progress = folder, seed, progress or Silent()

    def open(self, inputs: Mapping[str, Any], fresh: bool = False) -> bool:
        """Start, or go on with, a run with these inputs (settings, data); tell whether it goes on.

        `fresh` starts over: what an earlier run kept is removed, and nothing else that may lie in its folder.
        """
        if self.folder is None:
            return False
        path = self.folder / "run.json"
        wanted = orjson.loads(orjson.dumps({"seed": self.seed, **inputs}, option=orjson.OPT_SERIALIZE_NUMPY))
        _make_folder(self.folder)
        if path.exists() and not fresh:
            _check_same(_read_inputs(path), wanted, path)
            return True
        for kept in (*self.folder.glob("*.safetensors"), self.folder / "log.jsonl"):
            kept.unlink(missing_ok=True)
        with new_file(path) as out:  # last, so that a run which is stopped here does not go on with what is left
            out.write(orjson.dumps(wanted, option=orjson.OPT_INDENT_2))
        return False

    def stage(self, name: str, make: Callable[[], State]) -> State:
        """Return a stage's result: the one that is kept, else the one that is made now."""
        kept = self.load(name)
        if kept is not None:
            return kept[0]
        result = make()
        self.keep(name, result)
        return result

    def load(self, name: str) -> tuple[State, dict[str, Any]] | None:
        """Return what was kept under a name, with its notes, or None."""
        path = None if self.folder is None else self.folder / f"{name}.safetensors"
        return None if path is None or not path.exists() else read_state(path)

    def keep(self, name: str, state: State, notes: Mapping[str, Any] | None = None) -> None:
        """Keep tensors and notes under a name: all of them, or what was there before."""
        if self.folder is not None:
            write_state(self.folder / f"{name}.safetensors", state, notes or {})

    def forget(self, name: str) -> None:
        """Remove what was kept under a name."""
        if self.folder is not None:
            (self.folder / f"{name}.safetensors").unlink(missing_ok=True)

    def is_enough(self, stage: str, epochs: int, steps: int, done: int) -> bool:
        """Tell whether a stage of so many epochs and steps an epoch may end after those done; a rehearsal's may."""
        return False

    def log(self, **values: Any) -> None:
        """Add a line to the log of the run."""
        self.progress.log(values)
        if self.folder is not None:
            with (self.folder / "log.jsonl").open("ab", buffering=0) as out:  # the whole line at once
                out.write(orjson.dumps(values) + b"\n")

    def numbers(self, stage: str, epoch: int = 0, step: int = 0) -> np.random.Generator:
        """Return the numpy generator of a place in the run."""
        return np.random.default_rng([self.seed, zlib.crc32(stage.encode()), epoch, step])

    def generator(self, stage: str, epoch: int = 0, step: int = 0) -> torch.Generator:
        """Return the torch generator (on the CPU) of a place in the run."""
        return torch.Generator().manual_seed(int(self.numbers(stage, epoch, step).integers(2**62)))


def _make_folder(folder: Path) -> None:
    """Make a run's folder and keep other processes out, or refuse one that holds something else.

    What a killed run left half-written is removed.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        started = (".lock", ".run.json.*.part")
        ours = (folder / "run.json").exists() or all(any(map(path.match, started)) for path in folder.iterdir())
        if not ours:
            raise ConfigError(f"{folder} is not the folder of a run (run.json is missing) and not empty; name another")
        _lock(folder)
        for half in (*folder.glob(".*.part"), *folder.glob(".tmp*")):  # of new_file, and of safetensors
            half.unlink()
    except OSError as error:
        raise DataError(f"cannot be the folder of a run: {error.strerror}", folder) from None


def _lock(folder: Path) -> None:
    """Keep other processes out of a folder for as long as this one lives."""
    path = (folder / ".lock").absolute()
    if path in _locks and path.exists():
        return
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows; there nobody is kept out
        pass
    except OSError:
        os.close(lock)
        raise ConfigError(f"another process is training in {folder}; wait for it, or name another folder") from None
    _locks[path] = lock


_locks: dict[Path, int] = {}  # open files, whose locks end with this process


def _read_inputs(path: Path) -> dict[str, Any]:
    try:
        return dict(orjson.loads(path.read_bytes()))
    except (OSError, orjson.JSONDecodeError, TypeError, ValueError) as error:
        raise DataError(f"not the inputs of a run ({error}); start over with --fresh", path) from None


def _check_same(found: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    was, now = _flat(found), _flat(wanted)
    keys = [key for key in {**now, **was} if was.get(key) != now.get(key)]
    differ = [f"{key} was {was.get(key)!r} and is {now.get(key)!r}" for key in keys]
    if keys:
        raise ConfigError(
            f"{path.parent} holds a run with other inputs: {', '.join(differ)}; "
            "name another folder, or start over with --fresh"
        )


def _flat(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings one by one, whatever group they belong to."""
    flat: dict[str, Any] = {}
    for key, value in inputs.items():
        flat |= value if isinstance(value, Mapping) else {key: value}
    return flat


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
    """Return the bytes of what `write_state` writes of tensors without notes: 8 of its length, a header, numbers.

    The header is JSON with an entry for each tensor, in the order of their types, filled up to a multiple of 8 bytes.
    """
    entries: dict[str, Any] = {"__metadata__": {"notes": "{}"}}
    end = 0
    kinds = list(_DTYPES)
    for name in sorted(state, key=lambda name: (kinds.index(state[name].dtype), name)):
        start, end = end, end + state[name].numel() * state[name].element_size()
        shape = list(state[name].shape)
        entries[name] = {"dtype": _DTYPES[state[name].dtype], "shape": shape, "data_offsets": [start, end]}
    return 8 + math.ceil(len(orjson.dumps(entries)) / 8) * 8 + end


_DTYPES = {  # in the order in which safetensors writes them
    torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32", torch.float16: "F16",
    torch.uint8: "U8",
}  # fmt: skip


def read_state(path: Path) -> tuple[State, dict[str, Any]]:
    """Read what `write_state` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = orjson.loads((file.metadata() or {}).get("notes", "{}"))
            return {name: file.get_tensor(name) for name in file.keys()}, notes  # noqa: SIM118
    except (SafetensorError, OSError, orjson.JSONDecodeError) as error:
        raise DataError(f"not a file of tensors: {error}", path) from None
