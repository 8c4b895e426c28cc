"""LightDXML: labels embedded near their points, a one-vs-all classifier on shortlists of near labels, a cycle of both.

Mishra et al., *Light-weight Deep Extreme Multilabel Classification*, IJCNN 2023. Held next to the paper in
docs/papers/lightdxml.md, and in its order: features (Sec. IV-A), label encoder (IV-B), classifier (IV-D), Algorithm 1
with shortlists (IV-C) and the cycle (IV-E), prediction (IV-F).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.config import Settings, Span, setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index import Index, Kind, build_index, load_index
from zipfel.index.exact import ExactIndex, all_products, products
from zipfel.models.base import Abilities, Cost, Lesson, Model
from zipfel.models.learner import (
    BATCH,
    Learner,
    Predictor,
    labelled,
    learner_of,
    matching_offset,
    precision_at_1,
    validation_of,
)
from zipfel.models.mixed import MixedClassifier, chosen_beta, figures_by_beta
from zipfel.models.saving import Tensors, tensor_of
from zipfel.models.tokens import start_tokens
from zipfel.negatives import list_bags, pooled, within
from zipfel.nn import losses
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import EmbeddingTable, PredictionEncoder, TextBlock, dropped, unique_ids, weighted_sum
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, stored

EXACT = 50_000  # labels up to which an exact search beats a graph: docs/decisions/010-shared-candidates.md


@dataclass(frozen=True)
class LightSettings(Settings):
    """Settings of LightDXML. Defaults are ours, chosen on validation; the preset `paper` has those of Table V."""

    dimension: int = setting(
        2048, "width D of the vectors of tokens, points and labels", at_least=1, search=[512, 1024, 2048]
    )
    token_init: str = setting("random", "token vectors at the start: random, fasttext, or a file", was="tokens")
    relu: bool = setting(False, "ReLU at the end of the label encoder, Eq. (4)")
    cosine: bool = setting(True, "points and classifiers have length 1; one scale and offset for all labels")
    shortlist_size: int | None = setting(None, "k; none: 5 % of all labels, 100 to 700", at_least=1, was="shortlist")
    index: Kind | None = setting(None, "index of labels: exact, hnsw or ivf; none: exact up to 50,000, else hnsw")
    loss: Literal["logistic", "decoupled"] = setting(
        "logistic",
        "of the classifier: each label on its own, Eq. (3), or each right label against all wrong ones",
        search=["logistic", "decoupled"],
    )
    shared_negatives: bool = setting(True, "shortlists of a batch's other points are negatives too", was="shared")
    residual: bool = setting(
        True, "a residual layer behind the sum of token vectors, as in DECAF's text block", search=[True, False]
    )
    dropout: float = setting(
        0.5,
        "share dropped after the residual layer's ReLU; without it, of x̂",
        at_least=0,
        below=1,
        search=Span(0, 0.8),
    )
    batch_size: int = setting(
        256, "points in a step, at most a tenth of train", at_least=1, was="batch", search=[64, 128, 256, 512]
    )
    epochs: int = setting(
        4, "e_model, epochs of the classifier; more to reach `min_steps` steps", at_least=1, search=[2, 4, 8, 16]
    )
    min_steps: int = setting(400, "least number of steps of the classifier", at_least=1, was="steps")
    cycle_epochs: int | None = setting(None, "ê_label, epochs of a cycle; none: a quarter", at_least=1, was="cycle")
    label_epochs: int = setting(1, "e_label, epochs of the label encoder in each cycle", at_least=0)
    learning_rate: float = setting(
        0.002, "highest learning rate of the classifier", above=0, was="rate", search=Span(0.0003, 0.01, log=True)
    )
    label_learning_rate: float = setting(0.001, "highest learning rate of the label encoder", above=0, was="label_rate")
    patience: int = setting(10, "epochs without a better validation after which training stops", at_least=1)
    beta: float | None = setting(None, "β, weight of the classifier; none: by validation", at_least=0, at_most=1)
    float16: bool = setting(False, "save vectors in float16, in half the space", was="half")
    deterministic: bool = setting(True, "false builds the index on all cores, with a different result each time")

    def width(self, labels: int) -> int:
        """Return k for this many labels."""
        return min(labels, self.shortlist_size or max(100, min(700, math.ceil(labels / 20))))

    def kind(self, labels: int, device: torch.device) -> Kind:
        """Return the kind of index for this many labels."""
        return self.index or ("exact" if labels <= EXACT or device.type == "cuda" else "hnsw")


PRESETS: dict[str, LightSettings] = {
    "paper": LightSettings(  # Table V for EURLex-4K; D, batch, dropout and the label encoder's rate are ours
        dimension=300, token_init="fasttext", relu=True, cosine=False, shortlist_size=500, index="hnsw",
        shared_negatives=False, residual=False, dropout=0.5, epochs=16, min_steps=1, cycle_epochs=8, label_epochs=8,
        learning_rate=0.006, beta=0.75,
    ),
    "default": LightSettings(),
    "fast": LightSettings(dimension=1024, epochs=2, min_steps=200, learning_rate=0.004),
}  # fmt: skip


class Features(nn.Module):
    """Ẑ_x, Sec. IV-A: the tf-idf-weighted sum of token vectors, and a residual layer; with `cosine`, of length 1."""

    def __init__(self, features: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.unit, self.dropout = settings.cosine, settings.dropout
        self.tokens = EmbeddingTable(features, settings.dimension, generator, std=settings.dimension**-0.5)
        self.block = TextBlock(settings.dimension) if settings.residual else None

    def forward(self, points: Bags, generator: torch.Generator) -> Tensor:
        """Return x̂, [B, D], for learning, with dropout."""
        encode = dropped if self.block is None else self.block
        vectors: Tensor = encode(self.tokens(points), self.dropout, generator)
        return F.normalize(vectors, dim=1) if self.unit else vectors

    def prediction_encoder(self) -> PredictionEncoder:
        """Return the encoder that prediction uses."""
        return PredictionEncoder(self.tokens, self.block, self.unit)


class LabelEncoder(nn.Module):
    """Z_l, Eq. (4): ŷ = ReLU(W₂ (W₁ μ + b₁) + b₂) of a label's centroid μ; it starts as the identity."""

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
    owned = bags(Y.T.tocsr()).to(vectors.device)
    counts = owned.offsets.diff()
    weights = (1 / counts.clamp_min(1)).repeat_interleave(counts)
    return weighted_sum(owned.ids, vectors, Bags(owned.ids, weights, owned.offsets))


class LightDxml(Model):
    """Features, label encoder and classifier."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    train_only = ("label_encoder.*", "classifier.lengths")
    settings: LightSettings
    label_vectors: Tensor  # ŷ, of length 1 or 0, [L, D]
    counts: Tensor  # training points of each label, [L]

    def __init__(self, features: int, labels: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.encoder = Features(features, settings, generator)
        self.classifier = OneVsAll(labels, settings.dimension, settings.cosine, generator)
        self.label_encoder = LabelEncoder(settings.dimension, settings.relu)
        self.register_buffer("label_vectors", torch.zeros(labels, settings.dimension))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int32))
        self.index: Index | None = None
        self.beta = 0.75 if settings.beta is None else settings.beta

    @classmethod
    def abilities(cls, settings: LightSettings) -> Abilities:
        """Return the abilities of LightDXML: a label's text counts as its only point."""
        return Abilities(
            scores_label_texts=True,
            places_labels_by_text=True,
            takes_new_words=True,
            takes_shortlist=True,
            weights_points=True,
        )

    def device(self) -> torch.device:
        """Return the model's device."""
        return self.label_vectors.device

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn, and choose β on validation."""
        settings = self.settings
        self.classifier.restore_lengths()
        if self.index is None and settings.token_init != "random":  # Step 1
            tokens, std = self.encoder.tokens, settings.dimension**-0.5
            start_tokens(tokens, lesson, settings.token_init, std, run, settings.deterministic)
        outcome = self.learn(lesson, run)
        if lesson.validation and settings.beta is None:
            self.beta = chosen_beta(figures_by_beta(self.learners()[0], lesson.validation, lesson))
        return outcome

    def learn(self, lesson: Lesson, run: Run) -> Outcome:
        """Go through the cycles, and keep the epoch with the best P@1 on validation, or else the last."""
        part, validation, settings = labelled(lesson.train), lesson.validation or None, self.settings
        batch_size = max(1, min(settings.batch_size, len(part) // 10))
        epochs = max(settings.epochs, math.ceil(settings.min_steps * batch_size / len(part)))
        cycle = settings.cycle_epochs or max(1, epochs // 4)
        self.counts += torch.from_numpy(np.bincount(part.Y.indices, minlength=len(self.counts))).to(self.counts)
        near: Tensor | None = None

        def begin_cycle(done: int, resumed: bool) -> None:  # Step 5; also called when the last cycle has ended
            nonlocal near
            number = done // cycle
            if not resumed:
                points = self.encoded(part.X)
                self.place_labels(part, points, lesson, run, f"labels-{number}")  # Step 2
                run.forget(f"shortlists-{number - 2}")  # those before this one are needed until a checkpoint
                if done < epochs:  # Step 3; Step 4 is the objective
                    near = run.stage(f"shortlists-{number}", lambda: {"near": self.shortlists(points)})["near"]
                return
            self.build(run.seed)  # the checkpoint has the label vectors
            kept = run.load(f"shortlists-{number}")
            near = kept[0]["near"] if kept is not None else None

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            assert near is not None
            return {settings.loss: self.loss(part, rows, near[rows], generator)}

        def precision(held_out: Part) -> float:
            self.set_offset(held_out)
            return precision_at_1(self.learners()[0], held_out)

        schedule = Schedule(epochs, batch_size, settings.learning_rate, patience=settings.patience, turn_every=cycle,
                            asked=settings.epochs)  # fmt: skip
        validate = validation_of(validation, precision)
        outcome = train(run, "lightdxml", self, part.draws, objective, schedule, validate, begin_cycle)
        if self.encoder.block is not None:
            self.encoder.block.R.detach().copy_(rounded(self.encoder.block.R.detach()))
        kept = outcome.epochs if outcome.best_epoch < 0 else outcome.best_epoch + 1
        if kept % cycle and not outcome.interrupted:  # within a cycle: label vectors lag behind those of points
            try:
                self.place_labels(part, self.encoded(part.X), lesson, run, "labels-last")
            except KeyboardInterrupt:
                outcome = replace(outcome, interrupted=True)
        self.set_offset(part if validation is None else validation)
        self.label_vectors.copy_(rounded(self.label_vectors))
        self.build(run.seed)
        return outcome

    def place_labels(self, part: Part, points: Tensor, lesson: Lesson, run: Run, stage: str) -> None:
        """Step 2: learn to map the centroids of labels near their points [N, D], Eq. (2), map them, and index them.

        The text of a label that never had points, where it has one, counts as its only point.
        """
        settings, Z, centroids = self.settings, lesson.Z, centroids_of(part.Y, points)
        if Z is not None:
            text_only = np.flatnonzero((np.diff(Z.indptr) > 0) & (self.counts.cpu().numpy() == 0))
            if len(text_only):
                centroids[torch.from_numpy(text_only).to(centroids.device)] = self.encoded(Z[text_only])

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            own = bags(part.Y, rows).to(centroids.device)
            labels, positions = unique_ids(own.ids)
            mapped = self.label_encoder(centroids[labels])
            batch = points[torch.from_numpy(rows).to(centroids.device)]
            return {"distance": losses.log_distance(batch, mapped, own.offsets, positions)}

        if settings.label_epochs:
            batch_size = max(1, min(2048, len(part) // 10))
            schedule = Schedule(settings.label_epochs, batch_size, settings.label_learning_rate)
            if train(run, stage, self.label_encoder, part.draws, objective, schedule).interrupted:
                raise KeyboardInterrupt
        with torch.no_grad():
            has_centroid = centroids.abs().amax(dim=1, keepdim=True) > 0
            mapped = F.normalize(self.label_encoder(centroids), dim=1)
            self.label_vectors.copy_(torch.where(has_centroid, mapped, self.label_vectors))  # others keep theirs
        self.build(run.seed)
        if lesson.validation:
            run.log(stage=stage, recall=self.shortlist_recall(lesson.validation))

    def shortlists(self, points: Tensor) -> Tensor:
        """Step 3, Eq. (6): the k labels nearest to each point by cosine, [N, k]."""
        assert self.index is not None
        k = self.settings.width(len(self.counts))
        near = torch.cat([self.index.search(chunk, k).ids.int().cpu() for chunk in torch.split(points, BATCH)])
        return torch.where(near < 0, near[:, :1], near)  # a graph may return fewer

    def loss(self, part: Part, rows: NDArray[np.int64], near: Tensor, generator: torch.Generator) -> Tensor:
        """Step 4: one-vs-all on P_i ∪ S_k(x_i), Eq. (3), (7), (8), or on the lists of the whole batch."""
        device, decoupled = self.device(), self.settings.loss == "decoupled"
        own, listed = bags(part.Y, rows).to(device), list_bags(near.long().to(device))
        filtered = None if part.filtered is None else bags(part.filtered, rows).to(device)
        vectors = self.encoder(bags(part.X, rows).to(device), generator)  # [B, D]
        if not self.settings.shared_negatives:
            candidates = pooled(own, listed, filtered)
            loss = losses.decoupled if decoupled else losses.logistic
            return loss(self.classifier(vectors, candidates.labels), candidates.targets, candidates.mask)
        pool = torch.unique(torch.cat([own.ids, listed.ids]))  # [S]
        W, offset = self.classifier.scaled(pool), self.classifier.offset
        right, left_out = within(own, pool), None if filtered is None else within(filtered, pool)
        if decoupled:
            return losses.decoupled_all(vectors, W, right, left_out)
        return losses.all_labels(vectors, W, offset, right, left_out)

    def set_offset(self, part: Part) -> None:
        """Set the offset of scores, which the decoupled loss does not learn."""
        if self.settings.loss == "decoupled":
            scale, W = self.classifier.scale.detach(), self.classifier.composed()
            offset = matching_offset(part, lambda sample: scale * products(self.encoded(sample.X), W))
            self.classifier.offset.detach().fill_(offset)

    # --- Prediction, Sec. IV-F ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def encoded(self, X: csr_array) -> Tensor:
        """Return the vectors of points, [N, D]."""
        encode, starts = self.encoder.prediction_encoder(), range(0, X.shape[0], BATCH)
        return torch.cat([encode(bags(X[start : start + BATCH]).to(self.device())) for start in starts])

    def build(self, seed: int) -> None:
        """Index the vectors of labels."""
        kind = self.settings.kind(len(self.counts), self.device())
        self.index = build_index(kind, self.label_vectors, seed, self.settings.deterministic)

    def learners(self) -> Sequence[Learner]:
        """Return one learner."""
        assert self.index is not None
        kind = self.settings.kind(len(self.counts), self.device())
        if kind == "exact" or isinstance(self.index, ExactIndex):  # the model may have been moved
            self.index = ExactIndex(self.label_vectors)
        scale, offset = self.classifier.scale_and_offset()
        mixed = MixedClassifier(self.label_vectors, self.classifier.composed(), scale, offset, self.counts, self.beta,
                      self.settings.width(len(self.counts)))  # fmt: skip
        return [Learner(self.encoder.prediction_encoder(), self.index, mixed, self.device())]

    @torch.no_grad()
    def text_scores(self, predictor: Predictor, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores of labels known by their texts [n, features] only, [B, n].

        A text counts as the label's only point: its vector stands for w, and Z_l maps it to ŷ.
        """
        queries, own, (scale, offset) = (
            learner_of(predictor).encode(X),
            self.encoded(Z),
            self.classifier.scale_and_offset(),
        )
        classifier = torch.sigmoid((scale * all_products(queries, own) + offset).double())
        mapped = F.normalize(self.label_encoder(own), dim=1)
        shortlist = torch.sigmoid(all_products(F.normalize(queries, dim=1), mapped).double())
        scores = (self.beta * classifier + (1 - self.beta) * shortlist).float()
        return scores * (queries.abs().amax(dim=1, keepdim=True) > 0)

    def shortlist_recall(self, part: Part) -> float:
        """Return the share of a part's labels that are on the shortlists of their points."""
        near = self.shortlists(self.encoded(part.X)).numpy().astype(np.int64)
        ends = np.arange(0, near.size + 1, near.shape[1])
        listed = csr_array((np.ones(near.size), np.sort(near, axis=1).ravel(), ends), shape=part.Y.shape)
        rows, labels = part.Y.nonzero()
        return float(stored(listed, rows, labels).mean()) if len(rows) else 1.0

    # --- Saving, new labels and plans --------------------------------------------------------------------------------

    def tensors(self) -> Tensors:
        """Return the saved tensors, of which some or all vectors are in float16."""
        tensors = super().tensors()
        for name, value in tensors.serve.items():
            exact = name in ("label_vectors", "encoder.block.R")  # they are `rounded`, so that nothing is lost
            if exact or (self.settings.float16 and value.ndim == 2):
                tensors.serve[name] = value.half()
        return tensors

    def more_tensors(self) -> State:
        """Return β, classifiers ready for prediction and their lengths, and the index."""
        assert self.index is not None
        beta = torch.tensor(self.beta, dtype=torch.float64)  # in float32 the last bits of scores would change
        classifiers = {"classifier.labels.rows": self.classifier.composed(), **self.classifier.lengths()}
        return {"beta": beta, **classifiers, **with_prefix("index.", self.index.state())}

    def take_tensors(self, more: State) -> None:
        """Take β, the lengths of classifiers, and the index."""
        self.beta = float(tensor_of(more, "beta", torch.float64))
        if "classifier.lengths" in more:
            lengths = tensor_of(more, "classifier.lengths", torch.float32, self.label_count)
            self.classifier.stored_lengths = lengths
        kind = self.settings.kind(len(self.counts), torch.device("cpu"))
        self.index = load_index(kind, part_of(more, "index."), self.label_vectors)

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append tokens with random vectors."""
        self.encoder.tokens.grow(count, generator, std=self.settings.dimension**-0.5)
        self.features += count

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random classifiers, on no shortlist yet."""
        self.classifier.grow(count, generator)
        self.label_vectors = F.pad(self.label_vectors, (0, 0, 0, count))
        self.counts = F.pad(self.counts, (0, count))
        self.label_count += count

    def cost(self, lesson: Lesson) -> Cost:
        """Add the vectors and shortlists of all points."""
        return replace(
            super().cost(lesson), bytes_a_point=4 * (self.settings.dimension + self.settings.width(self.label_count))
        )


def rounded(values: Tensor) -> Tensor:
    """Return numbers rounded to float16, in which they are saved."""
    return values.half().float()
