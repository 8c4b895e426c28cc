"""napkinXC: a probabilistic label tree."""

from __future__ import annotations

from typing import Any

from napkinxc.models import PLT
from protocol import Ids, Rank, Scores, Task, main, padded


def train(task: Task) -> None:
    """Train one tree; it writes itself into its folder."""
    X, Y = task.train()
    labels = [Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist() for row in range(Y.shape[0])]
    tree = PLT(str(task.model), seed=task.seed, threads=task.threads, **task.settings)
    with task.learning():
        tree.fit(X, labels)


def load(task: Task) -> Rank:
    """Return the ranking of a saved tree."""
    tree = PLT(str(task.model), seed=task.seed, threads=task.threads, **task.settings)
    tree.load()

    def rank(X: Any, k: int) -> tuple[Ids, Scores]:
        return padded(tree.predict_proba(X, top_k=k), k)

    return rank


if __name__ == "__main__":
    main(train, load, ("napkinxc",))
