"""What `zipfel predict --out FILE` writes: lines of JSON, a table, or a sparse matrix of scores."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from zipfel.data.formats.files import json_line, new_file
from zipfel.errors import ConfigError
from zipfel.types import Ranking

ENDINGS = (".jsonl", ".csv", ".npz")
BLOCK = 4096  # rows of a matrix that are in memory at a time


@dataclass(frozen=True)
class Output:
    """A kind of file: what stands first, what becomes of a batch, and how the whole is made of that."""

    header: bytes
    rows: Callable[[Sequence[str], Ranking], bytes]
    finish: Callable[[Path], None] | None = None  # none: what was written is the file


def output_of(out: Path, names: Sequence[str], k: int) -> Output:
    """Return the kind of file that the ending asks for.  names: of labels.  k: the most tags of a text."""
    if out.suffix == ".jsonl":
        return Output(b"", lambda texts, ranking: b"".join(map(json_line, objects(texts, ranking, names))))
    if out.suffix == ".csv":
        columns = [f"{name}_{place}" for place in range(1, k + 1) for name in ("label", "score")]
        return Output(_csv([["text", *columns]]), lambda texts, ranking: _csv(_cells(texts, ranking, names)))
    if out.suffix == ".npz":
        kind = np.dtype([("ids", "<i4", k), ("scores", "<f4", k)])

        def records(texts: Sequence[str], ranking: Ranking) -> bytes:
            made = np.empty(len(ranking), kind)
            made["ids"], made["scores"] = ranking.ids, ranking.scores
            return made.tobytes()

        return Output(b"", records, lambda part: write_matrix(out, part, kind, names))
    raise ConfigError(f"--out must end in {', '.join(ENDINGS)}; found {out.name!r}")


def objects(texts: Sequence[str], ranking: Ranking, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each text with its tags."""
    for text, ids, scores in zip(texts, ranking.ids.tolist(), ranking.scores.tolist(), strict=True):
        tags = [{"label": names[i], "score": score} for i, score in zip(ids, scores, strict=True) if i >= 0]
        yield {"text": text, "tags": tags}


def _cells(texts: Sequence[str], ranking: Ranking, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield a row for each text: its tags side by side, and empty cells where it has fewer."""
    for text, ids, scores in zip(texts, ranking.ids.tolist(), ranking.scores.tolist(), strict=True):
        pairs = ((names[i], f"{score:.6g}") if i >= 0 else ("", "") for i, score in zip(ids, scores, strict=True))
        yield [text, *(cell for pair in pairs for cell in pair)]


def _csv(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def write_matrix(out: Path, part: Path, kind: np.dtype[Any], names: Sequence[str]) -> None:
    """Write scores [texts, labels] as `scipy.sparse.save_npz` does, and label names beside them, in `FILE.labels.json`.

    part: records of ids and scores, read a block at a time, once for each array of the matrix.
    """
    with new_file(out.with_suffix(".labels.json")) as beside:
        beside.write(orjson.dumps(list(names)))
    rows = part.stat().st_size // kind.itemsize
    total = sum(int(sizes.sum()) for sizes in _sizes(part, kind))
    with new_file(out) as raw, zipfile.ZipFile(raw, "w") as archive:
        for name, value in (("format", b"csr"), ("shape", (rows, len(names))), ("_is_array", True)):
            with _member(archive, name) as file:
                np.lib.format.write_array(file, np.asanyarray(value))
        with _array(archive, "indptr", "<i8", rows + 1) as file:
            file.write(np.zeros(1, "<i8").tobytes())
            reached = 0
            for sizes in _sizes(part, kind):
                file.write((reached + sizes.cumsum()).astype("<i8").tobytes())
                reached += int(sizes.sum())
        for name, field, descr in (("indices", "ids", "<i4"), ("data", "scores", "<f4")):
            with _array(archive, name, descr, total) as file:
                for records in _blocks(part, kind):
                    file.write(_sorted(records, field).tobytes())


def _blocks(part: Path, kind: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    with part.open("rb") as file:
        while content := file.read(BLOCK * kind.itemsize):
            yield np.frombuffer(content, kind)


def _sizes(part: Path, kind: np.dtype[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield, a block of rows at a time, how many tags each has."""
    return ((records["ids"] >= 0).sum(axis=1) for records in _blocks(part, kind))


def _sorted(records: NDArray[Any], field: str) -> NDArray[Any]:
    """Return a field of the records row by row, in the order of the labels' ids; places without one are left out."""
    order = np.argsort(records["ids"], axis=1, kind="stable")
    ids, values = (np.take_along_axis(records[name], order, axis=1) for name in ("ids", field))
    return np.asarray(values[ids >= 0])


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    about = zipfile.ZipInfo(f"{name}.npy")  # dated 1980, so that the same scores make the same bytes
    about.compress_type = zipfile.ZIP_DEFLATED
    return archive.open(about, "w", force_zip64=True)


def _array(archive: zipfile.ZipFile, name: str, descr: str, size: int) -> IO[bytes]:
    """Open an array of the archive, behind its header."""
    file = _member(archive, name)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (size,)})
    return file
