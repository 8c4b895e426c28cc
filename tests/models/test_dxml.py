"""DXML: targets of the regression, the network, Algorithms 1 and 2, label vectors and graphs given by the user."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from scipy.sparse import csr_array

from zipfel.data.batches import bags
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats.edges import read_edges
from zipfel.errors import ConfigError, DataError
from zipfel.index.ivf import IvfIndex
from zipfel.labelspace.deepwalk import Walks, deepwalk
from zipfel.labelspace.graph import label_graph, pmi_graph
from zipfel.labelspace.vectors import smoothed
from zipfel.models import dxml
from zipfel.models.base import settings_of
from zipfel.models.dxml import PRESETS, Dxml, DxmlSettings, Network, given_vectors, means_of_labels, whitened
from zipfel.tagger import Tagger
from zipfel.training.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "dimension": 16, "hidden_size": 32, "epochs": 8, "learning_rate": 0.01, "feature_dropout": 0.0, "batch_size": 32,
}  # fmt: skip
DEEPWALK = {"label_vectors": None, "whiten": True}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(points: int = 300, seed: int = 0) -> Part:
    """Return points whose features show their labels, one or two of eight; labels 6 and 7 occur only alone."""
    numbers = np.random.default_rng(seed)
    Y = np.zeros((points, 8), dtype=np.float32)
    for row in range(points):
        labels = numbers.choice(6, 2, replace=False) if row % 2 else [row // 2 % 8]
        Y[row, labels] = 1
    shown = np.repeat(Y, 4, axis=1) * (numbers.random((points, 32)) < 0.7)
    noise = numbers.random((points, 10)) < 0.3
    return Part(csr_array(Y), X=csr_array(np.concatenate([shown, noise], axis=1).astype(np.float32)))


# --- Targets ----------------------------------------------------------------------------------------------------------


def test_means_of_labels_equal_loops():
    numbers = np.random.default_rng(0)
    truth = [set(numbers.choice(6, numbers.integers(0, 5), replace=False).tolist()) for _ in range(30)]
    Y = csr_array([[float(label in right) for label in range(6)] for right in truth])
    V = torch.from_numpy(numbers.standard_normal((6, 4)).astype(np.float32))
    means = means_of_labels(Y, V)
    assert means.dtype == torch.float32
    torch.testing.assert_close(means, torch.tensor(reference.means_of_labels(truth, V.tolist())))
    assert set() in truth
    assert means[truth.index(set())].abs().max() == 0


def spread(V: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Whiten vectors by their singular values: those that are not zero become 1."""
    centred = V.astype(np.float64) - V.astype(np.float64).mean(axis=0)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    return left @ np.diag((values > 1e-3 * values.max()).astype(float)) @ right


def skewed(labels: int, width: int, seed: int = 0) -> np.ndarray[Any, Any]:
    """Return vectors that share a strong direction, with a mean far from the origin."""
    numbers = np.random.default_rng(seed)
    V = numbers.standard_normal((labels, width)) @ np.diag(np.linspace(0.2, 1, width))
    V += 10 * np.outer(numbers.standard_normal(labels), numbers.standard_normal(width)) + 5
    return V.astype(np.float32)


@pytest.mark.parametrize(("labels", "width"), [(50, 6), (7, 6), (5, 12)])
def test_whitened_vectors_have_equal_variance_in_all_directions(labels, width):
    V = skewed(labels, width)
    wanted = spread(V)
    if labels > width:
        np.testing.assert_allclose(wanted.T @ wanted, np.eye(width), atol=1e-9)  # a multiple of the covariance
    white = whitened(V)
    assert white.dtype == np.float32
    assert white.shape == (labels, width)
    np.testing.assert_allclose(np.linalg.norm(white, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(white, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=1e-4)
    np.testing.assert_allclose(whitened(3 * V + 1), white, atol=1e-3)  # neither mean nor length matters


def test_whitening_leaves_out_constant_dimensions():
    V = skewed(40, 6)
    V[:, 2] = 0.1
    white = whitened(V)
    assert np.abs(white[:, 2]).max() < 1e-4
    np.testing.assert_allclose(white[:, [0, 1, 3, 4, 5]], whitened(V[:, [0, 1, 3, 4, 5]]), atol=1e-3)
    assert np.isfinite(whitened(np.zeros((4, 3), dtype=np.float32))).all()
    assert np.isfinite(whitened(np.full((3, 2), 0.1, dtype=np.float32))).all()
    assert np.isfinite(whitened(np.ones((1, 3), dtype=np.float32))).all()


def vectors_of(part: Part, **changes: Any) -> np.ndarray[Any, Any]:
    model = Dxml(
        part.X.shape[1], part.Y.shape[1], DxmlSettings(**{"dimension": 8, "label_vectors": None, **changes}), seeded()
    )
    V: np.ndarray[Any, Any] = model.label_vectors(part.Y, Run(seed=3)).numpy()
    return V


@pytest.mark.parametrize("whiten", [False, True])
def test_labels_without_neighbours_and_without_points_have_vectors(whiten):
    part = planted()
    Y = csr_array((part.Y.data, part.Y.indices, part.Y.indptr), shape=(len(part), 10))  # two labels have no point
    V = vectors_of(Part(Y, X=part.X), whiten=whiten)
    assert V.shape == (10, 8)
    assert np.isfinite(V).all()
    assert (np.linalg.norm(V, axis=1) > 1e-3).all()
    alone = vectors_of(Part(csr_array(np.eye(4, dtype=np.float32)), X=csr_array((4, 3))), whiten=whiten)
    assert np.isfinite(alone).all()


def test_raw_vectors_are_those_of_deepwalk():
    part = planted()
    for weighted in (False, True):
        graph = label_graph(part.Y, weighted)
        wanted = deepwalk(graph, 8, Run(seed=3).numbers("labels"), Walks(walks=3, length=20))
        changes = {"weighted_edges": weighted, "walks_per_label": 3, "walk_length": 20}
        assert np.array_equal(vectors_of(part, whiten=False, **changes), wanted)
        assert np.array_equal(vectors_of(part, whiten=True, **changes), whitened(wanted))


# --- The network ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonlinear", [False, True])
@pytest.mark.parametrize("linear_path", [False, True])
def test_the_network_is_that_of_the_paper(nonlinear, linear_path):
    settings = DxmlSettings(dimension=5, hidden_size=7, nonlinear=nonlinear, linear_path=linear_path)
    network = Network(42, settings, seeded())
    with torch.no_grad():
        network.bias.uniform_(-1, 1, generator=seeded(1))
        network.output.bias.uniform_(-1, 1, generator=seeded(2))
        X = planted(20).X
        vectors = network(bags(X))
        dense = torch.from_numpy(X.toarray())
        hidden = dense @ network.input.rows + network.bias
        hidden = hidden * (hidden > 0) if nonlinear else hidden
        wanted = hidden @ network.output.weight.T + network.output.bias
        if linear_path:
            wanted = wanted + dense @ network.linear_path.rows
    torch.testing.assert_close(vectors, wanted / wanted.norm(dim=1, keepdim=True), atol=1e-5, rtol=1e-5)
    assert (network.linear_path is not None) == linear_path


def test_training_drops_outputs_of_the_last_layer_and_keeps_length_1():
    network = Network(42, DxmlSettings(dimension=64, hidden_size=16, dropout=0.25), seeded())
    points = bags(planted(50).X)
    with torch.no_grad():
        plain, dropped = network(points), network(points, seeded(1))
        again = network(points, seeded(1))
    assert (plain != 0).all()
    gone = dropped == 0
    assert abs(gone.float().mean().item() - 0.25) < 5 * (0.25 * 0.75 / gone.numel()) ** 0.5
    torch.testing.assert_close(dropped.norm(dim=1), torch.ones(50))
    torch.testing.assert_close(dropped, torch.nn.functional.normalize(plain * ~gone, dim=1))
    assert torch.equal(dropped, again)


def test_the_paper_preset_is_that_of_sec_4_1():
    paper = PRESETS["paper"]
    assert (paper.hidden_size, paper.dimension, paper.nonlinear, paper.linear_path) == (256, 100, True, False)
    assert (paper.optimizer, paper.whiten, paper.feature_dropout) == ("sgd", False, 0.0)
    assert (paper.learning_rate, paper.summed) == (0.015, True)  # the loss (3) is a sum over points
    assert (paper.index, paper.probes, paper.sharpness, paper.weighted_edges) == ("ivf", 1, 0, False)
    assert paper.neighbours is None  # k is chosen on validation


@pytest.mark.parametrize(("features", "share"), [(999, 0.35), (1000, 0.5)])
def test_few_features_are_dropped_less(features, share):
    assert DxmlSettings().dropped_share(features) == share
    assert DxmlSettings(feature_dropout=0.0).dropped_share(features) == 0.0


def test_training_drops_the_usual_share_of_features(monkeypatch):
    shares = set()

    def spy(points: Any, dropout: float, generator: torch.Generator) -> Any:
        shares.add(dropout)
        return points

    monkeypatch.setattr(dxml, "drop_features", spy)
    fitted(planted(), feature_dropout=None)
    assert shares == {0.35}


# --- Algorithms 1 and 2 -----------------------------------------------------------------------------------------------


def fitted(part: Part, validation: float = 0.05, **changes: Any) -> Tagger:
    tagger = Tagger("dxml", settings={**SMALL, **changes}, validation=validation, device="cpu")
    return tagger.fit_dataset(Dataset(part, label_names=[f"l{label}" for label in range(part.Y.shape[1])]))


@pytest.mark.parametrize("changes", [{}, DEEPWALK, {"graph_weight": 1.0}, {"linear_path": False}, {"nonlinear": False}])
def test_it_learns_what_is_planted(changes):
    test = planted(100, seed=1)
    assert fitted(planted(), **changes).score(test.X, test.Y) > 0.85


def test_the_paper_preset_learns_what_is_planted():
    part, test = planted(), planted(100, seed=1)
    settings = {"dimension": 16, "hidden_size": 32, "epochs": 30, "learning_rate": 0.007, "clusters": 4}
    tagger = Tagger("dxml", "paper", settings, device="cpu").fit(part.X, part.Y)
    assert isinstance(tagger.predictor_.index, IvfIndex)
    assert tagger.predictor_.index.probes == 1
    assert tagger.predictor_.classifier.sharpness == 0
    assert tagger.score(test.X, test.Y) > 0.7


def test_training_uses_the_optimizer_of_the_settings(monkeypatch):
    seen = []

    def spy(run, stage, module, points, objective, schedule, validate=None):
        seen.append(schedule)
        return train(run, stage, module, points, objective, schedule, validate)

    train = dxml.train
    monkeypatch.setattr(dxml, "train", spy)
    for optimizer in ("adam", "sgd"):
        fitted(planted(50), optimizer=optimizer, epochs=2)
    assert [(schedule.optimizer, schedule.fixed) for schedule in seen] == [("adam", False), ("sgd", True)]
    assert [schedule.batch_size for schedule in seen] == [16, 16]  # a tenth of train, but at least 16


def test_points_are_mapped_onto_the_means_of_given_vectors(tmp_path):
    part = planted()
    V, _ = np.linalg.qr(np.random.default_rng(1).standard_normal((16, 16)))
    np.save(tmp_path / "v.npy", V[:8])
    tagger = fitted(part, label_vectors=str(tmp_path / "v.npy"), whiten=False, validation=0, epochs=15)
    wanted = means_of_labels(part.Y, torch.from_numpy(V[:8].astype(np.float32)))
    cosines = torch.nn.functional.cosine_similarity(tagger.predictor_.encode(part.X), wanted)
    assert cosines.mean() > 0.9
    test = planted(100, seed=1)
    assert tagger.score(test.X, test.Y) > 0.85


def test_random_vectors_are_unit_seeded_and_know_no_graph(monkeypatch):
    """The control: neither labels nor their graph matter, only the seed."""
    monkeypatch.setattr(dxml, "deepwalk", lambda *given: pytest.fail("DeepWalk runs"))
    part = planted()
    V = vectors_of(part, label_vectors="random", whiten=False)
    assert V.dtype == np.float32
    assert V.shape == (8, 8)
    np.testing.assert_allclose(np.linalg.norm(V, axis=1), 1, rtol=1e-5)
    assert np.array_equal(V, vectors_of(planted(seed=1), label_vectors="random", whiten=False))
    assert np.array_equal(whitened(V), vectors_of(part, label_vectors="random", whiten=True))
    model = Dxml(42, 8, DxmlSettings(dimension=8, label_vectors="random", whiten=False), seeded())
    assert not np.array_equal(V, model.label_vectors(part.Y, Run(seed=4)).numpy())
    many = model.label_vectors(csr_array((3, 2000), dtype=np.float32), Run()).numpy()
    assert np.abs(many.mean(axis=0)).max() < 5 * (8 * 2000) ** -0.5  # no direction is preferred


# Two points have labels 0 and 1, one has 2 and 3, and one all four: n = 3, 3, 2, 2 of N = 4.
FOUR = csr_array(np.array([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], dtype=np.float32))


def test_the_graph_of_mutual_information_is_worked_by_hand():
    """0 and 1 share 3 points: ln(3 · 4 / 9). 2 and 3: ln(2 · 4 / 4). 0 and 2 share one: ln(4 / 6) < 0, no edge."""
    near, nearer = math.log(12 / 9), math.log(2)
    wanted = [[0, near, 0, 0], [near, 0, 0, 0], [0, 0, 0, nearer], [0, 0, nearer, 0]]
    np.testing.assert_allclose(pmi_graph(FOUR).toarray(), wanted, rtol=1e-6)
    more = csr_array((FOUR.data, FOUR.indices, FOUR.indptr), shape=(4, 6))  # N is not the number of labels
    np.testing.assert_allclose(pmi_graph(more).toarray()[:4, :4], wanted, rtol=1e-6)


def test_the_graph_weighs_half_where_labels_are_more_than_dimensions():
    part = Part(FOUR, X=csr_array((4, 3)))
    for width, weight in ((3, 0.5), (4, 0.0), (5, 0.0)):
        wanted = smoothed(pmi_graph(FOUR), width, Run(seed=3).numbers("labels"), weight)
        assert np.array_equal(vectors_of(part, label_vectors="smoothed", dimension=width), wanted)
        given = vectors_of(part, label_vectors="smoothed", dimension=width, graph_weight=2.0)
        assert np.array_equal(given, smoothed(pmi_graph(FOUR), width, Run(seed=3).numbers("labels"), 2.0))
    random = vectors_of(part, label_vectors="random", dimension=3)
    ours = vectors_of(part, label_vectors="smoothed", dimension=3, graph_weight=0.0)
    np.testing.assert_allclose(ours, random, atol=1e-6)


def test_smoothed_vectors_take_the_graph_of_the_user(tmp_path):
    path, names = tmp_path / "graph.txt", [f"l{label}" for label in range(4)]
    path.write_text("l0\tl3\nl1\tl2\t2\n")
    model = Dxml(3, 4, DxmlSettings(dimension=3, graph=str(path)), seeded())
    model.label_names = names
    wanted = smoothed(read_edges(path, names), 3, Run(seed=3).numbers("labels"), 0.5)
    assert np.array_equal(model.label_vectors(FOUR, Run(seed=3)).numpy(), wanted)


def test_a_model_learns_from_random_vectors():
    test = planted(100, seed=1)
    assert fitted(planted(), label_vectors="random").score(test.X, test.Y) > 0.8


def test_a_graph_of_the_user_replaces_co_occurrence(tmp_path):
    part, path = planted(), tmp_path / "graph.txt"
    path.write_text("l0\tl6\nl6\tl7\nl1\tl2\t2\nl2\tl3\nl3\tl4\nl4\tl5\n")
    model = Dxml(42, 8, DxmlSettings(dimension=8, graph=str(path), label_vectors=None), seeded())
    model.label_names = [f"l{label}" for label in range(8)]
    V = model.label_vectors(part.Y, Run(seed=3)).numpy()
    wanted = deepwalk(read_edges(path, model.label_names), 8, Run(seed=3).numbers("labels"), Walks())
    assert np.array_equal(V, wanted)
    assert not np.array_equal(V, vectors_of(part, whiten=False))
    test = planted(100, seed=1)
    assert (
        fitted(part, graph=str(path), **DEEPWALK).score(test.X, test.Y) > 0.8
    )  # names reach the file through the tagger


def test_a_graph_file_with_an_unknown_label_or_that_is_missing_is_refused(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_text("l0\tl6\nl6\tl77\n")
    with pytest.raises(DataError, match=r"graph\.txt:2: unknown label 'l77'; did you mean 'l7'"):
        fitted(planted(50), graph=str(path))
    with pytest.raises(DataError, match=r"nowhere\.txt: cannot be read"):
        fitted(planted(50), graph=str(tmp_path / "nowhere.txt"))


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_given_vectors_are_read(tmp_path, kind):
    V = np.random.default_rng(0).random((3, 2)).astype(kind)
    np.save(tmp_path / "v.npy", V)
    read = given_vectors(tmp_path / "v.npy", 3, 2)
    assert read.dtype == np.float32
    assert np.array_equal(read, V.astype(np.float32))


@pytest.mark.parametrize(
    ("V", "message"),
    [
        (np.ones((2, 3)), r"expected numbers \[3 labels, 2\]; found float64 \(2, 3\)"),
        (np.ones(6), r"found float64 \(6,\)"),
        (np.ones((3, 2), dtype=int), r"found int64 \(3, 2\)"),
        (np.array([[1, 2], [3, np.nan], [5, 6]]), "must be finite"),
        (np.array([[1, 2], [3, np.inf], [5, 6]]), "must be finite"),
        (np.array([[1, 2], [3, 1e300], [5, 6]]), "must be finite, and no larger than 1e30"),
        (np.array([[1, 2], [3, None], [5, 6]]), "cannot be read as label vectors"),
    ],
)
def test_given_vectors_of_a_wrong_shape_or_kind_are_refused(tmp_path, V, message):
    np.save(tmp_path / "v.npy", V)
    with pytest.raises(DataError, match=message) as caught:
        given_vectors(tmp_path / "v.npy", 3, 2)
    assert "v.npy" in str(caught.value)


def test_files_that_hold_no_vectors_are_refused(tmp_path):
    (tmp_path / "text.npy").write_text("1 2\n3 4\n")
    (tmp_path / "empty.npy").touch()
    np.savez(tmp_path / "two.npz", a=np.ones(3))
    for path in (*(tmp_path / name for name in ("text.npy", "nowhere.npy", "empty.npy", "two.npz")), tmp_path):
        with pytest.raises(DataError, match=r"cannot be read as label vectors \(.npy\)"):
            given_vectors(Path(path), 3, 2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 0}, "hidden_size must be at least 1; found 0"),
        ({"walks_per_label": 0}, "walks_per_label must be at least 1; found 0"),
        ({"walk_length": 0}, "walk_length must be at least 1; found 0"),
        ({"walk_window": 0}, "walk_window must be at least 1; found 0"),
        ({"walk_negatives": 0}, "walk_negatives must be at least 1; found 0"),
        ({"walk_passes": 0}, "walk_passes must be at least 1; found 0"),
        ({"walk_softmax": "full"}, "walk_softmax must be one of negatives, hierarchical; found 'full'"),
        ({"feature_dropout": 1}, r"feature_dropout must be at least 0 and below 1; found 1\.0"),
        ({"feature_dropout": -0.1}, r"feature_dropout must be at least 0 and below 1; found -0\.1"),
        ({"dropout": 1}, r"dropout must be at least 0 and below 1; found 1\.0"),
        ({"batch_size": 0}, "batch_size must be at least 1; found 0"),
        ({"epochs": 0}, "epochs must be at least 1; found 0"),
        ({"probes": 0}, "probes must be at least 1; found 0"),
        ({"optimizer": "sdg"}, "optimizer must be one of adam, sgd; found 'sdg'"),
        ({"drop": 0.1}, r"unknown setting 'drop'; did you mean 'dropout'\?"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        settings_of("dxml", changes=changes)
