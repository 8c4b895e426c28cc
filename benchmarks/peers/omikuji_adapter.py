"""omikuji: Parabel (balanced binary trees) and Bonsai (flat, wide trees). It has no seed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import omikuji
from protocol import Ids, Rank, Scores, Task, main, padded

SETTINGS = ("n_trees", "max_leaf_size", "max_depth", "cluster_k", "cluster_balanced", "linear_eps", "linear_c")


def train(task: Task) -> None:
    """Write train in the file format that omikuji reads, and train from it."""
    X, Y = task.train()
    data = task.model.parent / "omikuji.txt"
    write(X, Y, data)
    config = omikuji.Model.default_hyper_param()
    for name in SETTINGS:
        if name in task.settings:
            setattr(config, name, task.settings[name])
    with task.learning():
        model = omikuji.Model.train_on_data(str(data), config, task.threads)
    data.unlink()
    model.save(str(task.model))


def write(X: Any, Y: Any, path: Path) -> None:
    """Write the repository's text format; features and labels count from 0."""
    with path.open("w") as out:
        out.write(f"{X.shape[0]} {X.shape[1]} {Y.shape[1]}\n")
        for row in range(X.shape[0]):
            labels = Y.indices[Y.indptr[row] : Y.indptr[row + 1]]
            place = slice(X.indptr[row], X.indptr[row + 1])
            pairs = zip(X.indices[place].tolist(), X.data[place].tolist(), strict=True)
            out.write(",".join(map(str, labels.tolist())) + " " + " ".join(f"{f}:{v:.6g}" for f, v in pairs) + "\n")


def load(task: Task) -> Rank:
    """Return the ranking of a saved model, one document at a time, on the given number of threads."""
    model = omikuji.Model.load(str(task.model))
    model.init_prediction_thread_pool(task.threads)
    beam = int(task.settings.get("beam_size", 10))

    def rank(X: Any, k: int) -> tuple[Ids, Scores]:
        rows = []
        for row in range(X.shape[0]):
            place = slice(X.indptr[row], X.indptr[row + 1])
            pairs = list(zip(X.indices[place].tolist(), X.data[place].tolist(), strict=True))
            rows.append(model.predict(pairs, beam_size=beam, top_k=k) if pairs else [])
        return padded(rows, k)

    return rank


if __name__ == "__main__":
    main(train, load, ("omikuji",))
