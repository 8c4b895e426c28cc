"""Settings and presets of LightDXML."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch

from zipfel.config import Settings, Span, setting
from zipfel.index import Kind

EXACT = 50_000  # labels up to which an exact search beats a graph: docs/decisions/010-shared-candidates.md


@dataclass(frozen=True)
class LightSettings(Settings):
    """Settings of LightDXML. Defaults are ours, chosen on validation; the preset `paper` has those of Table V."""

    dimension: int = setting(
        768, "width D of the vectors of tokens, points and labels", at_least=1, search=[512, 768, 1024, 2048]
    )
    token_init: str = setting("random", "token vectors at the start: random, fasttext, or a file", was="tokens")
    relu: bool = setting(False, "ReLU at the end of the label encoder, Eq. (4)")
    cosine: bool = setting(True, "points and classifiers have length 1; one scale and offset for all labels")
    shortlist_size: int | None = setting(None, "k; none: 5 % of all labels, 100 to 700", at_least=1, was="shortlist")
    negatives: int | None = setting(
        None, "labels of a shortlist, the nearest, that training uses; none: a quarter, at least 25", at_least=1
    )
    index: Kind | None = setting(None, "index of labels: exact, hnsw or ivf; none: exact up to 50,000, else hnsw")
    loss: Literal["logistic", "decoupled"] = setting(
        "decoupled",
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
    reranker: bool = setting(False, "a second encoder and classifier, as Astec's, learn from the first labels' errors")
    float16: bool = setting(False, "save vectors in float16, in half the space", was="half")
    deterministic: bool = setting(True, "false builds the index on all cores, with a different result each time")

    def width(self, labels: int) -> int:
        """Return k for this many labels."""
        return min(labels, self.shortlist_size or max(100, min(700, math.ceil(labels / 20))))

    def trained_width(self, labels: int) -> int:
        """Return how many labels of a shortlist training uses, for this many labels."""
        width = self.width(labels)
        return min(width, self.negatives or max(25, width // 4))

    def kind(self, labels: int, device: torch.device) -> Kind:
        """Return the kind of index for this many labels."""
        return self.index or ("exact" if labels <= EXACT or device.type == "cuda" else "hnsw")


PRESETS: dict[str, LightSettings] = {
    # Table V for EURLex-4K; value by value in docs/papers/lightdxml.md. 700: all of S_k, of which Table V has up to 650
    "paper": LightSettings(
        dimension=300, token_init="fasttext", relu=True, cosine=False, shortlist_size=500, negatives=700, index="hnsw",
        loss="logistic", shared_negatives=False, residual=False, dropout=0.0, batch_size=255, epochs=16, min_steps=1,
        cycle_epochs=8, label_epochs=8, learning_rate=0.006, label_learning_rate=0.003, beta=0.75,
    ),
    "default": LightSettings(),
    "fast": LightSettings(dimension=512, epochs=2, min_steps=200, learning_rate=0.004),
}  # fmt: skip
