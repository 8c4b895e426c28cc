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
from zipfel.report.plots import ACCENT, INK, SOFT, STYLE

ACROSS = 3  # panels side by side
COLOURS = ("#1f6f78", "#d08c3f", "#7a5c99", "#b5493c", "#4d7c3a")


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
    """Draw P@1 against a cost, each contestant by name; ours in colour."""
    with panels(list(found), "bench " + cost) as (figure, axes):
        for axis, (data, contestants) in zip(axes, found.items(), strict=True):
            for row in contestants:
                x, y, colour = row.means[cost], row.means[accuracy], ACCENT if row.ours else SOFT
                spread = row.spreads.get(accuracy, 0.0)
                axis.errorbar([x], [y], yerr=[spread], fmt="o", markersize=4, color=colour, linewidth=1)
                axis.annotate(
                    row.title.removeprefix("zipfel "), (x, y), (4, 3), textcoords="offset points", fontsize=6,
                    color=INK if row.ours else SOFT,
                )  # fmt: skip
            axis.set(xscale="log", title=data, xlabel=meaning, ylabel=accuracy)
            axis.margins(x=0.25)
        return drawn(figure)


def by_frequency(found: dict[str, list[Row]]) -> str:
    """Draw what labels of each frequency contribute to P@5: our three best, and the three best peers."""
    with panels(list(found), "bench frequency") as (figure, axes):
        for axis, (data, contestants) in zip(axes, found.items(), strict=True):
            for ours, style in ((True, "-"), (False, "--")):
                for place, row in enumerate([row for row in contestants if row.ours == ours][:3]):
                    places, heights = range(len(row.bins)), [height for _, _, height in row.bins]
                    axis.plot(places, heights, style, marker=".", color=COLOURS[place], label=row.title)
            bins = contestants[0].bins
            axis.set_xticks(range(len(bins)), [f"{low}–{high}" for low, high, _ in bins], fontsize=6)
            axis.set(title=data, xlabel="training points of a label", ylabel="points of P@5")
            axis.legend(fontsize=6)
        return drawn(figure)


@contextmanager
def panels(names: Sequence[str], salt: str) -> Iterator[tuple[Any, list[Any]]]:
    """Lend a figure with a panel for each name."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    with mpl.rc_context({**STYLE, "svg.hashsalt": salt}):
        figure = Figure(figsize=(4.2 * across, 3.2 * down), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
        for axis in axes[len(names) :]:
            axis.set_visible(False)
        yield figure, axes[: len(names)]


def drawn(figure: Any) -> str:
    """Return a figure as SVG, the same bytes each time."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
