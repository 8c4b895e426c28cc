"""LightDXML: features, label encoder, loss on shortlists, the cycle of Algorithm 1, the mix of Sec. IV-F, saving."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from stopped import Stop, stops_after
from torch import Tensor
from torch.nn.functional import normalize

from zipfel import persistence
from zipfel.data.batches import bags
from zipfel.data.dataset import Dataset, Part
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError, DataError
from zipfel.index.exact import ExactIndex
from zipfel.index.hnsw import HnswIndex
from zipfel.models import lightdxml, lightdxml_beta, lightdxml_model
from zipfel.models import tokens as token_starts
from zipfel.models.base import Lesson, Tensors, settings_of
from zipfel.models.learner import BATCH, UNLISTED
from zipfel.models.lightdxml import Features, LabelEncoder, LightDxml, MixedClassifier, centroids_of
from zipfel.models.lightdxml_beta import chosen_beta, figures_by_beta
from zipfel.models.lightdxml_settings import PRESETS, LightSettings
from zipfel.tagger import Tagger
from zipfel.training.run import Run
from zipfel.training.trainer import Schedule
from zipfel.types import Shortlist

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "dimension": 16, "epochs": 4, "min_steps": 1, "batch_size": 32, "learning_rate": 0.02, "shortlist_size": 6,
}  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small(**changes: Any) -> LightSettings:
    return settings_of("lightdxml", changes={**SMALL, **changes})


def matrix(truth: list[set[int]], labels: int) -> csr_array:
    Y = np.zeros((len(truth), labels), dtype=np.float32)
    for row, right in enumerate(truth):
        Y[row, sorted(right)] = 1
    return csr_array(Y)


def planted(points: int = 150, seed: int = 0) -> Part:
    """Points with one or two of eight labels, and features that tell the labels apart."""
    numbers = np.random.default_rng(seed)
    Y = np.zeros((points, 8), dtype=np.float32)
    for row in range(points):
        Y[row, numbers.choice(6, 2, replace=False) if row % 2 else [row // 2 % 8]] = 1
    informative = np.repeat(Y, 4, axis=1) * (numbers.random((points, 32)) < 0.7)
    noise = numbers.random((points, 10)) < 0.3
    return Part(csr_array(Y), X=csr_array(np.concatenate([informative, noise], axis=1).astype(np.float32)))


def fitted(part: Part, validation: float = 0.2, **changes: Any) -> Tagger:
    tagger = Tagger("lightdxml", settings={**SMALL, **changes}, validation=validation, device="cpu")
    return tagger.fit_dataset(Dataset(part))


def model_of(part: Part, **changes: Any) -> LightDxml:
    return LightDxml(part.X.shape[1], part.Y.shape[1], small(**changes), seeded())


def state(model: LightDxml) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- Features, Sec. IV-A ----------------------------------------------------------------------------------------------


def with_random_block(features: Features) -> Features:
    """Return the features with a residual layer that is not at its start."""
    assert features.block is not None
    with torch.no_grad():
        for seed, parameter in enumerate(features.block.parameters()):
            parameter.normal_(0, 1, generator=seeded(seed))
    return features


@pytest.mark.parametrize("cosine", [True, False])
def test_a_point_is_the_weighted_sum_of_its_tokens(cosine):
    features = Features(5, small(cosine=cosine, residual=False, dimension=4), seeded())
    X = csr_array([[0.5, 0, 2, 0, 0], [0, 0, 0, 0, 0]], dtype=np.float32)
    expected = torch.tensor(reference.bag_sums(features.tokens.rows.tolist(), [[(0, 0.5), (2, 2.0)], []], 4))
    torch.testing.assert_close(
        features.prediction_encoder()(bags(X)), normalize(expected, dim=1) if cosine else expected
    )


@pytest.mark.parametrize("cosine", [True, False])
def test_a_residual_layer_follows_the_sum_in_training_and_prediction(cosine):
    features = with_random_block(Features(42, small(cosine=cosine, residual=True, dropout=0.0, dimension=4), seeded()))
    points = bags(planted().X)
    sums = Features(42, small(cosine=False, residual=False, dimension=4), seeded()).prediction_encoder()(points)
    block = features.block
    R = block.eval().spectral().tolist()
    slow = torch.tensor(reference.text_block(sums.tolist(), R, block.alpha.tolist(), block.beta.tolist()))
    expected = normalize(slow, dim=1) if cosine else slow
    torch.testing.assert_close(features.prediction_encoder()(points), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features.eval()(points, seeded()), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(features.prediction_encoder().unscaled(points).float(), slow, rtol=1e-4, atol=1e-5)


def test_numbers_are_dropped_in_learning_only():
    points = bags(planted().X)
    features = Features(42, small(cosine=False, residual=False, dropout=0.25, dimension=8), seeded()).eval()
    whole, dropped = features.prediction_encoder()(points), features(points, seeded(1))
    assert (dropped == 0).float().mean() == pytest.approx(0.25, abs=0.05)
    torch.testing.assert_close((0.75 * dropped)[dropped != 0], whole[dropped != 0])
    assert torch.equal(dropped, features(points, seeded(1)))
    assert not torch.equal(dropped, features(points, seeded(2)))


def test_with_a_residual_layer_numbers_are_dropped_after_its_relu():
    points = bags(planted().X)
    whole = with_random_block(
        Features(42, small(cosine=False, residual=True, dropout=0.0, dimension=8), seeded())
    ).eval()
    some = with_random_block(
        Features(42, small(cosine=False, residual=True, dropout=0.5, dimension=8), seeded())
    ).eval()
    first = some(points, seeded(1))
    assert not torch.equal(first, whole(points, seeded(1)))
    assert torch.equal(first, some(points, seeded(1)))
    assert torch.equal(some.prediction_encoder()(points), whole.prediction_encoder()(points))


# --- Label encoder, Sec. IV-B -----------------------------------------------------------------------------------------


@settings(max_examples=50)
@given(truth=st.lists(st.sets(st.integers(0, 5)), min_size=1, max_size=7), seed=st.integers(0, 99))
def test_centroids_equal_loops(truth, seed):
    vectors = torch.randn(len(truth), 3, generator=seeded(seed))
    centroids = centroids_of(matrix(truth, 7), vectors)
    torch.testing.assert_close(centroids, torch.tensor(reference.centroids(vectors.tolist(), truth, 7)))
    assert (centroids[6] == 0).all()  # no point has this label


def test_centroids_are_of_all_points_however_many_are_added_at_a_time(monkeypatch):
    truth, vectors = [{row % 3, 3} for row in range(10)], torch.randn(10, 2, generator=seeded())
    at_once = centroids_of(matrix(truth, 4), vectors)
    monkeypatch.setattr(lightdxml, "POINTS", 3)
    torch.testing.assert_close(centroids_of(matrix(truth, 4), vectors), at_once)


@pytest.mark.parametrize("relu", [True, False])
def test_the_label_encoder_starts_as_the_identity(relu):
    centroids = torch.randn(5, 4, generator=seeded())
    assert torch.equal(LabelEncoder(4, relu)(centroids), centroids.clamp_min(0) if relu else centroids)


@pytest.mark.parametrize("relu", [True, False])
def test_the_label_encoder_is_two_linear_layers(relu):
    encoder, centroids = LabelEncoder(4, relu), torch.randn(5, 4, generator=seeded())
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.normal_(0, 1, generator=seeded(len(parameter.shape)))
        W, b = encoder.outer.weight @ encoder.inner.weight, encoder.outer.weight @ encoder.inner.bias
        expected = centroids @ W.T + b + encoder.outer.bias
        torch.testing.assert_close(encoder(centroids), expected.clamp_min(0) if relu else expected)


def test_training_the_label_encoder_moves_labels_nearer_to_their_points():
    part = planted()
    model = model_of(part, label_epochs=10, label_learning_rate=0.01, cosine=False)
    vectors = model.encoded(part.X)

    def distance() -> float:
        mapped = model.label_encoder(centroids_of(part.Y, vectors)).tolist()
        owned = [part.Y[[row]].indices.tolist() for row in range(len(part))]
        return reference.log_distance(vectors.tolist(), mapped, owned)

    before = distance()
    model.place_labels(part, vectors, Lesson(part), Run(), "labels-0")
    assert distance() < before
    mapped = normalize(model.label_encoder(centroids_of(part.Y, vectors)), dim=1)
    torch.testing.assert_close(model.label_vectors, mapped.detach())


def test_without_label_epochs_label_vectors_have_the_direction_of_centroids():
    part = planted()
    model = model_of(part, label_epochs=0)
    vectors = model.encoded(part.X)
    model.place_labels(part, vectors, Lesson(part), Run(), "labels-0")
    torch.testing.assert_close(model.label_vectors, normalize(centroids_of(part.Y, vectors), dim=1))


def test_a_label_without_points_gets_its_vector_from_its_text_and_without_a_text_it_is_zero():
    X = csr_array(np.eye(4, 6, dtype=np.float32))
    part = Part(matrix([{0}, {0, 1}, {1}, {0}], 5), X=X)
    Z = csr_array([[0, 0, 0, 0, 0, 9]] + [[0] * 6] * 2 + [[0, 0, 0, 2, 0, 1]] + [[0] * 6], dtype=np.float32)
    model = model_of(part)
    model.counts[:2] = torch.tensor([3, 2])
    with torch.no_grad():  # so that a label without a centroid would not be zero by itself
        model.label_encoder.outer.bias.fill_(0.5)
    vectors = model.encoded(X)
    model.place_labels(part, vectors, Lesson(part, Z=Z), Run(), "labels-0")
    mapped = model.label_encoder(torch.cat([centroids_of(part.Y, vectors)[:2], model.encoded(Z[[3]])]))
    torch.testing.assert_close(model.label_vectors[[0, 1, 3]], normalize(mapped, dim=1).detach())  # 0: by its points
    assert (model.label_vectors[[2, 4]] == 0).all()


def test_a_label_that_had_points_keeps_its_vector_if_a_later_part_has_none_of_them():
    part = Part(matrix([{0}, {1}], 3), X=csr_array(np.eye(2, 6, dtype=np.float32)))
    Z = csr_array([[0.0] * 6, [0.0] * 6, [0, 0, 1, 0, 0, 0]], dtype=np.float32)
    model = model_of(part)
    model.counts[:] = torch.tensor([1, 1, 5])
    model.label_vectors[2] = before = normalize(torch.randn(16, generator=seeded()), dim=0)
    model.place_labels(part, model.encoded(part.X), Lesson(part, Z=Z), Run(), "labels-0")
    assert torch.equal(model.label_vectors[2], before)  # not placed by its text


def test_the_label_encoder_learns_on_in_the_next_cycle(monkeypatch):
    part, plain, starts = planted(80), lightdxml.train, []
    model = model_of(part, label_epochs=1)

    def spy(run: Run, stage: str, module: LabelEncoder, *more: Any) -> Any:
        starts.append(module.outer.weight.detach().clone())
        return plain(run, stage, module, *more)

    monkeypatch.setattr(lightdxml, "train", spy)
    model.place_labels(part, model.encoded(part.X), Lesson(part), Run(), "labels-0")
    learned = model.label_encoder.outer.weight.detach().clone()
    model.place_labels(part, model.encoded(part.X), Lesson(part), Run(), "labels-1")
    assert torch.equal(starts[1], learned)
    assert not torch.equal(starts[1], starts[0])


# --- Shortlists, Sec. IV-C --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cosine", [True, False])
def test_shortlists_are_the_nearest_labels_by_cosine(cosine):
    part = planted()
    model = model_of(part, cosine=cosine, shortlist_size=3)
    vectors = model.encoded(part.X)
    model.place_labels(part, vectors, Lesson(part), Run(), "labels-0")
    model.build(0)
    near = model.shortlists(vectors, 3)
    assert near.shape == (len(part), 3)
    for row in range(20):
        cosines = [reference.cosine(vectors[row].tolist(), label) for label in model.label_vectors.tolist()]
        nearest = sorted(range(8), key=lambda label: -cosines[label])
        assert sorted(near[row].tolist()) == sorted(nearest[:3])
        assert sorted(model.shortlists(vectors[[row]], 2)[0].tolist()) == sorted(nearest[:2])


def test_training_takes_the_nearest_labels_of_a_shortlist_and_prediction_all(monkeypatch):
    part, seen = planted(), set()
    model, loss = model_of(part, shortlist_size=5, negatives=2), LightDxml.loss

    def spy(self: LightDxml, part: Part, rows: Any, near: Tensor, generator: torch.Generator) -> Tensor:
        seen.add(near.shape[1])
        return loss(self, part, rows, near, generator)

    monkeypatch.setattr(LightDxml, "loss", spy)
    model.fit(Lesson(part), Run())
    assert seen == {2}
    assert model.learners()[0].classifier.width(1) == 5


def test_where_an_index_returns_too_few_the_first_is_repeated():
    model = model_of(planted(), shortlist_size=3)

    class Poor:
        def search(self, queries: Tensor, width: int) -> Shortlist:
            ids = torch.tensor([[4, -1, -1], [2, 7, -1]])
            return Shortlist(ids, torch.zeros(2, 3))

    model.index = Poor()
    assert model.shortlists(torch.zeros(2, 16), 3).tolist() == [[4, 4, 4], [2, 7, 2]]


def test_shortlist_recall_by_hand(monkeypatch):
    part = Part(matrix([{0, 1}, {2}, set(), {3}], 5), X=csr_array((4, 42), dtype=np.float32))
    model = model_of(planted())
    near = torch.tensor([[4, 1], [2, 2], [0, 1], [1, 0]], dtype=torch.int32)
    monkeypatch.setattr(model, "shortlists", lambda vectors, k: near)
    assert model.shortlist_recall(part) == pytest.approx(2 / 4)  # 1 and 2 are listed, 0 and 3 are not
    assert model.shortlist_recall(part.take(np.array([2, 2, 2, 2]))) == 1


@pytest.mark.parametrize(("labels", "given", "width"), [(10, None, 10), (4000, None, 50), (80, None, 25), (80, 7, 7)])
def test_training_uses_a_quarter_of_a_shortlist(labels, given, width):
    assert LightSettings(negatives=given).trained_width(labels) == width


@pytest.mark.parametrize(
    ("labels", "given", "width"),
    [(50, None, 50), (1000, None, 100), (3993, None, 200), (10**6, None, 700), (10, 500, 10), (10**6, 500, 500)],
)
def test_the_size_of_shortlists(labels, given, width):
    assert LightSettings(shortlist_size=given).width(labels) == width


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_index_is_built_of_label_vectors_by_the_settings(monkeypatch, deterministic):
    built: list[tuple[Any, ...]] = []
    monkeypatch.setattr(lightdxml_model, "build_index", lambda *given: built.append(given))
    model = model_of(planted(), index="hnsw", deterministic=deterministic)
    model.build(3)
    ((kind, vectors, seed, steady),) = built
    assert vectors is model.label_vectors
    assert (kind, seed, steady) == ("hnsw", 3, deterministic)


def test_the_kind_of_index_depends_on_labels_and_device():
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert [LightSettings().kind(labels, cpu) for labels in (50_000, 50_001)] == ["exact", "hnsw"]
    assert LightSettings().kind(10**6, cuda) == "exact"
    assert LightSettings(index="hnsw").kind(10, cuda) == "hnsw"


# --- Classifier, Sec. IV-D and E --------------------------------------------------------------------------------------


def slow_loss(model: LightDxml, part: Part, rows: np.ndarray, near: Tensor) -> float:
    with torch.no_grad():
        vectors = model.encoded(part.X[rows])
        scores = model.classifier(vectors, torch.arange(part.Y.shape[1])).tolist()
    truth = [part.Y[[row]].indices.tolist() for row in rows]
    left_out = [[] if part.filtered is None else part.filtered[[row]].indices.tolist() for row in rows]
    lists = near.tolist()
    if model.settings.shared_negatives:  # a label that is listed or right for one point of the batch counts for all
        lists = [sorted({label for some in [*lists, *truth] for label in some})] * len(rows)
    if model.settings.loss == "logistic":
        return reference.shortlisted_loss(scores, truth, lists, left_out)
    targets = [[float(label in own) for label in range(len(row))] for own, row in zip(truth, scores, strict=True)]
    mask = [
        [(label in own or label in some) and label not in out for label in range(part.Y.shape[1])]
        for own, some, out in zip(truth, lists, left_out, strict=True)
    ]
    return reference.decoupled_loss(scores, targets, mask)


@settings(max_examples=100)
@given(data=st.data())
def test_the_loss_equals_the_loop_over_own_and_shortlisted_labels(data):
    """Own labels may be off the list, lists may hold a label twice, and pairs other than own ones may be filtered."""
    truth = data.draw(st.lists(st.sets(st.integers(0, 6), min_size=1), min_size=2, max_size=5))
    out = [data.draw(st.sets(st.integers(0, 6))) for _ in truth]
    near = [data.draw(st.lists(st.integers(0, 6), min_size=3, max_size=3)) for _ in truth]
    numbers = np.random.default_rng(data.draw(st.integers(0, 99)))
    X = csr_array(numbers.random((len(truth), 4)).astype(np.float32))
    filtered = matrix(out, 7) if data.draw(st.booleans()) else None
    part = Part(matrix(truth, 7), X=X, filtered=filtered)
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(truth) - 1), min_size=1))))
    loss = data.draw(st.sampled_from(["logistic", "decoupled"]))
    shared, cosine = data.draw(st.booleans()), data.draw(st.booleans())
    model = model_of(part, dropout=0.0, loss=loss, shared_negatives=shared, cosine=cosine, dimension=4)
    lists = torch.tensor(near, dtype=torch.int32)[rows]
    fast = model.train().loss(part, rows, lists, seeded()).item()
    assert fast == pytest.approx(slow_loss(model, part, rows, lists), rel=1e-4, abs=1e-5)


@pytest.mark.parametrize("loss", ["logistic", "decoupled"])
def test_sharing_lists_changes_the_gradient_of_labels_on_other_lists_only(loss):
    part = Part(matrix([{0}, {1}], 4), X=csr_array(np.eye(2, dtype=np.float32)))
    near = torch.tensor([[2, 2], [3, 3]])
    slopes = {}
    for shared in (False, True):
        model = model_of(part, loss=loss, shared_negatives=shared, dropout=0.0, cosine=False).train()
        model.loss(part, np.arange(2), near, seeded()).backward()
        slopes[shared] = model.classifier.labels.touched[0][1].grad
    points = model.encoder.prediction_encoder()(bags(part.X))  # label 3 is not on the first point's own list
    pushes = {shared: torch.linalg.lstsq(points.T, slopes[shared][3]).solution.tolist() for shared in slopes}
    assert pushes[False][0] == pytest.approx(0, abs=1e-6)
    assert min(pushes[True]) > 1e-2
    assert pushes[False][1] > 1e-2


@pytest.mark.parametrize("validation", [0, 0.2])
def test_with_the_decoupled_loss_scores_sum_up_to_the_right_labels(validation):
    model, part = fitted(planted(300), validation, loss="decoupled", epochs=8).model_, planted(300, seed=3)
    scale, offset = model.classifier.scale_and_offset()
    scores = torch.sigmoid(scale * model.encoded(part.X) @ model.classifier.composed().T + offset)
    assert scores.sum().item() / part.Y.nnz == pytest.approx(1, abs=0.2)


def test_the_offset_is_set_on_held_out_points_in_each_epoch_and_at_the_end(monkeypatch):
    seen, plain = [], lightdxml.matching_offset
    monkeypatch.setattr(lightdxml, "matching_offset", lambda part, *more: seen.append(len(part)) or plain(part, *more))
    fitted(planted(100), epochs=2)
    assert seen == [20, 20, 20]
    fitted(planted(100), validation=0, epochs=2)
    assert seen[3:] == [100]


def test_where_all_labels_are_filtered_the_loss_is_0():
    part = Part(csr_array((2, 3)), X=csr_array(np.eye(2, dtype=np.float32)), filtered=csr_array(np.ones((2, 3))))
    loss = model_of(part).train().loss(part, np.arange(2), torch.tensor([[0, 1], [1, 2]]), seeded())
    assert loss.item() == 0
    loss.backward()


def test_only_listed_and_own_labels_and_tokens_of_the_batch_get_gradients():
    part = Part(matrix([{0}, {1}], 5), X=csr_array([[1, 0, 0], [0, 1, 0]], dtype=np.float32))
    model = model_of(part).train()
    model.loss(part, np.arange(2), torch.tensor([[3, 1], [3, 3]]), seeded()).backward()
    ids, leaf = model.classifier.labels.touched[0]
    assert ids.tolist() == [0, 1, 3]
    assert (leaf.grad != 0).any(dim=1).all()
    assert model.encoder.tokens.touched[0][0].tolist() == [0, 1]
    assert all(parameter.grad is None for parameter in model.label_encoder.parameters())


# --- Prediction, Sec. IV-F --------------------------------------------------------------------------------------------


def mixed(beta: float = 0.25, shortlist_size: int = 2, **changes: Any) -> MixedClassifier:
    usual = {
        "vectors": torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, 0]]),
        "W": torch.tensor([[2.0, 0], [0, 3], [1, 1], [0, 0]]),
        "scale": torch.tensor(2.0),
        "offset": torch.tensor(-1.0),
        "counts": torch.tensor([1, 5, 5, 2]),
    }
    return MixedClassifier(beta=beta, shortlist_size=shortlist_size, **{**usual, **changes})


def listed(ids: list[list[int]]) -> Shortlist:
    return Shortlist(torch.tensor(ids), torch.zeros(len(ids), len(ids[0])))


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_the_mix_by_hand():
    ranking = mixed().rescore(torch.tensor([[0.6, 0.8], [3.0, 4.0]]), listed([[0, 1], [1, 2]]), 2)
    first = {0: 0.25 * sigmoid(2 * 1.2 - 1) + 0.75 * sigmoid(0.6), 1: 0.25 * sigmoid(2 * 2.4 - 1) + 0.75 * sigmoid(0.8)}
    second = {1: 0.25 * sigmoid(2 * 12 - 1) + 0.75 * sigmoid(0.8), 2: 0.25 * sigmoid(2 * 7 - 1) + 0.75 * sigmoid(-0.6)}
    assert ranking.ids.tolist() == [[1, 0], [1, 2]]
    for row, scores in enumerate((first, second)):  # the classifier sees a point's length, the cosine does not
        assert ranking.scores[row].tolist() == pytest.approx([scores[label] for label in ranking.ids[row]], rel=1e-5)


def test_steady_products_of_the_search_are_divided_by_the_length_of_the_point():
    one, queries, ids = mixed(), torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.tensor([[0, 1, 2], [1, 2, 0]])
    products = (queries @ one.vectors.T).gather(1, ids)
    computed = one.rescore(queries, listed(ids.tolist()), 3)
    found = one.rescore(queries, Shortlist(ids, products, steady=True), 3)
    assert found.ids.tolist() == computed.ids.tolist()
    np.testing.assert_allclose(found.scores, computed.scores, rtol=1e-6)


@pytest.mark.parametrize(("beta", "best"), [(0.0, 0), (1.0, 2)])
def test_beta_0_scores_by_the_shortlist_and_beta_1_by_the_classifier(beta, best):
    ranking = mixed(beta, W=torch.tensor([[0.0, 0], [0, 0], [9, 9], [0, 0]])).rescore(
        torch.tensor([[1.0, 0.0]]), listed([[0, 2]]), 2
    )
    assert ranking.ids[0, 0] == best


def test_labels_that_are_not_listed_follow_by_frequency():
    ranking = mixed(shortlist_size=1).rescore(torch.tensor([[1.0, 0.0]]), listed([[0, -1]]), 6)
    assert ranking.ids.tolist() == [[0, 1, 2, 3, -1, -1]]
    assert ranking.scores[0, 1:4].tolist() == pytest.approx([UNLISTED / 2, UNLISTED / 2, UNLISTED / 5])
    hopeless = mixed(1.0, offset=torch.tensor(-500.0)).rescore(torch.tensor([[1.0, 0.0]]), listed([[3, 0]]), 4)
    assert sorted(hopeless.ids[0, :2]) == [0, 3]  # listed labels come first, however low they score
    assert (hopeless.scores[0, :2] >= np.float32(UNLISTED)).all()


def test_low_scores_keep_their_order():
    """Probabilities near 0 are rounded last, so that they still differ."""
    W = torch.tensor([[-2.0, 0], [-1, 0], [-3, 0], [0, 0]])
    one = mixed(1.0, W=W, scale=torch.tensor(8.0), offset=torch.tensor(-8.0))
    ranking = one.rescore(torch.tensor([[1.0, 0.0]]), listed([[0, 1, 2]]), 3)
    assert ranking.ids.tolist() == [[1, 0, 2]]


def test_a_point_without_features_gets_the_most_frequent_labels():
    ranking = mixed().rescore(torch.tensor([[0.0, 0.0], [1.0, 0.0]]), listed([[0, 3], [0, 3]]), 3)
    assert ranking.ids.tolist() == [[1, 2, 3], [0, 3, 1]]
    assert ranking.scores[0].max() < UNLISTED


@pytest.mark.parametrize("k", [1, 5, 100])
def test_the_number_of_candidates_does_not_depend_on_k(k):
    assert mixed(shortlist_size=2).width(k) == 2


def figures(**rows: tuple[float, float]) -> dict[float, dict[str, float]]:
    """Return P and PSP for each β, given as b50=(P, PSP)."""
    ks = (1, 3, 5)
    return {
        int(name[1:]) / 100: {f"P@{k}": P for k in ks} | {f"PSP@{k}": PSP for k in ks}
        for name, (P, PSP) in rows.items()
    }


@pytest.mark.parametrize(
    ("rows", "best"),
    [
        ({"b0": (80, 40), "b50": (82, 41), "b100": (81, 50)}, 0.5),
        ({"b0": (81.91, 60), "b50": (82, 41), "b100": (81.95, 50)}, 0.0),  # within 0.3 of the sum of three
        ({"b0": (81.89, 60), "b50": (82, 41), "b100": (81.95, 50)}, 1.0),
        ({"b25": (82, 41)}, 0.25),
    ],
)
def test_beta_is_best_on_rare_labels_among_those_near_the_best_on_all(rows, best):
    assert chosen_beta(figures(**rows)) == best


def test_beta_is_chosen_by_the_sum_over_three_ranking_lengths():
    measured = figures(b0=(80, 40), b100=(80, 40))
    measured[1.0] |= {"P@1": 79, "P@3": 80.6, "P@5": 80.6, "PSP@5": 40.1}
    assert chosen_beta(measured) == 1.0
    measured[0.0]["PSP@3"] = 40.2
    assert chosen_beta(measured) == 0.0


@pytest.fixture(scope="module")
def data() -> Dataset:
    counted = make(Synthetic(points=500, labels=30, noise=0.3, test_share=0.2, seed=3))
    return Tfidf.fit(counted.train.X).apply(counted)


@pytest.fixture(scope="module")
def tagger(data: Dataset) -> Tagger:
    return Tagger("lightdxml", settings={**SMALL, "shortlist_size": 10}, device="cpu").fit_dataset(data)


def test_the_curve_holds_the_figures_of_each_beta(tagger, data):
    learner, part = tagger.model_.learners()[0], data.test
    measured = figures_by_beta(learner, part, Lesson(data.train, propensity=data.propensity))
    assert sorted(measured) == [step / 20 for step in range(21)]
    for beta in (0.0, 0.35, 1.0):
        tagger.model_.beta = beta
        ranking = tagger.model_.learners()[0].rank(part.X, 5)
        truth = [set(part.Y[[row]].indices.tolist()) for row in range(len(part))]
        assert measured[beta]["P@3"] == pytest.approx(100 * reference.precision(ranking.ids.tolist(), truth, 3))
        weights = [
            reference.inverse_propensity(count, len(data.train), *data.propensity) for count in data.label_counts
        ]
        slow = reference.propensity_scored(ranking.ids.tolist(), truth, weights, 5, "PSP")
        assert measured[beta]["PSP@5"] == pytest.approx(100 * slow, rel=1e-5)
    tagger.model_.beta = learner.classifier.beta


def test_the_curve_counts_every_batch(tagger, data, monkeypatch):
    learner, lesson = tagger.model_.learners()[0], Lesson(data.train, propensity=data.propensity)
    whole = figures_by_beta(learner, data.test, lesson)
    monkeypatch.setattr(lightdxml_beta, "BATCH", 30)  # four batches
    assert figures_by_beta(learner, data.test, lesson)[0.5] == pytest.approx(whole[0.5])


def test_the_curve_leaves_filtered_pairs_out(tagger, data):
    learner, rows = tagger.model_.learners()[0], np.arange(len(data.test))
    first = learner.rank(data.test.X, 1).ids[:, 0]
    filtered = csr_array((np.ones(len(rows), dtype=np.float32), (rows, first)), shape=data.test.Y.shape)
    lesson = Lesson(data.train, propensity=data.propensity)
    measured = figures_by_beta(learner, replace(data.test, filtered=filtered), lesson)[learner.classifier.beta]
    ranking = learner.rank(data.test.X, 5, filtered)
    truth = [set(data.test.Y[[row]].indices.tolist()) for row in rows]
    assert measured["P@3"] == pytest.approx(100 * reference.precision(ranking.ids.tolist(), truth, 3))


def test_beta_is_chosen_on_validation_unless_given(data, monkeypatch):
    monkeypatch.setattr(lightdxml, "chosen_beta", lambda figures: 0.15)
    assert fitted(planted()).predictor_.classifier.beta == 0.15
    assert fitted(planted(), beta=0.6, epochs=1).predictor_.classifier.beta == 0.6
    assert fitted(planted(), validation=0, epochs=1).predictor_.classifier.beta == 0.75


def test_a_ranking_longer_than_the_shortlist_ends_in_frequent_labels(tagger, data):
    ranking = tagger.rank(data.test.X, 30)
    near = np.sort(
        tagger.model_.shortlists(
            tagger.model_.encoded(data.test.X), tagger.model_.settings.width(tagger.model_.label_count)
        ).numpy(),
        axis=1,
    )
    assert np.array_equal(np.sort(ranking.ids[:, :10], axis=1), near)
    counts = tagger.model_.counts.numpy()
    assert (np.diff(counts[ranking.ids[:, 10:]], axis=1) <= 0).all()
    assert np.array_equal(np.sort(ranking.ids, axis=1), np.tile(np.arange(30), (len(ranking), 1)))


def test_where_the_whole_shortlist_is_filtered_other_labels_are_ranked(tagger, data):
    best = tagger.rank(data.test.X, 12).ids
    rows = np.repeat(np.arange(len(best)), 10)
    filtered = csr_array((np.ones(best[:, :10].size), (rows, best[:, :10].ravel())), shape=data.test.Y.shape)
    assert np.array_equal(tagger.rank(data.test.X, 2, filtered).ids, best[:, 10:])


# --- Algorithm 1 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{}, {"cosine": False, "relu": True, "dropout": 0.2}, {"index": "hnsw"}])
@pytest.mark.parametrize("validation", [0, 0.2])
def test_it_learns_what_is_planted(changes, validation):
    test = planted(100, seed=1)
    tagger = fitted(planted(300), validation, **changes)
    assert tagger.score(test.X, test.Y) > 0.85
    lengths = tagger.model_.label_vectors.norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(8), rtol=0, atol=1e-3)  # rounded to float16


def test_a_shortlist_never_exceeds_the_labels():
    tagger = fitted(planted(), shortlist_size=500, epochs=1)
    assert tagger.predictor_.classifier.shortlist_size == 8
    assert sorted(tagger.rank(planted(1).X, 8).ids[0]) == list(range(8))


def test_the_paper_preset():
    """docs/papers/lightdxml.md, "The preset `paper`, value by value"."""
    paper = PRESETS["paper"]
    assert (paper.beta, paper.shortlist_size, paper.learning_rate) == (0.75, 500, 0.006)  # Table V, EURLex-4K
    assert (paper.epochs, paper.label_epochs, paper.cycle_epochs, paper.min_steps) == (16, 8, 8, 1)
    assert (paper.relu, paper.cosine, paper.token_init, paper.index) == (True, False, "fasttext", "hnsw")
    assert (paper.residual, paper.shared_negatives, paper.loss, paper.reranker) == (False, False, "logistic", False)
    assert (paper.dimension, paper.batch_size, paper.label_learning_rate) == (300, 255, 0.003)  # the authors' code
    assert paper.dropout == 0


@pytest.mark.parametrize("k", [500, 600, 650])  # Table V
def test_with_the_paper_preset_training_uses_whole_shortlists(k):
    paper = settings_of("lightdxml", "paper", {"shortlist_size": k})
    assert paper.trained_width(100_000) == k


@pytest.mark.parametrize("texts", [False, True])
def test_the_paper_preset_learns_with_and_without_texts(monkeypatch, texts):
    """All of it but the number of epochs: HNSW, FastText where there are texts, two cycles, no number of ours."""
    made, plain = [], token_starts.train_fasttext
    monkeypatch.setattr(token_starts, "train_fasttext", lambda *given: made.append(1) or plain(*given))
    shape = Synthetic(points=500, labels=20, noise=0.2, test_share=0.2, texts=texts, seed=1)
    data = make(shape) if texts else Tfidf.fit(make(shape).train.X).apply(make(shape))
    tagger = Tagger("lightdxml", preset="paper", settings={"epochs": 8, "cycle_epochs": 4}, device="cpu")
    run = Run()
    tagger.fit_dataset(data, run)
    assert tagger.model_.settings == settings_of("lightdxml", "paper", {"epochs": 8, "cycle_epochs": 4})
    assert len(made) == texts
    assert isinstance(tagger.predictor_.index, HnswIndex)
    assert any("token vectors start at random" in note for note in run.notes) is not texts
    assert tagger.model_.beta == 0.75
    best = tagger.rank(data.test.texts["text"] if texts else data.test.X, 1).ids[:, 0]
    right = np.mean([data.test.Y[[row], [label]][0] > 0 for row, label in enumerate(best)])
    assert right > 0.9


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return a list that collects each stage with gradients, and its epochs."""
    seen, plain = [], lightdxml.train

    def spy(run: Run, stage: str, module: Any, points: int, objective: Any, schedule: Schedule, *more: Any) -> Any:
        seen.append((stage, schedule.epochs))
        return plain(run, stage, module, points, objective, schedule, *more)

    monkeypatch.setattr(lightdxml, "train", spy)
    return seen


@pytest.mark.parametrize(("epochs", "cycle"), [(4, 2), (5, 2), (3, 5), (3, 1), (4, None), (1, None)])
def test_how_often_labels_are_updated(monkeypatch, epochs, cycle):
    """Sec. IV-E: ⌊e_model / ê_label⌋ + 1 times, for e_label epochs each; ours once more if a cycle is cut short."""
    seen = spied(monkeypatch)
    fitted(planted(), validation=0, epochs=epochs, cycle_epochs=cycle, label_epochs=3)
    often, rest = divmod(epochs, cycle or max(1, epochs // 4))
    expected = [("lightdxml", epochs), *((f"labels-{number}", 3) for number in range(often + 1))]
    assert seen == [*expected, *([("labels-last", 3)] if rest else [])]


@pytest.mark.parametrize("best", range(4))
def test_labels_are_updated_again_if_the_best_epoch_lies_within_a_cycle(monkeypatch, best):
    seen, qualities = spied(monkeypatch), iter(float(epoch == best) for epoch in range(4))
    monkeypatch.setattr(LightDxml, "precision", lambda self, part: next(qualities))
    fitted(planted(), epochs=4, cycle_epochs=2, min_steps=1)
    assert (seen[-1][0] == "labels-last") is (best in (0, 2))  # of 4 epochs, the first and the third


def test_few_points_get_more_epochs(monkeypatch):
    seen = spied(monkeypatch)
    fitted(planted(120), validation=0, epochs=2, min_steps=57)
    assert seen[0] == ("lightdxml", 6)  # batches of 12, ten steps an epoch
    assert [stage for stage, _ in seen[1:]] == [f"labels-{number}" for number in range(7)]


@pytest.mark.parametrize("cycle", [2, 3])
def test_label_vectors_follow_the_last_vectors_of_points(cycle):
    """Also where training ends within a cycle."""
    part = planted()
    model = fitted(part, validation=0, label_epochs=0, epochs=4, cycle_epochs=cycle).model_
    expected = normalize(centroids_of(part.Y, model.encoded(part.X)), dim=1)
    torch.testing.assert_close(model.label_vectors, expected, rtol=0, atol=1e-3)  # rounded to float16


@pytest.mark.parametrize("loss", ["logistic", "decoupled"])
def test_the_log_has_the_recall_of_shortlists_and_the_loss(tmp_path, loss):
    run = Run(tmp_path)
    run.open({})
    tagger = Tagger("lightdxml", settings={**SMALL, "loss": loss}, validation=0.2, device="cpu")
    tagger.fit_dataset(Dataset(planted()), run)
    lines = [orjson.loads(line) for line in (tmp_path / "log.jsonl").read_bytes().splitlines()]
    recalls = [line["recall"] for line in lines if "recall" in line]
    assert len(recalls) == 5
    assert all(0.5 < recall <= 1 for recall in recalls)
    epochs = [line for line in lines if line["stage"] == "lightdxml"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3, 4]
    assert epochs[-1][loss] < epochs[0][loss]


# --- Runs that are interrupted ----------------------------------------------------------------------------------------


def run_of(folder: Path | None, part: Part, stop: Any = None, validation: float = 0.2, **changes: Any) -> LightDxml:
    run = Run(folder, seed=1)
    run.open({})
    if stop is not None:
        stop(run)
    tagger = Tagger("lightdxml", settings={**SMALL, **changes}, validation=validation, device="cpu", seed=1)
    return tagger.fit_dataset(Dataset(part), run).model_


def every_step_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightdxml, "Schedule", partial(Schedule, checkpoint_seconds=0))


# the last cycle is cut short; lists are short, and each point's own, so that those of another epoch would show
STOPPED = {"epochs": 5, "cycle_epochs": 2, "label_epochs": 2, "shortlist_size": 2, "shared_negatives": False}


@pytest.fixture(scope="module")
def unstopped() -> dict[str, Tensor]:
    return state(run_of(None, planted(125), validation=0, **STOPPED))


@pytest.mark.parametrize("validation", [0, 0.2])
def test_a_run_that_is_stopped_many_times_ends_with_the_same_weights(tmp_path, monkeypatch, validation):
    """It is stopped in steps of label encoder and classifier, after stages, and at each end of a cycle."""
    every_step_is_kept(monkeypatch)
    part = planted(125)
    plain = run_of(None, part, validation=validation, **STOPPED)
    stops = 0
    while True:
        try:
            resumed = run_of(tmp_path, part, stops_after(7), validation, **STOPPED)
            break
        except Stop:
            stops += 1
    assert stops >= 10
    assert same(state(resumed), state(plain))
    assert resumed.beta == plain.beta
    test = planted(20, seed=1)
    assert np.array_equal(resumed.learners()[0].rank(test.X, 8).scores, plain.learners()[0].rank(test.X, 8).scores)
    assert not (tmp_path / "lightdxml.checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("stage", "times"),
    [
        ("labels-0.checkpoint", 3),
        ("shortlists-0", 1),
        ("lightdxml.checkpoint", 4),  # an epoch has eleven: ten steps, and its end
        ("lightdxml.checkpoint", 22),  # the end of a cycle
        ("labels-2", 1),
        ("lightdxml.checkpoint", 50),
        ("lightdxml", 1),
    ],
)
def test_a_run_stopped_once_ends_with_the_same_weights(tmp_path, monkeypatch, unstopped, stage, times):
    """Without validation the last cycle counts, which is cut short in its first epoch."""
    every_step_is_kept(monkeypatch)
    with pytest.raises(Stop):
        run_of(tmp_path, planted(125), stops_after(times, stage), validation=0, **STOPPED)
    assert same(state(run_of(tmp_path, planted(125), validation=0, **STOPPED)), unstopped)


def test_a_finished_run_is_loaded(tmp_path, monkeypatch):
    part = planted()
    first = run_of(tmp_path, part)
    monkeypatch.setattr(LightDxml, "loss", None)
    again = run_of(tmp_path, part)
    assert same(state(again), state(first))
    assert again.beta == first.beta
    assert torch.equal(again.counts, first.counts)


@pytest.mark.parametrize("validation", [0, 0.2])
@pytest.mark.parametrize("number", [0, 1])
def test_ctrl_c_while_labels_are_updated_leaves_a_model(tmp_path, monkeypatch, number, validation):
    part, plain = planted(), lightdxml.losses.log_distance

    def stopped(run: Run) -> None:
        def log_distance(*given: Any) -> Tensor:
            if (tmp_path / f"shortlists-{number - 1}.safetensors").exists() or number == 0:
                raise KeyboardInterrupt
            return plain(*given)

        monkeypatch.setattr(lightdxml.losses, "log_distance", log_distance)

    model = run_of(tmp_path, part, stopped, validation)
    ranking = model.learners()[0].rank(part.X, 8)
    assert np.array_equal(np.sort(ranking.ids, axis=1), np.tile(np.arange(8), (len(part), 1)))
    assert np.isfinite(ranking.scores).all()
    assert not (tmp_path / "lightdxml.safetensors").exists()  # the stage has not finished
    monkeypatch.setattr(lightdxml.losses, "log_distance", plain)
    assert same(state(run_of(tmp_path, part, None, validation)), state(run_of(None, part, None, validation)))


def test_ctrl_c_in_training_is_part_of_the_outcome(monkeypatch):
    calls, plain = [], LightDxml.loss

    def stopped(self: LightDxml, *given: Any) -> Tensor:
        calls.append(1)
        if len(calls) > 25:
            raise KeyboardInterrupt
        return plain(self, *given)

    monkeypatch.setattr(LightDxml, "loss", stopped)
    tagger = fitted(planted())
    assert tagger.outcome_.interrupted
    assert tagger.outcome_.epochs == 2
    assert tagger.score(planted().X, planted().Y) > 0.5


# --- Saving, and new labels -------------------------------------------------------------------------------------------


def saved_and_loaded(tagger: Tagger, folder: Path) -> Tagger:
    tagger.save(folder)
    return Tagger.load(folder, device="cpu")


@pytest.mark.parametrize("name", ["encoder.block.R", "label_vectors", "label_encoder.outer.bias"])
def test_a_saved_model_that_lacks_tensors_is_refused(name):
    model = fitted(planted(), epochs=1).model_
    serve, train = ({key: value for key, value in state.items() if key != name} for state in model.tensors())
    with pytest.raises(DataError, match=f"^the saved model lacks tensors: {name}$"):
        LightDxml.restored(42, 8, model.settings, Tensors(serve, train))


@pytest.mark.parametrize(
    "changes", [{}, {"residual": False}, {"cosine": False}, {"index": "hnsw"}, {"index": "ivf"}, {"beta": 0.35}]
)
def test_a_loaded_model_ranks_the_same(tmp_path, changes):
    tagger, X = fitted(planted(), epochs=1, **changes), planted(100, seed=1).X
    loaded = saved_and_loaded(tagger, tmp_path / "model")
    before, after = tagger.rank(X, 8), loaded.rank(X, 8)
    assert type(loaded.predictor_.index) is type(tagger.predictor_.index)
    assert np.array_equal(before.ids, after.ids)
    assert np.array_equal(before.scores, after.scores)
    assert loaded.predictor_.classifier.beta == tagger.predictor_.classifier.beta
    again = saved_and_loaded(loaded, tmp_path / "again")
    assert np.array_equal(again.rank(X, 8).scores, before.scores)


@pytest.mark.parametrize("index", ["exact", "hnsw"])
def test_float16_takes_half_the_space_and_ranks_nearly_the_same(tmp_path, data, index):
    serve = Path("serve", "weights.safetensors")
    changes = {**SMALL, "shortlist_size": 10, "dimension": 64, "epochs": 1, "index": index}
    one, two = (
        Tagger("lightdxml", settings={**changes, "float16": half}, device="cpu").fit_dataset(data)
        for half in (False, True)
    )
    one.save(tmp_path / "whole")
    loaded = saved_and_loaded(two, tmp_path / "half")
    sizes = [(tmp_path / name / serve).stat().st_size for name in ("half", "whole")]
    assert sizes[0] < (0.65 if index == "exact" else 0.75) * sizes[1]  # label vectors take half the space in both
    kinds = {name: value.dtype for name, value in persistence.load(tmp_path / "half").serve.items()}
    for name in ("encoder.tokens.rows", "classifier.labels.rows", "label_vectors"):
        assert kinds[name] == torch.float16
    before, after = one.rank(data.test.X, 5), loaded.rank(data.test.X, 5)
    assert (before.ids == after.ids).mean() > 0.95
    np.testing.assert_allclose(before.scores, after.scores, atol=0.01)
    assert type(loaded.predictor_.index) is (ExactIndex if index == "exact" else HnswIndex)
    assert loaded.model_.label_vectors.dtype == torch.float32
    assert np.array_equal(saved_and_loaded(loaded, tmp_path / "again").rank(data.test.X, 5).scores, after.scores)


def test_a_residual_layer_takes_no_more_space_than_float16_saves(tmp_path):
    """Prediction needs D (V + 2 L) float32 numbers in all, where labels are no fewer than D."""
    tagger = fitted(planted(), dimension=8, epochs=1)
    tagger.save(tmp_path / "model")
    serve = persistence.load(tmp_path / "model").serve
    assert serve["encoder.block.R"].dtype == serve["label_vectors"].dtype == torch.float16
    tables = sum(value.nbytes for value in serve.values() if value.ndim == 2)
    assert tables == 4 * 8 * (42 + 2 * 8)


def test_tensors_that_only_training_needs_are_not_served(tmp_path, tagger):
    tagger.save(tmp_path / "model")
    saved = persistence.load(tmp_path / "model")
    assert not any(name.startswith("label_encoder") for name in saved.serve)
    assert set(saved.train) == {
        *(f"label_encoder.{layer}.{kind}" for layer in ("inner", "outer") for kind in ("weight", "bias")),
        "classifier.lengths",
        "source.prints",
    }


@pytest.mark.parametrize("cosine", [True, False])
def test_a_loaded_model_is_trained_further_like_one_that_was_not_saved(tmp_path, cosine):
    part, more = planted(), planted(60, seed=2)
    tagger = fitted(part, cosine=cosine)
    loaded = saved_and_loaded(tagger, tmp_path / "model")
    for one in (tagger, loaded):
        one.set_params(warm_start=True, validation=0).fit_dataset(Dataset(more))
    for name, value in tagger.model_.state_dict().items():
        torch.testing.assert_close(loaded.model_.state_dict()[name], value, rtol=1e-3, atol=1e-3)
    assert torch.equal(tagger.model_.counts, loaded.model_.counts)
    persistence.verify(tmp_path / "model")  # mapped files are not written to


def tags_of(Y: csr_array, names: list[str]) -> list[list[str]]:
    return [[names[label] for label in Y[[row]].indices] for row in range(Y.shape[0])]


def test_a_warm_start_learns_new_labels_and_does_not_forget_old_ones(tmp_path):
    part, test = planted(300), planted(100, seed=1)
    tags, right = tags_of(part.Y, list("abcdefgh")), tags_of(test.Y, list("abcdefgh"))
    early = [row for row, tag in enumerate(tags) if not {"g", "h"} & set(tag)]
    late = [row for row, tag in enumerate(tags) if {"g", "h"} & set(tag)]
    tagger = Tagger("lightdxml", settings=SMALL, device="cpu").fit(part.X[early], [tags[row] for row in early])
    loaded = saved_and_loaded(tagger, tmp_path / "model").set_params(warm_start=True, validation=0)
    before = loaded.model_.label_vectors.clone()
    loaded.fit(part.X[late], [tags[row] for row in late])
    assert loaded.classes_ == [*"abcdefgh"]
    counts = [sum(name in tag for tag in tags) for name in loaded.classes_]
    held = len(early) - sum(tagger.model_.counts[:1].tolist())  # some were held out for validation
    assert held > 0
    assert (loaded.model_.counts <= torch.tensor(counts)).all()
    again = [sum(name in tags[row] for row in late) for name in loaded.classes_]
    assert loaded.model_.counts.tolist() == [*(tagger.model_.counts + torch.tensor(again[:6])).tolist(), *again[6:]]
    assert torch.equal(loaded.model_.label_vectors[:6], before)  # old labels without new points keep theirs
    assert (loaded.model_.label_vectors[6:].norm(dim=1) > 0.99).all()
    old = [row for row, tag in enumerate(right) if not {"g", "h"} & set(tag)]
    new = [row for row, tag in enumerate(right) if {"g", "h"} & set(tag)]
    assert loaded.score(test.X[new], [right[row] for row in new]) > 0.9
    assert loaded.score(test.X[old], [right[row] for row in old]) > 0.4  # 0.07 with label vectors of zero
    persistence.verify(tmp_path / "model")


def test_a_warm_start_does_not_initialise_tokens_again(monkeypatch):
    tagger = fitted(planted())
    monkeypatch.setattr(lightdxml, "start_tokens", None)
    before = tagger.model_.encoder.tokens.rows.clone()
    tagger.model_.settings = small(token_init="nowhere.vec", learning_rate=1e-9)
    tagger.set_params(warm_start=True).fit_dataset(Dataset(planted(seed=2)))
    torch.testing.assert_close(tagger.model_.encoder.tokens.rows.detach(), before.detach(), rtol=0, atol=1e-6)


# --- Step 1: initial token vectors ------------------------------------------------------------------------------------

WORDS = ["red apple", "green apple", "green pear", "fast car", "slow car", "slow red car"] * 4
TAGS = [["fruit"], ["fruit"], ["fruit"], ["car"], ["car"], ["car"]] * 4


def tagging(**changes: Any) -> Tagger:
    changes = {**SMALL, "dimension": 3, "epochs": 1, "learning_rate": 1e-9, **changes}
    return Tagger("lightdxml", settings=changes, text={"min_count": 1}, device="cpu").fit(WORDS, TAGS)


def test_tokens_are_read_from_a_file(tmp_path):
    path = tmp_path / "words.vec"
    path.write_text("red 1 0 0\napple 0 2 0\nelephant 9 9 9\ncar 0 0 -4\n")
    tagger, random = tagging(token_init=str(path)), tagging()
    ids = {term: number for number, term in enumerate(tagger.features_.terms)}
    rows, drawn = tagger.model_.encoder.tokens.rows, random.model_.encoder.tokens.rows
    spread = math.sqrt((1 + 4 + 16) / 9) / 3**-0.5  # scaled to the spread of random ones
    for word, vector in {"red": [1, 0, 0], "apple": [0, 2, 0], "car": [0, 0, -4]}.items():
        torch.testing.assert_close(rows[ids[word]], torch.tensor(vector) / spread, rtol=1e-4, atol=1e-5)
    for word in ("green", "pear", "slow"):  # which the file lacks
        torch.testing.assert_close(rows[ids[word]], drawn[ids[word]], rtol=1e-4, atol=1e-5)


def test_tokens_are_learned_by_fasttext(tmp_path):
    one, two, random = tagging(token_init="fasttext"), tagging(token_init="fasttext"), tagging()
    rows = [tagger.model_.encoder.tokens.rows for tagger in (one, two, random)]
    assert torch.equal(rows[0], rows[1])
    assert (rows[0] - rows[2]).abs().max() > 0.1
    assert rows[0].square().mean().item() == pytest.approx(1 / 3, rel=1e-3)
    assert one.predict(["green pear"], 1)[0][0].label in {"fruit", "car"}


@pytest.mark.parametrize("symbols", [False, True])
def test_fasttext_sees_the_tokens_of_the_vocabulary(symbols, monkeypatch):
    seen = []

    def spy(texts, terms, width, numbers, deterministic, symbols):
        seen.append(symbols)
        return np.ones((len(terms), width), dtype=np.float32)

    monkeypatch.setattr(token_starts, "train_fasttext", spy)
    changes = {**SMALL, "dimension": 3, "epochs": 1, "token_init": "fasttext"}
    tagger = Tagger("lightdxml", settings=changes, text={"min_count": 1, "symbols": symbols}, device="cpu")
    tagger.fit(["red % apple", "slow # car"] * 3, [["a"], ["b"]] * 3)
    assert seen == [symbols]


def test_token_vectors_are_made_once_in_a_run(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.open({})
    changes = {**SMALL, "dimension": 3, "epochs": 1, "token_init": "fasttext"}
    tagger = Tagger("lightdxml", settings=changes, text={"min_count": 1}, device="cpu")
    dataset = Dataset(Part(matrix([{0}, {1}] * 3, 2), texts={"text": ["red apple", "slow car"] * 3}))
    first = tagger.fit_dataset(dataset, run).model_.encoder.tokens.rows.clone()
    (tmp_path / "lightdxml.safetensors").unlink()
    monkeypatch.setattr(token_starts, "train_fasttext", None)
    again = Run(tmp_path)
    again.open({})
    assert torch.equal(tagger.fit_dataset(dataset, again).model_.encoder.tokens.rows, first)


def test_features_without_names_have_no_vectors_in_a_file(tmp_path):
    with pytest.raises(ConfigError, match=r"token_init=.* needs features with names"):
        fitted(planted(), token_init=str(tmp_path / "words.vec"))


@pytest.mark.parametrize("names", [None, [f"w{number}" for number in range(42)]])
def test_without_texts_fasttext_leaves_token_vectors_random_and_says_so(names):
    rows, notes = [], []
    for token_init in ("fasttext", "random"):
        settings, run = {**SMALL, "token_init": token_init, "learning_rate": 1e-9, "epochs": 1}, Run()
        tagger = Tagger("lightdxml", settings=settings, device="cpu")
        rows.append(tagger.fit_dataset(Dataset(planted(), feature_names=names), run).model_.encoder.tokens.rows)
        notes.append(sorted(note for note in run.notes if "token" in note))
    assert torch.equal(*rows)
    assert notes == [
        ["token vectors start at random: token_init=fasttext learns from texts, and these points have none"],
        [],
    ]


def test_a_file_of_token_vectors_of_another_width_is_refused(tmp_path):
    path = tmp_path / "words.vec"
    path.write_text("red 1 0\ncar 0 2\n")
    with pytest.raises(ConfigError, match=r"words\.vec has vectors of width 2; set dimension=2"):
        tagging(token_init=str(path))


def test_a_missing_file_of_token_vectors_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.vec"):
        tagging(token_init=str(tmp_path / "nowhere.vec"))


# --- Labels known by their texts, and plans ---------------------------------------------------------------------------


def test_a_text_scores_0_for_points_without_features_only():
    part = planted()
    model = fitted(part, residual=False, epochs=1).model_
    with torch.no_grad():
        model.encoder.tokens.rows[:, 0] = 0  # a zero among a point's numbers does not matter
    X = csr_array(np.concatenate([part.X[[0]].toarray(), np.zeros((1, part.X.shape[1]), dtype=np.float32)]))
    scores = model.text_scores(model.predictor(), X, part.X[:2])
    assert (scores[0] > 0).all()
    assert not scores[1].any()


@pytest.mark.parametrize(("reranker", "numbers"), [(False, 16 + 6), (True, 16 + 6 + 6)])
def test_a_plan_counts_the_vector_and_the_lists_of_each_point(reranker, numbers):
    part = planted()
    assert model_of(part, reranker=reranker).cost(Lesson(part)).bytes_a_point == 4 * numbers


# --- Devices ----------------------------------------------------------------------------------------------------------


def test_an_exact_index_follows_the_model_to_another_device():
    """Even if the settings ask for another index: where faiss is missing, or the model was trained on a GPU."""
    model = fitted(planted(), index="hnsw", epochs=1).model_
    model.index = ExactIndex(model.label_vectors)
    model.label_vectors = model.label_vectors.clone()  # as a move to another device does
    assert model.learners()[0].index.vectors is model.label_vectors


# --- Odd data and settings --------------------------------------------------------------------------------------------


def test_one_point_and_a_validation_of_one_point():
    one = Part(csr_array([[0, 1.0]]), X=csr_array([[0.5, 0, 2]]))
    other = Part(csr_array([[1.0, 0]]), X=csr_array([[0.5, 1, 0]]))
    tagger = Tagger("lightdxml", settings=SMALL, device="cpu").fit_dataset(Dataset(one, validation=other))
    assert tagger.rank(one.X, 2).ids.tolist() == [[1, 0]]


def test_more_points_than_a_batch_of_prediction(monkeypatch):
    model = model_of(planted())
    X = planted(30).X
    whole = model.encoded(X)
    monkeypatch.setattr(lightdxml, "BATCH", 7)
    monkeypatch.setattr(lightdxml_model, "BATCH", 7)
    torch.testing.assert_close(model.encoded(X), whole)
    model.label_vectors.copy_(normalize(torch.randn(8, 16, generator=seeded()), dim=1))
    model.build(0)
    near = model.shortlists(whole, 5)
    monkeypatch.setattr(lightdxml, "BATCH", BATCH)
    assert torch.equal(near, model.shortlists(whole, 5))


def test_a_validation_without_points_counts_as_none():
    part = planted()
    nobody = Part(csr_array((0, 8)), X=csr_array((0, 42)))
    tagger = Tagger("lightdxml", settings=SMALL, device="cpu").fit_dataset(Dataset(part, validation=nobody))
    assert tagger.outcome_.best is None
    assert tagger.score(part.X, part.Y) > 0.8


def test_validation_points_without_labels():
    part = planted()
    empty = Part(csr_array((5, 8)), X=part.X[:5] * 2)
    tagger = Tagger("lightdxml", settings=SMALL, device="cpu").fit_dataset(Dataset(part, validation=empty))
    assert tagger.rank(part.X, 3).ids.shape == (len(part), 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": 0}, "dimension must be at least 1; found 0"),
        ({"shortlist_size": 0}, "shortlist_size must be at least 1; found 0"),
        ({"batch_size": 0}, "batch_size must be at least 1; found 0"),
        ({"epochs": 0}, "epochs must be at least 1; found 0"),
        ({"min_steps": 0}, "min_steps must be at least 1; found 0"),
        ({"cycle_epochs": 0}, "cycle_epochs must be at least 1; found 0"),
        ({"patience": 0}, "patience must be at least 1; found 0"),
        ({"label_epochs": -1}, "label_epochs must be at least 0; found -1"),
        ({"label_learning_rate": 0}, r"label_learning_rate must be above 0; found 0\.0"),
        ({"dropout": 1}, r"dropout must be at least 0 and below 1; found 1\.0"),
        ({"beta": 1.5}, r"beta must be at least 0 and at most 1; found 1\.5"),
        ({"beta": -0.1}, r"beta must be at least 0 and at most 1; found -0\.1"),
        ({"index": "hsnw"}, "index must be one of exact, hnsw, ivf; found 'hsnw'"),
        ({"shortlists_size": 5}, "unknown setting 'shortlists_size'; did you mean 'shortlist_size'\\?"),
    ],
)
def test_settings_out_of_range_are_refused(changes, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        settings_of("lightdxml", changes=changes)


def test_an_unknown_token_init_is_refused():
    with pytest.raises(ConfigError, match=r"random, fasttext or a file; found 'fastext'; did you mean 'fasttext'"):
        Tagger("lightdxml", settings={**SMALL, "token_init": "fastext"}, text={"min_count": 1}, device="cpu").fit(
            WORDS, TAGS
        )


def test_a_file_without_any_known_term_is_refused(tmp_path):
    (tmp_path / "other.vec").write_text("1 16\nelsewhere " + " ".join(["0.5"] * 16) + "\n")
    settings = {**SMALL, "dimension": 16, "token_init": str(tmp_path / "other.vec")}
    with pytest.raises(DataError, match="has a vector for none of"):
        Tagger("lightdxml", settings=settings, text={"min_count": 1}, device="cpu").fit(WORDS, TAGS)
