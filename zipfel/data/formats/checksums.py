"""SHA-256 of files: of a file as a whole, and of its chunks, which all cores hash at once."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CHUNK = 16 << 20  # bytes; part of the format of saved models: another size gives other checksums
_PIECE = 1 << 20  # bytes read at a time: they are hashed while they are in the processor's cache


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def chunked_checksums(paths: Mapping[str, Path]) -> dict[str, str]:
    """Return for each file the SHA-256 of the SHA-256 of its chunks, in order; threads share the chunks of all files.

    Files are read, not mapped: one that is cut short meanwhile has another checksum, and does no harm.
    """
    with ThreadPoolExecutor(_threads()) as pool:
        digests = {
            name: [pool.submit(_chunk_digest, path, start) for start in range(0, path.stat().st_size, CHUNK)]
            for name, path in paths.items()
        }
        return {
            name: hashlib.sha256(b"".join(chunk.result() for chunk in chunks)).hexdigest()
            for name, chunks in digests.items()
        }


def _chunk_digest(path: Path, start: int) -> bytes:
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_PIECE))
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = CHUNK
        while left and (size := file.readinto(buffer[: min(left, _PIECE)])):
            digest.update(buffer[:size])
            left -= size
    return digest.digest()


def _threads() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
