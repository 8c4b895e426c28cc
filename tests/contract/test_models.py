"""Tests that every model must pass, on planted data with a known answer.

All built-in models are tested, some of them in several settings. ZIPFEL_CONTRACT_MODEL names another model, which is
then the only one tested, with the settings in ZIPFEL_CONTRACT_SETTINGS (JSON). See "Add a model" in CONTRIBUTING.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
import torch
from scipy.sparse import csr_array, vstack
from stopped import Stop, stops_after

from zipfel import metrics, persistence
from zipfel.config import Settings
from zipfel.data.batches import bags
from zipfel.data.dataset import Dataset, Part
from zipfel.data.synthetic import Synthetic, make, oracle
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError
from zipfel.fitting import lesson_of
from zipfel.models import learner as learner_module
from zipfel.models.base import BUILT_IN, Abilities, Learner, Model, Tensors, labelled, model_class, settings_of
from zipfel.models.blend import SURE, BlendPredictor
from zipfel.models.learner import OTHERS, Ensemble, Predictor
from zipfel.models.linear_predictor import LinearPredictor
from zipfel.models.reranker import RerankedPredictor
from zipfel.plan import module_bytes, plan, weight_bytes
from zipfel.tagger import Tagger
from zipfel.tagging import Request
from zipfel.training.progress import Observer
from zipfel.training.run import Run, State
from zipfel.types import Ranking

PLANTED = Synthetic(points=1500, labels=60, noise=0.3, test_share=0.2, seed=3)
WORDS = Synthetic(points=500, labels=20, noise=0.2, test_share=0.2, texts=True, seed=1)
# Small enough for two cores. A new built-in model gets a line; a comma separates the model from the name of a variant.
SETTINGS: dict[str, dict[str, Any]] = {
    "glas": {"dimension": 32, "epochs": 8, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02},
    "mnn": {"dimension": 32, "epochs": 8, "batch_size": 64, "learning_rate": 0.01},
    "dxml": {"dimension": 32, "hidden_size": 64, "epochs": 8, "batch_size": 64, "learning_rate": 0.01,
             "feature_dropout": 0.2},
    "lightdxml": {"dimension": 32, "epochs": 8, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02,
                  "shortlist_size": 20},
    "decaf": {"dimension": 32, "epochs": 8, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02, "dropout": 0.0},
    "astec": {"dimension": 32, "epochs": 8, "module1_epochs": 4, "min_steps": 1, "batch_size": 64,
              "learning_rate": 0.02, "module1_learning_rate": 0.02, "shortlist_size": 20, "dropout": 0.2},
}  # fmt: skip
BEAM: dict[str, Any] = {**SETTINGS["decaf"], "beam": 4, "module1_epochs": 4, "module1_learning_rate": 0.02}
MINED: dict[str, Any] = {"negatives": "mined", "rounds": 2, "mined": 10}
SETTINGS |= {
    "glas, normed": {**SETTINGS["glas"], "weight_norm": True},
    "lightdxml, reranker": {**SETTINGS["lightdxml"], "reranker": True, "epochs": 4},
    "mnn, labels": {**SETTINGS["mnn"], "decoder": "labels"},
    "decaf, beam": {**BEAM, "shortlist": "beam"},
    "decaf, parabel": {**BEAM, "shortlist": "parabel"},
    "decaf, ensemble": {**SETTINGS["decaf"], "learners": 2, "epochs": 5},
    "astec, documents": {**SETTINGS["astec"], "features": "relu", "gamma": 0.1, "neighbours": 30, "negatives": "own",
                         "random_negatives": 10, "search_by": "intermediate", "freeze_tokens": True, "learners": 2,
                         "module1_epochs": 12, "module1_dropout": 0.1, "dropout": 0.1},
    "astec, reranker": {**SETTINGS["astec"], "epochs": 4, "reranker": True, "reranker_learning_rate": 0.02},
    "linear": {},
    "linear, mined": MINED,
    "blend": {"main": "decaf", "main_settings": {**SETTINGS["decaf"], "epochs": 5}},
    "blend, glas": {"main": "glas", "main_settings": {**SETTINGS["glas"], "epochs": 5}},
    "blend, mnn": {"main": "mnn", "main_settings": {**SETTINGS["mnn"], "epochs": 5}, "linear_settings": MINED},
}  # fmt: skip

pytestmark = pytest.mark.usefixtures("one_thread")


class Case(NamedTuple):
    """A model and the settings to test it with."""

    model: str
    changes: dict[str, Any]

    @property
    def kind(self) -> type[Model]:
        return model_class(self.model)

    @property
    def settings(self) -> Any:
        return settings_of(self.model, changes=self.changes)

    @property
    def abilities(self) -> Abilities:
        return self.kind.abilities(self.settings)

    def tagger(self, seed: int = 0, **changes: Any) -> Tagger:
        """Return an unfitted tagger; changes of settings that the model does not have are left out."""
        known = {field.name for field in dataclasses.fields(self.settings)}
        changes = {name: value for name, value in changes.items() if name in known}
        return Tagger(self.model, settings={**self.changes, **changes}, device="cpu", seed=seed)


def chosen_cases() -> dict[str, Case]:
    """Return the cases by name: one that the environment names, or all built-in ones."""
    named = os.environ.get("ZIPFEL_CONTRACT_MODEL")
    if named:
        return {named: Case(named, json.loads(os.environ.get("ZIPFEL_CONTRACT_SETTINGS") or "{}"))}
    return {name: Case(name.partition(",")[0], changes) for name, changes in SETTINGS.items()}


CASES = chosen_cases()


@pytest.fixture(scope="module")
def counted() -> Dataset:
    return make(PLANTED)


@pytest.fixture(scope="module")
def data(counted: Dataset) -> Dataset:
    """Points as rows of a matrix."""
    return Tfidf.fit(counted.train.X).apply(counted)


@pytest.fixture(scope="module")
def words() -> Dataset:
    """Points and labels with texts."""
    return make(WORDS)


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def tagger(case: Case, data: Dataset) -> Tagger:
    """Fitted on a matrix. Tests must not change it."""
    return case.tagger().fit_dataset(data)


@pytest.fixture(scope="module")
def reader(case: Case, words: Dataset) -> Tagger:
    """Fitted on texts. Tests must not change it."""
    return case.tagger().fit_dataset(words)


@pytest.fixture
def loaded(tmp_path: Path) -> Callable[[Tagger], Tagger]:
    """Save a tagger and load it, which is a copy that a test may change."""

    def copy(original: Tagger) -> Tagger:
        original.save(tmp_path / "copy", replace=True)
        return Tagger.load(tmp_path / "copy", device="cpu")

    return copy


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Check that a call is refused, that nothing is trained for it, and that the tagger stays as it was."""

    def check(tagger: Tagger, message: str, call: Callable[[], object]) -> None:
        before, weights = tagger.fitted_, copied(tagger)
        monkeypatch.setattr(type(tagger.model_), "fit", None)
        with pytest.raises(ConfigError, match=f"^{tagger.model} {message}"):
            call()
        assert tagger.fitted_ is before
        assert same(weights, tagger.model_.state_dict())

    return check


def precision(ranking: Ranking, part: Part) -> float:
    return metrics.measure(ranking, part.Y, ks=(1,))["P@1"]


def copied(tagger: Tagger) -> State:
    return {name: value.clone() for name, value in tagger.model_.state_dict().items()}


def same(one: State, other: State) -> bool:
    """Whether two states hold the same tensors, bit for bit."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def same_weights(one: Tagger, other: Tagger) -> bool:
    return same(one.model_.state_dict(), other.model_.state_dict())


def assert_same_ranking(one: Ranking, other: Ranking) -> None:
    assert np.array_equal(one.ids, other.ids)
    assert np.array_equal(one.scores, other.scores)


def assert_finite(tagger: Tagger) -> None:
    for name, value in tagger.model_.state_dict().items():
        assert value.isfinite().all(), name


def documents(dataset: Dataset, part: str = "test") -> list[str]:
    """Return the texts of a part."""
    return list(next(iter(dataset.parts[part].texts.values())))


def tags_of(Y: csr_array, names: list[str]) -> list[list[str]]:
    return [[names[label] for label in Y[[row]].indices] for row in range(Y.shape[0])]


# --- Declarations -----------------------------------------------------------------------------------------------------


def test_every_built_in_model_is_tested():
    assert {name.partition(",")[0] for name in SETTINGS} == set(BUILT_IN)


def test_presets_are_settings_with_help_texts(case):
    presets = case.kind.presets
    assert isinstance(presets["default"], Settings)
    assert {type(preset) for preset in presets.values()} == {type(presets["default"])}
    assert (type(presets["default"]).__doc__ or "").strip()
    for field in dataclasses.fields(presets["default"]):
        assert field.metadata["help"], field.name
    for preset in presets.values():
        assert isinstance(case.kind.abilities(preset), Abilities)
    assert 0 <= case.kind.held_out < 1


def test_a_model_that_takes_a_shortlist_has_a_setting_for_it(case):
    names = [field.name for field in dataclasses.fields(case.settings)]
    assert any(name.startswith("shortlist") for name in names) == case.abilities.takes_shortlist


# --- Learning and ranking ---------------------------------------------------------------------------------------------


def test_it_learns_the_planted_labels(tagger, data, counted):
    test = data.test
    ceiling = precision(oracle(PLANTED, counted.test.X, 1), test)
    frequent = int(np.argmax(data.label_counts))
    floor = 100 * test.Y[:, [frequent]].sum() / len(test)
    reached = precision(tagger.rank(test.X, 5), test)
    assert reached >= 0.8 * ceiling
    assert reached >= 1.5 * floor
    assert_finite(tagger)


def test_the_same_seed_gives_the_same_weights(tagger, case, data):
    assert same_weights(tagger, case.tagger().fit_dataset(data))
    assert not same_weights(tagger, case.tagger(seed=1).fit_dataset(data))


def test_an_interrupted_run_resumes_and_ends_with_the_same_weights(reader, case, words, tmp_path):
    """It is stopped at every second result that it keeps; in the end, nothing is left to learn."""
    tagger, stops, steps = case.tagger(), 0, []

    class Spy(Observer):
        def did(self, event: str) -> None:
            steps.append(event)

    while True:
        run = Run(tmp_path)
        stops_after(2)(run)
        try:
            tagger.fit_dataset(words, run)
            break
        except Stop:
            stops += 1
    assert stops >= 1
    assert same_weights(tagger, reader)
    assert_same_ranking(tagger.rank(documents(words), 20), reader.rank(documents(words), 20))
    again = case.tagger().fit_dataset(words, Run(tmp_path, observer=Spy()))
    assert steps == []
    assert same_weights(again, reader)


def test_its_learners_make_up_its_predictor(tagger, data):
    learners, labels = tagger.model_.learners(), data.sizes.labels
    if not type(tagger.model_).has("predictor"):
        assert isinstance(tagger.predictor_, Learner if len(learners) == 1 else Ensemble)
    first = tagger.predictor_.first
    assert isinstance(first, Learner) if learners else first is None
    for learner in learners:
        vectors, owners = learner.classifier.vectors, learner.classifier.point_labels
        assert learner.encode(data.test.X).shape == (len(data.test), vectors.shape[1])
        assert len(vectors) == labels if owners is None else owners.shape == (len(vectors), labels)
        assert learner.classifier.width(3) >= 3
    recall = tagger.index_recall(data.test.X)
    assert recall is None or 0 < recall <= 1


def test_a_shorter_ranking_is_the_beginning_of_a_longer_one(tagger, data):
    X = vstack([data.test.X, csr_array((1, data.sizes.features), dtype=np.float32)], format="csr")
    whole = tagger.rank(X, data.sizes.labels)
    assert np.array_equal(np.sort(whole.ids, axis=1), np.tile(np.arange(data.sizes.labels), (X.shape[0], 1)))
    # Learners of an ensemble rank k + OTHERS labels each, so that only longer rankings rest on all labels.
    shortest = data.sizes.labels - OTHERS if isinstance(tagger.predictor_, Ensemble) else 1
    for k in (k for k in (1, 2, 3, 7, 20, 59) if k >= shortest):
        assert np.array_equal(tagger.rank(X, k).ids, whole.ids[:, :k])
    assert (np.diff(whole.scores, axis=1) <= 0).all()
    ties = np.diff(whole.scores, axis=1) == 0
    assert (np.diff(whole.ids, axis=1)[ties] > 0).all()
    assert 0 <= whole.scores.min() <= whole.scores.max() <= 1


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_batch_size_of_prediction_changes_no_ranking(tagger, data, monkeypatch, batch):
    X = data.test.X[:60] if batch == 1 else data.test.X
    whole = tagger.rank(X, 10)
    monkeypatch.setattr(learner_module, "BATCH", batch)
    assert_same_ranking(whole, tagger.rank(X, 10))


def test_filtered_pairs_are_not_ranked(tagger, data):
    X, best = data.test.X, tagger.rank(data.test.X, 4).ids
    rows = np.repeat(np.arange(len(best)), 2)
    pairs = csr_array((np.ones(2 * len(best)), (rows, best[:, [0, 2]].ravel())), shape=data.test.Y.shape)
    assert np.array_equal(tagger.rank(X, 2, pairs).ids, best[:, [1, 3]])


def test_held_out_points_are_ranked_to_calibrate_scores(tagger, data):
    held_out = tagger.model_.ranked_held_out(tagger.predictor_, data.test)
    if held_out is not None:  # None: no point is left that the model has not learned from
        assert len(held_out.ranking) == held_out.Y.shape[0] > 0
        assert precision(held_out.ranking, Part(held_out.Y)) > 40
    assert tagger.calibration_ is None or held_out is not None


def test_one_point(case):
    one = Dataset(Part(csr_array([[0, 1]]), X=csr_array([[0.5, 0, 2]])))
    tagger = case.tagger(epochs=2).fit_dataset(one)
    assert_finite(tagger)
    assert sorted(tagger.rank(one.train.X, 2).ids[0]) == [0, 1]


def test_points_without_labels_and_without_features(case, data):
    train = data.train
    empty = csr_array((400, train.Y.shape[1]), dtype=np.float32)
    nothing = csr_array((50, train.X.shape[1]), dtype=np.float32)
    X = vstack([train.X, train.X[:400], nothing], format="csr")
    Y = vstack([train.Y, empty, train.Y[:50]], format="csr")
    tagger = case.tagger().fit_dataset(Dataset(Part(Y, X=X), test=data.test))
    assert_finite(tagger)
    assert precision(tagger.rank(data.test.X, 1), data.test) > 40


def test_hardly_any_point_with_a_label(case, tmp_path):
    X = csr_array(np.eye(40, dtype=np.float32))
    Y = csr_array((np.ones(2), ([3, 7], [0, 1])), shape=(40, 3))
    tagger = case.tagger().fit_dataset(Dataset(Part(Y, X=X)), Run(tmp_path))
    assert_finite(tagger)
    assert tagger.rank(X, 3).ids.shape == (40, 3)
    for line in map(orjson.loads, (tmp_path / "log.jsonl").read_bytes().splitlines()):
        assert None not in {name: value for name, value in line.items() if name != "validation"}.values()  # NaN


def test_unseen_features(case, tagger, data):
    nothing = csr_array((3, data.sizes.features), dtype=np.float32)
    ranking = tagger.rank(nothing, 5)
    assert (ranking.ids >= 0).all()
    assert np.isfinite(ranking.scores).all()
    shares = data.label_counts / len(data.train)  # nothing is known of these points: the most frequent labels
    assert ranking.ids.tolist() == [np.argsort(-shares, kind="stable")[:5].tolist()] * 3
    assert ranking.scores == pytest.approx(np.sort(shares)[::-1][:5][None].repeat(3, axis=0))
    assert tagger.tag([Request(nothing)])[0].ranking.scores.tolist() == ranking.scores.tolist()
    never = csr_array([[1.0, 0, 0], [0, 1.0, 0]] * 10)  # train has no point with the third feature
    small = case.tagger(epochs=2).fit_dataset(Dataset(Part(csr_array([[1, 0], [0, 1]] * 10), X=never)))
    assert sorted(small.rank(csr_array([[0, 0, 1.0]]), 2).ids[0]) == [0, 1]


def test_k_beyond_the_labels(tagger, data):
    labels = data.sizes.labels
    ranking = tagger.rank(data.test.X[:3], labels + 10)
    assert ranking.ids.shape == (3, labels)
    assert (np.sort(ranking.ids, axis=1) == np.arange(labels)).all()


# --- Saving -----------------------------------------------------------------------------------------------------------


def test_a_loaded_model_ranks_the_same(tagger, data, loaded):
    assert_same_ranking(tagger.rank(data.test.X, 10), loaded(tagger).rank(data.test.X, 10))


def test_its_tensors_restore_it_bit_for_bit(tagger, data):
    model, X = tagger.model_, data.test.X
    tensors = model.tensors()
    assert not set(tensors.serve) & set(tensors.train)
    restored = type(model).restored(model.features, model.label_count, model.settings, tensors)
    assert (restored.features, restored.label_count) == (data.sizes.features, data.sizes.labels)
    assert restored.settings == model.settings
    assert not restored.training
    for before, after in zip(tensors, restored.tensors(), strict=True):
        assert same(before, after)
    assert_same_ranking(restored.predictor().rank(X, 10), tagger.rank(X, 10))


def test_prediction_needs_only_the_tensors_in_serve(tagger, data):
    model, X = tagger.model_, data.test.X
    serve, train = model.tensors()
    kept = {name: value for name, value in train.items() if name.endswith(".indptr")}  # or no matrix could be restored
    spoiled = {name: torch.full_like(value, torch.nan if value.is_floating_point() else 0)
               for name, value in train.items()} | kept  # fmt: skip
    restored = type(model).restored(model.features, model.label_count, model.settings, Tensors(serve, spoiled))
    assert_same_ranking(restored.predictor().rank(X, 10), tagger.rank(X, 10))


# --- New labels and points, and what the abilities promise ------------------------------------------------------------


def test_a_warm_start_after_loading_learns_new_labels(case, data, tmp_path):
    """Old labels keep their ids and are not forgotten, and the saved files stay as they are."""
    train, test, names = data.train, data.test, [f"label {label:02d}" for label in range(data.sizes.labels)]
    new = np.argsort(-data.label_counts)[1:3]
    late = np.flatnonzero(train.Y[:, new].sum(axis=1) > 0)
    early = np.setdiff1d(np.arange(len(train)), late)
    tags = tags_of(train.Y, names)
    first = case.tagger().fit(train.X[early], [tags[row] for row in early])
    first.save(tmp_path / "model")
    tagger = Tagger.load(tmp_path / "model", device="cpu").set_params(warm_start=True)
    again = np.concatenate([late, early[:400]])
    tagger.fit(train.X[again], [tags[row] for row in again])
    assert_finite(tagger)
    old = len(first.classes_)
    assert tagger.classes_[:old] == first.classes_
    assert sorted(tagger.classes_[old:]) == sorted(names[label] for label in new)
    assert tagger.model_.label_count == len(tagger.classes_)
    right = tags_of(test.Y, names)
    for has_new in (True, False):
        rows = [row for row in range(len(right)) if bool({names[label] for label in new} & set(right[row])) == has_new]
        assert tagger.score(test.X[rows], [right[row] for row in rows]) > 0.5
    persistence.verify(tmp_path / "model")


def test_added_labels_are_drawn_from_the_generator(tagger, loaded):
    states = []
    for seed in (0, 0, 1):
        model = loaded(tagger).model_
        before = model.label_count
        model.add_labels(3, torch.Generator().manual_seed(seed))
        assert model.label_count == before + 3
        states.append(model.state_dict())
    assert same(states[0], states[1])


def test_names_of_labels_are_read_if_it_reads_label_texts(case, words):
    """A name stands in for a missing text, so that other names must give other weights, or else the same."""
    tokens = sorted(set(" ".join(documents(words, "train")).split()))[: words.sizes.labels]
    taggers = [
        case.tagger(epochs=1).fit_dataset(dataclasses.replace(words, label_names=names, label_texts=None))
        for names in (tokens, tokens[::-1])
    ]
    assert same_weights(*taggers) is not case.abilities.reads_label_texts


def test_labels_of_a_request_are_scored_by_their_texts_or_refused(case, reader, words, refused):
    """A text that is a label's own scores higher for points with that label than for others."""
    texts, label = documents(words), int(np.argmax(words.label_counts))
    extra = {"new": words.label_texts["title"][label], "unknown": "qqq"}
    requests = [Request(texts, k=30), Request(texts, k=30, extra=extra)]
    if not case.abilities.scores_label_texts:
        refused(reader, "cannot score a label by its text", lambda: reader.tag(requests))
        refused(reader, "cannot score a label by its text", lambda: reader.check(requests[1]))
        return
    plain, tagged = (answer.tags() for answer in reader.tag(requests))
    for row, own in zip(tagged, plain, strict=True):
        assert {tag.label for tag in row} == {tag.label for tag in own} | set(extra)
        assert [tag.label for tag in row if tag.label not in extra] == [tag.label for tag in own]
    X, Z = (reader.features_.transform(some) for some in (texts, list(extra.values())))
    scores = reader.model_.text_scores(reader.predictor_, X, Z)
    assert scores.shape == (len(texts), 2)
    assert 0 <= scores.min() <= scores.max() <= 1
    alone = reader.model_.text_scores(reader.predictor_, X[[3]], Z)
    assert torch.equal(alone, scores[[3]])
    has = words.test.Y[:, [label]].toarray().ravel() > 0
    assert scores[has, 0].mean() > scores[~has, 0].mean()


def test_labels_are_added_by_their_texts_or_refused(case, reader, words, refused, loaded, tmp_path):
    texts, label = documents(words), int(np.argmax(words.label_counts))
    added = {"new": words.label_texts["title"][label], "unknown": "qqq"}
    if not case.abilities.takes_labels_by_text:
        refused(reader, "cannot add labels from their texts alone", lambda: reader.add_labels(added))
        return
    tagger, labels = loaded(reader), words.sizes.labels
    tagger.add_labels(added)
    assert tagger.classes_ == [*reader.classes_, *added]
    assert tagger.model_.label_count == labels + 2
    ranking, old = tagger.rank(texts, labels + 2), reader.rank(texts, labels)
    assert np.array_equal(ranking.ids[ranking.ids < labels].reshape(old.ids.shape), old.ids)
    scores = np.where(ranking.ids == labels, ranking.scores, 0).max(axis=1)  # of the label "new"
    has = words.test.Y[:, [label]].toarray().ravel() > 0
    assert scores[has].mean() > scores[~has].mean()
    tagger.save(tmp_path / "more")
    assert_same_ranking(Tagger.load(tmp_path / "more", device="cpu").rank(texts, labels + 2), ranking)
    with pytest.raises(ConfigError, match="there is already a label 'new'"):
        tagger.add_labels({"new": "again"})


def test_points_are_remembered_without_learning_or_refused(case, tagger, data, refused, loaded, monkeypatch):
    X, y = data.test.X[:40], [["new"]] * 40
    if not case.abilities.remembers_points:
        refused(tagger, "cannot add points without training", lambda: tagger.partial_fit(X, y))
        return
    grown = loaded(tagger)
    monkeypatch.setattr(type(tagger.model_), "fit", None)
    assert grown.partial_fit(X, y) is grown
    assert 0 < grown.drift_ < 10
    assert grown.classes_ == [*tagger.classes_, "new"]
    best = grown.rank(data.test.X, 10).ids == data.sizes.labels  # the new label
    assert best[:40].any(axis=1).mean() > 0.9 > 2 * best[40:].any(axis=1).mean()
    known = precision(grown.rank(data.test.X[40:], 1), data.test.take(np.arange(40, len(data.test))))
    assert known > 0.9 * precision(tagger.rank(data.test.X, 1), data.test)
    after = dict(grown.model_.named_parameters())
    for name, value in tagger.model_.named_parameters():
        assert torch.equal(after[name][: len(value)] if value.ndim else after[name], value), name


def test_nearest_labels_are_those_of_label_vectors_or_refused(tagger, data, refused):
    name, own = tagger.classes_[0], type(tagger.model_).has("predictor")  # which may have other vectors
    if not own and tagger.predictor_.first.classifier.point_labels is not None:
        refused(tagger, "has vectors of points, not of labels", lambda: tagger.nearest_labels(name))
        return
    near = tagger.nearest_labels(name, 3)
    assert len({tag.label for tag in near} - {name}) == 3
    assert 1.001 > near[0].score >= near[1].score >= near[2].score > -1


# --- Plans ------------------------------------------------------------------------------------------------------------


def test_the_size_of_its_weights_is_linear_in_features_and_labels(case):
    """A plan extrapolates it from small models."""
    settings = case.kind.resolved(case.settings, 300)
    built = case.kind(300, 70, settings, torch.Generator().manual_seed(0))
    assert (built.features, built.label_count, built.settings) == (300, 70, settings)
    assert weight_bytes(case.kind, case.settings, 300, 70) == module_bytes(built)


def test_its_cost_is_plausible_and_finding_it_out_changes_nothing(case, data):
    model = case.kind(data.sizes.features, data.sizes.labels, case.settings, torch.Generator().manual_seed(0))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    lesson = lesson_of(model, data, [str(label) for label in range(data.sizes.labels)], None, 0)
    cost = model.cost(lesson)
    train, whole = len(labelled(lesson.train)), len(labelled(lesson.whole or lesson.train))
    assert 1 <= len(cost.rounds) <= 2
    assert all(train <= points <= whole for points in cost.rounds)
    assert 1 <= cost.fewest_points <= 100_000
    assert 0 <= cost.bytes_a_point < 1 << 20
    assert 0 <= cost.seconds < 60
    assert 0 <= cost.lost_seconds < 60
    assert model.settings == case.settings
    assert same(before, model.state_dict())
    model.rehearse(0.5)
    assert type(model.settings) is type(case.settings)
    assert same(before, model.state_dict())


def test_a_plan_comes_close_to_the_saved_model(case, tagger, data, tmp_path):
    planned = plan(data, case.model, settings=case.changes, device="cpu")
    tagger.save(tmp_path / "model")
    files = [path for path in (tmp_path / "model").rglob("*") if path.is_file()]
    size = sum(path.stat().st_size for path in files if path.name != "README.md")  # a few KB, which no plan counts
    assert planned.disk_bytes == pytest.approx(size, rel=0.02)
    assert (planned.features, planned.labels) == (data.sizes.features, data.sizes.labels)
    assert planned.points <= len(data.train)
    assert 0 < planned.training_seconds < 600
    assert 0 < planned.predict_ms < 1000
    assert planned.memory_bytes > planned.disk_bytes
    assert planned.warnings == ()


# --- Explanations -----------------------------------------------------------------------------------------------------


def raw_scores(learner: Learner, row: csr_array, label: int) -> tuple[float, float]:
    """Return a label's score before it is squeezed into [0, 1]: for a point, and for one without features.

    Both vectors are divided by the length of the first, as explanations do.
    """
    query = learner.encode(row)
    score = learner.classifier.scorer(label, query, learner.index)
    with torch.no_grad():
        vectors = [
            learner.encoder.unscaled(bags(some)).float() for some in (row, csr_array(row.shape, dtype=row.dtype))
        ]
        length = vectors[0].norm() / query.norm()
        full, empty = (float(score(some / length)[0]) for some in vectors)
    return full, empty


def score_gain(predictor: Predictor, row: csr_array, label: int) -> float:
    """Return how much a label's score before it is squeezed is higher than that of a point without features."""
    if isinstance(predictor, BlendPredictor):
        main = score_gain(predictor.main, row, label)
        votes = predictor.first.classifier.point_labels is not None
        linear = float(predictor.weights[label]) * score_gain(predictor.linear, row, label)
        return main * (2 * SURE if votes else 1) + linear
    if isinstance(predictor, LinearPredictor):
        return float(predictor.margins(row)[0, label] - predictor.bias[label])
    if isinstance(predictor, RerankedPredictor):
        return (score_gain(predictor.main, row, label) + score_gain(predictor.reranker, row, label)) / 2
    learners = predictor.learners if isinstance(predictor, Ensemble) else [predictor]
    return float(np.mean([np.subtract(*raw_scores(learner, row, label)) for learner in learners]))


def test_explanations_sum_up_to_the_score_and_single_out_the_best_label(reader, words):
    texts = documents(words)[:20]
    for text, ids in zip(texts, reader.rank(texts, 20).ids, strict=True):
        row, full = reader.features_.transform([text]), []
        for label in ids[[0, 1, -1]].tolist():
            gain = score_gain(reader.predictor_, row, label)
            weights = [reason.weight for reason in reader.explain(text, reader.classes_[label])]
            assert len(weights) == row.nnz
            assert sum(weights) == pytest.approx(gain, abs=0.03 * max(1, abs(gain)))
            full.append(gain)
        assert full[0] > full[-1]


def test_a_text_without_known_words_has_no_explanation(reader):
    assert reader.explain("qqq", reader.classes_[0]) == []
