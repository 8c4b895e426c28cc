"""The graph of labels: by co-occurrence, or as the user gives it."""

from __future__ import annotations

import codecs
import gzip
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from zipfel.errors import DataError, did_you_mean

Mean = Literal["arithmetic", "geometric"]

_BLOCK = 1 << 17  # bytes of lines read at a time; one that holds a comment is read line by line
_NO_MARKS = bytes(set(range(256)) - set(b"\t\n"))  # all that neither ends a cell nor a line
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


def cooccurrence(Y: csr_array) -> csr_array:
    """Return A = Yᵀ Y, [labels, labels]: how many points two labels share; a label's own count on the diagonal."""
    return csr_array(Y.T @ Y)


def adjacency(A: csr_array, labels: NDArray[np.int64], mean: Mean = "arithmetic") -> NDArray[np.float32]:
    """Return the part of U for a batch of labels, [S, S], GLaS Eq. (3): only this part is ever dense.

    arithmetic: half of A Z⁻¹ + Z⁻¹ A, the mean of the two conditional frequencies.  geometric: A_yy' / √(A_yy A_y'y').
    Z is the diagonal of A over the whole of train; a label without a point has U = 1 with itself and 0 with others.
    """
    part: NDArray[np.float32] = A[labels][:, labels].toarray().astype(np.float32)
    counts = np.maximum(part.diagonal(), 1)  # Z, of these labels
    if mean == "arithmetic":
        part *= (1 / counts[:, None] + 1 / counts[None, :]) / 2
    else:
        part /= np.sqrt(counts[:, None] * counts[None, :])
    part[labels[:, None] == labels[None, :]] = 1
    return part


def label_graph(Y: csr_array, weighted: bool = False) -> csr_array:
    """Return the graph of DXML Sec. 3.2, [labels, labels] float32: an edge where two labels ever share a point.

    weighted: an edge weighs as many points as they share, else 1. No label is its own neighbour.
    """
    A = cooccurrence(Y).tocoo()
    kept = A.row != A.col
    weights = A.data[kept].astype(np.float32) if weighted else np.ones(int(kept.sum()), dtype=np.float32)
    return _sorted_csr(A.row[kept], A.col[kept], weights, A.shape[0])


def _sorted_csr(
    rows: NDArray[np.int32], columns: NDArray[np.int32], weights: NDArray[np.floating], labels: int
) -> csr_array:
    """Return a square CSR array with rows in order, whatever repeats added up."""
    graph = coo_array((weights, (rows, columns)), shape=(labels, labels)).tocsr()
    graph.sum_duplicates()
    return csr_array(graph)


class _Edges(NamedTuple):
    """Edges of a part of a file."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    weights: NDArray[np.float64]


class _Names(NamedTuple):
    """Label names, as bytes, with their ids; spaces: whether a space may separate them, for none holds one."""

    ids: Mapping[bytes, int]
    spaces: bool


def read_edges(path: Path | str, names: Sequence[str]) -> csr_array:
    """Read a graph or a hierarchy of labels, plain or gzip: one edge a line, `label<TAB>label[<TAB>weight]`.

    Returns [labels, labels] float32, symmetric and without diagonal: an edge counts both ways, without a weight it
    weighs 1, and what is named twice adds up. Blank lines and lines that start with # are passed over. A space may
    stand for the tab where no label's name holds one.
    """
    path = Path(path)
    known = _Names(
        {name.encode("utf-8", "surrogatepass"): label for label, name in enumerate(names)},
        spaces=not any(" " in name for name in names),
    )
    parts, line = [], 1
    for text in _line_blocks(path):
        edges = _regular_edges(text, known)
        parts.append(_edges_by_line(text, known, path, line) if edges is None else edges)
        line += text.count(b"\n")
    return _symmetric(parts, len(names), path)


def _symmetric(parts: list[_Edges], labels: int, path: Path) -> csr_array:
    """Put edges together, each in both directions; a label's edge to itself is dropped."""
    empty = _Edges(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0))
    left, right, weights = (np.concatenate(columns) for columns in zip(empty, *parts, strict=True))
    kept = left != right
    left, right, weights = left[kept], right[kept], weights[kept]
    both = np.concatenate((left, right)), np.concatenate((right, left))
    graph = _sorted_csr(*both, np.concatenate((weights, weights)), labels)
    if graph.nnz and graph.data.max() > _LARGEST:
        raise DataError("the weights of a repeated edge add up to more than float32 can hold", path)
    return graph.astype(np.float32)


def _line_blocks(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file in blocks, each line ended by a newline alone; a byte-order mark is left out."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = gzip.GzipFile(fileobj=raw) if packed else raw
            start = codecs.BOM_UTF8
            while lines := stream.readlines(_BLOCK):
                text = b"".join(lines).removeprefix(start).replace(b"\r\n", b"\n")
                start = b""
                yield text if text.endswith(b"\n") else text + b"\n"
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"broken gzip file: {str(error).rstrip('.')}", path) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}", path) from None


def _regular_edges(text: bytes, known: _Names) -> _Edges | None:
    """Read lines that are all of one form and right, fast; or return None."""
    if known.spaces and b"\t" not in text:
        text = text.replace(b" ", b"\t")
    marks = text.translate(None, _NO_MARKS)
    cells = marks.find(b"\n") + 1  # of the first line, and of all where its marks repeat
    if cells not in (2, 3) or marks != marks[:cells] * (len(marks) // cells):
        return None
    if text.startswith(b"#") or b"\n#" in text:
        return None
    words = text[:-1].replace(b"\n", b"\t").split(b"\t")
    left, right = (np.fromiter(map(known.ids.get, words[side::cells], repeat(-1)), np.int32) for side in (0, 1))
    try:
        weights = np.array(list(map(float, words[2::3])) if cells == 3 else np.ones(len(left)))
    except ValueError:
        return None
    right_all = min(left.min(), right.min()) >= 0 and ((weights >= _SMALLEST) & (weights <= _LARGEST)).all()
    return _Edges(left, right, weights) if right_all else None


def _edges_by_line(text: bytes, known: _Names, path: Path, first_line: int) -> _Edges:
    """Read lines one by one: the plain statement of the format, which says what is wrong and where."""
    lines = enumerate(text[:-1].split(b"\n"), start=first_line)
    edges = [_edge(line, known, path, number) for number, line in lines if line.strip() and not line.startswith(b"#")]
    left, right, weights = zip(*edges, strict=True) if edges else ((), (), ())
    return _Edges(np.array(left, np.int32), np.array(right, np.int32), np.array(weights, np.float64))


def _edge(line: bytes, known: _Names, path: Path, number: int) -> tuple[int, int, float]:
    cells = line.split(b"\t" if b"\t" in line or not known.spaces else b" ")
    if len(cells) not in (2, 3):
        raise DataError(f"expected label<TAB>label[<TAB>weight], found {_shown(line)}", path, number)
    for name in cells[:2]:
        if name not in known.ids:
            raise DataError(f"unknown label {_shown(name)}{_nearest(name, known)}", path, number)
    return known.ids[cells[0]], known.ids[cells[1]], _weight(cells[2], path, number) if len(cells) == 3 else 1.0


def _weight(word: bytes, path: Path, number: int) -> float:
    try:
        weight = float(word)
    except ValueError:
        weight = 0.0
    if not _SMALLEST <= weight <= _LARGEST:
        raise DataError(f"expected a weight that is positive and finite, found {_shown(word)}", path, number)
    return weight


def _nearest(name: bytes, known: _Names) -> str:
    """Offer the nearest label; many labels are not listed."""
    hint = did_you_mean(name.decode(errors="replace"), (label.decode(errors="replace") for label in known.ids))
    return hint if len(hint) <= 200 and hint.isprintable() else f"; none of the {len(known.ids)} labels is like it"


def _shown(text: bytes) -> str:
    """Return what a line holds as it can stand in a message: quoted, on one line, not too long."""
    decoded = text.decode(errors="replace")
    return repr(decoded if len(decoded) <= 60 else decoded[:59] + "…")
