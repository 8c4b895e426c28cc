"""Candidates for a text, and labels that a phrase means."""

from __future__ import annotations

import pytest

from zipfel import grounding
from zipfel.data.phrases import Phrases
from zipfel.errors import ConfigError, DataError
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["the printer is out of paper", "paper jam in the printer", "no wifi here", "the wifi is slow today"] * 5
TAGS = [["D1"], ["D1"], ["D2"], ["D2", "D3"]] * 5
ABOUT = {"D1": "Printers, Laser | Xerography", "D2": "Network | Wireless LAN", "D3": "Latency :: takes long"}


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    settings = {"dimension": 16, "epochs": 40, "min_steps": 1}
    tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0, device="cpu")
    return tagger.fit(TEXTS, TAGS, label_texts=ABOUT, parents={"D1": ["hardware"]})


@pytest.mark.parametrize(
    ("phrase", "label"),
    [("laser printers", "D1"), ("laser printer", "D1"), ("XEROGRAPHY!", "D1"), ("wireles lan", "D2"),
     ("latencies", "D3"), ("d2", "D2")],
)  # fmt: skip
def test_phrases_find_names_whatever_their_order_endings_and_typing(tagger, phrase, label):
    best = tagger.ground(phrase, 1)[0]
    assert (best.label, best.by) == (label, "name")


def test_scores_fall_with_the_likeness_and_the_list_is_sorted(tagger):
    exact, alike = tagger.ground("Wireless LAN")[0], tagger.ground("wireless lamp")[0]
    assert exact.score > 0.9 > alike.score
    scores = [each.score for each in tagger.ground("wireless printers", 3)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_the_model_grounds_what_no_name_says(tagger):
    assert [each.by for each in tagger.ground("jam", 3)] == ["model"] * 3
    assert tagger.ground("jam", 1)[0].label == "D1"


def test_a_phrase_without_words_means_nothing(tagger):
    assert tagger.ground("?! ") == []
    with pytest.raises(DataError, match="at most 1000 characters; found 1001"):
        tagger.ground("x" * 1001)
    with pytest.raises(ConfigError, match="k must be a whole number from 1 to 1000; found 0"):
        tagger.ground("x", 0)


def test_removed_labels_are_not_found(tagger):
    fitted = tagger.fitted_.with_labels(tagger.labels_.without(["D2"]))
    assert "D2" not in [each.label for each in grounding.ground(fitted, "Wireless LAN", 3)]


def test_candidates_carry_what_a_prompt_needs(tagger):
    found = tagger.candidates("paper in the printer", 3)
    first = next(each for each in found if each.label == "D1")
    assert (first.title, first.text) == ("Printers, Laser", ABOUT["D1"])
    assert first.paths == [["hardware", "D1"]]
    lines = grounding.prompt([first]).splitlines()
    assert lines == ["1. D1: Printers, Laser | Xerography (in hardware)"]
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)


def test_labels_that_a_text_names_take_the_last_third():
    merged = grounding._merged([*range(10)], {20: 1, 21: 3, 2: 1, 9: 1}, 6)
    assert merged == {0: "model", 1: "model", 2: "model", 3: "model", 21: "name", 9: "name"}
    assert list(grounding._merged([*range(10)], {}, 6)) == [0, 1, 2, 3, 4, 5]


def test_names_in_a_text_count_in_singular_and_plural():
    phrases = Phrases.of({"a": 0, "b": 1}, ["Heart Valves | Valve", "glass"])
    assert phrases.mentioned("replaced a heart valve of glass") == {0: 2, 1: 1}
    assert phrases.mentioned("heart, then valves; no hearts") == {0: 1}


def test_the_number_of_postings_bounds_the_time(monkeypatch):
    phrases = Phrases.of(
        {str(number): number for number in range(50)}, [f"common word{number}" for number in range(50)]
    )
    monkeypatch.setattr("zipfel.data.phrases.POSTINGS", 20)
    assert phrases.search("common word7", 1)[0].label == 7  # by its rarest pieces
