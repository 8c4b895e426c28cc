"""How cost grows with points and with labels: `python -m benchmarks.growth OUT [--models glas,lightdxml,hnsw] [...]`.

Trains on synthetic data for one epoch of each stage, with narrow vectors, each size in a fresh process with a time
limit. Measures seconds to train a model, or to build an index over as many vectors as there are labels; milliseconds
per document to predict (for an index, to search); and memory beyond that of a tiny model. Along `labels` the number of
points is fixed, along `points` the number of labels. OUT/growth.jsonl has one line per size (sizes that are there are
not run again), OUT/growth.svg one panel per cost, and OUT/growth.md the exponents e of cost ~ size^e: by least squares
in logarithms over all sizes, and between the two largest.
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
from typing import TYPE_CHECKING, Any

import numpy as np

from zipfel.bench import launch, machine, results
from zipfel.bench.plots import COLOURS, panels
from zipfel.bench.table import pipes
from zipfel.data.formats.files import write_bytes
from zipfel.index import KINDS
from zipfel.report.plots import svg_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COSTS = {
    "train_seconds": "seconds to train",
    "index_seconds": "seconds to build",
    "predict_ms": "ms per document to predict",
    "memory_mb": "MB of memory",
}
DIMENSION, POINTS, LABELS = 128, 20_000, 10_000  # points while labels grow, labels while points grow
NEVER = ("points", "index_seconds")  # an index holds labels only
ONE_EPOCH = {"epochs": 1, "min_steps": 1, "module1_epochs": 1, "label_epochs": 1, "dimension": DIMENSION}
ASKED = 1000  # documents to tag, or vectors to search for
WIDTH = 100  # candidates per search
SUBSPACE, NOISE = 32, 0.5  # of the vectors that indices hold


def point(what: str, points: int, labels: int, threads: int) -> dict[str, float]:
    """Measure one size of a model or of an index, in this process."""
    import torch

    torch.set_num_threads(threads)
    return index_point(what, labels) if what in KINDS else model_point(what, points, labels)


def model_point(model: str, points: int, labels: int) -> dict[str, float]:
    """Train a model for one epoch, and predict."""
    from zipfel.data.synthetic import Synthetic, make
    from zipfel.models.base import settings_of
    from zipfel.tagger import Tagger

    known = vars(settings_of(model))
    tagger = Tagger(model, settings={name: value for name, value in ONE_EPOCH.items() if name in known}, device="cpu")
    tagger.fit_dataset(make(Synthetic(points=300, labels=30)))  # imports everything that is imported late
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


def clustered(rows: int, dimension: int, generator: torch.Generator) -> Tensor:
    """Return unit vectors around many centres near a subspace, so that the best 100 come from several clusters."""
    import torch

    centres = torch.randn(rows // 20, SUBSPACE, generator=generator)
    centres = centres @ torch.randn(SUBSPACE, dimension, generator=generator) / SUBSPACE**0.5
    chosen = torch.randint(len(centres), (rows,), generator=generator)
    return torch.nn.functional.normalize(centres[chosen] + NOISE * torch.randn(rows, dimension, generator=generator))


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def measured(model: str, along: str, size: int, limit: float, threads: int) -> dict[str, Any]:
    """Measure one size in a fresh process."""
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
    """Return e of cost ~ size^e, by least squares over all sizes, and between the two largest.

    >>> [round(e, 6) for e in exponents([10, 100, 1000], [3, 30, 300])]
    [1.0, 1.0]
    """
    x, y = np.log(sizes), np.log(np.maximum(costs, 1e-9))
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    return slope, float((y[-1] - y[-2]) / (x[-1] - x[-2]))


def sweeps(lines: Sequence[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the finished sizes in order, by what grows and by model, where there are at least two."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in sorted(lines, key=lambda line: line["size"]):
        if line["status"] == results.OK:
            found.setdefault((line["along"], line["model"]), []).append(line)
    return {about: rows for about, rows in found.items() if len(rows) > 1}


def table(lines: Sequence[dict[str, Any]]) -> str:
    """Return the exponents as a table, and the sizes that failed."""
    body = []
    for (along, model), rows in sweeps(lines).items():
        sizes = [row["size"] for row in rows]
        body.append([model, along, f"{sizes[0]:,} to {sizes[-1]:,}", *(_fit(sizes, rows, cost) for cost in COSTS)])
    heads = ["model", "what grows", "range", *COSTS.values()]
    failed = [f"- {one['model']}, {one['size']:,} {one['along']}: {one['status']}" for one in lines if "why" in one
              or one["status"] == results.TIMED_OUT]  # fmt: skip
    return "\n".join([pipes(heads, body), *([""] if failed else []), *failed, ""])


def _fit(sizes: Sequence[float], rows: Sequence[dict[str, Any]], cost: str) -> str:
    if cost not in rows[0]:
        return ""
    return "{:.2f} ({:.2f})".format(*exponents(sizes, [row[cost] for row in rows]))


def plot(lines: Sequence[dict[str, Any]]) -> str:
    """Draw each cost against labels and against points, on logarithmic axes."""
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
        return svg_of(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--models", default="glas,lightdxml,decaf,hnsw,ivf", help="models and indices")
    parser.add_argument("--labels", default="1000,10000,100000,1000000", help="sizes along labels")
    parser.add_argument("--points", default="1000,10000,100000,1000000", help="sizes along points")
    parser.add_argument(
        "--limit", type=float, default=900, help="seconds per size; if a size takes longer, larger ones are skipped"
    )
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
    write_bytes(words.out / "growth.svg", plot(lines).encode())
    sys.stdout.write(table(lines))


def sweep(path: Path, model: str, along: str, sizes: list[int], limit: float, threads: int) -> None:
    """Measure the sizes that have no line yet, up to the first that fails."""
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
