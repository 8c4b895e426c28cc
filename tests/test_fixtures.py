"""Saved models of each kind and format are loaded and asked, or refused with one line that says what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fixtures.make import ASKED, KINDS
from zipfel.errors import DataError
from zipfel.persistence import FORMAT, SHARDED, verify
from zipfel.tagger import Tagger

FIXTURES = Path(__file__).parent / "fixtures"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_model_of_this_format_answers_as_when_it_was_saved(name):
    folder = FIXTURES / f"format-{FORMAT}"
    assert verify(folder / name) >= 4
    answers = Tagger.load(folder / name, device="cpu").predict(ASKED, k=3)
    expected = json.loads((folder / f"{name}.json").read_text())
    assert [[tag.label for tag in tags] for tags in answers] == [[label for label, _ in tags] for tags in expected]
    scores = [tag.score for tags in answers for tag in tags]
    assert scores == pytest.approx([score for tags in expected for _, score in tags], abs=1e-4)  # other processors
    assert all(tag.label != "slow" for tags in answers for tag in tags)


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_model_of_this_format_learns_on(name):
    tagger = Tagger.load(FIXTURES / f"format-{FORMAT}" / name, device="cpu")
    tagger.set_params(warm_start=True)
    tagger.fit(["toner is empty", "the fax is broken"] * 60, [["printer"], ["fax"]] * 60)
    assert "fax" in tagger.labels_.live
    assert len(tagger.predict(["the fax"], k=4)[0]) == 4


def test_a_model_of_an_older_format_is_refused_with_what_to_do():
    with pytest.raises(
        DataError, match=f"format 1, but this version reads {FORMAT} and {SHARDED}; train the model again"
    ):
        Tagger.load(FIXTURES / "format-1" / "glas")


def test_a_model_of_a_later_format_is_refused_with_what_to_do(tmp_path):
    about = json.loads((FIXTURES / f"format-{FORMAT}" / "glas" / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**about, "format": SHARDED + 1}))
    with pytest.raises(
        DataError, match=f"format {SHARDED + 1}, but this version reads {FORMAT} and {SHARDED}; update zipfel"
    ):
        Tagger.load(tmp_path)


def test_the_command_line_says_it_in_one_line(zipfel_command):
    outcome = zipfel_command("predict", FIXTURES / "format-1" / "glas", "a text")
    assert outcome.code != 0
    assert outcome.err.count("\n") == 1
    assert "format 1, but this version reads" in outcome.err
