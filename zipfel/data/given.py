"""Convert Python objects to a data set: texts or features, and tags as names or a matrix."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from zipfel.data.cells import checked_name, half_of_pair, is_list, label_names
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats.concepts import Thesaurus
from zipfel.data.formats.parents import given_parents
from zipfel.data.formats.sparse_text import matrix_of as csr_of
from zipfel.data.formats.table import TableSettings, read_label_texts, separator_hint
from zipfel.data.formats.table_files import columns_of, is_column, is_frame, values_of
from zipfel.data.hierarchy import with_hierarchy
from zipfel.data.labels import first_duplicate
from zipfel.data.points import Array, arrayed, is_matrix, is_numeric, points_of, split_vectors, texts_in, texts_of
from zipfel.errors import DataError


def dataset_of(
    X: Any,
    y: Any,
    label_texts: Any = None,
    label_names: Sequence[Any] | None = None,
    sep: str | None = None,
    parents: Any = None,
    ancestors: bool = False,
    weights: Any = None,
) -> Dataset:
    """Return a data set.

    X: texts (a list, a series, lists by field, a data frame) or features (a matrix, a frame of numbers, vectors); a
    field may hold vectors beside texts.
    y: lists of names, a series of lists or of strings, an indicator frame, or a matrix.  label_texts: by label name, as
    a dict, a series, a frame or a `Thesaurus`, which brings parents too.  label_names: of the columns of a matrix.
    sep: separator of labels in a string.  parents: of labels, as a dict, a series or a frame.  ancestors: as in
    `with_hierarchy`.  weights: of points; those with weight 0 are left out, with tags that no other point has.
    """
    fields = label_texts_of(label_texts)
    described = {name for texts in fields.values() for name in texts}
    given = None if weights is None else checked_weights(weights)
    names, Y = _labels(arrayed(y), label_names, sep, described, given)
    X, vectors = split_vectors(points_of(X))
    texts = None if is_matrix(X) else texts_of(X)
    if texts is None and X.shape[1] == 0:
        raise DataError(f"X has 0 feature(s) (shape={X.shape}) while a minimum of 1 is required.")
    points = X.shape[0] if texts is None else len(next(iter(texts.values()), ()))
    if points != Y.shape[0]:
        raise DataError(f"X has {points} points and y has {Y.shape[0]} rows; they must be equal")
    part = weighted(Part(Y, X=X if texts is None else None, texts=texts, vectors=vectors or None), given)
    columns = {field: [texts.get(name, "") for name in names] for field, texts in fields.items()}
    dataset = Dataset(part, label_names=names, label_texts=columns if described else None)
    if parents is None and isinstance(label_texts, Thesaurus) and label_texts.hierarchy is not None:
        return with_hierarchy(dataset, label_texts.hierarchy, ancestors)
    if parents is None and not ancestors:
        return dataset
    return with_hierarchy(dataset, given_parents({} if parents is None else parents, sep), ancestors)


# --- Weights ----------------------------------------------------------------------------------------------------------


def checked_weights(given: Any) -> Array:
    """Return the weights of points as numbers, [points]; raise DataError if one is negative or not finite."""
    try:
        weights = np.asarray(values_of(given) if is_column(given) else given, dtype=np.float64)
    except (TypeError, ValueError):
        raise DataError(f"sample_weight must hold a number for each point; found {given!r:.60}") from None
    if weights.ndim != 1:
        raise DataError(f"sample_weight must hold one number for each point; found shape {weights.shape}")
    wrong = ~(np.isfinite(weights) & (weights >= 0))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"sample_weight holds {weights[row]} in row {row}; expected a finite number, at least 0")
    if not weights.any():
        raise DataError("every sample_weight is zero, so there is nothing to learn")
    return weights


def weighted(points: Part, weights: Array | None) -> Part:
    """Return the points whose weight is not 0, with weights of mean 1; without any where all are equal."""
    if weights is None:
        return points
    if len(weights) != len(points):
        raise DataError(f"sample_weight has {len(weights)} numbers, and X {len(points)} points; they must be equal")
    kept = np.flatnonzero(weights)
    weights = weights[kept]
    points = points if len(kept) == len(points) else points.take(kept)
    if (weights == weights[0]).all():
        return points
    return dataclasses.replace(points, weights=weights / weights.mean())


# --- Tags -------------------------------------------------------------------------------------------------------------


def _labels(
    y: Any, names: Sequence[Any] | None, sep: str | None, described: set[str], weights: Array | None
) -> tuple[list[str], csr_array]:
    """Return the names of labels, and a matrix [points, labels]."""
    matrix, columns = _indicator(y)
    if matrix is None:
        if names is not None:
            raise DataError("label_names names the columns of a matrix of tags; lists of tags hold names themselves")
        rows = checked_tags(y, sep)
        counted = rows if weights is None else [rows[row] for row in np.flatnonzero(weights[: len(rows)])]
        known = sorted({tag for tags in counted for tag in tags} | described)
        return known, label_matrix(rows, known)
    columns = columns if names is None else list(names)
    named = [str(label) for label in range(matrix.shape[1])] if columns is None else [*map(checked_name, columns)]
    if len(named) != matrix.shape[1]:
        raise DataError(f"label_names has {len(named)} names, and the matrix of tags {matrix.shape[1]} columns")
    if (repeated := first_duplicate(named)) is not None:
        raise DataError(f"two columns of the tags are called {repeated!r}")
    if unknown := sorted(described - set(named)):
        called = f"called 0 to {len(named) - 1}" if columns is None else "its columns; add one for it"
        raise DataError(f"label_texts names {unknown[0]!r}; the labels of a matrix are {called}")
    return named, matrix


def _indicator(y: Any) -> tuple[csr_array | None, list[str] | None]:
    """Return tags in a matrix, and names of the columns of a frame; None if the tags are lists or a column."""
    if is_matrix(y):
        return csr_array(y), None
    if not is_frame(y) or _is_one_text_column(y):
        return None, None
    columns = columns_of(y)
    rows = [_ones(name, np.asarray(column)) for name, column in columns.items()]
    ids = np.concatenate([np.zeros(0), *rows]).astype(np.int32)
    by_label, _ = csr_of(np.array([*map(len, rows)], dtype=np.int64), ids, len(y))  # never dense
    return csr_array(by_label.T), list(columns)


def _is_one_text_column(frame: Any) -> bool:
    columns = list(columns_of(frame).values())
    return len(columns) == 1 and not is_numeric(np.asarray(columns[0]))


def _ones(name: str, values: Array) -> Array:
    """Return the rows of an indicator column that hold 1."""
    if not is_numeric(values):
        raise DataError(f"column {name!r} of the tags is not numeric; give one column of tags, such as frame['tags'], "
                        "or a frame of 0 and 1 with a column for each label")  # fmt: skip
    wrong = (values != 0) & (values != 1)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise DataError(f"column {name!r} of the tags holds {values[row]} in row {row}; expected 0 or 1")
    return np.flatnonzero(values)


def checked_tags(y: Any, sep: str | None = None) -> list[list[str]]:
    """Return the names of labels of each point, each once.

    A string in a column (of a data frame, of an array) is read as in a table: it is split at `sep`; without one it is a
    list written as text, or one label. In a plain list, where it may be a mistake, it needs `sep`.
    """
    if is_frame(y) and _is_one_text_column(y):
        y = next(iter(columns_of(y).values()))
    column = is_column(y)
    if isinstance(y, str) or not (column or isinstance(y, Iterable)):
        wrong = f"found {y!r:.60}" if y is not None else "Tagger requires y to be passed, but the target y is None"
        raise DataError(f"expected a list of tags for each point; {wrong}")
    rows, tags = values_of(y) if column else list(y), []
    for row, cell in enumerate(rows):
        if not column and not is_list(cell) and not (isinstance(cell, str) and sep):
            hint = "; to split strings into names, set Tagger(sep=...)" if isinstance(cell, str) else ""
            hint = "; write [] for a point without tags" if cell is None or cell != cell else hint
            raise DataError(f"row {row} of the tags must be a list of names; found {cell!r:.60}{hint}")
        try:
            tags.append(list(dict.fromkeys(label_names(cell, sep))))
        except ValueError as error:
            raise DataError(f"row {row} of the tags: {error}") from None
    if any(isinstance(cell, str) for cell in rows):
        for note in separator_hint([name for names in tags for name in names], sep, "Tagger(sep=...)"):
            warnings.warn(note, stacklevel=2)
    return tags


def label_matrix(y: Any, names: Sequence[str], sep: str | None = None) -> csr_array:
    """Return tags as a [points, names] matrix, without tags that are not among the names."""
    matrix, columns = _indicator(y)
    if matrix is not None and columns is None:
        if matrix.shape[1] != len(names):
            raise DataError(f"the matrix of tags has {matrix.shape[1]} columns, and the model {len(names)} labels; "
                            "give it a column for each, in the order of classes_, or give lists of names")  # fmt: skip
        return matrix
    if matrix is not None and columns is not None:
        y = [[columns[label] for label in matrix.indices[start:end]] for start, end in _spans(matrix)]
    ids = {name: label for label, name in enumerate(names)}
    rows = [[ids[tag] for tag in tags if tag in ids] for tags in checked_tags(y, sep)]
    labels = np.array(list(chain.from_iterable(rows)), dtype=np.int32)
    return csr_of(np.array([len(row) for row in rows], dtype=np.int64), labels, len(names))[0]


def _spans(matrix: csr_array) -> Iterable[tuple[int, int]]:
    return zip(matrix.indptr[:-1].tolist(), matrix.indptr[1:].tolist(), strict=True)


# --- Texts of labels --------------------------------------------------------------------------------------------------


def label_texts_of(given: Any) -> dict[str, dict[str, str]]:
    """Return label texts by field and name.

    given: a dict; a series of pandas with names as its index; a frame with names in its first column; or a thesaurus.
    """
    if given is None:
        return {}
    if isinstance(given, Thesaurus):
        return given.by_field()
    if is_frame(given):
        names, fields = read_label_texts(TableSettings(label_texts=given))
        if not fields:
            raise DataError("label_texts needs a column of names and one of texts; found one column")
        return {field: dict(zip(names, column, strict=True)) for field, column in fields.items()}
    if is_column(given):
        if not (hasattr(type(given), "index") and hasattr(type(given), "items")):
            raise DataError("label_texts in a column lack names; give a dict, or a frame with names and texts")
        given = dict(zip(given.index, texts_in(values_of(given), "label_texts"), strict=True))
    if not isinstance(given, Mapping):
        raise DataError(f"label_texts must be a dict, a series or a frame; found {type(given).__name__}")
    return {"text": _named_texts(given)}


def checked_texts(given: Any) -> dict[str, str]:
    """Return label texts by name; the fields of a text are joined by newlines."""
    fields = label_texts_of(given)
    names = dict.fromkeys(name for texts in fields.values() for name in texts)
    return {name: "\n".join(filter(None, (texts[name] for texts in fields.values()))) for name in names}


def _named_texts(given: Mapping[Any, Any]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, text in given.items():
        name = checked_name(key)
        if not isinstance(text, str):
            raise DataError(f"the text of label {name!r} must be text; found {type(text).__name__}")
        if (half := half_of_pair(text)) is not None:
            raise DataError(f"the text of label {name!r} has half of a surrogate pair, {half!a}: no file can hold it")
        if name in texts:
            raise DataError(f"label_texts has two texts for label {name!r}")
        texts[name] = text
    return texts
