"""One design: style sheets have the colours of zipfel/design.py, plots too, and all can be told apart."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from zipfel.design import COLOURS, SANS, SERIES, standalone, themed
from zipfel.report.plots import styled_figure, svg_of
from zipfel.report.style import CSS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "zipfel/server/page/page.css").read_text()
SITE = (ROOT / "docs/static/site.css").read_text()
MODES = pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])


def channels(colour: str) -> list[int]:
    return [int(colour[place : place + 2], 16) for place in (1, 3, 5)]


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG defines it."""
    parts = [part / 255 for part in channels(colour)]
    red, green, blue = (part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(map(luminance, (one, other)))
    return (lighter + 0.05) / (darker + 0.05)


def mixed(one: str, other: str, share: float) -> str:
    pairs = zip(channels(one), channels(other), strict=True)
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in pairs)


def test_contrast_is_that_of_wcag():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.478, abs=0.001)


@MODES
def test_text_and_lines_can_be_read(mode):
    colours = {name: pair[mode] for name, pair in COLOURS.items()}
    for ground in ("paper", "sheet", "track"):
        for text in ("ink", "soft", *SERIES):
            assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
        assert contrast(colours["line"], colours[ground]) >= 3, ground
    assert contrast(colours["ink"], colours["mark"]) >= 4.5


@MODES
def test_marked_words_of_a_report_can_be_read(mode):
    strongest = {
        name: float(share) / 100 for name, share in re.findall(r"var\(--(\w+)\) calc\(var\(--w\) \* (\d+)%\)", CSS)
    }
    assert strongest.keys() == {"accent", "against"}
    for name, share in strongest.items():
        ground = mixed(COLOURS[name][mode], COLOURS["sheet"][mode], share)
        assert contrast(COLOURS["ink"][mode], ground) >= 4.5, name


@pytest.mark.parametrize("css", [PAGE, CSS], ids=["page", "report"])
def test_page_and_report_have_these_colours(css):
    declared = {name: pair for name, *pair in re.findall(r"--(\w+): light-dark\((#\w{6}), (#\w{6})\)", css)}
    assert declared == {name: list(COLOURS[name]) for name in declared}
    assert len(declared) >= 10
    assert f"--sans: {SANS};" in css
    used = set(re.findall(r"var\(--(\w+)\)", css)) - {"w", "pull"}
    assert used <= {*declared, "sans"}
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b", re.sub(r"light-dark\(.*?\)|#[a-z][\w-]*[ ,{:.]", "", css)), (
        "a colour of its own"
    )


def test_the_documentation_has_these_colours():
    day, *nights = (
        dict(re.findall(r"--(color-[\w-]+): (#\w{6})", block)) for block in re.findall(r"\{([^{}]*)\}", SITE)
    )
    nights = [night for night in nights if night]
    assert len(nights) == 2
    assert nights[0] == nights[1]
    for name, own in {"brand-primary": "accent", "foreground-primary": "ink"}.items():
        assert (day[f"color-{name}"], nights[0][f"color-{name}"]) == COLOURS[own], name
    known = {colour for pair in COLOURS.values() for colour in pair}
    assert {*day.values(), *nights[0].values()} - known <= {"#f6f3ec"}  # the ground of code
    assert SANS in SITE
    assert not re.search(r"^(html body\[data-theme=\"dark\"\]|@media \(prefers)", SITE, re.M), "paper is light"
    assert not re.search(r"^ *body\b[^{]*\{\n *--", SITE, re.M), "pages set colours for `body` after this file"


PICTURES = sorted(path for path in (ROOT / "docs").rglob("*.svg") if path.name != "session.svg")


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_pictures_in_the_documentation_follow_the_mode(path):
    svg = path.read_text()
    assert standalone("<svg></svg>").removeprefix("<svg>").removesuffix("</svg>") in svg
    own = set(re.findall(r"(?<!, )(?<!:)#[0-9a-f]{6}\b", svg))
    assert own == set(), own


def test_the_recorded_terminal_has_the_dark_colours():
    svg = (ROOT / "docs/images/session.svg").read_text()
    for name in ("sheet", "ink", "accent"):
        assert COLOURS[name][1] in svg, name


def test_a_plot_has_variables_with_the_light_colour_to_fall_back_on():
    with styled_figure("test", 2, 2) as figure:
        figure.subplots().plot([1, 2], color=COLOURS["accent"][0])
        svg = svg_of(figure)
    assert f"stroke: var(--accent, {COLOURS['accent'][0]})" in svg
    assert "@media (prefers-color-scheme: dark)" in svg
    assert f"--ink:{COLOURS['ink'][1]};" in svg
    assert themed("fill: #123456") == "fill: #123456"
