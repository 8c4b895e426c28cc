"""linear: its solvers against scikit-learn, mined negatives against slow loops, held-out and later points."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import numpy as np
import pytest
import reference
import torch
from joblib import delayed
from scipy.sparse import csc_array, csr_array, csr_matrix, vstack
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from zipfel.data.dataset import Dataset, Part
from zipfel.data.processes import end_with
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError
from zipfel.models import linear_solvers
from zipfel.models.base import Lesson, settings_of
from zipfel.models.linear import Linear, LinearSettings
from zipfel.models.linear_predictor import SLOPE, LinearPredictor, best_of
from zipfel.models.linear_solvers import (
    Objective,
    Weights,
    derivatives,
    hardest,
    liblinear,
    nearest_centroids,
    newton,
    signs_of,
    solve_label,
)
from zipfel.tagger import Tagger
from zipfel.training.run import Run, State

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
LOSSES = ("squared_hinge", "logistic")


@pytest.fixture(scope="module")
def data() -> Dataset:
    counted = make(Synthetic(points=300, labels=12, noise=0.3, test_share=0.2, seed=5))
    return Tfidf.fit(counted.train.X).apply(counted)


@pytest.fixture(scope="module")
def part(data: Dataset) -> Part:
    return data.train


def random_part(seed: int, points: int = 14, features: int = 6, labels: int = 5) -> Part:
    numbers = np.random.default_rng(seed)
    X = numbers.random((points, features)) * (numbers.random((points, features)) < 0.6)
    Y = numbers.random((points, labels)) < 0.3
    return Part(csr_array(Y.astype(np.float32)), X=csr_array(X.astype(np.float32)))


def sets(matrix: Any) -> list[set[int]]:
    return [set(np.flatnonzero(row).tolist()) for row in matrix.toarray()]


def values(
    weights: Weights, part: Part, objective: Objective, counted: Any = None, centre: Weights | None = None
) -> list[float]:
    """Return the objective of each label, by the slow formula."""
    W, Y, rows = weights.W.toarray(), part.Y.toarray(), part.X.toarray().tolist()
    return [
        reference.linear_objective(
            W[label].tolist(), float(weights.bias[label]), rows, (2 * Y[:, label] - 1).tolist(), objective.C,
            objective.loss, None if counted is None else counted[:, label],
            None if centre is None else [*centre.W.toarray()[label], centre.bias[label]],
        )
        for label in range(Y.shape[1])
    ]  # fmt: skip


def scikit_learns(part: Part, objective: Objective) -> Weights:
    """Solve each label against all points, to a much smaller tolerance than ours."""
    found = []
    for label in range(part.Y.shape[1]):
        sides = part.Y[:, [label]].toarray().ravel()
        if objective.loss == "logistic":
            solver: Any = LogisticRegression(C=objective.C, solver="liblinear", tol=1e-6, max_iter=5000)
        else:
            solver = LinearSVC(C=objective.C, dual=True, tol=1e-6, max_iter=100_000, random_state=0)
        solver.fit(part.X, sides)
        found.append((solver.coef_[0], solver.intercept_[0]))
    return Weights(csr_array(np.array([w for w, _ in found])), np.array([b for _, b in found], dtype=np.float32))


def margins(weights: Weights, X: csr_array) -> Any:
    return (X @ weights.W.T).toarray() + weights.bias


# --- Solvers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("C", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("solver", ["newton", "liblinear"])
def test_both_solvers_agree_with_scikit_learn_on_all_points(data, part, loss, C, solver, monkeypatch):
    objective = Objective(C, loss)
    if C > 1:  # slower to converge, by any solver
        monkeypatch.setattr(linear_solvers, "SOLVED", 1e-4)
        monkeypatch.setattr(linear_solvers, "NEWTON_STEPS", 50)
        monkeypatch.setattr(linear_solvers, "CONVERGED", 1e-3)
    if solver == "newton":
        ours = newton(part.X, part.Y, None, objective, CPU)
    else:
        ours = liblinear(part.X, signs_of(part.Y, csr_array(np.ones(part.Y.shape)), None), objective, 1)
    theirs = scikit_learns(part, objective)
    assert values(ours, part, objective) == pytest.approx(values(theirs, part, objective), rel=1e-3)
    assert margins(ours, data.test.X) == pytest.approx(margins(theirs, data.test.X), abs=0.06)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("positives_first", [True, False])
def test_a_label_is_solved_alike_without_scikit_learns_private_function(part, loss, positives_first, monkeypatch):
    """Also if its first point is a negative: liblinear must not take the first class for the positive one."""
    order = np.argsort(part.Y[:, [2]].toarray().ravel() * (-1 if positives_first else 1), kind="stable")
    rows = csr_matrix(part.X[order])
    sides = (2 * part.Y[:, [2]].toarray().ravel() - 1)[order]
    ours = solve_label(rows, sides, 40, Objective(1.0, loss))
    monkeypatch.setitem(sys.modules, "sklearn.svm._liblinear", None)
    theirs = _fitted_alone(rows, sides, 40, Objective(1.0, loss))
    assert ours[0] == pytest.approx(theirs[0], abs=0.01)
    assert ours[1] == pytest.approx(theirs[1], abs=0.01)
    assert solve_label(rows, sides, 40, Objective(1.0, loss))[1] == pytest.approx(theirs[1], abs=1e-6)


def _fitted_alone(rows: csr_matrix, sides: Any, others: int, objective: Objective) -> tuple[Any, float]:
    """Solve by scikit-learn's public estimators, with an empty point for the others."""
    points = csr_matrix(vstack([rows, csr_matrix((1, rows.shape[1]))]))
    weights = np.append(np.ones(len(sides)), others)
    if objective.loss == "logistic":
        solver: Any = LogisticRegression(C=objective.C, solver="liblinear", tol=linear_solvers.CONVERGED)
    else:
        solver = LinearSVC(C=objective.C, dual=True, tol=linear_solvers.CONVERGED, max_iter=50, random_state=0)
    solver.fit(points, np.append(sides, -1), sample_weight=weights)
    return solver.coef_[0], float(solver.intercept_[0])


def test_solving_prints_nothing(part, capfd):
    signs = signs_of(part.Y, csr_array(np.ones(part.Y.shape)), None)
    liblinear(part.X, signs, Objective(), 1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("loss", LOSSES)
def test_newtons_derivatives_are_those_of_the_objective(loss):
    """By autograd, twice; the kink of the hinge is avoided."""
    m = torch.tensor([-3.0, -0.4, 0.2, 0.9, 1.1, 2.5], dtype=torch.float64, requires_grad=True)
    lost = (1 - m).clamp_min(0).square() if loss == "squared_hinge" else torch.nn.functional.softplus(-m)
    (first,) = torch.autograd.grad(lost.sum(), m, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), m)
    ours = derivatives(m.detach(), loss)
    assert torch.allclose(ours[0], first.detach())
    assert torch.allclose(ours[1], second)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("centred", [False, True])
def test_the_gradient_of_newtons_solution_vanishes(loss, centred, monkeypatch):
    """By autograd of the objective, with excluded pairs and around a centre; it does not vanish elsewhere."""
    monkeypatch.setattr(linear_solvers, "SOLVED", 1e-4)
    part, numbers = random_part(1), np.random.default_rng(2)
    excluded = csr_array(((numbers.random(part.Y.shape) < 0.1) & (part.Y.toarray() == 0)).astype(np.float32))
    shape = (part.Y.shape[1], part.X.shape[1])
    centre = Weights(csr_array(numbers.normal(size=shape).astype(np.float32)),
                     numbers.normal(size=shape[0]).astype(np.float32)) if centred else None  # fmt: skip
    solved = newton(part.X, part.Y, excluded, Objective(2.0, loss), CPU, centre)
    counted = 1 - excluded.toarray()

    def gradient(W: Any, bias: Any) -> torch.Tensor:
        W, b = torch.tensor(W, requires_grad=True), torch.tensor(bias, requires_grad=True)
        signs = torch.from_numpy(2 * part.Y.toarray() - 1)
        m = signs * (torch.from_numpy(part.X.toarray()) @ W.T + b)
        lost = (1 - m).clamp_min(0).square() if loss == "squared_hinge" else torch.nn.functional.softplus(-m)
        held = (torch.zeros(shape), torch.zeros(shape[0])) if centre is None else (
            torch.from_numpy(centre.W.toarray()), torch.from_numpy(centre.bias))  # fmt: skip
        total = (W - held[0]).square().sum() / 2 + (b - held[1]).square().sum() / 2
        total = total + 2.0 * (torch.from_numpy(counted) * lost).sum()
        return torch.cat([piece.flatten() for piece in torch.autograd.grad(total, (W, b))])

    at_solution = gradient(solved.W.toarray(), solved.bias).norm()
    elsewhere = gradient(solved.W.toarray() + 0.1, solved.bias).norm()
    assert at_solution < 0.02 * elsewhere


def test_a_solution_is_lower_than_its_neighbours():
    """By the slow formula: around a centre, with excluded pairs."""
    part, numbers, objective = random_part(3), np.random.default_rng(4), Objective(1.5)
    excluded = csr_array(((numbers.random(part.Y.shape) < 0.2) & (part.Y.toarray() == 0)).astype(np.float32))
    shape = (part.Y.shape[1], part.X.shape[1])
    centre = Weights(csr_array(numbers.normal(size=shape).astype(np.float32)), np.full(shape[0], -1, np.float32))
    solved = newton(part.X, part.Y, excluded, objective, CPU, centre)
    counted = 1 - excluded.toarray()
    best = values(solved, part, objective, counted, centre)
    for _ in range(20):
        moved = solved.W.toarray() + 0.1 * numbers.normal(size=shape)
        other = Weights(csr_array(moved), solved.bias)
        assert (np.array(values(other, part, objective, counted, centre)) > np.array(best) - 1e-3).all()
    assert (np.array(values(centre, part, objective, counted, centre)) > np.array(best)).any()


def test_newton_solves_labels_in_pieces(part, monkeypatch):
    whole = newton(part.X, part.Y, None, Objective(), CPU)
    seen: list[int] = []
    monkeypatch.setattr(linear_solvers, "CELLS", 5 * part.X.shape[0])
    pieces = newton(part.X, part.Y, None, Objective(), CPU, None, seen.append)
    assert seen == [5, 10, 12]
    assert pieces.W.toarray() == pytest.approx(whole.W.toarray(), abs=0.05)
    assert pieces.bias == pytest.approx(whole.bias, abs=0.05)


@pytest.mark.parametrize("loss", LOSSES)
def test_an_empty_point_stands_for_all_points_that_share_no_feature(loss):
    """Of the label's points and negatives; the others have one feature, which no classifier of theirs may use."""
    own = np.array([[1.0, 0.5, 0, 0], [0.8, 0, 0.3, 0], [0, 0.7, 0.9, 0], [0.4, 0, 1.0, 0]])
    sides = np.array([1.0, 1, -1, -1])
    for others in (1, 7, 40):
        objective = Objective(1.0, loss)
        empty = np.zeros((others, 4))
        w, b = solve_label(as_matrix(own), sides, others, objective)
        rows, signs = [*own.tolist(), *empty.tolist()], [*sides, *[-1] * others]
        ours = reference.linear_objective(w.tolist(), b, rows, signs, 1.0, loss)
        found = scikit_learns(
            Part(csr_array((np.array(signs)[:, None] > 0).astype(np.float32)), X=csr_array(np.array(rows))), objective
        )
        best = reference.linear_objective(found.W.toarray()[0].tolist(), float(found.bias[0]), rows, signs, 1.0, loss)
        assert ours == pytest.approx(best, rel=1e-3)


def as_matrix(rows: Any) -> Any:
    from scipy.sparse import csr_matrix

    return csr_matrix(rows)


def test_a_label_without_points_has_no_weights_and_a_bias_of_minus_1():
    part = random_part(6)
    Y = part.Y.toarray()
    Y[:, 2] = 0
    bare = Part(csr_array(Y), X=part.X)
    for solved in (
        liblinear(bare.X, signs_of(bare.Y, csr_array(np.ones(Y.shape)), None), Objective(), 1),
        newton(bare.X, bare.Y, None, Objective(), CPU),
    ):
        assert solved.W[[2]].nnz == 0
        assert solved.bias[2] == -1
        assert solved.W[[1]].nnz > 0


def test_processes_do_not_change_the_weights(part, monkeypatch):
    signs = signs_of(part.Y, csr_array(np.ones(part.Y.shape)), None)
    monkeypatch.setattr(linear_solvers, "LABELS", 5)
    alone, seen = liblinear(part.X, signs, Objective(least=0.05), 2), list[int]()
    monkeypatch.setattr(linear_solvers, "WORTH_PROCESSES", 0)
    used = []
    plain = linear_solvers.Parallel
    monkeypatch.setattr(linear_solvers, "Parallel", lambda **options: used.append(options) or plain(**options))
    shared = liblinear(part.X, signs, Objective(least=0.05), 2, seen.append)
    liblinear(part.X, signs[:, :10], Objective(), 9)
    assert [options["n_jobs"] for options in used] == [2, 2]  # none that has no work
    assert seen == [5, 10, 12]
    assert (alone.W != shared.W).nnz == 0
    assert np.array_equal(alone.bias, shared.bias)
    followed = plain(n_jobs=2)(delayed(lambda: end_with.cache_info().currsize)() for _ in range(4))
    assert max(followed) == 1  # the processes, which joblib keeps, end with this one


@pytest.mark.parametrize("negatives", ["all", "mined"])
def test_weights_below_min_weight_are_dropped_and_others_kept(part, negatives):
    full, pruned = (fitted(part, negatives=negatives, min_weight=least) for least in (0.0, 0.2))
    W = full.held().W.toarray()
    edge = np.abs(np.abs(W) - 0.2) < 1e-3  # rounded to float16 after the choice
    assert ((pruned.held().W.toarray() == np.where(np.abs(W) >= 0.2, W, 0)) | edge).all()
    assert 0 < len(pruned.values) < len(full.values)
    assert pruned.values.abs().min() > 0.199


# --- Negatives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_signs_are_those_of_a_slow_loop(seed):
    part, numbers = random_part(seed), np.random.default_rng(seed)
    negatives, excluded = (csr_array((numbers.random(part.Y.shape) < 0.4).astype(np.float32)) for _ in range(2))
    for without in (None, excluded):
        signs = signs_of(part.Y, negatives, without)
        none = csr_array(part.Y.shape, dtype=np.float32)
        lists = [sets(matrix) for matrix in (part.Y, negatives, none if without is None else without)]
        slow = [[reference.sign(i, label, *lists) for label in range(part.Y.shape[1])] for i in range(len(part))]
        assert isinstance(signs, csc_array)
        assert signs.toarray().tolist() == slow
        assert signs.nnz == np.count_nonzero(slow)


@pytest.mark.parametrize("count", [1, 3, 9])
def test_the_hardest_labels_are_those_with_the_highest_margins(count, monkeypatch):
    monkeypatch.setattr(linear_solvers, "BLOCK", 4)
    monkeypatch.setattr(linear_solvers, "SCORES", 15)  # of three points
    part, numbers = random_part(7), np.random.default_rng(8)
    weights = Weights(csr_array(numbers.normal(size=(5, 6)).astype(np.float32)), numbers.normal(size=5).astype("f4"))
    found = hardest(part.X, weights, count)
    scores = [
        [reference.dot(w, row) + b for w, b in zip(weights.W.toarray(), weights.bias, strict=True)]
        for row in part.X.toarray()
    ]
    assert sets(found) == [reference.highest(row, count) for row in scores]


def test_the_nearest_centroids_are_nearly_those_of_a_slow_loop(part):
    found = sets(nearest_centroids(part.X, part.Y, 3, np.random.default_rng(0)))
    rows, truth = part.X.toarray().tolist(), sets(part.Y)
    centroids = reference.centroids(rows, truth, part.Y.shape[1])
    lengths = [max(sum(x * x for x in centroid) ** 0.5, 1e-9) for centroid in centroids]
    slow = [
        reference.highest([reference.dot(row, c) / n for c, n in zip(centroids, lengths, strict=True)], 3)
        for row in rows
    ]
    shared = np.mean([len(a & b) / 3 for a, b in zip(found, slow, strict=True)])
    assert all(len(own) == 3 for own in found)
    assert shared > 0.85  # by random projections; by chance it would be 0.25


def test_mining_comes_close_to_all_points(data):
    taggers = [
        Tagger("linear", settings={"negatives": kind, "rounds": 3, "mined": 4}, device="cpu").fit_dataset(data)
        for kind in ("all", "mined")
    ]
    every, mined = (tagger.rank(data.test.X, 3).ids for tagger in taggers)
    assert (every[:, 0] == mined[:, 0]).mean() > 0.9


@pytest.mark.parametrize(("labels", "mined"), [(10, 50), (5000, 50), (12_345, 123), (20_000, 200), (10**6, 200)])
def test_a_hundredth_of_the_labels_is_mined(labels, mined):
    assert LinearSettings().mined_of(labels) == mined
    assert LinearSettings(mined=7).mined_of(labels) == 7


# --- Ranking ----------------------------------------------------------------------------------------------------------


def test_ties_go_to_the_lower_id():
    numbers = np.random.default_rng(0)
    levels = torch.from_numpy(numbers.integers(0, 3, (20, 400)).astype(np.float32))
    ranking = best_of(levels, 7)
    for row, ids, scores in zip(levels.tolist(), ranking.ids, ranking.scores, strict=True):
        best = sorted(range(400), key=lambda label: (-row[label], label))[:7]
        assert ids.tolist() == best
        assert scores == pytest.approx([reference.sigmoid(SLOPE * row[label]) for label in best])


def test_margins_of_given_labels_are_those_of_all_labels(part, monkeypatch):
    """Labels in any order, some of them twice; the last point is empty."""
    predictor: LinearPredictor = fitted(part).predictor()
    X = csr_array(vstack([part.X[:7], csr_array((1, part.X.shape[1]), dtype=np.float32)]))
    labels = np.random.default_rng(0).integers(0, part.Y.shape[1], (8, 5))
    wanted = np.take_along_axis(predictor.margins(X), labels, axis=1)
    assert predictor.margins_at(X, labels) == pytest.approx(wanted, abs=1e-5)
    assert predictor.margins_at(X, labels)[7].tolist() == predictor.bias[labels[7]].tolist()
    assert predictor.margins_at(X[:0], labels[:0]).shape == (0, 5)
    alone = np.concatenate([predictor.margins_at(X[[row]], labels[[row]]) for row in range(8)])
    assert np.array_equal(predictor.margins_at(X, labels), alone)
    monkeypatch.setattr("zipfel.models.linear_predictor.PAIRED", 3)
    assert np.array_equal(predictor.margins_at(X, labels), alone)


def test_margins_are_those_of_a_slow_loop(part):
    predictor: LinearPredictor = fitted(part).predictor()
    W, rows = predictor.weights.toarray().T.tolist(), part.X[:4].toarray().tolist()
    slow = [[reference.dot(w, row) + b for w, b in zip(W, predictor.bias.tolist(), strict=True)] for row in rows]
    assert predictor.margins(part.X[:4]) == pytest.approx(np.array(slow), abs=1e-5)


def test_a_ranking_in_threads_keeps_the_order_of_points(part, monkeypatch):
    predictor: LinearPredictor = fitted(part).predictor()
    together = predictor.rank(part.X, 5)
    monkeypatch.setattr("zipfel.models.learner.BATCH", 7)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    apart = predictor.rank(part.X, 5)
    assert np.array_equal(together.ids, apart.ids)
    assert np.array_equal(together.scores, apart.scores)


def test_what_features_contribute_sums_up_to_w_x(part):
    predictor, W = fitted(part).predictor(), fitted(part).held().W.toarray()
    for point in range(5):
        row = part.X[[point]]
        for label in range(3):
            own = predictor.explained(row, label)
            assert own == pytest.approx(row.data * W[label, row.indices])
            assert own.sum() == pytest.approx(predictor.margins(row)[0, label] - predictor.bias[label], abs=1e-5)


def test_cosines_of_weights(part):
    predictor: LinearPredictor = fitted(part).predictor()
    W = predictor.weights.toarray().T.tolist()
    assert predictor.cosines(3).tolist() == pytest.approx([reference.cosine(W[3], other) for other in W], abs=1e-5)


# --- Learning ---------------------------------------------------------------------------------------------------------


def model(part: Part, **settings: Any) -> Linear:
    return Linear(part.X.shape[1], part.Y.shape[1], settings_of("linear", changes=settings), torch.Generator())


def fitted(part: Part, **settings: Any) -> Linear:
    learned = model(part, **settings)
    learned.fit(Lesson(part), Run())
    return learned


def taken(part: Part, rows: Any) -> Part:
    return part.take(np.asarray(rows))


@pytest.mark.parametrize("negatives", ["all", "mined"])
def test_held_out_points_are_solved_in_at_the_end_for_their_labels_only(part, negatives):
    rows = np.arange(len(part))
    held = rows[(part.Y[:, [3]].toarray().ravel() > 0)][:6]
    stay = np.setdiff1d(rows, held)
    touched = np.unique(part.Y[held].indices)
    untouched = np.setdiff1d(np.arange(part.Y.shape[1]), touched)
    assert len(untouched) > 0
    without = fitted(taken(part, stay), negatives=negatives)
    whole = model(part, negatives=negatives)
    whole.fit(Lesson(taken(part, stay), taken(part, held), part), Run())
    before, after = without.held(), whole.held()
    assert (before.W[untouched] != after.W[untouched]).nnz == 0
    assert np.array_equal(before.bias[untouched], after.bias[untouched])
    assert all((before.W[[label]] != after.W[[label]]).nnz for label in touched)
    if negatives == "all":  # as if these points had been there from the start
        every = fitted(part, negatives="all").held()
        assert after.W[touched].toarray() == pytest.approx(every.W[touched].toarray(), abs=0.05)
    # calibration sees them as they were ranked before
    assert whole.unseen is not None
    ranking = without.predictor().rank(part.X[held], part.Y.shape[1])
    assert np.array_equal(whole.unseen.ranking.scores, ranking.scores)
    assert whole.counts.tolist() == np.bincount(part.Y.indices, minlength=part.Y.shape[1]).tolist()


def test_held_out_points_are_solved_in_against_the_negatives_of_all_rounds(part, monkeypatch):
    """Not only against those that the last weights rank high: the others would come back."""
    listed: list[csr_array] = []
    whole, plain = model(part, negatives="mined", rounds=2, mined=2), Linear.solved

    def solved(self: Linear, part: Part, negatives: csr_array, run: Run, number: int) -> Weights:
        listed.append(negatives)
        return plain(self, part, negatives, run, number)

    monkeypatch.setattr(Linear, "solved", solved)
    stay, held = taken(part, range(180)), taken(part, range(180, 190))
    whole.learn(stay, Run())
    whole.add(stay, held, Run())
    labels = np.unique(held.Y.indices)
    wanted = np.vstack([listed[-2].toarray()[:, labels], np.ones((len(held), len(labels)))])
    assert (listed[-1].toarray() == wanted).all()


def test_a_validation_part_of_the_user_is_not_learned_from(part):
    stay, held = taken(part, range(200)), taken(part, range(200, len(part)))
    learned = model(part)
    learned.fit(Lesson(stay, held), Run())
    assert same(learned.state_dict(), fitted(stay).state_dict())


def same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_learning_more_keeps_other_labels_bit_for_bit(part):
    learned = fitted(taken(part, range(150)))
    old, counts = learned.held(), learned.counts.clone()
    later = taken(part, range(150, 156))
    moved = np.unique(later.Y.indices)
    kept = np.setdiff1d(np.arange(part.Y.shape[1]), moved)
    assert len(kept) > 0
    learned.fit(Lesson(later), Run())
    new = learned.held()
    assert (old.W[kept] != new.W[kept]).nnz == 0
    assert np.array_equal(old.bias[kept], new.bias[kept])
    assert all((old.W[[label]] != new.W[[label]]).nnz for label in moved)
    assert (learned.counts - counts).tolist() == np.bincount(later.Y.indices, minlength=len(counts)).tolist()


def test_learning_more_holds_on_to_the_old_weights(part):
    """Points of a label that come later move it only as far as they must."""
    first, later = taken(part, range(150)), taken(part, range(150, 156))
    learned = fitted(first)
    old = learned.held().W.toarray()
    learned.fit(Lesson(later), Run())
    moved = np.unique(later.Y.indices)
    new, alone = learned.held().W.toarray()[moved], fitted(later).held().W.toarray()[moved]
    assert np.linalg.norm(new - old[moved]) < 0.5 * np.linalg.norm(alone - old[moved])


def test_each_round_adds_the_labels_that_the_last_one_ranks_highest(part, monkeypatch):
    listed: list[csr_array] = []
    learned, plain = model(part, negatives="mined", rounds=3, mined=2), Linear.solved
    weights: list[Weights] = []

    def solved(self: Linear, part: Part, negatives: csr_array, run: Run, number: int) -> Weights:
        listed.append(negatives)
        weights.append(self.held())
        return plain(self, part, negatives, run, number)

    monkeypatch.setattr(Linear, "solved", solved)
    learned.fit(Lesson(part), Run())
    assert sets(listed[0]) == sets(nearest_centroids(part.X, part.Y, 2, Run().numbers("linear")))
    for number in (1, 2):
        harder = sets(hardest(part.X, weights[number], 2))
        together = [before | more for before, more in zip(sets(listed[number - 1]), harder, strict=True)]
        assert sets(listed[number]) == together


def test_learning_more_from_points_without_labels_changes_nothing(part):
    learned = fitted(part)
    before = {name: value.clone() for name, value in learned.state_dict().items()}
    learned.fit(Lesson(Part(csr_array((3, part.Y.shape[1]), dtype=np.float32), X=part.X[:3])), Run())
    assert same(before, learned.state_dict())


@pytest.mark.parametrize("negatives", ["all", "mined"])
def test_filtered_pairs_are_not_learned_from(negatives):
    """A point with the same features as the points of a label counts as a negative, unless the pair is filtered."""
    X = csr_array(np.repeat(np.eye(3), [6, 6, 6], axis=0).astype(np.float32))
    Y = np.zeros((18, 2), dtype=np.float32)
    Y[:3, 0] = Y[3:12, 1] = 1  # of six equal points, three lack label 0
    pairs = np.zeros_like(Y)
    pairs[3:6, 0] = 1
    settings = {"negatives": negatives, "min_weight": 0}
    plain = fitted(Part(csr_array(Y), X=X), **settings).predictor().margins(X)[0, 0]
    spared = fitted(Part(csr_array(Y), X=X, filtered=csr_array(pairs)), **settings).predictor().margins(X)[0, 0]
    assert plain < 0.3 < 0.4 < spared


def test_weights_are_kept_as_float16_holds_them(part):
    learned = fitted(part)
    assert torch.equal(learned.values, learned.values.half().float())
    assert learned.tensors().serve["values"].dtype == torch.float16


class StopsAt:
    """A solver that Ctrl-C ends at a given call."""

    def __init__(self, plain: Any, call: int) -> None:
        self.plain, self.left = plain, call

    def __call__(self, *arguments: Any) -> Weights:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.plain(*arguments)  # type: ignore[no-any-return]


def test_ctrl_c_keeps_the_last_round(data, monkeypatch):
    settings = {"negatives": "mined", "rounds": 3, "mined": 4}
    for rounds in (1, 2, 3):  # after three, held-out points are solved in
        monkeypatch.setattr("zipfel.models.linear.liblinear", StopsAt(liblinear, rounds))
        tagger = Tagger("linear", settings=settings, device="cpu").fit_dataset(data)
        assert tagger.fitted_.outcome.interrupted
        assert tagger.rank(data.test.X, 3).ids.shape == (len(data.test), 3)
    monkeypatch.setattr("zipfel.models.linear.liblinear", StopsAt(liblinear, 0))
    with pytest.raises(KeyboardInterrupt):
        Tagger("linear", settings=settings, device="cpu").fit_dataset(data)


def test_all_points_are_taken_where_they_are_few(part, monkeypatch):
    assert model(part).needs_no_mining(part)
    assert not model(part).solves_at_once  # on a CPU
    assert not model(part, negatives="mined").needs_no_mining(part)
    monkeypatch.setattr("zipfel.models.linear.FEW_PAIRS", len(part) * part.Y.shape[1] - 1)
    assert not model(part).needs_no_mining(part)
    assert model(part, negatives="all").solves_at_once


def test_a_plan_expects_about_as_many_weights_as_training_leaves():
    counted = make(Synthetic(points=1500, labels=150, noise=0.3, seed=1))
    part = Tfidf.fit(counted.train.X).apply(counted).train
    few = taken(part, range(150))
    full, rehearsed = len(fitted(part, min_weight=0.05).values), fitted(few, min_weight=0.05)
    X = part.X[:20]
    assert len(rehearsed.values) < 0.5 * full
    assert rehearsed.complete(Lesson(part), few) > 0
    assert 0.7 * full < len(rehearsed.values) < 1.5 * full
    assert rehearsed.predictor().rank(X, 3).ids.shape == (20, 3)
    assert fitted(few, min_weight=0.05).complete(Lesson(few), few) == 0  # nothing is missing


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"C": 0}, "C must be above 0; found 0"),
        ({"rounds": 0}, "rounds must be at least 1"),
        ({"mined": 0}, "mined must be at least 1"),
        ({"min_weight": -1}, "min_weight must be at least 0"),
        ({"loss": "hinge"}, "loss must be one of squared_hinge, logistic"),
    ],
)
def test_settings_have_ranges(changes, message):
    with pytest.raises(ConfigError, match=message):
        settings_of("linear", changes=changes)


def test_dense_points_are_taken(data):
    dense = dataclasses.replace(data, train=taken(data.train, range(60)), test=None)
    tagger = Tagger("linear", device="cpu").fit(dense.train.X.toarray(), [["a"], ["b", "c"]] * 30)
    assert tagger.rank(dense.train.X.toarray(), 2).ids.shape == (60, 2)
