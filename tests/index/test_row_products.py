"""Inner products of rows, which do not depend on the batch."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zipfel.index import exact
from zipfel.index.exact import row_products

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(points: int, width: int, vectors: int, count: int, seed: int = 0):
    """Return random queries, vectors, and `count` ids for each query."""
    generator = torch.Generator().manual_seed(seed)
    queries, rows = (torch.randn(size, width, generator=generator) for size in (points, vectors))
    return queries, rows, torch.randint(0, vectors, (points, count), generator=generator)


@given(
    points=st.integers(0, 5), width=st.integers(1, 9), vectors=st.integers(1, 7), count=st.integers(0, 8),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_row_products_equal_a_matrix_product(points, width, vectors, count, seed):
    """Ids have any order and may repeat."""
    queries, rows, ids = drawn(points, width, vectors, count, seed)
    products = row_products(queries, rows, ids)
    assert products.shape == (points, count)
    torch.testing.assert_close(products, (queries @ rows.T).gather(1, ids))


@pytest.mark.parametrize("width", [3, 64, 1000])
def test_row_products_do_not_depend_on_the_batch(width):
    queries, rows, ids = drawn(40, width, 300, 50)
    whole = row_products(queries, rows, ids)
    for start, end in ((0, 1), (7, 8), (5, 22), (39, 40)):
        assert torch.equal(row_products(queries[start:end], rows, ids[start:end]), whole[start:end])
    for column in (0, 7, 49):  # nor on the other ids of a query
        assert torch.equal(row_products(queries, rows, ids[:, [column]])[:, 0], whole[:, column])
    order = torch.randperm(50, generator=torch.Generator().manual_seed(1))
    assert torch.equal(row_products(queries, rows, ids[:, order]), whole[:, order])


def test_the_warning_about_sparse_matrices_is_suppressed_and_no_other():
    exact._hear_no_warning.cache_clear()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        row_products(*drawn(2, 3, 4, 2))
        warnings.warn("mine", stacklevel=1)
    assert [str(warning.message) for warning in heard] == ["mine"]
