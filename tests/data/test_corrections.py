"""Corrections: what is read, what counts, and what they change in a data set."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.sparse import csr_array

from zipfel.data.corrected import corrected
from zipfel.data.corrections import Corrections, Decision, read_corrections
from zipfel.data.dataset import Dataset, Part
from zipfel.errors import ConfigError, DataError


def line(text, labels=(), rejected=(), time=None, **more):
    about = {} if time is None else {"correction": {"time": time, "version": "v1", **more}}
    return json.dumps({"text": text, "labels": [*labels], "rejected": [*rejected], "model": "m", **about}) + "\n"


def decided(*triples):
    return Corrections([Decision((("text", text),), label, accepted) for text, label, accepted in triples])


def about(correction):
    return json.dumps({"text": "x", "labels": ["a"], "correction": correction}) + "\n"


def test_a_download_and_the_files_of_a_service_are_read_alike(tmp_path):
    (tmp_path / "b.jsonl").write_text(line("x", ["a"], ["b"]))
    (tmp_path / "a.jsonl").write_text(
        line("x", [], ["a"], "2026-11-02T10:00:00.000+00:00", shown={"a": {"rank": 3, "score": 0.25}}, token="anna")
        + line("y", ["c"], time="2026-11-01T10:00:00.000+00:00", undone=["a"])
    )
    (tmp_path / "begun.jsonl").write_text("")
    read = read_corrections(tmp_path)
    assert [(one.document[0][1], *one[1:]) for one in read.decisions] == [
        ("x", "a", True, None, None, "", "m", None),  # without a time: before all others
        ("x", "b", False, None, None, "", "m", None),
        ("y", "c", True, 0, None, "2026-11-01T10:00:00.000+00:00", "m v1", None),
        ("y", "a", None, 0, None, "2026-11-01T10:00:00.000+00:00", "m v1", None),
        ("x", "a", False, 3, 0.25, "2026-11-02T10:00:00.000+00:00", "m v1", "anna"),
    ]
    settled, overruled = read.settled()
    assert [(one.document[0][1], one.label, one.accepted) for one in settled] == [
        ("x", "b", False), ("y", "c", True), ("x", "a", False),
    ]  # fmt: skip
    assert overruled == 1
    assert read_corrections(tmp_path / "b.jsonl").decisions == read.decisions[:2]


def test_the_order_is_that_of_the_times_in_any_zone(tmp_path):
    times = ["2026-11-02T11:30:00+02:00", "2026-11-02T10:00:00Z", "2026-11-02T09:45:00"]
    (tmp_path / "a.jsonl").write_text("".join(line("x", [str(n)], time=time) for n, time in enumerate(times)))
    decisions = read_corrections(tmp_path).decisions
    assert [one.label for one in decisions] == ["0", "2", "1"]
    assert decisions[0].time == "2026-11-02T09:30:00.000+00:00"


@pytest.mark.parametrize(
    "torn", [b'{"text": "y", "la', b"\0\0\0\0", b'\0\0"labels": []}\n', '{"text": "ü'.encode()[:-1]]
)
def test_a_torn_last_line_is_skipped_with_a_note(tmp_path, torn):
    (tmp_path / "a.jsonl").write_bytes(line("x", ["a"]).encode() + torn)
    read = read_corrections(tmp_path)
    assert len(read.decisions) == 1
    assert read.notes == (f"{tmp_path / 'a.jsonl'}:2: skipped: the last line is torn",)


@pytest.mark.parametrize(
    ("content", "error"),
    [('{"text": \n' + line("x", ["a"]), r"a.jsonl:1: broken JSON"),
     (line("x") + '{"te\n{"te', r"a.jsonl:2: broken JSON"),
     (line("x", ["a"]) + '{"text": 3, "labels": []}\n', r"a.jsonl:2: expected a text under 'text'; found 3"),
     ('{"labels": ["a"]}\n', r"a.jsonl:1: expected a text beside the labels; found none"),
     ('{"text": "x", "labels": "a"}\n', r"a.jsonl:1: expected a list of labels under 'labels'; found 'a'"),
     ('{"text": "x", "labels": [""]}\n', r"a.jsonl:1: the name of a label must not be empty"),
     ('{"text": "x", "correction": 3}\n', r"a.jsonl:1: expected an object under 'correction'; found 3"),
     (about({"shown": []}), r"a.jsonl:1: expected an object under 'shown'; found \[\]"),
     (about({"shown": {"a": 3}}), r"a.jsonl:1: expected an object under 'a'; found 3"),
     (about({"shown": {"a": {"rank": "x"}}}), r"a.jsonl:1: expected a number from 0 on under 'rank'; found 'x'"),
     (about({"shown": {"a": {"score": -1}}}), r"a.jsonl:1: expected a number from 0 on under 'score'; found -1"),
     (about({"time": "yesterday"}), r"a.jsonl:1: expected a time such as .* under 'time'; found 'yesterday'"),
     (about({"time": None}), r"a.jsonl:1: expected a time such as .* under 'time'; found None"),
     (line("x", ["a"]) + "[1]\n", r"a.jsonl:2: expected a JSON object, found '\[1\]'")],  # whole, so it is not torn
)  # fmt: skip
def test_other_bad_lines_are_errors_with_file_and_line(tmp_path, content, error):
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(DataError, match=error):
        read_corrections(tmp_path)


def test_a_folder_without_corrections_is_an_error(tmp_path):
    with pytest.raises(DataError, match="has no corrections"):
        read_corrections(tmp_path)
    with pytest.raises(DataError, match="cannot be read"):
        read_corrections(tmp_path / "none.jsonl")


@pytest.fixture
def dataset():
    Y = csr_array(np.array([[1, 0], [1, 1], [0, 1]], dtype=np.float32))
    train = Part(Y=Y, texts={"text": ["one", "two", "two "]}, weights=np.array([2.0, 0.5, 0.5]))
    test = Part(Y=Y[:1], texts={"text": ["held"]}, filtered=csr_array((1, 2), dtype=np.float32))
    return Dataset(train, test, label_names=["a", "b"], label_texts={"text": ["about a", "about b"]})


def test_accepted_labels_join_their_points_and_rejected_ones_leave_them(dataset):
    corrections = decided(
        ("one", "b", True), ("one", "a", True), ("two", "b", False), ("new\ntext", "z", True),
        ("new\ntext", "a", False),
        ("only", "a", False), ("held", "b", True), ("held", "y", True), ("one", "zz", False),
    )  # fmt: skip
    changed, used = corrected(dataset, corrections)
    assert changed.label_names == ["a", "b", "z"]
    assert changed.train.Y.toarray().tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert changed.train.texts == {"text": ["one", "two", "two ", "new\ntext"]}
    assert changed.train.weights.tolist() == [2.0, 0.5, 0.5, 1.0]
    assert changed.label_texts == {"text": ["about a", "about b", ""]}
    assert changed.test.Y.toarray().tolist() == [[1, 0, 0]]
    assert used._asdict() == {"added": 1, "removed": 2, "points": 1, "labels": 1, "overruled": 0, "rejected_only": 1,
                              "held_out": 1, "foreign": 0}  # fmt: skip
    assert used.lines()[0] == (
        "corrections: 1 labels added to known texts, 2 removed from them, 1 new points, 1 new labels"
    )
    assert dataset.train.Y.toarray().tolist() == [[1, 0], [1, 1], [0, 1]]  # the one that was given stays as it is


def test_the_last_decision_wins_also_between_people(dataset):
    changed, used = corrected(dataset, decided(("one", "a", False), ("one", "b", True), ("one", "a", True)))
    assert changed.train.Y.toarray()[0].tolist() == [1, 1]
    assert used.overruled == 1
    changed, used = corrected(dataset, decided(("one", "a", False), ("one", "a", None)))
    assert (changed.train.Y.toarray()[0].tolist(), used.overruled) == ([1, 0], 0)
    spelled = decided(("one", "a", True), (" one", "a", False))  # the same point, spelled differently
    assert corrected(dataset, spelled)[0].train.Y.toarray()[0].tolist() == [0, 0]


def test_documents_with_fields_are_matched_by_field():
    train = Part(Y=csr_array(np.eye(2, dtype=np.float32)), texts={"Title": ["t", "u"], "body": ["b", ""]})
    documents = [{"body": "b", "title": "t"}, {"title": "u"}, {"text": "t b"}, {"title": "t", "other": "b"}]
    corrections = Corrections([Decision(tuple(sorted(each.items())), "1", True) for each in documents])
    changed, used = corrected(Dataset(train), corrections)
    assert changed.train.Y.toarray().tolist() == [[1, 1], [0, 1]]
    assert (used.points, used.foreign) == (0, 2)


def test_features_take_no_corrections():
    with pytest.raises(ConfigError, match="corrections need a data set of texts alone"):
        corrected(Dataset(Part(Y=csr_array(np.eye(2)), X=csr_array(np.eye(2)))), decided())
