"""Turn rows of a CSR matrix into `Bags`, the input of encoders for points, labels and label texts alike."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel.types import Bags, Share


def bags(matrix: csr_array, rows: NDArray[np.int64] | None = None) -> Bags:
    """Return the given rows (default: all) as bags: ids are columns, weights are values."""
    import torch

    part = matrix if rows is None else matrix[rows]
    arrays = (part.indices.astype(np.int64), part.data.astype(np.float32), part.indptr.astype(np.int64))  # copies
    return Bags(*map(torch.from_numpy, arrays))


def entries_of(matrix: csr_array, rows: NDArray[np.int64], share: Share) -> Share:
    """Return which of the stored entries of some rows are those of a share of these rows."""
    ends = np.concatenate([[0], np.cumsum(np.diff(matrix.indptr)[rows])])
    return Share(int(ends[share.start]), int(ends[share.stop]), int(ends[-1]))
