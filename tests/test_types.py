"""The values that cross module boundaries: rankings against plain sorting, sparse look-ups against a dense loop."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy.sparse import coo_array, csr_array

from zipfel.types import Bags, Ranking, Shortlist, stored

NONE = -np.inf


def ranking_of(rows, ids, scores, points, k, dtype=np.float64):
    return Ranking.of_pairs(np.array(rows, np.int64), np.array(ids, np.int64), np.array(scores, dtype), points, k)


@st.composite
def scored_pairs(draw):
    """Pairs in any order, no pair twice, with scores out of a few, so that there are ties."""
    points, labels = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    every = [(row, label) for row in range(points) for label in range(labels)]
    pairs = draw(st.lists(st.sampled_from(every), unique=True).flatmap(st.permutations))
    scores = draw(st.lists(st.sampled_from([-1.5, 0.0, 0.25, 3.0]), min_size=len(pairs), max_size=len(pairs)))
    return points, labels, [(row, label, score) for (row, label), score in zip(pairs, scores, strict=True)]


def plain_ranking(pairs, points, k):
    """Best first, the lower id where scores tie, -1 and -inf at the end of short rows."""
    ids, scores = [], []
    for point in range(points):
        best = sorted((-score, label) for row, label, score in pairs if row == point)[:k]
        ids.append([label for _, label in best] + [-1] * (k - len(best)))
        scores.append([-score for score, _ in best] + [NONE] * (k - len(best)))
    return ids, scores


@given(scored_pairs(), st.integers(0, 8))
def test_pairs_and_matrices_are_ranked_like_sorted_lists(data, k):
    points, labels, pairs = data
    rows, ids, scores = (list(column) for column in zip(*pairs, strict=True)) if pairs else ([], [], [])
    expected = plain_ranking(pairs, points, k)
    matrix = csr_array(coo_array((np.array(scores, float), (rows, ids)), shape=(points, labels)))
    for ranking in (ranking_of(rows, ids, scores, points, k), Ranking.of_scores(matrix, k)):
        assert (ranking.ids.tolist(), ranking.scores.tolist()) == expected
        assert (ranking.ids.dtype, ranking.scores.dtype) == (np.int64, np.float32)
        assert (len(ranking), ranking.k) == (points, k)


@given(scored_pairs(), st.integers(1, 8), st.integers(0, 8))
def test_top_is_a_prefix_and_equals_a_shorter_ranking(data, k, shorter):
    points, _, pairs = data
    rows, ids, scores = zip(*pairs, strict=True) if pairs else ((), (), ())
    top = ranking_of(rows, ids, scores, points, k).top(shorter)
    direct = ranking_of(rows, ids, scores, points, min(k, shorter))
    np.testing.assert_array_equal(top.ids, direct.ids)
    np.testing.assert_array_equal(top.scores, direct.scores)


def test_scores_that_are_equal_as_float32_are_ties():
    ranking = ranking_of([0, 0, 0], [7, 2, 5], [0.1, 0.1 + 1e-12, 0.1 - 1e-12], points=1, k=3)
    assert ranking.ids.tolist() == [[2, 5, 7]]
    assert ranking_of([0, 0], [7, 2], [0.1 + 1e-6, 0.1], points=1, k=2).ids.tolist() == [[7, 2]]


def test_a_stored_zero_is_a_candidate_and_what_is_not_stored_is_none():
    scores = csr_array((np.array([0.0, -2.0]), np.array([3, 1]), np.array([0, 2, 2])), shape=(2, 4))
    ranking = Ranking.of_scores(scores, 3)
    assert ranking.ids.tolist() == [[3, 1, -1], [-1, -1, -1]]
    assert ranking.scores.tolist() == [[0.0, -2.0, NONE], [NONE, NONE, NONE]]


@given(scored_pairs(), st.integers(0, 8))
def test_scores_and_ranking_are_inverse(data, k):
    points, labels, pairs = data
    rows, ids, scores = zip(*pairs, strict=True) if pairs else ((), (), ())
    ranking = ranking_of(rows, ids, scores, points, k)
    again = Ranking.of_scores(ranking.as_scores(labels), k)
    np.testing.assert_array_equal(again.ids, ranking.ids)
    np.testing.assert_array_equal(again.scores, ranking.scores)


def test_what_follows_a_left_out_pair_moves_up():
    ranking = Ranking(np.array([[4, 1, 3], [2, 4, -1]]), np.array([[3, 2, 2], [9, 8, NONE]], dtype=np.float32))
    pairs = csr_array((np.ones(3), ([0, 0, 1], [4, 0, 2])), shape=(2, 5))
    left = ranking.without(pairs)
    assert left.ids.tolist() == [[1, 3, -1], [4, -1, -1]]
    assert left.scores.tolist() == [[2, 2, NONE], [8, NONE, NONE]]
    assert ranking.ids.tolist() == [[4, 1, 3], [2, 4, -1]]  # and the ranking itself is as it was


@given(scored_pairs(), scored_pairs(), st.integers(0, 8))
def test_without_equals_ranking_the_rest(data, removed, k):
    points, labels, pairs = data
    out = {(row, label) for row, label, _ in removed[2] if row < points and label < labels}
    mask = csr_array((np.ones(len(out)), tuple(zip(*out, strict=True)) or ([], [])), shape=(points, labels))
    rows, ids, scores = zip(*pairs, strict=True) if pairs else ((), (), ())
    left = ranking_of(rows, ids, scores, points, labels).without(mask).top(k)
    expected = plain_ranking([pair for pair in pairs if pair[:2] not in out], points, min(k, labels))
    assert (left.ids.tolist(), left.scores.tolist()) == expected


@given(
    arrays.arrays(
        np.int8, arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=5), elements=st.integers(0, 2)
    ),
    st.lists(st.tuples(st.integers(-2, 6), st.integers(-2, 6))),
    st.booleans(),
)
def test_stored_against_a_dense_loop(dense, pairs, shuffled):
    """2 stands for a zero that is stored all the same."""
    rows, columns = np.nonzero(dense)
    order = np.argsort(-columns, kind="stable") if shuffled else slice(None)  # columns that fall within a row
    matrix = csr_array(coo_array((np.where(dense == 2, 0.0, 1.0)[rows, columns], (rows, columns)), shape=dense.shape))
    if shuffled:
        rows, columns = rows[order], columns[order]
        by_row = np.argsort(rows, kind="stable")
        matrix = csr_array((np.ones(len(rows)), columns[by_row], matrix.indptr), shape=dense.shape)
    before = matrix.indices.copy()
    wanted = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    inside = [0 <= r < dense.shape[0] and 0 <= c < dense.shape[1] for r, c in pairs]
    expected = [ok and bool(dense[r, c]) for ok, (r, c) in zip(inside, pairs, strict=True)]
    assert stored(matrix, wanted[:, 0], wanted[:, 1]).tolist() == expected
    assert np.array_equal(matrix.indices, before)


def test_stored_does_not_overflow_where_rows_times_columns_pass_32_bits():
    rows, columns = 3_000, 10_000_000
    indptr = np.repeat(np.array([0, 1, 2], dtype=np.int32), [431, 2_569, 1])  # row 430 has label 5, the last the last
    indices = np.array([5, columns - 1], dtype=np.int32)
    matrix = csr_array((np.ones(2, np.float32), indices, indptr), shape=(rows, columns))
    assert matrix.indices.dtype == np.int32
    asked = np.array([[2_999, 9_999_999], [430, 5], [430, 4], [0, 4_300_000_005 % columns]], dtype=np.int32)
    assert stored(matrix, asked[:, 0], asked[:, 1]).tolist() == [True, True, False, False]


@pytest.mark.parametrize(("ids", "scores"), [((2, 3), (2, 2)), ((3,), (3,)), ((2, 3, 1), (2, 3, 1))])
def test_a_ranking_needs_two_equal_matrices(ids, scores):
    with pytest.raises(ValueError, match=r"ids and scores must both be \[B, K\]"):
        Ranking(np.zeros(ids, dtype=np.int64), np.zeros(scores, dtype=np.float32))


def bags(ids=3, weights=3, offsets=(0, 1, 3)):
    return Bags(torch.arange(ids), torch.ones(weights), torch.tensor(offsets, dtype=torch.int64))


def test_bags_have_a_length_and_move():
    moved = bags().to("cpu")
    assert len(bags()) == len(moved) == 2
    assert moved.ids.tolist() == [0, 1, 2]
    assert len(bags(0, 0, [0])) == 0


@pytest.mark.parametrize("wrong", [{"ids": 2}, {"weights": 4}, {"offsets": []}, {"offsets": [[0, 3]]}])
def test_bags_of_wrong_shape_are_refused(wrong):
    with pytest.raises(ValueError, match=r"must (both )?be"):
        bags(**wrong)
    with pytest.raises(ValueError, match=r"ids and weights must both be \[T\]"):
        Bags(torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([0, 4]))


def test_values_are_compared_by_identity():
    """Comparing arrays has no single answer, so == must not try."""
    one, other = Ranking.empty(2, 3), Ranking.empty(2, 3)
    assert one == one
    assert one != other
    assert len({one, other, bags(), Shortlist(torch.zeros(1, 1), torch.zeros(1, 1))}) == 4
