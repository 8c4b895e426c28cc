"""Prediction of a blend against its main part alone: `python -m benchmarks.blend_speed MODEL DATA`, one JSON line.

Both tag the same test documents of DATA, from texts to names, in ten interleaved runs: 100 alone (median), and
4,000 in one call. Milliseconds a document are medians of the runs, and so are the ratios.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.record import record
from zipfel.data.formats import read
from zipfel.models.blend import BlendPredictor
from zipfel.tagger import Tagger

RUNS = 10
ALONE = 100  # documents tagged one at a time
TOGETHER = 4000  # documents tagged in one call
TOP = 5  # labels

Texts = Mapping[str, Sequence[str]]


def main(model: str, data: str) -> None:
    tagger, dataset = Tagger.load(model), read(Path(data))
    assert tagger.fitted_ is not None
    assert dataset.test is not None
    assert dataset.test.texts is not None
    blend, texts = tagger.fitted_, dataset.test.texts
    if not isinstance(blend.predictor, BlendPredictor):
        raise SystemExit(f"{model} is no blend")
    parts = {"blend": blend, "main": dataclasses.replace(blend, predictor=blend.predictor.main)}
    alone: dict[str, list[float]] = {name: [] for name in parts}
    together: dict[str, list[float]] = {name: [] for name in parts}
    for run in range(RUNS):
        for name in sorted(parts, reverse=run % 2 == 1):
            tagger.fitted_ = parts[name]
            alone[name].append(statistics.median(milliseconds(tagger, texts, row, row + 1) for row in range(ALONE)))
            together[name].append(milliseconds(tagger, texts, 0, TOGETHER))
    figures = {**summary("alone", alone), **summary("together", together), "load": round(os.getloadavg()[0], 1)}
    record("blend_speed", {"data": dataset.name, "model": tagger.model, **figures}, 0, ("torch",))


def milliseconds(tagger: Tagger, texts: Texts, start: int, end: int) -> float:
    """Return the milliseconds that a document takes in a call with some documents."""
    some = {field: column[start:end] for field, column in texts.items()}
    begin = time.perf_counter()
    tagger.predict(some, k=TOP)
    return 1e3 * (time.perf_counter() - begin) / len(next(iter(some.values())))


def summary(name: str, times: Mapping[str, list[float]]) -> dict[str, float]:
    """Return the medians of both, and of their ratios in each run."""
    ratios = [blend / main for blend, main in zip(times["blend"], times["main"], strict=True)]
    medians = {f"{name}_{part}_ms": round(statistics.median(values), 3) for part, values in times.items()}
    return {**medians, f"{name}_ratio": round(statistics.median(ratios), 3)}


if __name__ == "__main__":
    main(*sys.argv[1:])
