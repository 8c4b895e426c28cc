"""Draw the guide's reliability plot from benchmarks/results/calibration.jsonl: `python docs/images/reliability.py`."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import orjson

matplotlib.use("svg")
from matplotlib import pyplot as plt

HERE = Path(__file__).parent
LINES = (HERE.parent.parent / "benchmarks" / "results" / "calibration.jsonl").read_bytes().splitlines()

plt.rcParams.update({"svg.hashsalt": "zipfel", "svg.fonttype": "none", "font.size": 9, "axes.spines.top": False})
runs = [orjson.loads(line) for line in LINES]
COLUMNS = 4
rows = -(-len(runs) // COLUMNS)
figure, places = plt.subplots(rows, COLUMNS, figsize=(2.9 * COLUMNS, 2.9 * rows), sharey=True, squeeze=False)
for place in places.flat[len(runs) :]:
    place.set_visible(False)
for place, run in zip(places.flat, runs, strict=False):
    place.plot([0, 1], [0, 1], color="#999999", linewidth=0.8)
    for kind, color, name in (("raw", "#c4773b", "the model's own"), ("calibrated", "#2b6cb0", "shown by zipfel")):
        place.plot(*zip(*run[f"bins {kind}"], strict=True), "o-", color=color, markersize=3, linewidth=1.2, label=name)
    place.set(title=f"{run['data']}, {run['model']}", xlabel="score", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    place.spines["right"].set_visible(False)
for row in places:
    row[0].set_ylabel("share of right tags")
places[0][0].legend(frameon=False, loc="upper left", fontsize=8)
figure.tight_layout()
figure.savefig(HERE / "reliability.svg", metadata={"Date": None})
