from __future__ import annotations

import dataclasses
import json
import random
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from zipfel.choice import Choice
from zipfel.data.dataset import Dataset, Part
from zipfel.data.text import TextFeatures, TextSettings
from zipfel.errors import ConfigError, DataError, ZipfelWarning
from zipfel.fitting import chosen_device
from zipfel.models.base import BUILT_IN, Model, model_class, settings_of
from zipfel.tagger import Tagger
from zipfel.tagging import Tag
from zipfel.training.run import Run

WORDS = {
    "fruit": ["apple", "pear", "plum", "cherry"],
    "car": ["wheel", "engine", "brake", "road"],
    "sea": ["wave", "fish", "boat", "sail"],
}
SMALL = {"dimension": 16, "epochs": 12, "min_steps": 1, "learning_rate": 0.03}


pytestmark = pytest.mark.usefixtures("one_thread")


def sample(points: int, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    """Return texts whose words decide their one or two tags."""
    draws = random.Random(seed)
    texts, tags = [], []
    for _ in range(points):
        chosen = draws.sample(sorted(WORDS), draws.choice([1, 1, 2]))
        tags.append(chosen)
        texts.append(" ".join(draws.choice(WORDS[tag]) for tag in chosen for _ in range(4)))
    return texts, tags


TEXTS, TAGS = sample(60)


def made(**given: Any) -> Tagger:
    options: dict[str, Any] = {"settings": SMALL, "text": {"min_count": 1}, "device": "cpu"}
    return Tagger("glas", **{**options, **given})


def label_rows(tagger: Tagger) -> torch.Tensor:
    rows: torch.Tensor = tagger.model_.classifier.labels.rows.clone()
    return rows


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return made().fit(TEXTS, TAGS)


@pytest.fixture(scope="module")
def matrix(tagger: Tagger) -> csr_array:
    assert tagger.features_ is not None
    return tagger.features_.transform(TEXTS)


@pytest.fixture(scope="module")
def numbers(matrix: csr_array) -> Tagger:
    return made().fit(matrix, TAGS)


def test_texts_get_the_tags_of_their_words(tagger):
    texts, tags = sample(100, seed=1)
    predicted = tagger.predict(texts, k=2)
    assert np.mean([row[0].label in wanted for row, wanted in zip(predicted, tags, strict=True)]) >= 0.95
    both = [({tag.label for tag in row}, set(t)) for row, t in zip(predicted, tags, strict=True) if len(t) == 2]
    assert np.mean([one == other for one, other in both]) >= 0.9
    assert tagger.score(texts, tags) >= 0.95
    assert tagger.classes_ == ["car", "fruit", "sea"]


def test_tags_come_best_first_with_scores_from_0_to_1(tagger):
    for row in tagger.predict([*TEXTS, "", "apple wheel wave"], k=3):
        assert [type(tag) for tag in row] == [Tag, Tag, Tag]
        scores = [tag.score for tag in row]
        assert scores == sorted(scores, reverse=True)
        assert all(0 <= score <= 1 for score in scores)
        assert len({tag.label for tag in row}) == 3


def test_a_text_of_ten_megabytes_is_tagged():
    tagger = made().fit(TEXTS, TAGS)
    piece = TEXTS[0] + " "
    long = piece * (10_000_000 // len(piece))
    assert tagger.predict([long], k=1)[0][0].label == tagger.predict([piece * 50], k=1)[0][0].label


@pytest.mark.parametrize(("features", "relu"), [(63, True), (64, False), (1000, False)])
def test_an_open_nonlinearity_follows_the_features(features, relu):
    assert settings_of("glas", changes={"dimension": 16}).has_relu(features) is relu
    assert settings_of("glas", changes={"dimension": 16, "nonlinear": True}).has_relu(features)
    assert not settings_of("glas", changes={"dimension": 16, "nonlinear": False}).has_relu(features)


def test_small_data_gets_enough_steps():
    settings = {"dimension": 8, "epochs": 1, "min_steps": 50, "batch_size": 6}
    tagger = made(settings=settings, validation=0).fit(TEXTS, TAGS)
    assert tagger.outcome_.epochs == -(-50 * 6 // len(TEXTS))


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
def test_every_loss_gives_scores_from_0_to_1(loss):
    tagger = made(settings={**SMALL, "loss": loss}).fit(TEXTS, TAGS)
    scores = tagger.rank(TEXTS, 3).scores
    assert 0 <= scores.min() < scores.max() <= 1
    assert tagger.score(TEXTS, TAGS) > 0.9


def test_rank_and_predict_agree(tagger):
    ranking = tagger.rank(TEXTS, 2)
    assert ranking.ids.shape == (60, 2)
    rows = [[tagger.classes_[label] for label in row] for row in ranking.ids]
    assert rows == [[tag.label for tag in row] for row in tagger.predict(TEXTS, 2)]


@pytest.mark.parametrize("kind", [csr_array, csr_matrix, lambda m: m.toarray(), lambda m: m.astype(np.float64).tocsc()])
def test_matrices_work_as_points_and_as_tags(tagger, matrix, kind):
    Y = csr_array([[float(name in tags) for name in tagger.classes_] for tags in TAGS])
    numbered = made().fit(kind(matrix), kind(Y))
    assert numbered.classes_ == ["0", "1", "2"]
    assert np.array_equal(numbered.rank(kind(matrix), 3).ids, tagger.rank(TEXTS, 3).ids)
    assert numbered.score(kind(matrix), kind(Y)) == tagger.score(TEXTS, TAGS)
    names = made().fit(TEXTS, kind(Y))
    assert np.array_equal(names.rank(TEXTS, 3).ids, tagger.rank(TEXTS, 3).ids)


def test_features_with_named_tags(numbers, tagger, matrix):
    assert numbers.predict(matrix[:5], 2) == tagger.predict(TEXTS[:5], 2)


def test_fields_of_text_and_iterators_of_tags():
    texts = {"title": TEXTS, "body": ["and so on"] * 60}
    tagger = made().fit(texts, (iter(tags) for tags in TAGS))
    assert tagger.score(texts, TAGS) > 0.9
    assert tagger.classes_ == ["car", "fruit", "sea"]


def test_tags_may_be_numbers_and_may_repeat():
    tagger = made().fit(["apple", "wheel"] * 5, [[7, 7], [8]] * 5)
    assert tagger.classes_ == ["7", "8"]
    assert tagger.predict(["apple"], 1)[0][0].label == "7"


def test_label_texts_add_labels_and_words():
    tagger = made().fit(TEXTS, TAGS, label_texts={"fruit": "apple banana", "moon": "far away"})
    assert tagger.classes_ == ["car", "fruit", "moon", "sea"]
    assert "banana" in tagger.features_.terms
    assert {tag.label for tag in tagger.predict(["apple"], 4)[0]} == set(tagger.classes_)
    assert tagger.score(TEXTS, TAGS) > 0.9


def test_a_label_without_text_is_read_by_its_name():
    tagger = Tagger("decaf", settings={**DECAF, "epochs": 1}, text={"min_count": 1}, device="cpu", validation=0)
    tagger.fit(TEXTS, TAGS, label_texts={"fruit": "apple banana", "car": " "})
    assert {"banana", "car", "sea"} <= set(tagger.features_.terms)
    assert "fruit" not in tagger.features_.terms


def test_the_number_of_a_column_is_not_read_as_text():
    tagger = Tagger("decaf", settings={**DECAF, "epochs": 1}, text={"min_count": 1}, device="cpu", validation=0)
    Y = csr_array([[1, 0], [0, 1]] * 5)
    for label_texts in (None, {"1": "brake"}):
        tagger.fit(["apple", "wheel"] * 5, Y, label_texts=label_texts)
        assert {"0", "1"}.isdisjoint(tagger.features_.terms)


@pytest.mark.parametrize("missing", [None, float("nan"), 7])
def test_a_label_text_that_is_not_text_is_refused(missing):
    with pytest.raises(DataError, match=f"the text of label 'car' must be text; found {type(missing).__name__}"):
        made().fit(TEXTS, TAGS, label_texts={"sea": "boat", "car": missing})


def test_label_texts_of_a_matrix_are_named_by_its_columns():
    Y = csr_array([[1, 0], [0, 1]] * 5)
    tagger = made().fit(["apple", "wheel"] * 5, Y, label_texts={"1": "brake"})
    assert "brake" in tagger.features_.terms
    with pytest.raises(DataError, match="label_texts names '2'; the labels of a matrix are called 0 to 1"):
        made().fit(["apple", "wheel"] * 5, Y, label_texts={"2": "brake"})


def test_save_and_load_give_the_same_ranking(tagger, numbers, matrix, tmp_path):
    for number, (one, X) in enumerate([(tagger, [*TEXTS, ""]), (numbers, matrix)]):
        one.save(tmp_path / str(number))
        other = Tagger.load(tmp_path / str(number), device="cpu")
        before, after = one.rank(X, 3), other.rank(X, 3)
        assert np.array_equal(before.ids, after.ids)
        np.testing.assert_allclose(before.scores, after.scores, rtol=0, atol=1e-6)
        assert other.get_params() == one.get_params()
        assert other.classes_ == one.classes_
        assert other.outcome_ == one.outcome_


def test_presets():
    assert list(model_class("glas").presets) == ["paper", "default", "fast"]
    assert made(preset="paper", settings=None).preset == "paper"
    tagger = made(preset="fast", settings={"epochs": 2, "min_steps": 1, "dimension": 8}).fit(TEXTS, TAGS)
    fast = settings_of("glas", "fast")
    assert tagger.settings_ == settings_of("glas", "fast", {"epochs": 2, "min_steps": 1, "dimension": 8})
    assert (tagger.settings_.epochs, tagger.settings_.batch_size) == (2, fast.batch_size)
    assert settings_of("glas", "paper") != settings_of("glas")


def test_clone_and_parameters(tagger):
    other = clone(tagger)
    assert other.get_params() == tagger.get_params()
    with pytest.raises(NotFittedError):
        other.predict(TEXTS)
    assert other.set_params(seed=4).seed == 4
    assert tagger.seed == 0
    assert "Tagger(" in repr(tagger)


@pytest.mark.parametrize("sparse", [False, True])
def test_grid_search(sparse, tagger, matrix):
    grid = {"settings": [{**SMALL, "epochs": 1, "learning_rate": 1e-6}, SMALL]}
    search = GridSearchCV(made(), grid, cv=2, error_score="raise")
    Y = csr_array([[float(name in tags) for name in tagger.classes_] for tags in TAGS])
    search.fit(matrix if sparse else TEXTS, Y if sparse else TAGS)
    assert search.best_params_ == {"settings": SMALL}
    assert search.best_score_ > 0.8
    assert search.best_estimator_.predict(matrix[:1] if sparse else TEXTS[:1])


def test_seeds():
    one, two, other = (made(seed=seed).fit(TEXTS, TAGS) for seed in (1, 1, 2))
    for name, value in one.model_.state_dict().items():
        assert torch.equal(value, two.model_.state_dict()[name]), name
    assert not torch.equal(label_rows(one), label_rows(other))


def test_fit_changes_neither_its_inputs_nor_global_random_state(matrix):
    X, settings, before = matrix.copy(), dict(SMALL), [list(tags) for tags in TAGS]
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    made(settings=settings).fit(X, before)
    assert torch.equal(torch.rand(1), expected)
    assert (matrix != X).nnz == 0
    assert settings == SMALL
    assert before == TAGS


# --- Warm start -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loaded", [False, True])
def test_warm_start_on_new_rows_with_a_new_label(tmp_path, loaded):
    tagger = made(warm_start=True).fit(TEXTS, TAGS)
    if loaded:
        tagger.save(tmp_path / "model")
        before = label_rows(tagger)
        tagger = Tagger.load(tmp_path / "model", device="cpu").set_params(warm_start=True)
        lengths = tagger.model_.classifier.stored_lengths[:, None]
        torch.testing.assert_close(label_rows(tagger) * lengths, before)
    texts = [f"apple {word}" for word in WORDS["sea"] for _ in range(5)]
    tagger.fit([*texts, *TEXTS[:30]], [*[["angling"]] * 20, *TAGS[:30]])
    assert tagger.classes_ == ["car", "fruit", "sea", "angling"]
    assert len(label_rows(tagger)) == 4
    assert tagger.predict(["apple fish"], 1)[0][0].label == "angling"
    assert tagger.predict(["wheel engine"], 1)[0][0].label == "car"
    tagger.save(tmp_path / "further")
    further = Tagger.load(tmp_path / "further", device="cpu")
    assert further.predict(texts, 2)[0][0].label == "angling"


def test_without_warm_start_fit_starts_over():
    twice = made().fit(["apple", "wheel"] * 5, [["x"], ["y"]] * 5).fit(TEXTS, TAGS)
    assert twice.classes_ == ["car", "fruit", "sea"]
    assert torch.equal(label_rows(twice), label_rows(made().fit(TEXTS, TAGS)))


def test_a_refused_warm_start_changes_nothing(matrix):
    tagger = made(warm_start=True).fit(TEXTS, TAGS)
    rows, tags = label_rows(tagger), tagger.predict(TEXTS)
    with pytest.raises(DataError, match="the model was fitted on texts"):
        tagger.fit(matrix, [["new"]] * 60)
    with pytest.raises(DataError, match="no point has a label"):
        tagger.fit(TEXTS, [[]] * 60)
    assert tagger.classes_ == ["car", "fruit", "sea"]
    assert torch.equal(label_rows(tagger), rows)
    assert tagger.predict(TEXTS) == tags
    numbers = made(warm_start=True).fit(matrix, TAGS)
    with pytest.raises(DataError, match="X has 5 features, but Tagger is expecting 12 features as input"):
        numbers.fit(matrix[:, :5], [["new"]] * 60)
    assert numbers.classes_ == ["car", "fruit", "sea"]


@pytest.mark.parametrize("wrong", [{"settings": {"epochs": 0}}, {"text": {"min_cout": 1}}, {"calibration": "plat"}])
def test_a_refused_fit_keeps_the_last_one(wrong):
    tagger = made().fit(TEXTS, TAGS)
    tags = tagger.predict(TEXTS)
    with pytest.raises(ConfigError):
        tagger.set_params(**wrong).fit(TEXTS, TAGS)
    assert tagger.predict(TEXTS) == tags


def test_refused_points_are_not_remembered(matrix):
    tagger = Tagger("mnn", settings={"dimension": 8, "epochs": 1}, device="cpu").fit(TEXTS, TAGS)
    tags = tagger.predict(TEXTS)
    with pytest.raises(DataError, match="the model was fitted on texts"):
        tagger.partial_fit(matrix, [["new"]] * 60)
    with pytest.raises(DataError, match="nothing to remember"):
        tagger.partial_fit(TEXTS, [[]] * 60)
    assert tagger.predict(TEXTS) == tags
    assert tagger.classes_ == ["car", "fruit", "sea"]


def interrupt_fit(tagger: Tagger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupt a fit on other data, after the model has learned."""
    with monkeypatch.context() as patch:
        patch.setattr(type(tagger.model_), "learners", lambda self: stop())
        with pytest.raises(KeyboardInterrupt):
            tagger.fit(["apple", "wheel"] * 5, [["x"], ["y"]] * 5)


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("warm", [False, True])
def test_after_an_unfinished_fit_nothing_is_predicted(monkeypatch, tmp_path, warm):
    tagger = made(warm_start=warm).fit(TEXTS, TAGS)
    interrupt_fit(tagger, monkeypatch)
    for act in (lambda: tagger.predict(TEXTS), lambda: tagger.save(tmp_path / "m"), lambda: tagger.nearest_labels("x")):
        with pytest.raises(NotFittedError, match="the last fit did not finish"):
            act()
    if warm:
        with pytest.raises(NotFittedError, match="fit with warm_start=False"):
            tagger.fit(TEXTS, TAGS)
    tagger.set_params(warm_start=False).fit(TEXTS, TAGS)
    assert torch.equal(label_rows(tagger), label_rows(made().fit(TEXTS, TAGS)))


# --- New words --------------------------------------------------------------------------------------------------------

MORE = [f"{new} {other}" for new in ("zebra", "okapi") for other in ("herd", "grass", "stripe")] * 10
MORE_TAGS = [[tag] for tag in ("savanna", "forest") for _ in range(3)] * 10
LEARNS_WORDS: dict[str, tuple[str, dict[str, Any]]] = {
    "glas": ("glas", SMALL),
    "lightdxml": ("lightdxml", SMALL),
    "astec": ("astec", {**SMALL, "module1_epochs": 2}),
    "astec, documents": ("astec", {**SMALL, "module1_epochs": 2, "gamma": 0.1, "search_by": "intermediate"}),
    "decaf": ("decaf", {**SMALL, "batch_size": 8}),
    "decaf, beam": ("decaf", {**SMALL, "batch_size": 8, "shortlist": "beam", "clusters": 2, "beam": 1}),
    "decaf, hnsw": ("decaf", {**SMALL, "batch_size": 8, "shortlist": "hnsw"}),
    "decaf, ensemble": ("decaf", {**SMALL, "batch_size": 8, "learners": 2}),
}


@pytest.mark.parametrize("name", LEARNS_WORDS)
def test_a_warm_fit_learns_new_words(name, tmp_path):
    model, settings = LEARNS_WORDS[name]
    first = Tagger(model, settings=settings, validation=0, device="cpu").fit(TEXTS, TAGS)
    first.save(tmp_path / "first")
    before = first.features_
    assert not first.known(["zebra", "okapi"]).any()
    tagger = Tagger.load(tmp_path / "first", device="cpu").set_params(warm_start=True, validation=0)
    tagger.fit(MORE + TEXTS, MORE_TAGS + TAGS)
    after = tagger.features_
    assert after.terms[: len(before.terms)] == before.terms  # ids stay
    assert sorted(after.terms[len(before.terms) :]) == ["grass", "herd", "okapi", "stripe", "zebra"]
    assert np.array_equal(after.idf[: len(before.terms)], before.idf)
    zebras, points = 30, len(TEXTS) + len(MORE) + len(TEXTS)
    names = 5 if model == "decaf" else 0  # it reads the names of labels
    idf = 1 + np.log((1 + points + names) / (1 + zebras))
    assert after.idf[after.terms.index("zebra")] == pytest.approx(idf)
    assert tagger.model_.features == len(after.terms)
    asked = ["zebra", "okapi", "zebra herd", "apple pear", "wheel brake"]
    expected = ["savanna", "forest", "savanna", "fruit", "car"]
    assert [row[0].label for row in tagger.predict(asked)] == expected
    assert tagger.explain("a zebra", "savanna")[0].term == "zebra"
    tagger.save(tmp_path / "second")
    loaded = Tagger.load(tmp_path / "second", device="cpu")
    assert loaded.predict(asked) == tagger.predict(asked)
    assert loaded.set_params(warm_start=True).fit(TEXTS, TAGS).features_.terms == after.terms  # no new word


def test_the_relu_of_glas_stays_when_new_words_make_features_many(tmp_path):
    tagger = Tagger("glas", settings={**SMALL, "dimension": 4}, warm_start=True, validation=0, device="cpu")
    tagger.fit(TEXTS, TAGS)
    assert tagger.model_.embedding.nonlinear  # 12 features are fewer than 4 · 4
    tagger.fit(MORE + TEXTS, MORE_TAGS + TAGS)
    assert tagger.model_.features > 16
    tagger.save(tmp_path / "model")
    assert tagger.model_.embedding.nonlinear
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.model_.embedding.nonlinear
    assert loaded.predict(TEXTS[:5]) == tagger.predict(TEXTS[:5])


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("mnn", {"dimension": 8, "epochs": 1}),
        ("dxml", {"dimension": 8, "hidden_size": 8, "epochs": 1}),
        ("decaf", {**SMALL, "lite": True, "module1_epochs": 1}),
    ],
)
def test_a_model_that_keeps_its_vocabulary_says_so(model, settings):
    tagger = Tagger(model, settings=settings, warm_start=True, device="cpu").fit(TEXTS, TAGS)
    terms = tagger.features_.terms
    with pytest.warns(ZipfelWarning, match=f"^{model} keeps its vocabulary: 5 new words, such as 'okapi', are ignored"):
        tagger.fit(MORE + TEXTS, [*TAGS, *TAGS][: len(MORE)] + TAGS)
    assert tagger.features_.terms == terms
    with warnings.catch_warnings(action="error", category=ZipfelWarning):
        tagger.fit(TEXTS, TAGS)


def test_new_words_must_be_as_frequent_as_others_and_leave_the_limit():
    texts = ["red apple", "red pear"]
    features = TextFeatures.fit(texts, settings=TextSettings(min_count=2, max_features=3))
    assert features.terms == ["red"]
    more = {"text": ["blue sky", "blue sea", "blue sky", "sea", "once"]}
    longer = features.extended(more, None, 2)
    assert longer.terms == ["red", "blue", "sea"]  # "sky" is beyond the limit, "once" is rare
    assert longer.idf.tolist() == pytest.approx([features.idf[0], 1 + np.log(8 / 4), 1 + np.log(8 / 3)])
    assert longer.extended(more, None, 7) is longer


# --- What a model cannot do is said before it trains ------------------------------------------------------------------


@pytest.fixture
def untrained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if a model is trained."""
    for name in BUILT_IN:
        monkeypatch.setattr(model_class(name), "fit", lambda *_: pytest.fail("trained"))


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("options", [{"model": "glas"}, {"model": "mnn", "settings": {"decoder": "labels"}}])
def test_a_first_partial_fit_is_refused_where_a_second_would_be(options):
    tagger = Tagger(**options)
    with pytest.raises(ConfigError, match=f"^{tagger.model} cannot add points without training; fit with warm_start"):
        tagger.partial_fit(TEXTS, TAGS)
    with pytest.raises(NotFittedError, match="has not been fitted"):
        tagger.predict(TEXTS)


@pytest.mark.usefixtures("untrained")
@pytest.mark.parametrize("model", ["glas", "mnn", "dxml"])
def test_a_shortlist_is_refused_by_a_model_that_takes_none(model):
    with pytest.raises(ConfigError, match=f"^{model} has no setting 'shortlist_size': it takes no shortlist; `zipfel"):
        Tagger(model, settings={"shortlist_size": 10}).fit(TEXTS, TAGS)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "glas",
            "glas does not learn from label texts, and only shows them; `zipfel models` lists those that "
            "learn from them",
        ),
        ("mnn", "mnn does not learn from label texts"),
        ("astec", "astec does not learn from label texts"),
        ("lightdxml", "lightdxml uses label texts only for labels without training points"),
        ("decaf", None),
    ],
)
def test_a_model_that_ignores_label_texts_warns_before_training(monkeypatch, model, message):
    monkeypatch.setattr(model_class(model), "fit", lambda *_: stop())
    tagger = Tagger(model, device="cpu")
    with warnings.catch_warnings(record=True, action="always") as caught, pytest.raises(KeyboardInterrupt):
        tagger.fit(TEXTS, TAGS, label_texts={"sea": "boats", "car": " "})
    messages = [str(warning.message) for warning in caught if warning.category is ZipfelWarning]
    assert [line[: len(message or "")] for line in messages] == ([] if message is None else [message])
    with warnings.catch_warnings(action="error"), pytest.raises(KeyboardInterrupt):
        Tagger(model, device="cpu").fit(TEXTS, TAGS, label_texts={"sea": ""})


def test_a_model_without_add_labels_refuses_new_labels_and_stays_as_it_was(monkeypatch):
    tagger = made(warm_start=True).fit(TEXTS, TAGS)
    monkeypatch.setattr(type(tagger.model_), "add_labels", Model.add_labels)
    tags = tagger.predict(TEXTS)
    with pytest.raises(ConfigError, match="glas cannot add new labels, such as 'moon'; fit with warm_start=False"):
        tagger.fit(TEXTS, [["moon"]] * len(TEXTS))
    assert tagger.predict(TEXTS) == tags
    assert tagger.fit(TEXTS, TAGS).classes_ == ["car", "fruit", "sea"]  # no new label


def test_after_an_unfinished_partial_fit_no_more_points_are_taken(monkeypatch):
    tagger = Tagger("mnn", settings={"dimension": 8, "epochs": 1}, device="cpu").partial_fit(TEXTS, TAGS)
    monkeypatch.setattr(type(tagger.model_), "add_points", lambda self, part: stop())
    with pytest.raises(KeyboardInterrupt):
        tagger.partial_fit(["apple"], [["new"]])
    with pytest.raises(NotFittedError, match="the last fit did not finish"):
        tagger.partial_fit(["apple"], [["new"]])


# --- Data sets and runs -----------------------------------------------------------------------------------------------


def divided() -> Dataset:
    """Return a data set of texts with train, validation and test."""
    parts = {}
    for seed, name in enumerate(("train", "validation", "test")):
        texts, tags = sample(120, seed)
        Y = csr_array([[float(name in row) for name in WORDS] for row in tags])
        parts[name] = Part(Y, texts={"text": [f"{name} {text}" for text in texts]})
    return Dataset(**parts, label_names=list(WORDS))


def test_no_features_are_made_of_the_test_part(monkeypatch):
    dataset, count, seen = divided(), TextFeatures.count, list[str]()

    def counted(features: TextFeatures, texts: Any) -> csr_array:
        seen.extend(texts["text"] if isinstance(texts, dict) else texts)
        return count(features, texts)

    monkeypatch.setattr(TextFeatures, "count", counted)
    tagger = made(warm_start=True)
    for _ in range(2):  # the second is a warm start
        seen.clear()
        tagger.fit_dataset(dataset)
        assert {*dataset.train.texts["text"], *dataset.validation.texts["text"]} <= set(seen)
        assert set(seen).isdisjoint(dataset.test.texts["text"])
    assert "test" not in tagger.features_.terms


def test_fit_opens_a_run_and_resumes_only_one_with_the_same_inputs(tmp_path):
    dataset, folder = divided(), tmp_path / "run"
    first = made().fit_dataset(dataset, Run(folder))
    assert (folder / "run.json").is_file()
    log = (folder / "log.jsonl").read_bytes()
    again = made().fit_dataset(dataset, Run(folder))
    assert (folder / "log.jsonl").read_bytes() == log  # no epoch was trained again
    assert torch.equal(label_rows(again), label_rows(first))
    with pytest.raises(ConfigError, match=r"holds a run with other inputs: learning_rate was 0\.03 and is 0\.01;"):
        made(settings={**SMALL, "learning_rate": 0.01}).fit_dataset(dataset, Run(folder))
    with pytest.raises(ConfigError, match="holds a run with other inputs: min_count was 1 and is 2;"):
        made(text={"min_count": 2}).fit_dataset(dataset, Run(folder))
    with pytest.raises(ConfigError, match="holds a run with other inputs: seed was 0 and is 1;"):
        made().fit_dataset(dataset, Run(folder, seed=1))
    with pytest.raises(ConfigError, match="holds a run with other inputs: data was"):
        again.fit_dataset(dataclasses.replace(dataset, train=dataset.train.take(np.arange(100))), Run(folder))
    assert torch.equal(label_rows(again), label_rows(first))  # a refused fit changes nothing


def test_an_opened_run_is_used_as_it_is(tmp_path):
    run = Run(tmp_path / "run")
    run.open({"data": "my own description"})
    made().fit_dataset(divided(), run)
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == {"seed": 0, "data": "my own description"}


@pytest.mark.parametrize("words", [[], ["--model", "auto", "--preset", "fast"]])
def test_train_saves_why_a_model_was_chosen(zipfel_command, tmp_path, words):
    rows = [{"text": text, "labels": tags} for text, tags in zip(TEXTS, TAGS, strict=True)]
    (tmp_path / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--set", "dimension=8", "--set", "epochs=1", "--min-count", "1", "--device", "cpu"]
    outcome = zipfel_command("train", tmp_path / "data.jsonl", "--out", tmp_path / "out", *options, *words)
    assert outcome.code == 0, outcome.err
    about = json.loads((tmp_path / "out" / "model" / "model.json").read_text())
    chosen = Tagger.load(tmp_path / "out").chosen_
    assert about["chosen"] == dataclasses.asdict(chosen)
    assert chosen.why != "named"
    assert f"model {chosen.model}, preset {chosen.preset} ({chosen.why})" in outcome.out
    assert chosen.preset == (words[-1] if words else "default")
    named = ["--model", "blend", "--preset", chosen.preset, "--set", f"main={chosen.main.model}"]
    options[:4] = ["--set", "main_settings=dimension:8,epochs:1"]
    assert zipfel_command("train", tmp_path / "data.jsonl", "--out", tmp_path / "named", *options, *named).code == 0
    first, other = (Tagger.load(tmp_path / name) for name in ("out", "named"))
    assert other.chosen_ == Choice("blend", chosen.preset, "named")
    assert other.settings_ == first.settings_
    assert other.predict(TEXTS) == first.predict(TEXTS)


# --- Filters ----------------------------------------------------------------------------------------------------------


def test_filtered_pairs_are_left_out_of_rankings(tagger):
    filtered = csr_array([[0, 1, 0]] * 60)
    ranking = tagger.rank(TEXTS, 3, filtered)
    plain = tagger.rank(TEXTS, 3)
    assert not (ranking.ids == 1).any()
    assert (ranking.ids[:, 2] == -1).all()
    assert np.array_equal(ranking.ids[:, :2], [[label for label in row if label != 1] for row in plain.ids])
    assert (tagger.rank(TEXTS, 1, filtered).ids >= 0).all()
    with pytest.raises(DataError, match=r"filtered pairs must be 60 × 3; found shape \(60, 2\)"):
        tagger.rank(TEXTS, 1, filtered[:, :2])


@pytest.mark.parametrize("loss", ["margin", "logistic"])
def test_filtered_pairs_are_not_learned_from(loss):
    """Label 0 is right for most points; their pairs with label 1 are filtered, so only label 2 is pushed away."""
    X = csr_array(np.eye(2, dtype=np.float32)[[0] * 20 + [1] * 4])
    Y = csr_array([[1, 0, 0]] * 20 + [[0, 1, 1]] * 4)
    filtered = csr_array([[0, 1, 0]] * 20 + [[0, 0, 0]] * 4)
    settings = {**SMALL, "loss": loss, "regularizer": "none", "feature_dropout": 0, "negatives": 2}

    def scores(part: Part) -> Any:
        tagger = made(settings=settings).fit_dataset(Dataset(part))
        return tagger.rank(X[:1], 3).as_scores(3).toarray()[0]

    free, held = scores(Part(Y, X=X, filtered=filtered)), scores(Part(Y, X=X))
    assert free[1] > 1.1 * held[1]
    assert held[0] > held[1]


# --- Bad input --------------------------------------------------------------------------------------------------------


def test_k_beyond_the_labels_gives_all_and_k_below_1_is_refused(tagger):
    assert tagger.rank(TEXTS[:2], 99).ids.shape == (2, 3)
    assert [len(row) for row in tagger.predict(TEXTS[:2], 99)] == [3, 3]
    for k in (0, -1, 1.5, "3"):
        with pytest.raises(ConfigError, match="k must be a whole number of at least 1; found"):
            tagger.predict(TEXTS, k)


def test_no_points_give_no_tags(tagger, numbers, matrix):
    assert tagger.predict([], 2) == []
    assert tagger.rank([], 2).ids.shape == (0, 2)
    assert numbers.rank(matrix[:0], 2).ids.shape == (0, 2)


def test_texts_without_known_words_still_get_an_answer(tagger):
    for text in ("", " \n\t", "zyzzyva", "\x00\x07\x1b[31m\ud800", "apple" * 10):
        (row,) = tagger.predict([text], 3)
        assert len(row) == 3
        assert all(np.isfinite(tag.score) for tag in row)
    assert tagger.predict(["apple\x00 \x1bpear\x07"], 1)[0][0].label == "fruit"
    assert tagger.predict(["wheel brake " * 100_000], 1)[0][0].label == "car"  # 1.2 MB


def test_odd_texts_do_not_spoil_the_training():
    odd = ["", "\x00\x07", "zyzzyva", "apple pear " * 50_000, "plum\ud800 plum"]
    tagger = made().fit([*TEXTS, *odd], [*TAGS, *[["fruit"]] * 5])
    assert tagger.score(TEXTS, TAGS) > 0.9
    assert all(value.isfinite().all() for value in tagger.model_.state_dict().values())


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
def test_one_label_and_points_without_labels(loss):
    tagger = made(settings={**SMALL, "loss": loss}).fit(TEXTS, [["only"], *[[]] * 59])
    assert all(value.isfinite().all() for value in tagger.model_.state_dict().values())
    assert tagger.predict(["apple", ""], 5)[0][0].label == "only"


def test_tags_that_train_lacks_count_as_missed(tagger):
    assert tagger.score(["apple pear", "wheel"], [["fruit", "dessert"], ["vehicle"]]) == 0.5


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (["a b", "b c"], [["x"]], "X has 2 points and y has 1 rows; they must be equal"),
        (["a b"], csr_array((3, 2)), "X has 1 points and y has 3 rows; they must be equal"),
        (csr_array((2, 4)), [["x"]], "X has 2 points and y has 1 rows; they must be equal"),
        (["a b", "b c"], [[], []], "no point has a label"),
        (["a b", "b c"], csr_array((2, 0)), "no point has a label"),
        ([], [], "no point has a label"),
        (["a b"], ["x"], "row 0 of the tags must be a list of names; found 'x'"),
        (
            ["a b"],
            [None],
            r"row 0 of the tags must be a list of names; found None; write \[\] for a point without tags",
        ),
        (["a b"], "x", "expected a list of tags for each point; found 'x'"),
        (["a b"], None, "expected a list of tags for each point; Tagger requires y to be passed, but the target y is"),
        ("a b", [["x"]], "expected a list of texts; found a single text"),
        (None, [["x"]], "expected a list of texts or a matrix of features; found NoneType"),
        (["a b", None], [["x"], ["y"]], "row 1 must be text; found NoneType"),
        (["a", b"b"], [["x"], ["y"]], "row 1 must be text; found bytes"),
        ({"a": ["x"], "b": []}, [["x"]], "text fields differ in length: 0 of 'b', 1 of 'a'"),
        (csr_array([[np.nan]]), [["x"]], "not a finite"),
        (["", ""], [["x"], ["y"]], "none of the 2 texts has a word"),
    ],
)
def test_bad_input_is_refused(X, y, message):
    with pytest.raises(DataError, match=message):
        made().fit(X, y)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": {"dimensoin": 3}}, "unknown setting 'dimensoin'; did you mean 'dimension'?"),
        ({"settings": {"loss": "hinge"}}, "loss must be one of margin, softmax, logistic; found 'hinge'"),
        ({"settings": {"epochs": 0}}, "epochs must be at least 1; found 0"),
        ({"settings": {"feature_dropout": 1}}, "feature_dropout must be at least 0 and below 1; found 1"),
        ({"settings": {"keep": 0.8}}, "unknown setting 'keep'; it is now called feature_dropout, which is 1 - keep"),
        ({"settings": 5}, "settings must be given by name; found 5"),
        ({"text": {"min_cout": 3}}, "unknown setting 'min_cout'; did you mean 'min_count'?"),
        ({"preset": "fats"}, "unknown preset 'fats'; did you mean 'fast'?"),
        ({"model": "glass"}, "unknown model 'glass'; did you mean 'glas'?"),
        ({"device": "cdua"}, "unknown device 'cdua'; did you mean 'cuda'?"),
        ({"device": "meta"}, "unknown device 'meta'; "),
        ({"seed": -1}, "seed must be a whole number"),
        ({"seed": "7"}, "seed must be a whole number .*; found '7'"),
    ],
)
def test_wrong_options_are_refused_and_unknown_ones_offer_the_nearest(options, message):
    tagger = Tagger(**{"model": "glas", "text": {"min_count": 1}, "device": "cpu", **options})
    with pytest.raises(ConfigError, match=message):
        tagger.fit(TEXTS, TAGS)


def test_devices():
    assert chosen_device("cpu") == torch.device("cpu")
    assert chosen_device("auto").type in ("cpu", "cuda")
    if not torch.cuda.is_available():
        for name in ("cuda", "cuda:0", "cuda:1"):
            with pytest.raises(ConfigError, match=f"device is {name}, but torch finds no GPU here"):
                chosen_device(name)
    for name in ("gpu", "cuda:x", "cuda:", "cuda1", "CPU", None, 1):
        with pytest.raises(ConfigError, match=f"unknown device {name!r}; "):
            chosen_device(name)


def test_one_of_several_gpus_and_apples(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert chosen_device("auto") == torch.device("cuda")
    assert chosen_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="device is cuda:2, but torch finds only cuda:0, cuda:1 here"):
        chosen_device("cuda:2")
    for there in (True, False):
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda there=there: there)
        if there:
            assert chosen_device("mps") == torch.device("mps")
        else:
            with pytest.raises(ConfigError, match="device is mps, but torch finds no Apple GPU here"):
                chosen_device("mps")


def test_threads_are_set_once_for_all_libraries():
    import threadpoolctl

    import zipfel

    before = torch.get_num_threads()
    try:
        with threadpoolctl.threadpool_limits():  # which puts back what was before
            for count in (2, 1):
                zipfel.set_threads(count)
                assert torch.get_num_threads() == count
                assert {pool["num_threads"] for pool in threadpoolctl.threadpool_info()} == {count}
        for count in (0, -1, 1.5, True, "2"):
            with pytest.raises(ConfigError, match=f"threads must be a whole number of at least 1; found {count!r}"):
                zipfel.set_threads(count)
    finally:
        torch.set_num_threads(before)


def test_before_fit(tmp_path):
    for act in (lambda t: t.predict(TEXTS), lambda t: t.rank(TEXTS), lambda t: t.score(TEXTS, TAGS)):
        with pytest.raises(NotFittedError, match="call fit first"):
            act(made())
    with pytest.raises(NotFittedError):
        made().save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_points_of_the_wrong_kind_are_refused(tagger, numbers, matrix):
    with pytest.raises(DataError, match="the model was fitted on texts; found a matrix"):
        tagger.predict(matrix)
    with pytest.raises(DataError, match="the model was fitted on a matrix of features; found list"):
        numbers.predict(TEXTS)
    with pytest.raises(DataError, match="X has 5 features, but Tagger is expecting 12 features as input"):
        numbers.predict(matrix[:, :5])
    with pytest.raises(DataError, match="expected a list of texts; found a single text"):
        tagger.predict("apple")
    with pytest.raises(DataError, match="row 0 must be text; found int"):
        tagger.predict([3])


def test_validation_is_held_out_of_train_and_decides():
    texts, tags = sample(200)
    tagger = made(validation=0.2).fit(texts, tags)
    assert tagger.outcome_.best is not None
    assert tagger.outcome_.best > 0.9
    assert made(validation=0).fit(texts, tags).outcome_.best is None
    assert made(validation=0.2).fit(TEXTS, TAGS).outcome_.best is None  # too few points to spare any
    with pytest.raises(ConfigError, match="share to hold out"):
        made(validation=1.5).fit(texts, tags)


# --- Labels that are added, removed and renamed -----------------------------------------------------------------------

DECAF: dict[str, Any] = {**SMALL, "batch_size": 16, "dropout": 0.0, "module1_epochs": 4, "module1_dropout": 0.0}
KINDS = {"exact": DECAF, "beam": {**DECAF, "shortlist": "beam", "clusters": 1}, "ensemble": {**DECAF, "learners": 2}}


@pytest.fixture(scope="module", params=KINDS)
def saved_decaf(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("decaf") / "model"
    tagger = Tagger("decaf", settings=KINDS[request.param], text={"min_count": 1}, device="cpu")
    tagger.fit(TEXTS, TAGS, label_texts={tag: " ".join(words[:2]) for tag, words in WORDS.items()}).save(folder)
    return folder


@pytest.fixture
def decaf(saved_decaf: Path) -> Tagger:
    return Tagger.load(saved_decaf, device="cpu")


def again(tagger: Tagger, folder: Path) -> Tagger:
    tagger.save(folder)
    return Tagger.load(folder, device="cpu")


def test_new_labels_are_predicted_by_their_texts_at_once(decaf, tmp_path):
    before = decaf.rank(TEXTS, 3)
    assert decaf.add_labels({"angling": "fish boat sail", "stew": "plum fish"}) is decaf
    assert decaf.classes_ == ["car", "fruit", "sea", "angling", "stew"]
    for tagger in (decaf, again(decaf, tmp_path / "model")):
        assert "angling" in [tag.label for tag in tagger.predict(["fish boat sail"], 2)[0]]
        assert tagger.predict(["wheel engine"], 1)[0][0].label == "car"
        ranking = tagger.rank(TEXTS, 5)
        old = [[label for label in row if label < 3] for row in ranking.ids.tolist()]
        assert old == before.ids.tolist()  # the order of the others is as before
        assert tagger.predict(["wheel"], 99)[0][-1].score >= 0
    decaf.add_labels({})
    assert len(decaf.classes_) == 5


def test_labels_without_known_words_are_still_ranked(decaf):
    decaf.add_labels({"empty": "", "odd": "zyzzyva"})
    (row,) = decaf.predict(["wheel"], 5)
    assert {tag.label for tag in row} == {"car", "fruit", "sea", "empty", "odd"}
    assert all(np.isfinite(tag.score) for tag in row)


def test_a_new_label_without_known_words_is_last_and_one_without_text_is_read_by_its_name(decaf):
    decaf.add_labels({"odd": "zyzzyva", "boat": " "})
    for text in TEXTS[:20]:
        assert decaf.predict([text], 5)[0][-1].label == "odd"
    assert "boat" in [tag.label for tag in decaf.predict(["boat"], 2)[0]]
    with pytest.raises(DataError, match="the text of label 'x' must be text; found NoneType"):
        decaf.add_labels({"x": None})
    assert len(decaf.classes_) == 5


@pytest.mark.parametrize("saved_decaf", ["exact", "beam"], indirect=True)
def test_labels_of_a_request_score_as_if_they_had_been_added(decaf):
    new, texts = {"angling": "fish boat sail", "stew": "plum fish"}, ["fish boat", "wheel", "plum", "zyzzyva"]
    extra = decaf.predict(texts, 5, extra=new)
    decaf.add_labels(new)
    for one, other in zip(extra, decaf.predict(texts, 5), strict=True):
        scores = [{tag.label: tag.score for tag in row if tag.label in new} for row in (one, other)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


def test_removed_labels_are_never_predicted_again(decaf, tmp_path):
    before = decaf.rank(TEXTS, 3)
    assert decaf.remove_labels(["fruit"]) is decaf
    for tagger in (decaf, again(decaf, tmp_path / "model")):
        assert tagger.classes_ == ["car", "fruit", "sea"]  # ids stay as they are
        assert tagger.labels_.live == {"car": 0, "sea": 2}
        ranking = tagger.rank(TEXTS, 3)
        assert ranking.ids.tolist() == [[label for label in row if label != 1] for row in before.ids.tolist()]
        assert tagger.rank(TEXTS, 1).ids.max() != 1
        assert [len(row) for row in tagger.predict(["apple", ""], 9)] == [2, 2]  # k is clipped to what is left
        filtered = csr_array([[1.0, 0, 0]] * 60)
        assert set(tagger.rank(TEXTS, 1, filtered).ids.ravel()) == {2}


def test_all_labels_may_be_removed(decaf):
    decaf.remove_labels(["sea", "car", "fruit"])
    assert decaf.predict(["apple", "wheel"], 3) == [[], []]


def test_a_removed_name_may_be_added_again(decaf, tmp_path):
    decaf.remove_labels(["fruit"]).add_labels({"fruit": "apple pear plum cherry"})
    assert decaf.classes_ == ["car", "fruit", "sea", "fruit"]
    for tagger in (decaf, again(decaf, tmp_path / "model")):
        assert tagger.labels_.live == {"car": 0, "sea": 2, "fruit": 3}
        assert tagger.predict(["apple pear plum"], 1)[0][0].label == "fruit"
        assert tagger.rank(["apple pear plum"], 1).ids.tolist() == [[3]]
        assert tagger.score(["apple pear plum"], [["fruit"]]) == 1


def test_a_removed_name_may_be_learned_again_from_points(decaf):
    decaf.remove_labels(["fruit"]).set_params(warm_start=True).fit(TEXTS, TAGS)
    assert decaf.labels_.live == {"car": 0, "sea": 2, "fruit": 3}
    assert decaf.score(TEXTS, TAGS) > 0.9
    assert 1 not in decaf.rank(TEXTS, 3).ids


def test_labels_are_renamed(decaf, tmp_path):
    before = decaf.rank(TEXTS, 3)
    assert decaf.rename_labels({"fruit": "sea", "sea": "ocean"}) is decaf  # all at once
    for tagger in (decaf, again(decaf, tmp_path / "model")):
        assert tagger.classes_ == ["car", "sea", "ocean"]
        assert tagger.predict(["apple pear"], 1)[0][0].label == "sea"
        assert np.array_equal(tagger.rank(TEXTS, 3).ids, before.ids)


def test_a_label_may_take_the_name_of_a_removed_one(decaf):
    decaf.remove_labels(["sea"]).rename_labels({"fruit": "sea"})
    assert decaf.labels_.live == {"car": 0, "sea": 1}
    assert decaf.predict(["apple pear"], 1)[0][0].label == "sea"
    assert decaf.score(["apple pear"], [["sea"]]) == 1


def test_any_model_can_remove_and_rename(tmp_path):
    tagger = made().fit(TEXTS, TAGS).remove_labels(["car"]).rename_labels({"sea": "ocean"})
    loaded = again(tagger, tmp_path / "model")
    assert loaded.labels_.live == {"fruit": 1, "ocean": 2}
    assert 0 not in loaded.rank(TEXTS, 3).ids


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda t: t.add_labels({"fruit": "x"}), "there is already a label 'fruit'"),
        (lambda t: t.add_labels({"1": "x", 1: "y"}), "label_texts has two texts for label '1'"),
        (lambda t: t.remove_labels(["friut"]), "unknown label 'friut'; did you mean 'fruit'?"),
        (lambda t: t.remove_labels("fruit"), "expected a list of labels; found a single one, 'fruit'"),
        (lambda t: t.remove_labels(["sea"]).remove_labels(["sea"]), "unknown label 'sea'"),
        (lambda t: t.rename_labels({"boat": "ship"}), "unknown label 'boat'"),
        (lambda t: t.rename_labels({"fruit": "car"}), "two labels would be called 'car'"),
        (lambda t: t.rename_labels({"fruit": "x", "sea": "y", "car": "y"}), "two labels would be called 'y'"),
    ],
)
@pytest.mark.parametrize("saved_decaf", ["exact"], indirect=True)
def test_changes_of_labels_that_are_refused(decaf, act, message):
    with pytest.raises((ConfigError, DataError), match=re.escape(message)):
        act(decaf)
    assert decaf.classes_ == ["car", "fruit", "sea"]


def test_models_that_cannot_take_labels_by_text(tagger, matrix):
    with pytest.raises(ConfigError, match="glas cannot add labels from their texts alone; fit with warm_start=True"):
        tagger.add_labels({"moon": "far away"})
    numbers = Tagger("decaf", settings={**DECAF, "epochs": 1}, device="cpu").fit(matrix, TAGS)
    with pytest.raises(ConfigError, match="fitted on a matrix of features, and knows no words"):
        numbers.add_labels({"moon": "far away"})
    for act in (lambda t: t.add_labels({}), lambda t: t.remove_labels([]), lambda t: t.rename_labels({})):
        with pytest.raises(NotFittedError):
            act(made())


@pytest.mark.parametrize("threshold", [2, -0.1, float("nan")])
def test_a_threshold_outside_0_to_1_is_refused(tagger, threshold):
    with pytest.raises(ConfigError, match="threshold must be at least 0 and at most 1; found"):
        tagger.predict(TEXTS[:2], threshold=threshold)
