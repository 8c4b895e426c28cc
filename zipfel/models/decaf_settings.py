"""Settings and presets of DECAF."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from zipfel.config import Settings, Span, setting
from zipfel.errors import ConfigError

EXACT = {"cpu": 25_000, "cuda": 2_000_000, "mps": 25_000}  # labels up to which all of them are trained and searched
SCALE = 2.5  # times ln n: initial factor of cosines with n classifiers
MOST_CLUSTERS = 1 << 17  # the authors' number for 1.3 million labels: more cost more time in search than they save


@dataclass(frozen=True)
class DecafSettings(Settings):
    """Settings of DECAF. Defaults are ours, chosen on validation; the preset `paper` has those of the authors."""

    dimension: int = setting(
        1024, "width D of the vectors of tokens, points and labels", at_least=1, search=[256, 512, 1024, 2048]
    )
    learners: int = setting(1, "learners whose scores are averaged", at_least=1)
    shortlist: Literal["none", "beam", "hnsw", "parabel"] | None = setting(
        None,
        "candidates: all labels (none), those of the best clusters (beam), the nearest (hnsw), of a tree (parabel); "
        "left open: none, or beam if labels are too many",
    )
    clusters: int | None = setting(None, "K, a power of two; left open: by labels_per_cluster, up to 2^17", at_least=1)
    labels_per_cluster: float = setting(4, "K left open: the largest power of two up to labels / this", at_least=2)
    beam: int | None = setting(None, "clusters opened, up to K; left open: chosen for 85 % of labels", at_least=1)
    beam_chosen_on: Literal["train", "validation"] = setting(
        "validation",
        "points that choose the beam: train, the fewest clusters with more than 85 % of its labels; "
        "validation, the same but at most 5 % of K and 256",
        was="judged",
    )
    loss: Literal["logistic", "decoupled"] = setting(
        "decoupled",
        "of Module IV: each label on its own, or each right label against all wrong ones",
        search=["decoupled", "logistic"],
    )
    add_missed_labels: bool = setting(True, "learn also from right labels that the shortlist missed", was="missed")
    label_text: bool = setting(True, "classifiers read the labels' texts, where there are any")
    text_in_classifiers: bool = setting(True, "Modules II and IV read label texts; false leaves them to Module I")
    unit_cluster_texts: bool = setting(False, "texts of clusters, which are sums of label texts, have length 1")
    label_bias: bool = setting(False, "classifiers of labels and clusters have a bias of their own (Modules II and IV)")
    refinement: bool = setting(True, "classifiers have a vector of their own for each label besides")
    refinement_init: Literal["text", "random"] = setting(
        "text",
        "refinement vectors at the start: sum of the label's token vectors (Module III), or random",
        was="start",
        search=["text", "random"],
    )
    token_init: str = setting("random", "token vectors at the start: random, fasttext, or a file", was="tokens")
    module1: bool = setting(True, "train Module I; false: Module II starts from the token vectors of token_init")
    lite: bool = setting(False, "token vectors stay as Module I leaves them, and learners share them")
    cosine: bool = setting(True, "points and classifiers have length 1 in training; one scale for all labels")
    relu: bool = setting(False, "x̂ ends in a ReLU")
    boost_rare_labels: bool = setting(
        True,
        "lengthen classifiers of rare labels, as far as held-out points are ranked as well; needs cosine",
        was="lift",
    )
    residual: bool = setting(
        True, "text blocks have a residual layer R; without it they are sums of token vectors", search=[True, False]
    )
    dropout: float = setting(
        0.5, "share of numbers dropped after each ReLU", at_least=0, below=1, was="drop", search=Span(0, 0.8)
    )
    module1_dropout: float = setting(0.5, "the same in Module I", at_least=0, below=1, was="first_drop")
    batch_size: int = setting(
        256,
        "points in a step; fewer if steps are fewer than min_steps",
        at_least=1,
        was="batch",
        search=[64, 128, 256, 512],
    )
    epochs: int = setting(4, "passes over train in Modules II and IV", at_least=1, search=[2, 4, 8, 16])
    module1_epochs: int = setting(
        20, "passes over train in Module I, and of a tree", at_least=1, was="first_epochs", search=[5, 10, 20]
    )
    min_steps: int = setting(250, "least steps of a module: smaller batches, then more passes", at_least=1, was="steps")
    learning_rate: float = setting(
        0.003, "highest learning rate", above=0, was="rate", search=Span(0.0005, 0.02, log=True)
    )
    module1_learning_rate: float = setting(0.01, "the same in Module I, and of a tree", above=0, was="first_rate")
    halve_learning_rate: bool = setting(
        False, "constant learning rate, halved half-way, and in Module I again after three quarters", was="halve"
    )
    patience: int = setting(10, "epochs without a better validation after which training stops", at_least=1)

    def check(self) -> None:
        """Check settings that belong together."""
        if self.clusters is not None and self.clusters & (self.clusters - 1):
            raise ConfigError(f"clusters must be a power of two; found {self.clusters}")
        for name in ("label_text", "text_in_classifiers"):
            if not (getattr(self, name) or self.refinement):
                raise ConfigError(f"{name} and refinement are both false, which leaves nothing of a classifier")

    @property
    def initial_std(self) -> float:
        """Standard deviation of random vectors (He et al., 2015)."""
        return math.sqrt(2 / self.dimension)

    def initial_scale(self, classifiers: int) -> float:
        """Return the initial factor of cosines with this many classifiers."""
        return SCALE * math.log(max(classifiers, 2))

    def cluster_offset(self, clusters: int) -> float:
        """Return the offset of the scores of this many clusters."""
        return -self.initial_scale(clusters) / 3 if self.cosine else 0.0

    @property
    def reads_texts(self) -> bool:
        """Whether classifiers of Modules II and IV read the labels' texts."""
        return self.label_text and self.text_in_classifiers

    def is_exact(self, labels: int, device: torch.device) -> bool:
        """Whether this many labels are trained and searched without a shortlist."""
        return labels <= EXACT[device.type] if self.shortlist is None else self.shortlist == "none"

    def cluster_count(self, labels: int) -> int:
        """Return K for this many labels: never more than half as many."""
        wanted, half = (1 << max(0, int(labels / share).bit_length() - 1) for share in (self.labels_per_cluster, 2))
        return min(self.clusters or min(wanted, MOST_CLUSTERS), half)


PRESETS: dict[str, DecafSettings] = {
    "paper": DecafSettings(  # value by value, with sources, in docs/papers/decaf.md; D is 512 from a million labels on
        dimension=300, learners=3, shortlist="beam", beam_chosen_on="train", loss="logistic", add_missed_labels=False,
        labels_per_cluster=2.25, unit_cluster_texts=True, label_bias=True,
        cosine=False, relu=True, boost_rare_labels=False, residual=True, dropout=0.2, batch_size=255, epochs=10,
        min_steps=1, learning_rate=0.008, halve_learning_rate=True, module1_dropout=0.5, module1_epochs=20,
        module1_learning_rate=0.01,
    ),
    "default": DecafSettings(),
    "fast": DecafSettings(dimension=512, batch_size=512, min_steps=200, learning_rate=0.004),
}  # fmt: skip
