"""DECAF as a whole, in the paper's frame: a step of Modules I, II and IV, and prediction, against slow twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference_decaf
from reference_decaf import Weights
from scipy.sparse import csr_array
from steps import Stage, assert_same_step, disturb, measured, seeded, texts_of, truth_of, weights_of
from torch import nn

from zipfel.data.dataset import Part
from zipfel.models import decaf
from zipfel.models.base import Lesson
from zipfel.models.decaf import Decaf
from zipfel.models.decaf_settings import PRESETS, DecafSettings
from zipfel.models.learner import UNLISTED
from zipfel.training.run import Run
from zipfel.training.trainer import Objective, Outcome

pytestmark = pytest.mark.usefixtures("one_thread")

POINTS, TOKENS, LABELS, WIDTH, CLUSTERS, BEAM = 30, 7, 8, 3, 4, 2
ROWS = [0, 2, 3, 11, 20]
PAPER: dict[str, Any] = {
    "dimension": WIDTH, "learners": 1, "shortlist": "beam", "clusters": CLUSTERS, "beam": BEAM, "loss": "logistic",
    "add_missed_labels": False, "cosine": False, "relu": True, "boost_rare_labels": False, "dropout": 0.0,
    "module1_dropout": 0.0, "min_steps": 1,
}  # fmt: skip


@pytest.fixture
def part() -> Part:
    numbers = np.random.default_rng(1)
    X = numbers.random((POINTS, TOKENS)) * (numbers.random((POINTS, TOKENS)) < 0.5)
    X[:, 0] += 0.5
    Y = np.zeros((POINTS, LABELS))
    for row in range(POINTS):
        Y[row, numbers.choice(LABELS, numbers.integers(1, 4), replace=False)] = 1
    return Part(csr_array(Y.astype(np.float32)), X=csr_array(X.astype(np.float32)))


@pytest.fixture
def Z() -> csr_array:  # noqa: N802
    numbers = np.random.default_rng(2)
    texts = numbers.random((LABELS, TOKENS)) * (numbers.random((LABELS, TOKENS)) < 0.4)
    texts[:, 1] += 0.3
    return csr_array(texts.astype(np.float32))


class Fitted(NamedTuple):
    model: Decaf
    stages: dict[str, Stage]  # as they begin
    later: dict[str, Stage]  # after learning
    centroids: list[Any]  # that labels were clustered by
    clusters: list[list[list[int]]]  # labels of each cluster


@pytest.fixture
def fitted(part, Z, monkeypatch) -> Callable[..., Fitted]:
    """Fit a model in which each stage is measured, and then random weights take the place of learning."""

    def fit(**changes: Any) -> Fitted:
        model = Decaf(TOKENS, LABELS, DecafSettings(**{**PAPER, **changes}), seeded())
        found = Fitted(model, {}, {}, [], [])
        plain = decaf.balanced_clusters

        def clustered(centroids: Any, *more: Any) -> Any:
            of_labels = plain(centroids, *more)
            found.centroids.append(centroids)
            found.clusters.append([np.flatnonzero(of_labels == m).tolist() for m in range(of_labels.max() + 1)])
            return of_labels

        def trained(run: Run, stage: str, module: nn.Module, points: Any, objective: Objective, *more: Any) -> Outcome:
            found.stages[stage] = measured(module, objective, ROWS)
            disturb(module, len(found.stages))
            found.later[stage] = measured(module, objective, ROWS)
            module.eval()
            return Outcome(None, -1, 1, 0.0)

        monkeypatch.setattr(decaf, "balanced_clusters", clustered)
        monkeypatch.setattr(decaf, "train", trained)
        model.fit(Lesson(part, Z=Z), Run())
        return found

    return fit


def labels_opened(found: Fitted, part: Part, rows: list[int]) -> list[set[int]]:
    """The labels of the clusters whose h · x̂ is highest, by S as Module II left it."""
    shortlister = found.model.networks[0].shortlister
    weights, heads = weights_of(shortlister), shortlister.heads.double().tolist()
    lists = []
    for x in texts_of(part.X[rows]):
        query = reference_decaf.document(x, weights)
        best = sorted(range(len(heads)), key=lambda m: -reference_decaf.dot(heads[m], query))[:BEAM]
        lists.append({label for m in best for label in found.clusters[1][m]})
    return lists


# --- Training ---------------------------------------------------------------------------------------------------------


def test_stages_come_in_the_order_of_the_modules(fitted):
    assert list(fitted().stages) == ["module-1", "module-2-0", "module-4-0"]


def test_module_1_clusters_sparse_centroids_and_module_2_dense_ones(part, fitted):
    """c_l = Σ x_i, and then c_l = Σ E x_i with the E that Module I has learned."""
    found = fitted()
    sparse, dense = found.centroids
    X, Y = part.X.toarray().astype(float), part.Y.toarray()
    E = np.array(found.stages["module-2-0"].before["tokens.rows"])
    for label in range(LABELS):
        own = [X[row] for row in range(POINTS) if Y[row, label]]
        np.testing.assert_allclose(sparse.toarray()[label], sum(own), rtol=1e-5)
        np.testing.assert_allclose(dense[label], sum(x @ E for x in own), rtol=1e-4, atol=1e-5)
    assert sparse.shape == (LABELS, TOKENS)
    assert dense.shape == (LABELS, WIDTH)


def test_a_step_of_module_1(part, Z, fitted):
    found = fitted(dropout=0.5)  # which is that of later modules
    points, truth, texts = texts_of(part.X[ROWS]), truth_of(part, ROWS), texts_of(Z)

    def loss(weights: Weights) -> float:
        H = reference_decaf.clusters_by_text(weights, texts, found.clusters[0])
        return reference_decaf.clusters_loss(points, truth, found.clusters[0], H, weights)

    assert_same_step(found.stages["module-1"], "meta", loss)
    assert_same_step(found.later["module-1"], "meta", loss)


def test_a_step_of_module_2(part, Z, fitted):
    found = fitted(module1_dropout=0.5)
    points, truth, texts = texts_of(part.X[ROWS]), truth_of(part, ROWS), texts_of(Z)

    def loss(weights: Weights) -> float:
        H = reference_decaf.clusters_refined(weights, texts, found.clusters[1])
        return reference_decaf.clusters_loss(points, truth, found.clusters[1], H, weights)

    assert_same_step(found.stages["module-2-0"], "meta", loss)
    assert_same_step(found.later["module-2-0"], "meta", loss)


def test_module_3_starts_module_4(Z, fitted):
    """R = I in both blocks, α_L = β_L = 0, ẑ² = E z; token vectors and S stay as Module II leaves them."""
    found = fitted()
    before = found.stages["module-4-0"].before
    for block in ("document_block", "label_block"):
        np.testing.assert_array_equal(before[f"{block}.R"], np.eye(WIDTH))
    assert before["combination.alpha"] == before["combination.beta"] == [[0.0] * WIDTH]
    np.testing.assert_allclose(before["refinement.rows"], Z.toarray() @ np.array(before["tokens.rows"]), atol=1e-5)
    shortlister = weights_of(found.model.networks[0].shortlister)
    assert before["tokens.rows"] == shortlister["tokens.rows"]
    assert not np.allclose(shortlister["document_block.R"], np.eye(WIDTH))


@pytest.mark.parametrize("shortlist", ["beam", "none"])
def test_a_step_of_module_4(part, Z, fitted, shortlist):
    found = fitted(shortlist=shortlist, module1_dropout=0.5)
    points, truth, texts = texts_of(part.X[ROWS]), truth_of(part, ROWS), texts_of(Z)
    lists = [set(range(LABELS))] * len(ROWS) if shortlist == "none" else labels_opened(found, part, ROWS)

    def loss(weights: Weights) -> float:
        return reference_decaf.labels_loss(points, truth, lists, reference_decaf.classifiers(weights, texts), weights)

    assert_same_step(found.stages["module-4-0"], "logistic", loss)
    assert_same_step(found.later["module-4-0"], "logistic", loss)
    if shortlist == "beam":
        assert any(right - near for right, near in zip(truth, lists, strict=True))  # missed labels do not count


@pytest.mark.parametrize(("dropped", "stages"), [
    ({"module1_dropout": 0.5}, ["module-1"]), ({"dropout": 0.5}, ["module-2-0", "module-4-0"]), ({}, []),
])  # fmt: skip
def test_which_modules_drop(fitted, dropped, stages):
    """50 % in Module I, 20 % in the others."""
    found = fitted(**dropped).stages
    assert [name for name, stage in found.items() if stage.terms != stage.again] == stages
    assert (PRESETS["paper"].module1_dropout, PRESETS["paper"].dropout) == (0.5, 0.2)
    assert PRESETS["paper"].loss == "logistic"


# --- Prediction -------------------------------------------------------------------------------------------------------


def test_prediction_multiplies_the_chances_of_label_and_cluster(part, Z, fitted):
    found = fitted()
    (learner,) = found.model.learners()
    network = found.model.networks[0]
    weights, of_search = weights_of(network), weights_of(network.shortlister)
    W, H = reference_decaf.classifiers(weights, texts_of(Z)), network.shortlister.heads.double().tolist()
    owner = {label: m for m, own in enumerate(found.clusters[1]) for label in own}
    ranking = learner.rank(part.X[ROWS], 3)
    for row, (x, near) in enumerate(zip(texts_of(part.X[ROWS]), labels_opened(found, part, ROWS), strict=True)):
        vector, searched = reference_decaf.document(x, weights), reference_decaf.document(x, of_search)
        scores = {label: reference_decaf.score(W[label], H[owner[label]], vector, searched) for label in near}
        best = sorted(scores, key=lambda label: -scores[label])[:3]
        assert ranking.ids[row].tolist() == best
        wanted = [UNLISTED + (1 - UNLISTED) * scores[label] for label in best]
        assert ranking.scores[row].tolist() == pytest.approx(wanted, rel=1e-3)
