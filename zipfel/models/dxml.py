"""DXML: labels embedded by their graph, points by regression onto their labels, tags by the nearest points.

Zhang et al., *Deep Extreme Multi-label Learning*, ICMR 2018. Held next to the paper in docs/papers/dxml.md, and in its
order: the label graph and DeepWalk (Sec. 3.2), the network and its loss (3.3), clusters of points (3.4), Algorithms 1
and 2 (3.5).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
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
from zipfel.errors import ConfigError, DataError
from zipfel.labelspace.deepwalk import Walks, deepwalk
from zipfel.labelspace.graph import label_graph, read_edges
from zipfel.models.neighbours import NeighbourModel, NeighbourSettings
from zipfel.nn import losses
from zipfel.nn.encoders import Table, keep_features, steady_linear
from zipfel.training.run import Run, State
from zipfel.training.trainer import Outcome, Schedule, train
from zipfel.types import Bags


@dataclass(frozen=True)
class DxmlSettings(NeighbourSettings):
    """Settings of DXML. Defaults are ours, chosen on validation; the preset `paper` has those of Sec. 4.1."""

    usual_dimension = 300  # ℓ
    hidden: int = setting(256, "width of the hidden layer")
    nonlinear: bool = setting(True, "ReLU behind the hidden layer")
    straight: bool = setting(True, "a linear path beside the hidden layer")
    targets: Literal["raw", "white"] = setting("white", "label vectors as DeepWalk gives them, or whitened and unit")
    weighted: bool = setting(False, "edges of the label graph weigh as much as labels share points, not 1")
    graph: str | None = setting(None, "file of edges between labels that replaces the graph")
    vectors: str | None = setting(None, "label vectors [labels, ℓ] (.npy) that replace graph and DeepWalk")
    walks: int = setting(10, "walks that start at each label")
    length: int = setting(40, "labels in a walk")
    keep: float = setting(0.65, "share of features that a step keeps")
    dropout: float = setting(0.0, "share of the last layer's outputs that a step drops")
    optimiser: Literal["adam", "sgd"] = setting("adam", "sgd: momentum 0.9, weight decay 0.0005, a fixed rate")
    batch: int = setting(256, "points a step, at most a tenth of train")
    epochs: int = setting(20, "T, passes over train")
    rate: float = setting(0.002, "highest learning rate")

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        super().__post_init__()
        for name in ("hidden", "walks", "length", "batch", "epochs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1; found {getattr(self, name)}")
        if not 0 < self.keep <= 1:
            raise ConfigError(f"keep must lie in (0, 1]; found {self.keep}")
        if not 0 <= self.dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1); found {self.dropout}")


PRESETS: dict[str, DxmlSettings] = {
    "paper": DxmlSettings(
        dimension=100, straight=False, targets="raw", keep=1.0, dropout=0.5, optimiser="sgd", batch=128,
        rate=0.015 * 128,  # the loss (3) is a sum over points, ours a mean over a batch
        epochs=30, sharpness=0, index="ivf", probes=1,
    ),
    "default": DxmlSettings(),
    "fast": DxmlSettings(dimension=200, epochs=10),
}  # fmt: skip


class Network(nn.Module):
    """f_x: sparse features, FC, ReLU, FC, dropout, unit length (Sec. 4.1); beyond the paper, a linear path beside."""

    def __init__(self, features: int, settings: DxmlSettings, generator: torch.Generator) -> None:
        super().__init__()
        width, out = settings.hidden, settings.width(features)
        self.nonlinear, self.dropout = settings.nonlinear, settings.dropout
        self.input = Table(features, width, generator, scale=width**-0.5)
        self.bias = nn.Parameter(torch.zeros(width))
        self.output = nn.Linear(width, out)
        nn.init.normal_(self.output.weight, 0, width**-0.5, generator=generator)
        nn.init.zeros_(self.output.bias)
        self.straight = Table(features, out, generator, scale=0.1 * out**-0.5) if settings.straight else None

    def forward(self, points: Bags, generator: torch.Generator | None = None) -> Tensor:
        """Return unit vectors [B, ℓ]."""
        found = self.unscaled(points)
        if generator is not None and self.dropout:
            kept = torch.rand(found.shape, generator=generator).to(found.device) >= self.dropout
            found = found * kept / (1 - self.dropout)
        return F.normalize(found.float(), dim=1, eps=1e-3)  # not less: where nothing is found, gradients are / eps

    def unscaled(self, points: Bags) -> Tensor:
        """Return what becomes f_x by division by its length, [B, ℓ]."""
        hidden = self.input(points) + self.bias
        hidden = F.relu(hidden) if self.nonlinear else hidden
        found = steady_linear(hidden, self.output.weight, self.output.bias)
        return found if self.straight is None else found + self.straight(points)


class Dxml(NeighbourModel):
    """The network f_x, and the points that vote."""

    name = "dxml"
    settings: DxmlSettings

    def __init__(self, features: int, labels: int, settings: DxmlSettings, generator: torch.Generator) -> None:
        super().__init__(features, labels, settings)
        self.start(generator)

    def start(self, generator: torch.Generator) -> None:
        """Begin with new weights."""
        device = self.device() if hasattr(self, "encoder") else torch.device("cpu")
        self.encoder = Network(self.features, self.settings, generator).to(device)

    # --- Algorithm 1 -------------------------------------------------------------------------------------------------

    def learn(self, part: Part, run: Run, stage: str) -> Outcome:
        """Embed the labels and learn to map points onto them: lines 1 to 4. Line 5 is the index, with k-means."""
        settings = self.settings
        V = run.stage(f"{stage}-labels", lambda: {"V": self.label_vectors(part.Y, run)})["V"]  # lines 1 and 2
        wanted = means_of_labels(part.Y, V)  # line 3, [N, ℓ]
        batch = min(settings.batch, max(16, len(part) // 10))
        fixed = settings.optimiser == "sgd"
        schedule = Schedule(settings.epochs, batch, settings.rate, fixed=fixed, optimiser=settings.optimiser)

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            points = keep_features(bags(part.X, rows).to(self.device()), settings.keep, generator)
            found = self.encoder(points, generator)
            return {"smooth_l1": losses.smooth_l1(found, wanted[rows].to(found.device))}

        return train(run, stage, self, len(part), objective, schedule)

    def label_vectors(self, Y: csr_array, run: Run) -> Tensor:
        """Return V, [labels, ℓ]: given ones, or DeepWalk's over the label graph."""
        settings, width = self.settings, self.settings.width(self.features)
        if settings.vectors is not None:
            found = given_vectors(Path(settings.vectors), Y.shape[1], width)
        else:
            names = [str(label) for label in range(Y.shape[1])] if self.label_names is None else self.label_names
            graph = (
                label_graph(Y, settings.weighted) if settings.graph is None else read_edges(Path(settings.graph), names)
            )
            walks = Walks(settings.walks, settings.length)
            found = deepwalk(graph, width, run.numbers("labels"), walks, settings.deterministic)
        return torch.from_numpy(found if settings.targets == "raw" else whitened(found))


def means_of_labels(Y: csr_array, V: Tensor) -> Tensor:
    """Return f_y, [points, ℓ]: the mean of the vectors of a point's labels (Algorithm 1, line 3)."""
    counts = np.maximum(np.diff(Y.indptr), 1)[:, None]
    return torch.from_numpy(np.asarray(Y @ V.numpy() / counts, dtype=np.float32))


def whitened(V: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return label vectors [labels, ℓ] that vary alike in all directions, each of length 1.

    DeepWalk's vectors share a few strong directions, so that all means of labels point almost the same way, and a
    regression learns little else. (docs/papers/dxml.md)
    """
    centred = V.astype(np.float64) - V.mean(axis=0)
    values, directions = np.linalg.eigh(centred.T @ centred)
    used = values > 1e-6 * values.max(initial=0)
    spread = centred @ (directions[:, used] / np.sqrt(values[used])) @ directions[:, used].T
    lengths = np.linalg.norm(spread, axis=1, keepdims=True)
    return np.asarray(spread / np.maximum(lengths, 1e-12), dtype=np.float32)


def given_vectors(path: Path, labels: int, dimension: int) -> NDArray[np.float32]:
    """Read label vectors that the user has, [labels, dimension], from a .npy file."""
    try:
        with path.open("rb") as file:
            found = np.lib.format.read_array(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"cannot be read as label vectors (.npy): {error}", path) from None
    if found.shape != (labels, dimension) or found.dtype.kind != "f":
        raise DataError(f"expected numbers [{labels} labels, {dimension}]; found {found.dtype} {found.shape}", path)
    if not (np.abs(found.astype(np.float64)) < 1e30).all():
        raise DataError("label vectors must be finite, and no larger than 1e30", path)
    return np.asarray(found, dtype=np.float32)


build = Dxml


def restored(sizes: Mapping[str, int], settings: DxmlSettings, serve: State, train: State) -> Dxml:
    """Return a model with saved weights."""
    model = Dxml(0, 0, replace(settings, dimension=settings.width(sizes["features"])), torch.Generator())
    model.take_back(sizes, serve, train)
    return model
