"""Training steps of LightDXML and its prediction a second time, slowly: Algorithm 1 in plain loops, in float64.

Written from Sec. III and IV of Mishra et al. (2023); what is ours (cosines, a residual layer, shared lists, the
decoupled loss) from docs/papers/lightdxml.md. Weights are rows of numbers by name, as in the model's state: a vector is
one row, a number one row with one entry. What a step drops at random is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from reference import combination, cosine, dot, sigmoid

Weights = dict[str, list[list[float]]]
Vector = list[float]
Point = list[tuple[int, float]]  # (feature, value)


def unit(vector: Vector) -> Vector:
    length = math.sqrt(dot(vector, vector))
    return [number / length for number in vector] if length else vector


def relu(vector: Vector) -> Vector:
    return [max(number, 0.0) for number in vector]


@lru_cache(1)
def largest_singular_value(R: tuple[tuple[float, ...], ...]) -> float:
    """‖R‖₂, by power iteration on RᵀR."""
    right = [1.0 + 0.1 * column for column in range(len(R))]
    for _ in range(200):
        left = [dot(row, right) for row in R]
        right = unit([dot(column, left) for column in zip(*R, strict=True)])
    left = [dot(row, right) for row in R]
    return math.sqrt(dot(left, left))


# --- Step 1 -----------------------------------------------------------------------------------------------------------


def features(x: Point, weights: Weights, settings: Any, factors: Vector | None = None) -> Vector:
    """x̂, Sec. IV-A: the tf-idf-weighted sum of token vectors.

    Ours: σ(α) ⊙ x̂ + σ(β) ⊙ R / ‖R‖₂ · ReLU(x̂), and length 1. factors: 0 where dropout drops a number, of x̂ or behind
    the ReLU, else what it scales up by.
    """
    tokens = weights["encoder.tokens.rows"]
    summed = [sum(value * tokens[feature][d] for feature, value in x) for d in range(len(tokens[0]))]
    factors = factors or [1.0] * len(summed)
    if settings.residual:
        R, ((*alpha,), (*beta,)) = (
            weights["encoder.block.R"],
            (
                weights["encoder.block.alpha"][0],
                weights["encoder.block.beta"][0],
            ),
        )
        length = largest_singular_value(tuple(map(tuple, R)))
        hidden = [number * factor for number, factor in zip(relu(summed), factors, strict=True)]
        vector = combination(alpha, summed, beta, [dot(row, hidden) / length for row in R])
    else:
        vector = [number * factor for number, factor in zip(summed, factors, strict=True)]
    return unit(vector) if settings.cosine else vector


# --- Step 2 -----------------------------------------------------------------------------------------------------------


def centroid(label: int, points: list[Vector], truth: list[set[int]], text: Vector | None) -> Vector | None:
    """μ, Eq. (5): the mean of a label's points; without points the vector of its text; None without either."""
    own = [point for point, right in zip(points, truth, strict=True) if label in right]
    if own:
        return [sum(column) / len(own) for column in zip(*own, strict=True)]
    return text


def encoded_label(mu: Vector, weights: Weights, settings: Any) -> Vector:
    """Z_l, Eq. (4): ReLU(W₂ (W₁ μ + b₁) + b₂); `default` has no ReLU."""

    def layer(name: str, vector: Vector) -> Vector:
        rows, (biases,) = weights[f"label_encoder.{name}.weight"], weights[f"label_encoder.{name}.bias"]
        return [dot(row, vector) + bias for row, bias in zip(rows, biases, strict=True)]

    mapped = layer("outer", layer("inner", mu))
    return relu(mapped) if settings.relu else mapped


def distance(
    weights: Weights, points: list[Vector], centroids: list[Vector | None], truth: list[set[int]], settings: Any
) -> float:
    """Eq. (2): the mean over points of Σ ln(1 + ‖x_i − Z_l(j)‖²) over the right labels j; points and μ do not learn."""
    total = 0.0
    for x, right in zip(points, truth, strict=True):
        for label in right:
            y = encoded_label(centroids[label], weights, settings)
            total += math.log(1 + sum((a - b) ** 2 for a, b in zip(x, y, strict=True)))
    return total / len(points)


# --- Step 3 -----------------------------------------------------------------------------------------------------------


def shortlist(x: Vector, labels: list[Vector], k: int) -> list[int]:
    """S_k, Eq. (6): the k labels with the largest cosine."""
    return sorted(range(len(labels)), key=lambda label: (-cosine(x, labels[label]), label))[:k]


# --- Step 4 -----------------------------------------------------------------------------------------------------------


def score(x: Vector, label: int, weights: Weights, settings: Any) -> float:
    """(ŷ_ij)_clf: w_j · x̂_i, Sec. IV-D; ours: scale · cos + offset."""
    w = weights["classifier.labels.rows"][label]
    if not settings.cosine:
        return dot(w, x)
    return weights["classifier.scale"][0][0] * cosine(w, x) + weights["classifier.offset"][0][0]


def labels_of_step(
    truth: list[set[int]], lists: list[list[int]], filtered: list[set[int]], shared: bool
) -> list[set[int]]:
    """P_i ∪ S_k(x_i), Eq. (3), of each point; ours: those of all points of the batch. Filtered labels do not count."""
    own = [right | set(near) for right, near in zip(truth, lists, strict=True)]
    pool = [set().union(*own)] * len(own) if shared else own
    return [labels - out for labels, out in zip(pool, filtered, strict=True)]


def classifier_loss(
    weights: Weights, points: list[Point], factors: list[Vector], truth: list[set[int]], labels: list[set[int]],
    settings: Any,
) -> float:  # fmt: skip
    """Eq. (7), (8), the mean over points; or (ours) ln(1 + Σ exp(s_j − s_l)) over wrong j, the mean over right l."""
    total = 0.0
    for x, factor, right, counted in zip(points, factors, truth, labels, strict=True):
        vector = features(x, weights, settings, factor)
        s = {label: score(vector, label, weights, settings) for label in counted}
        if settings.loss == "logistic":
            total -= sum(math.log(sigmoid(s[label] if label in right else -s[label])) for label in counted)
            continue
        own, wrong = counted & right, counted - right
        for label in own:
            total += math.log(1 + sum(math.exp(s[other] - s[label]) for other in wrong)) / len(own)
    return total / len(points)


def gradients(weights: Weights, loss: Callable[[], float], step: float = 1e-5) -> Weights:
    """dL/dw of each number of the weights, by central differences; `loss` reads the weights."""
    slopes = {name: [[0.0] * len(row) for row in rows] for name, rows in weights.items()}
    for name, rows in weights.items():
        for r, row in enumerate(rows):
            for c, value in enumerate(row):
                row[c] = value + step
                above = loss()
                row[c] = value - step
                slopes[name][r][c] = (above - loss()) / (2 * step)
                row[c] = value
    return slopes


# --- Step 6 -----------------------------------------------------------------------------------------------------------


def mixed(x: Vector, label: int, y: Vector, weights: Weights, settings: Any, beta: float) -> float:
    """Sec. IV-F: β σ(ŷ_clf) + (1 − β) σ(ŷ_hnsw)."""
    return beta * sigmoid(score(x, label, weights, settings)) + (1 - beta) * sigmoid(cosine(x, y))
