"""Output files of `zipfel predict --out FILE`: lines of JSON, a table, or a sparse matrix of scores."""

from __future__ import annotations

import csv
import datetime
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from zipfel.cli.inputs import Row, check_names
from zipfel.data.formats.files import json_line, new_file, write_bytes
from zipfel.errors import ConfigError
from zipfel.types import Ranking

ENDINGS = (".jsonl", ".csv", ".npz")
BLOCK = 4096  # rows of a matrix in memory at a time


@dataclass(frozen=True)
class Output:
    """A file format: its header, how a batch is encoded, and how the file is made of the encoded batches."""

    header: bytes
    rows: Callable[[Sequence[Row], Ranking], bytes]
    finish: Callable[[Path], None] | None = None  # None: they are the file


def output_of(out: Path, names: Sequence[str], k: int, columns: Sequence[str] = ("text",)) -> Output:
    """Return the format for the ending of `out`.

    names: label names.  k: maximum number of tags per text.  columns: of the input, to be copied.
    """
    if out.suffix == ".jsonl":
        check_names(columns, ["tags"])
        return Output(b"", lambda rows, ranking: b"".join(map(json_line, objects(rows, ranking, names))))
    if out.suffix == ".csv":
        own = [f"{name}_{rank}" for rank in range(1, k + 1) for name in ("label", "score")]
        check_names(columns, own)
        return Output(_csv([[*columns, *own]]), lambda rows, ranking: _csv(_cells(rows, ranking, names)))
    if out.suffix == ".npz":
        record = np.dtype([("ids", "<i4", k), ("scores", "<f4", k)])

        def records(rows: Sequence[Row], ranking: Ranking) -> bytes:
            batch = np.empty(len(ranking), record)
            batch["ids"], batch["scores"] = ranking.ids, ranking.scores
            return batch.tobytes()

        return Output(b"", records, lambda part: write_matrix(out, part, record, names))
    raise ConfigError(f"--out must end in {', '.join(ENDINGS)}; found {out.name!r}")


def objects(rows: Sequence[Row], ranking: Ranking, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield each document with its tags, as JSON objects."""
    for row, ids, scores in zip(rows, ranking.ids.tolist(), ranking.scores.tolist(), strict=True):
        tags = [{"label": names[i], "score": score} for i, score in zip(ids, scores, strict=True) if i >= 0]
        yield {**{name: _plain(value) for name, value in row.kept.items()}, "tags": tags}


def _plain(value: Any) -> Any:
    """Return a cell as JSON can hold it."""
    known = isinstance(value, str | int | float | list | dict | datetime.date | datetime.time | None)
    return value if known else str(value)


def _cells(rows: Sequence[Row], ranking: Ranking, names: Sequence[str]) -> Iterator[list[str]]:
    """Yield one row per document: its tags side by side, padded with empty cells."""
    for row, ids, scores in zip(rows, ranking.ids.tolist(), ranking.scores.tolist(), strict=True):
        pairs = ((names[i], f"{score:.6g}") if i >= 0 else ("", "") for i, score in zip(ids, scores, strict=True))
        yield [*_copied(row), *(cell for pair in pairs for cell in pair)]


def _copied(row: Row) -> list[str]:
    """Return the copied cells of a row as text: lists as JSON, missing values as empty cells."""
    cells = (_plain(value) for value in row.kept.values())
    return ["" if c is None else c if isinstance(c, str) else json_line(c).decode().strip().strip('"') for c in cells]


def _csv(rows: Any) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def write_matrix(out: Path, part: Path, record: np.dtype[Any], names: Sequence[str]) -> None:
    """Write scores [texts, labels] in the format of `scipy.sparse.save_npz`, and label names to `FILE.labels.json`.

    part: file of records of ids and scores; it is read block by block, once for each array of the matrix.
    """
    write_bytes(out.with_suffix(".labels.json"), orjson.dumps(list(names)))
    rows = part.stat().st_size // record.itemsize
    total = sum(int(sizes.sum()) for sizes in _sizes(part, record))
    with new_file(out) as raw, zipfile.ZipFile(raw, "w") as archive:
        for name, value in (("format", b"csr"), ("shape", (rows, len(names))), ("_is_array", True)):
            with _member(archive, name) as file:
                np.lib.format.write_array(file, np.asanyarray(value))
        with _array(archive, "indptr", "<i8", rows + 1) as file:
            file.write(np.zeros(1, "<i8").tobytes())
            offset = 0
            for sizes in _sizes(part, record):
                file.write((offset + sizes.cumsum()).astype("<i8").tobytes())
                offset += int(sizes.sum())
        for name, field, descr in (("indices", "ids", "<i4"), ("data", "scores", "<f4")):
            with _array(archive, name, descr, total) as file:
                for records in _blocks(part, record):
                    file.write(_sorted(records, field).tobytes())


def _blocks(part: Path, record: np.dtype[Any]) -> Iterator[NDArray[Any]]:
    with part.open("rb") as file:
        while content := file.read(BLOCK * record.itemsize):
            yield np.frombuffer(content, record)


def _sizes(part: Path, record: np.dtype[Any]) -> Iterator[NDArray[np.int64]]:
    """Yield the number of tags of each row, block by block."""
    return ((records["ids"] >= 0).sum(axis=1) for records in _blocks(part, record))


def _sorted(records: NDArray[Any], field: str) -> NDArray[Any]:
    """Return a field of the records, row by row, ordered by label id and without padding."""
    order = np.argsort(records["ids"], axis=1, kind="stable")
    ids, values = (np.take_along_axis(records[name], order, axis=1) for name in ("ids", field))
    return np.asarray(values[ids >= 0])


def _member(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    about = zipfile.ZipInfo(f"{name}.npy")  # dated 1980: equal scores make equal bytes
    about.compress_type = zipfile.ZIP_DEFLATED
    return archive.open(about, "w", force_zip64=True)


def _array(archive: zipfile.ZipFile, name: str, descr: str, size: int) -> IO[bytes]:
    """Open an array of the archive for writing, after its header."""
    file = _member(archive, name)
    np.lib.format.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": (size,)})
    return file
