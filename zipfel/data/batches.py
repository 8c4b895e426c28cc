"""Turn rows of a CSR matrix into `Bags`, the input of encoders for points, labels and label texts alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.types import Bags


def bags(matrix: csr_array, rows: NDArray[np.int64] | None = None) -> Bags:
    """Return the given rows (default: all) as bags: ids are columns, weights are values."""
    import torch

    part = matrix if rows is None else matrix[rows]
    arrays = (part.indices.astype(np.int64), part.data.astype(np.float32), part.indptr.astype(np.int64))  # copies
    return Bags(*map(torch.from_numpy, arrays))
