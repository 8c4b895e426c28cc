"""Plots of a report, each an SVG that stands in the page: text stays text, in the page's own font."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

from zipfel.errors import MissingDependencyError
from zipfel.metrics import Bin
from zipfel.report.findings import Findings, Floats, Reliability, Shortlist

INK, SOFT, ACCENT, SECOND, THIRD = "#22262e", "#8a909c", "#1f6f78", "#d08c3f", "#7a5c99"
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#e6e8ec",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


def check_matplotlib() -> None:
    """Say early that plots cannot be drawn."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise MissingDependencyError("matplotlib", "a report", "report") from None


@contextmanager
def _drawn(name: str, width: float = 4.2, height: float = 2.7) -> Iterator[Any]:
    """Lend axes; afterwards `svg` of what is lent holds the drawing. `name` keeps its ids apart from other plots'."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    lent = SimpleNamespace(svg="")
    with mpl.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        lent.axes = figure.subplots()
        lent.axes.tick_params(length=0)
        yield lent
        out = io.StringIO()
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    lent.svg = _inlined(out.getvalue())


def _inlined(svg: str) -> str:
    """Return a drawing as a part of the page: as wide as its place, in its font, without ids that nothing refers to."""
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)
    used = set(re.findall(r"[(\"]#([^)\"]+)", svg))
    return re.sub(r' id="([^"]*)"', lambda found: found[0] if found[1] in used else "", svg)


def contributions(bins: Sequence[Bin]) -> str:
    """Draw what labels of each frequency contribute to P@k, the rarest first."""
    with _drawn("contributions") as lent:
        _bars(lent.axes, [piece.contribution for piece in bins], bin_names(bins), "points of P@5", ACCENT)
    return str(lent.svg)


def covered(shares: Floats, bins: Sequence[Bin]) -> str:
    """Draw how many of the labels of each frequency are found at least once."""
    with _drawn("covered") as lent:
        _bars(lent.axes, shares.tolist(), bin_names(bins), "% of labels found", SECOND)
        lent.axes.set_ylim(0, 108)
    return str(lent.svg)


def bin_names(bins: Sequence[Bin]) -> list[str]:
    """Return the training frequencies of bins, as axes show them."""
    return [f"{b.lowest:,}" if b.lowest == b.highest else f"{b.lowest:,}–{b.highest:,}" for b in bins]


def _bars(axes: Any, heights: Sequence[float], names: Sequence[str], label: str, colour: str) -> None:
    bars = axes.bar(range(len(heights)), heights, color=colour, width=0.66)
    axes.bar_label(bars, [f"{height:.1f}" for height in heights], padding=2, color=INK, fontsize=8.5)
    axes.set_xticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel="training points a label has", ylabel=label)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])


def curves(found: Findings) -> str:
    """Draw precision, recall and coverage against the length of the ranking."""
    with _drawn("curves") as lent:
        axes, ks = lent.axes, np.arange(1, len(found.curves["P"]) + 1)
        heights = _apart({name: float(values[-1]) for name, values in found.curves.items()}, 7)
        for (name, values), colour in zip(found.curves.items(), (ACCENT, SECOND, THIRD), strict=True):
            axes.plot(ks, values, color=colour, marker="o" if len(ks) == 1 else None)
            title = {"P": "precision", "R": "recall"}.get(name, name)
            axes.annotate(title, (ks[-1], heights[name]), (4, 0), textcoords="offset points", va="center", color=colour)
        axes.set(xlabel="k, labels predicted", ylabel="%", ylim=(0, 102), xlim=(1, max(2, len(ks))))
        axes.set_xticks([k for k in (1, 5, 10, 15, 20) if k <= len(ks)])
        axes.grid(axis="y")
    return str(lent.svg)


def _apart(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Return where the names of lines go: at the lines' ends, but none on another."""
    placed: dict[str, float] = {}
    for name in sorted(heights, key=lambda name: -heights[name]):
        placed[name] = min([heights[name], *(above - gap for above in placed.values())])
    return placed


def reliability(found: Reliability) -> str:
    """Draw how often predictions are right against the score they have; dots are as large as they are many."""
    with _drawn("reliability") as lent:
        axes, filled = lent.axes, found.counts > 0
        axes.plot([0, 1], [0, 1], color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        sizes = 14 + 160 * found.counts[filled] / found.counts.max(initial=1)
        axes.plot(found.said[filled], found.right[filled], color=ACCENT, linewidth=1, alpha=0.5)
        axes.scatter(found.said[filled], found.right[filled], s=sizes, color=ACCENT, linewidths=0, alpha=0.9)
        axes.set(xlabel="score", ylabel="share that is right", xlim=(-0.03, 1.03), ylim=(-0.03, 1.05))
        axes.grid()
    return str(lent.svg)


def shortlist(found: Shortlist) -> str:
    """Draw the share of true labels among the candidates against how many these are."""
    with _drawn("shortlist") as lent:
        axes, widths = lent.axes, np.arange(1, len(found.recall) + 1)
        axes.plot(widths, 100 * found.recall, color=ACCENT)
        if found.width is not None:
            here = 100 * found.recall[found.width - 1]
            axes.axvline(found.width, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
            axes.plot([found.width], [here], "o", color=ACCENT, markersize=5)
            axes.annotate(f"{here:.1f} % at {found.width:,}", (found.width, 0), (-5, 8), textcoords="offset points",
                          ha="right", color=INK)  # fmt: skip
        unit = "points of train looked at" if found.of_points else "candidate labels"
        axes.set(
            xscale="log", xlabel=unit, ylabel="% of true labels found", ylim=(0, 103), xlim=(1, max(2, len(widths)))
        )
        ticks = [10**power for power in range(6) if 10**power <= len(widths)]
        axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        axes.minorticks_off()
        axes.grid(axis="y")
    return str(lent.svg)
