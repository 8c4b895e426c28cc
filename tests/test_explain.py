"""Explanations: by hand, that weights add up to the score, and that deleting the words they name lowers it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor

from zipfel import Tagger
from zipfel.data.batches import bags
from zipfel.data.synthetic import Synthetic, make
from zipfel.errors import ConfigError, DataError
from zipfel.explain import Reason
from zipfel.index.exact import ExactIndex
from zipfel.models.base import BUILT_IN, Predictor
from zipfel.models.blend import BlendPredictor
from zipfel.models.learner import CosineClassifier, Ensemble, Learner, half_cosine
from zipfel.models.lightdxml import MixedClassifier
from zipfel.models.linear_predictor import LinearPredictor
from zipfel.models.neighbours import Memory, Vote
from zipfel.nn.encoders import Encoder
from zipfel.types import Bags

pytestmark = pytest.mark.usefixtures("one_thread")

TABLE = torch.tensor([[3.0, 0.0], [0.0, 4.0], [0.0, -1.0]])
ROW = csr_array(np.array([[1.0, 1.0, 0.0]], dtype=np.float32))
CPU = torch.device("cpu")


class Sums(Encoder):
    """The sum of the rows of a table; with `unit`, of length 1."""

    def __init__(self, unit: bool) -> None:
        super().__init__()
        self.unit = unit

    def forward(self, points: Bags) -> Tensor:
        return F.normalize(self.unscaled(points), dim=1) if self.unit else self.unscaled(points)

    def unscaled(self, points: Bags) -> Tensor:
        return F.embedding_bag(
            points.ids, TABLE, points.offsets, mode="sum", per_sample_weights=points.weights, include_last_offset=True
        )


class Bent(Encoder):
    """An encoder that is neither linear nor of length 1, as a network might be; it has no `unscaled` of its own."""

    def forward(self, points: Bags) -> Tensor:
        return torch.tanh(Sums(unit=False)(points) / 3)


def learner(classifier: Any, encoder: Encoder | None = None) -> Learner:
    return Learner(encoder or Sums(unit=True), ExactIndex(classifier.vectors), classifier, CPU)


def test_the_parts_of_a_cosine_by_hand():
    """x = (3, 4), of length 5, against (0.6, 0.8): 3 · 0.6 / 5 and 4 · 0.8 / 5, which make a cosine of 1."""
    classifier = CosineClassifier(torch.tensor([[0.6, 0.8], [1.0, 0.0]]), half_cosine, lambda cosines: 10 * cosines - 3)
    np.testing.assert_allclose(learner(classifier).explained(ROW, 0), [3.6, 6.4], rtol=1e-5)
    np.testing.assert_allclose(learner(classifier).explained(ROW, 1), [6, 0], atol=1e-5)


def test_the_parts_of_an_inner_product_by_hand():
    classifier = CosineClassifier(torch.tensor([[2.0, 1.0]]), half_cosine)
    np.testing.assert_allclose(learner(classifier, Sums(unit=False)).explained(ROW, 0), [6, 4], rtol=1e-5)


def test_the_parts_of_votes_by_hand():
    """Neighbours (1, 0) and (0, 1) have cosines 0.6 and 0.8; each term is all of the cosine of one of them."""
    Y = csr_array(np.array([[1, 0], [1, 1]], dtype=np.float32))
    vote = Vote(Memory(torch.eye(2), Y, csr_array((2, 3), dtype=np.float32)), neighbours=2, sharpness=1.0)
    np.testing.assert_allclose(learner(vote).explained(ROW, 0), [0.6 / 1.4, 0.8 / 1.4], rtol=1e-5)
    np.testing.assert_allclose(learner(vote).explained(ROW, 1), [0, 0.8 / 1.4], atol=1e-6)


def test_a_label_without_a_vote_has_no_weights():
    Y = csr_array(np.array([[1, 0], [1, 0]], dtype=np.float32))
    vote = Vote(Memory(torch.eye(2), Y, csr_array((2, 3), dtype=np.float32)), neighbours=2, sharpness=1.0)
    assert learner(vote).explained(ROW, 1).tolist() == [0, 0]


def test_the_parts_of_a_mix_add_up_to_its_log_odds():
    vectors, W = F.normalize(torch.tensor([[1.0, 2.0]]), dim=1), torch.tensor([[0.0, 1.0]])
    mixed = MixedClassifier(vectors, W, torch.tensor(9.0), torch.tensor(-4.0), torch.ones(1), 0.4, 1)

    def odds(cosine: float, near: float) -> float:
        share = 0.4 / (1 + np.exp(4 - 9 * cosine)) + 0.6 / (1 + np.exp(-near))
        return float(np.log(share / (1 - share)))

    weights = learner(mixed).explained(ROW, 0)
    assert weights.sum() == pytest.approx(odds(0.8, (0.6 + 1.6) / 5**0.5) - odds(0, 0), rel=1e-3)
    assert 0 < weights[0] < weights[1]


@pytest.mark.parametrize("unit", [True, False])
def test_terms_that_cancel_out_still_have_weights(unit):
    """4 − 4 · 1 has no direction; the weights of its terms are then not divided by a length."""
    row = csr_array(np.array([[0.0, 1.0, 4.0]], dtype=np.float32))
    weights = learner(CosineClassifier(torch.tensor([[0.0, 1.0]]), half_cosine), Sums(unit)).explained(row, 0)
    np.testing.assert_allclose(weights, [4, -4], rtol=1e-5)


def test_any_encoder_with_gradients_is_explained():
    classifier = CosineClassifier(torch.tensor([[1.0, -1.0]]), half_cosine)
    weights = learner(classifier, Bent()).explained(ROW, 0)
    np.testing.assert_allclose(weights, [np.tanh(1), -np.tanh(4 / 3)], rtol=1e-3)


def test_a_classifier_of_another_package_is_explained_by_its_own_scorer():
    class Squares:
        vectors, memory = torch.tensor([[2.0, 1.0]]), None

        def scorer(self, label: int, query: Tensor, index: Any) -> Any:
            return lambda vectors: (vectors @ self.vectors[label]).square()

    weights = learner(Squares(), Sums(unit=False)).explained(ROW, 0)
    np.testing.assert_allclose(weights, [60, 40], rtol=1e-5)  # (6 + 4)², shared out as 6 to 4


def test_a_classifier_without_a_scorer_is_not_explained_by_something_else():
    class Plain:
        vectors, memory = torch.tensor([[2.0, 1.0]]), None

    with pytest.raises(AttributeError, match="scorer"):
        learner(Plain()).explained(ROW, 0)


def test_an_ensemble_averages_the_weights_of_its_learners():
    vectors = torch.tensor([[2.0, 1.0]]), torch.tensor([[4.0, -1.0]])
    parts = [learner(CosineClassifier(each, half_cosine), Sums(unit=False)) for each in vectors]
    np.testing.assert_allclose(Ensemble(parts).explained(ROW, 0), [(6 + 12) / 2, (4 - 4) / 2], atol=1e-5)


# --- All models -------------------------------------------------------------------------------------------------------

USUAL = {"dimension": 32, "epochs": 8, "batch_size": 64}
SETTINGS: dict[str, dict[str, Any]] = {
    "glas": {**USUAL, "min_steps": 1, "learning_rate": 0.02, "nonlinear": False},
    "mnn": {**USUAL, "learning_rate": 0.01},
    "dxml": {**USUAL, "hidden_size": 64, "learning_rate": 0.01, "feature_dropout": 0.2},
    "lightdxml": {**USUAL, "min_steps": 1, "learning_rate": 0.02, "shortlist_size": 20},
    "decaf": {**USUAL, "module1_epochs": 2, "min_steps": 1, "learning_rate": 0.02, "dropout": 0.0},
    "astec": {
        **USUAL,
        "module1_epochs": 2,
        "min_steps": 1,
        "learning_rate": 0.02,
        "dropout": 0.2,
        "shortlist_size": 20,
    },
}
VARIANTS = [*BUILT_IN, "glas-margin", "glas-relu", "mnn-labels", "lightdxml-plain", "decaf-paper", "decaf-beam"]
VARIANTS += ["astec-documents"]
MORE = {
    "margin": {"loss": "margin"},
    "relu": {"nonlinear": True, "layers": 2},
    "labels": {"decoder": "labels"},
    "plain": {"cosine": False},
    "paper": {"cosine": False, "relu": True},
    "documents": {"cosine": False, "features": "relu", "search_by": "intermediate", "gamma": 0.1},
    "beam": {"shortlist": "beam", "clusters": 4, "beam": 2},
}


@pytest.fixture(scope="module")
def data():
    return make(Synthetic(points=600, labels=20, texts=True, noise=0.2, test_share=0.2, seed=1))


@pytest.fixture(params=VARIANTS, scope="module")
def tagger(request, data) -> Tagger:
    model, _, more = request.param.partition("-")
    return Tagger(model, settings={**SETTINGS.get(model, {}), **MORE.get(more, {})}, device="cpu").fit_dataset(data)


def raw(tagger: Tagger, text: str, label: int, empty: bool = False) -> float:
    """Return the score before it is squeezed into [0, 1]: of a text, or of no words, divided by the text's length."""
    row = tagger.features_.transform([text])
    return raw_of(tagger.predictor_, row, label, empty)


def raw_of(predictor: Predictor, row: csr_array, label: int, empty: bool) -> float:
    if isinstance(predictor, LinearPredictor):
        return float(predictor.margins(csr_array(row.shape, dtype=np.float32) if empty else row)[0, label])
    if isinstance(predictor, BlendPredictor):
        linear = raw_of(predictor.linear, row, label, empty)
        return raw_of(predictor.main, row, label, empty) + float(predictor.weights[label]) * linear
    learner = predictor.first
    score = learner.classifier.scorer(label, learner.encode(row), learner.index)
    with torch.no_grad():
        full = learner.encoder.unscaled(bags(row)).float()
        length = full.norm() / learner.encode(row).norm()
        nothing = learner.encoder.unscaled(bags(csr_array(row.shape, dtype=np.float32))).float()
        return float(score((nothing if empty else full) / length)[0])


def documents(data, count: int) -> list[str]:
    return list(next(iter(data.test.texts.values()))[:count])


def test_weights_add_up(tagger, data):
    for text, ids in zip(documents(data, 20), tagger.rank(documents(data, 20), 3).ids, strict=True):
        for label in ids.tolist():
            reasons = tagger.explain(text, tagger.classes_[label])
            expected = raw(tagger, text, label) - raw(tagger, text, label, empty=True)
            assert sum(reason.weight for reason in reasons) == pytest.approx(expected, abs=0.03 * max(1, abs(expected)))


def test_deleting_the_word_of_the_largest_weight_costs_more_than_deleting_another(tagger, data):
    """On average over documents: the score without the word of the largest weight, against the mean without one."""
    texts = documents(data, 40)
    lost, usual = list[float](), list[float]()
    for text, tags in zip(texts, tagger.predict(texts, 1), strict=True):
        reasons = sorted(tagger.explain(text, tags[0].label), key=lambda reason: -reason.weight)
        cut = [without(text, reason) for reason in reasons]
        scores = [dict(row).get(tags[0].label, 0.0) for row in tagger.predict(cut, 20)]
        lost.append(tags[0].score - scores[0])
        usual.append(tags[0].score - np.mean(scores))
    assert np.mean(lost) > 1.5 * max(0, np.mean(usual))
    assert np.mean(lost) > 0


def without(text: str, reason: Reason) -> str:
    for start, end in reason.places:
        text = text[:start] + " " * (end - start) + text[end:]
    return text


def test_reasons_are_the_known_terms_at_their_places(tagger, data):
    text = documents(data, 1)[0]
    twice = f"{text} 👍 Quux {text.upper()}"
    reasons = tagger.explain(twice, tagger.classes_[0])
    sizes = [abs(reason.weight) for reason in reasons]
    assert sizes == sorted(sizes, reverse=True)
    assert {reason.term for reason in reasons} == set(text.lower().split()) & set(tagger.features_.terms)
    for reason in reasons:
        assert {twice[start:end].lower() for start, end in reason.places} == {reason.term}
        assert len(reason.places) == 2 * text.split().count(reason.term)


@pytest.mark.parametrize("text", ["", " ", "👍", "zzz qqq"])
def test_a_text_without_known_words_has_no_reasons(tagger, text):
    assert tagger.explain(text, tagger.classes_[0]) == []


def test_weights_of_several_learners_are_averaged(data):
    settings = {**SETTINGS["decaf"], "learners": 2, "epochs": 2}
    tagger = Tagger("decaf", settings=settings, device="cpu").fit_dataset(data)
    row = tagger.features_.transform(documents(data, 1))
    assert isinstance(tagger.predictor_, Ensemble)
    one, other = (learner.explained(row, 3) for learner in tagger.predictor_.learners)
    assert not np.allclose(one, other)
    weights = {reason.term: reason.weight for reason in tagger.explain(documents(data, 1)[0], tagger.classes_[3])}
    expected = dict(zip((tagger.features_.terms[term] for term in row.indices), (one + other) / 2, strict=True))
    assert weights == pytest.approx(expected)


def test_a_text_is_explained_the_same_twice(tagger, data):
    text = documents(data, 1)[0]
    assert tagger.explain(text, tagger.classes_[3]) == tagger.explain(text, tagger.classes_[3])


def test_unknown_labels_and_inputs_that_are_no_text_are_refused(data):
    tagger = Tagger("glas", settings=SETTINGS["glas"], text={"min_count": 1}, device="cpu")
    tagger.fit(["red apple", "fast car"], [["fruit"], ["car"]])
    with pytest.raises(ConfigError, match="unknown label 'friut'; did you mean 'fruit'"):
        tagger.explain("red apple", "friut")
    with pytest.raises(ConfigError, match="unknown label 'xyz'; known are car, fruit"):
        tagger.explain("red apple", "xyz")
    with pytest.raises(DataError, match="expected one text, or texts by field; found list"):
        tagger.explain(["red apple"], "fruit")  # type: ignore[arg-type]
    features = Tagger("glas", settings=SETTINGS["glas"], device="cpu").fit(csr_array(np.eye(4)), [["a"], ["b"]] * 2)
    with pytest.raises(DataError, match="fitted on a matrix"):
        features.explain("red apple", "a")


def test_a_field_without_weight_is_not_marked():
    settings = {"dimension": 8, "epochs": 2, "min_steps": 1}
    text = {"min_count": 1, "field_weights": {"title": 2.0, "note": 0.0}}
    tagger = Tagger("glas", settings=settings, text=text, validation=0, device="cpu")
    tagger.fit({"title": ["apple", "car"], "note": ["pear", "bus"], "body": ["red", "fast"]}, [["a"], ["b"]])
    found = tagger.explain({"title": "apple", "note": "apple bus"}, "a")
    assert [(reason.term, reason.places) for reason in found] == [("apple", {"title": [(0, 5)]})]
