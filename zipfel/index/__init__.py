"""Finding the nearest vectors: of labels, or of points."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Literal, Protocol

from zipfel.errors import ConfigError, did_you_mean

if TYPE_CHECKING:  # torch takes seconds to import
    from torch import Tensor

    from zipfel.types import Shortlist

Kind = Literal["exact", "hnsw", "ivf"]
KINDS: tuple[Kind, ...] = ("exact", "hnsw", "ivf")


class Index(Protocol):
    """Rows of vectors [N, D], whose ids they are, to be searched by inner product."""

    def __len__(self) -> int:
        """Return the number of rows, N."""
        ...

    def search(self, queries: Tensor, width: int) -> Shortlist:
        """Return up to min(width, N) rows for each of the queries [B, D], with their inner products."""
        ...

    def add(self, vectors: Tensor, deterministic: bool = True) -> None:
        """Take new rows behind those that are there."""
        ...

    def state(self) -> dict[str, Tensor]:
        """Return what `load_index` needs besides the vectors."""
        ...


def build_index(
    kind: Kind,
    vectors: Tensor,
    seed: int = 0,
    deterministic: bool = True,
    clusters: int | None = None,
    probes: int | None = None,
) -> Index:
    """Build an index over vectors [N, D]; where faiss is missing an exact one, with a warning.

    One thread, and the same index twice; `deterministic=False` uses all cores. clusters, probes: of an ivf index.
    """
    _check_kind(kind)
    if kind == "exact" or _faiss_is_missing(kind):
        from zipfel.index.exact import ExactIndex

        return ExactIndex(vectors)
    if kind == "hnsw":
        from zipfel.index.hnsw import HnswIndex

        return HnswIndex.build(vectors, seed, deterministic=deterministic)
    from zipfel.index.ivf import PROBES, IvfIndex

    return IvfIndex.build(vectors, seed, clusters, probes or PROBES, deterministic)


def load_index(kind: Kind, state: dict[str, Tensor], vectors: Tensor) -> Index:
    """Return the index that `state()` was taken from; an empty state is that of an exact one."""
    _check_kind(kind)
    if not state or kind == "exact" or _faiss_is_missing(kind):
        from zipfel.index.exact import ExactIndex

        return ExactIndex(vectors)
    if kind == "hnsw":
        from zipfel.index.hnsw import HnswIndex

        return HnswIndex.of_state(state, vectors)
    from zipfel.index.ivf import IvfIndex

    return IvfIndex.of_state(state, vectors)


def recall(index: Index, exact: Index, queries: Tensor, width: int, keys: Tensor | None = None) -> float:
    """Return the share of the exact shortlist that an index finds, averaged over queries; 1 where there are none.

    keys: what the index is searched by, where that is not what labels are ranked by.
    """
    found = index.search(queries if keys is None else keys, width).ids
    wanted = exact.search(queries, width).ids
    if wanted.numel() == 0:
        return 1.0
    hits = sum(len(set(ours) & set(theirs)) for ours, theirs in zip(found.tolist(), wanted.tolist(), strict=True))
    return hits / wanted.numel()


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ConfigError(f"index {kind!r} is unknown{did_you_mean(kind, KINDS)}")


def _faiss_is_missing(kind: str) -> bool:
    """Tell whether faiss is missing, and warn that the exact index takes its place."""
    try:
        import faiss  # noqa: F401
    except ImportError as error:
        warnings.warn(
            f"{error}: an exact index takes the place of {kind}; it finds at least as much, but looks at every vector "
            "(pip install faiss-cpu)",
            stacklevel=3,
        )
        return True
    return False
