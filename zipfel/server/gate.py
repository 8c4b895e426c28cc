"""Middleware for every request: token, security headers, metrics, logs, and a 500 that reveals nothing."""

from __future__ import annotations

import hmac
import time
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zipfel.server import log
from zipfel.server.answers import FAILURE, Problem, error_response
from zipfel.server.measures import Measures, route_of

OPEN = ("/health", "/ready", "/", "/page")  # routes without a token; the page itself holds no output of the models
HEADERS = [
    (b"content-security-policy", b"default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


@dataclass
class Passage:
    """The outcome of one request, for the log and the metrics."""

    status: int = 0
    texts: int | None = None


class Gate:
    """ASGI middleware around the application."""

    def __init__(self, app: ASGIApp, measures: Measures, token: str | None = None) -> None:
        self.app, self.measures = app, measures
        self.expected = None if token is None else b"Bearer " + token.encode()
        self.draining = False  # while stopping: each response closes its connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        start, passage = time.perf_counter(), Passage()
        scope["passage"] = passage

        async def respond(message: Message) -> None:
            if message["type"] == "http.response.start":
                passage.status = message["status"]
                message["headers"] = [*message.get("headers", ()), *HEADERS, *self._closing()]
            await send(message)

        try:
            app = self.app if self._allowed(scope) else error_response(_no_token())
            await app(scope, receive, respond)
        except Exception as failure:
            log.failure("failure", failure, path=scope["path"][:200])
            if not passage.status:
                await error_response(FAILURE)(scope, receive, respond)
        finally:
            self._record(scope, passage, time.perf_counter() - start)

    def _closing(self) -> list[tuple[bytes, bytes]]:
        return [(b"connection", b"close")] if self.draining else []

    def _allowed(self, scope: Scope) -> bool:
        if self.expected is None or route_of(scope["path"]) in OPEN:
            return True
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        return hmac.compare_digest(given, self.expected)

    def _record(self, scope: Scope, passage: Passage, seconds: float) -> None:
        self.measures.request(route_of(scope["path"]), passage.status, seconds)
        more = {} if passage.texts is None else {"texts": passage.texts}
        log.line("request", method=scope["method"], path=scope["path"][:200], status=passage.status,
                 ms=round(1000 * seconds, 2), **more)  # fmt: skip


def _no_token() -> Problem:
    return Problem(
        401, "missing or wrong token; send the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
    )
