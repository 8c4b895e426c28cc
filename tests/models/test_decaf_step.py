"""DECAF as a whole: a step of Modules I, II and IV, and prediction, against slow twins in every branch of settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import reference
import reference_decaf
import torch
from reference_decaf import Frame, Weights
from scipy.sparse import csr_array
from steps import Stage, assert_same_step, disturb, labels_in, measured, seeded, texts_of, weights_of
from torch import nn

from zipfel.data.dataset import Part
from zipfel.models import decaf, decaf_network
from zipfel.models.base import Lesson
from zipfel.models.decaf import Decaf
from zipfel.models.decaf_settings import PRESETS, DecafSettings
from zipfel.models.learner import UNLISTED
from zipfel.nn import encoders
from zipfel.training.run import Run
from zipfel.training.trainer import Objective, Outcome

pytestmark = pytest.mark.usefixtures("one_thread")

POINTS, TOKENS, LABELS, WIDTH, CLUSTERS, BEAM = 30, 7, 8, 3, 4, 2
ROWS = [0, 2, 3, 11, 20]
SCALES = ("alpha", "beta")
OURS = {"cosine": True, "relu": False, "loss": "decoupled", "add_missed_labels": True}
PAPER: dict[str, Any] = {
    "dimension": WIDTH, "learners": 1, "shortlist": "beam", "clusters": CLUSTERS, "beam": BEAM, "loss": "logistic",
    "add_missed_labels": False, "cosine": False, "relu": True, "boost_rare_labels": False, "dropout": 0.0,
    "module1_dropout": 0.0, "module1_epochs": 3, "min_steps": 1,
}  # fmt: skip


@pytest.fixture
def part() -> Part:
    numbers = np.random.default_rng(1)
    X = numbers.random((POINTS, TOKENS)) * (numbers.random((POINTS, TOKENS)) < 0.5)
    X[:, 0] += 0.5
    Y = np.zeros((POINTS, LABELS))
    for row in range(POINTS):
        Y[row, numbers.choice(LABELS, numbers.integers(1, 4), replace=False)] = 1
    return Part(csr_array(Y.astype(np.float32)), X=csr_array(X.astype(np.float32)))


@pytest.fixture
def filtered_part(part) -> Part:
    """The same points with pairs that do not count."""
    excluded = (np.random.default_rng(4).random((POINTS, LABELS)) < 0.4) & (part.Y.toarray() == 0)
    return replace(part, filtered=csr_array(excluded.astype(np.float32)))


@pytest.fixture
def Z() -> csr_array:  # noqa: N802
    numbers = np.random.default_rng(2)
    texts = numbers.random((LABELS, TOKENS)) * (numbers.random((LABELS, TOKENS)) < 0.4)
    texts[:, 1] += 0.3
    return csr_array(texts.astype(np.float32))


def frame_of(changes: dict[str, Any]) -> Frame:
    known = {field.name for field in fields(Frame)}
    return Frame(**{name: value for name, value in {**PAPER, **changes}.items() if name in known})


def by_pattern(values: torch.Tensor, share: float, generator: torch.Generator | None, own: None = None) -> torch.Tensor:
    """Drop numbers by the twin's pattern."""
    if generator is None:
        return values
    kept = [[reference_decaf.kept(row, column, share) for column in range(WIDTH)] for row in range(len(values))]
    return values * torch.tensor(kept)


class Fitted(NamedTuple):
    model: Decaf
    stages: dict[str, Stage]  # as they begin
    later: dict[str, Stage]  # after learning
    centroids: list[Any]  # that labels were clustered by
    clusters: list[list[list[int]]]  # labels of each cluster


@pytest.fixture
def fitted(part, Z, monkeypatch) -> Callable[..., Fitted]:
    """Fit a model in which each stage is measured, and then random weights take the place of learning."""

    def fit(part: Part = part, **changes: Any) -> Fitted:
        model = Decaf(TOKENS, LABELS, DecafSettings(**{**PAPER, **changes}), seeded())
        found = Fitted(model, {}, {}, [], [])
        plain = decaf.balanced_clusters

        def clustered(centroids: Any, *more: Any) -> Any:
            of_labels = plain(centroids, *more)
            found.centroids.append(centroids)
            found.clusters.append([np.flatnonzero(of_labels == m).tolist() for m in range(of_labels.max() + 1)])
            return of_labels

        def trained(run: Run, stage: str, module: nn.Module, points: Any, objective: Objective, *more: Any) -> Outcome:
            found.stages[stage] = measured(module, objective, ROWS)
            disturb(module, len(found.stages))
            found.later[stage] = measured(module, objective, ROWS)
            module.eval()
            return Outcome(None, -1, 1, 0.0)

        monkeypatch.setattr(decaf, "balanced_clusters", clustered)
        monkeypatch.setattr(decaf, "train", trained)
        model.fit(Lesson(part, Z=Z), Run())
        return found

    return fit


def opened_by(found: Fitted, x: list[float]) -> dict[int, tuple[list[int], float]]:
    """Labels that S, as Module II left it, opens for x̂: by cluster (leaf, label), with its product."""
    shortlister = found.model.networks[0].shortlister
    heads, beam = shortlister.heads.double().tolist(), int(shortlister.beam)
    if found.model.settings.shortlist == "parabel":
        return reference.tree(x, heads, shortlister.clusters.tolist(), beam)
    if found.model.settings.shortlist == "hnsw":
        return reference.beam(x, heads, range(LABELS), beam)
    x = [*x, 1.0] if found.model.settings.label_bias else x
    owners = [m for label in range(LABELS) for m, own in enumerate(found.clusters[-1]) if label in own]
    return reference.beam(x, heads, owners, beam)


def labels_opened(found: Fitted, part: Part, rows: list[int], frame: Frame) -> list[set[int]]:
    if frame.shortlist == "none":
        return [set(range(LABELS))] * len(rows)
    weights = weights_of(found.model.networks[0].shortlister)
    opened = [opened_by(found, reference_decaf.document(x, weights, frame)) for x in texts_of(part.X[rows])]
    return [{label for labels, _ in some.values() for label in labels} for some in opened]


# --- Training ---------------------------------------------------------------------------------------------------------

BRANCHES: list[dict[str, Any]] = [
    {}, {"label_bias": True, "unit_cluster_texts": True}, {"cosine": True}, {"relu": False}, {"residual": False},
    {"refinement": False}, {"label_text": False}, {"text_in_classifiers": False}, {"refinement_init": "random"},
    {"dropout": 0.25}, {"module1_dropout": 0.5}, {"residual": False, "dropout": 0.25}, {"relu": False, "dropout": 0.25},
    {"loss": "decoupled"}, {"loss": "decoupled", "add_missed_labels": True}, {"add_missed_labels": True}, OURS,
    {**OURS, "label_bias": True}, {"lite": True}, {"shortlist": "none"}, {"shortlist": "none", "label_bias": True},
    {"shortlist": "none", "loss": "decoupled"}, {**OURS, "shortlist": "none"}, {"shortlist": "none", "dropout": 0.25},
    {"shortlist": "hnsw"}, {"shortlist": "parabel"}, {"shortlist": "hnsw", "label_bias": True, "relu": False},
    {"module1": False, "unit_cluster_texts": True},
]  # fmt: skip
each_branch = pytest.mark.parametrize("changes", BRANCHES, ids=str)


@pytest.fixture
def dropped_by_pattern(monkeypatch) -> None:
    monkeypatch.setattr(encoders, "dropped", by_pattern)
    monkeypatch.setattr(decaf_network, "dropped", by_pattern)


def assert_same_stage(found: Fitted, stage: str, name: str, loss: Callable[[Weights], float]) -> None:
    """Compare a stage's step as it begins, and after random learning, when no two weights are alike."""
    assert_same_step(found.stages[stage], name, loss)
    assert_same_step(found.later[stage], name, loss)


def with_frozen_tokens(loss: Callable[[Weights], float], found: Fitted) -> Callable[[Weights], float]:
    """Return the twin of a stage that does not learn token vectors (DECAF-lite), which has them from Module I."""
    tokens = {"tokens.rows": weights_of(found.model.networks[0])["tokens.rows"]}
    return (lambda weights: loss({**tokens, **weights})) if found.model.settings.lite else loss


@each_branch
def test_a_step_of_each_module_in_every_branch(part, Z, fitted, dropped_by_pattern, changes):
    found, frame = fitted(**changes), frame_of(changes)
    points, truth, texts = texts_of(part.X[ROWS]), labels_in(part.Y, ROWS), texts_of(Z)
    clustered = iter(found.clusters)
    if "module-1" in found.stages:
        first = next(clustered)

        def loss_1(weights: Weights) -> float:
            H = reference_decaf.clusters_by_text(weights, texts, first, frame)
            return reference_decaf.clusters_loss(points, truth, first, H, weights, frame, frame.module1_dropout)

        assert_same_stage(found, "module-1", "meta", loss_1)
    if frame.shortlist != "none":
        second = next(clustered)

        def loss_2(weights: Weights) -> float:
            H = reference_decaf.clusters_refined(weights, texts, second, frame)
            return reference_decaf.clusters_loss(points, truth, second, H, weights, frame, frame.dropout)

        assert_same_stage(found, "module-2-0", "meta", with_frozen_tokens(loss_2, found))
    lists = labels_opened(found, part, ROWS, frame)
    if changes.get("add_missed_labels"):
        lists = [near | right for near, right in zip(lists, truth, strict=True)]
    elif frame.shortlist == "beam":
        assert any(right - near for right, near in zip(truth, lists, strict=True))  # missed labels do not count

    def loss_4(weights: Weights) -> float:
        return reference_decaf.labels_loss(points, truth, lists, [set()] * len(ROWS), texts, weights, frame)

    assert_same_stage(found, "module-4-0", frame.loss, with_frozen_tokens(loss_4, found))


@pytest.mark.parametrize("shortlist", ["beam", "none"])
@pytest.mark.parametrize("loss", ["logistic", "decoupled"])
@pytest.mark.parametrize("missed", [True, False])
def test_filtered_pairs_count_in_no_step_of_module_4(filtered_part, Z, fitted, shortlist, loss, missed):
    changes = {"shortlist": shortlist, "loss": loss, "add_missed_labels": missed}
    found, frame = fitted(filtered_part, **changes), frame_of(changes)
    points, truth, texts = texts_of(filtered_part.X[ROWS]), labels_in(filtered_part.Y, ROWS), texts_of(Z)
    out, lists = labels_in(filtered_part.filtered, ROWS), labels_opened(found, filtered_part, ROWS, frame)
    if missed:
        lists = [near | right for near, right in zip(lists, truth, strict=True)]

    def twin(weights: Weights) -> float:
        return reference_decaf.labels_loss(points, truth, lists, out, texts, weights, frame)

    assert_same_stage(found, "module-4-0", loss, twin)


def test_stages_come_in_the_order_of_the_modules(fitted):
    modules = ["module-2-0", "module-4-0", "module-2-1", "module-4-1"]
    assert list(fitted(learners=2).stages) == ["module-1", *modules]
    assert list(fitted(learners=2, module1=False).stages) == modules
    assert list(fitted(shortlist="none").stages) == ["module-4-0"]
    assert list(fitted(shortlist="none", lite=True).stages) == ["module-1", "module-4-0"]


def test_module_1_clusters_sparse_centroids_and_module_2_dense_ones(part, fitted):
    """c_l = Σ x_i, and then c_l = Σ E x_i with the E that Module I has learned."""
    found = fitted()
    sparse, dense = found.centroids
    X, Y = part.X.toarray().astype(float), part.Y.toarray()
    E = np.array(found.stages["module-2-0"].before["tokens.rows"])
    for label in range(LABELS):
        own = [X[row] for row in range(POINTS) if Y[row, label]]
        np.testing.assert_allclose(sparse.toarray()[label], sum(own), rtol=1e-5)
        np.testing.assert_allclose(dense[label], sum(x @ E for x in own), rtol=1e-4, atol=1e-5)
    assert sparse.shape == (LABELS, TOKENS)
    assert dense.shape == (LABELS, WIDTH)


def test_module_1_starts_with_random_tokens_and_identities(fitted):
    before = fitted().stages["module-1"].before
    for block in ("document_block", "label_block"):
        np.testing.assert_array_equal(before[f"{block}.R"], np.eye(WIDTH))
        assert before[f"{block}.alpha"] == before[f"{block}.beta"] == [[0.0] * WIDTH]
    assert np.abs(before["tokens.rows"]).min() > 0


@pytest.mark.parametrize("unit", [True, False])
def test_module_2_starts_where_module_1_ends(Z, fitted, unit):
    """E, E_D and E_L go on; α̃ = β̃ = 0, û² = E u_m, and a bias of 0."""
    changes = {"unit_cluster_texts": unit, "label_bias": True}
    found = fitted(**changes)
    first, second = found.later["module-1"].before, found.stages["module-2-0"].before
    assert {name: rows for name, rows in second.items() if "heads" not in name} == {
        name: rows for name, rows in first.items() if "heads" not in name
    }
    assert second["heads.combination.alpha"] == second["heads.combination.beta"] == [[0.0] * WIDTH]
    assert second["heads.bias"] == [[0.0] * CLUSTERS]
    assert "heads.bias" not in first
    for own, refined in zip(found.clusters[1], second["heads.refinement.rows"], strict=True):
        text = reference_decaf.cluster_text(texts_of(Z), own, frame_of(changes))
        np.testing.assert_allclose(refined, reference_decaf.tokens_of(text, second), atol=1e-5)


@pytest.mark.parametrize(("changes", "at_text"), [
    ({"text_in_classifiers": False}, True),
    ({"text_in_classifiers": False, "refinement_init": "random"}, False),
    ({"refinement_init": "random"}, True),  # as the paper has it: of labels, not of clusters
])  # fmt: skip
def test_where_refinement_of_clusters_starts(Z, fitted, changes, at_text):
    found = fitted(**changes)
    before = found.stages["module-2-0"].before
    wanted = [
        reference_decaf.tokens_of(reference_decaf.cluster_text(texts_of(Z), own, frame_of(changes)), before)
        for own in found.clusters[1]
    ]
    assert np.allclose(before["heads.refinement.rows"], wanted, atol=1e-5) == at_text


@pytest.mark.parametrize("shortlist", ["beam", "none"])
def test_module_3_starts_module_4(Z, fitted, shortlist):
    """R = I in both blocks, α_L = β_L = 0, ẑ² = E z, a bias of 0; E, α and β of the blocks, and S stay as they are."""
    found = fitted(label_bias=True, shortlist=shortlist)
    before = found.stages["module-4-0"].before
    for block in ("document_block", "label_block"):
        np.testing.assert_array_equal(before[f"{block}.R"], np.eye(WIDTH))
    assert before["combination.alpha"] == before["combination.beta"] == [[0.0] * WIDTH]
    np.testing.assert_allclose(before["refinement.rows"], Z.toarray() @ np.array(before["tokens.rows"]), atol=1e-5)
    assert before["bias.rows"] == [[0.0]] * LABELS
    if shortlist == "none":
        return
    ended = found.later["module-2-0"].before
    for name in ("tokens.rows", *(f"{part}.{scale}" for part in ("document_block", "label_block") for scale in SCALES)):
        assert before[name] == ended[name]
    shortlister = weights_of(found.model.networks[0].shortlister)
    assert before["tokens.rows"] == shortlister["tokens.rows"]
    assert shortlister["document_block.R"] == ended["document_block.R"] != before["document_block.R"]


def test_random_refinement_is_not_at_the_texts(Z, fitted):
    before = fitted(refinement_init="random").stages["module-4-0"].before
    far = np.abs(np.array(before["refinement.rows"]) - Z.toarray() @ np.array(before["tokens.rows"]))
    assert far.max(axis=1).min() > 0.01


@pytest.mark.parametrize("lite", [True, False])
def test_learners_share_module_1_and_nothing_later(fitted, lite):
    """With `lite`, token vectors are one table for all, which Modules II and IV leave as it is."""
    found = fitted(learners=2, lite=lite)
    first, one, two = (found.stages[name].before for name in ("module-1", "module-2-0", "module-2-1"))
    ended = found.later["module-1"].before
    for name in (name for name in two if "heads" not in name):
        assert two[name] == ended[name] == one[name]
    assert ("tokens.rows" in found.stages["module-4-0"].learning) == (not lite)
    assert ("tokens.rows" in found.stages["module-2-1"].learning) == (not lite)
    one, two = found.model.all_networks()
    assert (one.tokens is two.tokens) == lite
    assert first["tokens.rows"] != ended["tokens.rows"]
    assert found.clusters[1] != found.clusters[2] or not torch.equal(one.shortlister.heads, two.shortlister.heads)


def test_without_module_1_token_vectors_are_those_given(tmp_path, part, Z, monkeypatch):
    """DECAF-FFT: vectors of a file (or of FastText) take the place of what Module I learns, in all learners."""
    path = tmp_path / "vectors.vec"
    rows = np.random.default_rng(0).normal(size=(TOKENS, WIDTH))
    lines = [f"word{row} {' '.join(map(str, numbers))}" for row, numbers in enumerate(rows)]
    path.write_text(f"{TOKENS} {WIDTH}\n" + "\n".join(lines) + "\n")
    changes = {"module1": False, "token_init": str(path), "learners": 2}
    model, seen = Decaf(TOKENS, LABELS, DecafSettings(**{**PAPER, **changes}), seeded()), {}

    def trained(run: Run, stage: str, module: nn.Module, *more: Any) -> Outcome:
        seen[stage] = weights_of(module).get("tokens.rows")
        return Outcome(None, -1, 1, 0.0)

    monkeypatch.setattr(decaf, "train", trained)
    model.fit(Lesson(part, Z=Z, terms=[f"word{row}" for row in range(TOKENS)]), Run())
    assert list(seen) == ["module-2-0", "module-4-0", "module-2-1", "module-4-1"]
    std = np.sqrt(np.mean(rows**2))
    for found in seen.values():
        np.testing.assert_allclose(found, rows / std * np.sqrt(2 / WIDTH), rtol=1e-4)


@pytest.mark.parametrize(("dropped", "stages"), [
    ({"module1_dropout": 0.5}, ["module-1"]), ({"dropout": 0.5}, ["module-2-0", "module-4-0"]), ({}, []),
])  # fmt: skip
def test_which_modules_drop(fitted, dropped, stages):
    """50 % in Module I, 20 % in the others."""
    found = fitted(**dropped).stages
    assert [name for name, stage in found.items() if stage.terms != stage.again] == stages
    assert (PRESETS["paper"].module1_dropout, PRESETS["paper"].dropout) == (0.5, 0.2)
    assert PRESETS["paper"].loss == "logistic"


# --- Prediction -------------------------------------------------------------------------------------------------------


@each_branch
def test_prediction_in_every_branch(part, Z, fitted, changes):
    found, frame = fitted(**changes), frame_of(changes)
    (learner,) = found.model.learners()
    network, texts = found.model.networks[0], texts_of(Z)
    weights = weights_of(network)
    of_search = None if network.shortlister is None else weights_of(network.shortlister)
    W = [reference_decaf.classifier(weights, texts, label, frame) for label in range(LABELS)]
    ranking = learner.rank(part.X[ROWS], 3)
    for row, text in enumerate(texts_of(part.X[ROWS])):
        x, opened = reference_decaf.document(text, weights, frame), {0: (list(range(LABELS)), 0.0)}
        if of_search is not None:
            opened = opened_by(found, reference_decaf.document(text, of_search, frame))
        offset = -reference_decaf.cluster_scale(CLUSTERS) / 3 if frame.cosine else 0.0
        scores = {
            label: reference_decaf.score(
                reference_decaf.label_score(W[label], x, weights),
                product + offset if frame.shortlist == "beam" else None,
                frame,
            )
            for labels, product in opened.values()
            for label in labels
        }
        best = sorted(scores, key=lambda label: -scores[label])[:3]
        assert ranking.ids[row].tolist() == best
        wanted = [UNLISTED + (1 - UNLISTED) * scores[label] for label in best]
        assert ranking.scores[row].tolist() == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("changes", [{"shortlist": "none"}, {}, {"cosine": True, "shortlist": "none"}], ids=str)
def test_explanations_add_up_where_labels_have_a_bias(part, fitted, changes):
    """Σ weights = f(x) − f(0), and f(0) is the bias."""
    found = fitted(label_bias=True, **changes)
    (learner,) = found.model.learners()
    W, row = found.model.networks[0].composed_classifiers, part.X[[3]]
    for label in range(LABELS):
        product = float(learner.encode(row)[0] @ W[label])
        assert learner.explained(row, label).sum() == pytest.approx(product - float(W[label, -1]), rel=1e-3, abs=1e-4)


def test_labels_are_alike_by_their_vectors_not_by_their_bias(fitted):
    found = fitted(label_bias=True)
    W = found.model.networks[0].composed_classifiers[:, :WIDTH].double().numpy()
    wanted = W @ W[2] / np.linalg.norm(W, axis=1) / np.linalg.norm(W[2])
    (learner,) = found.model.learners()
    np.testing.assert_allclose(learner.cosines(2), wanted, atol=1e-5)


def test_the_best_labels_of_an_index_are_sought_with_their_bias(part, fitted):
    """`recall` compares the shortlists with those of all w_l · x̂ + b_l."""
    found = fitted(label_bias=True, beam=1)
    (learner,) = found.model.learners()
    network = found.model.networks[0]
    scores = learner.encode(part.X).double() @ network.composed_classifiers.double().T
    opened = learner.index.search(learner.keys(part.X, learner.encode(part.X)), 0).ids
    width = learner.classifier.width(1)
    best = scores.topk(min(width, LABELS), dim=1).indices
    share = np.mean([len(set(mine.tolist()) & set(all_.tolist())) for mine, all_ in zip(opened, best, strict=True)])
    assert learner.recall(part.X, 1) == pytest.approx(share / best.shape[1])


@pytest.mark.parametrize("shortlist", ["beam", "none"])
def test_texts_without_known_words_score_nothing_in_spite_of_a_bias(part, Z, fitted, shortlist):
    model = fitted(label_bias=True, shortlist=shortlist).model
    X = csr_array(np.vstack([part.X[[0]].toarray(), np.zeros((1, TOKENS), dtype=np.float32)]))
    scores = model.text_scores(model.predictor(), X, Z[:2])
    assert (scores[0] > 0).all()
    assert (scores[1] == 0).all()


@pytest.mark.parametrize("shortlist", ["beam", "none"])
def test_new_labels_without_known_words_are_ranked_last_in_spite_of_a_bias(part, fitted, shortlist):
    model = fitted(label_bias=True, shortlist=shortlist, beam=CLUSTERS).model
    model.add_label_texts(csr_array(np.array([[0] * TOKENS, [0.5] * TOKENS], dtype=np.float32)))
    W = model.networks[0].composed_classifiers
    assert not W[LABELS].any()
    assert W[LABELS + 1, -1] == pytest.approx(W[:LABELS, -1].mean())
    ranking = model.predictor().rank(part.X[ROWS], LABELS + 2)
    assert (ranking.ids[:, -1] == LABELS).all()
    assert (ranking.scores[:, -2] > UNLISTED).all()
