"""What finds labels for a learner of DECAF, once Module II is done: clusters, and the two others of their Table 5.

Each leaves `heads`, `clusters` and `beam` with the learner, from which `Network.shortlister` makes an index: beam, the
best clusters;  hnsw, the labels nearest by the mean of their points;  parabel, the leaves of a tree with two children a
node. All search with the encoder of Module II, and lists are no longer than S's would be: only the search differs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.index.tree import TreeIndex, nodes_on_the_way
from zipfel.labelspace.clusters import balanced_clusters
from zipfel.models.base import Lesson, at_most
from zipfel.models.decaf_network import Network, Shortlister, batches, cluster_ranks, clustered_labels, sought
from zipfel.nn import losses
from zipfel.training.run import Run, State
from zipfel.training.trainer import Schedule, train
from zipfel.types import Bags, stored

RECALL = 0.85  # of labels that the beam must find
WIDEST, MOST = 0.05, 256  # of all clusters that are opened, and of any number of them
JUDGED = 10_000  # points that choose the beam
LEAF, LEAVES = 100, 10  # labels of a leaf, and leaves that are reached, at most


@dataclass(frozen=True)
class Task:
    """What a shortlister is made from: a learner after Module II with the classifiers of its clusters, and the rest."""

    network: Network
    H: Tensor  # [K, D]
    lesson: Lesson
    Z: csr_array | None
    run: Run
    number: int  # of the learner
    schedule: Schedule  # of linear classifiers over x̂, which take long: Module II's left 7 of 100 labels unfound

    @property
    def centroids(self) -> Tensor:
        """The sums of x̂ over the points of each label, [L, D]."""
        return label_sums(self.network, self.network.eval().seeking(), self.lesson.train, self.Z)


def beam_of_clusters(task: Task) -> None:
    """Open the clusters of Module II that score best."""
    task.network.heads = task.H
    part, validation = task.lesson.train, task.lesson.validation
    if validation is not None and len(validation) and task.network.settings.judged == "validation":
        part = validation
    task.network.beam = chosen_beam(task.network, part)


def nearest_labels(task: Task) -> None:
    """Find labels near the means of their points, or their texts; of labels that have neither, anywhere."""
    width = length_of_lists(task)
    task.network.heads = unit(task.centroids, task.run.generator(f"vectors-{task.number}"))
    task.network.beam = width


def tree_of_labels(task: Task) -> None:
    """Halve labels by their centroids down to small leaves, and let each node learn which points to take."""
    network, run, name = task.network, task.run, f"leaves-{task.number}"

    def halved() -> State:
        count, beam = tree_sizes(len(network.vectors), length_of_lists(task))
        leaves = balanced_clusters(task.centroids, count, run.numbers(name))
        return {"clusters": torch.from_numpy(leaves), "beam": torch.tensor(beam)}

    kept = run.stage(name, halved)
    network.clusters, network.beam = kept["clusters"].to(network.clusters), int(kept["beam"])
    nodes = 2 * int(network.clusters.max())  # all but the root
    network.heads = torch.zeros(nodes, network.settings.dimension + 1, device=network.vectors.device)
    if nodes:
        train_nodes(task)


def length_of_lists(task: Task) -> int:
    """Return how many labels the clusters hold on average that S would open."""
    beam_of_clusters(task)
    return task.network.beam * len(task.network.vectors) // len(task.H)


def tree_sizes(labels: int, width: int) -> tuple[int, int]:
    """Return how many leaves a tree has, a power of two, and how many are reached: on average at most `width` labels.

    >>> tree_sizes(100_000, 5000), tree_sizes(10_000, 500), tree_sizes(36, 10), tree_sizes(3, 3)
    ((1024, 10), (256, 10), (32, 8), (2, 2))
    """
    size = max(1, min(LEAF, width // LEAVES))
    leaves = min(1 << (math.ceil(labels / size) - 1).bit_length(), 1 << (labels.bit_length() - 1))
    return leaves, max(1, min(LEAVES, width * leaves // labels))


MAKERS: dict[str, Callable[[Task], None]] = {
    "beam": beam_of_clusters, "hnsw": nearest_labels, "parabel": tree_of_labels,
}  # fmt: skip


def train_nodes(task: Task) -> None:
    """Train w and b of each node of a tree, on the points that come by it, against frozen x̂."""
    network, part, validation = task.network, task.lesson.train, task.lesson.validation
    device, nodes, weights = network.heads.device, nn.Module(), nn.Parameter(network.heads)
    nodes.register_parameter("weights", weights)
    held = nodes_of_points(part.Y, network.clusters.cpu().numpy(), len(network.heads) // 2 + 1)

    def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
        scores = F.pad(sought(network, part, rows), (0, 1), value=1.0) @ weights.T  # [B, 2K − 2]
        targets = torch.from_numpy(held[rows].toarray()).to(device)
        return {"nodes": losses.logistic(scores, targets, nodes_on_the_way(targets))}

    def recall() -> float:
        assert validation is not None
        return list_recall(network, TreeIndex(weights, network.clusters, network.beam), validation)

    judge = recall if validation is not None and len(validation) else None
    if train(task.run, f"tree-{task.number}", nodes, len(part), objective, task.schedule, judge).interrupted:
        raise KeyboardInterrupt
    network.heads = weights.detach()


def nodes_of_points(Y: csr_array, leaves: NDArray[np.int32], count: int) -> csr_array:
    """Return which nodes of a tree, but the root, hold a label of each point, [N, 2K − 2], level by level."""
    depth = count.bit_length() - 1
    levels = [clustered_labels(Y, leaves >> (depth - level), 1 << level) for level in range(1, depth + 1)]
    return csr_array(hstack(levels, format="csr"))


def chosen_beam(network: Network, part: Part) -> int:
    """Return the least B with which the shortlists hold 85 % of a part's labels; at most 5 % of all labels, and 256."""
    if network.settings.beam:
        return min(network.settings.beam, len(network.heads))
    judged = at_most(part, JUDGED)
    ranks = cluster_ranks(network, judged)
    most = min(MOST, int(WIDEST * len(network.heads)))
    return max(1, min(int(np.quantile(ranks, RECALL, method="higher")) + 1, most))


def shortlists(network: Network, number: int, part: Part, run: Run) -> Tensor | None:
    """Return what is opened for each point of train, [N, beam]: clusters, leaves or labels; None: all are looked at."""

    def opened() -> State:
        index = network.shortlister()
        assert index is not None
        near = torch.cat([index.open(sought(network, part, rows)).ids.int().cpu() for rows in batches(len(part))])
        return {"near": near, "heads": network.heads, "beam": torch.tensor(network.beam)}

    if not len(network.heads):
        return None
    kept = run.stage(f"shortlists-{number}", opened)
    network.heads, network.beam = kept["heads"].to(network.heads), int(kept["beam"])
    return kept["near"]


@torch.no_grad()
def label_sums(network: Network, encode: Callable[[Bags], Tensor], part: Part, Z: csr_array | None) -> Tensor:
    """Return the sum of the vectors of each label's points, [L, D]; of a label without points, that of its text."""
    found = torch.zeros_like(network.vectors)
    for rows in batches(len(part)):
        own = bags(part.Y, rows).to(found.device)
        owners = torch.arange(len(own), device=found.device).repeat_interleave(own.offsets.diff())
        found.index_add_(0, own.ids, encode(bags(part.X, rows).to(found.device))[owners])
    alone = np.flatnonzero(np.bincount(part.Y.indices, minlength=len(found)) == 0)
    if Z is not None:
        for some in (alone[rows] for rows in batches(len(alone)) if len(rows)):
            found[torch.from_numpy(some).to(found.device)] = encode(bags(Z[some]).to(found.device))
    return found


@torch.no_grad()
def list_recall(network: Network, index: Shortlister, part: Part) -> float:
    """Return the share of a part's labels that are on the shortlists of their points."""
    hits = 0
    for rows in batches(len(part)):
        ids = index.labels(index.open(sought(network, part, rows)).ids).cpu().numpy()  # [B, W]
        hits += int(stored(part.Y, np.repeat(rows, ids.shape[1]), ids.ravel()).sum())
    return hits / max(1, int(part.Y.nnz))


# --- Labels that come later -------------------------------------------------------------------------------------------


def grow(network: Network, count: int, generator: torch.Generator) -> None:
    """Make room for labels of which nothing is known yet: evenly over clusters, or anywhere among the others."""
    spread = torch.arange(count, device=network.clusters.device) % (network.clusters.max() + 1)
    network.clusters = torch.cat([network.clusters, spread.to(network.clusters)])
    if network.settings.shortlist == "hnsw":
        more = unit(network.heads.new_zeros(count, network.heads.shape[1]), generator)
        network.heads = torch.cat([network.heads, more])


@torch.no_grad()
def place(network: Network, labels: Tensor, vectors: Tensor) -> None:
    """Put labels where points such as vectors [S, D] are led to; where a vector is zero the label stays."""
    told = vectors.any(dim=1)
    labels, vectors = labels[told], vectors[told]
    if not len(network.heads) or not len(labels):
        return
    if network.settings.shortlist == "hnsw":
        network.heads = network.heads.index_copy(0, labels, F.normalize(vectors, dim=1))
        if network.graph is not None and int(labels.min()) < len(network.graph):
            network.graph = None  # it cannot move what it holds; what lies behind joins it
    else:
        nearest = network.by_clusters().nearest(vectors)
        network.clusters = network.clusters.index_copy(0, labels, nearest.to(network.clusters))


def unit(vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Return vectors [S, D] with length 1, and in some direction where they are zero."""
    draws = torch.randn(vectors.shape, generator=generator).to(vectors)
    return F.normalize(torch.where(vectors.any(dim=1, keepdim=True), vectors, draws), dim=1)
