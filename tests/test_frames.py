"""Data frames, series and Arrow tables as input of `Tagger`; they are read as the command line reads tables."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas
import polars
import pyarrow
import pytest
import torch
from scipy.sparse import csr_array

import zipfel
from zipfel.data.dataset import fingerprint
from zipfel.data.given import dataset_of
from zipfel.errors import ConfigError, DataError
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = {"fruit": ["apple", "pear", "plum"], "car": ["wheel", "engine", "brake"], "sea": ["wave", "fish", "boat"]}
FRAMES = [pandas.DataFrame, polars.DataFrame, pyarrow.table]
IDS = ["pandas", "polars", "arrow"]


def sample(points: int = 40) -> dict[str, list[Any]]:
    draws = random.Random(0)
    tags = [draws.sample(sorted(WORDS), draws.choice([1, 1, 2])) for _ in range(points)]
    title = [" ".join(draws.choice(WORDS[tag]) for tag in row) for row in tags]
    body = [" ".join(draws.choice(WORDS[tag]) for tag in row for _ in range(3)) for row in tags]
    return {"id": list(range(points)), "body": body, "title": title, "tags": tags}


COLUMNS = sample()
FIELDS = {name: COLUMNS[name] for name in ("title", "body")}


def made(**given: Any) -> Tagger:
    settings = {"dimension": 8, "epochs": 4, "min_steps": 1, "learning_rate": 0.03}
    return Tagger("glas", **{"settings": settings, "text": {"min_count": 1}, "device": "cpu", "validation": 0, **given})


@pytest.fixture(scope="module")
def plain() -> Tagger:
    return made().fit(FIELDS, COLUMNS["tags"])


def column(frame: Any, name: str) -> Any:
    return frame.column(name) if isinstance(frame, pyarrow.Table) else frame[name]


def same(one: Any, other: Any) -> bool:
    return fingerprint(one, [one.train]) == fingerprint(other, [other.train])


# --- Points -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FRAMES, ids=IDS)
def test_a_frame_is_tagged_by_its_texts_not_by_the_names_of_its_columns(kind, plain):
    frame = kind(COLUMNS)
    tagger = made().fit(frame, column(frame, "tags"))
    tags = plain.predict(FIELDS, 2)
    assert tagger.predict(frame, 2) == tags
    assert len(tags) == 40
    assert tagger.score(frame, column(frame, "tags")) == plain.score(FIELDS, COLUMNS["tags"])
    assert np.array_equal(tagger.rank(frame, 3).ids, plain.rank(FIELDS, 3).ids)


@pytest.mark.parametrize("kind", FRAMES, ids=IDS)
def test_text_columns_are_named_by_a_parameter(kind, tmp_path):
    frame = kind({"what": COLUMNS["title"], "title": COLUMNS["body"], "tags": COLUMNS["tags"]})
    tagger = made(text_columns=["what"]).fit(frame, column(frame, "tags"))
    wanted = made().fit(COLUMNS["title"], COLUMNS["tags"]).predict(COLUMNS["title"], 2)
    assert tagger.predict(frame, 2) == wanted
    tagger.save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model", device="cpu").predict(frame, 2) == wanted


@pytest.mark.parametrize("kind", FRAMES, ids=IDS)
def test_a_column_of_texts(kind):
    frame = kind({"note": ["red apple", None, "blue wave"], "tags": [["a"], ["b"], ["c"]]})
    wanted = dataset_of(["red apple", "", "blue wave"], [["a"], ["b"], ["c"]])
    assert same(dataset_of(column(frame, "note"), column(frame, "tags")), wanted)
    assert same(dataset_of({"text": column(frame, "note")}, column(frame, "tags")), wanted)


@pytest.mark.parametrize("kind", FRAMES, ids=IDS)
def test_a_frame_without_a_text_column_names_its_columns_and_the_parameter(kind, plain):
    frame = kind({"id": [1, 2], "subject": ["a", "b"]})
    message = r"no text column found; name it with Tagger\(text_columns=\[\.\.\.\]\) \(columns: id, subject\)"
    for act in (lambda: plain.predict(frame), lambda: made().fit(frame, [["x"], ["y"]]), lambda: plain.rank(frame)):
        with pytest.raises(DataError, match=message):
            act()
    with pytest.raises(DataError, match=r"no column 'subjct'; did you mean 'subject'\?"):
        made(text_columns=["subjct"]).fit(frame, [["x"], ["y"]])


def test_errors_of_read_name_the_parameters_of_python():
    with pytest.raises(DataError, match=r"no text column found; set it with TableSettings\(text=\.\.\.\)"):
        zipfel.read(pandas.DataFrame({"tags": ["x"]}))
    with pytest.raises(DataError, match=r"no label column found; set it with TableSettings\(labels=\.\.\.\)"):
        zipfel.read(pandas.DataFrame({"text": ["x"]}))
    notes = zipfel.read(pandas.DataFrame({"text": ["x"], "tags": ["a;b"]})).notes
    assert "set it with TableSettings(sep=...)" in notes[0]


def test_read_takes_arrow_tables():
    table = pyarrow.table({"text": ["one", None], "tags": [["a", "b"], None]})
    assert zipfel.read(table).label_names == ["a", "b"]


def test_two_columns_of_one_name_are_refused():
    frame = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(DataError, match="2 columns are called 'text'"):
        made().fit(frame, [["x"]])


# --- Features ---------------------------------------------------------------------------------------------------------

VECTORS = np.array([[0.5, -1, 0.25], [1, 0, 2]], dtype=np.float32)


@pytest.mark.parametrize(
    "X",
    [
        VECTORS.tolist(),
        list(VECTORS),
        torch.tensor(VECTORS),
        list(torch.tensor(VECTORS)),
        pandas.DataFrame(VECTORS),
        polars.DataFrame(VECTORS),
        pandas.Series(list(VECTORS)),
        pandas.Series(VECTORS.tolist()),
        polars.Series(VECTORS.tolist()),
        pyarrow.array(VECTORS.tolist()),
    ],
    ids=lambda X: type(X).__module__,
)
def test_vectors_in_any_form_are_a_matrix(X):
    assert same(dataset_of(X, [["a"], ["b"]]), dataset_of(VECTORS, [["a"], ["b"]]))


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ([[1.0, 2.0], [1.0]], "row 1 must be a vector of 2 numbers, as row 0 is; found one of 1"),
        ([[1.0, 2.0], None], "row 1 must be a vector of 2 numbers, as row 0 is; found NoneType"),
        ([[1.0, 2.0], "text"], "row 1 must be a vector of 2 numbers, as row 0 is; found str"),
        ([[1.0, 2.0], [1.0, "x"]], "the vectors must hold numbers only: "),
        ([[1.0, 2.0], [1.0, float("nan")]], "row 1 of X has a value that is not a finite float32 number"),
    ],
)
def test_broken_vectors_are_refused(X, message):
    with pytest.raises(DataError, match=message):
        made().fit(X, [["a"], ["b"]])


# --- Tags -------------------------------------------------------------------------------------------------------------

TEXTS = ["one", "two", "three"]
LISTS = [["a", "b"], [], ["b", "c"]]
WANTED = dataset_of(TEXTS, LISTS)


@pytest.mark.parametrize("kind", FRAMES, ids=IDS)
def test_columns_of_strings_and_indicator_frames(kind):
    strings = column(kind({"tags": ["a; b", None, "b;c"]}), "tags")
    assert same(dataset_of(TEXTS, strings, sep=";"), WANTED)
    written = column(kind({"tags": ["['a' 'b']", "", '["b", "c"]']}), "tags")
    assert same(dataset_of(TEXTS, written), WANTED)
    assert same(dataset_of(TEXTS, kind({"tags": ["a;b", "", "b;c"]}), sep=";"), WANTED)
    for cells in ([[1, 0, 0], [1, 0, 1], [0, 0, 1]], [[True, False, False], [True, False, True], [False, False, True]]):
        assert same(dataset_of(TEXTS, kind(dict(zip("abc", cells, strict=True)))), WANTED)


def test_an_indicator_frame_keeps_the_order_of_its_columns_and_may_be_sparse():
    frame = pandas.DataFrame({"c": [0, 0, 1], "a": [1, 0, 0], 7: [1, 0, 1]})
    for y in (frame, frame.astype(pandas.SparseDtype(int, 0))):
        dataset = dataset_of(TEXTS, y)
        assert dataset.label_names == ["c", "a", "7"]
        assert dataset.train.Y.toarray().tolist() == [[0, 1, 1], [0, 0, 0], [1, 0, 1]]


def test_score_matches_an_indicator_frame_by_names(plain):
    truth = pandas.DataFrame({name: [int(name in row) for row in COLUMNS["tags"]] for name in ("sea", "other", "car")})
    only = [[tag for tag in row if tag != "fruit"] for row in COLUMNS["tags"]]
    assert plain.score(FIELDS, truth) == plain.score(FIELDS, only)


def test_arrays_of_classes_and_strings_with_a_separator():
    assert dataset_of(TEXTS, np.array(["x", "y", "x"])).label_names == ["x", "y"]
    assert dataset_of(TEXTS, np.array([3, 10, 3])).label_names == ["10", "3"]
    assert same(dataset_of(TEXTS, ["a;b", "", "b;c"], sep=";"), WANTED)


@pytest.mark.parametrize("value", [2, 2.0, np.float64(2), " 2 "])
def test_labels_get_one_treatment_in_lists_series_and_frames(value):
    nothing = [None, float("nan"), "", " "]
    wanted = ["2"]
    assert dataset_of(["x"], [[value, *nothing]]).label_names == wanted
    assert dataset_of(["x"], pandas.Series([[value, *nothing]])).label_names == wanted
    assert zipfel.read(pandas.DataFrame({"text": ["x"], "tags": [[value, *nothing]]})).label_names == wanted
    assert dataset_of(["x"], [["a"]], label_texts={value: "two"}).label_names == ["2", "a"]
    assert made().fit(["apple"] * 4, [[value]] * 4).score(["apple"], [[2.0]]) == 1


def test_labels_get_one_treatment_when_they_are_changed():
    tagger = made().fit(["apple", "wave"] * 4, [["2"], ["a"]] * 4)
    tagger.rename_labels({2.0: " two "})
    assert tagger.classes_ == ["two", "a"]
    assert list(tagger.remove_labels([" a "]).labels_.live) == ["two"]
    with pytest.raises(DataError, match="the name of a label must not be empty"):
        tagger.rename_labels({"two": " "})


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (pandas.DataFrame({"a": [0, 1, 2]}), "column 'a' of the tags holds 2 in row 2; expected 0 or 1"),
        (pandas.DataFrame({"a": [0, 1, None]}), "column 'a' of the tags holds nan in row 2; expected 0 or 1"),
        (pandas.DataFrame({"a": [0, 1, 1], "b": list("xyz")}), "column 'b' of the tags is not numeric; give one"),
        (pandas.Series([["a"], {"b": 1}, []]), "row 1 of the tags: expected text, found dict"),
        (pandas.Series(["a", "['x' 'y', 'z']", ""]), "row 1 of the tags: no comma between 'x' and 'y'"),
        ([["a"], [b"b"], []], "row 1 of the tags: expected text, found bytes"),
        (["a;b", "c", "d"], r"row 0 of the tags must be a list of names; found 'a;b'; .* set Tagger\(sep=\.\.\.\)"),
    ],
)
def test_tags_that_are_refused(y, message):
    with pytest.raises(DataError, match=message):
        made().fit(TEXTS, y)


def test_a_missing_separator_gives_a_warning():
    with pytest.warns(UserWarning, match=r"most labels contain ';', as in 'a;b'.* set it with Tagger\(sep=\.\.\.\)"):
        made().fit(["apple", "wave"] * 4, pandas.Series(["a;b", "b;c"] * 4))


def test_names_beside_a_matrix():
    Y = csr_array([[1, 1, 0], [0, 0, 0], [0, 1, 1]])
    assert same(dataset_of(TEXTS, Y, label_names=["a", "b", "c"]), WANTED)
    assert dataset_of(TEXTS, Y.toarray(), label_names=np.array([3.0, 2.0, 1.0])).label_names == ["3", "2", "1"]
    tagger = made().fit(["apple", "wave", "wheel"] * 4, np.tile(np.eye(3), (4, 1)), label_names=["x", "y", "z"])
    assert tagger.classes_ == ["x", "y", "z"]
    for names, message in [
        (["a", "b"], "label_names has 2 names, and the matrix of tags 3 columns"),
        (["a", "b", " a"], "two columns of the tags are called 'a'"),
        (["a", "b", None], "the name of a label must not be empty"),
    ]:
        with pytest.raises(DataError, match=message):
            made().fit(TEXTS, Y, label_names=names)
    with pytest.raises(DataError, match="label_names names the columns of a matrix of tags"):
        made().fit(TEXTS, LISTS, label_names=["a"])
    with pytest.raises(DataError, match="label_texts names 'd'; the labels of a matrix are its columns; add one"):
        made().fit(TEXTS, Y, label_names=["a", "b", "c"], label_texts={"d": "x"})


# --- Texts of labels --------------------------------------------------------------------------------------------------

ABOUT = {"a": "first", "2": "", "z": "last"}


@pytest.mark.parametrize(
    "label_texts",
    [
        ABOUT,
        pandas.Series({"a": "first", 2.0: None, "z": "last"}),
        pandas.DataFrame({"name": ["a", 2.0, "z "], "text": ["first", None, "last"]}),
        polars.DataFrame({"name": ["a", "2", "z"], "text": ["first", None, "last"]}),
        pyarrow.table({"name": ["a", "2", "z"], "text": ["first", None, "last"]}),
    ],
    ids=["dict", "series", "pandas", "polars", "arrow"],
)
def test_label_texts_in_any_form(label_texts):
    dataset = dataset_of(TEXTS, LISTS, label_texts)
    assert dataset.label_names == ["2", "a", "b", "c", "z"]
    assert dataset.label_texts == {"text": ["", "first", "", "", "last"]}


def test_label_texts_of_several_columns_are_fields():
    frame = pandas.DataFrame({"name": ["a"], "title": ["A"], "content": ["first"]})
    assert dataset_of(TEXTS, LISTS, frame).label_texts == {"title": ["A", "", ""], "content": ["first", "", ""]}


@pytest.mark.parametrize(
    ("label_texts", "message"),
    [
        (polars.Series(["x"]), "label_texts in a column lack names"),
        (pandas.DataFrame({"text": ["x"]}), "label_texts needs a column of names and one of texts; found one column"),
        (["x"], "label_texts must be a dict, a series or a frame; found list"),
        ({"a": "x", "a ": "y"}, "label_texts has two texts for label 'a'"),
        ({" ": "x"}, "the name of a label must not be empty"),
    ],
)
def test_label_texts_that_are_refused(label_texts, message):
    with pytest.raises(DataError, match=message):
        made().fit(TEXTS, LISTS, label_texts)


def test_new_labels_come_from_a_series_too():
    settings = {"dimension": 8, "epochs": 1, "min_steps": 1}
    tagger = Tagger("decaf", settings=settings, text={"min_count": 1}, device="cpu", validation=0)
    tagger.fit(FIELDS, COLUMNS["tags"])
    extra = tagger.predict(["apple"], 4, extra=pandas.Series({"new": "apple"}))
    assert "new" in {tag.label for tag in extra[0]}
    assert tagger.add_labels(pandas.Series({"new ": "apple"})).classes_[-1] == "new"


@pytest.mark.parametrize("name", ["columns", "column_names", "to_list", "to_pylist", "detach", "index"])
def test_names_that_are_attributes_of_frames_are_names_like_others(name):
    assert dataset_of(TEXTS, LISTS, pandas.Series({name: "x"})).label_names == sorted(["a", "b", "c", name])
    frame = pandas.DataFrame({name: TEXTS, "text": TEXTS})
    assert dataset_of(frame, pandas.DataFrame({name: [1, 0, 1]})).label_names == [name]


# --- A fitted model and its frames ------------------------------------------------------------------------------------


def test_a_frame_is_read_by_the_fields_of_the_model(plain):
    frame = pandas.DataFrame({"text": ["wave"] * 40, **FIELDS})
    assert plain.predict(frame, 2) == plain.predict(FIELDS, 2)  # `text` would be taken from a frame to fit on
    assert plain.predict(frame[["text", "body"]], 2) == plain.predict({"body": COLUMNS["body"]}, 2)
    warm = made(warm_start=True).fit(FIELDS, COLUMNS["tags"]).fit(frame, COLUMNS["tags"])
    assert warm.source_.fields == ("title", "body")
    assert made().fit(FIELDS, COLUMNS["tags"]).fit(frame, COLUMNS["tags"]).source_.fields == ("title", "text", "body")


def test_the_case_of_fields_does_not_matter(plain):
    wanted = plain.predict(FIELDS, 2)
    upper = {"TITLE": COLUMNS["title"], "Body": COLUMNS["body"]}
    assert plain.predict(pandas.DataFrame(upper), 2) == wanted
    assert plain.predict(upper, 2) == wanted
    assert plain.predict([dict(zip(upper, row, strict=True)) for row in zip(*upper.values(), strict=True)], 2) == wanted
    with pytest.raises(ConfigError, match="two text fields differ only in case: title, Title"):
        plain.predict([{"title": "wave", "Title": "fish"}])
    with pytest.raises(ConfigError, match="the model has no text field 'titel'; did you mean 'title'"):
        plain.predict([{"titel": "wave"}])


def test_a_frame_of_missing_texts_is_no_matrix():
    tagger = made().fit(COLUMNS["title"], COLUMNS["tags"])
    missing = pandas.DataFrame({"text": [np.nan, np.nan]})
    assert tagger.predict(missing, 2) == tagger.predict(["", ""], 2)
    assert not tagger.known(missing).any()


def test_a_report_of_labels_reads_frames_and_strings_as_fit_does():
    frame = pandas.DataFrame({"what": COLUMNS["title"], "tags": ["; ".join(tags) for tags in COLUMNS["tags"]]})
    tagger = made(text_columns="what", sep=";").fit(frame, frame["tags"])
    report = tagger.per_label(frame, frame["tags"], 0.3)
    wanted = tagger.per_label(COLUMNS["title"], COLUMNS["tags"], 0.3)
    assert report.rows() == wanted.rows()
    assert dict(zip(report.names, report.support.tolist(), strict=True)) == {
        name: sum(name in tags for tags in COLUMNS["tags"]) for name in WORDS
    }


@pytest.mark.parametrize("columns", [2, 4])
def test_a_matrix_of_tags_with_other_columns_than_labels_is_refused(plain, columns):
    message = f"the matrix of tags has {columns} columns, and the model 3 labels"
    for judge in (plain.score, plain.per_label):
        with pytest.raises(DataError, match=message):
            judge(FIELDS, np.ones((40, columns)))


def test_half_precision_and_empty_lists_of_vectors():
    X = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float16)
    tagger = made().fit(X, COLUMNS["tags"])
    assert tagger.predict(X, 2) == tagger.predict(X.astype(np.float32), 2)
    assert tagger.predict(pandas.DataFrame(X), 2) == tagger.predict(X, 2)
    assert tagger.predict(pandas.DataFrame({"vector": list(X)}), 2) == tagger.predict(X, 2)
    assert tagger.predict([]) == []
    with pytest.raises(DataError, match="a row of features for each point; found an array of 3 dimensions"):
        tagger.predict(X[:, :, None])


# --- Parents ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "parents",
    [
        {" car ": "thing", "fruit": ["thing", None], "sea": float("nan")},
        pandas.Series({"car": "thing", "fruit": ["thing"]}),
        pandas.Series(["thing", "thing"], index=["car", "fruit"]),
        *(kind({"label": ["car", "fruit", "sea"], "parent": ["thing", "thing", None]}) for kind in FRAMES),
    ],
)
def test_parents_in_any_form(parents):
    dataset = dataset_of(COLUMNS["title"], COLUMNS["tags"], parents=parents, ancestors=True)
    assert dataset.hierarchy.parents == {"car": ("thing",), "fruit": ("thing",)}
    assert dataset.label_names == ["car", "fruit", "sea", "thing"]


def test_parents_are_named_as_labels_are():
    dataset = dataset_of(["a b", "b c"], [[1], [2.0]], parents={1.0: 3, "2 ": [3.0]})
    assert dataset.hierarchy.parents == {"1": ("3",), "2": ("3",)}


@pytest.mark.parametrize(
    ("parents", "message"),
    [
        (["car"], "parents must be a dict, a series or a frame; found list"),
        (np.array(["car"]), "parents must be a dict, a series or a frame; found ndarray"),
        ({"": "thing"}, "the name of a label must not be empty"),
        ({"car": [{"a": 1}]}, "parents of label 'car': expected text, found dict"),
        (pandas.DataFrame({"label": ["car"]}), "expected labels in the first column and a column 'parent'"),
    ],
)
def test_parents_that_are_refused(parents, message):
    with pytest.raises(DataError, match=message):
        made().fit(COLUMNS["title"], COLUMNS["tags"], parents=parents)
