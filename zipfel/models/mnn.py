"""MNN: two averaging networks that learn to match features with labels (Matching Neural Network).

Held next to the paper in docs/papers/mnn.md, and in its order: the averaging networks (Sec. 3.1), feature dropout
(3.2), the noise contrastive loss (3.3); then how a point is tagged, which the paper leaves open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from zipfel.config import setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index.exact import ExactIndex
from zipfel.models.base import Cosine, Learner, half_cosine
from zipfel.models.neighbours import NeighbourModel, NeighbourSettings
from zipfel.nn import losses
from zipfel.nn.encoders import AveragingNetwork, Table
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags


@dataclass(frozen=True)
class MnnSettings(NeighbourSettings):
    """Settings of MNN. The paper names none; these are ours, chosen on validation."""

    usual_dimension = 600
    keep: float = setting(0.7, "p, the share of features that a step keeps, Eq. (5)")
    negatives: int | None = setting(None, "h, label sets of other points that a point is held against; none: 3 to 10")
    margin: float = setting(0.1, "m of Eq. (10)")
    decoder: Literal["neighbours", "labels"] = setting("neighbours", "vote of the nearest points, or nearest label")
    batch: int = setting(256, "points a step, at most a tenth of train")
    epochs: int = setting(30, "passes over train")
    rate: float = setting(0.001, "highest learning rate")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        super().__post_init__()
        for name in ("negatives", "batch", "epochs"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; found {getattr(self, name)}")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must lie in (0, 1]; found {self.keep}")


PRESETS: dict[str, MnnSettings] = {
    "paper": MnnSettings(dimension=300, keep=0.8, negatives=10, batch=128, epochs=20, sharpness=1),
    "default": MnnSettings(),
    "fast": MnnSettings(dimension=300, epochs=15),
}


class Mnn(NeighbourModel):
    """The two networks f_x and f_y, and the points that vote."""

    name = "mnn"
    settings: MnnSettings

    def __init__(self, features: int, labels: int, settings: MnnSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings)
        self.start(generator)

    def start(self, generator: torch.Generator) -> None:
        """Begin with new weights."""
        device = self.device() if hasattr(self, "encoder") else torch.device("cpu")
        width = self.settings.width(self.features)
        self.encoder = AveragingNetwork(self.features, width, generator).to(device)  # f_x
        self.labels = AveragingNetwork(self.label_count, width, generator).to(device)  # f_y

    # --- Learning, Sec. 3 --------------------------------------------------------------------------------------------

    def learn(self, part: Part, run: Run, stage: str) -> Outcome:
        """Learn to match the features of points with their labels."""
        settings = self.settings
        batch = min(settings.batch, max(16, len(part) // 10))  # with fewer there are hardly any negatives

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            return {"matching": self.loss(part, rows, generator)}

        return train(run, stage, self, len(part), objective, Schedule(settings.epochs, batch, settings.rate))

    def loss(self, part: Part, rows: NDArray[np.int64], generator: torch.Generator) -> Tensor:
        """Return Eq. (11) for a batch; its other points are those whose labels are drawn as negatives."""
        settings, device = self.settings, self.device()
        points, own = bags(part.X, rows).to(device), bags(part.Y, rows).to(device)
        with torch.autocast(device.type, enabled=False):  # a cosine of two or three digits is not enough for (9)
            cosines = self.encoder(points, settings.keep, generator) @ self.labels(own).T  # [B, B], Eq. (8)
        draws = settings.negatives or usual_negatives(own)
        others = drawn_others(len(rows), draws, generator).to(device)  # [B, h]
        return losses.matching(cosines.diagonal(), cosines.gather(1, others), settings.margin)

    # --- Tagging -----------------------------------------------------------------------------------------------------

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Tell whether points can be added without learning."""
        return self.settings.decoder == "neighbours"

    def learner(self) -> Learner:
        """Return what prediction needs: the nearest points, or the nearest f_y of a single label."""
        if self.settings.decoder == "neighbours":
            return super().learner()
        vectors = F.normalize(self.labels.table.rows.detach(), dim=1)
        return Learner(self.encoder, ExactIndex(vectors), Cosine(vectors, half_cosine), self.device())

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Add labels behind those that are there, at random places."""
        super().add_labels(count, generator)
        width = self.labels.table.rows.shape[1]
        more = Table(count, width, generator, scale=width**-0.5).rows.to(self.device())
        rows = torch.cat([self.labels.table.rows.detach(), more])
        self.labels.table.rows = nn.Parameter(rows, requires_grad=False)


def usual_negatives(own: Bags) -> int:
    """Return h for points with these labels: 10, and down to 3 where they have many.

    The more labels points have, the more of them two random points share, and the hardest of many drawn negatives is
    hardly one. (docs/papers/mnn.md)
    """
    labels = len(own.ids) / max(len(own), 1)
    return max(3, min(10, round(60 / max(labels, 1))))


def drawn_others(count: int, draws: int, generator: torch.Generator) -> Tensor:
    """Return for each of a batch's points the places of others, [B, draws], with repetition; none where it is alone."""
    if count < 2:
        return torch.empty(count, 0, dtype=torch.long)
    steps = torch.randint(1, count, (count, draws), generator=generator)
    return (torch.arange(count)[:, None] + steps) % count


build = Mnn


def restored(sizes: Mapping[str, int], settings: MnnSettings, serve: State, train: State) -> Mnn:
    """Return a model with saved weights."""
    model = Mnn(0, 0, replace(settings, dimension=settings.width(sizes["features"])), torch.Generator())
    model.take_back(sizes, serve, train)
    return model
