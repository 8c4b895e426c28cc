"""Rows of a CSR matrix as bags."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from zipfel.data.batches import bags


def unpacked(made):
    """Return each bag as {id: weight}."""
    ends = made.offsets.tolist()
    return [
        dict(zip(made.ids[first:last].tolist(), made.weights[first:last].tolist(), strict=True))
        for first, last in pairwise(ends)
    ]


@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 5))
def test_bags_are_rows(seed, points, columns):
    rng = np.random.default_rng(seed)
    dense = np.round(rng.normal(size=(points, columns)), 2) * (rng.random((points, columns)) < 0.5)
    expected = [{i: np.float32(v) for i, v in enumerate(row) if v} for row in dense.tolist()]
    some = rng.integers(0, points, size=4) if points else np.empty(0, dtype=np.int64)
    for dtype in (np.float32, np.float64):
        matrix = csr_array(dense, dtype=dtype)
        made = bags(matrix)
        assert unpacked(made) == expected
        assert len(made) == points
        assert unpacked(bags(matrix, some)) == [expected[row] for row in some]
        assert (made.ids.dtype, made.weights.dtype, made.offsets.dtype) == (torch.int64, torch.float32, torch.int64)


def test_bags_are_copies():
    """What training does to a batch must not reach the data set."""
    matrix = csr_array((np.ones(2, np.float32), np.array([0, 1], np.int64), np.array([0, 2], np.int64)), shape=(1, 2))
    made = bags(matrix)
    made.weights.zero_()
    made.ids.fill_(1)
    made.offsets.zero_()
    assert matrix.toarray().tolist() == [[1, 1]]


@pytest.mark.parametrize("rows", [None, np.array([1, 0])])
def test_read_only_arrays_will_do(rows):
    """As memory-mapped ones are; torch warns of them, and warnings are errors here."""
    matrix = csr_array(np.eye(2, dtype=np.float32))
    for array in (matrix.data, matrix.indices, matrix.indptr):
        array.flags.writeable = False
    assert len(bags(matrix, rows)) == 2
