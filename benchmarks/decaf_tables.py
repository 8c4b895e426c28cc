"""DECAF's tables: `python -m benchmarks.decaf_tables DATA [--preset paper] [--arms full,fft,...] [--seeds 0,1,2]`.

Each arm changes the preset in one way. Table 6: full, fft (FastText's vectors in place of those that Module I learns;
needs texts), no-init (random refinement vectors), z1 (without refinement), z2 (label texts in Module I only, refinement
from scratch; z2-init: it starts at E z_l), no-text (label texts nowhere), no-residual, lite. Table 5: beam (S), hnsw,
parabel, all-labels; missed (learn from right labels that shortlists missed), no-missed. Fan-out and beam: K/4, K/16 (of
2^17, that is DECAF-8K), K/64, fixed numbers of clusters for Fig. 6 (K=32 ...), B=200. Bias: bias, no-bias; any-length
(u_m as printed, not of length 1). Fig. 5: learners=1 ... Sec. 3.1: text-clusters (labels are clustered by their texts),
module1-refined (Module I has refinement vectors too). A name of TABLES stands for its arms.

Options: --device auto; --validation 0 (share held out; with preset paper nothing is, as the authors have it; else the
model's own); --changes key=value,... are settings that all arms share. An arm that fails prints its error, and the next
goes on.

Evaluates on test. One JSON line per arm, means of the seeds: C@20 is Table 2's coverage, `list recall` the share of
test's labels on the shortlists of the first learner, `train list recall` the same of train's, both in percent.

`python -m benchmarks.decaf_tables plot RESULTS.jsonl OUT.svg` draws the paper's Fig. 6 from the lines of fanout.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.errors import ConfigError, ZipfelError
from zipfel.evaluate import evaluate
from zipfel.fitting import chosen_device, lesson_of
from zipfel.models import decaf
from zipfel.models.base import Lesson, settings_of
from zipfel.models.decaf import Decaf
from zipfel.models.decaf_network import ClusterClassifiers, Network
from zipfel.models.decaf_settings import DecafSettings
from zipfel.models.learner import evenly_spaced
from zipfel.models.shortlisters import Shortlister, ShortlistTask, label_sums
from zipfel.nn.encoders import EmbeddingTable
from zipfel.training.run import Run
from zipfel.training.trainer import Schedule


class TextClusters(Decaf):
    """DECAF with labels clustered by their texts, z_l and E z_l, in place of their points."""

    def module_1(self, lesson: Lesson, run: Run) -> None:
        """Do Module I on clusters of z_l."""
        with patch.object(decaf, "sparse_centroids", lambda X, Y, Z: Z):
            super().module_1(lesson, run)

    def module_2(self, network: Network, number: int, lesson: Lesson, run: Run) -> None:
        """Do Module II on clusters of E z_l, the centroids of labels without points."""
        none = lesson.train.take(np.arange(0))
        with patch.object(decaf, "label_sums", lambda encode, part, Z, sums: label_sums(encode, none, Z, sums)):
            super().module_2(network, number, lesson, run)


class RefinedModule1(Decaf):
    """DECAF whose Module I has refinement vectors too, which start at random."""

    def train_on_clusters(
        self, stage: str, network: Network, meta: ClusterClassifiers, lesson: Lesson, run: Run
    ) -> None:
        """Train against clusters; those of Module I get a vector each beside their text."""
        if meta.module == 1:
            draws, std = torch.Generator().manual_seed(0), self.settings.initial_std
            meta.refinement = EmbeddingTable(meta.count, self.settings.dimension, draws, std).to(self.counts.device)
        super().train_on_clusters(stage, network, meta, lesson, run)


KINDS: dict[str, type[Decaf]] = {"text-clusters": TextClusters, "module1-refined": RefinedModule1}
ARMS: dict[str, dict[str, Any]] = {
    "full": {},
    "fft": {"module1": False, "token_init": "fasttext"},
    "no-init": {"refinement_init": "random"},
    "z1": {"refinement": False},
    "z2": {"text_in_classifiers": False, "refinement_init": "random"},
    "z2-init": {"text_in_classifiers": False},
    "no-text": {"label_text": False},
    "no-residual": {"residual": False},
    "lite": {"shortlist": "beam", "lite": True},
    "beam": {"shortlist": "beam"},
    "hnsw": {"shortlist": "hnsw"},
    "parabel": {"shortlist": "parabel"},
    "all-labels": {"shortlist": "none"},
    "missed": {"shortlist": "beam", "add_missed_labels": True},
    "no-missed": {"shortlist": "beam", "add_missed_labels": False},
    **{f"K/{share}": {"shortlist": "beam", "clusters": f"/{share}"} for share in (4, 16, 64)},
    **{f"K={2**power}": {"shortlist": "beam", "clusters": 2**power} for power in (5, 7, 9, 11)},
    "B=200": {"shortlist": "beam", "beam": 200},
    "bias": {"label_bias": True},
    "no-bias": {"label_bias": False},
    "any-length": {"unit_cluster_texts": False},
    **{f"learners={count}": {"learners": count} for count in (1, 2, 3, 5)},
    **{arm: {"shortlist": "beam"} for arm in KINDS},
}
TABLES = {
    "parts": ("full", "z1", "no-text", "no-init", "no-residual"),
    "table6": ("full", "fft", "K/16", "no-init", "z1", "z2", "z2-init", "lite"),
    "table5": ("full", "hnsw", "parabel", "all-labels"),
    "shortlist": ("all-labels", "missed", "no-missed", "hnsw", "parabel"),
    "fanout": ("K=32", "K=128", "K=512", "K=2048"),
    "beams": ("full", "B=200", "K/4", "K/16", "K/64"),
    "biases": ("bias", "no-bias", "any-length"),
    "lites": ("beam", "lite"),
    "module1": ("beam", "text-clusters", "module1-refined"),
    "ensemble": ("learners=1", "learners=2", "learners=3", "learners=5"),
}
SHARES = (0.5, 1, 2, 5, 10, 20, 50)  # lengths of shortlists, in percent of all labels
SOME = 10_000  # points of train whose recall is measured
NAMES = (
    "P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "R@20", "C@20", "list recall",
    "train list recall", "beam", "clusters", "seconds",
)  # fmt: skip


def chosen_arms(names: str) -> list[str]:
    """Return the arms of a list of names, where a table stands for its arms, each once.

    >>> chosen_arms("full,table5")
    ['full', 'hnsw', 'parabel', 'all-labels']
    """
    arms = [arm for name in names.split(",") for arm in TABLES.get(name, (name,))]
    unknown = [arm for arm in arms if arm not in ARMS]
    if unknown:
        raise ConfigError(f"unknown arm {unknown[0]!r}; expected some of {', '.join([*ARMS, *TABLES])}")
    return list(dict.fromkeys(arms))


def settings_of_arm(arm: str, preset: str, changes: dict[str, Any], labels: int) -> DecafSettings:
    """Return the settings of an arm; K/16 is a sixteenth of the clusters that the preset has for so many labels."""
    own = dict(ARMS[arm])
    if str(own.get("clusters")).startswith("/"):
        whole = settings_of("decaf", preset, changes).cluster_count(labels)
        own["clusters"] = max(1, whole // int(own["clusters"][1:]))
    settings = settings_of("decaf", preset, {**changes, **own})
    assert isinstance(settings, DecafSettings)
    return settings


def evaluated(
    dataset: Dataset, arm: str, settings: DecafSettings, seed: int, device: str, validation: float | None
) -> dict[str, float]:
    """Train once, and return figures on test."""
    start, run = time.perf_counter(), Run(seed=seed)
    model = KINDS.get(arm, Decaf)(dataset.sizes.features, dataset.sizes.labels, settings, run.generator("start"))
    model.to(chosen_device(device))
    model.fit(lesson_of(model, dataset, dataset.label_names or (), validation, seed), run)
    seconds = time.perf_counter() - start
    test = dataset.test
    assert test is not None
    ranking = model.predictor().rank(test.X, 20, test.filtered)
    found = evaluate(ranking, dataset, "test", (1, 3, 5, 20)).values
    found = {**found, "C@20": found["coverage@20"], "seconds": seconds}
    shortlister = model.all_networks()[0].shortlister
    if shortlister is None:
        return found | {"list recall": 100.0, "train list recall": 100.0}
    index, some = shortlister.index(), evenly_spaced(dataset.train, SOME)
    found |= {
        name: 100 * shortlister.recall(part, index)
        for name, part in (("list recall", test), ("train list recall", some))
    }
    found |= {
        "beam": int(shortlister.beam),
        "clusters": int(shortlister.clusters.max()) + 1 if len(shortlister.clusters) else 0,
    }
    if settings.shortlist == "beam" and settings.clusters is not None:
        for name, part in (("train", some), ("test", test)):
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
    parser = argparse.ArgumentParser(description="DECAF's tables.")
    parser.add_argument("data")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--arms", default="table6,table5,beams,biases,ensemble")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--validation", type=float)
    parser.add_argument("--changes", default="", help="settings of all arms: key=value,key=value")
    asked = parser.parse_args(words)
    arms, changes = chosen_arms(asked.arms), words_of(word for word in asked.changes.split(",") if word)
    validation = 0.0 if asked.validation is None and asked.preset == "paper" else asked.validation
    dataset = featurized(read(asked.data))
    for arm in arms:
        about = {"data": dataset.name, "arm": arm, "preset": asked.preset, "changes": changes, "validation": validation}
        run_arm(dataset, about, [int(seed) for seed in asked.seeds.split(",")], asked.device)


def run_arm(dataset: Dataset, about: dict[str, Any], seeds: list[int], device: str) -> None:
    """Train an arm with each seed, and print a line with its figures, or with its error."""
    try:
        arm = about["arm"]
        settings = settings_of_arm(arm, about["preset"], about["changes"], dataset.sizes.labels)
        rows = [evaluated(dataset, arm, settings, seed, device, about["validation"]) for seed in seeds]
    except (ZipfelError, RuntimeError) as error:  # RuntimeError: such as a GPU's memory
        figures: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"}
    else:
        figures = {name: round(statistics.mean(row[name] for row in rows), 2) for name in rows[0] if shown(name)}
        figures |= {f"{name} sd": round(statistics.pstdev(row[name] for row in rows), 2) for name in NAMES[:8]}
    record("decaf_tables", {**about, **figures, "seeds": seeds}, seeds[0], ("torch",))
    sys.stdout.flush()


def shown(name: str) -> bool:
    """Return whether a figure is recorded."""
    return name in NAMES or " recall at " in name


def clusters_of(line: dict[str, Any]) -> int:
    """Return the number of clusters of a line; older ones have their settings under `row`."""
    return int(line["row"]["clusters"] if "row" in line else line["clusters"])


def plot(results: Path, out: Path) -> None:
    """Draw the recall of shortlists by their length and by the number of clusters."""
    from zipfel.report.plots import styled_figure, svg_of

    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if any(" recall at " in name for name in line)]
    names = sorted({line["data"] for line in lines})
    with styled_figure("decaf", 4.5 * len(names), 3.4) as figure:
        axes = figure.subplots(1, len(names), sharey=True, squeeze=False)[0]
        for axis, data in zip(axes, names, strict=True):
            for colour, line in enumerate(line for line in lines if line["data"] == data):
                for part, style in (("train", "--"), ("test", "-")):
                    known = [share for share in SHARES if f"{part} recall at {share} %" in line]
                    shares = [line[f"{part} recall at {share} %"] for share in known]
                    label = f"K = {clusters_of(line):,}" if part == "test" else None
                    axis.plot(known, shares, style, color=f"C{colour}", marker=".", label=label)
            axis.set(title=data, xscale="log", xlabel="labels on a shortlist, % of all (log)", ylim=(0, 100))
            axis.set_xticks([1, 10], labels=["1", "10"])
            axis.legend(title="clusters (dashed: train)")
        axes[0].set_ylabel("a point's labels on its shortlist, %")
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(svg_of(figure), encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1] == "plot":
        plot(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
