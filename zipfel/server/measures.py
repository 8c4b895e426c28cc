"""Metrics in Prometheus' format: requests, latency, queues and batch sizes, summed over all processes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROUTES = (
    "/tag", "/labels", "/labels/{name}", "/explain", "/models", "/health", "/ready", "/metrics", "/docs",
    "/openapi.json", "/", "/page", "/candidates", "/ground", "/corrections",
    "/v1/", "/v1/projects", "/v1/projects/{id}", "/v1/projects/{id}/suggest", "/v1/projects/{id}/suggest-batch",
    "/v1/projects/{id}/learn", "/v1/vocabs", "/v1/vocabs/{id}", "other",
)  # fmt: skip
STATUSES = (
    200,
    304,
    308,
    400,
    401,
    403,
    404,
    405,
    408,
    413,
    415,
    421,
    429,
    431,
    499,
    500,
    503,
    507,
    0,
)  # 499: the client is gone; 0: others
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

_REQUESTS = len(ROUTES) * len(STATUSES)
_LATENCY = len(SECONDS) + 2  # one bucket beyond the last bound, and the sum
_BATCHES = _REQUESTS + len(ROUTES) * _LATENCY
STARTS = _BATCHES + len(SIZES) + 2  # index of the number of process starts
_RESIDENT, _PRIVATE, _LOST = STARTS + 1, STARTS + 2, STARTS + 3  # indices of a process's memory and lost log lines
_MODELS = STARTS + 4  # index of the first model's counters
MODELS = 64  # models that are counted apart; more are counted as the last of them
_MODEL = len(STATUSES) + 2 * _LATENCY + len(SIZES) + 2  # numbers per model
_NAME = 256  # bytes of a model's id; a longer one is cut
_NAMES = _MODELS + MODELS * _MODEL  # index of the first model's id
LENGTH = _NAMES + MODELS * _NAME // 8


def route_of(path: str) -> str:
    """Return the route of a path, "other" if there is none."""
    if path in ROUTES:
        return path
    if path.startswith("/labels/"):
        return "/labels/{name}"
    if path.startswith(("/v1/projects/", "/v1/vocabs/")):
        _, version, kind, _, *rest = path.split("/")
        own = "/".join(("", version, kind, "{id}", *rest))
        return own if own in ROUTES else "other"
    return "/page" if path.startswith("/page/") else "other"


class Measures:
    """Counters of one process: its row of an array that all processes read; no other process writes to the row."""

    def __init__(self, shared: Any = None, workers: int = 1, number: int = 0) -> None:
        shared = np.zeros(workers * LENGTH) if shared is None else np.frombuffer(shared, dtype=np.float64)
        self.all = shared.reshape(workers, LENGTH)
        self.own = self.all[number]
        self.names = self.all[:, _NAMES:].view(np.uint8).reshape(workers, MODELS, _NAME)
        self.number, self.models = number, dict[str, ModelMeasures]()

    def model(self, id: str) -> ModelMeasures:
        """Return the counters of a model in this process; a process that replaces another continues to count."""
        if id not in self.models:
            name = id.encode()[:_NAME]
            names = [_name(self.names[self.number, place]) for place in range(MODELS)]
            place = names.index(name) if name in names else names.index(b"") if b"" in names else MODELS - 1
            if not names[place]:
                self.names[self.number, place, : len(name)] = np.frombuffer(name, dtype=np.uint8)
            first = _MODELS + place * _MODEL
            self.models[id] = ModelMeasures(self.own[first : first + _MODEL])
        return self.models[id]

    def process(self, lost: int) -> None:
        """Note the memory of this process, and how many lines of its log were lost."""
        self.own[_RESIDENT], self.own[_PRIVATE] = memory()
        self.own[_LOST] = lost

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        index = ROUTES.index(route)
        self.own[index * len(STATUSES) + STATUSES.index(status if status in STATUSES else 0)] += 1
        first = _REQUESTS + index * _LATENCY
        _observe(self.own[first : first + _LATENCY], SECONDS, seconds)

    def batch(self, texts: int) -> None:
        """Count a batch."""
        _observe(self.own[_BATCHES:STARTS], SIZES, texts)

    def start(self) -> None:
        """Count a start of the process."""
        self.own[STARTS] += 1

    def text(self, models: Sequence[tuple[str, str]], waiting: int) -> str:
        """Return all metrics in Prometheus' text format; `models` and `waiting` are those of this process."""
        totals = self.all[:, :_MODELS].sum(axis=0).tolist()
        return "\n".join([
            *_requests(totals), *_latencies(totals), *_batches(totals), *_by_model(self._totals_by_model()),
            *_state(models, waiting), *_starts(totals), *_processes(self.all), "",
        ])  # fmt: skip

    def _totals_by_model(self) -> dict[str, NDArray[np.float64]]:
        """Return the counters of each model, summed over all processes."""
        totals: dict[str, NDArray[np.float64]] = {}
        for row, names in zip(self.all, self.names, strict=True):
            for place, name in enumerate(map(_name, names)):
                if name:
                    first, id = _MODELS + place * _MODEL, name.decode(errors="replace")
                    totals[id] = totals.get(id, 0) + row[first : first + _MODEL]
        return totals


class ModelMeasures:
    """Counters of one model in one process."""

    def __init__(self, values: NDArray[np.float64]) -> None:
        statuses, latency, sizes = len(STATUSES), _LATENCY, len(SIZES) + 2
        self.statuses = values[:statuses]
        self.latency = values[statuses : statuses + latency]
        self.queue = values[statuses + latency : statuses + 2 * latency]
        self.batches = values[statuses + 2 * latency : statuses + 2 * latency + sizes]

    def request(self, status: int, seconds: float) -> None:
        """Count a finished request."""
        self.statuses[STATUSES.index(status if status in STATUSES else 0)] += 1
        _observe(self.latency, SECONDS, seconds)

    def queued(self, seconds: float) -> None:
        """Count the time that a request waited in the queue."""
        _observe(self.queue, SECONDS, seconds)

    def batch(self, texts: int) -> None:
        """Count a batch."""
        _observe(self.batches, SIZES, texts)


def _observe(values: NDArray[np.float64], bounds: Sequence[float], value: float) -> None:
    """Add a value to a histogram: counts between bounds, then the sum."""
    values[bisect_left(bounds, value)] += 1
    values[-1] += value


def _name(stored: NDArray[np.uint8]) -> bytes:
    return stored.tobytes().rstrip(b"\0")


def memory() -> tuple[int, int]:
    """Return the bytes of this process that are in memory, with mapped files and without; 0 if Linux is not there."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0, 0
    kilobytes = {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)
                 if name in ("VmRSS", "RssAnon")}  # fmt: skip
    return 1024 * kilobytes.get("VmRSS", 0), 1024 * kilobytes.get("RssAnon", 0)


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


def _by_model(totals: dict[str, NDArray[np.float64]]) -> Iterator[str]:
    models = {f'model="{_escaped(id)}"': ModelMeasures(values) for id, values in totals.items()}
    yield from _head("zipfel_model_requests_total", "counter", "Finished requests of a model.")
    for label, model in models.items():
        for status, count in zip(STATUSES, model.statuses.tolist(), strict=True):
            if count:
                yield f'zipfel_model_requests_total{{{label},status="{status or "other"}"}} {count:.0f}'
    for place, (name, help, bounds) in enumerate((
        ("zipfel_model_request_seconds", "Time of a model's requests.", SECONDS),
        ("zipfel_model_queue_seconds", "Time that requests waited for their batch.", SECONDS),
        ("zipfel_model_batch_texts", "Texts that a model tagged in one batch.", SIZES),
    )):  # fmt: skip
        yield from _head(name, "histogram", help)
        for label, model in models.items():
            values = (model.latency, model.queue, model.batches)[place]
            yield from _histogram(name, label, bounds, values.tolist())


def _processes(rows: NDArray[np.float64]) -> Iterator[str]:
    gauges = (
        ("zipfel_resident_bytes", "gauge", "Memory of a process, mapped files included.", _RESIDENT),
        ("zipfel_private_bytes", "gauge", "Memory of a process without mapped files.", _PRIVATE),
        ("zipfel_log_lines_lost_total", "counter", "Lines that could not be written to the log.", _LOST),
    )
    for name, kind, help, index in gauges:
        yield from _head(name, kind, help)
        for worker, row in enumerate(rows):
            yield f'{name}{{worker="{worker}"}} {row[index]:.0f}'


def _starts(totals: list[float]) -> Iterator[str]:
    yield from _head("zipfel_starts_total", "counter", "Started processes; more than --workers means that some died.")
    yield f"zipfel_starts_total {totals[STARTS]:.0f}"


def _state(models: Sequence[tuple[str, str]], waiting: int) -> Iterator[str]:
    yield from _head("zipfel_waiting_texts", "gauge", "Queued texts in the responding process.")
    yield f"zipfel_waiting_texts {waiting}"
    yield from _head("zipfel_model_info", "gauge", "Models of the responding process.")
    for id, version in models:
        yield f'zipfel_model_info{{id="{_escaped(id)}",version="{version}"}} 1'


def _escaped(value: str) -> str:
    """Return the value of a label, as Prometheus wants it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


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
