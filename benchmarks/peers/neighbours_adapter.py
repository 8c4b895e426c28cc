"""Baselines without learning: the vote of the nearest documents (k-NN), the cosine to a label's text, and a mix."""

from __future__ import annotations

from typing import Any

import numpy as np
from protocol import Ids, Rank, Scores, Task, best, main
from scipy.sparse import csr_matrix, diags, load_npz, save_npz

CHUNK = 1024  # documents whose similarities are in memory at a time


def unit(X: Any) -> Any:
    """Return the rows scaled to length 1."""
    lengths = np.sqrt(np.asarray(X.multiply(X).sum(axis=1)).ravel())
    return csr_matrix(diags(1 / np.maximum(lengths, 1e-12)) @ X)


def train(task: Task) -> None:
    """Save what the ranking needs."""
    X, Y = task.train()
    with task.learning():
        save_npz(task.model / "X.npz", csr_matrix(unit(X).T), compressed=False)
        save_npz(task.model / "Y.npz", Y, compressed=False)
        if task.settings["mix"]:
            save_npz(task.model / "Z.npz", csr_matrix(unit(task.matrix("Z")).T), compressed=False)


def load(task: Task) -> Rank:
    """Return the ranking by (1 - mix) · vote + mix · cosine, each divided by the document's best."""
    mix, k_points = float(task.settings["mix"]), int(task.settings.get("neighbours", 20))
    points, labels = (load_npz(task.model / f"{name}.npz") for name in ("X", "Y"))
    texts = load_npz(task.model / "Z.npz") if mix else None

    def scores(X: Any) -> Any:
        X = unit(X)
        parts = []
        if mix < 1:
            near, cosines = best(csr_matrix(X @ points), k_points)
            rows, places = np.nonzero(near >= 0)
            pairs = (cosines[rows, places], (rows, near[rows, places]))
            parts.append((1 - mix) * _scaled(csr_matrix(pairs, shape=(X.shape[0], points.shape[1])) @ labels))
        if texts is not None:
            parts.append(mix * _scaled(X @ texts))
        return csr_matrix(sum(parts[1:], parts[0]))

    def rank(X: Any, k: int) -> tuple[Ids, Scores]:
        parts = [best(scores(X[at : at + CHUNK]), k) for at in range(0, X.shape[0], CHUNK)]
        return np.concatenate([ids for ids, _ in parts]), np.concatenate([values for _, values in parts])

    return rank


def _scaled(scores: Any) -> Any:
    """Return scores divided by the largest of each row."""
    most = np.asarray(csr_matrix(scores).max(axis=1).todense()).ravel()
    return csr_matrix(diags(1 / np.maximum(most, 1e-12)) @ scores)


if __name__ == "__main__":
    main(train, load)
