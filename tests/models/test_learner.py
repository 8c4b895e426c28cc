"""Learners: candidates and the labels behind them, ensembles, offsets, and how a learner is judged."""

from __future__ import annotations

from threading import Thread

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from zipfel.data.dataset import Part
from zipfel.index.exact import ExactIndex
from zipfel.models import learner
from zipfel.models.learner import (
    OTHERS,
    UNLISTED,
    CosineClassifier,
    Ensemble,
    Learner,
    candidate_scores,
    candidates_of,
    evenly_spaced,
    fill_with_frequent,
    frequency_scores,
    half_cosine,
    labelled,
    matching_offset,
    mean_ranking,
    ndcg_at_5,
    precision_at_1,
    rank_candidates,
    rank_held_out,
    sorted_ranking,
)
from zipfel.nn.encoders import Encoder
from zipfel.types import Bags, Ranking, Shortlist

pytestmark = pytest.mark.usefixtures("one_thread")


# --- Candidates, and frequent labels behind them ----------------------------------------------------------------------


def test_frequency_scores_keep_the_order_of_counts_below_all_candidates():
    scores = frequency_scores(np.array([3, 0, 7, 3, 1]))
    assert scores.dtype == np.float32
    np.testing.assert_allclose(scores, UNLISTED / 2 * np.array([3, 0, 7, 3, 1]) / 7, rtol=1e-6)
    assert scores.max() < np.float32(UNLISTED)
    assert frequency_scores(np.zeros(3, dtype=int)).tolist() == [0, 0, 0]
    assert frequency_scores(np.zeros(0, dtype=int)).shape == (0,)


def test_frequent_labels_follow_the_candidates():
    prior = frequency_scores(np.array([1, 5, 3, 5, 0]))
    ids = torch.tensor([[4, 1], [2, -1], [-1, -1]])
    scores = torch.tensor([[0.2, 0.9], [0.5, -torch.inf], [-torch.inf, -torch.inf]])
    ranking = fill_with_frequent(ids, scores, prior, 5)
    assert ranking.ids.tolist() == [[1, 4, 3, 2, 0], [2, 1, 3, 0, 4], [1, 3, 2, 0, 4]]
    assert ranking.scores[0, :2].tolist() == pytest.approx([0.9, 0.2])
    assert ranking.scores[0, 2:].tolist() == pytest.approx([5e-7, 3e-7, 1e-7])
    for k in (1, 2, 3, 4):
        shorter = fill_with_frequent(ids, scores, prior, k)
        assert np.array_equal(shorter.ids, ranking.ids[:, :k])
        assert np.array_equal(shorter.scores, ranking.scores[:, :k])


def test_a_ranking_longer_than_the_labels_ends_in_padding():
    prior = frequency_scores(np.array([2, 1]))
    ranking = fill_with_frequent(torch.tensor([[1, -1]]), torch.tensor([[0.5, -torch.inf]]), prior, 4)
    assert ranking.ids.tolist() == [[1, 0, -1, -1]]
    assert (ranking.scores[0, 2:] == -np.inf).all()


def test_an_index_that_finds_too_few_leaves_the_end_of_a_ranking_empty():
    vectors = torch.tensor([[1.0, 0], [0, 1.0], [0.6, 0.8]])
    shortlist = Shortlist(torch.tensor([[2, -1, 0], [-1, -1, 1]]), torch.zeros(2, 3))
    ranking = CosineClassifier(vectors, half_cosine).rescore(torch.tensor([[1.0, 0], [0, 1.0]]), shortlist, 3)
    assert ranking.ids.tolist() == [[0, 2, -1], [1, -1, -1]]
    assert ranking.scores[:, 0].tolist() == [1, 1]
    assert np.isneginf(ranking.scores[ranking.ids < 0]).all()


def test_candidates_score_above_labels_that_are_no_candidates():
    scores = candidate_scores(torch.tensor([0.0, 1e-12, 0.5, 1.0], dtype=torch.float64))
    assert scores.dtype == torch.float32
    assert scores.min() > frequency_scores(np.array([9, 9])).max()
    assert (scores.diff() >= 0).all()
    assert scores[2:].tolist() == pytest.approx([0.5, 1.0], abs=1e-6)


def test_a_point_without_known_features_has_no_candidates():
    queries = torch.tensor([[0.0, 1e-9], [0.0, 0.0]])
    ids = candidates_of(queries, Shortlist(torch.tensor([[3, -1], [2, 1]]), torch.zeros(2, 2)))
    assert ids.tolist() == [[3, -1], [-1, -1]]


@given(
    scores=st.lists(st.sampled_from([0.0, 0.25, 0.5, -np.inf]), min_size=1, max_size=12),
    k=st.integers(1, 14),
    seed=st.integers(0, 9),
)
def test_a_single_point_is_sorted_as_one_of_several(scores, k, seed):
    ids = torch.randperm(12, generator=torch.Generator().manual_seed(seed))[: len(scores)] - 1  # -1 pads, once
    one = Shortlist(ids[None], torch.tensor([scores]))
    two = Shortlist(one.ids.repeat(2, 1), one.scores.repeat(2, 1))
    alone, together = sorted_ranking(one, k), sorted_ranking(two, k)
    assert alone.ids.tolist() == together.ids[:1].tolist()
    assert alone.scores.tolist() == together.scores[:1].tolist()


@pytest.mark.parametrize("k", [1, 2, 3, 4])
def test_frequent_labels_follow_where_candidates_are_too_few(k):
    ids, scores = torch.tensor([[1, 2], [-1, 0]]), torch.tensor([[0.2, 0.9], [0.7, 0.3]])
    ranking = rank_candidates(ids, scores, torch.tensor([0, 5, 3, 4]), k)
    assert ranking.ids.tolist() == [[2, 1, 3, 0][:k], [0, 1, 3, 2][:k]]  # -1 is no candidate, whatever its score
    assert ranking.scores[:, 0].tolist() == pytest.approx([0.9, 0.3])


class Constant(Encoder):
    """Maps each point to the vector [1]."""

    def forward(self, points: Bags) -> torch.Tensor:
        return torch.ones(len(points), 1)


class Counting(Constant):
    """Notes how many threads torch would compute with."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []

    def forward(self, points: Bags) -> torch.Tensor:
        self.threads.append(torch.get_num_threads())
        return super().forward(points)


def test_one_point_among_few_labels_is_ranked_by_one_thread(monkeypatch):
    """Two threads would meet after each operation, and wait for each other where another process has a core."""
    vectors, encoder = torch.ones(4, 1), Counting()
    one = Learner(encoder, ExactIndex(vectors), CosineClassifier(vectors, half_cosine), torch.device("cpu"))
    torch.set_num_threads(2)
    for points in (1, 2):
        one.rank(csr_array(np.ones((points, 1), dtype=np.float32)), 2)
    in_another = Thread(target=one.rank, args=(csr_array(np.ones((1, 1), dtype=np.float32)), 2))
    in_another.start()
    in_another.join()
    monkeypatch.setattr(learner, "LITTLE", 3)
    one.rank(csr_array(np.ones((1, 1), dtype=np.float32)), 2)
    assert encoder.threads == [1, 2, 1, 2]
    assert torch.get_num_threads() == 2


def test_where_scores_tie_a_shorter_ranking_is_still_the_beginning_of_a_longer_one():
    """Inner products differ by less than float32 scores can show, and the higher id has the larger one."""
    vectors = torch.tensor([[1e-9], [2e-9], [3e-9], [0.5]])
    classifier = CosineClassifier(vectors, lambda x: (1 + x) / 2)
    one = Learner(Constant(), ExactIndex(vectors), classifier, torch.device("cpu"))
    X = csr_array((1, 1), dtype=np.float32)
    assert [one.rank(X, k).ids.tolist() for k in (1, 2, 3, 4)] == [[[3]], [[3, 0]], [[3, 0, 1]], [[3, 0, 1, 2]]]


# --- Ensembles --------------------------------------------------------------------------------------------------------


def drawn_ranking(data, points):
    rows = [
        data.draw(st.dictionaries(st.integers(0, 6), st.sampled_from([0.0, 0.25, 0.5, 1.0]))) for _ in range(points)
    ]
    ranking = Ranking.empty(points, 8)
    for row, scores in enumerate(rows):
        for rank, (label, score) in enumerate(sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))):
            ranking.ids[row, rank], ranking.scores[row, rank] = label, score
    return ranking


def pairs(ranking):
    return [
        [(label, score) for label, score in zip(*row, strict=True) if label >= 0]
        for row in zip(ranking.ids.tolist(), ranking.scores.tolist(), strict=True)
    ]


@settings(max_examples=40)
@given(learners=st.integers(1, 3), points=st.integers(0, 4), k=st.integers(1, 9), data=st.data())
def test_mean_rankings_equal_loops(learners, points, k, data):
    """Quarters are exact, so both have the same ties."""
    rankings = [drawn_ranking(data, points) for _ in range(learners)]
    fast, slow = mean_ranking(rankings, k), reference.averaged([pairs(ranking) for ranking in rankings], k)
    assert fast.ids.shape == (points, k)
    for row, expected in zip(pairs(fast), slow, strict=True):
        assert [score for _, score in row] == pytest.approx([score for _, score in expected])
        assert [label for label, _ in row] == [label for label, _ in expected]


def test_a_label_that_a_learner_does_not_rank_counts_as_0():
    one = Ranking(np.array([[4, 2]]), np.array([[0.9, 0.5]], dtype=np.float32))
    two = Ranking(np.array([[2, -1]]), np.array([[0.8, -np.inf]], dtype=np.float32))
    ranking = mean_ranking([one, two], 3)
    assert ranking.ids.tolist() == [[2, 4, -1]]
    assert ranking.scores[0, :2].tolist() == pytest.approx([0.65, 0.45])


class Fixed:
    """A learner that ranks and explains all points alike."""

    def __init__(self, ids, scores, share=None, weights=()):
        self.ids, self.scores, self.share, self.weights, self.asked = ids, scores, share, weights, []

    def rank(self, X, k, filtered=None):
        self.asked.append((k, filtered))
        return Ranking(np.array([self.ids]), np.array([self.scores], dtype=np.float32)).top(k)

    def recall(self, X, k):
        return self.share

    def explained(self, row, label):
        return np.array(self.weights)


def test_an_ensemble_asks_its_learners_for_longer_rankings():
    learners = [Fixed([0, 1, 2], [0.9, 0.6, 0.5]), Fixed([2, 1, 0], [0.8, 0.6, 0.1])]
    ranking = Ensemble(learners).rank(None, 1, "pairs")
    assert ranking.ids.tolist() == [[2]]  # not decided by one learner's first choice alone
    assert ranking.scores.tolist() == [[pytest.approx(0.65)]]
    assert [one.asked for one in learners] == [[(1 + OTHERS, "pairs")]] * 2


@pytest.mark.parametrize(("shares", "mean"), [((None, None), None), ((0.5, 1.0), 0.75), ((None, 0.5), 0.5)])
def test_the_recall_of_an_ensemble_is_the_mean_over_indices_that_are_not_exact(shares, mean):
    assert Ensemble([Fixed([0], [1.0], share) for share in shares]).recall(None, 5) == mean


def test_an_ensemble_explains_by_the_mean_of_its_learners_and_its_first_stands_for_it():
    learners = [Fixed([0], [1.0], weights=[1.0, -2.0]), Fixed([0], [1.0], weights=[3.0, 0.0])]
    assert Ensemble(learners).explained(None, 0).tolist() == [2.0, -1.0]
    assert Ensemble(learners).first is learners[0]


# --- Offsets ----------------------------------------------------------------------------------------------------------


def test_with_the_matching_offset_scores_sum_up_to_the_right_labels():
    numbers = np.random.default_rng(0)
    Y = csr_array((numbers.random((40, 30)) < 0.1).astype(np.float32))
    excluded = csr_array((numbers.random((40, 30)) < 0.1).astype(np.float32))
    scores = torch.from_numpy(numbers.normal(0, 3, (40, 30)))
    left = (Y.toarray() * (1 - excluded.toarray())).sum()
    for filtered, right in ((None, Y.nnz), (excluded, left)):
        part = Part(Y, X=csr_array((40, 2)), filtered=filtered)
        offset = matching_offset(part, lambda sample: scores.clone())
        kept = 1 if filtered is None else 1 - torch.from_numpy(excluded.toarray())
        assert (torch.sigmoid(scores + offset) * kept).sum().item() == pytest.approx(right, rel=1e-6)


def test_the_matching_offset_asks_for_as_many_points_as_fit(monkeypatch):
    monkeypatch.setattr(learner, "SCORES", 200)
    asked = []
    part = Part(csr_array((100, 10)), X=csr_array((100, 2)))
    matching_offset(part, lambda sample: asked.append(len(sample)) or torch.zeros(1, 10))
    assert asked == [20]


# --- Parts, and how a learner is judged on them -----------------------------------------------------------------------


def numbered(points: int) -> Part:
    """Points whose only feature is their number, and whose label is 0; every third has none."""
    Y = csr_array((np.arange(points) % 3 > 0).astype(np.float32)[:, None])
    return Part(Y, X=csr_array(np.arange(points, dtype=np.float32)[:, None]))


@pytest.mark.parametrize(("count", "rows"), [(3, [0, 5, 10]), (1, [0]), (11, range(11)), (99, range(11))])
def test_evenly_spaced_points(count, rows):
    assert evenly_spaced(numbered(11), count).X.toarray().ravel().tolist() == list(rows)


def test_labelled_points():
    assert labelled(numbered(7)).X.toarray().ravel().tolist() == [1, 2, 4, 5]
    part = labelled(numbered(7))
    assert labelled(part) is part


class Judged:
    """A learner with a fixed ranking of two points, without filtered pairs."""

    ids = np.array([[2, 0, 1, 3, 4], [0, 1, 2, 3, 4]])

    def rank(self, X, k, filtered):
        ids = self.ids[: X.shape[0], : k + 1]
        ranking = Ranking(ids, np.ones(ids.shape, dtype=np.float32))
        return (ranking if filtered is None else ranking.without(filtered)).top(k)


Y = csr_array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1]], dtype=np.float32)


def test_ndcg_is_that_of_the_first_five():
    gain = [1 / np.log2(rank + 1) for rank in (1, 2, 3)]
    assert ndcg_at_5(Judged(), Part(Y, X=Y)) == pytest.approx((gain[1] + gain[2]) / (gain[0] + gain[1]) / 2)


def test_precision_is_that_of_the_first_label_that_is_not_filtered():
    assert precision_at_1(Judged(), Part(Y, X=Y)) == 0
    filtered = csr_array([[0, 0, 1, 0, 0, 0], [0] * 6], dtype=np.float32)
    assert precision_at_1(Judged(), Part(Y, X=Y, filtered=filtered)) == 0.5


def test_a_point_without_a_ranked_label_is_wrong():
    class Silent:
        def rank(self, X, k, filtered):
            return Ranking.empty(X.shape[0], k)

    last = csr_array(np.ones((3, 2), dtype=np.float32))  # an id of -1 must not be read as the last label
    assert precision_at_1(Silent(), Part(last, X=last)) == 0


def test_held_out_points_are_ranked_to_the_depth_of_calibration(monkeypatch):
    asked = []

    class Spy(Judged):
        def rank(self, X, k, filtered):
            asked.append((X.shape[0], k, filtered))
            return super().rank(X, k, filtered)

    ranking, part = rank_held_out(Spy(), Part(Y, X=Y))
    assert asked == [(2, 6, None)]  # never deeper than there are labels
    assert (part.Y != Y).nnz == 0
    assert np.array_equal(ranking.ids, Judged.ids)
    monkeypatch.setattr(learner, "DEPTH", 3)
    monkeypatch.setattr(learner, "MOST_POINTS", 1)
    few = rank_held_out(Spy(), Part(Y, X=Y, filtered=Y))
    assert asked[1][:2] == (1, 3)
    assert few.Y.shape == (1, 6)
    assert (asked[1][2] != Y[[0]]).nnz == 0


def test_held_out_points_without_a_known_feature_are_not_ranked(monkeypatch):
    X = csr_array(np.array([[0, 0], [1, 0], [0, 0], [0, 2]], dtype=np.float32))
    own = csr_array(np.eye(4, dtype=np.float32))
    asked = []

    class Spy:
        def rank(self, X, k, filtered):
            asked.append((X.toarray().tolist(), filtered.toarray().argmax(axis=1).tolist()))
            return Ranking.empty(X.shape[0], k)

    ranking, part = rank_held_out(Spy(), Part(own, X=X, filtered=csr_array(np.roll(np.eye(4), 1, axis=1))))
    assert asked == [([[1, 0], [0, 2]], [2, 0])]
    assert part.Y.toarray().argmax(axis=1).tolist() == [1, 3]
    assert len(ranking) == 2
