"""Checksums of files: SHA-256, and CRC-32 of chunks, which is several times faster and uses all cores."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from zipfel.data.processes import cores

CHUNK = 16 << 20  # bytes; part of the format of saved models: another size gives other sums
_PIECE = 1 << 20  # bytes read at a time: they are summed while they are in the processor's cache


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chunk_sums(paths: Mapping[str, Path]) -> dict[str, list[int]]:
    """Return the CRC-32 of each chunk of each file; threads share the chunks of all files.

    Files are read, not mapped: one that is cut short meanwhile has other sums, and does no harm.
    """
    with ThreadPoolExecutor(cores()) as pool:
        sums = {
            name: [pool.submit(_chunk_sum, path, start) for start in range(0, path.stat().st_size, CHUNK)]
            for name, path in paths.items()
        }
        return {name: [chunk.result() for chunk in chunks] for name, chunks in sums.items()}


def _chunk_sum(path: Path, start: int) -> int:
    total, left, buffer = 0, CHUNK, memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        while left and (size := file.readinto(buffer[: min(left, _PIECE)])):
            total = zlib.crc32(buffer[:size], total)
            left -= size
    return total
