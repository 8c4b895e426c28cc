"""Candidates for a text, and labels that a phrase means."""

from __future__ import annotations

import numpy as np
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
    exact, alike, unlike = (tagger.ground(phrase)[0].score for phrase in ("Wireless LAN", "less lanes", "lamination"))
    assert exact > 0.99 > alike > 0.1 > unlike
    scores = [each.score for each in tagger.ground("wireless printers", 3)]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)


def test_scores_are_probabilities_which_labels_of_one_name_share():
    names = {"1": "Influenza Virus", "2": "influenza virus", "3": "Virus of Apples", "4": "Bones"}
    tagger = Tagger("linear", text={"min_count": 1}, validation=0, device="cpu")
    tagger.fit(["no such words", "nor these"] * 6, [["1"], ["2"]] * 6, label_texts=names)
    first, second, *others = tagger.ground("influenza virus", 4)
    assert (first.label, second.label) == ("1", "2")
    assert first.score == second.score == pytest.approx(0.5, abs=0.01)
    assert sum(each.score for each in [first, second, *others]) < 1
    scores = {1: {"cosine": 1.0, "same": 1.0}, 2: {"model": 0.5}}
    powers = [np.exp(2.27 + 1.61), np.exp(1.67 / 2), np.exp(6.94)]
    found = grounding._probabilities(scores)
    assert found == pytest.approx({1: powers[0] / sum(powers), 2: powers[1] / sum(powers)})


def test_words_are_compared_by_their_beginning_and_by_their_letters():
    assert grounding._alike("laser", "lasers") == pytest.approx((10 / 11) ** 2)  # common beginning
    assert grounding._alike("ylated", "relate") < grounding._alike("methylated", "ethylated")
    pairs = {" a", "ab", "bc", "c "}, {" x", "xa", "ab", "bc", "c "}
    expected = 2 * len(pairs[0] & pairs[1]) / (len(pairs[0]) + len(pairs[1]))
    assert grounding._spelled("abc", "xabc") == pytest.approx(expected)
    phrases = Phrases.of({"1": 0, "2": 1}, ["red apples", "red cars"])
    rarity = {word: phrases.rarity(word) for word in ("red", "apples", "green")}
    said, meant = grounding._covered(phrases, ["green", "apples"], ["red", "apples"])
    alike = grounding._alike("green", "red")
    assert said == pytest.approx((rarity["green"] * alike + rarity["apples"]) / (rarity["green"] + rarity["apples"]))
    assert meant == pytest.approx((rarity["red"] * alike + rarity["apples"]) / (rarity["red"] + rarity["apples"]))


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


@pytest.fixture(scope="module")
def large() -> Tagger:
    """Return a model of more labels than candidates; every text has the same word."""
    numbers = range(60)
    tagger = Tagger("linear", text={"min_count": 1}, validation=0, device="cpu")
    names = {f"L{number}": f"name{number} of things" for number in numbers}
    return tagger.fit([f"text word{number % 7}" for number in numbers], [[f"L{number}"] for number in numbers], names)


def test_a_label_that_the_text_names_is_a_candidate_whatever_its_rank(large, monkeypatch):
    last = [each.label for each in large.candidates("text word3", 60)][-1]
    assert last not in [each.label for each in large.candidates("text word3", 30)]
    text = f"text word3: things of name{last[1:]}"  # the words in any order
    for deep, k in ((1000, 30), (20, 15)):  # ranked late, and not ranked
        monkeypatch.setattr(grounding, "DEEP", deep)
        found = {each.label: each.by for each in large.candidates(text, k)}
        assert found.pop(last) == "name"
        assert set(found.values()) == {"model"}
        assert len(found) == k - 1


def test_candidates_weigh_rank_coverage_and_frequency(large, monkeypatch):
    text, k = "text word3 name5 things name41", 10
    ids, scores = grounding._ranked(large.fitted_, text)
    names, covered = large.labels_.names, large.labels_.phrases.coverage(text)
    values = {
        int(label): grounding.COVERED * covered[label] - np.log1p(rank)
        + grounding.FREQUENT * np.log1p(large.labels_.counts[label])
        for rank, label in enumerate(ids)
    }  # fmt: skip
    best = sorted(values, key=lambda label: -values[label])[:k]
    found = large.candidates(text, k)
    assert {each.label for each in found} == {names[label] for label in best}
    shown = dict(zip([names[label] for label in ids], scores.tolist(), strict=True))
    assert [each.score for each in found] == sorted((shown[each.label] for each in found), reverse=True)


def test_coverage_is_that_of_a_slow_loop():
    texts = ["Heart Valves | Valve", "glass", "", "glass of a valve | Heart Murmur"]
    phrases = Phrases.of({"a": 0, "b": 1, "2": 2, "c": 3}, texts)
    names = [[{"a"}, {"heart", "valve"}, {"valve"}], [{"b"}, {"glass"}], [],
             [{"c"}, {"glass", "of", "a", "valve"}, {"heart", "murmur"}]]  # fmt: skip
    every = [name for own in names for name in own]
    rarity = {stem: 1 + np.log((1 + len(every)) / (1 + sum(stem in name for name in every)))
              for name in every for stem in name}  # fmt: skip
    words = {"replaced", "a", "heart", "valve", "of", "glass"}
    shares = [[sum(rarity[s] for s in name & words) / sum(rarity[s] for s in name) for name in own] for own in names]
    expected = [max(own, default=0) for own in shares]
    assert phrases.coverage("replaced a heart: valves of glass") == pytest.approx(expected)
    assert phrases.coverage("?").tolist() == [0, 0, 0, 0]
    assert Phrases.of({}, []).coverage("heart").tolist() == []


def test_the_number_of_postings_bounds_the_time(monkeypatch):
    phrases = Phrases.of(
        {str(number): number for number in range(50)}, [f"common word{number}" for number in range(50)]
    )
    monkeypatch.setattr("zipfel.data.phrases.POSTINGS", 20)
    assert phrases.search("common word7", 1)[0].label == 7  # by its rarest pieces
