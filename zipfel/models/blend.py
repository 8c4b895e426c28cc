"""Blend: a main model, such as DECAF, and linear classifiers, joined by weights that held-out points choose.

The linear part knows frequent labels best, and the main part rare ones. So a label's score is

    s_l(x) = log-odds of the main part, bounded + w(n_l) · (linear margin + 1),

where the weight w ≥ 0 depends on the label's number of training points n_l. A margin of −1 is that of a label which the
linear part knows nothing of, so a label that only has a text keeps the score of the main part. What it rests on, and
what was tried besides: docs/papers/blend.md.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel import metrics
from zipfel.config import Settings, Span, setting
from zipfel.data.dataset import Part, Propensity
from zipfel.errors import ConfigError
from zipfel.models.base import Abilities, Cost, Lesson, Model, Tensors, model_class, settings_of
from zipfel.models.learner import HeldOut, Learner, Predictor, labelled, most_filtered, sorted_ranking
from zipfel.models.linear import Linear, interrupted
from zipfel.models.linear_predictor import LinearPredictor
from zipfel.models.saving import tensor_of
from zipfel.training.run import Run, part_of, with_prefix
from zipfel.training.trainer import Outcome
from zipfel.types import Ranking, Share, Shortlist, stored

KNOTS = (1, 10, 100)  # training points of labels between which w is interpolated, by the logarithm
DEPTH = 30  # first labels of the main part, which are the candidates: more, or those of the linear part, add nothing
DEEP = 300  # first labels of the main part that a deep ranking scores by both parts
NEGATIVES = 100  # labels of the main part against which the linear part learns
SURE = 7.0  # bound of the main part's log-odds: a vote of all points, or of none, is no certainty
FEWEST = 50  # held-out points with labels; fewer decide nothing
HELD = 1e-3  # how strongly the weights are held to their start
BEHIND = 0.01  # distance of the scores of candidates from those of labels behind them
ALONE = 1e3  # w with which the linear part ranks alone
START = 1.0  # w before held-out points are seen, and with too few of them


@dataclass(frozen=True)
class BlendSettings(Settings):
    """Settings of a blend: a main model and linear classifiers, joined by weights that held-out points choose."""

    main: str = setting("decaf", "the model beside the linear classifiers")
    main_preset: str = setting("default", "its preset")
    main_settings: dict[str, str] = setting({}, "its settings that differ from the preset, such as epochs:20")
    linear_settings: dict[str, str] = setting({}, "settings of the linear part, such as C:2")
    tail: float = setting(0.25, "share of propensities in the choice of weights; 1 favours rare labels most",
                          at_least=0, at_most=1, search=Span(0, 1))  # fmt: skip

    def check(self) -> None:
        """Check that the parts exist and take their settings."""
        if self.main in ("blend", "linear"):
            raise ConfigError(f"main must be another model than blend and linear; found {self.main}")
        with errors_of("main"):
            model_class(self.main)
        with errors_of("main_preset"):
            settings_of(self.main, self.main_preset)
        self.parts()

    def parts(self) -> tuple[Any, Any]:
        """Return the settings of both parts."""
        with errors_of("main_settings"):
            main = settings_of(self.main, self.main_preset, self.main_settings)
        with errors_of("linear_settings"):  # the main part's candidates save a round
            return main, settings_of("linear", changes={"rounds": 2, "mined": 50, **self.linear_settings})


@contextmanager
def errors_of(name: str) -> Iterator[None]:
    """Name the setting of the blend in errors about those of its parts."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from None


PRESETS: dict[str, BlendSettings] = {
    "default": BlendSettings(),
    "fast": BlendSettings(main_preset="fast", linear_settings={"rounds": "1"}),
}


@dataclass(frozen=True)
class BlendPredictor:
    """Ranks the main part's candidates by the joint score of both parts."""

    main: Predictor
    linear: LinearPredictor
    weights: NDArray[np.float32]  # w of each label, [L]
    slope: float  # a score is σ(slope · s)

    @property
    def first(self) -> Learner | None:
        """The first learner of the main part."""
        return self.main.first

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k], without filtered pairs."""
        return self._rank(X, k, filtered, DEPTH)

    def rank_deep(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels as `rank` does, with more candidates."""
        return self._rank(X, k, filtered, DEEP)

    def _rank(self, X: csr_array, k: int, filtered: csr_array | None, depth: int) -> Ranking:
        wide = k + most_filtered(filtered)  # filtered last: which labels are candidates must not depend on it
        main = self.main.rank(X, min(max(depth, wide), len(self.weights)))
        ranking = self.reranked(main, X, wide, depth)
        return ranking if filtered is None else ranking.without(filtered).top(k)

    def reranked(self, main: Ranking, X: csr_array, k: int, depth: int) -> Ranking:
        """Rank the first `depth` labels of the main part's ranking, and behind them its others, [points, k].

        So a shorter ranking is the beginning of a longer one.
        """
        found = scored(main.top(depth), self.linear, X)
        joint = found.main + self.weights[np.maximum(found.ids, 0)] * found.linear  # [points, depth]
        if main.k > depth:
            odds = bounded(log_odds(main.scores))  # [points, k], falling
            lowest = np.where(found.ids >= 0, joint, np.inf).min(axis=1, keepdims=True)
            joint = np.hstack([joint, lowest - BEHIND + odds[:, depth:] - odds[:, depth - 1 : depth]])
        scores = np.where(main.ids >= 0, squeezed(self.slope * joint), -np.inf).astype(np.float32)
        return sorted_ranking(Shortlist(torch.from_numpy(main.ids), torch.from_numpy(scores)), k)

    def recall(self, X: csr_array, k: int) -> float | None:
        """Return the share of the exact shortlist that the main part's index finds; None if it is exact."""
        return self.main.recall(X, k)

    def explained(self, row: csr_array, label: int) -> NDArray[np.float64]:
        """Return the contribution of each stored feature of a point [1, F] to a label's score: the sum of the parts."""
        votes = self.main.first is not None and self.main.first.classifier.point_labels is not None
        main = self.main.explained(row, label) * (2 * SURE if votes else 1)  # all votes: from −SURE to SURE
        return np.asarray(main + float(self.weights[label]) * self.linear.explained(row, label))

    def cosines(self, label: int) -> Tensor | None:
        """Return the cosine of a label with each label, [L], by the main part, or else by the linear part."""
        cosines = self.main.cosines(label)
        return self.linear.cosines(label) if cosines is None else cosines


class Scored(NamedTuple):
    """Candidates of points [points, W] (-1 pads), and their scores by both parts."""

    ids: NDArray[np.int64]
    main: NDArray[np.float64]  # log-odds, bounded
    linear: NDArray[np.float64]  # margin + 1, at least 0


def scored(main: Ranking, linear: LinearPredictor, X: csr_array) -> Scored:
    """Return the labels of the main part's ranking with the scores of both parts."""
    margins = linear.margins_at(X, np.maximum(main.ids, 0))
    return Scored(main.ids, bounded(log_odds(main.scores)), np.maximum(margins.astype(np.float64) + 1, 0))


def log_odds(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return ln(p / (1 − p)) of scores in [0, 1]."""
    p = np.clip(scores.astype(np.float64), 1e-9, 1 - 6e-8)  # float32 has no more digits below 1
    return np.asarray(np.log(p) - np.log1p(-p))


def bounded(odds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log-odds bent towards ±SURE, in the same order."""
    return np.asarray(SURE * np.tanh(odds / SURE))


def squeezed(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return σ(score)."""
    return np.asarray(1 / (1 + np.exp(-scores)))


def slope_of(highest: float) -> float:
    """Return the factor of joint scores, by the highest w: that of a sure label with margin 3 becomes SURE.

    Without it, large weights would push the best labels so close to 1 that float32 does not tell them apart.
    """
    return SURE / (SURE + 4 * highest)


# --- Weights ----------------------------------------------------------------------------------------------------------


def interpolation(counts: NDArray[np.integer]) -> NDArray[np.float64]:
    """Return how much each label takes part in each knot, [L, KNOTS]: linear in ln n, constant outside of the knots."""
    at, ends = np.log(np.maximum(counts, 1)), np.log(KNOTS)
    return np.stack([np.interp(at, ends, unit) for unit in np.eye(len(KNOTS))], axis=1)


@dataclass(frozen=True)
class Judged:
    """Held-out points and their candidates (pairs) with the scores of both parts, to choose weights on."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    main: NDArray[np.float64]
    linear: NDArray[np.float64]
    right: NDArray[np.bool_]  # whether a pair's label is one of the point
    Y: csr_array
    counts: NDArray[np.int64]  # points of each label that the parts have learned from
    inverse: NDArray[np.float64]  # inverse propensities of labels

    @classmethod
    def of(cls, held_out: HeldOut, linear: LinearPredictor, train: Part, propensity: Propensity) -> Judged:
        """Score held-out points. Labels without a training point do not count: they will have some in the end."""
        counts = np.bincount(train.Y.indices, minlength=train.Y.shape[1])
        found = scored(held_out.ranking.top(DEPTH), linear, held_out.part.X)
        rows, ranks = np.nonzero((found.ids >= 0) & (counts[found.ids] > 0))
        labels = found.ids[rows, ranks]
        Y = csr_array(held_out.part.Y.multiply((counts > 0).astype(np.float32)))
        Y.eliminate_zeros()
        inverse = metrics.inverse_propensities(counts, len(train), *propensity)
        return cls(rows, labels, found.main[rows, ranks], found.linear[rows, ranks], stored(Y, rows, labels),
                   Y, counts, inverse)  # fmt: skip

    def of_rows(self, chosen: NDArray[np.bool_]) -> Judged:
        """Return only the chosen points; the others have no labels and no candidates."""
        keep = chosen[self.rows]
        Y = csr_array(self.Y.multiply(chosen[:, None].astype(np.float32)))
        Y.eliminate_zeros()
        pairs = {name: getattr(self, name)[keep] for name in ("rows", "labels", "main", "linear", "right")}
        return dataclasses.replace(self, **pairs, Y=Y)

    def quality(self, main: float, knots: NDArray[np.float64], tail: float) -> float:
        """Return (1 − tail) · nDCG@5 + tail · PSnDCG@5, in percent, with these weights of the parts."""
        w = (interpolation(self.counts) @ knots)[self.labels]
        ranking = Ranking.of_pairs(self.rows, self.labels, main * self.main + w * self.linear, self.Y.shape[0], 5)
        some = np.diff(self.Y.indptr) > 0
        figures = metrics.measure(Ranking(ranking.ids[some], ranking.scores[some]), self.Y[some], self.inverse, ks=[5])
        return (1 - tail) * figures["nDCG@5"] + tail * figures["PSnDCG@5"]


def chosen_weights(judged: Judged, tail: float) -> NDArray[np.float64]:
    """Return w at the knots: learned ones, unless a part alone is better on points that they were not learned from."""
    if int((np.diff(judged.Y.indptr) > 0).sum()) < FEWEST:
        return np.full(len(KNOTS), START)
    odd = np.arange(judged.Y.shape[0]) % 2 == 1
    halves = judged.of_rows(~odd), judged.of_rows(odd)
    crossed = [other.quality(1, learned_weights(own, tail), tail) for own, other in (halves, halves[::-1])]
    knots = np.ones(len(KNOTS))
    alone = {share: [half.quality(1 - share, share * knots, tail) for half in halves] for share in (0.0, 1.0)}
    best = max(alone, key=lambda share: sum(alone[share]))
    if sum(crossed) >= sum(alone[best]):
        return learned_weights(judged, tail)
    return np.full(len(KNOTS), ALONE if best else 0.0)


def learned_weights(judged: Judged, tail: float) -> NDArray[np.float64]:
    """Return w at the knots, learned from scores s = a · main + w(n) · linear by `ranking_loss`, as w / a."""
    if not judged.right.any():
        return np.full(len(KNOTS), START)
    loss = ranking_loss(judged, tail)
    theta = torch.tensor([0.0] + [_softplus_inverse(START)] * len(KNOTS), dtype=torch.float64, requires_grad=True)
    start = theta.detach().clone()
    optimiser = torch.optim.LBFGS([theta], max_iter=100, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimiser.zero_grad()
        total = loss(theta[0].exp(), nn.functional.softplus(theta[1:])) + HELD * (theta - start).square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(step)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        return np.asarray((nn.functional.softplus(theta[1:]) / theta[0].exp()).numpy())


def ranking_loss(judged: Judged, tail: float) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the loss of a and the knots of w: each label of a point should outscore the wrong ones.

        − Σ_i Σ_{l ∈ Y_i} u_l / min(|Y_i|, 5) · ln(e^{s_l} / (e^{s_l} + Σ_{j ∉ Y_i} e^{s_j})),

    on average over points with labels, with u_l = 1 − tail + tail / p_l (p: propensity; 1 / p scaled to a mean of 1).
    """
    points, main, rows = judged.Y.shape[0], torch.from_numpy(judged.main), torch.from_numpy(judged.rows)
    basis = torch.from_numpy(interpolation(judged.counts)[judged.labels] * judged.linear[:, None])  # [P, KNOTS]
    right = torch.from_numpy(judged.right)
    inverse, sizes = judged.inverse[judged.labels], np.diff(judged.Y.indptr)
    own = (1 - tail) + tail * inverse / inverse[judged.right].mean()
    shares = torch.from_numpy(own / np.clip(sizes, 1, 5)[judged.rows])[right] / max(int((sizes > 0).sum()), 1)

    def loss(a: Tensor, knots: Tensor) -> Tensor:
        scores = a * main + basis @ knots
        highest = scores.new_full((points,), -torch.inf).scatter_reduce(0, rows, scores.detach(), "amax")
        scores = scores - highest[rows]
        wrong = scores.new_zeros(points).index_add(0, rows[~right], scores[~right].exp())
        all_of = wrong[rows[right]] + scores[right].exp()
        return (shares * (all_of.log() - scores[right])).sum()

    return loss


def _softplus_inverse(value: float) -> float:
    return float(np.log(np.expm1(value)))


# --- The model --------------------------------------------------------------------------------------------------------


class Blend(Model):
    """A main model and linear classifiers."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    held_out = 0.1
    most_held_out = 1000
    settings: BlendSettings
    main: Model
    linear: Linear
    knots: Tensor  # w at the knots
    counts: Tensor  # training points of each label, [L]

    def __init__(
        self, features: int, labels: int, settings: BlendSettings, generator: torch.Generator, own: Share | None = None
    ) -> None:
        super().__init__(features, labels, settings, generator)
        self.own = own
        main, linear = settings.parts()
        kind, split = model_class(settings.main), () if own is None else (own,)
        self.main = kind(features, labels, main, generator, *split)
        self.linear = Linear(features, labels, linear, generator, own)
        self.unseen: HeldOut | None = None
        self.register_buffer("knots", torch.full((len(KNOTS),), START))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int64))

    @classmethod
    def abilities(cls, settings: BlendSettings) -> Abilities:
        """Return what the main part can do, and the linear part does not prevent."""
        main, _ = settings.parts()
        own = model_class(settings.main).abilities(main)
        lacking = ("remembers_points", "weights_points", "takes_shortlist", "reads_mapped_data")
        without = dict.fromkeys(lacking, False)
        return dataclasses.replace(own, **without)

    def check_split(self) -> None:
        """Check that several processes can train the main part."""
        self.main.check_split()

    def join(self) -> None:
        """Take the labels of all ranks, of both parts."""
        self.main.join()
        self.linear.join()
        super().join()

    # --- Learning -----------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Fit both parts, choose the weights on held-out points, and let the linear part learn from these too.

        After Ctrl-C before the weights are chosen, the main part ranks alone.
        """
        self.world = self.linear.world = run.world
        warm, start = bool(self.counts.any()), time.perf_counter()
        outcome, part = self.main.fit(lesson, run), labelled(lesson.train)
        main = self.main.predictor()
        self.unseen = None if lesson.validation is None else self.main.ranked_held_out(main, lesson.validation)
        self.linear.count(labelled(lesson.whole or lesson.train))
        if not warm:
            self.knots.zero_()
        stopped = outcome.interrupted or interrupted(lambda: self.learn(lesson, part, run, main, warm))
        if self.unseen is not None:
            self.unseen = self.reranked(main, part)
        if not (stopped or warm or lesson.whole is None or lesson.validation is None):
            more = labelled(lesson.validation)
            stopped = interrupted(lambda: self.linear.add(part, more, run))
        self.counts.copy_(self.linear.counts)
        return dataclasses.replace(outcome, interrupted=stopped, seconds=time.perf_counter() - start)

    def learn(self, lesson: Lesson, part: Part, run: Run, main: Predictor, warm: bool) -> None:
        """Train the linear part and choose its weights; in a warm start it keeps those that it has."""
        linear = self.linear
        if warm:
            linear.learn_more(part, run)
            return
        whole = linear.solves_at_once or linear.needs_no_mining(part)
        linear.learn(part, run, None if whole else self.candidates(main, part))
        if self.unseen is None:
            self.knots.fill_(START)
            return
        judged = Judged.of(self.unseen, linear.predictor(), part, lesson.propensity)
        chosen = self.world.first(lambda: chosen_weights(judged, self.settings.tail))
        self.knots.copy_(torch.from_numpy(chosen))
        run.note(f"weight of linear beside {self.settings.main}: {self.weights_in_words()}")

    def reranked(self, main: Predictor, part: Part) -> HeldOut:
        """Return held-out points as both parts rank them.  part: the points that the linear part has learned from."""
        assert self.unseen is not None
        ranking, held_out = self.unseen
        counts = np.bincount(part.Y.indices, minlength=self.label_count) + self.counts.cpu().numpy()
        predictor = self.joint(main, counts)
        return HeldOut(predictor.reranked(ranking, held_out.X, ranking.k, DEPTH), held_out)

    def candidates(self, main: Predictor, part: Part) -> csr_array:
        """Return the labels that the main part ranks highest for training points, [N, L]."""
        ranking = main.rank(part.X, min(NEGATIVES, self.label_count), part.filtered)
        listed = ranking.as_scores(self.label_count)
        return csr_array((np.ones(listed.nnz, np.float32), listed.indices, listed.indptr), shape=listed.shape)

    def weights_in_words(self) -> str:
        """Return w at the knots in words."""
        weights = ", ".join(f"{w:.1f} at {n}" for n, w in zip(KNOTS, self.knots.tolist(), strict=True))
        return f"{weights} training points per label"

    # --- Prediction ---------------------------------------------------------------------------------------------------

    def predictor(self) -> BlendPredictor:
        """Return what ranks labels."""
        return self.joint(self.main.predictor(), self.counts.cpu().numpy())

    def ranked_deep(self, predictor: Predictor, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank k labels, more of them by both parts than usual."""
        assert isinstance(predictor, BlendPredictor)
        return predictor.rank_deep(X, k, filtered)

    def joint(self, main: Predictor, counts: NDArray[np.int64]) -> BlendPredictor:
        """Return both parts with the weights of labels that have this many training points."""
        knots = self.knots.double().cpu().numpy()
        weights = (interpolation(counts) @ knots).astype(np.float32)
        return BlendPredictor(main, self.linear.predictor(), weights, slope_of(float(knots.max())))

    def learners(self) -> Sequence[Learner]:
        """Return the learners of the main part."""
        return self.main.learners()

    def ranked_held_out(self, predictor: object, validation: Part) -> HeldOut | None:
        """Return validation as it was ranked before the linear part learned from it."""
        return self.unseen

    def text_scores(self, predictor: Predictor, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores of the main part: the linear part knows nothing of such labels."""
        assert isinstance(predictor, BlendPredictor)
        scores = self.main.text_scores(predictor.main, X, Z).cpu().numpy()
        return torch.from_numpy(squeezed(predictor.slope * bounded(log_odds(scores))).astype(np.float32))

    # --- New labels and words -----------------------------------------------------------------------------------------

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels to both parts."""
        self.main.add_labels(count, generator)
        self._grown(count, generator)

    def add_label_texts(self, Z: csr_array) -> None:
        """Append labels known by their texts; the linear part knows nothing of them yet."""
        self.main.add_label_texts(Z)
        self._grown(Z.shape[0], torch.Generator())

    def _grown(self, count: int, generator: torch.Generator) -> None:
        self.linear.add_labels(count, generator)
        self.label_count += count
        self.counts = self.linear.counts.clone()

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append features to both parts."""
        self.main.add_features(count, generator)
        self.linear.add_features(count, generator)
        self.features += count

    # --- Saving, plans ------------------------------------------------------------------------------------------------

    def tensors(self) -> Tensors:
        """Return the tensors of both parts, and the weights."""
        tensors = Tensors({"knots": self.knots, "counts": self.counts}, {})
        for name, part in (("main.", self.main), ("linear.", self.linear)):
            own = part.tensors()
            tensors.serve.update(with_prefix(name, own.serve))
            tensors.train.update(with_prefix(name, own.train))
        return tensors

    @classmethod
    def restored(cls, features: int, labels: int, settings: BlendSettings, tensors: Tensors) -> Self:
        """Return a saved blend."""
        model = cls(0, 0, settings, torch.Generator())
        model.features, model.label_count = features, labels
        main, linear = settings.parts()
        model.main = model_class(settings.main).restored(features, labels, main, _part(tensors, "main."))
        model.linear = Linear.restored(features, labels, linear, _part(tensors, "linear."))
        model.knots = tensor_of(tensors.serve, "knots", torch.float32, len(KNOTS))
        model.counts = tensor_of(tensors.serve, "counts", torch.int64, labels)
        return model.eval()

    def cost(self, lesson: Lesson) -> Cost:
        """Return what the main part costs; the linear part has only stages, which are timed."""
        return self.main.cost(lesson)

    def rehearse(self, share: float) -> None:
        """Prepare the main part for a rehearsal."""
        self.main.rehearse(share)

    def complete(self, lesson: Lesson, rehearsed: Part) -> float:
        """Grow both parts to the size that training will leave."""
        return self.main.complete(lesson, rehearsed) + self.linear.complete(lesson, rehearsed)


def _part(tensors: Tensors, prefix: str) -> Tensors:
    return Tensors(part_of(tensors.serve, prefix), part_of(tensors.train, prefix))
