import gzip
import io
import sys
import tracemalloc

import numpy as np
import orjson
import pandas
import polars
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from samples import assert_same, assert_same_matrix, features_dataset, texts_dataset
from scipy.sparse import coo_array, csc_array, csr_array, save_npz

import zipfel
from zipfel.data.dataset import Dataset, Part, Propensity
from zipfel.data.formats import FORMATS, WRITABLE, TableSettings, files, format_of, sparse_text
from zipfel.data.formats.sparse_text import Header, parse_line, read_sparse
from zipfel.errors import ConfigError, DataError, MissingDependencyError

FEATURE_FORMATS = [name for name, kind in FORMATS.items() if kind.holds == "features"]
TEXT_FORMATS = [name for name in WRITABLE if FORMATS[name].holds == "texts"]


def folder_of(folder, contents):
    """Write files; None stands for one that is not there."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        if content is not None:
            (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def dense(matrix):
    return matrix.toarray().tolist()


def read_line(tmp_path, line, end="\n"):
    """Read a file of one point with 10 features and 10 labels."""
    path = tmp_path / "one.txt"
    path.write_bytes(f"1 10 10{end}{line}{end}".encode())
    dataset = zipfel.read(path)
    X, Y = dataset.train.X, dataset.train.Y
    return Y.indices.tolist(), dict(zip(X.indices.tolist(), X.data.tolist(), strict=True)), dataset.notes


# The repository's text format

TRAIN = "3 4 3\n2,0 0:1.5 3:-2\n1:0.25\n1\n"
TEST = "2 4 3\n\n0 2:1\n"


def test_repository_folder(tmp_path):
    folder = folder_of(
        tmp_path / "tiny",
        {
            "train.txt": TRAIN,
            "test.txt": TEST,
            "validation.txt": "1 4 3\n1 1:7\n",
            "labels.txt": "a\nb\nc d\n",
            "features.txt": "w\nx\ny\nz",
            "lbl_X_Xf.txt": "3 4\n0:1\n\n3:0.5\n",
            "filter_labels_train.txt": "0 2\n1 1\n",
            "filter_labels_test.txt": "0,2\n",
            "filter_labels_val.txt": "\n0 0\n\n",
        },
    )
    dataset = zipfel.read(folder)
    assert dataset.name == "tiny"
    assert dense(dataset.train.X) == [[1.5, 0, 0, -2], [0, 0.25, 0, 0], [0, 0, 0, 0]]
    assert dense(dataset.train.Y) == [[1, 0, 0], [0, 0, 0], [0, 1, 0]]
    assert dense(dataset.train.filtered) == [[0, 0, 1], [0, 1, 0], [0, 0, 0]]
    assert dense(dataset.test.X) == [[0, 0, 0, 0], [0, 0, 1, 0]]
    assert dense(dataset.test.Y) == [[0, 0, 0], [1, 0, 0]]
    assert dense(dataset.test.filtered) == [[0, 0, 1], [0, 0, 0]]
    assert dense(dataset.validation.Y) == [[0, 1, 0]]
    assert dense(dataset.validation.filtered) == [[1, 0, 0]]
    assert dense(dataset.Z) == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0.5]]
    assert dataset.label_names == ["a", "b", "c d"]
    assert dataset.feature_names == ["w", "x", "y", "z"]
    assert dataset.notes == ("train: 1 labels of points dropped by filter_labels_train.txt",)
    assert dataset.train.X.dtype == dataset.train.Y.dtype == np.float32


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("line", "labels", "features"),
    [
        ("", [], {}),
        (" ", [], {}),
        (" \t ", [], {}),
        (" 0:1", [], {0: 1}),
        ("\t0:1", [], {0: 1}),
        ("0:1", [], {0: 1}),
        ("3", [3], {}),
        ("3 ", [3], {}),
        ("3,1", [1, 3], {}),
        ("3,1 0:0.5 2:-1.25", [1, 3], {0: 0.5, 2: -1.25}),
        ("3 2:1 0:2", [3], {0: 2, 2: 1}),
        ("1\t0:1\t2:3", [1], {0: 1, 2: 3}),
        ("1  0:1   2:3  ", [1], {0: 1, 2: 3}),
        ("1 \t 0:1", [1], {0: 1}),
        ("007 0001:1", [7], {1: 1}),
        ("+1 +2:+3", [1], {2: 3}),
        ("1 2:1.", [1], {2: 1}),
        ("1 2:.5", [1], {2: 0.5}),
        ("1 2:-.5", [1], {2: -0.5}),
        ("1 2:1e2", [1], {2: 100}),
        ("1 2:1E-2", [1], {2: np.float32(0.01)}),
        ("1 2:-3e+1", [1], {2: -30}),
        ("1.0 2e0:1", [1], {2: 1}),
        ("9 9:1", [9], {9: 1}),
        ("1 2:0", [1], {}),
        ("1 2:-0.0 3:0.0", [1], {}),
        ("1 2:1e-46", [1], {}),  # less than the smallest float32
        ("1 2:1e-45", [1], {2: np.float32(1e-45)}),
        ("1 2:3.4028235e38", [1], {2: np.finfo(np.float32).max}),
        ("1 2:-3.4028235e+38", [1], {2: np.finfo(np.float32).min}),
        ("1 2:0.1", [1], {2: np.float32(0.1)}),
    ],
)
def test_odd_but_legal_lines(tmp_path, line, labels, features, end):
    assert read_line(tmp_path, line, end) == (labels, features, ())


def test_what_repeats_in_a_row_is_merged_and_counted(tmp_path):
    assert read_line(tmp_path, "1,1,2,1 3:1 3:0.5 4:1 4:-1") == (
        [1, 2],
        {3: 1.5},
        ("one.txt: 2 labels repeated in a row, merged", "one.txt: 2 features repeated in a row, summed"),
    )


def test_the_same_label_in_two_rows_is_no_repetition(tmp_path):
    path = tmp_path / "two.txt"
    path.write_text("2 2 2\n1 0:1\n1 0:1\n")
    assert zipfel.read(path).notes == ()


@pytest.mark.parametrize("ending", ["", "\n\n\n", " \n\t\n", "\r\n \r\n"])
def test_blank_lines_at_the_end_are_no_points(tmp_path, ending):
    path = tmp_path / "a.txt"
    path.write_text(TRAIN.rstrip("\n") + "\n" + ending)
    assert len(zipfel.read(path).train) == 3


def test_no_newline_at_the_end(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("2 2 2\n0 0:1\n1 1:12.5")
    assert dense(zipfel.read(path).train.X) == [[1, 0], [0, 12.5]]


def test_one_point_one_feature_one_label(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1 1 1\n0 0:1\n")
    dataset = zipfel.read(path)
    assert dataset.sizes == (1, 1, 1)
    assert dense(dataset.train.Y) == [[1]]


def test_byte_order_mark_and_blanks_in_the_header(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf 1  2\t3 \r\n2 0:1\r\n")
    assert zipfel.read(path).sizes == (1, 2, 3)


def test_names_with_a_prefix_and_gzip_by_its_first_bytes(tmp_path):
    folder = folder_of(
        tmp_path / "Eurlex",
        {
            "eurlex_train.txt": gzip.compress(TRAIN.encode()),
            "eurlex_test.txt.gz": gzip.compress(TEST.encode()),
            "eurlex_val.txt.gz": b"1 4 3\n1 1:7\n",
            "filter_labels_test.txt": "1 0\n",
        },
    )
    dataset = zipfel.read(folder)
    assert [len(part) for part in dataset.parts.values()] == [3, 2, 1]
    assert dense(dataset.test.Y) == [[0, 0, 0], [0, 0, 0]]


def test_gzip_of_several_members(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(TRAIN[:9].encode()) + gzip.compress(TRAIN[9:].encode()))
    assert len(zipfel.read(path).train) == 3


def test_a_single_file_is_train(tmp_path):
    path = tmp_path / "bibtex_train.txt"
    path.write_text(TRAIN)
    dataset = zipfel.read(path)
    assert dataset.name == "bibtex"
    assert list(dataset.parts) == ["train"]


def test_names_end_at_newlines_and_nowhere_else(tmp_path):
    names = "a\rb\r\n\u2028\x0bc\n d \n\n"
    folder = folder_of(tmp_path / "x", {"train.txt": TRAIN, "labels.txt": names})
    assert zipfel.read(folder).label_names == ["a\rb", "\u2028\x0bc", " d "]


@pytest.mark.parametrize(
    ("name", "constants"),
    [
        ("LF-AmazonTitles-131K", (0.6, 2.6)),
        ("Amazon-670K", (0.6, 2.6)),
        ("AmazonCat-13K", (0.55, 1.5)),
        ("LF-Wikipedia-500K", (0.5, 0.4)),
        ("WikiLSHTC-325K", (0.5, 0.4)),
        ("Wiki10-31K", (0.55, 1.5)),
        ("LF-WikiSeeAlsoTitles-320K", (0.55, 1.5)),
        ("Delicious-200K", (0.55, 1.5)),
    ],
)
def test_propensities_by_family(tmp_path, name, constants):
    assert zipfel.read(folder_of(tmp_path / name, {"train.txt": TRAIN})).propensity == constants


@pytest.mark.parametrize("packed", [False, True])
def test_dataset_json_wins_over_the_name(tmp_path, packed):
    text = b'{"name": "mine", "propensity": {"A": 1, "B": 2}}'
    name = "dataset.json.gz" if packed else "dataset.json"
    folder = folder_of(tmp_path / "amazon", {"train.txt": TRAIN, name: gzip.compress(text) if packed else text})
    assert zipfel.read(folder).propensity == Propensity(1, 2)
    assert zipfel.read(folder).name == "mine"


REGULAR = "6 300 20\n3,1 0:1 17:-0.25 299:1e-3\n\n5\n 7:1\n7:2 8:3\n19,0 1:1\n"


@pytest.mark.parametrize("change", [lambda t: t, lambda t: t.replace("\n", " \r\n"), lambda t: t.replace(" ", "  \t")])
def test_regular_files_take_the_fast_path(tmp_path, monkeypatch, change):
    path = tmp_path / "a.txt"
    path.write_text(REGULAR)
    expected = zipfel.read(path)

    def fail(*_):
        raise AssertionError("a regular block was read line by line")

    monkeypatch.setattr(sparse_text, "_parse_slowly", fail)
    path.write_bytes(change(REGULAR).encode())
    assert_same(zipfel.read(path), expected)


def test_one_odd_block_does_not_slow_down_the_others(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("400 9 9\n" + "1 2:3\n" * 200 + "+1 2:3\n" + "1 2:3\n" * 199)
    slow = []
    original = sparse_text._parse_slowly
    monkeypatch.setattr(sparse_text, "_parse_slowly", lambda text, *more: slow.append(text) or original(text, *more))
    monkeypatch.setattr(files, "BLOCK", 128)
    assert zipfel.read(path).train.Y.nnz == 400
    assert len(slow) == 1
    assert b"+" in slow[0]


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1000])
@pytest.mark.parametrize("packed", [False, True])
def test_block_boundaries_make_no_difference(tmp_path, monkeypatch, block, packed):
    expected = features_dataset()
    zipfel.write(expected, tmp_path / "a", "repository", gzip=packed)
    zipfel.write(expected, tmp_path / "b", "split", gzip=packed)
    monkeypatch.setattr(files, "BLOCK", block)
    assert_same(zipfel.read(tmp_path / "a"), expected)
    assert_same(zipfel.read(tmp_path / "b"), expected)


def test_errors_name_the_right_line_whatever_the_blocks(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("50 9 9\n" + "1 2:3\n" * 30 + "1 2:x\n" + "1 2:3\n" * 19)
    for block in (1, 7, 50, 10_000):
        monkeypatch.setattr(files, "BLOCK", block)
        with pytest.raises(DataError, match=r"a\.txt:32: expected a number, found 'x'"):
            zipfel.read(path)


NUMBERS = st.one_of(st.integers(-3, 11).map(str), st.sampled_from(["1e1", "-2.50", "0.1", "1.", "+3", "007", "0"]))
IDS = st.one_of(st.integers(0, 9).map(str), st.sampled_from(["00", "+1", "9.0"]))
PAIRS = st.lists(st.tuples(IDS, NUMBERS).map(":".join), max_size=4)
BLANKS = st.sampled_from([" ", " ", "  ", "\t"])
LINES = st.builds(
    lambda labels, pairs, blank, end: ",".join(labels) + blank + blank.join(pairs) + end,
    st.lists(IDS, max_size=3),
    PAIRS,
    BLANKS,
    st.sampled_from(["", " "]),
)


def read_text(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("x", numbered=True) / "a.txt"
    path.write_bytes(text)
    return read_sparse(path, ("points", "features", "labels"))


@settings(max_examples=150, derandomize=True, deadline=None, database=None)
@given(rows=st.lists(LINES, min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"]))
def test_fast_parser_agrees_with_parse_line(tmp_path_factory, rows, end):
    content = read_text(tmp_path_factory, f"{len(rows)} 10 10{end}{end.join(rows)}{end}".encode())
    for i, row in enumerate(rows):
        labels, pairs = parse_line(row.encode(), Header(len(rows), 10, 10))
        values = np.zeros(10, dtype=np.float32)
        for feature, value in pairs:
            values[feature] += np.float32(value)
        assert content.features[[i]].toarray()[0].tolist() == values.tolist()
        assert content.labels[[i]].indices.tolist() == sorted(set(labels))


@settings(max_examples=400, derandomize=True, deadline=None, database=None)
@given(text=st.text(alphabet="0129,:: \n\n.-e+\t\r", max_size=24))
@example("0:1,2:3")
@example("1,2:3")
@example("1:2:3")
@example(" 1")
@example("1 2")
@example(",1")
@example("1,")
@example("1:")
@example(":1")
@example("1 :1")
@example("1 , 2")
@example("-1 0:1")
@example("1e0 1:1")
@example("\r1 0:1")
def test_fast_and_slow_parser_take_and_refuse_the_same(tmp_path_factory, text):
    """Any text out of the format's own characters: with and without the fast path the outcome is the same."""
    rows = max(1, len(text.split("\n")) - text.endswith("\n"))
    content = f"{rows} 10 10\n{text}".encode() + (b"" if text.endswith("\n") else b"\n")
    outcomes = []
    for fast in (sparse_text._parse_fast, lambda text: None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sparse_text, "_parse_fast", fast)
            try:
                outcomes.append(read_text(tmp_path_factory, content))
            except DataError as error:
                outcomes.append(error.problem)
    one, other = outcomes
    if isinstance(one, str) or isinstance(other, str):
        assert one == other
    else:
        assert_same_matrix(one.features, other.features)
        assert_same_matrix(one.labels, other.labels)
        assert (one.merged_labels, one.merged_features) == (other.merged_labels, other.merged_features)


# The repository's split form


def split_folder(tmp_path, changes=None):
    contents = {
        "trn_X_Xf.txt": "2 3\n0:1 2:0.5\n\n",
        "trn_X_Y.txt": "2 2\n1:1\n0:1 1:1\n",
        "tst_X_Xf.txt": "1 3\n1:-4\n",
        "tst_X_Y.txt": "1 2\n\n",
        "lbl_X_Xf.txt": "2 3\n2:1\n\n",
        "Y.txt": "a\nb\n",
        "Xf.txt": "x\ny\nz\n",
        "filter_labels_train.txt": "1 0\n",
        "filter_labels_test.txt": "0 1\n",
    }
    contents |= changes or {}
    return folder_of(tmp_path / "split", contents)


def test_split_folder(tmp_path):
    dataset = zipfel.read(split_folder(tmp_path))
    assert dense(dataset.train.X) == [[1, 0, 0.5], [0, 0, 0]]
    assert dense(dataset.train.Y) == [[0, 1], [0, 1]]
    assert dense(dataset.train.filtered) == [[0, 0], [1, 0]]
    assert dense(dataset.test.X) == [[0, -4, 0]]
    assert dense(dataset.test.Y) == [[0, 0]]
    assert dense(dataset.Z) == [[0, 0, 1], [0, 0, 0]]
    assert dataset.label_names == ["a", "b"]
    assert dataset.feature_names == ["x", "y", "z"]
    assert dataset.notes == ("train: 1 labels of points dropped by filter_labels_train.txt",)


def test_split_labels_may_have_any_positive_relevance_and_repeat(tmp_path):
    dataset = zipfel.read(
        split_folder(tmp_path, {"trn_X_Y.txt": "2 2\n1:0.3 1:2\n0:0 1:5\n", "trn_X_Xf.txt": "2 3\n\n\n"})
    )
    assert dense(dataset.train.Y) == [[0, 1], [0, 1]]
    assert dataset.notes == ("trn_X_Y.txt: 1 labels repeated in a row, merged",)


@pytest.mark.parametrize(
    "text",
    ["1 0 -0.5\n0 2e0 0\n", "1,0,-0.5\r\n0,2e0,0\r\n", "+1 0. -.5\n00 2 0\n\n\n", " 1\t0  -0.5 \n0 2 0"],
)
def test_split_dense_text(tmp_path, monkeypatch, text):
    for block in (5, 1 << 17):
        monkeypatch.setattr(files, "BLOCK", block)
        dataset = zipfel.read(split_folder(tmp_path, {"trn_X_Xf.txt": "2 3\n" + text}))
        assert dense(dataset.train.X) == [[1, 0, -0.5], [0, 2, 0]]


def npy(array):
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int8", ">f4"])
@pytest.mark.parametrize("packed", [False, True])
def test_split_npy(tmp_path, dtype, packed):
    content = npy(np.array([[1, 0, -2], [0, 3, 0]], dtype=dtype))
    name = "trn_X_Xf.npy.gz" if packed else "trn_X_Xf.npy"
    folder = split_folder(tmp_path, {"trn_X_Xf.txt": None, name: gzip.compress(content) if packed else content})
    assert dense(zipfel.read(folder).train.X) == [[1, 0, -2], [0, 3, 0]]


def test_split_npy_in_fortran_order_and_in_many_blocks(tmp_path):
    array = np.random.default_rng(0).standard_normal((900, 400)).astype(np.float32)
    folder = split_folder(
        tmp_path,
        {
            "trn_X_Xf.txt": None,
            "trn_X_Xf.npy": npy(np.asfortranarray(array)),
            "trn_X_Y.txt": "900 2\n" + "\n" * 900,
            "tst_X_Xf.txt": None,
            "tst_X_Y.txt": None,
            "lbl_X_Xf.txt": None,
            "Xf.txt": None,
        },
    )
    np.testing.assert_array_equal(zipfel.read(folder).train.X.toarray(), array)


# LF: raw text


def json_lines(*objects):
    return b"".join(orjson.dumps(item) + b"\n" for item in objects)


def lf_folder(tmp_path, changes=None):
    contents = {
        "lbl.json": json_lines({"uid": "A", "title": "first"}, {"uid": "B", "title": "second", "content": "longer"}),
        "trn.json": json_lines(
            {"uid": 1, "title": "one", "content": "text", "target_ind": [1, 0], "target_rel": [1.0, 1.0]},
            {"uid": "x", "title": "zwei ü", "content": None, "target_ind": []},
        ),
        "tst.json": json_lines({"uid": 9, "title": "t", "target_ind": [0]}),
        "filter_labels_train.txt": "0 1\n",
    }
    contents |= changes or {}
    return folder_of(tmp_path / "lf", contents)


def test_names_of_lf_labels_have_no_outer_blanks(tmp_path):
    labels = json_lines({"uid": " A ", "title": "first"}, {"uid": 7, "title": "second"})
    dataset = zipfel.read(lf_folder(tmp_path, {"lbl.json": labels}))
    assert dataset.label_names == ["A", "7"]
    assert dataset.train.uids == ["1", "x"]


def test_lf_folder(tmp_path):
    dataset = zipfel.read(lf_folder(tmp_path, {"val.json": json_lines({"uid": 3, "content": "v", "target_ind": [1]})}))
    assert dataset.label_names == ["A", "B"]
    assert dataset.label_texts == {"title": ["first", "second"], "content": ["", "longer"]}
    assert dataset.train.texts == {"title": ["one", "zwei ü"], "content": ["text", ""]}
    assert dataset.train.uids == ["1", "x"]
    assert dense(dataset.train.Y) == [[1, 0], [0, 0]]
    assert dense(dataset.train.filtered) == [[0, 1], [0, 0]]
    assert dataset.test.texts == {"title": ["t"], "content": [""]}
    assert dense(dataset.test.Y) == [[1, 0]]
    assert dataset.validation.texts == {"title": [""], "content": ["v"]}
    assert dataset.notes == ("train: 1 labels of points dropped by filter_labels_train.txt",)


def test_lf_with_titles_only_has_no_content(tmp_path):
    train = json_lines({"uid": 1, "title": "a", "target_ind": [1, 1]})
    dataset = zipfel.read(lf_folder(tmp_path, {"trn.json": train, "filter_labels_train.txt": None}))
    assert dataset.train.texts == {"title": ["a"]}
    assert dataset.test.texts == {"title": ["t"]}
    assert dense(dataset.train.Y) == [[0, 1]]
    assert dataset.notes == ("trn.json: 1 labels repeated in a row, merged",)


def test_lf_with_mark_crlf_and_blank_lines_at_the_end(tmp_path):
    plain = lf_folder(tmp_path)
    expected = zipfel.read(plain)
    train = (plain / "trn.json").read_bytes()
    (plain / "trn.json").write_bytes(b"\xef\xbb\xbf" + train.replace(b"\n", b"\r\n") + b"\r\n \n")
    assert_same(zipfel.read(plain), expected)
    (plain / "trn.json").unlink()
    (plain / "trn.json.gz").write_bytes(gzip.compress(train))
    assert_same(zipfel.read(plain), expected)
    assert_same(zipfel.read(plain, TableSettings(encoding="UTF8")), expected)


# npz, as PECOS has it


def npz(matrix):
    stream = io.BytesIO()
    save_npz(stream, matrix)
    return stream.getvalue()


X = [[1.0, 0, 2], [0, 0, 0]]
Y = [[0, 1], [1, 1]]


def test_npz_folder_with_features_one_deeper(tmp_path):
    folder = folder_of(
        tmp_path / "eurlex-4k",
        {
            "Y.trn.npz": npz(csr_array(np.array(Y))),
            "Y.tst.npz": npz(csc_array(np.array(Y, dtype=np.float64) * 3)),
            "Z.npz": npz(coo_array(np.array(X))),
            "output-items.txt": "a\nb\n",
            "filter_labels_test.txt": "1 1\n",
        },
    )
    folder_of(
        folder / "tfidf-attnxml", {"X.trn.npz": npz(csr_array(np.array(X))), "X.tst.npz": npz(csr_array(-np.array(X)))}
    )
    dataset = zipfel.read(folder)
    assert dense(dataset.train.X) == X
    assert dense(dataset.train.Y) == Y
    assert dense(dataset.test.X) == (-np.array(X)).tolist()
    assert dense(dataset.test.Y) == [[0, 1], [1, 0]]
    assert dense(dataset.Z) == X
    assert dataset.label_names == ["a", "b"]
    assert dataset.train.X.dtype == dataset.train.Y.dtype == np.float32


def test_npz_folder_with_text(tmp_path):
    folder = folder_of(tmp_path / "f", {"Y.trn.npz": npz(csr_array(np.array(Y))), "X.trn.txt": "one ü\r\n\r\n\n\n"})
    dataset = zipfel.read(folder)
    assert dataset.train.texts == {"text": ["one ü", ""]}
    assert dataset.train.X is None
    (folder / "X.trn.txt").write_bytes("é\n\n".encode("cp1252"))
    assert zipfel.read(folder, TableSettings(encoding="cp1252")).train.texts == {"text": ["é", ""]}


@pytest.mark.parametrize("form", [csr_array, coo_array])
def test_npz_entries_that_repeat_are_added_up_and_counted(tmp_path, form):
    rows, columns = np.array([0, 0, 1]), np.array([1, 1, 0])
    repeated = coo_array((np.ones(3), (rows, columns)), shape=(2, 2))
    if form is csr_array:
        repeated = csr_array((np.ones(3), columns, np.array([0, 2, 3])), shape=(2, 2))
    folder = folder_of(tmp_path / "f", {"Y.trn.npz": npz(repeated), "X.trn.npz": npz(repeated)})
    dataset = zipfel.read(folder)
    assert dense(dataset.train.Y) == [[0, 1], [1, 0]]
    assert dense(dataset.train.X) == [[0, 2], [1, 0]]
    assert dataset.notes == (
        "Y.trn.npz: 1 labels repeated in a row, merged",
        "X.trn.npz: 1 features repeated in a row, summed",
    )


# A user's table


CSV = "title,tags\none,a;b\ntwo,\nthree,b;b; c\n"
SEMICOLON = TableSettings(sep=";")
EXPECTED = [[1, 1, 0], [0, 0, 0], [0, 1, 1]]


def csv_of(tmp_path, content, name="t.csv", encoding="utf-8"):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


def test_csv(tmp_path):
    dataset = zipfel.read(csv_of(tmp_path, CSV), SEMICOLON)
    assert dataset.name == "t"
    assert dataset.label_names == ["a", "b", "c"]
    assert dense(dataset.train.Y) == EXPECTED
    assert dataset.train.texts == {"title": ["one", "two", "three"]}
    assert dataset.train.uids is None
    assert dataset.notes == ("t.csv: 1 labels repeated in a row, merged",)


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ('title,tags\none,"[""a"", ""b""]"\ntwo,[]\nthree,"[""b"", ""c""]"\n', TableSettings()),  # JSON
        ("title,tags\none,\"['a', 'b']\"\ntwo,[]\nthree,\"['b', 'c', None]\"\n", TableSettings()),  # Python
        ("title;tags\r\none;a|b\r\ntwo;\r\nthree;b|c\r\n\r\n", TableSettings(sep="|")),
        ("title\ttags\none\ta, b\ntwo\t , \nthree\tb,c\n", TableSettings(sep=",")),
        ("tags|title\na b|one\n|two\nb c|three\n", TableSettings(sep=" ")),
        (' title , other,tags \none,x,a--b\ntwo,"",\n"three",z,b--c', TableSettings(sep="--")),
        ("id,title,Tag\n1,one,a/b\n\n2,two,\n3,three,b/c\n", TableSettings(text="title", labels="Tag", sep="/")),
    ],
)  # fmt: skip
def test_csv_cells_and_separators(tmp_path, content, columns):
    dataset = zipfel.read(csv_of(tmp_path, content), columns)
    assert dense(dataset.train.Y) == EXPECTED
    assert dataset.train.texts == {"title": ["one", "two", "three"]}


def test_csv_cells_of_many_lines_and_of_ten_megabytes(tmp_path):
    long = "x" * 10_000_000
    path = csv_of(tmp_path, f'text,labels\n"a\nb ""c""\r\nd",x\n{long},y\n')
    assert zipfel.read(path).train.texts == {"text": ['a\nb "c"\r\nd', long]}


@pytest.mark.parametrize("name", ["t.csv", "t.tsv"])
def test_a_very_long_header(tmp_path, name):
    mark = "\t" if name.endswith("tsv") else ","
    path = csv_of(tmp_path, f"text{mark}labels{mark}{'x' * 200_000}\na{mark}b{mark}c\n", name)
    assert zipfel.read(path).label_names == ["b"]


@pytest.mark.parametrize(
    ("encoding", "named"),
    [("utf-8", "utf-8"), ("utf-8-sig", "utf-8"), ("utf-8", "UTF8"), ("cp1252", "cp1252"), ("cp1252", "windows-1252"),
     ("utf-16", "utf-16"), ("utf-16-le", "utf-16-le"), ("latin-1", "iso-8859-1")],
)  # fmt: skip
@pytest.mark.parametrize("packed", [False, True])
def test_csv_encodings(tmp_path, encoding, named, packed):
    content = "text,labels\nné,ä\nzwei,ö\n".encode(encoding)
    path = csv_of(tmp_path, gzip.compress(content) if packed else content)
    dataset = zipfel.read(path, TableSettings(encoding=named))
    assert dataset.train.texts == {"text": ["né", "zwei"]}
    assert dataset.label_names == ["ä", "ö"]


def test_text_columns_come_in_the_order_of_their_names_or_as_named(tmp_path):
    path = csv_of(tmp_path, "body,labels,title\nB,x,T\n")
    assert list(zipfel.read(path).train.texts) == ["title", "body"]
    assert list(zipfel.read(path, TableSettings(text=("body", "title", "body"))).train.texts) == ["body", "title"]
    assert zipfel.read(path, TableSettings(text=("labels",))).train.texts == {"labels": ["x"]}


def test_a_note_where_a_separator_seems_forgotten(tmp_path):
    dataset = zipfel.read(csv_of(tmp_path, CSV))
    assert dataset.label_names == ["a;b", "b;b; c"]
    assert "set it with --sep" in dataset.notes[0]
    assert zipfel.read(csv_of(tmp_path, CSV), TableSettings(sep=":")).notes == ()


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        ("[1, 2.0, 2.5]", ["1", "2", "2.5"]),
        ("['\\d']", ["\\d"]),
        *[
            (word, [word])
            for word in ("[x", "[x]", "[1]+[2]", "[[]", "[\x00]", "[" * 2000 + "]" * 2000, f"[{'-' * 9000}1]")
        ],
    ],
)
def test_cells_in_brackets(tmp_path, cell, names):
    path = csv_of(tmp_path, f'text,labels\na,"{cell}"\n')
    assert zipfel.read(path).label_names == names


def test_jsonl(tmp_path):
    rows = json_lines(
        {"title": "one", "tags": ["a", "b"]},
        {"title": None, "tags": None},
        {"title": 3.0, "tags": ["b", "c", "", None, " c "], "more": {}},
    )
    dataset = zipfel.read(csv_of(tmp_path, b"\xef\xbb\xbf" + rows + b"\n", "t.jsonl"))
    assert dataset.train.texts == {"title": ["one", "", "3"]}
    assert dense(dataset.train.Y) == EXPECTED
    assert dataset.notes == ("t.jsonl: 1 labels repeated in a row, merged",)


def parquet(**columns):
    stream = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), stream)
    return stream.getvalue()


def test_parquet(tmp_path):
    cells = [["a", "b"], None, ["b", "c"]]
    path = csv_of(tmp_path, parquet(**{"my.title": ["one", None, "3"]}, tags=cells, uid=[7, 8, 9]), "t.parquet")
    dataset = zipfel.read(path, TableSettings(text="my.title"))
    assert dataset.train.texts == {"my.title": ["one", "", "3"]}
    assert dense(dataset.train.Y) == EXPECTED
    assert dataset.train.uids == ["7", "8", "9"]
    assert zipfel.read(path, TableSettings(text="uid")).train.texts == {"uid": ["7", "8", "9"]}


def test_parquet_of_many_rows(tmp_path):
    content = parquet(text=[str(i) for i in range(20_000)], label=[i % 3 for i in range(20_000)])
    dataset = zipfel.read(csv_of(tmp_path, content, "t.parquet"))
    assert dataset.train.texts["text"][-1] == "19999"
    assert dataset.train.Y.indices.tolist() == [i % 3 for i in range(20_000)]


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    path = csv_of(tmp_path, b"", "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"^reading Parquet needs pyarrow: pip install 'zipfel\[tables\]'"):
        zipfel.read(path)
    with pytest.raises(MissingDependencyError, match="writing Parquet needs pyarrow"):
        zipfel.write(texts_dataset(), tmp_path / "out", "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]


NOTHING = [None, float("nan"), pandas.NA, pandas.NaT, np.float32("nan"), ""]


@pytest.mark.parametrize("nothing", NOTHING, ids=repr)
def test_pandas(nothing):
    cells = [["a", "b"], nothing, np.array(["b", "c"])]
    frame = pandas.DataFrame({"text": pandas.Series(["one", nothing, "three"], dtype=object), "labels": cells})
    dataset = zipfel.read(frame)
    assert dense(dataset.train.Y) == EXPECTED
    assert dataset.train.texts == {"text": ["one", "", "three"]}


def test_pandas_with_numbers_as_labels_and_as_column_names():
    frame = pandas.DataFrame({0: ["x", "y", "z"], 1: pandas.Categorical(["u", "v", "u"]), 2: [3, None, 10]})
    dataset = zipfel.read(frame, TableSettings(text=("0", "1"), labels="2"))
    assert dataset.label_names == ["10", "3"]
    assert dense(dataset.train.Y) == [[0, 1], [0, 0], [1, 0]]
    assert dataset.train.texts == {"0": ["x", "y", "z"], "1": ["u", "v", "u"]}


def test_polars():
    cells = [["a", "b"], None, ["b", "c"]]
    dataset = zipfel.read(polars.DataFrame({"text": ["one", None, "three"], "labels": cells, "uid": [1, 2, 3]}))
    assert dense(dataset.train.Y) == EXPECTED
    assert dataset.train.uids == ["1", "2", "3"]


LABELS = "tag,text,note\nb,the b,\nz,never used,n\na,the a,\n"


def test_a_label_table_that_names_no_label_is_the_wrong_table(tmp_path):
    train = csv_of(tmp_path, "text,tags\none,a\ntwo,b\n", "train.csv")
    about = csv_of(tmp_path, "id,about\n1,first\n2,second\n", "about.csv")
    assert zipfel.read(train, TableSettings(label_texts=about)).notes == (
        "none of the 2 labels is in the table of label texts; its first column must hold their names",
    )


@pytest.mark.parametrize("source", ["file", "folder", "pandas"])
def test_label_table_with_labels_that_train_does_not_have_and_the_other_way_round(tmp_path, source):
    table = csv_of(tmp_path, LABELS, "labels.csv")
    csv_of(tmp_path, CSV, "train.csv")
    if source == "pandas":
        table = pandas.read_csv(table, keep_default_na=False)
    columns = SEMICOLON if source == "folder" else TableSettings(sep=";", label_texts=table)
    dataset = zipfel.read(tmp_path if source == "folder" else tmp_path / "train.csv", columns)
    assert dataset.label_names == ["b", "z", "a", "c"]
    assert dataset.label_texts == {"text": ["the b", "never used", "the a", ""], "note": ["", "n", "", ""]}
    assert dense(dataset.train.Y) == [[1, 0, 1, 0], [0, 0, 0, 0], [1, 0, 0, 1]]
    assert dataset.notes == (
        "train.csv: 1 labels repeated in a row, merged",
        "1 labels are not in the table of label texts",
    )


def test_label_table_of_names_alone_gives_the_order(tmp_path):
    columns = TableSettings(sep=";", label_texts=csv_of(tmp_path, "tag\nc\nb\na\n", "labels.csv"))
    dataset = zipfel.read(csv_of(tmp_path, CSV), columns)
    assert dataset.label_names == ["c", "b", "a"]
    assert dataset.label_texts is None


def test_folder_of_tables_of_different_kinds(tmp_path):
    csv_of(tmp_path, CSV, "train.csv")
    csv_of(tmp_path, "title\ttags\nfour\tz\n", "test.tsv")
    csv_of(tmp_path, json_lines({"title": "five", "tags": "a;c"}), "dev.jsonl")
    csv_of(tmp_path, "0 1\n", "filter_labels_train.txt")
    dataset = zipfel.read(tmp_path, SEMICOLON)
    assert dataset.label_names == ["a", "b", "c", "z"]
    assert dense(dataset.train.Y) == [[1, 0, 0, 0], [0, 0, 0, 0], [0, 1, 1, 0]]
    assert dense(dataset.test.Y) == [[0, 0, 0, 1]]
    assert dense(dataset.validation.Y) == [[1, 0, 1, 0]]


def test_a_named_format_wins_where_a_folder_holds_several(tmp_path):
    csv_of(tmp_path, CSV, "train.csv")
    csv_of(tmp_path, json_lines({"title": "one", "tags": ["j"]}), "train.jsonl")
    csv_of(tmp_path, TRAIN, "train.txt")
    assert zipfel.read(tmp_path, SEMICOLON, format="csv").label_names == ["a", "b", "c"]
    assert zipfel.read(tmp_path, format="jsonl").label_names == ["j"]
    assert zipfel.read(tmp_path, format="repository").sizes == (3, 4, 3)
    with pytest.raises(DataError, match="holds more than one format: repository, csv, jsonl; choose one"):
        zipfel.read(tmp_path)


def test_names_of_files_in_capitals(tmp_path):
    assert zipfel.read(csv_of(tmp_path, CSV, "T.CSV"), SEMICOLON).label_names == ["a", "b", "c"]
    assert zipfel.read(csv_of(tmp_path, CSV.replace(",", "\t"), "T.TSV"), SEMICOLON).label_names == ["a", "b", "c"]
    assert zipfel.read(csv_of(tmp_path, TRAIN, "T.TXT")).sizes == (3, 4, 3)


# Round trips


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", FEATURE_FORMATS)
def test_round_trip_of_features(tmp_path, name, packed):
    dataset = features_dataset()
    zipfel.write(dataset, tmp_path / "out", name, gzip=packed)
    assert format_of(tmp_path / "out") == name
    again = zipfel.read(tmp_path / "out")
    assert_same(again, dataset)
    assert again.notes == ()
    assert any(path.suffix == ".gz" for path in (tmp_path / "out").iterdir()) == (
        packed and name not in ("npz", "mapped")
    )


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", TEXT_FORMATS)
def test_round_trip_of_texts(tmp_path, name, packed):
    dataset = texts_dataset()
    zipfel.write(dataset, tmp_path / "out", name, gzip=packed)
    assert format_of(tmp_path / "out") == name
    again = zipfel.read(tmp_path / "out")
    assert_same(again, dataset)
    assert again.notes == ()
    assert any(path.suffix == ".gz" for path in (tmp_path / "out").iterdir()) == (packed and name != "parquet")


@pytest.mark.parametrize("name", FEATURE_FORMATS)
def test_round_trip_without_anything_beside_the_matrices(tmp_path, name):
    train = Part(csr_array(np.eye(2)), csr_array(np.array([[0.1, 0], [0, 0]])))
    zipfel.write(Dataset(train, name="bare"), tmp_path / "out", name)
    assert_same(zipfel.read(tmp_path / "out"), Dataset(train, name="bare"))


@pytest.mark.parametrize("name", ["csv", "tsv", "jsonl", "parquet"])
def test_tables_keep_text_columns_of_any_name_in_their_order(tmp_path, name):
    texts = {"notes": ["a", "b"], "title": ["c", "d"]}
    dataset = Dataset(Part(csr_array(np.eye(2)), texts=texts), name="x", label_names=["p", "q"],
                      label_texts={"label": ["P", "Q"], "label_": ["", ""]})  # fmt: skip
    zipfel.write(dataset, tmp_path / "out", name)
    assert_same(zipfel.read(tmp_path / "out"), dataset)


def test_lf_names_labels_by_number_where_they_have_no_names(tmp_path):
    dataset = Dataset(Part(csr_array(np.eye(3)), texts={"body": ["a", "b", "c"]}), name="x")
    zipfel.write(dataset, tmp_path / "out", "lf")
    again = zipfel.read(tmp_path / "out")
    assert again.label_names == ["0", "1", "2"]
    assert again.train.texts == {"title": ["a", "b", "c"]}
    assert_same_matrix(again.train.Y, dataset.train.Y)


def test_lf_joins_other_text_fields_into_content(tmp_path):
    texts = {"a": ["1", "2"], "b": ["3", "4"], "c": ["5", "6"]}
    zipfel.write(Dataset(Part(csr_array(np.eye(2)), texts=texts)), tmp_path / "out", "lf")
    assert zipfel.read(tmp_path / "out").train.texts == {"title": ["1", "2"], "content": ["3 5", "4 6"]}


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def matrices(draw, rows, columns, values):
    """Return a matrix that is often empty in places."""
    cells = draw(st.lists(st.just(0) | values, min_size=rows * columns, max_size=rows * columns))
    return csr_array(np.reshape(cells, (rows, columns)).astype(np.float32))


@st.composite
def tiny_features(draw):
    points, features, labels = (draw(st.integers(1, 5)) for _ in range(3))
    train = Part(draw(matrices(points, labels, st.just(1))), draw(matrices(points, features, FLOATS)))
    return Dataset(train, name="tiny", Z=draw(matrices(labels, features, FLOATS)))


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=5).map(str.strip).filter(bool)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def tiny_texts(draw):
    points, labels = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    texts = draw(st.lists(TEXTS, min_size=points, max_size=points))
    return Dataset(
        Part(draw(matrices(points, labels, st.just(1))), texts={"title": texts}),
        name="tiny",
        label_names=draw(st.lists(NAMES, min_size=labels, max_size=labels, unique=True)),
        label_texts={"title": draw(st.lists(TEXTS, min_size=labels, max_size=labels))},
    )


FEW = settings(max_examples=40, derandomize=True, deadline=None, database=None,
               suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])  # fmt: skip


@pytest.mark.parametrize("name", FEATURE_FORMATS)
@FEW
@given(dataset=tiny_features())
def test_any_features_come_back(tmp_path_factory, name, dataset):
    folder = tmp_path_factory.mktemp("x") / "out"
    zipfel.write(dataset, folder, name)
    assert_same(zipfel.read(folder), dataset)


@pytest.mark.parametrize("name", TEXT_FORMATS)
@FEW
@given(dataset=tiny_texts())
def test_any_texts_come_back(tmp_path_factory, name, dataset):
    folder = tmp_path_factory.mktemp("x") / "out"
    zipfel.write(dataset, folder, name)
    again = zipfel.read(folder)
    assert_same_matrix(again.train.Y, dataset.train.Y)
    assert again.train.texts == dataset.train.texts
    assert again.label_names == dataset.label_names
    assert again.label_texts == dataset.label_texts


# Memory: at most twice the result, and a few megabytes for the block at hand


def traced(work):
    """Return the memory held at the end, and its peak, in bytes."""
    tracemalloc.start()
    try:
        result = work()
        remains, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return result, remains, peak


SPARE = 6_000_000


def test_memory_of_repository_text(tmp_path):
    line = " ".join(f"{300 + 3 * i}:{i % 9 + 1}" for i in range(250))
    path = tmp_path / "train.txt"
    with path.open("w") as out:
        out.write("16000 1100 1000\n")
        out.writelines(f"{i % 1000},{(i + 7) % 1000} {line}\n" for i in range(16_000))
    dataset, remains, peak = traced(lambda: zipfel.read(path))
    assert dataset.train.X.nnz == 4_000_000
    assert 32e6 < remains < 33e6
    assert peak < 1.2 * remains + SPARE


def test_memory_of_the_split_form(tmp_path):
    line = " ".join(f"{300 + 3 * i}:{i % 9 + 1}" for i in range(250))
    folder = split_folder(
        tmp_path,
        {
            "trn_X_Xf.txt": "4000 1100\n" + (line + "\n") * 4000,
            "trn_X_Y.txt": "4000 2\n" + "1:1\n" * 4000,
            "tst_X_Xf.txt": None,
            "tst_X_Y.txt": None,
            "lbl_X_Xf.txt": None,
            "Xf.txt": None,
        },
    )
    _, remains, peak = traced(lambda: zipfel.read(folder))
    assert 8e6 < remains < 9e6
    assert peak < 1.2 * remains + SPARE


def test_memory_of_dense_features(tmp_path):
    array = np.random.default_rng(0).standard_normal((20_000, 100)).astype(np.float32)
    folder = split_folder(
        tmp_path,
        {
            "trn_X_Xf.txt": None,
            "trn_X_Xf.npy": npy(array),
            "trn_X_Y.txt": "20000 2\n" + "\n" * 20_000,
            "tst_X_Xf.txt": None,
            "tst_X_Y.txt": None,
            "lbl_X_Xf.txt": None,
            "Xf.txt": None,
            "filter_labels_train.txt": None,
        },
    )
    _, remains, peak = traced(lambda: zipfel.read(folder))
    assert remains > 16e6
    assert peak < 1.6 * remains + SPARE


def test_memory_of_lf(tmp_path):
    rows = [{"uid": i, "title": f"{i} " + "word " * 60, "target_ind": [i % 2]} for i in range(20_000)]
    folder = lf_folder(tmp_path, {"trn.json": json_lines(*rows), "filter_labels_train.txt": None})
    del rows
    _, remains, peak = traced(lambda: zipfel.read(folder))
    assert remains > 8e6
    assert peak < 1.5 * remains + SPARE


def test_memory_of_a_table(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("text,labels\n" + "".join(f"{i} {'word ' * 60},l{i % 9}\n" for i in range(20_000)))
    _, remains, peak = traced(lambda: zipfel.read(path))
    assert remains > 7e6
    assert peak < 1.5 * remains + SPARE


@pytest.mark.parametrize(("values", "ids"), [(np.float32, np.int32), (np.float64, np.int64)])
def test_memory_of_npz(tmp_path, values, ids):
    zipfel.write(
        Dataset(Part(csr_array(np.ones((2000, 2))), csr_array(np.ones((2000, 1200))))), tmp_path / "out", "npz"
    )
    X = csr_array(np.ones((2000, 1200), dtype=values))
    X.indices, X.indptr = X.indices.astype(ids), X.indptr.astype(ids)  # as others write them
    save_npz(tmp_path / "out" / "X.trn.npz", X)
    del X
    dataset, remains, peak = traced(lambda: zipfel.read(tmp_path / "out"))
    assert dataset.train.X.indices.dtype == np.int32
    assert 16e6 < remains < 20e6
    assert peak < 2 * remains + SPARE


# Settings


def test_a_list_is_a_list_with_a_separator_too(tmp_path):
    (tmp_path / "t.csv").write_text('text,labels\nx,"[""a;b"", ""c""]"\ny,a;d\nz,[e;f]\n')
    dataset = zipfel.read(tmp_path / "t.csv", TableSettings(sep=";"))
    assert dataset.label_names == ["[e", "a", "a;b", "c", "d", "f]"]


def test_the_note_on_separators_shows_a_label_that_holds_one(tmp_path):
    (tmp_path / "t.csv").write_text("text,labels\nx,a\ny,b;c\nz,d;e\n")
    assert "most labels contain ';', as in 'b;c'" in zipfel.read(tmp_path / "t.csv").notes[0]


def test_endings_may_be_capitals(tmp_path):
    assert format_of(tmp_path / "S.CSV") == "csv"


@pytest.mark.parametrize("source", [None, ["a"], 3])
def test_what_is_no_path_is_refused(source):
    with pytest.raises(DataError, match="expected a path or a data frame, found"):
        zipfel.read(source)


def test_an_empty_separator_is_refused():
    with pytest.raises(ConfigError, match="must not be empty"):
        TableSettings(sep="")


def test_formats_are_recognized_by_file_names_too(tmp_path):
    assert format_of(tmp_path / "a.tsv.gz") == "tsv"
    assert format_of(tmp_path / "a_train.txt") == "repository"
    with pytest.raises(DataError, match="unknown format 'cvs'; did you mean 'csv'"):
        zipfel.write(texts_dataset(), tmp_path / "out", "cvs")


def test_a_long_example_in_a_note_is_shortened_within_its_quotes(tmp_path):
    dataset = zipfel.read(csv_of(tmp_path, f"text,labels\nx,{'a;' * 50}\n"))
    assert "as in 'a;a;" in dataset.notes[0]
    assert "…'; to split them there, set it with --sep" in dataset.notes[0]
    note = zipfel.read(pandas.DataFrame({"text": ["x"], "labels": ["a;b"]})).notes[0]
    assert note == "most labels contain ';', as in 'a;b'; to split them there, set it with TableSettings(sep=...)"
