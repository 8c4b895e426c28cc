"""Search in the nearest of k-means clusters (an inverted file), for vectors of any lengths."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipfel.errors import DataError
from zipfel.index.engine import building, rows, searching, shortlist, small
from zipfel.types import Shortlist

PROBES = 64  # clusters looked at for a query; of √N clusters, so that the cost of a query grows with √N
ROUNDS = 10  # of k-means


class IvfIndex:
    """Rows of vectors [N, D], whose ids they are, by cluster. Made by `build` or `of_state`.

    centroids: [C, D].  assignment: [N], the cluster of each row.  probes: how many clusters a search looks at; may be
    set at any time.  spread: mean distance from the centroid of those rows that the clusters were made of.
    """

    def __init__(self, vectors: Tensor, centroids: Tensor, assignment: Tensor, probes: int, spread: float) -> None:
        self.centroids, self.assignment, self.probes, self.spread = centroids, assignment, probes, spread
        with building(deterministic=True) as faiss:
            nearest = (faiss.IndexFlatL2 if of_one_length(vectors) else faiss.IndexFlatIP)(vectors.shape[1])
            nearest.add(rows(centroids))
            self._lists = faiss.IndexIVFFlat(nearest, vectors.shape[1], len(centroids), faiss.METRIC_INNER_PRODUCT)
            self._lists.is_trained = True
            _file(faiss, self._lists, rows(vectors), assignment)

    @classmethod
    def build(
        cls,
        vectors: Tensor,
        seed: int = 0,
        clusters: int | None = None,
        probes: int = PROBES,
        deterministic: bool = True,
    ) -> IvfIndex:
        """Cluster vectors [N, D] by k-means, about √N clusters unless told; `deterministic=False` uses all cores."""
        points = len(vectors)
        if points == 0:
            raise DataError("an index needs at least one vector")
        clusters = max(1, min(clusters or math.isqrt(points), points // 2))
        found = rows(vectors)
        with building(deterministic) as faiss:
            quiet = {"min_points_per_centroid": 1}  # else few points make it write to stderr
            means = faiss.Kmeans(found.shape[1], clusters, niter=ROUNDS, seed=small(seed), **quiet)
            means.train(found)
            distances, assignment = nearest_centroids(faiss, means.centroids, found)
        return cls(vectors, torch.from_numpy(means.centroids), assignment, probes, float(distances.mean()))

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.assignment)

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the `width` rows with the largest inner product in the clusters that are nearest to each query.

        Where rows have one length, nearest is meant literally (DXML, Eq. 4); otherwise it is the centroid with the
        largest inner product, the mean of what its rows have.
        """
        width, probes = min(width, len(self)), min(self.probes, len(self.centroids))
        with searching(len(queries)) as faiss:
            effort = faiss.SearchParametersIVF(nprobe=probes)
            scores, ids = self._lists.search(rows(queries), width, params=effort)
        return shortlist(ids, scores, queries.device)

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Take new rows behind those that are there, each into its nearest cluster; the clusters stay (see `drift`)."""
        with building(deterministic) as faiss:
            _, assignment = nearest_centroids(faiss, rows(self.centroids), rows(vectors))
            _file(faiss, self._lists, rows(vectors), assignment)
        self.assignment = torch.cat([self.assignment, assignment])

    def drift(self, vectors: Tensor) -> float:
        """Return how far new rows lie from the nearest centroid, as a multiple of `spread`: 1 for rows like those.

        Well above 1, the clusters no longer fit, and the index should be built again.
        """
        with building(deterministic=True) as faiss:
            distance = float(nearest_centroids(faiss, rows(self.centroids), rows(vectors))[0].mean())
        return 1.0 if distance == self.spread else distance / self.spread if self.spread else math.inf

    def state(self) -> dict[str, Tensor]:
        """Return clusters as tensors; the vectors themselves are the model's to keep."""
        return {
            "centroids": self.centroids,
            "assignment": self.assignment,
            "probes": torch.tensor(self.probes),
            "spread": torch.tensor(self.spread, dtype=torch.float64),
        }

    @classmethod
    def of_state(cls, state: dict[str, Tensor], vectors: Tensor) -> IvfIndex:
        """Put the clusters and the vectors [N, D] that they were made for together again."""
        assignment = state["assignment"].cpu()
        if len(assignment) != len(vectors):
            raise DataError(f"the index was made for {len(assignment)} vectors; found {len(vectors)}")
        return cls(vectors, state["centroids"].cpu(), assignment, int(state["probes"]), float(state["spread"]))


def of_one_length(vectors: Tensor) -> bool:
    """Tell whether all vectors are about as long, so that the largest inner product is the smallest distance."""
    lengths = vectors.detach().float().norm(dim=1)
    return bool((lengths >= 0.99 * lengths.max()).all()) if len(lengths) else True


def nearest_centroids(
    faiss: Any, centroids: NDArray[np.float32], vectors: NDArray[np.float32]
) -> tuple[NDArray[np.float32], Tensor]:
    """Return for each vector the distance to its nearest centroid [N], and which one that is [N]."""
    search = faiss.IndexFlatL2(centroids.shape[1])
    search.add(centroids)
    squares, ids = search.search(vectors, 1)
    return np.sqrt(np.maximum(squares[:, 0], 0)), torch.from_numpy(ids[:, 0].copy())


def _file(faiss: Any, lists: Any, vectors: NDArray[np.float32], assignment: Tensor) -> None:
    """Append vectors to the lists of their clusters; ids continue."""
    clusters = np.ascontiguousarray(assignment.numpy())
    lists.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(clusters))
