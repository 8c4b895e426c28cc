"""Metrics against the field's own code, against slow loops, against values worked by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import reference
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.sparse import csr_array, csr_matrix

from zipfel.errors import DataError
from zipfel.metrics import (
    Bin,
    contributions,
    frequency_bins,
    inverse_propensities,
    macro,
    measure,
    only_tail,
    tail_labels,
)
from zipfel.types import Ranking

GOLDEN = Path(__file__).parent / "golden"
CASES = json.loads((GOLDEN / "metrics.json").read_text())["cases"]
FIELD_NAMES = {"P": "precision", "nDCG": "ndcg", "R": "recall", "PSP": "psp", "PSnDCG": "psndcg", "PSR": "psrecall"}


def ranked(rows, width=None):
    """Make a Ranking of lists of labels; short rows are padded with -1."""
    width = max(map(len, rows), default=0) if width is None else width
    ids = np.array([[*row, *[-1] * (width - len(row))] for row in rows], dtype=np.int64).reshape(len(rows), width)
    scores = np.where(ids >= 0, -np.arange(width, dtype=np.float32), np.float32(-np.inf))
    return Ranking(ids, scores.astype(np.float32))


def matrix(truth, labels):
    """Make the [N, L] matrix of lists or sets of labels."""
    indices = np.array([label for right in truth for label in sorted(right)], dtype=np.int64)
    indptr = np.cumsum([0, *map(len, truth)])
    return csr_array((np.ones(len(indices), dtype=np.float32), indices, indptr), shape=(len(truth), labels))


@st.composite
def problems(draw):
    """Draw rows, width, truth, training counts: points without labels, short rows, narrow rankings, few labels."""
    points, labels, width = draw(st.integers(1, 6)), draw(st.integers(1, 8)), draw(st.integers(0, 7))
    label = st.integers(0, labels - 1)
    rows = draw(st.lists(st.lists(label, unique=True, max_size=width), min_size=points, max_size=points))
    truth = draw(st.lists(st.sets(label), min_size=points, max_size=points))
    counts = draw(st.lists(st.integers(0, 30), min_size=labels, max_size=labels))
    return rows, width, truth, counts


# ---------------------------------------------------------------- the field's own numbers


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_equals_the_fields_own_code(case):
    weights = inverse_propensities(case["train_label_counts"], case["train_points"], case["A"], case["B"])
    np.testing.assert_allclose(weights, case["inverse_propensity"], rtol=0, atol=1e-6)
    values = measure(ranked(case["ranking"]), matrix(case["truth"], case["labels"]), weights, ks=range(1, 6))
    for name, golden in FIELD_NAMES.items():
        ours = [values[f"{name}@{k}"] / 100 for k in range(1, 6)]
        np.testing.assert_allclose(ours, case[golden], rtol=0, atol=1e-6, err_msg=name)


def test_propensities_of_eurlex4k():
    golden = json.loads((GOLDEN / "eurlex4k_propensities.json").read_text())
    counts = np.array(golden["label_counts"])
    weights = inverse_propensities(counts, golden["train_points"])
    published = np.array(golden["inverse_propensity"])
    assert len(weights) == 3993
    np.testing.assert_allclose(weights, published, rtol=0, atol=5e-4)
    below = published < 10  # these were published with four decimals
    np.testing.assert_allclose(weights[below], published[below], rtol=0, atol=6e-5)


# ---------------------------------------------------------------- a second statement


@given(problems(), st.integers(1, 10))
@example(([[]], 0, [set()], [0]), 3)  # nothing predicted, nothing true
@example(([[1, 0]], 5, [{0, 1}], [1, 9]), 10)  # k > labels
def test_measure_equals_slow_loops(problem, k):
    rows, width, truth, counts = problem
    weights = inverse_propensities(counts, points=30)
    np.testing.assert_allclose(weights, [reference.inverse_propensity(n, 30, 0.55, 1.5) for n in counts], rtol=1e-12)
    ours = measure(ranked(rows, width), matrix(truth, len(counts)), weights, ks=[1, k])
    theirs = reference.measure(rows, truth, weights.tolist(), ks=[1, k])
    assert ours.keys() == theirs.keys()
    assert ours == pytest.approx(theirs, abs=1e-6)


@given(problems(), st.integers(1, 10))
def test_macro_equals_slow_loops(problem, k):
    rows, width, truth, counts = problem
    ours = macro(ranked(rows, width), matrix(truth, len(counts)), ks=[1, k])
    assert ours == pytest.approx(reference.macro(rows, truth, ks=[1, k]), abs=1e-9)


@given(problems(), st.integers(1, 10), st.integers(1, 6))
def test_contributions_equal_slow_loops_and_sum_to_precision(problem, k, bins):
    rows, width, truth, counts = problem
    found = contributions(ranked(rows, width), matrix(truth, len(counts)), counts, k=k, bins=bins)
    ours = [part.contribution for part in found]
    assert frequency_bins(counts, bins).tolist() == reference.frequency_bins(counts, bins)
    assert ours == pytest.approx(reference.contributions(rows, truth, counts, k, bins), abs=1e-9)
    assert sum(ours) == pytest.approx(100 * reference.precision(rows, truth, k), abs=1e-9)
    assert sum(part.labels for part in found) == len(counts)
    assert sum(part.occurrences for part in found) == sum(counts)


@given(problems())
def test_points_with_only_tail_labels_equal_slow_loops(problem):
    _, _, truth, counts = problem
    found = only_tail(matrix(truth, len(counts)), tail_labels(counts))
    assert found.tolist() == reference.only_tail(truth, counts)


# ---------------------------------------------------------------- properties


@given(problems(), st.integers(1, 9), st.randoms(use_true_random=False))
def test_order_of_points_does_not_matter(problem, k, random):
    rows, width, truth, counts = problem
    order = random.sample(range(len(rows)), len(rows))
    weights = np.linspace(1, 3, len(counts))

    def everything(order):
        ranking, right = ranked([rows[i] for i in order], width), matrix([truth[i] for i in order], len(counts))
        return measure(ranking, right, weights, ks=[k]) | macro(ranking, right, ks=[k])

    assert everything(order) == pytest.approx(everything(range(len(rows))), abs=1e-9)


@given(problems(), st.integers(1, 8))
def test_best_ranking_gives_100(problem, k):
    """All of a point's labels, those that weigh most first; points without labels are the only loss, and not in PS*."""
    _, _, truth, counts = problem
    weights = inverse_propensities(counts, points=30)
    best = [sorted(right, key=lambda label: -weights[label]) for right in truth]
    values = measure(ranked(best), matrix(truth, len(counts)), weights, ks=[k])
    labelled = 100 * sum(map(bool, truth)) / len(truth)
    assert values[f"nDCG@{k}"] == pytest.approx(labelled)
    for name in ("PSP", "PSnDCG", "PSR"):
        assert values[f"{name}@{k}"] == pytest.approx(100 if any(truth) else 0)


@given(problems(), st.integers(1, 8))
def test_doubled_weights_change_nothing_and_equal_weights_are_no_weights(problem, k):
    rows, width, truth, counts = problem
    ranking, right = ranked(rows, width), matrix(truth, len(counts))
    weights = np.linspace(1, 3, len(counts))
    assert measure(ranking, right, 2 * weights, [k]) == pytest.approx(measure(ranking, right, weights, [k]))
    plain = measure(ranking, right, np.full(len(counts), 7.0), [k])
    possible = sum(min(k, len(t)) / k for t in truth) / len(truth)
    assert plain[f"PSP@{k}"] * possible == pytest.approx(plain[f"P@{k}"])


def test_order_of_ks_and_places_beyond_k_do_not_matter():
    rows, right = [[4, 2, 0, 1, 3], [0, 3, 2, 4, 1]], matrix([{0, 2}, {1, 3}], 5)
    wide, narrow = ranked(rows), ranked([row[:3] for row in rows])
    assert measure(wide, right, ks=[3, 1]) == measure(narrow, right, ks=[1, 3])


# ---------------------------------------------------------------- by hand


def test_two_points_by_hand():
    # point 0 has labels 0, 1, 2; predicted are 1 (right), 3 (wrong), 0 (right)
    # point 1 has label 3; predicted are 0 (wrong), 3 (right) and no third
    ranking, truth = ranked([[1, 3, 0], [0, 3]]), matrix([{0, 1, 2}, {3}], 5)
    weights = np.array([2.0, 4.0, 8.0, 1.0, 100.0])
    values = measure(ranking, truth, weights, ks=[1, 3])
    d = 1 / math.log2(3)  # discount of the second place; that of the third is 1 / 2
    expected = {
        "P@1": 1 / 2,
        "P@3": (2 / 3 + 1 / 3) / 2,
        "R@1": (1 / 3 + 0) / 2,
        "R@3": (2 / 3 + 1) / 2,
        "nDCG@1": 1 / 2,
        "nDCG@3": ((1 + 0.5) / (1 + d + 0.5) + d / 1) / 2,
        "coverage@1": 1 / 4,  # label 1 of the labels 0, 1, 2, 3
        "coverage@3": 3 / 4,  # 0, 1 and 3
        "PSP@1": 4 / (8 + 1),
        "PSP@3": (4 + 2 + 1) / (8 + 4 + 2 + 1),
        "PSR@1": (4 / 3) / (8 / 3 + 1),
        "PSR@3": ((4 + 2) / 3 + 1) / (14 / 3 + 1),
        "PSnDCG@1": 4 / (8 + 1),
        "PSnDCG@3": ((4 + 1) / (1.5 + d) + d) / ((8 + 4 * d + 1) / (1.5 + d) + 1),
    }
    assert values == pytest.approx({name: 100 * value for name, value in expected.items()}, abs=1e-9)
    assert measure(ranking, truth, ks=[1, 3]).keys() == {name for name in expected if not name.startswith("PS")}


def test_macro_by_hand():
    # label 0: predicted for both points, right for one, its only one; label 1: never predicted; label 2: not in truth
    values = macro(ranked([[0, 2], [0]]), matrix([{0}, {1}], 3), ks=[2])
    assert values == pytest.approx(
        {"macroP@2": 100 * (1 / 2 + 0) / 2, "macroR@2": 100 * (1 + 0) / 2, "macroF1@2": 100 * (2 / 3 + 0) / 2}
    )


def test_propensities_by_hand():
    # A = 1, B = 2: C = 3 (ln 8 − 1), divided by n + 2
    assert inverse_propensities([0, 2], 8, A=1.0, B=2.0) == pytest.approx(
        [1 + (math.log(8) - 1) * 3 / 2, 1 + (math.log(8) - 1) * 3 / 4]
    )
    assert inverse_propensities([0, 1, 2], 2).tolist() == [1, 1, 1]  # never below 1


def test_contributions_by_hand():
    # 12 occurrences in 3 bins of 4: labels 3 (never seen), 1 and 4 | 0 | 2
    counts = [4, 1, 4, 0, 3]
    assert frequency_bins(counts, 3).tolist() == [1, 0, 2, 0, 0]
    found = contributions(ranked([[0, 3], [2, 1], [0, 4], [1, 0]]), matrix([{0, 3}, {2}, {1}, {0}], 5), counts, 2, 3)
    assert found == (Bin(3, 4, 0, 3, 100 / 8), Bin(1, 4, 4, 4, 200 / 8), Bin(1, 4, 4, 4, 100 / 8))


def test_a_label_that_fills_bins_leaves_those_below_empty():
    found = contributions(ranked([[2]]), matrix([{2}], 3), [1, 1, 8], k=1, bins=5)
    assert [part.labels for part in found] == [2, 0, 0, 0, 1]
    assert found[1] == Bin(0, 0, 0, 0, 0.0)
    assert found[4].contribution == 100


@pytest.mark.parametrize("labels", [159, 500, 20_000])
def test_bins_are_even_at_every_size(labels):
    counts = np.ceil(labels / np.arange(1, labels + 1)).astype(np.int64)
    volumes = np.bincount(frequency_bins(counts, 5), weights=counts, minlength=5)
    assert np.abs(volumes / counts.sum() - 0.2).max() <= counts.max() / counts.sum()


def test_tail_is_what_lies_below_the_average():
    assert tail_labels([9, 1, 0, 2]).tolist() == [False, True, True, True]  # average 3
    assert tail_labels([3, 3, 3]).tolist() == [False] * 3
    assert tail_labels([]).tolist() == []
    for labels in (159, 500, 100_000):
        counts = labels // np.arange(1, labels + 1)
        assert 0.5 < tail_labels(counts).mean() < 1


def test_only_tail_by_hand():
    truth = csr_array(np.array([[1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0], [0, 0, 1]]))
    assert only_tail(truth, np.array([False, True, True])).tolist() == [False, True, False, False, True]


# ---------------------------------------------------------------- edges


def test_untidy_truth_is_understood_and_stays_as_it_was():
    messy = csr_array(([1.0, 0.0, 1.0, 1.0], [2, 1, 0, 2], [0, 4]), shape=(1, 3))  # label 2 twice, 1 stored as 0
    clean = matrix([{0, 2}], 3)
    ranking = ranked([[1, 2, 0]])
    weights = np.array([1.0, 2.0, 3.0])
    assert measure(ranking, messy, weights) == measure(ranking, clean, weights)
    assert macro(ranking, messy) == macro(ranking, clean)
    assert only_tail(messy, np.array([True, False, True])).tolist() == [True]
    assert messy.indices.tolist() == [2, 1, 0, 2]
    assert measure(ranking, csr_matrix(clean), weights) == measure(ranking, clean, weights)


def test_nothing_true_anywhere_is_0():
    values = measure(ranked([[0, 1]]), matrix([set()], 2), np.ones(2))
    assert set(values.values()) == {0.0}
    assert set(macro(ranked([[0, 1]]), matrix([set()], 2)).values()) == {0.0}


def test_no_labels_at_all_is_0():
    assert set(measure(ranked([[], []]), matrix([set(), set()], 0), np.ones(0)).values()) == {0.0}


def test_a_gap_in_a_row_is_a_wrong_prediction():
    assert measure(ranked([[-1, 0]]), matrix([{0, 1}], 2), ks=[1, 2])["P@2"] == 50
    assert measure(ranked([[-1, -1]]), matrix([{1}], 2), ks=[2])["P@2"] == 0  # -1 is not the last label


GOOD = ranked([[0, 1], [1]]), matrix([{0}, {1}], 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: measure(ranked([], 3), matrix([], 4)), "there are no points to measure"),
        (lambda: measure(ranked([[0]]), matrix([{0}, {1}], 2)), "must have equally many points; found 1 and 2"),
        (
            lambda: measure(ranked([[0], [4]]), matrix([{0}, {1}], 4)),
            r"row 1: labels must be in 0\.\.3, or -1 for none; found \[4\]",
        ),
        (lambda: macro(ranked([[0], [4]]), matrix([{0}, {1}], 4)), "row 1"),
        (lambda: contributions(ranked([[0], [4]]), matrix([{0}, {1}], 4), [1] * 4), "row 1"),
        (lambda: measure(ranked([[0, 1, 2, 9]]), matrix([{0}], 4), ks=[1]), "row 0"),  # beyond k, yet a wrong matrix
        (lambda: measure(ranked([[0], [-2]]), matrix([{0}, {1}], 4)), "row 1"),
        (
            lambda: measure(ranked([[0, 1], [1, 1]]), matrix([{0}, {1}], 4)),
            r"row 1: labels must not repeat; found \[1, 1,",
        ),
        (lambda: measure(*GOOD, ks=[]), r"k must be at least 1; found \[\]"),
        (lambda: measure(*GOOD, ks=[1, 0]), r"k must be at least 1; found \[1, 0\]"),
        (lambda: measure(*GOOD, np.ones(3)), r"must be \[2\], one for each label; found \[3\]"),
        (lambda: measure(*GOOD, np.array([1.0, np.nan])), "finite and above 0"),
        (lambda: measure(*GOOD, np.array([1.0, 0.0])), "finite and above 0"),
        (lambda: contributions(*GOOD, [1, 2, 3]), r"counts must be \[2\], one for each label; found shape \[3\]"),
        (lambda: contributions(*GOOD, [1, 2], bins=0), "bins must be at least 1; found 0"),
        (lambda: inverse_propensities([1, -2], 10), "found -2 for label 1"),
        (lambda: inverse_propensities([0.5, 2], 10), "found 0.5 for label 0"),
        (lambda: inverse_propensities([[1, 2]], 10), r"counts must be \[labels\]; found shape \[1, 2\]"),
        (lambda: inverse_propensities([1, 12], 10), "found 10, but a label has 12"),
        (lambda: inverse_propensities([], 0), "found 0"),
        (lambda: inverse_propensities([1], 10, B=0), "B above 0"),
        (lambda: only_tail(matrix([{0}], 2), np.array([True])), r"tail must be bool \[2\]; found bool \[1\]"),
        (lambda: only_tail(matrix([{0}], 2), np.array([1, 0])), "found int64"),
    ],
)
def test_errors_name_what_was_given(call, message):
    with pytest.raises(DataError, match=message):
        call()
