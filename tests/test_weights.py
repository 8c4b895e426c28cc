"""`sample_weight`: points with more weight are drawn more often; 1 changes nothing, and 0 leaves a point out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import polars
import pytest
import torch
from sklearn.model_selection import cross_validate
from sklearn.utils.validation import has_fit_parameter

from zipfel.data.dataset import fingerprint
from zipfel.data.given import dataset_of
from zipfel.errors import ConfigError, DataError
from zipfel.models.base import model_class
from zipfel.tagger import Tagger
from zipfel.training.trainer import drawn

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {"dimension": 16, "epochs": 30, "min_steps": 1, "learning_rate": 0.03}
DECAF = {**SMALL, "epochs": 10, "module1_epochs": 2, "batch_size": 16, "dropout": 0.1}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "glas": ("glas", SMALL),
    "lightdxml": ("lightdxml", {**SMALL, "beta": 1.0}),
    "astec": ("astec", {**SMALL, "module1_epochs": 2, "beta": 1.0}),
    "decaf": ("decaf", DECAF),
    "beam": ("decaf", {**DECAF, "shortlist": "beam", "beam": 2}),
    "parabel": ("decaf", {**DECAF, "shortlist": "parabel"}),
}
TEXTS = ["coin thrown up", "die cast down", "card drawn out", "wheel spun round"] * 20
TAGS = [[f"{text.split()[0]} {'even' if row % 8 < 4 else 'odd'}"] for row, text in enumerate(TEXTS)]  # the text says no
EVEN = np.array([tags[0].endswith("even") for tags in TAGS])


def made(kind: str, **given: Any) -> Tagger:
    model, settings = MODELS.get(kind, (kind, {"dimension": 8, "epochs": 1}))
    defaults = {"settings": settings, "text": {"min_count": 1}, "validation": 0, "device": "cpu"}
    return Tagger(model, **{**defaults, **given})


def same_weights(one: Tagger, other: Tagger) -> bool:
    mine, others = one.model_.state_dict(), other.model_.state_dict()
    return mine.keys() == others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)


@pytest.mark.parametrize("kind", MODELS)
def test_points_with_more_weight_win_as_repeated_points_do(kind):
    asked = ["coin thrown", "die cast"]
    for heavy, name in ((EVEN, "even"), (~EVEN, "odd")):
        weights = np.where(heavy, 4, 1)
        weighted = made(kind).fit(TEXTS, TAGS, sample_weight=weights).predict(asked, 1)
        rows = np.repeat(np.arange(len(TEXTS)), weights)
        repeated = made(kind).fit([TEXTS[row] for row in rows], [TAGS[row] for row in rows]).predict(asked, 1)
        wanted = [f"coin {name}", f"die {name}"]
        assert [row[0].label for row in weighted] == [row[0].label for row in repeated] == wanted


@pytest.mark.parametrize("kind", [*MODELS, "mnn", "dxml"])
def test_equal_weights_change_nothing_and_zero_leaves_out(kind):
    plain = made(kind, validation=0.2).fit(TEXTS, TAGS)
    for weight in (1, 0.3):
        assert same_weights(made(kind, validation=0.2).fit(TEXTS, TAGS, sample_weight=[weight] * len(TEXTS)), plain)
    kept = EVEN | (np.arange(len(TEXTS)) < 40)
    less = [[given[row] for row in np.flatnonzero(kept)] for given in (TEXTS, TAGS)]
    zeros = made(kind).fit(TEXTS, TAGS, sample_weight=kept.astype(float))
    assert same_weights(zeros, made(kind).fit(*less))
    assert zeros.source_.points == kept.sum()


def test_tags_of_points_without_weight_are_no_labels():
    weights = EVEN.astype(float)
    assert len(made("glas").fit(TEXTS, TAGS, sample_weight=weights).classes_) == 4
    Y = pandas.get_dummies(pandas.Series([tags[0] for tags in TAGS]))
    assert made("glas").fit(TEXTS, Y, sample_weight=weights).classes_ == list(Y)  # columns stay columns


@pytest.mark.parametrize("model", ["mnn", "dxml"])
def test_models_that_cannot_weight_points_say_so_before_they_train(model, monkeypatch):
    monkeypatch.setattr("zipfel.tagger.trained", None)
    message = f"{model} cannot weight points, which sample_weight needs; `zipfel models` lists the models that can"
    with pytest.raises(ConfigError, match=message):
        made(model).fit(TEXTS, TAGS, sample_weight=1.0 + EVEN)


def test_auto_chooses_a_model_that_weights_points():
    texts, codes = ["a1 b2"] * 8, [["1"], ["2"]] * 4
    tagger = Tagger(device="cpu")
    plain, settings = tagger.choice(dataset_of(texts, codes))
    assert not model_class(plain.model).abilities(settings).weights_points
    choice, settings = tagger.choice(dataset_of(texts, codes, weights=np.arange(8)))
    assert choice.model == "lightdxml"
    assert model_class(choice.model).abilities(settings).weights_points


def test_points_keep_their_weights_when_some_are_held_out():
    points = dataset_of(TEXTS, TAGS, weights=np.arange(80)).train
    assert points.take(np.array([5, 2])).weights.tolist() == points.weights[[5, 2]].tolist()
    assert len(points) == 79
    part = replace(points, Y=points.Y[:, :2])
    assert np.array_equal(part.weights, points.weights)


def test_a_run_with_other_weights_is_not_resumed():
    parts = [dataset_of(TEXTS, TAGS, weights=weights) for weights in (None, 1.0 + EVEN, 2.0 + EVEN)]
    assert len({fingerprint(dataset, [dataset.train]) for dataset in parts}) == 3


def test_weights_in_any_form_and_among_scikit_learns_tools():
    weights = 1.0 + EVEN
    kinds = (list, tuple, pandas.Series, polars.Series, lambda w: pandas.Series(w, index=np.arange(80)[::-1]))
    wanted = dataset_of(TEXTS, TAGS, weights=weights).train.weights
    assert wanted.mean() == pytest.approx(1)
    assert wanted[EVEN] == pytest.approx(2 * wanted[~EVEN][0])
    for kind in kinds:
        assert np.array_equal(dataset_of(TEXTS, TAGS, weights=kind(weights)).train.weights, wanted)
    assert has_fit_parameter(Tagger(), "sample_weight")
    scores = cross_validate(made("glas"), TEXTS, TAGS, cv=2, params={"sample_weight": weights}, error_score="raise")
    assert len(scores["test_score"]) == 2


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1.0] * 79, "sample_weight has 79 numbers, and X 80 points; they must be equal"),
        ([1.0] * 81, "sample_weight has 81 numbers, and X 80 points; they must be equal"),
        ([1.0] * 79 + [-1], "sample_weight holds -1.0 in row 79; expected a finite number, at least 0"),
        ([1.0] * 79 + [np.nan], "sample_weight holds nan in row 79"),
        ([1.0] * 79 + [None], "sample_weight holds nan in row 79"),
        ([0] * 80, "every sample_weight is zero"),
        (np.ones((80, 2)), "sample_weight must hold one number for each point; found shape"),
        ("balanced", "sample_weight must hold a number for each point; found 'balanced'"),
        (2.0, "sample_weight must hold one number for each point; found shape"),
    ],
)
def test_weights_that_are_refused(weights, message):
    with pytest.raises(DataError, match=message):
        made("glas").fit(TEXTS, TAGS, sample_weight=weights)


# --- Draws ------------------------------------------------------------------------------------------------------------


def test_an_epoch_draws_points_in_proportion_to_their_weights():
    weights = np.array([0.5, 1.0, 2.5, 0.25, 0.75, 1.0])  # mean 1
    counts = np.array([np.bincount(drawn(weights, np.random.default_rng(seed)), minlength=6) for seed in range(2000)])
    assert (counts.sum(axis=1) == 6).all()
    assert (counts >= np.floor(weights)).all()
    assert (counts <= np.ceil(weights)).all()
    assert counts.mean(axis=0) == pytest.approx(weights, abs=0.05)
    again = [drawn(weights, np.random.default_rng(7)).tolist() for _ in range(2)]
    assert again[0] == again[1]
    orders = [drawn(np.array([1.0, 3.0]), np.random.default_rng(seed)).tolist() for seed in range(20)]
    assert len({tuple(order) for order in orders}) > 2  # the order is random too


def test_without_weights_an_epoch_is_a_permutation():
    wanted = np.random.default_rng(3).permutation(50)
    assert np.array_equal(drawn(50, np.random.default_rng(3)), wanted)
