"""Solvers of linear one-vs-all classifiers: all labels at once by Newton's method, or label by label by liblinear.

Both minimise the same objective for each label, with y_i = 1 for its points and −1 for the others,

    ½ ‖w‖² + ½ b² + C Σ_i loss(y_i (w · x_i + b)),    loss(m) = max(0, 1 − m)²  or  ln(1 + exp(−m)),

Newton's method over all points, which is fast on a GPU; liblinear over a label's own points and the hardest others,
which is fast on a CPU. Points that share no word with any of them all score b: one empty point stands for them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import torch
from joblib import Parallel, delayed
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array, csr_matrix, hstack
from torch import Tensor

from zipfel.data.processes import end_with

Loss = Literal["squared_hinge", "logistic"]
Scores = Callable[[slice], Tensor]  # of some points with all labels, [n, L]
Best = Callable[[Scores, int, int, int], csr_array]  # same contract as `best_labels`

NEWTON_STEPS = 12
GRADIENT_STEPS = 12  # of conjugate gradients in a step of Newton's method
SOLVED = 0.001  # relative length of a label's gradient at which Newton's method has solved it
CONVERGED = 0.01  # liblinear's tolerance, by its own measure; with C ≤ 1 both come within 0.1% of the least objective
CELLS = 1 << 26  # numbers of the scores, and of the weights, of the labels that are solved at once
BLOCK = 256  # points that are scored at once
SCORES = 1 << 24  # scores that a thread holds at most
WIDTH = 256  # random directions that centroids are projected on
WEIGHTY = 0.2  # smaller weights hardly decide which labels are hardest, and take most of the time
ROUNDING = 1e-5  # relative, of an objective in float32: a sum over all points
MOST_PASSES = 50  # over the points of a label
LABELS = 64  # labels that a process solves at once
WORTH_PROCESSES = 1 << 16  # (point, label) pairs from which more than one process pays off


class Weights(NamedTuple):
    """Linear classifiers: w [L, F], sparse, and b [L]."""

    W: csr_array
    bias: NDArray[np.float32]


@dataclass(frozen=True)
class Objective:
    """What is minimised.  least: smaller weights are dropped.  tolerance: liblinear's; None is CONVERGED."""

    C: float = 1.0
    loss: Loss = "squared_hinge"
    least: float = 0.0
    tolerance: float | None = None


# --- All labels at once -----------------------------------------------------------------------------------------------


def newton(
    X: csr_array, Y: csr_array, excluded: csr_array | None, objective: Objective, device: torch.device,
    centre: Weights | None = None, on_labels: Callable[[int], None] = lambda count: None,
) -> Weights:  # fmt: skip
    """Solve all labels against all points, by Newton's method with conjugate gradients.

    Labels without a point get w = 0 and b = −1.  excluded: pairs [N, L] that do not count.  centre: weights that
    ½ ‖w − centre‖² holds on to, to learn from more points without the earlier ones; 0 otherwise.
    """
    rows, step = with_ones(X), max(1, min(CELLS // max(*X.shape, 1), Y.shape[1]))
    forward, backward = sparse_tensor(rows, device), sparse_tensor(csr_array(rows.T.tocsr()), device)
    columns, left_out = csc_array(Y), None if excluded is None else csc_array(excluded)
    pieces = []
    for start in range(0, Y.shape[1], step):
        some = slice(start, min(start + step, Y.shape[1]))
        signs = filled(columns[:, some], 1, -1, device)
        counted = torch.ones_like(signs) if left_out is None else filled(left_out[:, some], 0, 1, device)
        held = None if centre is None else centred(centre, some, device)
        pieces.append(_pruned(_newton(forward, backward, signs, counted, objective, held), objective.least))
        on_labels(some.stop)
    return stacked(pieces, X.shape[1])


def _newton(
    X: Tensor, XT: Tensor, signs: Tensor, counted: Tensor, objective: Objective, centre: Tensor | None
) -> Tensor:
    """Return weights [F + 1, n] of n labels; the last row is the bias.  signs, counted: [N, n].

    Solved labels leave the batch: the last columns of it need most of the steps.
    """
    C = objective.C
    if centre is None:
        centre = signs.new_zeros(X.shape[1], signs.shape[1])
        solution = centre.clone()
        solution[-1] = -1  # most points are no points of a label, and are right at once
    else:
        solution = centre.clone()
    left = (signs > 0).any(dim=0).nonzero()[:, 0]  # labels to solve; others keep w = 0 and b = −1
    W, centre, signs, counted = _columns(left, solution, centre, signs, counted)
    scores, first = X @ W, None  # [N, n]
    value = _value(W - centre, scores, signs, counted, objective)
    for _ in range(NEWTON_STEPS):
        slopes, curves = derivatives(signs * scores, objective.loss)
        gradient = W - centre + C * (XT @ (counted * signs * slopes))  # [F + 1, n]
        length = gradient.norm(dim=0)
        first = length if first is None else first
        unsolved = (length > SOLVED * first).nonzero()[:, 0]
        if len(unsolved) < len(left):
            solution[:, left] = W
            left, W, centre, signs, counted, scores, value, first, gradient, curves = _columns(
                unsolved, left, W, centre, signs, counted, scores, value, first, gradient, curves
            )
        if not len(left):
            break
        step = _conjugate_gradients(X, XT, C * counted * curves, -gradient)
        W, scores, value = _line_search(
            W, step, scores, X @ step, value, (gradient * step).sum(dim=0),
            partial(_value_at, centre, signs, counted, objective),
        )  # fmt: skip
    solution[:, left] = W
    return solution


def _columns(which: Tensor, *matrices: Tensor) -> tuple[Tensor, ...]:
    """Return some columns of each matrix, or entries of each vector."""
    return tuple(matrix.index_select(matrix.ndim - 1, which) for matrix in matrices)


def _conjugate_gradients(X: Tensor, XT: Tensor, curves: Tensor, wanted: Tensor) -> Tensor:
    """Return d [F + 1, n] with (I + Xᵀ diag(curves) X) d ≈ wanted, for each label.

    Labels that are close enough leave the batch once they are half of it.
    """
    found, left = torch.zeros_like(wanted), torch.arange(wanted.shape[1], device=wanted.device)
    step, rest, direction = found.clone(), wanted, wanted
    size = rest.square().sum(dim=0)
    enough = 0.01 * size
    for _ in range(GRADIENT_STEPS):
        image = direction + XT @ (curves * (X @ direction))
        length = size / (direction * image).sum(dim=0).clamp_min(1e-30)
        step = step + length * direction
        rest = rest - length * image
        new = rest.square().sum(dim=0)
        far = (new > enough).nonzero()[:, 0]
        direction = rest + new / size.clamp_min(1e-30) * direction
        size = new
        if 2 * len(far) <= len(left):
            found[:, left] = step
            left, step, rest, direction, size, enough, curves = _columns(
                far, left, step, rest, direction, size, enough, curves
            )
        if not len(left):
            break
    found[:, left] = step
    return found


def _line_search(
    W: Tensor, step: Tensor, scores: Tensor, moved: Tensor, value: Tensor, slope: Tensor,
    evaluate: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Halve each label's step until its objective falls enough (Armijo); return weights, scores and objectives."""
    lengths = torch.ones_like(value)
    for _ in range(10):
        new = evaluate(W + lengths * step, scores + lengths * moved)
        worse = new > value * (1 + ROUNDING) + 1e-4 * lengths * slope
        if not bool(worse.any()):
            break
        lengths = torch.where(worse, lengths / 2, lengths)
    lengths = torch.where(new > value, torch.zeros_like(lengths), lengths)  # rounding, at the very end
    W, scores = W + lengths * step, scores + lengths * moved
    return W, scores, torch.minimum(new, value)


def _value_at(
    centre: Tensor, signs: Tensor, counted: Tensor, objective: Objective, W: Tensor, scores: Tensor
) -> Tensor:
    return _value(W - centre, scores, signs, counted, objective)


def _value(moved: Tensor, scores: Tensor, signs: Tensor, counted: Tensor, objective: Objective) -> Tensor:
    """Return the objective of each label, [n]."""
    margins = signs * scores
    if objective.loss == "logistic":
        losses = torch.nn.functional.softplus(-margins)
    else:
        losses = (1 - margins).clamp_min(0).square()
    return moved.square().sum(dim=0) / 2 + objective.C * (counted * losses).sum(dim=0)


def derivatives(margins: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """Return the first and second derivative of the loss by the margin."""
    if loss == "logistic":
        p = torch.sigmoid(-margins)
        return -p, p * (1 - p)
    # At the kink itself the curve counts: all negatives begin there, and without them a step would be far too long.
    return -2 * (1 - margins).clamp_min(0), 2 * (margins <= 1).to(margins)


def _pruned(W: Tensor, least: float) -> Weights:
    """Return weights [F + 1, n] without small ones; only the others leave the device."""
    bias, by_label = W[-1].cpu().numpy(), W[:-1].T
    labels, features = (by_label.abs() >= max(least, 1e-30)).nonzero(as_tuple=True)
    values = by_label[labels, features].cpu().numpy()
    starts = np.searchsorted(labels.cpu().numpy(), np.arange(len(bias) + 1))
    ids = features.int().cpu().numpy()
    return Weights(csr_array((values, ids, starts), shape=tuple(by_label.shape)), bias)


# --- Label by label ---------------------------------------------------------------------------------------------------


def liblinear(
    X: csr_array, signs: csc_array, objective: Objective, processes: int,
    on_labels: Callable[[int], None] = lambda count: None,
) -> Weights:  # fmt: skip
    """Solve each label against the points that have a sign for it; an empty point stands for all others.

    signs: [N, L], 1 and −1.  Labels without a point get w = 0 and b = −1.
    """
    rows = csr_matrix(X)
    chunks = [signs[:, start : start + LABELS] for start in range(0, signs.shape[1], LABELS)]
    processes = min(processes, len(chunks)) if signs.nnz >= WORTH_PROCESSES else 1
    pieces, done = [], 0
    for piece in _in_processes(rows, chunks, objective, processes):
        pieces.append(piece)
        done += len(piece.bias)
        on_labels(done)
    return stacked(pieces, X.shape[1])


def _in_processes(
    rows: csr_matrix, chunks: Sequence[csc_array], objective: Objective, processes: int
) -> Iterator[Weights]:
    """Yield the weights of each chunk. Not in threads: liblinear has one random generator for all of a process."""
    if processes == 1:
        yield from (_solve(rows, chunk, objective) for chunk in chunks)
        return
    with Parallel(n_jobs=processes, return_as="generator", max_nbytes=1 << 20) as parallel:
        yield from parallel(delayed(_solved_for)(os.getpid(), rows, chunk, objective) for chunk in chunks)


def _solved_for(parent: int, rows: csr_matrix, signs: csc_array, objective: Objective) -> Weights:
    """Solve labels in another process, which ends with the one that started it."""
    end_with(parent)
    return _solve(rows, signs, objective)


def _solve(rows: csr_matrix, signs: csc_array, objective: Objective) -> Weights:
    values, features, bias = [], [], np.full(signs.shape[1], -1, dtype=np.float32)
    for label in range(signs.shape[1]):
        stored = slice(signs.indptr[label], signs.indptr[label + 1])
        points, sides = signs.indices[stored], signs.data[stored]
        w = np.zeros(0)
        if (sides > 0).any():
            w, bias[label] = solve_label(rows[points], sides, rows.shape[0] - len(points), objective)
        kept = np.flatnonzero(np.abs(w) >= max(objective.least, 1e-30))
        values.append(w[kept].astype(np.float32))
        features.append(kept.astype(np.int32))
    starts = np.concatenate([[0], np.cumsum([len(kept) for kept in features])])
    shape = (signs.shape[1], rows.shape[1])
    return Weights(csr_array((np.concatenate(values), np.concatenate(features), starts), shape=shape), bias)


def solve_label(
    rows: csr_matrix, sides: NDArray[np.floating], others: int, objective: Objective
) -> tuple[NDArray[np.float64], float]:
    """Return w [F] and b of a label, against points [n, F] with sides 1 or −1, and others that are empty and −1.

    It calls the function under scikit-learn's estimators, whose checks take longer than most labels. That function is
    private: where it is missing or takes other arguments, the estimators are used.
    """
    ends = np.append(rows.indptr, rows.indptr[-1])  # and an empty row
    points = csr_matrix((rows.data, rows.indices, ends), shape=(len(sides) + 1, rows.shape[1]))
    sides, weights = np.append(sides, -1), np.append(np.ones(len(sides)), max(others, 1e-6))
    try:
        return _trained(points, sides, weights, objective)
    except (ImportError, TypeError):
        return _fitted(points, sides, weights, objective)


def _trained(
    points: csr_matrix, sides: NDArray[np.floating], weights: NDArray[np.float64], objective: Objective
) -> tuple[NDArray[np.float64], float]:
    from sklearn.svm._liblinear import set_verbosity_wrap, train_wrap

    set_verbosity_wrap(0)  # it reports each label otherwise
    tolerance = CONVERGED if objective.tolerance is None else objective.tolerance
    kind, passes = (0, 100) if objective.loss == "logistic" else (1, MOST_PASSES)  # primal; dual
    found, _ = train_wrap(points, (sides > 0).astype(np.float64), True, kind, tolerance, 1.0, objective.C, np.ones(2),
                          passes, 0, 0.1, weights)  # fmt: skip
    return found[0, :-1], float(found[0, -1])


def _fitted(
    points: csr_matrix, sides: NDArray[np.floating], weights: NDArray[np.float64], objective: Objective
) -> tuple[NDArray[np.float64], float]:
    from sklearn import config_context
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.svm import LinearSVC

    tolerance = CONVERGED if objective.tolerance is None else objective.tolerance
    if objective.loss == "logistic":
        solver = LogisticRegression(C=objective.C, solver="liblinear", tol=tolerance)
    else:
        solver = LinearSVC(C=objective.C, dual=True, tol=tolerance, max_iter=MOST_PASSES, random_state=0)
    with config_context(assume_finite=True, skip_parameter_validation=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        solver.fit(points, sides, sample_weight=weights)
    return solver.coef_[0], float(solver.intercept_[0])


# --- Which labels a point is a negative of ----------------------------------------------------------------------------


def signs_of(Y: csr_array, negatives: csr_array, excluded: csr_array | None) -> csc_array:
    """Return 1 for the labels of each point and −1 for its negatives, without excluded pairs, [N, L]."""
    own = (Y != 0).astype(np.float32)
    wrong = (negatives != 0).astype(np.float32)
    wrong = wrong - wrong.multiply(own)
    signs = own - wrong
    if excluded is not None:
        signs = signs - signs.multiply(excluded != 0)
    signs = csc_array(signs)
    signs.eliminate_zeros()
    return signs


def best_labels(scores: Scores, points: int, labels: int, count: int) -> csr_array:
    """Return ones at the labels with the highest scores.

    In threads: sparse products of scipy and topk of torch let other threads run meanwhile.
    """
    count, size = min(count, labels), max(1, min(BLOCK, SCORES // max(labels, 1)))

    def best(start: int) -> Tensor:
        return scores(slice(start, start + size)).topk(count, dim=1, sorted=False).indices.int()

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        ids = torch.cat([torch.zeros((0, count), dtype=torch.int32), *pool.map(best, range(0, points, size))])
    listed = csr_array((np.ones(ids.numel(), np.float32), ids.numpy().ravel(), np.arange(points + 1) * count),
                       shape=(points, labels))  # fmt: skip
    listed.sort_indices()
    return listed


def hardest(X: csr_array, weights: Weights, count: int, best: Best = best_labels) -> csr_array:
    """Return the labels that score highest for each point by large weights, [N, L] with `count` ones in a row."""
    large = csr_array(weights.W.multiply(np.abs(weights.W) >= WEIGHTY))
    by_feature, bias = csr_array(large.T.tocsr()), weights.bias
    return best(lambda some: torch.from_numpy((X[some] @ by_feature).toarray() + bias), X.shape[0], len(bias), count)


def nearest_centroids(
    X: csr_array, Y: csr_array, count: int, numbers: np.random.Generator, best: Best = best_labels
) -> csr_array:
    """Return the labels whose centroids are nearest to each point, [N, L] with `count` ones in a row.

    Points are projected on random directions, which is much faster and finds nearly the same labels.
    """
    directions = numbers.standard_normal((X.shape[1], WIDTH), dtype=np.float32) / np.sqrt(WIDTH)
    points = torch.from_numpy(np.asarray(X @ directions, dtype=np.float32))
    sums = torch.from_numpy(np.asarray(csr_array(Y.T) @ points.numpy(), dtype=np.float32))
    centroids = torch.nn.functional.normalize(sums, dim=1)
    return best(lambda some: points[some] @ centroids.T, X.shape[0], Y.shape[1], count)


# --- Matrices ---------------------------------------------------------------------------------------------------------


def with_ones(X: csr_array) -> csr_array:
    """Return the points with one more feature, which is 1."""
    return csr_array(hstack([X, np.ones((X.shape[0], 1), dtype=np.float32)], format="csr"))


def sparse_tensor(matrix: csr_array, device: torch.device) -> Tensor:
    """Return a sparse matrix as a tensor."""
    with warnings.catch_warnings():  # that sparse CSR tensors are in beta state
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(matrix.indptr.astype(np.int64)), torch.from_numpy(matrix.indices.astype(np.int64)),
            torch.from_numpy(matrix.data.astype(np.float32)), size=matrix.shape, device=device,
        )  # fmt: skip


def filled(matrix: csc_array, at: float, elsewhere: float, device: torch.device) -> Tensor:
    """Return one number where a matrix is not 0, and another elsewhere; only positions travel to the device."""
    cells = torch.full(matrix.shape, float(elsewhere), device=device)
    rows, columns = (torch.from_numpy(ids.astype(np.int64)).to(device) for ids in matrix.nonzero())
    cells[rows, columns] = float(at)
    return cells


def centred(weights: Weights, labels: slice, device: torch.device) -> Tensor:
    """Return the weights of some labels, [F + 1, n]; the last row is the bias."""
    W = torch.from_numpy(weights.W[labels].toarray().T)
    return torch.cat([W, torch.from_numpy(weights.bias[labels])[None]]).to(device)


def stacked(pieces: Sequence[Weights], features: int) -> Weights:
    """Return the weights of labels one after the other."""
    if not pieces:
        return Weights(csr_array((0, features), dtype=np.float32), np.zeros(0, np.float32))
    sizes = np.concatenate([np.diff(piece.W.indptr) for piece in pieces])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    values, ids = (np.concatenate([getattr(piece.W, name) for piece in pieces]) for name in ("data", "indices"))
    W = csr_array((values, ids, starts), shape=(len(sizes), features))
    return Weights(W, np.concatenate([piece.bias for piece in pieces]))
