"""What MNN and DXML share: training points that are remembered, and the vote of those nearest to a query."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn

from zipfel import metrics
from zipfel.config import setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part, fingerprints
from zipfel.errors import ConfigError
from zipfel.index import Index, Kind, build_index, load_index
from zipfel.index.exact import SLACK, SPARE, ExactIndex, largest, row_products
from zipfel.models.base import (
    BATCH,
    UNLISTED,
    Learner,
    Lesson,
    Unseen,
    filled,
    labelled,
    likelihoods,
    most_filtered,
    ranking_of,
    share_right,
    unseen,
)
from zipfel.nn.encoders import Table
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome
from zipfel.types import Ranking, Shortlist

NEIGHBOURS = (5, 10, 20, 40, 80)
SHARPNESS = (1.0, 4.0, 10.0, 30.0)
JUDGED = 2000  # points of validation that decide on the vote


@dataclass(frozen=True, kw_only=True)
class NeighbourSettings:
    """How wide vectors are, how points are found and how they vote."""

    usual_dimension: ClassVar[int]
    dimension: int | None = setting(
        None, "width of the vectors of points; none: the usual one, at most a third of the features"
    )
    neighbours: int | None = setting(None, "points that vote; none: chosen on validation")
    sharpness: float | None = setting(None, "power of the cosine that a vote weighs; none: chosen on validation")
    index: Kind = setting("exact", "how points are searched: exact, ivf (by clusters) or hnsw")
    clusters: int | None = setting(None, "of an ivf index; none: about the root of the number of points")
    probes: int | None = setting(None, "nearest clusters that an ivf index looks into; none: 64")
    deterministic: bool = setting(True, "false builds on all cores, never twice the same")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("dimension", "neighbours", "clusters", "probes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; found {value}")
        if self.sharpness is not None and self.sharpness < 0:
            raise ConfigError(f"sharpness must be at least 0; found {self.sharpness}")

    def width(self, features: int) -> int:
        """Return the width of vectors of points with that many features: as set, or the usual one.

        A third of the features is enough where they are few, and a search costs as much as vectors are wide.
        """
        return self.dimension or max(16, min(self.usual_dimension, features // 3))

    def built(self, vectors: Tensor, seed: int) -> Index:
        """Return the index of vectors that these settings ask for."""
        return build_index(self.index, vectors, seed, self.deterministic, self.clusters, self.probes)


@dataclass(frozen=True)
class Memory:
    """Points that a model remembers: their vectors, their labels, and their features for when the encoder changes."""

    vectors: Tensor  # [N, D], unit
    Y: csr_array  # [N, L]
    X: csr_array  # [N, F]

    def __len__(self) -> int:
        """Return the number of points, N."""
        return len(self.vectors)

    def grown(self, vectors: Tensor, part: Part) -> Memory:
        """Return the memory with the points of a part behind those that are there."""
        Y = widened(self.Y, part.Y.shape[1])
        together = torch.cat([self.vectors, vectors])
        return Memory(together, vstack([Y, part.Y], format="csr"), vstack([self.X, part.X], format="csr"))

    def serve_state(self) -> State:
        """Return what a vote needs, as tensors."""
        return {"points.vectors": self.vectors, **_tensors("points.Y", self.Y, values=False)}

    def train_state(self) -> State:
        """Return what a change of the encoder needs besides."""
        return _tensors("points.X", self.X, values=True)

    @classmethod
    def of_state(cls, serve: State, train: State, features: int, labels: int) -> Memory:
        """Return the memory that the two states were taken from."""
        Y, X = _matrix("points.Y", serve, labels), _matrix("points.X", train, features)
        return cls(serve["points.vectors"], Y, X)


def not_among(part: Part, older: Memory | None) -> Part:
    """Return the points of a part that are not remembered yet."""
    if older is None:
        return part
    known = fingerprints(Part(older.Y, X=older.X))
    return part.take(np.flatnonzero(~np.isin(fingerprints(Part(part.Y, X=part.X)), known)))


def widened(Y: csr_array, labels: int) -> csr_array:
    """Return the matrix with room for labels that came later."""
    return Y if Y.shape[1] == labels else csr_array((Y.data, Y.indices, Y.indptr), shape=(Y.shape[0], labels))


def _tensors(name: str, matrix: csr_array, values: bool) -> State:
    state = {
        f"{name}.indices": torch.from_numpy(matrix.indices.astype(np.int32)),
        f"{name}.indptr": torch.from_numpy(matrix.indptr.astype(np.int64)),
    }
    return state | ({f"{name}.data": torch.from_numpy(matrix.data.astype(np.float32))} if values else {})


def _matrix(name: str, state: State, width: int) -> csr_array:
    indices, indptr = state[f"{name}.indices"].numpy(), state[f"{name}.indptr"].numpy()
    data = state[f"{name}.data"].numpy() if f"{name}.data" in state else np.ones(len(indices), dtype=np.float32)
    return csr_array((data, indices, indptr), shape=(len(indptr) - 1, width))


@dataclass(frozen=True)
class Vote:
    """Labels by the vote of the nearest points: Σ w_i y_i / Σ w_i over k of them, with w_i = max(cosine, 0)^sharpness.

    Sharpness 0 is the plain average of DXML's Algorithm 2. Points that point away from a query have no vote. Labels
    without a vote come last, the more frequent first, with next to no score.
    """

    memory: Memory
    neighbours: int
    sharpness: float

    @property
    def vectors(self) -> Tensor:
        """Those of the remembered points."""
        return self.memory.vectors

    def width(self, k: int) -> int:
        """Return how many points must be found, whatever k: the vote does not depend on it."""
        return self.neighbours + SPARE

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank labels by their share of the vote."""
        ids, cosines = self.nearest(queries, shortlist)
        return ranked(self.scores(ids, cosines), self.prior, k)

    @cached_property
    def prior(self) -> NDArray[np.float32]:
        """Scores of labels that nobody votes for, [L]."""
        return likelihoods(np.bincount(self.memory.Y.indices, minlength=self.memory.Y.shape[1]))

    def nearest(self, queries: Tensor, shortlist: Shortlist) -> tuple[Tensor, Tensor]:
        """Return the nearest points and their cosines, [B, up to neighbours], -1 where there are too few.

        Cosines are taken anew, row by row: in a matrix product their last bits depend on the batch.
        """
        ids = shortlist.ids
        if not bool((ids.diff(dim=1) > 0).all()):
            ids = ids.sort(dim=1).values  # so that ties go to the lower id
        cosines = row_products(queries, self.memory.vectors, ids.clamp_min(0))  # [B, W]
        kept = largest(cosines.masked_fill(ids < 0, -torch.inf), self.neighbours)
        return ids.gather(1, kept).cpu(), cosines.gather(1, kept).cpu()

    def scores(self, ids: Tensor, cosines: Tensor) -> csr_array:
        """Return the share of the vote that each label gets, [B, L]."""
        points, count = ids.shape
        if not count:
            return csr_array((points, self.memory.Y.shape[1]), dtype=np.float32)
        weights = self.shares(ids, cosines)
        pointers = np.arange(0, points * count + 1, count)
        flat = (weights.float().numpy().ravel(), ids.clamp_min(0).numpy().ravel(), pointers)
        votes = csr_array(csr_array(flat, shape=(points, len(self.memory.vectors))) @ self.memory.Y)
        votes.eliminate_zeros()
        np.clip(votes.data, UNLISTED, 1, out=votes.data)  # not below what nobody votes for, nor by rounding above 1
        return votes

    def shares(self, ids: Tensor, cosines: Tensor) -> Tensor:
        """Return the share of the vote that each neighbour has, [B, K]."""
        near = cosines.double().clamp_min(0)
        near /= near.amax(dim=1, keepdim=True).clamp_min(1e-12)  # else a high power of small cosines comes to nothing
        weights = near.pow(self.sharpness) * ((ids >= 0) & (cosines > 0))
        return weights / weights.sum(dim=1, keepdim=True).clamp_min(1e-300)


def ranked(scores: csr_array, prior: NDArray[np.float32], k: int) -> Ranking:
    """Rank scores [B, L], and labels that are not stored by their prior [L].

    Rows are padded to the longest: no full sort, no dense [B, L].
    """
    sizes = np.diff(scores.indptr)
    widest = int(sizes.max(initial=0))
    ids = np.full((len(sizes), widest), -1, dtype=np.int64)
    values = np.full((len(sizes), widest), -np.inf, dtype=np.float32)
    places = np.arange(widest) < sizes[:, None]
    ids[places], values[places] = scores.indices, scores.data
    if (sizes < k).any():
        return filled(torch.from_numpy(ids), torch.from_numpy(values), prior, k)
    return ranking_of(_best(torch.from_numpy(ids), torch.from_numpy(values), k), k)


def _best(ids: Tensor, values: Tensor, k: int) -> Shortlist:
    """Return candidates [B, W] among which are the best k, and all that tie with the last of them."""
    if ids.shape[1] <= k + SLACK:
        return Shortlist(ids, values)
    top = values.topk(k + SLACK, dim=1)
    if bool((top.values[:, k - 1] > top.values[:, -1]).all()):
        return Shortlist(ids.gather(1, top.indices), top.values)
    ids, order = ids.sort(dim=1)
    values = values.gather(1, order)
    columns = largest(values, k)
    return Shortlist(ids.gather(1, columns), values.gather(1, columns))


class NeighbourModel(nn.Module):
    """A model that remembers its training points, and tags a new one by the vote of those nearest to it.

    A model gives it an encoder, from bags to unit vectors, and settings with `index`, `neighbours`, `sharpness`, ....
    """

    name: ClassVar[str]  # of the stage that learns
    held_out = 0.2  # of train, to choose the vote on; it is given back
    encoder: nn.Module
    remembers = True

    def __init__(self, features: int, labels: int, settings: NeighbourSettings) -> None:
        super().__init__()
        self.features, self.label_count, self.settings = features, labels, settings
        self.label_names: Sequence[str] | None = None  # for files that name labels
        self.memory: Memory | None = None
        self.index: Index | None = None
        self.unseen: Unseen | None = None  # validation, as it was ranked before it was learned from
        self.voters = settings.neighbours or 20
        self.sharpness = 4.0 if settings.sharpness is None else settings.sharpness

    def device(self) -> torch.device:
        """Return where the encoder lives."""
        return next(iter(self.encoder.parameters())).device

    # --- Learning ----------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn, remember the points, choose how they vote on validation; then learn again, from the whole of train.

        For a vote of points, what was held out is missed. Validation decides on the vote only: which epoch is best is
        lost in its noise. Ctrl-C in the second round leaves what the first one learned.
        """
        train_part, validation, whole = lesson.train, lesson.validation, lesson.whole
        self.label_names = lesson.label_names
        older, open_vote = self.memory, self.settings.neighbours is None or self.settings.sharpness is None
        if whole is not None and not open_vote:
            train_part, whole = whole, None
        outcome = self._remembered(self.learned_part(train_part, older), run, self.name)
        if validation is not None and open_vote:
            self.voters, self.sharpness = chosen_vote(self.learner(), self.settings, validation)
        if validation is not None:
            outcome = replace(outcome, best=share_right(self.learner(), validation))
            seen = whole is None and lesson.whole is not None  # with a vote that is set, all points were learned from
            self.unseen = None if seen else unseen(self.learner(), not_among(validation, older))
        if whole is None or validation is None or outcome.interrupted:
            return outcome
        first = {name: value.clone() for name, value in self.state_dict().items()}, self.memory, self.index
        if older is None:
            self.start(run.generator("start"))
        again = self._remembered(self.learned_part(whole, older), run, f"{self.name}-whole")
        if again.interrupted:
            self.load_state_dict(first[0])
            self.memory, self.index = first[1:]
        return replace(again, best=outcome.best, seconds=outcome.seconds + again.seconds)

    def _remembered(self, part: Part, run: Run, stage: str) -> Outcome:
        """Learn from a part, keep its points as the encoder then sees them, and index them."""
        outcome = self.learn(part, run, stage)
        self.memory = Memory(self.encoded(part), part.Y, part.X)
        self.index = self.settings.built(self.memory.vectors, run.seed)
        return outcome

    def learn(self, part: Part, run: Run, stage: str) -> Outcome:
        """Let the encoder learn from a part."""
        raise NotImplementedError

    def start(self, generator: torch.Generator) -> None:
        """Begin with new weights."""
        raise NotImplementedError

    def learned_part(self, part: Part, older: Memory | None) -> Part:
        """Return the points to learn from: those of a part that have labels, behind older ones."""
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

    def learner(self) -> Learner:
        """Return what prediction needs."""
        assert self.memory is not None
        assert self.index is not None
        if self.memory.vectors.device != self.device():  # the model was moved
            self.memory = replace(self.memory, vectors=self.memory.vectors.to(self.device()))
            self.index = load_index(self.settings.index, self.index.state(), self.memory.vectors)
        return Learner(self.encoder, self.index, Vote(self.memory, self.voters, self.sharpness), self.device())

    def text_scores(self, learner: Learner, X: csr_array, Z: csr_array) -> Tensor:
        """Refuse: without points nobody votes for a label."""
        raise ConfigError(f"{self.name} cannot score a label by its text")

    # --- Points and labels that come later ---------------------------------------------------------------------------

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Make room for labels behind those that are there."""
        self.label_count += count

    def add_points(self, part: Part) -> float:
        """Remember more points, without learning; return how far they lie off, as a multiple of what is usual.

        About 1 for points like those that are remembered. Labels that are new become predictable by their points.
        """
        assert self.memory is not None
        assert self.index is not None
        part = labelled(part)
        vectors = self.encoded(part)
        usual, here = self.nearness(self.memory.vectors[:: max(1, len(self.memory) // 1000)]), self.nearness(vectors)
        self.memory = self.memory.grown(vectors, part)
        self.index.add(vectors, self.settings.deterministic)
        return 1.0 if here == usual else here / usual if usual else math.inf

    def nearness(self, vectors: Tensor) -> float:
        """Return the mean distance of vectors to the nearest remembered point other than an equal one."""
        assert self.memory is not None
        found = ExactIndex(self.memory.vectors).search(vectors, 64)  # more than a point has copies, mostly
        distances = (2 - 2 * found.scores).clamp_min(0).sqrt()
        apart = distances.masked_fill(distances < 1e-3, torch.inf).amin(dim=1)
        return float(apart[apart.isfinite()].mean()) if apart.isfinite().any() else 0.0

    # --- Saving ------------------------------------------------------------------------------------------------------

    def saved(self) -> tuple[State, State]:
        """Return what prediction needs, and what learning needs besides."""
        assert self.memory is not None
        assert self.index is not None
        vote = {"vote": torch.tensor([float(self.voters), self.sharpness], dtype=torch.float64)}
        index = {f"index.{name}": value for name, value in self.index.state().items()}
        return self.state_dict() | self.memory.serve_state() | vote | index, self.memory.train_state()

    def take_back(self, sizes: Mapping[str, int], serve: State, train: State) -> None:
        """Take what `saved` gave; weights are taken as they are: mapped, not copied."""
        self.features, self.label_count = sizes["features"], sizes["labels"]
        weights = {name: value for name, value in serve.items() if name in self.state_dict()}
        for name, table in ((n, m) for n, m in self.named_modules() if isinstance(m, Table)):
            table.rows = nn.Parameter(weights[f"{name}.rows"], requires_grad=False)
        self.load_state_dict(weights, assign=True)
        self.memory = Memory.of_state(serve, train, self.features, self.label_count)
        index = {name.removeprefix("index."): value for name, value in serve.items() if name.startswith("index.")}
        self.index = load_index(self.settings.index, index, self.memory.vectors)
        self.voters, self.sharpness = int(serve["vote"][0]), float(serve["vote"][1])
        self.eval()


def chosen_vote(learner: Learner, settings: NeighbourSettings, validation: Part) -> tuple[int, float]:
    """Return the number of neighbours and the sharpness that are best on (some of) a part of train.

    Best by the sum of P@1, P@3 and P@5: one of them alone is noisy where the part is small.
    """
    vote = learner.classifier
    if not isinstance(vote, Vote) or len(validation) == 0:
        return settings.neighbours or 20, 4.0 if settings.sharpness is None else settings.sharpness
    validation = validation.take(np.arange(min(len(validation), JUDGED)))
    counts = NEIGHBOURS if settings.neighbours is None else (settings.neighbours,)
    powers = SHARPNESS if settings.sharpness is None else (settings.sharpness,)
    queries = learner.encode(validation.X)
    shortlist = learner.index.search(queries, max(counts) + SPARE)

    def quality(vote: Vote) -> float:
        ranking = vote.rescore(queries, shortlist, 5 + most_filtered(validation.filtered))
        if validation.filtered is not None:
            ranking = ranking.without(validation.filtered)
        found = metrics.measure(ranking.top(5), validation.Y)
        return found["P@1"] + found["P@3"] + found["P@5"]

    options = [replace(vote, neighbours=count, sharpness=power) for count, power in product(counts, powers)]
    best = max(options, key=quality)
    return best.neighbours, best.sharpness
