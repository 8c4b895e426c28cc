"""Nearest-neighbour search over vectors of labels or of points."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from zipfel.types import Shortlist

Kind = Literal["exact", "hnsw", "ivf"]
KINDS: tuple[Kind, ...] = ("exact", "hnsw", "ivf")


class Search(Protocol):
    """Finds candidates for queries; enough to rank labels."""

    def __len__(self) -> int:
        """Return the number of rows, N."""
        ...

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return up to min(width, N) ids for each of the queries [B, D], with their inner products."""
        ...


class Index(Search, Protocol):
    """An index of vectors [N, D] for search by inner product, which grows and is saved; a vector's id is its row."""

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Append vectors; their ids continue from N."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that `load_index` needs besides the vectors."""
        ...


def build_index(
    kind: Kind,
    vectors: Tensor,
    seed: int = 0,
    deterministic: bool = True,
    clusters: int | None = None,
    probes: int | None = None,
) -> Index:
    """Build an index over vectors [N, D]; without faiss, warn and build an exact one.

    deterministic: one thread, and the same index on every build; otherwise all cores.  clusters, probes: for an ivf
    index.
    """
    if kind == "exact" or _faiss_is_missing(kind):
        from zipfel.index.exact import ExactIndex

        return ExactIndex(vectors)
    if kind == "hnsw":
        from zipfel.index.hnsw import HnswIndex

        return HnswIndex.build(vectors, seed, deterministic=deterministic)
    from zipfel.index.ivf import PROBES, IvfIndex

    return IvfIndex.build(vectors, seed, clusters, probes or PROBES, deterministic)


def load_index(kind: Kind, state: dict[str, Tensor], vectors: Tensor) -> Index:
    """Rebuild an index from its `state()` and its vectors; an empty state makes an exact index."""
    if not state or kind == "exact" or _faiss_is_missing(kind):
        from zipfel.index.exact import ExactIndex

        return ExactIndex(vectors)
    if kind == "hnsw":
        from zipfel.index.hnsw import HnswIndex

        return HnswIndex.of_state(state, vectors)
    from zipfel.index.ivf import IvfIndex

    return IvfIndex.of_state(state, vectors)


def recall(index: Search, exact: Search, queries: Tensor, width: int, keys: Tensor | None = None) -> float:
    """Return the share of the exact shortlist that an index returns, averaged over queries; 1 without queries.

    keys: the vectors to search `index` with, where they differ from the queries that labels are ranked by.
    """
    approximate = index.search(queries if keys is None else keys, width).ids
    best = exact.search(queries, width).ids
    if best.numel() == 0:
        return 1.0
    hits = sum(len(set(ours) & set(theirs)) for ours, theirs in zip(approximate.tolist(), best.tolist(), strict=True))
    return hits / best.numel()


def _faiss_is_missing(kind: str) -> bool:
    """Whether faiss is missing; if so, warn that an exact index is used instead."""
    try:
        import faiss  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"{error}: using an exact index instead of {kind}; its recall is 1, but every search reads all vectors; "
            "to use faiss: pip install faiss-cpu",
            stacklevel=3,
        )
        return True
    return False
