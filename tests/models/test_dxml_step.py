"""DXML's training step, its composed fit (Algorithm 1) and its prediction (Algorithm 2) against slow twins."""

from __future__ import annotations

import math
import statistics
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import reference_neighbours as slow
import torch
from scipy.sparse import csr_array

from zipfel.data.dataset import Part
from zipfel.index.ivf import IvfIndex
from zipfel.labelspace import deepwalk as walking
from zipfel.labelspace.deepwalk import Walks
from zipfel.models import dxml
from zipfel.models.base import Lesson
from zipfel.models.dxml import PRESETS, Dxml, DxmlSettings
from zipfel.nn.optim import merged
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, train

pytestmark = pytest.mark.usefixtures("one_thread")

FEATURES, LABELS, HIDDEN, WIDTH = 9, 7, 4, 3
Weights = dict[str, list[list[float]]]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def part() -> Part:
    """Return points whose label 6 never meets another; the second point has no feature."""
    numbers = np.random.default_rng(4)
    X = numbers.uniform(-0.5, 2, (24, FEATURES)) * (numbers.random((24, FEATURES)) < 0.5)
    X[1] = 0
    Y = numbers.random((24, LABELS)) < 0.3
    Y[:, 1] |= ~Y.any(axis=1)
    Y[:, 6] = False
    Y[5] = np.arange(LABELS) == 6
    return Part(csr_array(Y.astype(np.float32)), X=csr_array(X.astype(np.float32)))


def small(**changes: Any) -> Dxml:
    """Return a model whose biases are not 0."""
    settings = {"dimension": WIDTH, "hidden_size": HIDDEN, "feature_dropout": 0.0, "label_vectors": None, **changes}
    model = Dxml(FEATURES, LABELS, DxmlSettings(**settings), seeded(5))
    with torch.no_grad():
        model.encoder.bias.uniform_(-0.3, 0.3, generator=seeded(6))
        model.encoder.output.bias.uniform_(-0.3, 0.3, generator=seeded(7))
    return model


def tables_of(model: Dxml) -> dict[str, Any]:
    path = {} if model.encoder.linear_path is None else {"path": model.encoder.linear_path}
    return {"W_1": model.encoder.input, **path}


def dense_of(model: Dxml) -> dict[str, Any]:
    return {"b_1": model.encoder.bias, "W_2": model.encoder.output.weight, "b_2": model.encoder.output.bias}


def as_rows(name: str, values: torch.Tensor) -> list[list[float]]:
    rows: list[list[float]] = (values.T if name == "W_2" else values.reshape(-1, values.shape[-1])).tolist()
    return rows


def weights_of(model: Dxml) -> Weights:
    parts = {name: table.rows for name, table in tables_of(model).items()} | dense_of(model)
    return {name: as_rows(name, values.detach()) for name, values in parts.items()}


def gradients_of(model: Dxml) -> Weights:
    found = {name: as_rows(name, values.grad) for name, values in dense_of(model).items()}
    for name, table in tables_of(model).items():
        ids, gradient = merged(table.touched)
        found[name] = torch.zeros_like(table.rows).index_add_(0, ids, gradient).tolist()
        table.touched.clear()
    model.zero_grad()
    return found


def batch_of(model: Dxml, part: Part, rows: Any, generator: torch.Generator, f_y: list[Any]) -> list[Any]:
    """Return a batch as the twin takes it; the generator draws what is dropped as the library does: features first."""
    points, settings = slow.rows_of(part.X[rows]), model.settings
    if settings.feature_dropout:
        draws = iter(torch.rand(sum(map(len, points)), generator=generator).tolist())
        points = [[pair for pair in point if next(draws) < 1 - settings.feature_dropout] for point in points]
    dropped: list[Any] = [None] * len(points)
    if settings.dropout:
        dropped = (torch.rand(len(points), WIDTH, generator=generator) < settings.dropout).tolist()
    return list(zip(points, dropped, [f_y[row] for row in rows], strict=True))


def close(found: Weights, wanted: Weights, atol: float = 1e-5) -> None:
    assert found.keys() == wanted.keys()
    for name, rows in wanted.items():
        np.testing.assert_allclose(found[name], rows, atol=atol, rtol=1e-4, err_msg=name)


# --- One step ---------------------------------------------------------------------------------------------------------


def objective_of(model: Dxml, part: Part, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the objective that `learn` hands to the trainer."""
    given: list[Any] = []
    with monkeypatch.context() as patch:
        patch.setattr(dxml, "train", lambda *arguments: given.append(arguments) or Outcome(None, -1, 0, 0.0))
        model.learn(part, Run(), "dxml")
    _, stage, module, points, objective, _ = given[0]
    assert (stage, module, points) == ("dxml", model, len(part))
    model.train()
    return objective


@pytest.fixture
def given_vectors(tmp_path: Path) -> tuple[str, list[list[float]]]:
    """Return a file of label vectors, and these: some longer than 1, so that both cases of h occur."""
    V = (np.random.default_rng(2).standard_normal((LABELS, WIDTH)) * [1, 2, 0.5] + 1).astype(np.float32)
    np.save(tmp_path / "v.npy", V)
    return str(tmp_path / "v.npy"), V.tolist()


@pytest.mark.parametrize("whiten", [False, True])
@pytest.mark.parametrize("nonlinear", [False, True])
@pytest.mark.parametrize("linear_path", [False, True])
@pytest.mark.parametrize(("feature_dropout", "dropout"), [(0.0, 0.0), (0.3, 0.0), (0.0, 0.2), (0.2, 0.5)])
def test_loss_and_gradients_of_a_step_are_the_paper_s(
    part, whiten, nonlinear, linear_path, feature_dropout, dropout, given_vectors, monkeypatch
):
    file, V = given_vectors
    model = small(
        label_vectors=file, whiten=whiten, nonlinear=nonlinear, linear_path=linear_path,
        feature_dropout=feature_dropout, dropout=dropout,
    )  # fmt: skip
    V = slow.whitened(V) if whiten else V
    f_y = [slow.dxml_f_y(V, right) for right in slow.truth_of(part.Y)]
    objective, weights = objective_of(model, part, monkeypatch), weights_of(model)
    apart = []
    for seed, rows in enumerate(np.array([[1, 5, 6, 20, 23], [0, 2, 3, 9, 11]])):
        terms = objective(rows, seeded(seed))
        assert list(terms) == ["smooth_l1"]
        sum(terms.values()).backward()
        batch = batch_of(model, part, rows, seeded(seed), f_y)
        assert terms["smooth_l1"].item() == pytest.approx(slow.dxml_loss(weights, batch, nonlinear), abs=1e-5)
        wanted = slow.slopes(lambda batch=batch: slow.dxml_loss(weights, batch, nonlinear), weights)
        close(gradients_of(model), wanted)
        for point, gone, y in batch:
            apart += [abs(a - b) for a, b in zip(slow.dxml_f_x(weights, point, nonlinear, gone), y, strict=True)]
    assert min(apart) < 1 < max(apart)  # both cases of Eq. (2)
    assert {"path"} & set(weights) == ({"path"} if linear_path else set())


def test_targets_are_neither_scaled_nor_shuffled(part, given_vectors, monkeypatch):
    """A network that returns f_y / |f_y| has the loss of the lengths alone, row by row."""
    file, V = given_vectors
    model = small(label_vectors=file, whiten=False)
    objective = objective_of(model, part, monkeypatch)
    f_y = [slow.dxml_f_y(V, right) for right in slow.truth_of(part.Y)]
    for row, y in enumerate(f_y):
        vectors = torch.tensor([slow.unit(y)])
        monkeypatch.setattr(model.encoder, "forward", lambda points, generator, vectors=vectors: vectors)
        wanted = sum(slow.dxml_h(a, b) for a, b in zip(slow.unit(y), y, strict=True))
        assert objective(np.array([row]), seeded())["smooth_l1"].item() == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("seed", [0, 1])
def test_whitening_forgets_the_graph_where_there_are_as_many_dimensions_as_labels(seed):
    """All cosines are −1 / (L − 1), whatever the vectors; with fewer dimensions they depend on them."""
    V = np.random.default_rng(seed).standard_normal((LABELS, LABELS + 2)).astype(np.float32)
    white = dxml.whitened(V)
    apart = ~np.eye(LABELS, dtype=bool)
    np.testing.assert_allclose((white @ white.T)[apart], -1 / (LABELS - 1), atol=1e-5)
    fewer = dxml.whitened(V[:, :WIDTH])
    assert np.ptp((fewer @ fewer.T)[apart]) > 0.5


# --- Algorithm 1 ------------------------------------------------------------------------------------------------------


class Counting:
    """In the place of word2vec: the vector of a label is the mean of fixed codes of labels within its window.

    Its numbers depend on every walk, so that a twin can follow walks to label vectors.
    """

    made: list[Counting] = []  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        self.settings, self.wv = settings, self
        Counting.made.append(self)

    def build_vocab_from_freq(self, counts: dict[str, int]) -> None:
        self.counts = counts

    def train(self, corpus_file: str, total_examples: int, total_words: int, epochs: int) -> None:
        self.walks = [list(map(int, line.split())) for line in Path(corpus_file).read_text().splitlines()]
        self.lengths = (total_examples, total_words, epochs)
        vectors = coded(self.walks, self.settings["vector_size"], self.settings["window"])
        self.vectors = np.array([vectors[int(word)] for word in self.counts], dtype=np.float32)


def coded(walks: list[list[int]], width: int, window: int) -> dict[int, list[float]]:
    near: dict[int, list[int]] = {}
    for walk in walks:
        for place, label in enumerate(walk):
            near.setdefault(label, []).extend(walk[max(0, place - window) : place + window + 1])
    return {
        label: [statistics.fmean(2 * math.cos((d + 1.3) * other + label) for other in others) for d in range(width)]
        for label, others in near.items()
    }


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[Counting]:
    monkeypatch.setattr(Counting, "made", [])
    monkeypatch.setattr(walking, "_word2vec", lambda: Counting)
    return Counting.made


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Record the batches of training, and the state of their generators."""
    found: list[Any] = []

    def recorded(run, stage, module, points, objective, schedule):
        def watched(rows, generator):
            found.append((rows, generator.get_state()))
            return objective(rows, generator)

        return train(run, stage, module, points, watched, schedule)

    monkeypatch.setattr(dxml, "train", recorded)
    return found


PAPER = {
    "linear_path": False, "whiten": False, "optimizer": "sgd", "dropout": 0.3, "epochs": 2, "batch_size": 8,
    "learning_rate": 0.4, "index": "ivf", "clusters": 3, "probes": 1, "neighbours": 4, "sharpness": 0.0,
    "walks_per_label": 2, "walk_length": 6,
}  # fmt: skip


def vectors_slowly(graph: list[Any], settings: DxmlSettings, run: Run) -> list[list[float]]:
    """Return V of lines 1 and 2; a label without neighbours has a random direction and the median length."""
    numbers = run.numbers("labels")
    walks = slow.dxml_walks(graph, settings.walks_per_label, settings.walk_length, numbers)
    vectors = coded(walks, WIDTH, settings.walk_window)
    numbers.integers(2**32)  # the seed of word2vec
    length = statistics.median(math.sqrt(slow.dot(vector, vector)) for vector in vectors.values())
    alone = [label for label, row in enumerate(graph) if not row]
    directions = numbers.standard_normal((len(alone), WIDTH), dtype=np.float32).tolist()
    vectors |= {k: [length * x for x in slow.unit(row)] for k, row in zip(alone, directions, strict=True)}
    V = [vectors[label] for label in range(LABELS)]
    return slow.whitened(V) if settings.whiten else V


def learned_slowly(model: Dxml, start: Weights, part: Part, steps: list[Any], f_y: list[Any]) -> Weights:
    """Return the weights after T epochs, line 4, with the same batches and draws."""
    settings, weights = model.settings, start
    loss_of = partial(slow.dxml_loss, nonlinear=settings.nonlinear, summed=settings.summed)
    velocity, moments = slow.zeros(weights), (slow.zeros(weights), slow.zeros(weights))
    for number, (rows, state) in enumerate(steps, start=1):
        generator = torch.Generator()
        generator.set_state(state)
        batch = batch_of(model, part, rows, generator, f_y)
        gradient = slow.slopes(lambda batch=batch: loss_of(weights, batch), weights)
        ids = sorted({k for point in slow.rows_of(part.X[rows]) for k, _ in point})
        touched = dict.fromkeys(tables_of(model), ids)
        if settings.optimizer == "sgd":
            slow.sgd_step(weights, velocity, gradient, touched, settings.learning_rate)
        else:
            rate = slow.rising_and_falling(settings.learning_rate, number, len(steps))
            slow.adam_step(weights, moments, gradient, touched, rate, number)
    return weights


EDGES = "l0\tl6\nl6\tl1\nl1\tl2\t3\nl2\tl3\nl3\tl4\n"  # l5 has none
OF_EDGES = {0: {6: 1}, 6: {0: 1, 1: 1}, 1: {6: 1, 2: 3}, 2: {1: 3, 3: 1}, 3: {2: 1, 4: 1}, 4: {3: 1}}


def graph_slowly(part: Part, settings: DxmlSettings) -> list[Any]:
    if settings.graph is not None:
        return [sorted(OF_EDGES.get(label, {}).items()) for label in range(LABELS)]
    return slow.dxml_neighbours(slow.truth_of(part.Y), LABELS, settings.weighted_edges)


CHANGES: list[dict[str, Any]] = [
    {},
    {"weighted_edges": True, "nonlinear": False},
    {"graph": "edges.txt"},
    {"whiten": True, "linear_path": True, "feature_dropout": 0.3, "dropout": 0.0, "optimizer": "adam"},
    {"summed": True, "learning_rate": 0.05},
    {"walk_window": 2, "walk_softmax": "hierarchical", "walk_passes": 3},
]


@pytest.fixture(params=CHANGES, ids=lambda changes: "-".join(changes) or "paper")
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    changes = {**PAPER, **request.param}
    if "graph" in changes:
        changes["graph"] = str(tmp_path / changes["graph"])
        Path(changes["graph"]).write_text(EDGES)
    if changes["optimizer"] == "adam":
        changes["learning_rate"] = 0.02
    return changes


def test_the_composed_fit_is_algorithm_1(part, settings, counting, steps):
    """Graph, walks, label vectors, regression, clusters; only skip-gram itself has a stand-in."""
    model = small(**settings)
    start, run = weights_of(model), Run(seed=3)
    model.fit(Lesson(part, label_names=[f"l{label}" for label in range(LABELS)]), run)
    graph = graph_slowly(part, model.settings)
    assert [label for label, row in enumerate(graph) if not row] == [5 if model.settings.graph else 6]
    (words,) = counting
    wanted = {"vector_size": WIDTH, "sg": 1, "min_count": 1, "sample": 0, "sorted_vocab": 0}
    hierarchical = model.settings.walk_softmax == "hierarchical"
    wanted |= {"window": model.settings.walk_window, "hs": int(hierarchical), "negative": 0 if hierarchical else 5}
    assert {**words.settings, **wanted, "workers": 1} == words.settings
    assert words.walks == slow.dxml_walks(graph, 2, 6, Run(seed=3).numbers("labels"))
    assert words.lengths == (2 * (LABELS - 1), 2 * (LABELS - 1) * 6, model.settings.walk_passes)
    V = vectors_slowly(graph, model.settings, Run(seed=3))
    np.testing.assert_allclose(model.label_vectors(part.Y, Run(seed=3)), V, atol=1e-5)
    assert len(steps) == 6
    epochs = [np.concatenate([rows for rows, _ in steps[first : first + 3]]) for first in (0, 3)]
    assert [sorted(rows) for rows in epochs] == [list(range(24))] * 2  # T = 2, batches of 8
    f_y = [slow.dxml_f_y(V, right) for right in slow.truth_of(part.Y)]
    weights = learned_slowly(model, start, part, steps, f_y)
    close(weights_of(model), weights, atol=2e-5)  # weight decay changes 1e-4 and more
    f_x = [slow.dxml_f_x(weights, point, model.settings.nonlinear) for point in slow.rows_of(part.X)]
    np.testing.assert_allclose(model.memory.vectors, f_x, atol=1e-3)  # nothing is dropped any more
    assert isinstance(model.index, IvfIndex)
    centres = model.index.centroids.tolist()
    clusters = [slow.nearest_centre(f, centres) for f in model.memory.vectors.tolist()]
    assert model.index.assignment.tolist() == clusters  # line 5: k-means, which has converged
    np.testing.assert_allclose(slow.means_of_clusters(model.memory.vectors.tolist(), clusters, 3), centres, atol=1e-5)


def test_every_setting_of_walks_reaches_word2vec(part, counting):
    changes = {"walks_per_label": 3, "walk_length": 5, "walk_window": 4, "walk_negatives": 7, "walk_passes": 2}
    small(**changes).label_vectors(part.Y, Run())
    small(**changes, walk_softmax="hierarchical").label_vectors(part.Y, Run())
    for words, softmax in zip(counting, [{"hs": 0, "negative": 7}, {"hs": 1, "negative": 0}], strict=True):
        assert words.settings.items() >= {"sg": 1, "window": 4, **softmax}.items()
        assert words.lengths == (3 * (LABELS - 1), 3 * (LABELS - 1) * 5, 2)
        assert {len(walk) for walk in words.walks} == {5}


@pytest.mark.parametrize(("batch_size", "points"), [(8, 8), (128, 24)])
def test_rate_and_decay_are_the_paper_s_whatever_the_batch(part, batch_size, points, given_vectors, steps):
    """v ← 0.9 v + ∇ Σ d + 0.0005 w, w ← w − 0.015 v, also where train is so small that the batch shrinks."""
    file, V = given_vectors
    changes = {"summed": True, "learning_rate": 0.015, "batch_size": batch_size, "epochs": 6}
    model = small(**{**PAPER, **changes, "label_vectors": file})
    start = weights_of(model)
    model.fit(Lesson(part), Run(seed=3))
    assert {len(rows) for rows, _ in steps} == {points}  # 24 points in batches of at least 16: all of them at once
    f_y = [slow.dxml_f_y(V, right) for right in slow.truth_of(part.Y)]
    close(weights_of(model), learned_slowly(model, start, part, steps, f_y), atol=5e-5)


def test_a_summed_loss_is_the_mean_times_the_points(part, given_vectors, monkeypatch):
    rows = np.array([1, 5, 6, 20, 23])
    models = [small(label_vectors=given_vectors[0], whiten=False, summed=summed) for summed in (False, True)]
    mean, total = (objective_of(model, part, monkeypatch)(rows, seeded())["smooth_l1"] for model in models)
    assert total.item() == pytest.approx(5 * mean.item())


# --- Algorithm 2 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [1, 4, 50])
def test_tags_are_those_of_algorithm_2(part, neighbours, counting):
    """The nearest cluster by Eq. (4), k-NN in it, the average of labels. Ours: only cosines above 0 have a vote."""
    model = small(**{**PAPER, "neighbours": neighbours, "clusters": 4})
    model.fit(Lesson(part), Run(seed=3))
    numbers = np.random.default_rng(11)
    X = csr_array(
        (numbers.uniform(-0.5, 2, (90, FEATURES)) * (numbers.random((90, FEATURES)) < 0.5)).astype(np.float32)
    )
    ranking = model.learners()[0].rank(X, LABELS)
    weights, truth = weights_of(model), slow.truth_of(part.Y)
    points = [slow.dxml_f_x(weights, point) for point in slow.rows_of(part.X)]
    centres = model.index.centroids.tolist()
    asked = [slow.dxml_f_x(weights, point) for point in slow.rows_of(X)]
    compared = 0
    for row, f_x in enumerate(asked):
        own = slow.nearest_centre(f_x, centres)
        members = [i for i, point in enumerate(points) if slow.nearest_centre(point, centres) == own]
        nearest = sorted(members, key=lambda i: slow.distance(f_x, points[i]))[:neighbours]
        found = dict(zip(ranking.ids[row].tolist(), ranking.scores[row].tolist(), strict=True))
        assert list(found.values()) == sorted(found.values(), reverse=True)
        if all(slow.dot(f_x, points[i]) > 0 for i in nearest):
            compared += 1
            wanted = slow.dxml_tags(f_x, centres, points, truth, neighbours)
        else:
            voted = reference.vote(f_x, points, truth, LABELS, neighbours, 0.0, members)
            wanted = {label: share for label, share in voted if share is not None}
        assert found == pytest.approx({label: wanted.get(label, 0.0) for label in range(LABELS)}, abs=1e-5)
    assert compared >= 45
    products = [max(range(4), key=lambda i: slow.dot(f_x, centres[i])) for f_x in asked]
    assert any(slow.nearest_centre(f_x, centres) != other for f_x, other in zip(asked, products, strict=True))
    assert len({slow.nearest_centre(f_x, centres) for f_x in asked}) >= 3


def test_more_probes_read_more_clusters(part, counting):
    """With as many probes as clusters, neighbours are those among all points."""
    model = small(**{**PAPER, "clusters": 4, "probes": 4})
    model.fit(Lesson(part), Run(seed=3))
    ranking = model.learners()[0].rank(part.X, LABELS)
    points, truth = model.memory.vectors.tolist(), slow.truth_of(part.Y)
    for row, f_x in enumerate(points):
        shares = dict(reference.vote(f_x, points, truth, LABELS, 4, 0.0))
        found = dict(zip(ranking.ids[row].tolist(), ranking.scores[row].tolist(), strict=True))
        assert found == pytest.approx({label: shares[label] or 0.0 for label in range(LABELS)}, abs=1e-5)


# --- The preset -------------------------------------------------------------------------------------------------------


def test_the_paper_s_values_are_those_of_the_preset():
    """Sec. 4.1 on small data sets; momentum and weight decay are tested above."""
    paper = PRESETS["paper"]
    assert (paper.hidden_size, paper.dimension) == (256, 100)
    assert (paper.learning_rate, paper.summed) == (0.015, True)  # Eq. (3) is a sum over points
    walks = Walks(walks=80, length=40, window=10, epochs=1, hierarchical=True)  # of the DeepWalk paper
    assert paper.walks() == walks
    assert paper.dropout > 0
    assert (paper.nonlinear, paper.optimizer, paper.neighbours, paper.probes) == (True, "sgd", None, 1)
    ours = ("whiten", "linear_path", "weighted_edges", "feature_dropout", "graph", "label_vectors", "sharpness")
    assert not any(getattr(paper, name) for name in ours)
