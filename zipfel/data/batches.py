"""Rows of a CSR matrix to `Bags`, the form in which encoders take points, labels and label texts alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.types import Bags

if TYPE_CHECKING:
    from torch import Tensor


def bags(matrix: csr_array, rows: NDArray[np.int64] | None = None) -> Bags:
    """Return the given rows, or all, as bags: ids are columns, weights are values."""
    import torch

    part = matrix if rows is None else matrix[rows]

    def tensor(values: NDArray[np.generic], dtype: type) -> Tensor:
        return torch.from_numpy(np.array(values, dtype=dtype))

    return Bags(tensor(part.indices, np.int64), tensor(part.data, np.float32), tensor(part.indptr, np.int64))
