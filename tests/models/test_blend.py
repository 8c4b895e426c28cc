"""blend: joint scores by slow loops, the choice of weights on planted parts, Ctrl-C, texts, and bad settings."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import reference
import torch
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part, Propensity
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError
from zipfel.models import blend, glas
from zipfel.models.base import Lesson, model_class, settings_of
from zipfel.models.blend import (
    DEPTH,
    FEWEST,
    KNOTS,
    START,
    SURE,
    Blend,
    Judged,
    bounded,
    chosen_weights,
    interpolation,
    learned_weights,
    log_odds,
    ranking_loss,
    scored,
    slope_of,
)
from zipfel.models.learner import HeldOut
from zipfel.models.linear import Linear
from zipfel.models.linear_predictor import LinearPredictor
from zipfel.tagger import Tagger
from zipfel.training.run import Run
from zipfel.types import Ranking

pytestmark = pytest.mark.usefixtures("one_thread")

GLAS: dict[str, Any] = {"dimension": 32, "epochs": 6, "min_steps": 1, "batch_size": 64, "learning_rate": 0.02}
DECAF: dict[str, Any] = {**GLAS, "dropout": 0.0}
SETTINGS: dict[str, Any] = {"main": "glas", "main_settings": GLAS}


@pytest.fixture(scope="module")
def data() -> Dataset:
    counted = make(Synthetic(points=900, labels=40, noise=0.3, test_share=0.3, seed=2))
    return Tfidf.fit(counted.train.X).apply(counted)


@pytest.fixture(scope="module")
def words() -> Dataset:
    return make(Synthetic(points=500, labels=20, noise=0.2, test_share=0.2, texts=True, seed=1))


@pytest.fixture(scope="module")
def tagger(data: Dataset) -> Tagger:
    return Tagger("blend", settings=SETTINGS, device="cpu").fit_dataset(data)


def random_ranking(numbers: np.random.Generator, points: int, labels: int, k: int) -> Ranking:
    """Return a ranking of k of the labels; some rows are shorter."""
    ids = np.stack([numbers.permutation(labels)[:k] for _ in range(points)])
    scores = -np.sort(-numbers.uniform(0.01, 0.99, (points, k)).astype(np.float32), axis=1)
    ids[0, k - 2 :], scores[0, k - 2 :] = -1, -np.inf
    return Ranking(ids, scores)


def by_label(ranking: Ranking, row: int) -> dict[int, float]:
    cells = zip(ranking.ids[row].tolist(), ranking.scores[row].tolist(), strict=True)
    return {label: score for label, score in cells if label >= 0}


def candidates_of(judged: Judged, points: int) -> list[list[tuple[int, float, float]]]:
    columns = zip(*(getattr(judged, name).tolist() for name in ("rows", "labels", "main", "linear")), strict=True)
    listed: list[list[tuple[int, float, float]]] = [[] for _ in range(points)]
    for row, *candidate in columns:
        listed[row].append(tuple(candidate))
    return listed


def slow_margins(linear: LinearPredictor, row: csr_array) -> list[float]:
    """Return w · x + b of all labels, by loops."""
    W, x = linear.weights.toarray(), row.toarray()[0]
    return [float(linear.bias[label]) + sum(x[f] * W[f, label] for f in range(len(x))) for label in range(W.shape[1])]


def sets(Y: csr_array) -> list[set[int]]:
    return [set(np.flatnonzero(row).tolist()) for row in Y.toarray()]


# --- Joint scores -----------------------------------------------------------------------------------------------------


def test_candidates_are_those_of_a_slow_loop(tagger, data):
    X, linear = data.test.X[:9], tagger.predictor_.linear
    main = random_ranking(np.random.default_rng(0), 9, 40, 6)
    found = scored(main.top(4), linear, X)
    assert found.ids.shape == (9, 4)
    for row in range(9):
        slow = reference.blended_candidates(by_label(main.top(4), row), slow_margins(linear, X[[row]]), SURE)
        cells = zip(found.ids[row].tolist(), found.main[row].tolist(), found.linear[row].tolist(), strict=True)
        fast = sorted(cell for cell in cells if cell[0] >= 0)
        assert np.array(fast) == pytest.approx(np.array(slow), abs=1e-5)


def test_a_margin_below_minus_1_counts_as_one():
    """It is what the linear part gives a label that it knows nothing of."""
    main = Ranking(np.array([[0, 1]]), np.array([[0.9, 0.2]], dtype=np.float32))
    linear = LinearPredictor(csr_array(np.array([[-0.9, 1.5]], dtype=np.float32)), np.array([-1, -1], dtype=np.float32))
    assert scored(main, linear, csr_array(np.array([[1.0]], dtype=np.float32))).linear.tolist() == [[0, 1.5]]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 11, 40, 99, 100, 101, 5000])
def test_weights_are_interpolated_between_knots(count):
    values = [0.5, 3.0, 2.0]
    found = (interpolation(np.array([count])) @ np.array(values))[0]
    assert found == pytest.approx(reference.knot_weight(count, KNOTS, values))
    assert interpolation(np.array([count])).sum() == pytest.approx(1)


def test_log_odds_are_finite_and_bounded_in_order():
    odds = log_odds(np.array([0, 1e-12, 0.2, 0.5, 0.9, 1 - 1e-6, 1], dtype=np.float32))
    assert np.isfinite(odds).all()
    assert odds[3] == pytest.approx(0, abs=1e-6)
    bent = bounded(odds)
    assert (np.abs(bent) < SURE).all()
    assert (np.diff(bent[2:]) > 0).all()


def test_scores_are_those_of_a_slow_loop(tagger, data):
    predictor, X = tagger.predictor_, data.test.X[:12]
    main = predictor.main.rank(X, DEPTH)
    knots, counts = tagger.model_.knots.tolist(), data.label_counts
    ranking = predictor.rank(X, DEPTH)
    slope = SURE / (SURE + 4 * max(knots))
    for row in range(12):
        scores = {}
        margins = slow_margins(predictor.linear, X[[row]])
        for label, odds, margin in reference.blended_candidates(by_label(main, row), margins, SURE):
            w = reference.knot_weight(int(counts[label]), KNOTS, knots)
            scores[label] = reference.sigmoid(slope * (odds + w * margin))
        assert by_label(ranking, row) == pytest.approx(scores, abs=1e-5)


def test_no_weight_brings_the_best_labels_to_a_tie(tagger, data):
    """The scores of the best labels must be told apart in float32, however large w is."""
    parts = tagger.predictor_
    for w in (0.0, 1.0, 20.0, blend.ALONE):
        joint = dataclasses.replace(parts, weights=np.full_like(parts.weights, w), slope=slope_of(w))
        scores = joint.rank(data.test.X, 5).scores
        assert (scores[:, 0] == scores[:, 1]).mean() < 0.01
        assert scores.max() < 1
    alone = parts.linear.rank(data.test.X, 1).ids
    assert (joint.rank(data.test.X, 1).ids == alone).mean() > 0.97
    main = dataclasses.replace(parts, weights=np.zeros_like(parts.weights), slope=slope_of(0))
    assert np.array_equal(main.rank(data.test.X, 3).ids, parts.main.rank(data.test.X, 3).ids)


def test_labels_beyond_the_candidates_follow_in_the_order_of_the_main_part(tagger, data, monkeypatch):
    monkeypatch.setattr(blend, "DEPTH", 4)
    predictor, X = tagger.predictor_, data.test.X
    whole, main = predictor.rank(X, 40), predictor.main.rank(X, 40)
    for row in range(20):
        assert set(whole.ids[row, :4].tolist()) == set(main.ids[row, :4].tolist())
        assert whole.ids[row, 4:].tolist() == main.ids[row, 4:].tolist()
    for k in (1, 3, 5, 11):
        assert np.array_equal(predictor.rank(X, k).ids, whole.ids[:, :k])
    assert (np.diff(whole.scores, axis=1) <= 0).all()


def test_a_deep_ranking_scores_more_labels_by_both_parts(tagger, data, monkeypatch):
    monkeypatch.setattr(blend, "DEPTH", 40)
    X, expected = data.test.X, tagger.predictor_.rank(data.test.X, 10)
    monkeypatch.setattr(blend, "DEPTH", 4)
    monkeypatch.setattr(blend, "DEEP", 40)
    found = tagger.model_.ranked_deep(tagger.predictor_, X, 10)
    assert np.array_equal(found.ids, expected.ids)
    assert not np.array_equal(found.ids, tagger.predictor_.rank(X, 10).ids)


# --- The choice of weights --------------------------------------------------------------------------------------------


def planted(main: float, linear: float, points: int = 400, seed: int = 0, labels: int = 30) -> Judged:
    """Return held-out points whose parts know the truth as well as the two numbers say: 0 is noise."""
    numbers = np.random.default_rng(seed)
    shares = 1 / np.arange(1, labels + 1)
    own = np.stack([numbers.choice(labels, 2, replace=False, p=shares / shares.sum()) for _ in range(points)])
    Y = csr_array((np.ones(2 * points, np.float32), (np.repeat(np.arange(points), 2), own.ravel())),
                  shape=(points, labels))  # fmt: skip
    right = Y.toarray() > 0
    odds = np.where(right, main, 0) + numbers.normal(size=right.shape) + np.log(shares) / max(main, 1)
    margins = np.where(right, linear, 0) + numbers.normal(size=right.shape) / 2 - 1
    counts = np.maximum((1000 * shares).astype(np.int64), 1)
    rows, ids = (grid.ravel() for grid in np.indices(right.shape))
    inverse = metrics.inverse_propensities(counts, 5000)
    return Judged(rows, ids, odds.ravel(), np.maximum(margins.ravel() + 1, 0), right.ravel(), Y, counts, inverse)


@pytest.mark.parametrize("tail", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_and_gradient_are_those_of_a_slow_loop(tail, seed):
    judged = planted(1.5, 1.0, points=12, seed=seed, labels=8)
    judged = judged.of_rows(np.arange(12) != 5)  # a point without labels and candidates
    listed, truth = candidates_of(judged, 12), sets(judged.Y)

    def slow(values: list[float]) -> float:
        weights = [reference.knot_weight(int(count), KNOTS, values[1:]) for count in judged.counts]
        return reference.blend_loss(listed, values[0], weights, tail, judged.inverse.tolist(), truth)

    at = [1.3, 0.7, 2.0, 0.4]
    theta = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    value = ranking_loss(judged, tail)(theta[0], theta[1:])
    assert value.item() == pytest.approx(slow(at))
    (gradient,) = torch.autograd.grad(value, theta)
    for i, slope in enumerate(gradient.tolist()):
        higher, lower = (slow([x + (step if i == j else 0) for j, x in enumerate(at)]) for step in (1e-5, -1e-5))
        assert slope == pytest.approx((higher - lower) / 2e-5, abs=1e-6)


def test_learned_weights_are_a_minimum():
    judged = planted(1.5, 1.0)
    w = learned_weights(judged, 0.5)
    loss = ranking_loss(judged, 0.5)

    def least(knots: Any) -> float:
        """The loss with the best a, which only scales the scores."""
        return min(float(loss(torch.tensor(a, dtype=torch.float64), torch.from_numpy(a * knots)))
                   for a in np.geomspace(0.2, 5, 60))  # fmt: skip

    best = least(w)
    for knot, factor in itertools.product(range(len(KNOTS)), (0.5, 2.0)):
        other = w.copy()
        other[knot] *= factor
        assert least(other) > best - 1e-4


@pytest.mark.parametrize("seed", range(3))
def test_a_linear_part_of_noise_gets_hardly_any_weight(seed):
    judged = planted(3.0, 0.0, seed=seed)
    w = chosen_weights(judged, 0.5)
    assert w.max() < 0.4
    assert judged.quality(1, w, 0.5) > judged.quality(1, np.zeros(3), 0.5) - 0.5


@pytest.mark.parametrize("seed", range(3))
def test_a_main_part_of_noise_is_outvoted(seed):
    judged = planted(0.0, 2.0, seed=seed)
    w = chosen_weights(judged, 0.5)
    assert w.min() > 4
    assert judged.quality(1, w, 0.5) > judged.quality(0, np.ones(3), 0.5) - 0.5


def test_two_good_parts_are_better_than_one_on_other_points():
    w = chosen_weights(planted(1.5, 1.0, points=800), 0.5)
    other = planted(1.5, 1.0, points=800, seed=9)
    assert other.quality(1, w, 0.5) > 1.5 + max(other.quality(1, np.zeros(3), 0.5), other.quality(0, np.ones(3), 0.5))


def test_weights_follow_the_frequency_of_labels():
    """The linear part knows only frequent labels, or only rare ones."""
    judged = planted(1.5, 0.0, points=1500)
    counts = np.geomspace(1000, 1, len(judged.counts)).astype(np.int64)
    own = counts[judged.labels]
    for known, high, low in ((own >= 100, 2, 0), (own <= 10, 0, 2)):
        linear = judged.linear + np.where(judged.right & known, 2.0, 0)
        w = chosen_weights(dataclasses.replace(judged, linear=linear, counts=counts), 0.5)
        assert w[high] > 1.3 * w[low]


@pytest.mark.parametrize(("learned", "best"), [([0.0, 0.0, 0.0], "linear"), ([50.0, 50.0, 50.0], "main")])
def test_a_part_alone_is_kept_where_learned_weights_lose_to_it(monkeypatch, learned, best):
    monkeypatch.setattr(blend, "learned_weights", lambda judged, tail: np.array(learned))
    judged = planted(0.0, 2.0) if best == "linear" else planted(3.0, 0.0)
    expected = blend.ALONE if best == "linear" else 0.0
    assert chosen_weights(judged, 0.5).tolist() == [expected] * 3


def test_few_points_decide_nothing():
    assert chosen_weights(planted(0.0, 2.0, points=FEWEST - 1), 0.5).tolist() == [START] * 3
    assert chosen_weights(planted(0.0, 2.0, points=FEWEST), 0.5).tolist() != [START] * 3


def test_weights_are_learned_from_half_of_the_points_to_be_judged_on_the_other(monkeypatch):
    judged, seen = planted(1.5, 1.0, points=100), list[set[int]]()
    plain = blend.learned_weights
    monkeypatch.setattr(
        blend, "learned_weights", lambda own, tail: seen.append(set(own.rows.tolist())) or plain(own, tail)
    )
    chosen_weights(judged, 0.5)
    evens, odds, *rest = seen
    assert not evens & odds
    assert len(evens | odds) == 100
    assert all(len(own) == 100 for own in rest)


def test_weights_that_fit_only_their_own_points_are_not_taken(monkeypatch):
    """The main part knows one half, the linear part the other; each half has weights that suit it alone."""
    knows_main, knows_linear = planted(3.0, -1.0), planted(-1.0, 3.0)
    odd = knows_main.rows % 2 == 1
    mixed = dataclasses.replace(knows_main, main=np.where(odd, knows_linear.main, knows_main.main),
                                linear=np.where(odd, knows_linear.linear, knows_main.linear))  # fmt: skip

    def memorised(own: Judged, tail: float) -> Any:
        sides = set((own.rows % 2).tolist())
        return np.full(3, 7.0 if len(sides) == 2 else blend.ALONE * sides.pop())

    monkeypatch.setattr(blend, "learned_weights", memorised)
    chosen = chosen_weights(mixed, 0.5)
    assert chosen.tolist() in ([0.0] * 3, [blend.ALONE] * 3)


def test_labels_without_training_points_do_not_count(data):
    part = data.train
    gone = int(np.argmax(data.label_counts))
    Y = part.Y.toarray()
    Y[:, gone] = 0
    train = Part(csr_array(Y), X=part.X)
    linear = Linear(part.X.shape[1], Y.shape[1], settings_of("linear"), torch.Generator())
    linear.fit(Lesson(train), Run())
    main = random_ranking(np.random.default_rng(0), len(data.test), Y.shape[1], 10)
    judged = Judged.of(HeldOut(main, data.test), linear.predictor(), train, Propensity())
    assert judged.Y[:, [gone]].nnz == 0
    assert gone in main.ids
    assert gone not in judged.labels
    kept = [label for label in range(Y.shape[1]) if label != gone and Y[:, label].any()]
    assert (judged.Y[:, kept] != data.test.Y[:, kept]).nnz == 0
    truth = sets(judged.Y)
    own = [label in truth[row] for row, label in zip(judged.rows, judged.labels, strict=True)]
    assert judged.right.tolist() == own


def test_quality_is_that_of_the_metrics():
    judged = planted(1.5, 1.0, points=60)
    w, listed, truth = [0.5, 1.0, 2.0], candidates_of(judged, 60), sets(judged.Y)
    rows = []
    for own in listed:
        scores = {
            label: 0.7 * main + reference.knot_weight(int(judged.counts[label]), KNOTS, w) * linear
            for label, main, linear in own
        }
        rows.append(sorted(scores, key=lambda label: -scores[label])[:5])
    tail = reference.propensity_scored(rows, truth, judged.inverse.tolist(), 5, "PSnDCG")
    slow = 80 * reference.ndcg(rows, truth, 5) + 20 * tail
    assert judged.quality(0.7, np.array(w), 0.2) == pytest.approx(slow, rel=1e-4)


# --- Learning ---------------------------------------------------------------------------------------------------------


def test_held_out_points_are_not_learned_from_before_the_weights_are_chosen(data, monkeypatch):
    """Nor are their scores for the calibration those of a linear part that knows them."""
    seen: list[tuple[int, Part]] = []
    plain = Judged.of.__func__  # type: ignore[attr-defined]

    def watched(cls: Any, held_out: HeldOut, linear: LinearPredictor, train: Part, propensity: Propensity) -> Judged:
        again = Linear(
            train.X.shape[1], train.Y.shape[1], settings_of("linear", changes={"rounds": 2}), torch.Generator()
        )
        again.learn(train, Run())
        assert (again.predictor().weights != linear.weights).nnz == 0
        rows = {tuple(row.indices.tolist()) for row in held_out.part.X}
        assert not rows & {tuple(row.indices.tolist()) for row in train.X}
        seen.append((train.X.shape[0], held_out.part))
        return plain(cls, held_out, linear, train, propensity)  # type: ignore[no-any-return]

    monkeypatch.setattr(Judged, "of", classmethod(watched))
    tagger = Tagger("blend", settings=SETTINGS, device="cpu").fit_dataset(data)
    ((learned, held_out),) = seen
    assert learned + len(held_out) == len(data.train)
    model = tagger.model_
    ranking = model.ranked_held_out(tagger.predictor_, data.test).ranking
    assert not np.array_equal(ranking.scores, tagger.predictor_.rank(held_out.X, ranking.k).scores)
    assert model.counts.tolist() == data.label_counts.tolist()


def test_random_labels_gain_nothing():
    """On held-out points, a blend is no better than the better of its parts by more than noise."""
    numbers = np.random.default_rng(0)
    X = csr_array((numbers.random((1200, 80)) * (numbers.random((1200, 80)) < 0.15)).astype(np.float32))
    shares = 1 / np.arange(1, 21)
    Y = np.zeros((1200, 20), dtype=np.float32)
    for row in range(1200):
        Y[row, numbers.choice(20, 2, replace=False, p=shares / shares.sum())] = 1
    train, test = Part(csr_array(Y[:700]), X=X[:700]), Part(csr_array(Y[700:]), X=X[700:])
    parts = Tagger("blend", settings=SETTINGS, device="cpu").fit_dataset(Dataset(train)).predictor_

    def ndcg(ranking: Ranking) -> float:
        return metrics.measure(ranking, test.Y, ks=(5,))["nDCG@5"]

    joint, main, linear = (ndcg(part.rank(test.X, 5)) for part in (parts, parts.main, parts.linear))
    frequent = np.argsort(-Y[:700].sum(axis=0))[:5]
    floor = ndcg(Ranking(np.tile(frequent, (500, 1)), np.tile(np.linspace(1, 0.5, 5, dtype=np.float32), (500, 1))))
    noise = 100 * 0.35 / math.sqrt(500)  # a standard error of nDCG@5
    assert joint < max(main, linear) + 2 * noise
    assert joint < floor + 2 * noise


def test_it_is_no_worse_than_its_parts(tagger, data):
    def ndcg(part: Any) -> float:
        return metrics.measure(part.rank(data.test.X, 5), data.test.Y, ks=(5,))["nDCG@5"]

    parts = tagger.predictor_
    assert ndcg(parts) > max(ndcg(parts.main), ndcg(parts.linear)) - 1


def test_the_log_says_which_weights_were_chosen(data, tmp_path):
    Tagger("blend", settings=SETTINGS, device="cpu").fit_dataset(data, Run(tmp_path))
    log = (tmp_path / "log.jsonl").read_text()
    assert re.search(r"linear beside glas: \d+\.\d at 1, \d+\.\d at 10, \d+\.\d at 100 training points", log)


class Interrupts:
    """Ctrl-C at a given call of a function; earlier calls are plain."""

    def __init__(self, plain: Any, call: int = 0) -> None:
        self.plain, self.left = plain, call

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return self.plain(*arguments, **options)


@pytest.mark.parametrize("where", ["main", "linear", "weights", "held-out points"])
def test_ctrl_c_leaves_a_usable_model(data, monkeypatch, tmp_path, where):
    if where == "main":
        monkeypatch.setattr("zipfel.models.glas.bags", Interrupts(glas.bags, 40))
    elif where == "linear":
        monkeypatch.setattr("zipfel.models.linear.liblinear", Interrupts(None))
    elif where == "weights":
        monkeypatch.setattr(blend, "chosen_weights", Interrupts(None))
    else:
        monkeypatch.setattr(Linear, "add", Interrupts(None))
    tagger = Tagger("blend", settings=SETTINGS, device="cpu").fit_dataset(data)
    monkeypatch.undo()
    assert tagger.fitted_.outcome.interrupted
    main = tagger.predictor_.main.rank(data.test.X, 5)
    if where == "held-out points":
        assert tagger.model_.knots.max() > 0
    else:
        assert tagger.model_.knots.tolist() == [0, 0, 0]
        assert np.array_equal(tagger.rank(data.test.X, 5).ids, main.ids)
        held_out = tagger.model_.ranked_held_out(tagger.predictor_, data.test)
        X = held_out.part.X  # calibrated on the scores that it now gives
        assert np.array_equal(tagger.predictor_.rank(X, held_out.ranking.k).scores, held_out.ranking.scores)
    tagger.save(tmp_path / "model")
    assert np.array_equal(
        Tagger.load(tmp_path / "model", device="cpu").rank(data.test.X, 5).ids, tagger.rank(data.test.X, 5).ids
    )


def test_contributions_are_the_sum_of_those_of_the_parts(words):
    settings = {"main": "decaf", "main_settings": DECAF}
    tagger = Tagger("blend", settings=settings, device="cpu").fit_dataset(words)
    parts, text = tagger.predictor_, words.test.texts["text"][0]
    row = tagger.features_.transform([text])
    for label in (0, 3):
        both = parts.explained(row, label)
        own = parts.weights[label] * parts.linear.explained(row, label)
        assert both == pytest.approx(parts.main.explained(row, label) + own)
        assert np.abs(own).sum() > 0
        reasons = tagger.explain(text, tagger.classes_[label])
        assert sum(reason.weight for reason in reasons) == pytest.approx(both.sum())


def test_new_labels_are_known_by_their_texts(words, tmp_path):
    """Both for one request and added; they keep the score of the main part, on the scale of the blend."""
    settings = {"main": "decaf", "main_settings": DECAF}
    tagger = Tagger("blend", settings=settings, device="cpu").fit_dataset(words)
    text = words.label_texts["title"][int(np.argmax(words.label_counts))]
    X, Z = (tagger.features_.transform(texts) for texts in (words.test.texts["text"][:30], [text]))
    parts = tagger.predictor_
    scores = tagger.model_.text_scores(parts, X, Z).numpy()[:, 0]
    alone = tagger.model_.main.text_scores(parts.main, X, Z).numpy()[:, 0]
    assert scores == pytest.approx([reference.sigmoid(parts.slope * SURE * math.tanh(math.log(p / (1 - p)) / SURE))
                                    for p in alone.tolist()], abs=1e-5)  # fmt: skip
    tagger.add_labels({"new": text})
    new = len(tagger.classes_) - 1
    assert tagger.model_.counts[new] == 0
    ranking = tagger.predictor_.rank(X, new + 1)
    listed = ranking.scores[ranking.ids == new]
    assert listed == pytest.approx(scores, abs=0.02)
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu").set_params(warm_start=True)
    loaded.fit(["qqq www"] * 20 + list(words.test.texts["text"][:80]), [["other"]] * 20 + [["new"]] * 80)
    assert {"new", "other"} <= set(loaded.classes_)
    assert loaded.model_.counts[new] == 80
    assert loaded.predict(["qqq www"], k=1)[0][0].label == "other"
    assert loaded.model_.knots.tolist() == tagger.model_.knots.tolist()


def test_nearest_labels_are_those_of_the_linear_part_where_the_main_part_has_none(data):
    settings = {"main": "mnn", "main_settings": {"dimension": 16, "epochs": 2, "batch_size": 64}}
    parts = Tagger("blend", settings=settings, device="cpu").fit_dataset(data).predictor_
    assert parts.main.cosines(3) is None
    assert torch.equal(parts.cosines(3), parts.linear.cosines(3))


def test_a_long_vote_contributes_in_log_odds(data):
    settings = {"main": "mnn", "main_settings": {"dimension": 16, "epochs": 2, "batch_size": 64}}
    parts = Tagger("blend", settings=settings, device="cpu").fit_dataset(data).predictor_
    row = data.test.X[[0]]
    own = parts.weights[3] * parts.linear.explained(row, 3)
    assert parts.explained(row, 3) - own == pytest.approx(2 * SURE * parts.main.explained(row, 3), abs=1e-5)


# --- Settings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"main": "blend"}, "main must be another model than blend and linear; found blend"),
        ({"main": "linear"}, "main must be another model than blend and linear; found linear"),
        ({"main": "decaff"}, "main: unknown model 'decaff'; did you mean 'decaf'"),
        ({"main_preset": "slow"}, "main_preset: unknown preset 'slow'"),
        ({"main_settings": {"epoch": 3}}, "main_settings: unknown setting 'epoch'; did you mean 'epochs'"),
        ({"main_settings": {"epochs": 0}}, "main_settings: epochs must be at least 1; found 0"),
        ({"main_settings": "epochs:x"}, "main_settings: epochs must be a whole number"),
        ({"linear_settings": {"c": 2}}, "linear_settings: unknown setting 'c'; did you mean 'C'"),
        ({"linear_settings": {"C": -2}}, "linear_settings: C must be above 0; found -2"),
        ({"tail": 2}, "tail must be at least 0 and at most 1; found 2"),
        ({"shortlist": "beam"}, "blend has no setting 'shortlist'"),
    ],
)
def test_bad_settings_are_one_clear_error(changes, message):
    with pytest.raises(ConfigError) as caught:
        settings_of("blend", changes=changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_settings_of_parts_reach_them():
    settings = settings_of(
        "blend", "fast", {"main": "glas", "main_settings": "dimension:7,epochs:3", "linear_settings": "C:2"}
    )
    built = Blend(30, 5, settings, torch.Generator())
    assert (built.main.settings.dimension, built.main.settings.epochs) == (7, 3)
    assert built.main.settings.min_steps == settings_of("glas", "fast").min_steps
    assert (built.linear.settings.C, built.linear.settings.rounds) == (2, 2)
    assert isinstance(built.main, model_class("glas"))


def test_settings_survive_saving(tagger, tmp_path):
    tagger.save(tmp_path / "model")
    loaded = Tagger.load(tmp_path / "model", device="cpu")
    assert loaded.model_.settings == tagger.model_.settings
    assert loaded.model_.main.settings.dimension == 32
    assert torch.equal(loaded.model_.knots, tagger.model_.knots)


def test_calibration_is_as_deep_as_the_candidates():
    """Weights are chosen on as many candidates as prediction has."""
    from zipfel import calibration

    assert calibration.DEPTH >= DEPTH
