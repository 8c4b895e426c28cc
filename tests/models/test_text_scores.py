"""Labels that are known by a text only, and labels that are near to each other: stated a second time, slowly."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zipfel.errors import ConfigError
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

TEXTS = ["red apple pie", "green pear", "fast car", "slow red car"] * 5
TAGS = [["fruit", "cake"], ["fruit"], ["car"], ["car"]] * 5
MINE = {"juice": "apple pear", "lorry": "slow car", "nothing": "zzz"}


def fitted(model: str, **settings: object) -> Tagger:
    settings = {"dimension": 8, "epochs": 3, **settings}
    return Tagger(model, settings=settings, text={"min_count": 1}, validation=0, device="cpu").fit(TEXTS, TAGS)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def vectors(tagger: Tagger, texts: list[str]) -> np.ndarray:
    return tagger.predictor_.encode(tagger.features_.transform(texts)).double().numpy()


def scores(tagger: Tagger) -> list[list[float]]:
    found = [dict(row) for row in tagger.predict(["red apple", "car"], 9, extra=MINE)]
    own = [dict(row) for row in tagger.predict(["red apple", "car"], 9)]
    assert [{name: row[name] for name in row if name not in MINE} for row in found] == own
    assert [row["nothing"] for row in found] == [0, 0]  # no word of it is known
    return [[row["juice"], row["lorry"]] for row in found]


def test_glas_scores_a_text_like_a_label():
    tagger = fitted("glas", min_steps=1)
    scale, offset = (float(value) for value in tagger.model_.classifier.scale_and_offset())
    points, labels = vectors(tagger, ["red apple", "car"]), vectors(tagger, list(MINE.values())[:2])
    slow = [[sigmoid(scale * float(x @ z) + offset) for z in labels] for x in points]
    np.testing.assert_allclose(scores(tagger), slow, rtol=1e-5)


def test_lightdxml_mixes_what_classifier_and_shortlist_say_of_a_text():
    tagger = fitted("lightdxml", min_steps=1, beta=0.25)
    model = tagger.model_
    scale, offset = (float(value) for value in model.classifier.scale_and_offset())
    points, labels = vectors(tagger, ["red apple", "car"]), vectors(tagger, list(MINE.values())[:2])
    inner, outer = model.label_encoder.inner, model.label_encoder.outer
    placed = labels @ inner.weight.detach().numpy().T + inner.bias.detach().numpy()
    placed = placed @ outer.weight.detach().numpy().T + outer.bias.detach().numpy()
    placed /= np.linalg.norm(placed, axis=1, keepdims=True)
    slow = [
        [
            0.25 * sigmoid(scale * float(x @ z) + offset) + 0.75 * sigmoid(float(x @ y))
            for z, y in zip(labels, placed, strict=True)
        ]
        for x in points
    ]
    np.testing.assert_allclose(scores(tagger), slow, rtol=1e-5)
    unknown = dict(tagger.predict(["zzz"], 9, extra=MINE)[0])
    assert [unknown[name] for name in MINE] == [0, 0, 0]  # nothing is known of the point


def test_labels_of_a_request_stand_where_their_scores_put_them_before_these_become_probabilities():
    tagger = Tagger("glas", settings={"dimension": 8, "epochs": 9, "min_steps": 1}, text={"min_count": 1}, device="cpu",
                    validation=0.3, calibration="platt").fit(TEXTS * 20, TAGS * 20)  # fmt: skip
    assert tagger.calibration_ is not None
    raw, row = tagger.rank(["slow car"], 9), tagger.features_.transform(["slow car"])
    score = float(tagger.model_.text_scores(tagger.predictor_, row, row)[0, 0])
    place = int((raw.scores[0] >= score).sum())
    found = tagger.predict(["slow car"], 9, extra={"lorry": "slow car"})[0]
    assert [tag.label for tag in found].index("lorry") == place
    assert [tag.score for tag in found] == sorted((tag.score for tag in found), reverse=True)
    assert len(tagger.predict(["slow car"], 2, extra={"lorry": "slow car"})[0]) == 2


@pytest.mark.parametrize("model", ["mnn", "dxml"])
def test_where_points_vote_a_text_is_no_label(model):
    tagger = fitted(model)
    with pytest.raises(ConfigError, match=f"{model} cannot score a label by its text"):
        tagger.predict(["car"], extra=MINE)
    with pytest.raises(ConfigError, match=f"{model} has vectors of points, not of labels"):
        tagger.nearest_labels("car")


@pytest.mark.parametrize("model", ["glas", "lightdxml", "decaf"])
def test_the_nearest_labels_are_those_with_the_largest_cosines(model):
    tagger = fitted(model, min_steps=1)
    rows = tagger.predictor_.first.classifier.vectors.double().numpy()
    own = tagger.classes_.index("car")
    cosines = {
        name: float(rows[own] @ rows[place] / np.linalg.norm(rows[own]) / np.linalg.norm(rows[place]))
        for place, name in enumerate(tagger.classes_)
        if place != own
    }
    best = sorted(cosines, key=lambda name: -cosines[name])
    found = tagger.nearest_labels("car", k=9)
    assert [tag.label for tag in found] == best
    assert [tag.score for tag in found] == pytest.approx([cosines[name] for name in best], abs=1e-6)
    assert tagger.nearest_labels("car", k=1) == found[:1]
    with pytest.raises(ConfigError, match="unknown label 'van'"):
        tagger.nearest_labels("van")
