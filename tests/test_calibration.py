from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from zipfel import calibration, metrics
from zipfel.calibration import Calibration, Curve, Cut, Cuts, best_f1, brier, calibration_error, cut, pooled
from zipfel.data.dataset import Dataset, Part
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError
from zipfel.fitting import lesson_of, trained
from zipfel.models.base import BUILT_IN
from zipfel.tagger import Tagger
from zipfel.tagging import calibrated
from zipfel.training.run import Run
from zipfel.types import Ranking, stored

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL: dict[str, dict[str, Any]] = {
    "glas": {"dimension": 32, "epochs": 8, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02},
    "mnn": {"dimension": 16, "epochs": 3, "batch_size": 64, "learning_rate": 0.01},
    "dxml": {"dimension": 32, "hidden_size": 64, "epochs": 8, "batch_size": 64, "learning_rate": 0.01,
             "feature_dropout": 0.2},
    "lightdxml": {"dimension": 32, "epochs": 8, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02,
                  "shortlist_size": 20},
    "decaf": {"dimension": 32, "epochs": 8, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02, "dropout": 0.0},
    "astec": {"dimension": 32, "epochs": 8, "module1_epochs": 2, "min_steps": 1, "batch_size": 64,
              "learning_rate": 0.02, "dropout": 0.2, "shortlist_size": 20},
    "linear": {},
}  # fmt: skip
SMALL["blend"] = {"main": "glas", "main_settings": SMALL["glas"]}


def ranking_of(*rows: list[float]) -> Ranking:
    scores = np.array(rows, dtype=np.float32)
    return Ranking(np.tile(np.arange(scores.shape[1]), (len(rows), 1)), scores)


# --- How good probabilities are ---------------------------------------------------------------------------------------


def test_the_calibration_error_by_hand():
    scores, hits = [0.9, 0.1, 0.8, 0.3, 0.5, 0.6], [1, 0, 0, 1, 1, 0]
    # bins of two: (0.1, 0.3) has one hit, (0.5, 0.6) one, (0.8, 0.9) one
    expected = (abs(0.2 - 0.5) + abs(0.55 - 0.5) + abs(0.85 - 0.5)) / 3
    assert calibration_error(scores, hits, bins=3) == pytest.approx(expected)
    assert calibration_error([0.25] * 8, [1, 0, 0, 0, 0, 0, 0, 1], bins=1) == 0
    assert calibration_error([], []) == 0


def test_the_brier_score_by_hand():
    assert brier([0.9, 0.4], [1, 0]) == pytest.approx((0.01 + 0.16) / 2)
    assert brier([1, 0], [1, 0]) == 0


# --- Curves -----------------------------------------------------------------------------------------------------------


def test_values_out_of_order_are_pooled():
    """Hits 0 1 0 1 at 1, 2, 3, 4, with a pseudo-hit at 1 and a pseudo-miss at 4.

    At 1 half are hits; at 2 all, at 3 none, so both are pooled to a half; at 4 half are hits again: all are one block.
    """
    assert pooled(np.array([1.0, 2, 3, 4]), np.array([False, True, False, True])) == ((1.0, 0.5), (4.0, 0.5))
    values = np.repeat([1.0, 2, 3], 8)
    hits = np.repeat([True, False, True, False, True], [1, 7, 4, 4, 8])  # 1, 4 and 8 of 8
    assert pooled(values, hits) == pytest.approx(np.array([(1.0, 2 / 9), (2.0, 4 / 8), (3.0, 8 / 9)]))


def test_no_probability_is_0_or_1():
    shares = [share for _, share in pooled(np.arange(40.0), np.arange(40) >= 20)]
    assert 0 < min(shares) < 0.1
    assert 0.9 < max(shares) < 1


def test_platt_by_hand():
    curve = Curve(slope=2.0, fall=1.0, intercept=0.5)
    probabilities = curve(np.array([[0.8, 0.5]]))  # z = 2 ln 4 + 0.5, and 0 − ln 2 + 0.5
    assert probabilities[0] == pytest.approx(
        [1 / (1 + np.exp(-(2 * np.log(4) + 0.5))), 1 / (1 + np.exp(np.log(2) - 0.5))]
    )


def test_knots_replace_the_sigmoid():
    curve = Curve(slope=1.0, fall=0.0, intercept=0.0, knots=((-1.0, 0.1), (0.0, 0.2), (2.0, 0.8)))
    scores = 1 / (1 + np.exp(-np.array([[5.0, 1.0, 0.0, -0.5, -9.0]])))
    assert curve(scores)[0] == pytest.approx([0.8, 0.5, 0.2, 0.15, 0.1])


@pytest.mark.parametrize("kind", ["isotonic", "platt"])
def test_a_planted_curve_is_recovered(kind):
    draws = np.random.default_rng(0)
    scores = np.sort(draws.uniform(0.01, 0.99, (4000, 6)), axis=1)[:, ::-1]
    planted = Curve(slope=0.6, fall=0.7, intercept=-0.4)
    hits = draws.uniform(size=scores.shape) < planted(scores)
    fitted_curve = calibration.CURVES[kind](scores, hits)
    assert np.abs(fitted_curve(scores) - planted(scores)).max() < 0.08
    assert np.abs(fitted_curve(scores) - planted(scores)).mean() < 0.02
    assert (fitted_curve.slope, fitted_curve.fall, fitted_curve.intercept) == pytest.approx((0.6, 0.7, -0.4), abs=0.1)


@pytest.mark.parametrize("kind", ["isotonic", "platt"])
@settings(max_examples=30)
@given(data=st.data())
def test_probabilities_never_rise_within_a_row(kind, data):
    shape = data.draw(st.tuples(st.integers(1, 12), st.integers(1, 6)))
    values = data.draw(st.lists(st.floats(0, 1, width=32), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]))
    scores = np.sort(np.array(values, dtype=np.float32).reshape(shape), axis=1)[:, ::-1]
    hits = np.array(data.draw(st.lists(st.booleans(), min_size=scores.size, max_size=scores.size))).reshape(shape)
    probabilities = calibration.CURVES[kind](scores, hits)(scores)
    assert (np.diff(probabilities, axis=1) <= 1e-12).all()
    assert 0 <= probabilities.min() <= probabilities.max() <= 1


def test_useless_scores_give_the_share_of_hits():
    scores = np.tile([[0.9, 0.1]], (50, 1))
    hits = np.tile([[False, True]], (50, 1))  # the worse the score, the better
    assert np.allclose(Curve.platt(scores, hits)(scores), 0.5)
    assert np.allclose(Curve.platt(scores, ~hits & hits)(scores), 0, atol=1e-6)


# --- Thresholds -------------------------------------------------------------------------------------------------------


def cuts_of(scores: list[float], hits: list[int], positives: int) -> Cuts:
    return Cuts.of(np.array(scores, dtype=np.float32), np.array(hits, dtype=bool), positives)


def test_cuts_by_hand():
    cuts = cuts_of([0.5, 0.75, 0.25, 0.5, 1.0], [1, 0, 0, 0, 1], 3)
    assert cuts.thresholds.tolist() == [1.0, 0.75, 0.5, 0.25]
    assert cuts.tags.tolist() == [1, 2, 4, 5]
    assert cuts.hits.tolist() == [1, 1, 2, 2]
    assert cuts.precise(1.0) == Cut(1.0, 1, 1)
    assert cuts.precise(0.5) == Cut(0.5, 4, 2)  # not 0.25, where two of five are right
    assert cuts.precise(0.4) == Cut(0.25, 5, 2)
    assert best_f1([cuts]) == [Cut(0.5, 4, 2)]  # F1: 2/4, 2/5, 4/7, 4/8
    assert cuts_of([0.5], [0], 1).precise(0.1) == Cut(np.inf, 0, 0)


def test_thresholds_of_bins_have_the_best_f1_together():
    draws = np.random.default_rng(1)
    for _ in range(20):
        bins = []
        for slope in (0.3, 0.6, 1.0):
            scores = draws.integers(1, 9, 30) / 8
            bins.append(cuts_of(list(scores), list(draws.uniform(size=30) < slope * scores), 25))
        rows = [[Cut(np.inf, 0, 0), *(c._cut(row) for row in range(len(c.tags)))] for c in bins]
        best = max(calibration.f1([a, b, c], 75) for a in rows[0] for b in rows[1] for c in rows[2])
        assert calibration.f1(best_f1(bins), 75) == pytest.approx(best)


def test_a_table_of_cuts_is_small_and_right():
    draws = np.random.default_rng(2)
    scores = draws.uniform(size=50_000).astype(np.float32)
    hits = draws.uniform(size=50_000) < scores**2
    cuts = Cuts.of(scores, hits, int(hits.sum()))
    assert 100 < len(cuts.tags) <= calibration.ROWS
    for row in (0, len(cuts.tags) // 2, -1):
        above = scores >= cuts.thresholds[row]
        assert (cuts.tags[row], cuts.hits[row]) == (above.sum(), hits[above].sum())
    # precision from t on is (1 + t + t²) / 3
    assert cuts.precise(0.7).threshold == pytest.approx((5.4**0.5 - 1) / 2, abs=0.02)


def test_a_cut_ranking_keeps_its_order_and_is_padded():
    ranking = ranking_of([0.9, 0.5, 0.4], [0.3, 0.2, 0.1])
    assert cut(ranking, 0.4).ids.tolist() == [[0, 1, 2], [-1, -1, -1]]
    least = np.array([[0.95, 0.1, 0.45], [0.1, 0.9, 0.1]])
    assert cut(ranking, least).ids.tolist() == [[1, -1, -1], [0, 2, -1]]
    assert cut(ranking, least).scores.tolist() == [
        [0.5, -np.inf, -np.inf],
        pytest.approx([0.3, 0.1, -np.inf]),
    ]
    for wrong in (float("nan"), [0.1, 0.2], [0.1] * 4):
        with pytest.raises(ConfigError, match="threshold must be a number, or 3 of them"):
            cut(ranking, wrong)


# --- A model's calibration --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def data() -> Dataset:
    counted = make(Synthetic(points=3000, labels=60, noise=0.3, test_share=0.5, seed=3))
    return Tfidf.fit(counted.train.X).apply(counted)


def fitted(model: str, data: Dataset, **more: Any) -> Tagger:
    return Tagger(model, settings=SMALL[model], device="cpu", **{"validation": 0.3, **more}).fit_dataset(data)


@pytest.fixture(params=sorted(BUILT_IN), scope="module")
def tagger(request: pytest.FixtureRequest, data: Dataset) -> Tagger:
    return fitted(request.param, data)


def hits_of(ranking: Ranking, part: Part) -> np.ndarray[Any, Any]:
    rows = np.repeat(np.arange(len(ranking)), ranking.k)
    return stored(part.Y, rows, ranking.ids.ravel()).reshape(ranking.ids.shape)


def test_the_order_of_labels_is_the_models_own(tagger, data):
    ranking = tagger.rank(data.test.X, 20)
    shown = calibrated(tagger.fitted_, ranking)
    assert np.array_equal(shown.ids, ranking.ids)
    assert (np.diff(shown.scores, axis=1) < 0).all()  # so that the scores alone give the order
    assert 0 <= shown.scores.min() <= shown.scores.max() <= 1
    again = Ranking.of_scores(shown.as_scores(len(tagger.classes_)), 20)
    assert np.array_equal(again.ids, ranking.ids)
    tags = tagger.predict(data.test.X[:50], 7)
    assert [[tagger.classes_.index(tag.label) for tag in row] for row in tags] == ranking.ids[:50, :7].tolist()
    assert [[tag.score for tag in row] for row in tags] == shown.scores[:50, :7].tolist()


def test_probabilities_are_better_than_scores_on_test(tagger, data):
    ranking = tagger.rank(data.test.X, 5)
    hits = hits_of(ranking, data.test).ravel()
    before, after = ranking.scores.ravel(), calibrated(tagger.fitted_, ranking).scores.ravel()
    assert calibration_error(after, hits) < 0.03
    near = 1e-2 if tagger.model == "dxml" else 1e-3  # votes are probabilities already: isotonic steps cost a little
    assert brier(after, hits) < min(brier(before, hits) + near, hits.mean() * (1 - hits.mean()))
    figures = tagger.calibration_.figures
    assert figures.method in ("isotonic", "platt")
    assert figures.points == 450
    assert figures.error_after == pytest.approx(calibration_error(after, hits), abs=0.03)
    assert figures.brier_before == pytest.approx(brier(before, hits), abs=0.03)


def test_a_wanted_precision_is_reached_on_test(tagger, data):
    threshold = tagger.choose_threshold(precision=0.6)
    ranking = calibrated(tagger.fitted_, tagger.rank(data.test.X, 50), threshold)
    hits = hits_of(ranking, data.test)
    assert 0.57 < hits.sum() / (ranking.ids >= 0).sum() < 0.67  # better where the model also learned from validation
    tags = tagger.predict(data.test.X, threshold=threshold)
    assert sum(map(len, tags)) == (ranking.ids >= 0).sum()
    assert min(tag.score for row in tags for tag in row) >= threshold - 1e-6


def micro_f1(ranking: Ranking, part: Part) -> float:
    return float(2 * hits_of(ranking, part).sum() / ((ranking.ids >= 0).sum() + part.Y.nnz))


def test_the_chosen_threshold_has_nearly_the_best_f1_on_test(tagger, data):
    ranking = tagger.rank(data.test.X, 50)
    reached = micro_f1(calibrated(tagger.fitted_, ranking, tagger.choose_threshold()), data.test)
    grid = [micro_f1(calibrated(tagger.fitted_, ranking, least), data.test) for least in np.arange(0.05, 1, 0.05)]
    assert reached > max(grid) - 0.02
    assert grid[0] < reached - 0.05  # the threshold matters
    by_bin = tagger.choose_threshold(by_frequency=True)
    assert len(by_bin) == 3
    assert micro_f1(calibrated(tagger.fitted_, ranking, by_bin), data.test) > reached - 0.02


def test_a_saved_calibration_is_loaded(tagger, data, tmp_path):
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.predict(data.test.X[:99]) == tagger.predict(data.test.X[:99])
    for precision, by_frequency in ((None, False), (0.7, False), (None, True), (0.5, True)):
        wanted = tagger.choose_threshold(precision, by_frequency)
        assert loaded.choose_threshold(precision, by_frequency) == wanted
        assert loaded.predict(data.test.X[:9], threshold=wanted) == tagger.predict(data.test.X[:9], threshold=wanted)


def test_without_calibration_scores_are_the_models_own(tagger, data, tmp_path):
    bare = Tagger(**tagger.get_params(deep=False))
    bare.fitted_ = dataclasses.replace(tagger.fitted_, calibration=None)
    bare.save(tmp_path / "model")
    assert not (tmp_path / "model" / "serve" / "calibration.json").exists()
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.calibration_ is None
    scores = [[tag.score for tag in row] for row in loaded.predict(data.test.X[:9])]
    assert scores == loaded.rank(data.test.X[:9]).scores.tolist()
    above = loaded.predict(data.test.X[:99], threshold=0.4)
    assert [len(row) for row in above] == (loaded.rank(data.test.X[:99], 50).scores >= 0.4).sum(axis=1).tolist()
    with pytest.raises(
        ConfigError, match="too few held-out points to choose a threshold; give one, or train on more points"
    ):
        loaded.choose_threshold()
    with pytest.raises(ConfigError, match="threshold must be a number"):
        loaded.predict(data.test.X[:9], threshold=[0.1, 0.2, 0.3])


def test_calibration_does_not_change_metrics(tagger, data):
    """Whatever the calibration, the ranking and its metrics are the same."""
    plain = dataclasses.replace(tagger.calibration_, curve=None)
    ranking = tagger.rank(data.test.X, 5)
    assert np.array_equal(plain.applied(ranking).scores, ranking.scores)
    before = metrics.measure(ranking, data.test.Y)
    assert metrics.measure(calibrated(tagger.fitted_, ranking), data.test.Y) == before


def test_padding_gets_no_probability(tagger):
    """And equal probabilities are set apart, also next to rows that are padded."""
    ids = np.array([[3, 1, -1, -1], [0, 1, 2, 4]])
    scores = np.array([[0.9, 0.9, -np.inf, -np.inf], [0.5, 0.5, 0.5, 0.5]], dtype=np.float32)
    ranking = tagger.calibration_.applied(Ranking(ids, scores))
    assert np.array_equal(ranking.ids, ids)
    assert np.isneginf(ranking.scores[0, 2:]).all()
    assert ((ranking.scores > 0) == (ids >= 0)).all()
    assert ranking.scores[0, 0] > ranking.scores[0, 1]
    assert (np.diff(ranking.scores[1]) < 0).all()


def test_remembered_points_are_not_calibrated_on(data):
    """MNN and DXML remember validation in the end; it was ranked before, or else P@1 would be that of train."""
    quick = {**SMALL["mnn"], "epochs": 1}
    tagger = Tagger("mnn", settings=quick, device="cpu", validation=0.3).fit_dataset(data)
    assert len(tagger.model_.memory) == np.count_nonzero(np.diff(data.train.Y.indptr))
    share = first_right(tagger.model_.unseen.ranking, tagger.model_.unseen.Y)
    assert share == pytest.approx(first_right(tagger.rank(data.test.X, 1), data.test.Y), abs=0.06)
    first = tagger.calibration_
    again = tagger.set_params(warm_start=True).fit_dataset(data)
    assert len(again.model_.unseen.ranking) == 0  # all of it is remembered by now
    assert again.calibration_ is first
    fixed = Tagger("mnn", settings={**quick, "neighbours": 5, "sharpness": 1.0}, device="cpu").fit_dataset(data)
    assert fixed.calibration_ is None  # all points were learned from at once


def first_right(ranking: Ranking, Y: csr_array) -> float:
    return metrics.measure(ranking, Y, ks=(1,))["P@1"] / 100


def test_the_method_can_be_chosen(data):
    plain = fitted("glas", data, calibration="none")
    assert plain.calibration_.curve is None
    assert plain.predict(data.test.X[:1])[0][0].score == plain.rank(data.test.X[:1]).scores[0, 0]
    assert 0 < plain.choose_threshold() < 1
    with pytest.raises(ConfigError, match="unknown calibration 'plat'; did you mean 'platt'"):
        fitted("glas", data, calibration="plat")
    ranking, bins = plain.rank(data.test.X, 20), np.zeros(60, dtype=np.int64)
    learned = {method: calibration.learned(ranking, data.test.Y, bins, method) for method in calibration.METHODS}
    assert learned["platt"].curve.knots == ()
    assert len(learned["isotonic"].curve.knots) > 5
    better = min(("platt", "isotonic"), key=lambda method: learned[method].figures.brier_after)
    assert learned["auto"].figures == learned[better].figures
    assert learned["auto"].curve == learned[better].curve
    few = Ranking(ranking.ids[:300], ranking.scores[:300])
    assert calibration.learned(few, data.test.Y[:300], bins, "auto").figures.method == "platt"


def test_too_few_points_give_no_calibration(data):
    few = Dataset(data.train.take(np.arange(90)), test=data.test)
    assert fitted("glas", few).calibration_ is None
    assert fitted("glas", data, validation=0.002).calibration_ is None


def test_a_precision_that_no_threshold_reaches_is_refused():
    ranking = ranking_of(*[[0.9, 0.8, 0.1]] * 60)
    truth = csr_array(np.array([[1, 0, 0], [0, 1, 0], [0, 0, 0]] * 20))
    learned = calibration.learned(ranking, truth, np.array([0, 1, 2]), "platt")
    assert isinstance(learned, Calibration)
    with pytest.raises(
        ConfigError, match=r"no threshold reaches precision 0\.9 on held-out points; the most is 0\.333"
    ):
        learned.threshold(0.9, by_frequency=False)
    for wrong in (0, -1, 1.5):
        with pytest.raises(ConfigError, match="precision must be above 0 and at most 1"):
            learned.threshold(wrong, by_frequency=False)
    # by frequency: labels 0 and 1 are right in a third of all rows, and label 2 never is
    thresholds = learned.threshold(0.3, by_frequency=True)
    assert thresholds[2] == np.inf
    assert learned.applied(ranking, thresholds).ids[0].tolist() == [0, 1, -1]


def test_labels_added_later_count_as_rare(data):
    tagger = Tagger("mnn", settings={**SMALL["mnn"], "epochs": 1}, device="cpu").fit_dataset(data)
    count = len(tagger.classes_)
    tagger.partial_fit(data.train.X[:20], [["new"]] * 20)
    ids = np.array([[count, 0]])
    assert tagger.calibration_.bins_of(ids)[0, 0] == 0
    bins = metrics.frequency_bins(data.label_counts, 3)
    assert np.array_equal(tagger.calibration_.bins_of(np.arange(count)[None])[0], bins)
    tags = tagger.predict(data.train.X[:20], threshold=(0.0, 2.0, 2.0))
    assert any(tag.label == "new" for row in tags for tag in row)


def test_removed_labels_are_not_calibrated_on(data, monkeypatch):
    """The calibration of a warm start is learned from the labels that can still be predicted."""
    tagger = fitted("glas", data, warm_start=True)
    tagger.remove_labels(tagger.classes_[:30])
    seen = []
    learned = calibration.learned
    monkeypatch.setattr(calibration, "learned", lambda ranking, *more: seen.append(ranking) or learned(ranking, *more))
    old = tagger.fitted_
    lesson = lesson_of(old.model, old.blueprint.featured(data), old.labels.names, 0.3, seed=0)
    trained(old.blueprint, old.model, lesson, Run(), "auto", old)
    assert seen[0].ids[seen[0].ids >= 0].min() == 30


def test_a_saved_calibration_is_small(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    path = tmp_path / "model" / "serve" / "calibration.json"
    assert path.stat().st_size < 100_000
    assert orjson.loads(path.read_bytes())["figures"]["points"] == 450
