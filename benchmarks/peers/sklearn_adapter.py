"""scikit-learn: one linear SVM per label."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from joblib import parallel_backend
from protocol import Ids, Rank, Scores, Task, best, main
from scipy.sparse import csr_matrix
from sklearn.multiclass import OneVsRestClassifier
from sklearn.svm import LinearSVC

BLOCK = 512  # labels fitted at a time: weights in scikit-learn are float64, and would be in memory twice
CHUNK = 2048  # documents whose dense scores are in memory at a time


def train(task: Task) -> None:
    """Train one-vs-rest on labels with training points; the others have no classifier and are never ranked."""
    X, Y = task.train()
    seen = np.flatnonzero(np.asarray(Y.sum(axis=0)).ravel() > 0)
    weights, offsets = np.empty((len(seen), X.shape[1]), dtype=np.float32), np.empty(len(seen), dtype=np.float32)
    blocks = np.array_split(np.arange(len(seen)), -(-len(seen) // BLOCK))
    with task.learning(), parallel_backend("threading"):  # the CPU seconds of other processes would be missed
        for block in blocks:
            fitted = classifiers(X, Y[:, seen[block]], task)
            weights[block] = np.vstack([binary.coef_ for binary in fitted])
            offsets[block] = [binary.intercept_[0] for binary in fitted]
    with (task.model / "model.pickle").open("wb") as file:
        pickle.dump((seen, weights, offsets), file, protocol=5)


def classifiers(X: Any, Y: Any, task: Task) -> Any:
    """Return a fitted SVM for each column of Y."""
    targets = csr_matrix(Y, dtype=np.int64)  # int8 would silently permute labels beyond the 127th
    one = LinearSVC(random_state=task.seed, **task.settings)
    return OneVsRestClassifier(one, n_jobs=task.threads).fit(X, targets).estimators_


def load(task: Task) -> Rank:
    """Return the ranking by distance from the separating planes."""
    with (task.model / "model.pickle").open("rb") as file:
        seen, weights, offsets = pickle.load(file)
    columns = np.ascontiguousarray(weights.T)

    def rank(X: Any, k: int) -> tuple[Ids, Scores]:
        parts = [best(X[at : at + CHUNK] @ columns + offsets, k) for at in range(0, X.shape[0], CHUNK)]
        return seen[np.concatenate([ids for ids, _ in parts])], np.concatenate([scores for _, scores in parts])

    return rank


if __name__ == "__main__":
    main(train, load, ("scikit-learn",))
