"""Slow clients against the service: `python -m benchmarks.serve_slow MODEL`, one JSON line.

First 1,010 connections with half a request's headers, then 60 clients that ask for large answers and never read.
Meanwhile others ask `/health` and `/tag` on new connections; then the service is told to stop, while clients that never
read are still there. They have ten addresses of the loopback network, so that the limits of one do not decide alone.
"""

from __future__ import annotations

import http.client
import resource
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import orjson

from benchmarks.record import record
from benchmarks.serving import Running, serving

HEADS, READERS, ADDRESSES = 1010, 60, 10
SECONDS, PAUSE = 20.0, 0.25  # of each part, and between two questions
TEXT = "the import of bananas"
LARGE = orjson.dumps({"texts": [TEXT] * 16, "k": 1000})  # those of all readers together fit into the queue


def main(model: str) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with serving(model) as server, ExitStack() as clients:
        before = asked(server, 2.0)
        half = b"POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Le"
        for sock in opened(server, HEADS, half):
            clients.enter_context(sock)
        heads = asked(server, SECONDS)
        clients.close()
        request = b"POST /tag HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s" % (len(LARGE), LARGE)
        for sock in opened(server, READERS, 6 * request):
            clients.enter_context(sock)
        readers = asked(server, SECONDS)
        for sock in opened(server, READERS, request):  # the others have been disconnected by now
            clients.enter_context(sock)
        start = time.perf_counter()
        server.process.terminate()
        server.process.wait(60)
        seconds = time.perf_counter() - start
    figures = {"before": before, "half_sent_heads": heads, "clients_that_never_read": readers,
               "seconds_to_stop": round(seconds, 1)}  # fmt: skip
    record("serve_slow", figures, 0, ("fastapi", "uvicorn", "uvloop", "httptools"))
    if any(set(part["statuses"]) != {"200"} for part in (before, heads, readers)):
        raise SystemExit("a client with a whole request got no answer")


def opened(server: Running, count: int, content: bytes) -> Iterator[socket.socket]:
    """Yield connections that have sent this, and take little before they read."""
    for number in range(count):
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.bind((f"127.0.0.{2 + number % ADDRESSES}", 0))
        sock.connect(("127.0.0.1", server.port))
        sock.sendall(content)
        yield sock


def asked(server: Running, seconds: float) -> dict[str, Any]:
    """Ask on new connections for a while; return statuses, the longest time in ms, and the most memory in MB."""
    statuses, times, memory, end = Counter[str](), [0.0], [server.memory()], time.perf_counter() + seconds
    while time.perf_counter() < end:
        for method, path, body in (("GET", "/health", None), ("POST", "/tag", orjson.dumps({"texts": [TEXT]}))):
            start = time.perf_counter()
            statuses[_status(server, method, path, body)] += 1
            times.append(time.perf_counter() - start)
        memory.append(server.memory())
        time.sleep(PAUSE)
    return {"statuses": dict(statuses), "longest_ms": round(1e3 * max(times)), "most_memory_mb": max(memory)}


def _status(server: Running, method: str, path: str, body: bytes | None) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.request(method, path, body)
        return str(connection.getresponse().status)
    except OSError as error:
        return type(error).__name__
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
