"""Labels that come later: `python -m benchmarks.cold_labels DATA [seeds=0,1,2] [preset=default] [key=value ...]`.

A tenth of the labels is hidden from training, and added by its texts alone afterwards. How many of the hidden labels of
test stand among the first 10 of *all* labels, against the cosine of tf-idf vectors; and what they cost P@1 of the
others: `after`, a new label in the first place counts as wrong, `of all`, as right where it is. One JSON line: means of
the seeds. part=validation: a tenth of train takes the place of test, for choosing settings.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys

import numpy as np
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel import metrics
from zipfel.config import words_of
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.splits import hold_out
from zipfel.tagger import Tagger
from zipfel.types import Ranking, stored

SHARE, K = 0.1, 10


def only(part: Part, labels: np.ndarray) -> Part:
    """Return a part with some of the labels, in that order."""
    filtered = None if part.filtered is None else csr_array(part.filtered[:, labels])
    return dataclasses.replace(part, Y=csr_array(part.Y[:, labels]), filtered=filtered)


def recall(ranking: Ranking, Y: csr_array) -> float:
    """Return the share of labels of points that are ranked, in percent of all pairs."""
    found = ranking.as_scores(Y.shape[1])
    return 100 * float(stored(found, *Y.nonzero()).mean())


def by_cosine(tagger: Tagger, dataset: Dataset, names: list[str]) -> Ranking:
    """Rank all labels by the cosine of their texts with those of test."""
    features = tagger.features_
    assert features is not None
    assert dataset.test is not None
    texts = dict(zip(dataset.label_names or [], zip(*(dataset.label_texts or {}).values(), strict=True), strict=True))
    Z = features.transform([" ".join(texts[name]) for name in names])
    return Ranking.of_scores(csr_array(features.transform(dataset.test.texts or {}) @ Z.T), K)


def judged(dataset: Dataset, preset: str, settings: dict[str, str], seed: int) -> dict[str, float]:
    """Hide, train, add and judge."""
    assert dataset.test is not None
    assert dataset.label_texts is not None
    count = dataset.sizes.labels
    hidden = np.sort(np.random.default_rng(seed).permutation(count)[: int(SHARE * count)])
    warm = np.setdiff1d(np.arange(count), hidden)
    order = np.concatenate([warm, hidden])
    names = [(dataset.label_names or [])[label] for label in order]
    texts = {field: [column[label] for label in warm] for field, column in dataset.label_texts.items()}
    lesson = Dataset(only(dataset.train, warm), label_names=names[: len(warm)], label_texts=texts)
    tagger = Tagger("decaf", preset, settings or None, seed=seed).fit_dataset(lesson)
    test, both = dataset.test, only(dataset.test, order)
    before = metrics.measure(tagger.rank(test.texts, 1, None), only(test, warm).Y, ks=(1,))["P@1"]
    told = [" ".join(column[label] for column in dataset.label_texts.values()) for label in hidden]
    tagger.add_labels(dict(zip(names[len(warm) :], told, strict=True)))
    ranking = tagger.rank(test.texts, K, both.filtered)
    cold = both.Y.copy()  # whose indices change below
    cold.data *= cold.indices >= len(warm)
    cold.eliminate_zeros()
    held = both.Y - cold  # of a point, those labels that were learned
    after = metrics.measure(ranking, csr_array(held), ks=(1,))["P@1"]
    all_first = metrics.measure(ranking, both.Y, ks=(1,))["P@1"]
    cosine = recall(by_cosine(tagger, dataset, names), cold)
    return {"cold R@10": recall(ranking, cold), "cosine R@10": cosine, "warm P@1 before": before,
            "warm P@1 after": after, "P@1 of all": all_first}  # fmt: skip


def main(words: list[str]) -> None:
    changes = words_of(words[1:])
    seeds, preset = [int(seed) for seed in changes.pop("seeds", "0,1,2").split(",")], changes.pop("preset", "default")
    dataset, part = read(words[0]), changes.pop("part", "test")
    if part == "validation":
        held = hold_out(dataset, 0.1, 0, "validation")
        dataset = dataclasses.replace(held, test=held.validation, validation=None)
    rows = [judged(dataset, preset, changes, seed) for seed in seeds]
    means = {name: round(statistics.mean(row[name] for row in rows), 2) for name in rows[0]}
    about = {"data": dataset.name, "part": part, "preset": preset, "changes": changes}
    record("cold_labels", {**about, **means, "seeds": seeds}, seeds[0], ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
