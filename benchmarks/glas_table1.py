"""GLaS's Tables 1 and 2 and Fig. 1: `python -m benchmarks.glas_table1 DATA [key=value ...]`.

Each arm changes preset `paper` in one way. Regularizers, each with the λ that is best on validation: none, glas,
spread_out, laplacian, gravity. One change of the base at a time, as in Table 1: base, lambda=1, rho=0.6, B=1024, d=256,
and others like these, linear. Fig. 1: algorithm-1, without regularizer and dropout, through all epochs.

Options: --seeds 0,1,2, --arms none,glas (default: all), --device auto. key=value pairs are settings that all arms
share. One JSON line for each λ that is tried, and one for each arm: means over seeds on test, the gap between train and
test (Table 2), P@1 on test with 40 % of each text's features dropped (Sec. 3.3: input dropout makes the model robust to
that), and P@1 on train and validation after each epoch.

`python -m benchmarks.glas_table1 plot RESULTS.jsonl OUT.svg` draws train and validation by epoch (Fig. 1).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.glas_arms import loaded
from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset
from zipfel.evaluate import evaluate
from zipfel.models.base import Lesson, evenly_spaced, settings_of
from zipfel.models.glas import Glas, GlasSettings
from zipfel.models.learner import precision_at_1
from zipfel.training.progress import Event, Observer
from zipfel.training.run import Run

GRID = (1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0)
TUNED = ("glas", "spread_out", "laplacian", "gravity")
ARMS: dict[str, dict[str, Any]] = {
    "none": {"regularizer": "none"},
    **{name: {"regularizer": name} for name in TUNED},
    "base": {},
    **{f"lambda={weight:.0f}": {"regularizer_weight": weight} for weight in GRID},
    "rho=1.0": {"feature_dropout": 0.0},
    "rho=0.6": {"feature_dropout": 0.4},
    **{f"B={size}": {"batch_size": size} for size in (1024, 2048)},
    **{f"d={width}": {"dimension": width} for width in (256, 512)},
    "linear": {"nonlinear": False},
    "algorithm-1": {"regularizer": "none", "feature_dropout": 0.0, "patience": 1000},
}
NAMES = (*(f"{name}@{k}" for name in ("P", "nDCG") for k in (1, 3, 5)), "corrupted P@1")
CORRUPTED = 0.4  # share of features dropped from test
SOME = 10_000  # points of train whose P@1 is measured after each epoch


class Curve(Observer):
    """P@1 on train and validation after each epoch, in percent."""

    def __init__(self, dataset: Dataset, model: Glas) -> None:
        assert dataset.validation is not None
        self.parts = {"train": evenly_spaced(dataset.train, SOME), "validation": dataset.validation}
        self.model, self.epochs = model, list[dict[str, float]]()

    def did(self, event: Event) -> None:
        """Measure at the end of an epoch."""
        if event == "validation":
            (learner,) = self.model.learners()
            shares = {name: precision_at_1(learner, part) for name, part in self.parts.items()}
            self.epochs.append({name: round(100 * share, 2) for name, share in shares.items()})


def judged(
    dataset: Dataset, settings: GlasSettings, seed: int, device: str, parts: tuple[str, ...]
) -> tuple[dict[str, dict[str, float]], list[dict[str, float]]]:
    """Train once; return the figures on some parts, and the curve if train is among them."""
    model = Glas(dataset.sizes.features, dataset.sizes.labels, settings, Run(seed=seed).generator("start")).to(device)
    curve = Curve(dataset, model)
    model.fit(Lesson(dataset.train, dataset.validation), Run(seed=seed, observer=curve if "train" in parts else None))
    predictor, found = model.predictor(), {}
    for name in parts:
        points = dataset.parts[name]
        assert points.X is not None
        found[name] = evaluate(predictor.rank(points.X, 5, points.filtered), dataset, name).values
        if name == "test":
            ranking = predictor.rank(corrupted(points.X), 5, points.filtered)
            found[name]["corrupted P@1"] = evaluate(ranking, dataset, name).values["P@1"]
    return found, curve.epochs


def corrupted(X: csr_array) -> csr_array:
    """Return features of which a random share is 0, the same for every model."""
    kept = np.random.default_rng(0).random(X.nnz) >= CORRUPTED
    return csr_array((X.data * kept, X.indices, X.indptr), shape=X.shape)


def chosen_weight(dataset: Dataset, settings: GlasSettings, seed: int, device: str) -> float:
    """Return the λ of the grid with the best P@1 on validation, and record each."""
    found = {}
    for weight in GRID:
        one = dataclasses.replace(settings, regularizer_weight=weight)
        found[weight] = judged(dataset, one, seed, device, ("validation",))[0]["validation"]["P@1"]
        about = {"data": dataset.name, "tried": settings.regularizer, "lambda": weight}
        record("glas_table1", {**about, "validation P@1": round(found[weight], 2)}, seed, ("torch",))
        sys.stdout.flush()
    return max(found, key=lambda weight: found[weight])


def arm_figures(dataset: Dataset, settings: GlasSettings, seeds: list[int], device: str) -> dict[str, Any]:
    """Return an arm's means over seeds on test, standard deviations of P@1, gaps, and curves."""
    rows, curves = [], []
    for seed in seeds:
        found, curve = judged(dataset, settings, seed, device, ("train", "validation", "test"))
        gaps = {f"gap P@{k}": found["train"][f"P@{k}"] - found["test"][f"P@{k}"] for k in (1, 3, 5)}
        others = {f"{part} P@1": found[part]["P@1"] for part in ("train", "validation")}
        rows.append({name: found["test"][name] for name in NAMES} | others | gaps | {"epochs": float(len(curve))})
        curves.append(curve)
    means = {name: round(statistics.mean(row[name] for row in rows), 2) for name in rows[0]}
    spread = [row["P@1"] for row in rows]
    return {**means, "P@1 sd": round(statistics.stdev(spread), 2) if len(spread) > 1 else None, "curves": curves}


def tables(dataset: Dataset, base: GlasSettings, arms: list[str], seeds: list[int], device: str) -> None:
    """Record a line for each arm."""
    for arm in arms:
        settings = dataclasses.replace(base, **ARMS[arm])
        if arm in TUNED:
            weight = chosen_weight(dataset, settings, seeds[0], device)
            settings = dataclasses.replace(settings, regularizer_weight=weight)
        batch_size = max(1, min(settings.batch_size, len(dataset.train) // 10))
        name = torch.cuda.get_device_name() if device.startswith("cuda") else device
        about = {"data": dataset.name, "arm": arm, "device": name, "batch size in effect": batch_size}
        figures = arm_figures(dataset, settings, seeds, device)
        settled = {"seeds": seeds, "settings": dataclasses.asdict(settings)}
        record("glas_table1", {**about, **figures, **settled}, seeds[0], ("torch",))
        sys.stdout.flush()


def plot(results: Path, out: Path) -> None:
    """Draw P@1 on train and validation by epoch, a panel for each data set, a colour for each arm; first seeds only."""
    from zipfel.report.plots import styled_figure, svg_of

    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    lines = [line for line in lines if line["benchmark"] == "glas_table1" and line.get("curves")]
    panels = list(dict.fromkeys(line["data"] for line in lines))
    with styled_figure("glas_table1", 4.5 * len(panels), 3.2) as figure:
        for axes, data in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
            for number, line in enumerate(line for line in lines if line["data"] == data):
                for part, style in (("train", "--"), ("validation", "-")):
                    heights = [epoch[part] for epoch in line["curves"][0]]
                    label = line["arm"] if part == "validation" else None
                    axes.plot(range(1, len(heights) + 1), heights, style, color=f"C{number}", label=label)
            axes.set(title=data, xlabel="epoch (dashed: train)", ylabel="P@1, %")
            axes.legend()
        out.write_text(svg_of(figure), encoding="utf-8")


def main(words: list[str]) -> None:
    if words[:1] == ["plot"]:
        plot(Path(words[1]), Path(words[2]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data")
    parser.add_argument("settings", nargs="*", help="key=value, shared by all arms")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--arms", default=",".join(ARMS))
    parser.add_argument("--device", default="auto")
    asked = parser.parse_intermixed_args(words)
    arms = asked.arms.split(",")
    if unknown := [arm for arm in arms if arm not in ARMS]:
        parser.error(f"unknown arms {', '.join(unknown)}; known are {', '.join(ARMS)}")
    device = asked.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    base = settings_of("glas", "paper", words_of(asked.settings))
    tables(loaded(asked.data), base, arms, [int(seed) for seed in asked.seeds.split(",")], device)


if __name__ == "__main__":
    main(sys.argv[1:])
