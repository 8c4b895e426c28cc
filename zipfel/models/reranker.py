"""A re-ranker: a second encoder and second classifiers, trained on the labels that a model ranks first.

Astec has one (Dahiya et al., *DeepXML*, WSDM 2021; told in Sec. II and IV-G of the paper of LightDXML): the model ranks
labels for its own training points, wrong labels among the first k are hard negatives, and an encoder with its own
token vectors and its own classifier for each label learns to tell them from the right ones. The scores of model and
re-ranker are averaged. Any model with a predictor can have one: it holds a `Reranker` as a part, calls `fit` at the end
of its own, and returns a `RerankedPredictor`. It should hold one that has learned only: the trainer would spend memory
on a part that does not learn, and a model that is stopped early would rank by random numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index.exact import ExactIndex, all_products, row_products
from zipfel.models.base import Lesson
from zipfel.models.learner import (
    BATCH,
    CosineClassifier,
    Learner,
    Predictor,
    labelled,
    most_filtered,
    precision_at_1,
    sorted_ranking,
    validation_of,
)
from zipfel.models.saving import saved_lengths
from zipfel.negatives import shortlisted
from zipfel.nn import losses
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import EmbeddingTable, Encoder
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, Ranking, Shortlist

TOP = 100  # labels that a model ranks first and the re-ranker scores: `top_k` of the authors' configurations of Astec


class TokenEncoder(Protocol):
    """The encoder of a re-ranker, an `nn.Module`."""

    tokens: EmbeddingTable

    def __call__(self, points: Bags, generator: torch.Generator) -> Tensor:
        """Return the vectors of points in learning, [B, D]; of length 1 where the classifiers use cosines."""
        ...

    def prediction_encoder(self) -> Encoder:
        """Return the encoder that prediction uses."""
        ...


class Reranker(nn.Module):
    """An encoder and one-vs-all classifiers of its own.

    encoder: an `nn.Module`, trained here and shared with nothing.  cosine: classifiers and points have length 1.
    """

    def __init__(self, encoder: TokenEncoder, labels: int, cosine: bool, generator: torch.Generator) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = OneVsAll(labels, encoder.tokens.rows.shape[1], cosine, generator)

    @property
    def device(self) -> torch.device:
        """The device of its weights."""
        return self.classifier.labels.rows.device

    def fit(self, predictor: Predictor, lesson: Lesson, k: int, schedule: Schedule, run: Run) -> Outcome:
        """Learn from the first k labels that a trained predictor ranks; a second call continues.

        Where there are validation points, the epoch is kept after which the labels of both are ranked best (P@1).
        """
        part = labelled(lesson.train)
        self.classifier.restore_lengths()
        top = run.stage("reranker-candidates", lambda: {"top": top_labels(predictor, part, k)})["top"]

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            return {"reranker": self.loss(part, rows, top[rows], generator)}

        def precision(held_out: Part) -> float:
            return precision_at_1(RerankedPredictor(predictor, self.learner(), k), held_out)

        validate = validation_of(lesson.validation or None, precision)
        return train(run, "reranker", self, part.draws, objective, schedule, validate)

    def loss(self, part: Part, rows: NDArray[np.int64], top: Tensor, generator: torch.Generator) -> Tensor:
        """Return the logistic loss on a point's right labels and those of `top` [B, k], -1 pads."""
        candidates = shortlisted(part, rows, top, self.device)
        vectors = self.encoder(bags(part.X, rows).to(self.device), generator)  # [B, D]
        return losses.logistic(self.classifier(vectors, candidates.labels), candidates.targets, candidates.mask)

    # --- Prediction --------------------------------------------------------------------------------------------------

    def learner(self) -> Learner:
        """Return its encoder and classifiers, for `RerankedPredictor`; they share memory."""
        vectors = self.classifier.composed()
        classifier = CosineClassifier(vectors, self.probabilities, self.log_odds)
        return Learner(self.encoder.prediction_encoder(), ExactIndex(vectors), classifier, self.device)

    def log_odds(self, products: Tensor) -> Tensor:
        """Return the log-odds of labels, given inner products of points with composed classifiers."""
        scale, offset = self.classifier.scale_and_offset()
        return scale * products + offset

    def probabilities(self, products: Tensor) -> Tensor:
        """Return the same as probabilities. In float64: in float32 the last bit of a sigmoid depends on the batch."""
        return torch.sigmoid(self.log_odds(products).double())

    @torch.no_grad()
    def text_scores(self, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores of labels known by their texts Z [n, features] only, whose vectors stand for w, [B, n]."""
        learner = self.learner()
        return self.probabilities(all_products(learner.encode(X), learner.encode(Z)))

    # --- Saving. For new labels and tokens, `classifier` and `encoder.tokens` grow. ----------------------------------

    def more_tensors(self) -> State:
        """Return the classifiers ready for prediction, and `classifier.lengths`, which only training needs.

        The model adds them to its own `more_tensors`, with the prefix under which it holds the re-ranker.
        """
        return {"classifier.labels.rows": self.classifier.composed(), **self.classifier.lengths()}

    def take_tensors(self, more: State) -> None:
        """Restore what `more_tensors` returned; parameters are restored already."""
        self.classifier.stored_lengths = saved_lengths(more, len(self.classifier.labels.rows))


@dataclass(frozen=True)
class RerankedPredictor:
    """Ranks the first k labels of a predictor by the mean of its scores and those of a re-ranker.

    Labels beyond the first k count as 0 by the re-ranker, and so stay behind.
    """

    main: Predictor
    reranker: Learner
    k: int

    @property
    def first(self) -> Learner | None:
        """The first learner of the model."""
        return self.main.first

    def rank(self, X: csr_array, k: int, filtered: csr_array | None = None) -> Ranking:
        """Rank labels for the points of X, [points, k], without filtered pairs."""
        wide = k + most_filtered(filtered)  # filtered last: which labels are re-ranked must not depend on it
        ranking = self.reranked(self.main.rank(X, max(self.k, wide)), X).top(wide)
        return ranking if filtered is None else ranking.without(filtered).top(k)

    def reranked(self, main: Ranking, X: csr_array) -> Ranking:
        """Return the model's ranking of the points of X with its first k labels in a new order."""
        starts = range(0, max(1, len(main)), BATCH)
        scores = [self.scores(X[start : start + BATCH], main.ids[start : start + BATCH, : self.k]) for start in starts]
        both = (main.scores[:, : self.k] + np.concatenate(scores)) / 2
        top = sorted_ranking(Shortlist(torch.from_numpy(main.ids[:, : self.k]), torch.from_numpy(both)), self.k)
        behind = Ranking(main.ids[:, self.k :], main.scores[:, self.k :] / np.float32(2))
        return Ranking(np.hstack([top.ids, behind.ids]), np.hstack([top.scores, behind.scores]))

    @torch.no_grad()
    def scores(self, X: csr_array, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the re-ranker's probabilities of labels [B, W] (-1 pads); 0 for points without known features."""
        queries, vectors = self.reranker.encode(X), self.reranker.classifier.vectors
        products = row_products(queries, vectors, torch.from_numpy(ids).clamp_min(0).to(queries.device))
        classifier = self.reranker.classifier
        assert isinstance(classifier, CosineClassifier)
        return np.asarray((classifier.score(products) * queries.any(dim=1, keepdim=True)).cpu())

    def recall(self, X: csr_array, k: int) -> float | None:
        """Return the share of the exact shortlist that the model's index finds; None if it is exact."""
        return self.main.recall(X, max(k, self.k))

    def explained(self, row: csr_array, label: int) -> NDArray[np.float64]:
        """Return what each stored feature of a point [1, F] adds to a label's score, [T]: the mean of both."""
        return (self.main.explained(row, label) + self.reranker.explained(row, label)) / 2

    def cosines(self, label: int) -> Tensor | None:
        """Return the cosine of a label's vector with that of each label, [L], by the model."""
        return self.main.cosines(label)


def top_labels(predictor: Predictor, part: Part, k: int) -> Tensor:
    """Return the k labels that a predictor ranks first for each point of a part, [N, k] int32; -1 pads."""
    assert part.X is not None
    return torch.from_numpy(predictor.rank(part.X, k, part.filtered).ids.astype(np.int32))
