"""The service against hostile requests: `python -m benchmarks.serve_hostile MODEL [COUNT]`, one JSON line.

Sends deeply nested JSON, huge numbers, invalid UTF-8, control characters, truncated and mangled requests, and a text of
50 MB in every thousandth. Invalid requests must get a 4xx and none a 5xx; afterwards the server must still answer, and
its memory must not have grown.
"""

from __future__ import annotations

import http.client
import random
import sys
from collections import Counter
from collections.abc import Callable

import orjson

from benchmarks.record import record
from benchmarks.serving import serving

COUNT, HUGE = 10_000, 50_000_000


def hostile(numbers: random.Random, largest: int = 200_000) -> bytes:
    """Return a random hostile body; a few are valid requests after all."""
    return numbers.choice(KINDS)(numbers, largest)


def deep(numbers: random.Random, largest: int) -> bytes:
    """Return deeply nested arrays or objects."""
    piece = numbers.choice([b"[", b'{"texts":', b'{"texts":[', b'[{"a":'])
    return b'{"texts":' + piece * numbers.randrange(100, largest // len(piece) - 10)


def number(numbers: random.Random, largest: int) -> bytes:
    """Return a request with an invalid or huge number."""
    digits = b"9" * numbers.choice([20, 400, 5000, largest // 2])
    value = numbers.choice([digits, b"-" + digits, b"1e999999999", b"0." + digits, b"NaN", b"Infinity", b"-0", b"1.5"])
    return b'{"texts":["a"],"%s":%s}' % (numbers.choice([b"k", b"threshold"]), value)


def broken_text(numbers: random.Random, largest: int) -> bytes:
    """Return a text with invalid UTF-8, half a surrogate pair, or raw control characters."""
    wrong = [b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\\ud800", b"\\udc00\\ud800", b"\\u12",
             bytes([numbers.randrange(32)]), b"\x00"]  # fmt: skip
    return b'{"texts":["%s"]}' % (b"a " + numbers.choice(wrong) * numbers.randrange(1, 50))


def controls(numbers: random.Random, largest: int) -> bytes:
    """Return a text with escaped control and other unusual characters, which is valid."""
    text = "".join(chr(numbers.choice([*range(32), 0x7F, 0x85, 0x200B, 0x202E, 0xFEFF, 0xFFFF])) for _ in range(50))
    return orjson.dumps({"texts": [text]})


def large(numbers: random.Random, largest: int) -> bytes:
    """Return a request that is too large: one long text, or many short ones."""
    text = "x" * largest if numbers.random() < 0.5 else "long " * (largest // 5)
    return orjson.dumps({"texts": [text] if numbers.random() < 0.5 else ["a"] * (largest // 4)})


def kinds(numbers: random.Random, largest: int) -> bytes:
    """Return a request with a field of the wrong type."""
    odd: object = numbers.choice([None, True, 1, -1.5, "", [], {}, [[]], {"a": 1}, [None], ["a", 2], "x" * 1000])
    name = numbers.choice(["texts", "k", "threshold", "model", "extra", "__proto__", "\u202e", "x" * 1000])
    return orjson.dumps({"texts": ["a"], name: odd})


def mangled(numbers: random.Random, largest: int) -> bytes:
    """Return a valid body with some bytes changed, maybe truncated."""
    body = bytearray(b'{"texts": ["the import of bananas"], "k": 5, "threshold": 0.2, "extra": {"a": "b"}}')
    for _ in range(numbers.randrange(1, 6)):
        body[numbers.randrange(len(body))] = numbers.randrange(256)
    return bytes(body[: numbers.randrange(len(body) + 1)])


KINDS: list[Callable[[random.Random, int], bytes]] = [deep, number, broken_text, controls, large, kinds, mangled]


def main(model: str, count: int = COUNT) -> None:
    numbers, statuses, memory = random.Random(0), Counter[int](), list[int]()
    with serving(model) as server:
        statuses[_answered(server.port, orjson.dumps({"texts": ["long " * 15_000] * 20}))] += 1  # large, but allowed
        for place in range(count):
            if place % 1000 == 0:
                statuses[_answered(server.port, b'{"texts":["' + b"x" * HUGE + b'"]}')] += 1
                memory.append(server.memory())
            statuses[_answered(server.port, hostile(numbers))] += 1
        memory.append(server.memory())
        alive = _answered(server.port, b'{"texts":["the import of bananas"]}')
    figures = {"bodies": statuses.total(), "statuses": {str(k): v for k, v in sorted(statuses.items())},
               "answers_after": alive, "memory_mb": memory}  # fmt: skip
    record("serve_hostile", figures, 0, ("fastapi", "uvicorn", "httptools"))
    if alive != 200 or max(statuses) >= 500:
        raise SystemExit("the server answered a hostile request with a 5xx, or no longer answers")


def _answered(port: int, body: bytes) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", "/tag", body)
        return connection.getresponse().status
    finally:
        connection.close()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:3]))
