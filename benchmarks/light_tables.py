"""Tables of LightDXML: `python -m benchmarks.light_tables WORKERS DATA [TABLE ...] [seeds=0,1,2] [key=value ...]`.

cycle: label vectors are updated often, or only at the start and the end.  start: token vectors start at random, or with
FastText (needs texts and gensim).  relu, shortlist (k), epochs (e_model), labels (e_label): one setting each.
beta: one model per seed, evaluated with every β. WORKERS runs share the machine.

Evaluates on test, with the recall of shortlists, and the seconds of each of the paper's modules. One JSON line per row:
means of the seeds.

`python -m benchmarks.light_tables plot RESULTS.jsonl OUT.svg` draws the paper's Fig. 2 from these lines.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import orjson
import torch

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.splits import hold_out
from zipfel.data.text import featurized
from zipfel.evaluate import evaluate
from zipfel.models import lightdxml
from zipfel.models.base import Lesson, settings_of
from zipfel.models.lightdxml import LightDxml, LightSettings
from zipfel.models.mixed import figures_by_beta
from zipfel.training.progress import Progress
from zipfel.training.run import Run

TABLES: dict[str, list[dict[str, Any]]] = {
    "cycle": [{"cycle_epochs": epochs} for epochs in (1, 2, 4)],  # with 4 epochs: 5, 3 and 2 updates of label vectors
    "start": [{"token_init": "random"}, {"token_init": "fasttext"}],
    "relu": [{"relu": False}, {"relu": True}],
    "labels": [{"label_epochs": 0}, {"label_epochs": 1}, {"label_epochs": 8}],
    "shortlist": [{"shortlist_size": k} for k in (25, 50, 100, 200, 400, 800)],
    "epochs": [{"epochs": epochs, "min_steps": 1} for epochs in (1, 2, 4, 8)],
    "beta": [{}],
}
NAMES = ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "recall", "first recall")


@cache
def loaded(path: str) -> Dataset:
    """Return a data set with features and a validation part."""
    dataset = featurized(read(path))
    return dataset if dataset.validation is not None else hold_out(dataset, 0.05, into="validation")


class Recalls(Progress):
    """Collects the shortlist recall of each cycle from the run's log."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def log(self, values: Mapping[str, Any]) -> None:
        """Keep the recall, where a line has one."""
        self.found += [100 * values["recall"]] if "recall" in values else []


def timed(owner: Any, name: str, seconds: dict[str, float]) -> None:
    """Make a method of a model, or a function of a module, add up its seconds."""
    method: Callable[..., Any] = getattr(owner, name)

    def clocked(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            seconds[name] = seconds.get(name, 0) + time.perf_counter() - start

    setattr(owner, name, clocked)


def evaluated(job: tuple[str, LightSettings, int]) -> dict[str, Any]:
    """Train once, and return figures on test, seconds by module, and P@1 and PSP@1 on test for each β."""
    path, settings, seed = job
    dataset, recalls = loaded(path), Recalls()
    run = Run(seed=seed, progress=recalls)
    model = LightDxml(dataset.sizes.features, dataset.sizes.labels, settings, run.generator("start"))
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    seconds: dict[str, float] = {}
    timed(lightdxml, "start_tokens", seconds)
    for name in ("place_labels", "shortlists", "fit"):
        timed(model, name, seconds)
    lesson = Lesson(dataset.train, dataset.validation, None, None, dataset.Z, dataset.feature_names, dataset.propensity)
    model.fit(lesson, run)
    test, (learner,) = dataset.test, model.learners()
    assert test is not None
    found = evaluate(learner.rank(test.X, 5, test.filtered), dataset).values
    found |= {"recall": 100 * model.shortlist_recall(test), "first recall": recalls.found[0], "beta": model.beta}
    by_beta = {
        str(beta): [values["P@1"], values["PSP@1"]] for beta, values in figures_by_beta(learner, test, lesson).items()
    }
    return found | {"seconds": seconds, "curve": by_beta, "recalls": recalls.found}


def report(path: str, table: str, changes: dict[str, Any], seeds: list[int], rows: list[dict[str, Any]]) -> None:
    """Print a row of a table: means of the seeds."""
    means = {name: round(statistics.mean(row[name] for row in rows), 2) for name in NAMES}
    spread = {
        f"{name} sd": round(statistics.pstdev(row[name] for row in rows), 2) for name in ("P@1", "PSP@1", "recall")
    }
    modules = {
        name: round(statistics.mean(row["seconds"].get(name, 0) for row in rows), 1) for name in rows[0]["seconds"]
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    about = {"data": loaded(path).name, "table": table, "row": changes, "device": device}
    more: dict[str, Any] = {"betas": [row["beta"] for row in rows], "seconds": modules}
    if table == "beta":
        keys = rows[0]["curve"]
        more["curve"] = {
            b: [round(statistics.mean(row["curve"][b][i] for row in rows), 2) for i in (0, 1)] for b in keys
        }
    record("light_tables", {**about, **means, **spread, **more, "seeds": seeds}, seeds[0], ("torch",))
    sys.stdout.flush()


def main(words: list[str]) -> None:
    workers, path, tables = int(words[0]), words[1], [word for word in words[2:] if "=" not in word] or list(TABLES)
    changes = words_of([word for word in words[2:] if "=" in word])
    seeds = [int(seed) for seed in changes.pop("seeds", "0,1,2").split(",")]
    rows = [(table, row) for table in tables for row in TABLES[table]]
    jobs = [(path, settings_of("lightdxml", "default", {**changes, **row}), seed) for _, row in rows for seed in seeds]
    with get_context("spawn").Pool(workers) as pool:
        found = pool.imap(evaluated, jobs, chunksize=1)
        for table, row in rows:
            report(path, table, row, seeds, [next(found) for _ in seeds])


def plot(results: Path, out: Path) -> None:
    """Draw P@1 and PSP@1 against β and e_model, each data set scaled to its own range, as in the paper's Fig. 2."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "lightdxml"
    import matplotlib.pyplot as plt

    lines = [
        line for line in map(orjson.loads, results.read_bytes().splitlines()) if line["benchmark"] == "light_tables"
    ]
    figure, axes = plt.subplots(2, 2, figsize=(9, 6), sharey=True, layout="constrained")
    for column, name in enumerate(("P@1", "PSP@1")):
        for data in dict.fromkeys(line["data"] for line in lines):
            for line in (line for line in lines if line["data"] == data and line["table"] == "beta"):
                drawn(
                    axes[0][column],
                    [*map(float, line["curve"])],
                    [pair[column] for pair in line["curve"].values()],
                    data,
                )
            epochs = [line for line in lines if line["data"] == data and line["table"] == "epochs"]
            drawn(axes[1][column], [line["row"]["epochs"] for line in epochs], [line[name] for line in epochs], data)
        axes[0][column].set(title=name, xlabel="β")
        axes[1][column].set(xlabel="epochs of the classifier", xscale="log")
    axes[0][0].legend()
    figure.savefig(out, metadata={"Date": None})


def drawn(axis: Any, x: list[float], y: list[float], label: str) -> None:
    """Draw a curve scaled to 0 to 1, with its range in the legend."""
    if x:
        low, high = min(y), max(y)
        axis.plot(
            x,
            [(value - low) / max(high - low, 1e-9) for value in y],
            marker=".",
            label=f"{label} ({low:.1f} to {high:.1f})",
        )


if __name__ == "__main__":
    if sys.argv[1] == "plot":
        plot(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
