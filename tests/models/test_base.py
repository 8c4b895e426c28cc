"""Products of rows, and labels that nothing speaks for but their frequency."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from zipfel.data.dataset import Part
from zipfel.index import exact
from zipfel.index.exact import row_products
from zipfel.models import base
from zipfel.models.base import (
    OTHERS,
    UNLISTED,
    Ensemble,
    averaged,
    filled,
    known,
    likelihoods,
    listed,
    with_others,
)
from zipfel.types import Ranking, Shortlist

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(points: int, width: int, vectors: int, wanted: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    queries, rows = (torch.randn(size, width, generator=generator) for size in (points, vectors))
    return queries, rows, torch.randint(0, vectors, (points, wanted), generator=generator)


@given(
    points=st.integers(0, 5), width=st.integers(1, 9), vectors=st.integers(1, 7), wanted=st.integers(0, 8),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_products_of_rows_equal_a_matrix_product(points, width, vectors, wanted, seed):
    """Ids come in any order, and may come twice."""
    queries, rows, ids = drawn(points, width, vectors, wanted, seed)
    found = row_products(queries, rows, ids)
    assert found.shape == (points, wanted)
    torch.testing.assert_close(found, (queries @ rows.T).gather(1, ids))


@pytest.mark.parametrize("width", [3, 64, 1000])
def test_products_of_rows_do_not_depend_on_the_batch(width):
    queries, rows, ids = drawn(40, width, 300, 50)
    whole = row_products(queries, rows, ids)
    for start, end in ((0, 1), (7, 8), (5, 22), (39, 40)):
        assert torch.equal(row_products(queries[start:end], rows, ids[start:end]), whole[start:end])
    for column in (0, 7, 49):  # nor on what else is wanted
        assert torch.equal(row_products(queries, rows, ids[:, [column]])[:, 0], whole[:, column])
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(row_products(queries, rows, ids[:, order]), whole[:, order])


def test_the_warning_of_sparse_matrices_is_not_heard_and_others_are():
    exact._hear_no_warning.cache_clear()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        row_products(*drawn(2, 3, 4, 2))
        warnings.warn("mine", stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["mine"]


def test_likelihoods_keep_the_order_of_counts_below_what_is_listed():
    found = likelihoods(np.array([3, 0, 7, 3, 1]))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, UNLISTED / 2 * np.array([3, 0, 7, 3, 1]) / 7, rtol=1e-6)
    assert found.max() < np.float32(UNLISTED)
    assert likelihoods(np.zeros(3, dtype=int)).tolist() == [0, 0, 0]
    assert likelihoods(np.zeros(0, dtype=int)).shape == (0,)


def test_the_frequent_follow_what_is_listed():
    prior = likelihoods(np.array([1, 5, 3, 5, 0]))
    ids = torch.tensor([[4, 1], [2, -1], [-1, -1]])
    scores = torch.tensor([[0.2, 0.9], [0.5, -torch.inf], [-torch.inf, -torch.inf]])
    ranking = filled(ids, scores, prior, 5)
    assert ranking.ids.tolist() == [[1, 4, 3, 2, 0], [2, 1, 3, 0, 4], [1, 3, 2, 0, 4]]
    assert ranking.scores[0, :2].tolist() == pytest.approx([0.9, 0.2])
    assert ranking.scores[0, 2:].tolist() == pytest.approx([5e-7, 3e-7, 1e-7])
    for k in (1, 2, 3, 4):
        shorter = filled(ids, scores, prior, k)
        assert np.array_equal(shorter.ids, ranking.ids[:, :k])
        assert np.array_equal(shorter.scores, ranking.scores[:, :k])


def test_more_than_there_are_labels():
    ranking = filled(torch.tensor([[1, -1]]), torch.tensor([[0.5, -torch.inf]]), likelihoods(np.array([2, 1])), 4)
    assert ranking.ids.tolist() == [[1, 0, -1, -1]]
    assert (ranking.scores[0, 2:] == -np.inf).all()


def test_an_index_that_finds_too_few_leaves_the_end_of_a_ranking_empty():
    vectors = torch.tensor([[1.0, 0], [0, 1.0], [0.6, 0.8]])
    found = Shortlist(torch.tensor([[2, -1, 0], [-1, -1, 1]]), torch.zeros(2, 3))
    ranking = base.Cosine(vectors, base.half_cosine).rescore(torch.tensor([[1.0, 0], [0, 1.0]]), found, 3)
    assert ranking.ids.tolist() == [[0, 2, -1], [1, -1, -1]]
    assert ranking.scores[:, 0].tolist() == [1, 1]
    assert np.isneginf(ranking.scores[ranking.ids < 0]).all()


# --- Candidates, and those behind them ---


def test_what_is_listed_scores_above_what_is_not():
    found = listed(torch.tensor([0.0, 1e-12, 0.5, 1.0], dtype=torch.float64))
    assert found.dtype == torch.float32
    assert found.min() > likelihoods(np.array([9, 9])).max()
    assert (found.diff() >= 0).all()
    assert found[2:].tolist() == pytest.approx([0.5, 1.0], abs=1e-6)


def test_of_a_point_of_which_nothing_is_known_no_candidate_stays():
    queries = torch.tensor([[0.0, 1e-9], [0.0, 0.0]])
    found = known(queries, Shortlist(torch.tensor([[3, -1], [2, 1]]), torch.zeros(2, 2)))
    assert found.tolist() == [[3, -1], [-1, -1]]


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_the_frequent_follow_where_candidates_are_too_few(k):
    ids, scores = torch.tensor([[1, 2], [-1, 0]]), torch.tensor([[0.2, 0.9], [0.7, 0.3]])
    ranking = with_others(ids, scores, torch.tensor([0, 5, 3, 4]), k)
    assert ranking.ids.tolist() == [[2, 1, 3, 0][:k], [0, 1, 3, 2][:k]]  # -1 is none, whatever its score
    assert ranking.scores[:, 0].tolist() == pytest.approx([0.9, 0.3])


# --- Ensembles ---


def drawn_ranking(data, points):
    rows = [
        data.draw(st.dictionaries(st.integers(0, 6), st.sampled_from([0.0, 0.25, 0.5, 1.0]))) for _ in range(points)
    ]
    ranking = Ranking.empty(points, 8)
    for row, scores in enumerate(rows):
        for place, (label, score) in enumerate(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))):
            ranking.ids[row, place], ranking.scores[row, place] = label, score
    return ranking


def pairs(ranking):
    return [
        [(label, score) for label, score in zip(*row, strict=True) if label >= 0]
        for row in zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True)
    ]


@settings(max_examples=40)
@given(learners=st.integers(1, 3), points=st.integers(0, 4), k=st.integers(1, 9), data=st.data())
def test_averages_of_rankings_equal_loops(learners, points, k, data):
    """Quarters are exact, so what ties, ties in both."""
    rankings = [drawn_ranking(data, points) for _ in range(learners)]
    found, wanted = averaged(rankings, k), reference.averaged([pairs(ranking) for ranking in rankings], k)
    assert found.ids.shape == (points, k)
    for row, slow in zip(pairs(found), wanted, strict=True):
        assert [score for _, score in row] == pytest.approx([score for _, score in slow])
        assert [label for label, _ in row] == [label for label, _ in slow]


def test_a_label_that_a_learner_does_not_find_counts_as_0():
    one = Ranking(np.array([[4, 2]]), np.array([[0.9, 0.5]], dtype=np.float32))
    two = Ranking(np.array([[2, -1]]), np.array([[0.8, -np.inf]], dtype=np.float32))
    found = averaged([one, two], 3)
    assert found.ids.tolist() == [[2, 4, -1]]
    assert found.scores[0, :2].tolist() == pytest.approx([0.65, 0.45])


class Fixed:
    """A learner that ranks all points alike."""

    def __init__(self, ids, scores, share=None):
        self.ids, self.scores, self.share, self.asked = ids, scores, share, []

    def rank(self, X, k, filtered=None):
        self.asked.append((k, filtered))
        return Ranking(np.array([self.ids]), np.array([self.scores], dtype=np.float32)).top(k)

    def recall(self, X, k):
        return self.share


def test_an_ensemble_asks_for_more_than_it_ranks():
    learners = [Fixed([0, 1, 2], [0.9, 0.6, 0.5]), Fixed([2, 1, 0], [0.8, 0.6, 0.1])]
    found = Ensemble(learners).rank(None, 1, "pairs")
    assert found.ids.tolist() == [[2]]  # neither's first choice alone would have decided
    assert found.scores.tolist() == [[pytest.approx(0.65)]]
    assert [learner.asked for learner in learners] == [[(1 + OTHERS, "pairs")]] * 2


@pytest.mark.parametrize(("shares", "mean"), [((None, None), None), ((0.5, 1.0), 0.75), ((None, 0.5), 0.5)])
def test_the_recall_of_an_ensemble_is_the_mean_of_those_that_are_not_exact(shares, mean):
    assert Ensemble([Fixed([0], [1.0], share) for share in shares]).recall(None, 5) == mean


def test_the_level_makes_scores_sum_up_to_the_right_labels():
    numbers = np.random.default_rng(0)
    Y = csr_array((numbers.random((40, 30)) < 0.1).astype(np.float32))
    out = csr_array((numbers.random((40, 30)) < 0.1).astype(np.float32))
    scores = torch.from_numpy(numbers.normal(0, 3, (40, 30)))
    left = (Y.toarray() * (1 - out.toarray())).sum()
    for filtered, right in ((None, Y.nnz), (out, left)):
        offset = base.level(Part(Y, X=csr_array((40, 2)), filtered=filtered), lambda some: scores.clone())
        kept = 1 if filtered is None else 1 - torch.from_numpy(out.toarray())
        assert (torch.sigmoid(scores + offset) * kept).sum().item() == pytest.approx(right, rel=1e-6)


def test_the_level_asks_for_as_many_points_as_fit(monkeypatch):
    monkeypatch.setattr(base, "SCORES", 200)
    asked = []
    base.level(
        Part(csr_array((100, 10)), X=csr_array((100, 2))), lambda some: asked.append(len(some)) or torch.zeros(1, 10)
    )
    assert asked == [20]


def test_ndcg_is_that_of_the_first_five():
    Y = csr_array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]], dtype=np.float32)

    class Fixed:
        def rank(self, X, k, filtered):
            ids = np.array([[2, 0, 1, 3, 4], [0, 1, 2, 3, 4]])[:, :k]
            return Ranking(ids, np.ones(ids.shape, dtype=np.float32))

    gain = [1 / np.log2(place + 1) for place in (1, 2, 3)]
    assert base.ndcg(Fixed(), Part(Y, X=Y)) == pytest.approx((gain[1] + gain[2]) / (gain[0] + gain[1]) / 2)
