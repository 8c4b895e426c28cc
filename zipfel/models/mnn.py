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
from zipfel.index.exact import ExactIndex
from zipfel.models.base import Abilities
from zipfel.models.learner import CosineClassifier, Learner, half_cosine
from zipfel.models.neighbours import NeighbourModel, NeighbourSettings
from zipfel.nn import losses
from zipfel.nn.encoders import AveragingNetwork
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags


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
    margin: float = setting(0.1, "m of Eq. (10), a cosine", at_least=-1, search=Span(0.02, 0.5, log=True))
    decoder: Literal["neighbours", "labels"] = setting("neighbours", "vote of the nearest points, or nearest label")
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
    """The two networks f_x and f_y, and the points that vote."""

    name = "mnn"
    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    settings: MnnSettings

    @classmethod
    def abilities(cls, settings: MnnSettings) -> Abilities:  # type: ignore[override]
        """Return the abilities of MNN: it remembers points if they vote."""
        return Abilities(remembers_points=settings.decoder == "neighbours")

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
        return {"matching": losses.matching(cosines.diagonal(), cosines.gather(1, others), settings.margin)}

    # --- Tagging -----------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return one learner: by the nearest points, or by the nearest f_y of a single label."""
        if self.settings.decoder == "neighbours":
            return super().learners()
        vectors = F.normalize(self.label_encoder.table.rows.detach(), dim=1)
        return [Learner(self.encoder, ExactIndex(vectors), CosineClassifier(vectors, half_cosine), self.device())]

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random vectors."""
        super().add_labels(count, generator)
        self.label_encoder.table.grow(count, generator, std=self.label_encoder.table.rows.shape[1] ** -0.5)


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
