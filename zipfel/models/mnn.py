"""MNN: two averaging networks that learn to match features with labels (Matching Neural Network, Zhao et al.).

Held next to the paper in docs/papers/mnn.md, and in its order: the averaging networks (Sec. 3.1), feature dropout
(3.2), the noise contrastive loss (3.3); then how a point is tagged, which the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from zipfel.config import Settings, Span, setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index import Search, load_index
from zipfel.index.exact import SPARE, ExactIndex, row_products
from zipfel.models.base import Abilities, Lesson
from zipfel.models.learner import UNLISTED, Learner, Scorer, candidates_of, half_cosine, rank_candidates
from zipfel.models.neighbours import NeighbourModel, NeighbourSettings
from zipfel.models.saving import Tensors, sparse_matrix, tensor_of
from zipfel.nn import losses
from zipfel.nn.encoders import AveragingNetwork
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, Ranking, Shortlist


@dataclass(frozen=True)
class MnnSettings(NeighbourSettings):
    """Settings of MNN, all ours: the paper names none. The preset `paper` has plain cosines and smaller sizes."""

    largest_dimension = 600
    feature_dropout: float = setting(
        0.3, "1 − p, share of features dropped", at_least=0, below=1, was="keep: 1 - keep", search=Span(0, 0.6)
    )
    negatives: int | None = setting(
        None, "h, label sets drawn against a point; none: 3 to 10", at_least=1, search=[None, 3, 10, 30]
    )
    negatives_reduction: losses.Reduction = setting(
        "max", "which loss of the h negatives counts: the largest, Eq. (11), their mean or their sum"
    )
    margin: float = setting(0.1, "m of Eq. (10), a cosine", at_least=-1, search=Span(0.02, 0.5, log=True))
    decoder: Literal["neighbours", "labels"] = setting(
        "neighbours", "vote of the nearest points, or the nearest labels, which `index` then searches"
    )
    batch_size: int = setting(
        256, "points in a step, at most a tenth of train", at_least=1, was="batch", search=[64, 128, 256, 512]
    )
    epochs: int = setting(30, "passes over train", at_least=1, search=[15, 30, 60])
    learning_rate: float = setting(
        0.001, "highest learning rate", above=0, was="rate", search=Span(0.0003, 0.01, log=True)
    )


PRESETS: dict[str, MnnSettings] = {
    "paper": MnnSettings(dimension=300, feature_dropout=0.2, negatives=10, batch_size=128, epochs=20, sharpness=1),
    "default": MnnSettings(),
    "fast": MnnSettings(dimension=300, epochs=15),
}


class Mnn(NeighbourModel):
    """The two networks f_x and f_y, and the points that vote; or, with decoder=labels, no points."""

    name = "mnn"
    width_of = "encoder.table.rows", 1
    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    train_only = (*NeighbourModel.train_only, "label_encoder.*")  # a vote needs no f_y
    settings: MnnSettings

    def __init__(self, features: int, labels: int, settings: MnnSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.counts = torch.zeros(labels, dtype=torch.int32)  # training points of each label; with decoder=labels only

    @classmethod
    def abilities(cls, settings: MnnSettings) -> Abilities:  # type: ignore[override]
        """Return the abilities of MNN: it remembers points if they vote."""
        return Abilities(remembers_points=settings.decoder == "neighbours")

    @property
    def points_vote(self) -> bool:
        """Whether points are remembered and vote; otherwise labels are found by their f_y, and no point is kept."""
        return self.settings.decoder == "neighbours"

    @property
    def chooses_vote(self) -> bool:
        """Whether there is a vote, and it is chosen on validation."""
        return self.points_vote and super().chooses_vote

    def start(self, generator: torch.Generator) -> None:
        """Draw new weights."""
        device, width = self.device(), self.settings.width(self.features)
        self.encoder = AveragingNetwork(self.features, width, generator).to(device)  # f_x
        self.label_encoder = AveragingNetwork(self.label_count, width, generator).to(device)  # f_y

    # --- Learning, Sec. 3 --------------------------------------------------------------------------------------------

    def learn(self, part: Part, run: Run, stage: str) -> Outcome:
        """Learn to match the features of points with their labels."""
        settings = self.settings
        batch_size = min(settings.batch_size, max(16, len(part) // 10))  # with fewer there are hardly any negatives
        schedule = Schedule(settings.epochs, batch_size, settings.learning_rate)
        return train(run, stage, self, len(part), partial(self.loss, part), schedule)

    def loss(self, part: Part, rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
        """Return Eq. (11) for a batch; negatives are the label sets of its other points."""
        settings, device = self.settings, self.device()
        points, own = bags(part.X, rows).to(device), bags(part.Y, rows).to(device)
        with torch.autocast(device.type, enabled=False):  # a cosine of two or three digits is not enough for (9)
            f_x = self.encoder(points, settings.feature_dropout, generator)
            cosines = f_x @ self.label_encoder(own).T  # [B, B], Eq. (8)
        draws = settings.negatives or usual_negatives(own)
        others = drawn_others(len(rows), draws, generator).to(device)  # [B, h]
        positive, negatives = cosines.diagonal(), cosines.gather(1, others)  # [B], [B, h]
        matching = losses.matching(positive, negatives, settings.margin, reduction=settings.negatives_reduction)
        return {"matching": matching}

    def _remember(self, part: Part, run: Run, stage: str) -> Outcome:
        """Learn from a part; keep its points, or only count and index the labels."""
        if self.points_vote:
            return super()._remember(part, run, stage)
        outcome = self.learn(part, run, stage)
        self.counts = self.counts + label_counts(part.Y.indices, self.label_count)  # not in place: it may be mapped
        self.index = self.settings.build_index(self.label_vectors(), run.seed)
        return outcome

    # --- Tagging -----------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return one learner: by the nearest points, or by the nearest f_y of a single label."""
        if self.points_vote:
            return super().learners()
        vectors = self.label_vectors()
        if self.index is None or isinstance(self.index, ExactIndex):  # not trained yet, or moved since
            self.index = ExactIndex(vectors)
        return [Learner(self.encoder, self.index, NearestLabels(vectors, self.counts), self.device())]

    def label_vectors(self) -> Tensor:
        """Return f_y of each single label, of length 1, [L, D]."""
        return F.normalize(self.label_encoder.table.rows.detach(), dim=1)

    # --- New labels, saving, plans -----------------------------------------------------------------------------------

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random vectors."""
        super().add_labels(count, generator)
        self.label_encoder.table.grow(count, generator, std=self.label_encoder.table.rows.shape[1] ** -0.5)
        if not self.points_vote:
            self.counts = F.pad(self.counts, (0, count))
            self.index = None  # `fit` builds a new one

    def tensors(self) -> Tensors:
        """Return the tensors to save; without a vote, prediction needs all of them."""
        tensors = super().tensors()
        return tensors if self.points_vote else Tensors(tensors.all, {})

    def more_tensors(self) -> State:
        """Return the points, their vote and index; or the counts of labels and their index."""
        if self.points_vote:
            return super().more_tensors()
        index = {} if self.index is None else self.index.state()
        return {"counts": self.counts, **with_prefix("index.", index)}

    def take_tensors(self, more: State) -> None:
        """Take what `more_tensors` returned."""
        if self.points_vote:
            super().take_tensors(more)
        elif "counts" in more:
            self.counts = tensor_of(more, "counts", torch.int32, self.label_count)
            self.index = load_index(self.settings.index, part_of(more, "index."), self.label_vectors())
        else:  # saved when points were remembered and indexed with this decoder too
            self.counts = label_counts(sparse_matrix("points.Y", more, self.label_count).indices, self.label_count)
            self.index = self.settings.build_index(self.label_vectors(), 0)

    def complete(self, lesson: Lesson, rehearsed: Part) -> float:
        """Remember as many points as training will; without a vote, prediction does not depend on their number."""
        return super().complete(lesson, rehearsed) if self.points_vote else 0.0


@dataclass(frozen=True)
class NearestLabels:
    """Scores labels by the cosine of a query with their f_y.

    A query of 0, a point without known features, gets the most frequent labels; so does the end of a ranking if an
    approximate index finds too few labels.
    """

    vectors: Tensor  # [L, D], unit
    counts: Tensor  # training points of each label, [L]
    point_labels: None = None

    def width(self, k: int) -> int:
        """Return how many candidates it takes to rank k labels."""
        return k + SPARE

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank labels; cosines are computed again, row by row: those of a matrix product depend on the batch."""
        ids = shortlist.ids
        cosines = shortlist.scores if shortlist.steady else row_products(queries, self.vectors, ids.clamp_min(0))
        scores = half_cosine(cosines).clamp_min(UNLISTED)  # above labels that are ranked by their frequency
        return rank_candidates(candidates_of(queries, shortlist), scores, self.counts, k)

    def scorer(self, label: int, query: Tensor, index: Search) -> Scorer:
        """Return the label's cosine."""
        return lambda vectors: vectors @ self.vectors[label]


def label_counts(ids: NDArray[np.integer], labels: int) -> Tensor:
    """Return how often each label occurs among ids, [L]."""
    return torch.from_numpy(np.bincount(ids, minlength=labels).astype(np.int32))


def usual_negatives(own: Bags) -> int:
    """Return h for points with these labels: from 10 down to 3 where points have many labels.

    The more labels points have, the more of them two random points share: the hardest of many drawn negatives is then
    hardly a negative. (docs/papers/mnn.md)
    """
    labels = len(own.ids) / max(len(own), 1)
    return max(3, min(10, round(60 / max(labels, 1))))


def drawn_others(count: int, draws: int, generator: torch.Generator) -> Tensor:
    """Draw for each point of a batch the positions of others, [B, draws], with repetition; none for a single point."""
    if count < 2:
        return torch.empty(count, 0, dtype=torch.long)
    steps = torch.randint(1, count, (count, draws), generator=generator)
    return (torch.arange(count)[:, None] + steps) % count
