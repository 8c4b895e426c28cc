"""Regularizers of label vectors, as pure functions. V: [S, D], unit vectors of a batch of labels."""

from __future__ import annotations

from torch import Tensor


def glas(V: Tensor, U: Tensor) -> Tensor:
    """GLaS regularizer, GLaS Eq. (3): (1 / S²) ‖V Vᵀ − U‖²_F.

    V: [S, D].  U: [S, S] target inner products, half of A Z⁻¹ + Z⁻¹ A, from the co-occurrence A of all training points.
    """
    return (V @ V.T - U).square().mean()


def spread_out(V: Tensor) -> Tensor:
    """Spread-out regularizer, GLaS Eq. (2): (1 / S²) Σ (v_yᵀ v_y')²; the diagonal is constant for unit vectors."""
    return (V @ V.T).square().mean()


def laplacian(V: Tensor, U: Tensor) -> Tensor:
    """Graph Laplacian regularizer, GLaS Eq. (4): (1 / S²) Σ ‖v_y − v_y'‖² u_yy'."""
    lengths = V.square().sum(dim=1)
    distances = lengths[:, None] + lengths[None, :] - 2 * V @ V.T  # [S, S]
    return (distances * U).mean()


def gravity(X: Tensor, V: Tensor) -> Tensor:
    """Gravity regularizer (Krichene et al., 2018): the mean of ⟨φ(x_i), v_j⟩² over all pairs of a batch.

    X: [B, D], vectors φ(x_i) of points.  V: [S, D].
    """
    return (X @ V.T).square().mean()
