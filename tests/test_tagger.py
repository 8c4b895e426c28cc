from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV

from zipfel.data.dataset import Dataset, Part
from zipfel.errors import ConfigError, DataError
from zipfel.tagger import Tag, Tagger, chosen_device, model_presets, settings_of

WORDS = {
    "fruit": ["apple", "pear", "plum", "cherry"],
    "car": ["wheel", "engine", "brake", "road"],
    "sea": ["wave", "fish", "boat", "sail"],
}
SMALL = {"dimension": 16, "epochs": 12, "steps": 1, "rate": 0.03}


pytestmark = pytest.mark.usefixtures("one_thread")


def sample(points: int, seed: int = 0) -> tuple[list[str], list[list[str]]]:
    """Texts whose words tell their one or two tags."""
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


def test_texts_get_the_tags_that_their_words_tell(tagger):
    texts, tags = sample(100, seed=1)
    found = tagger.predict(texts, k=2)
    assert np.mean([row[0].label in wanted for row, wanted in zip(found, tags, strict=True)]) >= 0.95
    both = [({tag.label for tag in row}, set(t)) for row, t in zip(found, tags, strict=True) if len(t) == 2]
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
    tagger = made(settings={"dimension": 8, "epochs": 1, "steps": 50, "batch": 6}, validation=0).fit(TEXTS, TAGS)
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
def test_matrices_do_on_either_side(tagger, matrix, kind):
    Y = csr_array([[float(name in tags) for name in tagger.classes_] for tags in TAGS])
    found = made().fit(kind(matrix), kind(Y))
    assert found.classes_ == ["0", "1", "2"]
    assert np.array_equal(found.rank(kind(matrix), 3).ids, tagger.rank(TEXTS, 3).ids)
    assert found.score(kind(matrix), kind(Y)) == tagger.score(TEXTS, TAGS)
    names = made().fit(TEXTS, kind(Y))
    assert np.array_equal(names.rank(TEXTS, 3).ids, tagger.rank(TEXTS, 3).ids)


def test_features_with_named_tags(numbers, tagger, matrix):
    assert numbers.predict(matrix[:5], 2) == tagger.predict(TEXTS[:5], 2)


def test_fields_of_text_and_iterators_of_tags():
    texts = {"title": TEXTS, "body": ["and so on"] * 60}
    tagger = made().fit(texts, (iter(tags) for tags in TAGS))
    assert tagger.score(texts, TAGS) > 0.9
    assert tagger.classes_ == ["car", "fruit", "sea"]


def test_tags_may_be_numbers_and_twice():
    tagger = made().fit(["apple", "wheel"] * 5, [[7, 7], [8]] * 5)
    assert tagger.classes_ == ["7", "8"]
    assert tagger.predict(["apple"], 1)[0][0].label == "7"


def test_label_texts_bring_labels_and_words():
    tagger = made().fit(TEXTS, TAGS, label_texts={"fruit": "apple banana", "moon": "far away"})
    assert tagger.classes_ == ["car", "fruit", "moon", "sea"]
    assert "banana" in tagger.features_.terms
    assert {tag.label for tag in tagger.predict(["apple"], 4)[0]} == set(tagger.classes_)
    assert tagger.score(TEXTS, TAGS) > 0.9


def test_a_label_of_which_nothing_is_told_is_read_by_its_name():
    tagger = Tagger("decaf", settings={**DECAF, "epochs": 1}, text={"min_count": 1}, device="cpu", validation=0)
    tagger.fit(TEXTS, TAGS, label_texts={"fruit": "apple banana", "car": " "})
    assert {"banana", "car", "sea"} <= set(tagger.features_.terms)
    assert "fruit" not in tagger.features_.terms


def test_the_number_of_a_column_tells_nothing_of_its_label():
    tagger = Tagger("decaf", settings={**DECAF, "epochs": 1}, text={"min_count": 1}, device="cpu", validation=0)
    Y = csr_array([[1, 0], [0, 1]] * 5)
    for told in (None, {"1": "brake"}):
        assert {"0", "1"}.isdisjoint(tagger.fit(["apple", "wheel"] * 5, Y, label_texts=told).features_.terms)


@pytest.mark.parametrize("missing", [None, float("nan"), 7])
def test_what_is_no_text_of_a_label_is_told(missing):
    told = f"the text of label 'car' must be text; found {type(missing).__name__}"
    with pytest.raises(DataError, match=told):
        made().fit(TEXTS, TAGS, label_texts={"sea": "boat", "car": missing})


def test_label_texts_of_a_matrix_go_by_its_columns():
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
    assert list(model_presets("glas")) == ["paper", "default", "fast"]
    assert made(preset="paper", settings=None).preset == "paper"
    tagger = made(preset="fast", settings={"epochs": 2, "steps": 1, "dimension": 8}).fit(TEXTS, TAGS)
    fast = settings_of("glas", "fast")
    assert tagger.settings_ == settings_of("glas", "fast", {"epochs": 2, "steps": 1, "dimension": 8})
    assert (tagger.settings_.epochs, tagger.settings_.batch) == (2, fast.batch)
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
    grid = {"settings": [{**SMALL, "epochs": 1, "rate": 1e-6}, SMALL]}
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


def test_fitting_does_not_touch_what_it_is_given(matrix):
    X, settings, before = matrix.copy(), dict(SMALL), [list(tags) for tags in TAGS]
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    made(settings=settings).fit(X, before)
    assert torch.equal(torch.rand(1), expected)  # nobody else's draws change
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


def test_a_warm_start_that_is_refused_changes_nothing(matrix):
    tagger = made(warm_start=True).fit(TEXTS, TAGS)
    rows = label_rows(tagger)
    with pytest.raises(DataError, match="the model was fitted on texts"):
        tagger.fit(matrix, [["new"]] * 60)
    with pytest.raises(DataError, match="no point has a label"):
        tagger.fit(TEXTS, [[]] * 60)
    assert tagger.classes_ == ["car", "fruit", "sea"]
    assert torch.equal(label_rows(tagger), rows)
    numbers = made(warm_start=True).fit(matrix, TAGS)
    with pytest.raises(DataError, match="points have 5 features, and the model was fitted on 12"):
        numbers.fit(matrix[:, :5], [["new"]] * 60)
    assert numbers.classes_ == ["car", "fruit", "sea"]


def broken_off(tagger: Tagger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a fit on other data end too soon, after the model has learned."""
    with monkeypatch.context() as patch:
        patch.setattr(type(tagger.model_), "learner", lambda self: stop())
        with pytest.raises(KeyboardInterrupt):
            tagger.fit(["apple", "wheel"] * 5, [["x"], ["y"]] * 5)


def stop() -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("warm", [False, True])
def test_after_a_fit_that_did_not_end_nothing_is_predicted(monkeypatch, tmp_path, warm):
    tagger = made(warm_start=warm).fit(TEXTS, TAGS)
    broken_off(tagger, monkeypatch)
    for act in (lambda: tagger.predict(TEXTS), lambda: tagger.save(tmp_path / "m"), lambda: tagger.nearest_labels("x")):
        with pytest.raises(NotFittedError, match="the last fit of this Tagger did not end"):
            act()
    if warm:
        with pytest.raises(NotFittedError, match="fit with warm_start=False"):
            tagger.fit(TEXTS, TAGS)
    tagger.set_params(warm_start=False).fit(TEXTS, TAGS)
    assert torch.equal(label_rows(tagger), label_rows(made().fit(TEXTS, TAGS)))


def test_after_points_that_were_not_all_taken_no_more_are(monkeypatch):
    tagger = Tagger("mnn", settings={"dimension": 8, "epochs": 1}, device="cpu").partial_fit(TEXTS, TAGS)
    monkeypatch.setattr(type(tagger.model_), "add_points", lambda self, part: stop())
    with pytest.raises(KeyboardInterrupt):
        tagger.partial_fit(["apple"], [["new"]])
    with pytest.raises(NotFittedError, match="did not end"):
        tagger.partial_fit(["apple"], [["new"]])


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
def test_filtered_pairs_do_not_teach(loss):
    """All points say "a"; that "b" is wrong for them is filtered, so only "c" is pushed away."""
    X = csr_array(np.eye(2, dtype=np.float32)[[0] * 20 + [1] * 4])
    Y = csr_array([[1, 0, 0]] * 20 + [[0, 1, 1]] * 4)
    filtered = csr_array([[0, 1, 0]] * 20 + [[0, 0, 0]] * 4)
    settings = {**SMALL, "loss": loss, "regularizer": "none", "keep": 1, "negatives": 2}

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


def test_texts_that_tell_nothing_still_get_an_answer(tagger):
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


def test_labels_of_test_that_train_has_not(tagger):
    assert tagger.score(["apple pear", "wheel"], [["fruit", "dessert"], ["vehicle"]]) == 0.5


@pytest.mark.parametrize(
    ("X", "y", "told"),
    [
        (["a b", "b c"], [["x"]], "2 points and 1 rows of tags must be as many"),
        (["a b"], csr_array((3, 2)), "1 points and 3 rows of tags must be as many"),
        (csr_array((2, 4)), [["x"]], "2 points and 1 rows of tags must be as many"),
        (["a b", "b c"], [[], []], "no point has a label"),
        (["a b", "b c"], csr_array((2, 0)), "no point has a label"),
        ([], [], "no point has a label"),
        (["a b"], ["x"], "row 0 of the tags must be a list of names; found 'x'"),
        (["a b"], [None], "row 0 of the tags must be a list of names; found None"),
        (["a b"], "x", "expected a list of tags for each point, found 'x'"),
        (["a b"], None, "expected a list of tags for each point, found None"),
        ("a b", [["x"]], "expected a list of texts, found one text"),
        (None, [["x"]], "expected a list of texts or a matrix of features, found NoneType"),
        (["a b", None], [["x"], ["y"]], "row 1 must be text; found NoneType"),
        (["a", b"b"], [["x"], ["y"]], "row 1 must be text; found bytes"),
        ({"a": ["x"], "b": []}, [["x"]], "texts of 'b'"),
        (csr_array([[np.nan]]), [["x"]], "not a finite"),
        (["", ""], [["x"], ["y"]], "none of 0 terms"),
    ],
)
def test_bad_input_is_told(X, y, told):
    with pytest.raises(DataError, match=told):
        made().fit(X, y)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"settings": {"dimensoin": 3}}, "unknown setting 'dimensoin'; did you mean 'dimension'?"),
        ({"settings": {"loss": "hinge"}}, "loss must be one of margin, softmax, logistic; found 'hinge'"),
        ({"settings": {"epochs": 0}}, "epochs must be at least 1; found 0"),
        ({"settings": {"keep": 0}}, r"keep must lie in \(0, 1\]; found 0"),
        ({"settings": 5}, "settings must be given by name; found 5"),
        ({"text": {"min_cout": 3}}, "unknown setting 'min_cout'; did you mean 'min_count'?"),
        ({"preset": "fats"}, "unknown preset 'fats'; did you mean 'fast'?"),
        ({"model": "glass"}, "unknown model 'glass'; did you mean 'glas'?"),
        ({"device": "cdua"}, "unknown device 'cdua'; did you mean 'cuda'?"),
        ({"device": "meta"}, "unknown device 'meta'; "),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_unknown_settings_offer_the_nearest(options, told):
    tagger = Tagger(**{"model": "glas", "text": {"min_count": 1}, "device": "cpu", **options})
    with pytest.raises(ConfigError, match=told):
        tagger.fit(TEXTS, TAGS)


def test_devices():
    assert chosen_device("cpu") == torch.device("cpu")
    assert chosen_device("auto").type in ("cpu", "cuda")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="device is cuda, and torch finds no GPU here"):
            chosen_device("cuda")


def test_before_fit(tmp_path):
    for act in (lambda t: t.predict(TEXTS), lambda t: t.rank(TEXTS), lambda t: t.score(TEXTS, TAGS)):
        with pytest.raises(NotFittedError, match="call fit first"):
            act(made())
    with pytest.raises(NotFittedError):
        made().save(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_other_kind_of_points_is_told(tagger, numbers, matrix):
    with pytest.raises(DataError, match="the model was fitted on texts; found a matrix"):
        tagger.predict(matrix)
    with pytest.raises(DataError, match="the model was fitted on a matrix of features; found list"):
        numbers.predict(TEXTS)
    with pytest.raises(DataError, match="points have 5 features, and the model was fitted on 12"):
        numbers.predict(matrix[:, :5])
    with pytest.raises(DataError, match="expected a list of texts, found one text"):
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


# --- Labels that come, go, and are renamed ----------------------------------------------------------------------------

DECAF: dict[str, Any] = {**SMALL, "batch": 16, "drop": 0.0, "first_epochs": 4, "first_drop": 0.0}
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
        found = tagger.rank(TEXTS, 5)
        old = [[label for label in row if label < 3] for row in found.ids.tolist()]
        assert old == before.ids.tolist()  # the others keep their places
        assert tagger.predict(["wheel"], 99)[0][-1].score >= 0
    decaf.add_labels({})
    assert len(decaf.classes_) == 5


def test_labels_whose_texts_say_nothing_can_still_be_ranked(decaf):
    decaf.add_labels({"empty": "", "odd": "zyzzyva"})
    (row,) = decaf.predict(["wheel"], 5)
    assert {tag.label for tag in row} == {"car", "fruit", "sea", "empty", "odd"}
    assert all(np.isfinite(tag.score) for tag in row)


def test_a_label_of_which_no_word_is_known_stands_last_and_one_without_text_goes_by_its_name(decaf):
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
        assert tagger.live_labels() == {"car": 0, "sea": 2}
        ranking = tagger.rank(TEXTS, 3)
        assert ranking.ids.tolist() == [[label for label in row if label != 1] for row in before.ids.tolist()]
        assert tagger.rank(TEXTS, 1).ids.max() != 1
        assert [len(row) for row in tagger.predict(["apple", ""], 9)] == [2, 2]  # k is clipped to what is left
        filtered = csr_array([[1.0, 0, 0]] * 60)
        assert set(tagger.rank(TEXTS, 1, filtered).ids.ravel()) == {2}


def test_all_labels_may_be_removed(decaf):
    decaf.remove_labels(["sea", "car", "fruit"])
    assert decaf.predict(["apple", "wheel"], 3) == [[], []]


def test_a_removed_name_may_come_again(decaf, tmp_path):
    decaf.remove_labels(["fruit"]).add_labels({"fruit": "apple pear plum cherry"})
    assert decaf.classes_ == ["car", "fruit", "sea", "fruit"]
    for tagger in (decaf, again(decaf, tmp_path / "model")):
        assert tagger.live_labels() == {"car": 0, "sea": 2, "fruit": 3}
        assert tagger.predict(["apple pear plum"], 1)[0][0].label == "fruit"
        assert tagger.rank(["apple pear plum"], 1).ids.tolist() == [[3]]
        assert tagger.score(["apple pear plum"], [["fruit"]]) == 1


def test_a_removed_name_may_come_again_with_points(decaf):
    decaf.remove_labels(["fruit"]).set_params(warm_start=True).fit(TEXTS, TAGS)
    assert decaf.live_labels() == {"car": 0, "sea": 2, "fruit": 3}
    assert decaf.score(TEXTS, TAGS) > 0.9
    assert 1 not in decaf.rank(TEXTS, 3).ids


def test_labels_are_renamed(decaf, tmp_path):
    before = decaf.rank(TEXTS, 3)
    assert decaf.rename_labels({"fruit": "sea", "sea": "ocean"}) is decaf  # all at once
    for tagger in (decaf, again(decaf, tmp_path / "model")):
        assert tagger.classes_ == ["car", "sea", "ocean"]
        assert tagger.predict(["apple pear"], 1)[0][0].label == "sea"
        assert np.array_equal(tagger.rank(TEXTS, 3).ids, before.ids)


def test_a_label_may_be_called_as_a_removed_one_was(decaf):
    decaf.remove_labels(["sea"]).rename_labels({"fruit": "sea"})
    assert decaf.live_labels() == {"car": 0, "sea": 1}
    assert decaf.predict(["apple pear"], 1)[0][0].label == "sea"
    assert decaf.score(["apple pear"], [["sea"]]) == 1


def test_any_model_can_remove_and_rename(tmp_path):
    tagger = made().fit(TEXTS, TAGS).remove_labels(["car"]).rename_labels({"sea": "ocean"})
    found = again(tagger, tmp_path / "model")
    assert found.live_labels() == {"fruit": 1, "ocean": 2}
    assert 0 not in found.rank(TEXTS, 3).ids


@pytest.mark.parametrize(
    ("act", "told"),
    [
        (lambda t: t.add_labels({"fruit": "x"}), "there is a label 'fruit' already"),
        (lambda t: t.add_labels({"1": "x", 1: "y"}), "there is a label '1' already"),
        (lambda t: t.remove_labels(["friut"]), "unknown label 'friut'; did you mean 'fruit'?"),
        (lambda t: t.remove_labels("fruit"), "expected a list of labels, found one: 'fruit'"),
        (lambda t: t.remove_labels(["sea"]).remove_labels(["sea"]), "unknown label 'sea'"),
        (lambda t: t.rename_labels({"boat": "ship"}), "unknown label 'boat'"),
        (lambda t: t.rename_labels({"fruit": "car"}), "two labels would be called 'car'"),
        (lambda t: t.rename_labels({"fruit": "x", "sea": "y", "car": "y"}), "two labels would be called 'y'"),
    ],
)
@pytest.mark.parametrize("saved_decaf", ["exact"], indirect=True)
def test_labels_that_cannot_be_changed(decaf, act, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        act(decaf)
    assert decaf.classes_ == ["car", "fruit", "sea"]


def test_models_that_cannot_take_texts_of_labels(tagger, matrix):
    with pytest.raises(ConfigError, match="glas does not read texts of labels"):
        tagger.add_labels({"moon": "far away"})
    numbers = Tagger("decaf", settings={**DECAF, "epochs": 1}, device="cpu").fit(matrix, TAGS)
    with pytest.raises(ConfigError, match="fitted on a matrix of features, and knows no words"):
        numbers.add_labels({"moon": "far away"})
    for act in (lambda t: t.add_labels({}), lambda t: t.remove_labels([]), lambda t: t.rename_labels({})):
        with pytest.raises(NotFittedError):
            act(made())


@pytest.mark.parametrize("threshold", [2, -0.1, float("nan")])
def test_a_threshold_that_no_score_can_reach_is_refused(tagger, threshold):
    with pytest.raises(ConfigError, match=r"a threshold must lie in \[0, 1\]; found"):
        tagger.predict(TEXTS[:2], threshold=threshold)
