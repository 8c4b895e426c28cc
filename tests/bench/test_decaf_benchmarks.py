"""The scripts of DECAF's tables, of Theorem 3.1 and of tokens: their arms, and their figures by hand."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from benchmarks import decaf_bound, decaf_tables, decaf_tokens
from zipfel.data.dataset import Dataset
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError
from zipfel.models import decaf

pytestmark = pytest.mark.usefixtures("one_thread")

QUICK = {"dimension": 8, "epochs": 1, "module1_epochs": 1, "learners": 1}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    counted = make(Synthetic(points=300, labels=40, seed=1))
    return Tfidf.fit(counted.train.X).apply(counted)


def recorded(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


# --- Tables -----------------------------------------------------------------------------------------------------------


def test_arms_are_those_of_the_paper_and_every_table_has_known_ones():
    assert set(decaf_tables.TABLES["table6"]) == {"full", "fft", "K/16", "no-init", "z1", "z2", "z2-init", "lite"}
    assert set(decaf_tables.TABLES["table5"]) == {"full", "hnsw", "parabel", "all-labels"}
    assert {arm for table in decaf_tables.TABLES.values() for arm in table} <= decaf_tables.ARMS.keys()
    assert decaf_tables.chosen_arms("z1,table5,full") == ["z1", "full", "hnsw", "parabel", "all-labels"]
    with pytest.raises(ConfigError, match="unknown arm 'z3'"):
        decaf_tables.chosen_arms("full,z3")


@pytest.mark.parametrize("arm", decaf_tables.ARMS)
def test_settings_of_each_arm_are_accepted(arm):
    for preset in ("paper", "default"):
        settings = decaf_tables.settings_of_arm(arm, preset, {}, 312_330)
        assert settings.cluster_count(312_330) <= 2**17
    if arm == "K/16":
        assert decaf_tables.settings_of_arm(arm, "paper", {}, 312_330).clusters == 2**13  # DECAF-8K


def test_a_line_of_an_arm_has_the_papers_figures(dataset, capsys):
    about = {"arm": "B=200", "preset": "paper", "changes": QUICK, "validation": 0.0}
    decaf_tables.run_arm(dataset, about, [0, 1], "cpu")
    (line,) = recorded(capsys)
    assert set(decaf_tables.NAMES) <= line.keys()
    assert (line["arm"], line["seeds"], line["clusters"], line["beam"]) == ("B=200", [0, 1], 16, 16)  # up to K
    assert line["list recall"] == line["train list recall"] == 100
    assert 0 <= line["P@1"] <= 100


def test_a_line_of_fan_out_has_recall_by_length(dataset, capsys):
    about = {"arm": "K=32", "preset": "paper", "changes": QUICK, "validation": 0.0}
    decaf_tables.run_arm(dataset, about, [0], "cpu")
    (line,) = recorded(capsys)
    assert decaf_tables.clusters_of(line) == 16  # at most half of the labels
    assert line["train recall at 50 %"] <= 100
    assert decaf_tables.clusters_of({"row": {"clusters": 32}}) == 32


@pytest.mark.parametrize("arm", ["beam", *decaf_tables.KINDS])
def test_arms_of_module_1_do_what_they_say(dataset, monkeypatch, arm):
    centroids, starts, clustered, train = [], {}, decaf.balanced_clusters, decaf.train

    def noted(vectors, *more):
        centroids.append(vectors)
        return clustered(vectors, *more)

    def trained(run, stage, parts, *more):
        starts[stage] = {name: rows.detach().numpy().copy() for name, rows in parts.named_parameters()}
        return train(run, stage, parts, *more)

    monkeypatch.setattr(decaf, "balanced_clusters", noted)
    monkeypatch.setattr(decaf, "train", trained)
    settings = decaf_tables.settings_of_arm(arm, "paper", QUICK, dataset.sizes.labels)
    decaf_tables.evaluated(dataset, arm, settings, 0, "cpu", 0.0)
    (sparse, dense), Z = centroids, dataset.Z.toarray()
    by_text = [
        np.allclose(sparse.toarray(), Z, atol=1e-6),
        np.allclose(dense, Z @ starts["module-2-0"]["tokens.rows"], atol=1e-5),
    ]
    assert by_text == [arm == "text-clusters"] * 2
    assert bool(starts["module-1"]["heads.refinement.rows"].size) == (arm == "module1-refined")


def test_an_arm_that_fails_says_why_and_the_next_goes_on(dataset, capsys):
    for arm, more in (("full", {"token_init": "missing.vec"}), ("all-labels", {})):
        about = {"arm": arm, "preset": "paper", "changes": {**QUICK, **more}, "validation": 0.0}
        decaf_tables.run_arm(replace(dataset, feature_names=None), about, [0], "cpu")
    failed, done = recorded(capsys)
    assert failed["error"] == "ConfigError: token_init=missing.vec needs features with names, such as words of texts"
    assert "P@1" not in failed
    assert done["list recall"] == 100


# --- Theorem 3.1 ------------------------------------------------------------------------------------------------------


def test_terms_of_the_bound_by_hand():
    """Two points, four labels: s = 2 / 8; one of two right labels is listed, r = 1 / 2."""
    Y = csr_array(np.array([[1, 0, 0, 0], [0, 0, 1, 0]]))
    scores = torch.tensor([[2.0, 0.0, -1.0, 0.0], [0.0, 0.0, 0.0, 3.0]])
    found = decaf_bound.terms_of(scores, Y, np.array([[0, 1, -1], [1, 3, -1]]))
    assert (found.sparsity, found.recall) == (0.25, 0.5)
    zero = math.log(2)
    right, low, high = (math.log(1 + math.exp(number)) for number in (-2, -1, 3))
    assert found.loss == pytest.approx((right + 2 * zero + low + 3 * zero + high) / 8)
    assert found.listed_loss == pytest.approx((right + zero + zero + high) / 4)
    assert found.excess == pytest.approx(math.log(8) / 8)


def test_nothing_is_missed_among_all_labels():
    Y = csr_array(np.array([[1, 0], [1, 1]]))
    found = decaf_bound.terms_of(torch.zeros(2, 2), Y, None)
    assert found == pytest.approx((0.75, 1.0, math.log(2), math.log(2)))
    assert found.excess == 0


def test_terms_of_batches_are_those_of_all_points():
    numbers = np.random.default_rng(0)
    Y = csr_array((numbers.random((7, 5)) < 0.4).astype(float))
    scores, lists = torch.from_numpy(numbers.normal(size=(7, 5))), np.tile([0, 3], (7, 1))
    whole = decaf_bound.terms_of(scores, Y, lists)
    parts = [
        (len(rows), decaf_bound.terms_of(scores[rows], Y[rows], lists[rows]))
        for rows in (np.arange(3), np.arange(3, 7))
    ]
    assert decaf_bound.together(parts, Y.nnz) == pytest.approx(whole)


def test_terms_of_a_trained_model(dataset):
    changes = {**QUICK, "beam": 2}
    model = decaf_bound.trained(dataset, "paper", {**changes, "shortlist": "beam"}, 0, "cpu")
    found = decaf_bound.measured(model, dataset.train)
    shortlister = model.all_networks()[0].shortlister
    assert found.recall == pytest.approx(shortlister.recall(dataset.train, shortlister.index()))
    assert found.sparsity == pytest.approx(dataset.train.Y.nnz / np.prod(dataset.train.Y.shape))
    assert 0 < found.recall < 1
    assert found.excess > 0


# --- Tokens -----------------------------------------------------------------------------------------------------------


def test_shares_of_a_documents_tokens_add_up():
    X, E = csr_array(np.array([[1.0, 2.0, 0.5]])), np.array([[1.0, 0.0], [0.5, 1.0], [-1.0, 2.0]])
    assert decaf_tokens.pulls(X, E).sum() == pytest.approx(1)
    assert decaf_tokens.weights(X).tolist() == pytest.approx([1 / 3.5, 2 / 3.5, 0.5 / 3.5])


def test_tokens_are_listed_by_what_they_pull():
    X = csr_array(np.array([[1.0, 1.0, 0.0]] * 5 + [[0.0, 1.0, 1.0]] * 4))  # the last one is too rare
    E = np.array([[3.0, 0.0], [0.0, 1.0], [9.0, 9.0]])
    found = decaf_tokens.listed(["apple", "the", "rare"], X, E, 1)
    assert (found["tokens"], found["largest norm"], found["smallest norm"]) == (2, ["apple"], ["the"])
    assert (found["largest pull"], found["smallest pull"]) == (["apple"], ["the"])
    others = 10 / (81 + 100)  # r̂ = (9, 10)
    wanted = {"norm": 1.0, "pull": round((5 * 0.1 + 4 * others) / 9, 4), "weight": 0.5, "rank": 1}
    assert found["stop words"] == {"the": wanted}
