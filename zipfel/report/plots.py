"""Plots of a report, each an inline SVG: text stays text, in the page's own font."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from zipfel.design import SERIES, light, standalone, themed
from zipfel.metrics import Bin, frequencies
from zipfel.report.findings import Findings, Floats, Reliability, Shortlist

INK, SOFT, LINE = light("ink"), light("soft"), light("line")
ACCENT, SECOND, THIRD = (light(name) for name in SERIES[:3])
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": LINE,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": light("track"),
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.solid_capstyle": "round",
    "xtick.color": LINE,
    "ytick.color": LINE,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
}


@contextmanager
def styled_figure(name: str, width: float, height: float) -> Iterator[Any]:
    """Yield a figure to draw on within the block.  name: makes ids unique among the plots of a page."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.rcsetup import cycler

    series = cycler(color=[light(colour) for colour in SERIES])
    with mpl.rc_context({**STYLE, "axes.prop_cycle": series, "svg.hashsalt": name}):
        yield Figure(figsize=(width, height), layout="constrained")


def svg_of(figure: Any) -> str:
    """Return a figure as the text of an SVG file for light and dark mode, with the same bytes each time."""
    return standalone(_drawn(figure))


def _drawn(figure: Any, transparent: bool = False) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=transparent, metadata={"Date": None, "Creator": None})
    return out.getvalue()


def inline_svg(draw: Callable[..., None], *values: Any) -> str:
    """Return an SVG for inlining.  draw: one of the functions below, called with axes and the values."""
    with styled_figure(draw.__name__, 4.2, 2.7) as figure:
        axes = figure.subplots()
        axes.tick_params(length=0)
        draw(axes, *values)
        svg = themed(_drawn(figure, transparent=True))
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.S)
    svg = re.sub(r' (?:width|height)="[\d.]+pt"', "", svg, count=2)  # it scales with the page
    svg = re.sub(r" font-family: [^;\"]*;?", "", svg)  # the page's
    used = set(re.findall(r"[(\"]#([^)\"]+)", svg))
    return re.sub(r' id="([^"]*)"', lambda match: match[0] if match[1] in used else "", svg)


def contributions(axes: Any, bins: Sequence[Bin]) -> None:
    """Plot the contribution to P@k by label frequency, rarest first."""
    _bars(axes, [piece.contribution for piece in bins], bins, "points of P@5", ACCENT)


def covered(axes: Any, shares: Floats, bins: Sequence[Bin]) -> None:
    """Plot the share of labels that are predicted correctly at least once, by label frequency."""
    _bars(axes, shares.tolist(), bins, "% of labels found", SECOND)
    axes.set_ylim(0, 108)


def bin_names(bins: Sequence[Bin]) -> list[str]:
    """Return the training frequencies of bins as axis labels."""
    return [frequencies(b.lowest, b.highest).replace(" to ", "–") for b in bins]


def _bars(axes: Any, heights: Sequence[float], bins: Sequence[Bin], label: str, colour: str) -> None:
    bars = axes.bar(range(len(heights)), heights, color=colour, width=0.66)
    axes.bar_label(bars, [f"{height:.1f}" for height in heights], padding=2, color=INK, fontsize=8.5)
    axes.set_xticks(range(len(bins)), bin_names(bins), fontsize=8)
    axes.set(xlabel="training points per label", ylabel=label)
    axes.spines["left"].set_visible(False)
    axes.set_yticks([])


def curves(axes: Any, findings: Findings) -> None:
    """Plot precision, recall and coverage by ranking length."""
    ks = np.arange(1, len(findings.curves["P"]) + 1)
    heights = _apart({name: float(values[-1]) for name, values in findings.curves.items()}, 7)
    for (name, values), colour in zip(findings.curves.items(), (ACCENT, SECOND, THIRD), strict=True):
        axes.plot(ks, values, color=colour, marker="o" if len(ks) == 1 else None)
        title = {"P": "precision", "R": "recall"}.get(name, name)
        axes.annotate(title, (ks[-1], heights[name]), (4, 0), textcoords="offset points", va="center", color=colour)
    axes.set(xlabel="k, labels predicted", ylabel="%", ylim=(0, 102), xlim=(1, max(2, len(ks))))
    axes.set_xticks([k for k in (1, 5, 10, 15, 20) if k <= len(ks)])
    axes.grid(axis="y")


def _apart(heights: dict[str, float], gap: float) -> dict[str, float]:
    """Return heights for the names of lines: at the lines' ends, at least `gap` apart."""
    placed: dict[str, float] = {}
    for name in sorted(heights, key=lambda name: -heights[name]):
        placed[name] = min([heights[name], *(above - gap for above in placed.values())])
    return placed


def reliability(axes: Any, bins: Reliability) -> None:
    """Plot the share of right predictions by score; a dot's area grows with the number of predictions."""
    filled = bins.counts > 0
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
    sizes = 14 + 160 * bins.counts[filled] / bins.counts.max(initial=1)
    axes.plot(bins.said[filled], bins.right[filled], color=ACCENT, linewidth=1, alpha=0.5)
    axes.scatter(bins.said[filled], bins.right[filled], s=sizes, color=ACCENT, linewidths=0, alpha=0.9)
    axes.set(xlabel="score", ylabel="share of right predictions", xlim=(-0.03, 1.03), ylim=(-0.03, 1.05))
    axes.grid()


def shortlist(axes: Any, measured: Shortlist) -> None:
    """Plot the recall of true labels by the number of candidates."""
    widest, width = len(measured.recall), measured.width
    axes.plot(np.arange(1, widest + 1), 100 * measured.recall, color=ACCENT)
    if width is not None:
        here = 100 * measured.recall[width - 1]
        axes.axvline(width, color=SOFT, linewidth=0.9, linestyle=(0, (4, 3)))
        axes.plot([width], [here], "o", color=ACCENT, markersize=5)
        text = f"{here:.1f} % at {width:,}"
        axes.annotate(text, (width, 0), (-5, 8), textcoords="offset points", ha="right", color=INK)
    unit = "nearest training points" if measured.of_points else "candidate labels"
    axes.set(xscale="log", xlabel=unit, ylabel="% of true labels found", ylim=(0, 103), xlim=(1, max(2, widest)))
    ticks = [10**power for power in range(6) if 10**power <= widest]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.grid(axis="y")
