"""Astec as a whole: a step of Modules I and IV, the search of Module II, and prediction, against slow twins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference_astec as twin
import torch
from reference import averaged
from scipy.sparse import csr_array
from steps import Stage, Text, Weights, assert_same_step, disturb, labels_in, measured, seeded, texts_of, weights_of
from torch import nn

from zipfel.data.dataset import Part
from zipfel.models import astec
from zipfel.models.astec import Astec
from zipfel.models.astec_settings import AstecSettings
from zipfel.models.base import Lesson
from zipfel.models.learner import UNLISTED
from zipfel.training.run import Run
from zipfel.training.trainer import Objective, Outcome, Schedule

pytestmark = pytest.mark.usefixtures("one_thread")

POINTS, TOKENS, LABELS, WIDTH, LISTED = 30, 7, 8, 8, 3
ROWS = [0, 2, 3, 11, 20]
PAPER: dict[str, Any] = {  # the frame of the preset `paper`, without dropout
    "dimension": WIDTH, "features": "relu", "cosine": False, "clusters": 4, "smoothing": "clusters", "gamma": 0.3,
    "neighbours": 5, "search_by": "intermediate", "shortlist_size": LISTED, "index": "exact", "negatives": "own",
    "random_negatives": 2, "freeze_tokens": True, "refresh_epochs": None, "dropout": 0.0, "module1_dropout": 0.0,
    "min_steps": 1, "epochs": 1, "module1_epochs": 1, "beta": 0.3, "loss": "logistic",
}  # fmt: skip
OURS: dict[str, Any] = {  # the frame of the preset `default`
    **PAPER, "features": "signed", "cosine": True, "smoothing": "none", "gamma": 0.0, "search_by": "final",
    "negatives": "shared", "random_negatives": 0, "freeze_tokens": False, "refresh_epochs": 1,
}  # fmt: skip
KINK = ("block.bias",)  # where R = I and b = 0, a v of 0 lies on the kink of the second ReLU, which has no slope


@pytest.fixture
def part() -> Part:
    numbers = np.random.default_rng(1)
    X = numbers.random((POINTS, TOKENS)) * (numbers.random((POINTS, TOKENS)) < 0.8)  # no two point the same way
    X[:, 0] += 0.5
    Y, filtered = np.zeros((POINTS, LABELS)), np.zeros((POINTS, LABELS))
    for row in range(POINTS):
        Y[row, numbers.choice(LABELS, numbers.integers(1, 4), replace=False)] = 1
        filtered[row, numbers.choice(np.flatnonzero(Y[row] == 0))] = 1
    return Part(csr_array(Y.astype(np.float32)), X=csr_array(X.astype(np.float32)), filtered=csr_array(filtered))


class Fitted(NamedTuple):
    model: Astec
    stages: dict[str, Stage]  # as they begin
    later: dict[str, Stage]  # after learning
    whole: dict[str, Weights]  # of the learner, when a stage begins
    centroids: list[Any]  # that labels were clustered by
    clusters: list[list[int]]  # labels of each cluster
    schedules: dict[str, Schedule]


@pytest.fixture
def fitted(part, monkeypatch) -> Callable[..., Fitted]:
    """Fit a model in which each stage is measured, and then random weights take the place of learning."""

    def fit(frame: dict[str, Any] = PAPER, **changes: Any) -> Fitted:
        model = Astec(TOKENS, LABELS, AstecSettings(**{**frame, **changes}), seeded())
        found = Fitted(model, {}, {}, {}, [], [], {})
        plain = astec.balanced_clusters

        def clustered(centroids: Any, *more: Any) -> Any:
            of_labels = plain(centroids, *more)
            found.centroids.append(centroids)
            found.clusters[:] = [np.flatnonzero(of_labels == m).tolist() for m in range(of_labels.max() + 1)]
            return of_labels

        def trained(
            run: Run, stage: str, module: nn.Module, points: Any, objective: Objective, schedule: Schedule,
            validate: Any = None, turn: Any = None,
        ) -> Outcome:  # fmt: skip
            network = model.all_networks()[int(stage[-1])]
            found.whole[stage] = weights_of(network)
            found.schedules[stage] = schedule
            if turn:
                turn(0, False)
            found.stages[stage] = measured(module, objective, ROWS)
            disturb(module, len(found.stages))
            found.later[stage] = measured(module, objective, ROWS)
            module.eval()
            if turn:
                turn(1, False)
            return Outcome(None, -1, 1, 0.0)

        monkeypatch.setattr(astec, "balanced_clusters", clustered)
        monkeypatch.setattr(astec, "train", trained)
        model.fit(Lesson(part), Run())
        return found

    return fit


def skipped(settings: AstecSettings) -> tuple[str, ...]:
    """The parameters that steps do not train: without cosines, and scores' offset by the decoupled loss."""
    if not settings.cosine:
        return ("scale", "offset")
    return ("offset",) if settings.loss == "decoupled" else ()


# --- Module I ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", ["none", "clusters", "both"])
def test_module_1_clusters_the_sums_of_points(part, fitted, smoothing):
    (centroids,) = fitted(smoothing=smoothing).centroids
    X, truth = part.X.toarray().astype(float), labels_in(part.Y, list(range(POINTS)))
    sums = [sum(x for x, right in zip(X, truth, strict=True) if label in right).tolist() for label in range(LABELS)]
    expected = sums if smoothing == "none" else twin.smoothed(sums, truth)
    np.testing.assert_allclose(centroids.toarray(), expected, rtol=1e-5)


@pytest.mark.parametrize("changes", [
    {}, {"features": "signed"}, {"residual": False}, {"biases": False}, {"cosine": True}, {"dropout": 0.5},
    {"cosine": True, "features": "signed", "residual": False}, {"loss": "decoupled"},
])  # fmt: skip
def test_a_step_of_module_1(part, fitted, changes):
    """All clusters count, with the logistic loss; one is right if it contains a right label."""
    found = fitted(**changes)
    settings = found.model.settings
    points, truth = texts_of(part.X[ROWS]), labels_in(part.Y, ROWS)
    owned = [{m for m, own in enumerate(found.clusters) if set(own) & right} for right in truth]

    def loss(weights: Weights) -> float:
        vectors = [twin.final(x, weights["tokens.rows"], weights, settings.features) for x in points]
        rows = [twin.scores(x, weights, "heads", settings.cosine) for x in vectors]
        everything = [set(range(len(found.clusters)))] * len(ROWS)
        return twin.one_vs_all(rows, owned, everything, "logistic")

    assert len(found.clusters) == 4
    assert ("heads.biases.rows" in found.stages["module-1-0"].before) is settings.biases
    names = ("scale", "offset") if not settings.cosine else ()
    assert_same_step(found.stages["module-1-0"], "surrogate", loss, skipped=(*names, *KINK))
    assert_same_step(found.later["module-1-0"], "surrogate", loss, skipped=names)


# --- Module II --------------------------------------------------------------------------------------------------------


def searched(text: Text, whole: Weights, settings: AstecSettings) -> list[float]:
    """The vector that labels are searched with."""
    weights = {name.removeprefix("features."): rows for name, rows in whole.items()}
    if settings.search_by == "intermediate":
        weights.pop("block.R", None)
    vector = twin.final(text, weights["tokens.rows"], weights, settings.features)
    return twin.unit(vector) if settings.cosine else vector


def lists_of(part: Part, rows: list[int], whole: Weights, settings: AstecSettings) -> list[dict[int, float]]:
    """The shortlists of some points, by a learner's weights."""
    points, truth = texts_of(part.X), labels_in(part.Y, list(range(POINTS)))
    vectors = [searched(x, whole, settings) for x in points]
    means = twin.centroids(vectors, truth, LABELS)
    if settings.smoothing == "both":
        means = [twin.unit(mean) for mean in twin.smoothed(means, truth)]
    how = (settings.gamma, settings.neighbours, settings.width(LABELS))
    return [twin.near_labels(vectors[row], means, vectors, truth, *how) for row in rows]


SEARCHES: list[dict[str, Any]] = [
    {}, {"gamma": 0.0}, {"gamma": 1.0}, {"search_by": "final"}, {"smoothing": "both"}, {"cosine": True},
    {"features": "signed", "search_by": "final"}, {"features": "signed"},
]  # fmt: skip


@pytest.mark.parametrize("changes", SEARCHES)
def test_the_search_for_near_labels(part, fitted, changes):
    found = fitted(**changes)
    network, settings = found.model.all_networks()[0], found.model.settings
    everything = list(range(POINTS))
    expected = lists_of(part, everything, weights_of(network), settings)
    queries = network.encoded(part.X, network.features.searched())
    near = network.search(part.Y).search(queries, LISTED)
    for row, wanted in enumerate(expected):
        ids = near.ids[row].tolist()
        listed = {label: score for label, score in zip(ids, near.scores[row].tolist(), strict=True) if label >= 0}
        assert listed == pytest.approx(wanted, rel=1e-4, abs=1e-6)
    lists = network.shortlists(part, part.Y)
    assert [set(row) - {-1} for row in lists.tolist()] == [set(wanted) for wanted in expected]
    hits = sum(len(set(wanted) & right) for wanted, right in zip(expected, labels_in(part.Y, everything), strict=True))
    assert network.recall(part, lists) == pytest.approx(hits / part.Y.nnz)


# --- Modules III and IV -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("features", ["relu", "signed"])
def test_module_3_keeps_token_vectors_and_starts_the_residual_layer_again(fitted, features):
    found = fitted(features=features)
    after, before = found.whole["module-4-0"], found.stages["module-4-0"].before
    np.testing.assert_array_equal(before["block.R"], np.eye(WIDTH))
    learned = found.later["module-1-0"].before
    assert after["features.tokens.rows"] == learned["tokens.rows"]
    if features == "relu":
        assert before["block.bias"] == [[0.0] * WIDTH]
    assert not np.allclose(learned["block.R"], np.eye(WIDTH))


STEPS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (PAPER, {}), (PAPER, {"random_negatives": 0}), (PAPER, {"freeze_tokens": False}), (PAPER, {"gamma": 0.0}),
    (PAPER, {"loss": "decoupled"}), (PAPER, {"residual": False}), (PAPER, {"biases": False}),
    (PAPER, {"negatives": "shared"}), (PAPER, {"negatives": "all"}), (PAPER, {"module1_dropout": 0.5}),
    (OURS, {}), (OURS, {"loss": "decoupled"}), (OURS, {"negatives": "all"}), (OURS, {"negatives": "own"}),
    (OURS, {"negatives": "all", "loss": "decoupled"}), (OURS, {"negatives": "own", "loss": "decoupled"}),
    (OURS, {"biases": False}), (OURS, {"features": "relu"}), (OURS, {"search_by": "intermediate"}),
    (OURS, {"freeze_tokens": True}), (OURS, {"residual": False}), (OURS, {"random_negatives": 1}),
    (OURS, {"shortlist_size": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("frame", "changes"), STEPS)
def test_a_step_of_module_4(part, fitted, frame, changes):
    found = fitted(frame, **changes)
    settings, stages = found.model.settings, (found.stages["module-4-0"], found.later["module-4-0"])
    whole = found.whole["module-4-0"]
    points, truth = texts_of(part.X[ROWS]), labels_in(part.Y, ROWS)
    left_out = [set(part.filtered[[row]].indices.tolist()) for row in ROWS]
    drawn = torch.randint(LABELS, (len(ROWS), settings.random_negatives), generator=seeded(0)).tolist()
    near = lists_of(part, ROWS, whole, settings)
    lists = [{*some, *more} for some, more in zip(near, drawn, strict=True)]
    if settings.shortlist_size == 1:
        assert set().union(*truth) - set().union(*lists)  # right labels that no shortlist of the batch has
    counted = twin.candidates(settings.negatives, truth, lists, left_out, LABELS)

    def loss(weights: Weights) -> float:
        E = weights.get("tokens.rows", whole["features.tokens.rows"])
        vectors = [twin.final(x, E, weights, settings.features) for x in points]
        rows = [twin.scores(x, weights, "classifier", settings.cosine) for x in vectors]
        return twin.one_vs_all(rows, truth, counted, settings.loss)

    assert ("tokens.rows" in stages[0].before) is not settings.freeze_tokens
    assert ("classifier.biases.rows" in stages[0].before) is settings.biases
    for stage, more in zip(stages, (KINK, ()), strict=True):
        assert_same_step(stage, settings.loss, loss, skipped=(*skipped(settings), *more))


@pytest.mark.parametrize(("dropped", "stages"), [
    ({"module1_dropout": 0.5}, ["module-1-0"]), ({"dropout": 0.5}, ["module-4-0"]), ({}, []),
    ({"dropout": 0.5, "residual": False}, []),  # frozen features are computed without dropout
    ({"dropout": 0.5, "residual": False, "freeze_tokens": False}, ["module-4-0"]),
    ({"dropout": 0.5, "residual": False, "features": "signed"}, ["module-4-0"]),
])  # fmt: skip
def test_which_modules_drop(fitted, dropped, stages):
    found = fitted(random_negatives=0, **dropped).stages
    assert [name for name, stage in found.items() if stage.terms != stage.again] == stages


def test_random_labels_change_with_each_step(fitted):
    stage = fitted(random_negatives=3, shortlist_size=1).stages["module-4-0"]
    assert stage.terms != stage.again


def test_schedules_are_those_of_the_settings(fitted):
    given = {"epochs": 6, "module1_epochs": 4, "learning_rate": 0.03, "module1_learning_rate": 0.02, "batch_size": 2}
    found = fitted(halve_learning_rate=True, **given).schedules
    one, four = found["module-1-0"], found["module-4-0"]
    assert [(each.epochs, each.learning_rate, each.batch_size) for each in (one, four)] == [(4, 0.02, 2), (6, 0.03, 2)]
    assert [four.rate_at(step, 20) for step in (0, 13, 14, 19)] == [0.03, 0.03, 0.015, 0.015]
    more = fitted(min_steps=45, **given).schedules
    assert [more[name].epochs for name in ("module-1-0", "module-4-0")] == [4, 6]  # 60 steps and more
    assert fitted(min_steps=90, **given).schedules["module-1-0"].epochs == 6
    assert fitted(batch_size=255).schedules["module-4-0"].batch_size == POINTS // 10


def test_without_module_1_token_vectors_stay_random(fitted):
    found = fitted(OURS, module1_epochs=0)
    assert list(found.stages) == ["module-4-0"]
    fresh = Astec(TOKENS, LABELS, found.model.settings, seeded())
    assert found.whole["module-4-0"] == weights_of(fresh.all_networks()[0])


# --- Prediction -------------------------------------------------------------------------------------------------------


def predicted(part: Part, row: int, network: nn.Module, settings: AstecSettings) -> dict[int, float]:
    """The scores of the labels on a point's shortlist."""
    whole = weights_of(network)
    weights = {name.removeprefix("features."): rows for name, rows in whole.items()}
    (text,) = texts_of(part.X[[row]])
    x = twin.final(text, weights["tokens.rows"], weights, settings.features)
    logits = twin.scores(x, weights, "classifier", settings.cosine)
    (near,) = lists_of(part, [row], whole, settings)
    scored = {label: twin.score(logits[label], similarity, settings.beta) for label, similarity in near.items()}
    return {label: UNLISTED + (1 - UNLISTED) * score for label, score in scored.items()}


@pytest.mark.parametrize(("frame", "changes"), [
    (PAPER, {}), (PAPER, {"gamma": 0.0}), (PAPER, {"cosine": True}), (OURS, {}), (OURS, {"search_by": "intermediate"}),
    (OURS, {"gamma": 0.5}), (OURS, {"biases": False}), (OURS, {"beta": 1.0}), (OURS, {"residual": False}),
    (OURS, {"loss": "decoupled"}), (OURS, {"cosine": False}), (PAPER, {"gamma": 0.0, "residual": False}),
])  # fmt: skip
def test_prediction_mixes_classifier_and_shortlist(part, fitted, frame, changes):
    found = fitted(frame, **changes)
    (learner,), (network,) = found.model.learners(), found.model.all_networks()
    ranking = learner.rank(part.X[ROWS], LISTED)
    for place, row in enumerate(ROWS):
        wanted = twin.best(predicted(part, row, network, found.model.settings), LISTED)
        assert ranking.ids[place, : len(wanted)].tolist() == list(wanted)
        assert ranking.scores[place, : len(wanted)].tolist() == pytest.approx(list(wanted.values()), rel=1e-3)


def test_learners_have_modules_of_their_own_and_are_averaged(part, fitted):
    found = fitted(learners=3)
    assert list(found.stages) == [f"module-{module}-{number}" for number in range(3) for module in (1, 4)]
    assert len(found.centroids) == 3
    networks = found.model.all_networks()
    ranking = found.model.predictor().rank(part.X[ROWS], 2)
    for place, row in enumerate(ROWS):
        each = [list(predicted(part, row, network, found.model.settings).items()) for network in networks]
        (wanted,) = averaged([[scored] for scored in each], 2)
        assert ranking.ids[place].tolist() == [label for label, _ in wanted]
