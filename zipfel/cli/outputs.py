"""Output files of `zipfel predict --out FILE`: lines of JSON, CSV, Parquet, or a sparse matrix of scores."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from zipfel.cli.inputs import Row, check_names
from zipfel.cli.parquet import write_parquet
from zipfel.data.cells import csv_text, json_value
from zipfel.data.formats.files import json_line, new_file, write_bytes
from zipfel.errors import ConfigError, check_installed

if TYPE_CHECKING:  # torch takes seconds to import
    from zipfel.tagging import Tagged

LAYOUTS = ("wide", "tidy", "joined")  # of a table: tags side by side, a row for each tag, all tags in one cell
BLOCK = 4096  # rows of a matrix in memory at a time


@dataclass(frozen=True)
class Output:
    """A file format: its header, how a batch is encoded, and how the file is made of the encoded batches."""

    header: bytes
    rows: Callable[[Sequence[Row], Tagged], bytes]
    finish: Callable[[Path], None] | None = None  # None: they are the file


@dataclass(frozen=True)
class Wanted:
    """The content of an output file. names: of labels.  k: maximum tags of a text.  columns: copied from the input.

    titles: names that people see, by label, where labels have some.  layout: of a CSV file, one of LAYOUTS.
    sep: between joined tags, if no label contains it.  kinds: types of the columns; None: derived from the values.
    """

    names: Sequence[str]
    k: int
    columns: Sequence[str] = ("text",)
    layout: str | None = None
    sep: str | None = None
    kinds: Mapping[str, type] | None = None
    titles: Sequence[str] | None = None


def output_of(out: Path, wanted: Wanted) -> Output:
    """Return the format for the ending of `out`."""
    if wanted.layout is not None and out.suffix != ".csv":
        raise ConfigError(f"--layout is for .csv files; found {out.name!r}")
    makers = {".jsonl": _jsonl, ".csv": _table, ".parquet": _parquet, ".npz": _npz}
    if out.suffix not in makers:
        raise ConfigError(f"--out must end in {', '.join(makers)}; found {out.name!r}")
    return makers[out.suffix](out, wanted)


def _jsonl(out: Path, wanted: Wanted) -> Output:
    check_names(wanted.columns, ["tags", "known"])
    return Output(b"", lambda rows, tagged: b"".join(map(json_line, objects(rows, tagged))))


def _parquet(out: Path, wanted: Wanted) -> Output:
    check_installed("writing Parquet", "tables", "pyarrow")
    check_names(wanted.columns, ["tags", "scores", "known", *(["titles"] if wanted.titles else [])])
    return replace(_jsonl(out, wanted), finish=lambda part: write_parquet(
        out, part, wanted.columns, wanted.kinds, titled=wanted.titles is not None))  # fmt: skip


def _npz(out: Path, wanted: Wanted) -> Output:
    record = np.dtype([("ids", "<i4", wanted.k), ("scores", "<f4", wanted.k)])

    def records(rows: Sequence[Row], tagged: Tagged) -> bytes:
        batch = np.empty(len(rows), record)
        batch["ids"], batch["scores"] = tagged.ranking.ids, tagged.ranking.scores
        return batch.tobytes()

    return Output(b"", records, lambda part: write_matrix(out, part, record, wanted.names))


def _table(out: Path, wanted: Wanted) -> Output:
    layout = wanted.layout or "wide"
    if layout not in LAYOUTS:
        raise ConfigError(f"--layout must be one of {', '.join(LAYOUTS)}; found {layout!r}")
    of_tag = ["label", *(["title"] if wanted.titles else []), "score"]
    groups = [f"{name}_{rank}" for rank in range(1, wanted.k + 1) for name in of_tag]
    joined = ["tags", *(["titles"] if wanted.titles else []), "scores"]
    own = ["known", *{"wide": groups, "tidy": ["rank", *of_tag], "joined": joined}[layout]]
    check_names(wanted.columns, own)
    cells = {"wide": _side_by_side, "tidy": _one_row_a_tag, "joined": _joiner(wanted)}[layout]

    def encoded(rows: Sequence[Row], tagged: Tagged) -> bytes:
        lines = []
        for row, tags, known in zip(rows, tagged.items(), tagged.known.tolist(), strict=True):
            start = [*map(csv_text, row.kept.values()), str(known).lower()]
            written = [[*(tag[name] for name in of_tag[:-1]), f"{tag['score']:.6g}"] for tag in tags]
            lines += [[*start, *own_cells] for own_cells in cells(written, wanted.k * len(of_tag))]
        return _csv(lines)

    return Output(_csv([[*wanted.columns, *own]]), encoded)


Tags = Sequence[Sequence[str]]  # labels, perhaps titles, and scores of a text


def _side_by_side(tags: Tags, width: int) -> list[list[str]]:
    """Return one row, padded with empty cells."""
    row = [cell for tag in tags for cell in tag]
    return [row + [""] * (width - len(row))]


def _one_row_a_tag(tags: Tags, width: int) -> list[list[str]]:
    return [[str(rank), *tag] for rank, tag in enumerate(tags, start=1)]


def _joiner(wanted: Wanted) -> Callable[[Tags, int], list[list[str]]]:
    """Return a function that joins tags with a mark that no label contains; without such a mark, as a JSON list."""
    marks = [mark for mark in (wanted.sep, ";", "|") if mark is not None]
    columns = [wanted.names, *([wanted.titles] if wanted.titles else [])]
    joins = [next((mark for mark in marks if not any(mark in name for name in names)), None) for names in columns]

    def joined(tags: Tags, width: int) -> list[list[str]]:
        *words, scores = ([tag[place] for tag in tags] for place in range(len(joins) + 1))
        cells = [
            json_line(cell).decode().strip() if mark is None else mark.join(cell)
            for cell, mark in zip(words, joins, strict=True)
        ]
        return [[*cells, (joins[0] or ";").join(scores)]]

    return joined


def objects(rows: Sequence[Row], tagged: Tagged) -> Iterator[dict[str, Any]]:
    """Yield each document with its tags, and whether it has a known word, as JSON objects."""
    for row, tags, known in zip(rows, tagged.items(), tagged.known.tolist(), strict=True):
        kept = {name: json_value(value) for name, value in row.kept.items()}
        yield {**kept, "tags": tags, "known": known}


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
