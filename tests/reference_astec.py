"""Training steps of Astec's Modules I and IV, the search of Module II and prediction a second time, in plain loops.

Weights are rows of numbers by name: a vector is one row. R must be orthogonal, so that dividing it by its largest
singular value changes nothing.
"""

from __future__ import annotations

import math

from reference import bag_sums, cosine, decoupled_loss, dot, logistic_loss, shared_points, sigmoid, text_block

Weights = dict[str, list[list[float]]]
Text = list[tuple[int, float]]  # (token, weight)
Vector = list[float]


def unit(x: Vector) -> Vector:
    length = math.sqrt(dot(x, x))
    return [number / length for number in x] if length else x


def intermediate(text: Text, E: list[Vector], kind: str) -> Vector:
    """v: the sum of token vectors, or its ReLU."""
    (v,) = bag_sums(E, [text], len(E[0]))
    return [max(number, 0.0) for number in v] if kind == "relu" else v


def final(text: Text, E: list[Vector], weights: Weights, kind: str) -> Vector:
    """x̂: v + ReLU(R v + b), or DECAF's text block; v itself without a residual layer."""
    v = intermediate(text, E, kind)
    if "block.R" not in weights:
        return v
    R = weights["block.R"]
    if kind == "relu":
        (bias,) = weights["block.bias"]
        return [own + max(dot(line, v) + b, 0.0) for own, line, b in zip(v, R, bias, strict=True)]
    (x,) = text_block([v], R, weights["block.alpha"][0], weights["block.beta"][0])
    return x


def scores(x: Vector, weights: Weights, name: str, is_cosine: bool) -> list[float]:
    """Of all classifiers `name`: w · x + b, or with cosines scale · cos(w, x) + offset + b."""
    W = weights[f"{name}.labels.rows"]
    biases = weights.get(f"{name}.biases.rows", [[0.0]] * len(W))
    ((scale,),), ((offset,),) = weights[f"{name}.scale"], weights[f"{name}.offset"]
    products = [scale * cosine(w, x) + offset for w in W] if is_cosine else [dot(w, x) for w in W]
    return [product + bias for product, (bias,) in zip(products, biases, strict=True)]


def one_vs_all(rows: list[list[float]], truth: list[set[int]], counted: list[set[int]], loss: str) -> float:
    """The loss of points over the labels that count for each."""
    labels = range(len(rows[0]))
    targets = [[label in right for label in labels] for right in truth]
    mask = [[label in some for label in labels] for some in counted]
    return (decoupled_loss if loss == "decoupled" else logistic_loss)(rows, targets, mask)


def candidates(
    negatives: str, truth: list[set[int]], lists: list[set[int]], left_out: list[set[int]], labels: int
) -> list[set[int]]:
    """The labels that count for each point: its own list, the lists of the whole batch, or all."""
    own = [right | near for right, near in zip(truth, lists, strict=True)]
    everything = {"own": None, "shared": set().union(*own), "all": set(range(labels))}[negatives]
    return [(own[row] if everything is None else everything) - out for row, out in enumerate(left_out)]


def smoothed(vectors: list[Vector], truth: list[set[int]]) -> list[Vector]:
    """Each label's vector averaged with those of labels that share points, in proportion to the points they share."""
    rows = []
    for label in range(len(vectors)):
        shares = [shared_points(truth, label, other) for other in range(len(vectors))]
        whole = sum(shares)
        columns = zip(*vectors, strict=True)
        rows.append([sum(s * x for s, x in zip(shares, column, strict=True)) / max(whole, 1) for column in columns])
    return rows


def centroids(points: list[Vector], truth: list[set[int]], labels: int) -> list[Vector]:
    sums = [[0.0] * len(points[0]) for _ in range(labels)]
    for x, right in zip(points, truth, strict=True):
        for label in right:
            sums[label] = [a + b for a, b in zip(sums[label], x, strict=True)]
    return [unit(total) for total in sums]


def best(found: dict[int, float], count: int) -> dict[int, float]:
    return {label: found[label] for label in sorted(found, key=lambda label: (-found[label], label))[:count]}


def near_labels(
    query: Vector, means: list[Vector], documents: list[Vector], truth: list[set[int]], gamma: float, neighbours: int,
    width: int,
) -> dict[int, float]:  # fmt: skip
    """Module II: (1 − γ) cos(v, μ_l) + γ s_l of the best labels; s_l adds up the cosines of near documents with l."""
    close = best({label: dot(unit(query), mean) for label, mean in enumerate(means)}, width)
    if not gamma:
        return close
    votes: dict[int, float] = {}
    for row, similarity in best({row: cosine(query, x) for row, x in enumerate(documents)}, neighbours).items():
        for label in truth[row]:
            votes[label] = votes.get(label, 0.0) + max(similarity, 0.0)
    votes = best({label: vote for label, vote in votes.items() if vote > 0}, width)
    most = max(votes.values(), default=1.0)
    mixed = {
        label: (1 - gamma) * close.get(label, 0.0) + gamma * votes.get(label, 0.0) / most for label in {*close, *votes}
    }
    return best(mixed, width)


def score(classifier: float, near: float, beta: float) -> float:
    """Prediction: β σ(w · x̂ + b) + (1 − β) σ(the shortlist's score)."""
    return beta * sigmoid(classifier) + (1 - beta) * sigmoid(near)
