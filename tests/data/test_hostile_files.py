"""Files made to do harm: matrices that point out of memory, endless lines, characters that no file can hold."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csc_array, csr_array

from zipfel.data import formats
from zipfel.data.dataset import Part
from zipfel.data.formats import files
from zipfel.data.formats.files import byte_lines, line_blocks, opened, text_lines
from zipfel.data.formats.npz import read_counted
from zipfel.data.given import dataset_of
from zipfel.errors import DataError
from zipfel.tagger import Tagger
from zipfel.types import csr_problem, matrix_problem

# --- Matrices ---------------------------------------------------------------------------------------------------------

BROKEN: list[tuple[str, dict[str, Any]]] = [
    ("rows that end at 2^30, then at 0", {"indptr": np.array([0, 2**30, 0, 0, 0]), "indices": [], "data": []}),
    ("rows that end behind the next one", {"indptr": np.array([0, 3, 1, 2, 2])}),
    ("a row that starts below 0", {"indptr": np.array([0, -5, 1, 2, 2])}),
    ("rows that end behind the last entry", {"indptr": np.array([0, 1, 2, 2, 7])}),
    ("a column that is not there", {"indices": np.array([0, 2**30])}),
    ("a column below 0", {"indices": np.array([0, -1])}),
    ("fewer values than columns", {"data": np.ones(1, np.float32)}),
    ("ends of too few rows", {"indptr": np.array([0, 1, 2])}),
]


@pytest.mark.parametrize("layout", ["csr", "csc"])
@pytest.mark.parametrize(("what", "changes"), BROKEN, ids=[what for what, _ in BROKEN])
def test_an_npz_file_that_points_out_of_its_arrays_is_refused(tmp_path, what, changes, layout):
    shape = (4, 3) if layout == "csr" else (3, 4)
    arrays = {"indptr": np.array([0, 1, 2, 2, 2]), "indices": np.array([0, 2]), "data": np.ones(2, np.float32)}
    for dtype in (np.int32, np.int64):
        own = {n: np.asarray(v) for n, v in {**arrays, **changes}.items()}
        own = {n: v.astype(dtype) if v.dtype.kind == "i" else v for n, v in own.items()}
        np.savez(tmp_path / "X.npz", format=layout.encode(), shape=shape, **own)
        with pytest.raises(DataError, match=r"X\.npz: not a sparse matrix saved by scipy"):
            read_counted(tmp_path / "X.npz")
    np.savez(tmp_path / "X.npz", format=layout.encode(), shape=shape, **arrays)
    assert read_counted(tmp_path / "X.npz")[0].nnz == 2


@pytest.mark.parametrize("layout", [csr_array, csc_array])
def test_a_matrix_that_points_out_of_its_arrays_is_refused(layout):
    X = layout(np.eye(4, dtype=np.float32))
    Part(csr_array((4, 1)), X=X)
    X.indptr[1] = 2**30
    for use in (lambda: Part(csr_array((4, 1)), X=X), lambda: Tagger("glas").fit(X, [["a"]] * 4)):
        with pytest.raises(DataError, match="X is a broken matrix: the ends of its rows are not in ascending order"):
            use()
    coo = csr_array(np.eye(4, dtype=np.float32)).tocoo()
    coo.coords[1][2] = 7
    with pytest.raises(DataError, match="outside the matrix"):
        Part(csr_array((4, 1)), X=coo)


def test_sound_matrices_are_taken_also_with_spare_entries():
    spare = csr_array((np.ones(5, np.float32), np.array([0, 1, 2, 99, -1]), np.array([0, 5])), shape=(1, 100))
    spare.indptr[1] = 3
    assert matrix_problem(spare) is None
    assert Part(csr_array((1, 1)), X=spare).X.nnz == 3
    assert csr_problem(np.array([0, 0]), np.array([], dtype=int), 0, 0) is None
    assert csr_problem(np.array([0, 1]), np.array([0]), 0, 1) == "column 0 is outside 0..-1"
    assert csr_problem(np.array([], dtype=int), np.array([], dtype=int), 3, 0) == "the first row does not start at 0"


# --- Lines ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def short_lines(monkeypatch: pytest.MonkeyPatch) -> int:
    """Allow lines of this many bytes."""
    monkeypatch.setattr(files, "LONGEST_LINE", 1000)
    monkeypatch.setattr(files, "BLOCK", 128)
    return 1000


@pytest.mark.parametrize("ending", ["", ".gz", ".zip"])
def test_lines_up_to_the_limit_are_read_and_longer_ones_are_refused(tmp_path, short_lines, ending):
    path = tmp_path / f"file.txt{ending}"

    def write(content: bytes) -> None:
        if ending == ".zip":
            with zipfile.ZipFile(path, "w") as archive:
                archive.writestr("file.txt", content)
        else:
            path.write_bytes(gzip.compress(content) if ending else content)

    def blocks(path: Path) -> list[bytes]:
        with opened(path) as stream:
            return b"".join(line_blocks(stream, path)).splitlines()

    readers = {
        "bytes": lambda: [line for _, line in byte_lines(path)],
        "text": lambda: [line.rstrip("\n").encode() for line in text_lines(path)],
        "blocks": lambda: blocks(path),
    }
    good = [b"a", b"b" * (short_lines - 1), b"c"]
    write(b"\n".join(good) + b"\n")
    assert all(read() == good for read in readers.values())
    write(b"\n".join([b"a", b"b", b"c" * (2 * short_lines), b"d"]))
    for read in readers.values():
        with pytest.raises(DataError, match=rf"file\.txt{ending}:3: the line is longer than"):
            read()


def test_a_cell_over_many_lines_is_limited_too(tmp_path, monkeypatch):
    monkeypatch.setattr("zipfel.data.formats.table_files.LONGEST_LINE", 1000)
    path = tmp_path / "train.csv"
    path.write_text('text,labels\na,b\n"' + "long\n" * 300 + '",c\n')
    with pytest.raises(DataError, match=r"train\.csv:3: broken CSV: field larger than field limit"):
        formats.read(path)


def test_a_json_array_is_limited_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("zipfel.data.formats.table_files._LARGEST_JSON", 1000)
    path = tmp_path / "train.json"
    path.write_text("[" + ",".join(['{"text": "a b", "labels": ["x"]}'] * 20) + "]")
    assert len(formats.read(path).train) > 0
    path.write_text("[" + ",".join(['{"text": "a b", "labels": ["x"]}'] * 100) + "]")
    with pytest.raises(DataError, match=r"train\.json: larger than .* GiB; save it as JSONL"):
        formats.read(path)


ENDLESS = """
import resource, sys
from pathlib import Path
from zipfel.data import formats
from zipfel.errors import DataError
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    formats.read(Path(sys.argv[1]))
except DataError as error:
    print(error)
"""


@pytest.mark.skipif(not hasattr(resource, "RLIMIT_AS"), reason="needs a limit on memory")
@pytest.mark.parametrize("name", ["train.csv.gz", "train.jsonl.gz"])
def test_a_small_file_with_one_endless_line_does_not_fill_the_memory(tmp_path, name):
    path = tmp_path / name
    with gzip.open(path, "wb", compresslevel=1) as out:
        out.write(b"text,labels\na,b\n" if "csv" in name else b'{"text": "a", "labels": ["b"]}\n')
        out.write(b'"' if "csv" in name else b'{"text": "')
        for _ in range(100):
            out.write(b"a" * (1 << 20))
    done = subprocess.run([sys.executable, "-c", ENDLESS, path], capture_output=True, text=True)
    line = 3 if "csv" in name else 2
    assert done.stdout == f"{path}:{line}: the line is longer than 64 MiB; is it one line of text?\n", done.stderr


# --- Characters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cell", [r"""['\ud800']""", r"""['a', 'b\udfff']"""])
def test_a_label_with_half_a_surrogate_pair_is_refused_when_it_is_read(tmp_path, cell):
    path = tmp_path / "train.csv"
    path.write_text(f'text,labels\nred apple,fruit\ngreen pear,"{cell}"\n')
    with pytest.raises(DataError, match=r"train\.csv:3: '\\ud(800|fff)' is half of a surrogate pair"):
        formats.read(path)


def test_halves_of_pairs_that_an_encoding_lets_through_are_refused(tmp_path):
    path = tmp_path / "names.txt"
    path.write_bytes(b"good\nbad +2AA-\n")  # UTF-7
    lines = text_lines(path, "utf-7")
    assert next(lines) == "good\n"
    with pytest.raises(DataError, match=r"names\.txt:2: '\\ud800' is half of a surrogate pair"):
        next(lines)


def test_labels_and_label_texts_in_python_are_refused_before_training(monkeypatch):
    monkeypatch.setattr("zipfel.tagger.trained", None)
    texts, tags = ["red apple", "green pear"] * 4, [["a"], ["b"]] * 4
    for given in ({"y": [["a"], ["\ud800"]] * 4}, {"y": tags, "label_texts": {"a": "x\udc00"}}):
        with pytest.raises(DataError, match="half of a surrogate pair"):
            Tagger("glas").fit(texts, **given)
    assert dataset_of(texts, [["😀"], ["ä"]] * 4).label_names == ["ä", "😀"]
