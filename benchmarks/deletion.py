"""How faithful explanations are: `python -m benchmarks.deletion MODEL DATA [POINTS]`, one JSON line.

Deletes a growing share of the terms of some hundred test documents, at all their positions, those with the largest
weight first, and records the score of the document's first tag: the faster it falls, the better the weights. Compares
`explain` with leave-one-out (terms ordered by what the score loses without each) and with random deletion.

`python -m benchmarks.deletion plot RESULTS.jsonl OUT.svg` draws these curves.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import orjson

from benchmarks.record import record
from zipfel import Tagger, read
from zipfel.explain import Reason
from zipfel.models.base import settings_of

SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)
DRAWS = 5  # of random deletion
SEEN = 50  # tags that are predicted; if the label is not among them, its score counts as 0


def main(model: str, data: str, points: int = 300) -> None:
    test = read(data).test
    if test is None or test.texts is None:
        raise SystemExit(f"{data} must have a test part with texts")
    tagger, rng = Tagger.load(model), np.random.default_rng(0)
    rows = rng.permutation(len(test))[:points]
    documents = [" ".join(column[row] for column in test.texts.values()) for row in rows]
    curves: dict[str, list[list[float]]] = {"explain": [], "leave_one_out": [], "random": []}
    seconds = []
    for text, tags in zip(documents, tagger.predict(documents, 1), strict=True):
        label = tags[0].label
        start = time.perf_counter()
        found = tagger.explain(text, label)
        seconds.append(time.perf_counter() - start)
        curves["explain"].append(falling(tagger, text, label, by_weight(found)))
        curves["leave_one_out"].append(falling(tagger, text, label, alone(tagger, text, label, found)))
        draws = [falling(tagger, text, label, [found[i] for i in rng.permutation(len(found))]) for _ in range(DRAWS)]
        curves["random"].append(np.mean(draws, axis=0).tolist())
    means = {f"score_{name}": np.mean(curve, axis=0).round(4).tolist() for name, curve in curves.items()}
    preset = dataclasses.asdict(settings_of(tagger.chosen_.model, tagger.chosen_.preset))
    changed = {name: value for name, value in dataclasses.asdict(tagger.settings_).items() if value != preset[name]}
    about: dict[str, object] = {
        "model": tagger.chosen_.model,
        "preset": tagger.chosen_.preset,
        "data": data.rstrip("/").rpartition("/")[2],
    }
    about |= {"settings": changed} if changed else {}
    figures = {"points": len(rows), "deleted": [0.0, *SHARES], **means, "explain_ms": 1e3 * float(np.median(seconds))}
    record("deletion", {**about, **figures}, tagger.seed, ("torch",))


def by_weight(found: Sequence[Reason]) -> list[Reason]:
    """Return the reasons, those with the largest weight first."""
    return sorted(found, key=lambda reason: -reason.weight)


def alone(tagger: Tagger, text: str, label: str, found: Sequence[Reason]) -> list[Reason]:
    """Return the reasons by the score of the label without each, lowest first."""
    scores = scores_of(tagger, [without(text, [reason]) for reason in found], label)
    return [found[place] for place in np.argsort(scores, kind="stable")]


def falling(tagger: Tagger, text: str, label: str, order: Sequence[Reason]) -> list[float]:
    """Return the label's score with nothing deleted, and with growing shares of the terms deleted, in this order."""
    cut = [without(text, order[: math.ceil(share * len(order))]) for share in SHARES]
    return scores_of(tagger, [text, *cut], label)


def without(text: str, gone: Sequence[Reason]) -> str:
    """Return the text with some terms replaced by blanks."""
    kept = list(text)
    for start, end in (place for reason in gone for place in reason.places_in("")):
        kept[start:end] = " " * (end - start)
    return "".join(kept)


def scores_of(tagger: Tagger, texts: list[str], label: str) -> list[float]:
    """Return the score of a label for each text."""
    return [next((tag.score for tag in tags if tag.label == label), 0.0) for tags in tagger.predict(texts, SEEN)]


def plot(results: str, out: str) -> None:
    """Draw the scores against the share of deleted terms, one panel per model."""
    from zipfel.design import SERIES, light
    from zipfel.report.plots import styled_figure, svg_of

    lines = [orjson.loads(line) for line in Path(results).read_text().splitlines()]
    styles = zip(("explain", "leave_one_out", "random"), ("o-", "s--", "^:"), SERIES, strict=False)
    looks = [(name, style, light(color)) for name, style, color in styles]
    with styled_figure("deletion", 3 * len(lines), 2.8) as figure:
        panels = figure.subplots(1, len(lines), sharey=True, squeeze=False)
        for panel, line in zip(panels[0], lines, strict=True):
            shares = [100 * share for share in line["deleted"]]
            for name, style, color in looks:
                label = name.replace("_", " ")
                panel.plot(shares, line[f"score_{name}"], style, color=color, label=label, markersize=3)
            panel.set(title=f"{line['model']}, {line['data']}", xlabel="% of terms deleted", ylim=(0, 1))
        panels[0, 0].set_ylabel("mean score of the first tag")
        panels[0, -1].legend()
        Path(out).write_text(svg_of(figure))


if __name__ == "__main__":
    if sys.argv[1] == "plot":
        plot(*sys.argv[2:])
    else:
        main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
