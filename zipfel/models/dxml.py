"""DXML: labels embedded by their graph, points by regression onto their labels, tags by the nearest points.

Zhang et al., *Deep Extreme Multi-label Learning*, ICMR 2018. Held next to the paper in docs/papers/dxml.md, and in its
order: the label graph and DeepWalk (Sec. 3.2), the network and its loss (3.3), clusters of points (3.4), Algorithms 1
and 2 (3.5).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from zipfel.config import Settings, Span, setting
from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.data.formats.edges import read_edges
from zipfel.errors import DataError
from zipfel.labelspace.deepwalk import Walks, deepwalk
from zipfel.labelspace.graph import label_graph, pmi_graph
from zipfel.labelspace.vectors import extended, random_directions, smoothed
from zipfel.models.base import Cost, Lesson
from zipfel.models.learner import labelled
from zipfel.models.neighbours import NeighbourModel, NeighbourSettings
from zipfel.models.saving import tensor_of
from zipfel.nn import losses
from zipfel.nn.encoders import EmbeddingTable, Encoder, drop_features, steady_linear
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags

SMOOTHED, RANDOM = "smoothed", "random"  # kinds of label vectors besides DeepWalk's; random ones are the control
FEW_FEATURES = 1000  # below which fewer of them are dropped: docs/papers/dxml.md
GRAPH_WEIGHT = 0.5  # of a label's neighbours in its smoothed vector, where labels are more than dimensions


@dataclass(frozen=True)
class DxmlSettings(NeighbourSettings):
    """Settings of DXML. Defaults are ours, chosen on validation; the preset `paper` has those of Sec. 4.1."""

    largest_dimension = 600
    hidden_size: int = setting(256, "width of the hidden layer", at_least=1, was="hidden", search=[128, 256, 512])
    nonlinear: bool = setting(True, "ReLU behind the hidden layer")
    linear_path: bool = setting(True, "a linear path beside the hidden layer", was="straight")
    whiten: bool = setting(
        False,
        "whiten label vectors and scale them to length 1",
        was="targets: true for white, false for raw",
        search=[True, False],
    )
    weighted_edges: bool = setting(
        False, "weight edges by the points that labels share (DeepWalk)", was="weighted", search=[False, True]
    )
    graph: str | None = setting(None, "file of edges between labels that replaces the graph")
    label_vectors: str | None = setting(
        SMOOTHED,
        "none: DeepWalk; smoothed: random vectors and their neighbours'; random; or a .npy file [labels, ℓ]",
        was="vectors",
    )
    graph_weight: float | None = setting(
        None, "neighbours' weight in a smoothed vector; none: 0.5, or 0 if ℓ has room for all labels", at_least=0
    )
    walks_per_label: int = setting(10, "walks that start at each label", at_least=1, was="walks")
    walk_length: int = setting(40, "labels in a walk", at_least=1, was="length")
    walk_window: int = setting(5, "labels on either side, in a walk, that a label predicts; at most", at_least=1)
    walk_softmax: Literal["negatives", "hierarchical"] = setting("negatives", "how skip-gram approximates its softmax")
    walk_negatives: int = setting(5, "wrong labels drawn for each predicted one (negatives)", at_least=1)
    walk_passes: int = setting(1, "passes of skip-gram over the walks", at_least=1)
    feature_dropout: float | None = setting(
        None,
        "share of features dropped; none: 0.5, or 0.35 if features are fewer than 1,000",
        at_least=0,
        below=1,
        was="keep: 1 - keep",
        search=[None, 0.0, 0.2, 0.35, 0.6],
    )
    dropout: float = setting(0.0, "share of the last layer's outputs that a step drops", at_least=0, below=1)
    optimizer: Literal["adam", "sgd"] = setting("adam", "sgd: momentum 0.9, weight decay 0.0005", was="optimiser")
    batch_size: int = setting(
        256, "points in a step, at most a tenth of train", at_least=1, was="batch", search=[64, 128, 256, 512]
    )
    epochs: int = setting(20, "T, passes over train", at_least=1, search=[10, 20, 40])
    learning_rate: float = setting(
        0.002, "highest learning rate", above=0, was="rate", search=Span(0.0005, 0.01, log=True)
    )
    summed: bool = setting(False, "a step's loss is the sum over its points, as Eq. (3), not the mean")

    def dropped_share(self, features: int) -> float:
        """Return the share of features that training drops. Few features say too much each to drop half of them."""
        if self.feature_dropout is not None:
            return self.feature_dropout
        return 0.35 if features < FEW_FEATURES else 0.5

    def walks(self) -> Walks:
        """Return the settings of DeepWalk."""
        hierarchical = self.walk_softmax == "hierarchical"
        return Walks(
            walks=self.walks_per_label,
            length=self.walk_length,
            window=self.walk_window,
            negatives=self.walk_negatives,
            epochs=self.walk_passes,
            hierarchical=hierarchical,
        )


PRESETS: dict[str, DxmlSettings] = {
    "paper": DxmlSettings(
        dimension=100, linear_path=False, label_vectors=None, feature_dropout=0.0, dropout=0.5, optimizer="sgd",
        batch_size=128, learning_rate=0.015, summed=True, epochs=30, sharpness=0, index="ivf", probes=1,
        walks_per_label=80, walk_length=40, walk_window=10, walk_softmax="hierarchical",  # of DeepWalk's paper
    ),
    "default": DxmlSettings(),
    "fast": DxmlSettings(dimension=200, epochs=10),
}  # fmt: skip


class Network(Encoder):
    """f_x: sparse features, FC, ReLU, FC, dropout, unit length (Sec. 4.1); beyond the paper, a linear path beside."""

    def __init__(self, features: int, settings: DxmlSettings, generator: torch.Generator) -> None:
        super().__init__()
        width, out = settings.hidden_size, settings.width(features)
        self.nonlinear, self.dropout = settings.nonlinear, settings.dropout
        self.input = EmbeddingTable(features, width, generator, std=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(width))
        self.output = nn.Linear(width, out)
        nn.init.normal_(self.output.weight, 0, width**-0.5, generator=generator)
        nn.init.zeros_(self.output.bias)
        self.linear_path = (
            EmbeddingTable(features, out, generator, std=0.1 * out**-0.5) if settings.linear_path else None
        )

    def forward(self, points: Bags, generator: torch.Generator | None = None) -> Tensor:
        """Return unit vectors [B, ℓ]."""
        vectors = self.unscaled(points)
        if generator is not None and self.dropout:
            kept = torch.rand(vectors.shape, generator=generator).to(vectors.device) >= self.dropout
            vectors = vectors * kept / (1 - self.dropout)
        return F.normalize(vectors.float(), dim=1, eps=1e-3)  # not less: gradients of a zero vector are divided by eps

    def unscaled(self, points: Bags) -> Tensor:
        """Return f_x before it is divided by its length, [B, ℓ]."""
        hidden = self.input(points) + self.bias
        hidden = F.relu(hidden) if self.nonlinear else hidden
        output = steady_linear(hidden, self.output.weight, self.output.bias)
        return output if self.linear_path is None else output + self.linear_path(points)


@dataclass(frozen=True)
class Earlier:
    """The result of the fit that a further one continues: weights, label vectors [L, ℓ], number of points."""

    weights: State
    V: Tensor
    points: int


class Dxml(NeighbourModel):
    """The network f_x, and the points that vote."""

    name = "dxml"
    width_of = "encoder.output.weight", 0
    presets: ClassVar[Mapping[str, Settings]] = PRESETS
    train_only = (*NeighbourModel.train_only, "labels.V")
    settings: DxmlSettings

    def __init__(self, features: int, labels: int, settings: DxmlSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings, generator)
        self.V: Tensor | None = None  # label vectors that the network was trained onto, [L, ℓ]; None before `fit`
        self.earlier: Earlier | None = None  # in a further fit only

    def start(self, generator: torch.Generator) -> None:
        """Draw new weights."""
        device = self.device()
        self.encoder = Network(self.features, self.settings, generator).to(device)

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def fit(self, lesson: Lesson, run: Run) -> Outcome:
        """Learn as Algorithm 1 does; a further fit learns incrementally (Sec. 4.2), from the new points only.

        It continues from the current weights and label vectors; see `learn` and `embedded`. All points vote, old ones
        with vectors of the changed network. A model that was saved without label vectors learns from all points anew.
        """
        if self.V is not None and self.memory is not None:
            weights = {name: value.clone() for name, value in self.state_dict().items()}
            self.earlier = Earlier(weights, self.V, len(self.memory))
        try:
            return super().fit(lesson, run)
        finally:
            self.earlier = None

    def learn(self, part: Part, run: Run, stage: str) -> Outcome:
        """Embed the labels and learn to map points onto them: lines 1 to 4. Line 5 is the index, with k-means.

        In a further fit, `part` begins with the older points, which are not learned from again; each of its rounds
        continues from the weights before it.
        """
        settings, earlier = self.settings, self.earlier
        embedded = run.stage(f"{stage}-labels", lambda: {"V": self.embedded(part.Y, run)}, "counted by the model")
        if earlier is not None:
            self.load_state_dict(earlier.weights)
            part = part.take(np.arange(earlier.points, len(part)))
        targets = means_of_labels(part.Y, embedded["V"])  # line 3, [N, ℓ]; V is of lines 1 and 2
        batch_size, optimizer = min(settings.batch_size, max(16, len(part) // 10)), settings.optimizer
        schedule = Schedule(
            settings.epochs, batch_size, settings.learning_rate, fixed=optimizer == "sgd", optimizer=optimizer
        )

        dropout = settings.dropped_share(self.features)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            points = drop_features(bags(part.X, rows).to(self.device()), dropout, generator)
            vectors = self.encoder(points, generator)
            mean = losses.smooth_l1(vectors, targets[rows].to(vectors.device))
            return {"smooth_l1": mean * len(rows) if settings.summed else mean}

        outcome = Outcome(None, -1, 0, 0.0)  # of a round whose new points are all held out
        if len(part):
            outcome = train(run, stage, self, len(part), objective, schedule)
        if stage == self.name or not outcome.interrupted:  # else the result of the first round stays
            self.V = embedded["V"]
        return outcome

    def embedded(self, Y: csr_array, run: Run) -> Tensor:
        """Return V, [labels, ℓ]: in a first fit drawn anew; in a further one that of before, with any new labels.

        A new label is placed by its neighbours in the graph, and the others stay where they are.
        """
        if self.earlier is None:
            return self.label_vectors(Y, run)
        known, labels = self.earlier.V, Y.shape[1]
        if len(known) == labels:
            return known
        graph = csr_array((labels, labels)) if self.settings.label_vectors == RANDOM else self.graph_of(Y)
        return torch.from_numpy(extended(known.numpy(), graph, run.numbers("labels", len(known))))

    def label_vectors(self, Y: csr_array, run: Run) -> Tensor:
        """Return V, [labels, ℓ]: over the label graph smoothed ones or DeepWalk's; or random or given ones."""
        settings, width = self.settings, self.settings.width(self.features)
        if settings.label_vectors == RANDOM:
            V = random_directions(Y.shape[1], width, run.numbers("labels"))
        elif settings.label_vectors == SMOOTHED:
            usual = GRAPH_WEIGHT if Y.shape[1] > width else 0.0
            weight = usual if settings.graph_weight is None else settings.graph_weight
            V = smoothed(self.graph_of(Y), width, run.numbers("labels"), weight)
        elif settings.label_vectors is not None:
            V = given_vectors(Path(settings.label_vectors), Y.shape[1], width)
        else:
            numbers = run.numbers("labels")
            V = deepwalk(self.graph_of(Y), width, numbers, settings.walks(), settings.deterministic)
        return torch.from_numpy(whitened(V) if settings.whiten else V)

    def graph_of(self, Y: csr_array) -> csr_array:
        """Return the graph of labels, [labels, labels]: the user's, or an edge between labels that share a point."""
        settings = self.settings
        if settings.graph is not None:
            return self.given_graph(Y.shape[1])
        return pmi_graph(Y) if settings.label_vectors == SMOOTHED else label_graph(Y, settings.weighted_edges)

    def given_graph(self, labels: int) -> csr_array:
        """Read the user's graph of labels, which names them."""
        names = [str(label) for label in range(labels)] if self.label_names is None else self.label_names
        return read_edges(Path(str(self.settings.graph)), names)

    # --- Saving ------------------------------------------------------------------------------------------------------

    def more_tensors(self) -> State:
        """Return the label vectors too, which a further fit needs."""
        return super().more_tensors() | ({} if self.V is None else {"labels.V": self.V})

    def take_tensors(self, more: State) -> None:
        """Take the label vectors too; a model of an earlier version has none."""
        super().take_tensors(more)
        if "labels.V" in more:
            self.V = tensor_of(more, "labels.V", torch.float32, None, self.settings.width(self.features))
            if len(self.V) > self.label_count:  # fewer, if labels were added since
                raise DataError(f"tensor 'labels.V': {len(self.V)} vectors for {self.label_count} labels")

    # --- Plans -------------------------------------------------------------------------------------------------------

    def cost(self, lesson: Lesson) -> Cost:
        """Add the targets of all points, and the time of DeepWalk, which does not shrink with the points.

        One walk from each label over the full graph is timed, with the window, softmax and passes of the settings,
        after a tiny one, which may import gensim. Label vectors that are read or drawn at random are timed once.
        """
        cost, walks = super().cost(lesson), self.settings.walks_per_label
        self.label_names, self.settings = lesson.label_names, replace(self.settings, walks_per_label=1)
        by_walks = self.settings.label_vectors is None
        if by_walks:
            deepwalk(csr_array([[0.0, 1.0], [1.0, 0.0]]), 1, np.random.default_rng(0))
        start = time.perf_counter()
        self.label_vectors(labelled(lesson.train).Y, Run())
        seconds = time.perf_counter() - start
        self.settings = replace(self.settings, walks_per_label=walks)
        bytes_a_point = cost.bytes_a_point + 4 * self.settings.width(self.features)
        seconds_in_all = seconds * (walks if by_walks else 1) * len(cost.rounds)
        return replace(cost, bytes_a_point=bytes_a_point, seconds=seconds_in_all, lost_seconds=seconds)

    def rehearse(self, share: float) -> None:
        """Walk once from each label: `cost` has timed the walks."""
        super().rehearse(share)
        self.settings = replace(self.settings, walks_per_label=1)


def means_of_labels(Y: csr_array, V: Tensor) -> Tensor:
    """Return f_y, [points, ℓ]: the mean of the vectors of a point's labels (Algorithm 1, line 3)."""
    counts = np.maximum(np.diff(Y.indptr), 1)[:, None]
    return torch.from_numpy(np.asarray(Y @ V.numpy() / counts, dtype=np.float32))


def whitened(V: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return label vectors [labels, ℓ] with equal variance in all directions, each of length 1.

    DeepWalk's vectors share a few strong directions: all means of labels point almost the same way, and a regression
    learns little else. (docs/papers/dxml.md)
    """
    centred = V.astype(np.float64) - V.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    used = values > 1e-6 * values.max(initial=0)
    spread = centred @ (directions[:, used] / np.sqrt(values[used])) @ directions[:, used].T
    lengths = np.linalg.norm(spread, axis=1, keepdims=True)
    return np.asarray(spread / np.maximum(lengths, 1e-12), dtype=np.float32)


def given_vectors(path: Path, labels: int, dimension: int) -> NDArray[np.float32]:
    """Read the user's label vectors, [labels, dimension], from a .npy file."""
    try:
        with path.open("rb") as file:
            V = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot be read as label vectors (.npy): {error}", path) from None
    if V.shape != (labels, dimension) or V.dtype.kind != "f":
        raise DataError(f"expected numbers [{labels} labels, {dimension}]; found {V.dtype} {V.shape}", path)
    if not (np.abs(V.astype(np.float64)) < 1e30).all():
        raise DataError("label vectors must be finite, and no larger than 1e30", path)
    return np.asarray(V, dtype=np.float32)
