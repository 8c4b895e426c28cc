"""A data set is checked where it is made: valid arrays are kept unchanged, invalid ones are named in an error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array, csc_matrix, csr_array, csr_matrix

from zipfel.data.dataset import Dataset, Part, Propensity, fingerprint, fingerprints, same_points, without_pairs
from zipfel.data.splits import hold_out
from zipfel.errors import DataError

Y2 = csr_array([[1, 0, 1], [0, 1, 0]])
X2 = csr_array([[0.5, 0, 0, 2], [0, 1, 0, 0]])


def raw(dense, dtype=np.float64, index=np.int32):
    """A CSR array that is not canonical: unsorted columns, a repeated column, a stored zero."""
    rows = [
        [(column, value) for column, value in enumerate(row) if value] + [(0, 0)] for row in np.asarray(dense).tolist()
    ]
    rows = [[half for c, v in reversed(row) for half in ((c, v / 2), (c, v / 2))] for row in rows]
    columns = np.array([c for row in rows for c, _ in row], dtype=index)
    values = np.array([v for row in rows for _, v in row], dtype=dtype)
    return csr_array((values, columns, np.cumsum([0, *map(len, rows)]).astype(index)), shape=np.shape(dense))


# Matrices


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_matrices_become_canonical_and_the_callers_stay_as_they_are(dtype, index):
    dense = {
        "X": [[0, 4, 2], [8, 0, 0]],
        "Y": [[2, 4, 0], [0, 0, 2]],
        "filtered": [[0, 2, 0], [0, 0, 0]],
        "Z": [[0, 0, 6], [0, 0, 0], [2, 2, 2]],
    }
    given = {name: raw(rows, dtype, index) for name, rows in dense.items()}
    before = {name: [part.copy() for part in (m.data, m.indices, m.indptr)] for name, m in given.items()}
    part = Part(given["Y"], given["X"], filtered=given["filtered"])
    dataset = Dataset(part, Z=given["Z"])
    np.testing.assert_array_equal(part.X.toarray(), dense["X"])
    np.testing.assert_array_equal(dataset.Z.toarray(), dense["Z"])
    np.testing.assert_array_equal(part.Y.toarray(), [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(part.filtered.toarray(), [[0, 1, 0], [0, 0, 0]])
    for matrix in (part.X, part.Y, part.filtered, dataset.Z):
        assert matrix.dtype == np.float32
        assert matrix.has_canonical_format
        assert matrix.data.all()
    dataset.with_labels(np.array([2, 0]))
    hold_out(dataset, 0.5)
    for name, matrix in given.items():
        for now, was in zip((matrix.data, matrix.indices, matrix.indptr), before[name], strict=True):
            np.testing.assert_array_equal(now, was, err_msg=name)
        assert not matrix.has_canonical_format


def test_a_canonical_matrix_is_not_copied():
    X = csr_array(np.eye(3, dtype=np.float32))
    part = Part(csr_array(np.eye(3, dtype=np.float32)), X)
    assert np.shares_memory(part.X.data, X.data)
    assert np.shares_memory(part.take(np.arange(3)).with_labels(np.arange(2)).X.data, part.X.data) is False


def test_a_stored_zero_in_shared_arrays_is_left_to_the_caller():
    """Here nothing is out of order, so that the one thing to do is to drop the zero, in a copy."""
    X = csr_array((np.array([0, 1], np.float32), np.array([0, 1], np.int32), np.array([0, 2], np.int32)), shape=(1, 2))
    assert Part(csr_array([[1]]), X).X.nnz == 1
    assert X.nnz == 2
    assert X.data.tolist() == [0, 1]


@pytest.mark.parametrize("kind", [csr_matrix, csc_matrix, coo_array, np.array, lambda rows: rows])
def test_any_kind_of_matrix_will_do(kind):
    part = Part(kind([[2, 0], [0, 1]]), kind([[0, -1], [3, 0]]))
    assert isinstance(part.X, csr_array)
    assert isinstance(part.Y, csr_array)
    assert part.Y.toarray().tolist() == [[1, 0], [0, 1]]
    assert part.X.toarray().tolist() == [[0, -1], [3, 0]]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize("name", ["X", "Y"])
def test_values_that_are_no_finite_numbers_are_refused_with_their_row(name, value):
    matrices = {"X": np.eye(3), "Y": np.eye(3)}
    matrices[name][[1, 2], 0] = value
    with pytest.raises(
        DataError, match=f"^row 1 of {name} has a value that is not a finite float32 number, such as NaN$"
    ):
        Part(**matrices)


def test_odd_labels_are_refused():
    with pytest.raises(DataError, match="Y has a negative value in row 1"):
        Part(csr_array([[1, 1], [-1, 1]]))
    with pytest.raises(DataError, match=r"Y must be a matrix of rows and columns; found shape \(3,\)"):
        Part(csr_array([1, 0, 1]))


# What must agree


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"X": csr_array((3, 4))}, "rows of X (3) differ from rows of Y (2)"),
        ({"texts": {"title": ["a"]}}, "texts of 'title' (1) differ from rows of Y (2)"),
        ({"texts": {"title": ["a", "b"], "body": []}}, "texts of 'body' (0) differ from rows of Y (2)"),
        ({"uids": ["a", "b", "c"]}, "uids (3) differ from rows of Y (2)"),
        ({"filtered": csr_array((2, 4))}, "shape of filtered ((2, 4)) differ from shape of Y ((2, 3))"),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(change, problem):
    with pytest.raises(DataError) as caught:
        Part(Y2, **change)
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"test": Part(csr_array((1, 4)), csr_array((1, 4)))}, "labels of test (4) differ from labels of train (3)"),
        ({"validation": Part(csr_array((1, 3)), csr_array((1, 5)))},
         "features of validation (5) differ from features of train (4)"),
        ({"test": Part(csr_array((1, 3)))},
         "test and train must have the same kinds of input: features, texts or both"),
        ({"test": Part(csr_array((1, 3)), csr_array((1, 4)), texts={"title": ["a"]})},
         "test and train must have the same kinds of input: features, texts or both"),
        ({"Z": csr_array((2, 4))}, "rows of Z (2) differ from labels (3)"),
        ({"Z": csr_array((3, 5))}, "columns of Z (5) differ from features (4)"),
        ({"label_names": ["a"]}, "label names (1) differ from labels (3)"),
        ({"label_texts": {"title": ["a"] * 3, "body": ["a"] * 4}}, "label texts of 'body' (4) differ from labels (3)"),
        ({"feature_names": ["a"]}, "feature names (1) differ from features (4)"),
    ],
)  # fmt: skip
def test_data_sets_that_do_not_fit_together_are_refused(change, problem):
    with pytest.raises(DataError) as caught:
        Dataset(Part(Y2, X2), **change)
    assert str(caught.value) == problem


def test_parts_must_have_the_same_text_fields():
    train = Part(Y2, texts={"title": ["a", "b"], "body": ["c", "d"]})
    with pytest.raises(DataError) as caught:
        Dataset(train, Part(Y2, texts={"title": ["a", "b"]}))
    assert str(caught.value) == "text fields of test (['title']) differ from text fields of train (['body', 'title'])"
    Dataset(train, Part(Y2, texts={"body": ["c", "d"], "title": ["a", "b"]}))


# Sizes, names, labels


def full():
    """Three labels, the last without points in train; a filter for every part."""
    return Dataset(
        train=Part([[1, 1, 0], [1, 0, 0]], X2, {"t": ["a", "b"]}, ["p", "q"], filtered=[[0, 1, 1], [0, 0, 0]]),
        test=Part([[0, 1, 1]], [[0, 0, 7, 0]], {"t": ["c"]}, ["r"], filtered=[[0, 0, 1]]),
        name="full",
        label_names=["zero", "one", "two"],
        label_texts={"title": ["0", "1", "2"], "body": ["nought", "unit", "pair"]},
        Z=csr_array([[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 3, 0]]),
        feature_names=["f", "g", "h", "i"],
        propensity=Propensity(0.5, 0.4),
        notes=("a note",),
    )


def test_filtered_pairs_are_no_labels():
    dataset = full()
    assert dataset.train.Y.toarray().tolist() == [[1, 0, 0], [1, 0, 0]]
    assert dataset.test.Y.toarray().tolist() == [[0, 1, 0]]
    assert dataset.label_counts.tolist() == [2, 0, 0]
    assert dataset.sizes == (2, 4, 3)
    assert list(dataset.parts) == ["train", "test"]


def test_names_and_sizes_where_little_is_known():
    dataset = Dataset(Part(Y2, texts={"title": ["a", "b"]}))
    assert dataset.sizes == (2, 0, 3)
    assert dataset.label_name(2) == "2"
    assert full().label_name(2) == "two"
    assert Dataset(Part(csr_array((0, 3)))).label_counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("kept", [[0, 2], [2, 1], [1], []])
def test_fewer_labels_keep_all_that_belongs_to_them(kept):
    before, kept = full(), np.array(kept, dtype=np.int64)
    after = before.with_labels(kept)
    for name, part in after.parts.items():
        was = before.parts[name]
        np.testing.assert_array_equal(part.Y.toarray(), was.Y.toarray()[:, kept])
        np.testing.assert_array_equal(part.filtered.toarray(), was.filtered.toarray()[:, kept])
        assert part.Y.has_canonical_format
        assert (part.X.toarray() == was.X.toarray()).all()
        assert (part.texts, part.uids) == (was.texts, was.uids)
    assert after.label_names == [before.label_names[label] for label in kept]
    assert after.label_texts == {f: [texts[label] for label in kept] for f, texts in before.label_texts.items()}
    np.testing.assert_array_equal(after.Z.toarray(), before.Z.toarray()[kept])
    for attribute in ("name", "feature_names", "propensity", "notes"):
        assert getattr(after, attribute) == getattr(before, attribute)


def test_points_are_taken_with_all_that_belongs_to_them():
    part = full().train.take(np.array([1, 0, 1]))
    assert len(part) == 3
    assert part.Y.toarray().tolist() == [[1, 0, 0]] * 3
    assert part.X.toarray().tolist() == X2.toarray()[[1, 0, 1]].tolist()
    assert part.texts == {"t": ["b", "a", "b"]}
    assert part.uids == ["q", "p", "q"]
    assert part.filtered.toarray().tolist() == [[0, 0, 0], [0, 1, 1], [0, 0, 0]]


@given(st.integers(0, 2**32 - 1))
def test_pairs_are_left_out_as_in_a_dense_matrix(seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(0, 5, 2))
    dense, out = rng.integers(0, 3, shape), rng.random(shape) < 0.4
    matrix = csr_array(dense.astype(np.float32))
    before = matrix.toarray()
    left = without_pairs(matrix, csr_array(out.astype(np.float32)))
    np.testing.assert_array_equal(left.toarray(), np.where(out, 0, dense))
    np.testing.assert_array_equal(matrix.toarray(), before)


# The same point, or another

TEXT_PRINTS = [961221088751488578, 11843292280841883864, 4742825173202726148]
ROW_PRINTS = [5396799696662131351, 16294208416658607535]
FIELDS = st.lists(st.text("ab:1\x1f ", max_size=3), min_size=2, max_size=2)


def of_texts(rows):
    return Part(csr_array((len(rows), 1)), texts={"title": [row[0] for row in rows], "body": [row[1] for row in rows]})


@given(st.lists(FIELDS, min_size=1, max_size=8))
def test_texts_have_equal_prints_where_they_are_equal(rows):
    prints = fingerprints(of_texts(rows)).tolist()
    for i, one in enumerate(rows):
        for j, other in enumerate(rows):
            assert (prints[i] == prints[j]) == (one == other), (one, other)


@given(st.integers(0, 2**32 - 1))
def test_features_have_equal_prints_where_they_are_equal(seed):
    dense = np.random.default_rng(seed).integers(0, 2, (12, 3)) * np.array([1, 0.5, -2])
    for made in (csr_array(dense), raw(dense), csr_array(dense, dtype=np.float32)):
        prints = fingerprints(Part(csr_array((12, 1)), made))
        same = (dense[:, None] == dense[None]).all(axis=2)
        np.testing.assert_array_equal(prints[:, None] == prints[None], same)


def test_prints_do_not_depend_on_fields_order_machine_or_version():
    """A change of these numbers changes every split that anybody has made."""
    texts = fingerprints(Part(csr_array((3, 1)), texts={"title": ["Größe", "", "\ud800"], "body": ["東京", "", ""]}))
    assert texts.tolist() == TEXT_PRINTS
    swapped = Part(csr_array((3, 1)), texts={"body": ["東京", "", ""], "title": ["Größe", "", "\ud800"]})
    assert fingerprints(swapped).tolist() == TEXT_PRINTS
    rows = fingerprints(Part(csr_array((2, 1)), csr_array([[0.5, 0, -3], [0, 0, 0]])))
    assert rows.tolist() == ROW_PRINTS


def test_points_without_content_have_no_prints():
    with pytest.raises(DataError, match="neither texts nor features"):
        fingerprints(Part(Y2))
    assert fingerprints(of_texts([])).shape == (0,)
    assert fingerprints(Part(csr_array((0, 1)), csr_array((0, 5)))).shape == (0,)


@pytest.mark.parametrize("texts", [False, True])
def test_validation_that_is_test_is_refused(texts):
    def part(rows, labels=None):
        labels = rows if labels is None else labels
        content = {"texts": {"t": [f"text {row}" for row in rows]}} if texts else {"X": csr_array(np.eye(9)[rows])}
        return Part(csr_array(np.eye(9)[labels]), **content)

    def dataset(test, validation):
        return Dataset(part([7, 8]), test, validation, name="leaky")

    test = part([1, 2, 3])
    assert len(dataset(test, part([1, 2, 4])).parts) == 3
    assert len(dataset(test, part([1, 2])).parts) == 3
    assert len(dataset(test, part([1, 2, 3, 3])).parts) == 3
    for same in (test, part([1, 2, 3]), part([3, 1, 2]), part([1, 2, 3], labels=[0, 0, 0])):
        with pytest.raises(DataError, match=r"^test and validation hold the same points"):
            dataset(test, same)
    filtered = Part(test.Y, test.X, test.texts, filtered=test.Y)  # other labels are left, of the same points
    with pytest.raises(DataError, match="same points"):
        dataset(test, filtered)
    assert same_points(test, part([2, 1, 3]))
    assert not same_points(part([1, 1, 2]), part([1, 2, 2]))
    assert not same_points(part([]), part([]))


def test_all_that_can_be_learned_from_is_in_the_print_of_a_data_set():
    Y, Z = csr_array([[1.0, 0], [0, 1]]), csr_array([[1.0, 0], [0, 2]])
    part = Part(Y, texts={"text": ["a", "b"]})
    plain = Dataset(part, label_names=["x", "y"])
    others = [
        Dataset(Part(Y, texts={"text": ["a", "c"]}), label_names=["x", "y"]),
        Dataset(Part(csr_array([[1.0, 0], [1, 0]]), texts=part.texts), label_names=["x", "y"]),
        Dataset(Part(Y, texts=part.texts, filtered=csr_array([[0, 1.0], [0, 0]])), label_names=["x", "y"]),
        Dataset(part, label_names=["x", "z"]),
        Dataset(part),
        Dataset(part, label_names=["x", "y"], label_texts={"text": ["p", "q"]}),
        Dataset(part, label_names=["x", "y"], label_texts={"text": ["p", "r"]}),
        Dataset(part, label_names=["x", "y"], label_texts={"title": ["p", "r"]}),
        Dataset(part, label_names=["x", "y"], Z=Z),
        Dataset(part, label_names=["x", "y"], Z=csr_array([[1.0, 0], [0, 3]])),
    ]
    prints = [fingerprint(one, one.parts.values()) for one in (plain, *others)]
    assert len(set(prints)) == len(prints)
    assert fingerprint(Dataset(part, label_names=["x", "y"]), [part]) == prints[0]
