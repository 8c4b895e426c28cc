"""Metrics in Prometheus' format: requests, latency and batch sizes, summed over all processes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

ROUTES = (
    "/tag", "/labels", "/labels/{name}", "/explain", "/models", "/health", "/ready", "/metrics", "/docs",
    "/openapi.json", "/", "/page", "other",
)  # fmt: skip
STATUSES = (200, 304, 400, 401, 404, 405, 408, 413, 429, 499, 500, 503, 0)  # 499: the client disconnected; 0: any other
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_REQUESTS = len(ROUTES) * len(STATUSES)
_LATENCY = len(SECONDS) + 2  # one bucket beyond the last bound, and the sum
_BATCHES = _REQUESTS + len(ROUTES) * _LATENCY
STARTS = _BATCHES + len(SIZES) + 2  # index of the number of process starts
LENGTH = STARTS + 1


def route_of(path: str) -> str:
    """Return the route of a path, "other" if there is none."""
    if path in ROUTES:
        return path
    if path.startswith("/labels/"):
        return "/labels/{name}"
    return "/page" if path.startswith("/page/") else "other"


class Measures:
    """Counters of one process: its row of an array that all processes read; no other process writes to the row."""

    def __init__(self, shared: Any = None, workers: int = 1, number: int = 0) -> None:
        shared = np.zeros(workers * LENGTH) if shared is None else np.frombuffer(shared, dtype=np.float64)
        self.all = shared.reshape(workers, LENGTH)
        self.own = self.all[number]

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        index = ROUTES.index(route)
        self.own[index * len(STATUSES) + STATUSES.index(status if status in STATUSES else 0)] += 1
        first = _REQUESTS + index * _LATENCY
        self.own[first + bisect_left(SECONDS, seconds)] += 1
        self.own[first + _LATENCY - 1] += seconds

    def batch(self, texts: int) -> None:
        """Count a batch."""
        self.own[_BATCHES + bisect_left(SIZES, texts)] += 1
        self.own[STARTS - 1] += texts

    def start(self) -> None:
        """Count a start of the process."""
        self.own[STARTS] += 1

    def text(self, models: Sequence[tuple[str, str]], waiting: int) -> str:
        """Return all metrics in Prometheus' text format; `models` and `waiting` are those of this process."""
        totals = self.all.sum(axis=0).tolist()
        return "\n".join(
            [*_requests(totals), *_latencies(totals), *_batches(totals), *_state(models, waiting), *_starts(totals), ""]
        )


def _requests(totals: list[float]) -> Iterator[str]:
    yield from _head("zipfel_requests_total", "counter", "Finished requests.")
    for index, count in enumerate(totals[:_REQUESTS]):
        if count:
            route, status = ROUTES[index // len(STATUSES)], STATUSES[index % len(STATUSES)] or "other"
            yield f'zipfel_requests_total{{route="{route}",status="{status}"}} {count:.0f}'


def _latencies(totals: list[float]) -> Iterator[str]:
    name = "zipfel_request_seconds"
    yield from _head(name, "histogram", "Time from the request's headers to the end of its response.")
    for index, route in enumerate(ROUTES):
        first = _REQUESTS + index * _LATENCY
        if any(values := totals[first : first + _LATENCY]):
            yield from _histogram(name, f'route="{route}"', SECONDS, values)


def _batches(totals: list[float]) -> Iterator[str]:
    yield from _head("zipfel_batch_texts", "histogram", "Texts tagged in one batch.")
    yield from _histogram("zipfel_batch_texts", "", SIZES, totals[_BATCHES:STARTS])


def _starts(totals: list[float]) -> Iterator[str]:
    yield from _head("zipfel_starts_total", "counter", "Started processes; more than --workers means that some died.")
    yield f"zipfel_starts_total {totals[STARTS]:.0f}"


def _state(models: Sequence[tuple[str, str]], waiting: int) -> Iterator[str]:
    yield from _head("zipfel_waiting_texts", "gauge", "Queued texts in the responding process.")
    yield f"zipfel_waiting_texts {waiting}"
    yield from _head("zipfel_model_info", "gauge", "Models of the responding process.")
    for id, version in models:
        escaped = id.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        yield f'zipfel_model_info{{id="{escaped}",version="{version}"}} 1'


def _head(name: str, kind: str, help: str) -> Iterator[str]:
    yield f"# HELP {name} {help}"
    yield f"# TYPE {name} {kind}"


def _histogram(name: str, label: str, bounds: Sequence[float], values: Sequence[float]) -> Iterator[str]:
    """Yield the lines of a histogram.  values: counts between bounds, then the sum. Prometheus wants running totals."""
    *counts, total = values
    comma, braces = "," if label else "", f"{{{label}}}" if label else ""
    running = list(accumulate(counts))
    for bound, count in zip((*bounds, "+Inf"), running, strict=True):
        yield f'{name}_bucket{{{label}{comma}le="{bound}"}} {count:.0f}'
    yield f"{name}_sum{braces} {total:.6f}"
    yield f"{name}_count{braces} {running[-1]:.0f}"
