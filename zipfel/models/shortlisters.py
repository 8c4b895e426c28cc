"""Shortlisters of DECAF, which select candidate labels after Module II: S, and the two alternatives of Table 5.

A shortlister owns its state, its training, its growth and its index: `ClusterBeam` opens the best clusters (S),
`NearestLabels` searches by HNSW the labels nearest by the mean of their points, `LabelTree` descends a tree with two
children a node (Parabel). All search with the encoder of Module II, and their lists are no longer than those of S.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack
from torch import Tensor, nn

from zipfel.data.batches import bags
from zipfel.data.dataset import Part
from zipfel.data.disk import counts_of
from zipfel.errors import DataError
from zipfel.index import Index, build_index, load_index
from zipfel.index.beam import BeamIndex, NearIndex
from zipfel.index.exact import ExactIndex, products, with_ones
from zipfel.index.tree import TreeIndex, nodes_on_the_way
from zipfel.labelspace.clusters import balanced_clusters
from zipfel.models.base import Lesson
from zipfel.models.decaf_settings import DecafSettings
from zipfel.models.learner import BATCH, evenly_spaced, joined, validation_of
from zipfel.models.saving import check_range, tensor_of
from zipfel.nn import losses
from zipfel.nn.encoders import EmbeddingTable, PredictionEncoder, TextBlock
from zipfel.training.run import Run, State
from zipfel.training.trainer import Schedule, train
from zipfel.types import Bags, stored

RECALL = 0.85  # share of true labels that the beam must contain
WIDEST_SHARE, WIDEST = 0.05, 256  # upper bounds of the beam: share of all clusters, and number
BEAM_POINTS = 10_000  # points on which the beam is chosen
LEAF, LEAVES = 100, 10  # labels of a leaf, and leaves that are reached, at most


@dataclass(frozen=True)
class ShortlistTask:
    """The training data of a shortlister, after Module II."""

    clusters: Tensor  # of each label, [L]
    H: Tensor  # classifiers of the clusters, [K, D]; with a bias, [K, D + 1]
    lesson: Lesson
    Z: csr_array | None
    run: Run
    number: int  # of the learner
    schedule: Schedule  # of a tree's nodes, which need long: with Module II's, 7 % more labels were missed


class Shortlister(nn.Module):
    """Selects candidate labels by their inner products with `heads`.

    Points are encoded with copies of E and E_D as Module II leaves them; with `lite`, E is shared and not copied.
    """

    heads: Tensor  # of clusters [K, D] or with a bias [K, D + 1], of a tree's nodes [2K − 2, D + 1], of labels [L, D]
    clusters: Tensor  # of each label, [L], or its leaf; empty where labels have vectors of their own
    beam: Tensor  # clusters, leaves or labels that a search opens

    def __init__(self, tokens: EmbeddingTable, document_block: TextBlock, settings: DecafSettings) -> None:
        super().__init__()
        self.settings = settings
        self.tokens, self.document_block = tokens if settings.lite else deepcopy(tokens), deepcopy(document_block)
        self.register_buffer("heads", torch.zeros(0, settings.dimension))
        self.register_buffer("clusters", torch.zeros(0, dtype=torch.int32))
        self.register_buffer("beam", torch.tensor(0))

    # --- Training: each kind has its own `learn` ----------------------------------------------------------------------

    def learn(self, task: ShortlistTask) -> None:
        """Learn which labels to select for a point."""
        raise NotImplementedError

    def take(self, heads: Tensor, clusters: Tensor, beam: int) -> None:
        """Take vectors, clusters of labels, and the number of clusters that are opened."""
        self.heads, self.clusters, self.beam = heads, clusters, torch.tensor(beam, device=heads.device)

    def opened(self, part: Part, number: int, run: Run) -> Tensor:
        """Return the ids that a search opens for each point of a part, [N, beam]: of clusters, leaves or labels."""

        def opened() -> State:
            index = self.index()
            ids = joined((index.open(queries).ids.int().cpu() for _, queries in self.encoded(part)), len(part))
            return {"opened": ids, "heads": self.heads, "beam": self.beam}  # heads: made again, last bits may differ

        kept = run.stage(f"shortlists-{number}", opened)
        self.take(kept["heads"].to(self.heads), self.clusters, int(kept["beam"]))
        return kept["opened"]

    # --- Search ------------------------------------------------------------------------------------------------------

    def index(self, learned: int | None = None) -> BeamIndex | NearIndex:
        """Return the index of all labels, or of the first `learned`."""
        raise NotImplementedError

    def score_offset(self) -> float | None:
        """Return the offset of clusters' scores, where they are a factor of labels' scores; else None."""
        return None

    def encoder(self) -> PredictionEncoder:
        """Return the encoder of the search."""
        settings = self.settings
        block = self.document_block.eval() if settings.residual else None
        return PredictionEncoder(self.tokens, block, settings.cosine, settings.relu)

    @torch.no_grad()
    def encoded(self, part: Part) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yield the points of a part in batches: rows, and x̂ as the search sees it, [B, D]."""
        encode = self.encoder()
        for rows in batches(len(part)):
            yield rows, encode(bags(part.X, rows).to(self.heads.device))

    def centroids(self, part: Part, Z: csr_array | None, labels: int) -> Tensor:
        """Return the sum of x̂ over the points of each label, [L, D]."""
        return label_sums(self.encoder(), part, Z, self.heads.new_zeros(labels, self.settings.dimension))

    def recall(self, part: Part, index: BeamIndex | NearIndex) -> float:
        """Return the share of a part's labels that are on the shortlists of their points."""
        hits = 0
        for rows, queries in self.encoded(part):
            ids = index.labels(index.open(queries).ids).cpu().numpy()  # [B, W]
            hits += int(stored(part.Y, np.repeat(rows, ids.shape[1]), ids.ravel()).sum())
        return hits / max(1, int(part.Y.nnz))

    def beam_of_clusters(self, task: ShortlistTask) -> int:
        """Return B as set; or the least by which shortlists hold 85 % of labels.

        On train it is the paper's rule, over all points. Otherwise some held-out points decide, and B is at most 5 % of
        all clusters, and 256.
        """
        clusters = len(task.H)
        if self.settings.beam:
            return min(self.settings.beam, clusters)
        if self.settings.beam_chosen_on == "train":
            return smallest_beam(self.cluster_ranks(task.lesson.train, task))
        part = task.lesson.validation or task.lesson.train
        ranks = self.cluster_ranks(evenly_spaced(part, BEAM_POINTS), task)
        wanted = int(np.quantile(ranks, RECALL, method="higher")) + 1
        most = max(1, min(WIDEST, int(WIDEST_SHARE * clusters)))
        if wanted > most:
            held = f"shortlists hold {np.mean(ranks < most):.0%} of labels, not {RECALL:.0%}"
            task.run.note(f"{held}: the beam is limited to {most} of {clusters:,} clusters; set beam={wanted} for more")
        return min(wanted, most)

    def list_length(self, task: ShortlistTask) -> int:
        """Return the average number of labels in the clusters that S opens."""
        return self.beam_of_clusters(task) * len(task.clusters) // len(task.H)

    def cluster_ranks(self, part: Part, task: ShortlistTask) -> NDArray[np.int64]:
        """Return for each label of each point how many clusters score above the label's own, [T]."""
        ranks, clusters = [], task.clusters.long()
        for rows, queries in self.encoded(part):
            scores = products(with_ones(queries, task.H), task.H)  # [B, K]
            own = bags(part.Y, rows).to(scores.device)
            counts = own.offsets.diff()
            owners = torch.arange(len(own), device=scores.device).repeat_interleave(counts)
            columns = torch.arange(len(owners), device=scores.device) - own.offsets[owners]
            mine = scores.new_zeros(len(own), int(counts.max()))  # [B, most], so that each row is sorted once
            mine[owners, columns] = scores[owners, clusters[own.ids]]
            below = torch.searchsorted(scores.sort(dim=1).values, mine, right=True)
            ranks.append(scores.shape[1] - below[owners, columns])
        return torch.cat(ranks).cpu().numpy()

    # --- New labels and tokens ----------------------------------------------------------------------------------------

    @torch.no_grad()
    def take_new_tokens(self, tokens: EmbeddingTable) -> bool:
        """Take the vectors of tokens that have none here yet; return whether there are any."""
        new = ~self.tokens.rows.any(dim=1)
        self.tokens.rows[new] = tokens.rows[new]
        return bool(new.any())

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Append labels without points or texts, spread evenly over the clusters."""
        spread = torch.arange(count, device=self.clusters.device) % (self.clusters.max() + 1)
        self.clusters = torch.cat([self.clusters, spread.to(self.clusters)])

    @torch.no_grad()
    def assign(self, labels: Tensor, vectors: Tensor) -> None:
        """Move labels to the clusters nearest to `vectors` [S, D]; a label whose vector is zero keeps its cluster."""
        known = vectors.any(dim=1)
        if known.any():
            self._assign(labels[known], vectors[known])

    def _assign(self, labels: Tensor, vectors: Tensor) -> None:
        index = self.index()
        assert isinstance(index, BeamIndex)
        self.clusters = self.clusters.index_copy(0, labels, index.nearest(vectors).to(self.clusters))

    # --- Saving, beyond buffers ---------------------------------------------------------------------------------------

    def check(self, labels: int) -> None:
        """Raise DataError if saved tensors, whose shapes training decides, do not fit this many labels."""
        if self.beam < 1:
            raise DataError(f"tensor 'beam': expected 1 or more, found {int(self.beam)}")

    def more_tensors(self, learned: int) -> State:
        """Return the state of the index that is costly to build again."""
        return {}

    def take_tensors(self, more: State, learned: int) -> None:
        """Restore the state that `more_tensors` returned."""


class ClusterBeam(Shortlister):
    """S: opens the clusters of Module II that score best."""

    def learn(self, task: ShortlistTask) -> None:
        """Take the clusters, and choose the beam."""
        self.take(task.H, task.clusters, self.beam_of_clusters(task))

    def index(self, learned: int | None = None) -> BeamIndex:
        """Return an index by clusters."""
        return BeamIndex(self.heads, self.clusters[:learned], int(self.beam))

    def check(self, labels: int) -> None:
        """Check the clusters of labels, and that each has a vector."""
        super().check(labels)
        state = {"heads": self.heads, "clusters": self.clusters}
        tensor_of(state, "heads", torch.float32, None, self.settings.dimension + self.settings.label_bias)
        check_range("clusters", tensor_of(state, "clusters", torch.int32, labels), len(self.heads))

    def score_offset(self) -> float:
        """Return the offset with which Module II trained."""
        return self.settings.cluster_offset(len(self.heads))


class NearestLabels(Shortlister):
    """Searches the labels whose points' mean, or text, is nearest; a label with neither gets a random direction."""

    graph: Index | None = None

    def learn(self, task: ShortlistTask) -> None:
        """Take the centroids of labels as their vectors."""
        centroids = self.centroids(task.lesson.train, task.Z, len(task.clusters))
        heads = unit(centroids, task.run.generator(f"vectors-{task.number}"))
        self.take(heads, self.clusters, self.list_length(task))

    def index(self, learned: int | None = None) -> NearIndex:
        """Return HNSW over the vectors of labels, or an exact index; labels learned since join it."""
        heads = self.heads[:learned]
        if self.graph is None:
            self.graph = build_index("hnsw", heads)
        elif len(self.graph) < len(heads):
            self.graph.add(heads[len(self.graph) :])
        moved = isinstance(self.graph, ExactIndex)  # to another device, maybe
        return NearIndex(ExactIndex(heads) if moved else self.graph, int(self.beam))

    def grow(self, count: int, generator: torch.Generator) -> None:
        """Append labels in random directions."""
        more = unit(self.heads.new_zeros(count, self.heads.shape[1]), generator)
        self.heads = torch.cat([self.heads, more])

    def _assign(self, labels: Tensor, vectors: Tensor) -> None:
        self.heads = self.heads.index_copy(0, labels, F.normalize(vectors, dim=1))
        if self.graph is not None and int(labels.min()) < len(self.graph):
            self.graph = None  # HNSW cannot move nodes, so the graph is rebuilt; labels behind its end are just added

    def check(self, labels: int) -> None:
        """Check that each label has a vector."""
        super().check(labels)
        tensor_of({"heads": self.heads}, "heads", torch.float32, labels, self.settings.dimension)

    def more_tensors(self, learned: int) -> State:
        """Return the graph."""
        return self.index(learned).index.state()

    def take_tensors(self, more: State, learned: int) -> None:
        """Take the graph."""
        self.graph = load_index("hnsw", more, self.heads[:learned])


class LabelTree(Shortlister):
    """Halves labels by their centroids down to small leaves; each node learns which points have labels below it."""

    def learn(self, task: ShortlistTask) -> None:
        """Grow the tree and train its nodes."""
        run, name = task.run, f"leaves-{task.number}"

        def halved() -> State:
            labels = len(task.clusters)
            count, beam = tree_sizes(labels, self.list_length(task))
            centroids = self.centroids(task.lesson.train, task.Z, labels)
            leaves = balanced_clusters(centroids, count, run.numbers(name))
            return {"clusters": torch.from_numpy(leaves), "beam": torch.tensor(beam)}

        kept = run.stage(name, halved, "labels")
        clusters = kept["clusters"].to(task.clusters)
        nodes = 2 * int(clusters.max())  # all but the root
        heads = torch.zeros(nodes, self.settings.dimension + 1, device=task.H.device)
        self.take(heads, clusters, int(kept["beam"]))
        if nodes:
            self.train_nodes(task)

    def index(self, learned: int | None = None) -> TreeIndex:
        """Return an index by the leaves of the tree."""
        return TreeIndex(self.heads, self.clusters[:learned], int(self.beam))

    def check(self, labels: int) -> None:
        """Check that the nodes make a whole tree, and the leaves of labels."""
        super().check(labels)
        leaves, state = len(self.heads) // 2 + 1, {"heads": self.heads, "clusters": self.clusters}
        if leaves & (leaves - 1):
            raise DataError(f"tensor 'heads': {leaves} leaves, which is not a power of two")
        tensor_of(state, "heads", torch.float32, 2 * leaves - 2, self.settings.dimension + 1)
        check_range("clusters", tensor_of(state, "clusters", torch.int32, labels), leaves)

    def train_nodes(self, task: ShortlistTask) -> None:
        """Train w and b of each node on the points that visit it, with x̂ frozen."""
        part, weights = task.lesson.train, nn.Parameter(self.heads)
        nodes = nn.Module()
        nodes.register_parameter("weights", weights)
        held = nodes_of_points(part.Y, self.clusters.cpu().numpy(), len(self.heads) // 2 + 1)
        encode = self.encoder()

        def objective(rows: NDArray[np.int64], generator: torch.Generator) -> Mapping[str, Tensor]:
            with torch.no_grad():
                points = F.pad(encode(bags(part.X, rows).to(weights.device)), (0, 1), value=1.0)
            scores = points @ weights.T  # [B, 2K − 2]
            targets = torch.from_numpy(held[rows].toarray()).to(weights.device)
            return {"nodes": losses.logistic(scores, targets, nodes_on_the_way(targets))}

        def recall(held_out: Part) -> float:
            return self.recall(held_out, TreeIndex(weights, self.clusters, int(self.beam)))

        validate = validation_of(task.lesson.validation, recall, "shortlist recall")
        if train(task.run, f"tree-{task.number}", nodes, part.draws, objective, task.schedule, validate).interrupted:
            raise KeyboardInterrupt
        self.heads = weights.detach()


SHORTLISTERS: dict[str, type[Shortlister]] = {"beam": ClusterBeam, "hnsw": NearestLabels, "parabel": LabelTree}


def smallest_beam(ranks: NDArray[np.int64]) -> int:
    """Return the least B with which more than 85 % of labels, by the ranks of their clusters, are on shortlists.

    >>> smallest_beam(np.array([0] * 85 + [3] * 14 + [7])), smallest_beam(np.array([0] * 86 + [3] * 14))
    (4, 1)
    """
    found = np.cumsum(np.bincount(ranks))  # by B - 1
    return int(np.argmax(100 * found > round(100 * RECALL) * len(ranks))) + 1


def tree_sizes(labels: int, width: int) -> tuple[int, int]:
    """Return how many leaves a tree has, a power of two, and how many are reached: on average at most `width` labels.

    >>> tree_sizes(100_000, 5000), tree_sizes(10_000, 500), tree_sizes(36, 10), tree_sizes(3, 3)
    ((1024, 10), (256, 10), (32, 8), (2, 2))
    """
    size = max(1, min(LEAF, width // LEAVES))
    leaves = min(1 << (math.ceil(labels / size) - 1).bit_length(), 1 << (labels.bit_length() - 1))
    return leaves, max(1, min(LEAVES, width * leaves // labels))


def nodes_of_points(Y: csr_array, leaves: NDArray[np.int32], count: int) -> csr_array:
    """Return which nodes of a tree, but the root, hold a label of each point, [N, 2K − 2], level by level."""
    depth = count.bit_length() - 1
    levels = [labels_to_clusters(Y, leaves >> (depth - level), 1 << level) for level in range(1, depth + 1)]
    return csr_array(hstack(levels, format="csr"))


def labels_to_clusters(Y: csr_array, clusters: NDArray[np.integer], count: int) -> csr_array:
    """Return which clusters contain a label of each point, [N, K]."""
    ends = Y.indptr.copy()  # sum_duplicates writes into them
    held = csr_array((np.ones(Y.nnz, dtype=np.float32), clusters[Y.indices], ends), shape=(Y.shape[0], count))
    held.sum_duplicates()
    held.data[:] = 1
    return held


@torch.no_grad()
def label_sums(encode: Callable[[Bags], Tensor], part: Part, Z: csr_array | None, sums: Tensor) -> Tensor:
    """Add to sums [L, D] the vectors of each label's points; of a label without points, that of its text."""
    for rows in batches(len(part)):
        own = bags(part.Y, rows).to(sums.device)
        owners = torch.arange(len(own), device=sums.device).repeat_interleave(own.offsets.diff())
        sums.index_add_(0, own.ids, encode(bags(part.X, rows).to(sums.device))[owners])
    alone = np.flatnonzero(counts_of(part.Y) == 0)
    if Z is not None:
        for some in (alone[rows] for rows in batches(len(alone)) if len(rows)):
            sums[torch.from_numpy(some).to(sums.device)] = encode(bags(Z[some]).to(sums.device))
    return sums


def batches(points: int) -> Iterator[NDArray[np.int64]]:
    """Yield the rows of this many points in batches; without points, one empty batch."""
    return (np.arange(start, min(start + BATCH, points)) for start in range(0, max(points, 1), BATCH))


def unit(vectors: Tensor, generator: torch.Generator) -> Tensor:
    """Return vectors [S, D] with length 1; where one is zero, in a random direction."""
    draws = torch.randn(vectors.shape, generator=generator).to(vectors)
    return F.normalize(torch.where(vectors.any(dim=1, keepdim=True), vectors, draws), dim=1)
