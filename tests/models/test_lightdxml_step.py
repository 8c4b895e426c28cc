"""LightDXML as a whole: the steps of label encoder and classifier, and prediction, against slow twins in every branch.

`fit` runs as it is; only the trainer is replaced by one that does a single step and updates nothing.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference_lightdxml as twin
import torch
from reference import cosine
from reference_lightdxml import Point, Vector, Weights
from scipy.sparse import csr_array

from zipfel.data.dataset import Part
from zipfel.models import lightdxml
from zipfel.models.base import Lesson
from zipfel.models.lightdxml import LightDxml
from zipfel.models.lightdxml_settings import LightSettings
from zipfel.nn.encoders import dropped
from zipfel.nn.optim import merged
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, Schedule

pytestmark = pytest.mark.usefixtures("one_thread")

POINTS, FEATURES, LABELS, WIDTH = 40, 6, 9, 3
NAMELESS, TEXT_ONLY = LABELS - 2, LABELS - 1  # labels without points; the second has a text
ROWS = [0, 1, 4, 5, 9, 17, 30]
BASE: dict[str, Any] = {
    "loss": "logistic",
    "dimension": WIDTH, "shortlist_size": 3, "dropout": 0.4, "batch_size": 64, "epochs": 2, "min_steps": 1,
    "cycle_epochs": 1, "label_epochs": 2, "beta": 0.3, "index": "exact",
}  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def made_part() -> Part:
    """Points of any length with one to three labels, filtered pairs, a point without labels, two empty labels."""
    numbers = np.random.default_rng(0)
    X = numbers.normal(size=(POINTS, FEATURES)) * (numbers.random((POINTS, FEATURES)) < 0.6)
    X[:, 0] += 1.5
    Y = np.zeros((POINTS, LABELS))
    for row in range(POINTS):
        Y[row, numbers.choice(NAMELESS, numbers.integers(1, 4), replace=False, p=[0.3, 0.2, *[0.1] * 5])] = 1
    Y[3] = 0
    filtered = (numbers.random((POINTS, LABELS)) < 0.2) & (Y == 0)
    Y, X, filtered = (csr_array(some.astype(np.float32)) for some in (Y, X, filtered))
    return Part(Y, X=X, filtered=filtered)


def texts_of_labels() -> csr_array:
    """Return texts of a label with points, whose text must not count, and of the one without."""
    Z = np.zeros((LABELS, FEATURES), dtype=np.float32)
    Z[1], Z[TEXT_ONLY] = [0, 3, 0, 0, 1, 0], [0, 0, 2, 0.5, 0, -1]
    return csr_array(Z)


def small(seed: int = 5, **changes: Any) -> LightDxml:
    """Return a model whose numbers are all drawn at random; R's singular vector is known, as after many steps."""
    model = LightDxml(FEATURES, LABELS, LightSettings(**{**BASE, **changes}), seeded(seed))
    generator = seeded(seed + 1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("scale", "offset")):
                continue
            value.normal_(0, 0.7, generator=generator)
        if model.encoder.block is not None:
            left, _, _ = torch.linalg.svd(model.encoder.block.R.double())
            model.encoder.block.left.copy_(left[:, 0])
    return model


class Step(NamedTuple):
    """A stage as `fit` hands it to the trainer, and its first step."""

    weights: Weights  # before the step
    terms: dict[str, float]
    gradients: dict[str, torch.Tensor]
    schedule: Schedule
    module: torch.nn.Module
    turns: int


def numbers_of(model: LightDxml) -> Weights:
    """Return the weights as rows of numbers, by name."""
    return {name: value.detach().double().reshape(1 if value.ndim < 2 else len(value), -1).tolist()
            for name, value in model.named_parameters()}  # fmt: skip


def gradients_of(model: LightDxml) -> dict[str, torch.Tensor]:
    """Return the gradients of all weights, as the optimiser finds them."""
    found = {}
    for name, value in model.named_parameters():
        found[name] = torch.zeros_like(value) if value.grad is None else value.grad.clone()
    for name, table in (("encoder.tokens", model.encoder.tokens), ("classifier.labels", model.classifier.labels)):
        if table.touched:
            ids, gradient = merged(table.touched)
            found[f"{name}.rows"][ids] = gradient
            table.touched.clear()
    return found


@pytest.fixture
def steps(monkeypatch):
    """Return the first steps of all stages of a `fit`, by stage."""

    def fit(model: LightDxml, lesson: Lesson, seed: int = 0) -> dict[str, Step]:
        found: dict[str, Step] = {}

        def one_step(
            run: Run, stage: str, module: Any, points: Any, objective: Any, schedule: Schedule,
            validate: Any = None, turn: Any = None,
        ) -> Outcome:  # fmt: skip
            if turn is not None:
                turn(0, False)
            module.train()
            weights, terms = numbers_of(model), objective(np.array(ROWS), seeded(seed))
            sum(terms.values()).backward()
            values = {name: term.item() for name, term in terms.items()}
            found[stage] = Step(weights, values, gradients_of(model), schedule, module, 0 if turn is None else 1)
            model.zero_grad(set_to_none=True)
            module.eval()
            return Outcome(None, -1, 0, 0.0)

        monkeypatch.setattr(lightdxml, "train", one_step)
        model.fit(lesson, Run())
        return found

    return fit


def pairs(matrix: csr_array, row: int) -> Point:
    one = matrix[[row]]
    return list(zip(one.indices.tolist(), one.data.tolist(), strict=True))


def labels_of(matrix: csr_array, row: int) -> set[int]:
    return {label for label, _ in pairs(matrix, row)}


class Known(NamedTuple):
    """The labelled points of train, and what Steps 1 to 3 make of them before the first epoch, by the twin."""

    points: list[Point]
    truth: list[set[int]]
    filtered: list[set[int]]
    vectors: list[Vector]
    centroids: list[Vector | None]
    labels: list[Vector]
    lists: list[list[int]]


def known(part: Part, weights: Weights, settings: LightSettings, Z: csr_array | None = None) -> Known:
    rows = np.flatnonzero(np.diff(part.Y.indptr)).tolist()
    points, truth = [pairs(part.X, row) for row in rows], [labels_of(part.Y, row) for row in rows]
    filtered = [set() if part.filtered is None else labels_of(part.filtered, row) for row in rows]
    vectors = [twin.features(x, weights, settings) for x in points]
    text = None if Z is None else twin.features(pairs(Z, TEXT_ONLY), weights, settings)
    texts = [text if label == TEXT_ONLY else None for label in range(LABELS)]
    centroids = [twin.centroid(label, vectors, truth, texts[label]) for label in range(LABELS)]
    zero = [0.0] * WIDTH
    labels = [zero if mu is None else twin.encoded_label(mu, weights, settings) for mu in centroids]
    lists = [twin.shortlist(x, labels, settings.shortlist_size) for x in vectors]
    return Known(points, truth, filtered, vectors, centroids, labels, lists)


def batch_of(items: list[Any]) -> list[Any]:
    return [items[row] for row in ROWS]


def assert_same_gradients(step: Step, slopes: Weights) -> None:
    for name, slope in slopes.items():
        found = step.gradients[name].reshape(len(slope), -1)
        np.testing.assert_allclose(found, slope, rtol=2e-3, atol=5e-5, err_msg=name)


def assert_same_classifier_step(model: LightDxml, part: Part, steps: Any, seed: int = 0) -> Step:
    """Compare loss and all gradients of Step 4, on the shortlists of the first cycle, with those of the twin."""
    settings = model.settings
    step = steps(model, Lesson(part), seed)["lightdxml"]
    weights = step.weights
    found = known(part, weights, settings)
    factors = dropped(torch.ones(len(ROWS), WIDTH), settings.dropout, seeded(seed)).tolist()
    points, truth, lists, filtered = map(batch_of, (found.points, found.truth, found.lists, found.filtered))
    labels = twin.labels_of_step(truth, lists, filtered, settings.shared_negatives)

    def loss() -> float:
        return twin.classifier_loss(weights, points, factors, truth, labels, settings)

    assert step.terms == pytest.approx({settings.loss: loss()}, rel=1e-4)
    learned = {name: rows for name, rows in weights.items() if not name.startswith("label_encoder")}
    assert_same_gradients(step, twin.gradients(learned, loss))
    return step


# --- Step 4 -----------------------------------------------------------------------------------------------------------

BRANCHES = [
    dict(zip(("loss", "shared_negatives", "residual", "cosine"), values, strict=True))
    for values in itertools.product(("logistic", "decoupled"), (False, True), (False, True), (False, True))
]


@pytest.mark.parametrize("branch", BRANCHES, ids=lambda branch: "-".join(map(str, branch.values())))
def test_a_step_of_the_classifier(steps, branch):
    step = assert_same_classifier_step(small(**branch), made_part(), steps)
    moved = {name for name, gradient in step.gradients.items() if gradient.abs().max() > 1e-6}
    assert not any(name.startswith("label_encoder") for name in moved)
    assert ("classifier.scale" in moved) == branch["cosine"]
    assert ("classifier.offset" in moved) == (branch["cosine"] and branch["loss"] == "logistic")
    assert ("encoder.block.R" in moved) == branch["residual"]


@pytest.mark.parametrize("changes", [{"relu": True, "seed": 7}, {"shortlist_size": 1}, {"shortlist_size": LABELS}])
def test_shortlists_of_other_labels(steps, changes):
    for shared in (False, True):
        assert_same_classifier_step(small(shared_negatives=shared, **changes), made_part(), steps)


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.9])
def test_dropout(steps, dropout, residual):
    assert_same_classifier_step(small(dropout=dropout, residual=residual), made_part(), steps, seed=3)


@pytest.mark.parametrize("shared", [False, True])
def test_without_filtered_pairs(steps, shared):
    part = made_part()
    part = Part(part.Y, X=part.X)
    assert_same_classifier_step(small(shared_negatives=shared), part, steps)


def test_another_seed_and_the_settings_of_the_paper(steps):
    """Relu, inner products, lists of their own, no residual layer, no dropout: as printed."""
    paper = {"relu": True, "cosine": False, "shared_negatives": False, "residual": False, "dropout": 0.0}
    assert_same_classifier_step(small(seed=11, **paper), made_part(), steps)


# --- Step 2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("texts", [False, True])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("cosine", [False, True])
def test_a_step_of_the_label_encoder(steps, cosine, relu, texts):
    part, Z = made_part(), texts_of_labels() if texts else None
    model = small(cosine=cosine, relu=relu)
    step = steps(model, Lesson(part, Z=Z))["labels-0"]
    weights, settings = step.weights, model.settings
    found = known(part, weights, settings, Z)
    points, truth = batch_of(found.vectors), batch_of(found.truth)

    def loss() -> float:
        return twin.distance(weights, points, found.centroids, truth, settings)

    assert step.terms == pytest.approx({"distance": loss()}, rel=1e-4)
    slopes = twin.gradients({name: rows for name, rows in weights.items() if name.startswith("label_encoder")}, loss)
    assert_same_gradients(step, slopes)
    assert all(not gradient.any() for name, gradient in step.gradients.items() if name not in slopes)
    for label, vector in enumerate(found.labels):
        near = torch.tensor(twin.unit(vector))
        torch.testing.assert_close(model.label_vectors[label].double(), near.double(), rtol=0, atol=2e-3)
    assert bool(model.label_vectors[TEXT_ONLY].any()) is texts
    assert not model.label_vectors[NAMELESS].any()


def test_what_is_trained_and_for_how_long(steps):
    model = small(label_epochs=3, label_learning_rate=0.02, learning_rate=0.05, epochs=6, cycle_epochs=2, patience=4)
    stages = steps(model, Lesson(made_part()))
    assert list(stages) == ["labels-0", "lightdxml"]
    labels, classifier = stages["labels-0"], stages["lightdxml"]
    assert labels.module is model.label_encoder
    assert (labels.schedule.epochs, labels.schedule.learning_rate, labels.schedule.batch_size) == (3, 0.02, 3)
    assert classifier.module is model
    schedule = classifier.schedule
    assert (schedule.epochs, schedule.learning_rate, schedule.batch_size) == (6, 0.05, 3)
    assert (schedule.turn_every, schedule.patience, schedule.asked, schedule.optimizer) == (2, 4, 6, "adam")
    assert (labels.turns, classifier.turns) == (0, 1)


def test_a_batch_of_the_label_encoder_has_at_most_2048_points(steps, monkeypatch):
    monkeypatch.setattr(lightdxml, "LABEL_BATCH", 2)
    assert steps(small(), Lesson(made_part()))["labels-0"].schedule.batch_size == 2


# --- Step 6 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cosine": False},
        {"relu": True},
        {"residual": False},
        {"cosine": False, "residual": False, "relu": True},
        {"loss": "decoupled"},
    ],
)
def test_prediction(steps, changes, beta):
    part, Z = made_part(), texts_of_labels()
    model = small(beta=beta, shortlist_size=4, **changes)
    steps(model, Lesson(part, Z=Z))
    weights, labels = numbers_of(model), model.label_vectors.tolist()  # R and label vectors are rounded at the end
    found = known(part, weights, model.settings, Z)
    counts = part.Y.sum(axis=0).astype(int).tolist()
    rows = np.flatnonzero(np.diff(part.Y.indptr))
    ranking = model.predictor().rank(part.X[rows], LABELS)
    for row, vector in enumerate(found.vectors):
        listed, others = np.split(ranking.ids[row], [4])
        near = [cosine(vector, label) for label in labels]
        assert min(near[label] for label in listed) > max(near[label] for label in others) - 2e-3  # rounded lengths
        wanted = [twin.mixed(vector, label, labels[label], weights, model.settings, beta) for label in listed]
        np.testing.assert_allclose(ranking.scores[row, :4], wanted, atol=5e-5)
        assert (np.diff(ranking.scores[row]) <= 0).all()
        assert others.tolist() == sorted(others, key=lambda label: (-counts[label], label))
        assert ranking.scores[row, 4:].max() < min(1e-6, *wanted)


def test_what_explanations_differentiate_is_the_score_of_a_ranking(steps):
    part = made_part()
    model = small(beta=0.3, shortlist_size=4)
    steps(model, Lesson(part))
    (learner,) = model.learners()
    query, ranking = learner.encode(part.X[:1]), learner.rank(part.X[:1], 3)
    for label, score in zip(ranking.ids[0].tolist(), ranking.scores[0].tolist(), strict=True):
        log_odds = learner.classifier.scorer(label, query, learner.index)(query)
        assert log_odds.sigmoid().item() == pytest.approx(score, abs=1e-4)


@pytest.mark.parametrize("relu", [False, True])
def test_labels_known_by_their_texts(steps, relu):
    part, Z = made_part(), texts_of_labels()[[1, TEXT_ONLY]]
    model = small(relu=relu)
    weights = steps(model, Lesson(part))["lightdxml"].weights
    scores = model.text_scores(model.predictor(), part.X[:5], Z)
    for row, column in itertools.product(range(5), range(2)):
        x, z = (twin.features(pairs(*some), weights, model.settings) for some in ((part.X, row), (Z, column)))
        as_label = {**weights, "classifier.labels.rows": [z]}
        y = twin.encoded_label(z, weights, model.settings)
        wanted = twin.mixed(x, 0, y, as_label, model.settings, 0.3)
        assert scores[row, column].item() == pytest.approx(wanted, abs=2e-3)
