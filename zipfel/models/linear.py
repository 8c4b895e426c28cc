"""Linear one-vs-all classifiers on sparse features: one weight vector a label, ranked exactly.

The idea of DiSMEC (Babbar and Schölkopf, 2017): L2-regularised squared hinge, each label on its own, small weights
dropped. Negatives are mined as label trees do it (Parabel, Bonsai), but by the model's own mistakes. Held next to these
papers in docs/papers/linear.md; the solvers are in linear_solvers.py, and prediction in linear_predictor.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from zipfel.config import Settings, Span, setting
from zipfel.data.dataset import Part
from zipfel.errors import DataError
from zipfel.models.base import Abilities, Lesson, Model
from zipfel.models.learner import HeldOut, Learner, labelled, rank_held_out
from zipfel.models.linear_predictor import LinearPredictor
from zipfel.models.linear_solvers import (
    Best,
    Loss,
    Objective,
    Weights,
    best_labels,
    hardest,
    liblinear,
    nearest_centroids,
    newton,
    signs_of,
)
from zipfel.models.linear_split import (
    SplitPredictor,
    best_of_ranks,
    entries_to_read,
    entries_to_write,
    evened,
    moved_rows,
    of_own_labels,
)
from zipfel.models.saving import sparse_matrix, sparse_tensors
from zipfel.models.split import collected_rows
from zipfel.training.progress import Moment
from zipfel.training.ranks import World
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome
from zipfel.types import Share, csr_problem

FEW_PAIRS = 2 * 10**7  # points × labels up to which no negatives are mined
COUNTED = 2000  # labels on which a plan counts features
WEIGHTS_GROW = 0.8  # a label has about as many weights as this power of its points: of LF-PubMedMeSH
NO_POINT = 0.01  # cost of a label without points, where one with a single point costs 1: a bias
ROUGH = 0.1  # liblinear's tolerance against mined negatives


@dataclass(frozen=True)
class LinearSettings(Settings):
    """Settings of linear classifiers: sparse weights on the features, one classifier for each label."""

    C: float = setting(
        1.0, "weight of the loss; smaller values regularise more", above=0, search=Span(0.1, 10, log=True)
    )
    loss: Loss = setting("squared_hinge", "loss of a point: squared_hinge, logistic")
    negatives: Literal["auto", "all", "mined"] = setting(
        "auto", "points that a label is solved against: all, mined ones, or auto: mined on a CPU if data is large"
    )
    rounds: int = setting(3, "how often labels are solved, each time against more mined negatives", at_least=1)
    mined: int | None = setting(
        None,
        "best ranked labels that each point becomes a negative of in a round; none: a hundredth of all, 50 to 200",
        at_least=1,
    )
    min_weight: float = setting(0.02, "smaller weights are dropped", at_least=0)

    def mined_of(self, labels: int) -> int:
        """Return `mined` for this many labels: the more labels, the more of them are confused with each other."""
        return min(max(50, labels // 100), 200) if self.mined is None else self.mined


PRESETS: dict[str, LinearSettings] = {
    "paper": LinearSettings(negatives="all", min_weight=0.01),  # DiSMEC
    "default": LinearSettings(),
    "fast": LinearSettings(rounds=2),
}


class Linear(Model):
    """Sparse weights by feature, and a bias for each label."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    most_held_out = 1000  # points, for calibration; they are learned from in the end
    settings: LinearSettings
    counts: Tensor  # training points of each label, [L]
    starts: Tensor  # [F + 1], of each feature in `labels` and `values`
    labels: Tensor  # [T]
    values: Tensor  # [T], as float16 holds them
    bias: Tensor  # [L]

    def __init__(
        self, features: int, labels: int, settings: LinearSettings, generator: torch.Generator, own: Share | None = None
    ) -> None:
        super().__init__(features, labels, settings, generator)
        self.own = own
        self.unseen: HeldOut | None = None  # validation, ranked before it was learned from
        self.met: csr_array | None = None  # mined negatives of the last training, [N, held]; None: all points
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int64))  # training points of each label
        self.hold(Weights(csr_array((self.held_labels, features), dtype=np.float32),
                          np.full(self.held_labels, -1, np.float32)))  # fmt: skip

    @classmethod
    def abilities(cls, settings: LinearSettings) -> Abilities:
        """Return what linear classifiers can do."""
        return Abilities(takes_new_words=True, splits_labels=True)

    @classmethod
    def shared(cls, world: World, points: Sequence[int]) -> Share:
        """Return a range of labels with about as many weights as those of other ranks; `cut_anew` corrects it later."""
        return Share.balanced(world.rank, world.size, NO_POINT + np.asarray(points, np.float64) ** WEIGHTS_GROW)

    @property
    def held_labels(self) -> int:
        """The number of labels that this process has: all, or its range."""
        return self.label_count if self.own is None else self.own.size

    # --- Learning -----------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Solve all labels; those of held-out points are solved once more, with them.

        After Ctrl-C the weights of the last round are kept; there must be one.
        """
        self.world = run.world
        start, warm, part = time.perf_counter(), bool(self.counts.any()), labelled(lesson.train)
        self.count(labelled(lesson.whole or lesson.train))
        stopped = interrupted(lambda: self.learn_more(part, run) if warm else self.learn(part, run))
        if stopped and not self.weight_count():
            raise KeyboardInterrupt
        self.unseen = None if lesson.validation is None else rank_held_out(self.predictor(), lesson.validation)
        if not (stopped or warm or lesson.whole is None or lesson.validation is None):
            more = labelled(lesson.validation)
            stopped = interrupted(lambda: self.add(part, more, run))
        against = "all points" if self.solves_at_once or self.needs_no_mining(part) else "mined negatives"
        run.note(f"{self.weight_count():,} weights of {self.label_count:,} labels, solved against {against}")
        return Outcome(None, -1, self.settings.rounds, time.perf_counter() - start, stopped)

    def count(self, part: Part) -> None:
        """Count the training points of each label."""
        self.counts += torch.from_numpy(np.bincount(part.Y.indices, minlength=self.label_count)).to(self.counts)

    def weight_count(self) -> int:
        """Return how many weights there are, on all ranks."""
        return int(self.world.sum(torch.tensor(len(self.values))))

    def learn(self, part: Part, run: Run, negatives: csr_array | None = None) -> None:
        """Solve all labels.  negatives: labels to begin with [N, L]; None takes those with the nearest centroids."""
        own, self.met = self.of_held_labels(part), None
        if self.solves_at_once:
            self.hold(self.stage("linear", lambda: self.solved_at_once(own, run, None), run, self.own))
            self.cut_anew()
        elif self.needs_no_mining(part):
            solve = partial(self.solved, own, everywhere(own), run, 0)
            self.hold(self.stage("linear-0", solve, run, self.own))
            self.cut_anew()
        else:
            self.mine(part, run, negatives)

    def mine(self, part: Part, run: Run, negatives: csr_array | None) -> None:
        """Solve all labels in rounds, each against more mined negatives."""
        mined = self.settings.mined_of(self.label_count)
        for number in range(self.settings.rounds):
            own = self.of_held_labels(part)
            if number:
                hard = hardest(own.X, self.held(), mined, self.best())
                self.met = csr_array(((self.met + hard) != 0).astype(np.float32))
            elif negatives is None:
                self.met = nearest_centroids(own.X, own.Y, mined, run.numbers("linear"), self.best())
            else:
                self.met = negatives if self.own is None else csr_array(negatives[:, self.own.rows])
            self.hold(self.stage(f"linear-{number}", partial(self.solved, own, self.met, run, number), run, self.own))
            self.cut_anew()

    def of_held_labels(self, part: Part) -> Part:
        """Return a part with the labels that this process has."""
        return part if self.own is None else chosen_labels(part, self.own.rows)

    def best(self) -> Best:
        """Return what finds the best labels of points among all labels, and lists those that this process has."""
        return best_labels if self.own is None else best_of_ranks(self.own, self.world)

    def cut_anew(self) -> None:
        """Give each rank a range of labels with about as many bytes, now that they are known: move what it holds."""
        if self.own is None:
            return
        old, own, world = self.held(), self.own, self.world
        self.own = new = evened(old.W, own, world)
        bias = world.moved(torch.from_numpy(old.bias), own, new)
        self.hold(Weights(moved_rows(old.W, own, new, world), bias.numpy()))
        if self.met is not None:
            self.met = csr_array(moved_rows(csr_array(self.met.T.tocsr()), own, new, world).T.tocsr())

    def stage(self, name: str, solve: Callable[[], Weights], run: Run, own: Share | None) -> Weights:
        """Return the weights that a stage solves or has kept.  own: which of its labels this rank solves; None: all."""
        if own is None:
            return held_in(run.stage(name, lambda: kept(solve())), self.features)
        state = run.stage_of_all(name, lambda: kept(solve()), reads=entries_to_read(own),
                                 writes=lambda state: entries_to_write(state, own, self.world))  # fmt: skip
        return held_in(of_own_labels(state, own), self.features)

    def add(self, part: Part, more: Part, run: Run) -> None:
        """Solve the labels of more points again, now with these points."""
        labels = np.unique(more.Y.indices)
        if not len(labels):
            return
        whole, first, own = joined(part, more), 0, None
        if self.own is not None:
            first, own = self.own.start, among(labels, self.own)
            labels = labels[own.rows]

        def solved() -> Weights:
            some, met = chosen_labels(whole, labels), self.met
            if self.solves_at_once:
                return self.solved_at_once(some, run, None)
            negatives = everywhere(some) if met is None else with_new_points(met[:, labels - first], len(more))
            return self.solved(some, negatives, run, self.settings.rounds)

        self.replace(labels - first, self.stage("linear-whole", solved, run, own))

    def learn_more(self, part: Part, run: Run) -> None:
        """Learn from more points without the earlier ones: their labels move as little as these points allow."""
        labels = np.unique(part.Y.indices)
        if not len(labels):
            return
        old = self.held()
        centre = Weights(csr_array(old.W[labels]), old.bias[labels])
        state = run.stage("linear-more", lambda: kept(self.solved_at_once(chosen_labels(part, labels), run, centre)))
        self.replace(labels, held_in(state, self.features))

    @property
    def solves_at_once(self) -> bool:
        """Whether all labels are solved at once, against all points."""
        if self.settings.negatives == "auto":
            return self.counts.device.type == "cuda"
        return self.settings.negatives == "all"

    def needs_no_mining(self, part: Part) -> bool:
        """Whether points and labels are so few that each label is solved against all points even on a CPU."""
        return self.settings.negatives == "auto" and len(part) * part.Y.shape[1] <= FEW_PAIRS

    @property
    def objective(self) -> Objective:
        """What is minimised."""
        return Objective(self.settings.C, self.settings.loss, self.settings.min_weight)

    def solved_at_once(self, part: Part, run: Run, centre: Weights | None) -> Weights:
        """Return the weights of all labels of a part, against all of its points."""
        tick = Ticker(run, "linear", 0, 1, part)
        return newton(part.X, part.Y, part.filtered, self.objective, self.counts.device, centre, tick)

    def solved(self, part: Part, negatives: csr_array, run: Run, number: int) -> Weights:
        """Return the weights of all labels of a part, against mined negatives."""
        tick = Ticker(run, f"linear-{number}", number, self.settings.rounds, part)
        met, pairs = self.world.sum(torch.tensor([negatives.nnz, len(part) * part.Y.shape[1]])).tolist()
        mined = met < pairs  # an approximation, which need not be solved to the end
        objective = replace(self.objective, tolerance=ROUGH if mined else None)
        return liblinear(part.X, signs_of(part.Y, negatives, part.filtered), objective, torch.get_num_threads(), tick)

    # --- Prediction, new labels and words -----------------------------------------------------------------------------

    def predictor(self) -> LinearPredictor:
        """Return what ranks labels."""
        if self.own is None:
            return LinearPredictor(self.by_feature(), self.bias.cpu().numpy())
        return SplitPredictor(self.by_feature(), self.bias.cpu().numpy(), own=self.own, world=self.world)

    def join(self) -> None:
        """Take the weights of the labels of all ranks."""
        own, world, old = self.own, self.world, self.held()
        super().join()
        if own is not None:
            W, bias = collected_rows(old.W, own, world), world.collected(torch.from_numpy(old.bias), own)
            if world.is_first:
                self.hold(Weights(W, bias.numpy()))

    def learners(self) -> list[Learner]:
        """Return no learners: features are not encoded."""
        return []

    def ranked_held_out(self, predictor: object, validation: Part) -> HeldOut | None:
        """Return validation as it was ranked before it was learned from."""
        return self.unseen

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with weights of 0."""
        old = self.held()
        self.label_count += count
        W = csr_array((old.W.data, old.W.indices, np.append(old.W.indptr, np.full(count, old.W.indptr[-1]))),
                      shape=(self.label_count, self.features))  # fmt: skip
        self.counts = torch.cat([self.counts, self.counts.new_zeros(count)])
        self.hold(Weights(W, np.append(old.bias, np.full(count, -1, np.float32))))

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append features with weights of 0."""
        old = self.held()
        self.features += count
        W = csr_array((old.W.data, old.W.indices, old.W.indptr), shape=(self.label_count, self.features))
        self.hold(Weights(W, old.bias))

    # --- Plans --------------------------------------------------------------------------------------------------------

    def complete(self, lesson: Lesson, rehearsed: Part) -> float:
        """Hold about as many weights as training will leave: in proportion to the features that labels occur with."""
        labels = np.unique(np.linspace(0, self.label_count - 1, COUNTED).astype(np.int64))
        before, after = (features_met(part, labels) for part in (rehearsed, lesson.whole or lesson.train))
        if after <= before or not len(self.values):
            return 0.0
        taken = np.arange(round(len(self.values) * after / max(before, 1))) % len(self.values)
        taken.sort()  # some twice or more, but by feature as before
        self.starts = torch.from_numpy(np.searchsorted(taken, self.starts.cpu().numpy())).to(self.starts)
        self.labels, self.values = self.labels[taken], self.values[taken]
        start = time.perf_counter()
        self.predictor()
        return time.perf_counter() - start

    # --- Weights as tensors, by feature -------------------------------------------------------------------------------

    def hold(self, weights: Weights) -> None:
        """Keep weights as buffers, which are saved: values in float16, as they are rounded here."""
        by_feature = csr_array(weights.W.T.tocsr())
        by_feature.sort_indices()
        values = torch.from_numpy(by_feature.data.astype(np.float32)).half()
        device = self.counts.device
        self.register_buffer("starts", torch.from_numpy(by_feature.indptr.astype(np.int64)).to(device))
        self.register_buffer("labels", torch.from_numpy(by_feature.indices.astype(np.int32)).to(device))
        self.register_buffer("values", values.float().to(device))
        self.register_buffer("bias", torch.from_numpy(weights.bias.astype(np.float32)).to(device))

    def by_feature(self) -> csr_array:
        """Return the weights by feature, [F, L]."""
        parts = (self.values.cpu().numpy(), self.labels.cpu().numpy(), self.starts.cpu().numpy())
        return csr_array(parts, shape=(self.features, self.held_labels))

    def held(self) -> Weights:
        """Return the weights by label."""
        return Weights(csr_array(self.by_feature().T.tocsr()), self.bias.cpu().numpy())

    def replace(self, labels: NDArray[np.int64], new: Weights) -> None:
        """Replace the weights of some labels."""
        old = self.held()
        rest = np.setdiff1d(np.arange(self.held_labels), labels)
        order = np.argsort(np.concatenate([rest, labels]))
        W = csr_array(vstack([old.W[rest], new.W], format="csr")[order])
        self.hold(Weights(W, np.concatenate([old.bias[rest], new.bias])[order]))

    def more_tensors(self) -> State:
        """Return the values in float16, in which nothing is lost."""
        return {"values": self.values.half()}

    def take_tensors(self, more: State) -> None:
        """Check the weights, which are buffers: nothing is left to take."""
        starts, labels = self.starts.numpy(), self.labels.numpy()
        if problem := csr_problem(starts, labels, self.label_count, len(self.values)):
            raise DataError(f"the weights: {problem}")


class Ticker:
    """Reports how many labels are solved."""

    def __init__(self, run: Run, stage: str, number: int, rounds: int, part: Part) -> None:
        self.run, self.stage, self.number, self.rounds = run, stage, number, rounds
        self.labels, self.points, self.start = part.Y.shape[1], len(part), time.perf_counter()
        self.last = 0.0

    def __call__(self, done: int) -> None:
        """Report that this many labels are solved, at most twice a second."""
        now = time.perf_counter()
        if now - self.last < 0.5 and done < self.labels:
            return
        share, took = done / max(self.labels, 1), now - self.start
        self.last = now
        rate, left = share * self.points / max(took, 1e-9), took * (1 - share) / max(share, 1e-9)
        self.run.progress.update(Moment(self.stage, min(self.number, self.rounds - 1), self.rounds, done, self.labels,
                                        rate, left, {}))  # fmt: skip


def everywhere(part: Part) -> csr_array:
    """Return each point as a negative of all labels, [N, L]."""
    return csr_array(np.ones(part.Y.shape, dtype=np.float32))


def with_new_points(met: csr_array, count: int) -> csr_array:
    """Return the negatives of all rounds [N, L], and below them new points, as negatives of all of these labels.

    Negatives of earlier rounds must stay: the last weights rank them low because they were learned from. New points
    bring new words to a label, and nothing mined so far speaks against these.
    """
    return csr_array(vstack([met, np.ones((count, met.shape[1]), dtype=np.float32)], format="csr"))


def interrupted(work: Callable[[], None]) -> bool:
    """Do some work; return whether Ctrl-C ended it."""
    try:
        work()
    except KeyboardInterrupt:
        return True
    return False


def features_met(part: Part, labels: NDArray[np.int64]) -> int:
    """Return how many (label, feature) pairs occur together in a point."""
    assert part.X is not None
    return int((csr_array(part.Y[:, labels].T) @ part.X).nnz)


def kept(weights: Weights) -> State:
    """Return weights as tensors of a stage."""
    return {**sparse_tensors("W", weights.W), "bias": torch.from_numpy(weights.bias)}


def held_in(state: State, features: int) -> Weights:
    """Return the weights that a stage kept."""
    return Weights(sparse_matrix("W", state, features), state["bias"].numpy())


def joined(one: Part, other: Part) -> Part:
    """Return the points of two parts."""
    X, Y = vstack([one.X, other.X], format="csr"), vstack([one.Y, other.Y], format="csr")
    if one.filtered is None and other.filtered is None:
        return Part(csr_array(Y), X=csr_array(X))
    pairs = [csr_array(part.Y.shape, dtype=np.float32) if part.filtered is None else part.filtered
             for part in (one, other)]  # fmt: skip
    return Part(csr_array(Y), X=csr_array(X), filtered=csr_array(vstack(pairs, format="csr")))


def among(labels: NDArray[np.int64], own: Share) -> Share:
    """Return which of some labels, in ascending order, are a rank's own."""
    start, stop = np.searchsorted(labels, [own.start, own.stop]).tolist()
    return Share(start, stop, len(labels))


def chosen_labels(part: Part, labels: NDArray[np.int64] | slice) -> Part:
    """Return a part with some of its labels only."""
    filtered = None if part.filtered is None else csr_array(part.filtered[:, labels])
    return Part(csr_array(part.Y[:, labels]), X=part.X, filtered=filtered)
