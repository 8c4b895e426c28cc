"""Middleware for every request: host, token, security headers, metrics, logs, and a 500 that reveals nothing."""

from __future__ import annotations

import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zipfel.server import log
from zipfel.server.access import Hosts, Tokens
from zipfel.server.answers import FAILURE, Problem, error_response
from zipfel.server.connection import Connection
from zipfel.server.measures import Measures, route_of
from zipfel.server.settings import ServeSettings

# Routes without a token: the page and the description of the API are the same for all models, and links bear no token.
OPEN = ("/health", "/ready", "/", "/page", "/docs", "/openapi.json")
ALWAYS = ("/health", "/ready", "/metrics")  # routes that are answered under overload, too
GZIP_FROM, GZIP_LEVEL = 1024, 4  # bytes; JSON of tags shrinks to a quarter, higher levels gain little
NO_TOKEN = Problem(
    401, "missing or wrong token; send the header Authorization: Bearer TOKEN", {"WWW-Authenticate": "Bearer"}
)
REQUEST_ID = re.compile(rb"[!-~]{1,100}")
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

    id: str
    start: float = field(default_factory=time.perf_counter)
    status: int = 0
    texts: int | None = None
    model: str | None = None
    version: str | None = None
    token: str | None = None

    def details(self) -> dict[str, Any]:
        """Return what is known beside the status."""
        details = {"texts": self.texts, "model": self.model, "version": self.version, "token": self.token}
        return {name: value for name, value in details.items() if value is not None}


class Gate:
    """ASGI middleware around the application."""

    def __init__(
        self, app: ASGIApp, measures: Measures, settings: ServeSettings | None = None, tokens: Tokens | None = None
    ) -> None:
        settings = settings or ServeSettings()
        self.measures, self.root = measures, settings.root_path
        self.tokens, self.hosts = tokens or Tokens({}), Hosts.of(settings)
        self.app = self._with_token(GZipMiddleware(app, GZIP_FROM, GZIP_LEVEL))
        if settings.cors_origins:  # outside of the token, because browsers send none with the question whether they may
            self.app = CORSMiddleware(
                self.app, allow_origins=settings.cors_origins, allow_methods=["GET", "HEAD", "POST"],
                allow_headers=["Authorization", "Content-Type", "X-Request-Id"], expose_headers=["X-Request-Id"],
            )  # fmt: skip
        self.draining = False  # while stopping: each response closes its connection

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
        passage = Passage(given.decode() if REQUEST_ID.fullmatch(given) else secrets.token_hex(8))
        path = self._path(scope["path"])
        scope = {**scope, "passage": passage, "path": self.root + path, "root_path": self.root, "route_path": path}
        answer = _Answer(scope, send, self)
        scope["method"] = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            try:
                self._check(scope)
                app = self.app if path else RedirectResponse(f"{self.root}/", 308)
                await app(scope, receive, answer.send)
            except Problem as problem:
                await error_response(problem)(scope, receive, answer.send)
            except Exception as failure:
                log.failure("failure", failure, id=passage.id, path=path[:200])
                if not passage.status:
                    await error_response(FAILURE)(scope, receive, answer.send)
        finally:
            self._record(answer.method, path, scope.get("client"), passage)

    def _path(self, path: str) -> str:
        """Return a path without the root path, which some proxies remove and others do not."""
        return path[len(self.root) :] if path == self.root or path.startswith(f"{self.root}/") else path

    def _check(self, scope: Scope) -> None:
        """Raise Problem if the request is for another host, or if there are too many requests."""
        connection: Connection | None = scope.get("connection")
        hosts = [value for name, value in scope["headers"] if name == b"host"]
        if len(hosts) > 1:  # a proxy may have looked at another one than we do
            raise Problem(400, f"a request must have one header Host; found {len(hosts)}")
        if scope["route_path"] not in ALWAYS:
            self.hosts.check(hosts[0] if hosts else None)
            if connection is not None:
                connection.crowd.check(connection)

    def _with_token(self, app: ASGIApp) -> ASGIApp:
        """Return an application that requires a token, if there are any."""

        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if self.tokens:
                passage: Passage = scope["passage"]
                passage.token = self.tokens.name_of(Headers(scope=scope).get("authorization", "").encode("latin-1"))
                if passage.token is None and route_of(scope["route_path"]) not in OPEN:
                    await error_response(NO_TOKEN)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return checked

    def refused(self, problem: Problem, client: str) -> None:
        """Record a response to what was no request yet."""
        self.measures.request("other", problem.status, 0.0)
        log.line("refused", status=problem.status, client=client, error=problem.message)

    def _record(self, method: str, path: str, client: tuple[str, int] | None, passage: Passage) -> None:
        seconds = time.perf_counter() - passage.start
        self.measures.request(route_of(path), passage.status, seconds)
        if passage.version is not None and passage.model is not None:
            self.measures.model(passage.model).request(passage.status, seconds)
        log.line("request", id=passage.id, client=client and client[0], method=method, path=path[:200],
                 status=passage.status, ms=round(1000 * seconds, 2), **passage.details())  # fmt: skip


class _Answer:
    """Sends a response: adds headers, drops the body of HEAD, and replaces one that there is no room for."""

    def __init__(self, scope: Scope, send: Send, gate: Gate) -> None:
        self.connection: Connection | None = scope.get("connection")
        self.method, self.passage, self.gate, self._send = scope["method"], scope["passage"], gate, send
        self.replaced = False

    async def send(self, message: Message) -> None:
        """Send a part of the response."""
        if self.replaced:
            return
        if message["type"] != "http.response.start":
            await self._send({**message, "body": b""} if self.method == "HEAD" else message)
            return
        response, headers = None, list(message.get("headers", ()))
        if self.connection is not None and self.method != "HEAD":
            size = next((int(value) for name, value in headers if name == b"content-length"), 0)
            response = self.connection.crowd.refusal(self.connection, size)
        if response is None:
            await self._start(message["status"], headers)
        else:
            self.replaced = True
            await self._start(response.status_code, response.raw_headers)
            await self._send({"type": "http.response.body", "body": response.body})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.passage.status = status
        closing = [(b"connection", b"close")] if self.gate.draining else []
        own = [*HEADERS, (b"x-request-id", self.passage.id.encode()), *closing]
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})
