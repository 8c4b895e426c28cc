"""Mangled files: reading them raises an error of one line, or gives every row that the file holds; nothing else.

`ZIPFEL_FUZZ=20000 pytest tests/data/test_fuzz.py` tries that many files of each format, other ones each time.
"""

import csv
import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samples import features_dataset, texts_dataset
from scipy.sparse import csr_array, load_npz

import zipfel
from zipfel.data.dataset import Dataset
from zipfel.data.formats.sparse_text import Header, parse_line
from zipfel.errors import ZipfelError
from zipfel.evaluate import read_predictions

TRIES = int(os.environ.get("ZIPFEL_FUZZ", "0"))
SOME = settings(
    max_examples=TRIES or 200,
    derandomize=not TRIES,
    database=None,
    deadline=5000,  # milliseconds: what takes longer hangs
    suppress_health_check=list(HealthCheck),
)
FORMATS = ["repository", "split", "dense", "npy", "npz", "lf", "csv", "tsv", "jsonl", "parquet"]
TOKENS = [
    *(bytes([byte]) for byte in b"\x00\xff\xc3\x85\r\n \t\"',;:-+.e[]{}\\019"),
    b"", b"\n\n", b"-1", b"nan", b"NaN", b"inf", b"null", b"true", b"1e999", b"1e39", b"1e-999", b"1_0", b"2147483648",
    b"99999999999999999999", b"9" * 400, b"[" * 2000, b'{"a":' * 2000, b"\\ud800", b"\xed\xa0\x80", b"\xef\xbb\xbf",
    b"\xff\xfe", "\u2028".encode(), "\u0663".encode(), b"\x1f\x8b", b"PK\x03\x04", b"PAR1", b"\x93NUMPY", b"x" * 5000,
    b"999999999 999999999 999999999\n",
]  # fmt: skip


def valid_files(format: str) -> dict[str, bytes]:
    """Return the files of a small folder."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "out"
        if format in ("repository", "split", "npz", "dense", "npy"):
            dataset = features_dataset(points=7, features=5, labels=4)
            zipfel.write(dataset, folder, "split" if format in ("dense", "npy") else format)
        else:
            dataset = texts_dataset(points=7, labels=4)
            zipfel.write(dataset, folder, format)
        if format in ("dense", "npy"):
            X = dataset.train.X.toarray()
            (folder / "trn_X_Xf.txt").unlink()
            if format == "npy":
                np.save(folder / "trn_X_Xf.npy", X)
            else:
                rows = "".join(" ".join(map(str, row)) + "\n" for row in X.tolist())
                (folder / "trn_X_Xf.txt").write_text(f"7 5\n{rows}")
        return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


VALID = {format: valid_files(format) for format in FORMATS}


def lines_changed(content: bytes, kind: str, one: int, other: int) -> bytes:
    lines = content.splitlines(keepends=True) or [b""]
    one, other = one % len(lines), other % len(lines)
    if kind == "double line":
        lines.insert(one, lines[other])
    elif kind == "drop line":
        del lines[one]
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


def changed(content: bytes, kind: str, place: int, length: int, token: bytes) -> bytes:
    if "line" in kind:
        return lines_changed(content, kind, place, length)
    start = place % (len(content) + 1)
    end = start + length % 9
    if kind == "flip":
        flipped = bytes(byte ^ 1 << length % 8 for byte in content[start : start + 1])
        return content[:start] + flipped + content[start + 1 :]
    if kind == "cut off":
        return content[:start]
    if kind == "drop":
        return content[:start] + content[end:]
    return content[:start] + token + content[start if kind == "insert" else end :]


CHANGE = st.tuples(
    st.sampled_from(["flip", "drop", "insert", "replace", "cut off", "double line", "drop line", "swap lines"]),
    st.integers(0, 2**20),
    st.integers(0, 2**20),
    st.sampled_from(TOKENS),
)
PACKING = st.sampled_from(["plain", "plain", "packed", "packed, then changed"])


def mangled(valid: dict[str, bytes], which: int, other: int | None, packing: str, changes: list) -> dict[str, bytes]:
    """Return the files with one of them changed, or replaced by another."""
    names = sorted(valid)
    name = names[which % len(names)]
    content = valid[name] if other is None else valid[names[other % len(names)]]
    content = gzip.compress(content, mtime=0) if packing == "packed, then changed" else content
    for change in changes:
        content = changed(content, *change)
    return valid | {name: gzip.compress(content) if packing == "packed" else content}


MANGLED = {
    "which": st.integers(0, 20),
    "other": st.none() | st.none() | st.integers(0, 20),
    "packing": PACKING,
    "changes": st.lists(CHANGE, min_size=1, max_size=3),
}


def result_or_complaint(path: Path, work: Callable[[], Any]) -> Any:
    """Return the result, or None if an error of the right kind was raised with a message of one line."""
    try:
        return work()
    except ZipfelError as error:
        message = str(error)
    assert message.startswith(str(path)), message
    assert message.isprintable(), repr(message)
    assert len(message) < 1000, message
    return None


def read_or_complaint(path: Path) -> Dataset | None:
    return result_or_complaint(path, lambda: zipfel.read(path))


# Slow second readers of each format, to compare with


def unpacked(path: Path) -> bytes:
    content = path.read_bytes()
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def sparse_rows(path: Path, sizes: int) -> tuple[list, list[list[float]]]:
    """Return labels and values of each row, dense, line by line."""
    first, *lines = unpacked(path).split(b"\n")
    numbers = [int(number) for number in first.removeprefix(b"\xef\xbb\xbf").split()]
    header = Header(numbers[0], numbers[1], sum(numbers[2:sizes]))
    assert not b"".join(lines[header.points :]).strip(), "rows were dropped"
    labels, rows = [], []
    for line in lines[: header.points]:
        ids, pairs = parse_line(line, header)
        labels.append(sorted(set(ids)))
        row = np.zeros(header.features, dtype=np.float32)
        for feature, value in pairs:
            row[feature] += np.float32(value)
        rows.append(row.tolist())
    return labels, rows


def dense_rows(path: Path) -> list[list[float]]:
    if ".npy" in path.suffixes:
        return np.load(io.BytesIO(unpacked(path))).astype(np.float32).tolist()
    _, *lines = unpacked(path).replace(b",", b" ").strip().split(b"\n")
    return [[float(np.float32(word)) for word in line.split()] for line in lines]


def labels_of(Y: csr_array) -> list[list[int]]:
    return [Y[[row]].indices.tolist() for row in range(Y.shape[0])]


def check_repository(folder: Path, dataset: Dataset) -> None:
    for name, part in dataset.parts.items():
        labels, rows = sparse_rows(folder / f"{name}.txt", 3)
        assert part.X.toarray().tolist() == rows
        check_labels(part, labels)


def check_split(folder: Path, dataset: Dataset) -> None:
    for prefix, part in zip(("trn", "tst", "val"), dataset.parts.values(), strict=False):
        path = next(folder.glob(f"{prefix}_X_Xf.*"))
        sparse = b":" in unpacked(path).partition(b"\n")[2] or not unpacked(path).partition(b"\n")[2].strip()
        expected = sparse_rows(path, 2)[1] if sparse and path.suffix == ".txt" else dense_rows(path)
        assert part.X.toarray().tolist() == expected
        check_labels(part, [np.flatnonzero(row).tolist() for row in sparse_rows(folder / f"{prefix}_X_Y.txt", 2)[1]])


def check_labels(part, labels: list[list[int]]) -> None:
    """Compare labels; only labels that a filter removed may be missing."""
    found, filtered = labels_of(part.Y), [[]] * len(labels) if part.filtered is None else labels_of(part.filtered)
    assert len(found) == len(labels)
    for row, expected, out in zip(found, labels, filtered, strict=True):
        assert row == [label for label in expected if label not in out]


def check_npz(folder: Path, dataset: Dataset) -> None:
    for prefix, part in zip(("trn", "tst", "val"), dataset.parts.values(), strict=False):
        X, Y = (load_npz(io.BytesIO(unpacked(folder / f"{name}.{prefix}.npz"))) for name in "XY")
        np.testing.assert_array_equal(part.X.toarray(), X.toarray().astype(np.float32))
        check_labels(part, [np.flatnonzero(row).tolist() for row in Y.toarray()])


def json_rows(path: Path) -> list[dict]:
    lines = unpacked(path).removeprefix(b"\xef\xbb\xbf").split(b"\n")
    return [json.loads(line) for line in lines if line.strip()]


def check_lf(folder: Path, dataset: Dataset) -> None:
    assert dataset.label_names == [str(row["uid"]).strip() for row in json_rows(folder / "lbl.json")]
    for prefix, part in zip(("trn", "tst", "val"), dataset.parts.values(), strict=False):
        rows = json_rows(folder / f"{prefix}.json")
        assert list(part.uids) == [str(row["uid"]) for row in rows]
        for name, column in part.texts.items():
            assert column == [row.get(name) or "" for row in rows]
        check_labels(part, [sorted(set(row["target_ind"])) for row in rows])


def table_rows(path: Path) -> list[dict]:
    if ".jsonl" in path.suffixes:
        return json_rows(path)
    if ".parquet" in path.suffixes:
        return pyarrow.parquet.read_table(path).to_pylist()
    text = unpacked(path).decode("utf-8-sig")
    first = io.StringIO(text, newline="").readline()
    marks = "\t" if ".tsv" in path.suffixes else ",;\t|"
    mark = max(marks, key=lambda mark: len(next(csv.reader([first], delimiter=mark))))
    header, *rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=mark) if row]
    return [dict(zip([name.strip() for name in header], row, strict=True)) for row in rows]


def check_table(folder: Path, dataset: Dataset) -> None:
    for name, part in dataset.parts.items():
        rows = table_rows(next(folder.glob(f"{name}.*")))
        assert len(part) == len(rows)
        for given_field, column in part.texts.items():
            field = given_field
            if rows and field not in rows[0]:  # parts may differ in the case of their headers
                field = next(own for own in rows[0] if own.casefold() == field.casefold())
            if all(isinstance(row[field], str | None) for row in rows):
                assert column == [row[field] or "" for row in rows]


CHECKS = {
    "repository": check_repository,
    "split": check_split,
    "dense": check_split,
    "npy": check_split,
    "npz": check_npz,
    "lf": check_lf,
}


def check(format: str, contents: dict[str, bytes], folder: Path) -> bool:
    """Write the files, read them, and compare the result; return whether they could be read."""
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    dataset = read_or_complaint(folder)
    if dataset is not None:
        CHECKS.get(format, check_table)(folder, dataset)
    return dataset is not None


@pytest.mark.parametrize("format", FORMATS)
def test_what_is_whole_passes_the_check(tmp_path, format):
    assert check(format, VALID[format], tmp_path)


@pytest.mark.parametrize("format", FORMATS)
def test_mangled_folders(format):
    @SOME
    @given(**MANGLED)
    def run(which, other, packing, changes):
        with tempfile.TemporaryDirectory() as temporary:
            check(format, mangled(VALID[format], which, other, packing, changes), Path(temporary))

    run()


SCORES = b"3 4\n0:0.5 3:-1\n\n1:0 2:1e-3\n"


@SOME
@given(headless=st.booleans(), packing=PACKING, changes=MANGLED["changes"])
def test_mangled_predictions(headless, packing, changes):
    content = mangled({"scores.txt": SCORES[4 * headless :]}, 0, None, packing, changes)["scores.txt"]
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "scores.txt"
        path.write_bytes(content)
        scores = result_or_complaint(path, lambda: read_predictions(path, 3, 4))
        assert scores is None or (scores.shape == (3, 4) and np.isfinite(scores.data).all())


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("format", ["repository", "split", "lf", "csv", "jsonl"])
def test_every_truncation_of_a_file_is_noticed_or_harmless(tmp_path, format, suffix):
    """A gzip file that is cut off anywhere is refused; a plain one gives the rows that are left, or is refused."""
    name = {"repository": "train.txt", "split": "trn_X_Xf.txt", "lf": "trn.json"}.get(format, f"train.{format}")
    for file, content in VALID[format].items():
        (tmp_path / file).write_bytes(content)
    content = VALID[format][name]
    if suffix:
        (tmp_path / name).unlink()
        content = gzip.compress(content)
    for length in range(0, len(content), 7):
        (tmp_path / f"{name}{suffix}").write_bytes(content[:length])
        dataset = read_or_complaint(tmp_path)
        assert dataset is None or not suffix
        if dataset is not None:
            CHECKS.get(format, check_table)(tmp_path, dataset)


def test_random_bytes_are_no_data_set(tmp_path):
    rng = np.random.default_rng(0)
    for format in FORMATS:
        for name in VALID[format]:
            for size in (1, 10, 1000):
                for file, content in VALID[format].items():
                    (tmp_path / file).write_bytes(content)
                (tmp_path / name).write_bytes(rng.bytes(size))
                assert read_or_complaint(tmp_path) is None, name
        for path in tmp_path.iterdir():
            path.unlink()


DEEP = "[" * 100_000 + "]" * 100_000
CORPUS = {
    "train.txt": [
        b"999999999 999999999 999999999",
        b"1 1 1\n" + b"9" * 100_000,
        b"1 1 1\n0 0:" + b"9" * 100_000,
        b"1 1 1\n" + b"," * 100_000,
        b"1 1 1\n" + b"0:" * 100_000,
        b"1 1 1\n" + b"-" * 5000 + b"\n",
        b"1 1 1\n\x00\n",
        b"1 1 1\n0 0:1e" + b"9" * 5000,
        b"1 1 1\n0\xc2\xa00:1\n",
        b"1 1 1\n0 0:1\x1a",
        b"\xff\xfe1\x00 \x00",
        b"1 1 1\n0 0:1\n" * 2,
        b"%PDF-1.4\n",
        b"{}\n",
        b"<html>\n",
        zlib.compress(b"1 1 1\n0 0:1\n"),
        gzip.compress(b""),
        b"\n" * 100_000,
        gzip.compress(b"1 1 1\n0 0:1\n")[:10],
        gzip.compress(gzip.compress(b"1 1 1\n0 0:1\n")),
    ],
    "trn.json": [
        DEEP.encode(),
        b'{"uid": ' + DEEP.encode() + b"}",
        b'{"uid": 1' + b"0" * 10_000 + b"}",
        b'{"uid": 1e999}',
        b"\x00\n",
        b'"uid"',
        b'{"uid": 1, "title": "x", "target_ind": [1' + b"0" * 400 + b"]}",
        b'{"uid": 1, "title": "x", "target_ind": {}}',
        b'{"uid": 1, "title": "\xed\xa0\x80", "target_ind": []}',
        b'{"uid": 1, "uid": 1.5, "title": "x", "target_ind": []}',
        b"[\n" + b'{"uid": 1}' + b"\n]",
        b'{\n"uid": 1\n}',
    ],
    "train.csv": [
        b"text,labels\n" + b'"' * 99_999,
        b"text,labels\nx,\x00y,\n",
        b"text,labels\rx,y\rz\r",
        b"\x00",
        b",,,,\n,,,,\n",
        b'"\n' * 1000,
        b"text,labels\nx,\xff\n",
        b"labels\nx\n",
        b"text,labels\nx,[[1]]\n",
        b"\xff\xfet\x00e\x00",
        b"text;labels\nx,y\n",
        gzip.compress(b""),
        b"text,labels\nx," + b"[" * 900 + b"]" * 900 + b"\n",
    ],
    "train.jsonl": [
        DEEP.encode(),
        b'{"text": ' + DEEP.encode() + b', "labels": []}',
        b'{"text": "x", "labels": [[["a"]]]}',
        b'{"text": {}, "labels": "a"}',
        b'{"text": "x", "labels": 123456789012345678901234567890}',
        b'{"text": "x", "labels": []}',
        b"null\n",
        b'{"text":"x"}\n{"labels":"y"}\n',
    ],
    "train.parquet": [
        b"PAR1",
        b"PAR1PAR1",
        b"PAR1" + b"\xff" * 100 + b"PAR1",
        b"PAR1\xff\xff\xff\x7fPAR1",
        b"PARE" * 10,
    ],
    "Y.trn.npz": [
        b"PK",
        b"PK\x03\x04" + b"\x00" * 100,
        b"PK\x05\x06" + b"\x00" * 18,
        b"\x93NUMPY\x01\x00\xff\xff",
        b"\x80\x04.",
    ],
}


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, files in CORPUS.items() for i in range(len(files))])
def test_corpus_of_mangled_files(tmp_path, name, number):
    (tmp_path / "lbl.json").write_bytes(orjson.dumps({"uid": "a", "title": "b"}))
    (tmp_path / name).write_bytes(CORPUS[name][number])
    assert read_or_complaint(tmp_path) is None
