"""New labels known by their texts: `python -m benchmarks.cold_labels DATA [seeds=0,1,2] [preset=default] [key=value]`.

Hides a tenth of the labels from training and adds them by their texts afterwards. Measures how many of test's hidden
labels are in the top 10 of *all* labels, compared with a ranking by the cosine of tf-idf vectors, and how P@1 changes:
`warm P@1 after` counts a new label at the top as wrong, `P@1 of all` counts it as right where it is. One JSON line with
the means of the seeds. part=validation evaluates on a tenth of train instead of test, to choose settings.
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
    """Return a part with these labels only, in this order."""
    filtered = None if part.filtered is None else csr_array(part.filtered[:, labels])
    return dataclasses.replace(part, Y=csr_array(part.Y[:, labels]), filtered=filtered)


def recall(ranking: Ranking, Y: csr_array) -> float:
    """Return the share of (point, label) pairs that are in the ranking, in percent."""
    return 100 * float(stored(ranking.as_scores(Y.shape[1]), *Y.nonzero()).mean())


def by_cosine(tagger: Tagger, dataset: Dataset, names: list[str]) -> Ranking:
    """Rank all labels by the cosine of their texts with the texts of test."""
    features = tagger.features_
    assert features is not None
    assert dataset.test is not None
    texts = dict(zip(dataset.label_names or [], zip(*(dataset.label_texts or {}).values(), strict=True), strict=True))
    Z = features.transform([" ".join(texts[name]) for name in names])
    return Ranking.of_scores(csr_array(features.transform(dataset.test.texts or {}) @ Z.T), K)


def evaluated(dataset: Dataset, preset: str, settings: dict[str, str], seed: int) -> dict[str, float]:
    """Hide labels, train, add them, and evaluate."""
    assert dataset.test is not None
    assert dataset.label_texts is not None
    count = dataset.sizes.labels
    hidden = np.sort(np.random.default_rng(seed).permutation(count)[: int(SHARE * count)])
    warm = np.setdiff1d(np.arange(count), hidden)
    order = np.concatenate([warm, hidden])
    names = [(dataset.label_names or [])[label] for label in order]
    texts = {field: [column[label] for label in warm] for field, column in dataset.label_texts.items()}
    known = Dataset(only(dataset.train, warm), label_names=names[: len(warm)], label_texts=texts)
    tagger = Tagger("decaf", preset, settings or None, seed=seed).fit_dataset(known)
    test, both = dataset.test, only(dataset.test, order)
    before = metrics.measure(tagger.rank(test.texts, 1, None), only(test, warm).Y, ks=(1,))["P@1"]
    added = [" ".join(column[label] for column in dataset.label_texts.values()) for label in hidden]
    tagger.add_labels(dict(zip(names[len(warm) :], added, strict=True)))
    ranking = tagger.rank(test.texts, K, both.filtered)
    cold = both.Y.copy()  # its values and indices change below
    cold.data *= cold.indices >= len(warm)
    cold.eliminate_zeros()
    learned = both.Y - cold  # the labels that the model was trained on
    after = metrics.measure(ranking, csr_array(learned), ks=(1,))["P@1"]
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
    rows = [evaluated(dataset, preset, changes, seed) for seed in seeds]
    means = {name: round(statistics.mean(row[name] for row in rows), 2) for name in rows[0]}
    about = {"data": dataset.name, "part": part, "preset": preset, "changes": changes}
    record("cold_labels", {**about, **means, "seeds": seeds}, seeds[0], ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
