"""DECAF apart from its training: the networks of its learners, prediction, new labels, saving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index.exact import all_products
from zipfel.models.base import Abilities, Model, Tensors
from zipfel.models.decaf_network import FIFTH, DecafClassifier, Network, cautious
from zipfel.models.decaf_settings import DecafSettings
from zipfel.models.learner import BATCH, Learner, Predictor, learner_of
from zipfel.models.saving import check_range, sparse_matrix, sparse_tensors
from zipfel.models.shortlisters import SHORTLISTERS, Shortlister
from zipfel.models.split import collected_rows
from zipfel.training.ranks import World
from zipfel.training.run import Run, State, part_of, with_prefix
from zipfel.types import Share


class DecafModel(Model):
    """The learners of DECAF, their labels and the labels' texts. `Decaf` adds training by Modules I to IV."""

    train_only = (
        "Z.*", "networks.*.label_block.*", "networks.*.refinement.*", "networks.*.combination.*", "networks.*.bias.*",
        "*.rare_power",
    )  # fmt: skip
    settings: DecafSettings
    counts: Tensor  # training points of each label, [L]
    learned: Tensor  # labels that existed in training; those after them are known by their texts only

    def __init__(
        self, features: int, labels: int, settings: DecafSettings, generator: torch.Generator, own: Share | None = None
    ) -> None:
        super().__init__(features, labels, settings, generator)
        self.own = own
        self.Z = csr_array((labels if own is None else own.size, features), dtype=np.float32)  # texts of labels
        self.networks = nn.ModuleList(
            Network(features, labels, settings, generator, own) for _ in range(settings.learners)
        )
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int32))
        self.register_buffer("learned", torch.tensor(labels))

    @classmethod
    def abilities(cls, settings: DecafSettings) -> Abilities:
        """Return the abilities of DECAF: all that label texts allow."""
        return Abilities(
            reads_label_texts=True,
            scores_label_texts=True,
            takes_labels_by_text=True,
            takes_new_words=not settings.lite,  # whose token vectors Module IV does not train
            splits_labels=True,
            takes_shortlist=True,
            weights_points=True,
            reads_mapped_data=True,
        )

    @property
    def texts(self) -> csr_array | None:
        """The labels' texts, where they are read and there are any."""
        return self.Z if self.settings.label_text and self.Z.nnz else None

    @property
    def classifier_texts(self) -> csr_array | None:
        """The labels' texts that Modules II and IV read."""
        return self.texts if self.settings.text_in_classifiers else None

    @property
    def is_exact(self) -> bool:
        """Whether all labels are trained and searched, without a shortlist."""
        return self.own is not None or self.settings.is_exact(len(self.counts), self.counts.device)

    def check_split(self) -> None:
        """Check that all labels are trained, without clusters: each rank folds the loss over its own."""
        if self.settings.shortlist not in (None, "none") or self.settings.lite:
            found = "lite=true" if self.settings.lite else f"shortlist={self.settings.shortlist}"
            raise ConfigError(f"decaf with {found} trains clusters, which several ranks cannot; set shortlist=none")

    def join(self) -> None:
        """Take the labels of all ranks and their texts."""
        if self.own is not None:
            self.Z = collected_rows(self.Z, self.own, self.world)
        super().join()
        for network in self.all_networks():
            network.world = World()

    def note_unused(self, run: Run) -> None:
        """Note in the run which settings of clusters were given in vain, because all labels are trained."""
        settings = self.settings
        unused = [name for name, given in (("beam", settings.beam), ("clusters", settings.clusters)) if given]
        if settings.lite and "clusters" in unused:
            unused.remove("clusters")  # Module I has clusters in any case
        if unused and self.is_exact:
            labels = f"all {len(self.counts):,} labels are trained and searched"
            run.note(f"{' and '.join(unused)} without effect: {labels}; set shortlist=beam for clusters")

    def all_networks(self) -> list[Network]:
        """Return the networks of all learners."""
        return [network for network in self.networks if isinstance(network, Network)]

    # --- Prediction --------------------------------------------------------------------------------------------------

    def learners(self) -> Sequence[Learner]:
        """Return the learners."""
        return [network.learner(self.counts, int(self.learned)) for network in self.all_networks()]

    @torch.no_grad()
    def text_scores(self, predictor: Predictor, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores [B, n] that the first learner gives labels known by their texts [n, V] only."""
        network, learner = self.all_networks()[0].eval(), learner_of(predictor)
        classifier, queries = learner.classifier, learner.encode(X)
        assert isinstance(classifier, DecafClassifier)
        shortlist = learner.index.search(learner.keys(X, queries), classifier.width(FIFTH))
        ids, learned = classifier.scored(queries, shortlist)
        W = network.cold_classifiers(bags(Z).to(queries.device))
        scores = cautious((all_products(queries, W) + network.offset).double(), learned, ids >= 0)
        known = queries[:, : self.settings.dimension].abs().amax(dim=1, keepdim=True) > 0
        return scores.float() * known

    # --- New labels, and saving --------------------------------------------------------------------------------------

    @torch.no_grad()
    def start_refinement(self, network: Network, labels: NDArray[np.int64]) -> None:
        """Start refinement vectors at ẑ² = E z_l where there is a text; elsewhere they are random."""
        if self.settings.refinement_init == "text" and self.texts is not None:
            described = labels[np.diff(self.texts.indptr)[labels] > 0]
            for some in np.split(described, range(BATCH, len(described), BATCH)):
                texts = bags(self.texts[some]).to(self.counts.device)
                network.refinement.rows[torch.from_numpy(some)] = network.tokens.eval()(texts)

    def start_new_labels(self, network: Network, part: Part) -> Tensor:
        """Prepare labels without a classifier for a warm start, and return them."""
        new = torch.nonzero(~network.composed_classifiers.any(dim=1))[:, 0]
        self.start_refinement(network, new.cpu().numpy())
        if network.bias is not None:
            network.bias.rows[new] = network.mean_bias()
        self.place_labels(network.shortlister, new, part)
        return new

    def place_labels(self, shortlister: Shortlister | None, new: Tensor, part: Part) -> None:
        """Assign new labels to clusters by their points or texts, so that shortlists contain them."""
        if shortlister is not None and len(new):
            counts = torch.from_numpy(np.bincount(part.Y.indices, minlength=len(self.counts)))[new.cpu()]
            sums = shortlister.centroids(part, self.texts, len(self.counts))[new]
            shortlister.assign(new, sums / counts.clamp_min(1).to(sums)[:, None])

    def add_features(self, count: int, generator: torch.Generator) -> None:
        """Append tokens with random vectors; shortlisters, which a warm fit does not train, get them when it ends."""
        width = self.Z.shape[1] + count
        self.Z = csr_array((self.Z.data, self.Z.indices, self.Z.indptr), shape=(self.Z.shape[0], width))
        self.features += count
        for network in self.all_networks():
            network.tokens.grow(count, generator, std=self.settings.initial_std)
            if network.shortlister is not None:
                network.shortlister.tokens.grow(count, generator, std=0.0)

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Append labels without points or texts."""
        pointers = np.pad(self.Z.indptr, (0, count), mode="edge")
        self.Z = csr_array((self.Z.data, self.Z.indices, pointers), shape=(len(pointers) - 1, self.Z.shape[1]))
        self.counts = torch.cat([self.counts, self.counts.new_zeros(count)])
        self.label_count += count
        for network in self.all_networks():
            network.refinement.grow(count, generator, std=self.settings.initial_std)
            if network.bias is not None:
                network.bias.grow(count, generator, std=0.0)
            network.composed_classifiers = F.pad(network.composed_classifiers, (0, 0, 0, count))
            if network.shortlister is not None:
                network.shortlister.grow(count, generator)

    @torch.no_grad()
    def add_label_texts(self, Z: csr_array) -> None:
        """Append labels scored by their texts [S, V] at once: ẑ¹ = E_L(z), ẑ² = E z; S finds their clusters."""
        first, texts = len(self.counts), bags(Z).to(self.counts.device)
        self.add_labels(Z.shape[0], torch.Generator().manual_seed(0))
        self.Z = csr_array(vstack([self.Z[:first], Z]))
        new = torch.arange(first, len(self.counts), device=self.counts.device)
        for network in self.all_networks():
            network.eval()
            network.refinement.rows[new] = network.tokens(texts)
            if network.bias is not None:
                network.bias.rows[new] = network.mean_bias()
            network.composed_classifiers[new] = network.cold_classifiers(texts)
            if network.shortlister is not None:
                network.shortlister.assign(new, network.shortlister.encoder()(texts))

    def more_tensors(self) -> State:
        """Return the texts of labels, and the state of shortlisters that is no buffer."""
        more = sparse_tensors("Z", self.Z)
        for number, network in enumerate(self.all_networks()):
            if network.shortlister is not None:
                state = network.shortlister.more_tensors(int(self.learned))
                more |= with_prefix(f"networks.{number}.shortlister.index.", state)
        return more

    def take_tensors(self, more: State) -> None:
        """Restore the state that `more_tensors` returned."""
        self.Z = sparse_matrix("Z", more, self.features, self.label_count)
        check_range("learned", self.learned, self.label_count + 1)
        for number, network in enumerate(self.all_networks()):
            if network.shortlister is not None:
                state = part_of(more, f"networks.{number}.shortlister.index.")
                network.shortlister.check(self.label_count)
                network.shortlister.take_tensors(state, int(self.learned))

    @classmethod
    def restored(cls, features: int, labels: int, settings: DecafSettings, tensors: Tensors) -> Self:
        """Return a saved model. One that was saved before labels had a bias has none, whatever its preset has now."""
        W = tensors.all.get("networks.0.composed_classifiers")
        has_bias = settings.label_bias and (W is None or W.shape[1] > settings.dimension)
        return super().restored(features, labels, replace(settings, label_bias=has_bias), tensors)

    @classmethod
    def empty(cls, settings: DecafSettings, state: State, features: int = 0, labels: int = 0) -> Self:
        """Return a model with as many learners as were trained, and their shortlisters."""
        count = sum(name.startswith("networks.") and name.endswith(".composed_classifiers") for name in state)
        model = super().empty(replace(settings, learners=count), state, features, labels)
        for number, network in enumerate(model.all_networks()):
            if settings.lite:
                network.tokens = model.all_networks()[0].tokens
            if f"networks.{number}.shortlister.heads" in state:
                network.shortlister = SHORTLISTERS[settings.shortlist or "beam"](
                    network.tokens, network.document_block, settings
                )
        return model


def merged_texts(old: csr_array, new: csr_array | None) -> csr_array:
    """Return label texts [L, V] in which a new text replaces the old one; labels without a new text keep theirs."""
    if new is None:
        return old
    given = (np.diff(new.indptr) > 0).astype(np.float32)
    kept = csr_array(old.multiply((1 - given)[:, None]))
    merged = csr_array(kept + csr_array(new.multiply(given[:, None])))
    merged.eliminate_zeros()
    return merged
