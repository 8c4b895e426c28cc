"""fastText in its maintained fork floret: one-vs-all over averaged word vectors. Words are the ids of features."""

from __future__ import annotations

from typing import Any

import floret
from protocol import Ids, Rank, Scores, Task, main, padded

LABEL = "__label__"


def train(task: Task) -> None:
    """Write train as lines of words, the only format that fastText reads, and train; weights of features are lost."""
    X, Y = task.train()
    data = task.model.parent / "floret.txt"
    with data.open("w") as out:
        for row, text in enumerate(texts(X)):
            labels = Y.indices[Y.indptr[row] : Y.indptr[row + 1]].tolist()
            out.write(" ".join(f"{LABEL}{label}" for label in labels) + f" {text}\n")
    with task.learning():
        model = learned(str(data), task, float(task.settings.get("lr", 0.1)))
    data.unlink()
    model.save_model(str(task.model / "model.bin"))


def learned(data: str, task: Task, rate: float) -> Any:
    """Train; if fastText reports that it diverged, train again with half the learning rate."""
    settings = {**task.settings, "lr": rate}
    try:
        return floret.train_supervised(
            data, loss="ova", minCount=1, seed=task.seed, thread=task.threads, verbose=0, **settings
        )
    except RuntimeError as error:
        if "NaN" not in str(error) or rate < 0.01:
            raise
        return learned(data, task, rate / 2)


def texts(X: Any) -> list[str]:
    """Return each document as the names of its features."""
    return [" ".join(f"f{f}" for f in X.indices[X.indptr[row] : X.indptr[row + 1]]) for row in range(X.shape[0])]


def load(task: Task) -> Rank:
    """Return the ranking of a saved model."""
    model = floret.load_model(str(task.model / "model.bin"))

    def rank(X: Any, k: int) -> tuple[Ids, Scores]:
        labels, scores = model.predict(texts(X), k=k)
        pairs = [
            [(int(name.removeprefix(LABEL)), float(score)) for name, score in zip(*row, strict=True)]
            for row in zip(labels, scores, strict=True)
        ]
        return padded(pairs, k)

    return rank


if __name__ == "__main__":
    main(train, load, ("floret",))
