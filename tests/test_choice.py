from __future__ import annotations

import dataclasses

import pytest
from scipy.sparse import csr_array, eye_array
from sklearn.base import clone

from zipfel.choice import Choice, choose, chosen, has_label_text, share_of_words
from zipfel.data.dataset import Dataset, Part
from zipfel.data.given import dataset_of
from zipfel.errors import ConfigError
from zipfel.tagger import Tagger
from zipfel.types import Sizes

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["no paper in the printer", "paper jam in the printer", "no wifi in the office", "the wifi is slow"] * 10
TAGS = [["printer"], ["printer"], ["wifi"], ["wifi"]] * 10
CODES = [["B12"], ["B12"], ["90.7"], ["90.7"]] * 10


@pytest.mark.parametrize(
    ("points", "features", "labels", "text", "device", "model", "preset"),
    [
        (4_880, 1_836, 159, False, "cpu", "mnn", "default"),
        (12_920, 500, 983, False, "cpu", "glas", "default"),
        (10_000, 500, 983, False, "cpu", "mnn", "default"),
        (10_001, 500, 983, False, "cpu", "glas", "default"),
        (10_001, 4_096, 983, False, "cpu", "lightdxml", "default"),
        (45_000, 0, 4_271, False, "cuda", "lightdxml", "default"),
        (14_508, 0, 11_292, True, "cpu", "decaf", "default"),
        (500, 100, 10, True, "cpu", "decaf", "default"),
        (200_000, 0, 20_000, True, "cpu", "decaf", "fast"),
        (200_000, 0, 20_000, True, "cuda", "decaf", "default"),
        (200_000, 0, 20_000, False, "cpu", "lightdxml", "fast"),
    ],
)
def test_the_rule(points, features, labels, text, device, model, preset):
    choice = choose(Sizes(points, features, labels), text, device)
    assert (choice.model, choice.preset) == (model, preset)
    assert ("much for a CPU" in choice.why) == (preset == "fast")


def test_a_named_model_or_preset_is_kept():
    dataset = dataset_of(TEXTS, TAGS)
    assert chosen(dataset, "dxml", "paper", "cpu") == Choice("dxml", "paper", "named")
    assert chosen(dataset, "auto", "fast", "cpu") == Choice("decaf", "fast", "labels have texts")


@pytest.mark.parametrize(
    ("names", "share"),
    [
        (["printer", "paper jam", "office"], 1.0),
        (["R07.1", "12345", "a", "printer"], 0.25),  # "1" and "a" are in the texts, and are no words
        (["toner"], 0.0),
        (["水", "火"], 0.5),
        ([], 0.0),
    ],
)
def test_names_are_words_if_documents_use_them(names, share):
    assert share_of_words(names, {"text": [*TEXTS, "a 1 水"]}) == share


def test_label_texts_count_if_at_least_half_of_the_labels_have_one():
    dataset = dataset_of(TEXTS, TAGS)
    assert has_label_text(dataset)
    assert not has_label_text(dataset_of(TEXTS, CODES))
    assert has_label_text(dataset_of(TEXTS, CODES, {"B12": "printers", "90.7": "networks"}))
    words, codes = [[*row, "paper", "office"] for row in TAGS], [[*row, "C1", "C2"] for row in CODES]
    assert has_label_text(dataset_of(TEXTS, words, {"wifi": "networks"}))  # the others have names of words
    assert not has_label_text(dataset_of(TEXTS, codes, {"B12": "printers"}))


def test_label_features_count_if_points_are_features():
    dataset = Dataset(Part(csr_array(eye_array(3)), X=csr_array(eye_array(3))), label_names=["one", "two", "three"])
    assert not has_label_text(dataset)
    assert has_label_text(dataclasses.replace(dataset, Z=csr_array([[1, 0, 0], [0, 1, 0], [0, 0, 0]])))
    assert not has_label_text(dataclasses.replace(dataset, Z=csr_array([[1, 0, 0], [0, 0, 0], [0, 0, 0]])))


def auto(**given: object) -> Tagger:
    options = {"settings": {"dimension": 8, "epochs": 2}, "text": {"min_count": 1}, "device": "cpu"}
    return Tagger(**{**options, **given})


def test_a_tagger_without_a_model_chooses_one_and_says_which(tmp_path):
    tagger = auto().fit(TEXTS, CODES)
    assert tagger.chosen_ == Choice("mnn", "default", "labels have no texts, and 40 points are few")
    assert tagger.get_params() == auto().get_params()
    assert tagger.model == "auto"
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.chosen_ == tagger.chosen_
    assert loaded.model == "auto"
    assert loaded.predict(TEXTS[:4], k=1) == tagger.predict(TEXTS[:4], k=1)
    assert "B13" in loaded.partial_fit(["toner"], [["B13"]]).classes_


def test_a_clone_chooses_again():
    tagger = auto(settings={"dimension": 8, "epochs": 2}).fit(TEXTS, CODES)
    other = clone(tagger)
    assert other.get_params() == tagger.get_params()
    assert not hasattr(other, "chosen_")
    assert other.fit(TEXTS, TAGS).chosen_.model == "decaf"
    assert clone(Tagger()).get_params() == Tagger().get_params()


def test_a_warm_start_keeps_the_chosen_model():
    tagger = auto(warm_start=True).fit(TEXTS, CODES)
    assert tagger.fit(TEXTS, TAGS).chosen_.model == "mnn"  # a new model would be decaf
    assert tagger.classes_ == ["90.7", "B12", "printer", "wifi"]


def test_an_error_in_the_settings_names_the_chosen_model():
    message = r"model auto is mnn here \(labels have no texts, and 40 points are few\): unknown setting 'beta'"
    with pytest.raises(ConfigError, match=message):
        auto(settings={"beta": 0.5}).fit(TEXTS, CODES)
    with pytest.raises(ConfigError, match=r"model auto is decaf here .*: unknown preset 'fats'; did you mean 'fast'"):
        auto(preset="fats").fit(TEXTS, TAGS)
    with pytest.raises(ConfigError, match="mnn has vectors of points, not of labels"):
        auto().fit(TEXTS, CODES).nearest_labels("B12")
