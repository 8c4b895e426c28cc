"""Astec: token vectors learned on clusters of labels, then one-vs-all classifiers on shortlists of near labels.

Dahiya et al., *DeepXML: A Deep Extreme Multi-Label Learning Framework Applied to Short Text Documents*, WSDM 2021. Held
next to what others say of it, and to the authors' code, in docs/papers/astec.md, and in the paper's order: Modules I to
IV, prediction. The parts of a learner are in astec_network.py.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn

from zipfel.config import Settings
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index.exact import products
from zipfel.labelspace.centroids import sparse_centroids
from zipfel.labelspace.clusters import balanced_clusters
from zipfel.labelspace.graph import walk_step
from zipfel.models.astec_network import Network, all_labels
from zipfel.models.astec_settings import PRESETS, AstecSettings
from zipfel.models.base import Abilities, Cost, Lesson, Model
from zipfel.models.decaf import trained_together
from zipfel.models.learner import BATCH, Learner, in_turn, labelled, ndcg_at_5, validation_of
from zipfel.models.mixed import chosen_beta, figures_by_beta
from zipfel.models.neighbours import Memory, not_among, widened
from zipfel.models.saving import sparse_matrix, sparse_tensors
from zipfel.models.shortlisters import labels_to_clusters
from zipfel.models.tokens import start_tokens
from zipfel.nn.classifiers import OneVsAll
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import stored

HALVED_AT = 0.7  # of the steps: the authors halve the learning rate after 14 of 20 epochs


class Astec(Model):
    """Learners that are trained one after the other, each with modules of its own."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    most_held_out = 1000  # points: they only choose epochs and β, and are worth more in training
    train_only = ("networks.*.classifier.lengths", "documents.X.*")
    settings: AstecSettings
    counts: Tensor  # training points of each label, [L]

    def __init__(self, features: int, labels: int, settings: AstecSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.networks = nn.ModuleList(Network(features, labels, settings, generator) for _ in range(settings.learners))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int32))
        self.documents = Part(csr_array((0, labels), dtype=np.float32), X=csr_array((0, features), dtype=np.float32))

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

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn; each module keeps the epoch that is best on validation."""
        part, warm, settings = labelled(lesson.train), bool(self.counts.any()), self.settings
        self.counts += torch.from_numpy(np.bincount(part.Y.indices, minlength=len(self.counts))).to(self.counts)
        held_out = None if lesson.validation is None else labelled(lesson.validation) or None
        lesson, networks = replace(lesson, train=part, validation=held_out), self.all_networks()
        if settings.gamma:
            self.remember(part)
        if settings.token_init != "random" and not warm:
            self.start_tokens(lesson, run)

        def learn(number: int) -> Outcome:
            if settings.module1_epochs and not warm:
                self.module_1(networks[number], number, lesson, run)
            return self.modules_2_to_4(networks[number], number, lesson, run, warm)

        count, outcome = in_turn(learn, len(networks))
        self.networks = self.networks[:count]
        return outcome

    def start_tokens(self, lesson: Lesson, run: Run) -> None:
        """Start the token vectors of all learners from FastText's, or from those of a file."""
        settings = self.settings
        first, *others = (network.features.tokens for network in self.all_networks())
        start_tokens(first, lesson, settings.token_init, settings.dimension**-0.5, run, settings.deterministic)
        for tokens in others:
            tokens.rows.copy_(first.rows)

    # --- Module I: token vectors, by a surrogate task ----------------------------------------------------------------

    def module_1(self, network: Network, number: int, lesson: Lesson, run: Run) -> None:
        """Cluster labels by the sparse features of their points, and learn which clusters a point has labels in."""
        part, settings, features = lesson.train, self.settings, network.features
        device, name = network.device(), f"clusters-{number}"

        def clustered() -> State:
            centroids = sparse_centroids(part.X, part.Y, None)
            if settings.smoothing != "none":
                centroids = csr_array(walk_step(part.Y) @ centroids)
            count = settings.cluster_count(len(self.counts))
            return {"clusters": torch.from_numpy(balanced_clusters(centroids, count, run.numbers(name)))}

        clusters = run.stage(name, clustered, "labels")["clusters"].numpy()
        count = int(clusters.max(initial=0)) + 1
        meta_Y = labels_to_clusters(part.Y, clusters, count)
        draws = run.generator(f"surrogate-{number}")
        heads = OneVsAll(count, settings.dimension, settings.cosine, draws, biases=settings.biases).to(device)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            x = features(bags(part.X, rows).to(device), settings.module1_dropout, generator)
            return {"surrogate": all_labels(heads, x, None, bags(meta_Y, rows).to(device), None, decoupled=False)}

        def precision(held_out: Part) -> float:
            (scale, offset), H, encode = heads.scale_and_offset(), heads.composed(), network.final()
            vectors = torch.split(network.encoded(held_out.X, encode), BATCH)
            best = torch.cat([(scale * products(some, H) + offset).argmax(dim=1) for some in vectors])
            truth = labels_to_clusters(held_out.Y, clusters, count)
            return float(stored(truth, np.arange(len(held_out)), best.cpu().numpy()).mean())

        parts = trained_together(heads=heads, tokens=features.tokens, block=features.block)
        schedule = self.schedule(part, settings.module1_epochs, settings.module1_learning_rate)
        validate = validation_of(lesson.validation, precision, "P@1 of clusters")
        if train(run, f"module-1-{number}", parts, part.draws, objective, schedule, validate).interrupted:
            raise KeyboardInterrupt

    # --- Modules II to IV: shortlists, transfer, classifiers ---------------------------------------------------------

    def modules_2_to_4(self, network: Network, number: int, lesson: Lesson, run: Run, warm: bool) -> Outcome:
        """Train the classifiers of a learner, and choose its β on validation."""
        network.classifier.restore_lengths()
        if network.features.block is not None and not warm:
            network.features.block.reset()  # Module III: v is kept, and the residual layer starts again at R = I
        outcome = self.module_4(network, number, lesson, run)
        if lesson.validation and self.settings.beta is None:
            network.beta = chosen_beta(figures_by_beta(self.learner(network), lesson.validation, lesson))
        return outcome

    def module_4(self, network: Network, number: int, lesson: Lesson, run: Run) -> Outcome:
        """Do Module IV: train on right labels and on the shortlists of Module II, or (ours) on all labels."""
        part, settings, features = lesson.train, self.settings, network.features
        schedule = self.schedule(part, settings.epochs, settings.learning_rate)
        never = settings.search_is_frozen or settings.refresh_epochs is None
        every = schedule.epochs if never else settings.refresh_epochs or 1
        near: Tensor | None = None

        def module_2(done: int, resumed: bool) -> None:  # also called when the last epoch has ended
            nonlocal near
            turn = done // every
            if resumed:  # the checkpoint has the centroids
                network.build(run.seed)
                kept = run.load(f"shortlists-{number}-{turn}")
                near = kept[0]["near"] if kept is not None else None
            elif not (done and settings.search_is_frozen):
                network.place_labels(part, self.documents.X, run.seed)
                run.forget(f"shortlists-{number}-{turn - 2}")  # the last ones are needed until a checkpoint
                if done < schedule.epochs and settings.negatives != "all":
                    near = run.stage(f"shortlists-{number}-{turn}", listed)["near"]
                    run.log(stage=f"shortlists-{number}-{turn}", recall=network.recall(part, near))

        def listed() -> State:
            return {"near": network.shortlists(part, self.documents.Y)}

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            own = None if near is None else near[torch.from_numpy(rows)]
            return {settings.loss: network.loss(part, rows, own, generator)}

        def quality(held_out: Part) -> float:
            network.set_offset(held_out)
            return ndcg_at_5(self.learner(network), held_out)

        tokens = None if settings.freeze_tokens else features.tokens
        parts = trained_together(
            classifier=network.classifier, centroids=network.centroids, block=features.block, tokens=tokens
        )
        features.tokens.eval()  # so that frozen tokens record no gradients; the trainer sets those that learn to train
        validate = validation_of(lesson.validation, quality, "nDCG@5")
        schedule = replace(schedule, turn_every=every)
        outcome = train(run, f"module-4-{number}", parts, part.draws, objective, schedule, validate, module_2)
        self.finish(network, lesson, run, outcome, every)
        return outcome

    def finish(self, network: Network, lesson: Lesson, run: Run, outcome: Outcome, every: int) -> None:
        """Bring the search and the offset of scores up to date with the weights that training kept."""
        kept = outcome.epochs if outcome.best_epoch < 0 else outcome.best_epoch + 1
        lags = kept % every and not self.settings.search_is_frozen  # the centroids are of an earlier epoch
        try:
            if lags and not outcome.interrupted:
                network.place_labels(lesson.train, self.documents.X, run.seed)
        except KeyboardInterrupt:
            outcome.interrupted = True
        network.set_offset(lesson.validation or lesson.train)
        network.build(run.seed)

    def schedule(self, part: Part, epochs: int, learning_rate: float) -> Schedule:
        """Return how long and how fast a module learns."""
        settings = self.settings
        batch_size = max(1, min(settings.batch_size, len(part) // 10))
        enough = max(epochs, math.ceil(settings.min_steps * batch_size / len(part)))
        return Schedule(enough, batch_size, learning_rate, halve=settings.halve_learning_rate, halve_at=HALVED_AT,
                        patience=settings.patience, asked=epochs)  # fmt: skip

    # --- Prediction ---------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return the learners."""
        return [self.learner(network) for network in self.all_networks()]

    def learner(self, network: Network) -> Learner:
        """Return one learner."""
        return network.learner(widened(self.documents.Y, len(self.counts)), self.counts)

    # --- New labels, tokens and documents; saving; plans -------------------------------------------------------------

    def remember(self, part: Part) -> None:
        """Append the points of a part to the documents whose labels are candidates, but those that are among them."""
        known = Memory(torch.empty(0), widened(self.documents.Y, len(self.counts)), self.documents.X)
        new = not_among(part, known) if len(self.documents) else part
        self.documents = Part(vstack([known.Y, new.Y], format="csr"), X=vstack([known.X, new.X], format="csr"))
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
        self.documents = Part(self.documents.Y, X=X)
        for network in self.all_networks():
            network.features.tokens.grow(count, generator, std=self.settings.dimension**-0.5)

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels with random classifiers, on no shortlist yet."""
        self.counts = torch.cat([self.counts, self.counts.new_zeros(count)])
        self.label_count += count
        for network in self.all_networks():
            network.grow(count, generator)

    def more_tensors(self) -> State:
        """Return the documents, and what the learners have besides parameters and buffers."""
        more: State = {}
        if len(self.documents):
            more |= sparse_tensors("documents.Y", self.documents.Y, values=False)
            more |= sparse_tensors("documents.X", self.documents.X)
        for number, network in enumerate(self.all_networks()):
            more |= with_prefix(f"networks.{number}.", network.more_tensors())
        return more

    def take_tensors(self, more: State) -> None:
        """Restore the state that `more_tensors` returned."""
        if "documents.Y.indptr" in more:
            Y, X = (sparse_matrix(f"documents.{name}", more, width) for name, width in
                    (("Y", self.label_count), ("X", self.features)))  # fmt: skip
            self.documents = Part(Y, X=X)
        for number, network in enumerate(self.all_networks()):
            network.take_tensors(part_of(more, f"networks.{number}."))

    @classmethod
    def empty(cls, settings: AstecSettings, state: State) -> Self:
        """Return a model with as many learners as were trained."""
        count = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("networks."))
        return super().empty(replace(settings, learners=count), state)

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
        self.documents = Part(lesson.train.Y, X=lesson.train.X)
        for network in self.all_networks():
            known = network.centroids.documents
            network.centroids.documents = known[torch.arange(len(self.documents)) % len(known)]
            network.build(0)
        return time.perf_counter() - start
