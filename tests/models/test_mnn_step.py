"""MNN's training step, its whole training and its prediction against slow twins from the paper's text."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
import pytest
import reference
import reference_neighbours as slow
import torch
from scipy.sparse import csr_array

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.models import mnn, neighbours
from zipfel.models.base import Lesson
from zipfel.models.learner import UNLISTED
from zipfel.models.mnn import Mnn, MnnSettings
from zipfel.nn.optim import merged
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, train

pytestmark = pytest.mark.usefixtures("one_thread")

FEATURES, LABELS, WIDTH = 9, 6, 4
Weights = dict[str, list[list[float]]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def part() -> Part:
    """Return points with weights of all sizes; the first has a single feature, the second none."""
    numbers = np.random.default_rng(4)
    X = numbers.uniform(-0.5, 2, (20, FEATURES)) * (numbers.random((20, FEATURES)) < 0.5)
    X[0], X[1] = np.eye(FEATURES)[3] * 0.7, 0
    Y = numbers.random((20, LABELS)) < 0.35
    Y[:, 1] |= ~Y.any(axis=1)
    return Part(csr_array(Y.astype(np.float32)), X=csr_array(X.astype(np.float32)))


def small(**changes: Any) -> Mnn:
    return Mnn(FEATURES, LABELS, MnnSettings(dimension=WIDTH, **changes), seeded(5))


def weights_of(model: Mnn) -> Weights:
    return {"W_x": model.encoder.table.rows.tolist(), "W_y": model.label_encoder.table.rows.tolist()}


def gradients_of(model: Mnn) -> Weights:
    """Return the gradients of all weights, also those that no point of the batch touches."""
    found = {}
    for name, table in (("W_x", model.encoder.table), ("W_y", model.label_encoder.table)):
        ids, gradient = merged(table.touched)
        found[name] = torch.zeros_like(table.rows).index_add_(0, ids, gradient).tolist()
        table.touched.clear()
    return found


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """Record the negatives that the library draws."""
    found: list[torch.Tensor] = []
    draw = mnn.drawn_others

    def recorded(count: int, draws: int, generator: torch.Generator) -> torch.Tensor:
        found.append(draw(count, draws, generator))
        return found[-1]

    monkeypatch.setattr(mnn, "drawn_others", recorded)
    return found


def batch_of(model: Mnn, part: Part, rows: Any, generator: torch.Generator, others: torch.Tensor) -> list[Any]:
    """Return a batch as the twin takes it; the generator draws r as the library does, Eq. (5)."""
    points, truth = slow.rows_of(part.X[rows]), slow.truth_of(part.Y[rows])
    keep = 1 - model.settings.feature_dropout  # p
    draws = torch.rand(sum(map(len, points)), generator=generator).tolist() if keep < 1 else [0.0] * part.X.nnz
    rest = iter(draws)
    kept = [[int(next(rest) < keep) for _ in point] for point in points]
    negatives = [[truth[other] for other in row] for row in others.tolist()]
    return list(zip(points, kept, truth, negatives, strict=True))


def objective_of(model: Mnn, part: Part, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the objective that `learn` hands to the trainer."""
    given: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(mnn, "train", lambda *arguments: given.append(arguments) or Outcome(None, -1, 0, 0.0))
        model.learn(part, Run(), "mnn")
    _, stage, module, points, objective, _ = given[0]
    assert (stage, module, points) == ("mnn", model, len(part))
    model.train()
    return objective


def close(found: Weights, wanted: Weights, atol: float = 1e-5) -> None:
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        np.testing.assert_allclose(found[name], rows, atol=atol, rtol=1e-4, err_msg=name)


# --- One step ---------------------------------------------------------------------------------------------------------


CHANGES = [
    *({"feature_dropout": dropout, "margin": margin, "negatives": negatives}
      for dropout in (0.0, 0.2, 0.8) for margin in (-1.0, 0.1, 0.6) for negatives in (1, 4)),
    *({"feature_dropout": 0.2, "margin": margin, "negatives": 4, "negatives_reduction": reduction}
      for margin in (-1.0, 0.1) for reduction in ("mean", "sum")),
]  # fmt: skip


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: "-".join(map(str, changes.values())))
def test_loss_and_gradients_of_a_step_are_the_paper_s(part, changes, drawn, monkeypatch):
    model = small(**changes)
    dropout, margin, negatives = (changes[name] for name in ("feature_dropout", "margin", "negatives"))
    reduction = changes.get("negatives_reduction", "max")
    objective, rows, weights = objective_of(model, part, monkeypatch), np.array([0, 1, 4, 7, 11, 13]), weights_of(model)
    empty = 0
    for seed in range(2):
        terms = objective(rows, seeded(seed))
        assert list(terms) == ["matching"]
        sum(terms.values()).backward()
        assert drawn[-1].shape == (len(rows), negatives)
        batch = batch_of(model, part, rows, seeded(seed), drawn[-1])
        empty += sum(sum(r) == 0 < len(r) for _, r, _, _ in batch)
        expected = slow.mnn_loss(weights, batch, margin, reduction)
        assert terms["matching"].item() == pytest.approx(expected, abs=1e-6)
        wanted = slow.slopes(lambda batch=batch: slow.mnn_loss(weights, batch, margin, reduction), weights)
        close(gradients_of(model), wanted)
    assert (empty > 0) == (dropout == 0.8)  # ‖r‖₁ = 0 occurs


def test_a_batch_of_one_point_has_no_negatives(part, monkeypatch):
    model = small(feature_dropout=0.0)
    loss = objective_of(model, part, monkeypatch)(np.array([3]), seeded())["matching"]
    batch = batch_of(model, part, np.array([3]), seeded(), torch.empty(1, 0))
    assert loss.item() == pytest.approx(slow.mnn_loss(weights_of(model), batch, 0.1), abs=1e-6)


def test_the_number_of_negatives_follows_the_labels_of_points(part, drawn, monkeypatch):
    for labels in (1, 9, 30):
        Y = csr_array(np.ones((20, labels), dtype=np.float32))
        model = Mnn(FEATURES, labels, MnnSettings(dimension=WIDTH), seeded())
        objective_of(model, Part(Y, X=part.X), monkeypatch)(np.arange(15), seeded())
    assert [row.shape for row in drawn] == [(15, 10), (15, 7), (15, 3)]  # 60 / labels, from 3 to 10


def test_half_precision_of_the_trainer_does_not_reach_the_cosines(part, monkeypatch):
    """On a GPU the trainer computes products in bfloat16, two to three digits, which is too coarse for Eq. (9)."""
    model, rows = small(feature_dropout=0.0, margin=-1.0), np.arange(2, 14)
    objective = objective_of(model, part, monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        half = objective(rows, seeded())["matching"]
    assert half.dtype == torch.float32
    assert half.item() == pytest.approx(objective(rows, seeded())["matching"].item(), abs=1e-6)


def test_averages_before_they_have_length_1(part):
    """Cosines do not show what the average is divided by; explanations and Eq. (2), (7) do."""
    model = small()
    points, weights = slow.rows_of(part.X), weights_of(model)
    with torch.no_grad():
        f_x = model.encoder.unscaled(bags(part.X), 0.4, seeded(1)).tolist()
        f_y = model.label_encoder.unscaled(bags(part.Y)).tolist()
    draws = iter(torch.rand(part.X.nnz, generator=seeded(1)).tolist())
    wanted = [slow.mnn_f_x(weights["W_x"], point, [int(next(draws) < 0.6) for _ in point]) for point in points]
    np.testing.assert_allclose(f_x, wanted, atol=1e-5)
    np.testing.assert_allclose(f_y, [slow.mnn_f_y(weights["W_y"], y) for y in slow.truth_of(part.Y)], atol=1e-5)


# --- The whole training -----------------------------------------------------------------------------------------------


def learned_slowly(model: Mnn, weights: Weights, part: Part, steps: list[Any], drawn: list[torch.Tensor]) -> Weights:
    """Return the weights after steps of Adam with the same batches and draws."""
    settings = model.settings
    moments = slow.zeros(weights), slow.zeros(weights)
    for number, ((rows, state), others) in enumerate(zip(steps, drawn, strict=True), start=1):
        generator = torch.Generator()
        generator.set_state(state)
        batch = batch_of(model, part, rows, generator, others)
        loss = partial(slow.mnn_loss, weights, batch, settings.margin, settings.negatives_reduction)
        gradient = slow.slopes(loss, weights)
        touched = {
            "W_x": sorted({k for point, *_ in batch for k, _ in point}),
            "W_y": sorted(set().union(*(y for _, _, y, _ in batch))),
        }
        rate = slow.rising_and_falling(settings.learning_rate, number, len(steps))
        slow.adam_step(weights, moments, gradient, touched, rate, number)
    return weights


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the batches of training, and the state of their generators."""
    found: list[Any] = []

    def recorded(run, stage, module, points, objective, schedule):
        def watched(rows, generator):
            found.append((rows, generator.get_state()))
            return objective(rows, generator)

        return train(run, stage, module, points, watched, schedule)

    monkeypatch.setattr(mnn, "train", recorded)
    return found


GIVEN = {"neighbours": 4, "sharpness": 2.0}  # a given vote needs no validation, and so no second round


def fitted(part: Part, **changes: Any) -> Mnn:
    settings = {"epochs": 3, "batch_size": 10, "learning_rate": 0.05, "feature_dropout": 0.3, "negatives": 2}
    model = small(**{**GIVEN, **settings, **changes})
    model.fit(Lesson(part), Run(seed=3))
    return model


@pytest.mark.parametrize("reduction", ["max", "mean", "sum"])
def test_the_whole_training_is_that_of_the_twin(part, steps, drawn, reduction):
    model = fitted(part, negatives_reduction=reduction)
    assert len(steps) == 3 * 2
    for epoch in range(3):
        assert sorted(np.concatenate([rows for rows, _ in steps[2 * epoch : 2 * epoch + 2]])) == list(range(20))
    wanted = learned_slowly(model, weights_of(small()), part, steps, drawn)
    close(weights_of(model), wanted, atol=2e-4)
    np.testing.assert_allclose(model.memory.vectors, encoded_slowly(wanted, part.X), atol=1e-3)  # nothing is dropped


def encoded_slowly(weights: Weights, X: csr_array) -> list[list[float]]:
    """Return f_x of points, of length 1."""
    return [slow.unit(slow.mnn_f_x(weights["W_x"], point, [1] * len(point))) for point in slow.rows_of(X)]


def test_the_vote_is_chosen_on_validation_then_all_points_are_learned_from_anew(part, steps, drawn):
    """Two rounds, each from new weights; the second ends with all points in memory."""
    model = small(epochs=2, batch_size=5, learning_rate=0.05, negatives=2)
    train, validation = part.take(np.arange(12)), part.take(np.arange(12, 20))
    model.fit(Lesson(train, validation, part), Run(seed=3))
    assert [len(rows) for rows, _ in steps] == [6] * 4 + [5] * 8
    first = learned_slowly(model, weights_of(small()), train, steps[:4], drawn[:4])
    points, queries, truth = encoded_slowly(first, train.X), encoded_slowly(first, validation.X), slow.truth_of(train.Y)
    qualities = {}
    for vote in itertools.product(neighbours.NEIGHBOURS, neighbours.SHARPNESS):
        ranking = [[label for label, _ in reference.vote(f_x, points, truth, LABELS, *vote)] for f_x in queries]
        qualities[vote] = sum(reference.precision(ranking, slow.truth_of(validation.Y), k) for k in (1, 3, 5))
    assert len(set(qualities.values())) > 2
    assert qualities[model.neighbours, model.sharpness] == max(qualities.values())
    anew = small()
    anew.start(Run(seed=3).generator("start"))
    assert weights_of(anew) != weights_of(small())
    close(weights_of(model), learned_slowly(model, weights_of(anew), part, steps[4:], drawn[4:]), atol=2e-4)
    np.testing.assert_allclose(model.memory.vectors, encoded_slowly(weights_of(model), part.X), atol=1e-5)


# --- Prediction -------------------------------------------------------------------------------------------------------


@pytest.fixture
def queries() -> csr_array:
    """Return points to tag; the last has no feature."""
    numbers = np.random.default_rng(9)
    X = numbers.uniform(0.1, 2, (12, FEATURES)) * (numbers.random((12, FEATURES)) < 0.4)
    X[-1] = 0
    return csr_array(X.astype(np.float32))


@pytest.mark.parametrize(("count", "sharpness"), [(1, 1.0), (4, 2.0), (7, 0.0)])
def test_neighbours_are_the_points_with_the_nearest_f_x(part, queries, count, sharpness):
    model = fitted(part, neighbours=count, sharpness=sharpness, epochs=1)
    ranking = model.learners()[0].rank(queries, LABELS)
    truth = slow.truth_of(part.Y)
    points, asked = (encoded_slowly(weights_of(model), X) for X in (part.X, queries))
    for row, f_x in enumerate(asked):
        wanted = dict(reference.vote(f_x, points, truth, LABELS, count, sharpness))
        scores = [wanted[label] or 0.0 for label in ranking.ids[row].tolist()]
        assert ranking.scores[row].tolist() == pytest.approx(scores, abs=1e-4)
        assert scores == pytest.approx(sorted(wanted_or_0(wanted), reverse=True), abs=1e-4)
    assert ranking.ids[-1].tolist() == by_frequency(part)


def by_frequency(part: Part) -> list[int]:
    """Return the labels, the most frequent first."""
    counts = [sum(label in right for right in slow.truth_of(part.Y)) for label in range(LABELS)]
    return sorted(range(LABELS), key=lambda label: (-counts[label], label))


def wanted_or_0(shares: dict[int, float | None]) -> list[float]:
    return [share or 0.0 for share in shares.values()]


def test_labels_are_those_with_the_nearest_f_y(part, queries):
    model = fitted(part, decoder="labels", epochs=1)
    ranking = model.learners()[0].rank(queries, LABELS)
    weights = weights_of(model)
    for row, point in enumerate(slow.rows_of(queries[:-1])):
        f_x = slow.mnn_f_x(weights["W_x"], point, [1] * len(point))
        cosines = [slow.mnn_cosine(f_x, slow.mnn_f_y(weights["W_y"], [label])) for label in range(LABELS)]
        order = sorted(range(LABELS), key=lambda label: -cosines[label])
        assert ranking.ids[row].tolist() == order
        assert ranking.scores[row].tolist() == pytest.approx([(1 + cosines[label]) / 2 for label in order], abs=1e-5)
    assert ranking.ids[-1].tolist() == by_frequency(part)  # nothing is known of it
    assert (ranking.scores[-1] < UNLISTED).all()
    assert model.counts.tolist() == [sum(label in right for right in slow.truth_of(part.Y)) for label in range(LABELS)]


def test_the_labels_decoder_learns_once_from_all_points_and_keeps_none(part, steps):
    model = small(epochs=2, batch_size=5, negatives=2, decoder="labels")
    train, validation = part.take(np.arange(12)), part.take(np.arange(12, 20))
    lesson = Lesson(train, validation, part)
    assert model.cost(lesson).rounds == (20,)
    model.fit(lesson, Run(seed=3))
    assert [len(rows) for rows, _ in steps] == [5] * 8  # two epochs of all 20 points
    assert model.memory is None
    assert model.ranked_held_out(model.predictor(), validation) is None
    assert int(model.counts.sum()) == part.Y.nnz


def test_the_labels_decoder_ranks_validation_points_that_it_does_not_learn_from(part, steps):
    model = small(epochs=1, batch_size=5, negatives=2, decoder="labels")
    train, validation = part.take(np.arange(12)), part.take(np.arange(12, 20))
    outcome = model.fit(Lesson(train, validation), Run(seed=3))
    assert sorted(np.concatenate([rows for rows, _ in steps])) == list(range(12))
    assert outcome.best is not None
    ranked = model.ranked_held_out(model.predictor(), validation).ranking
    assert len(ranked) == np.count_nonzero(np.diff(validation.X.indptr)) > 0
