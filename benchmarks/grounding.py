"""Labels for language models: `python -m benchmarks.grounding DATA [MODEL] [PART ...]`.

DATA has label texts with synonyms after ` | `. MODEL is a name (default: linear), auto, or the folder of a model that
was trained on DATA. Each PART prints one JSON line; default: all of them.

- candidates: recall of test's labels at 50.
- one, all: synonyms are removed from the label texts, one of each label or all but the heading, and must be grounded
  again. Models that read label texts are trained without these synonyms. Only labels with odd ids count: those with
  even ids have chosen the weights of `zipfel.grounding`.
"""

from __future__ import annotations

import dataclasses
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.record import record
from zipfel import grounding
from zipfel.calibration import calibration_error
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.tokens import tokenize
from zipfel.fitting import Fitted
from zipfel.tagger import Tagger

Query = tuple[int, str, str]  # label, synonym, heading
PARTS = ("candidates", "one", "all")
K = 50  # candidates
MOST = 4000  # synonyms asked


def removed(texts: Sequence[str], every: bool) -> tuple[list[str], list[Query]]:
    """Return label texts without some synonyms, and these synonyms."""
    rng, left, queries = random.Random(0), list[str](), list[Query]()
    for label, text in enumerate(texts):
        heading, *synonyms = text.split(" | ")
        chosen = synonyms if every else [rng.choice(synonyms)] if synonyms else []
        queries += [(label, synonym, heading) for synonym in chosen]
        left.append(" | ".join([heading, *(each for each in synonyms if each not in chosen)]))
    return left, queries


def trained(model: str, dataset: Dataset) -> Tagger:
    """Return a model, trained or loaded."""
    return Tagger.load(model, "cpu") if Path(model).is_dir() else Tagger(model, device="cpu").fit_dataset(dataset)


def without(model: str, dataset: Dataset, every: bool) -> tuple[Fitted, list[Query]]:
    """Return a model that has not seen some synonyms, and these synonyms."""
    ((field, texts),) = (dataset.label_texts or {}).items()
    left, queries = removed(texts, every)
    tagger = trained(model, dataclasses.replace(dataset, label_texts={field: left}))
    fitted = tagger.fitted_
    assert fitted is not None
    if Path(model).is_dir() and fitted.blueprint.abilities.reads_label_texts:
        raise SystemExit(f"{model} has read the synonyms that should be unknown to it; name a model to train")
    return fitted.with_labels(dataclasses.replace(fitted.labels, texts=left)), queries


def grounded(fitted: Fitted, queries: list[Query]) -> dict[str, object]:
    """Return how often removed synonyms are grounded to their label, how true the scores are, and the time."""
    names = fitted.labels.names
    asked = [query for query in queries if query[0] % 2 == 1]
    asked = random.Random(1).sample(asked, min(len(asked), MOST))
    hits, shared, scores, times = [], [], [], []
    grounding.ground(fitted, "warm up", 5)
    for label, synonym, heading in asked:
        start = now()
        found = grounding.ground(fitted, synonym, 5)
        times.append(now() - start)
        labels = [each.label for each in found]
        hits.append((labels[:1] == [names[label]], names[label] in labels))
        shared.append(bool({*tokenize(synonym)} & {*tokenize(heading)}))
        scores.append(found[0].score if found else 0.0)
    first, any_of = np.array(hits).T
    mask, high = np.array(shared), np.array(scores) >= 0.9
    return {
        "synonyms": len(asked), "top-1": _percent(first), "top-5": _percent(any_of), "shares a word": _percent(mask),
        "top-1, a shared word": _percent(first[mask]), "top-1, no shared word": _percent(first[~mask]),
        "score of 0.9 or more": _percent(high), "top-1 of these": _percent(first[high]),
        "calibration error": round(100 * calibration_error(scores, first), 2), "curve": _curve(np.array(scores), first),
        **_times(times),
    }  # fmt: skip


def _curve(scores: np.ndarray, hits: np.ndarray) -> list[tuple[float, float]]:
    """Return mean score and share of hits, in percent, of eight equal parts by score."""
    parts = np.array_split(np.argsort(scores, kind="stable"), 8)
    return [(_percent(scores[part]), _percent(hits[part])) for part in parts]


def found(tagger: Tagger, dataset: Dataset) -> dict[str, object]:
    """Return the recall of candidates on test, that of the model's ranking alone, and the time."""
    test = dataset.test
    assert test is not None
    assert test.texts is not None
    recalls, alone, times, ids = [], [], [], tagger.labels_.live
    ranked = tagger.rank(test.texts, K).ids
    for row, texts in enumerate(zip(*test.texts.values(), strict=True)):
        truth = {*test.Y.indices[test.Y.indptr[row] : test.Y.indptr[row + 1]].tolist()}
        start = now()
        each = tagger.candidates(dict(zip(test.texts, texts, strict=True)), K)
        times.append(now() - start)
        if truth:
            recalls.append(len(truth & {ids[one.label] for one in each}) / len(truth))
            alone.append(len(truth & {*ranked[row].tolist()}) / len(truth))
    return {
        f"R@{K}": _percent(np.array(recalls)),
        f"R@{K} of the ranking": _percent(np.array(alone)),
        **_times(times),
    }


def _percent(values: np.ndarray) -> float:
    return round(100 * float(values.mean()), 2)


def now() -> np.ndarray:
    """Return the time in seconds by the clock, and of the processor: other processes do not count there."""
    return np.array([time.perf_counter(), time.process_time()])


def _times(seconds: list[np.ndarray]) -> dict[str, float]:
    """Return mean and p99 of times [calls, 2] by both clocks, in milliseconds."""
    times = 1000 * np.array(seconds)
    (ms, cpu), (slow, slow_cpu) = times.mean(axis=0), np.quantile(times, 0.99, axis=0)
    figures = {"ms": ms, "ms p99": slow, "CPU ms": cpu, "CPU ms p99": slow_cpu}
    return {name: round(float(value), 2) for name, value in figures.items()}


def main(words: list[str]) -> None:
    dataset, model = read(Path(words[0])), words[1] if len(words) > 1 else "linear"
    for part in words[2:] or PARTS:
        if part == "candidates":
            tagger = trained(model, dataset)
            about = {"data": dataset.name, "model": tagger.chosen_.model}
            record("candidates", {**about, **found(tagger, dataset)}, 0)
        elif part in PARTS:
            fitted, queries = without(model, dataset, part == "all")
            about = {"data": dataset.name, "model": fitted.blueprint.choice.model}
            removal = "all synonyms" if part == "all" else "one synonym of each label"
            record("ground", {**about, "removed": removal, **grounded(fitted, queries)}, 0)
        else:
            raise SystemExit(f"unknown part {part!r}; known are {', '.join(PARTS)}")


if __name__ == "__main__":
    main(sys.argv[1:])
