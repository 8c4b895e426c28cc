"""What holds for every model, on planted data with a known answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
import torch
from scipy.sparse import csr_array, vstack

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.data.synthetic import Synthetic, make, oracle
from zipfel.data.text import Tfidf
from zipfel.index.exact import ExactIndex
from zipfel.models import base
from zipfel.tagger import MODELS, Tagger
from zipfel.training.run import Run
from zipfel.types import Ranking

PLANTED = Synthetic(points=1500, labels=60, noise=0.3, test_share=0.2, seed=3)
# Small enough for two cores; a model that is new here gets a line.
SETTINGS: dict[str, dict[str, Any]] = {
    "glas": {"dimension": 32, "epochs": 8, "steps": 1, "batch": 64, "rate": 0.02},
    "mnn": {"dimension": 32, "epochs": 8, "batch": 64, "rate": 0.01},
    "dxml": {"dimension": 32, "hidden": 64, "epochs": 8, "batch": 64, "rate": 0.01, "keep": 0.8},
    "lightdxml": {"dimension": 32, "epochs": 8, "steps": 1, "batch": 64, "rate": 0.02, "shortlist": 20},
    "decaf": {"dimension": 32, "epochs": 8, "steps": 1, "batch": 64, "rate": 0.02, "drop": 0.0},
}
# Models that can be put together in another way, which must hold all the same.
VARIANTS = {
    "decaf, beam": {**SETTINGS["decaf"], "shortlist": "beam", "beam": 4, "first_epochs": 4, "first_rate": 0.02},
    "decaf, parabel": {**SETTINGS["decaf"], "shortlist": "parabel", "beam": 4, "first_epochs": 4, "first_rate": 0.02},
    "decaf, ensemble": {**SETTINGS["decaf"], "learners": 2, "epochs": 5},
}

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def counted() -> Dataset:
    return make(PLANTED)


@pytest.fixture(scope="module")
def data(counted: Dataset) -> Dataset:
    return Tfidf.fit(counted.train.X).apply(counted)


@pytest.fixture(params=[*sorted(MODELS), *VARIANTS], scope="module")
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def fitted(model: str, data: Dataset, seed: int = 0, **settings: Any) -> Tagger:
    return made(model, seed, **settings).fit_dataset(data)


def made(model: str, seed: int = 0, **settings: Any) -> Tagger:
    usual = {**SETTINGS, **VARIANTS}[model]
    return Tagger(model.split(",")[0], settings={**usual, **settings}, device="cpu", seed=seed)


@pytest.fixture(scope="module")
def tagger(model: str, data: Dataset) -> Tagger:
    return fitted(model, data)


def first(ranking: Ranking, part: Part) -> float:
    return metrics.measure(ranking, part.Y, ks=(1,))["P@1"]


def same_weights(one: Tagger, other: Tagger) -> bool:
    ours, theirs = one.model_.state_dict(), other.model_.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


def assert_finite(tagger: Tagger) -> None:
    for name, value in tagger.model_.state_dict().items():
        assert value.isfinite().all(), name


def test_it_learns_what_is_planted(tagger, data, counted):
    test = data.test
    ceiling = first(oracle(PLANTED, counted.test.X, 1), test)
    frequent = int(np.argmax(data.label_counts))
    floor = 100 * test.Y[:, [frequent]].sum() / len(test)
    found = first(tagger.rank(test.X, 5), test)
    assert found >= 0.8 * ceiling
    assert found >= 1.5 * floor
    assert_finite(tagger)


def test_the_same_seed_gives_the_same_weights(tagger, model, data):
    assert same_weights(tagger, fitted(model, data))
    assert not same_weights(tagger, fitted(model, data, seed=1))


def test_save_and_load_give_the_same_ranking(tagger, data, tmp_path):
    tagger.save(tmp_path / "model")
    before, after = tagger.rank(data.test.X, 10), Tagger.load(tmp_path / "model", device="cpu").rank(data.test.X, 10)
    assert np.array_equal(before.ids, after.ids)
    np.testing.assert_allclose(before.scores, after.scores, rtol=0, atol=1e-6)


def test_a_shorter_ranking_is_the_beginning_of_a_longer_one(tagger, data):
    X = vstack([data.test.X, csr_array((1, data.sizes.features), dtype=np.float32)], format="csr")
    whole = tagger.rank(X, data.sizes.labels)
    assert np.array_equal(np.sort(whole.ids, axis=1), np.tile(np.arange(data.sizes.labels), (X.shape[0], 1)))
    few = (
        1 if not isinstance(tagger.learner_, base.Ensemble) else data.sizes.labels - base.OTHERS
    )  # all that it asks for
    for k in (k for k in (1, 2, 3, 7, 20, 59) if k >= few):
        assert np.array_equal(tagger.rank(X, k).ids, whole.ids[:, :k])
    assert (np.diff(whole.scores, axis=1) <= 0).all()
    ties = np.diff(whole.scores, axis=1) == 0
    assert (np.diff(whole.ids, axis=1)[ties] > 0).all()
    assert 0 <= whole.scores.min() <= whole.scores.max() <= 1


def test_scores_that_tie_keep_a_ranking_the_beginning_of_a_longer_one():
    """Inner products that differ by less than their scores can tell: the higher id has the larger one."""
    vectors = torch.tensor([[1e-9], [2e-9], [3e-9], [0.5]])
    classifier = base.Cosine(vectors, lambda x: (1 + x) / 2)
    learner = base.Learner(lambda bags: torch.ones(len(bags), 1), ExactIndex(vectors), classifier, torch.device("cpu"))
    learner.encoder.eval = lambda: None
    X = csr_array((1, 1), dtype=np.float32)
    assert [learner.rank(X, k).ids.tolist() for k in (1, 2, 3, 4)] == [[[3]], [[3, 0]], [[3, 0, 1]], [[3, 0, 1, 2]]]


@pytest.mark.parametrize("batch", [1, 7, 100])
def test_the_batch_size_of_prediction_changes_no_ranking(tagger, data, monkeypatch, batch):
    X = data.test.X[:60] if batch == 1 else data.test.X
    whole = tagger.rank(X, 10)
    monkeypatch.setattr(base, "BATCH", batch)
    parts = tagger.rank(X, 10)
    assert np.array_equal(whole.ids, parts.ids)
    assert np.array_equal(whole.scores, parts.scores)


def test_filtered_pairs_are_not_ranked(tagger, data):
    X, best = data.test.X, tagger.rank(data.test.X, 4).ids
    rows = np.repeat(np.arange(len(best)), 2)
    pairs = csr_array((np.ones(2 * len(best)), (rows, best[:, [0, 2]].ravel())), shape=data.test.Y.shape)
    assert np.array_equal(tagger.rank(X, 2, pairs).ids, best[:, [1, 3]])


def test_one_point(model):
    one = Dataset(Part(csr_array([[0, 1]]), X=csr_array([[0.5, 0, 2]])))
    tagger = fitted(model, one, epochs=2)
    assert_finite(tagger)
    assert sorted(tagger.rank(one.train.X, 2).ids[0]) == [0, 1]


def test_points_without_labels_and_without_features(model, data):
    train = data.train
    empty = csr_array((400, train.Y.shape[1]), dtype=np.float32)
    nothing = csr_array((50, train.X.shape[1]), dtype=np.float32)
    X = vstack([train.X, train.X[:400], nothing], format="csr")
    Y = vstack([train.Y, empty, train.Y[:50]], format="csr")
    tagger = fitted(model, Dataset(Part(Y, X=X), test=data.test))
    assert_finite(tagger)
    assert first(tagger.rank(data.test.X, 1), data.test) > 40


def test_hardly_any_point_with_a_label(model, tmp_path):
    X = csr_array(np.eye(40, dtype=np.float32))
    Y = csr_array((np.ones(2), ([3, 7], [0, 1])), shape=(40, 3))
    run = Run(tmp_path)
    run.open({})
    tagger = made(model).fit_dataset(Dataset(Part(Y, X=X)), run)
    assert_finite(tagger)
    assert tagger.rank(X, 3).ids.shape == (40, 3)
    for line in map(orjson.loads, (tmp_path / "log.jsonl").read_bytes().splitlines()):
        assert None not in {name: value for name, value in line.items() if name != "validation"}.values()  # NaN


def test_unseen_features(model, tagger, data):
    nothing = csr_array((3, data.sizes.features), dtype=np.float32)
    ranking = tagger.rank(nothing, 5)
    assert (ranking.ids >= 0).all()
    assert np.isfinite(ranking.scores).all()
    assert (ranking.ids == ranking.ids[0]).all()
    never = csr_array([[1.0, 0, 0], [0, 1.0, 0]] * 10)  # train has no point with the third feature
    small = fitted(model, Dataset(Part(csr_array([[1, 0], [0, 1]] * 10), X=never)), epochs=2)
    assert sorted(small.rank(csr_array([[0, 0, 1.0]]), 2).ids[0]) == [0, 1]


def test_k_beyond_the_labels(tagger, data):
    labels = data.sizes.labels
    ranking = tagger.rank(data.test.X[:3], labels + 10)
    assert ranking.ids.shape == (3, labels)
    assert (np.sort(ranking.ids, axis=1) == np.arange(labels)).all()
