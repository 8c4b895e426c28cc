"""Word averages: a text is the average of its word vectors, a label is a vector, a score is their cosine.

The idea of fastText's classifier (Joulin et al., 2017), here with one-vs-all logistic loss over all labels. An example
of a model that zipfel finds through the entry-point group `zipfel.models`; CONTRIBUTING.md explains it step by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from zipfel.config import Settings, Span, setting
from zipfel.data.batches import bags
from zipfel.index.exact import ExactIndex
from zipfel.models.base import Lesson, Model
from zipfel.models.learner import CosineClassifier, Learner, labelled, precision_at_1, validation_of
from zipfel.nn import losses
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import EmbeddingTable, Encoder
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags


@dataclass(frozen=True)
class WordAverageSettings(Settings):
    """Settings of word averages."""

    dimension: int = setting(256, "width of the vectors of words and labels", at_least=1, search=[64, 128, 256, 512])
    batch_size: int = setting(128, "points in a step, at most a tenth of train", at_least=1, search=[32, 64, 128, 256])
    epochs: int = setting(10, "passes over train", at_least=1, search=[5, 10, 20, 40])
    learning_rate: float = setting(0.01, "highest learning rate", above=0, search=Span(0.001, 0.1, log=True))


class WordVectors(Encoder):
    """Maps texts to the weighted sum of their word vectors, scaled to length 1."""

    def __init__(self, features: int, width: int, generator: torch.Generator) -> None:
        super().__init__()
        self.words = EmbeddingTable(features, width, generator, std=width**-0.5)

    def unscaled(self, points: Bags) -> Tensor:
        """Return the sums, [B, D]."""
        sums: Tensor = self.words(points)
        return sums

    def forward(self, points: Bags) -> Tensor:
        """Return vectors of length 1, [B, D]."""
        return F.normalize(self.unscaled(points), dim=1)


class WordAverage(Model):
    """Word vectors and one-vs-all classifiers."""

    presets: ClassVar[Mapping[str, Settings]] = {
        "default": WordAverageSettings(),
        "fast": WordAverageSettings(dimension=64, epochs=5, learning_rate=0.02),
    }
    settings: WordAverageSettings

    def __init__(self, features: int, labels: int, settings: WordAverageSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.encoder = WordVectors(features, settings.dimension, generator)
        self.classifier = OneVsAll(labels, settings.dimension, cosine=True, generator=generator)

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Train with the logistic loss over all labels, and keep the epoch with the best P@1 on validation."""
        part, settings = labelled(lesson.train), self.settings
        device = self.classifier.scale.device

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            points, own = bags(part.X, rows).to(device), bags(part.Y, rows).to(device)
            excluded = None if part.filtered is None else bags(part.filtered, rows).to(device)
            W = self.classifier.scaled(torch.arange(self.label_count, device=device))
            return {"logistic": losses.all_labels(self.encoder(points), W, self.classifier.offset, own, excluded)}

        batch_size = max(1, min(settings.batch_size, len(part) // 10))
        schedule = Schedule(settings.epochs, batch_size, settings.learning_rate)
        validate = validation_of(lesson.validation, lambda held_out: precision_at_1(self.learners()[0], held_out))
        return train(run, "wordaverage", self, len(part), objective, schedule, validate)

    def learners(self) -> Sequence[Learner]:
        """Return one learner: exact search among all labels."""
        vectors, (scale, offset) = self.classifier.composed(), self.classifier.scale_and_offset()

        def logit(cosines: Tensor) -> Tensor:
            return scale * cosines + offset

        def score(cosines: Tensor) -> Tensor:
            return torch.sigmoid(logit(cosines).double()).float()  # in float64, or the last bit depends on the batch

        classifier = CosineClassifier(vectors, score, logit)
        return [Learner(self.encoder, ExactIndex(vectors), classifier, vectors.device)]

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random vectors, for a warm start."""
        self.classifier.grow(count, generator)
        self.label_count += count
