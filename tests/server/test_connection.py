"""Slow, silent and hostile clients, on real connections."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time

import pytest

from tests.server.conftest import Listening, received, wait_until
from zipfel.server import connection

pytestmark = pytest.mark.usefixtures("one_thread")

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def post(body: object, *headers: str, connection: str = "close") -> bytes:
    """Return a request to /tag."""
    content = json.dumps(body).encode()
    lines = ["POST /tag HTTP/1.1", "Host: localhost", f"Connection: {connection}", f"Content-Length: {len(content)}"]
    return "\r\n".join([*lines, *headers, "", ""]).encode() + content


def split(answer: bytes) -> tuple[int, dict[str, str], bytes]:
    """Return status, headers and body of the last response."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/1.1 100"):
        return split(body)
    status, *lines = head.decode().split("\r\n")
    return int(status.split()[1]), dict(line.lower().split(": ", 1) for line in lines), body


def test_half_sent_heads_do_not_keep_others_out(listening, monkeypatch):
    monkeypatch.setattr(connection, "CONNECTIONS", 20)
    monkeypatch.setattr(connection, "PER_ADDRESS", 10)
    server = listening()
    socks = []
    for _ in range(60):
        sock = server.connect()
        sock.sendall(b"GET /tag HTTP/1.1\r\nHost: x\r\nX-A")
        socks.append(sock)
    assert split(server.ask(HEALTH))[0] == 200
    assert split(server.ask(post({"texts": ["paper"]})))[0] == 200
    assert len(server.crowd.open) <= 11
    for sock in socks:
        sock.close()
    wait_until(lambda: not server.crowd.open)
    assert (server.crowd.by_address, server.crowd.waiting) == ({}, {})


def test_headers_that_do_not_arrive_in_time_get_408_and_are_counted(listening, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIME", 0.1)
    server = listening()
    status, headers, body = split(server.ask(b"GET /health HTTP/1.1\r\nX: "))
    assert (status, headers["content-type"], headers["connection"]) == (408, "application/json", "close")
    assert json.loads(body) == {"error": "the request's headers did not arrive within 0 s"}
    assert split(server.ask(b""))[0] == 408  # silence
    with server.connect() as sock:  # the second request of a connection
        sock.sendall(HEALTH.replace(b"close", b"keep-alive"))
        assert sock.recv(4096).startswith(b"HTTP/1.1 200")
        time.sleep(0.2)  # no byte of a second request: it may stay
        sock.sendall(b"GET /hea")
        assert split(received(sock))[0] == 408
    assert 'zipfel_requests_total{route="other",status="408"} 3' in server.service.metrics()


def test_headers_that_are_too_long_get_431_and_are_counted(listening):
    server = listening()
    status, headers, body = split(server.ask(b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000))
    assert (status, headers["content-type"]) == (431, "application/json")
    assert json.loads(body) == {"error": "the request's headers exceed 65536 bytes"}
    assert 'zipfel_requests_total{route="other",status="431"} 1' in server.service.metrics()


def test_more_requests_than_connections_get_503_but_health_and_metrics_answer(listening, monkeypatch):
    monkeypatch.setattr(connection, "CONNECTIONS", 3)
    server = listening()
    unfinished = post({"texts": ["paper"]})[:-1]
    socks = [server.connect() for _ in range(3)]
    for sock in socks:
        sock.sendall(unfinished)
    wait_until(lambda: len(server.crowd.open) == 3 and not server.crowd.waiting)
    status, headers, body = split(server.ask(post({"texts": ["paper"]})))
    assert (status, headers["retry-after"]) == (503, "1")
    assert json.loads(body) == {"error": "too many connections; try again in a moment"}
    assert split(server.ask(HEALTH))[0] == 200
    metrics = split(server.ask(HEALTH.replace(b"/health", b"/metrics")))[2].decode()
    assert 'zipfel_requests_total{route="/tag",status="503"} 1' in metrics
    for sock in socks:
        sock.sendall(b"}")
        assert split(received(sock))[0] == 200
        sock.close()


def test_an_address_has_its_share_and_a_trusted_proxy_has_none(listening, monkeypatch):
    monkeypatch.setattr(connection, "PER_ADDRESS", 2)
    for proxies, expected in (((), 503), (("127.0.0.0/8",), 200)):
        server = listening(trusted_proxies=proxies)
        socks = [server.connect() for _ in range(2)]
        for sock in socks:
            sock.sendall(post({"texts": ["paper"]})[:-1])
        wait_until(lambda server=server: len(server.crowd.open) == 2 and not server.crowd.waiting)
        assert split(server.ask(post({"texts": ["paper"]})))[0] == expected
        for sock in socks:
            sock.close()


def small_buffers(server: Listening) -> socket.socket:
    """Return a connection whose client takes next to nothing before it reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    sock.connect(("127.0.0.1", server.port))
    sock.settimeout(60)
    return sock


def large_response(size: int):
    """Return a patch of /tag's answers that makes them large."""

    async def tag(slot, asked):
        return {"tags": "x" * size, "model": {"id": "glas", "version": "1"}}

    return tag


def test_clients_that_do_not_read_are_dropped_and_delay_no_end(listening, monkeypatch):
    monkeypatch.setattr(connection, "STALLED", 0.3)
    server = listening()
    monkeypatch.setattr(server.service, "tag", large_response(8 << 20))
    with small_buffers(server) as sock:
        sock.sendall(post({"texts": []}))
        wait_until(lambda: server.crowd.unsent(server.crowd.open) > 0)
        wait_until(lambda: not server.crowd.open)
        assert len(received(sock)) < 8 << 20
    with server.connect() as sock:  # one that reads gets all
        sock.sendall(post({"texts": []}))
        assert len(split(received(sock))[2]) > 8 << 20
    with small_buffers(server) as sock:
        monkeypatch.setattr(connection, "STALLED", 100.0)
        monkeypatch.setattr("zipfel.server.worker.LAST_READ", 0.2)
        sock.sendall(post({"texts": []}))
        wait_until(lambda: server.crowd.unsent(server.crowd.open) > 0)
        start = time.monotonic()
        server.stop()
        assert time.monotonic() - start < 10


def test_what_waits_to_be_sent_is_bounded(listening, monkeypatch):
    monkeypatch.setattr(connection, "UNSENT", 24 << 20)
    server = listening()
    monkeypatch.setattr(server.service, "tag", large_response(8 << 20))
    socks = [small_buffers(server) for _ in range(5)]
    for sock in socks:
        sock.sendall(post({"texts": []}))
    wait_until(
        lambda: 'route="/tag",status="503"} 4' in server.service.metrics()
    )  # half of the room is for one address
    assert server.crowd.unsent(server.crowd.open) <= 12 << 20
    assert split(server.ask(HEALTH))[0] == 200
    refused = [split(sock.recv(4096)) for sock in socks[1:]]
    assert {json.loads(body)["error"] for _, _, body in refused} == {
        "too many responses wait to be read; try again later"
    }
    for sock in socks:
        sock.close()


def test_a_half_closed_client_gets_its_answer(listening):
    server = listening()
    status, _, body = split(server.ask(post({"texts": ["paper"]}, connection="keep-alive"), half_close=True))
    assert (status, len(json.loads(body)["tags"])) == (200, 1)
    assert server.ask(post({"texts": ["paper"]})[:-1], half_close=True) == b""  # its body will never be complete


@pytest.mark.parametrize("reset", [False, True])
def test_no_work_is_done_for_clients_that_are_gone(listening, monkeypatch, reset):
    server = listening()
    tagger, go = server.service.catalog.slot(None).current.tagger, threading.Event()
    tag, tagged = tagger.tag, []

    def slow(requests):
        tagged.extend(text for request in requests for text in request.X)
        go.wait(60)
        return tag(requests)

    monkeypatch.setattr(tagger, "tag", slow)
    batcher = server.service.batchers[server.service.catalog.slot(None)]
    with server.connect() as first, server.connect() as second, server.connect() as gone:
        first.sendall(post({"texts": ["first"]}))
        wait_until(lambda: tagged)
        gone.sendall(post({"texts": ["gone"]}))
        second.sendall(post({"texts": ["second"]}))
        wait_until(lambda: batcher.waiting == 2)
        if reset:
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        gone.close()
        wait_until(lambda: batcher.waiting == 1)
        go.set()
        assert split(received(second))[0] == split(received(first))[0] == 200
    assert tagged == ["first", "second"]
    wait_until(lambda: 'route="/tag",status="499"} 1' in server.service.metrics())


def test_a_unix_socket_is_served_and_removed(listening, tmp_path):
    path = tmp_path / "socket"
    server = listening(unix_socket=path, trusted_proxies=())
    assert path.stat().st_mode & 0o777 == 0o660
    answer = server.ask(b"GET /models HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n\r\n")
    assert split(answer)[0] == 200
    server.stop()
    assert not path.exists()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    assert split(listening(unix_socket=path).ask(HEALTH))[0] == 200


def test_one_process_keeps_answering_while_it_drains(listening):
    server = listening(drain=0.5)
    server.server._on_terminate(15, None)
    assert split(server.ask(HEALTH.replace(b"/health", b"/ready")))[0] == 503
    status, headers, _ = split(server.ask(post({"texts": ["paper"]}, connection="keep-alive")))
    assert (status, headers["connection"]) == (200, "close")
    server.thread.join(60)
    assert not server.thread.is_alive()
