"""`Tagger` among scikit-learn's tools: its estimator checks, metrics, searches and pipelines."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pandas
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MultiLabelBinarizer
from sklearn.utils.estimator_checks import check_estimator

from zipfel import tagging
from zipfel.errors import ConfigError
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = {"fruit": ["apple", "pear", "plum"], "car": ["wheel", "engine", "brake"], "sea": ["wave", "fish", "boat"]}
SMALL = {"dimension": 16, "epochs": 12, "min_steps": 1, "learning_rate": 0.03}


def sample(points: int) -> tuple[list[str], list[list[str]]]:
    draws = random.Random(0)
    tags = [draws.sample(sorted(WORDS), draws.choice([1, 1, 2])) for _ in range(points)]
    return [" ".join(draws.choice(WORDS[tag]) for tag in row for _ in range(4)) for row in tags], tags


TEXTS, TAGS = sample(160)
NAMES = sorted(WORDS)
Y = MultiLabelBinarizer(classes=NAMES).fit_transform(TAGS)


def made(**given: Any) -> Tagger:
    return Tagger("glas", **{"settings": SMALL, "text": {"min_count": 1}, "device": "cpu", **given})


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    return made(validation=0.3).fit(TEXTS, TAGS)


# --- The estimator checks ---------------------------------------------------------------------------------------------

SHAPE = "it expects one class per point; an indicator matrix has a column for each label"
DRAWN = "weights decide how often points are drawn, which equals repeated points on average only"
NOT_PASSED = {
    "check_estimator_sparse_array": SHAPE,
    "check_estimator_sparse_matrix": SHAPE,
    "check_sample_weight_equivalence_on_dense_data": DRAWN,
    "check_sample_weight_equivalence_on_sparse_data": DRAWN,
}
PARTIAL = "it calls partial_fit, which only models that remember points have"
NOT_PASSED_BY_MNN = {"check_sample_weights_not_overwritten": "mnn, whose points vote, cannot weight them"}
NOT_PASSED_BY_GLAS = {"check_fit_score_takes_y": PARTIAL, "check_n_features_in_after_fitting": PARTIAL}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("model", "more"), [("glas", NOT_PASSED_BY_GLAS), ("mnn", NOT_PASSED_BY_MNN)])
def test_estimator_checks(model, more):
    settings = {"dimension": 4, "epochs": 1}
    estimator = Tagger(model, settings=settings, device="cpu", output="indicator")
    results = check_estimator(estimator, expected_failed_checks=NOT_PASSED | more, on_skip=None)
    failed = {result["check_name"] for result in results if result["status"] == "xfail"}
    assert failed == {*NOT_PASSED, *more}  # what passes now is not listed any more
    assert len(results) > 35


# --- Parameters -------------------------------------------------------------------------------------------------------


def test_nested_parameters():
    tagger = made()
    assert tagger.get_params()["settings__dimension"] == 16
    assert "settings__dimension" not in tagger.get_params(deep=False)
    other = clone(tagger).set_params(settings__dimension=8, text__ngrams=2, seed=3)
    assert (other.settings, other.text, other.seed) == ({**SMALL, "dimension": 8}, {"min_count": 1, "ngrams": 2}, 3)
    assert tagger.settings == SMALL  # neither the original nor the caller's dict changes
    assert SMALL["dimension"] == 16
    assert Tagger().set_params(settings__epochs=3).settings == {"epochs": 3}
    assert Tagger().set_params(settings={"epochs": 5}, settings__dimension=4).settings == {"epochs": 5, "dimension": 4}
    with pytest.raises(ValueError, match="Invalid parameter 'setings'"):
        tagger.set_params(setings__dimension=8)
    with pytest.raises(ConfigError, match="unknown setting 'dimensoin'; did you mean 'dimension'"):
        clone(tagger).set_params(settings__dimensoin=8).fit(TEXTS, TAGS)


def test_a_grid_over_settings_and_text(tmp_path):
    grid = {"settings__learning_rate": [1e-7, 0.03], "text__ngrams": [1]}
    search = GridSearchCV(made(), grid, cv=2, error_score="raise").fit(TEXTS, TAGS)
    assert search.best_params_ == {"settings__learning_rate": 0.03, "text__ngrams": 1}
    best = search.best_estimator_
    assert best.settings_.dimension == 16
    best.save(tmp_path / "model")
    assert Tagger.load(tmp_path / "model", device="cpu").get_params() == best.get_params() | {"device": "cpu"}


def test_unknown_arguments_of_fit_are_refused():
    with pytest.raises(TypeError, match=r"fit\(\) got an unexpected keyword argument 'label_text'"):
        made().fit(TEXTS, TAGS, label_text={})


# --- Metrics and outputs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [np.asarray, csr_array, lambda Y: pandas.DataFrame(Y, columns=NAMES)])
def test_scoring_by_f1(kind):
    search = GridSearchCV(made(output="indicator"), {"seed": [0]}, scoring="f1_micro", cv=2, error_score="raise")
    assert search.fit(TEXTS, kind(Y)).best_score_ > 0.8


def test_cross_validation():
    assert cross_val_score(made(output="indicator"), TEXTS, Y, scoring="f1_macro", cv=2).min() > 0.8


def test_a_pipeline_with_another_vectorizer():
    pipeline = make_pipeline(TfidfVectorizer(), made(output="indicator")).fit(TEXTS, Y)
    assert f1_score(Y, pipeline.predict(TEXTS), average="micro") > 0.9
    assert pipeline.predict_proba(TEXTS).shape == Y.shape


def test_probabilities_are_the_scores_of_tags(tagger):
    probabilities = tagger.predict_proba(TEXTS)
    assert (probabilities.shape, probabilities.dtype) == (Y.shape, np.float32)
    for row, tags in zip(probabilities, tagger.predict(TEXTS, 3), strict=True):
        assert {tag.label: tag.score for tag in tags} == dict(zip(NAMES, row.tolist(), strict=True))


def test_indicators(tagger):
    indicator = clone(tagger).set_params(output="indicator")
    indicator.fitted_ = tagger.fitted_
    likely = indicator.predict(TEXTS)
    assert isinstance(likely, csr_array)
    assert np.array_equal(likely.toarray(), tagger.predict_proba(TEXTS) >= 0.5)
    assert np.array_equal(indicator.predict(TEXTS, threshold=0.2).toarray(), tagger.predict_proba(TEXTS) >= 0.2)
    assert indicator.predict(TEXTS, k=2).sum(axis=1).tolist() == [2] * len(TEXTS)
    assert indicator.predict([]).shape == (0, 3)


def test_removed_labels_keep_a_column_of_zeros(tagger):
    other = clone(tagger)
    other.fitted_ = tagger.fitted_
    assert not other.remove_labels(["fruit"]).predict_proba(TEXTS)[:, 1].any()


def test_a_dense_matrix_that_is_too_large_is_refused(tagger, monkeypatch):
    monkeypatch.setattr(tagging, "MOST_CELLS", 5)
    with pytest.raises(ConfigError, match=r"2 points × 3 labels are too many for a dense matrix .* with k, or fewer"):
        tagger.predict_proba(TEXTS[:2])


def test_an_unknown_output_is_refused():
    with pytest.raises(ConfigError, match="unknown output 'indicators'; did you mean 'indicator'"):
        made(output="indicators").fit(TEXTS, TAGS)
