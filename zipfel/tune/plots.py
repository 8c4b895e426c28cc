"""The plot of a search: its course, and which settings mattered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from zipfel.report.plots import ACCENT, INK, SECOND, SOFT, styled_figure, svg_of
from zipfel.tune.judging import OBJECTIVE
from zipfel.tune.results import Tuned

MOST = 12  # settings shown


def plot(tuned: Tuned) -> str:
    """Return an SVG: the objective of each trial and the best so far; and the importance of settings, if known."""
    panels = 2 if tuned.importance else 1
    with styled_figure("tune", 4.6 * panels, 3.4) as figure:
        axes = figure.subplots(1, panels, squeeze=False).ravel().tolist()
        course(axes[0], tuned)
        if tuned.importance:
            importance(axes[1], tuned.importance)
        return svg_of(figure)


def course(axes: Any, tuned: Tuned) -> None:
    """Plot the objective by trial: of those with the most points, the best so far, and (hollow) those with fewer."""
    points = tuned.best.points
    judged = [(trial.number, trial.objective, trial.points) for trial in tuned.trials if trial.objective is not None]
    numbers, objectives = (list(row) for row in zip(*((n, o) for n, o, size in judged if size == points), strict=True))
    fewer = [(number, objective) for number, objective, size in judged if size < points]
    axes.step(numbers, np.maximum.accumulate(objectives), where="post", color=ACCENT, label="best so far")
    axes.plot(numbers, objectives, "o", color=ACCENT, markersize=4, label=f"{points:,} points")
    if fewer:
        axes.plot(*zip(*fewer, strict=True), "o", mfc="white", color=SOFT, markersize=4, label="pruned: fewer points")
    axes.axhline(
        objectives[0],
        color=SECOND,
        linewidth=0.9,
        linestyle=(0, (4, 3)),
        label="default" if numbers[0] == 0 else f"trial {numbers[0]}",
    )
    axes.set(xlabel="trial", ylabel=OBJECTIVE)
    axes.locator_params(axis="x", integer=True)
    axes.legend(fontsize=7)
    axes.grid(axis="y")


def importance(axes: Any, shares: Mapping[str, float]) -> None:
    """Plot the importance of settings, largest at the top."""
    names = list(shares)[:MOST][::-1]
    bars = axes.barh(names, [100 * shares[name] for name in names], color=ACCENT, height=0.66)
    axes.bar_label(bars, [f"{100 * shares[name]:.0f} %" for name in names], padding=2, color=INK, fontsize=8)
    axes.set(xlabel="importance", xlim=(0, 115 * max(shares.values())))
    axes.spines["left"].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xticks([])
