"""LightDXML: labels embedded near their points, a one-vs-all classifier on shortlists of near labels, a cycle of both.

Mishra et al., *Light-weight Deep Extreme Multilabel Classification*, IJCNN 2023. Held next to the paper in
docs/papers/lightdxml.md, and in the order of Algorithm 1: features (Step 1, Sec. IV-A), label encoder (Step 2, IV-B),
shortlists (Step 3, IV-C), classifier (Step 4, IV-D), the cycle of these (Step 5, IV-E: `learn`, with its `Cycle`),
prediction (Step 6, IV-F: `learners`, whose classifier is `MixedClassifier`).
Settings are in lightdxml_settings.py, saving and new labels in lightdxml_model.py, and the choice of β in
lightdxml_beta.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.config import Settings
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.data.disk import counts_of
from zipfel.index import Search
from zipfel.index.exact import ExactIndex, products, row_products
from zipfel.models.base import Lesson
from zipfel.models.learner import (
    BATCH,
    Learner,
    Scorer,
    candidate_scores,
    candidates_of,
    joined,
    labelled,
    matching_offset,
    precision_at_1,
    rank_candidates,
    validation_of,
)
from zipfel.models.lightdxml_beta import chosen_beta, figures_by_beta
from zipfel.models.lightdxml_model import LightModel, rounded
from zipfel.models.lightdxml_settings import PRESETS, LightSettings
from zipfel.models.reranker import Reranker
from zipfel.models.split import own_ids, split_products
from zipfel.models.tokens import start_tokens
from zipfel.negatives import list_bags, pooled, within
from zipfel.nn import losses
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import EmbeddingTable, PredictionEncoder, TextBlock, dropped, unique_ids, weighted_sum
from zipfel.training.ranks import World
from zipfel.training.run import Run
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, Ranking, Share, Shortlist, pieces, stored

LABEL_BATCH = 2048  # points in a step of the label encoder
POINTS = 1 << 18  # added to centroids at a time


class Features(nn.Module):
    """Step 1, Ẑ_x: the tf-idf-weighted sum of token vectors; (ours) a residual layer, and with `cosine` length 1."""

    def __init__(self, features: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.unit, self.dropout = settings.cosine, settings.dropout
        self.tokens = EmbeddingTable(features, settings.dimension, generator, std=settings.dimension**-0.5)
        self.block = TextBlock(settings.dimension) if settings.residual else None

    def forward(self, points: Bags, generator: torch.Generator, share: Share | None = None) -> Tensor:
        """Return x̂, [B, D], for learning, with dropout.  share: which of the batch's points these are."""
        encode = dropped if self.block is None else self.block
        vectors: Tensor = encode(self.tokens(points), self.dropout, generator, share)
        return F.normalize(vectors, dim=1) if self.unit else vectors

    def prediction_encoder(self) -> PredictionEncoder:
        """Return the encoder that prediction uses."""
        return PredictionEncoder(self.tokens, self.block, self.unit)


class LabelEncoder(nn.Module):
    """Step 2, Z_l, Eq. (4): ŷ = ReLU(W₂ (W₁ μ + b₁) + b₂) of a label's centroid μ; it starts as the identity."""

    def __init__(self, width: int, relu: bool) -> None:
        super().__init__()
        self.relu = relu
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)
        for layer in (self.inner, self.outer):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, centroids: Tensor) -> Tensor:
        """Map [U, D] to [U, D], with one product W₂ W₁: the layers are linear, and labels are many."""
        inner, outer = self.inner, self.outer
        mapped = F.linear(centroids, outer.weight @ inner.weight, outer(inner.bias))
        return F.relu(mapped) if self.relu else mapped


def centroids_of(Y: csr_array, vectors: Tensor) -> Tensor:
    """Return μ, [L, D], Eq. (5): the mean of the vectors [N, D] of a label's points; 0 where it has none."""
    shares, sums = 1 / torch.from_numpy(counts_of(Y)).to(vectors.device).clamp_min(1), None
    for rows in pieces(max(1, Y.shape[0]), POINTS):
        owned = bags(Y[rows].T.tocsr()).to(vectors.device)
        weights = shares.repeat_interleave(owned.offsets.diff())
        part = weighted_sum(owned.ids, vectors[rows], Bags(owned.ids, weights, owned.offsets))
        sums = part if sums is None else sums + part
    assert sums is not None
    return sums


class LightDxml(LightModel):
    """Algorithm 1."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS

    def __init__(
        self, features: int, labels: int, settings: LightSettings, generator: torch.Generator, own: Share | None = None
    ) -> None:
        super().__init__(features, labels, settings, generator)
        self.own = own
        self.encoder: Features = Features(features, settings, generator)
        self.classifier = OneVsAll(labels, settings.dimension, settings.cosine, generator, own=own)
        self.label_encoder: LabelEncoder = LabelEncoder(settings.dimension, settings.relu)
        self.register_buffer("label_vectors", torch.zeros(labels if own is None else own.size, settings.dimension))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int32))
        self.index, self.reranker = None, None
        self.beta = 0.75 if settings.beta is None else settings.beta

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn, choose β on validation, and (ours, if asked for) train a re-ranker on the errors that are left."""
        settings, self.world = self.settings, run.world
        self.classifier.restore_lengths()
        if self.index is None and settings.token_init != "random":  # Step 1
            tokens, std = self.encoder.tokens, settings.dimension**-0.5
            start_tokens(tokens, lesson, settings.token_init, std, run, settings.deterministic)
        reranker = self.new_reranker(run) if settings.reranker and self.reranker is None else self.reranker
        outcome = self.learn(lesson, run)  # Steps 2 to 5
        if lesson.validation and settings.beta is None:  # Step 6
            self.beta = chosen_beta(figures_by_beta(self.learners()[0], lesson.validation, lesson))
        if reranker is None or outcome.interrupted:
            return outcome
        return self.learn_reranker(reranker, lesson, self.schedule(labelled(lesson.train)), run, outcome)

    def new_reranker(self, run: Run) -> Reranker:
        """Return a re-ranker with token vectors that start as the model's do."""
        settings, generator = self.settings, run.generator("reranker start")
        encoder = Features(self.features, settings, generator)
        if settings.token_init != "random":
            encoder.tokens.rows.copy_(self.encoder.tokens.rows)
        return Reranker(encoder, self.label_count, settings.cosine, generator).to(self.device())

    # --- Step 2 -------------------------------------------------------------------------------------------------------

    def place_labels(self, part: Part, points: Tensor, lesson: Lesson, run: Run, stage: str) -> None:
        """Learn to map the centroids of labels near their points [N, D], Eq. (2); map them, and index them."""
        centroids = self.centroids(part, points, lesson.Z)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            own = self.among_own(bags(part.Y, rows)).to(centroids.device)
            labels, positions = unique_ids(own.ids)
            mapped = self.label_encoder(centroids[labels])
            batch = points[torch.from_numpy(rows).to(centroids.device)]
            return {"distance": losses.log_distance(batch, mapped, own.offsets, positions)}

        if self.settings.label_epochs:
            batch_size = max(1, min(LABEL_BATCH, len(part) // 10))
            schedule = Schedule(self.settings.label_epochs, batch_size, self.settings.label_learning_rate)
            if train(run, stage, self.label_encoder, part.draws, objective, schedule).interrupted:
                raise KeyboardInterrupt
        with torch.no_grad():
            has_centroid = centroids.abs().amax(dim=1, keepdim=True) > 0
            mapped = F.normalize(self.label_encoder(centroids), dim=1)
            self.label_vectors.copy_(torch.where(has_centroid, mapped, self.label_vectors))  # others keep theirs
        self.build(run.seed)
        if lesson.validation:
            run.log(stage=stage, recall=self.shortlist_recall(lesson.validation))

    def centroids(self, part: Part, points: Tensor, Z: csr_array | None) -> Tensor:
        """Return μ, [L, D]. The text of a label that never had points, where it has one, counts as its only point."""
        rows = slice(None) if self.own is None else self.own.rows
        centroids = centroids_of(part.Y if self.own is None else part.Y[:, rows], points)
        if Z is not None:
            Z = Z[rows]
            text_only = np.flatnonzero((np.diff(Z.indptr) > 0) & (self.counts[rows].cpu().numpy() == 0))
            if len(text_only):
                centroids[torch.from_numpy(text_only).to(centroids.device)] = self.encoded(Z[text_only])
        return centroids

    # --- Step 3 -------------------------------------------------------------------------------------------------------

    def shortlists(self, points: Tensor, k: int) -> Tensor:
        """Return S_k, Eq. (6): the k labels nearest to each point by cosine, [N, k]."""
        search = self.search()
        found = (search.search(chunk, k).ids.int().cpu() for chunk in torch.split(points, BATCH))
        near = (torch.where(ids < 0, ids[:, :1], ids) for ids in found)  # a graph may return fewer
        return joined(near, len(points))

    def shortlist_recall(self, part: Part) -> float:
        """Return the share of a part's labels that are on the shortlists of their points."""
        near = self.shortlists(self.encoded(part.X), self.settings.width(len(self.counts))).numpy().astype(np.int64)
        ends = np.arange(0, near.size + 1, near.shape[1])
        listed = csr_array((np.ones(near.size), np.sort(near, axis=1).ravel(), ends), shape=part.Y.shape)
        rows, labels = part.Y.nonzero()
        return float(stored(listed, rows, labels).mean()) if len(rows) else 1.0

    # --- Step 4 -------------------------------------------------------------------------------------------------------

    def loss(self, part: Part, rows: NDArray[np.int64], near: Tensor, generator: torch.Generator) -> Tensor:
        """Return the one-vs-all loss on P_i ∪ S_k(x_i), Eq. (3), (7), (8), or (ours) on the lists of the whole batch.

        near: S_k of the rows, [B, k].
        """
        device, decoupled, share = self.device(), self.settings.loss == "decoupled", self.world.share(len(rows))
        vectors = self.encoder(bags(part.X, rows[share.rows]).to(device), generator, share)
        vectors = self.world.gather(vectors, len(rows))  # [B, D]
        own = self.among_own(bags(part.Y, rows)).to(device)
        listed = list_bags(own_ids(near.long(), self.own).to(device))
        filtered = None if part.filtered is None else self.among_own(bags(part.filtered, rows)).to(device)
        if not self.settings.shared_negatives:
            candidates = pooled(own, listed, filtered)
            loss = losses.decoupled if decoupled else losses.logistic
            return loss(self.classifier(vectors, candidates.labels), candidates.targets, candidates.mask)
        pool = torch.unique(torch.cat([own.ids, listed.ids]))  # [S]
        W, offset = self.classifier.scaled(pool), self.classifier.offset
        right, left_out = within(own, pool), None if filtered is None else within(filtered, pool)
        if decoupled:
            return losses.decoupled_all(vectors, W, right, left_out, self.world)
        return losses.all_labels(vectors, W, offset, right, left_out)

    def among_own(self, labels: Bags) -> Bags:
        """Return the labels of points as this rank numbers them, without those of other ranks."""
        return labels if self.own is None else labels.among(self.own)

    def set_offset(self, part: Part) -> None:
        """Set the offset of scores, which the decoupled loss does not learn."""
        if self.settings.loss == "decoupled":
            scale, W = self.classifier.scale.detach(), self.classifier.composed()
            offset = matching_offset(
                part, lambda sample: scale * products(self.encoded(sample.X), W), self.own, self.world
            )
            self.classifier.offset.detach().fill_(offset)

    # --- Step 5 -------------------------------------------------------------------------------------------------------

    def learn(self, lesson: Lesson, run: Run) -> Outcome:
        """Iterate Steps 2 to 4, and keep the epoch with the best P@1 on validation, or else the last.

        Labels are placed before the first epoch of the classifier and after every ê_label epochs, under one optimizer;
        once more if the epoch that is kept lies within a cycle, where label vectors lag behind those of points.
        """
        part, validation = labelled(lesson.train), lesson.validation or None
        self.counts += torch.from_numpy(counts_of(part.Y)).to(self.counts)
        schedule = self.schedule(part)
        cycle = Cycle(self, part, lesson, run, schedule)
        validate = validation_of(validation, self.precision)
        outcome = train(run, "lightdxml", self, part.draws, cycle.objective, schedule, validate, cycle.begin)
        if self.encoder.block is not None:
            self.encoder.block.R.detach().copy_(rounded(self.encoder.block.R.detach()))
        kept = outcome.epochs if outcome.best_epoch < 0 else outcome.best_epoch + 1
        if kept % schedule.turn_every and not outcome.interrupted:
            try:
                self.place_labels(part, self.encoded_together(part.X), lesson, run, "labels-last")
            except KeyboardInterrupt:
                outcome = replace(outcome, interrupted=True)
        self.set_offset(part if validation is None else validation)
        self.label_vectors.copy_(rounded(self.label_vectors))
        self.build(run.seed)
        return outcome

    def schedule(self, part: Part) -> Schedule:
        """Return how long and how fast the classifier learns, and after how many epochs a cycle begins."""
        settings = self.settings
        batch_size = max(1, min(settings.batch_size, len(part) // 10))
        epochs = max(settings.epochs, math.ceil(settings.min_steps * batch_size / len(part)))
        cycle = settings.cycle_epochs or max(1, epochs // 4)
        return Schedule(epochs, batch_size, settings.learning_rate, patience=settings.patience, turn_every=cycle,
                        asked=settings.epochs)  # fmt: skip

    def precision(self, held_out: Part) -> float:
        """Return P@1 as a share, with the offset that these points set."""
        self.set_offset(held_out)
        return precision_at_1(self.learners()[0], held_out)

    # --- Step 6 -------------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return one learner: x̂, the labels nearest to it, and the mix of classifier and shortlist."""
        assert self.index is not None
        kind = self.settings.kind(len(self.counts), self.device())
        if kind == "exact" or isinstance(self.index, ExactIndex):  # the model may have been moved
            self.index = ExactIndex(self.label_vectors)
        scale, offset = self.classifier.scale_and_offset()
        mixed = MixedClassifier(self.label_vectors, self.classifier.composed(), scale, offset, self.counts, self.beta,
                      self.settings.width(len(self.counts)), own=self.own, world=self.world)  # fmt: skip
        return [Learner(self.encoder.prediction_encoder(), self.search(), mixed, self.device())]


class Cycle:
    """Step 5: the shortlists that the classifier learns from, and when labels are placed again."""

    def __init__(self, model: LightDxml, part: Part, lesson: Lesson, run: Run, schedule: Schedule) -> None:
        self.model, self.part, self.lesson, self.run, self.schedule = model, part, lesson, run, schedule
        self.near: Tensor | None = None  # S_k of all points, [N, k]

    def begin(self, done: int, resumed: bool) -> None:
        """Place labels and shortlist them for each point, after these epochs; also when the last cycle has ended."""
        model, run, number = self.model, self.run, done // self.schedule.turn_every
        if resumed:
            model.build(run.seed)  # the checkpoint has the label vectors
            kept = run.load(f"shortlists-{number}")
            self.near = None if kept is None else kept[0]["near"]
            return
        points = model.encoded_together(self.part.X)
        model.place_labels(self.part, points, self.lesson, run, f"labels-{number}")
        run.forget(f"shortlists-{number - 2}")  # those before this one are needed until a checkpoint
        if done < self.schedule.epochs:
            k = model.settings.trained_width(len(model.counts))
            made = run.stage_of_all(f"shortlists-{number}", lambda: {"near": model.shortlists(points, k)})
            self.near = made["near"]

    def objective(self, rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
        """Return the loss of some points on their current shortlists."""
        assert self.near is not None
        return {self.model.settings.loss: self.model.loss(self.part, rows, self.near[rows], generator)}


@dataclass(frozen=True)
class MixedClassifier:
    """Step 6: scores the labels of a shortlist by β σ(classifier) + (1 − β) σ(cosine). Others follow by frequency."""

    vectors: Tensor  # ŷ [L, D]
    W: Tensor  # [L, D]
    scale: Tensor
    offset: Tensor  # one number, or one of each label, [L]
    counts: Tensor  # [L]
    beta: float
    shortlist_size: int
    searched_apart: bool = False  # the index is searched with other vectors: its own scores take the place of cosines
    own: Share | None = None  # the labels of this process, where several have a range each
    world: World = field(default_factory=World)
    point_labels: None = None

    def width(self, k: int) -> int:
        """Return the size of the shortlist, whatever k: a longer ranking begins with a shorter one."""
        return self.shortlist_size

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        """Rank the labels of shortlists."""
        ids = candidates_of(queries, shortlist)
        scores = self.mixed(*self.probabilities(queries, ids, shortlist.scores, shortlist.steady))
        return rank_candidates(ids, scores, self.counts, k)

    def scorer(self, label: int, query: Tensor, index: Search) -> Scorer:
        """Return the log-odds of the label's mixed score; of its classifier's, if the index is searched apart."""
        W, vector, length = self.W[label], self.vectors[label], query.norm().clamp_min(1e-12)
        offset = self.offset[label] if self.offset.ndim else self.offset
        if self.searched_apart:
            return lambda vectors: self.scale * (vectors @ W) + offset

        def score(vectors: Tensor) -> Tensor:
            classifier = torch.sigmoid((self.scale * (vectors @ W) + offset).double())
            shortlist = torch.sigmoid((vectors @ vector / length).double())
            return torch.logit(self.beta * classifier + (1 - self.beta) * shortlist).float()

        return score

    @torch.no_grad()
    def probabilities(
        self, queries: Tensor, ids: Tensor, listed: Tensor, steady: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Return the probabilities of candidates by the classifier and by the shortlist, both [B, W].

        listed: the scores of the index, [B, W].  steady: they do not depend on the batch.  In float64: in float32 the
        last bit of a sigmoid depends on its position in the batch.
        """
        labels = ids.clamp_min(0)
        offset = self.offset[labels] if self.offset.ndim else self.offset
        logits = self.scale * self.products(queries, self.W, labels) + offset
        if self.searched_apart:
            cosines = listed
        elif steady and self.own is None:  # products with ŷ, so that they need not be computed again
            cosines = listed / queries.norm(dim=1, keepdim=True).clamp_min(1e-12)
        else:
            cosines = self.products(F.normalize(queries, dim=1), self.vectors, labels)
        return torch.sigmoid(logits.double()), torch.sigmoid(cosines.double())

    def products(self, queries: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the inner products of queries with their labels' vectors, [B, W]."""
        if self.own is None:
            return row_products(queries, vectors, labels)
        return split_products(queries, vectors, labels, self.own, self.world)

    def mixed(self, classifier: Tensor, shortlist: Tensor) -> Tensor:
        """Return the scores of candidates."""
        return candidate_scores(self.beta * classifier + (1 - self.beta) * shortlist)
