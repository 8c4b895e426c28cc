"""Draw the guide's reliability plot from benchmarks/results/calibration.jsonl: `python docs/images/reliability.py`."""

from __future__ import annotations

from pathlib import Path

import orjson

from zipfel.design import light
from zipfel.report.plots import styled_figure, svg_of

HERE = Path(__file__).parent
LINES = (HERE.parent.parent / "benchmarks" / "results" / "calibration.jsonl").read_bytes().splitlines()
COLUMNS = 4
KINDS = (("raw", "second", "the model's own"), ("calibrated", "accent", "shown by zipfel"))

runs = [orjson.loads(line) for line in LINES]
rows = -(-len(runs) // COLUMNS)
with styled_figure("zipfel", 2.9 * COLUMNS, 2.9 * rows) as figure:
    places = figure.subplots(rows, COLUMNS, sharey=True, squeeze=False)
    for place in places.flat[len(runs) :]:
        place.set_visible(False)
    for place, run in zip(places.flat, runs, strict=False):
        place.plot([0, 1], [0, 1], color=light("line"), linewidth=0.8)
        for kind, color, name in KINDS:
            pairs = zip(*run[f"bins {kind}"], strict=True)
            place.plot(*pairs, "o-", color=light(color), markersize=3, linewidth=1.2, label=name)
        place.set(title=f"{run['data']}, {run['model']}", xlabel="score", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    for row in places:
        row[0].set_ylabel("share of right tags")
    places[0][0].legend(loc="upper left", fontsize=8)
    (HERE / "reliability.svg").write_text(svg_of(figure))
