"""LightDXML apart from Algorithm 1: its parts, labels known by their texts, new labels and words, saving, costs."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
import torch.nn.functional as F
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.errors import ConfigError
from zipfel.index import Index, Search, build_index, load_index
from zipfel.index.exact import all_products
from zipfel.models.base import Abilities, Cost, Lesson, Model
from zipfel.models.learner import BATCH, Predictor, joined, learner_of
from zipfel.models.lightdxml_settings import LightSettings
from zipfel.models.reranker import TOP, RerankedPredictor, Reranker, TokenEncoder
from zipfel.models.saving import Tensors, saved_lengths, tensor_of
from zipfel.models.split import SplitIndex
from zipfel.nn.classifiers import OneVsAll
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.training.trainer import Outcome, Schedule


class LightModel(Model):
    """Features, label encoder and classifier. `LightDxml` makes them, and adds training and prediction."""

    by_label = ("label_vectors",)
    train_only = ("label_encoder.*", "classifier.lengths", "reranker.classifier.lengths")
    settings: LightSettings
    encoder: TokenEncoder  # Ẑ_x
    label_encoder: nn.Module  # Z_l
    classifier: OneVsAll  # Z
    label_vectors: Tensor  # ŷ, of length 1 or 0, [L, D]
    counts: Tensor  # training points of each label, [L]
    index: Index | None  # of the label vectors; None until they are learned
    beta: float
    reranker: Reranker | None  # None until it has learned
    seed = 0  # of the index

    @classmethod
    def abilities(cls, settings: LightSettings) -> Abilities:
        """Return the abilities of LightDXML: a label's text counts as its only point."""
        return Abilities(
            scores_label_texts=True,
            places_labels_by_text=True,
            takes_new_words=True,
            takes_shortlist=True,
            weights_points=True,
            splits_labels=True,
            reads_mapped_data=True,
        )

    def check_split(self) -> None:
        """Check that the loss is a sum over labels, and that there is no re-ranker."""
        if self.settings.reranker:
            raise ConfigError("lightdxml with reranker=true is trained by one process; set reranker=false")
        if self.settings.loss == "decoupled" and not self.settings.shared_negatives:
            raise ConfigError("lightdxml with loss=decoupled and shared_negatives=false is trained by one process; "
                              "set loss=logistic or shared_negatives=true")  # fmt: skip

    def device(self) -> torch.device:
        """Return the model's device."""
        return self.label_vectors.device

    @torch.no_grad()
    def encoded(self, X: csr_array) -> Tensor:
        """Return the vectors of points, [N, D], without dropout."""
        encode, starts = self.encoder.prediction_encoder(), range(0, max(1, X.shape[0]), BATCH)
        return joined((encode(bags(X[start : start + BATCH]).to(self.device())) for start in starts), X.shape[0])

    @torch.no_grad()
    def encoded_together(self, X: csr_array) -> Tensor:
        """Return the vectors of points, [N, D], of which each rank encodes its share."""
        if not self.world.splits:
            return self.encoded(X)
        return self.world.gather(self.encoded(X[self.world.share(X.shape[0]).rows]), X.shape[0])

    def search(self) -> Search:
        """Return the index; where several ranks hold the labels, one that merges what all of them find."""
        assert self.index is not None
        return self.index if self.own is None else SplitIndex(self.index, self.label_vectors, self.own, self.world)

    def join(self) -> None:
        """Take the labels of all ranks, and index them."""
        split, first, seed = self.own is not None, self.world.is_first, self.seed
        super().join()
        if split and first:
            self.build(seed)

    def build(self, seed: int) -> None:
        """Index the vectors of labels."""
        self.seed = seed
        kind = self.settings.kind(len(self.counts), self.device())
        self.index = build_index(kind, self.label_vectors, seed, self.settings.deterministic)

    # --- The re-ranker, and labels known by their texts ---------------------------------------------------------------

    def new_reranker(self, run: Run) -> Reranker:
        """Return a re-ranker that has not learned."""
        raise NotImplementedError

    def learn_reranker(
        self, reranker: Reranker, lesson: Lesson, schedule: Schedule, run: Run, outcome: Outcome
    ) -> Outcome:
        """Train the re-ranker on the errors of the model, and hold it unless it was stopped in its first epoch."""
        try:
            more = reranker.fit(self.learners()[0], lesson, self.top, replace(schedule, turn_every=1), run)
        except KeyboardInterrupt:  # while labels were ranked for all points
            return replace(outcome, interrupted=True)
        self.reranker = reranker if more.epochs else self.reranker
        epochs, seconds = outcome.epochs + more.epochs, outcome.seconds + more.seconds
        return replace(outcome, epochs=epochs, seconds=seconds, interrupted=more.interrupted)

    @property
    def top(self) -> int:
        """The number of first labels that the re-ranker learns from and ranks again."""
        return min(TOP, self.settings.width(len(self.counts)))

    def predictor(self) -> Predictor:
        """Return the learner, with the re-ranker where there is one."""
        (learner,) = self.learners()
        return learner if self.reranker is None else RerankedPredictor(learner, self.reranker.learner(), self.top)

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
        scores = self.beta * classifier + (1 - self.beta) * shortlist
        if isinstance(predictor, RerankedPredictor) and self.reranker is not None:
            scores = (scores + self.reranker.text_scores(X, Z)) / 2
        return scores.float() * (queries.abs().amax(dim=1, keepdim=True) > 0)

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
        more = {"beta": beta, **classifiers, **with_prefix("index.", self.index.state())}
        return more if self.reranker is None else more | with_prefix("reranker.", self.reranker.more_tensors())

    @classmethod
    def empty(cls, settings: LightSettings, state: State, features: int = 0, labels: int = 0) -> Self:
        """Return a model with a re-ranker, if one is saved."""
        model = super().empty(settings, state, features, labels)
        if "reranker.classifier.labels.rows" in state:
            model.reranker = model.new_reranker(Run())
        return model

    def take_tensors(self, more: State) -> None:
        """Take β, the lengths of classifiers, and the index."""
        self.beta = float(tensor_of(more, "beta", torch.float64))
        self.classifier.stored_lengths = saved_lengths(more, self.label_count)
        kind = self.settings.kind(len(self.counts), torch.device("cpu"))
        self.index = load_index(kind, part_of(more, "index."), self.label_vectors)
        if self.reranker is not None:
            self.reranker.take_tensors(part_of(more, "reranker."))

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append tokens with random vectors."""
        std = self.settings.dimension**-0.5
        self.encoder.tokens.grow(count, generator, std)
        if self.reranker is not None:
            self.reranker.encoder.tokens.grow(count, generator, std)
        self.features += count

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random classifiers, on no shortlist yet."""
        self.classifier.grow(count, generator)
        self.label_vectors = F.pad(self.label_vectors, (0, 0, 0, count))
        self.counts = F.pad(self.counts, (0, count))
        if self.reranker is not None:
            self.reranker.classifier.grow(count, generator)
        self.label_count += count

    def cost(self, lesson: Lesson) -> Cost:
        """Add the vectors and shortlists of all points."""
        width = self.settings.width(self.label_count) + (self.top if self.settings.reranker else 0)
        return replace(super().cost(lesson), bytes_a_point=4 * (self.settings.dimension + width))


def rounded(values: Tensor) -> Tensor:
    """Return numbers rounded to float16, in which they are saved."""
    return values.half().float()
