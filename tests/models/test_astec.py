"""Astec: settings, the order of stages and refreshed shortlists, resuming, warm fits, documents, saving."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from scipy.sparse import csr_array
from steps import seeded
from stopped import Stop, stops_after
from torch import Tensor

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index.exact import ExactIndex
from zipfel.index.hnsw import HnswIndex
from zipfel.labelspace.graph import walk_step
from zipfel.models import astec, astec_network
from zipfel.models import tokens as token_starts
from zipfel.models.astec import Astec
from zipfel.models.astec_network import Network
from zipfel.models.astec_settings import PRESETS, AstecSettings
from zipfel.models.base import Lesson, Tensors, settings_of
from zipfel.models.learner import Ensemble, Learner, in_turn
from zipfel.models.lightdxml import MixedClassifier, figures_by_beta
from zipfel.models.reranker import TOP, RerankedPredictor, Reranker
from zipfel.nn.classifiers import EXTRA, OneVsAll
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, Schedule

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "dimension": 16, "epochs": 4, "module1_epochs": 2, "min_steps": 1, "batch_size": 32, "learning_rate": 0.02,
    "module1_learning_rate": 0.02, "shortlist_size": 6, "dropout": 0.1,
}  # fmt: skip
FROZEN: dict[str, Any] = {"freeze_tokens": True, "search_by": "intermediate"}


def small(**changes: Any) -> AstecSettings:
    return settings_of("astec", changes={**SMALL, **changes})


def planted(points: int = 150, seed: int = 0) -> Part:
    """Points with one or two of eight labels, and features that tell the labels apart."""
    numbers = np.random.default_rng(seed)
    Y = np.zeros((points, 8), dtype=np.float32)
    for row in range(points):
        Y[row, numbers.choice(6, 2, replace=False) if row % 2 else [row // 2 % 8]] = 1
    informative = np.repeat(Y, 4, axis=1) * (numbers.random((points, 32)) < 0.7)
    noise = numbers.random((points, 10)) < 0.3
    return Part(csr_array(Y), X=csr_array(np.concatenate([informative, noise], axis=1).astype(np.float32)))


def model_of(part: Part, **changes: Any) -> Astec:
    return Astec(part.X.shape[1], part.Y.shape[1], small(**changes), seeded())


def learned(part: Part, validation: Part | None = None, **changes: Any) -> Astec:
    model = model_of(part, **changes)
    model.fit(Lesson(part, validation), Run())
    return model


def state(model: Astec) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def counted(monkeypatch: pytest.MonkeyPatch, method: str) -> list[int]:
    """Count calls of a method of `Network`."""
    plain, calls = getattr(Network, method), []

    def count(self: Network, *more: Any) -> Any:
        calls.append(len(calls))
        return plain(self, *more)

    monkeypatch.setattr(Network, method, count)
    return calls


# --- Settings ---------------------------------------------------------------------------------------------------------


def test_the_paper_has_the_values_of_the_authors_configuration():
    """EURLex-4K.json and Astec.json of their code; docs/papers/astec.md tells the rest."""
    paper = PRESETS["paper"]
    assert (paper.dimension, paper.token_init, paper.features, paper.residual, paper.biases) == (
        300, "fasttext", "relu", True, True,
    )  # fmt: skip
    assert (paper.cluster_count(3993), paper.module1_epochs, paper.module1_learning_rate) == (1024, 20, 0.01)
    assert (paper.width(3993), paper.gamma, paper.neighbours, paper.random_negatives) == (500, 0.075, 100, 200)
    assert (paper.epochs, paper.learning_rate, paper.batch_size, paper.beta) == (20, 0.007, 255, 0.3)
    assert (paper.dropout, paper.module1_dropout, paper.halve_learning_rate) == (0.5, 0.5, True)
    assert (paper.freeze_tokens, paper.search_by, paper.refresh_epochs, paper.negatives) == (
        True, "intermediate", None, "own",
    )  # fmt: skip
    assert (paper.reranker, paper.reranker_epochs, paper.reranker_learning_rate, TOP) == (True, 15, 0.005, 100)
    assert (paper.cosine, paper.loss, paper.smoothing, paper.index) == (False, "logistic", "clusters", "hnsw")


@pytest.mark.parametrize(
    ("labels", "clusters"), [(1, 1), (3, 1), (4, 2), (159, 64), (3993, 1024), (131_073, 65_536), (670_091, 65_536)]
)
def test_clusters_follow_the_labels(labels, clusters):
    assert AstecSettings().cluster_count(labels) == clusters
    assert AstecSettings(clusters=2).cluster_count(labels) == min(2, clusters)


def test_the_size_of_shortlists_follows_the_labels():
    assert [AstecSettings().width(labels) for labels in (8, 1000, 4271, 50_000)] == [8, 100, 214, 700]
    assert AstecSettings(shortlist_size=5).width(3) == 3


def test_many_labels_are_searched_by_hnsw_on_a_processor():
    kind = AstecSettings().kind
    assert [kind(rows, torch.device("cpu")) for rows in (50_000, 50_001)] == ["exact", "hnsw"]
    assert kind(10**6, torch.device("cuda")) == "exact"
    assert AstecSettings(index="ivf").kind(5, torch.device("cpu")) == "ivf"


@pytest.mark.parametrize(("changes", "apart", "frozen"), [
    ({}, False, False), ({"gamma": 0.1}, True, False), ({"search_by": "intermediate"}, True, False),
    ({"residual": False}, False, False), ({"residual": False, "search_by": "intermediate"}, False, False),
    ({"freeze_tokens": True}, False, False), ({"freeze_tokens": True, "residual": False}, False, True),
    ({"freeze_tokens": True, "search_by": "intermediate"}, True, True),
])  # fmt: skip
def test_whether_the_search_has_scores_of_its_own_and_whether_it_changes(changes, apart, frozen):
    settings = AstecSettings(**changes)
    assert (settings.searches_apart, settings.search_is_frozen) == (apart, frozen)


@pytest.mark.parametrize(("changes", "message"), [
    ({"clusters": 3}, "clusters must be a power of two; found 3"),
    ({"gamma": 1.5}, "gamma must be at least 0 and at most 1; found 1.5"),
    ({"freeze_tokens": True, "module1_epochs": 0}, "freeze_tokens=true and module1_epochs=0 leave random token vec"),
    ({"search_by": "middle"}, "search_by must be one of intermediate, final; found 'middle'"),
])  # fmt: skip
def test_settings_that_make_no_sense_are_refused(changes, message):
    with pytest.raises(ConfigError) as caught:
        settings_of("astec", changes=changes)
    assert str(caught.value).startswith(message)
    settings_of("astec", changes={"freeze_tokens": True, "module1_epochs": 0, "token_init": "fasttext"})


@pytest.mark.parametrize(("changes", "apart", "frozen"), [
    ({}, False, False), (FROZEN, True, True), ({"gamma": 0.1}, True, False), ({"freeze_tokens": True}, False, False),
    ({"search_by": "intermediate"}, True, False), ({**FROZEN, "residual": False}, False, True),
    ({"freeze_tokens": True, "residual": False}, False, True),
])  # fmt: skip
def test_which_searches_are_apart_from_the_classifiers_and_which_never_change(changes, apart, frozen):
    settings = small(**changes)
    assert (settings.searches_apart, settings.search_is_frozen) == (apart, frozen)


# --- Parts ------------------------------------------------------------------------------------------------------------


def test_a_step_of_a_walk_goes_to_labels_in_proportion_to_shared_points():
    Y = csr_array(np.array([[5, 5, 0, 0], [5, 0, 5, 0], [5, 5, 0, 0]], dtype=np.float32))  # stored entries count as 1
    expected = [[3 / 6, 2 / 6, 1 / 6, 0], [2 / 4, 2 / 4, 0, 0], [1 / 2, 0, 1 / 2, 0], [0, 0, 0, 0]]
    np.testing.assert_allclose(walk_step(Y).toarray(), expected, rtol=1e-6)


@pytest.mark.parametrize("cosine", [True, False])
def test_biases_are_added_to_scores(cosine):
    with_biases = OneVsAll(4, 6, cosine, seeded(), biases=True)
    plain = OneVsAll(4, 6, cosine, seeded())
    points, labels = torch.randn(3, 6, generator=seeded(1)), torch.tensor([1, 3])
    torch.testing.assert_close(with_biases(points, labels), plain(points, labels))  # biases start at 0
    with_biases.biases.rows.copy_(torch.tensor([[1.0], [2.0], [3.0], [4.0]]))
    torch.testing.assert_close(with_biases(points, labels), plain(points, labels) + torch.tensor([2.0, 4.0]))
    scale, offset = with_biases.scale_and_offset()
    torch.testing.assert_close(offset - plain.scale_and_offset()[1], torch.tensor([1.0, 2.0, 3.0, 4.0]))
    assert with_biases.scaled(None).shape == (4, 6 + EXTRA)
    assert with_biases.widened(points).shape == (3, 6 + EXTRA)
    assert torch.equal(plain.widened(points), points)
    with_biases.grow(2, seeded())
    assert with_biases.biases.rows.flatten().tolist() == [1, 2, 3, 4, 0, 0]
    assert scale == plain.scale


@pytest.mark.parametrize("features", ["relu", "signed"])
@pytest.mark.parametrize("cosine", [True, False])
def test_features_are_the_same_in_training_and_prediction(features, cosine):
    network = Network(42, 8, small(features=features, cosine=cosine, dropout=0.0), seeded())
    for number, parameter in enumerate(network.features.block.parameters()):
        parameter.detach().normal_(0, 1, generator=seeded(number))
    for _ in range(30):  # until the singular vector is found
        network.features.block.train().spectral()
    points = bags(planted().X)
    expected = network.features.eval()(points, seeded())
    torch.testing.assert_close(network.features.prediction_encoder()(points), expected, rtol=1e-4, atol=1e-5)
    alone = network.features.prediction_encoder()(bags(planted().X[[3]]))
    assert torch.equal(alone[0], network.features.prediction_encoder()(points)[3])
    assert bool((expected >= 0).all()) is (features == "relu")


# --- Training ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "floor"), [
    ({}, 0.9),
    # four clusters of two labels each do not tell all labels apart
    ({**FROZEN, "features": "relu", "gamma": 0.1, "module1_epochs": 10, "module1_dropout": 0.1}, 0.6),
])  # fmt: skip
def test_it_learns_what_was_planted(changes, floor):
    test = planted(100, seed=1)
    ranking = learned(planted(300), epochs=10, **changes).predictor().rank(test.X, 1)
    assert np.asarray(test.Y[np.arange(100), ranking.ids[:, 0]]).mean() > floor


@pytest.mark.parametrize(("changes", "placed", "listed"), [
    ({"refresh_epochs": 1}, 5, 4), ({"refresh_epochs": 2}, 3, 2), ({"refresh_epochs": None}, 2, 1), (FROZEN, 1, 1),
    ({"refresh_epochs": 3}, 3, 2), ({"negatives": "all"}, 5, 0), ({**FROZEN, "refresh_epochs": 1}, 1, 1),
])  # fmt: skip
def test_how_often_labels_are_placed_and_shortlists_made(monkeypatch, changes, placed, listed):
    """Before the first of four epochs, after every `refresh_epochs`, and at the end; never again if v is frozen."""
    places, lists = counted(monkeypatch, "place_labels"), counted(monkeypatch, "shortlists")
    learned(planted(), **changes)
    assert (len(places), len(lists)) == (placed, listed)


@pytest.mark.parametrize("best", range(4))
def test_labels_are_placed_again_if_the_best_epoch_lies_between_refreshes(monkeypatch, best):
    qualities, places = iter(float(epoch == best) for epoch in range(4)), counted(monkeypatch, "place_labels")
    monkeypatch.setattr(astec, "ndcg_at_5", lambda learner, part: next(qualities))
    learned(planted(), planted(40, seed=1), refresh_epochs=2, beta=0.5)
    assert len(places) == 3 + (best in (0, 2))  # of 4 epochs, the first and the third


@pytest.mark.parametrize("changes", [{}, FROZEN, {"refresh_epochs": 3}, {"refresh_epochs": None, "gamma": 0.2}])
def test_centroids_and_documents_are_those_of_the_final_features(changes):
    part = planted()
    model = learned(part, **changes)
    (network,) = model.all_networks()
    before = {name: value.clone() for name, value in network.centroids.named_buffers()}
    network.place_labels(part, model.documents.X, 0)
    for name, value in network.centroids.named_buffers():
        torch.testing.assert_close(value, before[name], rtol=1e-4, atol=1e-6)
    assert len(before["documents"]) == (len(part) if model.settings.gamma else 0)
    assert network.index is not None


def test_frozen_token_vectors_are_those_of_module_1(monkeypatch):
    plain, kept = Astec.module_1, []

    def remembered(self: Astec, network: Network, *more: Any) -> None:
        plain(self, network, *more)
        kept.append(network.features.tokens.rows.clone())

    monkeypatch.setattr(Astec, "module_1", remembered)
    for frozen in (True, False):
        model = learned(planted(), freeze_tokens=frozen)
        assert torch.equal(model.all_networks()[0].features.tokens.rows, kept.pop()) is frozen


def test_the_offset_is_set_on_held_out_points_in_each_epoch_and_at_the_end(monkeypatch):
    seen, plain = [], astec_network.matching_offset
    monkeypatch.setattr(
        astec_network, "matching_offset", lambda part, score: seen.append(len(part)) or plain(part, score)
    )
    learned(planted(100), planted(20, seed=1), epochs=2, module1_epochs=0)
    assert seen == [20, 20, 20]


@pytest.mark.parametrize("loss", ["logistic", "decoupled"])
def test_the_offset_matches_the_number_of_labels_after_the_decoupled_loss(loss):
    part = planted()
    (network,) = learned(part, loss=loss).all_networks()
    (scale, offset), W = network.classifier.scale_and_offset(), network.classifier.composed()
    logits = scale * network.encoded(part.X, network.features.prediction_encoder()) @ W.T + offset
    expected = float(torch.sigmoid(logits).sum())
    assert (abs(expected - part.Y.nnz) < 0.5) is (loss == "decoupled")


def test_beta_is_chosen_on_validation_and_the_search_has_its_own_vectors():
    part, held_out = planted(), planted(60, seed=2)
    model = learned(part, held_out, search_by="intermediate")
    (network,), lesson = model.all_networks(), Lesson(part, held_out)
    figures = figures_by_beta(model.learner(network), held_out, lesson)
    totals = {beta: sum(row[f"P@{k}"] for k in (1, 3, 5)) for beta, row in figures.items()}
    assert totals[network.beta] >= max(totals.values()) - 0.3
    network.beta = 0.4
    ranking = model.predictor().rank(held_out.X, 1)
    assert figures[0.4]["P@1"] == pytest.approx(
        100 * np.mean(np.asarray(held_out.Y[np.arange(60), ranking.ids[:, 0]]).ravel())
    )
    assert learned(part, held_out, beta=0.15).all_networks()[0].beta == 0.15
    assert learned(part).all_networks()[0].beta == 0.75


def test_beta_is_chosen_on_the_candidates_of_prediction(monkeypatch):
    part, held_out = planted(), planted(60, seed=2)
    model = learned(part, held_out, search_by="intermediate", shortlist_size=3, beta=0.5)
    learner, seen = model.learners()[0], []
    plain = MixedClassifier.probabilities

    def probabilities(self: MixedClassifier, queries: Tensor, ids: Tensor, listed: Tensor, *more: Any) -> Any:
        seen.append((ids, listed))
        return plain(self, queries, ids, listed, *more)

    monkeypatch.setattr(MixedClassifier, "probabilities", probabilities)
    figures_by_beta(learner, held_out, Lesson(part, held_out))
    learner.rank(held_out.X, 3)
    (ids, scores), (ranked, true) = seen
    assert torch.equal(ids, ranked)
    assert torch.equal(scores, true)


def test_module_1_is_validated_on_clusters_and_module_4_on_labels(tmp_path):
    model, run = model_of(planted()), Run(tmp_path)
    run.open({})
    model.fit(Lesson(planted(), planted(60, seed=2)), run)
    lines = [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]
    metrics = {line["stage"]: line["metric"] for line in lines if "metric" in line}
    assert metrics == {"module-1-0": "P@1 of clusters", "module-4-0": "nDCG@5"}
    shares = [line["validation"] for line in lines if line["stage"] == "module-1-0"]
    assert 0.5 < max(shares) <= 1
    recalls = [line["recall"] for line in lines if "recall" in line]
    assert len(recalls) == 4
    assert all(0.8 < recall <= 1 for recall in recalls)


def test_recall_is_measured_on_evenly_spaced_points_only(monkeypatch):
    network, part = Network(42, 8, small(), seeded()), planted(101)
    near = torch.full((101, 1), -1, dtype=torch.int32)
    for row in (0, 1, 2, 50):  # the first right label of each
        near[row] = int(part.Y[[row]].indices[0])
    monkeypatch.setattr(astec_network, "JUDGED", 3)
    assert network.recall(part, near) == pytest.approx(2 / part.Y[[0, 50, 100]].nnz)


def test_given_token_vectors_start_all_learners(monkeypatch):
    given = torch.randn(42, 16, generator=seeded(5))
    monkeypatch.setattr(token_starts, "token_vectors", lambda *_: given)
    starts = []
    monkeypatch.setattr(
        Astec, "module_1", lambda self, network, *_: starts.append(network.features.tokens.rows.clone())
    )
    learned(planted(), learners=2, token_init="given.vec")
    expected = given / given.square().mean().sqrt() * 16**-0.5
    assert len(starts) == 2
    for rows in starts:
        torch.testing.assert_close(rows, expected)


# --- Interruption and resuming ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("changes", "times", "stage"), [
    ({}, 1, "module-1-0"), ({}, 2, "module-4-0"), ({}, 4, "module-4-0"), ({"refresh_epochs": 2}, 3, "module-4-0"),
    ({"gamma": 0.2, "refresh_epochs": 3}, 2, "module-4-0"), ({**FROZEN, "gamma": 0.2}, 1, "module-4-0"),
    ({"learners": 2}, 1, "module-4-1"),
])  # fmt: skip
def test_a_resumed_run_ends_like_an_undisturbed_one(tmp_path, changes, times, stage):
    part, held_out = planted(), planted(60, seed=2)

    def run_of(folder: Path) -> Run:
        run = Run(folder, seed=3)
        run.open({})
        return run

    undisturbed = model_of(part, **changes)
    undisturbed.fit(Lesson(part, held_out), run_of(tmp_path / "whole"))
    first, stopped = model_of(part, **changes), run_of(tmp_path / "stopped")
    stops_after(times, f"{stage}.checkpoint")(stopped)
    with pytest.raises(Stop):
        first.fit(Lesson(part, held_out), stopped)
    again = model_of(part, **changes)
    again.fit(Lesson(part, held_out), run_of(tmp_path / "stopped"))
    assert same(state(again), state(undisturbed))
    assert [network.beta for network in again.all_networks()] == [n.beta for n in undisturbed.all_networks()]


def test_only_the_last_shortlists_stay_in_the_folder(tmp_path):
    run = Run(tmp_path)
    run.open({})
    model_of(planted(), refresh_epochs=1).fit(Lesson(planted()), run)
    assert sorted(path.stem for path in tmp_path.glob("shortlists-*")) == ["shortlists-0-3"]


def interrupted_in(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    plain = astec.train

    def train(run: Run, name: str, *more: Any) -> Outcome:
        outcome = plain(run, name, *more)
        outcome.interrupted = name == stage
        return outcome

    monkeypatch.setattr(astec, "train", train)


@pytest.mark.parametrize(("stage", "left"), [("module-1-1", 1), ("module-4-1", 2), ("module-4-0", 1)])
def test_ctrl_c_leaves_the_learners_that_can_rank(monkeypatch, stage, left):
    interrupted_in(monkeypatch, stage)
    model = model_of(planted(), learners=3)
    assert model.fit(Lesson(planted()), Run()).interrupted
    assert len(model.learners()) == left
    assert model.predictor().rank(planted().X, 3).ids.min() >= 0


def test_ctrl_c_in_the_first_module_leaves_nothing(monkeypatch):
    interrupted_in(monkeypatch, "module-1-0")
    with pytest.raises(KeyboardInterrupt):
        learned(planted())


def test_learners_in_turn_add_up():
    outcomes = [Outcome(0.5, 1, 3, 2.0, metric="P@1"), Outcome(0.7, 2, 4, 5.0, metric="P@1")]
    count, whole = in_turn(lambda number: outcomes[number], 2)
    assert (count, whole) == (2, Outcome(0.5, 1, 7, 7.0, False, "P@1"))


# --- Re-ranker --------------------------------------------------------------------------------------------------------


def test_the_re_ranker_learns_from_all_learners_together(monkeypatch):
    part, seen = planted(), []
    plain = Reranker.fit

    def fit(self: Reranker, predictor: Any, lesson: Lesson, k: int, schedule: Schedule, run: Run) -> Outcome:
        seen.append((predictor, k, schedule))
        return plain(self, predictor, lesson, k, schedule, run)

    monkeypatch.setattr(Reranker, "fit", fit)
    given = {"reranker": True, "reranker_epochs": 3, "reranker_learning_rate": 0.03, "freeze_tokens": True}
    model = learned(part, learners=2, **given)
    ((predictor, k, schedule),) = seen
    assert isinstance(predictor, Ensemble)
    assert (k, schedule.epochs, schedule.learning_rate) == (6, 3, 0.03)
    reranked = model.predictor()
    assert isinstance(reranked, RerankedPredictor)
    assert (reranked.k, len(reranked.main.learners)) == (6, 2)
    start = model.new_reranker(Run())
    assert not torch.equal(model.reranker.encoder.tokens.rows, start.encoder.tokens.rows)  # its own tokens learn
    assert not any(model.reranker.encoder.tokens is network.features.tokens for network in model.all_networks())


def test_a_re_ranker_is_saved_grows_and_resumes(tmp_path):
    part = planted()
    model = model_of(part, reranker=True)
    run = Run(tmp_path)
    run.open({})
    stops_after(1, "reranker.checkpoint")(run)
    with pytest.raises(Stop):
        model.fit(Lesson(part), run)
    run = Run(tmp_path)
    run.open({})
    model = model_of(part, reranker=True)
    model.fit(Lesson(part), run)
    assert same(state(model), state(learned(part, reranker=True)))
    again = Astec.restored(42, 8, model.settings, model.tensors())
    one, other = (each.predictor().rank(part.X, 8) for each in (model, again))
    np.testing.assert_array_equal(one.scores, other.scores)
    again.add_labels(2, seeded(1))
    again.add_features(3, seeded(2))
    assert again.reranker.classifier.labels.rows.shape == (10, 16)
    assert again.reranker.encoder.tokens.rows.shape == (45, 16)


def test_ctrl_c_before_the_re_ranker_leaves_the_learners(monkeypatch):
    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reranker, "fit", stop)
    model = model_of(planted(), reranker=True)
    assert model.fit(Lesson(planted()), Run()).interrupted
    assert isinstance(model.predictor(), Learner)


# --- Warm fits, documents and new labels ------------------------------------------------------------------------------


def test_a_warm_fit_skips_module_1_and_keeps_what_it_is_not_told_about(monkeypatch):
    part = planted()
    model = learned(part, **FROZEN)
    (network,) = model.all_networks()
    before = network.centroids.vectors.clone()
    monkeypatch.setattr(Astec, "module_1", None)
    monkeypatch.setattr(network.features.block, "reset", None)
    some = part.take(np.flatnonzero(part.Y[:, [7]].toarray().ravel() == 0)[:40])  # none with the last label
    model.fit(Lesson(some), Run(seed=1))
    assert torch.equal(network.centroids.vectors[7], before[7])
    assert not torch.equal(network.centroids.vectors[:6], before[:6])
    assert model.counts.tolist() == (np.diff(part.Y.tocsc().indptr) + np.diff(some.Y.tocsc().indptr)).tolist()


def test_a_warm_fit_adds_new_documents_and_no_known_ones():
    part, more = planted(), planted(40, seed=9)
    model = learned(part, gamma=0.2)
    both = Part(csr_array(np.concatenate([part.Y[:20].toarray(), more.Y.toarray()])),
                X=csr_array(np.concatenate([part.X[:20].toarray(), more.X.toarray()])))  # fmt: skip
    model.fit(Lesson(both), Run(seed=1))
    assert len(model.documents) == 190
    np.testing.assert_array_equal(model.documents.X[150:].toarray(), more.X.toarray())
    np.testing.assert_array_equal(model.documents.Y[150:].toarray(), more.Y.toarray())
    (network,) = model.all_networks()
    lengths = network.centroids.documents.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(190))
    assert model.documents.X.dtype == model.documents.Y.dtype == np.float32
    assert learned(part).documents.Y.shape == (0, 8)


def test_a_label_without_points_has_no_centroid():
    part = planted()
    Y = part.Y.toarray()
    Y[:, 7] = 0
    model = learned(Part(csr_array(Y), X=part.X))
    assert model.all_networks()[0].centroids.vectors.any(dim=1).tolist() == [True] * 7 + [False]
    assert set(model.predictor().rank(part.X, 8).ids.ravel()) == set(range(8))


def test_new_labels_and_tokens_are_learned_by_a_warm_fit():
    part = planted()
    model = learned(part, gamma=0.2)
    model.add_labels(1, seeded(1))
    model.add_features(3, seeded(2))
    Y = np.concatenate([part.Y.toarray(), np.zeros((150, 1), dtype=np.float32)], axis=1)
    X = np.concatenate([part.X.toarray(), np.zeros((150, 3), dtype=np.float32)], axis=1)
    Y[:30], X[:30] = 0, 0
    Y[:30, 8], X[:30, 42:] = 1, 1
    assert model.predictor().rank(csr_array(X), 9).ids.shape == (150, 9)
    model.fit(Lesson(Part(csr_array(Y), X=csr_array(X))), Run(seed=1))
    assert model.predictor().rank(csr_array(X[:1]), 1).ids.item() == 8
    assert (model.label_count, model.features) == (9, 45)


def test_frozen_token_vectors_take_no_new_words():
    assert not Astec.abilities(small(**FROZEN)).takes_new_words
    assert Astec.abilities(small()).takes_new_words


# --- Saving, plans and the tagger -------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"gamma": 0.2, "index": "hnsw"}, {"learners": 2, **FROZEN, "gamma": 0.1}])
def test_a_restored_model_ranks_the_same(changes):
    part = planted()
    model = learned(part, **changes)
    for number, network in enumerate(model.all_networks()):
        network.beta = 0.3 + number / 10  # as validation may have chosen it
    saved = model.tensors()
    assert any(name.startswith("documents.X") for name in saved.train) is bool(model.settings.gamma)
    copies = ({name: value.clone() for name, value in tensors.items()} for tensors in (saved.serve, saved.train))
    again = Astec.restored(42, 8, model.settings, Tensors(*copies))
    one, other = (each.predictor().rank(part.X, 8) for each in (model, again))
    np.testing.assert_array_equal(one.ids, other.ids)
    np.testing.assert_array_equal(one.scores, other.scores)
    for network in again.all_networks():
        assert isinstance(network.index, HnswIndex if "index" in changes else ExactIndex)
        assert (network.documents is not None) is bool(model.settings.gamma)
    for each in (model, again):  # where classifiers are stored as unit vectors, and get their lengths back
        each.fit(Lesson(part), Run(seed=1))
    for one, other in zip(model.all_networks(), again.all_networks(), strict=True):
        torch.testing.assert_close(other.classifier.labels.rows, one.classifier.labels.rows, rtol=1e-3, atol=1e-4)


def test_fewer_learners_than_asked_for_are_restored(monkeypatch):
    interrupted_in(monkeypatch, "module-4-1")
    model = learned(planted(), learners=3)
    again = Astec.restored(42, 8, model.settings, model.tensors())
    assert len(again.learners()) == 2


def test_new_tokens_and_labels_are_as_long_as_old_ones():
    model = model_of(planted(), dimension=400, reranker=True)
    model.reranker = model.new_reranker(Run())
    model.add_features(5, seeded())
    model.add_labels(5, seeded())
    (network,) = model.all_networks()
    tables = [network.features.tokens, network.classifier.labels]
    tables += [model.reranker.encoder.tokens, model.reranker.classifier.labels]
    for table in tables:
        torch.testing.assert_close(table.rows[-5:].norm(dim=1), torch.ones(5), rtol=0.15, atol=0)


@pytest.mark.parametrize("token_init", ["random", "fasttext"])
def test_a_re_ranker_starts_from_given_token_vectors_but_not_from_random_ones(token_init):
    model = model_of(planted(), token_init=token_init, reranker=True)
    own = model.all_networks()[0].features.tokens.rows
    assert torch.equal(model.new_reranker(Run()).encoder.tokens.rows, own) == (token_init != "random")


def test_a_rehearsal_takes_the_time_of_its_documents_only():
    part = planted()
    assert model_of(part, gamma=0.0).complete(Lesson(part), part) == 0
    assert 0 < learned(part, gamma=0.2).complete(Lesson(part), part) < 60


def test_the_cost_counts_shortlists_and_documents():
    part = planted()
    assert model_of(part).cost(Lesson(part)).bytes_a_point == 4 * 6
    assert model_of(part, gamma=0.1, learners=2).cost(Lesson(part)).bytes_a_point == 4 * (6 + 2 * 16)


def test_points_without_known_tokens_get_frequent_labels():
    part = planted()
    ranking = learned(part, gamma=0.1, **FROZEN).predictor().rank(csr_array((1, 42), dtype=np.float32), 3)
    often = np.argsort(-np.bincount(part.Y.indices), kind="stable")
    assert ranking.ids[0].tolist() == often[:3].tolist()
    assert float(ranking.scores.max()) < 1e-5
