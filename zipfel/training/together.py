"""A file of tensors that several processes write and read together, each its own rows of what is split between them.

The file is an ordinary safetensors file of whole tensors: it does not depend on the number of processes, so that
another number of them can read it. All of them must see the folder.
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import orjson
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from zipfel.data.formats.shards import NAMES
from zipfel.errors import DataError
from zipfel.training.ranks import World
from zipfel.types import Share

State = dict[str, Tensor]


class Ragged(NamedTuple):
    """The entries of some rows whose lengths differ; the tensor `ends` of the same file says where each row ends."""

    ends: str
    own: Share


Split = Mapping[str, Share | Ragged]


def write_together(
    path: Path, state: State, notes: Mapping[str, Any], split: Mapping[str, Share], world: World
) -> None:
    """Write tensors into one file: whole ones by the first rank, rows of those in `split` by the rank that has them.

    The file appears under its name when all ranks have written theirs; if one fails, it never does.
    """
    temporary = path.with_name(f".{path.name}.ranks.part")
    header, starts, size = _layout(state, notes, split)
    try:
        world.first(lambda: _created(temporary, header, size, path))
        world.all(lambda: _write_own(temporary, path, state, split, starts, world))
        world.first(lambda: temporary.replace(path))
    finally:
        if world.is_first:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def read_together(path: Path, split: Split) -> tuple[State, dict[str, Any]]:
    """Read a file of tensors; of those in `split`, only the rows of the share."""
    try:
        with safe_open(path, framework="pt") as file:
            notes = orjson.loads((file.metadata() or {}).get("notes", "{}"))
            state = {
                name: file.get_slice(name)[_rows(file, split[name])] if name in split else file.get_tensor(name)
                for name in file.keys()  # noqa: SIM118
            }
            return state, notes
    except (SafetensorError, OSError, orjson.JSONDecodeError) as error:
        raise DataError(f"not a file of tensors: {error}", path) from None


def _rows(file: Any, part: Share | Ragged) -> slice:
    if isinstance(part, Share):
        return part.rows
    ends = file.get_tensor(part.ends)
    return slice(int(ends[part.own.start]), int(ends[part.own.stop]))


def _layout(state: State, notes: Mapping[str, Any], split: Mapping[str, Share]) -> tuple[bytes, dict[str, int], int]:
    """Return the header of the file, the position of each tensor, and the size of the file."""
    entries: dict[str, Any] = {"__metadata__": {"notes": orjson.dumps(dict(notes)).decode()}}
    end, starts = 0, {}
    for name in sorted(state, key=lambda name: (-state[name].element_size(), name)):
        tensor, first = state[name], end
        shape = [split[name].total, *tensor.shape[1:]] if name in split else list(tensor.shape)
        end += math.prod(shape) * tensor.element_size()
        entries[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": [first, end]}
        starts[name] = first
    text = orjson.dumps(entries)
    text += b" " * (-len(text) % 8)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: len(header) + start for name, start in starts.items()}, len(header) + end


def _created(temporary: Path, header: bytes, size: int, path: Path) -> None:
    try:
        with temporary.open("wb") as out:
            out.write(header)
            if size > len(header):
                os.posix_fallocate(out.fileno(), 0, size)  # a full disk is noticed now
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", path) from None


def _write_own(
    temporary: Path, path: Path, state: State, split: Mapping[str, Share], starts: Mapping[str, int], world: World
) -> None:
    if not temporary.exists():
        raise DataError(f"rank {world.rank} on {socket.gethostname()} does not see it: the folder of a run must be on "
                        "a file system that all ranks share", path)  # fmt: skip
    try:
        with temporary.open("r+b") as out:
            for name, tensor in state.items():
                own = split.get(name)
                if own is None and not world.is_first:
                    continue
                data = tensor.detach().to("cpu").contiguous().flatten().view(torch.uint8).numpy()
                before = 0 if own is None else own.start * (len(data) // max(1, own.size))
                out.seek(starts[name] + before)
                out.write(data.data)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise DataError(f"rank {world.rank} cannot write it: {error.strerror or error}", path) from None
