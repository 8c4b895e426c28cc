"""Texts and counts of labels, through fits that follow each other."""

from __future__ import annotations

import pytest

from zipfel.data.label_notes import LabelNotes
from zipfel.tagger import Tagger, dataset_of

pytestmark = pytest.mark.usefixtures("one_thread")


def test_counts_add_up_and_texts_stay_until_there_are_others():
    first = dataset_of(["a", "b"], [["x"], ["x", "y"]], {"x": "ex", "z": "zed"})
    notes = LabelNotes(counts=[]).grown(["x", "y", "z"], first)
    assert notes == LabelNotes(["ex", "", "zed"], [2, 1, 0])
    second = dataset_of(["c"], [["y", "w"]], {"y": "why"})
    assert notes.grown(["x", "y", "z", "w"], second) == LabelNotes(["ex", "why", "zed", ""], [2, 2, 0, 1])
    assert notes.added(5, ["q"]) == LabelNotes(["ex", "", "zed", "", "q"], [2, 1, 0, 0, 0])
    assert LabelNotes().grown(["x", "y", "z"], first) == LabelNotes(
        ["ex", "", "zed"], None
    )  # of older points none knows
    without = dataset_of(["c"], [["y"]])
    assert LabelNotes(counts=[]).grown(["y"], without) == LabelNotes(None, [1])


def test_they_are_saved_and_grow_with_what_comes_later(tmp_path):
    tagger = Tagger("mnn", settings={"dimension": 8, "epochs": 1}, text={"min_count": 1}, validation=0)
    tagger.fit(["red apple", "fast car"] * 3, [["fruit"], ["car"]] * 3, label_texts={"car": "cars"})
    tagger.partial_fit(["green pear"], [["fruit", "green"]])
    tagger.save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model").label_notes_ == LabelNotes(["cars", "", ""], [3, 4, 1])
    assert tagger.fit(["red apple"], [["fruit"]]).label_notes_ == LabelNotes(None, [1])
