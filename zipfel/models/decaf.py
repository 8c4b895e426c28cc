"""DECAF: one-vs-all classifiers that read the labels' own texts, on shortlists of clustered labels or on all labels.

Mittal et al., *DECAF: Deep Extreme Classification with Label Features*, WSDM 2021. Held next to the paper in
docs/papers/decaf.md, and in its order: training by Modules I to IV (Sec. 3.1). Text blocks, classifiers and scores
(Sec. 3) are in decaf_network.py, shortlisters in shortlisters.py, new labels and saving in decaf_model.py, and the
treatment of rare labels, which goes beyond the paper, in decaf_rare.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from zipfel.config import Settings
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.data.disk import counts_of
from zipfel.index.coarse import half_is_faster
from zipfel.index.exact import products, with_ones
from zipfel.labelspace.centroids import sparse_centroids
from zipfel.labelspace.clusters import balanced_clusters
from zipfel.models.base import Lesson
from zipfel.models.decaf_model import DecafModel, merged_texts
from zipfel.models.decaf_network import ClusterClassifiers, Network
from zipfel.models.decaf_rare import boost_rare
from zipfel.models.decaf_settings import PRESETS
from zipfel.models.learner import in_turn, labelled, matching_offset, ndcg_at_5, validation_of
from zipfel.models.shortlisters import SHORTLISTERS, ShortlistTask, batches, label_sums, labels_to_clusters
from zipfel.models.tokens import start_tokens
from zipfel.negatives import list_bags, pooled
from zipfel.nn import losses
from zipfel.nn.encoders import Reused
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, stored

SMALLEST_BATCH = 32  # points, unless train has too few
ONCE, TWICE = (0.5,), (0.5, 0.75)  # after which shares of their steps the authors halve rates: others, and Module I
PAYS_IN_HALF = 1 << 20  # numbers in the classifiers from which bfloat16 products pay off on a CPU that has them


class Decaf(DecafModel):
    """Learners that are trained one after the other, and share Module I."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    most_held_out = 1000  # points: they only choose an epoch and set offsets, and are worth more in training

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn; each module keeps the epoch that is best on validation."""
        part, warm = labelled(lesson.train), bool(self.counts.any())
        self.counts += torch.from_numpy(counts_of(part.Y)).to(self.counts)
        self.Z = merged_texts(self.Z, lesson.Z if lesson.Z is None or self.own is None else lesson.Z[self.own.rows])
        self.world = run.world
        for network in self.all_networks():
            network.world = run.world
        held_out = None if lesson.validation is None else labelled(lesson.validation) or None
        lesson = replace(lesson, train=part, validation=held_out)
        self.note_unused(run)
        if self.settings.token_init != "random" and not warm:
            self.start_tokens(lesson, run)
        if not warm and (self.settings.lite or not self.is_exact):
            if self.settings.module1:
                self.module_1(lesson, run)
            self.share_text_parts()
        networks = self.all_networks()

        def learn(number: int) -> Outcome:
            return self.modules_2_to_4(networks[number], number, lesson, run, warm)

        count, outcome = in_turn(learn, len(networks))
        self.networks = self.networks[:count]
        self.learned.fill_(len(self.counts))
        return outcome

    def start_tokens(self, lesson: Lesson, run: Run) -> None:
        """Start the token vectors of all learners from FastText's, or from those of a file."""
        first, *others = (network.tokens for network in self.all_networks())
        start_tokens(first, lesson, self.settings.token_init, self.settings.initial_std, run)
        for tokens in others:
            tokens.rows.copy_(first.rows)

    def modules_2_to_4(self, network: Network, number: int, lesson: Lesson, run: Run, warm: bool) -> Outcome:
        """Train a learner after Module I: its shortlister, the shortlists of train, and its classifiers."""
        if warm:
            new = self.start_new_labels(network, lesson.train)
        elif not self.is_exact:
            self.module_2(network, number, lesson, run)
        shortlister = network.shortlister
        opened = None if shortlister is None else shortlister.opened(lesson.train, number, run)
        if not warm:
            self.module_3(network)
        outcome = self.module_4(network, number, lesson, run, opened)
        if warm and shortlister is not None and shortlister.take_new_tokens(network.tokens):
            self.place_labels(shortlister, new, lesson.train)
        network.compose(self.classifier_texts)
        if self.settings.loss == "decoupled":
            self.set_lengths_and_offset(network, lesson, outcome)
        return outcome

    def module_1(self, lesson: Lesson, run: Run) -> None:
        """Do Module I: clusters of sparse centroids, and token vectors that separate clusters by text alone."""
        network, count = self.all_networks()[0], self.settings.cluster_count(len(self.counts))

        def clustered() -> State:
            centroids = sparse_centroids(lesson.train.X, lesson.train.Y, self.texts)
            return {"clusters": torch.from_numpy(balanced_clusters(centroids, count, run.numbers("clusters-1")))}

        clusters = run.stage("clusters-1", clustered, "labels")["clusters"].numpy()
        self.train_on_clusters("module-1", network, ClusterClassifiers(network, self.texts, clusters, 1), lesson, run)

    def share_text_parts(self) -> None:
        """Let all learners start Module II with the token vectors and text blocks of the first."""
        network, *others = self.all_networks()
        for other in others:
            if self.settings.lite:
                other.tokens = network.tokens
            for mine, shared in zip(other.text_parts(), network.text_parts(), strict=True):
                mine.load_state_dict(shared.state_dict())

    def module_2(self, network: Network, number: int, lesson: Lesson, run: Run) -> None:
        """Do Module II: clusters of dense centroids c_l = Σ E x_i, and the shortlister: S or an alternative."""
        part, settings, name = lesson.train, self.settings, f"clusters-2-{number}"

        def clustered() -> State:
            zeros = network.composed_classifiers.new_zeros(len(self.counts), settings.dimension)
            centroids = label_sums(network.tokens.eval(), part, self.texts, zeros)
            count = settings.cluster_count(len(self.counts))
            return {"clusters": torch.from_numpy(balanced_clusters(centroids, count, run.numbers(name)))}

        clusters = run.stage(name, clustered, "labels")["clusters"]
        meta = ClusterClassifiers(network, self.texts, clusters.numpy(), 2)
        self.train_on_clusters(f"module-2-{number}", network, meta, lesson, run)
        with torch.no_grad():
            H = meta.eval()(network)
        kind = SHORTLISTERS[settings.shortlist or "beam"]
        network.shortlister = kind(network.tokens, network.document_block, settings).to(H.device)
        tree_schedule = self.schedule(part, settings.module1_epochs, settings.module1_learning_rate, TWICE)
        clusters = clusters.to(H.device, torch.int32)
        network.shortlister.learn(ShortlistTask(clusters, H, lesson, self.texts, run, number, tree_schedule))

    def train_on_clusters(
        self, stage: str, network: Network, meta: ClusterClassifiers, lesson: Lesson, run: Run
    ) -> None:
        """Train against all clusters; validation is how often the best cluster contains a label of the point."""
        part, device, settings = lesson.train, self.counts.device, self.settings
        epochs, rate, dropout, halvings = (
            (settings.module1_epochs, settings.module1_learning_rate, settings.module1_dropout, TWICE)
            if meta.module == 1
            else (settings.epochs, settings.learning_rate, settings.dropout, ONCE)
        )
        clusters = meta.clusters.cpu().numpy()
        offset = torch.tensor(settings.cluster_offset(meta.count), device=device)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            points = network.encode(bags(part.X, rows).to(device), dropout, generator)
            H = meta(network, dropout, generator)
            meta_Y = labels_to_clusters(part.Y[rows], clusters, meta.count)
            return {"meta": losses.all_labels(with_ones(points, H), H, offset, bags(meta_Y).to(device))}

        def precision(held_out: Part) -> float:
            H = meta(network)
            points = (with_ones(network.encoded(held_out, rows), H) for rows in batches(len(held_out)))
            best = [products(some, H).argmax(dim=1) for some in points]
            truth = labels_to_clusters(held_out.Y, clusters, meta.count)
            return float(stored(truth, np.arange(len(held_out)), torch.cat(best).cpu().numpy()).mean())

        tokens = network.tokens if meta.module == 1 or not settings.lite else None
        parts = trained_together(
            heads=meta, document_block=network.document_block, label_block=network.label_block, tokens=tokens
        )
        network.tokens.eval()  # so that frozen tokens record no gradients; the trainer sets those that learn to train
        schedule = self.schedule(part, epochs, rate, halvings)
        validate = validation_of(lesson.validation, precision, "P@1 of clusters")
        if train(run, stage, parts, part.draws, objective, schedule, validate).interrupted:
            raise KeyboardInterrupt

    def module_3(self, network: Network) -> None:
        """Do Module III: R = I in both text blocks, and ẑ² = E z_l; α_L = β_L = 0 since the network was built.

        S is frozen: it has copies of E and E_D.
        """
        network.document_block.reset()
        network.label_block.reset()
        self.start_refinement(network, np.arange(len(network.refinement.rows)))  # of this rank's labels

    def module_4(self, network: Network, number: int, lesson: Lesson, run: Run, opened: Tensor | None) -> Outcome:
        """Do Module IV: train the classifiers against the labels of opened clusters [N, beam], or (ours) all labels."""
        part, device, settings, Z = lesson.train, self.counts.device, self.settings, self.classifier_texts
        all_texts = None if Z is None or opened is not None else Reused.of(bags(Z).to(device))
        index = None if network.shortlister is None else network.shortlister.index()

        world, labels = run.world, network.own

        def mine(pairs: Bags) -> Bags:
            return pairs.to(device) if labels is None else pairs.among(labels).to(device)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            own = mine(bags(part.Y, rows))
            filtered = None if part.filtered is None else mine(bags(part.filtered, rows))
            share = world.share(len(rows))
            points = network.encode(bags(part.X, rows[share.rows]).to(device), settings.dropout, generator, share)
            points = with_ones(world.gather(points, len(rows)), network.composed_classifiers)
            if opened is not None and index is not None:
                ids = index.labels(opened[torch.from_numpy(rows)].long().to(device))  # [B, beam · M]
                candidates = pooled(own, list_bags(ids), filtered, settings.add_missed_labels)
                texts = None if Z is None else bags(Z, candidates.labels.cpu().numpy()).to(device)
                W = network.classifiers(candidates.labels, texts, settings.dropout, generator)
                loss = losses.decoupled if settings.loss == "decoupled" else losses.logistic
                return {settings.loss: loss(points @ W.T + network.offset, candidates.targets, candidates.mask)}
            W = network.classifiers(None, all_texts, settings.dropout, generator)
            if settings.loss == "decoupled":
                return {"decoupled": losses.decoupled_all(points, W, own, filtered, world)}
            return {"logistic": losses.all_labels(points, W, network.offset, own, filtered)}

        def quality(held_out: Part) -> float:
            network.compose(Z)
            return ndcg_at_5(network.learner(self.counts, len(self.counts)), held_out)

        parts = trained_together(
            document_block=network.document_block, label_block=network.label_block, refinement=network.refinement,
            combination=network.combination, bias=network.bias, scale=network.scale, offset=network.offset,
            tokens=None if settings.lite else network.tokens,
        )  # fmt: skip
        network.tokens.eval()
        schedule = self.schedule(part, settings.epochs, settings.learning_rate)
        validate = validation_of(lesson.validation, quality, "nDCG@5")
        return train(run, f"module-4-{number}", parts, part.draws, objective, schedule, validate)

    def set_lengths_and_offset(self, network: Network, lesson: Lesson, outcome: Outcome) -> None:
        """Set the parameters that the decoupled loss does not learn: lengths of classifiers, and the offset."""
        if self.settings.boost_rare_labels and self.settings.cosine:
            try:
                boost_rare(network, self.counts, None if outcome.interrupted else lesson.validation)
            except KeyboardInterrupt:
                outcome.interrupted = True
        part = lesson.validation if lesson.validation is not None else lesson.train

        def scores(sample: Part) -> Tensor:
            W = network.composed_classifiers
            return products(with_ones(network.encoded(sample, np.arange(len(sample))), W), W)  # [N, L]

        network.offset.detach().fill_(matching_offset(part, scores, self.own, self.world))

    def schedule(self, part: Part, epochs: int, learning_rate: float, halvings: tuple[float, ...] = ONCE) -> Schedule:
        """Return how long and how fast a module learns.  halvings: shares of its steps, if rates are halved."""
        settings = self.settings
        most = max(SMALLEST_BATCH, epochs * len(part) // settings.min_steps)
        batch_size = max(1, min(settings.batch_size, most, len(part) // 10))
        enough = max(epochs, math.ceil(settings.min_steps * batch_size / len(part)))
        half = len(self.counts) * settings.dimension >= PAYS_IN_HALF and half_is_faster()
        return Schedule(enough, batch_size, learning_rate, halve_at=halvings if settings.halve_learning_rate else (),
                        patience=settings.patience, half=half, asked=epochs)  # fmt: skip


def trained_together(**parts: nn.Module | nn.Parameter | None) -> nn.Module:
    """Return the parts that a module of the paper trains as one; None is left out."""
    whole = nn.Module()
    for name, part in parts.items():
        setattr(whole, name, part)
    return whole
