"""Slow, silent and hostile clients, on real connections."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import ssl
import struct
import threading
import time
from pathlib import Path
from unittest import mock

import pytest

from tests.server.conftest import WAIT, Listening, received, wait_until
from zipfel.server import connection, door
from zipfel.server.connection import Crowd
from zipfel.server.settings import ServeSettings

pytestmark = pytest.mark.usefixtures("one_thread")

TLS = {
    "tls_cert": Path(__file__).parent / "tls" / "first.pem",
    "tls_key": Path(__file__).parent / "tls" / "first.key",
}
both = pytest.mark.parametrize("settings", [{}, TLS], ids=["plain", "tls"])
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
    assert set(server.crowd.waiting) == {"127.0.0.1"}
    assert received(socks[0]) == b""  # the longest-waiting is closed
    for sock in socks:
        sock.close()
    wait_until(lambda: not server.crowd.open)
    assert (server.crowd.by_share, server.crowd.waiting) == ({}, {})


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


def test_an_offer_of_another_protocol_is_declined_and_the_body_is_read(listening, capfd):
    server = listening()
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
    request = post({"texts": ["paper"]}, *offer).replace(b"Connection: close\r\n", b"")
    with server.connect() as sock:  # as Java's client sends it; twice, the second in two parts
        for parts in ([request], [request[:-5], request[-5:]]):
            for part in parts:
                sock.sendall(part)
                time.sleep(0.05)
            assert b'"tags":[[' in sock.recv(65536)
    head = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    assert server.ask(head + HEALTH).count(b"HTTP/1.1 200") == 2
    assert split(server.ask(head.replace(b"Connection: ", b"Connection: close, ")))[0] == 200
    assert split(server.ask(b"CONNECT evil.example:80 HTTP/1.1\r\nHost: localhost\r\n\r\n"))[0] == 400
    server.stop()
    assert "uvicorn[standard]" not in capfd.readouterr().err


def statuses(answers: bytes) -> list[int]:
    """Return the status of each response."""
    return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+)", answers)]


@pytest.fixture
def held(monkeypatch):
    """Return a function that makes a server's tagging wait until an event is set, and returns the event."""

    def hold(server: Listening) -> threading.Event:
        tagger, go = server.service.catalog.slot(None).current.tagger, threading.Event()
        tag = tagger.tag
        monkeypatch.setattr(tagger, "tag", lambda requests: tag(requests) if go.wait(WAIT) else None)
        return go

    return hold


@both
@pytest.mark.parametrize("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"], ids=["", "with offers"])
def test_a_flood_of_requests_on_one_connection_ends_after_those_that_may_wait(listening, held, settings, offer):
    server = listening(**settings)
    go = held(server)
    with secured(server, server.connect()) as sock:
        sock.sendall(post({"texts": ["paper"]}, connection="keep-alive"))
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n%s\r\n" % offer * 1000)
        wait_until(lambda: 'route="other",status="429"} 1' in server.service.metrics())
        go.set()
        assert statuses(received(sock)) == [200] * (1 + connection.PIPELINED)
    assert 'route="other",status="429"} 1' in server.service.metrics()


@pytest.mark.parametrize("rest", [b"no request\r\n\r\n", b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000])
def test_a_request_is_answered_whatever_follows_it(listening, held, rest):
    server = listening()
    go = held(server)
    with server.connect() as sock:
        sock.sendall(post({"texts": ["paper"]}, connection="keep-alive"))
        wait_until(lambda: any(each.active for each in server.crowd.open))
        sock.sendall(rest)
        wait_until(lambda: 'route="other",status="4' in server.service.metrics())
        sock.sendall(HEALTH)  # nobody reads this any more
        go.set()
        assert statuses(received(sock)) == [200]


def test_a_body_that_is_not_complete_at_the_end_loses_no_earlier_response(listening, held, monkeypatch):
    monkeypatch.setattr("zipfel.server.worker.LAST_BODY", 0.1)
    server = listening()
    go = held(server)
    with server.connect() as sock:
        request = post({"texts": ["paper"]}, connection="keep-alive")
        sock.sendall(request + request[:-1])
        wait_until(lambda: any(each.awaits_body for each in server.crowd.open))
        server.server.should_exit = True
        wait_until(lambda: not any(each.awaits_body for each in server.crowd.open))
        go.set()
        assert statuses(received(sock)) == [200]


def test_headers_that_are_too_long_get_431_and_are_counted(listening):
    server = listening()
    whole = b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"  # the parser fails at its address
    for long in (b"GET /health HTTP/1.1\r\nX: " + b"x" * 70_000, whole):
        status, headers, body = split(server.ask(long))
        assert (status, headers["content-type"]) == (431, "application/json")
        assert json.loads(body) == {"error": "the request's headers exceed 65536 bytes"}
    assert 'zipfel_requests_total{route="other",status="431"} 2' in server.service.metrics()


@pytest.mark.parametrize("request_line", [b"GET /health", b"POST /tag"])
def test_trailers_are_not_kept_and_end_a_connection_when_they_are_too_long(listening, request_line):
    server = listening()
    head = request_line + b" HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n"
    content = json.dumps({"texts": ["paper"]}).encode()
    with server.connect() as sock:  # few, in two parts, are skipped
        sock.sendall(head % (len(content), content) + b"A: b\r\nC:")
        (seen,) = wait_until(lambda: list(server.crowd.open))
        sock.sendall(b" d\r\n\r\n" + HEALTH)
        assert split(received(sock))[0] == 200
    assert [name for name, _ in seen.headers] == [b"host", b"connection"]
    for long in (b"a: b\r\n" * 12_000, b"a" * 72_000, b"a: " + b"b" * 72_000):
        with server.connect() as sock:
            sock.sendall(head % (len(content), content) + b"A: b\r\n")
            wait_until(lambda: [each for each in server.crowd.open if not each.awaits_head])
            sock.sendall(long)
            assert b"trailers exceed 65536 bytes" in received(sock)
    assert 'zipfel_requests_total{route="other",status="431"} 3' in server.service.metrics()


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


def test_addresses_of_one_ipv6_network_share_their_connections(monkeypatch):
    monkeypatch.setattr(connection, "PER_ADDRESS", 2)
    crowd, closed = Crowd(ServeSettings(trusted_proxies=("2a00::/48",))), []
    addresses = ["2a01:1:2:3::1", "2a01:1:2:3:ffff::2", "2a01:1:2:4::1", "2a00::1", "2a00::2", "2a00::3"]
    for address in [*addresses, "2a01:1:2:3::9", "10.0.0.1", "10.0.0.2", "10.0.0.3"]:
        client = mock.Mock(address=address, share=crowd.share_of(address))
        client.transport.abort.side_effect = lambda address=address: closed.append(address)
        crowd.enter(client)
    assert closed == ["2a01:1:2:3::1"]  # the longest-waiting of its network


def small_buffers(server: Listening) -> socket.socket:
    """Return a connection whose client takes next to nothing before it reads."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    sock.connect(("127.0.0.1", server.port))
    return secured(server, sock)


def secured(server: Listening, sock: socket.socket) -> socket.socket:
    """Return a connection with TLS, if the server has it."""
    sock.settimeout(60)
    if server.settings.tls_cert is None:
        return sock
    return ssl.create_default_context(cafile=server.settings.tls_cert).wrap_socket(sock, server_hostname="localhost")


def large_response(size: int):
    """Return a patch of /tag's answers that makes them large."""

    async def tag(slot, asked):
        return {"tags": "x" * size, "model": {"id": "glas", "version": "1"}}

    return tag


@both
def test_clients_that_do_not_read_are_dropped_and_delay_no_end(listening, monkeypatch, settings):
    monkeypatch.setattr(connection, "STALLED", 0.3)
    server = listening(**settings)
    monkeypatch.setattr(server.service, "tag", large_response(8 << 20))
    with small_buffers(server) as sock:
        sock.sendall(post({"texts": []}))
        wait_until(lambda: server.crowd.unsent(server.crowd.open) > 0)
        wait_until(lambda: not server.crowd.open)
        assert len(received(sock)) < 8 << 20
    with secured(server, server.connect()) as sock:  # one that reads gets all
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


@both
def test_clients_that_do_not_send_their_bodies_delay_no_end(listening, monkeypatch, settings):
    monkeypatch.setattr("zipfel.server.worker.LAST_BODY", 0.2)
    server = listening(**settings)
    with secured(server, server.connect()) as slow, secured(server, server.connect()) as whole:
        slow.sendall(post({"texts": ["paper"]})[:-1])
        wait_until(lambda: any(each.awaits_body for each in server.crowd.open))
        whole.sendall(post({"texts": ["paper"]}))
        start = time.monotonic()
        server.stop()
        assert time.monotonic() - start < 10
        assert split(received(whole))[0] == 200
        status, _, body = split(received(slow))
    assert (status, json.loads(body)["error"]) == (408, "the request body did not arrive before the service stopped")


@both
def test_what_waits_to_be_sent_is_bounded(listening, monkeypatch, settings):
    monkeypatch.setattr(connection, "UNSENT", 24 << 20)
    server = listening(**settings)
    monkeypatch.setattr(server.service, "tag", large_response(8 << 20))
    socks = [small_buffers(server) for _ in range(5)]
    socks[0].sendall(post({"texts": []}))
    wait_until(lambda: 'route="/tag",status="200"} 1' in server.service.metrics())
    for sock in socks[1:]:
        sock.sendall(post({"texts": []}))
    wait_until(
        lambda: 'route="/tag",status="503"} 4' in server.service.metrics()
    )  # half of the room is for one address
    assert server.crowd.unsent(server.crowd.open) <= 12 << 20
    with secured(server, server.connect()) as sock:
        sock.sendall(HEALTH)
        assert split(received(sock))[0] == 200
    refused = [split(received(sock)) for sock in socks[1:]]
    assert {json.loads(body)["error"] for _, _, body in refused} == {
        "too many responses wait to be read; try again later"
    }
    for sock in socks:
        sock.close()


def test_silent_clients_of_tls_are_limited_as_others_are(listening, monkeypatch):
    monkeypatch.setattr(connection, "PER_ADDRESS", 10)
    server = listening(**TLS)
    socks = [server.connect() for _ in range(30)]
    wait_until(lambda: len(server.crowd.open) == 10)
    with secured(server, server.connect()) as sock:
        sock.sendall(HEALTH)
        assert split(received(sock))[0] == 200
    assert received(socks[0]) == b""  # the longest-waiting is closed
    for sock in socks:
        sock.close()
    wait_until(lambda: not server.crowd.open)
    assert (server.crowd.by_share, server.crowd.waiting) == ({}, {})


def test_a_handshake_that_takes_too_long_or_is_none_ends(listening, monkeypatch):
    monkeypatch.setattr(connection, "HEAD_TIME", 0.2)
    server = listening(**TLS)
    assert server.ask(b"") == b""
    assert b"HTTP" not in server.ask(HEALTH)
    wait_until(lambda: not server.crowd.open)


def test_large_bodies_and_several_requests_go_over_one_connection_with_tls(listening):
    server = listening(**TLS)
    with secured(server, server.connect()) as sock:
        for number in (1, 200):
            sock.sendall(post({"texts": ["paper " * 2500] * number}, connection="keep-alive"))
            answer = b""
            while not answer.endswith(b"}}"):
                answer += sock.recv(1 << 20)
            assert len(json.loads(split(answer)[2])["tags"]) == number
        assert len(server.crowd.open) == 1


def asked_with_half_closed_tls(server: Listening, request: bytes) -> bytes:
    """Send a request, then TLS's last word, then close this half of the connection; return the response."""
    read, written = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context(cafile=TLS["tls_cert"])
    client = context.wrap_bio(read, written, server_hostname="localhost")
    with server.connect() as sock:
        while True:
            try:
                client.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(written.read())
                read.write(sock.recv(65536))
        client.write(request)
        with pytest.raises(ssl.SSLWantReadError):
            client.unwrap()
        sock.sendall(written.read())
        sock.shutdown(socket.SHUT_WR)
        read.write(received(sock))
        content = b""
        with contextlib.suppress(ssl.SSLZeroReturnError):  # the server's last word
            while True:
                content += client.read(65536)
        return content


@both
def test_a_half_closed_client_gets_its_answer(listening, settings):
    server = listening(**settings)

    def ask(request: bytes) -> bytes:
        return asked_with_half_closed_tls(server, request) if settings else server.ask(request, half_close=True)

    status, _, body = split(ask(post({"texts": ["paper"]}, connection="keep-alive")))
    assert (status, len(json.loads(body)["tags"])) == (200, 1)
    assert ask(post({"texts": ["paper"]})[:-1]) == b""  # its body will never be complete


@both
@pytest.mark.parametrize("reset", [False, True])
def test_no_work_is_done_for_clients_that_are_gone(listening, monkeypatch, reset, settings):
    server = listening(**settings)
    tagger, go = server.service.catalog.slot(None).current.tagger, threading.Event()
    tag, tagged = tagger.tag, []

    def slow(requests):
        tagged.extend(text for request in requests for text in request.X)
        go.wait(60)
        return tag(requests)

    monkeypatch.setattr(tagger, "tag", slow)
    batcher = server.service.batchers[server.service.catalog.slot(None)]
    first, second, gone = (secured(server, server.connect()) for _ in range(3))
    with first, second, gone:
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
    assert (batcher.waiting, len(batcher.jobs)) == (0, 0)
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


@pytest.mark.parametrize("remove", [door.remove_path, lambda settings: settings.unix_socket.unlink()])
def test_the_unix_socket_of_a_service_that_came_after_stays(tmp_path, remove):
    settings = ServeSettings(unix_socket=tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as other:
        with door.bound(settings):
            remove(settings)  # the service stops, or an operator was impatient
            other.bind(str(settings.unix_socket))
        assert settings.unix_socket.exists()


def test_one_process_keeps_answering_while_it_drains(listening):
    server = listening(drain=100.0)
    server.server._on_terminate(15, None)
    time.sleep(0.5)  # without a drain time, it would have stopped to listen by now
    assert split(server.ask(HEALTH.replace(b"/health", b"/ready")))[0] == 503
    status, headers, _ = split(server.ask(post({"texts": ["paper"]}, connection="keep-alive")))
    assert (status, headers["connection"]) == (200, "close")
    assert server.server.loop.time() < server.server.stop_at < server.server.loop.time() + 100
    server.server.stop_at = 0.0
    server.thread.join(60)
    assert not server.thread.is_alive()
