"""Connections, and limits that keep slow or hostile clients from starving others.

uvicorn limits neither the time for a request's headers, nor the connections of an address, nor what waits to be sent
to clients that do not read; and above its limit of connections it refuses health checks too (decision 019).
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from ipaddress import ip_address, ip_network
from typing import Any, Protocol

import httptools
import uvicorn
from starlette.responses import Response
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.server import ServerState

from zipfel.server.answers import Problem, error_response
from zipfel.server.door import is_reset
from zipfel.server.settings import ServeSettings

CONNECTIONS = 1000  # at a time in all; above it, those without a request are closed, the longest-waiting first
PER_ADDRESS = 250  # at a time from one address, or from one IPv6 network of a client, that is no trusted proxy
RESERVE = 100  # connections above CONNECTIONS, on which only health checks and metrics are answered
HEAD = 64 << 10  # maximum bytes of a request's headers
HEAD_TIME = 10.0  # seconds within which a request's headers must arrive
IDLE = 75  # seconds after which a connection without a request is closed
SMALL = 64 << 10  # bytes of a response that is sent however much waits to be sent
UNSENT = 64 << 20  # bytes that wait to be sent to all clients; half of it to one address
STALLED = 10.0  # seconds without a byte sent after which a client counts as gone
RATE = 64 << 10  # bytes per second at which a client must read
PIPELINED = 16  # requests of a connection that may wait for the answer to the one before them
UNIX = "unix"  # stands for the address of a client of a Unix socket


class Open(Protocol):
    """An open connection, as `Crowd` knows it."""

    address: str
    share: str
    transport: asyncio.Transport
    is_half_closed: bool

    @property
    def awaits_body(self) -> bool:
        """Whether a part of a request's body is missing."""

    def drop_if_stalled(self, now: float, patience: float) -> None:
        """Close the connection at once if its client does not read, or reads too slowly."""

    def refuse(self, problem: Problem) -> None:
        """Refuse what a client sends from now on, and close the connection."""


class Crowd:
    """The open connections of a process.  refused: called with the Problem of a request that no handler will see."""

    def __init__(self, settings: ServeSettings, refused: Callable[[Problem, str], None] = lambda *_: None) -> None:
        self.refused = refused
        self.trusted = [ip_network(proxy) for proxy in settings.trusted_proxies]
        self.open: dict[Open, None] = {}
        self.by_share: Counter[str] = Counter()
        self.waiting: dict[str, dict[Open, None]] = defaultdict(dict)  # by share: without a request, longest first

    def is_trusted(self, address: str) -> bool:
        """Whether an address is that of a proxy, which speaks for many clients."""
        return address == UNIX or (bool(self.trusted) and any(ip_address(address) in known for known in self.trusted))

    def share_of(self, address: str) -> str:
        """Return what an address is counted as: itself, or the IPv6 network /64 whose addresses one client may have."""
        if ":" not in address or self.is_trusted(address):
            return address
        return str(ip_network((ip_address(address).packed, 64), strict=False))

    def enter(self, connection: Open) -> None:
        """Add a new connection; close others that wait for a request if there are too many."""
        share = connection.share
        if not self.is_trusted(connection.address) and self.by_share[share] >= PER_ADDRESS:
            self._close_one_of(share)
        elif len(self.open) >= CONNECTIONS:
            self._close_one_of(max(self.waiting, key=self._waiting, default=""))
        self.open[connection] = None
        self.by_share[share] += 1
        self.wait(connection)
        if len(self.open) > CONNECTIONS + RESERVE:
            connection.refuse(_too_many())

    def leave(self, connection: Open) -> None:
        """Remove a closed connection."""
        if connection in self.open:
            del self.open[connection]
            self.by_share[connection.share] -= 1
            if not self.by_share[connection.share]:
                del self.by_share[connection.share]
        self.work(connection)

    def wait(self, connection: Open) -> None:
        """Note that a connection waits for a request."""
        self.waiting[connection.share][connection] = None

    def work(self, connection: Open) -> None:
        """Note that a connection has a request in progress."""
        waiting = self.waiting.get(connection.share, {})
        waiting.pop(connection, None)
        if not waiting:
            self.waiting.pop(connection.share, None)

    def _waiting(self, share: str) -> tuple[bool, int]:
        """Return how many connections of a share wait, behind whether they are those of clients: proxies come last."""
        waiting = self.waiting[share]
        return not self.is_trusted(next(iter(waiting)).address), len(waiting)

    def _close_one_of(self, share: str) -> None:
        for connection in self.waiting.get(share, ()):
            self.leave(connection)  # now: it closes only when the event loop gets to it
            connection.transport.abort()
            return

    def check(self, connection: Connection) -> None:
        """Raise Problem 503 if too many requests are in progress, in all or from the connection's address."""
        working = self.by_share[connection.share] - len(self.waiting.get(connection.share, ()))
        if len(self.open) > CONNECTIONS or (working > PER_ADDRESS and not self.is_trusted(connection.address)):
            raise _too_many()

    def refusal(self, connection: Connection, size: int) -> Response | None:
        """Return a response to send instead of one of this size, if too much waits to be sent already; else None."""
        if size <= SMALL:
            return None
        total = self.unsent(self.open)
        own = self.unsent(other for other in self.open if other.share == connection.share)
        own_limit = UNSENT if self.is_trusted(connection.address) else UNSENT // 2
        if (not total or total + size <= UNSENT) and (not own or own + size <= own_limit):
            return None
        return error_response(Problem(503, "too many responses wait to be read; try again later", {"Retry-After": "5"}))

    @staticmethod
    def unsent(connections: Iterable[Open]) -> int:
        """Return the bytes that wait to be sent."""
        return sum(connection.transport.get_write_buffer_size() for connection in connections)

    def drop_gone(self, now: float, patience: float | None = None) -> None:
        """Close connections whose clients are gone, or do not read.  patience: seconds to read; None is STALLED."""
        for connection in list(self.open):
            if connection.is_half_closed and is_reset(connection.transport.get_extra_info("socket")):
                connection.transport.abort()
            else:
                connection.drop_if_stalled(now, STALLED if patience is None else patience)

    def refuse_unfinished(self) -> None:
        """Close connections whose request body has not arrived completely."""
        for connection in list(self.open):
            if connection.awaits_body:
                connection.refuse(Problem(408, "the request body did not arrive before the service stopped"))


def client_of(transport: asyncio.BaseTransport) -> tuple[str, int]:
    """Return the address and port of a client; an IPv4 address as such, where a socket for IPv6 takes both."""
    address, port = get_remote_addr(transport) or (UNIX, 0)  # type: ignore[arg-type]
    return address.removeprefix("::ffff:") if "." in address else address, port


def _too_many() -> Problem:
    return Problem(503, "too many connections; try again in a moment", {"Retry-After": "1", "Connection": "close"})


class Connection(HttpToolsProtocol):
    """A connection with limits on request headers, and on the time to send them and to read responses."""

    def __init__(self, config: uvicorn.Config, server_state: ServerState, crowd: Crowd) -> None:
        super().__init__(config, server_state, {})
        self.crowd, self.address, self.share = crowd, UNIX, UNIX
        self.awaits_head, self.head, self.url = True, 0, b""  # head: bytes since the last headers or part of a body
        self.head_timer: asyncio.TimerHandle | None = None
        self.is_half_closed, self.takes_more = False, True
        self.active: RequestResponseCycle | None = None  # the request that is answered now, or was last
        self.unsent, self.sent_at, self.send_until = 0, 0.0, 0.0  # bytes; when some were sent last; when all must be

    @property
    def awaits_body(self) -> bool:
        """Whether a part of a request's body is missing."""
        return self.cycle is not None and self.cycle.more_body and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer for the first request."""
        super().connection_made(transport)
        self.client = client_of(transport)
        self.address = self.client[0]
        self.share = self.crowd.share_of(self.address)
        self.head_timer = self.loop.call_later(HEAD_TIME, self._on_head_timeout)
        self.crowd.enter(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._stop_head_timer()
        self.crowd.leave(self)
        if self.active is not None:
            self.cycle = self.active  # the one to stop: those that wait for it never begin
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep a connection whose client has sent all that it wanted to send, until it has its response.

        Such a client looks like one that is gone, until something is sent to it: one that is gone then resets the
        connection, which `Crowd.drop_gone` sees. HTTP/1.1 clients skip the interim response that tells them apart.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive, self.is_half_closed = False, True
        if cycle.scope["http_version"] == "1.1" and cycle is self.active and not cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def data_received(self, data: bytes) -> None:
        """Process received bytes; check the size of headers and trailers, and start the timer of headers."""
        if not self.takes_more:
            return
        self.head += len(data)
        self._unset_keepalive_if_required()
        self._parse(data)
        if self.transport.is_closing() or not self.takes_more:
            return
        if self.head > HEAD:
            kind = "headers" if self.awaits_head else "trailers"
            self.refuse(_too_long(kind))
        elif self.awaits_head and self.head and self.head_timer is None:
            self.head_timer = self.loop.call_later(HEAD_TIME, self._on_head_timeout)

    def _parse(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline(data[offer.args[0] :])
        except httptools.HttpParserError:
            if len(self.pipeline) >= PIPELINED:
                self.refuse(Problem(429, f"more than {PIPELINED} requests wait on one connection"))
            elif len(self.url) < HEAD:
                self.send_400_response("")
            else:  # the parser takes no address of this length
                self.refuse(_too_long("headers"))

    def _decline(self, rest: bytes) -> None:
        """Read a request that offers another protocol (Java's client offers HTTP/2) as if it did not.

        The parser would skip its body.  rest: what was received after its headers.
        """
        if self.parser.get_method() == b"CONNECT":
            self.send_400_response("")
            return
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._parse(b"\r\n".join([*lines, b"", rest]))

    def _on_head_timeout(self) -> None:
        self.head_timer = None
        if self.cycle is None or self.cycle.response_complete:
            self.refuse(Problem(408, f"the request's headers did not arrive within {HEAD_TIME:.0f} s"))
        else:  # it sent a part of the next request while this one is in progress
            self.head_timer = self.loop.call_later(HEAD_TIME, self._on_head_timeout)

    def _stop_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    def on_message_begin(self) -> None:
        """Let the application reach the connection."""
        super().on_message_begin()
        self.scope["connection"] = self  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header; drop trailers, which come after the body: nobody reads them, and uvicorn would keep them."""
        if self.awaits_head:
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        """Pass on a part of the body."""
        self.head = 0
        super().on_body(body)

    def on_headers_complete(self) -> None:
        """Expect the body, whose size is limited where it is read."""
        if self.parser.should_upgrade():  # it comes again: `_decline`
            return
        if len(self.pipeline) >= PIPELINED:
            raise OverflowError  # ends the parsing, see `_parse`
        self.awaits_head, self.head = False, 0
        self._stop_head_timer()
        self.crowd.work(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next request."""
        if self.parser.should_upgrade():
            return
        self.awaits_head, self.head = True, 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self.active = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        """Wait for the next request, unless it has arrived already."""
        if not self.pipeline and not self.transport.is_closing():
            self.crowd.wait(self)
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Respond to bytes that are not HTTP."""
        self.refuse(Problem(400, "not a valid HTTP request"))

    def refuse(self, problem: Problem) -> None:
        """Refuse what the client sends from now on, and close the connection.

        Complete requests that came before get their responses first, and their client no other one; it sees from the
        end of the connection that the rest was not answered.
        """
        self.takes_more = False
        self._stop_head_timer()
        self.crowd.refused(problem, self.address)
        if self.pipeline and self.cycle.more_body:
            self.pipeline.popleft()  # it will never be complete
        last = self.pipeline[0][0] if self.pipeline else self.active
        if last is not None:
            self.cycle = last
        if last is not None and not last.response_complete and not last.more_body:
            last.keep_alive = False
            return
        if last is None or last.response_complete or not last.response_started:
            self.transport.write(_raw(error_response(problem)))
        self.transport.close()

    def drop_if_stalled(self, now: float, patience: float) -> None:
        """Close the connection at once if its client does not read, or reads too slowly."""
        unsent = self.transport.get_write_buffer_size()
        if unsent > self.unsent or not unsent:
            self.send_until = now + patience + unsent / RATE
        if unsent != self.unsent or not unsent:
            self.unsent, self.sent_at = unsent, now
        elif now > self.sent_at + patience:
            self.send_until = now
        if unsent and now >= self.send_until:
            self.transport.abort()


def _too_long(kind: str) -> Problem:
    return Problem(431, f"the request's {kind} exceed {HEAD} bytes")


def _raw(response: Response) -> bytes:
    """Return a response as bytes; the connection ends after it."""
    headers = [*response.raw_headers, *([] if "connection" in response.headers else [(b"connection", b"close")])]
    lines = [STATUS_LINE[response.status_code], *(name + b": " + value + b"\r\n" for name, value in headers)]
    return b"".join([*lines, b"\r\n", bytes(response.body)])
