"""PECOS: XR-Linear, with its own hierarchical clusters of labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
from protocol import Ids, Rank, Scores, Task, best, main


def train(task: Task) -> None:
    """Cluster labels by their points' features (PIFA), and train the tree."""
    X, Y = task.train()
    with task.learning():
        features = LabelEmbeddingFactory.create(Y, X, method="pifa")
        indexer = {name: task.settings[name] for name in ("nr_splits", "max_leaf_size") if name in task.settings}
        clusters = Indexer.gen(features, seed=task.seed, threads=task.threads, **indexer)
        model = XLinearModel.train(X, Y, C=clusters, threads=task.threads, Cp=task.settings.get("Cp", 1.0))
    model.save(str(task.model))


def load(task: Task) -> Rank:
    """Return the ranking of a saved model, loaded for prediction only."""
    model = XLinearModel.load(str(task.model), is_predict_only=True)
    beam = int(task.settings.get("beam_size", 10))

    def rank(X: Any, k: int) -> tuple[Ids, Scores]:
        found = model.predict(X.astype(np.float32), beam_size=beam, only_topk=k, threads=task.threads)
        return best(found, k)

    return rank


if __name__ == "__main__":
    main(train, load, ("libpecos",))
