"""The re-ranker: its loss against a loop, its candidates, the mean of two scores, and LightDXML with one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference
import torch
from scipy.sparse import csr_array
from stopped import Stop, stops_after
from torch import Tensor

from zipfel.data.batches import bags
from zipfel.data.dataset import Dataset, Part
from zipfel.index.exact import ExactIndex
from zipfel.models import reranker as reranker_module
from zipfel.models.base import Lesson, settings_of
from zipfel.models.learner import CosineClassifier, Learner, precision_at_1
from zipfel.models.lightdxml import Features, LightDxml
from zipfel.models.lightdxml_settings import LightSettings
from zipfel.models.reranker import RerankedPredictor, Reranker, top_labels
from zipfel.nn.encoders import PredictionEncoder
from zipfel.tagger import Tagger
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, Schedule
from zipfel.types import Ranking

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, Any] = {
    "dimension": 8, "epochs": 3, "min_steps": 1, "batch_size": 32, "learning_rate": 0.03, "shortlist_size": 5,
}  # fmt: skip


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def planted(points: int = 120, seed: int = 0) -> Part:
    """Points with two of six labels, and features that tell the labels apart."""
    numbers = np.random.default_rng(seed)
    Y = np.zeros((points, 6), dtype=np.float32)
    for row in range(points):
        Y[row, numbers.choice(6, 2, replace=False)] = 1
    X = np.repeat(Y, 3, axis=1) * (numbers.random((points, 18)) < 0.8) + (numbers.random((points, 18)) < 0.1)
    filtered = (numbers.random(Y.shape) < 0.1) & (Y == 0)
    return Part(csr_array(Y), X=csr_array(X.astype(np.float32)), filtered=csr_array(filtered.astype(np.float32)))


def alone(cosine: bool = False, **changes: Any) -> Reranker:
    """Return a re-ranker of 6 labels and 18 features, without dropout."""
    usual = {**SMALL, "dimension": 4, "cosine": cosine, "residual": False, "dropout": 0.0}
    return Reranker(Features(18, LightSettings(**{**usual, **changes}), seeded()), 6, cosine, seeded(1))


class Fixed:
    """A predictor that ranks by fixed scores of points, which are the features themselves."""

    first = None

    def __init__(self, scores: list[list[float]]) -> None:
        self.scores = np.array(scores, dtype=np.float32)

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        scores = csr_array(self.scores[: X.shape[0]])
        ranking = Ranking.of_scores(scores, k + self.scores.shape[1])
        return (ranking if filtered is None else ranking.without(filtered)).top(k)

    def recall(self, X: csr_array, k: int) -> float:
        return k / 100

    def explained(self, row: csr_array, label: int) -> np.ndarray:
        assert label == 3
        return np.arange(1.0, 1 + row.nnz)

    def cosines(self, label: int) -> Tensor:
        return torch.full((6,), float(label))


# --- Learning ---------------------------------------------------------------------------------------------------------


def test_candidates_are_the_first_labels_without_filtered_ones():
    filtered = csr_array(np.array([[0, 1, 0, 0], [0, 0, 0, 0]], dtype=np.float32))
    part = Part(csr_array(np.eye(2, 4, dtype=np.float32)), X=csr_array(np.ones((2, 2))), filtered=filtered)
    top = top_labels(Fixed([[0.1, 0.9, 0.5, 0.7], [0.2, 0.8, 0, 0]]), part, 3)
    assert top.tolist() == [[3, 2, 0], [1, 0, -1]]
    assert top.dtype == torch.int32


@pytest.mark.parametrize("cosine", [False, True])
def test_the_loss_is_that_of_right_labels_and_of_wrong_ones_among_the_first(cosine):
    part, model = planted(), alone(cosine).train()
    rows = np.flatnonzero(np.diff(part.filtered.indptr))[:3]
    truth, out = ([some[[row]].indices.tolist() for row in rows] for some in (part.Y, part.filtered))
    top = torch.tensor([[out[0][0], 1, 2], [out[1][0], -1, -1], [3, 3, 4]], dtype=torch.int32)  # two are filtered
    loss = model.loss(part, rows, top, seeded())
    queries = model.encoder.prediction_encoder()
    with torch.no_grad():
        vectors = queries.eval()(bags(part.X, rows))
        scores = model.classifier(vectors, torch.arange(6)).tolist()
    lists = [[label for label in row if label >= 0] for row in top.tolist()]
    assert loss.item() == pytest.approx(reference.shortlisted_loss(scores, truth, lists, out), rel=1e-5)
    loss.backward()
    touched, slopes = model.classifier.labels.touched[0]
    assert set(touched.tolist()) == {label for some in (*truth, *lists) for label in some}
    assert slopes.grad.abs().sum() > 0
    assert model.encoder.tokens.touched[0][1].grad.abs().sum() > 0


def test_it_learns_from_the_candidates_of_each_point(monkeypatch):
    part, seen = planted(), {}
    X = csr_array(np.repeat(np.asarray(part.Y.todense()), 3, axis=1))
    part = Part(part.Y, X=X)
    scores = np.random.default_rng(0).random((len(part), 6))
    model = alone()

    def spy(run: Run, stage: str, module: Any, points: Any, objective: Any, schedule: Schedule, validate: Any) -> Any:
        monkeypatch.setattr(model, "loss", lambda part, rows, top, generator: top)
        seen.update(objective(np.array([4, 9]), seeded()), stage=stage, points=points, validate=validate)
        return Outcome(None, -1, 1, 0.0)

    monkeypatch.setattr(reranker_module, "train", spy)
    model.fit(Fixed(scores.tolist()), Lesson(part), 2, Schedule(1, 8, 0.1), Run())
    assert seen["reranker"].tolist() == np.argsort(-scores[[4, 9]], axis=1)[:, :2].tolist()
    assert (seen["stage"], seen["points"], seen["validate"]) == ("reranker", len(part), None)


def test_the_epoch_is_kept_in_which_both_rank_best(monkeypatch):
    """Validation is P@1 of the mean, so an epoch in which the re-ranker alone is better does not count."""
    part, model, seen = planted(), alone(), []
    predictor = Fixed(np.random.default_rng(1).random((len(part), 6)).tolist())
    expected = {}

    def precision(judged: RerankedPredictor, held_out: Part) -> float:
        seen.append((judged.main, judged.k, len(held_out)))
        expected[len(seen)] = {name: value.clone() for name, value in model.state_dict().items()}
        return [0.1, 0.5, 0.3][len(seen) - 1]

    monkeypatch.setattr(reranker_module, "precision_at_1", precision)
    lesson = Lesson(part, validation=part.take(np.arange(7)))
    outcome = model.fit(predictor, lesson, 4, Schedule(3, 20, 0.1), Run())
    assert (outcome.best, outcome.best_epoch, outcome.metric) == (0.5, 1, "P@1")
    assert seen == [(predictor, 4, 7)] * 3
    assert all(torch.equal(value, expected[2][name]) for name, value in model.state_dict().items())


def test_it_corrects_a_predictor_that_ranks_at_random():
    part, model = planted(300), alone(cosine=True)
    predictor = Fixed((0.2 * np.random.default_rng(1).random((300, 6))).tolist())
    model.fit(predictor, Lesson(part), 4, Schedule(8, 20, 0.05), Run())
    before, after = (
        precision_at_1(some, part) for some in (predictor, RerankedPredictor(predictor, model.learner(), 4))
    )
    assert before < 0.5
    assert after > 0.85  # for one in 15 points, no right label is among the first four


# --- Prediction -------------------------------------------------------------------------------------------------------


def by_hand(k: int) -> RerankedPredictor:
    """Return two points whose vectors are their features, four labels, and a re-ranker with products by hand."""
    tokens = alone().encoder.tokens
    tokens.rows = torch.nn.Parameter(torch.eye(2), requires_grad=False)
    W = torch.tensor([[2.0, 0], [0, 1], [-1, 1], [3, 3]])
    classifier = CosineClassifier(W, lambda products: torch.sigmoid(products.double()), torch.clone)
    learner = Learner(PredictionEncoder(tokens, None, False), ExactIndex(W), classifier, torch.device("cpu"))
    main = Fixed([[0.5, 0.6, 0.9, 0.1], [0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]])
    return RerankedPredictor(main, learner, k)


POINTS = csr_array(np.array([[1.0, 0], [0, 1], [0, 0]], dtype=np.float32))


def test_the_mean_of_both_by_hand():
    ranking = by_hand(3).rank(POINTS, 4)
    products = {0: [2, 0, -1], 1: [0, 1, 1]}
    for row, main in {0: [0.5, 0.6, 0.9], 1: [0.4, 0.3, 0.2]}.items():
        both = [(score + reference.sigmoid(product)) / 2 for score, product in zip(main, products[row], strict=True)]
        order = sorted(range(3), key=lambda label: -both[label])
        assert ranking.ids[row].tolist() == [*order, 3]  # which is behind, though the re-ranker likes it best
        assert ranking.scores[row].tolist() == pytest.approx([*(both[label] for label in order), 0.05])
    assert ranking.ids[2].tolist() == [0, 1, 2, 3]  # without features: as the model ranks
    assert ranking.scores[2].tolist() == pytest.approx([0.2, 0.15, 0.1, 0.05])
    assert ranking.scores.dtype == np.float32


def test_a_shorter_ranking_is_the_beginning_of_a_longer_one():
    whole = by_hand(2).rank(POINTS, 4)
    for k in (1, 2, 3):
        short = by_hand(2).rank(POINTS, k)
        assert np.array_equal(short.ids, whole.ids[:, :k])
        assert np.array_equal(short.scores, whole.scores[:, :k])


def test_filtered_labels_do_not_change_what_is_ranked_again():
    filtered = csr_array(np.array([[0, 0, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]], dtype=np.float32))
    whole = by_hand(2).rank(POINTS, 4)
    some = by_hand(2).rank(POINTS, 2, filtered)
    assert some.ids.tolist() == [[label for label in row if not filtered[[i], [label]]][:2]
                                 for i, row in enumerate(whole.ids.tolist())]  # fmt: skip


def test_batches_change_nothing(monkeypatch):
    part, model = planted(30), alone()
    predictor = RerankedPredictor(Fixed(np.random.default_rng(1).random((30, 6)).tolist()), model.learner(), 4)
    whole = predictor.rank(part.X, 6)
    monkeypatch.setattr(reranker_module, "BATCH", 7)
    assert np.array_equal(predictor.rank(part.X, 6).scores, whole.scores)
    assert predictor.rank(part.X[:0], 6).ids.shape == (0, 6)


def test_what_else_a_predictor_tells():
    predictor = by_hand(3)
    assert predictor.first is None
    assert (predictor.recall(POINTS, 1), predictor.recall(POINTS, 9)) == (0.03, 0.09)
    assert predictor.cosines(2).tolist() == [2] * 6
    both = csr_array(np.array([[1.0, 2.0]], dtype=np.float32))
    assert predictor.explained(both, 3) == pytest.approx([(1 + 3) / 2, (2 + 6) / 2])  # weights · (3, 3)


# --- LightDXML with a re-ranker ---------------------------------------------------------------------------------------


def fitted(part: Part, validation: float = 0.2, **changes: Any) -> Tagger:
    settings = {**SMALL, "reranker": True, **changes}
    return Tagger("lightdxml", settings=settings, validation=validation, device="cpu").fit_dataset(Dataset(part))


def test_a_model_with_a_re_ranker_is_the_model_without_and_a_mean():
    part, test = planted(), planted(40, seed=1)
    tagger, plain = fitted(part), fitted(part, reranker=False)
    main, predictor = plain.model_.predictor(), tagger.model_.predictor()
    assert isinstance(predictor, RerankedPredictor)
    assert np.array_equal(predictor.main.rank(test.X, 6).scores, main.rank(test.X, 6).scores)
    assert predictor.k == 5  # no more than the shortlist
    assert np.array_equal(tagger.rank(test.X, 6).ids, predictor.rank(test.X, 6).ids)
    assert tagger.outcome_.epochs == 2 * plain.outcome_.epochs
    assert tagger.outcome_.best == plain.outcome_.best
    ours = tagger.model_.reranker
    assert ours.classifier.cosine is plain.model_.settings.cosine
    assert not torch.equal(ours.encoder.tokens.rows, tagger.model_.encoder.tokens.rows)


@pytest.mark.parametrize("changes", [{}, {"cosine": False, "residual": False}, {"float16": True}])
def test_it_is_saved_and_trained_further(tmp_path, changes):
    part, X = planted(), planted(30, seed=1).X
    tagger = fitted(part, epochs=1, **changes)
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    before, after = tagger.rank(X, 6), loaded.rank(X, 6)
    np.testing.assert_allclose(after.scores, before.scores, atol=2e-3 if "float16" in changes else 0)
    saved = loaded.model_.tensors()
    assert ("reranker.classifier.lengths" in saved.train) == ("cosine" not in changes)
    assert "reranker.encoder.tokens.rows" in saved.serve
    rows = loaded.model_.reranker.classifier.labels.rows.clone()
    for one in (tagger, loaded):
        one.set_params(warm_start=True, validation=0).fit_dataset(Dataset(planted(60, seed=2)))
    assert (loaded.model_.reranker.classifier.labels.rows - rows).abs().max() > 1e-3
    tolerance = 0.05 if "float16" in changes else 1e-3
    for name, value in tagger.model_.reranker.state_dict().items():
        torch.testing.assert_close(loaded.model_.reranker.state_dict()[name], value, rtol=tolerance, atol=tolerance)


def test_new_labels_and_words_reach_the_re_ranker():
    model = fitted(planted(), epochs=1).model_
    rows = {name: value.clone() for name, value in model.reranker.state_dict().items()}
    model.add_labels(40, seeded())
    model.add_features(50, seeded())
    W, tokens = model.reranker.classifier.labels.rows, model.reranker.encoder.tokens.rows
    assert (W.shape, tokens.shape) == ((46, 8), (68, 8))
    assert torch.equal(W[:6], rows["classifier.labels.rows"])
    assert torch.equal(tokens[:18], rows["encoder.tokens.rows"])
    for new in (W[6:], tokens[18:]):
        assert new.std().item() == pytest.approx(8**-0.5, rel=0.15)


def test_labels_known_by_their_texts_score_by_the_mean_too():
    model, X = fitted(planted(), epochs=1).model_, planted(5, seed=1).X
    Z = planted(3, seed=2).X
    main = model.text_scores(model.learners()[0], X, Z)
    learner = model.reranker.learner()
    scale, offset = model.reranker.classifier.scale_and_offset()
    more = torch.sigmoid(scale * learner.encode(X) @ learner.encode(Z).T + offset)
    torch.testing.assert_close(model.text_scores(model.predictor(), X, Z), (main + more) / 2)


def test_it_starts_from_the_token_vectors_of_the_model_where_these_are_given(tmp_path):
    (tmp_path / "words.vec").write_text("red 1 0 0\napple 0 2 0\ncar 0 0 -4\n")
    settings = {**SMALL, "dimension": 3, "token_init": str(tmp_path / "words.vec"), "reranker": True}
    settings |= {"epochs": 1, "learning_rate": 1e-9}
    tagger = Tagger("lightdxml", settings=settings, text={"min_count": 1}, device="cpu")
    model = tagger.fit(["red apple", "fast car"] * 6, [["fruit"], ["car"]] * 6).model_
    torch.testing.assert_close(model.reranker.encoder.tokens.rows, model.encoder.tokens.rows, rtol=0, atol=1e-5)


# --- Runs that are interrupted ----------------------------------------------------------------------------------------


def run_of(folder: Path | None, stop: Any = None) -> LightDxml:
    run = Run(folder, seed=1)
    run.open({})
    if stop is not None:
        stop(run)
    settings = {**SMALL, "reranker": True}
    tagger = Tagger("lightdxml", settings=settings, validation=0.2, device="cpu", seed=1)
    return tagger.fit_dataset(Dataset(planted()), run).model_


@pytest.mark.parametrize(
    ("stage", "times"), [("lightdxml", 1), ("reranker-candidates", 1), ("reranker.checkpoint", 2), ("reranker", 1)]
)
def test_a_stopped_run_ends_with_the_same_weights(tmp_path, monkeypatch, stage, times):
    with pytest.raises(Stop):
        run_of(tmp_path, stops_after(times, stage))
    if stage == "reranker-candidates":
        monkeypatch.setattr(reranker_module, "top_labels", None)
    resumed, plain = run_of(tmp_path).state_dict(), run_of.plain.state_dict()  # type: ignore[attr-defined]
    assert resumed.keys() == plain.keys()
    assert all(torch.equal(resumed[name], value) for name, value in plain.items())


@pytest.fixture(autouse=True, scope="module")
def undisturbed() -> None:
    run_of.plain = run_of(None)  # type: ignore[attr-defined]


@pytest.mark.parametrize("where", ["top_labels", "loss"])
def test_ctrl_c_before_it_has_learned_leaves_the_model_without_it(monkeypatch, where):
    def stop(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Reranker if where == "loss" else reranker_module, where, stop)
    tagger = fitted(planted())
    assert tagger.outcome_.interrupted
    assert tagger.model_.reranker is None
    assert isinstance(tagger.model_.predictor(), Learner)
    assert "reranker.classifier.labels.rows" not in tagger.model_.tensors().all


def test_the_setting_is_off_unless_asked_for():
    assert not LightSettings().reranker
    assert settings_of("lightdxml", changes={"reranker": "true"}).reranker
