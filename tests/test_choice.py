from __future__ import annotations

import dataclasses
import re

import pytest
from scipy.sparse import csr_array, eye_array
from sklearn.base import clone

from zipfel.choice import (
    LINEAR_WORK,
    MANY_POINTS_A_LABEL,
    PRESETS_OF_BLENDS,
    Choice,
    choose,
    chosen,
    has_label_text,
    share_of_words,
)
from zipfel.data.dataset import Dataset, Part
from zipfel.data.given import dataset_of
from zipfel.errors import ConfigError
from zipfel.models.base import model_class, settings_of
from zipfel.tagger import Tagger
from zipfel.types import Sizes

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["no paper in the printer", "paper jam in the printer", "no wifi in the office", "the wifi is slow"] * 10
TAGS = [["printer"], ["printer"], ["wifi"], ["wifi"]] * 10
CODES = [["B12"], ["B12"], ["90.7"], ["90.7"]] * 10


@pytest.mark.parametrize(
    ("points", "features", "labels", "text", "device", "main", "preset"),
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
def test_the_rule(points, features, labels, text, device, main, preset):
    choice = choose(Sizes(points, features, labels), text, device)
    assert (choice.model, choice.settings, choice.preset) == ("blend", {"main": main}, preset)
    assert choice.why.startswith(f"{main} and linear: ")
    assert ("many for a CPU" in choice.why) == (preset == "fast")
    alone = Choice(main, preset, choice.why.removeprefix(f"{main} and linear: "))
    assert choice.main == alone
    assert alone.main == alone


@pytest.mark.parametrize(("text", "main"), [(True, "decaf"), (False, "lightdxml")])
def test_weighted_points_are_for_a_main_model_alone(text, main):
    """Neither linear classifiers nor MNN weight points."""
    assert choose(Sizes(5_000, 0, 100), text, "cpu").model == "blend"
    choice = choose(Sizes(5_000, 0, 100), text, "cpu", weighted=True)
    assert (choice.model, choice.settings) == (main, {})


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_linear_classifiers_of_very_many_points_and_labels_are_left_out(device):
    points = 500_000
    assert choose(Sizes(points, 0, LINEAR_WORK // points), True, device).model == "blend"
    choice = choose(Sizes(points, 0, LINEAR_WORK // points + 1), True, device)
    assert (choice.model, choice.settings) == ("decaf", {})
    assert choice.preset == ("fast" if device == "cpu" else "default")


@pytest.mark.parametrize(
    ("points", "features", "many"), [(5_000, 0, "mnn"), (5_000, 500, "mnn"), (20_000, 500, "glas")]
)
def test_labels_with_few_points_each_need_classifiers_that_share_features(points, features, many):
    sizes = Sizes(points, features, 100)
    assert choose(sizes, False, "cpu", points_a_label=MANY_POINTS_A_LABEL).main.model == many
    assert choose(sizes, False, "cpu", points_a_label=MANY_POINTS_A_LABEL - 0.1).main.model == "lightdxml"


def test_points_a_label_are_counted():
    assert chosen(dataset_of(TEXTS, CODES), "auto", "default", "cpu").main.model == "mnn"  # 40 points, 2 labels
    assert chosen(dataset_of(TEXTS[:-1], CODES[:-1]), "auto", "default", "cpu").main.model == "lightdxml"


def test_weights_of_points_are_seen():
    given = dataset_of(TEXTS, TAGS, weights=[1.0, 2.0] * 20)
    assert chosen(given, "auto", "default", "cpu") == Choice("decaf", "default", "labels have texts")


def test_a_named_model_or_preset_is_kept():
    dataset = dataset_of(TEXTS, TAGS)
    assert chosen(dataset, "dxml", "paper", "cpu") == Choice("dxml", "paper", "named")
    fast = Choice("blend", "fast", "decaf and linear: labels have texts", {"main": "decaf"})
    assert chosen(dataset, "auto", "fast", "cpu") == fast
    assert chosen(dataset, "auto", "paper", "cpu") == Choice("decaf", "paper", "labels have texts")  # no paper blends


def test_the_presets_of_blends_are_known():
    assert set(PRESETS_OF_BLENDS) == set(model_class("blend").presets)


BLEND = Choice("blend", "default", "decaf and linear: labels have texts", {"main": "decaf"})


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (None, {}),
        ({}, {}),
        ({"epochs": 3, "beam": None}, {"main_settings": {"epochs": "3", "beam": "none"}}),
        ({"tail": 0.5, "linear_settings": {"C": 2}}, {"tail": 0.5, "linear_settings": {"C": 2}}),
        (
            {"epochs": "3", "main_settings": "dimension:8,epochs:4"},
            {"main_settings": {"epochs": "4", "dimension": "8"}},
        ),
        ({"main_settings": {"epochs": 4}, "tail": 1}, {"main_settings": {"epochs": "4"}, "tail": 1}),
    ],
)
def test_settings_are_handed_on_to_the_main_part(given, wanted):
    """As a dict has them, and as the command line has them."""
    assert BLEND.with_settings(given) == {"main": "decaf", **wanted}
    settings_of(BLEND.model, BLEND.preset, BLEND.with_settings(given))


def test_settings_of_other_models_are_left_alone():
    given = {"epochs": 3, "beam": None}
    assert Choice("decaf", "default", "labels have texts").with_settings(given) == given
    assert Choice("blend", "default").with_settings({"main": "glas"}) == {"main": "glas"}  # named: nothing is added


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "settings must be given by name; found 5"),
        ({"main_settings": "epochs"}, "main_settings must be pairs such as a:1,b:2; found 'epochs'"),
        ({"epochs": 0}, "main_settings: epochs must be at least 1; found 0"),
        ({"linear_settings": {"C": 0}}, "linear_settings: C must be above 0; found 0"),
        ({"epohcs": 1}, "main_settings: unknown setting 'epohcs'; did you mean 'epochs'"),
        ({"tail": 2}, "tail must be at least 0 and at most 1; found 2"),
    ],
)
def test_wrong_settings_are_one_line_that_says_where(given, message):
    with pytest.raises(ConfigError, match=re.escape(f"model auto is blend here ({BLEND.why}): {message}")):
        Tagger(settings=given, device="cpu").choice(dataset_of(TEXTS, TAGS))


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
    why = "mnn and linear: labels have no texts but many points each, and 40 points are few"
    assert tagger.chosen_ == Choice("blend", "default", why, {"main": "mnn"})
    assert tagger.settings_.main_settings == {"dimension": "8", "epochs": "2"}
    assert tagger.get_params() == auto().get_params()
    assert tagger.model == "auto"
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.chosen_ == tagger.chosen_
    assert loaded.model == "auto"
    assert loaded.predict(TEXTS[:4], k=1) == tagger.predict(TEXTS[:4], k=1)
    with pytest.raises(ConfigError, match="blend cannot add points without training; fit with warm_start=True"):
        loaded.partial_fit(["toner"], [["B13"]])


def test_a_clone_chooses_again():
    tagger = auto(settings={"dimension": 8, "epochs": 2}).fit(TEXTS, CODES)
    other = clone(tagger)
    assert other.get_params() == tagger.get_params()
    assert not hasattr(other, "chosen_")
    assert other.fit(TEXTS, TAGS).chosen_.main.model == "decaf"
    assert clone(Tagger()).get_params() == Tagger().get_params()


def test_a_warm_start_keeps_the_chosen_model():
    tagger = auto(warm_start=True).fit(TEXTS, CODES)
    assert tagger.fit(TEXTS, TAGS).chosen_.main.model == "mnn"  # a new model would have decaf
    assert tagger.classes_ == ["90.7", "B12", "printer", "wifi"]


def test_an_error_in_the_settings_names_the_chosen_model():
    why = "mnn and linear: labels have no texts but many points each, and 40 points are few"
    message = re.escape(f"model auto is blend here ({why}): main_settings: unknown setting 'beta'")
    with pytest.raises(ConfigError, match=message):
        auto(settings={"beta": 0.5}).fit(TEXTS, CODES)
    with pytest.raises(ConfigError, match=r"model auto is decaf here .*: unknown preset 'fats'; did you mean 'fast'"):
        auto(preset="fats").fit(TEXTS, TAGS)


def test_a_blend_without_vectors_of_labels_has_weights_of_labels():
    assert auto().fit(TEXTS, CODES).nearest_labels("B12", k=1)[0].label == "90.7"
