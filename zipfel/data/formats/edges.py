"""A graph or hierarchy of labels as text, one edge a line. Blocks with comments or errors are parsed line by line."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.data.formats.files import line_blocks, opened
from zipfel.data.formats.sparse_text import shown
from zipfel.errors import DataError, did_you_mean

_NO_MARKS = bytes(set(range(256)) - set(b"\t\n"))  # all bytes but those that end a cell or a line
_SMALLEST, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)


class _Edges(NamedTuple):
    """Edges from a part of a file."""

    left: NDArray[np.int32]
    right: NDArray[np.int32]
    weights: NDArray[np.float64]


class _Names(NamedTuple):
    """Ids by label name, as bytes.  spaces: whether spaces may separate cells, as no name contains one."""

    ids: Mapping[bytes, int]
    spaces: bool


def read_edges(path: Path | str, names: Sequence[str]) -> csr_array:
    """Read a graph or a hierarchy of labels, plain or gzip: one edge a line, `label<TAB>label[<TAB>weight]`.

    Returns [labels, labels] float32, symmetric and without diagonal. An edge counts in both directions; its default
    weight is 1; weights of repeated edges add up. Blank lines and lines that start with # are skipped. Spaces may
    replace tabs if no label name contains a space.
    """
    path = Path(path)
    known = _Names(
        {name.encode("utf-8", "surrogatepass"): label for label, name in enumerate(names)},
        spaces=not any(" " in name for name in names),
    )
    parts, line = [], 1
    with opened(path) as stream:
        for block in line_blocks(stream, path):
            text = (block.removeprefix(codecs.BOM_UTF8) if line == 1 else block).replace(b"\r\n", b"\n")
            edges = _regular_edges(text, known)
            parts.append(_edges_by_line(text, known, path, line) if edges is None else edges)
            line += text.count(b"\n")
    return _symmetric(parts, len(names), path)


def _symmetric(parts: list[_Edges], labels: int, path: Path) -> csr_array:
    """Combine edges into a graph, each in both directions; drop edges from a label to itself."""
    empty = _Edges(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0))
    left, right, weights = (np.concatenate(columns) for columns in zip(empty, *parts, strict=True))
    kept = left != right
    left, right, weights = left[kept], right[kept], weights[kept]
    both = np.concatenate((left, right)), np.concatenate((right, left))
    graph = csr_array((np.concatenate((weights, weights)), both), shape=(labels, labels))
    if graph.nnz and graph.data.max() > _LARGEST:
        raise DataError("the weights of a repeated edge add up to more than float32 can hold", path)
    return graph.astype(np.float32)


def _regular_edges(text: bytes, known: _Names) -> _Edges | None:
    """Parse a block fast if all its lines have the same number of cells and no error; otherwise return None."""
    if known.spaces and b"\t" not in text:
        text = text.replace(b" ", b"\t")
    marks = text.translate(None, _NO_MARKS)
    cells = marks.find(b"\n") + 1  # in the first line; in all lines if its marks repeat
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
    valid = min(left.min(), right.min()) >= 0 and ((weights >= _SMALLEST) & (weights <= _LARGEST)).all()
    return _Edges(left, right, weights) if valid else None


def _edges_by_line(text: bytes, known: _Names, path: Path, first_line: int) -> _Edges:
    """Parse lines one by one, and raise an error with the line number at the first invalid one."""
    lines = enumerate(text[:-1].split(b"\n"), start=first_line)
    edges = [_edge(line, known, path, number) for number, line in lines if line.strip() and not line.startswith(b"#")]
    left, right, weights = zip(*edges, strict=True) if edges else ((), (), ())
    return _Edges(np.array(left, np.int32), np.array(right, np.int32), np.array(weights, np.float64))


def _edge(line: bytes, known: _Names, path: Path, number: int) -> tuple[int, int, float]:
    cells = line.split(b"\t" if b"\t" in line or not known.spaces else b" ")
    if len(cells) not in (2, 3):
        raise DataError(f"expected label<TAB>label[<TAB>weight], found {shown(line)}", path, number)
    for name in cells[:2]:
        if name not in known.ids:
            raise DataError(f"unknown label {shown(name)}{_nearest(name, known)}", path, number)
    return known.ids[cells[0]], known.ids[cells[1]], _weight(cells[2], path, number) if len(cells) == 3 else 1.0


def _weight(word: bytes, path: Path, number: int) -> float:
    try:
        weight = float(word)
    except ValueError:
        weight = 0.0
    if not _SMALLEST <= weight <= _LARGEST:
        raise DataError(f"expected a positive finite weight, found {shown(word)}", path, number)
    return weight


def _nearest(name: bytes, known: _Names) -> str:
    """Return a hint with the nearest label, or with all labels if they are few."""
    hint = did_you_mean(name.decode(errors="replace"), (label.decode(errors="replace") for label in known.ids))
    return hint if len(hint) <= 200 and hint.isprintable() else f"; none of the {len(known.ids)} labels is similar"
