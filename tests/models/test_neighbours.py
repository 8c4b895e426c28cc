"""The vote of the nearest points against a loop over points; new points and labels; indices; plans."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from zipfel import metrics, persistence
from zipfel.data.dataset import Dataset, Part
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError
from zipfel.index.exact import ExactIndex
from zipfel.labelspace.deepwalk import Walks
from zipfel.models import dxml, neighbours
from zipfel.models.base import Abilities, Lesson, model_class, settings_of
from zipfel.models.learner import UNLISTED
from zipfel.models.mnn import MnnSettings
from zipfel.models.neighbours import (
    Memory,
    NeighbourModel,
    NeighbourSettings,
    Vote,
    chosen_vote,
    mean_distance,
    not_among,
    widened,
)
from zipfel.tagger import Tagger
from zipfel.training.run import Run
from zipfel.types import Shortlist

pytestmark = pytest.mark.usefixtures("one_thread")

MODELS: dict[str, dict[str, Any]] = {
    "mnn": {"dimension": 32, "epochs": 6, "batch_size": 64, "learning_rate": 0.01},
    "dxml": {
        "dimension": 32, "epochs": 6, "batch_size": 64, "learning_rate": 0.01, "hidden_size": 64, "feature_dropout": 0.2
    },
}  # fmt: skip


# --- The vote ---------------------------------------------------------------------------------------------------------


def matrix(truth, labels):
    rows = [row for row, right in enumerate(truth) for _ in right]
    ids = [label for right in truth for label in sorted(right)]
    return csr_array((np.ones(len(ids), dtype=np.float32), (rows, ids)), shape=(len(truth), labels))


def voting(points, truth, labels, count=3, sharpness=1.0):
    vectors = torch.tensor(points, dtype=torch.float32)
    return Vote(Memory(vectors, matrix(truth, labels), csr_array((len(points), 1))), count, sharpness)


def shortlist_of(candidates):
    """Return a shortlist of these points; its scores do not matter."""
    ids = torch.tensor(candidates, dtype=torch.long).reshape(len(candidates), -1)
    return Shortlist(ids, torch.zeros(ids.shape))


def rescored(vote, queries, k, candidates=None):
    candidates = [list(range(len(vote.memory)))] * len(queries) if candidates is None else candidates
    return vote.rescore(torch.tensor(queries, dtype=torch.float32), shortlist_of(candidates), k)


def agrees(ids, scores, slow):
    """Check a row of a ranking against the loop; shares that differ by rounding only may swap."""
    shares = dict(slow)
    assert sorted(ids) == sorted(shares)
    voted = [label for label, share in slow if share is not None]
    assert set(ids[: len(voted)]) == set(voted)
    for label, score in zip(ids[: len(voted)], scores, strict=False):
        assert score == pytest.approx(shares[label], rel=1e-5)
    assert list(ids[len(voted) :]) == [label for label, share in slow if share is None]
    assert all(0 <= score <= UNLISTED / 2 for score in scores[len(voted) :])
    for rank in range(len(ids) - 1):
        assert (-scores[rank], ids[rank]) < (-scores[rank + 1], ids[rank + 1])


exact_numbers = st.sampled_from([-1.0, 0.0, 0.5, 1.0])  # their products have no rounding errors, so ties are exact


@settings(max_examples=200)
@given(data=st.data())
def test_a_vote_equals_the_loop_over_points(data):
    labels, count = data.draw(st.integers(1, 6)), data.draw(st.integers(1, 8))
    vector = st.lists(exact_numbers, min_size=3, max_size=3)
    points = data.draw(st.lists(vector, min_size=count, max_size=count))
    truth = data.draw(st.lists(st.sets(st.integers(0, labels - 1)), min_size=count, max_size=count))
    queries = data.draw(st.lists(vector, min_size=1, max_size=3))
    nearest, sharpness = data.draw(st.integers(1, 6)), data.draw(st.sampled_from([0.0, 0.5, 1.0, 4.0]))
    padded = [*range(count), *[-1] * data.draw(st.integers(0, 3))]
    width = data.draw(st.integers(0, len(padded)))  # an index may return only some points
    candidates = [data.draw(st.permutations(padded))[:width] for _ in queries]
    ranking = rescored(voting(points, truth, labels, nearest, sharpness), queries, labels, candidates)
    for row, query in enumerate(queries):
        slow = reference.vote(query, points, truth, labels, nearest, sharpness, candidates[row])
        agrees(ranking.ids[row].tolist(), ranking.scores[row].tolist(), slow)


def test_a_vote_by_hand():
    points, truth = [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]], [{0}, {0, 1}, {2}, {3}]
    ranking = rescored(voting(points, truth, 5, 4, 2.0), [[1.0, 0.0]], 5)
    assert ranking.ids.tolist() == [[0, 1, 2, 3, 4]]  # 2 and 3 are equally frequent, and no point has 4
    assert ranking.scores[0, :2].tolist() == pytest.approx([1, 0.36 / 1.36])  # weights 1 and 0.6²
    assert ranking.scores[0, 2:].tolist() == pytest.approx([2.5e-7, 2.5e-7, 0])


def test_sharpness_0_is_the_plain_average_and_points_with_a_negative_cosine_have_no_vote():
    points, truth = [[1.0, 0.0], [0.1, 0.0], [0.0, 1.0], [-1.0, 0.0]], [{0}, {1}, {2}, {3}]
    ranking = rescored(voting(points, truth, 4, 4, 0.0), [[1.0, 0.0]], 4)
    assert ranking.ids.tolist() == [[0, 1, 2, 3]]
    assert ranking.scores[0, :2].tolist() == [0.5, 0.5]
    assert ranking.scores[0, 2:].max() <= UNLISTED / 2


def test_at_most_neighbours_points_vote_and_ties_go_to_the_lower_point():
    points, truth = [[0.5], [1.0], [0.5], [0.5]], [{3}, {0}, {1}, {2}]
    for candidates in ([[0, 1, 2, 3]], [[3, 2, 1, 0]], [[-1, 3, 0, 2, 1]]):
        ranking = rescored(voting(points, truth, 4, 2, 1.0), [[1.0]], 4, candidates)
        assert ranking.ids.tolist() == [[0, 3, 1, 2]]
        assert ranking.scores[0, :2].tolist() == pytest.approx([2 / 3, 1 / 3])


def test_labels_without_a_vote_are_ranked_by_frequency():
    points = [[1.0], [-1.0], [-1.0], [-1.0]]
    truth = [{1}, {4, 2}, {4, 0}, {4}]
    ranking = rescored(voting(points, truth, 5), [[1.0], [0.0]], 5)
    assert ranking.ids.tolist() == [[1, 4, 0, 2, 3], [4, 0, 1, 2, 3]]  # a query of zeros has no vote at all
    assert ranking.scores[1].max() <= UNLISTED / 2
    assert ranking.scores[0, 0] == 1


def test_fewer_points_than_neighbours_and_than_k():
    vote = voting([[1.0], [0.5]], [{2}, {0}], 3, 10, 1.0)
    ranking = rescored(vote, [[1.0]], 7)
    assert ranking.ids.tolist() == [[2, 0, 1, -1, -1, -1, -1]]
    assert ranking.scores[0, :2].tolist() == pytest.approx([2 / 3, 1 / 3])
    assert (ranking.scores[0, 3:] == -np.inf).all()


def test_padding_does_not_vote():
    vote = voting([[1.0], [0.5]], [{2}, {0}], 3, 3, 1.0)
    assert rescored(vote, [[1.0]], 3, [[-1, 1, -1]]).ids.tolist() == [[0, 2, 1]]
    assert rescored(vote, [[1.0]], 3, [[-1, 1, -1]]).scores[0, 0] == 1
    for candidates in ([[-1, -1]], [[]]):
        ranking = rescored(vote, [[1.0]], 3, candidates)
        assert ranking.ids.tolist() == [[0, 2, 1]]
        assert ranking.scores.max() <= UNLISTED / 2


def drawn_vote(seed=0, points=60, labels=15, count=10, sharpness=4.0):
    numbers = np.random.default_rng(seed)
    vectors = numbers.standard_normal((points, 8))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    truth = [set(numbers.choice(labels, numbers.integers(0, 4), replace=False).tolist()) for _ in range(points)]
    return voting(vectors.tolist(), truth, labels, count, sharpness), truth


@pytest.mark.parametrize(("labels", "count"), [(15, 10), (60, 2)])
def test_a_shorter_ranking_is_the_beginning_of_a_longer_one(labels, count):
    vote, truth = drawn_vote(labels=labels, count=count)
    queries = [*vote.vectors[:20].tolist(), [0.0] * 8]
    whole = rescored(vote, queries, labels)
    for row, query in enumerate(queries):
        slow = reference.vote(query, vote.vectors.tolist(), truth, labels, count, 4.0)
        agrees(whole.ids[row].tolist(), whole.scores[row].tolist(), slow)
    for k in range(1, labels):
        shorter = rescored(vote, queries, k)
        assert np.array_equal(shorter.ids, whole.ids[:, :k])
        assert np.array_equal(shorter.scores, whole.scores[:, :k])


def test_a_query_gets_the_same_ranking_in_a_batch_as_alone():
    vote, _ = drawn_vote()
    queries = [*vote.vectors[:10].tolist(), [0.0] * 8]
    whole = rescored(vote, queries, 15)
    for row, query in enumerate(queries):
        alone = rescored(vote, [query], 15)
        assert np.array_equal(alone.ids[0], whole.ids[row])
        assert np.array_equal(alone.scores[0], whole.scores[row])


def test_shares_of_the_vote_sum_to_1():
    vote, _ = drawn_vote(labels=15)
    single = Vote(Memory(vote.vectors, matrix([{point % 15} for point in range(60)], 15), vote.memory.X), 10, 4.0)
    ids, cosines = single.nearest(vote.vectors, shortlist_of([list(range(60))] * 60))
    assert ids.shape == (60, 10)
    assert (ids == torch.arange(60)[:, None]).any(dim=1).all()  # each point is near itself
    scores = single.scores(ids, cosines)
    np.testing.assert_allclose(np.asarray(scores.sum(axis=1)).ravel(), 1, rtol=1e-5)
    everywhere = Vote(Memory(vote.vectors, matrix([{0}] * 60, 1), vote.memory.X), 10, 30.0)
    assert rescored(everywhere, vote.vectors.tolist(), 1).scores.max() <= 1  # rounding does not exceed it


@pytest.mark.parametrize("k", [1, 5, 100])
def test_the_number_of_candidates_does_not_depend_on_k(k):
    assert voting([[1.0]], [{0}], 1, 7).width(k) == voting([[1.0]], [{0}], 1, 7).width(1) >= 7


def test_a_vote_holds_vectors_and_labels_of_points():
    """Reports and explanations know by `memory` that candidates are points."""
    vote, truth = drawn_vote()
    assert torch.equal(vote.vectors, vote.memory.vectors)
    assert (vote.point_labels != matrix(truth, 15)).nnz == 0


def test_the_scorer_of_a_label_returns_its_share_of_the_vote():
    vote, truth = drawn_vote(seed=1)
    drawn = torch.nn.functional.normalize(torch.randn(1, 8, generator=torch.Generator().manual_seed(1)))
    assert truth[0]  # the first point votes on the second query, which is near it
    for query in (drawn, torch.nn.functional.normalize(drawn + 3 * vote.vectors[:1])):
        shares = dict(reference.vote(query[0].tolist(), vote.vectors.tolist(), truth, 15, 10, 4.0))
        assert {share is None for share in shares.values()} == {True, False}
        for label, share in shares.items():
            score = vote.scorer(label, query, ExactIndex(vote.vectors))
            assert score(query).item() == pytest.approx(share or 0.0, rel=1e-4, abs=1e-7)
            assert score(query / 2).item() == pytest.approx((share or 0.0) / 2, rel=1e-4, abs=1e-7)  # linear


# --- Memory -----------------------------------------------------------------------------------------------------------


def remembered(points=4, labels=3, features=5, seed=0):
    numbers = np.random.default_rng(seed)
    X = csr_array((numbers.random((points, features)) * (numbers.random((points, features)) < 0.5)).astype(np.float32))
    Y = csr_array((numbers.random((points, labels)) < 0.5).astype(np.float32))
    vectors = torch.from_numpy(numbers.standard_normal((points, 2)).astype(np.float32))
    return Memory(vectors, Y, X)


def test_points_that_are_remembered_are_not_held_out_again():
    memory, more = remembered(4), remembered(3, seed=1)
    mixed = Part(csr_array(np.concatenate([more.Y.toarray(), memory.Y.toarray()[1:3]])),
                 X=csr_array(np.concatenate([more.X.toarray(), memory.X.toarray()[1:3]])))  # fmt: skip
    np.testing.assert_array_equal(not_among(mixed, memory).X.toarray(), more.X.toarray())
    assert not_among(mixed, None) is mixed


def test_a_memory_is_restored_from_its_tensors():
    memory = remembered()
    tensors = memory.tensors()
    assert all(isinstance(value, torch.Tensor) for value in tensors.values())
    back = Memory.of_tensors(tensors, 5, 3, memory.vectors.shape[1])
    assert len(back) == 4
    assert torch.equal(back.vectors, memory.vectors)
    for ours, theirs in ((back.Y, memory.Y), (back.X, memory.X)):
        assert ours.shape == theirs.shape
        assert (ours != theirs).nnz == 0


def test_new_points_are_appended_to_the_memory_and_may_have_new_labels():
    memory, more = remembered(), remembered(points=2, labels=5, seed=1)
    grown = memory.grown(more.vectors, Part(more.Y, X=more.X))
    assert len(grown) == 6
    assert torch.equal(grown.vectors, torch.cat([memory.vectors, more.vectors]))
    expected = np.zeros((6, 5), dtype=np.float32)
    expected[:4, :3], expected[4:] = memory.Y.toarray(), more.Y.toarray()
    assert np.array_equal(grown.Y.toarray(), expected)
    assert np.array_equal(grown.X.toarray(), np.concatenate([memory.X.toarray(), more.X.toarray()]))
    assert len(memory) == 4
    assert memory.Y.shape == (4, 3)
    counts = expected.sum(axis=0)
    np.testing.assert_allclose(Vote(grown, 2, 1.0).prior, UNLISTED / 2 * counts / counts.max(), rtol=1e-6)


class BareModel(NeighbourModel):
    """A model of neighbours without an encoder."""

    def start(self, generator: torch.Generator) -> None:
        pass


def bare_model(features: int, labels: int) -> NeighbourModel:
    return BareModel(features, labels, NeighbourSettings(), torch.Generator())


def test_widened():
    Y = matrix([{0}, {1, 2}], 3)
    assert widened(Y, 3) is Y
    assert widened(Y, 5).toarray().tolist() == [[1, 0, 0, 0, 0], [0, 1, 1, 0, 0]]


def test_the_learned_part_holds_remembered_points_and_then_new_ones_with_labels():
    model = bare_model(5, 4)
    part = Part(matrix([{0}, set(), {1, 3}], 4), X=csr_array(np.eye(3, 5, dtype=np.float32)))
    first = model.learned_part(part, None)
    assert first.Y.toarray().tolist() == [[1, 0, 0, 0], [0, 1, 0, 1]]
    assert first.X.toarray().tolist() == np.eye(3, 5)[[0, 2]].tolist()
    memory = remembered()
    both = model.learned_part(part, memory)
    assert both.Y.shape == (6, 4)
    assert np.array_equal(both.Y.toarray()[:4, :3], memory.Y.toarray())
    assert np.array_equal(both.X.toarray()[4:], np.eye(3, 5)[[0, 2]])


def test_the_mean_distance_is_that_to_the_nearest_other_point():
    known = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    assert mean_distance(known, known) == pytest.approx(2**0.5)
    assert mean_distance(torch.tensor([[0.6, 0.8]]), known) == pytest.approx(0.4**0.5)  # 2 - 2 · 0.8
    assert mean_distance(torch.tensor([[0.6, 0.8], [-1.0, 0.0]]), known) == pytest.approx((0.4**0.5 + 2**0.5) / 2)


# --- Choice of the vote -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"neighbours": 0}, "neighbours must be at least 1; found 0"),
        ({"clusters": 0}, "clusters must be at least 1; found 0"),
        ({"probes": -1}, "probes must be at least 1; found -1"),
        ({"sharpness": -0.5}, "sharpness must be at least 0; found -0.5"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        MnnSettings(**changes)


@pytest.fixture(scope="module")
def data() -> Dataset:
    counted = make(Synthetic(points=1000, labels=40, noise=0.3, test_share=0.2, seed=3))
    return Tfidf.fit(counted.train.X).apply(counted)


def fitted(model: str, data: Dataset, **changes: Any) -> Tagger:
    return Tagger(model, settings={**MODELS[model], **changes}, device="cpu").fit_dataset(data)


@pytest.fixture(params=sorted(MODELS), scope="module")
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def tagger(model: str, data: Dataset) -> Tagger:
    return fitted(model, data)


def quality(tagger: Tagger, part: Part) -> float:
    values = metrics.measure(tagger.rank(part.X, 5), part.Y)
    return values["P@1"] + values["P@3"] + values["P@5"]


def test_without_points_to_choose_on_the_vote_is_the_given_or_the_usual_one(tagger):
    learner, nothing = tagger.model_.learners()[0], Part(csr_array((0, 1)), X=csr_array((0, 1)))
    assert chosen_vote(learner, NeighbourSettings(neighbours=9, sharpness=7), nothing) == (9, 7.0)
    assert chosen_vote(learner, NeighbourSettings(), nothing) == (20, 4.0)


def test_the_vote_is_chosen_among_those_of_the_ledgers():
    assert (neighbours.NEIGHBOURS, neighbours.SHARPNESS) == ((5, 10, 20, 40, 80), (1, 4, 10, 30))


def test_the_chosen_vote_is_the_best_on_validation(tagger, data):
    validation, learner = data.test.take(np.arange(50)), tagger.model_.learners()[0]
    options = {}
    for count in neighbours.NEIGHBOURS:
        for power in neighbours.SHARPNESS:
            vote = Vote(tagger.model_.memory, count, power)
            queries = learner.encode(validation.X)
            ranking = vote.rescore(queries, ExactIndex(vote.vectors).search(queries, vote.width(5)), 5)
            values = metrics.measure(ranking, validation.Y)
            options[count, power] = values["P@1"] + values["P@3"] + values["P@5"]
    assert len(set(options.values())) > 3
    chosen = chosen_vote(learner, NeighbourSettings(), validation)
    assert options[chosen] == pytest.approx(max(options.values()))
    half = chosen_vote(learner, NeighbourSettings(neighbours=40), validation)
    best = max(value for (count, _), value in options.items() if count == 40)
    assert half[0] == 40
    assert options[half] == pytest.approx(best)


def test_filtered_pairs_do_not_count_where_the_vote_is_chosen(tagger, data, monkeypatch):
    """Each point's three best labels are filtered: the next five are judged in their place."""
    learner, part, judged, measure = tagger.model_.learners()[0], data.test.take(np.arange(20)), [], metrics.measure
    filtered = matrix([set(ids) for ids in learner.rank(part.X, 3).ids.tolist()], part.Y.shape[1])

    def spy(ranking: Any, truth: csr_array) -> dict[str, float]:
        judged.append(ranking.ids)
        return measure(ranking, truth)

    monkeypatch.setattr(metrics, "measure", spy)
    chosen_vote(learner, NeighbourSettings(), replace(part, filtered=filtered))
    excluded = filtered.toarray() > 0
    for ids in judged:
        assert ids.shape == (20, 5)
        assert (ids >= 0).all()
        assert not np.take_along_axis(excluded, ids, axis=1).any()


def test_the_vote_is_chosen_on_evenly_spaced_points(tagger, data, monkeypatch):
    """Files may be sorted, so that the first points are unlike the others."""
    validation, judged, measure = data.test.take(np.arange(50)), [], metrics.measure

    def spy(ranking: Any, truth: csr_array, *rest: Any, **more: Any) -> dict[str, float]:
        judged.append(truth)
        return measure(ranking, truth, *rest, **more)

    monkeypatch.setattr(metrics, "measure", spy)
    monkeypatch.setattr(neighbours, "JUDGED", 5)
    chosen_vote(tagger.model_.learners()[0], NeighbourSettings(), validation)
    assert len(judged) == len(neighbours.NEIGHBOURS) * len(neighbours.SHARPNESS)
    assert all((truth != validation.Y[[0, 12, 24, 36, 49]]).nnz == 0 for truth in judged)


def test_a_vote_given_by_the_settings_is_used(model, data):
    given = fitted(model, data, neighbours=7, sharpness=2.0, epochs=1)
    assert (given.predictor_.classifier.neighbours, given.predictor_.classifier.sharpness) == (7, 2.0)
    assert not given.model_.chooses_vote
    plain = fitted(model, data, sharpness=0.0, epochs=1)
    assert plain.predictor_.classifier.sharpness == 0
    assert plain.predictor_.classifier.neighbours in neighbours.NEIGHBOURS
    assert plain.model_.chooses_vote


def test_scores_are_calibrated_on_points_ranked_before_the_second_round_learned_from_them(model, tagger, data):
    """With a vote that the settings give, there is one round on all points, and none is left to calibrate on."""
    held_out = tagger.model_.ranked_held_out(tagger.predictor_, data.test)
    assert held_out.Y.shape[0] == pytest.approx(0.2 * len(data.train), rel=0.2)
    assert len(tagger.model_.memory) == len(data.train)
    learned = metrics.measure(tagger.rank(data.train.X, 1), data.train.Y, ks=(1,))["P@1"]
    assert metrics.measure(held_out.ranking, held_out.Y, ks=(1,))["P@1"] < learned - 3
    assert tagger.calibration_ is not None
    given = fitted(model, data, neighbours=7, sharpness=2.0, epochs=1)
    assert given.model_.ranked_held_out(given.predictor_, data.test) is None
    assert given.calibration_ is None
    assert len(given.model_.memory) == len(data.train)


# --- New points and labels --------------------------------------------------------------------------------------------


def tags_of(Y: csr_array, names: list[str]) -> list[list[str]]:
    return [[names[label] for label in Y.indices[Y.indptr[row] : Y.indptr[row + 1]]] for row in range(Y.shape[0])]


LATE = {"b04", "a08"}  # labels whose points come later; in alphabetical order, one would be first


def named(labels: int) -> list[str]:
    return [f"a{label:02}" if label == 8 else f"b{label:02}" for label in range(labels)]


@pytest.fixture(scope="module")
def halves(data: Dataset) -> tuple[Any, Any]:
    """Return train in two halves, as (X, tags); all points of late labels are in the second."""
    tags = tags_of(data.train.Y, named(40))
    late = np.array([bool(LATE & set(row)) for row in tags])
    kinds = np.where(late, 1, np.arange(len(tags)) % 2)
    first, second = ((data.train.X[np.flatnonzero(kinds == kind)], kind) for kind in (0, 1))
    return tuple((X, [tags[row] for row in np.flatnonzero(kinds == kind)]) for X, kind in (first, second))  # type: ignore[return-value]


@pytest.fixture(scope="module")
def grown(model: str, halves: tuple[Any, Any]) -> tuple[list[str], Tagger]:
    """Return the classes after the first half, and a tagger that took the second one without learning."""
    tagger = Tagger(model, settings=MODELS[model], device="cpu").fit(*halves[0])
    before = list(tagger.classes_)
    weights = {name: value.clone() for name, value in tagger.model_.encoder.state_dict().items()}
    tagger.partial_fit(*halves[1])
    for name, value in tagger.model_.encoder.state_dict().items():
        assert torch.equal(value, weights[name]), name  # nothing was learned
    return before, tagger


def test_new_labels_are_appended_and_become_predictable(grown, data):
    before, tagger = grown
    assert before == sorted(before)
    assert not LATE & set(before)
    assert tagger.classes_[: len(before)] == before
    assert set(tagger.classes_[len(before) :]) >= LATE
    tags = tags_of(data.test.Y, named(40))
    rows = [row for row, wanted in enumerate(tags) if LATE & set(wanted)]
    predicted = tagger.predict(data.test.X[rows], k=5)
    hits = [bool(LATE & set(tags[row]) & {tag.label for tag in top}) for row, top in zip(rows, predicted, strict=True)]
    assert len(hits) >= 10
    assert np.mean(hits) > 0.6
    assert tagger.score(data.test.X, tags) > 0.75


def test_new_points_are_appended(grown, halves):
    _, tagger = grown
    memory, count = tagger.model_.memory, len(halves[1][1])
    assert len(memory) == len(tagger.model_.index) == len(tagger.predictor_.index)
    assert (memory.X[-count:] != halves[1][0]).nnz == 0
    ids = [sorted(tagger.labels_.live[name] for name in row) for row in halves[1][1]]
    assert [sorted(row) for row in tags_of(memory.Y[-count:], list(range(40)))] == ids
    torch.testing.assert_close(memory.vectors[-count:], tagger.predictor_.encode(halves[1][0]))


def test_drift_is_about_1_for_similar_points_and_higher_for_others(model, data, tmp_path):
    X, Y = data.train.X, data.train.Y
    even, odd = np.arange(0, len(data.train), 2), np.arange(1, len(data.train), 2)
    tagger = Tagger(model, settings=MODELS[model], device="cpu").fit(X[even], Y[even])
    tagger.save(tmp_path / "half")
    assert not hasattr(tagger, "drift_")
    same = tagger.partial_fit(X[odd], Y[odd]).drift_
    assert 0.7 < same < 1.4
    numbers = np.random.default_rng(0)
    rows = np.repeat(np.arange(len(odd)), np.diff(X[odd].indptr))
    columns = numbers.integers(0, X.shape[1], len(rows))
    strange = csr_array((X[odd].data, (rows, columns)), shape=(len(odd), X.shape[1]))
    other = Tagger.load(tmp_path / "half", device="cpu").partial_fit(strange, Y[odd]).drift_
    assert other > 1.2 * same


def test_new_points_and_labels_are_saved(grown, data, tmp_path):
    _, tagger = grown
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.classes_ == tagger.classes_
    before, after = tagger.rank(data.test.X, 10), loaded.rank(data.test.X, 10)
    assert np.array_equal(before.ids, after.ids)
    assert np.array_equal(before.scores, after.scores)
    further = loaded.partial_fit(data.train.X[:5], [["new"]] * 5)
    assert further.classes_[-1] == "new"
    assert further.predict(data.train.X[:1], 5) != tagger.predict(data.train.X[:1], 5)
    persistence.verify(tmp_path / "model")


def test_the_first_partial_fit_is_a_fit(model, data, tagger):
    first = Tagger(model, settings=MODELS[model], device="cpu").partial_fit(data.train.X, data.train.Y)
    again = Tagger(model, settings=MODELS[model], device="cpu").fit(data.train.X, data.train.Y)
    assert np.array_equal(first.rank(data.test.X, 5).ids, again.rank(data.test.X, 5).ids)
    assert not hasattr(first, "drift_")


def test_a_model_without_memory_refuses_points(data):
    small = {"dimension": 8, "epochs": 1, "min_steps": 1}
    tagger = Tagger("glas", settings=small, device="cpu").fit(data.train.X, data.train.Y)
    before = list(tagger.classes_)
    with pytest.raises(ConfigError, match="glas cannot add points without training; fit with warm_start=True instead"):
        tagger.partial_fit(data.train.X[:2], [["new"], ["new"]])
    assert tagger.classes_ == before
    assert tagger.rank(data.test.X, 3).ids.shape == (len(data.test), 3)  # the tagger is still fitted


def test_a_warm_start_keeps_old_points_and_labels(model, halves, data, tmp_path):
    tagger = Tagger(model, settings=MODELS[model], device="cpu").fit(*halves[0])
    tagger.save(tmp_path / "half")
    before, points = list(tagger.classes_), len(tagger.model_.memory)
    tagger = Tagger.load(tmp_path / "half", device="cpu").set_params(warm_start=True, validation=0)
    late = [row for row, tags in enumerate(halves[1][1]) if LATE & set(tags)]
    tagger.fit(halves[1][0][late], [halves[1][1][row] for row in late])
    assert len(tagger.model_.memory) == points + len(late)
    assert tagger.classes_[: len(before)] == before
    tags = tags_of(data.test.Y, named(40))
    old = [row for row, wanted in enumerate(tags) if not LATE & set(wanted)]
    assert tagger.score(data.test.X[old], [tags[row] for row in old]) > 0.75
    new = [row for row, wanted in enumerate(tags) if LATE & set(wanted)]
    assert tagger.score(data.test.X[new], [tags[row] for row in new]) > 0.5
    persistence.verify(tmp_path / "half")  # the mapped files are unchanged


# --- Indices ----------------------------------------------------------------------------------------------------------


def test_an_exact_index_has_no_recall(tagger, data):
    assert tagger.index_recall(data.test.X) is None


@pytest.mark.parametrize("kind", ["ivf", "hnsw"])
def test_an_approximate_index_of_points_from_end_to_end(model, data, kind, tagger, tmp_path):
    changes = {"clusters": 20, "probes": 2} if kind == "ivf" else {}
    approximate = fitted(model, data, index=kind, **changes)
    assert not isinstance(approximate.predictor_.index, ExactIndex)
    recall = approximate.index_recall(data.test.X)
    assert 0.4 < recall <= 1
    assert (recall > 0.95) == (kind == "hnsw")
    assert quality(approximate, data.test) > 0.9 * quality(tagger, data.test)
    approximate.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert type(loaded.predictor_.index) is type(approximate.predictor_.index)
    assert loaded.index_recall(data.test.X) == recall
    assert np.array_equal(loaded.rank(data.test.X, 10).ids, approximate.rank(data.test.X, 10).ids)
    points = len(loaded.model_.memory)
    loaded.partial_fit(data.test.X, tags_of(data.test.Y, loaded.classes_))
    assert len(loaded.predictor_.index) == points + len(data.test)
    assert quality(loaded, data.test) > quality(approximate, data.test)  # points are their own neighbours now


def test_more_probes_find_more(model, data):
    few, all_of_them = (
        fitted(model, data, index="ivf", clusters=20, probes=probes, epochs=2).index_recall(data.test.X)
        for probes in (1, 20)
    )
    assert few < all_of_them
    assert all_of_them == pytest.approx(1)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round", [1, 2])
def test_ctrl_c_leaves_the_result_of_the_first_round(model, data, monkeypatch, round):
    """Stopped in the first round, there is no second one; in the second, weights and points of the first stay."""
    module = import_module(f"zipfel.models.{model}")
    calls, trained = [], module.train

    def stopped(run, stage, net, points, objective, schedule):
        calls.append((stage, points))
        outcome = trained(run, stage, net, points, objective, schedule)
        if len(calls) == 1:
            calls.append({name: value.clone() for name, value in net.state_dict().items()})
        return replace(outcome, interrupted=len([c for c in calls if isinstance(c, tuple)]) == round)

    monkeypatch.setattr(module, "train", stopped)
    tagger = fitted(model, data)
    assert tagger.outcome_.interrupted
    assert [call[0] for call in calls if isinstance(call, tuple)] == [model, f"{model}-whole"][:round]
    assert all(torch.equal(value, calls[1][name]) for name, value in tagger.model_.state_dict().items())
    assert len(tagger.model_.memory) == calls[0][1]
    assert tagger.rank(data.test.X, 3).ids.shape == (len(data.test), 3)


# --- Contract ---------------------------------------------------------------------------------------------------------


def test_points_are_remembered_and_texts_are_not_read(model):
    for preset in model_class(model).presets:
        assert model_class(model).abilities(settings_of(model, preset)) == Abilities(remembers_points=True)


@pytest.mark.parametrize(("features", "width"), [(10, 16), (300, 150), (30_000, None)])
def test_the_width_of_vectors_follows_the_number_of_features(model, features, width):
    """Half of the features, at least 16 and at most the model's usual width."""
    settings = settings_of(model)
    assert settings.dimension is None
    resolved = model_class(model).resolved(settings, features)
    assert resolved.dimension == (width or settings.largest_dimension)
    assert resolved == replace(settings, dimension=resolved.dimension)
    assert model_class(model).resolved(replace(settings, dimension=7), features).dimension == 7


def test_features_of_points_are_saved_for_training_only(tagger):
    tensors = tagger.model_.tensors()
    own = {"mnn": "label_encoder.table.rows", "dxml": "labels.V"}[tagger.model]  # which has no vote
    assert set(tensors.train) == {f"points.X.{name}" for name in ("data", "indices", "indptr")} | {own}
    assert {"points.vectors", "points.Y.indices", "points.Y.indptr", "vote"} <= set(tensors.serve)


def lesson(data: Dataset, whole: bool = True) -> Lesson:
    """Return a lesson with 50 held-out points; the first 10 training points have no labels."""
    Y = data.train.Y.toarray()
    Y[:10] = 0
    both, rows = Part(csr_array(Y), X=data.train.X), np.arange(len(data.train))
    return Lesson(both.take(rows[:-50]), both.take(rows[-50:]), both if whole else None)


def model_of(model: str, data: Dataset, **changes: Any) -> NeighbourModel:
    settings = settings_of(model, changes={**MODELS[model], **changes})
    return model_class(model)(data.sizes.features, data.sizes.labels, settings, torch.Generator())


def test_the_cost_counts_a_second_round_where_the_vote_is_chosen(model, data):
    points, targets = len(data.train), 4 * 32 * (model == "dxml")
    cost = model_of(model, data).cost(lesson(data))
    assert (cost.rounds, cost.fewest_points) == ((points - 60, points - 10), 640)
    assert cost.bytes_a_point == 4 * 32 + targets  # vectors of the first round
    given = model_of(model, data, neighbours=5, sharpness=1.0).cost(lesson(data))
    assert (given.rounds, given.bytes_a_point) == ((points - 10,), targets)
    separate = model_of(model, data).cost(lesson(data, whole=False))
    assert (separate.rounds, separate.bytes_a_point) == ((points - 60,), targets)


def test_the_cost_of_dxml_includes_all_walks_and_a_rehearsal_walks_once(data, monkeypatch):
    walks, deepwalk = [], dxml.deepwalk

    def spy(graph, width, numbers, settings=None, deterministic=True):
        if graph.shape[0] > 2:  # else it only imports gensim
            walks.append(settings)
        return deepwalk(graph, width, numbers, settings, deterministic)

    monkeypatch.setattr(dxml, "deepwalk", spy)
    changes = {
        "walk_length": 12,
        "walk_window": 3,
        "walk_softmax": "hierarchical",
        "walk_passes": 2,
        "label_vectors": None,
    }
    model = model_of("dxml", data, walks_per_label=7, **changes)
    cost = model.cost(lesson(data))
    assert walks == [Walks(walks=1, length=12, window=3, epochs=2, hierarchical=True)]
    assert model.settings.walks_per_label == 7
    assert 0 < cost.seconds / (7 * 2) == pytest.approx(cost.lost_seconds)
    model.rehearse(0.5)
    assert model.settings.walks_per_label == 1
    control = model_of("dxml", data, walks_per_label=7, label_vectors="random").cost(lesson(data))
    assert len(walks) == 1
    assert control.seconds / 2 == pytest.approx(control.lost_seconds)  # no walks, two rounds


def test_a_completed_model_has_as_many_points_as_after_training(model, data, monkeypatch):
    """It ranks at the speed of the full memory; DeepWalk, which the cost includes, does not run again."""
    rehearsed, full = model_of(model, data, epochs=1), lesson(data)
    some = full.validation
    rehearsed.fit(Lesson(some), Run())
    vectors = rehearsed.memory.vectors
    monkeypatch.setattr(dxml, "deepwalk", lambda *given: pytest.fail("DeepWalk runs again"))
    assert rehearsed.complete(full, some) > 0
    points = len(data.train) - 10
    assert len(rehearsed.memory) == len(rehearsed.index) == points
    assert torch.equal(rehearsed.memory.vectors, vectors[torch.arange(points) % len(some)])
    assert rehearsed.memory.Y.shape == (points, data.sizes.labels)
    assert rehearsed.predictor().rank(data.test.X, 5).ids.shape == (len(data.test), 5)


def test_a_saved_model_keeps_its_width_when_the_rule_for_it_changes(model, data, tmp_path, monkeypatch):
    settings = {name: value for name, value in MODELS[model].items() if name != "dimension"}
    tagger = Tagger(model, settings={**settings, "epochs": 1}, device="cpu").fit_dataset(data)
    tagger.save(tmp_path / "model")
    width = tagger.model_.memory.vectors.shape[1]
    monkeypatch.setattr(NeighbourSettings, "width", lambda own, features: own.dimension or 5)
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.model_.settings.dimension == width != 5
    assert np.array_equal(loaded.rank(data.test.X, 3).ids, tagger.rank(data.test.X, 3).ids)
    loaded.set_params(warm_start=True).fit_dataset(data)
    assert loaded.model_.memory.vectors.shape[1] == width
