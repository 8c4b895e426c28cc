"""The common base of MNN and DXML: remembered training points, and the vote of those nearest to a query."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor

from zipfel import metrics
from zipfel.config import Settings, setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part, fingerprints
from zipfel.index import Index, Kind, Search, build_index, load_index
from zipfel.index.exact import SPARE, ExactIndex, largest, row_products
from zipfel.models.base import Abilities, Cost, Lesson, Model
from zipfel.models.learner import (
    BATCH,
    UNLISTED,
    HeldOut,
    Learner,
    Predictor,
    Scorer,
    evenly_spaced,
    fill_with_frequent,
    frequency_scores,
    labelled,
    most_filtered,
    precision_at_1,
    rank_held_out,
    sorted_ranking,
)
from zipfel.models.saving import Tensors, sparse_matrix, sparse_tensors, tensor_of
from zipfel.nn.encoders import Encoder
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.training.trainer import Outcome
from zipfel.types import Ranking, Shortlist, stored

NEIGHBOURS = (5, 10, 20, 40, 80)
SHARPNESS = (1.0, 4.0, 10.0, 30.0)
JUDGED = 2000  # points of validation on which the vote is chosen


@dataclass(frozen=True, kw_only=True)
class NeighbourSettings(Settings):
    """Settings of vectors, of the search for neighbours, and of their vote."""

    largest_dimension: ClassVar[int]
    dimension: int | None = setting(
        None, "width of vectors; none: up to half of the features", at_least=1, search=[None, 150, 300, 600]
    )
    neighbours: int | None = setting(None, "points that vote; none: chosen on validation", at_least=1)
    sharpness: float | None = setting(None, "power of cosines in the vote; none: by validation", at_least=0)
    index: Kind = setting("exact", "how points are searched: exact, ivf (by clusters) or hnsw")
    clusters: int | None = setting(None, "clusters of an ivf index; none: about √points", at_least=1)
    probes: int | None = setting(None, "clusters that a search of an ivf index visits; none: 64", at_least=1)
    deterministic: bool = setting(True, "false builds the index on all cores, with a different result each time")

    def width(self, features: int) -> int:
        """Return the width of vectors for this many features.

        Half of the features is enough where they are few, and the cost of a search is proportional to the width.
        """
        return self.dimension or max(16, min(self.largest_dimension, features // 2))

    def build_index(self, vectors: Tensor, seed: int) -> Index:
        """Return an index over vectors."""
        return build_index(self.index, vectors, seed, self.deterministic, self.clusters, self.probes)


@dataclass(frozen=True)
class Memory:
    """Remembered points: their vectors, their labels, and their features for when the encoder changes."""

    vectors: Tensor  # [N, D], unit
    Y: csr_array  # [N, L]
    X: csr_array  # [N, F]

    def __len__(self) -> int:
        """Return the number of points, N."""
        return len(self.vectors)

    def grown(self, vectors: Tensor, part: Part) -> Memory:
        """Return the memory with the points of a part appended."""
        Y = widened(self.Y, part.Y.shape[1])
        together = torch.cat([self.vectors, vectors])
        return Memory(together, vstack([Y, part.Y], format="csr"), vstack([self.X, part.X], format="csr"))

    def tensors(self) -> State:
        """Return the memory as tensors."""
        Y, X = sparse_tensors("points.Y", self.Y, values=False), sparse_tensors("points.X", self.X)
        return {"points.vectors": self.vectors, **Y, **X}

    @classmethod
    def of_tensors(cls, state: State, features: int, labels: int, width: int) -> Memory:
        """Return the memory that the tensors were made from.  width: D, of the encoder."""
        vectors = tensor_of(state, "points.vectors", torch.float32, None, width)
        Y = sparse_matrix("points.Y", state, labels, len(vectors))
        return cls(vectors, Y, sparse_matrix("points.X", state, features, len(vectors)))


def not_among(part: Part, older: Memory | None) -> Part:
    """Return the points of a part that the memory does not hold."""
    if older is None:
        return part
    known = fingerprints(Part(older.Y, X=older.X))
    return part.take(np.flatnonzero(~np.isin(fingerprints(Part(part.Y, X=part.X)), known)))


def widened(Y: csr_array, labels: int) -> csr_array:
    """Return the matrix with columns for labels added later."""
    return Y if Y.shape[1] == labels else csr_array((Y.data, Y.indices, Y.indptr), shape=(Y.shape[0], labels))


@dataclass(frozen=True)
class Vote:
    """Labels by the vote of the nearest points: Σ w_i y_i / Σ w_i over k of them, with w_i = max(cosine, 0)^sharpness.

    Sharpness 0 is the average of DXML's Algorithm 2 over the neighbours with a positive cosine; others have no vote.
    Labels without a vote come last, the more frequent first, with scores near 0.
    """

    memory: Memory
    neighbours: int
    sharpness: float

    @property
    def vectors(self) -> Tensor:
        """The vectors of the remembered points, [N, D]."""
        return self.memory.vectors

    @property
    def point_labels(self) -> csr_array:
        """The labels of the remembered points, [N, L]."""
        return self.memory.Y

    def width(self, k: int) -> int:
        """Return how many points to search for, whatever k: the vote does not depend on it."""
        return self.neighbours + SPARE

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank labels by their share of the vote."""
        ids, cosines = self.nearest(queries, shortlist)
        return rank_votes(self.scores(ids, cosines), self.prior, k)

    def scorer(self, label: int, query: Tensor, index: Search) -> Scorer:
        """Return the label's share of the vote; each vote is divided like its cosine, which is a sum over terms."""
        ids, cosines = self.nearest(query, index.search(query, self.width(1)))
        votes = self.shares(ids, cosines)[0]  # [K]
        own = torch.from_numpy(stored(self.point_labels, ids[0].numpy(), np.full(len(ids[0]), label)))
        parts = torch.where(own & (votes > 0), votes / cosines[0], 0)
        direction = parts.to(query) @ self.vectors[ids[0].clamp_min(0).to(query.device)]
        return lambda vectors: vectors @ direction

    @cached_property
    def prior(self) -> NDArray[np.float32]:
        """Scores of labels without a vote, [L]."""
        return frequency_scores(np.bincount(self.point_labels.indices, minlength=self.point_labels.shape[1]))

    def nearest(self, queries: Tensor, shortlist: Shortlist) -> tuple[Tensor, Tensor]:
        """Return the nearest points and their cosines, [B, up to neighbours]; -1 pads.

        Cosines are computed again, row by row: in a matrix product their last bits depend on the batch.
        """
        ids = shortlist.ids
        if not bool((ids.diff(dim=1) > 0).all()):
            ids = ids.sort(dim=1).values  # so that ties go to the lower id
        cosines = row_products(queries, self.vectors, ids.clamp_min(0))  # [B, W]
        kept = largest(cosines.masked_fill(ids < 0, -torch.inf), self.neighbours)
        return ids.gather(1, kept).cpu(), cosines.gather(1, kept).cpu()

    def scores(self, ids: Tensor, cosines: Tensor) -> csr_array:
        """Return the share of the vote that each label gets, [B, L]."""
        queries, count = ids.shape
        if not count:
            return csr_array((queries, self.point_labels.shape[1]), dtype=np.float32)
        weights = self.shares(ids, cosines)
        pointers = np.arange(0, queries * count + 1, count)
        flat = (weights.float().numpy().ravel(), ids.clamp_min(0).numpy().ravel(), pointers)
        votes = csr_array(csr_array(flat, shape=(queries, len(self.vectors))) @ self.point_labels)
        votes.eliminate_zeros()
        np.clip(votes.data, UNLISTED, 1, out=votes.data)  # above labels without a vote; rounding may exceed 1
        return votes

    def shares(self, ids: Tensor, cosines: Tensor) -> Tensor:
        """Return the share of the vote that each neighbour has, [B, K]."""
        near = cosines.double().clamp_min(0)
        near /= near.amax(dim=1, keepdim=True).clamp_min(1e-12)  # else a high power of small cosines underflows
        weights = near.pow(self.sharpness) * ((ids >= 0) & (cosines > 0))
        return weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-300)


def rank_votes(scores: csr_array, prior: NDArray[np.float32], k: int) -> Ranking:
    """Rank the stored scores of [B, L], and behind them other labels by their prior [L].

    Rows are padded to the longest: no full sort, no dense [B, L].
    """
    scores.sort_indices()
    sizes = np.diff(scores.indptr)
    widest = int(sizes.max(initial=0))
    ids = np.full((len(sizes), widest), -1, dtype=np.int64)
    values = np.full((len(sizes), widest), -np.inf, dtype=np.float32)
    filled = np.arange(widest) < sizes[:, None]
    ids[filled], values[filled] = scores.indices, scores.data
    labels, votes = torch.from_numpy(ids), torch.from_numpy(values)
    if (sizes < k).any():
        return fill_with_frequent(labels, votes, prior, k)
    best = largest(votes, k)  # ties go to the lower id, as ids ascend
    return sorted_ranking(Shortlist(labels.gather(1, best), votes.gather(1, best)), k)


class NeighbourModel(Model):
    """A model that remembers its training points, and tags a new one by the vote of those nearest to it.

    A subclass provides an encoder from bags to unit vectors, `learn`, and `start`.
    """

    name: ClassVar[str]  # of the stage that learns
    width_of: ClassVar[tuple[str, int]]  # a saved tensor, and which of its sizes is the width of vectors
    held_out = 0.2  # to choose the vote on; learned from in a second round
    train_only: ClassVar[tuple[str, ...]] = ("points.X.*",)
    encoder: Encoder
    settings: NeighbourSettings

    def __init__(self, features: int, labels: int, settings: NeighbourSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.label_names: Sequence[str] | None = None  # for files that name labels
        self.memory: Memory | None = None
        self.index: Index | None = None
        self.unseen: HeldOut | None = None  # validation, ranked before it was learned from
        self.neighbours = settings.neighbours or 20
        self.sharpness = 4.0 if settings.sharpness is None else settings.sharpness
        self.start(generator)

    @classmethod
    def abilities(cls, settings: NeighbourSettings) -> Abilities:
        """Return the abilities of a model of remembered points."""
        return Abilities(remembers_points=True)

    @classmethod
    def resolved(cls, settings: NeighbourSettings, features: int) -> NeighbourSettings:
        """Return the settings with the width of vectors."""
        return replace(settings, dimension=settings.width(features))

    @classmethod
    def restored(cls, features: int, labels: int, settings: NeighbourSettings, tensors: Tensors) -> Self:
        """Return a saved model, with the width that it was trained with: the rule for it may be another one today."""
        name, axis = cls.width_of
        if name in tensors.all and tensors.all[name].ndim == 2:  # else the checks of `super` say what is wrong
            settings = replace(settings, dimension=tensors.all[name].shape[axis])
        return super().restored(features, labels, settings, tensors)

    def device(self) -> torch.device:
        """Return the encoder's device."""
        return next(iter(self.parameters()), torch.empty(0)).device

    # --- Learning ----------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn, remember the points, choose their vote on validation; then learn again, from all of train.

        A vote of points misses those that are held out. Validation chooses only the vote: its noise is larger than the
        differences between epochs. Ctrl-C in the second round leaves the result of the first one.
        """
        validation, whole, older = lesson.validation, lesson.whole, self.memory
        self.label_names, self.unseen = lesson.label_names, None
        part = lesson.train if whole is None or self.chooses_vote else whole  # a given vote needs no held-out points
        outcome = self._remember(self.learned_part(part, older), run, self.name)
        if validation is None or part is whole:
            return outcome
        if self.chooses_vote:
            self.neighbours, self.sharpness = chosen_vote(self.learners()[0], self.settings, validation)
        learner = self.learners()[0]
        outcome = replace(outcome, best=precision_at_1(learner, validation))
        self.unseen = rank_held_out(learner, not_among(validation, older))
        if whole is None or outcome.interrupted:
            return outcome
        first = {name: value.clone() for name, value in self.state_dict().items()}, self.memory, self.index
        if older is None:
            self.start(run.generator("start"))
        again = self._remember(self.learned_part(whole, older), run, f"{self.name}-whole")
        if again.interrupted:
            self.load_state_dict(first[0])
            self.memory, self.index = first[1:]
        return replace(again, best=outcome.best, seconds=outcome.seconds + again.seconds)

    @property
    def chooses_vote(self) -> bool:
        """Whether the vote is chosen on validation, rather than given by the settings."""
        return self.settings.neighbours is None or self.settings.sharpness is None

    def ranked_held_out(self, predictor: Predictor, validation: Part) -> HeldOut | None:
        """Return validation as it was ranked before it was learned from."""
        return self.unseen

    def _remember(self, part: Part, run: Run, stage: str) -> Outcome:
        """Learn from a part, then encode, keep and index its points."""
        outcome = self.learn(part, run, stage)
        self.memory = Memory(self.encoded(part), part.Y, part.X)
        self.index = self.settings.build_index(self.memory.vectors, run.seed)
        return outcome

    def learn(self, part: Part, run: Run, stage: str) -> Outcome:
        """Train the encoder on a part."""
        raise NotImplementedError

    def start(self, generator: torch.Generator) -> None:
        """Draw new weights."""
        raise NotImplementedError

    def learned_part(self, part: Part, older: Memory | None) -> Part:
        """Return the points to learn from: older ones, then those of a part that have labels."""
        part = labelled(part)
        if older is None:
            return part
        Y = vstack([widened(older.Y, self.label_count), part.Y], format="csr")
        return Part(Y, X=vstack([older.X, part.X], format="csr"))

    @torch.no_grad()
    def encoded(self, part: Part) -> Tensor:
        """Return the vectors of a part's points, [points, D]."""
        assert part.X is not None
        self.encoder.eval()
        starts = range(0, len(part), BATCH)
        parts = [self.encoder(bags(part.X[start : start + BATCH]).to(self.device())) for start in starts]
        return torch.cat(parts)

    # --- Prediction --------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return one learner, which searches points and lets them vote."""
        memory, index = self.remembered()
        if memory.vectors.device != self.device():  # the model was moved
            memory = replace(memory, vectors=memory.vectors.to(self.device()))
            index = load_index(self.settings.index, index.state(), memory.vectors)
            self.memory, self.index = memory, index
        return [Learner(self.encoder, index, Vote(memory, self.neighbours, self.sharpness), self.device())]

    def remembered(self) -> tuple[Memory, Index]:
        """Return the remembered points and their index, which `fit` makes."""
        assert self.memory is not None
        assert self.index is not None
        return self.memory, self.index

    # --- New points and labels ---------------------------------------------------------------------------------------

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels."""
        self.label_count += count

    def add_points(self, part: Part) -> float:
        """Remember points without learning; return their distance from the known ones as a multiple of the usual.

        About 1 for points like the remembered ones. New labels become predictable by their points. The encoder stays
        as it is: a further `fit` learns.
        """
        (memory, index), part = self.remembered(), labelled(part)
        vectors, some = self.encoded(part), memory.vectors[:: max(1, len(memory) // 1000)]
        usual, here = mean_distance(some, memory.vectors), mean_distance(vectors, memory.vectors)
        self.memory = memory.grown(vectors, part)
        index.add(vectors, self.settings.deterministic)
        return 1.0 if here == usual else here / usual if usual else math.inf

    # --- Saving ------------------------------------------------------------------------------------------------------

    def more_tensors(self) -> State:
        """Return the memory, the vote and the index."""
        memory, index = self.remembered()
        vote = {"vote": torch.tensor([float(self.neighbours), self.sharpness], dtype=torch.float64)}
        return memory.tensors() | vote | with_prefix("index.", index.state())

    def take_tensors(self, more: State) -> None:
        """Take the memory, the vote and the index."""
        self.memory = Memory.of_tensors(more, self.features, self.label_count, self.settings.width(self.features))
        self.index = load_index(self.settings.index, part_of(more, "index."), self.memory.vectors)
        vote = tensor_of(more, "vote", torch.float64, 2)
        self.neighbours, self.sharpness = max(1, int(vote[0])), float(vote[1])

    # --- Plans -------------------------------------------------------------------------------------------------------

    def cost(self, lesson: Lesson) -> Cost:
        """Return two rounds where the vote is chosen on points that are learned from later, else one."""
        cost = super().cost(lesson)
        if lesson.whole is None or lesson.validation is None:
            return cost
        whole = len(labelled(lesson.whole))
        if not self.chooses_vote:
            return replace(cost, rounds=(whole,))
        return replace(cost, rounds=(*cost.rounds, whole), bytes_a_point=4 * self.settings.width(self.features))

    def complete(self, lesson: Lesson, rehearsed: Part) -> float:
        """Remember as many points as training will: the vectors of the rehearsed ones, over and over."""
        known = self.remembered()[0].vectors
        rounds = NeighbourModel.cost(self, lesson).rounds  # that of DXML would time DeepWalk again
        start = time.perf_counter()
        self.encoded(rehearsed)
        seconds = (time.perf_counter() - start) * (sum(rounds) / len(rehearsed) - 1)
        whole = labelled(lesson.whole or lesson.train)
        vectors = known[torch.arange(len(whole)) % len(known)]
        self.memory = Memory(vectors, whole.Y, whole.X)
        start = time.perf_counter()
        self.index = self.settings.build_index(vectors, 0)
        return seconds + (time.perf_counter() - start) * len(rounds)


def mean_distance(vectors: Tensor, known: Tensor) -> float:
    """Return the mean distance of unit vectors [B, D] to the nearest known one [N, D], other than an equal one."""
    near = ExactIndex(known).search(vectors, 64)  # more than a point has copies, mostly
    distances = (2 - 2 * near.scores).clamp_min(0).sqrt()
    apart = distances.masked_fill(distances < 1e-3, torch.inf).amin(dim=1)
    return float(apart[apart.isfinite()].mean()) if apart.isfinite().any() else 0.0


def chosen_vote(learner: Learner, settings: NeighbourSettings, validation: Part) -> tuple[int, float]:
    """Return the number of neighbours and the sharpness that are best on up to JUDGED evenly spaced validation points.

    Best by the sum of P@1, P@3 and P@5: one of them alone is noisy on a small part.
    """
    vote = learner.classifier
    if not isinstance(vote, Vote) or len(validation) == 0:
        return settings.neighbours or 20, 4.0 if settings.sharpness is None else settings.sharpness
    validation = evenly_spaced(validation, JUDGED)
    counts = NEIGHBOURS if settings.neighbours is None else (settings.neighbours,)
    powers = SHARPNESS if settings.sharpness is None else (settings.sharpness,)
    queries = learner.encode(validation.X)
    shortlist = learner.index.search(queries, max(counts) + SPARE)

    def quality(vote: Vote) -> float:
        ranking = vote.rescore(queries, shortlist, 5 + most_filtered(validation.filtered))
        if validation.filtered is not None:
            ranking = ranking.without(validation.filtered)
        figures = metrics.measure(ranking.top(5), validation.Y)
        return figures["P@1"] + figures["P@3"] + figures["P@5"]

    options = [replace(vote, neighbours=count, sharpness=power) for count, power in product(counts, powers)]
    best = max(options, key=quality)
    return best.neighbours, best.sharpness
