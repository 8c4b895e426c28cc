"""Training steps of DECAF's Modules I, II and IV and its prediction a second time, slowly, in plain loops.

Written from Sec. 3 and 3.1 of Mittal et al. (2021); where we depart from it, from docs/papers/decaf.md. Weights are
rows of numbers by name: a vector is one row. R must be orthogonal, so that dividing it by its largest singular value
changes nothing. Dropout is by a fixed pattern (`kept`), so that a step can be repeated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reference import bag_sums, combination, decoupled_loss, dot, sigmoid

Weights = dict[str, list[list[float]]]
Text = list[tuple[int, float]]  # (token, weight)


@dataclass(frozen=True)
class Frame:
    """The settings that change a formula. The defaults are the paper's."""

    cosine: bool = False
    relu: bool = True
    residual: bool = True
    label_text: bool = True
    text_in_classifiers: bool = True
    refinement: bool = True
    label_bias: bool = False
    unit_cluster_texts: bool = False
    loss: str = "logistic"
    shortlist: str = "beam"
    dropout: float = 0.0
    module1_dropout: float = 0.0

    @property
    def reads_texts(self) -> bool:
        return self.label_text and self.text_in_classifiers


def kept(row: int, column: int, share: float) -> float:
    """The factor of a number after dropout: 0 for every third of them, in a pattern; 1 / (1 − share) for the others."""
    if share == 0:
        return 1.0
    return 0.0 if (2 * row + column) % 3 == 0 else 1 / (1 - share)


def unit(vector: list[float]) -> list[float]:
    length = math.sqrt(dot(vector, vector))
    return [number / length for number in vector] if length else vector


def added(rows: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


# --- Sec. 3: texts ----------------------------------------------------------------------------------------------------


def tokens_of(text: Text, weights: Weights) -> list[float]:
    """E r."""
    (summed,) = bag_sums(weights["tokens.rows"], [text], len(weights["tokens.rows"][0]))
    return summed


def block(text: Text, weights: Weights, name: str, frame: Frame, row: int = 0, share: float = 0.0) -> list[float]:
    """E_D or E_L of a text: σ(α) ⊙ E r + σ(β) ⊙ R ReLU(E r), with dropout after the ReLU."""
    summed = tokens_of(text, weights)
    if not frame.residual:
        return summed
    hidden = [max(number, 0.0) * kept(row, column, share) for column, number in enumerate(summed)]
    (alpha,), (beta,), R = weights[f"{name}.alpha"], weights[f"{name}.beta"], weights[f"{name}.R"]
    return combination(alpha, summed, beta, [dot(line, hidden) for line in R])


def document(text: Text, weights: Weights, frame: Frame, row: int = 0, share: float = 0.0) -> list[float]:
    """x̂ = ReLU(E_D(x)), with dropout after both ReLUs; with cosines (ours), of length 1."""
    x = block(text, weights, "document_block", frame, row, share)
    if frame.relu:
        x = [max(number, 0.0) * kept(row, column, share) for column, number in enumerate(x)]
    return unit(x) if frame.cosine else x


# --- Modules I and II: clusters ---------------------------------------------------------------------------------------


def cluster_text(Z: list[Text], own: list[int], frame: Frame) -> Text:
    """u_m = Σ z_l; in the authors' code, of length 1."""
    sums: dict[int, float] = {}
    for label in own:
        for token, weight in Z[label]:
            sums[token] = sums.get(token, 0.0) + weight
    length = math.sqrt(sum(weight * weight for weight in sums.values())) if frame.unit_cluster_texts else 1.0
    return [(token, weight / length) for token, weight in sums.items()]


def cluster_scale(count: int) -> float:
    """Ours, with cosines: the length of h."""
    return 2.5 * math.log(max(count, 2))


def clusters_by_text(weights: Weights, Z: list[Text], clusters: list[list[int]], frame: Frame) -> list[list[float]]:
    """Module I: h_m = E_L(u_m), without bias; where labels have no texts (ours), vectors of the clusters' own."""
    share = frame.module1_dropout
    H = [
        block(cluster_text(Z, own, frame), weights, "label_block", frame, m, share)
        if frame.label_text
        else weights["heads.refinement.rows"][m]
        for m, own in enumerate(clusters)
    ]
    return [[cluster_scale(len(H)) * number for number in unit(h)] for h in H] if frame.cosine else H


def clusters_refined(weights: Weights, Z: list[Text], clusters: list[list[int]], frame: Frame) -> list[list[float]]:
    """Module II: h_m = σ(α̃) ⊙ û²_m + σ(β̃) ⊙ û¹_m with û¹_m = Σ E_L(z_l), or one of both; then the bias."""
    (alpha,), (beta,) = weights["heads.combination.alpha"], weights["heads.combination.beta"]
    H = []
    for m, own in enumerate(clusters):
        texts = [block(Z[label], weights, "label_block", frame, label, frame.dropout) for label in own]
        if not frame.reads_texts:
            h = weights["heads.refinement.rows"][m]
        elif not frame.refinement:
            h = added(texts)
        else:
            h = combination(alpha, weights["heads.refinement.rows"][m], beta, added(texts))
        h = [cluster_scale(len(clusters)) * number for number in unit(h)] if frame.cosine else h
        H.append([*h, weights["heads.bias"][0][m]] if frame.label_bias else h)
    return H


def cluster_score(h: list[float], x: list[float], count: int, frame: Frame) -> float:
    """h · x̂ + b; with cosines, the offset that Module II trains with besides."""
    offset = -cluster_scale(count) / 3 if frame.cosine else 0.0
    return dot(h[: len(x)], x) + sum(h[len(x) :]) + offset


def clusters_loss(
    points: list[Text], truth: list[set[int]], clusters: list[list[int]], H: list[list[float]], weights: Weights,
    frame: Frame, share: float,
) -> float:  # fmt: skip
    """Modules I and II: the logistic loss over all clusters; a cluster is right if one of its labels is."""
    total = 0.0
    for row, (text, right) in enumerate(zip(points, truth, strict=True)):
        x = document(text, weights, frame, row, share)
        for own, h in zip(clusters, H, strict=True):
            sign = -1 if set(own) & right else 1
            total += math.log(1 + math.exp(sign * cluster_score(h, x, len(H), frame)))
    return total / len(points)


# --- Module IV: labels ------------------------------------------------------------------------------------------------


def classifier(weights: Weights, Z: list[Text], label: int, frame: Frame, row: int = 0, share: float = 0.0):
    """w_l = σ(α_L) ⊙ ẑ¹_l + σ(β_L) ⊙ ẑ²_l with ẑ¹_l = E_L(z_l), or one of both; then the bias.  row: for dropout."""
    (alpha,), (beta,) = weights["combination.alpha"], weights["combination.beta"]
    text, refined = block(Z[label], weights, "label_block", frame, row, share), weights["refinement.rows"][label]
    if not frame.reads_texts:
        w = refined
    elif not frame.refinement:
        w = text
    else:
        w = combination(alpha, text, beta, refined)
    w = [weights["scale"][0][0] * number for number in unit(w)] if frame.cosine else w
    return [*w, *weights["bias.rows"][label]] if frame.label_bias else w


def label_score(w: list[float], x: list[float], weights: Weights) -> float:
    """w_l · x̂ + b_l; with cosines (ours), an offset besides, which is 0 in the paper."""
    return dot(w[: len(x)], x) + sum(w[len(x) :]) + weights["offset"][0][0]


def labels_loss(
    points: list[Text], truth: list[set[int]], lists: list[set[int]], left_out: list[set[int]], Z: list[Text],
    weights: Weights, frame: Frame,
) -> float:  # fmt: skip
    """Module IV: the loss over the labels of each point's shortlist but for those left out, a mean over points.

    The dropout of a label's text is the same for all points: labels are numbered in their order among all listed.
    """
    every = sorted(set().union(*lists)) if frame.shortlist != "none" else range(len(Z))
    W = {label: classifier(weights, Z, label, frame, row, frame.dropout) for row, label in enumerate(every)}
    total = 0.0
    for row, (text, right, near, out) in enumerate(zip(points, truth, lists, left_out, strict=True)):
        x = document(text, weights, frame, row, frame.dropout)
        scores = {label: label_score(W[label], x, weights) for label in near - out}
        if frame.loss == "decoupled":
            targets = [[float(label in right) for label in scores]]
            total += decoupled_loss([list(scores.values())], targets, [[True] * len(scores)])
        else:
            signs = {label: -1 if label in right else 1 for label in scores}
            total += sum(math.log(1 + math.exp(signs[label] * score)) for label, score in scores.items())
    return total / len(points)


# --- Prediction -------------------------------------------------------------------------------------------------------


def score(label: float, cluster: float | None, frame: Frame) -> float:
    """σ(w_l · x̂) · σ(h_m · x̂); after the decoupled loss (ours), σ(w_l · x̂ + ln σ(h_m · x̂)); without S, no second."""
    if cluster is None:
        return sigmoid(label)
    if frame.loss == "decoupled":
        return sigmoid(label + math.log(sigmoid(cluster)))
    return sigmoid(label) * sigmoid(cluster)
