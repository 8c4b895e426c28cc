"""LightDXML: labels placed among the points, a one-vs-all classifier on shortlists of near labels, and a cycle of both.

Mishra et al., *Light-weight Deep Extreme Multilabel Classification*, IJCNN 2023. Held next to the paper in
docs/papers/lightdxml.md, and in its order: features (Sec. IV-A), label encoder (IV-B), classifier (IV-D), Algorithm 1
with shortlists (IV-C) and the cycle (IV-E), prediction (IV-F).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.config import setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index import Index, Kind, build_index, load_index
from zipfel.index.exact import ExactIndex, all_products, products
from zipfel.models.base import (
    BATCH,
    Learner,
    Lesson,
    labelled,
    level,
    share_right,
)
from zipfel.models.mixed import Mixed, chosen_beta, curve
from zipfel.models.tokens import start_tokens
from zipfel.negatives import pooled, within
from zipfel.nn import losses
from zipfel.nn.classifiers import OneVsAll
from zipfel.nn.encoders import Ready, Table, TextBlock, dropped, keep_features, unique_ids, weighted_sum
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags, stored

EXACT = 50_000  # labels up to which looking at all of them beats a graph: docs/decisions/010-shared-candidates.md


@dataclass(frozen=True)
class LightSettings:
    """Settings of LightDXML. Defaults are ours, chosen on validation; the preset `paper` has those of Table V."""

    dimension: int = setting(2048, "width D of the vectors of tokens, points and labels")
    tokens: str = setting("random", "token vectors at the start: random, fasttext (learned from train), or a file")
    relu: bool = setting(False, "ReLU at the end of the label encoder, Eq. (4)")
    cosine: bool = setting(True, "points and classifiers have length 1; one scale and offset for all labels")
    shortlist: int | None = setting(None, "k, labels in a shortlist; none: 5 % of all, 100 to 700")
    index: Kind | None = setting(
        None, "how labels are searched: exact, hnsw or ivf; none: exact up to 50,000, else hnsw"
    )
    loss: Literal["logistic", "decoupled"] = setting(
        "logistic", "of the classifier: each label for itself, Eq. (3), or each right label against all wrong ones"
    )
    shared: bool = setting(True, "labels on the shortlists of a batch's other points count as wrong ones too")
    residual: bool = setting(True, "a residual layer behind the sum of token vectors, as DECAF's text block has it")
    keep: float = setting(1.0, "share of features that a step keeps")
    dropout: float = setting(
        0.5, "share of numbers that a step drops: behind the ReLU of the residual layer, or of sums"
    )
    batch: int = setting(256, "points a step, at most a tenth of train")
    epochs: int = setting(4, "e_model, epochs of the classifier; more, where they are fewer than `steps` steps")
    steps: int = setting(400, "least number of steps of the classifier")
    cycle: int | None = setting(None, "ê_label, epochs after which labels are placed anew; none: a quarter of all")
    label_epochs: int = setting(1, "e_label, epochs of the label encoder each time")
    rate: float = setting(0.002, "highest learning rate of the classifier")
    label_rate: float = setting(0.001, "highest learning rate of the label encoder")
    patience: int = setting(10, "epochs without a better validation after which to stop")
    beta: float | None = setting(None, "β, weight of the classifier against the shortlist; none: chosen on validation")
    half: bool = setting(False, "save vectors in float16, in half the space")
    deterministic: bool = setting(True, "false builds on all cores, never twice the same")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in ("dimension", "shortlist", "batch", "epochs", "steps", "cycle", "patience"):
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
        return self.index or ("exact" if labels <= EXACT or device.type == "cuda" else "hnsw")


PRESETS: dict[str, LightSettings] = {
    "paper": LightSettings(  # Table V for EURLex-4K; D, batch and the label encoder's rate are not in the paper
        dimension=300, tokens="fasttext", relu=True, cosine=False, shortlist=500, index="hnsw", shared=False,
        residual=False, keep=1.0, dropout=0.5, epochs=16, steps=1, cycle=8, label_epochs=8, rate=0.006, beta=0.75,
    ),
    "default": LightSettings(),
    "fast": LightSettings(dimension=1024, epochs=2, steps=200, rate=0.004),
}  # fmt: skip


class Features(nn.Module):
    """Ẑ_x, Sec. IV-A: the tf-idf-weighted sum of token vectors, and a residual layer; with `cosine`, of length 1."""

    def __init__(self, features: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.unit, self.keep, self.dropout = settings.cosine, settings.keep, settings.dropout
        self.tokens = Table(features, settings.dimension, generator, scale=settings.dimension**-0.5)
        self.block = TextBlock(settings.dimension) if settings.residual else None

    def forward(self, points: Bags, generator: torch.Generator) -> Tensor:
        """Return x̂, [B, D], for learning: some features and some numbers are dropped."""
        sums = self.tokens(keep_features(points, self.keep, generator))
        encode = dropped if self.block is None else self.block
        found: Tensor = encode(sums, self.dropout, generator)
        return F.normalize(found, dim=1) if self.unit else found

    def ready(self) -> Ready:
        """Return what encodes points for prediction."""
        return Ready(self.tokens, self.block, self.unit)


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
        """Map [U, D] to [U, D]: by one product, W₂ W₁, for the layers have nothing between them and labels are many."""
        inner, outer = self.inner, self.outer
        placed = F.linear(centroids, outer.weight @ inner.weight, outer(inner.bias))
        return F.relu(placed) if self.relu else placed


def centroids_of(Y: csr_array, vectors: Tensor) -> Tensor:
    """Return μ, [L, D], Eq. (5): the mean of the vectors [N, D] of a label's points; 0 where it has none."""
    owned = bags(Y.T.tocsr()).to(vectors.device)
    counts = owned.offsets.diff()
    weights = (1 / counts.clamp_min(1)).repeat_interleave(counts)
    return weighted_sum(owned.ids, vectors, Bags(owned.ids, weights, owned.offsets))


class LightDxml(nn.Module):
    """Features, label encoder and classifier; `places` are the labels' vectors ŷ, of length 1 or 0, [L, D]."""

    held_out = 0.05  # of train, for validation; it is not learned from
    places: Tensor
    counts: Tensor  # points of each label, [L]

    def __init__(self, features: int, labels: int, settings: LightSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings, self.features = settings, features
        self.encoder = Features(features, settings, generator)
        self.classifier = OneVsAll(labels, settings.dimension, settings.cosine, generator)
        self.label_encoder = LabelEncoder(settings.dimension, settings.relu)
        self.register_buffer("places", torch.zeros(labels, settings.dimension))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int32))
        self.index: Index | None = None
        self.beta = 0.75 if settings.beta is None else settings.beta

    def device(self) -> torch.device:
        """Return where the model lives."""
        return self.places.device

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn, and choose β on validation."""
        self.classifier.unfold()
        if self.index is None and self.settings.tokens != "random":
            settings, spread = self.settings, self.settings.dimension**-0.5
            start_tokens(self.encoder.tokens, lesson, settings.tokens, spread, run, settings.deterministic)  # Step 1
        outcome = self.learn(lesson, run)
        if lesson.validation and self.settings.beta is None:
            self.beta = chosen_beta(curve(self.learner(), lesson.validation, lesson))
        return outcome

    def learn(self, lesson: Lesson, run: Run) -> Outcome:
        """Go through the cycles; the epoch that is best by P@1 on validation stays, or else the last."""
        part, validation, settings = labelled(lesson.train), lesson.validation or None, self.settings
        batch = max(1, min(settings.batch, len(part) // 10))
        epochs = max(settings.epochs, math.ceil(settings.steps * batch / len(part)))
        cycle = settings.cycle or max(1, epochs // 4)
        self.counts += torch.from_numpy(np.bincount(part.Y.indices, minlength=len(self.places))).to(self.counts)
        near: Tensor | None = None

        def turn(done: int, resumed: bool) -> None:
            nonlocal near
            number, within = divmod(done, cycle)
            if resumed:  # with the places of labels that it had, whatever its points have become since
                self.build(run.seed)
                kept = run.load(f"shortlists-{number}")
                near = kept[0]["near"] if kept is not None else None
            elif within == 0:  # Step 5: a cycle of steps 2 to 4 begins, or the last one has ended
                vectors = self.encoded(part.X)
                self.place_labels(part, vectors, lesson, run, f"labels-{number}")
                run.forget(f"shortlists-{number - 2}")  # those before this one are needed until a checkpoint
                if done < epochs:
                    near = run.stage(f"shortlists-{number}", lambda: {"near": self.shortlists(vectors)})["near"]

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            assert near is not None
            return {"logistic": self.loss(part, rows, near[rows], generator)}

        def precision() -> float:
            assert validation is not None
            self.level(validation)
            return share_right(self.learner(), validation)

        schedule = Schedule(epochs, batch, settings.rate, patience=settings.patience)
        judge = precision if validation is not None else None
        outcome = train(run, "lightdxml", self, len(part), objective, schedule, judge, turn)
        if self.encoder.block is not None:
            self.encoder.block.R.detach().copy_(rounded(self.encoder.block.R.detach()))
        kept = outcome.best_epoch + 1 or outcome.epochs
        if kept % cycle and not outcome.interrupted:  # within a cycle: the labels lag behind the points
            try:
                self.place_labels(part, self.encoded(part.X), lesson, run, "labels-last")
            except KeyboardInterrupt:
                outcome = replace(outcome, interrupted=True)
        self.level(part if validation is None else validation)
        self.places.copy_(rounded(self.places))
        self.build(run.seed)
        return outcome

    def level(self, part: Part) -> None:
        """Set the offset, where the loss does not learn it."""
        if self.settings.loss == "decoupled":
            scale, W = self.classifier.scale.detach(), self.classifier.composed()
            self.classifier.offset.detach().fill_(level(part, lambda some: scale * products(self.encoded(some.X), W)))

    def place_labels(self, part: Part, vectors: Tensor, lesson: Lesson, run: Run, stage: str) -> None:
        """Step 2: learn to map the centroids of labels near their points [N, D], Eq. (2), map them, and index them.

        A label without points is placed by its text, where it has one, as if that were its only point.
        """
        settings, Z, centroids = self.settings, lesson.Z, centroids_of(part.Y, vectors)
        texts = np.zeros(len(centroids), dtype=bool) if Z is None else np.diff(Z.indptr) > 0
        alone = np.flatnonzero(texts & (np.bincount(part.Y.indices, minlength=len(texts)) == 0))
        if len(alone) and Z is not None:
            centroids[torch.from_numpy(alone).to(centroids.device)] = self.encoded(Z[alone])

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            own = bags(part.Y, rows).to(centroids.device)
            labels, places = unique_ids(own.ids)
            placed = self.label_encoder(centroids[labels])
            points = vectors[torch.from_numpy(rows).to(centroids.device)]
            return {"distance": losses.log_distance(points, placed, own.offsets, places)}

        if settings.label_epochs:
            schedule = Schedule(settings.label_epochs, max(1, min(2048, len(part) // 10)), settings.label_rate)
            if train(run, stage, self.label_encoder, len(part), objective, schedule).interrupted:
                raise KeyboardInterrupt
        with torch.no_grad():
            known = centroids.abs().amax(dim=1, keepdim=True) > 0
            placed = F.normalize(self.label_encoder(centroids), dim=1)
            self.places.copy_(torch.where(known, placed, self.places))  # what was placed by earlier points stays
        self.build(run.seed)
        if lesson.validation:
            run.log(stage=stage, recall=self.shortlist_recall(lesson.validation))

    def shortlists(self, vectors: Tensor) -> Tensor:
        """Step 3, Eq. (6): the k labels nearest to each point by cosine, [N, k]."""
        assert self.index is not None
        k = self.settings.width(len(self.places))
        near = torch.cat([self.index.search(chunk, k).ids.int().cpu() for chunk in torch.split(vectors, BATCH)])
        return torch.where(near < 0, near[:, :1], near)  # a graph may find too few

    def loss(self, part: Part, rows: NDArray[np.int64], near: Tensor, generator: torch.Generator) -> Tensor:
        """Step 4: one-vs-all on P_i ∪ S_k(x_i), Eq. (3), (7) and (8); `shared`, on the lists of the whole batch."""
        device, decoupled = self.device(), self.settings.loss == "decoupled"
        own, listed = bags(part.Y, rows).to(device), listed_bags(near.to(device))
        filtered = None if part.filtered is None else bags(part.filtered, rows).to(device)
        vectors = self.encoder(bags(part.X, rows).to(device), generator)  # [B, D]
        if not self.settings.shared:
            found = pooled(own, listed, filtered)
            loss = losses.decoupled if decoupled else losses.logistic
            return loss(self.classifier(vectors, found.labels), found.targets, found.mask)
        pool = torch.unique(torch.cat([own.ids, listed.ids]))  # [S]
        W, offset = self.classifier.scaled(pool), self.classifier.offset
        right, left_out = within(own, pool), None if filtered is None else within(filtered, pool)
        if decoupled:
            return losses.decoupled_all(vectors, W, right, left_out)
        return losses.all_labels(vectors, W, offset, right, left_out)

    # --- Prediction, Sec. IV-F ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def encoded(self, X: csr_array) -> Tensor:
        """Return the vectors of points, [N, D]."""
        ready, starts = self.encoder.ready(), range(0, X.shape[0], BATCH)
        return torch.cat([ready(bags(X[start : start + BATCH]).to(self.device())) for start in starts])

    def build(self, seed: int) -> None:
        """Index the places of labels."""
        kind = self.settings.kind(len(self.places), self.device())
        self.index = build_index(kind, self.places, seed, self.settings.deterministic)

    def learner(self) -> Learner:
        """Return what prediction needs."""
        assert self.index is not None
        kind = self.settings.kind(len(self.places), self.device())
        if kind == "exact" or isinstance(self.index, ExactIndex):  # the model may have been moved
            self.index = ExactIndex(self.places)
        scale, offset = self.classifier.line()
        mixed = Mixed(self.places, self.classifier.composed(), scale, offset, self.counts, self.beta,
                      self.settings.width(len(self.places)))  # fmt: skip
        return Learner(self.encoder.ready(), self.index, mixed, self.device())

    @torch.no_grad()
    def text_scores(self, learner: Learner, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores of labels that are known by their texts [n, features] only, [B, n].

        A text counts as the label's only point: its vector stands for w, and Z_l maps it to ŷ.
        """
        queries, own, (scale, offset) = learner.encode(X), self.encoded(Z), self.classifier.line()
        classifier = torch.sigmoid((scale * all_products(queries, own) + offset).double())
        placed = F.normalize(self.label_encoder(own), dim=1)
        shortlist = torch.sigmoid(all_products(F.normalize(queries, dim=1), placed).double())
        scores = (self.beta * classifier + (1 - self.beta) * shortlist).float()
        return scores * (queries.abs().amax(dim=1, keepdim=True) > 0)

    def shortlist_recall(self, part: Part) -> float:
        """Return the share of a part's labels that are on the shortlists of their points."""
        near = self.shortlists(self.encoded(part.X)).numpy().astype(np.int64)
        ends = np.arange(0, near.size + 1, near.shape[1])
        listed = csr_array((np.ones(near.size), np.sort(near, axis=1).ravel(), ends), shape=part.Y.shape)
        rows, labels = part.Y.nonzero()
        return float(stored(listed, rows, labels).mean()) if len(rows) else 1.0

    # --- Saving, and labels that come later --------------------------------------------------------------------------

    def saved(self) -> tuple[State, State]:
        """Return what prediction needs, and what learning needs besides."""
        assert self.index is not None
        serve = {name: value for name, value in self.state_dict().items() if not name.startswith("label_encoder.")}
        serve["classifier.labels.rows"] = self.classifier.composed()
        for name in {"places", "encoder.block.R"} & set(serve):
            serve[name] = serve[name].half()  # which loses nothing: they are `rounded`
        serve["beta"] = torch.tensor(self.beta, dtype=torch.float64)  # in float32 the last bits of scores would change
        if self.settings.half:
            serve = {name: value.half() if value.ndim == 2 else value for name, value in serve.items()}
        serve |= {f"index.{name}": value for name, value in self.index.state().items()}
        encoder = {f"label_encoder.{name}": value for name, value in self.label_encoder.state_dict().items()}
        return serve, encoder | self.classifier.lengths()

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Add labels behind those that are there."""
        self.classifier.grow(count, generator)
        self.places = torch.cat([self.places, self.places.new_zeros(count, self.places.shape[1])])
        self.counts = torch.cat([self.counts, self.counts.new_zeros(count)])


def rounded(values: Tensor) -> Tensor:
    """Return what float16 would keep of numbers: places spare as much space as the residual layer takes, or more."""
    return values.half().float()


def listed_bags(near: Tensor) -> Bags:
    """Return shortlists [B, k] as bags."""
    ids, ends = near.long().flatten(), torch.arange(0, near.numel() + 1, near.shape[1], device=near.device)
    return Bags(ids, torch.ones_like(ids, dtype=torch.float32), ends)


build = LightDxml


def restored(sizes: Mapping[str, int], settings: LightSettings, serve: State, train: State) -> LightDxml:
    """Return a model with saved weights, which are taken as they are (mapped, not copied) but for float16.

    One that was saved before there was a residual layer has none, whatever is the default now.
    """
    model = LightDxml(0, 0, replace(settings, residual="encoder.block.R" in serve), torch.Generator())
    model.features, model.beta = sizes["features"], float(serve["beta"])
    serve = {name: value.float() if value.dtype == torch.float16 else value for name, value in serve.items()}
    for name, table in (("encoder.tokens", model.encoder.tokens), ("classifier.labels", model.classifier.labels)):
        table.rows = nn.Parameter(serve[f"{name}.rows"], requires_grad=False)
    model.places, model.counts = serve["places"], serve["counts"]
    model.load_state_dict({name: {**serve, **train}[name] for name in model.state_dict()}, assign=True)
    model.classifier.stored_lengths = train.get("classifier.lengths")
    kind = settings.kind(len(model.places), torch.device("cpu"))
    index = {name.removeprefix("index."): value for name, value in serve.items() if name.startswith("index.")}
    model.index = load_index(kind, index, model.places)
    return model.eval()
