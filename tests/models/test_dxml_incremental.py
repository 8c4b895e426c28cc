"""DXML learns incrementally: a further fit learns from new points, with the label vectors of before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference_neighbours as slow
import torch
from scipy.sparse import csr_array

from zipfel.data.dataset import Part
from zipfel.models import dxml
from zipfel.models.base import Lesson
from zipfel.models.dxml import Dxml, DxmlSettings
from zipfel.tagger import Tagger
from zipfel.training.run import Run
from zipfel.training.trainer import train

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS, SHOWN = 6, 5  # SHOWN: features that show a label
FEATURES = 8 * SHOWN
SMALL: dict[str, Any] = {
    "dimension": 4, "hidden_size": 16, "epochs": 3, "batch_size": 16, "learning_rate": 0.01, "feature_dropout": 0.0,
    "label_vectors": None,
}  # fmt: skip
GIVEN = {"neighbours": 5, "sharpness": 1.0}  # a vote that needs no held-out points, and so one round


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def points(truth: list[set[int]], labels: int = LABELS, seed: int = 0) -> Part:
    """Return points whose features show their labels."""
    Y = np.array([[float(label in right) for label in range(labels)] for right in truth], dtype=np.float32)
    wide = np.pad(Y, ((0, 0), (0, 8 - labels)))
    X = np.repeat(wide, SHOWN, axis=1) * (np.random.default_rng(seed).random((len(truth), FEATURES)) < 0.8)
    return Part(csr_array(Y), X=csr_array(X.astype(np.float32)))


def old_points(count: int = 60) -> Part:
    """Return points with two of six labels."""
    return points([{row % LABELS, (row * row + 1 + row // 7) % LABELS} for row in range(count)])


NEW = [{6, 0}, {6, 0, 2}, {6, 0}, {7}, {1, 4}, {7}, {3}, {6}] * 3  # 6: three times with 0 for once with 2; 7 is alone


def fitted(run: Run | None = None, **changes: Any) -> Dxml:
    model = Dxml(FEATURES, LABELS, DxmlSettings(**{**SMALL, **GIVEN, **changes}), seeded())
    model.fit(Lesson(old_points()), run or Run(seed=3))
    return model


def grown(model: Dxml, truth: list[set[int]] | None = None, labels: int = 8, seed: int = 3) -> Part:
    """Add labels and learn from new points; return them."""
    part = points(NEW if truth is None else truth, labels, seed=1)
    model.add_labels(labels - model.label_count, seeded())
    model.fit(Lesson(part), Run(seed=seed))
    return part


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record each call of the trainer: stage, number of points, objective, and the weights before."""
    seen: list[dict[str, Any]] = []

    def recorded(run, stage, module, count, objective, schedule):
        weights = {name: value.clone() for name, value in module.state_dict().items()}
        seen.append({"stage": stage, "points": count, "objective": objective, "weights": weights})
        return train(run, stage, module, count, objective, schedule)

    monkeypatch.setattr(dxml, "train", recorded)
    return seen


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(value, b[name]) for name, value in a.items())


# --- Label vectors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("whiten", [False, True])
def test_known_labels_keep_their_vectors_bit_for_bit(whiten):
    model = fitted(whiten=whiten)
    before = model.V.clone()
    assert torch.equal(before, model.label_vectors(old_points().Y, Run(seed=3)))
    grown(model, [{0, 5}, {1, 2}, {3}] * 5, LABELS, seed=4)  # no new label, but new edges, and another seed
    assert torch.equal(model.V, before)
    grown(model, seed=5)
    assert model.V.shape == (8, 4)
    assert torch.equal(model.V[:LABELS], before)
    cosines = torch.nn.functional.cosine_similarity(model.V[:LABELS].double(), before.double())
    assert cosines.mean().item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("whiten", [False, True])
def test_a_new_label_is_placed_by_its_neighbours(weighted, whiten):
    model = fitted(weighted_edges=weighted, whiten=whiten)
    V = model.V.tolist()
    grown(model)
    wanted = slow.dxml_new_vector(V, [(0, 9 if weighted else 1), (2, 3 if weighted else 1)])
    np.testing.assert_allclose(model.V[6], wanted, rtol=1e-4, atol=1e-5)
    usual = np.median(np.linalg.norm(V, axis=1))
    assert model.V[7].norm().item() == pytest.approx(usual, rel=1e-4)  # without neighbours, a random direction
    assert model.V[7].isfinite().all()


def test_new_labels_without_neighbours_differ_by_fit_and_by_seed():
    found = []
    for seed in (3, 4):
        model = fitted()
        grown(model, [{6}, {0, 1}] * 8, 7, seed)
        grown(model, [{7}, {0, 1}] * 8, 8, seed)
        found += [model.V[6], model.V[7]]
    for place, one in enumerate(found):
        for other in found[:place]:
            assert not torch.allclose(one, other, atol=1e-3)


def test_a_graph_of_the_user_places_new_labels(tmp_path):
    names, path, edges = [f"l{label}" for label in range(7)], tmp_path / "graph.txt", "l0\tl1\nl1\tl2\nl2\tl3\nl4\tl5\n"
    path.write_text(edges)
    model = Dxml(FEATURES, LABELS, DxmlSettings(**SMALL, **GIVEN, graph=str(path)), seeded())
    model.fit(Lesson(old_points(), label_names=names[:LABELS]), Run(seed=3))
    V = model.V.tolist()
    path.write_text(f"{edges}l6\tl5\n")
    model.add_labels(1, seeded())
    model.fit(Lesson(points([{6, 0}, {6}] * 8, 7), label_names=names), Run(seed=3))
    np.testing.assert_allclose(model.V[6], slow.dxml_new_vector(V, [(5, 1)]), rtol=1e-4, atol=1e-5)


def test_random_vectors_stay_a_control():
    """A new label is not placed by its neighbours, and known labels keep theirs."""
    model = fitted(label_vectors="random", whiten=False)
    before = model.V.clone()
    grown(model)
    assert torch.equal(model.V[:LABELS], before)
    np.testing.assert_allclose(model.V.norm(dim=1), 1, rtol=1e-5)
    placed = slow.dxml_new_vector(before.tolist(), [(0, 1), (2, 1)])
    assert not np.allclose(model.V[6], placed, atol=1e-2)


# --- Points -----------------------------------------------------------------------------------------------------------


def test_only_new_points_are_learned_from_and_all_of_them_vote(rounds):
    model = fitted()
    after_first = {name: value.clone() for name, value in model.state_dict().items()}
    new = grown(model)
    assert [call["points"] for call in rounds] == [60, len(new)]
    assert same(rounds[1]["weights"], after_first)
    assert not same(rounds[1]["weights"], model.state_dict())
    both = model.memory
    assert len(both) == len(model.index) == 60 + len(new)
    assert both.Y.shape == (60 + len(new), 8)
    assert (both.X[60:] != new.X).nnz == 0
    torch.testing.assert_close(both.vectors, model.encoded(Part(both.Y, X=both.X)))  # old points too are encoded anew


def test_targets_of_new_points_are_means_of_the_kept_vectors(rounds):
    model = fitted()
    new = grown(model)
    V, f_x = model.V.tolist(), model.encoded(new).tolist()
    for row, right in enumerate(NEW):
        loss = rounds[1]["objective"](np.array([row]), seeded())["smooth_l1"]
        wanted = sum(slow.dxml_h(a, b) for a, b in zip(f_x[row], slow.dxml_f_y(V, right), strict=True))
        assert loss.item() == pytest.approx(wanted, abs=1e-4)


def test_both_rounds_of_a_further_fit_continue_from_the_weights_before_it(rounds):
    """The vote is chosen on held-out points, which the second round learns from too."""
    model = fitted(neighbours=None, sharpness=None)
    before, V = {name: value.clone() for name, value in model.state_dict().items()}, model.V.clone()
    whole = points(NEW, 8, seed=1)
    model.add_labels(2, seeded())
    train_rows, held = np.arange(18), np.arange(18, 24)
    model.fit(Lesson(whole.take(train_rows), whole.take(held), whole), Run(seed=3))
    assert [(call["stage"], call["points"]) for call in rounds] == [("dxml", 60), ("dxml", 18), ("dxml-whole", 24)]
    assert same(rounds[1]["weights"], before)
    assert same(rounds[2]["weights"], before)
    assert torch.equal(model.V[:LABELS], V)
    assert len(model.memory) == 60 + 24
    assert model.earlier is None


@pytest.mark.parametrize("interrupted", [False, True])
def test_an_interrupted_second_round_leaves_the_label_vectors_of_the_first(interrupted, monkeypatch):
    """Weights and label vectors belong together: those of two rounds may be rotated against each other."""
    drawn: list[torch.Tensor] = []

    def numbered(self, Y, run):
        drawn.append(torch.full((Y.shape[1], 4), float(len(drawn) + 1)))
        return drawn[-1]

    def stopped(run, stage, *others):
        return replace(train(run, stage, *others), interrupted=interrupted and stage == "dxml-whole")

    monkeypatch.setattr(Dxml, "embedded", numbered)
    monkeypatch.setattr(dxml, "train", stopped)
    model, whole = Dxml(FEATURES, LABELS, DxmlSettings(**SMALL), seeded()), old_points()
    model.fit(Lesson(whole.take(np.arange(48)), whole.take(np.arange(48, 60)), whole), Run())
    assert len(drawn) == 2
    assert model.V is drawn[0 if interrupted else 1]


def test_a_round_without_new_points_changes_no_weight(rounds):
    model = fitted()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    nothing = Part(csr_array((5, LABELS), dtype=np.float32), X=csr_array((5, FEATURES), dtype=np.float32))
    outcome = model.fit(Lesson(nothing), Run())
    assert outcome.epochs == 0
    assert len(rounds) == 1
    assert same(before, model.state_dict())
    assert len(model.memory) == 60


def test_a_model_saved_without_label_vectors_learns_from_all_points(rounds):
    """One of an earlier version: its targets are lost, so new ones need all points."""
    model = fitted()
    model.V = None
    new = grown(model)
    assert rounds[1]["points"] == 60 + len(new)
    assert model.V.shape == (8, 4)


# --- From outside -----------------------------------------------------------------------------------------------------


def tags_of(part: Part) -> list[list[str]]:
    return [[f"l{label}" for label in part.Y[[row]].indices] for row in range(len(part))]


@pytest.mark.parametrize("validation", [0, 0.2])
def test_label_vectors_are_saved_and_a_loaded_model_learns_on(tmp_path, validation):
    first, second = old_points(150), points(NEW * 5, 8, seed=1)
    tagger = Tagger("dxml", settings=SMALL, validation=validation, device="cpu").fit(first.X, tags_of(first))
    V = tagger.model_.V.clone()
    tagger.save(tmp_path / "model")
    saved = (tmp_path / "model" / "train" / "weights.safetensors").read_bytes()
    loaded = Tagger.load(tmp_path / "model", device="cpu").set_params(warm_start=True)
    assert torch.equal(loaded.model_.V, V)
    loaded.fit(second.X, tags_of(second))
    assert loaded.classes_ == [f"l{label}" for label in range(8)]
    assert torch.equal(loaded.model_.V[:LABELS], V)
    assert loaded.model_.V.shape == (8, 4)
    assert len(loaded.model_.memory) == 150 + len(second)
    assert saved == (tmp_path / "model" / "train" / "weights.safetensors").read_bytes()
    again = Tagger.load(_saved(loaded, tmp_path / "again"), device="cpu")
    assert torch.equal(again.model_.V, loaded.model_.V)
    ranked, wanted = again.rank(second.X, 3), loaded.rank(second.X, 3)
    assert np.array_equal(ranked.ids, wanted.ids)


def _saved(tagger: Tagger, path: Path) -> Path:
    tagger.save(path)
    return path


def test_partial_fit_only_remembers_and_its_labels_get_vectors_in_the_next_fit():
    first, second = old_points(90), points(NEW, 8, seed=1)
    tagger = Tagger("dxml", settings={**SMALL, **GIVEN}, warm_start=True, device="cpu").fit(first.X, tags_of(first))
    model = tagger.model_
    before, V = {name: value.clone() for name, value in model.state_dict().items()}, model.V.clone()
    tagger.partial_fit(second.X, tags_of(second))
    assert same(before, model.state_dict())
    assert torch.equal(model.V, V)
    tagger.fit(first.X[:30], tags_of(first)[:30])
    assert not same(before, model.state_dict())
    assert torch.equal(model.V[:LABELS], V)
    wanted = slow.dxml_new_vector(V.tolist(), [(0, 1), (2, 1)])  # by the points that were remembered
    np.testing.assert_allclose(model.V[6], wanted, rtol=1e-4, atol=1e-5)
    assert len(model.memory) == 90 + len(second) + 30


def test_a_further_fit_learns_a_new_label_and_keeps_the_old_ones():
    first = old_points(240)
    second = points([{6, row % LABELS} for row in range(60)] + [{row % LABELS} for row in range(60)], 7, seed=1)
    settings = {**SMALL, **GIVEN, "dimension": 16, "epochs": 10}
    tagger = Tagger("dxml", settings=settings, warm_start=True, device="cpu").fit(first.X, tags_of(first))
    tagger.fit(second.X, tags_of(second))
    old, new = points([{row % LABELS} for row in range(60)], seed=2), points([{6}] * 30, 7, seed=2)
    assert tagger.score(old.X, tags_of(old)) > 0.8
    assert tagger.score(new.X, tags_of(new)) > 0.8
