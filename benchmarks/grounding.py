"""Labels for language models: `python -m benchmarks.grounding DATA [MODEL]`, label texts with synonyms after ` | `.

Trains MODEL (linear, which reads no label texts, so that removed synonyms cannot leak into it), and prints one JSON
line each for candidates (recall of test's labels at 50) and for grounding: synonyms are removed from the label
texts, one of each label or all but the heading, and must be grounded again. Only labels with odd ids count:
those with even ids have chosen the weights of `zipfel.grounding`.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.record import record
from zipfel import grounding
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.tokens import tokenize
from zipfel.fitting import Fitted
from zipfel.tagger import Tagger

Query = tuple[int, str, str]  # label, synonym, heading


def removed(texts: list[str], every: bool) -> tuple[list[str], list[Query]]:
    """Return label texts without some synonyms, and these synonyms."""
    rng, left, queries = random.Random(0), list[str](), list[Query]()
    for label, text in enumerate(texts):
        heading, *synonyms = text.split(" | ")
        chosen = synonyms if every else [rng.choice(synonyms)] if synonyms else []
        queries += [(label, synonym, heading) for synonym in chosen]
        left.append(" | ".join([heading, *(each for each in synonyms if each not in chosen)]))
    return left, queries


def grounded(fitted: Fitted, every: bool) -> dict[str, object]:
    """Return how often removed synonyms are grounded to their label, and the time."""
    labels = fitted.labels
    left, queries = removed(list(labels.texts or []), every)
    fitted = fitted.with_labels(dataclasses.replace(labels, texts=left))
    asked = [query for query in queries if query[0] % 2 == 1]
    asked = random.Random(1).sample(asked, min(len(asked), 4000))
    hits, shared, sure, seconds = [], [], [], []
    grounding.ground(fitted, "warm up", 5)
    for label, synonym, heading in asked:
        start = time.perf_counter()
        found = grounding.ground(fitted, synonym, 5)
        seconds.append(time.perf_counter() - start)
        names = [each.label for each in found]
        hits.append((names[:1] == [labels.names[label]], labels.names[label] in names))
        shared.append(bool({*tokenize(synonym)} & {*tokenize(heading)}))
        sure.append(bool(found) and found[0].score >= 0.9)
    first, any_of = np.array(hits).T
    mask, high = np.array(shared), np.array(sure)
    return {
        "removed": "all synonyms" if every else "one synonym of each label", "synonyms": len(asked),
        "top-1": _percent(first), "top-5": _percent(any_of), "shares a word": _percent(mask),
        "top-1, a shared word": _percent(first[mask]), "top-1, no shared word": _percent(first[~mask]),
        "score of 0.9 or more": _percent(high), "top-1 of these": _percent(first[high]), **_times(seconds),
    }  # fmt: skip


def found(tagger: Tagger, dataset: Dataset, k: int) -> dict[str, object]:
    """Return the recall of candidates on test, that of the model's ranking alone, and the time."""
    test = dataset.test
    assert test is not None
    assert test.texts is not None
    recalls, alone, seconds, ids = [], [], [], tagger.labels_.live
    ranked = tagger.rank(test.texts, k).ids
    for row, texts in enumerate(zip(*test.texts.values(), strict=True)):
        truth = {*test.Y.indices[test.Y.indptr[row] : test.Y.indptr[row + 1]].tolist()}
        start = time.perf_counter()
        each = tagger.candidates(dict(zip(test.texts, texts, strict=True)), k)
        seconds.append(time.perf_counter() - start)
        if truth:
            recalls.append(len(truth & {ids[one.label] for one in each}) / len(truth))
            alone.append(len(truth & {*ranked[row].tolist()}) / len(truth))
    return {
        f"R@{k}": _percent(np.array(recalls)),
        f"R@{k} of the ranking": _percent(np.array(alone)),
        **_times(seconds),
    }


def _percent(values: np.ndarray) -> float:
    return round(100 * float(values.mean()), 2)


def _times(seconds: list[float]) -> dict[str, float]:
    return {
        "ms": round(1000 * float(np.mean(seconds)), 2),
        "ms p99": round(1000 * float(np.quantile(seconds, 0.99)), 2),
    }


def main(words: list[str]) -> None:
    dataset, model = read(Path(words[0])), words[1] if len(words) > 1 else "linear"
    tagger = Tagger(model, device="cpu").fit_dataset(dataset)
    about = {"data": dataset.name, "model": model}
    record("candidates", {**about, **found(tagger, dataset, 50)}, 0)
    assert tagger.fitted_ is not None
    for every in (False, True):
        record("ground", {**about, **grounded(tagger.fitted_, every)}, 0)


if __name__ == "__main__":
    main(sys.argv[1:])
