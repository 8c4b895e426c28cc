"""Astec: token vectors learned on clusters of labels, then one-vs-all classifiers on shortlists of near labels.

Dahiya et al., *DeepXML: A Deep Extreme Multi-Label Learning Framework Applied to Short Text Documents*, WSDM 2021. Held
next to what others say of it, and to the authors' code, in docs/papers/astec.md, and in the paper's order: Modules I to
IV, re-ranker, ensemble. The parts of a learner are in astec_network.py, new labels and saving in astec_model.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from zipfel.config import Settings
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index.exact import products
from zipfel.labelspace.centroids import sparse_centroids
from zipfel.labelspace.clusters import balanced_clusters
from zipfel.labelspace.graph import walk_step
from zipfel.models.astec_model import AstecModel
from zipfel.models.astec_network import Network, all_labels
from zipfel.models.astec_settings import PRESETS
from zipfel.models.base import Lesson
from zipfel.models.decaf import trained_together
from zipfel.models.learner import BATCH, in_turn, labelled, ndcg_at_5, validation_of
from zipfel.models.lightdxml_beta import chosen_beta, figures_by_beta
from zipfel.models.reranker import Reranker
from zipfel.models.shortlisters import labels_to_clusters
from zipfel.models.tokens import start_tokens
from zipfel.nn.classifiers import OneVsAll
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import stored

HALVED_AT = 0.7  # of the steps: the authors halve the learning rate after 14 of 20 epochs


class Astec(AstecModel):
    """Learners that are trained one after the other, each with modules of its own."""

    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    most_held_out = 1000  # points: they only choose epochs and β, and are worth more in training

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

        reranker = self.new_reranker(run) if settings.reranker and self.reranker is None else self.reranker
        count, outcome = in_turn(learn, len(networks))
        self.networks = self.networks[:count]
        if reranker is None or outcome.interrupted:
            return outcome
        return self.learn_reranker(reranker, lesson, run, outcome)

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
            x = features(bags(part.X, rows).to(device), generator, settings.module1_dropout)
            return {"surrogate": all_labels(heads, x, None, bags(meta_Y, rows).to(device), None, decoupled=False)}

        def precision(held_out: Part) -> float:
            (scale, offset), H, encode = heads.scale_and_offset(), heads.composed(), features.prediction_encoder()
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

    # --- Re-ranker ----------------------------------------------------------------------------------------------------

    def learn_reranker(self, reranker: Reranker, lesson: Lesson, run: Run, outcome: Outcome) -> Outcome:
        """Train the re-ranker on the errors of all learners together; hold it unless its first epoch was stopped."""
        settings = self.settings
        schedule = self.schedule(lesson.train, settings.reranker_epochs, settings.reranker_learning_rate)
        try:
            more = reranker.fit(self.merged_learners(), lesson, self.top, schedule, run)
        except KeyboardInterrupt:  # while labels were ranked for all points
            return replace(outcome, interrupted=True)
        self.reranker = reranker if more.epochs else self.reranker
        epochs, seconds = outcome.epochs + more.epochs, outcome.seconds + more.seconds
        return replace(outcome, epochs=epochs, seconds=seconds, interrupted=more.interrupted)

    def schedule(self, part: Part, epochs: int, learning_rate: float) -> Schedule:
        """Return how long and how fast a module learns."""
        settings = self.settings
        batch_size = max(1, min(settings.batch_size, len(part) // 10))
        enough = max(epochs, math.ceil(settings.min_steps * batch_size / len(part)))
        halve_at = (HALVED_AT,) if settings.halve_learning_rate else ()
        return Schedule(enough, batch_size, learning_rate, halve_at=halve_at, patience=settings.patience, asked=epochs)
