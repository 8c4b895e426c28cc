"""The labels of a fitted model: names, ids, counts and texts, through fits and changes."""

from __future__ import annotations

import orjson
import pytest
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part
from zipfel.data.given import dataset_of
from zipfel.data.labels import LabelSpace, first_duplicate, names_as_texts, names_of
from zipfel.errors import ConfigError
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

FIRST = dataset_of(["a", "b"], [["x"], ["x", "y"]], {"x": "ex", "z": "zed"})
XYZ = LabelSpace(["x", "y", "z"], [2, 1, 0], ["ex", "", "zed"], points=2)
WITHOUT_Y = LabelSpace(["x", "y", "z"], [2, 1, 0], ["ex", "", "zed"], removed=(1,), points=2)


def test_labels_of_a_data_set():
    assert LabelSpace.of(FIRST) == XYZ
    assert len(XYZ) == 3
    assert LabelSpace.of(dataset_of(["c"], [["y"]])) == LabelSpace(["y"], [1], None, points=1)
    nameless = Dataset(Part(csr_array([[1, 0], [1, 1]]), X=csr_array((2, 3))))
    assert names_of(nameless) == ["0", "1"]
    assert LabelSpace.of(nameless) == LabelSpace(["0", "1"], [2, 1], points=2)


def test_counts_add_up_and_a_text_stays_until_there_is_another():
    second = dataset_of(["c"], [["y", "w"]], {"y": "why"})
    extended = XYZ.extended(second)
    assert extended == LabelSpace(["x", "y", "z", "w"], [2, 1, 0, 0], ["ex", "", "zed", ""], points=XYZ.points)
    counts, texts = [2, 2, 0, 1], ["ex", "why", "zed", ""]
    assert extended.counted(second) == LabelSpace(["x", "y", "z", "w"], counts, texts, points=XYZ.points + 1)
    assert XYZ.counted(dataset_of(["c"], [["x"]], {"x": ""})).texts == XYZ.texts
    plain = LabelSpace(["x"], [1])
    assert plain.extended(second).counted(second) == LabelSpace(["x", "w", "y"], [1, 1, 1], ["", "", "why"])


def test_fields_of_a_label_text_are_joined_by_newlines():
    fields = {"title": ["a", "b", ""], "body": ["A", "", "C"]}
    dataset = Dataset(Part(csr_array([[1, 1, 1]]), X=csr_array((1, 1))), label_texts=fields)
    assert LabelSpace.of(dataset).texts == ["a\nA", "b", "C"]


def test_labels_known_by_their_texts_are_appended_without_points():
    names, texts = ["x", "y", "z", "q"], ["ex", "", "zed", "queue"]
    assert XYZ.described({"q": "queue"}) == LabelSpace(names, [2, 1, 0, 0], texts, points=2)
    assert LabelSpace(["x"], [1]).described({"q": "queue"}) == LabelSpace(["x", "q"], [1, 0], ["", "queue"])
    for texts in ({"q": "a", "x": "b"}, {"1": "a", 1: "b"}):
        with pytest.raises(ConfigError, match=r"there is already a label '[x1]'"):
            XYZ.described(texts)


def test_a_removed_label_keeps_its_id_and_frees_its_name():
    assert XYZ.without(["y"]) == WITHOUT_Y
    assert WITHOUT_Y.without(["x"]).removed == (0, 1)
    assert len(WITHOUT_Y) == 3
    assert WITHOUT_Y.live == {"x": 0, "z": 2}
    assert WITHOUT_Y.unique_names == ["x", "removed 1: y", "z"]
    again = WITHOUT_Y.described({"y": "why"})
    assert again.live == {"x": 0, "z": 2, "y": 3}
    assert again.counted(dataset_of(["c"], [["y"]], {"y": "new"})) == LabelSpace(
        ["x", "y", "z", "y"], [2, 1, 0, 1], ["ex", "", "zed", "new"], removed=(1,), points=3
    )
    assert WITHOUT_Y.extended(dataset_of(["c"], [["y"]])).names == ["x", "y", "z", "y"]


def test_removed_labels_are_masked_for_every_point():
    assert XYZ.mask(2) is None
    assert WITHOUT_Y.mask(2).toarray().tolist() == [[0, 1, 0], [0, 1, 0]]
    assert XYZ.without(["z", "x"]).mask(1).toarray().tolist() == [[1, 0, 1]]
    assert WITHOUT_Y.mask(0).shape == (0, 3)


def test_ids_of_names():
    assert XYZ.ids(["z", "x"]) == [2, 0]
    assert XYZ.ids(iter([])) == []
    for names, message in ((["y"], "unknown label 'y'"), ("x", "expected a list of labels; found a single one, 'x'")):
        with pytest.raises(ConfigError, match=message):
            WITHOUT_Y.ids(names)


def test_labels_are_renamed_all_at_once():
    assert XYZ.renamed({"x": "y", "y": "x"}).names == ["y", "x", "z"]
    assert WITHOUT_Y.renamed({"x": "y"}).live == {"y": 0, "z": 2}
    assert XYZ.names == ["x", "y", "z"]
    for names, taken in (({"x": "z"}, "z"), ({"x": "q", "y": "q"}, "q")):
        with pytest.raises(ConfigError, match=f"two labels would be called '{taken}'"):
            XYZ.renamed(names)


def test_a_data_set_gets_the_ids_of_the_model():
    """Labels b, c of the data set are 2, 0 of the model, whose own b was removed: 1."""
    labels = LabelSpace(["c", "b", "b"], [0, 0, 0], removed=(1,))
    part = Part(csr_array([[1.0, 0], [1, 1]]), X=csr_array((2, 3)), filtered=csr_array([[0, 1.0], [0, 0]]))
    Z = csr_array([[5.0, 0, 0], [0, 7, 0]])
    aligned = labels.aligned(Dataset(part, label_names=["b", "c"], Z=Z))
    assert aligned.label_names == ["c", "removed 1: b", "b"]
    assert aligned.train.Y.toarray().tolist() == [[0, 0, 1], [1, 0, 1]]
    assert aligned.train.filtered.toarray().tolist() == [[1, 0, 0], [0, 0, 0]]
    assert aligned.Z.toarray().tolist() == [[0, 7, 0], [0, 0, 0], [5, 0, 0]]


def test_json_gives_back_the_labels():
    for labels in (XYZ, WITHOUT_Y, LabelSpace(["x"], [1])):
        assert LabelSpace.of_json(orjson.loads(orjson.dumps(labels.as_json()))) == labels


def test_names_fill_in_for_missing_texts_unless_they_are_numbers_or_known():
    assert names_as_texts(["a", "7", "b", "c"], {"text": ["", " ", "", "see"]}, known={"b"}) == {
        "text": ["a", " ", "", "see"]
    }
    assert names_as_texts(["a", "b"], {"title": ["", ""], "body": ["x", ""]}) == {"title": ["", "b"], "body": ["x", ""]}
    assert names_as_texts(["a"], None) == {"text": ["a"]}


def test_the_first_duplicate():
    assert first_duplicate(["a", "b", "c", "b", "a"]) == "b"
    assert first_duplicate(["a", "b"]) is None


def test_a_saved_model_keeps_counts_and_texts_and_a_later_fit_adds_to_them(tmp_path):
    tagger = Tagger("mnn", settings={"dimension": 8, "epochs": 1}, text={"min_count": 1}, validation=0)
    tagger.fit(["red apple", "fast car"] * 3, [["fruit"], ["car"]] * 3, label_texts={"car": "cars"})
    tagger.partial_fit(["green pear"], [["fruit", "green"]])
    expected = LabelSpace(["car", "fruit", "green"], [3, 4, 1], ["cars", "", ""], points=7)
    assert tagger.labels_ == expected
    tagger.save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model").labels_ == expected
    document = {"names": ["car", "fruit", "green"], "counts": [3, 4, 1], "texts": ["cars", "", ""], "removed": []}
    assert orjson.loads((tmp_path / "model" / "serve" / "labels.json").read_bytes()) == {**document, "points": 7}
    assert tagger.fit(["red apple"], [["fruit"]]).labels_ == LabelSpace(["fruit"], [1], None, points=1)


def test_of_many_labels_those_with_the_same_first_letter_are_compared_in_any_case(monkeypatch):
    monkeypatch.setattr("zipfel.data.labels.COMPARED", 2)
    space = LabelSpace(["import", "export", "Impart"], [1, 1, 1])
    with pytest.raises(ConfigError, match=r"unknown label 'Import'; did you mean 'import'\?"):
        space.ids(["Import"])
    with pytest.raises(ConfigError, match="unknown label 'xport'; known are import, export, Impart"):
        space.ids(["xport"])
