"""MNN: the loss of a batch by the paper's equations, negatives, the two decoders."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
import torch
from scipy.sparse import csr_array

from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index.exact import ExactIndex
from zipfel.index.hnsw import HnswIndex
from zipfel.index.ivf import IvfIndex
from zipfel.models import neighbours
from zipfel.models.base import Lesson, Tensors, settings_of
from zipfel.models.learner import UNLISTED, half_cosine
from zipfel.models.mnn import PRESETS, Mnn, MnnSettings, NearestLabels, drawn_others, usual_negatives
from zipfel.models.neighbours import Memory
from zipfel.models.saving import own_tensors
from zipfel.tagger import Tagger
from zipfel.training.run import Run, with_prefix
from zipfel.types import Bags, Shortlist

pytestmark = pytest.mark.usefixtures("one_thread")

POINTS, FEATURES, LABELS, WIDTH = 12, 9, 6, 5


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def part() -> Part:
    numbers = np.random.default_rng(0)
    X = numbers.random((POINTS, FEATURES)) * (numbers.random((POINTS, FEATURES)) < 0.5)
    X[:, 0] += 0.1  # so that no point is empty
    Y = numbers.random((POINTS, LABELS)) < 0.4
    Y[:, 1] |= ~Y.any(axis=1)
    return Part(csr_array(Y.astype(np.float32)), X=csr_array(X.astype(np.float32)))


def small(**changes: Any) -> Mnn:
    return Mnn(FEATURES, LABELS, MnnSettings(dimension=WIDTH, **changes), seeded(5))


def bags_of(matrix: csr_array, rows: list[int]) -> list[list[tuple[int, float]]]:
    ends = matrix.indptr
    return [
        list(zip(matrix.indices[ends[r] : ends[r + 1]].tolist(), matrix.data[ends[r] : ends[r + 1]], strict=True))
        for r in rows
    ]


# --- Negatives --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 7])
def test_others_are_drawn_evenly_and_never_the_point_itself(count):
    draws = 4000
    others = drawn_others(count, draws, seeded(1))
    assert others.shape == (count, draws)
    for point, row in enumerate(others):
        times = row.bincount(minlength=count).double()
        assert times[point] == 0
        assert len(times) == count
        rest = times[torch.arange(count) != point] / draws
        deviation = (1 / (count - 1) * (1 - 1 / (count - 1)) / draws) ** 0.5
        assert (rest - 1 / (count - 1)).abs().max() <= 5 * deviation
    assert torch.equal(others, drawn_others(count, draws, seeded(1)))
    steps = (others - torch.arange(count)[:, None]) % count
    assert count == 2 or not torch.equal(steps[0], steps[1])  # each point draws its own


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_point_has_no_others(count):
    others = drawn_others(count, 10, seeded())
    assert others.shape == (count, 0)
    assert others.dtype == torch.long


# --- The loss ---------------------------------------------------------------------------------------------------------


def slow_loss(model: Mnn, part: Part, rows: list[int], seed: int) -> float:
    """Compute Eq. (1)-(11) with loops; a second generator with the same seed draws the same numbers."""
    settings, generator = model.settings, seeded(seed)
    points, own = bags_of(part.X, rows), bags_of(part.Y, rows)
    draws = [1] * sum(map(len, points))
    if settings.feature_dropout:
        draws = (torch.rand(len(draws), generator=generator) < 1 - settings.feature_dropout).int().tolist()
    rest = iter(draws)
    kept = [[next(rest) for _ in bag] for bag in points]
    f_x = reference.averages(model.encoder.table.rows.tolist(), points, kept, WIDTH)
    f_y = reference.averages(model.label_encoder.table.rows.tolist(), own, [[1] * len(bag) for bag in own], WIDTH)
    others = drawn_others(len(rows), settings.negatives, generator).tolist()
    positive = [reference.cosine(x, y) for x, y in zip(f_x, f_y, strict=True)]
    negatives = [[reference.cosine(x, f_y[j]) for j in row] for x, row in zip(f_x, others, strict=True)]
    return reference.matching_loss(positive, negatives, settings.margin, [[True] * len(row) for row in negatives])


@pytest.mark.parametrize("dropout", [0.0, 0.5, 0.2])
@pytest.mark.parametrize("margin", [-1.0, 0.1])
@pytest.mark.parametrize("rows", [[0, 3, 4, 7, 11], [2, 5], [6]])
def test_the_loss_is_that_of_the_paper(part, dropout, margin, rows):
    model = small(feature_dropout=dropout, margin=margin, negatives=3)
    for seed in range(5):
        loss = model.loss(part, np.array(rows), seeded(seed))["matching"]
        assert loss.item() == pytest.approx(slow_loss(model, part, rows, seed), abs=1e-5)


def test_a_step_changes_both_networks_and_only_rows_of_the_batch(part):
    model, rows = small(feature_dropout=0.0), np.array([1, 4, 5])
    model.loss(part, rows, seeded())["matching"].backward()
    for table, matrix in ((model.encoder.table, part.X), (model.label_encoder.table, part.Y)):
        [(ids, leaf)] = table.touched
        assert ids.tolist() == sorted(set(matrix[rows].indices.tolist()))
        assert leaf.grad.isfinite().all()
        assert (leaf.grad != 0).any(dim=1).all()


# --- Tagging ----------------------------------------------------------------------------------------------------------


def planted(points: int = 300, seed: int = 0) -> tuple[csr_array, csr_array]:
    """Return points whose features show their labels, one or two of eight."""
    numbers = np.random.default_rng(seed)
    Y = np.zeros((points, 8), dtype=np.float32)
    for row in range(points):
        Y[row, numbers.choice(8, numbers.integers(1, 3), replace=False)] = 1
    shown = np.repeat(Y, 4, axis=1) * (numbers.random((points, 32)) < 0.6)
    noise = numbers.random((points, 10)) < 0.3
    return csr_array(np.concatenate([shown, noise], axis=1).astype(np.float32)), csr_array(Y)


def test_the_neighbours_decoder_learns_what_is_planted():
    (X, Y), (test, truth) = planted(), planted(100, seed=1)
    tagger = Tagger("mnn", settings={"dimension": 16, "epochs": 8, "learning_rate": 0.01}, device="cpu").fit(X, Y)
    assert tagger.score(test, truth) > 0.9
    assert tagger.fitted_.blueprint.abilities.remembers_points
    assert tagger.predictor_.classifier.point_labels.shape == Y.shape


def test_the_labels_decoder_ranks_by_the_cosine_with_each_label(part):
    model = small(decoder="labels").eval()
    (learner,) = model.learners()
    assert isinstance(learner.index, ExactIndex)
    assert learner.classifier.point_labels is None
    assert not Mnn.abilities(model.settings).remembers_points
    ranking = learner.rank(part.X, LABELS)
    f_x = learner.encode(part.X).tolist()
    for row, x in enumerate(f_x):
        cosines = [reference.cosine(x, y) for y in model.label_encoder.table.rows.tolist()]
        assert ranking.ids[row].tolist() == sorted(range(LABELS), key=lambda label: -cosines[label])
        assert ranking.scores[row].tolist() == pytest.approx(sorted(((1 + c) / 2 for c in cosines), reverse=True))


def test_half_cosine():
    scores = half_cosine(torch.tensor([-1.00001, -1.0, 0.0, 0.5, 1.0, 1.00001]))
    assert scores.tolist() == [0, 0, 0.5, 0.75, 1, 1]


def test_new_labels_leave_the_others_unchanged():
    model = small()
    before = model.label_encoder.table.rows.clone()
    model.add_labels(3, seeded(1))
    assert model.label_count == LABELS + 3
    assert model.label_encoder.table.rows.shape == (LABELS + 3, WIDTH)
    assert torch.equal(model.label_encoder.table.rows[:LABELS], before)
    assert not model.label_encoder.table.rows.requires_grad
    assert 0.3 < model.label_encoder.table.rows[LABELS:].norm(dim=1).mean() < 2  # about 1, as at the start


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dimension": 0}, "dimension must be at least 1; found 0"),
        ({"negatives": 0}, "negatives must be at least 1; found 0"),
        ({"feature_dropout": 1}, r"feature_dropout must be at least 0 and below 1; found 1\.0"),
        ({"feature_dropout": -0.5}, r"feature_dropout must be at least 0 and below 1; found -0\.5"),
        ({"margin": -1.5}, r"margin must be at least -1; found -1\.5"),
        ({"batch_size": 0}, "batch_size must be at least 1; found 0"),
        ({"epochs": 0}, "epochs must be at least 1; found 0"),
        ({"neighbours": 0}, "neighbours must be at least 1; found 0"),
        ({"decoder": "label"}, "decoder must be one of neighbours, labels; found 'label'"),
        ({"negatives_reduction": "min"}, "negatives_reduction must be one of max, mean, sum; found 'min'"),
        ({"negative": 3}, r"unknown setting 'negative'; did you mean 'negatives'\?"),
    ],
)
def test_invalid_settings_are_refused(changes, message):
    with pytest.raises(ConfigError, match=f"^{message}$"):
        settings_of("mnn", changes=changes)


def test_there_are_three_presets():
    assert list(PRESETS) == ["paper", "default", "fast"]


def test_the_labels_decoder_is_fitted_and_saved_and_refuses_points_without_learning(tmp_path):
    X, Y = planted()
    settings = {"dimension": 16, "epochs": 20, "learning_rate": 0.02, "decoder": "labels"}
    tagger = Tagger("mnn", settings=settings, device="cpu").fit(X, Y)
    assert tagger.score(X, Y) > 0.8
    tagger.save(tmp_path / "model")
    before, after = tagger.rank(X, 8), Tagger.load(tmp_path / "model", device="cpu").rank(X, 8)
    assert np.array_equal(before.ids, after.ids)
    assert np.array_equal(before.scores, after.scores)
    with pytest.raises(ConfigError, match="mnn cannot add points without training"):
        tagger.partial_fit(X, Y)


def test_a_saved_model_votes_as_before(tmp_path):
    X, Y = planted()
    tagger = Tagger("mnn", settings={"dimension": 16, "epochs": 2}, device="cpu").fit(X, Y)
    tagger.save(tmp_path / "model")
    before, after = tagger.rank(X, 8), Tagger.load(tmp_path / "model", device="cpu").rank(X, 8)
    assert np.array_equal(before.ids, after.ids)
    assert np.array_equal(before.scores, after.scores)


@pytest.mark.parametrize(("labels", "draws"), [(1, 10), (6, 10), (10, 6), (19, 3), (100, 3)])
def test_points_with_many_labels_get_fewer_negatives(labels, draws):
    own = Bags(torch.arange(4 * labels), torch.ones(4 * labels), torch.arange(0, 4 * labels + 1, labels))
    assert usual_negatives(own) == draws


# --- decoder=labels ---------------------------------------------------------------------------------------------------

LABELS_DECODER: dict[str, Any] = {"dimension": 16, "epochs": 20, "learning_rate": 0.02, "decoder": "labels"}


def test_the_labels_decoder_saves_no_points_and_has_no_calibration():
    X, Y = planted()
    tagger = Tagger("mnn", settings=LABELS_DECODER, device="cpu").fit(X, Y)
    serve, train = tagger.model_.tensors()
    assert set(serve) == {"encoder.table.rows", "label_encoder.table.rows", "counts"}
    assert train == {}
    assert serve["counts"].tolist() == Y.sum(axis=0).tolist()
    assert tagger.calibration_ is None  # all points were learned from at once


@pytest.mark.parametrize("decoder", ["neighbours", "labels"])
def test_f_y_is_served_only_where_labels_are_found_by_it(part, decoder):
    model = small(decoder=decoder, epochs=1, neighbours=3, sharpness=1.0)
    model.fit(Lesson(part), Run())
    serve, train = model.tensors()
    assert ("label_encoder.table.rows" in serve) == (decoder == "labels")
    assert ("label_encoder.table.rows" in train) == (decoder == "neighbours")


def test_a_query_of_zero_and_missing_candidates_get_the_most_frequent_labels():
    classifier = NearestLabels(torch.tensor([[1.0, 0], [-1.0, 0], [0, 1.0]]), torch.tensor([1, 5, 3]))
    shortlist = Shortlist(torch.tensor([[0, 1, -1], [0, 1, 2], [1, 2, -1]]), torch.zeros(3, 3))
    ranking = classifier.rescore(torch.tensor([[1.0, 0], [0, 0], [0, 1.0]]), shortlist, 3)
    assert ranking.ids.tolist() == [[0, 1, 2], [1, 2, 0], [2, 1, 0]]
    frequent = [UNLISTED / 2 * share for share in (1, 0.6, 0.2)]
    assert ranking.scores[0].tolist() == pytest.approx([1, UNLISTED, frequent[1]])  # a cosine of -1 is still ahead
    assert ranking.scores[1].tolist() == pytest.approx(frequent)
    assert ranking.scores[2].tolist() == pytest.approx([1, 0.5, frequent[2]])
    steady = Shortlist(torch.tensor([[0, 2]]), torch.tensor([[0.5, 0.25]]), steady=True)
    assert classifier.rescore(torch.tensor([[1.0, 0]]), steady, 2).scores.tolist() == [[0.75, 0.625]]


@pytest.mark.parametrize(("index", "kind"), [("hnsw", HnswIndex), ("ivf", IvfIndex)])
def test_the_index_of_the_labels_decoder_holds_labels(tmp_path, monkeypatch, index, kind):
    (X, Y), built, build = planted(), [], neighbours.build_index

    def spy(kind: Any, vectors: torch.Tensor, *rest: Any) -> Any:
        built.append(vectors)
        return build(kind, vectors, *rest)

    monkeypatch.setattr(neighbours, "build_index", spy)
    tagger = Tagger("mnn", settings={**LABELS_DECODER, "index": index, "probes": 1}, device="cpu").fit(X, Y)
    assert len(built) == 1
    assert torch.equal(built[0], tagger.model_.label_vectors())
    assert isinstance(tagger.predictor_.index, kind)
    assert len(tagger.predictor_.index) == 8
    assert 0.3 < tagger.index_recall(X) <= 1
    assert tagger.score(X, Y) > 0.5
    whole = tagger.rank(X, 8)
    assert (np.sort(whole.ids, axis=1) == np.arange(8)).all()  # also those that the index does not find
    assert (np.diff(whole.scores, axis=1) <= 0).all()
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert isinstance(loaded.predictor_.index, kind)
    assert len(built) == 1  # it was saved
    again = loaded.rank(X, 8)
    assert np.array_equal(again.ids, whole.ids)
    assert np.array_equal(again.scores, whole.scores)


@pytest.mark.parametrize("index", ["exact", "ivf"])
def test_training_again_adds_to_the_counts_of_labels(part, index):
    model = small(decoder="labels", epochs=1, index=index)
    model.fit(Lesson(part), Run())
    counts = part.Y.sum(axis=0).tolist()
    assert model.counts.tolist() == counts
    model.add_labels(2, seeded())
    assert len(model.learners()[0].index) == LABELS + 2  # new labels are found before they are learned
    assert model.learners()[0].rank(part.X, LABELS + 2).ids.shape == (POINTS, LABELS + 2)
    Y = part.Y.toarray()
    wider = csr_array(np.concatenate([Y, np.ones((POINTS, 2))], axis=1).astype(np.float32))
    model.fit(Lesson(Part(wider, X=part.X)), Run())
    assert model.counts.tolist() == [*(2 * count for count in counts), POINTS, POINTS]
    assert len(model.index) == LABELS + 2


def test_new_points_without_labels_are_not_remembered(part):
    """They would take the place of neighbours that vote."""
    model = small(epochs=1, neighbours=3, sharpness=1)
    model.fit(Lesson(part), Run())
    Y = part.Y.toarray()
    Y[2] = 0
    model.add_points(Part(csr_array(Y), X=part.X))
    assert len(model.memory) == len(model.index) == 2 * POINTS - 1


def test_points_that_an_earlier_fit_learned_do_not_calibrate_a_further_one(part):
    model = small(epochs=1, neighbours=3, sharpness=1)
    model.fit(Lesson(part.take(np.arange(5))), Run())
    new = part.take(np.arange(5, POINTS))
    model.fit(Lesson(new, validation=part), Run())
    np.testing.assert_array_equal(model.unseen.part.X.toarray(), new.X.toarray())


@pytest.mark.parametrize("index", ["exact", "ivf"])
def test_a_labels_decoder_that_was_saved_with_its_points_loads(part, index):
    """Earlier versions saved all points, their vote, and an index over them."""
    model = small(decoder="labels", epochs=1, index=index)
    model.fit(Lesson(part), Run())
    memory = Memory(model.encoded(part), part.Y, part.X)
    points = with_prefix("index.", model.settings.build_index(memory.vectors, 0).state())
    vote = {"vote": torch.tensor([20.0, 4.0], dtype=torch.float64)}
    older = Tensors({**own_tensors(model), **memory.tensors(), **vote, **points}, {})
    restored = Mnn.restored(FEATURES, LABELS, model.settings, older)
    assert restored.memory is None
    assert restored.counts.tolist() == model.counts.tolist()
    assert len(restored.index) == LABELS
    queries = csr_array(np.concatenate([part.X.toarray(), np.zeros((1, FEATURES))]).astype(np.float32))
    before, after = (each.learners()[0].rank(queries, LABELS) for each in (model, restored))
    assert np.array_equal(before.ids, after.ids)
    assert np.array_equal(before.scores, after.scores)
    assert set(restored.tensors().all) == set(model.tensors().all)


def test_a_plan_of_the_labels_decoder_completes_nothing(part):
    model = small(decoder="labels", epochs=1)
    model.fit(Lesson(part), Run())
    before = model.index
    assert model.complete(Lesson(part), part) == 0
    assert model.index is before
    assert model.memory is None
