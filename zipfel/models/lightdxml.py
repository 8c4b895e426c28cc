"""LightDXML: labels placed among the points, a one-vs-all classifier on shortlists of near labels, and a cycle of both.

Mishra et al., *Light-weight Deep Extreme Multilabel Classification*, IJCNN 2023. Held next to the paper in
docs/papers/lightdxml.md, and in its order: Algorithm 1 with features (Sec. IV-A), label encoder (IV-B), shortlists
(IV-C), classifier (IV-D), the cycle (IV-E), prediction (IV-F).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel import metrics
from zipfel.config import setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part, Propensity
from zipfel.errors import ConfigError
from zipfel.index import Index, Kind, build_index, load_index
from zipfel.models.base import BATCH, Learner, Lesson, labelled, most_filtered, ranking_of, row_products, share_right
from zipfel.negatives import holds
from zipfel.nn import losses
from zipfel.nn.encoders import Table, keep_features, unique_ids, weighted_sum
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, Ranking, Shortlist


@dataclass(frozen=True)
class LightSettings:
    """Settings of LightDXML. Defaults are ours, chosen on validation; the preset `paper` has those of Table V."""

    dimension: int = setting(1024, "width D of the vectors of points and labels")
    tokens: str = setting("random", "token vectors to start from: random, fasttext (trained on train), a .vec or .bin file")
    relu: bool = setting(False, "ReLU at the end of the label encoder, Eq. (4)")
    cosine: bool = setting(True, "points and classifiers have length 1, with one scale and offset for all labels")
    scale: float | None = setting(None, "what cosines are multiplied by at the start; none: 2.5 ln L")
    shortlist: int | None = setting(None, "k, labels in a shortlist; none: 5 % of the labels, 100 to 700")
    index: Kind | None = setting(None, "how labels are searched: exact, hnsw or ivf; none: exact up to 20,000, else hnsw")
    keep: float = setting(0.9, "share of features that a step keeps")
    dropout: float = setting(0.0, "share of the numbers of a point's vector that a step drops")
    batch: int = setting(256, "points a step, at most a tenth of train")
    epochs: int = setting(4, "e_model, epochs of the classifier")
    label_epochs: int = setting(1, "e_label, epochs of the label encoder each time")
    cycle: int = setting(2, "ê_label, epochs of the classifier after which labels are placed anew")
    rate: float = setting(0.002, "highest learning rate of the classifier")
    label_rate: float = setting(0.001, "highest learning rate of the label encoder")
    patience: int = setting(4, "epochs without a better validation after which to stop")
    beta: float | None = setting(None, "β, weight of the classifier against the shortlist; none: chosen on validation")
    masked: bool = setting(True, "")
    full: bool = setting(False, "")
    bias: bool = setting(False, "")
    deterministic: bool = setting(True, "false builds on all cores, never twice the same")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("dimension", "shortlist", "batch", "epochs", "cycle", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; found {value}")
        if self.label_epochs < 0:
            raise ConfigError(f"label_epochs must be at least 0; found {self.label_epochs}")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must lie in (0, 1]; found {self.keep}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1); found {self.dropout}")
        if self.beta is not None and not 0 <= self.beta <= 1:
            raise ConfigError(f"beta must lie in [0, 1]; found {self.beta}")

    def width(self, labels: int) -> int:
        """Return k for so many labels."""
        return min(labels, self.shortlist or max(100, min(700, math.ceil(labels / 20))))

    def kind(self, labels: int, device: torch.device) -> Kind:
        """Return how so many labels are searched."""
        return self.index or ("exact" if labels <= 20_000 or device.type == "cuda" else "hnsw")


PRESETS: dict[str, LightSettings] = {
    "paper": LightSettings(
        dimension=300, tokens="fasttext", relu=True, cosine=False, shortlist=500, index="hnsw", keep=1.0, dropout=0.5,
        epochs=16, label_epochs=8, cycle=8, rate=0.006, beta=0.75,
    ),
    "default": LightSettings(),
    "fast": LightSettings(dimension=512, epochs=2, cycle=1),
}  # fmt: skip


# --- Step 1: features, Sec. IV-A --------------------------------------------------------------------------------------


class Features(nn.Module):
    """Ẑ_x: the tf-idf-weighted sum of token vectors; with `cosine`, of length 1."""

    def __init__(self, features: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.unit, self.keep, self.dropout = settings.cosine, settings.keep, settings.dropout
        self.tokens = Table(features, settings.dimension, generator, scale=settings.dimension**-0.5)

    def forward(self, points: Bags, generator: torch.Generator | None = None) -> Tensor:
        """Return x̂, [B, D]; with a generator, some features and some numbers are dropped."""
        if generator is not None:
            points = keep_features(points, self.keep, generator)
        found = self.tokens(points)
        if generator is not None and self.dropout:
            kept = torch.rand(found.shape, generator=generator) >= self.dropout
            found = found * kept.to(found.device) / (1 - self.dropout)
        return F.normalize(found, dim=1) if self.unit else found


# --- Step 2: label encoder, Sec. IV-B ---------------------------------------------------------------------------------


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
        """Map [U, D] to [U, D]."""
        placed: Tensor = self.outer(self.inner(centroids))
        return F.relu(placed) if self.relu else placed


def centroids_of(Y: csr_array, vectors: Tensor) -> Tensor:
    """Return μ, [L, D], Eq. (5): the mean of the vectors [N, D] of a label's points; 0 where it has none."""
    by_label = bags(Y.T.tocsr()).to(vectors.device)
    counts = by_label.offsets.diff().clamp_min(1)
    weights = (1 / counts).repeat_interleave(by_label.offsets.diff())
    return weighted_sum(by_label.ids, vectors, Bags(by_label.ids, weights, by_label.offsets))


# --- Step 4: classifier, Sec. IV-D ------------------------------------------------------------------------------------


class OneVsAll(nn.Module):
    """Z: a vector w_l for each label; a point's score is w_l · x̂, or scale · cosine + offset."""

    def __init__(self, labels: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.unit = settings.cosine
        self.rows = Table(labels, settings.dimension, generator, scale=settings.dimension**-0.5)
        self.b = nn.Parameter(torch.zeros(labels)) if settings.bias else None
        scale = 2.5 * math.log(max(labels, 2)) if settings.scale is None else settings.scale
        if self.unit:
            self.scale = nn.Parameter(torch.tensor(float(scale)))
            self.offset = nn.Parameter(torch.tensor(-scale / 3))

    def forward(self, vectors: Tensor, labels: Tensor) -> Tensor:
        """Return the scores of points [B, D] against labels [S], [B, S]."""
        W = self.rows.gather(labels)
        b = 0 if self.b is None else self.b[labels]
        return self.scale * (vectors @ F.normalize(W, dim=1).T) + self.offset + b if self.unit else vectors @ W.T + b

    def composed(self) -> tuple[Tensor, Tensor]:
        """Return what prediction multiplies with, [L, D], and adds."""
        rows = self.rows.rows.detach()
        if not self.unit:
            return rows, rows.new_zeros(())
        return self.scale.detach() * F.normalize(rows, dim=1), self.offset.detach()


class LightDxml(nn.Module):
    """Features, label encoder and classifier; `places` are the labels' vectors ŷ, of length 1, [L, D]."""

    held_out = 0.05  # of train, for validation; it is not learned from
    places: Tensor

    def __init__(self, features: int, labels: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings, self.features = settings, features
        self.encoder = Features(features, settings, generator)
        self.classifier = OneVsAll(labels, settings, generator)
        self.label_encoder = LabelEncoder(settings.dimension, settings.relu)
        self.register_buffer("places", torch.zeros(labels, settings.dimension))
        self.index: Index | None = None
        self.beta = 0.75 if settings.beta is None else settings.beta

    def device(self) -> torch.device:
        """Return where the model lives."""
        return self.places.device

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn: steps 1 to 5, and β on validation; the epoch that is best by P@1 on validation stays."""
        settings, part, validation = self.settings, labelled(lesson.train), lesson.validation
        batch = max(1, min(settings.batch, len(part) // 10))
        near = torch.empty(0)

        def turn(done: int) -> None:
            nonlocal near
            cycle, within = divmod(done, settings.cycle)
            vectors = None
            if within == 0:
                vectors = self.encoded(part)
                self.learn_labels(part, vectors, lesson.Z, run, f"labels-{cycle}")
                self.built(run.seed)
                if validation is not None:
                    run.log(stage=f"shortlist-{cycle}", recall=self.shortlist_recall(validation))
            elif len(near):
                return
            if done < settings.epochs and not settings.full:
                near = run.stage(f"shortlist-{cycle}", lambda: {"near": self.shortlists(part, vectors)})["near"]

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            return {"logistic": self.loss(part, rows, near[rows] if len(near) else None, generator)}

        def precision() -> float:
            assert validation is not None
            return share_right(self.learner(), validation)

        schedule = Schedule(settings.epochs, batch, settings.rate, patience=settings.patience)
        measure = precision if validation is not None else None
        outcome = train(run, "lightdxml", self, len(part), objective, schedule, measure, turn)
        self.built(run.seed)
        if validation is not None and settings.beta is None:
            self.beta = chosen_beta(self.learner(), validation, part.Y, lesson.propensity)
        return outcome

    def learn_labels(self, part: Part, vectors: Tensor, Z: csr_array | None, run: Run, stage: str) -> None:
        """Step 2: learn to map centroids near the points that have the label, Eq. (2), and place all labels."""
        settings, mu = self.settings, centroids_of(part.Y, vectors)
        known = torch.from_numpy(np.diff(part.Y.T.tocsr().indptr) > 0).to(mu.device)
        if Z is not None:
            told = torch.from_numpy(np.diff(Z.indptr) > 0).to(mu.device) & ~known
            if bool(told.any()):
                rows = told.nonzero()[:, 0]
                mu[rows] = self.encode_bags(bags(Z, rows.cpu().numpy()))
                known = known | told

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            positives = bags(part.Y, rows).to(mu.device)
            unique, places = unique_ids(positives.ids)
            own = vectors[torch.from_numpy(rows).to(mu.device)]
            return {"distance": losses.log_distance(own, self.label_encoder(mu[unique]), positives.offsets, places)}

        if settings.label_epochs:
            schedule = Schedule(settings.label_epochs, min(2048, max(1, len(part) // 10)), settings.label_rate)
            outcome = train(run, stage, self.label_encoder, len(part), objective, schedule)
            if outcome.interrupted:
                raise KeyboardInterrupt
        with torch.no_grad():
            self.places.copy_(F.normalize(self.label_encoder(mu), dim=1) * known[:, None])

    def shortlists(self, part: Part, vectors: Tensor) -> Tensor:
        """Step 3: the k labels nearest to each point, [N, k]."""
        assert self.index is not None
        k = self.settings.width(len(self.places))
        found = [self.index.search(chunk, k).ids.int().cpu() for chunk in vectors.split(BATCH)]
        return torch.cat(found)

    def loss(self, part: Part, rows: NDArray[np.int64], near: Tensor | None, generator: torch.Generator) -> Tensor:
        """Step 4: one-vs-all on P_i ∪ S_k(x_i), Eq. (3), (7), (8)."""
        settings, device = self.settings, self.device()
        points, positives = bags(part.X, rows).to(device), bags(part.Y, rows).to(device)
        vectors = self.encoder(points, generator)  # [B, D]
        if near is None:
            pool = torch.arange(len(self.places), device=device)
            own = holds(positives, pool)
            candidates = torch.ones_like(own)
        else:
            listed = listed_bags(near.to(device))
            pool = unique_ids(torch.cat([positives.ids, listed.ids]))[0]  # [S] sorted
            own = holds(positives, pool)  # [B, S]
            candidates = own | holds(listed, pool) if settings.masked else torch.ones_like(own)
        if part.filtered is not None:
            candidates &= ~holds(bags(part.filtered, rows).to(device), pool)
        return losses.logistic(self.classifier(vectors, pool), own.float(), candidates)

    # --- Prediction, Sec. IV-F ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def encode_bags(self, points: Bags) -> Tensor:
        self.encoder.eval()
        found: Tensor = self.encoder(points.to(self.device()))
        return found

    def encoded(self, part: Part) -> Tensor:
        """Return the vectors of a part's points, [N, D]."""
        starts = range(0, len(part), BATCH)
        return torch.cat([self.encode_bags(bags(part.X[start : start + BATCH])) for start in starts])

    def built(self, seed: int) -> None:
        kind = self.settings.kind(len(self.places), self.device())
        self.index = build_index(kind, self.places, seed, self.settings.deterministic)

    def learner(self) -> Learner:
        """Return what prediction needs."""
        assert self.index is not None
        W, offset = self.classifier.composed()
        width = self.settings.width(len(self.places))
        return Learner(self.encoder, self.index, Mixed(self.places, W, offset, self.beta, width), self.device())

    def shortlist_recall(self, part: Part) -> float:
        """Return the share of a part's labels that are on the shortlists of their points."""
        near = self.shortlists(part, self.encoded(part)).numpy().astype(np.int64)
        rows = np.repeat(np.arange(len(near)), near.shape[1])
        listed = csr_array((np.ones(near.size), (rows, near.ravel())), shape=part.Y.shape)
        return float(listed.multiply(part.Y).sum() / max(part.Y.nnz, 1))


def listed_bags(near: Tensor) -> Bags:
    """Return shortlists [B, k] as bags."""
    ids = near.long().flatten()
    return Bags(ids, torch.ones_like(ids, dtype=torch.float32), torch.arange(0, len(ids) + 1, near.shape[1], device=ids.device))


@dataclass(frozen=True)
class Mixed:
    """Scores shortlisted labels by β σ(classifier) + (1 − β) σ(cosine)."""

    vectors: Tensor  # ŷ [L, D], unit
    W: Tensor  # [L, D]
    offset: Tensor
    beta: float
    shortlist: int

    def width(self, k: int) -> int:
        return self.shortlist

    @torch.no_grad()
    def parts(self, queries: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        unit = F.normalize(queries, dim=1)
        return row_products(queries, self.W, ids) + self.offset, row_products(unit, self.vectors, ids)

    def mixed(self, logits: Tensor, cosines: Tensor) -> Tensor:
        return (self.beta * torch.sigmoid(logits.double()) + (1 - self.beta) * torch.sigmoid(cosines.double())).float()

    def rescore(self, queries: Tensor, shortlist: Shortlist, k: int) -> Ranking:
        logits, cosines = self.parts(queries, shortlist.ids)
        return ranking_of(Shortlist(shortlist.ids, self.mixed(logits, cosines)), k)


BETAS = tuple(step / 20 for step in range(21))


def chosen_beta(learner: Learner, validation: Part, Y: csr_array, propensity: Propensity) -> float:
    mixed = learner.classifier
    assert isinstance(mixed, Mixed)
    validation = validation.take(np.arange(min(len(validation), 4000)))
    queries = learner.encode(validation.X)
    shortlist = learner.index.search(queries, mixed.shortlist)
    logits, cosines = mixed.parts(queries, shortlist.ids)
    inverse = metrics.inverse_propensities(np.bincount(Y.indices, minlength=Y.shape[1]), Y.shape[0], *propensity)
    table = {}
    for beta in BETAS:
        ranking = ranking_of(Shortlist(shortlist.ids, replace(mixed, beta=beta).mixed(logits, cosines)), 5 + most_filtered(validation.filtered))
        if validation.filtered is not None:
            ranking = ranking.without(validation.filtered)
        found = metrics.measure(ranking.top(5), validation.Y, inverse)
        table[beta] = found
    chosen_beta.table = table
    return max(BETAS, key=lambda beta: sum(table[beta][n] for n in ("P@1", "P@3", "P@5")))


build = LightDxml
