"""What users give in Python, as a data set: texts or a matrix, and tags as names or a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from zipfel.data.dataset import Dataset, Part, Texts
from zipfel.data.formats.sparse_text import matrix_of as csr_of
from zipfel.data.hierarchy import Hierarchy, with_hierarchy
from zipfel.errors import DataError


def dataset_of(
    X: Any,
    y: Any,
    label_texts: Mapping[str, str] | None = None,
    parents: Mapping[str, Any] | None = None,
    ancestors: bool = False,
) -> Dataset:
    """Return a data set of texts (a list, or lists by field) or a matrix, and tags: lists of names, or a matrix.

    parents, ancestors: a hierarchy of the labels, as in `with_hierarchy`.
    """
    descriptions = checked_texts(label_texts or {})
    if is_matrix(y):
        names = [str(label) for label in range(y.shape[1])]
        if unknown := sorted(descriptions.keys() - set(names)):
            raise DataError(
                f"label_texts names {unknown[0]!r}; the labels of a matrix are called 0 to {len(names) - 1}"
            )
    else:
        y = checked_tags(y)
        names = sorted({str(tag) for tags in y for tag in tags} | set(descriptions))
    Y = label_matrix(y, names)
    texts = None if is_matrix(X) else texts_of(X)
    points = X.shape[0] if texts is None else len(next(iter(texts.values()), ()))
    if points != Y.shape[0]:
        raise DataError(f"X has {points} points and y has {Y.shape[0]} rows; they must be equal")
    part = Part(Y, X=X if texts is None else None, texts=texts)
    fields = {"text": [descriptions.get(name, "") for name in names]} if descriptions else None
    dataset = Dataset(part, label_names=names, label_texts=fields)
    if parents is None and not ancestors:
        return dataset
    return with_hierarchy(dataset, Hierarchy.of(parents or {}), ancestors)


def is_matrix(values: Any) -> bool:
    """Whether these are numbers in rows and columns: a sparse matrix, or a dense array."""
    return issparse(values) or (isinstance(values, np.ndarray) and values.ndim == 2 and values.dtype.kind in "biuf")


def texts_of(X: Any) -> Texts:
    """Return texts by field, all of one length; a plain list is one field."""
    if isinstance(X, str):
        raise DataError("expected a list of texts; found a single text")
    if not isinstance(X, Iterable):
        raise DataError(f"expected a list of texts or a matrix of features; found {type(X).__name__}")
    texts = {name: list(column) for name, column in X.items()} if isinstance(X, Mapping) else {"text": list(X)}
    first = next(iter(texts), "")
    for name, column in texts.items():
        if len(column) != len(texts[first]):
            lengths = f"{len(column)} of {name!r}, {len(texts[first])} of {first!r}"
            raise DataError(f"text fields differ in length: {lengths}")
        for row, text in enumerate(column):
            if not isinstance(text, str):
                field = f" of {name!r}" if isinstance(X, Mapping) else ""
                raise DataError(f"row {row}{field} must be text; found {type(text).__name__}")
    return texts


def matrix_of(X: Any) -> csr_array:
    """Return a matrix of features, checked and in the form that training sees."""
    if not is_matrix(X):
        raise DataError(f"the model was fitted on a matrix of features; found {type(X).__name__}")
    rows = Part(csr_array((X.shape[0], 0)), X=X).X
    assert rows is not None
    return rows


def checked_texts(label_texts: Mapping[Any, Any]) -> dict[str, str]:
    """Return label texts by name; raise DataError for values that are not text, such as missing cells of a table."""
    for name, text in label_texts.items():
        if not isinstance(text, str):
            raise DataError(f"the text of label {str(name)!r} must be text; found {type(text).__name__}")
    return {str(name): text for name, text in label_texts.items()}


def checked_tags(y: Any) -> list[list[Any]]:
    """Return a list of names for each point."""
    if isinstance(y, str) or not isinstance(y, Iterable):
        raise DataError(f"expected a list of tags for each point; found {y!r:.60}")
    rows = list(y)
    for row, tags in enumerate(rows):
        if isinstance(tags, str) or not isinstance(tags, Iterable):
            raise DataError(f"row {row} of the tags must be a list of names; found {tags!r:.60}")
    return [list(tags) for tags in rows]


def label_matrix(y: Any, names: Sequence[str]) -> csr_array:
    """Return tags as a [points, names] matrix, without tags that are not among the names."""
    if is_matrix(y):
        return csr_array(y)
    ids = {name: label for label, name in enumerate(names)}
    rows = [[ids[str(tag)] for tag in dict.fromkeys(tags) if str(tag) in ids] for tags in checked_tags(y)]
    labels = np.array(list(chain.from_iterable(rows)), dtype=np.int32)
    return csr_of(np.array([len(row) for row in rows], dtype=np.int64), labels, len(names))[0]
