"""DECAF: one-vs-all classifiers that read the labels' own texts, on shortlists of clustered labels or on all labels.

Mittal et al., *DECAF: Deep Extreme Classification with Label Features*, WSDM 2021. Held next to the paper in
docs/papers/decaf.md, and in its order: text blocks and classifiers (Sec. 3), Modules I to IV (3.1), prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack
from torch import Tensor, nn

from zipfel.config import setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.errors import ConfigError
from zipfel.index import load_index
from zipfel.index.coarse import half_is_faster
from zipfel.index.exact import all_products, products
from zipfel.labelspace.centroids import sparse_centroids
from zipfel.labelspace.clusters import balanced_clusters
from zipfel.models.base import BATCH, Ensemble, Learner, Lesson, labelled, level, ndcg
from zipfel.models.decaf_network import (
    FIFTH,
    Finder,
    Heads,
    Likely,
    Network,
    batches,
    cautious,
    clustered_labels,
    encoded,
    head_offset,
    padded_bags,
)
from zipfel.models.shortlisters import MAKERS, Task, grow, label_sums, place, shortlists
from zipfel.models.tokens import start_tokens
from zipfel.negatives import pooled
from zipfel.nn import losses
from zipfel.nn.encoders import Reused, Table
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import stored

EXACT = {"cpu": 25_000, "cuda": 2_000_000}  # labels up to which all of them are trained and searched
MOST_CLUSTERS = 1 << 17  # as the authors have for 1.3 million labels: more take longer to search than they spare
FEWEST = 32  # points of a batch, unless train has too few
LARGE = 1 << 20  # numbers of the classifiers, from which short products are worth it on a CPU that has them


@dataclass(frozen=True)
class DecafSettings:
    """Settings of DECAF. Defaults are ours, chosen on validation; the preset `paper` has those of the authors."""

    dimension: int = setting(1024, "width D of the vectors of tokens, points and labels")
    learners: int = setting(1, "learners whose scores are averaged")
    shortlist: Literal["none", "beam", "hnsw", "parabel"] | None = setting(
        None,
        "how labels are found: none looks at all, beam at those of the best clusters, hnsw at the nearest, "
        "parabel at leaves of a tree; left open: none or beam, as they fit",
    )
    clusters: int | None = setting(
        None, "K, a power of two; left open: the largest up to a quarter of the labels, and 2^17"
    )
    beam: int | None = setting(None, "clusters opened; left open: so that 85 % of the labels of `judged` are found")
    judged: Literal["train", "validation"] = setting(
        "validation", "points that decide on the beam; train, where nothing is held out"
    )
    loss: Literal["logistic", "decoupled"] = setting(
        "decoupled", "of Module IV: each label for itself, or each right label against all wrong ones"
    )
    missed: bool = setting(True, "labels that are right are learned from even where the shortlist missed them")
    label_text: bool = setting(True, "classifiers read the labels' texts, where there are any")
    refinement: bool = setting(True, "classifiers have a vector for each label besides")
    start: Literal["text", "random"] = setting(
        "text", "where refinement vectors begin: at the label's tokens, Module III"
    )
    tokens: str = setting("random", "token vectors at the start: random, fasttext (learned from train), or a file")
    lite: bool = setting(False, "token vectors stay as Module I leaves them, and learners share them")
    cosine: bool = setting(True, "points and classifiers learn with length 1; one scale and offset for all labels")
    relu: bool = setting(False, "x̂ ends in a ReLU")
    lift: bool = setting(
        True,
        "with cosines and the decoupled loss, classifiers of rare labels are longer than 1 at the end, as far as "
        "held-out points are ranked as well",
    )
    residual: bool = setting(
        True, "text blocks have a residual layer R; without it they leave sums of tokens as they are"
    )
    keep: float = setting(1.0, "share of features that a step keeps")
    drop: float = setting(0.5, "share of numbers that a step drops behind each ReLU")
    first_drop: float = setting(0.5, "the same in Module I")
    batch: int = setting(256, "points a step; fewer, where they are fewer than `steps` steps")
    epochs: int = setting(4, "passes over train, in Modules II and IV")
    first_epochs: int = setting(20, "passes over train in Module I, and of a tree's nodes")
    steps: int = setting(250, "least number of steps of a module: by batches down to 32 points, then by more passes")
    rate: float = setting(0.003, "highest learning rate")
    first_rate: float = setting(0.01, "the same in Module I, and of a tree's nodes")
    halve: bool = setting(False, "the rate is halved half-way, and is not changed else")
    patience: int = setting(10, "epochs without a better validation after which to stop")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        for name in (
            "dimension",
            "learners",
            "clusters",
            "beam",
            "batch",
            "epochs",
            "first_epochs",
            "steps",
            "patience",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1; found {value}")
        for name in ("drop", "first_drop"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"{name} must lie in [0, 1); found {getattr(self, name)}")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must lie in (0, 1]; found {self.keep}")
        if self.clusters is not None and self.clusters & (self.clusters - 1):
            raise ConfigError(f"clusters must be a power of two; found {self.clusters}")
        if not (self.label_text or self.refinement):
            raise ConfigError("label_text and refinement are both false, which leaves nothing of a classifier")

    @property
    def spread(self) -> float:
        """Standard deviation of random vectors (He et al., 2015)."""
        return math.sqrt(2 / self.dimension)

    def looks_at_all(self, labels: int, device: torch.device) -> bool:
        """Tell whether so many labels are trained and searched without a shortlist."""
        return labels <= EXACT[device.type] if self.shortlist is None else self.shortlist == "none"

    def cluster_count(self, labels: int) -> int:
        """Return K for so many labels: never more than half as many."""
        quarter, half = (1 << max(0, (labels // share).bit_length() - 1) for share in (4, 2))
        return min(self.clusters or min(quarter, MOST_CLUSTERS), half)


PRESETS: dict[str, DecafSettings] = {
    "paper": DecafSettings(  # D, K and the beam follow the size of the data, as the authors' do
        dimension=512, learners=3, shortlist="beam", judged="train", loss="logistic", missed=False, cosine=False,
        relu=True, lift=False, residual=True, drop=0.2, batch=255, epochs=10, steps=1, rate=0.008, halve=True,
        first_drop=0.5, first_epochs=20, first_rate=0.01,
    ),
    "default": DecafSettings(),
    "fast": DecafSettings(dimension=512, batch=512, steps=200, rate=0.004),
}  # fmt: skip


class Decaf(nn.Module):
    """Learners that are trained one after the other, and share Module I."""

    held_out = 0.05  # of train, for validation; it is not learned from
    most_held_out = 1000  # points: they only choose an epoch and set levels, and what they could teach is worth more
    reads_label_texts = True
    counts: Tensor  # points of each label, [L]

    def __init__(self, features: int, labels: int, settings: DecafSettings, generator: torch.Generator) -> None:
        super().__init__()
        self.settings, self.features, self.Z = settings, features, csr_array((labels, features), dtype=np.float32)
        self.networks = nn.ModuleList(Network(features, labels, settings, generator) for _ in range(settings.learners))
        self.register_buffer("counts", torch.zeros(labels, dtype=torch.int32))
        self.learned = labels  # those behind them, which came later, are known by their texts alone

    # --- 3.1 Training ------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn; of each module the epoch that is best on validation stays."""
        part, warm = labelled(lesson.train), bool(self.counts.any())
        self.counts += torch.from_numpy(np.bincount(part.Y.indices, minlength=len(self.counts))).to(self.counts)
        self.take_texts(lesson.Z)
        held = None if lesson.validation is None else labelled(lesson.validation)
        lesson = replace(lesson, train=part, validation=held if held is not None and len(held) else None)
        if self.settings.tokens != "random" and not warm:
            for network in self.each():
                start_tokens(network.tokens, lesson, self.settings.tokens, self.settings.spread, run)  # DECAF-FFT
        exact = self.settings.looks_at_all(len(self.counts), self.counts.device)
        if not warm and (self.settings.lite or not exact):
            self.first_module(lesson, run)
        outcomes: list[Outcome] = []
        for number, network in enumerate(self.each()):
            try:
                outcomes.append(self.learn(network, number, lesson, run, warm))
            except KeyboardInterrupt:
                if not outcomes:  # nothing can be ranked yet
                    raise
                outcomes[-1].interrupted = True
            if outcomes[-1].interrupted:
                break
        self.networks, self.learned = self.networks[: len(outcomes)], len(self.counts)
        return Outcome(outcomes[0].best, outcomes[0].best_epoch, sum(outcome.epochs for outcome in outcomes),
                       sum(outcome.seconds for outcome in outcomes), outcomes[-1].interrupted)  # fmt: skip

    def learn(self, network: Network, number: int, lesson: Lesson, run: Run, warm: bool) -> Outcome:
        """Train a learner after Module I."""
        new = torch.nonzero(~network.vectors.any(dim=1))[:, 0]  # of which no classifier has been worked out
        if warm:
            self.start_refinement(network, new.cpu().numpy())
            self.place(network, new, lesson.train)
        elif not self.settings.looks_at_all(len(self.counts), self.counts.device):
            self.second_module(network, number, lesson, run)
        near = shortlists(network, number, lesson.train, run)
        if not warm:
            self.third_module(network)
        outcome = self.fourth_module(network, number, lesson, run, near)
        network.compose(self.texts())
        if self.settings.loss == "decoupled":
            self.set_levels(network, lesson, outcome)
        return outcome

    def set_levels(self, network: Network, lesson: Lesson, outcome: Outcome) -> None:
        """Set what the loss does not see: lengths of classifiers, and the offset."""
        if self.settings.lift and self.settings.cosine:
            try:
                network.lift_rare(self.counts, None if outcome.interrupted else lesson.validation)
            except KeyboardInterrupt:
                outcome.interrupted = True
        part = lesson.validation if lesson.validation is not None else lesson.train
        network.offset.detach().fill_(level(part, lambda some: self.scores(network, some)))

    @staticmethod
    def scores(network: Network, part: Part) -> Tensor:
        """Return the scores of all labels, without an offset, [N, L]."""
        return products(encoded(network, part, np.arange(len(part))), network.vectors)

    def texts(self) -> csr_array | None:
        """Return the labels' texts, where they are read and there are any."""
        return self.Z if self.settings.label_text and self.Z.nnz else None

    def take_texts(self, Z: csr_array | None) -> None:
        """Take texts of labels; a label of which nothing is told keeps what it has."""
        if Z is not None:
            told = (np.diff(Z.indptr) > 0).astype(np.float32)
            kept = csr_array(self.Z.multiply((1 - told)[:, None]))
            self.Z = csr_array(kept + csr_array(Z.multiply(told[:, None])))
            self.Z.eliminate_zeros()

    def first_module(self, lesson: Lesson, run: Run) -> None:
        """Do Module I: clusters of sparse centroids, and token vectors that tell them apart by text alone.

        All learners share it.
        """
        (network, *others), settings = self.each(), self.settings
        count = settings.cluster_count(len(self.counts))

        def clustered() -> State:
            centroids = sparse_centroids(lesson.train.X, lesson.train.Y, self.texts())
            return {"clusters": torch.from_numpy(balanced_clusters(centroids, count, run.numbers("clusters-1")))}

        clusters = run.stage("clusters-1", clustered)["clusters"].numpy()
        heads = Heads(network, self.texts(), clusters, second=False)
        schedule = self.schedule(lesson.train, settings.first_epochs, settings.first_rate)
        self.train_heads("module-1", heads, lesson, run, schedule, settings.first_drop, tokens=True)
        for other in others:
            if settings.lite:
                other.tokens = network.tokens
            for name in ("tokens", "documents", "labels"):
                getattr(other, name).load_state_dict(getattr(network, name).state_dict())

    def second_module(self, network: Network, number: int, lesson: Lesson, run: Run) -> None:
        """Do Module II: clusters of dense centroids c_l = Σ E x_i, and the shortlister S, or one in its place."""
        part, name = lesson.train, f"clusters-2-{number}"

        def clustered() -> State:
            centroids = label_sums(network, network.tokens.eval(), part, self.texts())
            count = self.settings.cluster_count(len(self.counts))
            return {"clusters": torch.from_numpy(balanced_clusters(centroids, count, run.numbers(name)))}

        network.clusters.copy_(run.stage(name, clustered)["clusters"])
        heads = Heads(network, self.texts(), network.clusters.cpu().numpy(), second=True)
        schedule = self.schedule(part, self.settings.epochs, self.settings.rate)
        self.train_heads(f"module-2-{number}", heads, lesson, run, schedule, self.settings.drop, not self.settings.lite)
        network.finder = Finder.of(network)
        with torch.no_grad():
            H = heads.eval()()
        linear = self.schedule(part, self.settings.first_epochs, self.settings.first_rate)
        MAKERS[self.settings.shortlist or "beam"](Task(network, H, lesson, self.texts(), run, number, linear))

    def train_heads(
        self, stage: str, heads: Heads, lesson: Lesson, run: Run, schedule: Schedule, drop: float, tokens: bool
    ) -> None:
        """Train against clusters; validation is how often the best cluster holds a label of the point."""
        network, part, device = heads.network[0], lesson.train, self.counts.device
        meta = clustered_labels(part.Y, heads.clusters.cpu().numpy(), heads.count)
        offset = torch.tensor(head_offset(heads.count, self.settings), device=device)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            points = network.encode(bags(part.X, rows).to(device), drop, generator)
            return {"meta": losses.all_labels(points, heads(drop, generator), offset, bags(meta, rows).to(device))}

        def precision() -> float:
            assert lesson.validation is not None
            part, H = lesson.validation, heads()
            found = torch.cat([products(encoded(network, part, rows), H).argmax(dim=1) for rows in batches(len(part))])
            truth = clustered_labels(part.Y, heads.clusters.cpu().numpy(), heads.count)
            return float(stored(truth, np.arange(len(part)), found.cpu().numpy()).mean())

        parts = learning(heads=heads, documents=network.documents, labels=network.labels)
        if tokens:
            parts.tokens = network.tokens
        network.tokens.eval()
        judge = precision if lesson.validation is not None else None
        if train(run, stage, parts, len(part), objective, schedule, judge).interrupted:
            raise KeyboardInterrupt

    def third_module(self, network: Network) -> None:
        """Do Module III: residual blocks begin anew, refinement vectors begin at ẑ² = E z_l, and S stays as it is."""
        network.documents.reset()
        network.labels.reset()
        self.start_refinement(network, np.arange(len(self.counts)))

    @torch.no_grad()
    def start_refinement(self, network: Network, labels: NDArray[np.int64]) -> None:
        """Let refinement vectors begin at ẑ² = E z_l, where there is a text; else they are random."""
        Z = self.texts()
        if self.settings.start == "text" and Z is not None:
            told = labels[np.diff(Z.indptr)[labels] > 0]
            for some in np.split(told, range(BATCH, len(told), BATCH)):
                texts = bags(Z[some]).to(self.counts.device)
                network.refinement.rows[torch.from_numpy(some)] = network.tokens.eval()(texts)

    def place(self, network: Network, labels: Tensor, part: Part) -> None:
        """Let the shortlister find labels by their points, or their texts; those without either stay where they are."""
        if len(network.heads) and len(labels):
            counts = torch.from_numpy(np.bincount(part.Y.indices, minlength=len(self.counts)))[labels.cpu()]
            sums = label_sums(network, network.eval().seeking(), part, self.texts())[labels]
            place(network, labels, sums / counts.clamp_min(1).to(sums)[:, None])

    def fourth_module(self, network: Network, number: int, lesson: Lesson, run: Run, near: Tensor | None) -> Outcome:
        """Do Module IV: the classifiers, against the labels of shortlists or all."""
        part, device, settings, Z = lesson.train, self.counts.device, self.settings, self.texts()
        all_texts = None if Z is None or near is not None else Reused.of(bags(Z).to(device))
        index = network.shortlister()

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            own = bags(part.Y, rows).to(device)
            filtered = None if part.filtered is None else bags(part.filtered, rows).to(device)
            points = network.encode(bags(part.X, rows).to(device), settings.drop, generator)
            if near is None or index is None:
                W = network.classifiers(None, all_texts, settings.drop, generator)
                if settings.loss == "decoupled":
                    return {"decoupled": losses.decoupled_all(points, W, own, filtered)}
                return {"logistic": losses.all_labels(points, W, network.offset, own, filtered)}
            ids = index.labels(near[torch.from_numpy(rows)].long().to(device))  # [B, beam · M]
            found = pooled(own, padded_bags(ids), filtered, settings.missed)
            texts = None if Z is None else bags(Z, found.labels.cpu().numpy()).to(device)
            W = network.classifiers(found.labels, texts, settings.drop, generator)
            loss = losses.decoupled if settings.loss == "decoupled" else losses.logistic
            return {settings.loss: loss(points @ W.T + network.offset, found.targets, found.mask)}

        def goodness() -> float:
            assert lesson.validation is not None
            network.compose(Z)
            return ndcg(network.learner(self.counts, len(self.counts)), lesson.validation)

        parts = learning(documents=network.documents, labels=network.labels, refinement=network.refinement,
                         combination=network.combination, scale=network.scale, offset=network.offset)  # fmt: skip
        if not settings.lite:
            parts.tokens = network.tokens
        network.tokens.eval()
        judge = goodness if lesson.validation is not None else None
        schedule = self.schedule(part, settings.epochs, settings.rate)
        return train(run, f"module-4-{number}", parts, len(part), objective, schedule, judge)

    def schedule(self, part: Part, epochs: int, rate: float) -> Schedule:
        """Return how long and how fast a module learns."""
        most = max(FEWEST, epochs * len(part) // self.settings.steps)
        batch = max(1, min(self.settings.batch, most, len(part) // 10))
        epochs = max(epochs, math.ceil(self.settings.steps * batch / len(part)))
        large = len(self.counts) * self.settings.dimension >= LARGE
        return Schedule(epochs, batch, rate, halve=self.settings.halve, patience=self.settings.patience,
                        half=large and half_is_faster())  # fmt: skip

    # --- Prediction --------------------------------------------------------------------------------------------------

    def learner(self) -> Learner | Ensemble:
        """Return what prediction needs."""
        learners = [network.learner(self.counts, self.learned) for network in self.each()]
        return learners[0] if len(learners) == 1 else Ensemble(learners)

    @torch.no_grad()
    def text_scores(self, learner: Learner, X: csr_array, Z: csr_array) -> Tensor:
        """Return the scores that the first learner gives labels of which only texts [n, V] are known, [B, n]."""
        network, likely, queries = self.each()[0].eval(), learner.classifier, learner.encode(X)
        assert isinstance(likely, Likely)
        ids, learned = likely.scored(queries, learner.index.search(learner.keys(X, queries), likely.width(FIFTH)))
        W = network.cold_classifiers(bags(Z).to(queries.device))
        scores = cautious((all_products(queries, W) + network.offset).double(), learned, ids >= 0)
        return scores.float() * (queries.abs().amax(dim=1, keepdim=True) > 0)

    # --- Labels that come later, and saving --------------------------------------------------------------------------

    def each(self) -> list[Network]:
        """Return the learners."""
        return [network for network in self.networks if isinstance(network, Network)]

    def add_labels(self, count: int, generator: torch.Generator) -> None:
        """Add labels behind those that are there, of which nothing is known yet."""
        width, pointers = self.settings.dimension, np.pad(self.Z.indptr, (0, count), mode="edge")
        self.Z = csr_array((self.Z.data, self.Z.indices, pointers), shape=(len(pointers) - 1, self.Z.shape[1]))
        self.counts = torch.cat([self.counts, self.counts.new_zeros(count)])
        for network in self.each():
            rows = network.refinement.rows.detach()
            more = Table(count, width, generator, scale=self.settings.spread).rows.to(rows.device)
            network.refinement.rows = nn.Parameter(torch.cat([rows, more]), requires_grad=False)
            network.vectors = torch.cat([network.vectors, network.vectors.new_zeros(count, width)])
            grow(network, count, generator)

    @torch.no_grad()
    def add_label_texts(self, Z: csr_array) -> None:
        """Add labels that are scored by their texts [S, V] at once: ẑ¹ = E_L(z), ẑ² = E z; S finds their clusters."""
        first, texts = len(self.counts), bags(Z).to(self.counts.device)
        self.add_labels(Z.shape[0], torch.Generator().manual_seed(0))
        self.Z = csr_array(vstack([self.Z[:first], Z]))
        added = torch.arange(first, len(self.counts), device=self.counts.device)
        for network in self.each():
            network.eval()
            network.refinement.rows[added] = network.tokens(texts)
            network.vectors[added] = network.cold_classifiers(texts)
            place(network, added, network.seeking()(texts))

    def saved(self) -> tuple[State, State]:
        """Return what prediction needs, with classifiers composed, and what learning and new labels need besides."""
        later = ("labels.", "refinement.", "combination.", "power")
        names = [
            f"networks.{number}.{part}tokens.rows" for number in range(len(self.networks)) for part in ("", "finder.")
        ]
        shared = set(names[1:]) if self.settings.lite else set()
        state = {name: value for name, value in self.state_dict().items() if name not in shared}
        train = {name: value for name, value in state.items() if name.split(".", 2)[-1].startswith(later)}
        for name in ("data", "indices", "indptr"):
            train[f"Z.{name}"] = torch.from_numpy(getattr(self.Z, name))
        serve = {name: value for name, value in state.items() if name not in train}
        serve["beams"] = torch.tensor([network.beam for network in self.each()])
        serve["learned"] = torch.tensor(self.learned)
        if self.settings.shortlist == "hnsw":
            for number, network in enumerate(self.each()):
                graph = network.neighbours(self.learned).state()
                serve |= {f"networks.{number}.graph.{name}": value for name, value in graph.items()}
        return serve, train


def learning(**parts: nn.Module | nn.Parameter) -> nn.Module:
    """Return the parts that a module of the paper trains as one."""
    whole = nn.Module()
    for name, part in parts.items():
        setattr(whole, name, part)
    return whole


build = Decaf


def restored(sizes: Mapping[str, int], settings: DecafSettings, serve: State, train: State) -> Decaf:
    """Return a model with saved weights, which are taken as they are: mapped, not copied."""
    beams = serve["beams"].tolist()
    model = Decaf(0, 0, replace(settings, learners=len(beams)), torch.Generator())
    model.settings, model.features = settings, sizes["features"]
    state = {**serve, **train}
    model.learned = int(state.get("learned", sizes["labels"]))
    for number, network in enumerate(model.each()):
        network.beam = beams[number]
        state.setdefault(f"networks.{number}.tokens.rows", state["networks.0.tokens.rows"])  # of DECAF-lite
        for table in ("tokens", "refinement"):
            rows = state[f"networks.{number}.{table}.rows"]
            getattr(network, table).rows = nn.Parameter(rows, requires_grad=False)
        restore_finder(network, state, f"networks.{number}.finder.")
        state.setdefault(f"networks.{number}.power", torch.zeros(()))  # of models from before there was one
        for name in ("vectors", "heads", "clusters"):
            setattr(network, name, state[f"networks.{number}.{name}"])
        if settings.shortlist == "hnsw":
            graph = named(state, f"networks.{number}.graph.")
            network.graph = load_index("hnsw", graph, network.heads[: model.learned])
    model.counts = state["counts"]
    model.load_state_dict({name: state[name] for name in model.state_dict()}, assign=True)
    parts = (train[f"Z.{name}"].numpy() for name in ("data", "indices", "indptr"))
    model.Z = csr_array(tuple(parts), shape=(sizes["labels"], sizes["features"]))
    return model.eval()


def named(state: State, prefix: str) -> State:
    """Return what has a name that begins so, by the rest of it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def restore_finder(network: Network, state: State, prefix: str) -> None:
    """Give a network the encoder of S, where one was saved."""
    if f"{prefix}documents.R" not in state:
        return
    network.finder = Finder.of(network)
    rows = state.setdefault(f"{prefix}tokens.rows", network.tokens.rows.detach())  # of DECAF-lite
    network.finder.tokens.rows = nn.Parameter(rows, requires_grad=False)
