"""Plots of results as SVG: accuracy by training time, by model size and by label frequency."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zipfel.bench.results import PLAIN, Line
from zipfel.bench.rows import Row, data_sets, rows
from zipfel.data.formats.files import write_bytes
from zipfel.design import SERIES, light
from zipfel.report.plots import styled_figure, svg_of

ACROSS = 3  # panels side by side
COLOURS = tuple(light(name) for name in SERIES)
GREYS = tuple(light(name) for name in ("soft", "line", "ink"))
EDGE = light("ink")
OURS = "oD^s"  # the next one each time the colours are used up
SHAPES = "s^vD<>pPXh*d"


def write_plots(lines: Sequence[Line], out: Path) -> list[Path]:
    """Write all plots, with one panel per data set, and return their paths; none without finished tests."""
    by_data = {data: [row for row in rows(lines, data) if row.seeds] for data in data_sets(lines)}
    by_data = {data: rows_of for data, rows_of in by_data.items() if rows_of}
    if not by_data:
        return []
    plots = {
        "accuracy-time.svg": scatter(by_data, "train_seconds", "seconds to train"),
        "accuracy-size.svg": scatter(by_data, "model_mb", "MB of the model"),
        "frequency.svg": by_frequency(by_data),
    }
    for name, svg in plots.items():
        write_bytes(out / name, svg.encode())
    return [out / name for name in plots]


def scatter(by_data: dict[str, list[Row]], cost: str, meaning: str, accuracy: str = "P@1") -> str:
    """Plot an accuracy by a cost; a contestant looks the same in all panels, ours filled and in colour."""
    looks = _looks(by_data)
    with panels(list(by_data), "bench " + cost) as (figure, axes):
        for axis, (data, contestants) in zip(axes, by_data.items(), strict=True):
            for row in contestants:
                spread = row.spreads.get(accuracy, 0.0)
                position = ([row.means[cost]], [row.means[accuracy]], [spread])
                axis.errorbar(*position, linestyle="", linewidth=1, markersize=5, **looks[row.title])
            axis.set(xscale="log", title=data, xlabel=meaning, ylabel=accuracy)
            axis.grid(True)
        _legend(figure, axes)
        return svg_of(figure)


def by_frequency(by_data: dict[str, list[Row]]) -> str:
    """Plot contributions to P@5 by label frequency, for our three best models and the three best peers."""
    looks = _looks(by_data)
    with panels(list(by_data), "bench frequency") as (figure, axes):
        for axis, (data, contestants) in zip(axes, by_data.items(), strict=True):
            best = [[row for row in contestants if row.ours == ours][:3] for ours in (True, False)]
            for row in (*best[0], *best[1]):
                heights = [height for _, _, height in row.bins]
                axis.plot(heights, "-" if row.ours else ":", markersize=4, **looks[row.title])
            bins = contestants[0].bins
            axis.set_xticks(range(len(bins)), [f"{low}–{high}" for low, high, _ in bins], fontsize=6)
            axis.set(title=data, xlabel="training points per label", ylabel="points of P@5")
        _legend(figure, axes)
        return svg_of(figure)


def _looks(by_data: dict[str, list[Row]]) -> dict[str, dict[str, Any]]:
    """Return marker and colour of each title: ours are filled and in colour, peers hollow and grey.

    With chosen features a contestant keeps its marker and colour; ours gets a dark edge, and a peer is filled.
    """
    every = {row.base: row.ours for contestants in by_data.values() for row in contestants}
    ours, peers = ([title for title in sorted(every) if every[title] == kind] for kind in (True, False))
    filled = {title: {"marker": OURS[number // len(COLOURS) % len(OURS)], "color": COLOURS[number % len(COLOURS)]}
              for number, title in enumerate(ours)}  # fmt: skip
    hollow = {title: {"marker": SHAPES[number % len(SHAPES)], "color": GREYS[number % len(GREYS)], "mfc": "white"}
              for number, title in enumerate(peers)}  # fmt: skip
    looks, every_row = {**filled, **hollow}, [row for contestants in by_data.values() for row in contestants]
    return {row.title: {**looks[row.base], **_chosen_look(row, looks[row.base]), "label": row.title}
            for row in every_row}  # fmt: skip


def _chosen_look(row: Row, look: dict[str, Any]) -> dict[str, Any]:
    """Return how chosen features change the look of a contestant."""
    if row.features == PLAIN:
        return {}
    return {"mec": EDGE} if row.ours else {"mfc": look["color"]}


def _legend(figure: Any, axes: Sequence[Any]) -> None:
    """Add one legend for all panels, below them."""
    names: dict[str, Any] = {}
    for axis in axes:
        names |= {label: handle for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    ordered = sorted(names, key=lambda name: (not name.startswith("zipfel"), name))
    across = 2 * min(ACROSS, len(axes))
    figure.legend([names[name] for name in ordered], ordered, loc="outside lower center", ncols=across, fontsize=7)


@contextmanager
def panels(names: Sequence[str], salt: str) -> Iterator[tuple[Any, list[Any]]]:
    """Yield a figure and its panels, one per name."""
    across = min(ACROSS, len(names))
    down = -(-len(names) // across)
    with styled_figure(salt, 4.2 * across, 3.2 * down + 0.6) as figure:
        axes = figure.subplots(down, across, squeeze=False).ravel().tolist()
        for axis in axes[len(names) :]:
            axis.set_visible(False)
        yield figure, axes[: len(names)]
