"""Time and memory of DECAF with a million labels: `python -m benchmarks.million_labels WHAT [key=value ...]`.

WHAT is one of:
train: an epoch over 2 million points against all labels, on a GPU. It trains on half of `points` (default 320,000),
then on all, and extrapolates along the line through both, so that work done once is counted once.
search: exact search for the 100 best labels of a point.
shortlist: from features to ranked labels, by clusters, in batches of 64.
Weights and data are random. Defaults: labels=1300000, dimension=512, batch_size=8192. One JSON line.
"""

from __future__ import annotations

import resource
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Part
from zipfel.index.exact import ExactIndex
from zipfel.models.base import Lesson
from zipfel.models.decaf import Decaf
from zipfel.models.decaf_settings import DecafSettings
from zipfel.models.shortlisters import ClusterBeam
from zipfel.training.run import Run

POINTS, FEATURES, TOKENS, WORDS, RIGHT = (
    2_000_000,
    300_000,
    16,
    6,
    3,
)  # tokens per point and per label, labels per point
BATCH, SEED, BEAM = 8192, 0, 128


def drawn(rows: int, columns: int, each: int, numbers: np.random.Generator) -> csr_array:
    """Return rows of length about 1 with about `each` entries; columns are as frequent as words."""
    ids = np.sort((columns * numbers.random((rows, each)) ** 2.5).astype(np.int64), axis=1)
    values = np.full(ids.size, each**-0.5, dtype=np.float32)
    X = csr_array((values, ids.ravel(), np.arange(rows + 1) * each), shape=(rows, columns))
    X.sum_duplicates()
    return X


def settings_of(changes: dict[str, str], **more: Any) -> DecafSettings:
    return DecafSettings(dimension=int(changes.pop("dimension", "512")), min_steps=1, epochs=1, **more)


def train(changes: dict[str, str]) -> dict[str, object]:
    """Train Module IV on half of the points, and on all."""
    labels, points = int(changes.pop("labels", "1300000")), int(changes.pop("points", "320000"))
    batch_size = int(changes.pop("batch_size", str(BATCH)))
    settings = settings_of(changes, batch_size=batch_size, shortlist="none")
    numbers = np.random.default_rng(SEED)
    Y = drawn(points, labels, RIGHT, numbers)
    Y.data[:] = 1
    part = Part(Y, X=drawn(points, FEATURES, TOKENS, numbers))
    model = Decaf(FEATURES, labels, settings, torch.Generator().manual_seed(SEED)).to("cuda")
    model.Z = drawn(labels, FEATURES, WORDS, numbers)
    network = model.all_networks()[0]
    model.module_3(network)
    torch.cuda.reset_peak_memory_stats()

    def seconds(some: Part) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        model.module_4(network, 0, Lesson(some), Run(), None)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    seconds(part.take(np.arange(batch_size * 2)))  # warms up
    half, whole = seconds(part.take(np.arange(points // 2))), seconds(part)
    epoch = whole + (whole - half) / (points - points // 2) * (POINTS - points)
    return {"labels": labels, "points": points, "batch": batch_size, "dimension": settings.dimension,
            "seconds": round(whole, 2), "seconds of half": round(half, 2),
            "an epoch of 2 million points, s": round(epoch, 1),
            "GPU GB": round(torch.cuda.max_memory_allocated() / 1e9, 1)}  # fmt: skip


def search(changes: dict[str, str]) -> dict[str, object]:
    """Search for the 100 best labels of points."""
    labels, width = int(changes.pop("labels", "1300000")), int(changes.pop("dimension", "512"))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    generator = torch.Generator(device).manual_seed(SEED)
    vectors = torch.randn(labels, width, generator=generator, device=device)
    queries = torch.randn(4096 if device.type == "cuda" else 64, width, generator=generator, device=device)
    index, times = ExactIndex(vectors), []
    for _ in range(6):
        start = time.perf_counter()
        found = index.search(queries, 100).ids.cpu()
        times.append((time.perf_counter() - start) / len(queries) * 1e6)
    some = queries[:64].double() @ vectors.double().T  # [64, L]
    wanted = some.topk(100, dim=1).indices.cpu()
    hits = [len(set(a) & set(b)) for a, b in zip(found[:64].tolist(), wanted.tolist(), strict=True)]
    return {"labels": labels, "dimension": width, "µs a point": round(statistics.median(times[1:]), 2),
            "of the true 100, %": round(statistics.mean(hits), 3)}  # fmt: skip


def shortlist(changes: dict[str, str]) -> dict[str, object]:
    """Rank labels by clusters, from features, 64 points at a time."""
    labels = int(changes.pop("labels", "1300000"))
    settings = settings_of(changes, shortlist="beam", beam=BEAM)
    numbers, count = np.random.default_rng(SEED), settings.cluster_count(labels)
    model = Decaf(FEATURES, labels, settings, torch.Generator().manual_seed(SEED))
    network = model.all_networks()[0]
    network.composed_classifiers = network.refinement.rows.detach()
    heads = torch.randn(count, settings.dimension, generator=torch.Generator().manual_seed(SEED))
    network.shortlister = ClusterBeam(network.tokens, network.document_block, settings)
    network.shortlister.take(heads, (torch.arange(labels) % count).int(), BEAM)
    predictor, X, times = model.predictor(), drawn(64 * 20, FEATURES, TOKENS, numbers), []
    for first in range(0, X.shape[0], 64):
        start = time.perf_counter()
        predictor.rank(X[first : first + 64], 5)
        times.append((time.perf_counter() - start) / 64 * 1000)
    return {"labels": labels, "dimension": settings.dimension, "clusters": count, "beam": BEAM,
            "ms a point": round(statistics.median(times[1:]), 3)}  # fmt: skip


def main(words: list[str]) -> None:
    changes = words_of(words[1:])
    figures = {"train": train, "search": search, "shortlist": shortlist}[words[0]](changes)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    peak = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2)
    record(f"million_labels {words[0]}", {**figures, "device": device, "peak GB": peak}, SEED, ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
