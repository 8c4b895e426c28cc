"""Training steps of DECAF's Modules I, II and IV and its prediction a second time, slowly, in plain loops.

Written from Sec. 3 and 3.1 of Mittal et al. (2021). Weights are rows of numbers by name: a vector is one row. R must be
orthogonal, so that dividing it by its largest singular value changes nothing.
"""

from __future__ import annotations

import math

from reference import all_labels_loss, bag_sums, combination, dot, sigmoid, text_block

Weights = dict[str, list[list[float]]]
Text = list[tuple[int, float]]  # (token, weight)


def block(text: Text, weights: Weights, name: str) -> list[float]:
    """E_D or E_L of a text: σ(α) ⊙ E r + σ(β) ⊙ R ReLU(E r)."""
    (alpha,), (beta,), R = weights[f"{name}.alpha"], weights[f"{name}.beta"], weights[f"{name}.R"]
    (embedded,) = text_block(bag_sums(weights["tokens.rows"], [text], len(alpha)), R, alpha, beta)
    return embedded


def document(text: Text, weights: Weights) -> list[float]:
    """x̂ = ReLU(E_D(x))."""
    return [max(number, 0.0) for number in block(text, weights, "document_block")]


def added(rows: list[list[float]]) -> list[float]:
    return [sum(column) for column in zip(*rows, strict=True)]


def clusters_by_text(weights: Weights, Z: list[Text], clusters: list[list[int]]) -> list[list[float]]:
    """Module I: h_m = E_L(u_m) of u_m = Σ z_l."""
    return [block([pair for label in own for pair in Z[label]], weights, "label_block") for own in clusters]


def clusters_refined(weights: Weights, Z: list[Text], clusters: list[list[int]]) -> list[list[float]]:
    """Module II: h_m = σ(α̃) ⊙ û²_m + σ(β̃) ⊙ û¹_m with û¹_m = Σ E_L(z_l)."""
    (alpha,), (beta,) = weights["heads.combination.alpha"], weights["heads.combination.beta"]
    texts = [added([block(Z[label], weights, "label_block") for label in own]) for own in clusters]
    rows = zip(weights["heads.refinement.rows"], texts, strict=True)
    return [combination(alpha, refined, beta, text) for refined, text in rows]


def clusters_loss(points: list[Text], truth: list[set[int]], clusters: list[list[int]], H: list, weights: Weights):
    """Modules I and II: the logistic loss over all clusters; a cluster is right if one of its labels is."""
    owned = [{m for m, own in enumerate(clusters) if set(own) & right} for right in truth]
    return all_labels_loss([document(x, weights) for x in points], H, 0.0, owned, [set()] * len(points))


def classifiers(weights: Weights, Z: list[Text]) -> list[list[float]]:
    """Module IV: w_l = σ(α_L) ⊙ ẑ¹_l + σ(β_L) ⊙ ẑ²_l with ẑ¹_l = E_L(z_l)."""
    (alpha,), (beta,) = weights["combination.alpha"], weights["combination.beta"]
    rows = zip(Z, weights["refinement.rows"], strict=True)
    return [combination(alpha, block(text, weights, "label_block"), beta, refined) for text, refined in rows]


def labels_loss(points: list[Text], truth: list[set[int]], shortlists: list[set[int]], W: list, weights: Weights):
    """Module IV: the logistic loss over the labels of each point's shortlist, a mean over points."""
    total = 0.0
    for x, right, near in zip(points, truth, shortlists, strict=True):
        vector = document(x, weights)
        total += sum(math.log(1 + math.exp((-1 if label in right else 1) * dot(W[label], vector))) for label in near)
    return total / len(points)


def score(w: list[float], h: list[float], x: list[float], searched: list[float]) -> float:
    """Prediction: σ(w_l · x̂) · σ(h_m · x̂); x̂ of the cluster is that of S, which Module III freezes."""
    return sigmoid(dot(w, x)) * sigmoid(dot(h, searched))
