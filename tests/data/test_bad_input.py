"""Errors in files are reported in one line with the name of the file and, where possible, the line number."""

import gzip
import io
import os

import numpy as np
import orjson
import pandas
import pyarrow
import pyarrow.parquet
import pytest
from samples import features_dataset, texts_dataset
from scipy.sparse import coo_array, csr_array, save_npz

import zipfel
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import FORMATS, WRITABLE, TableSettings, files
from zipfel.errors import DataError, ZipfelError

REPOSITORY = {"train.txt": "2 3 4\n1,3 0:1 2:0.5\n0 1:1\n"}
SPLIT = {"trn_X_Xf.txt": "2 3\n0:1 2:0.5\n1:1\n", "trn_X_Y.txt": "2 4\n1:1 3:1\n0:1\n"}
LF = {
    "lbl.json": '{"uid": "a", "title": "A"}\n{"uid": "b", "title": "B"}\n',
    "trn.json": '{"uid": 1, "title": "x", "target_ind": [0]}\n{"uid": 2, "title": "y", "target_ind": [1]}\n',
}
CSV = {"train.csv": "text,labels\nx,a\ny,b\n"}
JSONL = {"train.jsonl": '{"text": "x", "labels": ["a"]}\n{"text": "y", "labels": "b"}\n'}


def npz(matrix=None, save=save_npz, **arrays):
    stream = io.BytesIO()
    np.savez(stream, **arrays) if arrays else save(stream, matrix)
    return stream.getvalue()


def npy(array, **more):
    stream = io.BytesIO()
    np.save(stream, array, **more)
    return stream.getvalue()


def parquet(**columns):
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), stream)
    return stream.getvalue()


NPZ = {"Y.trn.npz": npz(csr_array(np.eye(2))), "X.trn.npz": npz(csr_array(np.eye(2, 3)))}
PARQUET = {"train.parquet": parquet(text=["x", "y"], labels=[["a"], ["b"]])}


def made(folder, contents):
    folder.mkdir()
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def complaint(folder, settings=None, format=None):
    """Return the message, without the folder, of the error that reading must raise."""
    with pytest.raises(ZipfelError) as caught:
        zipfel.read(folder, settings, format)
    message = str(caught.value)
    assert message.isprintable(), "a message is one line, and none of its characters moves the cursor"
    assert len(message) < 600
    assert message.startswith(str(folder))
    return message.removeprefix(str(folder)).removeprefix("/").removeprefix(": ")


def cases(others, file, contents):
    """Put each content into `file`, beside the other files; the error must name that file."""
    return [(others | {file: content}, f"{file}{problem}") for content, problem in contents]


def sparse_rows(file, header, column, others):
    """Return a case for each possible error in a row of 3 columns."""
    contents = [(f"{header}\n{row}\n0:1\n", ":2: " + problem.replace("COLUMN", column)) for row, problem in ROWS]
    return cases(others, file, contents)


def headers(file, names, others):
    """Return a case for each possible error in a header."""
    return cases(others, file, [(text, ":1: " + problem.replace("NAMES", names)) for text, problem in HEADERS])


ROWS = [
    ("0:x", "expected a number, found 'x'"),
    ("0:1 x:1", "expected a COLUMN id, found 'x'"),
    ("0:1 1:", "expected COLUMN:value, found '1:'"),
    ("0:1 :1", "expected COLUMN:value, found ':1'"),
    ("0:1 1", "expected COLUMN:value, found '1'"),
    ("0:1 1:2:3", "expected a number, found '2:3'"),
    ("0:1 1:2,3", "expected a number, found '2,3'"),
    ("0:nan", "value 'nan' is not a finite float32 number"),
    ("0:inf", "value 'inf' is not a finite float32 number"),
    ("0:-Infinity", "value '-Infinity' is not a finite float32 number"),
    ("0:1e39", "value '1e39' is not a finite float32 number"),
    ("0:1e999", "value '1e999' is not a finite float32 number"),
    ("0:1_000", "expected a number, found '1_000'"),
    ("0:٣", "expected a number, found '٣'"),
    ("0:0x10", "expected a number, found '0x10'"),
    ("0:1\x00", "expected a number, found '1\\x00'"),
    ("3:1", "COLUMN id 3 is outside 0..2 (the header says 3 COLUMNs)"),
    ("-1:1", "COLUMN id -1 is outside 0..2 (the header says 3 COLUMNs)"),
    ("9999999999:1", "COLUMN id 9999999999 is outside 0..2 (the header says 3 COLUMNs)"),
    ("1e999:1", "expected a COLUMN id, found '1e999'"),
    ("nan:1", "expected a COLUMN id, found 'nan'"),
    ("0.5:1", "expected a COLUMN id, found '0.5'"),
    ("1:3e38 1:3e38", "the values of a repeated COLUMN sum to more than float32 can hold"),
]
HEADERS = [
    ("", "empty"),
    ("\n0:1\n", "line 1 is empty; expected 'NAMES'"),
    ("1 2 3 4\n0:1\n", "expected the header 'NAMES', found '1 2 3 4'"),
    ("1 2 x\n0:1\n", "expected the header 'NAMES', found '1 2 x'"),
    ("1\n0:1\n", "expected the header 'NAMES', found '1'"),
    ("1 -2 3 3\n", "expected the header 'NAMES', found '1 -2 3 3'"),
    ("0:1 2:1\n", "expected the header 'NAMES', found '0:1 2:1'"),
    ("\x00\x01\x02", "expected the header 'NAMES', found '\\x00\\x01\\x02'"),
]
LONG = "9" * 3000  # many digits, but not more than Python turns into a number
HUGE = "9" * 5000  # more than that
PACKED = gzip.compress(b"1 3 4\n1 0:1\n")
CUT_OFF = "broken gzip file: Compressed file ended before the end-of-stream marker was reached"
WRONG_BYTE = "set the right one with --encoding (cp1252?)"
METADATA = ': expected {"name": …, "propensity": {"A": …, "B": …}}; '
BARE_LINES = "1 3 4\n1\n"

REPOSITORY_CASES = [
    *sparse_rows("train.txt", "2 3 4", "feature", {}),
    *headers("train.txt", "points features labels", {}),
    *cases({}, "train.txt", [
        ("2 3 4\n4 0:1\n\n", ":2: label id 4 is outside 0..3 (the header says 4 labels)"),
        ("2 3 4\n1\n-1 0:1\n", ":3: label id -1 is outside 0..3 (the header says 4 labels)"),
        ("1 3 4\n1,x 0:1\n", ":2: expected a label id, found 'x'"),
        ("1 3 4\n1, 2 0:1\n", ":2: expected a label id, found ''"),
        ("1 3 4\n 1 0:1\n", ":2: expected feature:value, found '1'"),
        ("1 3 4\n" + "x" * 1000 + " 0:1\n", f":2: expected a label id, found '{'x' * 39}…'"),
        ("3 3 4\n1 0:1\n", ":2: the file ends after 1 points; the header says 3"),
        ("3 3 4", ":1: the file ends after 0 points; the header says 3"),
        ("1 3 4\n1 0:1\n\n\n2\n\n", ":5: more points than expected; the header says 1"),
        ("999999999 999999999 999999999\n1 1:1\n", ":2: the file ends after 1 points; the header says 999999999"),
        ("1 3 99999999999\n1\n", ":1: the header says 99999999999 labels, outside 1..2147483647"),
        (f"1 {LONG} 3\n1 1:1\n", f":1: the header says {'9' * 39}… features, outside 1..2147483647"),
        ("0 3 4\n", ":1: the header says 0 points, outside 1..2147483647"),
        ("2 3 4" + " " * 5000 + "\n\n1\n", ":1: expected the header 'points features labels', found '2 3 4 ..."),
        ("1 3 4\r1 0:1\r", ":1: expected the header 'points features labels', found '1 3 4\\r1 0:1'"),
        ("1 3 4\n1\n".encode("utf-16"), ":1: expected the header 'points features labels', found ..."),
        (PACKED[:-9], f": {CUT_OFF}"),
        (PACKED[:2], f": {CUT_OFF}"),
        (PACKED[:12] + b"x" * 40, ": broken gzip file: ..."),
        (PACKED + b"more", ": broken gzip file: Not a gzipped file (b'mo')"),
    ]),
    ({"train.txt": BARE_LINES, "train.txt.gz": BARE_LINES},
     "holds more than one train file: train.txt, train.txt.gz; remove all but one"),
    ({"a_train.txt": BARE_LINES, "b_train.txt": BARE_LINES},
     "holds more than one train file: a_train.txt, b_train.txt; remove all but one"),
    (REPOSITORY | {"val.txt": BARE_LINES, "dev.txt": BARE_LINES},
     "holds more than one validation file: val.txt, dev.txt; remove all but one"),
    (REPOSITORY | {"test.txt": "1 3 5\n1\n"}, "labels of test (5) differ from labels of train (4)"),
    (REPOSITORY | {"test.txt": "1 2 4\n1\n"}, "features of test (2) differ from features of train (3)"),
    (REPOSITORY | {"test.txt": "1 3 4\n1 0:1\n", "val.txt": "1 3 4\n1 0:1\n"},
     "test and validation hold the same points, ..."),
    (REPOSITORY | {"labels.txt": "a\nb\nc\nd\n", "Y.txt": ""}, "holds both labels.txt and Y.txt; remove one"),
    (REPOSITORY | {"lbl_X_Xf.txt": "3 3\n\n\n\n"}, "rows of Z (3) differ from labels (4)"),
    (REPOSITORY | {"lbl_X_Xf.txt": "4 2\n\n\n\n\n"}, "columns of Z (2) differ from features (3)"),
    *cases(REPOSITORY, "test.txt", [("1 3 4\n1 x\n", ":2: expected feature:value, found 'x'")]),
    *cases(REPOSITORY, "features.txt", [("a\n", ":1: holds 1 lines, expected 3 features")]),
    *cases(REPOSITORY, "labels.txt", [
        ("a\nb\nc\n", ":3: holds 3 lines, expected 4 labels"),
        ("a\nb\nc\nd\ne\nf\n", ":5: holds 6 lines, expected 4 labels"),
        ("", ":1: holds 0 lines, expected 4 labels"),
        (b"a\nb\nc\xe9\nd\n", f":3: not utf-8: byte 0xe9; {WRONG_BYTE}"),
    ]),
    *cases(REPOSITORY, "lbl_X_Xf.txt", [
        ("4 3\n\n3:1\n\n\n", ":3: feature id 3 is outside 0..2 (the header says 3 features)"),
    ]),
    *cases(REPOSITORY, "filter_labels_train.txt", [
        ("0 1\n2 0\n", ":2: document id 2 is outside 0..1 (the data set has 2 documents)"),
        ("-1 0\n", ":1: document id -1 is outside 0..1 (the data set has 2 documents)"),
        ("0 4\n", ":1: label id 4 is outside 0..3 (the data set has 4 labels)"),
        ("0 99999999999\n", ":1: label id 99999999999 is outside 0..3 (the data set has 4 labels)"),
        (f"0 {HUGE}\n", f":1: expected a label id, found '{'9' * 39}…'"),
        ("0 1 2\n", ":1: expected 'document label', found '0 1 2'"),
        ("0\n", ":1: expected 'document label', found '0'"),
        ("0 x\n", ":1: expected a label id, found 'x'"),
    ]),
    *cases(REPOSITORY, "dataset.json", [
        ("", METADATA + "JSONDecodeError..."),
        ("[]", METADATA + "TypeError(..."),
        ('{"name": "a"}', METADATA + "KeyError('propensity')"),
        ('{"name": "a", "propensity": {"A": "nan", "B": 1}}', METADATA + "ValueError(..."),
        ('{"name": {}, "propensity": {"A": 1, "B": 1}}', METADATA + "ValueError(..."),
        ('{"name": "a", "propensity": {"A": 1, "B": 1}, "text": 3}', METADATA + "TypeError(..."),
    ]),
]  # fmt: skip

NO_NPY = SPLIT | {"trn_X_Xf.txt": None}
SPLIT_CASES = [
    *sparse_rows("trn_X_Xf.txt", "2 3", "feature", SPLIT),
    *sparse_rows("trn_X_Y.txt", "2 3", "label", SPLIT),
    *headers("trn_X_Y.txt", "points labels", SPLIT),
    (NO_NPY, "trn_X_Xf.txt (or .npy) is missing"),
    (SPLIT | {"tst_X_Y.txt": "1 4\n\n"}, "tst_X_Xf.txt (or .npy) is missing"),
    (SPLIT | {"tst_X_Xf.txt": "1 3\n\n"}, "tst_X_Y.txt is missing"),
    (SPLIT | {"val_X_Xf.npy": npy(np.eye(3))}, "val_X_Y.txt is missing"),
    (SPLIT | {"trn_X_Xf.npy": npy(np.eye(3))}, "holds both trn_X_Xf.txt and trn_X_Xf.npy; remove one"),
    *cases(SPLIT, "trn_X_Y.txt", [
        ("2 4\n\n1:1 0:-2\n", ":3: a label has a negative relevance: -2"),
        ("3 4\n\n\n\n", ":1: holds 3 points, but trn_X_Xf.txt holds 2"),
    ]),
    *cases(SPLIT, "trn_X_Xf.txt", [
        ("2 3\n1 2 3\n1 2\n", ":3: expected 3 numbers, found 2 in '1 2'"),
        ("2 3\n1 2 3 4\n1 2 3\n", ":2: expected 3 numbers, found 4 in '1 2 3 4'"),
        ("2 3\n1 2 3\n\n1 2 3\n", ":3: expected 3 numbers, found 0 in ''"),
        ("2 3\n1 2 3\n", ":2: the file ends after 1 points; the header says 2"),
        ("2 3\n1 2 3\n1 2 3\n\n1 2 3\n", ":5: more points than expected; the header says 2"),
        ("2 3\n1 2 3\n0 x 3\n", ":3: expected a number, found 'x'"),
        ("2 3\n1 2 3\n0 true 3\n", ":3: expected a number, found 'true'"),
        ("2 3\n1 2 3\n0 null 3\n", ":3: expected a number, found 'null'"),
        ('2 3\n1 2 3\n0 "1" 3\n', ":3: expected a number, found '\"1\"'"),
        ("2 3\n1 2 3\n0 [1] 3\n", ":3: expected a number, found '[1]'"),
        ("2 3\n1 2 3\n0 nan 3\n", ":3: value 'nan' is not a finite float32 number"),
        ("2 3\n1 2 3\n0 1e39 3\n", ":3: value '1e39' is not a finite float32 number"),
    ]),
    *cases(NO_NPY, "trn_X_Xf.npy.gz", [(gzip.compress(npy(np.eye(2)))[:-3], f": {CUT_OFF}")]),
    *cases(NO_NPY, "trn_X_Xf.npy", [
        ("", ": not a numpy array: ..."),
        (npy(np.eye(2))[:-3], ": not a numpy array: ..."),
        (NPZ["X.trn.npz"], ": not a numpy array: ..."),
        (npy(np.eye(2)).replace(b"}", b"("), ": not a numpy array: ..."),
        (npy(np.eye(2)).replace(b"(2, 2)", b"(9**9)"), ": not a numpy array: ..."),
        (npy(np.eye(2)).replace(b"(2, 2)", b"(2,-2)"), ": not a numpy array: ..."),
        (npy(np.array([{}], dtype=object), allow_pickle=True), ": not a numpy array: Object arrays ..."),
        (npy(np.ones(4)), ": expected a matrix of numbers, found shape (4,) of float64"),
        (npy(np.array([["a"]])), ": expected a matrix of numbers, found shape (1, 1) of <U1"),
        (npy(np.array([[1, 2], [3, np.nan]])), ": row 1 holds a value that is not a finite float32 number"),
        (npy(np.array([[1, 1e300], [3, 1]])), ": row 0 holds a value that is not a finite float32 number"),
    ]),
]  # fmt: skip


def point(**values):
    return orjson.dumps({"uid": 1, "title": "x", "target_ind": [0]} | values).decode() + "\n"


LF_CASES = [
    (LF | {"lbl.json": None}, "lbl.json is missing"),
    (LF | {"trn.json.gz": LF["trn.json"]}, "holds both trn.json and trn.json.gz; remove one"),
    (LF | {"tst.json": LF["trn.json"], "val.json": LF["trn.json"]},
     "test and validation hold the same points, ..."),
    *cases(LF, "lbl.json", [
        ("", ":1: empty: expected one JSON object per line"),
        (LF["lbl.json"].replace('"b"', '"a"'), ":2: uid 'a' is already on line 1"),
        (LF["lbl.json"].replace('"b"', '" a "'), ":2: uid 'a' is already on line 1"),
        (LF["lbl.json"].replace('"b"', '" "'), ":2: the name of the label ('uid') is empty"),
    ]),
    *cases(LF, "tst.json", [("{}\n", ":1: expected a 'uid' that is text or a number, found None")]),
    *cases(LF, "trn.json", [
        ("\n\n", ":1: empty: expected one JSON object per line"),
        (point() + '{"uid": 2, "title": "x"', ":2: broken JSON: ... at column ..."),
        (point() + "\n" + point(uid=2), ":2: blank line; expected a JSON object"),
        (point() + point(uid="1"), ":2: uid '1' is already on line 1"),
        ("[1]\n", ":1: expected a JSON object, found '[1]'"),
        ("[" * 3000 + "\n", ":1: broken JSON: ..."),
        ('{"uid": NaN}\n', ":1: broken JSON: ..."),
        ('{"uid": "\\ud800", "title": ""}\n', ":1: broken JSON: ..."),
        ('{"uid": "é"}\n'.encode("cp1252"), ":1: broken JSON: ..."),
        (point().encode("utf-16"), ":1: broken JSON: ..."),
        (point(uid=None), ":1: expected a 'uid' that is text or a number, found None"),
        (point(uid=True), ":1: expected a 'uid' that is text or a number, found True"),
        (point(uid=[0] * 99), f":1: expected a 'uid' that is text or a number, found {str([0] * 99)[:59]}…"),
        ('{"uid": 1, "\\n": ""}', ":1: expected 'title' or 'content', found uid, \\n"),
        (point(title=["x"]), ":1: 'title' must be text, found list"),
        (point(target_ind=None), ":1: expected a list 'target_ind', found None"),
        (point(target_ind="0"), ":1: expected a list 'target_ind', found '0'"),
        (point(target_ind=[0, 2]), ":1: label id 2 is outside 0..1 (lbl.json has 2)"),
        (point(target_ind=[-1]), ":1: label id -1 is outside 0..1 (lbl.json has 2)"),
        (point(target_ind=[99999999999]), ":1: label id 99999999999 is outside 0..1 (lbl.json has 2)"),
        (point(target_ind=[0.0]), ":1: expected label ids in 'target_ind', found 0.0"),
        (point(target_ind=[True]), ":1: expected label ids in 'target_ind', found True"),
        (point(target_ind=[[]]), ":1: expected label ids in 'target_ind', found []"),
    ]),
]  # fmt: skip


def csr(**changes):
    """Return an npz file of a 2 × 3 matrix with some of its arrays changed."""
    arrays = {"format": b"csr", "shape": [2, 3], "data": [1.0, 1.0], "indices": [0, 1], "indptr": [0, 1, 2]}
    return npz(**{name: np.array(array) for name, array in (arrays | changes).items()})


NOT_SPARSE = ": not a sparse matrix saved by scipy: "
NO_X = NPZ | {"X.trn.npz": None}
NPZ_CASES = [
    (NO_X, "X.trn.npz (here or one folder deeper) or X.trn.txt is missing"),
    (NPZ | {"X.tst.npz": NPZ["X.trn.npz"]}, "Y.tst.npz: cannot be read: No such file or directory"),
    (NPZ | {"Y.trn.npz": npz(csr_array(np.eye(3)))}, "X.trn.npz: holds 2 points, but Y.trn.npz holds 3"),
    (NO_X | {"X.trn.txt": "a\nb\n", "Y.tst.npz": NPZ["Y.trn.npz"], "X.tst.npz": NPZ["X.trn.npz"]},
     "test and train must have the same kinds of input: features, texts or both"),
    *cases(NPZ, "output-items.txt", [("a\n", ":1: holds 1 lines, expected 2 labels")]),
    *cases(NO_X, "X.trn.txt", [
        ("a\n", ":1: holds 1 lines, expected 2 points of Y.trn.npz"),
        (b"a\n\xff\n", f":2: not utf-8: byte 0xff; {WRONG_BYTE}"),
    ]),
    *cases(NPZ, "Y.trn.npz", [
        ("", NOT_SPARSE + "..."),
        ("hello", NOT_SPARSE + "..."),
        (NPZ["Y.trn.npz"][:-30], NOT_SPARSE + "..."),
        (npy(np.eye(2)), NOT_SPARSE + "..."),
        (npz(a=np.eye(2)), NOT_SPARSE + "..."),
        (npz(csr_array(-np.eye(2))), ": a label has a negative relevance: -1"),
    ]),
    *cases(NPZ, "X.trn.npz", [
        (csr(data=[1e300, 1]), ": holds values that are not finite float32 numbers"),
        (csr(data=[1, np.nan]), ": holds values that are not finite float32 numbers"),
        (csr(data=[1j, 1]), ": holds complex128 values instead of real numbers"),
        (csr(data=["a", "b"]), ": holds <U1 values instead of real numbers"),
        (csr(indices=[0, 3]), NOT_SPARSE + "column 3 is outside 0..2"),
        (csr(indices=[0, -1]), NOT_SPARSE + "column -1 is outside 0..2"),
        (csr(indptr=[0, 2, 1]), NOT_SPARSE + "..."),
        (csr(indptr=[0, 9, 2]), NOT_SPARSE + "..."),
        (csr(shape=[10**9, 3]), NOT_SPARSE + "..."),
        (csr(shape=["x"]), NOT_SPARSE + "..."),
        (csr(format=b"zzz"), NOT_SPARSE + "..."),
        (csr(shape=[2, 10**12]), ": expected a matrix with 1 to 2147483647 rows and columns, found shape (2, 1000..."),
        (npz(csr_array((2, 0))), ": expected a matrix with 1 to 2147483647 rows and columns, found shape (2, 0)"),
        (npz(coo_array(np.ones(2))), ": expected a matrix with 1 to 2147483647 rows and columns, found shape (2,)"),
    ]),
]  # fmt: skip

NO_PARQUET = ": not a Parquet file, or damaged: ..."
TABLE_CASES = [
    (CSV | {"train.csv.gz": CSV["train.csv"]}, "holds both train.csv and train.csv.gz; remove one"),
    (CSV | {"test.csv": "text,labels\nx,y\n", "dev.csv": "text,labels\nx,y\n"},
     "test and validation hold the same points, ..."),
    *cases({}, "train.csv", [
        ("", ":1: empty: expected a line with the column names"),
        ("\n\n", ":1: empty: expected a line with the column names"),
        ("text,labels\n", ":1: holds no rows"),
        ("text,labels\nx,\n", ":1: column 'labels' holds no labels"),
        ("a,labels\nx,y\n", ":1: no text column found; set it with --text (columns: a, labels)"),
        ("text,b\nx,y\n", ":1: no label column found; set it with --labels (columns: text, b)"),
        ('"te\nxt",b\nx,y\n', ":1: no label column found; set it with --labels (columns: te\\nxt, b)"),
        (",".join("abcdefghijklmnopqrstuvwxyz"),
         ":1: no label column found; set it with --labels (columns: a, b, c, d, e, f, g, h, i, j, k, l, …)"),
        ("text,labels,text\nx,y,z\n", ":1: 2 columns are called 'text'; rename them"),
        ("text,labels\nx,y\n\n'z\n", ":4: expected 2 cells, found 1"),
        ("text,labels\nx,y,z\n", ":2: expected 2 cells, found 3"),
        ('text,labels\nx,y\n"a\nb",y\n"z,y\nx,y\n', ":5: broken CSV: unexpected end of data (the row starts here)"),
        ('text,labels\n"x"y,z\n', ":2: broken CSV: ',' expected after '\"' (the row starts here)"),
        ("text,labels\na,b\nné,c\n".encode("cp1252"), f":3: not utf-8: byte 0xe9; {WRONG_BYTE}"),
        ("text,labels\nä,b\n".encode() + b"n\xe9,c\n", f":3: not utf-8: byte 0xe9; {WRONG_BYTE}"),
        ("text,labels\na,b\n".encode("utf-16"), f":1: not utf-8: byte 0xff; {WRONG_BYTE.replace('cp1252', 'utf-16')}"),
        (b"text,labels\n" + b"a,b\n" * 50_000 + b"\xff,y\n", f":50002: not utf-8: byte 0xff; {WRONG_BYTE}"),
        (b"text,labels\nx,y\n\xc3", f":3: not utf-8: the file ends within a character; {WRONG_BYTE}"),
        ("uid,text,labels\n1,x,a\n2,x,a\n1,x,a\n", ":4: uid '1' is already in line 2"),
        ("text,labels\nx,\"[['a'], {}]\"\n", ":2: expected text, found list \"['a']\""),
        (f"text,labels\nx,[{'123' * 7}]\n", ":2: the number 1.23123e+20 is too large for a name; write it as text"),
        (gzip.compress(CSV["train.csv"].encode())[:-4], f": {CUT_OFF}"),
    ]),
    *cases(CSV, "test.csv", [
        ("text,tags\nx,y\n", ":1: no column 'labels' (columns: text, tags)"),
        ("texts,labels\nx,y\n", ":1: no column 'text'; did you mean 'texts'? (columns: texts, labels)"),
    ]),
    *cases(CSV, "labels.csv", [
        ("label,text\na,A\na,B\n", ":3: label 'a' is repeated"),
        ("label,text\n ,A\n", ":2: the name of the label is empty"),
        ("label,text\na\n", ":2: expected 2 cells, found 1"),
        ("", ":1: empty: expected a line with the column names"),
    ]),
    *cases(CSV, "labels.jsonl", [('{"label": ["a"]}\n', ":1: expected text, found list \"['a']\"")]),
    *cases({}, "train.jsonl", [
        ("", ":1: empty: expected one JSON object per line"),
        ("1\n", ":1: expected a JSON object, found '1'"),
        ("{}\n", ":1: no label column found; set it with --labels (columns: )"),
        (JSONL["train.jsonl"] + "{", ":3: broken JSON: ..."),
        (JSONL["train.jsonl"] + '{"text": "x"}', ":3: no key 'labels' (keys: text)"),
        (JSONL["train.jsonl"] + '{"text": [], "labels": []}', ":3: expected text, found list '[]'"),
        (JSONL["train.jsonl"] + '{"text": "", "labels": [{}]}', ":3: expected text, found dict '{}'"),
        ('{"text": "", "labels": "a", "uid": {}}', ":1: expected text, found dict '{}'"),
    ]),
    *cases({}, "train.parquet.gz", [(gzip.compress(PARQUET["train.parquet"]), NO_PARQUET)]),
    *cases({}, "train.parquet", [
        ("", NO_PARQUET),
        ("hello", NO_PARQUET),
        (PARQUET["train.parquet"][:-50], NO_PARQUET),
        (parquet(text=[], labels=[]), ": holds no rows"),
        (parquet(text=["x"], other=["y"]), ": no label column found; set it with --labels (columns: text, other)"),
        (parquet(text=["x", b"y"], labels=["a", "b"]), ": row 0: expected text, found bytes \"b'x'\""),
        (parquet(text=["x", "y"], labels=["a", "b"], uid=[1, 1]), ": row 1: uid '1' is already in row 0"),
    ]),
]  # fmt: skip

BAD = [
    *REPOSITORY_CASES,
    *SPLIT_CASES,
    *LF_CASES,
    *NPZ_CASES,
    *TABLE_CASES,
    ({}, "no data set here: expected ...; found nothing"),
    ({"a.txt": "", "b": ""}, "no data set here: expected ...; found a.txt, b"),
    (CSV | REPOSITORY, "holds more than one format: repository, csv; choose one with format= (--from)"),
]


def fits(message, expected):
    """Compare with an expectation in which three dots stand for anything."""
    pieces = expected.split("...")
    place = 0
    for piece in pieces:
        found = message.find(piece, place)
        if found < 0 or (place == 0 and found):
            return False
        place = found + len(piece)
    return pieces[-1] == "" or message.endswith(pieces[-1])


@pytest.mark.parametrize(("contents", "expected"), BAD, ids=[f"{i}-{case[1][:40]}" for i, case in enumerate(BAD)])
def test_bad_input(tmp_path, contents, expected):
    message = complaint(made(tmp_path / "sample", contents))
    assert fits(message, expected), f"{message!r} instead of {expected!r}"


def test_expectations_can_fail():
    assert fits("a.txt:1: b at 7", "a.txt:1: b at ...")
    assert not fits("a.txt:1: b at 7", "a.txt:2: b at ...")
    assert not fits("x a.txt:1: b", "a.txt:1: b")
    assert not fits("a.txt:1: b and more", "a.txt:1: b")


# What is named, and what it is


@pytest.mark.parametrize("name", ["nothing", "nothing.txt", "nothing.csv", "a/b/c.txt", "x" * 300, "nul\0.txt"])
def test_missing_file(tmp_path, name):
    with pytest.raises(DataError, match=r"no such file or folder|cannot be read: File name too long"):
        zipfel.read(tmp_path / name)


def test_a_file_of_another_kind(tmp_path):
    path = tmp_path / "data.docx"
    path.write_bytes(b"PK")
    kinds = ".csv, .tsv, .jsonl, .parquet, .json, .xlsx, .mrc"
    assert complaint(path) == f"not a data set; expected a folder, a .txt file or a table ({kinds})"


def test_pipes_are_refused_instead_of_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.csv")
    assert complaint(tmp_path / "a.csv").startswith("not a data set")
    os.mkfifo(tmp_path / "train.txt")
    assert complaint(tmp_path).startswith("no data set here")


@pytest.mark.parametrize("name", ["train.txt", "x_train.txt", "trn_X_Y.txt", "trn.json", "Y.trn.npz", "train.csv"])
@pytest.mark.parametrize("kind", ["folder", "loop", "dangling"])
def test_what_should_be_a_file_and_is_none(tmp_path, name, kind):
    if kind == "folder":
        (tmp_path / name).mkdir()
    else:
        (tmp_path / name).symlink_to(name if kind == "loop" else "nowhere")
    assert complaint(tmp_path).startswith("no data set here")
    assert complaint(tmp_path / name).startswith(
        "no data set here: expected" if kind == "folder" else "no such file or folder"
    )


def test_a_folder_instead_of_a_second_file(tmp_path):
    made(tmp_path / "sample", SPLIT | {"trn_X_Xf.txt": None})
    (tmp_path / "sample" / "trn_X_Xf.txt").mkdir()
    assert complaint(tmp_path / "sample") == "trn_X_Xf.txt (or .npy) is missing"


@pytest.mark.parametrize("content", [REPOSITORY, SPLIT, LF, NPZ, CSV, JSONL, PARQUET], ids=lambda c: next(iter(c)))
def test_files_that_may_not_be_read(tmp_path, monkeypatch, content):
    """The tests may run as a user who may read everything, so it is `open` that refuses."""
    folder = made(tmp_path / "sample", content)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.open", refuse)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", refuse)
    assert "Permission denied" in complaint(folder)


def test_a_folder_that_may_not_be_looked_into(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.is_file", refuse)
    assert complaint(made(tmp_path / "sample", REPOSITORY)) == "cannot be read: Permission denied"


def test_a_disk_that_fails_half_way(tmp_path, monkeypatch):
    folder = made(tmp_path / "sample", REPOSITORY)

    def fail(stream, path, line):
        yield b"1 0:1\n"
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("zipfel.data.formats.sparse_text.line_blocks", fail)
    assert complaint(folder) == "train.txt: cannot be read: Input/output error"


# What is asked for


@pytest.mark.parametrize(
    ("content", "settings", "expected"),
    [
        (CSV, {"labels": "label"}, "train.csv:1: no column 'label'; did you mean 'labels'? (columns: text, labels)"),
        (CSV, {"text": ("zzz",)}, "train.csv:1: no column 'zzz' (columns: text, labels)"),
        (CSV, {"text": ("text", "a\nb")}, "train.csv:1: no column 'a\\nb' (columns: text, labels)"),
        (PARQUET, {"text": ("zzz",)}, "train.parquet: no column 'zzz' (columns: text, labels)"),
        (CSV, {"encoding": "klingon"}, "unknown encoding 'klingon'; try utf-8, cp1252, latin-1 or utf-16"),
        (CSV, {"encoding": "base64"}, "unknown encoding 'base64'; try utf-8, cp1252, latin-1 or utf-16"),
        (CSV, {"encoding": "undefined"}, "unknown encoding 'undefined'; try utf-8, cp1252, latin-1 or utf-16"),
        (CSV, {"encoding": "nul\0"}, "unknown encoding 'nul\\x00'; try utf-8, cp1252, latin-1 or utf-16"),
        (CSV, {"encoding": "utf-16"},
         "train.csv:1: not utf-16: UTF-16 stream does not start with BOM; set the right one with --encoding"),
        ({"train.csv": "text,labels\nx,\x81\n".encode("latin-1")}, {"encoding": "cp1252"},
         "train.csv:2: not cp1252: byte 0x81; set the right one with --encoding"),
        ({"train.csv": "text,labels\nx,ä\ny,b\n".encode("utf-16") + b"\x00\xdc\x00\xdc"}, {"encoding": "utf-16"},
         "train.csv:4: not utf-16: byte 0x00; set the right one with --encoding"),
        ({"train.csv": "text,labels\nx,ä\n".encode("utf-16") + b"x"}, {"encoding": "utf-16"},
         "train.csv:3: not utf-16: the file ends within a character; set the right one with --encoding"),
        (LF, {"encoding": "cp1252"}, "JSON is always utf-8, not cp1252; leave the encoding unset"),
        (REPOSITORY | {"labels.txt": "a\nb\nc\n\x81\n".encode("latin-1")}, {"encoding": "cp1252"},
         "labels.txt:4: not cp1252: byte 0x81; set the right one with --encoding"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(tmp_path, content, settings, expected):
    assert complaint(made(tmp_path / "sample", content), TableSettings(**settings)) == expected


@pytest.mark.parametrize("block", [1, 3, 64])
def test_the_undecodable_line_is_right_whatever_the_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(files, "BLOCK", block)
    good = "text,labels\n" + "ää,öö\n" * 40
    ends = [("utf-8", b"\xe4x"), ("utf-8", b"\xff"), ("utf-16", b"\x00\xdc\x00\xdc"), ("cp1252", b"\x81")]
    for encoding, bad in ends:
        (tmp_path / "t.csv").write_bytes(good.encode(encoding) + bad)
        message = complaint(tmp_path / "t.csv", TableSettings(encoding=encoding))
        assert message.startswith(f":42: not {encoding}: byte 0x")


def test_label_table_that_is_missing(tmp_path):
    folder = made(tmp_path / "sample", CSV)
    for name in ("no.csv", "no.parquet"):
        with pytest.raises(DataError, match=rf"^{name}: .*No such file"):
            zipfel.read(folder, TableSettings(label_texts=name))
    with pytest.raises(DataError, match=r"^no\.txt: not a table; expected the ending \.csv"):
        zipfel.read(folder, TableSettings(label_texts="no.txt"))


@pytest.mark.parametrize("name", FORMATS)
def test_a_named_format_that_is_not_there(tmp_path, name):
    assert complaint(made(tmp_path / "sample", {"other": ""}), format=name) == f"{FORMATS[name].shown_by} is missing"


def test_a_format_that_does_not_exist(tmp_path):
    assert complaint(made(tmp_path / "sample", CSV), format="cvs") == "unknown format 'cvs'; did you mean 'csv'?"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        ({"text": [["x"]], "labels": ["a"]}, "data frame: row 0: expected text, found list \"['x']\""),
        ({"text": [np.zeros(2)], "labels": ["a"]}, "data frame: row 0: expected text, found ndarray '[0. 0.]'"),
        ({"text": ["x"], "labels": [np.zeros((2, 2))]}, "data frame: row 0: expected text, found ndarray '[0. 0.]'"),
        ({"text": ["x"], "labels": [{"a": 1}]}, "data frame: row 0: expected text, found dict \"{'a': 1}\""),
        ({"text": ["x"], "labels": [pandas.Timestamp(0)]}, "data frame: row 0: expected text, found Timestamp ..."),
        ({"text": ["x"], "labels": [1e20]}, "data frame: row 0: the number 1e+20 is too large for a name; ..."),
        ({"text": [], "labels": []}, "data frame: holds no rows"),
        ({"text": ["x"], "labels": [None]}, "data frame: column 'labels' holds no labels"),
        ({"uid": [1, 1], "text": ["x", "x"], "labels": "x"}, "data frame: row 1: uid '1' is already in row 0"),
        ({"a": ["x"]}, "data frame: no label column found; set it with TableSettings(labels=...) (columns: a)"),
    ],
)  # fmt: skip
def test_frames(frame, expected):
    with pytest.raises(DataError) as caught:
        zipfel.read(pandas.DataFrame(frame))
    assert fits(str(caught.value), expected), str(caught.value)


def test_frame_with_two_columns_of_one_name():
    frame = pandas.DataFrame([["x", "y", "z"]], columns=["text", "text", "labels"])
    with pytest.raises(DataError, match="data frame: 2 columns are called 'text'; rename them"):
        zipfel.read(frame)


def test_many_columns_take_no_time(tmp_path):
    header = ",".join(f"c{i}" for i in range(100_000))
    message = complaint(made(tmp_path / "sample", {"train.csv": header + "\n"}))
    assert message.startswith("train.csv:1: no label column found")


# Writing


def left_over(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("name", WRITABLE)
def test_a_target_that_exists_is_left_alone(tmp_path, name):
    dataset = texts_dataset() if FORMATS[name].holds == "texts" else features_dataset()
    folder = made(tmp_path / "out", {"mine": "x"})
    with pytest.raises(DataError, match="out: exists already; remove it or choose another path"):
        zipfel.write(dataset, folder, name)
    with pytest.raises(DataError, match="mine: exists already"):
        zipfel.write(dataset, folder / "mine", name)
    assert left_over(tmp_path) == ["out", "out/mine"]
    assert (folder / "mine").read_text() == "x"


def test_an_empty_folder_and_new_parents_are_taken(tmp_path):
    (tmp_path / "out").mkdir()
    zipfel.write(features_dataset(), tmp_path / "out", "npz")
    zipfel.write(features_dataset(), tmp_path / "a" / "b" / "out", "npz")
    assert left_over(tmp_path / "a" / "b" / "out") == left_over(tmp_path / "out") != []


def test_a_parent_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"file/out: cannot be written: Not a directory"):
        zipfel.write(features_dataset(), tmp_path / "file" / "out", "npz")
    with (
        pytest.raises(DataError, match=r"file/out\.json: cannot be written: Not a directory"),
        files.new_file(tmp_path / "file" / "out.json"),
    ):
        pass
    assert left_over(tmp_path) == ["file"]


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
    for path in (tmp_path, type(tmp_path)(".")):
        with pytest.raises(DataError, match="cannot be written: it is a folder"), files.new_file(path):
            pass


def test_a_parent_that_may_not_be_written(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(DataError, match=r"out: cannot be written: Permission denied$"):
        zipfel.write(features_dataset(), tmp_path / "out", "npz")


@pytest.mark.parametrize("target", ["out", "new/parents/out"])
@pytest.mark.parametrize("name", WRITABLE)
def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch, name, target):
    dataset = texts_dataset() if FORMATS[name].holds == "texts" else features_dataset()
    original, written = type(tmp_path).replace, []

    def full(path, goal):
        if len(written) == 2:
            raise OSError(28, "No space left on device")
        written.append(goal)
        return original(path, goal)

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(DataError, match=r"out(/[^/]+)?: cannot be written: No space left on device$") as caught:
        zipfel.write(dataset, tmp_path / target, name)
    assert ".part" not in str(caught.value)
    assert len(written) == 2
    assert left_over(tmp_path) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_an_interruption_leaves_nothing_behind(tmp_path, monkeypatch, error):
    def interrupt(*_):
        raise error

    monkeypatch.setattr("zipfel.data.formats.folder.write_filter", interrupt)
    with pytest.raises(error):
        zipfel.write(features_dataset(), tmp_path / "new" / "out", "repository", gzip=True)
    assert left_over(tmp_path) == []


def named(labels=("a", "b"), uids=None, texts=None, label_texts=None):
    texts = {"title": ["x", "y"]} if texts is None else texts
    train = Part(csr_array(np.eye(2)), X=csr_array(np.eye(2)), texts=texts, uids=uids)
    return Dataset(train, label_names=list(labels), label_texts=label_texts)


TABLES = ("csv", "tsv", "jsonl", "parquet")
FEATURES = ("repository", "split", "npz")
SURROGATE = {"title": ["x", "\ud800"]}  # half of a pair, which no encoding writes


@pytest.mark.parametrize(
    ("formats", "dataset", "expected"),
    [
        (FEATURES, named(["a", "b\nc"]), "name 1 has a line break, which this format cannot hold: 'b\\nc'"),
        (FEATURES, named(["a\r", "b"]), "name 0 has a line break, which this format cannot hold: 'a\\r'"),
        (("lf", *TABLES), named(["a", "a"]), "label name 'a' occurs 2 times; this format needs unique ones"),
        (("lf", *TABLES), named(uids=["1", "1"]), "train: uid '1' occurs 2 times; this format needs unique ones"),
        (TABLES, named(["a", ""]), "label name '' is empty or has outer blanks, which a table does not keep"),
        (TABLES, named(["a", "b "]), "label name 'b ' is empty or has outer blanks, which a table does not keep"),
        (TABLES, named(texts={"labels": ["x", "y"]}), "a table has columns 'uid' and 'labels' of its own"),
        (("lf", "jsonl"), named(texts=SURROGATE), "cannot be written as JSON: str is not valid UTF-8"),
        (("csv", "tsv", "parquet"), named(texts=SURROGATE), "cannot be written: 'utf-8' codec can't encode"),
        (FEATURES, named(["a", "\ud800"]), "cannot be written: 'utf-8' codec can't encode"),
        (("lf", *TABLES), features_dataset(), "sample has features but no texts, which this format needs"),
        (FEATURES, texts_dataset(), "sample has texts but no features"),
    ],
)  # fmt: skip
def test_what_a_format_cannot_hold(tmp_path, formats, dataset, expected):
    for name in formats:
        with pytest.raises(DataError) as caught:
            zipfel.write(dataset, tmp_path / "out", name)
        message = str(caught.value)
        assert message.isprintable()
        assert ".part" not in message
        assert expected in message
        assert left_over(tmp_path) == []


def test_new_file_keeps_the_old_one_where_writing_fails(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("old")

    def fail():
        with files.new_file(path) as out:
            out.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert path.read_text() == "old"
    assert left_over(tmp_path) == ["a.json"]


# The command line


@pytest.mark.parametrize(
    ("contents", "line"),
    [
        ({"train.txt": "1 3 4\n1 0:x\n"}, "train.txt:2: expected a number, found 'x'"),
        ({"train.csv": "text,labels\nx,y,z\n"}, "train.csv:2: expected 2 cells, found 3"),
        ({"train.txt": b"\x1f\x8b"}, "train.txt: broken gzip file"),
    ],
)
@pytest.mark.parametrize("command", [["info"], ["convert", "OUT", "--to", "lf"], ["split", "OUT"]], ids=lambda c: c[0])
def test_the_command_line_prints_one_line_and_exits_with_2(tmp_path, zipfel_command, contents, line, command):
    folder = made(tmp_path / "sample", contents)
    word, *more = [str(tmp_path / "out") if word == "OUT" else word for word in command]
    code, out, err = zipfel_command("data", word, folder, *more)
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith(f"error: {folder}/{line}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sample"]
