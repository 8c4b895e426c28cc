"""How cost grows with points and with labels: `python -m benchmarks.growth OUT [--models glas,lightdxml,hnsw] [...]`.

Synthetic data; one pass over train (and one of each other stage), narrow vectors, each size in a fresh process with a
limit. Measured: seconds to train a model, or to build an index over as many vectors as there are labels; milliseconds
a document to predict (of an index, to search); and memory beyond what a tiny one takes. Along `labels` the points are
fixed, along `points` the labels. OUT/growth.jsonl holds a line a size (sizes that are there are not run again),
OUT/growth.svg a panel a cost, and OUT/growth.md the exponents of cost ~ size^e: least squares in logarithms over all
sizes, and between the last two.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks.index_speed import WIDTH, clustered
from zipfel.bench import launch, machine, results
from zipfel.bench.plots import COLOURS, drawn, panels, write_svg
from zipfel.bench.table import pipes
from zipfel.index import KINDS

COSTS = {
    "train_seconds": "seconds to train",
    "index_seconds": "seconds to build",
    "predict_ms": "ms a document to predict",
    "memory_mb": "MB of memory",
}
DIMENSION, POINTS, LABELS = 128, 20_000, 10_000  # what is fixed while the other grows
NEVER = ("points", "index_seconds")  # an index knows labels only
ONE_PASS = {"epochs": 1, "steps": 1, "first_epochs": 1, "label_epochs": 1, "dimension": DIMENSION}
ASKED = 1000  # documents that are tagged, or vectors that are searched for


def point(what: str, points: int, labels: int, threads: int) -> dict[str, float]:
    """Measure one size of a model or of an index, in this process."""
    import torch

    torch.set_num_threads(threads)
    return index_point(what, labels) if what in KINDS else model_point(what, points, labels)


def model_point(model: str, points: int, labels: int) -> dict[str, float]:
    """Train a model in one pass, and let it tag."""
    from zipfel.data.synthetic import Synthetic, make
    from zipfel.tagger import Tagger, settings_of

    known = vars(settings_of(model))
    tagger = Tagger(model, settings={name: value for name, value in ONE_PASS.items() if name in known}, device="cpu")
    tagger.fit_dataset(make(Synthetic(points=300, labels=30)))  # loads all that is loaded late
    base = _peak_mb()
    dataset = make(Synthetic(points=points + ASKED, labels=labels, test_share=ASKED / (points + ASKED)))
    assert dataset.test is not None
    asked = dataset.test.X
    start = time.perf_counter()
    tagger.fit_dataset(dataset)
    figures = {"train_seconds": time.perf_counter() - start, "memory_mb": _peak_mb() - base}
    tagger.rank(asked)  # once to warm up
    start = time.perf_counter()
    tagger.rank(asked)
    return {**figures, "predict_ms": 1000 * (time.perf_counter() - start) / len(dataset.test)}


def index_point(kind: Any, labels: int) -> dict[str, float]:
    """Build an index over as many vectors as there are labels, and search it."""
    import torch

    from zipfel.index import build_index

    build_index(kind, clustered(300, DIMENSION, torch.Generator().manual_seed(1)))
    base = _peak_mb()
    every = clustered(labels + ASKED, DIMENSION, torch.Generator().manual_seed(0))
    start = time.perf_counter()
    index = build_index(kind, every[:labels])
    figures = {"index_seconds": time.perf_counter() - start, "memory_mb": _peak_mb() - base}
    index.search(every[labels:], WIDTH)  # once to warm up
    start = time.perf_counter()
    index.search(every[labels:], WIDTH)
    return {**figures, "predict_ms": 1000 * (time.perf_counter() - start) / ASKED}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measured(model: str, along: str, size: int, limit: float, threads: int) -> dict[str, Any]:
    """Measure one size in a process of its own."""
    points, labels = (size, LABELS) if along == "points" else (POINTS, size)
    with TemporaryDirectory() as folder:
        out, log = Path(folder) / "out.json", Path(folder) / "log"
        words = ["--point", model, str(points), str(labels), "--threads", str(threads)]
        used = launch.launched([sys.executable, "-m", "benchmarks.growth", str(out), *words], limit, str(log))
        about = {"benchmark": "growth", "model": model, "along": along, "size": size, "points": points,
                 "labels": labels, "threads": threads, "limit": limit, "machine": machine.processor(),
                 "commit": machine.commit(Path(__file__).parent), "date": machine.today(), "seed": 0}  # fmt: skip
        if used["timed_out"]:
            return {**about, "status": results.TIMED_OUT}
        if used["code"]:
            return {**about, "status": results.CRASHED, "why": log.read_text(errors="replace")[-600:]}
        return {**about, "status": results.OK, **json.loads(out.read_text())}


def exponents(sizes: Sequence[float], costs: Sequence[float]) -> tuple[float, float]:
    """Return e of cost ~ size^e, by least squares over all sizes, and between the last two.

    >>> [round(e, 6) for e in exponents([10, 100, 1000], [3, 30, 300])]
    [1.0, 1.0]
    """
    x, y = np.log(sizes), np.log(np.maximum(costs, 1e-9))
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return slope, float((y[-1] - y[-2]) / (x[-1] - x[-2]))


def sweeps(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the sizes that ended well, in order, by what grows and by model; fewer than two tell nothing."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: line["size"]):
        if line["status"] == results.OK:
            found.setdefault((line["along"], line["model"]), []).append(line)
    return {about: rows for about, rows in found.items() if len(rows) > 1}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the exponents as a table, and what did not end."""
    body = []
    for (along, model), rows in sweeps(lines).items():
        sizes = [row["size"] for row in rows]
        body.append([model, along, f"{sizes[0]:,} to {sizes[-1]:,}", *(_fit(sizes, rows, cost) for cost in COSTS)])
    heads = ["model", "grows", "from", *COSTS.values()]
    failed = [f"- {one['model']}, {one['size']:,} {one['along']}: {one['status']}" for one in lines if "why" in one
              or one["status"] == results.TIMED_OUT]  # fmt: skip
    return "\n".join([pipes(heads, body), *([""] if failed else []), *failed, ""])


def _fit(sizes: Sequence[float], rows: Sequence[dict[str, Any]], cost: str) -> str:
    if cost not in rows[0]:
        return ""
    return "{:.2f} ({:.2f})".format(*exponents(sizes, [row[cost] for row in rows]))


def plot(lines: Sequence[dict[str, Any]]) -> str:
    """Draw each cost against labels and against points, in logarithms."""
    kinds = [(along, cost) for along in ("labels", "points") for cost in COSTS if (along, cost) != NEVER]
    with panels([f"{along} {cost}" for along, cost in kinds], "growth") as (figure, axes):
        for axis, (along, cost) in zip(axes, kinds, strict=True):
            found = {
                model: rows for (grows, model), rows in sweeps(lines).items() if grows == along and cost in rows[0]
            }
            for place, (model, rows) in enumerate(found.items()):
                sizes, costs = [row["size"] for row in rows], [max(row[cost], 1e-3) for row in rows]
                name = f"{model}, e = {exponents(sizes, costs)[0]:.2f}"
                axis.plot(sizes, costs, marker=".", color=COLOURS[place % len(COLOURS)], label=name)
            axis.set(xscale="log", yscale="log", xlabel=along, ylabel=COSTS[cost])
            if found:
                axis.legend(fontsize=6)
        return drawn(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default="glas,lightdxml,decaf,hnsw,ivf", help="models and indices")
    parser.add_argument("--labels", default="1000,10000,100000,1000000", help="sizes along labels")
    parser.add_argument("--points", default="1000,10000,100000,1000000", help="sizes along points")
    parser.add_argument("--limit", type=float, default=900, help="seconds a size; larger sizes are then left out")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--point", nargs=3, help=argparse.SUPPRESS)
    words = parser.parse_args()
    if words.point:
        model, points, labels = words.point
        words.out.write_text(json.dumps(point(model, int(points), int(labels), words.threads)))
        return
    words.out.mkdir(parents=True, exist_ok=True)
    path = words.out / "growth.jsonl"
    for model in words.models.split(","):
        for along in ("labels",) if model in KINDS else ("labels", "points"):
            sweep(path, model, along, _sizes(getattr(words, along)), words.limit, words.threads)
    lines = results.read_results(path)
    (words.out / "growth.md").write_text(table(lines))
    write_svg(words.out / "growth.svg", plot(lines))
    sys.stdout.write(table(lines))


def sweep(path: Path, model: str, along: str, sizes: list[int], limit: float, threads: int) -> None:
    """Measure the sizes that have no line yet, up to the first that does not end."""
    done = {(one["model"], one["along"], one["size"]): one for one in results.read_results(path)}
    for size in sizes:
        line = done.get((model, along, size)) or measured(model, along, size, limit, threads)
        if (model, along, size) not in done:
            results.append(path, line)
            sys.stderr.write(f"{model}, {size:,} {along}: {line['status']}\n")
        if line["status"] != results.OK:
            return


def _sizes(text: str) -> list[int]:
    sizes = sorted({int(float(word)) for word in text.split(",") if word})
    if sizes and not (sizes[0] > 0 and math.isfinite(sizes[-1])):
        raise SystemExit(f"sizes must be whole numbers above 0; found {text}")
    return sizes


if __name__ == "__main__":
    main()
