"""One setting of LightDXML at a time: `python -m benchmarks.light_tables DATA [--arms cycle,k=100] [key=value ...]`.

Each arm changes preset `default`; `fast`, `paper` and `paper-random` (without FastText) are presets. Arms by group:
cycle (labels placed every epoch, every second, or at start and end only), k (width of shortlists, shared by a batch),
own-k (the same, not shared), relu, label-epochs, beta (one model, judged with every β), d (dimension), epochs, start
(FastText, which needs texts and gensim), reranker, plain (neither residual layer nor shared lists), decoupled. A group
stands for all its arms, and `a+b` changes both. Default: all.

Options: --seeds 0,1,2. --part test or validation: where arms are judged; the points of validation then choose neither
epoch nor β, which a twentieth of train does. --device auto. key=value pairs are settings that all arms share.

One JSON line per arm, means over seeds: P, nDCG and PSP, the recall of shortlists at the end and in the first cycle,
seconds of training by module (Table IV), size on disk of what prediction needs, and the share of all labels that a step
scores. A line of an arm that fails has an `error` instead, and the exit status is 1.

`python -m benchmarks.light_tables plot RESULTS.jsonl OUT.svg` draws the paper's Fig. 2 from arms beta and epochs.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.data.formats import read
from zipfel.data.splits import hold_out
from zipfel.data.text import featurized
from zipfel.errors import ConfigError, DataError, did_you_mean
from zipfel.evaluate import evaluate
from zipfel.fitting import chosen_device
from zipfel.models.base import Lesson, labelled, settings_of
from zipfel.models.lightdxml import LightDxml
from zipfel.models.lightdxml_beta import figures_by_beta
from zipfel.models.lightdxml_settings import LightSettings
from zipfel.training.progress import Growth, Observer, Progress
from zipfel.training.run import Run, state_size

WIDTHS = (25, 50, 100, 200, 400, 700)
NEVER = 1_000_000  # epochs of a cycle that does not end
ARMS: dict[str, dict[str, Any]] = {
    "default": {},
    "fast": {"preset": "fast"},
    "paper": {"preset": "paper"},
    "paper-random": {"preset": "paper", "token_init": "random"},
    "cycle=1": {"cycle_epochs": 1},
    "cycle=2": {"cycle_epochs": 2},
    "cycle=none": {"cycle_epochs": NEVER},
    **{f"k={k}": {"shortlist_size": k} for k in WIDTHS},
    **{f"own-k={k}": {"shortlist_size": k, "shared_negatives": False} for k in WIDTHS},
    **{f"negatives={count}": {"negatives": count} for count in (5, 10, 25, 50, 100)},
    "relu": {"relu": True},
    **{f"label-epochs={epochs}": {"label_epochs": epochs} for epochs in (0, 1, 8)},
    "beta": {},
    **{f"d={width}": {"dimension": width} for width in (256, 512, 768, 1024, 2048)},
    **{f"epochs={epochs}": {"epochs": epochs, "min_steps": 1} for epochs in (1, 2, 4, 8)},
    "start=fasttext": {"token_init": "fasttext"},
    "reranker": {"reranker": True},
    "plain": {"residual": False, "shared_negatives": False},
    "logistic": {"loss": "logistic"},
}
NAMES = ("P@1", "P@3", "P@5", "nDCG@3", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
CURVE = ("P@1", "PSP@1", "P@3", "PSP@3", "P@5", "PSP@5")  # figures for each β
COUNTED = 20  # steps whose labels are counted


def loaded(path: str, part: str) -> Dataset:
    """Return a data set with features, the part that arms are judged on, and as validation points that choose."""
    dataset = read(path)
    if part == "test" and dataset.test is None:
        dataset = hold_out(dataset, 0.1)
    if part == "validation":
        dataset = dataset if dataset.validation is not None else hold_out(dataset, 0.1, into="validation")
        dataset = dataclasses.replace(dataset, test=dataset.validation, validation=None)
    if dataset.validation is None:
        dataset = hold_out(dataset, 0.05, into="validation")
    return featurized(dataset)


class Recalls(Progress):
    """Collects the shortlist recall of each cycle from the run's log."""

    def __init__(self) -> None:
        self.found: list[float] = []

    def log(self, values: Mapping[str, Any]) -> None:
        """Keep a recall."""
        if "recall" in values:
            self.found.append(100 * values["recall"])


class Stages(Observer):
    """Adds up the seconds of stages without gradients: tokens, shortlists, candidates of a re-ranker."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def made(self, stage: str, seconds: float, grows_with: Growth) -> None:
        """Add the seconds of a stage."""
        name = "shortlists" if stage.startswith("shortlists") else stage
        self.seconds[name] = self.seconds.get(name, 0) + seconds


def timed(model: LightDxml, name: str, seconds: dict[str, float]) -> None:
    """Make a method of a model add up its seconds."""
    method: Callable[..., Any] = getattr(model, name)

    def clocked(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return method(*arguments, **named)
        finally:
            seconds[name] = seconds.get(name, 0) + time.perf_counter() - start

    setattr(model, name, clocked)


def share_scored(model: LightDxml, lesson: Lesson, seed: int) -> float:
    """Return the share of all labels, in percent, that a step scores: right or on a shortlist of its batch."""
    part, numbers, counts = labelled(lesson.train), np.random.default_rng(seed), []
    assert part.X is not None
    for _ in range(COUNTED):
        rows = np.sort(numbers.permutation(len(part))[: model.schedule(part).batch_size])
        near = model.shortlists(model.encoded(part.X[rows]), model.settings.trained_width(model.label_count)).numpy()
        counts.append(len(np.union1d(part.Y[rows].indices, near)))
    return 100 * float(np.mean(counts)) / model.label_count


def evaluated(dataset: Dataset, settings: LightSettings, seed: int, device: torch.device) -> dict[str, Any]:
    """Train once, and return figures on the part that arms are judged on."""
    recalls, stages, judged = Recalls(), Stages(), dataset.test
    assert judged is not None
    run = Run(seed=seed, progress=recalls, observer=stages)
    model = LightDxml(dataset.sizes.features, dataset.sizes.labels, settings, run.generator("start")).to(device)
    for name in ("place_labels", "learn_reranker", "fit"):
        timed(model, name, stages.seconds)
    lesson = Lesson(dataset.train, dataset.validation, None, None, dataset.Z, dataset.feature_names, dataset.propensity)
    model.fit(lesson, run)
    found: dict[str, Any] = evaluate(model.predictor().rank(judged.X, 5, judged.filtered), dataset).values
    by_beta = figures_by_beta(model.learners()[0], judged, lesson)
    return found | {
        "recall": 100 * model.shortlist_recall(judged),
        "first recall": recalls.found[0],
        "MB": state_size(model.tensors().serve) / 1e6,
        "labels scored by a step, %": share_scored(model, lesson, seed),
        "train seconds": stages.seconds["fit"],
        "beta": model.beta,
        "seconds": stages.seconds,
        "curve": {str(beta): [values[name] for name in CURVE] for beta, values in by_beta.items()},
    }


def report(dataset: Dataset, about: dict[str, Any], seeds: list[int], rows: list[dict[str, Any]]) -> None:
    """Print the line of an arm: means of the seeds."""
    figures = (*NAMES, "recall", "first recall", "MB", "labels scored by a step, %", "train seconds")
    means = {name: round(statistics.mean(row[name] for row in rows), 2) for name in figures}
    spread = {f"{name} sd": round(statistics.pstdev(row[name] for row in rows), 2) for name in ("P@1", "PSP@1")}
    modules = {
        name: round(statistics.mean(row["seconds"].get(name, 0) for row in rows), 1) for name in rows[0]["seconds"]
    }
    more: dict[str, Any] = {"betas": [row["beta"] for row in rows], "seconds": modules}
    if about["table"] == "beta":
        more["curve"] = {
            beta: [round(statistics.mean(row["curve"][beta][i] for row in rows), 2) for i in range(len(CURVE))]
            for beta in rows[0]["curve"]
        }
    record("light_tables", {**about, **means, **spread, **more, "seeds": seeds}, seeds[0], ("torch",))


def arms_of(words: str | None) -> dict[str, dict[str, Any]]:
    """Return the arms that are asked for, by name: `k=100`, a group such as `k`, or `d=512+relu`."""
    chosen: dict[str, dict[str, Any]] = {}
    for word in words.split(",") if words else ARMS:
        group = {name: changes for name, changes in ARMS.items() if name.partition("=")[0] == word}
        if group:
            chosen |= group
            continue
        chosen[word] = {}
        for name in word.split("+"):
            if name not in ARMS:
                raise ConfigError(f"unknown arm {name!r}{did_you_mean(name, ARMS)}")
            chosen[word] |= ARMS[name]
    return chosen


def run_arms(
    dataset: Dataset, part: str, arms: Mapping[str, Mapping[str, Any]], shared: Mapping[str, Any], seeds: list[int],
    device: torch.device,
) -> bool:  # fmt: skip
    """Train and report each arm; return whether all came through."""
    name, sound = torch.cuda.get_device_name() if device.type == "cuda" else str(device), True
    for arm, changes in arms.items():
        row = {key: value for key, value in changes.items() if key != "preset"}
        about = {"data": dataset.name, "part": part, "arm": arm, "table": arm.partition("=")[0], "row": row}
        try:
            settings = settings_of("lightdxml", str(changes.get("preset", "default")), {**shared, **row})
            rows = [evaluated(dataset, settings, seed, device) for seed in seeds]
            report(dataset, {**about, "device": name, "shared": dict(shared)}, seeds, rows)
        except Exception as error:  # the next arm may come through
            traceback.print_exc()
            record("light_tables", {**about, "error": f"{type(error).__name__}: {error}"}, seeds[0], ("torch",))
            sound = False
        sys.stdout.flush()
    return sound


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description="LightDXML, one setting at a time.")
    parser.add_argument("data")
    parser.add_argument("shared", nargs="*", help="key=value, settings of all arms")
    parser.add_argument("--arms", help="default: all")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--part", choices=("test", "validation"), default="test")
    parser.add_argument("--device", default="auto")
    asked = parser.parse_intermixed_args(words)
    try:
        arms, shared, device = arms_of(asked.arms), words_of(asked.shared), chosen_device(asked.device)
        settings_of("lightdxml", changes=shared)
        dataset, seeds = loaded(asked.data, asked.part), [int(seed) for seed in asked.seeds.split(",")]
    except (ConfigError, DataError, ValueError) as error:
        parser.error(str(error))
    if not run_arms(dataset, asked.part, arms, shared, seeds, device):
        raise SystemExit(1)


def plot(results: Path, out: Path) -> None:
    """Draw P@1 and PSP@1 against β and e_model, each data set scaled to its own range, as in the paper's Fig. 2."""
    from zipfel.report.plots import styled_figure, svg_of

    lines = [
        line for line in map(orjson.loads, results.read_bytes().splitlines()) if line["benchmark"] == "light_tables"
    ]
    with styled_figure("lightdxml", 9, 6) as figure:
        axes = figure.subplots(2, 2, sharey=True)
        for column, name in enumerate(("P@1", "PSP@1")):
            for data in dict.fromkeys(line["data"] for line in lines):
                for line in (line for line in lines if line["data"] == data and line["table"] == "beta"):
                    curve = line["curve"]
                    drawn(axes[0][column], [*map(float, curve)], [pair[column] for pair in curve.values()], data)
                epochs = [line for line in lines if line["data"] == data and line["table"] == "epochs"]
                numbers = [line["row"]["epochs"] for line in epochs]
                drawn(axes[1][column], numbers, [line[name] for line in epochs], data)
            axes[0][column].set(title=name, xlabel="β")
            axes[1][column].set(xlabel="epochs of the classifier", xscale="log")
        axes[0][0].legend()
        out.write_text(svg_of(figure), encoding="utf-8")


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
    if sys.argv[1:2] == ["plot"]:
        plot(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
