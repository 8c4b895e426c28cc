"""Points as users give them in Python: texts or features, as lists, matrices, data frames, tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any

import numpy as np
from scipy.sparse import csr_array, hstack, issparse

from zipfel.data.cells import cell_text
from zipfel.data.dataset import Part, Texts
from zipfel.data.formats.files import listed
from zipfel.data.formats.table import TEXT_COLUMNS
from zipfel.data.formats.table_files import columns_of, is_column, is_frame, open_frame, values_of
from zipfel.errors import DataError

Array = np.ndarray[Any, Any]


def points_of(X: Any, columns: Sequence[str] | str = (), fields: Sequence[str] = ()) -> Any:
    """Return points as texts (a list, or lists by field) or as a matrix, whatever they are given as.

    columns: the text columns of a data frame.  fields: the text fields of a fitted model; without `columns`, those of
    them that a frame has are taken, and if it has none, the columns that the command line takes. A frame of numbers, a
    column or list of vectors, and a tensor are matrices.
    """
    X = arrayed(X)
    if is_frame(X):
        columns = columns or open_frame(X).present(fields)
        matrix = None if columns else _numbers(X)
        return _frame_texts(X, columns) if matrix is None else matrix
    if isinstance(X, np.ndarray):
        X = _held(X)
    if isinstance(X, np.ndarray) and not is_matrix(X):
        return _array_points(X)
    if is_column(X):
        X = values_of(X)
        return _stacked(X) if X and _is_vector(X[0]) else {"text": texts_in(X, "")}
    if hasattr(type(X), "detach"):  # a tensor of torch
        X = X.detach().cpu().float().numpy()
    return _stacked(X) if isinstance(X, list | tuple) and X and _is_vector(X[0]) else X


def arrayed(values: Any) -> Any:
    """Return an object that only offers to become an array, such as one of JAX, as an array; others as they are."""
    return np.asarray(values) if hasattr(type(values), "__array__") and not isinstance(values, Sized) else values


def _array_points(X: Array) -> Any:
    """Return points in an array that is not a matrix of numbers: texts, or numbers kept as objects."""
    if X.dtype.kind == "c":
        raise DataError("Complex data not supported: features must be real numbers")
    if X.ndim == 1 and is_numeric(X):
        raise DataError("expected a text or a row of features for each point; found a flat array of numbers. "
                        "Reshape your data: X.reshape(1, -1) is one point")  # fmt: skip
    if X.ndim == 1:
        return points_of(X.tolist()) if len(X) and _is_vector(X[0]) else {"text": texts_in(X.tolist(), "")}
    if X.ndim != 2:
        raise DataError(f"expected a row of features for each point; found an array of {X.ndim} dimensions")
    try:
        return X.astype(np.float32)
    except (TypeError, ValueError):
        raise DataError(
            "an array with several columns must hold numbers; give texts in a list or a data frame"
        ) from None


def is_matrix(values: Any) -> bool:
    """Whether these are numbers in rows and columns: a sparse matrix, or a dense array."""
    return issparse(values) or (isinstance(values, np.ndarray) and values.ndim == 2 and is_numeric(values))


def split_vectors(X: Any) -> tuple[Any, dict[str, csr_array]]:
    """Separate fields of vectors, of unit length [points, width], from fields of text; vectors alone are a matrix."""
    if not isinstance(X, Mapping):
        return X, {}
    matrices = {str(name): points_of(column) for name, column in X.items() if _holds_vectors(column)}
    texts = {name: column for name, column in X.items() if str(name) not in matrices}
    if matrices and not texts:
        return hstack([matrix_of(matrix) for matrix in matrices.values()], format="csr"), {}
    return texts, {name: _unit_rows(matrix_of(matrix)) for name, matrix in matrices.items()}


def _holds_vectors(column: Any) -> bool:
    """Whether a field holds a vector for each point, not a text."""
    if is_matrix(column) or hasattr(type(column), "detach"):
        return True
    values = values_of(column) if is_column(column) else column
    return isinstance(values, list | tuple) and len(values) > 0 and _is_vector(values[0])


def _unit_rows(rows: csr_array) -> csr_array:
    lengths = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
    scales = np.repeat(1 / np.maximum(lengths, 1e-12), np.diff(rows.indptr))
    return csr_array(((rows.data * scales).astype(np.float32), rows.indices, rows.indptr), shape=rows.shape)


def texts_of(X: Any) -> Texts:
    """Return texts by field, all of one length; a plain list is one field. Documents may have fields too."""
    if isinstance(X, str):
        raise DataError("expected a list of texts; found a single text")
    X = _frame_texts(X, ()) if is_frame(X) else X
    if not isinstance(X, Iterable) and not is_column(X):
        raise DataError(f"expected a list of texts or a matrix of features; found {type(X).__name__}")
    X = _by_field(X)
    given = X if isinstance(X, Mapping) else {"text": X}
    texts = {name: texts_in(values_of(c), name) if is_column(c) else list(c) for name, c in given.items()}
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


def _by_field(X: Any) -> Any:
    """Return documents that have fields as lists by field; a field that a document lacks is empty."""
    if not isinstance(X, list | tuple) or not any(isinstance(item, Mapping) for item in X):
        return X
    for row, item in enumerate(X):
        if not isinstance(item, Mapping):
            raise DataError(f"row {row}: expected fields, as other rows have; found {type(item).__name__}")
    names = dict.fromkeys(name for item in X for name in item)
    return {name: [item.get(name, "") for item in X] for name in names}


def matrix_of(X: Any) -> csr_array:
    """Return a matrix of features, checked and in the form that training sees."""
    if not is_matrix(X):
        raise DataError(f"the model was fitted on a matrix of features; found {type(X).__name__}")
    rows = Part(csr_array((X.shape[0], 0)), X=X).X
    assert rows is not None
    return rows


def _frame_texts(frame: Any, columns: Sequence[str] | str) -> dict[str, Any]:
    """Return the texts of columns of a frame, by name; a column of vectors as a matrix."""
    table = open_frame(frame)
    names = (columns,) if isinstance(columns, str) else tuple(columns) or tuple(table.present(TEXT_COLUMNS))
    if not names:
        known = listed(table.columns)
        raise table.error(f"no text column found; name it with Tagger(text_columns=[...]) (columns: {known})")
    given, own = columns_of(frame), table.own(names)
    values = {name: values_of(given[name]) for name in own}
    return {name: _stacked(v) if v and _is_vector(v[0]) else texts_in(v, name) for name, v in values.items()}


def texts_in(values: Iterable[Any], field: str) -> list[str]:
    """Return the texts of a column, as the command line reads them: a missing one is empty."""
    texts = []
    for row, value in enumerate(values):
        try:
            texts.append(cell_text(value))
        except ValueError as error:
            raise DataError(f"row {row}{f' of {field!r}' if field else ''}: {error}") from None
    return texts


def _numbers(frame: Any) -> Array | None:
    """Return a data frame as a matrix; None unless all its columns are numbers, or the only one holds vectors."""
    arrays, columns = [], list(columns_of(frame).values())
    if len(columns) == 1 and len(values := values_of(columns[0])) and _is_vector(values[0]):
        return _stacked(values)
    for column in columns:
        arrays.append(_held(np.asarray(column)))
        if not is_numeric(arrays[-1]):
            return None
    return np.column_stack(arrays) if arrays else None


def _held(array: Array) -> Array:
    """Return an array in a type that scipy's matrices can hold."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def is_numeric(array: Array) -> bool:
    """Whether an array holds numbers or truth values."""
    return array.dtype.kind in "biuf"


def _is_vector(item: Any) -> bool:
    """Whether this is a list or array of numbers."""
    if isinstance(item, np.ndarray) or hasattr(type(item), "detach"):
        return bool(item.ndim == 1)
    return isinstance(item, list | tuple) and bool(item) and isinstance(item[0], int | float | np.number)


def _stacked(vectors: Sequence[Any]) -> Array:
    """Return vectors as the rows of a matrix."""
    rows = [vector.detach().cpu().float().numpy() if hasattr(type(vector), "detach") else vector for vector in vectors]
    width = len(rows[0])
    for row, vector in enumerate(rows):
        if not _is_vector(vector) or len(vector) != width:
            found = f"one of {len(vector)}" if _is_vector(vector) else type(vector).__name__
            raise DataError(f"row {row} must be a vector of {width} numbers, as row 0 is; found {found}")
    try:
        return np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise DataError(f"the vectors must hold numbers only: {error}") from None
