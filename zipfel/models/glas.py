"""GLaS: embeddings of points and labels, with a graph-Laplacian and spread-out regularizer (Guo et al., 2019).

Held next to the paper in docs/papers/glas.md, and in its order: the embedding φ (Sec. 2, 3.1), the loss (1), the
regularizers (2)-(4), input dropout (Sec. 3.3), Algorithm 2, prediction by maximum inner product search (Sec. 4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.config import setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index.exact import ExactIndex, all_products
from zipfel.labelspace.graph import Mean, adjacency, cooccurrence
from zipfel.models.base import Cosine, Learner, Lesson, half_cosine, labelled, share_right
from zipfel.negatives import hardest, holds, sampled_positives
from zipfel.nn import losses, regularizers
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import NormedLinear, Table, keep_features, unique_ids
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags


@dataclass(frozen=True)
class GlasSettings:
    """Settings of GLaS. Defaults are ours, chosen on validation; the preset `paper` has those of Sec. 4."""

    dimension: int = setting(1024, "width d of the vectors of points and labels")
    layers: int = setting(1, "layers of the embedding; the first takes the sparse input, each further one is d × d")
    nonlinear: bool | None = setting(None, "ReLU after (and between) layers; none: where features are fewer than 4 d")
    loss: Literal["margin", "softmax", "logistic"] = setting("logistic", "Eq. (1), its alternative, or one-vs-all")
    margin: float = setting(0.2, "c of Eq. (1)")
    negatives: int = setting(8, "how many of the hardest wrong labels a point is held against (margin, softmax)")
    pool: int = setting(50_000, "labels drawn for a step beside its points' own; all, where there are fewer labels")
    scale: float | None = setting(None, "what cosines are multiplied by in softmax and logistic; none: 2.5 ln L")
    regularizer: Literal["glas", "spread_out", "laplacian", "gravity", "none"] = setting("glas", "Eq. (3), (2), (4) …")
    strength: float = setting(1000.0, "λ, the weight of the regularizer")
    adjacency: Mean = setting("arithmetic", "mean of the two conditional frequencies in U")
    keep: float = setting(0.9, "ρ, the share of input features that a step keeps")
    batch: int = setting(256, "points a step, at most a tenth of train")
    epochs: int = setting(4, "passes over train; more, where they are fewer than `steps` steps")
    steps: int = setting(400, "least number of steps")
    rate: float = setting(0.002, "highest learning rate")
    patience: int = setting(10, "epochs without a better validation after which to stop")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("dimension", "layers", "negatives", "pool", "batch", "epochs", "steps", "patience"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; found {getattr(self, name)}")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must lie in (0, 1]; found {self.keep}")

    def has_relu(self, features: int) -> bool:
        """Tell whether the embedding is non-linear: where it is left open, only where a linear one would be too poor.

        With many features a linear φ already fits train perfectly, and a ReLU only halves what d numbers can tell;
        with few, as on Delicious (500), it underfits. (docs/papers/glas.md)
        """
        return features < 4 * self.dimension if self.nonlinear is None else self.nonlinear


PRESETS: dict[str, GlasSettings] = {
    "paper": GlasSettings(
        layers=2, nonlinear=True, loss="margin", strength=10, keep=0.8, batch=4096, epochs=10, steps=1
    ),
    "default": GlasSettings(),
    "fast": GlasSettings(epochs=2, steps=200, rate=0.004),
}


class Embedding(nn.Module):
    """φ: sparse features to a unit vector (Sec. 2.1 and 3.1)."""

    def __init__(self, features: int, settings: GlasSettings, generator: torch.Generator) -> None:
        super().__init__()
        d = settings.dimension
        self.nonlinear = settings.has_relu(features)
        self.input = Table(features, d, generator, scale=d**-0.5)
        self.bias = nn.Parameter(torch.zeros(d))
        self.layers = nn.ModuleList(NormedLinear(d, d, generator) for _ in range(settings.layers - 1))

    def forward(self, points: Bags) -> Tensor:
        """Return φ(x), [B, d]."""
        return F.normalize(self.unscaled(points), dim=1)

    def unscaled(self, points: Bags) -> Tensor:
        """Return what becomes φ(x) by division by its length, [B, d]."""
        hidden = self._activated(self.input(points) + self.bias)
        for layer in self.layers:
            hidden = self._activated(layer(hidden)) if layer is not self.layers[-1] else layer(hidden)
        return hidden.float()

    def _activated(self, hidden: Tensor) -> Tensor:
        return F.relu(hidden) if self.nonlinear else hidden


class Glas(nn.Module):
    """The embedding φ, and a classifier: a vector for each label, and a scale and an offset of cosines."""

    held_out = 0.05  # of train, for validation; it is not learned from

    def __init__(self, features: int, labels: int, settings: GlasSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings, self.features = settings, features
        self.embedding = Embedding(features, settings, generator)
        self.classifier = OneVsAll(labels, settings.dimension, True, generator, settings.scale)

    # --- Algorithm 2 -------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn from the points of train; the epoch that is best by P@1 on validation stays."""
        settings, validation = self.settings, lesson.validation
        self.classifier.unfold()
        train_part = labelled(lesson.train)
        self.A = cooccurrence(train_part.Y)  # of the whole of train, not of a batch
        batch = max(1, min(settings.batch, len(train_part) // 10))
        epochs = max(settings.epochs, math.ceil(settings.steps * batch / len(train_part)))
        schedule = Schedule(epochs, batch, settings.rate, patience=settings.patience)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            return self.loss(train_part, rows, generator)

        def precision() -> float:
            assert validation is not None
            return share_right(self.learner(), validation)

        return train(run, "glas", self, len(train_part), objective, schedule, precision if validation else None)

    def loss(self, part: Part, rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
        """Return the terms of a step: lines 11 to 18 of Algorithm 2."""
        settings, device = self.settings, self.classifier.scale.device
        points, positives = bags(part.X, rows).to(device), bags(part.Y, rows).to(device)
        vectors = self.embedding(keep_features(points, settings.keep, generator))  # [B, d]
        chosen, labels = sampled_positives(positives, generator)  # [P], [P]
        pool = self._pool(positives, generator)  # [S] sorted
        V = F.normalize(self.classifier.labels.gather(pool), dim=1)  # [S, d]
        scores = vectors @ V.T  # [B, S]
        own = holds(positives, pool)  # [B, S]
        left_out = own if part.filtered is None else own | holds(bags(part.filtered, rows).to(device), pool)
        places = torch.searchsorted(pool, labels)
        terms: dict[str, Tensor] = {settings.loss: self._data_term(scores, own, left_out, chosen, places)}
        if settings.regularizer != "none" and settings.strength:
            terms[settings.regularizer] = settings.strength * self._regularizer(vectors, V[places], labels)
        return terms

    def _pool(self, positives: Bags, generator: torch.Generator) -> Tensor:
        """Return the labels that a step is held against: all, or those of the batch and a draw of others."""
        count, device = len(self.classifier.labels.rows), positives.ids.device
        if count <= self.settings.pool:
            return torch.arange(count, device=device)
        drawn = torch.randint(count, (self.settings.pool,), generator=generator).to(device)
        return unique_ids(torch.cat([positives.ids, drawn]))[0]

    def _data_term(self, scores: Tensor, own: Tensor, left_out: Tensor, chosen: Tensor, places: Tensor) -> Tensor:
        """Return the loss (1), or softmax, of a sampled positive against the hardest negatives; or one-vs-all."""
        settings, scale = self.settings, self.classifier.scale
        if settings.loss == "logistic":
            return losses.logistic(scale * scores + self.classifier.offset, own.float(), own | ~left_out)
        positive = scores[chosen, places]  # [P]
        negatives, mask = hardest(scores[chosen], left_out[chosen], settings.negatives)  # [P, negatives]
        if settings.loss == "margin":
            return losses.margin(positive, negatives, settings.margin, mask)
        return losses.softmax(scale * positive, scale * negatives, mask)

    def _regularizer(self, vectors: Tensor, V: Tensor, labels: Tensor) -> Tensor:
        kind = self.settings.regularizer
        if kind == "spread_out":
            return regularizers.spread_out(V)
        if kind == "gravity":
            return regularizers.gravity(vectors, V)
        U = torch.from_numpy(adjacency(self.A, labels.cpu().numpy(), self.settings.adjacency)).to(V.device)
        return regularizers.glas(V, U) if kind == "glas" else regularizers.laplacian(V, U)

    # --- Prediction --------------------------------------------------------------------------------------------------

    def learner(self) -> Learner:
        """Return what prediction needs: φ, the unit label vectors, and what turns a cosine into a score in [0, 1]."""
        vectors = self.classifier.composed()
        return Learner(self.embedding, ExactIndex(vectors), Cosine(vectors, self.score, self.raw), vectors.device)

    def score(self, cosines: Tensor) -> Tensor:
        """Return scores in [0, 1], in the order of the cosines."""
        if self.settings.loss == "margin":
            return half_cosine(cosines)
        # In float32 the last bit depends on the place in the batch: torch has one sigmoid for eight numbers at a time,
        # and another for what is left over.
        return torch.sigmoid(self.raw(cosines).double()).float()

    def raw(self, cosines: Tensor) -> Tensor:
        """Return what `score` squeezes into [0, 1]: a straight line of the cosines."""
        scale, offset = self.classifier.line()
        return cosines if self.settings.loss == "margin" else scale * cosines + offset

    @torch.no_grad()
    def text_scores(self, learner: Learner, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores of labels that are known by their texts [n, features] only, [B, n]: φ(z) stands for v."""
        queries = learner.encode(X)
        return self.score(all_products(queries, self.embedding(bags(Z).to(queries.device))))

    # --- Saving, and labels that come later --------------------------------------------------------------------------

    def saved(self) -> tuple[State, State]:
        """Return what prediction needs, with label vectors of unit length, and what learning needs besides."""
        return self.state_dict() | {"classifier.labels.rows": self.classifier.composed()}, self.classifier.lengths()

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Add labels behind those that are there, at random places."""
        self.classifier.grow(count, generator)


build = Glas


def restored(sizes: Mapping[str, int], settings: GlasSettings, serve: State, train: State) -> Glas:
    """Return a model with saved weights, which are taken as they are: mapped, not copied."""
    model = Glas(0, 0, settings, torch.Generator())  # on the meta device it would cost a second of torch's imports
    model.features, model.embedding.nonlinear = sizes["features"], settings.has_relu(sizes["features"])
    model.embedding.input.rows = nn.Parameter(serve["embedding.input.rows"], requires_grad=False)
    model.classifier.labels.rows = nn.Parameter(serve["classifier.labels.rows"], requires_grad=False)
    model.load_state_dict(serve, assign=True)
    model.classifier.stored_lengths = train["classifier.lengths"]
    return model.eval()
