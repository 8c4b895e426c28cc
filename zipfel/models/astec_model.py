"""Astec apart from its training: the networks of its learners, prediction, new labels and documents, saving, plans."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn

from zipfel.data.dataset import Part
from zipfel.models.astec_network import Features, Network
from zipfel.models.astec_settings import AstecSettings
from zipfel.models.base import Abilities, Cost, Lesson, Model
from zipfel.models.learner import Learner, Predictor, labelled
from zipfel.models.neighbours import Memory, not_among, widened
from zipfel.models.reranker import TOP, RerankedPredictor, Reranker
from zipfel.models.saving import sparse_matrix, sparse_tensors
from zipfel.training.run import Run, State, part_of, with_prefix


@dataclass(frozen=True)
class Documents:
    """Points whose labels are candidates for points near them. Unlike a Part's, their numbers are not checked again."""

    Y: csr_array
    X: csr_array

    def __len__(self) -> int:
        """Return the number of documents."""
        return int(self.Y.shape[0])


class AstecModel(Model):
    """The learners of Astec, and the documents that they search. `Astec` adds training by Modules I to IV."""

    train_only = ("networks.*.classifier.lengths", "documents.X.*", "reranker.classifier.lengths")
    settings: AstecSettings
    counts: Tensor  # training points of each label, [L]

    def __init__(self, features: int, labels: int, settings: AstecSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.networks = nn.ModuleList(Network(features, labels, settings, generator) for _ in range(settings.learners))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int32))
        self.reranker: Reranker | None = None  # until it has learned
        self.documents = Documents(csr_array((0, labels), dtype=np.float32), csr_array((0, features), dtype=np.float32))

    @classmethod
    def abilities(cls, settings: AstecSettings) -> Abilities:
        """Return the abilities of Astec, which takes no label texts."""
        return Abilities(
            takes_new_words=not settings.freeze_tokens,  # whose vectors Module IV does not train
            takes_shortlist=True,
            weights_points=True,
        )

    def all_networks(self) -> list[Network]:
        """Return the networks of all learners."""
        return [network for network in self.networks if isinstance(network, Network)]

    # --- Prediction ---------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return the learners."""
        return [self.learner(network) for network in self.all_networks()]

    def learner(self, network: Network) -> Learner:
        """Return one learner."""
        return network.learner(widened(self.documents.Y, len(self.counts)), self.counts)

    def merged_learners(self) -> Predictor:
        """Return the only learner, or the average of several."""
        return super().predictor()

    def predictor(self) -> Predictor:
        """Return the learners, with the re-ranker where there is one that has learned."""
        main = self.merged_learners()
        return main if self.reranker is None else RerankedPredictor(main, self.reranker.learner(), self.top)

    def new_reranker(self, run: Run) -> Reranker:
        """Return a re-ranker with features of its own, whose token vectors start as those of learners do."""
        settings, generator = self.settings, run.generator("reranker start")
        encoder = Features(self.features, settings, generator)
        if settings.token_init != "random":
            encoder.tokens.rows.copy_(self.all_networks()[0].features.tokens.rows)
        return Reranker(encoder, self.label_count, settings.cosine, generator).to(self.counts.device)

    @property
    def top(self) -> int:
        """The number of labels that the re-ranker ranks again."""
        return min(TOP, self.settings.width(len(self.counts)))

    # --- New labels, tokens and documents; saving; plans -------------------------------------------------------------

    def remember(self, part: Part) -> None:
        """Append the points of a part to the documents whose labels are candidates, but those that are among them."""
        known = Memory(torch.empty(0), widened(self.documents.Y, len(self.counts)), self.documents.X)
        new = not_among(part, known) if len(self.documents) else part
        self.documents = Documents(vstack([known.Y, new.Y], format="csr"), vstack([known.X, new.X], format="csr"))
        for network in self.all_networks():
            network.centroids.documents = self.counts.new_zeros(
                len(self.documents), self.settings.dimension, dtype=torch.float32
            )

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append tokens with random vectors."""
        self.features += count
        X = self.documents.X
        assert X is not None
        X = csr_array((X.data, X.indices, X.indptr), shape=(X.shape[0], self.features))
        self.documents = Documents(self.documents.Y, X)
        for network in self.all_networks():
            network.features.tokens.grow(count, generator, std=self.settings.dimension**-0.5)
        if self.reranker is not None:
            self.reranker.encoder.tokens.grow(count, generator, std=self.settings.dimension**-0.5)

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random classifiers, on no shortlist yet."""
        self.counts = torch.cat([self.counts, self.counts.new_zeros(count)])
        self.label_count += count
        for network in self.all_networks():
            network.grow(count, generator)
        if self.reranker is not None:
            self.reranker.classifier.grow(count, generator)

    def more_tensors(self) -> State:
        """Return the documents, and what the learners have besides parameters and buffers."""
        more: State = {}
        if len(self.documents):
            more |= sparse_tensors("documents.Y", self.documents.Y, values=False)
            more |= sparse_tensors("documents.X", self.documents.X)
        for number, network in enumerate(self.all_networks()):
            more |= with_prefix(f"networks.{number}.", network.more_tensors())
        return more if self.reranker is None else more | with_prefix("reranker.", self.reranker.more_tensors())

    def take_tensors(self, more: State) -> None:
        """Restore the state that `more_tensors` returned."""
        if "documents.Y.indptr" in more:
            rows = len(self.all_networks()[0].centroids.documents)
            Y = sparse_matrix("documents.Y", more, self.label_count, rows)
            X = sparse_matrix("documents.X", more, self.features, rows)
            self.documents = Documents(Y, X)
        for number, network in enumerate(self.all_networks()):
            network.take_tensors(part_of(more, f"networks.{number}."))
        if self.reranker is not None:
            self.reranker.take_tensors(part_of(more, "reranker."))

    @classmethod
    def empty(cls, settings: AstecSettings, state: State, features: int = 0, labels: int = 0) -> Self:
        """Return a model with as many learners as were trained, and with a re-ranker if one is saved."""
        count = sum(name.startswith("networks.") and name.endswith(".classifier.labels.rows") for name in state)
        model = super().empty(replace(settings, learners=count), state, features, labels)
        if "reranker.classifier.labels.rows" in state:
            model.reranker = model.new_reranker(Run())
        return model

    def cost(self, lesson: Lesson) -> Cost:
        """Add the shortlists and, with γ, the vectors of all points."""
        settings = self.settings
        documents = settings.learners * settings.dimension if settings.gamma else 0
        return replace(super().cost(lesson), bytes_a_point=4 * (settings.width(self.label_count) + documents))

    def complete(self, lesson: Lesson, rehearsed: Part) -> float:
        """Keep as many documents as training will: the vectors of the rehearsed ones, over and over."""
        if not self.settings.gamma:
            return 0.0
        start = time.perf_counter()
        part = labelled(lesson.train)
        self.documents = Documents(part.Y, part.X)
        for network in self.all_networks():
            known = network.centroids.documents
            network.centroids.documents = known[torch.arange(len(self.documents)) % len(known)]
            network.build(0)
        return time.perf_counter() - start
