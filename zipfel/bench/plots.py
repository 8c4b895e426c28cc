"""Plots of results, as SVG: accuracy against time and against size, and by label frequency."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zipfel.bench.results import Line
from zipfel.bench.table import Row, data_sets, rows
from zipfel.data.formats.files import new_file
from zipfel.errors import MissingDependencyError
from zipfel.report.plots import STYLE

ACROSS = 3  # panels side by side
COLOURS = ("#1f6f78", "#d08c3f", "#7a5c99", "#b5493c", "#4d7c3a")
GREYS = ("#5d636f", "#8a909c", "#3c4048")
SHAPES = "s^vD<>pPXh*d"


def check_matplotlib() -> None:
    """Say early that plots cannot be drawn."""
    try:
        import matplotlib as mpl  # noqa: F401
    except ImportError:
        raise MissingDependencyError("matplotlib", "a bench", "bench") from None


def write_plots(lines: Sequence[Line], out: Path) -> list[Path]:
    """Draw all that can be drawn, a panel for each data set, and return the files."""
    found = {data: [row for row in rows(lines, data) if row.seeds] for data in data_sets(lines)}
    found = {data: rows_of for data, rows_of in found.items() if rows_of}
    if not found:
        return []
    plots = {
        "accuracy-time.svg": scatter(found, "train_seconds", "seconds to train"),
        "accuracy-size.svg": scatter(found, "model_mb", "MB of the model"),
        "frequency.svg": by_frequency(found),
    }
    for name, svg in plots.items():
        write_svg(out / name, svg)
    return [out / name for name in plots]


def write_svg(path: Path, svg: str) -> None:
    """Write a plot."""
    with new_file(path) as file:
        file.write(svg.encode())


def scatter(found: dict[str, list[Row]], cost: str, meaning: str, accuracy: str = "P@1") -> str:
    """Draw P@1 against a cost; a contestant looks the same in all panels, ours filled and in colour."""
    looks = _looks(found)
    with panels(list(found), "bench " + cost) as (figure, axes):
        for axis, (data, contestants) in zip(axes, found.items(), strict=True):
            for row in contestants:
                spread = row.spreads.get(accuracy, 0.0)
                place = ([row.means[cost]], [row.means[accuracy]], [spread])
                axis.errorbar(*place, linestyle="", linewidth=1, markersize=5, **looks[row.title])
            axis.set(xscale="log", title=data, xlabel=meaning, ylabel=accuracy)
            axis.grid(True)
        _legend(figure, axes)
        return drawn(figure)


def by_frequency(found: dict[str, list[Row]]) -> str:
    """Draw what labels of each frequency contribute to P@5: our three best, and the three best peers."""
    looks = _looks(found)
    with panels(list(found), "bench frequency") as (figure, axes):
        for axis, (data, contestants) in zip(axes, found.items(), strict=True):
            best = [[row for row in contestants if row.ours == ours][:3] for ours in (True, False)]
            for row in (*best[0], *best[1]):
                heights = [height for _, _, height in row.bins]
                axis.plot(heights, "-" if row.ours else ":", markersize=4, **looks[row.title])
            bins = contestants[0].bins
            axis.set_xticks(range(len(bins)), [f"{low}–{high}" for low, high, _ in bins], fontsize=6)
            axis.set(title=data, xlabel="training points of a label", ylabel="points of P@5")
        _legend(figure, axes)
        return drawn(figure)


def _looks(found: dict[str, list[Row]]) -> dict[str, dict[str, Any]]:
    """Return marker and colour of each contestant: ours are filled circles, peers hollow and of many shapes."""
    every = {row.title: row.ours for contestants in found.values() for row in contestants}
    ours, peers = ([title for title in sorted(every) if every[title] == kind] for kind in (True, False))
    filled = {title: {"marker": "o", "color": COLOURS[place % len(COLOURS)]} for place, title in enumerate(ours)}
    hollow = {title: {"marker": SHAPES[place % len(SHAPES)], "color": GREYS[place % len(GREYS)], "mfc": "white"}
              for place, title in enumerate(peers)}  # fmt: skip
    return {title: {**look, "label": title} for title, look in {**filled, **hollow}.items()}


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """Name the contestants of all panels once, below them."""
    names: dict[str, Any] = {}
    for axis in axes:
        names |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    ordered = sorted(names, key=lambda name: (not name.startswith("zipfel"), name))
    across = 2 * min(ACROSS, len(axes))
    figure.legend([names[name] for name in ordered], ordered, loc="outside lower center", ncols=across, fontsize=7)


@contextmanager
def panels(names: Sequence[str], salt: str) -> Iterator[tuple[Any, list[Any]]]:
    """Lend a figure with a panel for each name."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    with mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(4.2 * across, 3.2 * down + 0.6), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
        for axis in axes[len(names) :]:
            axis.set_visible(False)
        yield figure, axes[: len(names)]


def drawn(figure: Any) -> str:
    """Return a figure as SVG, the same bytes each time."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
