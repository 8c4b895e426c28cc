"""Latency of the service under load: `python -m benchmarks.serve_load MODEL DATA [REQUESTS] [RATE]`, one JSON line.

Sends test texts at a steady rate over 32 connections, whatever the server does. Latency is measured from the moment
when a request was due, so that a stalling server cannot hide it. The server runs in its own process.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections import deque

import numpy as np
import orjson
import uvloop

from benchmarks.record import record
from benchmarks.serving import Running, serving
from zipfel import read

REQUESTS, RATE, CONNECTIONS, WARM, TEXTS, SAMPLES = 100_000, 500, 32, 3000, 3000, 10
LATE = 60.0  # seconds to answer the last requests


def main(model: str, data: str, requests: int = REQUESTS, rate: int = RATE) -> None:
    test = read(data).test
    if test is None or test.texts is None:
        raise SystemExit(f"{data} must have a test part of texts")
    texts = [" ".join(row) for row in zip(*test.texts.values(), strict=True)][:TEXTS]
    bodies = [_request(text) for text in texts]
    gc.disable()  # pauses of this process must not count as the server's latency
    with serving(model) as server:
        first = asyncio.run(_load(server, bodies, 1, 1000))
        answered = server.seconds + first.latencies[0]
        uvloop.run(_load(server, bodies, WARM, rate))
        worked = server.worked()
        load = uvloop.run(_load(server, bodies, requests, rate, SAMPLES))
        worked = server.worked() - worked
    p50, p99 = (round(float(value), 2) for value in np.percentile(1e3 * np.array(load.latencies), (50, 99)))
    figures = {
        "data": data.rstrip("/").rpartition("/")[2], "requests": requests, "wanted_per_s": rate,
        "answered_per_s": round(len(load.latencies) / load.seconds, 1), "failed": load.failed,
        "p50_ms": p50, "p99_ms": p99, "max_ms": round(1e3 * max(load.latencies), 1),
        "server_cpu_ms": round(1e3 * worked / requests, 3),
        "connections": CONNECTIONS, "characters_a_text": round(float(np.mean([*map(len, texts)]))),
        "start_to_answer_s": round(answered, 2), "memory_mb": load.memory,
    }  # fmt: skip
    record("serve_load", figures, 0, ("torch", "fastapi", "uvicorn", "uvloop", "httptools"))


def _request(text: str) -> bytes:
    body = orjson.dumps({"texts": [text], "k": 5})
    return b"POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body


class Load:
    """Requests that are due, and the latencies of those that were answered."""

    def __init__(self, bodies: list[bytes], requests: int) -> None:
        self.bodies, self.requests = bodies, requests
        self.due: deque[tuple[float, bytes]] = deque()
        self.idle: deque[Client] = deque()  # used in turn, because the server closes unused connections
        self.latencies: list[float] = []
        self.memory: list[int] = []  # MB of the server, without mapped files
        self.failed, self.seconds = 0, 0.0
        self.done = asyncio.Event()

    def send(self) -> None:
        """Send requests that are due over idle connections."""
        while self.due and self.idle:
            self.idle.popleft().ask(*self.due.popleft())

    def answered(self, client: Client, status: bytes, latency: float) -> None:
        """Record an answer."""
        self.latencies.append(latency)
        self.failed += status != b"200"
        self.idle.append(client)
        self.send()
        if len(self.latencies) == self.requests:
            self.done.set()


class Client(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, load: Load) -> None:
        self.load, self.received, self.since = load, b"", 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Join the idle connections."""
        self.transport = transport
        self.load.idle.append(self)

    def ask(self, since: float, body: bytes) -> None:
        """Send a request that was due at the time `since`."""
        self.since, self.received = since, b""
        self.transport.write(body)

    def data_received(self, data: bytes) -> None:
        """Receive an answer, maybe in parts."""
        self.received += data
        head, blank, body = self.received.partition(b"\r\n\r\n")
        if blank and len(body) == int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self.load.answered(self, head[9:12], time.perf_counter() - self.since)


async def _load(server: Running, bodies: list[bytes], requests: int, rate: int, samples: int = 1) -> Load:
    """Send requests at a steady rate; measure the server's memory at the start, the end, and in between."""
    load, loop = Load(bodies, requests), asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Client(load), "127.0.0.1", server.port) for _ in range(CONNECTIONS)]
    start = time.perf_counter()
    for number in range(requests):
        due = start + number / rate
        if (early := due - time.perf_counter()) > 0:
            await asyncio.sleep(early)
        if number % -(-requests // samples) == 0:
            load.memory.append(server.memory())
        load.due.append((due, bodies[number % len(bodies)]))
        load.send()
    try:
        await asyncio.wait_for(load.done.wait(), LATE)
    except TimeoutError:
        answered = f"{len(load.latencies)} of {requests} requests were answered"
        raise SystemExit(f"{answered} {LATE:.0f} s after the last was due: try a lower RATE than {rate}") from None
    load.seconds = time.perf_counter() - start
    load.memory.append(server.memory())
    for transport, _ in made:
        transport.close()
    return load


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:5]))
