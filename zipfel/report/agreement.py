"""Plot of the agreement of people with a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zipfel.agreement import Agreement, Share
from zipfel.report.plots import ACCENT, SOFT, styled_figure, svg_of

TICKS = 12  # names below an axis


def plot(agreement: Agreement) -> str:
    """Return an SVG: agreement by rank and by week, with 95 % intervals."""
    with styled_figure("agreement", 9.2, 3.2) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        draw(left, agreement.ranks, "rank at which the label was shown")
        draw(right, agreement.weeks, "week that begins on (UTC)")
        left.set_ylabel("% of decided labels accepted")
        return svg_of(figure)


def draw(axes: Any, shares: Mapping[str, Share], label: str) -> None:
    """Plot shares in their order, with intervals; a dashed line is the share of all."""
    places = range(len(shares))
    values = [100 * share.value for share in shares.values()]
    ends = [[abs(100 * end - value) for value, end in zip(values, side, strict=True)]
            for side in zip(*(share.interval for share in shares.values()), strict=True)]  # fmt: skip
    if shares:
        axes.errorbar(places, values, ends, color=ACCENT, marker="o", markersize=4, elinewidth=0.9, capsize=2)
    else:
        axes.text(0.5, 0.5, "unknown", color=SOFT, ha="center", transform=axes.transAxes)
    every = -(-len(shares) // TICKS) or 1
    axes.set_xticks(places[::every], list(shares)[::every], rotation=30 if len(shares) > 4 else 0, fontsize=8)
    axes.set(xlabel=label, ylim=(0, 104))
    axes.grid(axis="y")
