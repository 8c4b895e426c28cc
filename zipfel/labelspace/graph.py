"""The co-occurrence graph of labels."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

Mean = Literal["arithmetic", "geometric"]


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
