"""Approximate search in the nearest k-means clusters (an inverted file, IVF), for vectors of any norm."""

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

PROBES = 64  # clusters searched for a query; with √N clusters, the cost of a query grows with √N
ROUNDS = 10  # iterations of k-means


class IvfIndex:
    """Vectors [N, D] by cluster; a vector's id is its row. Made by `build` or `of_state`.

    centroids: [C, D].  assignment: [N], the cluster of each row.  probes: the number of clusters that a search reads;
    may be changed at any time.
    """

    def __init__(self, vectors: Tensor, centroids: Tensor, assignment: Tensor, probes: int) -> None:
        self.centroids, self.assignment, self.probes = centroids, assignment, probes
        with building(deterministic=True) as faiss:
            nearest = (faiss.IndexFlatL2 if of_one_length(vectors) else faiss.IndexFlatIP)(vectors.shape[1])
            nearest.add(rows(centroids))
            self._lists = faiss.IndexIVFFlat(nearest, vectors.shape[1], len(centroids), faiss.METRIC_INNER_PRODUCT)
            self._lists.is_trained = True
            _append(faiss, self._lists, rows(vectors), assignment)

    @classmethod
    def build(
        cls,
        vectors: Tensor,
        seed: int = 0,
        clusters: int | None = None,
        probes: int = PROBES,
        deterministic: bool = True,
    ) -> IvfIndex:
        """Cluster vectors [N, D] by k-means, by default about √N clusters; `deterministic=False` uses all cores."""
        points = len(vectors)
        if points == 0:
            raise DataError("an index needs at least one vector")
        clusters = max(1, min(clusters or math.isqrt(points), points // 2))
        array = rows(vectors)
        with building(deterministic) as faiss:
            quiet = {"min_points_per_centroid": 1}  # otherwise faiss writes to stderr if there are few points
            means = faiss.Kmeans(array.shape[1], clusters, niter=ROUNDS, seed=small(seed), **quiet)
            means.train(array)
            assignment = nearest_centroids(faiss, means.centroids, array)
        return cls(vectors, torch.from_numpy(means.centroids), assignment, probes)

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self.assignment)

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return the `width` rows with the largest inner products in the clusters nearest to each query.

        If all rows have one norm, the nearest cluster is the one at the smallest distance (DXML, Eq. 4); otherwise the
        one whose centroid has the largest inner product, which is the mean of its rows' inner products.
        """
        width, probes = min(width, len(self)), min(self.probes, len(self.centroids))
        with searching(len(queries)) as faiss:
            effort = faiss.SearchParametersIVF(nprobe=probes)
            scores, ids = self._lists.search(rows(queries), width, params=effort)
        return shortlist(ids, scores, queries.device)

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Append vectors, each to its nearest cluster; the clusters themselves stay as they are."""
        with building(deterministic) as faiss:
            assignment = nearest_centroids(faiss, rows(self.centroids), rows(vectors))
            _append(faiss, self._lists, rows(vectors), assignment)
        self.assignment = torch.cat([self.assignment, assignment])

    def state(self) -> dict[str, Tensor]:
        """Return the clusters as tensors; the model keeps the vectors themselves."""
        return {"centroids": self.centroids, "assignment": self.assignment, "probes": torch.tensor(self.probes)}

    @classmethod
    def of_state(cls, state: dict[str, Tensor], vectors: Tensor) -> IvfIndex:
        """Rebuild an index from its state and the vectors [N, D] that it was built over."""
        assignment, centroids, probes = (state[name].cpu() for name in ("assignment", "centroids", "probes"))
        if len(assignment) != len(vectors):
            raise DataError(f"the index was made for {len(assignment)} vectors; found {len(vectors)}")
        kinds = (assignment.dtype, assignment.ndim, centroids.dtype, *centroids.shape[1:], probes.dtype, probes.ndim)
        if kinds != (torch.int64, 1, torch.float32, vectors.shape[1], torch.int64, 0) or probes < 1:
            raise DataError("the clusters of the index have a wrong type or shape")
        if len(assignment) and not (assignment.min() >= 0 and assignment.max() < len(centroids)):
            raise DataError(f"the index puts a vector into a cluster outside 0..{len(centroids) - 1}")
        return cls(vectors, centroids, assignment, int(probes))


def of_one_length(vectors: Tensor) -> bool:
    """Whether all vectors have about the same norm, so that the largest inner product is the smallest distance."""
    lengths = vectors.detach().float().norm(dim=1)
    return bool((lengths >= 0.99 * lengths.max()).all()) if len(lengths) else True


def nearest_centroids(faiss: Any, centroids: NDArray[np.float32], vectors: NDArray[np.float32]) -> Tensor:
    """Return the nearest centroid of each vector, [N]."""
    search = faiss.IndexFlatL2(centroids.shape[1])
    search.add(centroids)
    return torch.from_numpy(search.search(vectors, 1)[1][:, 0].copy())


def _append(faiss: Any, lists: Any, vectors: NDArray[np.float32], assignment: Tensor) -> None:
    """Append vectors to the lists of their clusters; ids continue."""
    clusters = np.ascontiguousarray(assignment.numpy())
    lists.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(clusters))
