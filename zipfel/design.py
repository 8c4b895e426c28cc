"""The design that page, report, plots and documentation share: colours in light and dark, and type.

Style sheets that are files of their own (zipfel/server/page/page.css, docs/static/site.css) repeat these values;
tests/test_design.py compares them, and computes contrasts.
"""

from __future__ import annotations

import re

COLOURS = {  # name: light, dark
    "paper": ("#faf8f4", "#16181a"),  # the ground
    "sheet": ("#ffffff", "#1d2022"),  # what lies on it
    "line": ("#8a8479", "#70777b"),  # borders, axes
    "ink": ("#23272a", "#e6e3dc"),
    "soft": ("#5f6467", "#9aa0a3"),  # text of less weight
    "accent": ("#2f6b52", "#7cc3a2"),
    "track": ("#ece8df", "#2a2e31"),  # grids, hairlines, empty bars
    "mark": ("#f6c95c", "#7a5a10"),
    "against": ("#a3452f", "#e08a74"),
    "fresh": ("#7e4e93", "#c79bd8"),
    "second": ("#93560f", "#e0a458"),
    "fifth": ("#2c6591", "#7fb2dd"),
}
SERIES = ("accent", "second", "fresh", "against", "fifth")  # of a plot, in this order
SANS = 'Inter, system-ui, -apple-system, "Segoe UI", Roboto, sans-serif'


def light(name: str) -> str:
    """Return a colour as it is in light mode, in which plots are drawn."""
    return COLOURS[name][0]


def variables() -> str:
    """Return the declarations of a style sheet that follows the system, or `color-scheme` where that is set."""
    colours = "".join(f" --{name}: light-dark({day}, {night});" for name, (day, night) in COLOURS.items())
    return f"color-scheme: light dark;{colours} --sans: {SANS};"


def themed(svg: str) -> str:
    """Return an SVG with CSS variables instead of the colours of light mode; it needs their declarations."""
    names = {day: name for name, (day, _) in COLOURS.items()}
    return re.sub(r"#[0-9a-f]{6}\b", lambda found: _variable(found[0], names.get(found[0])), svg)


def _variable(colour: str, name: str | None) -> str:
    return colour if name is None else f"var(--{name}, {colour})"


def standalone(svg: str) -> str:
    """Return a themed SVG with declarations of its own, for a file that is shown as an image."""
    day, night = ("".join(f"--{name}:{pair[mode]};" for name, pair in COLOURS.items()) for mode in (0, 1))
    style = f"<style>:root{{{day}}}@media (prefers-color-scheme: dark){{:root{{{night}}}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", lambda found: found[1] + style, themed(svg), count=1)
