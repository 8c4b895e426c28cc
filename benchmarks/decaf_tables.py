"""Tables of DECAF: `python -m benchmarks.decaf_tables DATA [TABLE ...] [seeds=0,1,2] [preset=default] [key=value ...]`.

parts: their Table 6, a part of the classifier left out, or begun otherwise.  shortlist: their Table 5, all labels, or
those of the best clusters (and labels that a list missed learned from or not), the nearest by HNSW, or those of a tree
as Parabel's; lists are as long as those of the clusters, which `beam=` may set.  fanout: fewer clusters.  lite: tokens
stay as Module I leaves them.  ensemble: their Fig. 5. Judged on test, with R@20, C@20, and list recall: how many
of test's labels are on the lists of the first learner, in percent. One JSON line a row: means of the seeds.
"""

from __future__ import annotations

import dataclasses
import statistics
import sys
import time
from typing import Any

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.models.shortlisters import list_recall
from zipfel.tagger import Tagger

TABLES: dict[str, list[dict[str, Any]]] = {
    "parts": [{}, {"refinement": False}, {"label_text": False}, {"start": "random"}, {"residual": False}],
    "shortlist": [
        {"shortlist": "none"},
        *({"shortlist": "beam", "missed": missed} for missed in (True, False)),
        *({"shortlist": kind} for kind in ("hnsw", "parabel")),
    ],
    "fanout": [{"shortlist": "beam", "clusters": 2**power} for power in (5, 7, 9, 11)],
    "lite": [{"shortlist": "beam", "lite": lite} for lite in (False, True)],
    "ensemble": [{"learners": learners} for learners in (1, 2, 3, 5)],
}
NAMES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "R@20", "coverage@20", "list recall", "seconds")


def judged(dataset: Dataset, preset: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """Train once, and return figures of test."""
    start = time.perf_counter()
    tagger = Tagger("decaf", preset, settings, seed=seed).fit_dataset(dataset)
    seconds = time.perf_counter() - start
    assert dataset.test is not None
    found = evaluate(tagger.rank(dataset.test.X, 20, dataset.test.filtered), dataset, "test", (1, 3, 5, 20)).values
    network = tagger.model_.networks[0]
    index = network.shortlister()
    recall = 1.0 if index is None else list_recall(network, index, dataset.test)
    return found | {"list recall": 100 * recall, "seconds": seconds}


def main(words: list[str]) -> None:
    path, tables = words[0], [word for word in words[1:] if "=" not in word] or list(TABLES)
    changes = words_of([word for word in words[1:] if "=" in word])
    seeds, preset = [int(seed) for seed in changes.pop("seeds", "0,1,2").split(",")], changes.pop("preset", "default")
    dataset = featurized(read(path))
    dataset = dataset.with_parts(lambda part: dataclasses.replace(part, texts=None), label_texts=None)
    for table in tables:
        for row in TABLES[table]:
            rows = [judged(dataset, preset, {**changes, **row}, seed) for seed in seeds]
            means = {name: round(statistics.mean(found[name] for found in rows), 2) for name in NAMES}
            spread = {f"{name} sd": round(statistics.pstdev(found[name] for found in rows), 2) for name in NAMES[:6]}
            about = {"data": dataset.name, "table": table, "row": row, "preset": preset, "changes": changes}
            record("decaf_tables", {**about, **means, **spread, "seeds": seeds}, seeds[0], ("torch",))
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
