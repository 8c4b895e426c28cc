"""Output files of `zipfel predict --out FILE`: lines of JSON, a table, or a sparse matrix of scores."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from zipfel.data.formats.files import json_line, new_file, write_bytes
from zipfel.errors import ConfigError

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tagging import Tagged

ENDINGS = (".jsonl", ".csv", ".npz")
BLOCK = 4096  # rows of a matrix in memory at a time


@dataclass(frozen=True)
class Output:
    """A file format: its header, how a batch is encoded, and how the file is made of the encoded batches."""

    header: bytes
    rows: Callable[[Sequence[str], Tagged], bytes]
    finish: Callable[[Path], None] | None = None  # None: they are the file


def output_of(out: Path, names: Sequence[str], k: int) -> Output:
    """Return the format for the ending of `out`.  names: label names.  k: maximum number of tags per text."""
    if out.suffix == ".jsonl":
        return Output(b"", lambda texts, tagged: b"".join(map(json_line, objects(texts, tagged))))
    if out.suffix == ".csv":
        columns = [f"{name}_{rank}" for rank in range(1, k + 1) for name in ("label", "score")]
        return Output(_csv([["text", "known", *columns]]), lambda texts, tagged: _csv(_cells(texts, tagged)))
    if out.suffix == ".npz":
        record = np.dtype([("ids", "<i4", k), ("scores", "<f4", k)])

        def records(texts: Sequence[str], tagged: Tagged) -> bytes:
            batch = np.empty(len(texts), record)
            batch["ids"], batch["scores"] = tagged.ranking.ids, tagged.ranking.scores
            return batch.tobytes()

        return Output(b"", records, lambda part: write_matrix(out, part, record, names))
    raise ConfigError(f"--out must end in {', '.join(ENDINGS)}; found {out.name!r}")


def objects(texts: Sequence[str], tagged: Tagged) -> Iterator[dict[str, Any]]:
    """Yield each text with its tags, and whether it has a known word, as JSON objects."""
    for text, tags, known in zip(texts, tagged.tags(), tagged.known.tolist(), strict=True):
        yield {"text": text, "tags": [tag._asdict() for tag in tags], "known": known}


def _cells(texts: Sequence[str], tagged: Tagged) -> Iterator[list[str]]:
    """Yield one row per text: whether it has a known word, its tags side by side, padded with empty cells."""
    for text, tags, known in zip(texts, tagged.tags(), tagged.known.tolist(), strict=True):
        cells = [cell for label, score in tags for cell in (label, f"{score:.6g}")]
        yield [text, str(known).lower(), *cells, *[""] * (2 * tagged.ranking.k - len(cells))]


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
