"""One training step of GLaS and its prediction a second time, slowly: Algorithm 2 in plain loops, in float64.

Written from the text of Guo et al. (2019). Weights are rows of numbers by name, as in the model's state: a vector is
one row, a number one row with one entry. What a step draws at random is given: which features are kept, the sampled
labels and the pool that negatives are mined from.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import reference
from reference import dot, sigmoid

Weights = dict[str, list[list[float]]]
Point = list[tuple[int, float]]  # (feature, value)


class Batch(NamedTuple):
    points: list[Point]
    kept: list[list[bool]]  # Bernoulli(ρ) of each feature of each point
    truth: list[set[int]]  # L_y of each point
    filtered: list[set[int]]  # labels that are neither right nor wrong
    sampled: list[int]  # y_1 ... y_B
    pool: list[int]  # labels that a step knows


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(dot(vector, vector))
    return [number / length for number in vector] if length else vector


def relu(vector: list[float]) -> list[float]:
    return [max(number, 0.0) for number in vector]


def embedding(x: Point, weights: Weights, nonlinear: bool) -> list[float]:
    """φ(x), Sec. 2.1 and 3.1: linear layers, with a ReLU between them, or after the only one; then of length 1.

    In each layer after the first, weight vectors of all neurons share one length, and have their own directions.
    """
    (hidden,) = weights["embedding.bias"]
    for feature, value in x:
        hidden = [h + value * w for h, w in zip(hidden, weights["embedding.input.rows"][feature], strict=True)]
    hidden = relu(hidden) if nonlinear else hidden
    layers = sum(name.endswith("directions") for name in weights)
    for number in range(layers):
        layer = f"embedding.layers.{number}"
        ((length,),), (biases,) = weights[f"{layer}.length"], weights[f"{layer}.bias"]
        rows = zip(weights[f"{layer}.directions"], biases, strict=True)
        hidden = [length * dot(unit(row), hidden) + bias for row, bias in rows]
        hidden = relu(hidden) if nonlinear and number < layers - 1 else hidden
    return unit(hidden)


def terms(weights: Weights, batch: Batch, U: list[list[float]], settings: Any) -> dict[str, float]:
    """Lines 13 to 18 of Algorithm 2: the loss, a mean over points, and λ times the regularizer, by name.

    U: of the sampled labels, from all of train.
    """
    dropped = [
        [pair for pair, keep in zip(point, kept, strict=True) if keep]
        for point, kept in zip(batch.points, batch.kept, strict=True)
    ]  # line 13
    phi = [embedding(x, weights, settings.nonlinear) for x in dropped]
    V = [unit(row) for row in weights["classifier.labels.rows"]]
    data = sum(point_loss(phi[i], i, V, weights, batch, settings) for i in range(len(phi))) / len(phi)  # line 14
    own = [V[label] for label in batch.sampled]  # line 17
    regularizers = {
        "glas": lambda: reference.glas_regularizer(own, U),  # Eq. (3)
        "spread_out": lambda: reference.spread_out_regularizer(own),  # Eq. (2)
        "laplacian": lambda: reference.laplacian_regularizer(own, U),  # Eq. (4)
        "gravity": lambda: reference.gravity_regularizer(phi, own),  # [16]
    }
    kind = settings.regularizer
    more = {} if kind == "none" else {kind: settings.regularizer_weight * regularizers[kind]()}  # line 18
    return {settings.loss: data, **more}


def point_loss(x: list[float], i: int, V: list[list[float]], weights: Weights, batch: Batch, settings: Any) -> float:
    """The loss of a point: Eq. (1) or softmax cross-entropy of its sampled label; or (ours) logistic, of all labels.

    Eq. (1) and softmax take as negatives the labels of the pool with the highest scores, as in [25].
    """
    wrong = [label for label in batch.pool if label not in batch.truth[i] | batch.filtered[i]]
    h = {label: dot(x, v) for label, v in enumerate(V)}
    ((scale,),), ((offset,),) = weights["classifier.scale"], weights["classifier.offset"]
    if settings.loss == "logistic":
        right = [label for label in batch.pool if label in batch.truth[i]]
        chances = [sigmoid(scale * h[label] + offset) for label in right]
        chances += [1 - sigmoid(scale * h[label] + offset) for label in wrong]
        return -sum(math.log(chance) for chance in chances)
    mined = sorted((h[label] for label in wrong), reverse=True)[: settings.negatives]
    if settings.loss == "margin":
        return sum(max(0.0, other - h[batch.sampled[i]] + settings.margin) for other in mined)
    total = sum(math.exp(scale * other) for other in [h[batch.sampled[i]], *mined])
    return -math.log(math.exp(scale * h[batch.sampled[i]]) / total)


def gradients(weights: Weights, batch: Batch, U: list[list[float]], settings: Any, step: float = 1e-5) -> Weights:
    """dL/dw of each number of the weights, by central differences."""

    def loss() -> float:
        return sum(terms(weights, batch, U, settings).values())

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


def scores(x: Point, weights: Weights, settings: Any) -> list[float]:
    """h(x) = φ(x)ᵀ V of each label, Sec. 2.1, as shown to users: in [0, 1]."""
    phi = embedding(x, weights, settings.nonlinear)
    h = [dot(phi, unit(v)) for v in weights["classifier.labels.rows"]]
    ((scale,),), ((offset,),) = weights["classifier.scale"], weights["classifier.offset"]
    return [(1 + cosine) / 2 if settings.loss == "margin" else sigmoid(scale * cosine + offset) for cosine in h]


def ranking(x: Point, weights: Weights, settings: Any) -> list[int]:
    """Top(φ(x)ᵀ V, K), Sec. 2: all labels, the largest inner product first."""
    found = scores(x, weights, settings)
    return sorted(range(len(found)), key=lambda label: (-found[label], label))
