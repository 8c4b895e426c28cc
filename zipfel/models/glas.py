"""GLaS: embeddings of points and labels, with a graph-Laplacian and spread-out regularizer (Guo et al., 2019).

Held next to the paper in docs/papers/glas.md: the embedding φ (Sec. 2, 3.1), Algorithm 2 (`fit` and `loss`), prediction
by maximum inner product search (Sec. 4). The loss (1) is in nn/losses.py, regularizers (2)-(4) in nn/regularizers.py, U
in labelspace/graph.py. V is [labels, d] here, and d × K in the paper.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.config import Settings, Span, setting
from zipfel.data.batches import bags, entries_of
from zipfel.data.dataset import Part
from zipfel.data.disk import in_files, is_mapped
from zipfel.errors import ConfigError
from zipfel.index import Index, Kind, Search, build_index, load_index
from zipfel.index.exact import ExactIndex, all_products
from zipfel.labelspace.graph import Adjacency, adjacency, cooccurrence
from zipfel.models.base import Abilities, Lesson, Model
from zipfel.models.learner import (
    CosineClassifier,
    Learner,
    Predictor,
    half_cosine,
    labelled,
    learner_of,
    precision_at_1,
    validation_of,
)
from zipfel.models.saving import tensor_of
from zipfel.models.split import SplitIndex
from zipfel.negatives import hardest, holds, sampled_negatives, sampled_positives
from zipfel.nn import losses, regularizers
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import EmbeddingTable, Encoder, NormedLinear, drop_features, unique_ids
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, Share


@dataclass(frozen=True)
class GlasSettings(Settings):
    """Settings of GLaS. Defaults are ours, chosen on validation; the preset `paper` has those of Sec. 4."""

    dimension: int = setting(
        1024, "width d of the vectors of points and labels", at_least=1, search=[256, 512, 1024, 2048]
    )
    layers: int = setting(1, "layers of the embedding; the first takes the sparse input, others are d × d", at_least=1)
    nonlinear: bool | None = setting(
        None,
        "ReLU between layers, or after the only one; none: if features are fewer than 4 d",
        search=[None, False, True],
    )
    weight_norm: bool = setting(False, "weight normalisation of the input layer too; others always have it")
    loss: Literal["margin", "softmax", "logistic"] = setting(
        "logistic", "Eq. (1), softmax (Sec. 4), or (ours) one-vs-all", search=["logistic", "softmax"]
    )
    margin: float = setting(0.2, "c of Eq. (1)", at_least=0)
    negative_labels: Literal["hardest", "sampled", "all"] = setting(
        "hardest", "wrong labels of the pool that a sampled label is trained against (margin, softmax)"
    )
    negatives: int = setting(8, "how many wrong labels, unless all (margin, softmax)", at_least=1)
    pool: int = setting(50_000, "labels drawn for a step besides its points' own; all if there are fewer", at_least=1)
    scale: float | None = setting(None, "factor of cosines in softmax and logistic; none: 2.5 ln L", above=0)
    regularizer: Literal["glas", "spread_out", "laplacian", "gravity", "none"] = setting(
        "glas", "Eq. (3), (2), (4), Gravity"
    )
    regularizer_weight: float = setting(
        1000.0, "λ, the weight of the regularizer", at_least=0, was="strength", search=Span(1, 10_000, log=True)
    )
    adjacency: Adjacency = setting(
        "arithmetic", "U: mean of the two conditional frequencies; or pmi (normalised), jaccard"
    )
    feature_dropout: float = setting(
        0.1, "1 − ρ, share of features dropped", at_least=0, below=1, was="keep: 1 - keep", search=Span(0, 0.5)
    )
    batch_size: int = setting(
        256, "points in a step, at most a tenth of train", at_least=1, was="batch", search=[64, 128, 256, 512]
    )
    epochs: int = setting(
        4, "passes over train; more if they are fewer than `min_steps` steps", at_least=1, search=[2, 4, 8, 16]
    )
    min_steps: int = setting(400, "least number of steps", at_least=1, was="steps")
    learning_rate: float = setting(
        0.002, "highest learning rate", above=0, was="rate", search=Span(0.0003, 0.01, log=True)
    )
    patience: int = setting(10, "epochs without a better validation after which training stops", at_least=1)
    index: Kind = setting("exact", "how labels are searched: exact, ivf (by clusters) or hnsw")
    clusters: int | None = setting(None, "clusters of an ivf index; none: about √labels", at_least=1)
    probes: int | None = setting(None, "clusters that a search of an ivf index visits; none: 64", at_least=1)
    deterministic: bool = setting(True, "false builds the index on all cores, with a different result each time")

    def has_relu(self, features: int) -> bool:
        """Whether the embedding is non-linear; if the setting is open, only where a linear one would be too poor.

        With many features a linear φ already fits train perfectly, and a ReLU only halves what d numbers can express;
        with few, as on Delicious (500), it underfits. (docs/papers/glas.md)
        """
        return features < 4 * self.dimension if self.nonlinear is None else self.nonlinear


PRESETS: dict[str, GlasSettings] = {
    "paper": GlasSettings(
        layers=2, nonlinear=True, weight_norm=True, loss="margin", regularizer_weight=10, feature_dropout=0.2,
        batch_size=4096, epochs=10, min_steps=1, learning_rate=0.008, patience=1,
    ),
    "default": GlasSettings(),
    "fast": GlasSettings(epochs=2, min_steps=200, learning_rate=0.004),
}  # fmt: skip


class Embedding(Encoder):
    """φ: sparse features to a unit vector (Sec. 2.1 and 3.1).

    With `weight_norm`, the input layer is g T / ‖T_j‖ for its table T: one trainable length g, and a direction for each
    neuron j, a column of the table.
    """

    def __init__(self, features: int, settings: GlasSettings, generator: torch.Generator) -> None:
        super().__init__()
        d = settings.dimension
        self.nonlinear = settings.has_relu(features)
        self.input = EmbeddingTable(features, d, generator, std=d**-0.5)
        # g starts at the norm that columns have, so that φ starts as it does without normalisation
        self.length = nn.Parameter(torch.tensor(math.sqrt(features / d))) if settings.weight_norm else None
        self.fixed: Tensor | None = None  # `factors` for prediction, where they do not change
        self.bias = nn.Parameter(torch.zeros(d))
        self.layers = nn.ModuleList(NormedLinear(d, d, generator) for _ in range(settings.layers - 1))

    def forward(self, points: Bags) -> Tensor:
        """Return φ(x), [B, d]."""
        return F.normalize(self.unscaled(points), dim=1)

    def unscaled(self, points: Bags) -> Tensor:
        """Return φ(x) before it is divided by its length, [B, d]."""
        sums = self.input(points)
        hidden = self._activated((sums if self.length is None else sums * self.factors(self.length)) + self.bias)
        for layer in self.layers:
            hidden = self._activated(layer(hidden)) if layer is not self.layers[-1] else layer(hidden)
        return hidden.to(losses.summing(hidden.dtype))

    def _activated(self, hidden: Tensor) -> Tensor:
        return F.relu(hidden) if self.nonlinear else hidden

    def factors(self, length: Tensor) -> Tensor:
        """Return g / ‖T_j‖ of each neuron, [d]: a pass over the table, and in training a gradient of all its rows."""
        if self.fixed is not None:
            return self.fixed
        norms: Tensor = self.input.gather().norm(dim=0)
        return length / norms.clamp_min(1e-12)

    def prediction_encoder(self) -> Embedding:
        """Return the same embedding, sharing its weights, with the norms of the input layer computed once."""
        if self.length is None:
            return self
        encoder = copy.copy(self)
        with torch.no_grad():
            encoder.fixed = self.factors(self.length)
        return encoder


class Glas(Model):
    """The embedding φ, and a classifier: a vector for each label, and a scale and an offset of cosines."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    train_only = ("classifier.lengths",)
    settings: GlasSettings

    def __init__(
        self, features: int, labels: int, settings: GlasSettings, generator: torch.Generator, own: Share | None = None
    ) -> None:
        super().__init__(features, labels, settings, generator)
        self.own = own
        self.embedding = Embedding(features, settings, generator)
        self.classifier = OneVsAll(labels, settings.dimension, True, generator, settings.scale, own=own)
        self.index: Index | None = None  # of the label vectors; None: they are searched exactly

    @classmethod
    def abilities(cls, settings: GlasSettings) -> Abilities:
        """Return the abilities of GLaS: φ of a label's text can replace its vector."""
        return Abilities(
            scores_label_texts=True,
            takes_new_words=True,
            weights_points=True,
            splits_labels=True,
            reads_mapped_data=True,
        )

    def check_split(self) -> None:
        """Check the loss: hard negatives would have to be found among the labels of all ranks at every step."""
        if self.settings.loss != "logistic":
            raise ConfigError(f"glas with loss={self.settings.loss} mines negatives among all labels, which several "
                              "ranks cannot; set loss=logistic")  # fmt: skip

    @classmethod
    def resolved(cls, settings: GlasSettings, features: int) -> GlasSettings:
        """Return the settings with the choice of a ReLU."""
        return replace(settings, nonlinear=settings.has_relu(features))

    # --- Algorithm 2 -------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn from train, and keep the epoch with the best P@1 on validation."""
        settings, self.world = self.settings, run.world
        self.classifier.restore_lengths()
        self.index = None  # validation searches exactly
        train_part = labelled(lesson.train)
        self.A, self.points = pairs_of(train_part), len(train_part)  # of all of train, not of a batch
        batch_size = max(1, min(settings.batch_size, len(train_part) // 10))
        epochs = max(settings.epochs, math.ceil(settings.min_steps * batch_size / len(train_part)))
        schedule = Schedule(
            epochs, batch_size, settings.learning_rate, patience=settings.patience, asked=settings.epochs
        )
        validate = validation_of(lesson.validation, lambda part: precision_at_1(self.learners()[0], part))
        outcome = train(run, "glas", self, train_part.draws, partial(self.loss, train_part), schedule, validate)
        self._build_index(run)
        return outcome

    def loss(self, part: Part, rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
        """Return the terms of a step: lines 11 to 18 of Algorithm 2."""
        settings, device = self.settings, self.classifier.scale.device
        share, positives = self.world.share(len(rows)), bags(part.Y, rows).to(device)
        points, entries = bags(part.X, rows[share.rows]).to(device), entries_of(part.X, rows, share)
        vectors = self.embedding(drop_features(points, settings.feature_dropout, generator, entries))
        vectors = self.world.gather(vectors, len(rows))  # [B, d]
        chosen, labels = sampled_positives(positives, generator)  # [P], [P]
        pool = self._own(self._pool(positives, generator))  # [S] sorted
        V = F.normalize(self.classifier.labels.gather(pool - self._first), dim=1)  # [S, d]
        scores = vectors @ V.T  # [B, S]
        own = holds(positives, pool)  # [B, S]
        excluded = own if part.filtered is None else own | holds(bags(part.filtered, rows).to(device), pool)
        columns = torch.searchsorted(pool, labels)
        if settings.loss == "logistic":
            data = self._one_vs_all(scores, own, excluded)
        else:
            negatives, weights = self._negatives(scores[chosen], excluded[chosen], generator)
            data = self._data_term(scores[chosen, columns], negatives, weights)
        terms: dict[str, Tensor] = {settings.loss: data}
        if settings.regularizer != "none" and settings.regularizer_weight:
            sampled = V[columns] if self.own is None else self._sampled(V, pool, columns, labels)
            regularizer = settings.regularizer_weight * self._regularizer(vectors, sampled, labels)
            terms[settings.regularizer] = self.world.part(regularizer)
        return terms

    @property
    def _first(self) -> int:
        """The first label of this rank."""
        return 0 if self.own is None else self.own.start

    def _own(self, pool: Tensor) -> Tensor:
        """Return the labels of a pool that are this rank's."""
        return pool if self.own is None else pool[(pool >= self.own.start) & (pool < self.own.stop)]

    def _sampled(self, V: Tensor, pool: Tensor, columns: Tensor, labels: Tensor) -> Tensor:
        """Return the vectors of labels [P] of all ranks, [P, d].  columns: their positions in this rank's pool."""
        inside = columns.clamp_max(max(0, len(pool) - 1))
        mine = (pool[inside] == labels) if len(pool) else torch.zeros_like(labels, dtype=torch.bool)
        known = V.new_zeros(len(labels), V.shape[1]).index_copy(0, mine.nonzero()[:, 0], V[inside[mine]])
        return self.world.total(known)

    def _pool(self, positives: Bags, generator: torch.Generator) -> Tensor:
        """Return the labels of a step: all, or those of the batch and a random draw of others."""
        count, device = self.label_count, positives.ids.device
        if count <= self.settings.pool:
            return torch.arange(count, device=device)
        drawn = torch.randint(count, (self.settings.pool,), generator=generator).to(device)
        return unique_ids(torch.cat([positives.ids, drawn]))[0]

    def _one_vs_all(self, scores: Tensor, own: Tensor, excluded: Tensor) -> Tensor:
        """Return the logistic loss of all labels of the pool; own labels count even if they are filtered."""
        classifier = self.classifier
        return losses.logistic(classifier.scale * scores + classifier.offset, own.float(), own | ~excluded)

    def _negatives(self, scores: Tensor, excluded: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the scores of wrong labels that points are trained against, and how much each counts, [P, n]."""
        kind, count = self.settings.negative_labels, self.settings.negatives
        if kind == "all":
            return scores, ~excluded
        if kind == "sampled":
            return sampled_negatives(scores, excluded, count, generator)
        return hardest(scores, excluded, count)

    def _data_term(self, positive: Tensor, negatives: Tensor, weights: Tensor) -> Tensor:
        """Return the loss (1), or softmax, of sampled positives [P] against negatives [P, n] with weights [P, n]."""
        if self.settings.loss == "margin":
            return losses.margin(positive, negatives, self.settings.margin, weights)
        return losses.softmax(self.classifier.scale * positive, self.classifier.scale * negatives, weights)

    def _regularizer(self, vectors: Tensor, V: Tensor, labels: Tensor) -> Tensor:
        kind = self.settings.regularizer
        if kind == "spread_out":
            return regularizers.spread_out(V)
        if kind == "gravity":
            return regularizers.gravity(vectors, V)
        block = adjacency(self.A, labels.cpu().numpy(), self.settings.adjacency, self.points)
        U = torch.from_numpy(block).to(V.device)
        return regularizers.glas(V, U) if kind == "glas" else regularizers.laplacian(V, U)

    def _build_index(self, run: Run) -> None:
        """Index the label vectors, unless they are searched exactly."""
        settings, start = self.settings, time.perf_counter()
        if settings.index == "exact" or self.own is not None:  # of several ranks, `join` builds it
            return
        vectors, how = self.classifier.composed(), (settings.deterministic, settings.clusters, settings.probes)
        self.index = build_index(settings.index, vectors, run.seed, *how)
        run.observer.made("index", time.perf_counter() - start, "labels")

    # --- Prediction --------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return one learner: φ, search among the unit label vectors, and the score of a cosine."""
        vectors, index = self.classifier.composed(), self.index
        search: Search
        if index is None or isinstance(index, ExactIndex):  # the model may have been moved
            index = ExactIndex(vectors)
        search = index if self.own is None else SplitIndex(index, vectors, self.own, self.world)
        classifier = CosineClassifier(vectors, self.score, self.raw)
        return [Learner(self.embedding.prediction_encoder(), search, classifier, vectors.device)]

    def score(self, cosines: Tensor) -> Tensor:
        """Return scores in [0, 1], in the order of the cosines."""
        if self.settings.loss == "margin":
            return half_cosine(cosines)
        # In float32 the last bit depends on the position in the batch: torch has one sigmoid for eight numbers at a
        # time, and another for the remaining ones.
        return torch.sigmoid(self.raw(cosines).double()).float()

    def raw(self, cosines: Tensor) -> Tensor:
        """Return scores before `score` squeezes them into [0, 1]: a linear function of the cosines."""
        scale, offset = self.classifier.scale_and_offset()
        return cosines if self.settings.loss == "margin" else scale * cosines + offset

    @torch.no_grad()
    def text_scores(self, predictor: Predictor, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores of labels known by their texts [n, features] only, [B, n]: φ(z) stands for v."""
        learner = learner_of(predictor)
        return self.score(all_products(learner.encode(X), learner.encode(Z)))

    def join(self) -> None:
        """Take the labels of all ranks, and index them."""
        first = self.world.is_first
        super().join()
        if first:
            self._build_index(Run())

    # --- Saving and new labels ---------------------------------------------------------------------------------------

    def more_tensors(self) -> State:
        """Return label vectors of unit length, ready for prediction, the lengths that learning needs, and the index."""
        vectors = {"classifier.labels.rows": self.classifier.composed(), **self.classifier.lengths()}
        return vectors if self.index is None else vectors | with_prefix("index.", self.index.state())

    def take_tensors(self, more: State) -> None:
        """Take the lengths and the index."""
        self.classifier.stored_lengths = tensor_of(more, "classifier.lengths", torch.float32, self.label_count)
        if state := part_of(more, "index."):
            self.index = load_index(self.settings.index, state, self.classifier.composed())

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append features with random vectors; the choice of a ReLU stays.

        With weight normalisation they start at 0: longer columns would turn the weights of all other features down.
        """
        std = 0.0 if self.settings.weight_norm else self.settings.dimension**-0.5
        self.embedding.input.grow(count, generator, std)
        self.settings = replace(self.settings, nonlinear=self.embedding.nonlinear)
        self.features += count

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random vectors; until they are learned, all labels are searched exactly."""
        self.classifier.grow(count, generator)
        self.index = None
        self.label_count += count


def pairs_of(part: Part) -> csr_array:
    """Return how many points two labels share, [L, L]; in files if the points are: more points bring more pairs."""
    A = cooccurrence(part.Y)
    return in_files(A) if is_mapped(part.Y) else A
