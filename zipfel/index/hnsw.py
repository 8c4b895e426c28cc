"""Approximate search in a neighbour graph (HNSW, Malkov and Yashunin 2016), for vectors of one length (norm).

If all vectors have one length, the largest inner product is the smallest distance, which the graph is made for. If
lengths differ, the graph misses some neighbours, and the better it is built, the more it misses; the usual reduction to
one length does not help (figures in docs/decisions/009-indices.md). Such vectors are rejected.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zipfel.errors import DataError
from zipfel.index.engine import building, rows, searching, shortlist, small
from zipfel.types import Shortlist

LINKS = 32  # links of a vector to others, on each level
EF_CONSTRUCTION = 40  # candidates for the links of a new vector
EF_SEARCH = 64  # minimum number of candidates for a query, which is also at least twice the width
TOLERANCE = 0.01  # relative difference in length that is allowed


class HnswIndex:
    """A graph over vectors [N, D] of one length, or zero; a vector's id is its row. Made by `build` or `of_state`.

    Equal vectors share a node: many equal nodes would link only to each other, and the graph would fall apart.
    """

    def __init__(self, graph: Any, nodes: NDArray[np.int64], seed: int) -> None:
        self._graph, self._seed = graph, seed
        self._set_nodes(nodes)

    def _set_nodes(self, nodes: NDArray[np.int64]) -> None:
        """Store the node of each row, [N], and the rows of each node: `by_node[starts[node]:starts[node + 1]]`."""
        self._nodes = nodes
        self._by_node = np.argsort(nodes, kind="stable")
        self._starts = np.searchsorted(nodes[self._by_node], np.arange(self._graph.ntotal + 1))

    @classmethod
    def build(cls, vectors: Tensor, seed: int = 0, deterministic: bool = True) -> HnswIndex:
        """Link vectors [N, D] one by one; `deterministic=False` uses all cores, and each build differs."""
        _check_lengths(vectors)
        unique, nodes = distinct(rows(vectors))
        with building(deterministic) as faiss:
            graph = faiss.IndexHNSWFlat(vectors.shape[1], LINKS, faiss.METRIC_INNER_PRODUCT)
            graph.hnsw.efConstruction = EF_CONSTRUCTION
            _link(faiss, graph, unique, small(seed))
        return cls(graph, nodes, small(seed))

    def __len__(self) -> int:
        """Return the number of rows, N."""
        return len(self._nodes)

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return approximately the `width` rows with the largest inner products for each query, best first."""
        nodes, width = min(width, self._graph.ntotal), min(width, len(self))
        with searching(len(queries)) as faiss:
            if 2 * nodes >= self._graph.ntotal:  # the graph would visit every node anyway, and might miss some
                scores, ids = self._graph.storage.search(rows(queries), nodes)
            else:
                effort = faiss.SearchParametersHNSW(efSearch=max(EF_SEARCH, 2 * nodes))
                scores, ids = self._graph.search(rows(queries), nodes, params=effort)
        if self._graph.ntotal < len(self):
            ids, scores = self._rows_of(ids, scores, width)
        return shortlist(ids, scores, queries.device)

    def _rows_of(
        self, nodes: NDArray[np.int64], scores: NDArray[np.float32], width: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Replace each node [B, nodes] by its rows, lower ids first, and keep the first `width`."""
        sizes = np.where(nodes < 0, 0, np.diff(self._starts)[nodes])  # [B, nodes]
        ends = np.cumsum(sizes, axis=1)
        columns = np.arange(width)
        ids = np.full((len(nodes), width), -1, dtype=np.int64)
        values = np.zeros((len(nodes), width), dtype=np.float32)
        for row in range(len(nodes)):
            filled = columns[: ends[row, -1]]
            owner = np.searchsorted(ends[row], filled, side="right")  # the node that each column belongs to
            within = filled - (ends[row] - sizes[row])[owner]
            ids[row, : len(filled)] = self._by_node[self._starts[nodes[row, owner]] + within]
            values[row, : len(filled)] = scores[row, owner]
        return ids, values

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Append vectors, which must be as long as the others."""
        with building(deterministic) as faiss:
            known = self._graph.storage.reconstruct_n(0, self._graph.ntotal)  # [nodes, D]
            _check_lengths(torch.cat([torch.from_numpy(known), vectors.detach().cpu().float()]))
            unique, nodes = distinct(np.concatenate([known, rows(vectors)]))
            _link(faiss, self._graph, unique[len(known) :], self._seed)
        self._set_nodes(np.concatenate([self._nodes, nodes[len(known) :]]))

    def state(self) -> dict[str, Tensor]:
        """Return the links as tensors; the model keeps the vectors themselves."""
        with building(deterministic=True) as faiss:
            writer = faiss.VectorIOWriter()
            faiss.write_index(self._graph, writer, faiss.IO_FLAG_SKIP_STORAGE)
            graph = faiss.vector_to_array(writer.data)
        return {
            "graph": torch.from_numpy(graph),
            "nodes": torch.from_numpy(self._nodes),
            "seed": torch.tensor(self._seed),
        }

    @classmethod
    def of_state(cls, state: dict[str, Tensor], vectors: Tensor) -> HnswIndex:
        """Rebuild an index from its state and the vectors [N, D] that it was built over."""
        nodes, written = state["nodes"].cpu().numpy(), state["graph"].cpu().numpy()
        if (nodes.dtype.name, nodes.ndim, written.dtype.name, written.ndim) != ("int64", 1, "uint8", 1):
            raise DataError("the graph of the index has a wrong type or shape")
        if (state["seed"].ndim, state["seed"].dtype) != (0, torch.int64):
            raise DataError("the seed of the index is not one whole number")
        if len(nodes) != len(vectors):
            raise DataError(f"the index was made for {len(nodes)} vectors; found {len(vectors)}")
        known, firsts = np.unique(nodes, return_index=True)  # and the first row of each node
        with building(deterministic=True) as faiss:
            graph = _read_graph(faiss, written)
            if (graph.ntotal, graph.d) != (len(known), vectors.shape[1]) or (known != np.arange(len(known))).any():
                raise DataError("the index was made for other vectors")
            _check_links(faiss, graph)
            storage = faiss.IndexFlatIP(vectors.shape[1])
            storage.add(rows(vectors)[firsts])
            graph.storage, graph.own_fields = storage, True  # the graph frees it, so Python must not
            storage.this.disown()
        return cls(graph, nodes, int(state["seed"]))


def distinct(vectors: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the unique vectors, in order of first appearance, and the unique vector of each row, [N]."""
    vectors = np.ascontiguousarray(vectors + np.float32(0))  # -0 becomes 0
    keys = vectors.view(np.dtype((np.void, vectors.shape[1] * vectors.itemsize))).ravel()
    _, firsts, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(firsts)
    ranks = np.empty_like(order)  # from the order of keys to the order of appearance
    ranks[order] = np.arange(len(order))
    return vectors[firsts[order]], ranks[inverse.ravel()].astype(np.int64)


def _link(faiss: Any, graph: Any, vectors: NDArray[np.float32], seed: int) -> None:
    """Add vectors to the graph; their levels are drawn from the seed and the number of nodes so far."""
    graph.hnsw.rng = faiss.RandomGenerator(small(seed, graph.ntotal))
    if len(vectors):
        graph.add(vectors)


def _read_graph(faiss: Any, written: NDArray[np.uint8]) -> Any:
    """Return the graph that `state` wrote."""
    try:
        graph = faiss.deserialize_index(written)
    except Exception as error:  # faiss raises RuntimeError, and its wrapper nearly anything
        raise DataError(f"the index is not readable: {type(error).__name__}") from None
    if not isinstance(graph, faiss.IndexHNSWFlat):
        raise DataError(f"expected an HNSW index, found {type(graph).__name__}")
    return graph


def _check_links(faiss: Any, graph: Any) -> None:
    """Raise DataError if a link leads out of the graph: faiss follows links, and older versions read any.

    The links of a node on all its levels are in `neighbors`, from `offsets[node]` on; `ends[level]` is where those of a
    level start among them. -1 is no link.
    """
    names = ("levels", "offsets", "neighbors", "cum_nneighbor_per_level")
    levels, offsets, links, ends = (faiss.vector_to_array(getattr(graph.hnsw, name)) for name in names)
    count = graph.ntotal
    sound = len(levels) == count and len(offsets) == count + 1 and len(ends) > 1 and offsets[0] == 0 == ends[0]
    sound = sound and levels.min(initial=1) >= 1 and levels.max(initial=1) < len(ends) and (np.diff(ends) >= 0).all()
    sound = sound and (np.diff(offsets.astype(np.int64)) == ends[levels]).all() and offsets[-1] == len(links)
    sound = sound and links.min(initial=0) >= -1 and links.max(initial=-1) < count
    sound = sound and 0 <= graph.hnsw.entry_point < count
    sound = sound and graph.hnsw.max_level == levels[graph.hnsw.entry_point] - 1 == levels.max() - 1
    if not (sound and all(_stays_on(level, levels, offsets, links, ends) for level in range(1, int(levels.max())))):
        raise DataError("the links of the index point outside of it")


def _stays_on(level: int, levels: Any, offsets: Any, links: Any, ends: Any) -> bool:
    """Whether links on a level above the lowest lead only to nodes that are on this level too."""
    starts = offsets[:-1][levels > level].astype(np.int64)
    linked = links[starts[:, None] + np.arange(ends[level], ends[level + 1])]
    return bool((levels[linked[linked >= 0]] > level).all())


def _check_lengths(vectors: Tensor) -> None:
    """Raise if vectors differ in length; zero ones, such as those of empty texts, are allowed: their products are 0."""
    if len(vectors) == 0:
        raise DataError("an index needs at least one vector")
    lengths = vectors.detach().float().norm(dim=1)
    longest = float(lengths.max())
    if not bool(((lengths >= (1 - TOLERANCE) * longest) | (lengths == 0)).all()):
        shortest = float(lengths[lengths != 0].min())
        raise DataError(
            f"HNSW needs vectors of one length; found {shortest:.4g} to {longest:.4g}: "
            "normalise them, or use an ivf or exact index"
        )
