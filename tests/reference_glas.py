"""One training step of GLaS and its prediction a second time, slowly: Algorithm 2 in plain loops, in float64.

Written from the text of Guo et al. (2019). Weights are rows of numbers by name, as in the model's state: a vector is
one row, a number one row with one entry. What a step draws at random is given: which features are kept, the sampled
labels, the pool that negatives are mined from, and the order in which they are drawn from it.
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
    lots: list[list[float]]  # of each point for each label of the pool: who has the highest is drawn


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(dot(vector, vector))
    return [number / length for number in vector] if length else vector


def relu(vector: list[float]) -> list[float]:
    return [max(number, 0.0) for number in vector]


def input_weights(weights: Weights) -> list[list[float]]:
    """The weights of the input layer, a row for each feature; normalised where the layer has a length, Sec. 3.1.

    The weight vector of an output neuron has a number for each feature.
    """
    rows = weights["embedding.input.rows"]
    if "embedding.length" not in weights:
        return rows
    ((length,),) = weights["embedding.length"]
    neurons = [[length * w for w in unit(list(neuron))] for neuron in zip(*rows, strict=True)]
    return [list(row) for row in zip(*neurons, strict=True)]


def embedding(x: Point, weights: Weights, nonlinear: bool) -> list[float]:
    """φ(x), Sec. 2.1 and 3.1: linear layers, with a ReLU between them, or after the only one; then of length 1.

    In each layer after the first, and in the first where it has a length, weight vectors of all neurons share one
    length, and have their own directions.
    """
    (hidden,), rows = weights["embedding.bias"], input_weights(weights)
    for feature, value in x:
        hidden = [h + value * w for h, w in zip(hidden, rows[feature], strict=True)]
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

    Eq. (1) and softmax take as negatives all wrong labels of the pool; or those with the highest scores, as in [25]; or
    some drawn at random, each of which counts as often as there are wrong labels for a drawn one.
    """
    wrong = [label for label in batch.pool if label not in batch.truth[i] | batch.filtered[i]]
    h = {label: dot(x, v) for label, v in enumerate(V)}
    ((scale,),), ((offset,),) = weights["classifier.scale"], weights["classifier.offset"]
    if settings.loss == "logistic":
        right = [label for label in batch.pool if label in batch.truth[i]]
        chances = [sigmoid(scale * h[label] + offset) for label in right]
        chances += [1 - sigmoid(scale * h[label] + offset) for label in wrong]
        return -sum(math.log(chance) for chance in chances)
    lots, taken = dict(zip(batch.pool, batch.lots[i], strict=True)), wrong
    if settings.negative_labels == "hardest":
        taken = sorted(wrong, key=lambda label: -h[label])[: settings.negatives]
    elif settings.negative_labels == "sampled":
        taken = sorted(wrong, key=lambda label: -lots[label])[: settings.negatives]
    times = len(wrong) / len(taken) if settings.negative_labels == "sampled" and taken else 1
    own = h[batch.sampled[i]]
    if settings.loss == "margin":
        return times * sum(max(0.0, h[label] - own + settings.margin) for label in taken)
    total = math.exp(scale * own) + times * sum(math.exp(scale * h[label]) for label in taken)
    return -math.log(math.exp(scale * own) / total)


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
