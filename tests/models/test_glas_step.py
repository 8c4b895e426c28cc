"""GLaS as a whole: a training step and prediction against slow twins, in every branch of the settings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
import reference_glas
import torch
from reference_glas import Batch, Weights
from scipy.sparse import csr_array

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index.exact import ExactIndex
from zipfel.index.hnsw import HnswIndex
from zipfel.index.ivf import IvfIndex
from zipfel.models import glas
from zipfel.models.base import Lesson, settings_of
from zipfel.models.glas import PRESETS, Glas, GlasSettings
from zipfel.nn.optim import merged
from zipfel.training.progress import Observer
from zipfel.training.run import Run
from zipfel.training.trainer import Objective, Schedule, Validation

pytestmark = pytest.mark.usefixtures("one_thread")

POINTS, FEATURES, LABELS, WIDTH = 40, 6, 8, 3
ALONE = LABELS - 1  # a label without points
BASE: dict[str, Any] = {
    "dimension": WIDTH, "layers": 1, "nonlinear": True, "loss": "margin", "margin": 0.3, "negatives": 2, "scale": 3.0,
    "regularizer": "glas", "regularizer_weight": 2.5, "feature_dropout": 0.4, "batch_size": 64, "min_steps": 1,
}  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def part() -> Part:
    """Points of any length with one to three labels, filtered pairs; a point without labels, a label without points."""
    numbers = np.random.default_rng(0)
    X = numbers.normal(size=(POINTS, FEATURES)) * (numbers.random((POINTS, FEATURES)) < 0.6)
    X[:, 0] += 1.5
    Y = np.zeros((POINTS, LABELS))
    for row in range(POINTS):
        Y[row, numbers.choice(ALONE, numbers.integers(1, 4), replace=False, p=[0.3, 0.2, *[0.1] * 5])] = 1
    Y[3] = 0
    filtered = (numbers.random((POINTS, LABELS)) < 0.2) & (Y == 0)
    Y, X, filtered = (csr_array(some.astype(np.float32)) for some in (Y, X, filtered))
    return Part(Y, X=X, filtered=filtered)


def small(seed: int = 5, **changes: Any) -> Glas:
    """Return a model in training whose numbers are all drawn at random; label vectors have any length."""
    model = Glas(FEATURES, LABELS, GlasSettings(**{**BASE, **changes}), seeded(seed)).train()
    generator = seeded(seed + 1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if not name.endswith("scale"):
                value.normal_(0, 1, generator=generator)
    return model


class Captured(NamedTuple):
    """What `fit` asks the trainer to do."""

    stage: str
    module: Glas
    points: int | np.ndarray
    objective: Objective
    schedule: Schedule
    validate: Validation | None


@pytest.fixture
def captured(monkeypatch):
    """Return what a model's `fit` gives to the trainer, and train nothing."""

    def capture(model: Glas, lesson: Lesson) -> Captured:
        calls: list[Captured] = []
        monkeypatch.setattr(glas, "train", lambda run, *asked: calls.append(Captured(*asked)))
        model.fit(lesson, Run())
        (only,) = calls
        return only

    return capture


def weights_of(model: Glas) -> Weights:
    """Return the weights as rows of numbers, by name."""
    return {name: value.detach().double().reshape(1 if value.ndim < 2 else len(value), -1).tolist()
            for name, value in model.named_parameters()}  # fmt: skip


def gradients_of(model: Glas) -> dict[str, torch.Tensor]:
    """Return the gradients of all weights, as the optimiser finds them."""
    found = {}
    for name, value in model.named_parameters():
        found[name] = torch.zeros_like(value) if value.grad is None else value.grad
    for name, table in (("embedding.input", model.embedding.input), ("classifier.labels", model.classifier.labels)):
        ids, gradient = merged(table.touched)
        found[f"{name}.rows"][slice(None) if ids is None else ids] = gradient
    return found


def pairs(matrix: csr_array, row: int) -> list[tuple[int, float]]:
    one = matrix[[row]]
    return list(zip(one.indices.tolist(), one.data.tolist(), strict=True))


def labels_of(matrix: csr_array, row: int) -> set[int]:
    return {label for label, _ in pairs(matrix, row)}


def labelled_rows(part: Part) -> Part:
    return part.take(np.flatnonzero(np.diff(part.Y.indptr)))


def drawn_batch(part: Part, rows: list[int], generator: torch.Generator, settings: GlasSettings) -> Batch:
    """Draw as a step does: which features are kept, then a label of each point, the pool, and lots of its labels."""
    points, rho = [pairs(part.X, row) for row in rows], 1 - settings.feature_dropout
    kept = [[True] * len(point) for point in points]
    if rho < 1:
        draws = iter(torch.rand(sum(map(len, points)), generator=generator).tolist())
        kept = [[next(draws) < rho for _ in point] for point in points]
    own = [[label for label, _ in pairs(part.Y, row)] for row in rows]
    shares = torch.rand(len(rows), generator=generator).tolist()
    sampled = [labels[int(share * len(labels))] for labels, share in zip(own, shares, strict=True)]
    pool = list(range(LABELS))
    if settings.pool < LABELS:
        drawn = torch.randint(LABELS, (settings.pool,), generator=generator).tolist()
        pool = sorted({label for labels in own for label in labels} | set(drawn))
    out = [set() if part.filtered is None else labels_of(part.filtered, row) for row in rows]
    lots = torch.zeros(len(rows), len(pool))
    if settings.negative_labels == "sampled" and settings.loss != "logistic":
        lots = torch.rand(len(rows), len(pool), generator=generator)
    return Batch(points, kept, [set(labels) for labels in own], out, sampled, pool, lots.tolist())


def adjacency_of(part: Part, batch: Batch, settings: GlasSettings) -> list[list[float]]:
    truth = [labels_of(part.Y, row) for row in range(len(part))]
    return reference.adjacency(truth, batch.sampled, settings.adjacency)


def assert_same_step(model: Glas, part: Part, captured: Any, rows: list[int], seed: int = 0) -> Batch:
    """Compare terms, total and all gradients of a step with those of the twin; return what was drawn."""
    objective = captured(model, Lesson(part)).objective
    known = labelled_rows(part)
    batch = drawn_batch(known, rows, seeded(seed), model.settings)
    U, weights = adjacency_of(known, batch, model.settings), weights_of(model)
    slow = reference_glas.terms(weights, batch, U, model.settings)
    terms = objective(np.array(rows), seeded(seed))
    assert list(terms) == list(slow)
    assert {name: term.item() for name, term in terms.items()} == pytest.approx(slow, rel=1e-5, abs=1e-6)
    total = sum(terms.values())
    assert total.item() == pytest.approx(sum(slow.values()), rel=1e-5, abs=1e-6)
    total.backward()
    slopes, found = reference_glas.gradients(weights, batch, U, model.settings), gradients_of(model)
    for name, slope in slopes.items():
        np.testing.assert_allclose(found[name].reshape(len(slope), -1), slope, rtol=1e-3, atol=2e-5, err_msg=name)
    return batch


# --- A training step --------------------------------------------------------------------------------------------------

ROWS = [0, 1, 4, 5, 9, 17, 30]
REGULARIZERS = [
    {"regularizer": "glas"}, *({"regularizer": "glas", "adjacency": kind} for kind in ("geometric", "pmi", "jaccard")),
    {"regularizer": "laplacian"}, {"regularizer": "laplacian", "adjacency": "geometric"},
    {"regularizer": "laplacian", "adjacency": "pmi"}, {"regularizer": "laplacian", "adjacency": "jaccard"},
    {"regularizer": "spread_out"}, {"regularizer": "gravity"}, {"regularizer": "none"},
]  # fmt: skip


@pytest.mark.parametrize("regularizer", REGULARIZERS, ids=lambda r: "-".join(r.values()))
@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
def test_a_step_is_that_of_the_paper(part, captured, loss, regularizer):
    assert_same_step(small(loss=loss, **regularizer), part, captured, ROWS)


@pytest.mark.parametrize("nonlinear", [True, False])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("weight_norm", [True, False])
def test_layers(part, captured, layers, nonlinear, weight_norm):
    model = small(layers=layers, nonlinear=nonlinear, weight_norm=weight_norm)
    assert_same_step(model, part, captured, ROWS)
    assert ("embedding.length" in dict(model.named_parameters())) == weight_norm


@pytest.mark.parametrize("dropout", [0.0, 0.2, 0.9])
def test_feature_dropout(part, captured, dropout):
    batch = assert_same_step(small(feature_dropout=dropout), part, captured, ROWS, seed=1)
    assert all(map(all, batch.kept)) == (dropout == 0)
    assert any(not any(kept) for kept in batch.kept) == (dropout == 0.9)  # points that keep no feature


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
@pytest.mark.parametrize("pool", [1, 3, 7, 8, 100])
def test_the_pool(part, captured, loss, pool):
    batch = assert_same_step(small(loss=loss, pool=pool), part, captured, [0, 1, 4], seed=2)
    assert (len(batch.pool) == LABELS) == (pool >= LABELS)
    assert batch.pool != sorted(set().union(*batch.truth)) or pool == 1  # others are drawn


@pytest.mark.parametrize("seed", range(3))
def test_a_pool_with_room_for_all_labels_has_them_all(part, captured, seed):
    """As many random draws would miss some."""
    assert_same_step(small(loss="logistic", pool=LABELS), part, captured, [2], seed)


@pytest.mark.parametrize("loss", ["margin", "softmax"])
@pytest.mark.parametrize("negatives", [1, 3, 50])
def test_the_number_of_negatives(part, captured, loss, negatives):
    assert_same_step(small(loss=loss, negatives=negatives), part, captured, ROWS)


@pytest.mark.parametrize("kind", ["hardest", "sampled", "all"])
@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
@pytest.mark.parametrize(("pool", "negatives"), [(100, 1), (100, 3), (100, 50), (3, 2)])
def test_kinds_of_negatives(part, captured, kind, loss, pool, negatives):
    """Only the losses of a sampled label know them: logistic has all labels."""
    settings = {"loss": loss, "negative_labels": kind, "negatives": negatives, "pool": pool}
    assert_same_step(small(**settings), part, captured, ROWS)


@pytest.mark.parametrize("loss", ["margin", "softmax"])
def test_kinds_of_negatives_differ_and_a_sample_of_all_is_all_of_them(part, captured, loss):
    def value(kind: str, negatives: int) -> float:
        model = small(loss=loss, negative_labels=kind, negatives=negatives, margin=3.0, regularizer="none")
        return captured(model, Lesson(part)).objective(np.array(ROWS), seeded())[loss].item()

    few = {kind: value(kind, 2) for kind in ("hardest", "sampled", "all")}
    assert len({round(number, 4) for number in few.values()}) == 3
    assert few["hardest"] < few["all"]
    for kind in ("hardest", "sampled", "all"):
        assert value(kind, LABELS) == pytest.approx(few["all"], rel=1e-5)


def test_sampled_negatives_estimate_equation_1(part, captured):
    """The mean over many draws is the sum over all wrong labels; scores are the same in each, without dropout."""
    rows, settings = list(range(39)), {"regularizer": "none", "feature_dropout": 0.0}
    whole = captured(small(negative_labels="all", **settings), Lesson(part)).objective
    some = captured(small(negative_labels="sampled", **settings), Lesson(part)).objective
    with torch.no_grad():
        # a seed draws the same positives for both
        draws = [[loss(np.array(rows), seeded(seed))["margin"].item() for loss in (whole, some)] for seed in range(300)]
    exact, estimate = np.array(draws).T
    error = (estimate - exact).std() / len(draws) ** 0.5
    assert error < 0.02 * exact.mean()
    assert abs((estimate - exact).mean()) < 4 * error


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
def test_filtered_pairs_are_neither_right_nor_wrong(part, captured, loss):
    with_them, without = small(loss=loss, negatives=8), small(loss=loss, negatives=8)
    batch = assert_same_step(with_them, part, captured, ROWS)
    assert any(batch.filtered)
    assert_same_step(without, replace(part, filtered=None), captured, ROWS)
    gradients = [gradients_of(model)["classifier.labels.rows"] for model in (with_them, without)]
    assert not torch.allclose(*gradients)


@pytest.mark.parametrize("kind", ["hardest", "sampled", "all"])
def test_a_point_without_negatives(part, captured, kind):
    """All its wrong labels are filtered: it has no loss, and no gradient that is not a number."""
    for loss in ("margin", "softmax", "logistic"):
        everything = part.filtered.toarray()
        everything[0] = 1 - part.Y.toarray()[0]
        model = small(loss=loss, negative_labels=kind)
        assert_same_step(model, replace(part, filtered=csr_array(everything)), captured, [0, 1])


def test_one_point(part, captured):
    assert_same_step(small(), part, captured, [2])


def test_labels_are_sampled_more_than_once(part, captured):
    """The same label twice has U = 1 with itself; lengths of label vectors do not matter."""
    batch = assert_same_step(small(regularizer_weight=50), part, captured, list(range(20)))
    assert len(set(batch.sampled)) < len(batch.sampled)


def test_adjacency_counts_all_of_train_and_not_the_batch(part, captured):
    model, rows = small(loss="margin"), [0, 1, 4]
    assert_same_step(model, part, captured, rows)
    known = labelled_rows(part)
    batch = drawn_batch(known, rows, seeded(), model.settings)
    of_batch = adjacency_of(known.take(np.array(rows)), batch, model.settings)
    assert not np.allclose(of_batch, adjacency_of(known, batch, model.settings))


@pytest.mark.parametrize("changes", [{"regularizer": "none"}, {"regularizer_weight": 0}])
def test_without_a_regularizer_there_is_one_term(part, captured, changes):
    terms = captured(small(**changes), Lesson(part)).objective(np.array(ROWS), seeded())
    assert list(terms) == ["margin"]


@pytest.mark.parametrize("weight", [0.1, 1.0, 1000.0])
def test_the_weight_of_the_regularizer(part, captured, weight):
    assert_same_step(small(regularizer_weight=weight), part, captured, ROWS[:4])


@pytest.mark.parametrize("c", [0.0, 0.2, 1.5])
def test_the_margin(part, captured, c):
    assert_same_step(small(margin=c, regularizer="none"), part, captured, ROWS)


# --- Training: the step is taken, and how long and how fast -----------------------------------------------------------


class OneStep(Observer):
    """Ends a stage after its first step."""

    steps = 0

    def did(self, event: str) -> None:
        self.steps += event == "step"

    def is_enough(self) -> bool:
        return self.steps > 0


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
@pytest.mark.parametrize("weight_norm", [False, True])
def test_fit_takes_that_step_with_adam(part, loss, weight_norm):
    """Adam's first step moves each number by the learning rate against the sign of its gradient."""
    model = small(loss=loss, layers=2, epochs=2, learning_rate=0.01, weight_norm=weight_norm)
    known = labelled_rows(part)
    before, run = weights_of(model), Run(seed=4, observer=OneStep())
    steps = len(known) // (len(known) // 10)
    rows = sorted(run.numbers("glas", 0).permutation(len(known))[::steps].tolist())
    batch = drawn_batch(known, rows, run.generator("glas", 0, 1), model.settings)
    slopes = reference_glas.gradients(before, batch, adjacency_of(known, batch, model.settings), model.settings)
    model.fit(Lesson(part), run)
    rate = 0.01 / (2 * steps + 1) / 0.1  # in the first of 2 `steps` steps, of which a tenth are the warmup
    assert model.settings.batch_size > len(rows) == 3
    for name, rows_before in before.items():
        moved, slope = (np.array(some) for some in (weights_of(model)[name], slopes[name]))
        clear = np.abs(slope) > 1e-3
        assert clear.any() or name in ("classifier.scale", "classifier.offset")
        np.testing.assert_allclose((moved - rows_before)[clear], -rate * np.sign(slope[clear]), rtol=1e-2, err_msg=name)
        assert (moved == rows_before)[slope == 0].all()


@pytest.mark.parametrize(
    ("points", "changes", "batch_size", "epochs"),
    [
        (39, {"epochs": 5}, 3, 5),
        (39, {"epochs": 5, "min_steps": 65}, 3, 5),
        (39, {"epochs": 5, "min_steps": 66}, 3, 6),  # 13 steps an epoch
        (39, {"epochs": 5, "batch_size": 2, "min_steps": 400}, 2, 21),
        (9, {"epochs": 5}, 1, 5),
        (30, {"epochs": 5}, 3, 5),
        (29, {"epochs": 5}, 2, 5),
    ],
)
def test_the_schedule(part, captured, points, changes, batch_size, epochs):
    """A batch is at most a tenth of train; there are more epochs where they make too few steps."""
    model = small(patience=7, learning_rate=0.03, **changes)
    asked = captured(model, Lesson(labelled_rows(part).take(np.arange(points))))
    assert asked.schedule == Schedule(epochs, batch_size, 0.03, patience=7, asked=5)
    assert (asked.stage, asked.module, asked.points, asked.validate) == ("glas", model, points, None)


def test_the_paper_s_preset_stops_when_validation_ceases_to_improve(part, monkeypatch):
    figures = iter([0.2, 0.5, 0.5, 0.9])
    monkeypatch.setattr(glas, "precision_at_1", lambda learner, part: next(figures))
    model = Glas(FEATURES, LABELS, replace(PRESETS["paper"], dimension=WIDTH), seeded())
    outcome = model.fit(Lesson(part, validation=part), Run())
    assert (outcome.epochs, outcome.best_epoch, outcome.best) == (3, 1, 0.5)


def test_one_layer_is_the_default_and_two_are_the_papers():
    assert [settings_of("glas", preset).layers for preset in ("default", "fast", "paper")] == [1, 1, 2]


def test_points_without_labels_are_left_out_and_weights_of_points_are_kept(part, captured):
    weighted = replace(part, weights=np.arange(1.0, POINTS + 1))
    wanted = np.delete(weighted.weights, 3)
    np.testing.assert_array_equal(captured(small(), Lesson(weighted)).points, wanted)


def test_validation_is_precision_at_1_without_filtered_pairs(part, captured):
    model = small()
    validate = captured(model, Lesson(part, validation=part)).validate
    assert validate.metric == "P@1"
    model.eval()
    right, weights = 0, weights_of(model)
    for row in range(POINTS):
        ranked = reference_glas.ranking(pairs(part.X, row), weights, model.settings)
        best = next(label for label in ranked if label not in labels_of(part.filtered, row))
        right += best in labels_of(part.Y, row)
    assert 0 < right < POINTS
    assert validate() == pytest.approx(right / POINTS)


def test_a_second_fit_starts_from_the_lengths_that_saving_sets_apart(part, captured):
    model = small()
    rows = model.classifier.labels.rows.clone()
    restored = Glas.restored(FEATURES, LABELS, model.settings, model.tensors())
    assert not torch.allclose(restored.classifier.labels.rows, rows)
    np.testing.assert_allclose(restored.classifier.labels.rows.norm(dim=1), 1, rtol=1e-5)
    assert_same_step(restored.train(), part, captured, ROWS)
    np.testing.assert_allclose(restored.classifier.labels.rows, rows, rtol=1e-5)


# --- Prediction -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
@pytest.mark.parametrize(("layers", "nonlinear"), [(1, True), (1, False), (2, True), (3, True), (2, False)])
@pytest.mark.parametrize("weight_norm", [False, True])
def test_prediction_ranks_by_the_inner_product(part, loss, layers, nonlinear, weight_norm):
    model = small(loss=loss, layers=layers, nonlinear=nonlinear, weight_norm=weight_norm, feature_dropout=0.9).eval()
    (learner,) = model.learners()
    ranking, vectors, weights = learner.rank(part.X, LABELS), learner.encode(part.X), weights_of(model)
    for row in range(POINTS):
        x = pairs(part.X, row)
        phi = reference_glas.embedding(x, weights, nonlinear)
        np.testing.assert_allclose(vectors[row], phi, atol=1e-5)
        scores = reference_glas.scores(x, weights, model.settings)
        assert ranking.ids[row].tolist() == reference_glas.ranking(x, weights, model.settings)
        np.testing.assert_allclose(ranking.scores[row], sorted(scores, reverse=True), atol=1e-5)


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
@pytest.mark.parametrize("weight_norm", [False, True])
def test_a_text_stands_for_a_label_by_its_embedding(part, loss, weight_norm):
    model = small(loss=loss, weight_norm=weight_norm).eval()
    texts, weights = part.X[:5], weights_of(model)
    as_labels = {**weights, "classifier.labels.rows": [
        reference_glas.embedding(pairs(texts, row), weights, True) for row in range(5)
    ]}  # fmt: skip
    wanted = [reference_glas.scores(pairs(part.X, row), as_labels, model.settings) for row in range(POINTS)]
    np.testing.assert_allclose(model.text_scores(model.predictor(), part.X, texts), wanted, atol=1e-5)


@pytest.mark.parametrize("loss", ["margin", "softmax", "logistic"])
def test_raw_scores_are_linear_in_the_cosine(loss):
    model, cosines = small(loss=loss), torch.tensor([-1.0, 0.25, 1.0])
    scale, offset = (1.0, 0.0) if loss == "margin" else (3.0, model.classifier.offset.item())
    np.testing.assert_allclose(model.raw(cosines), scale * cosines + offset, rtol=1e-6)
    (learner,) = model.eval().learners()
    query = torch.tensor([[0.6, 0.0, 0.8]])
    cosine = query @ learner.classifier.vectors[2]
    assert learner.classifier.scorer(2, query, learner.index)(query).item() == pytest.approx(
        (scale * cosine + offset).item(), rel=1e-5
    )


def test_norms_of_the_input_layer_are_computed_once_for_prediction(part):
    model = small(weight_norm=True).eval()
    (learner,) = model.learners()
    assert learner.encoder.input is model.embedding.input  # weights are shared
    factors = learner.encoder.factors(model.embedding.length)
    assert factors is learner.encoder.factors(model.embedding.length)
    assert model.embedding.fixed is None  # which goes on learning
    wanted = model.embedding.length / model.embedding.input.rows.norm(dim=0)
    np.testing.assert_allclose(factors, wanted.detach(), rtol=1e-6)
    assert small().embedding.prediction_encoder().fixed is None


def test_a_model_with_normed_input_is_restored(part):
    model = small(weight_norm=True, layers=2).eval()
    restored = Glas.restored(FEATURES, LABELS, model.settings, model.tensors())
    assert torch.equal(restored.learners()[0].encode(part.X), model.learners()[0].encode(part.X))


KINDS = [("ivf", IvfIndex), ("hnsw", HnswIndex)]


@pytest.mark.parametrize(("kind", "index"), KINDS)
def test_an_index_is_built_after_training_and_saved(part, kind, index):
    model = small(index=kind, clusters=4, probes=1, epochs=1)
    model.fit(Lesson(part, validation=part), Run())
    (learner,), tensors = model.learners(), model.tensors()
    assert isinstance(learner.index, index)
    assert [name for name in tensors.serve if name.startswith("index.")]
    restored = Glas.restored(FEATURES, LABELS, model.settings, tensors)
    (again,) = restored.learners()
    assert isinstance(again.index, index)
    np.testing.assert_array_equal(again.rank(part.X, 3).ids, learner.rank(part.X, 3).ids)
    assert restored.tensors().all.keys() == tensors.all.keys()
    restored.add_labels(2, seeded())
    assert isinstance(restored.learners()[0].index, ExactIndex)  # until they are learned


def test_a_further_fit_is_validated_by_exact_search(part, monkeypatch):
    """The index still has the label vectors that the fit started from."""
    model, searched = small(index="ivf", clusters=4, probes=1, epochs=1), []
    model.fit(Lesson(part), Run())
    assert isinstance(model.index, IvfIndex)
    monkeypatch.setattr(glas, "precision_at_1", lambda learner, part: searched.append(type(learner.index)) or 0.5)
    model.fit(Lesson(part, validation=part), Run())
    assert searched == [ExactIndex]


def test_an_ivf_index_searches_the_clusters_that_it_visits(part):
    """Its recall is reported, and with all clusters it ranks as exact search does."""
    rankings, recalls = [], []
    for changes in ({}, {"index": "ivf", "clusters": 4, "probes": 4}, {"index": "ivf", "clusters": 4, "probes": 1}):
        model = small(epochs=1, **changes)
        model.fit(Lesson(part), Run())
        (learner,) = model.learners()
        rankings.append(learner.rank(part.X, LABELS))
        recalls.append(learner.recall(part.X, 1))
    assert recalls[:2] == [None, 1]
    assert 0 < recalls[2] < 1
    np.testing.assert_array_equal(rankings[0].ids, rankings[1].ids)
    assert (rankings[2].ids < 0).any()  # labels of other clusters


def test_labels_are_searched_exactly_by_default(part):
    for preset in PRESETS.values():
        assert preset.index == "exact"
    model = small(epochs=1)
    model.fit(Lesson(part), Run())
    assert model.index is None
    assert isinstance(model.learners()[0].index, ExactIndex)
    assert not [name for name in model.tensors().all if name.startswith("index.")]


# --- Beginning, and growing -------------------------------------------------------------------------------------------


def test_a_new_model(part):
    """Table and label vectors have a length of about 1; the scale of cosines is 2.5 ln L unless given."""
    model = Glas(300, 200, GlasSettings(dimension=50, layers=3), seeded())
    for table in (model.embedding.input.rows, model.classifier.labels.rows):
        assert table.std().item() == pytest.approx(50**-0.5, rel=0.05)
    assert not model.embedding.bias.any()
    assert len(model.embedding.layers) == 2
    assert model.classifier.scale.item() == pytest.approx(2.5 * np.log(200))
    assert model.classifier.offset.item() == pytest.approx(-2.5 * np.log(200) / 3)
    assert Glas(9, 4, GlasSettings(scale=7.5), seeded()).classifier.scale.item() == 7.5
    assert model.embedding(bags(part.X)).norm(dim=1).tolist() == pytest.approx([1] * POINTS)


@pytest.mark.parametrize(("features", "relu"), [(11, True), (12, False), (13, False)])
def test_without_a_choice_there_is_a_relu_with_fewer_than_4_d_features(features, relu):
    settings = GlasSettings(dimension=3)
    assert settings.has_relu(features) is relu
    assert Glas.resolved(settings, features) == replace(settings, nonlinear=relu)
    assert Glas(features, 2, settings, seeded()).embedding.nonlinear is relu
    assert replace(settings, nonlinear=not relu).has_relu(features) is not relu


def test_new_features_leave_the_others_and_the_choice_of_a_relu(part):
    model = Glas(11, LABELS, GlasSettings(dimension=3), seeded())
    before = model.embedding.input.rows.clone()
    model.add_features(400, seeded(1))
    assert (model.features, model.embedding.input.rows.shape) == (411, (411, 3))
    assert torch.equal(model.embedding.input.rows[:11], before)
    assert model.embedding.input.rows[11:].std().item() == pytest.approx(3**-0.5, rel=0.1)
    assert model.settings.has_relu(411)
    assert model.embedding.nonlinear


def test_a_normed_input_layer_starts_as_the_other_does():
    """Its length is the norm that columns start with; and no number of the table is drawn differently."""
    model = Glas(5000, LABELS, GlasSettings(dimension=20, weight_norm=True), seeded())
    other = Glas(5000, LABELS, GlasSettings(dimension=20), seeded())
    assert model.embedding.length.item() == pytest.approx(250**0.5)
    np.testing.assert_allclose(model.embedding.factors(model.embedding.length).detach(), 1, rtol=0.06)
    assert torch.equal(model.embedding.input.rows, other.embedding.input.rows)
    assert torch.equal(model.classifier.labels.rows, other.classifier.labels.rows)


def test_new_features_of_a_normed_input_layer_change_no_answer(part):
    model = small(weight_norm=True, layers=2).eval()
    before = model.learners()[0].encode(part.X)
    model.add_features(4, seeded(1))
    assert not model.embedding.input.rows[FEATURES:].any()
    wider = csr_array((part.X.data, part.X.indices, part.X.indptr), shape=(POINTS, FEATURES + 4))
    np.testing.assert_allclose(model.learners()[0].encode(wider), before, atol=1e-6)


def test_new_labels_leave_the_others():
    model = small()
    before = model.classifier.labels.rows.clone()
    model.add_labels(400, seeded(1))
    assert (model.label_count, model.classifier.labels.rows.shape) == (LABELS + 400, (LABELS + 400, WIDTH))
    assert torch.equal(model.classifier.labels.rows[:LABELS], before)
    assert model.classifier.labels.rows[LABELS:].std().item() == pytest.approx(3**-0.5, rel=0.1)


def test_the_paper_s_settings():
    """Sec. 4: λ 10, ρ 0.8, B 4096, a non-linear embedding of d 1024, up to 10 epochs; Eq. (1) and (3)."""
    paper = PRESETS["paper"]
    assert (paper.regularizer, paper.regularizer_weight, paper.adjacency) == ("glas", 10, "arithmetic")
    assert (1 - paper.feature_dropout, paper.batch_size, paper.epochs) == (0.8, 4096, 10)
    assert (paper.loss, paper.nonlinear, paper.layers, paper.dimension) == ("margin", True, 2, 1024)
    assert paper.margin > 0
    assert paper.min_steps == 1  # as many steps as these epochs have
    assert paper.negative_labels == "hardest"  # stochastic negative mining [25]
    assert paper.weight_norm  # Sec. 3.1: in each layer
    assert paper.patience == 1  # "when evaluation accuracy ceases to improve"


def test_fast_takes_half_the_steps_at_twice_the_rate():
    fast, usual = PRESETS["fast"], PRESETS["default"]
    half = {"epochs": usual.epochs // 2, "min_steps": usual.min_steps // 2, "learning_rate": 2 * usual.learning_rate}
    assert fast == replace(usual, **half)
    assert usual == GlasSettings()


@pytest.mark.parametrize(
    ("name", "allowed", "refused", "message"),
    [
        ("dimension", 1, 0, "at least 1"),
        ("layers", 1, 0, "at least 1"),
        ("margin", 0.0, -0.1, "at least 0"),
        ("negatives", 1, 0, "at least 1"),
        ("pool", 1, 0, "at least 1"),
        ("scale", 0.1, 0.0, "above 0"),
        ("regularizer_weight", 0.0, -0.1, "at least 0"),
        ("feature_dropout", 0.0, -0.1, "at least 0 and below 1"),
        ("feature_dropout", 0.9, 1.0, "at least 0 and below 1"),
        ("batch_size", 1, 0, "at least 1"),
        ("epochs", 1, 0, "at least 1"),
        ("min_steps", 1, 0, "at least 1"),
        ("learning_rate", 0.1, 0.0, "above 0"),
        ("patience", 1, 0, "at least 1"),
        ("clusters", 1, 0, "at least 1"),
        ("probes", 1, 0, "at least 1"),
    ],
)
def test_ranges_of_settings(name, allowed, refused, message):
    assert getattr(settings_of("glas", changes={name: allowed}), name) == allowed
    with pytest.raises(ConfigError, match=f"^{name} must be {message}; found {refused}$"):
        settings_of("glas", changes={name: refused})


def test_abilities():
    able = Glas.abilities(GlasSettings())
    assert str(able) == "scores label texts, takes new words, weights points, splits labels, reads mapped data"
