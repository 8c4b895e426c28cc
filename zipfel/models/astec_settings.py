"""Settings and presets of Astec."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from zipfel.config import Settings, Span, setting
from zipfel.errors import ConfigError
from zipfel.index import Kind

EXACT = 50_000  # labels or documents up to which an exact search beats a graph: docs/decisions/010-shared-candidates.md
MOST_CLUSTERS = 1 << 16  # the authors' number for 131 thousand labels and more


@dataclass(frozen=True)
class AstecSettings(Settings):
    """Settings of Astec. Defaults are ours; the preset `paper` has those of the authors' code for EURLex-4K."""

    dimension: int = setting(
        2048, "width D of the vectors of tokens, points and labels", at_least=1, search=[512, 1024, 2048]
    )
    learners: int = setting(1, "learners whose scores are averaged; Astec-3 has 3", at_least=1)
    token_init: str = setting("random", "token vectors at the start: random, fasttext, or a file")
    features: Literal["relu", "signed"] = setting(
        "signed",
        "v: ReLU of the sum of token vectors, then x̂ = v + ReLU(R v + b); or the signed sum, then DECAF's text block",
        search=["relu", "signed"],
    )
    residual: bool = setting(True, "x̂ has a residual layer behind v; without it, x̂ = v", search=[True, False])
    cosine: bool = setting(True, "points and classifiers have length 1; one scale and offset for all labels")
    biases: bool = setting(True, "classifiers have a bias for each label", search=[True, False])
    clusters: int | None = setting(None, "L̂ of Module I, a power of two; none: up to L / 2 and 2^16", at_least=1)
    smoothing: Literal["none", "clusters", "both"] = setting(
        "none",
        "centroids are averaged with those of labels that share points: in Module I (clusters), or I and II (both)",
        search=["none", "both"],
    )
    gamma: float = setting(
        0.0, "γ, weight of near documents' labels in shortlists; 0: no documents are kept", at_least=0, at_most=1
    )
    neighbours: int = setting(100, "documents that a search finds, where γ is above 0", at_least=1)
    search_by: Literal["intermediate", "final"] = setting(
        "final",
        "vectors of the search for labels: v, before the residual layer, or x̂",
        search=["intermediate", "final"],
    )
    shortlist_size: int | None = setting(None, "labels on a shortlist; none: 5 % of all labels, 100 to 700", at_least=1)
    index: Kind | None = setting(None, "index of labels: exact, hnsw or ivf; none: exact up to 50,000, else hnsw")
    negatives: Literal["own", "shared", "all"] = setting(
        "shared",
        "wrong labels of a step: the point's own shortlist, the shortlists of the whole batch, or all labels",
        search=["shared", "all"],
    )
    random_negatives: int = setting(0, "random labels added to each shortlist, at each step", at_least=0)
    loss: Literal["logistic", "decoupled"] = setting(
        "decoupled",
        "of Module IV: each label on its own, or each right label against all wrong ones",
        search=["logistic", "decoupled"],
    )
    freeze_tokens: bool = setting(False, "token vectors stay as Module I leaves them", search=[True, False])
    refresh_epochs: int | None = setting(
        1,
        "epochs after which shortlists are made again; none: never. Without effect if search_by is frozen",
        at_least=1,
    )
    dropout: float = setting(
        0.5, "share dropped after each ReLU, or of a signed v", at_least=0, below=1, search=Span(0, 0.8)
    )
    module1_dropout: float = setting(0.5, "the same in Module I", at_least=0, below=1)
    batch_size: int = setting(256, "points in a step, at most a tenth of train", at_least=1, search=[64, 128, 256, 512])
    epochs: int = setting(
        4, "passes over train in Module IV; more to reach `min_steps` steps", at_least=1, search=[2, 4, 8, 16]
    )
    module1_epochs: int = setting(4, "the same in Module I; 0 leaves it out", at_least=0, search=[0, 2, 4, 8])
    min_steps: int = setting(400, "least number of steps of Modules I and IV", at_least=1)
    learning_rate: float = setting(
        0.002, "highest learning rate of Module IV", above=0, search=Span(0.0003, 0.01, log=True)
    )
    module1_learning_rate: float = setting(0.004, "the same in Module I", above=0, search=Span(0.001, 0.03, log=True))
    reranker: bool = setting(False, "a second encoder and classifiers learn to rank the first labels again")
    reranker_epochs: int = setting(4, "passes over train of the re-ranker", at_least=1)
    reranker_learning_rate: float = setting(0.002, "highest learning rate of the re-ranker", above=0)
    halve_learning_rate: bool = setting(False, "constant learning rates, halved after 7 tenths of the steps")
    patience: int = setting(10, "epochs without a better validation after which training stops", at_least=1)
    beta: float | None = setting(None, "β, weight of the classifier; none: by validation", at_least=0, at_most=1)
    deterministic: bool = setting(True, "false builds the index on all cores, with a different result each time")

    def check(self) -> None:
        """Check settings that belong together."""
        if self.clusters is not None and self.clusters & (self.clusters - 1):
            raise ConfigError(f"clusters must be a power of two; found {self.clusters}")
        if self.freeze_tokens and not self.module1_epochs and self.token_init == "random":
            raise ConfigError(
                "freeze_tokens=true and module1_epochs=0 leave random token vectors as they are; "
                "set token_init, or more epochs"
            )

    def cluster_count(self, labels: int) -> int:
        """Return L̂ for this many labels: a power of two, never more than half as many."""
        half = 1 << max(0, (labels // 2).bit_length() - 1)
        return min(self.clusters or MOST_CLUSTERS, half)

    def width(self, labels: int) -> int:
        """Return the size of a shortlist for this many labels."""
        return min(labels, self.shortlist_size or max(100, min(700, math.ceil(labels / 20))))

    def kind(self, rows: int, device: torch.device) -> Kind:
        """Return the kind of index for this many labels or documents."""
        return self.index or ("exact" if rows <= EXACT or device.type == "cuda" else "hnsw")

    @property
    def searches_apart(self) -> bool:
        """Whether shortlists have scores that the vectors of classifiers do not give."""
        return self.gamma > 0 or (self.search_by == "intermediate" and self.residual)

    @property
    def search_is_frozen(self) -> bool:
        """Whether Module IV leaves the vectors of the search as they are."""
        return self.freeze_tokens and (self.search_by == "intermediate" or not self.residual)


PRESETS: dict[str, AstecSettings] = {
    "paper": AstecSettings(  # the authors' configuration for EURLex-4K; docs/papers/astec.md has all sources
        dimension=300, token_init="fasttext", features="relu", cosine=False, smoothing="clusters", gamma=0.075,
        neighbours=100, search_by="intermediate", shortlist_size=500, index="hnsw", negatives="own", loss="logistic",
        random_negatives=200, freeze_tokens=True, refresh_epochs=None, dropout=0.5, module1_dropout=0.5,
        batch_size=255, epochs=20, module1_epochs=20, min_steps=1, learning_rate=0.007, module1_learning_rate=0.01,
        reranker=True, reranker_epochs=15, reranker_learning_rate=0.005, halve_learning_rate=True, beta=0.3,
    ),
    "default": AstecSettings(),
    "fast": AstecSettings(dimension=512, epochs=2, module1_epochs=2, min_steps=200, learning_rate=0.004),
}  # fmt: skip
