"""Metrics of a ranking: P, nDCG, R, coverage, propensity-scored versions, macro averages, frequency bins.

N points, L labels, K the largest requested k. `measure`, `macro` and `contributions` return percentages; the functions
for a single metric return fractions for k = 1..K. A point without a true label counts as 0 in means over points, as in
the field's own evaluation code; a missing prediction counts as wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array

from zipfel.errors import DataError
from zipfel.types import Ids, Ranking, stored

Flags = NDArray[np.bool_]
Floats = NDArray[np.float64]
Gains = Flags | Floats  # [N, K], the gain of the label at each rank; 0 if it is wrong


@dataclass(frozen=True, slots=True)
class Bin:
    """Labels of similar training frequency, and their contribution to P@k, in percent."""

    labels: int
    occurrences: int  # of these labels in training
    lowest: int  # training frequency of the rarest label; 0 in a bin without labels
    highest: int
    contribution: float


def frequencies(lowest: int, highest: int) -> str:
    """Return a range of training frequencies as people write it.

    >>> frequencies(5, 5), frequencies(8, 1200)
    ('5', '8 to 1,200')
    """
    return f"{lowest:,}" if lowest == highest else f"{lowest:,} to {highest:,}"


def inverse_propensities(counts: ArrayLike, points: int, A: float = 0.55, B: float = 1.5) -> Floats:
    """Return the weight of a correct prediction of each label, [L] (Jain et al., 2016).

    1 / p_l = 1 + C (n_l + B)^−A  with  C = (ln N − 1) (B + 1)^A

    counts: [L], the number n_l of each label's training points.  points: N, the number of training points.  A, B: 0.55
    and 1.5 for most data sets, 0.5 and 0.4 for Wikipedia's, 0.6 and 2.6 for Amazon's. With fewer than 3 points C would
    be negative, and is set to 0.
    """
    counts = _checked_counts(counts)
    if points < 1 or counts.max(initial=0) > points:
        most = counts.max(initial=0)
        raise DataError(f"points must be the number of training points; found {points}, but a label has {most}")
    if A < 0 or B <= 0:
        raise DataError(f"A must be at least 0 and B above 0; found A={A} and B={B}")
    C = max(np.log(points) - 1, 0) * (B + 1) ** A
    return np.asarray(1 + C * (counts + B) ** -A)


def measure(
    ranking: Ranking, truth: csr_array, inverse_propensity: Floats | None = None, ks: Sequence[int] = (1, 3, 5)
) -> dict[str, float]:
    """Return P, nDCG, R and coverage at each k, in percent; with propensities also PSP, PSnDCG and PSR.

    coverage@k is the share of the labels in `truth` that are predicted correctly in the top k of at least one point. A
    propensity-scored metric is the plain one with hits worth 1 / p_l, divided by the same for the best possible
    ranking: Σ_i of the numerators over Σ_i of the denominators, as is usual in the field, not a mean of ratios.

    ranking: N rows of labels, any width.  truth: [N, L], true labels.  inverse_propensity: [L].

    >>> ranking = Ranking(np.array([[2, 0], [1, -1]]), np.array([[0.9, 0.4], [0.7, -np.inf]], dtype=np.float32))
    >>> measure(ranking, csr_array([[1, 0, 0], [0, 1, 0]]), ks=[1, 2])["P@2"]  # two of four predictions are right
    50.0
    """
    ids, hits, truth = _judged(ranking, truth, ks)
    positives = np.diff(truth.indptr)  # [N]
    curves = {
        "P": precision(hits),
        "nDCG": ndcg(hits, positives),
        "R": recall(hits, positives),
        "coverage": coverage(ids, hits, truth),
    }
    if inverse_propensity is not None:
        weights = _checked_weights(inverse_propensity, truth.shape[1])
        gains = _gains(ids, hits, weights)
        best = best_gains(truth, weights, ids.shape[1])
        curves["PSP"] = _ratio(precision(gains), precision(best))
        curves["PSnDCG"] = _ratio(ndcg(gains, positives), ndcg(best, positives))
        curves["PSR"] = _ratio(recall(gains, positives), recall(best, positives))
    return {f"{name}@{k}": 100 * float(curve[k - 1]) for name, curve in curves.items() for k in ks}


def macro(ranking: Ranking, truth: csr_array, ks: Sequence[int] = (1, 3, 5)) -> dict[str, float]:
    """Return macroP, macroR and macroF1 at each k, in percent: means over labels, where rare ones count as much.

    P_l = tp_l / predicted_l,  R_l = tp_l / positives_l,  F1_l = 2 tp_l / (predicted_l + positives_l)

    predicted_l: points with l in their top k; tp_l: those of them where l is right. All three are averaged over the
    labels that occur in `truth`: one that is never predicted counts as 0, in macroP as well; a label that is predicted
    but does not occur in `truth` is ignored.
    """
    ids, hits, truth = _judged(ranking, truth, ks)
    labels = truth.shape[1]
    positives = np.bincount(truth.indices, minlength=labels)  # [L]
    occurring = max(1, np.count_nonzero(positives))
    values = {}
    for k in ks:
        top = ids[:, :k]
        predicted = np.bincount(top[top >= 0], minlength=labels)  # [L]
        right = np.bincount(top[hits[:, :k]], minlength=labels)  # [L], 0 for labels outside truth
        values[f"macroP@{k}"] = 100 * float(_ratio(right, predicted).sum() / occurring)
        values[f"macroR@{k}"] = 100 * float(_ratio(right, positives).sum() / occurring)
        values[f"macroF1@{k}"] = 100 * float(_ratio(2 * right, predicted + positives).sum() / occurring)
    return values


def contributions(ranking: Ranking, truth: csr_array, counts: ArrayLike, k: int = 5, bins: int = 5) -> tuple[Bin, ...]:
    """Return the contribution of each frequency bin to P@k, rarest labels first (DECAF, Fig. 4); they sum to P@k.

    contribution_b = 100 / (N k) · |{correct predictions in a top k whose label is in bin b}|

    counts: [L], number of training points of each label.  For the bins see `frequency_bins`.
    """
    ids, hits, truth = _judged(ranking, truth, [k])
    counts = _checked_counts(counts, truth.shape[1])
    bin_of = frequency_bins(counts, bins)  # [L]
    shares = 100 * np.bincount(bin_of[ids[hits]], minlength=bins) / hits.size  # [bins]
    members = [counts[bin_of == b] for b in range(bins)]
    return tuple(
        Bin(len(c), int(c.sum()), int(c.min()) if len(c) else 0, int(c.max(initial=0)), float(share))
        for c, share in zip(members, shares, strict=True)
    )


def frequency_bins(counts: ArrayLike, bins: int = 5) -> Ids:
    """Return each label's bin, [L]; bins hold about equally many training occurrences, bin 0 the rarest labels.

    Labels are sorted by (frequency, id); the label at which a share s of all occurrences is reached belongs to bin
    ⌈bins · s⌉ − 1. So labels never seen in training are in bin 0, the most frequent one is in the last bin, and a
    label with more than 1 / bins of all occurrences may leave bins below it empty.
    """
    counts = _checked_counts(counts)
    if bins < 1:
        raise DataError(f"bins must be at least 1; found {bins}")
    order = np.argsort(counts, kind="stable")
    reached = np.cumsum(counts[order])  # whole numbers: no rounding at the borders of bins
    total = max(1, int(counts.sum()))
    bin_of = np.empty(len(counts), dtype=np.int64)
    bin_of[order] = np.maximum(-(-bins * reached // total) - 1, 0)
    return bin_of


def tail_labels(counts: ArrayLike) -> Flags:
    """Return which labels are tail labels, [L]: those with fewer training points than the average label.

    The MNN paper calls tail labels "the majority occurring in very few data points" and gives no number; it argues
    from the average points per label (its Table 1, Sec. 4.2.1), hence this definition. If frequencies follow a power
    law, most labels are below the average; if all are equally frequent, none is.
    """
    counts = _checked_counts(counts)
    return np.asarray(counts < (counts.mean() if len(counts) else 0))


def only_tail(truth: csr_array, tail: Flags) -> Flags:
    """Return which points have at least one label and only tail labels, [N] (those that MNN claims to do well on).

    truth: [N, L].  tail: [L], from `tail_labels` of the training counts.
    """
    truth = _canonical(truth)
    if tail.dtype != bool or tail.shape != (truth.shape[1],):
        raise DataError(f"tail must be bool [{truth.shape[1]}]; found {tail.dtype} {list(tail.shape)}")
    others = truth.astype(bool) @ ~tail  # [N], whether a point has a label that is not a tail label
    return np.asarray((np.diff(truth.indptr) > 0) & ~others)


def precision(gains: Gains) -> Floats:
    """Return mean_i (1 / k) Σ_{j ≤ k} gains[i, j] for k = 1..K, [K]."""
    points, width = gains.shape
    return np.asarray(gains.sum(axis=0).cumsum() / (points * np.arange(1, width + 1)))


def recall(gains: Gains, positives: Ids) -> Floats:
    """Return mean_i (1 / positives_i) Σ_{j ≤ k} gains[i, j] for k = 1..K, [K].  positives: [N], true label counts."""
    shares = gains / np.maximum(positives, 1)[:, None]  # [N, K]
    return np.asarray(shares.mean(axis=0).cumsum())


def ndcg(gains: Gains, positives: Ids) -> Floats:
    """Return the mean over points of `ndcg_of_points`, [K]."""
    return np.asarray(ndcg_of_points(gains, positives).mean(axis=0))


def ndcg_of_points(gains: Gains, positives: Ids) -> Floats:
    """Return Σ_{j ≤ k} gains[i, j] / log₂(j + 1) over Σ_{j ≤ min(k, positives_i)} 1 / log₂(j + 1), [N, K]."""
    width = gains.shape[1]
    discounts = 1 / np.log2(np.arange(2, width + 2))  # [K]
    last = np.minimum(np.arange(width), np.maximum(positives, 1)[:, None] - 1)  # [N, K], ideal last rank of a hit
    return np.asarray((gains * discounts).cumsum(axis=1) / discounts.cumsum()[last])


def coverage(ids: Ids, hits: Flags, truth: csr_array) -> Floats:
    """Return the share of the labels in truth that are right at least once in a top k, for k = 1..K, [K]."""
    labels, width = truth.shape[1], ids.shape[1]
    first = np.full(labels, width)  # [L], the best rank at which a label was right; K: never
    rows, ranks = np.nonzero(hits)
    np.minimum.at(first, ids[rows, ranks], ranks)
    occurring = max(1, np.count_nonzero(np.bincount(truth.indices, minlength=labels)))
    return np.asarray(np.bincount(first, minlength=width)[:width].cumsum() / occurring)


def _judged(ranking: Ranking, truth: csr_array, ks: Sequence[int]) -> tuple[Ids, Flags, csr_array]:
    """Check ranking against truth; return its top K labels [N, K], which of them are right [N, K], and clean truth."""
    truth = _canonical(truth)
    points, labels = truth.shape
    if len(ranking) != points:
        raise DataError(f"ranking and truth must have equally many points; found {len(ranking)} and {points}")
    if points == 0:
        raise DataError("there are no points to measure")
    if len(ks) == 0 or min(ks) < 1:
        raise DataError(f"k must be at least 1; found {list(ks)}")
    outside = np.flatnonzero(((ranking.ids < -1) | (ranking.ids >= labels)).any(axis=1))
    if len(outside):
        row = outside[0]
        allowed = f"in 0..{labels - 1}, or -1 for none"
        raise DataError(f"ranking row {row}: labels must be {allowed}; found {ranking.ids[row].tolist()}")
    ids = np.full((points, max(ks)), -1, dtype=np.int64)  # -1 where the ranking is too narrow: wrong
    ids[:, : ranking.k] = ranking.ids[:, : max(ks)]
    _check_unique(ids)
    return ids, stored(truth, np.arange(points)[:, None], ids), truth


def _check_unique(ids: Ids) -> None:
    """Raise if a row repeats a label, which would be counted as right twice."""
    ordered = np.sort(ids, axis=1)
    twice = np.flatnonzero(((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)).any(axis=1))
    if len(twice):
        raise DataError(f"ranking row {twice[0]}: labels must not repeat; found {ids[twice[0]].tolist()}")


def best_gains(truth: csr_array, weights: Floats, k: int) -> Floats:
    """Return the k largest weights of each point's true labels, largest first, [N, k]; 0 pads."""
    weighted = csr_array((weights[truth.indices], truth.indices, truth.indptr), shape=truth.shape)
    ids = Ranking.of_scores(weighted, k).ids
    return _gains(ids, ids >= 0, weights)  # not the ranking's scores, which are float32


def _gains(ids: Ids, hits: Flags, weights: Floats) -> Floats:
    """Return the weight of each label that is right, and 0 for others, [N, K]."""
    gains = np.zeros(ids.shape)
    gains[hits] = weights[ids[hits]]
    return gains


def _ratio(above: ArrayLike, below: ArrayLike) -> Floats:
    """Return above / below, and 0 where below is 0."""
    above, below = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    return np.asarray(np.divide(above, below, out=np.zeros_like(above), where=below > 0))


def _canonical(truth: csr_array) -> csr_array:
    """Return a copy with sorted, unique labels and no stored zeros: each stored entry is a true label."""
    truth = csr_array(truth, copy=True)
    truth.sum_duplicates()
    truth.eliminate_zeros()
    return truth


def _checked_counts(counts: ArrayLike, labels: int | None = None) -> Ids:
    """Return training counts as whole numbers, [L]; raise if they are not counts, or not one for each label."""
    given = np.asarray(counts)
    if given.ndim != 1 or (labels is not None and len(given) != labels):
        shape = "[labels]" if labels is None else f"[{labels}], one for each label"
        raise DataError(f"counts must be {shape}; found shape {list(given.shape)}")
    whole = given.astype(np.int64)
    if (whole != given).any() or (whole < 0).any():
        label = int(np.flatnonzero((whole != given) | (whole < 0))[0])
        raise DataError(f"counts must be whole numbers from 0; found {given[label]} for label {label}")
    return whole


def _checked_weights(weights: ArrayLike, labels: int) -> Floats:
    """Return inverse propensities as float64, [L]; raise if they are not finite, positive, and one for each label."""
    checked = np.asarray(weights, dtype=np.float64)
    if checked.shape != (labels,):
        raise DataError(f"inverse propensities must be [{labels}], one for each label; found {list(checked.shape)}")
    if not (np.isfinite(checked) & (checked > 0)).all():
        raise DataError("inverse propensities must be finite and above 0")
    return checked
