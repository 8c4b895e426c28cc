"""Tensors that lie in several files by ranges of rows, and are mapped into memory as if they lay in one.

A shard is a safetensors file, which other tools read too. Its tensors begin at multiples of ALIGNED bytes, and all
shards but the last have a multiple of ROWS rows, so that a piece of a tensor fills whole pages: pieces of several files
are then mapped at adjacent addresses, and nothing is copied. Pieces that do not fill pages (few rows, a system with
larger ones) are read into memory, as on systems other than Linux. (docs/decisions/021-shards.md)
"""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import sys
import weakref
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
import torch
from torch import Tensor

from zipfel.data.formats.files import new_file
from zipfel.errors import DataError

ALIGNED = 1 << 16  # bytes: a multiple of the pages of all usual systems
ROWS = 1 << 12  # rows: then a piece of a tensor has a multiple of 4096 bytes, whatever its type and width
MOST = 10_000  # shards
_WRITTEN = 1 << 24  # bytes written at a time
_FILLER = "filler."  # before the names of tensors that only fill gaps, which safetensors does not allow
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
NAMES = {dtype: name for name, dtype in _TYPES.items()}
_KEPT = mmap.PROT_READ | mmap.PROT_WRITE if hasattr(mmap, "PROT_READ") else 0  # private: files never change
_PRIVATE, _FIXED, _ANONYMOUS, _NO_RESERVE = 0x02, 0x10, 0x20, 0x4000  # flags of mmap on Linux


class Piece(NamedTuple):
    """Where a shard has its rows of a tensor."""

    path: Path
    start: int  # byte of the file
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


def ranges(rows: int, count: int) -> list[int]:
    """Return the bounds [count + 1] of about equal ranges of rows; multiples of ROWS where there are enough rows.

    >>> ranges(10, 3), ranges(20_000, 2)
    ([0, 3, 6, 10], [0, 8192, 20000])
    """
    unit = ROWS if rows >= ROWS * count else 1
    return [rows // unit * number // count * unit for number in range(count)] + [rows]


def names_of(count: int) -> list[str]:
    """Return the names of shards.

    >>> names_of(2)
    ['weights-00001-of-00002.safetensors', 'weights-00002-of-00002.safetensors']
    """
    return [f"weights-{number:05d}-of-{count:05d}.safetensors" for number in range(1, count + 1)]


# --- Writing ----------------------------------------------------------------------------------------------------------


def write(path: Path, state: Mapping[str, Tensor], first: int, last: int, notes: Mapping[str, str]) -> None:
    """Write rows `first` to `last` of all tensors; no more than a block of them is copied in memory."""
    header: dict[str, Any] = {"__metadata__": dict(notes)}
    end = 0
    for number, (name, tensor) in enumerate(state.items()):
        if gap := -end % ALIGNED:
            header[f"{_FILLER}{number}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
        start = end + gap
        end = start + (last - first) * tensor[:1].numel() * tensor.element_size()
        shape = [last - first, *tensor.shape[1:]]
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": shape, "data_offsets": [start, end]}
    text = orjson.dumps(header)
    text += b" " * (-(8 + len(text)) % ALIGNED)
    with new_file(path) as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for tensor in state.values():
            out.write(bytes(-out.tell() % ALIGNED))
            _write_rows(out, tensor, first, last)


def _write_rows(out: BinaryIO, tensor: Tensor, first: int, last: int) -> None:
    step = max(1, _WRITTEN // max(tensor[:1].numel() * tensor.element_size(), 1))
    for start in range(first, last, step):
        rows = tensor[start : min(start + step, last)].detach().to("cpu").contiguous()
        out.write(rows.flatten().view(torch.uint8).numpy().data)


# --- Reading ----------------------------------------------------------------------------------------------------------


def read(paths: Sequence[Path], of: str, bounds: Sequence[int]) -> dict[str, Tensor]:
    """Return the tensors of shards, mapped into memory as one each.

    of, bounds: the model and the ranges of labels that the shards must be of.
    """
    pieces = [_pieces(path, of, range_) for path, range_ in zip(paths, pairwise(bounds), strict=True)]
    for path, own in zip(paths, pieces, strict=True):
        if [(n, p.dtype, p.shape[1:]) for n, p in own.items()] != [
            (n, p.dtype, p.shape[1:]) for n, p in pieces[0].items()
        ]:
            raise DataError(f"has other tensors than {paths[0].name}", path)
    return {name: _joined([own[name] for own in pieces]) for name in pieces[0]}


def owner(path: Path) -> str | None:
    """Return the model that a shard says it is of; None if it says none."""
    try:
        with path.open("rb") as file:
            header = orjson.loads(file.read(min(int.from_bytes(file.read(8), "little"), path.stat().st_size)))
        return str(header["__metadata__"]["of"])
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError):
        return None


def _pieces(path: Path, of: str, rows: tuple[int, int]) -> dict[str, Piece]:
    """Read where a shard has its tensors; raise DataError if it is a shard of another model or range."""
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = orjson.loads(file.read(min(length, size)))
        notes = header.pop("__metadata__")
        owner, labels = notes["of"], tuple(orjson.loads(notes["labels"]))
        pieces = {
            name: _piece(path, 8 + length, entry) for name, entry in header.items() if not name.startswith(_FILLER)
        }
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not a shard of a model: {error!r:.80}", path) from None
    if owner != of:
        raise DataError("is a shard of another model", path)
    if labels != rows:
        raise DataError(f"holds labels {labels[0]} to {labels[1] - 1}, expected {rows[0]} to {rows[1] - 1}", path)
    for name, piece in pieces.items():
        if piece.start + piece.bytes > size or piece.shape[0] != rows[1] - rows[0]:
            raise DataError(f"tensor {name!r} does not fit into the file", path)
    return pieces


def _piece(path: Path, base: int, entry: Mapping[str, Any]) -> Piece:
    start, end = entry["data_offsets"]
    piece = Piece(path, base + start, _TYPES[entry["dtype"]], tuple(entry["shape"]))
    if not (0 <= start <= end and piece.shape and min(piece.shape) >= 0 and piece.bytes == end - start):
        raise ValueError(f"wrong offsets {start}, {end}")
    return piece


def _joined(pieces: Sequence[Piece]) -> Tensor:
    """Return the rows of all pieces as one tensor: mapped if they fill whole pages, else copied."""
    first = pieces[0]
    shape = (sum(piece.shape[0] for piece in pieces), *first.shape[1:])
    size = sum(piece.bytes for piece in pieces)
    if not size:
        return torch.empty(shape, dtype=first.dtype)
    if _can_map(pieces):
        flat = torch.from_numpy(_mapped(pieces, size))
    else:
        flat = torch.from_numpy(
            np.concatenate([np.fromfile(p.path, np.uint8, p.bytes, offset=p.start) for p in pieces])
        )
    return flat.view(first.dtype).view(shape)


def _can_map(pieces: Sequence[Piece]) -> bool:
    """Whether pieces can be mapped at adjacent addresses: each begins at a page, and all but the last end at one."""
    page = mmap.PAGESIZE
    begins, ends = [piece.start for piece in pieces], [piece.bytes for piece in pieces[:-1]]
    return sys.platform == "linux" and not any(place % page for place in (*begins, *ends))


def _mapped(pieces: Sequence[Piece], size: int) -> Any:
    """Return the bytes of pieces, mapped at adjacent addresses for as long as the array lives."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3,
                                                              ctypes.c_long]  # fmt: skip
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    base = _address(libc.mmap(None, size, 0, _PRIVATE | _ANONYMOUS | _NO_RESERVE, -1, 0), pieces[0].path)
    memory = (ctypes.c_uint8 * size).from_address(base)
    weakref.finalize(memory, libc.munmap, base, size)
    for place, piece in _placed(pieces):
        file = os.open(piece.path, os.O_RDONLY)
        try:
            flags = _PRIVATE | _FIXED | _NO_RESERVE
            _address(libc.mmap(base + place, piece.bytes, _KEPT, flags, file, piece.start), piece.path)
        finally:
            os.close(file)
    return np.frombuffer(memoryview(memory), np.uint8)


def _placed(pieces: Sequence[Piece]) -> Iterator[tuple[int, Piece]]:
    """Yield pieces that are not empty, and the byte of the joined tensor at which they begin."""
    place = 0
    for piece in pieces:
        if piece.bytes:
            yield place, piece
        place += piece.bytes


def _address(result: int | None, path: Path) -> int:
    if result is None or result == ctypes.c_void_p(-1).value:
        raise DataError(f"cannot be mapped into memory: {os.strerror(ctypes.get_errno())}", path)
    return result
