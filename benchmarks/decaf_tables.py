"""Tables of DECAF: `python -m benchmarks.decaf_tables DATA [TABLE ...] [seeds=0,1,2] [preset=default] [key=value ...]`.

parts: the paper's Table 6, without a part of the classifier, or with random refinement vectors.  shortlist: Table 5,
candidates are all labels, those of the best clusters (training on labels that the shortlist missed, or not), the
nearest by HNSW, or those of a tree like Parabel's; all shortlists are as long as those of the clusters, which `beam=`
can set.  fanout: fewer clusters.  lite: token vectors stay as Module I leaves them.  ensemble: Fig. 5.

Evaluates on test, with R@20, coverage@20 and `list recall`: the share of test labels that are on the shortlists of the
first learner, in percent. One JSON line per row: means of the seeds.

`python -m benchmarks.decaf_tables plot RESULTS.jsonl OUT.svg` draws the paper's Fig. 6 from the lines of fanout.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.models.base import Lesson
from zipfel.models.decaf import Decaf
from zipfel.models.shortlisters import Shortlister, ShortlistTask
from zipfel.tagger import Tagger
from zipfel.training.run import Run
from zipfel.training.trainer import Schedule

TABLES: dict[str, list[dict[str, Any]]] = {
    "parts": [{}, {"refinement": False}, {"label_text": False}, {"refinement_init": "random"}, {"residual": False}],
    "shortlist": [
        {"shortlist": "none"},
        *({"shortlist": "beam", "add_missed_labels": added} for added in (True, False)),
        *({"shortlist": kind} for kind in ("hnsw", "parabel")),
    ],
    "fanout": [{"shortlist": "beam", "clusters": 2**power} for power in (5, 7, 9, 11)],
    "lite": [{"shortlist": "beam", "lite": lite} for lite in (False, True)],
    "ensemble": [{"learners": learners} for learners in (1, 2, 3, 5)],
}
SHARES = (0.5, 1, 2, 5, 10, 20, 50)  # lengths of shortlists, in percent of all labels
SOME = 10_000  # points of train whose recall is measured
NAMES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "R@20", "coverage@20", "list recall", "seconds")


def evaluated(dataset: Dataset, preset: str, settings: dict[str, Any], seed: int) -> dict[str, float]:
    """Train once, and return figures on test."""
    start = time.perf_counter()
    tagger = Tagger("decaf", preset, settings, seed=seed).fit_dataset(dataset)
    seconds = time.perf_counter() - start
    assert dataset.test is not None
    found = evaluate(tagger.rank(dataset.test.X, 20, dataset.test.filtered), dataset, "test", (1, 3, 5, 20)).values
    assert isinstance(tagger.model_, Decaf)
    shortlister = tagger.model_.all_networks()[0].shortlister
    recall = 1.0 if shortlister is None else shortlister.recall(dataset.test, shortlister.index())
    found |= {"list recall": 100 * recall, "seconds": seconds}
    if shortlister is not None and settings.get("shortlist") == "beam" and "clusters" in settings:
        some = dataset.train.take(np.linspace(0, len(dataset.train) - 1, SOME).astype(np.int64))
        for name, part in (("train", some), ("test", dataset.test)):
            found |= by_length(shortlister, part, name)
    return found


def by_length(shortlister: Shortlister, part: Part, name: str) -> dict[str, float]:
    """Return the recall of shortlists that hold each of SHARES of all labels, in percent."""
    heads = shortlister.heads  # one per cluster
    task = ShortlistTask(shortlister.clusters, heads, Lesson(part), None, Run(), 0, Schedule(1, 1, 1.0))
    ranks, clusters = shortlister.cluster_ranks(part, task), len(heads)
    beams = {share: round(share * clusters / 100) for share in SHARES}
    return {f"{name} recall at {share} %": 100 * float(np.mean(ranks < beam)) for share, beam in beams.items() if beam}


def main(words: list[str]) -> None:
    path, tables = words[0], [word for word in words[1:] if "=" not in word] or list(TABLES)
    changes = words_of([word for word in words[1:] if "=" in word])
    seeds, preset = [int(seed) for seed in changes.pop("seeds", "0,1,2").split(",")], changes.pop("preset", "default")
    dataset = featurized(read(path))
    dataset = dataset.with_parts(lambda part: dataclasses.replace(part, texts=None), label_texts=None)
    for table in tables:
        for row in TABLES[table]:
            rows = [evaluated(dataset, preset, {**changes, **row}, seed) for seed in seeds]
            means = {name: round(statistics.mean(found[name] for found in rows), 2) for name in rows[0] if shown(name)}
            spread = {f"{name} sd": round(statistics.pstdev(found[name] for found in rows), 2) for name in NAMES[:6]}
            about = {"data": dataset.name, "table": table, "row": row, "preset": preset, "changes": changes}
            record("decaf_tables", {**about, **means, **spread, "seeds": seeds}, seeds[0], ("torch",))
            sys.stdout.flush()


def shown(name: str) -> bool:
    """Return whether a figure is recorded."""
    return name in NAMES or " recall at " in name


def plot(results: Path, out: Path) -> None:
    """Draw the recall of shortlists by their length and by the number of clusters."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "decaf"
    import matplotlib.pyplot as plt

    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line.get("table") == "fanout" and any(" recall at " in name for name in line)]
    names = sorted({line["data"] for line in lines})
    figure, axes = plt.subplots(1, len(names), figsize=(4.5 * len(names), 3.4), sharey=True, layout="constrained")
    for axis, data in zip(np.atleast_1d(axes), names, strict=True):
        for colour, line in enumerate(line for line in lines if line["data"] == data):
            for part, style in (("train", "--"), ("test", "-")):
                known = [share for share in SHARES if f"{part} recall at {share} %" in line]
                label = f"K = {line['row']['clusters']:,}" if part == "test" else None
                axis.plot(
                    known,
                    [line[f"{part} recall at {share} %"] for share in known],
                    style,
                    color=f"C{colour}",
                    marker=".",
                    label=label,
                )
        axis.set(title=data, xscale="log", xlabel="labels on a shortlist, % of all (log)", ylim=(0, 100))
        axis.set_xticks([1, 10], labels=["1", "10"])
        axis.grid(alpha=0.3)
        axis.legend(title="clusters (dashed: train)")
    np.atleast_1d(axes)[0].set_ylabel("a point's labels on its shortlist, %")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


if __name__ == "__main__":
    if sys.argv[1] == "plot":
        plot(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
