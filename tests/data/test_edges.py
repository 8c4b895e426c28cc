"""Graphs of labels, read from files of edges."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zipfel.data.formats import files
from zipfel.data.formats.edges import read_edges
from zipfel.errors import DataError

NAMES = ["heart", "heart attack", "lung", "Grippe é"]
PLAIN = ["a", "b", "c", "d"]


def edges_of(tmp_path, text, names):
    path = tmp_path / "edges.tsv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_edges(path, names)


def as_dict(graph):
    """{(lower, higher): weight}, after a look at what every graph must be."""
    dense = graph.toarray()
    assert graph.dtype == np.float32
    assert graph.has_canonical_format
    np.testing.assert_array_equal(dense, dense.T)
    assert not dense.diagonal().any()
    return {(int(a), int(b)): float(dense[a, b]) for a, b in np.argwhere(np.triu(dense))}


@pytest.mark.parametrize(
    ("text", "names", "edges"),
    [
        ("heart\theart attack\nlung\tGrippe é\n", NAMES, {(0, 1): 1, (2, 3): 1}),
        ("heart\theart attack\t2.5\nlung\theart\t1e-3", NAMES, {(0, 1): 2.5, (0, 2): np.float32(1e-3)}),
        ("heart\tlung\r\nlung\tGrippe é\t3\r\n", NAMES, {(0, 2): 1, (2, 3): 3}),
        ("\ufeffheart\tlung\n", NAMES, {(0, 2): 1}),
        ("# parents\n\nheart\tlung\n   \n#lung\theart\n", NAMES, {(0, 2): 1}),
        ("b\tc\n#a\tb\n", ["#a", "b", "c"], {(1, 2): 1}),  # a comment, even where a label starts so
        ("a b\nc d 4\n", PLAIN, {(0, 1): 1, (2, 3): 4}),
        ("a b\nb c\n", PLAIN, {(0, 1): 1, (1, 2): 1}),
        ("a\tb\t2\nc d\n", PLAIN, {(0, 1): 2, (2, 3): 1}),
        ("a\tb\nb\ta\t2\na\tb\n", PLAIN, {(0, 1): 4}),
        ("a\ta\nb\tc\nd\td\t9\n", PLAIN, {(1, 2): 1}),
        ("a\tb\t2\n2\tc\n", [*PLAIN, "2"], {(0, 1): 2, (2, 4): 1}),
        ("", PLAIN, {}),
        ("# nothing\n", PLAIN, {}),
    ],
)
def test_good_edges(tmp_path, text, names, edges):
    graph = edges_of(tmp_path, text, names)
    assert graph.shape == (len(names), len(names))
    assert as_dict(graph) == edges


def test_edges_of_a_gzip_file_and_a_path_as_text(tmp_path):
    path = tmp_path / "edges.tsv.gz"
    path.write_bytes(gzip.compress(b"a\tb\n"))
    assert as_dict(read_edges(str(path), PLAIN)) == {(0, 1): 1}


@pytest.mark.parametrize(
    ("text", "names", "line", "problem"),
    [
        ("heart\tlung\nheart attack lung\n", NAMES, 2, "expected label<TAB>label[<TAB>weight], found 'heart attack"),
        ("# x\n\nheart\n", NAMES, 3, "expected label<TAB>label[<TAB>weight], found 'heart'"),
        ("a\tb\t1\t2\n", PLAIN, 1, "expected label<TAB>label"),
        ("a  b\n", PLAIN, 1, "unknown label ''"),
        ("heart\tlung\nheart\tlumg\n", NAMES, 2, "unknown label 'lumg'; did you mean 'lung'?"),
        ("a\tzzz\n", PLAIN, 1, "unknown label 'zzz'; known are a, b, c, d"),
        (b"a\tb\na\t\xff\n", PLAIN, 2, "unknown label"),
        ("a\tb\t1\na\tb\theavy\n", PLAIN, 2, "positive finite weight, found 'heavy'"),
        ("a\tb\t0\n", PLAIN, 1, "positive finite weight, found '0'"),
        ("a\tb\t-1\n", PLAIN, 1, "positive finite weight, found '-1'"),
        ("a\tb\tnan\n", PLAIN, 1, "positive finite weight, found 'nan'"),
        ("a\tb\tinf\n", PLAIN, 1, "positive finite weight, found 'inf'"),
        ("a\tb\t1e39\n", PLAIN, 1, "positive finite weight, found '1e39'"),  # infinite in float32
        ("a\tb\t\n", PLAIN, 1, "positive finite weight, found ''"),
    ],
)
def test_bad_edges_are_named_with_file_and_line(tmp_path, text, names, line, problem):
    with pytest.raises(DataError) as raised:
        edges_of(tmp_path, text, names)
    assert str(raised.value).startswith(f"{tmp_path / 'edges.tsv'}:{line}: ")
    assert problem in str(raised.value)
    assert len(str(raised.value).splitlines()) == 1


def test_many_labels_are_not_listed_in_a_message(tmp_path):
    with pytest.raises(DataError, match="unknown label 'zzz'; none of the 500 labels is similar"):
        edges_of(tmp_path, "label 1\tzzz\n", [f"label {number}" for number in range(500)])


def test_weights_that_add_up_to_infinity_are_an_error(tmp_path):
    with pytest.raises(DataError, match="add up to more than float32"):
        edges_of(tmp_path, "a\tb\t3e38\nb\ta\t3e38\n", PLAIN)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(DataError, match=r"missing\.tsv: cannot be read: No such file"):
        read_edges(tmp_path / "missing.tsv", PLAIN)
    (tmp_path / "cut.gz").write_bytes(gzip.compress(b"a\tb\n" * 1000)[:-20])
    with pytest.raises(DataError, match=r"cut\.gz: broken gzip file"):
        read_edges(tmp_path / "cut.gz", PLAIN)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.none() | st.integers(1, 9)), max_size=12))
def test_blocks_and_lines_agree(tmp_path_factory, edges):
    """Lines of a form are read at once, others one by one, and blocks end anywhere: all give the same graph."""
    cells = [(PLAIN[a], PLAIN[b], *([] if weight is None else [str(weight)])) for a, b, weight in edges]
    text = "".join("\t".join(line) + "\n" for line in cells)
    expected = np.zeros((4, 4))
    for a, b, weight in edges:
        if a != b:
            expected[a, b] += weight or 1
            expected[b, a] += weight or 1
    with pytest.MonkeyPatch.context() as patch:
        for block in (1, 20, 1000):
            patch.setattr(files, "BLOCK", block)
            np.testing.assert_array_equal(edges_of(tmp_path_factory.mktemp("edges"), text, PLAIN).toarray(), expected)


def test_line_numbers_go_on_over_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "BLOCK", 8)
    with pytest.raises(DataError, match=r"edges\.tsv:41: unknown label 'x'"):
        edges_of(tmp_path, "a\tb\n" * 40 + "a\tx\n", PLAIN)
