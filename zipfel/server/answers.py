"""JSON responses, and errors that become such."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response


class Problem(Exception):  # noqa: N818
    """An error response: a status, a message that the client can act on, and optional headers."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


NOT_FOUND = "not found; /docs lists the routes"
FAILURE = Problem(500, "internal server error; the server's log has the details")


def gone() -> Problem:
    """Return the outcome of a request whose client is gone; nobody gets to see it."""
    return Problem(499, "the client disconnected")


def busy(reason: str) -> Problem:
    """Return the response to a request that comes under overload."""
    return Problem(429, f"{reason}; try again in a moment", {"Retry-After": "1"})


def json_response(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a JSON response that must not be cached."""
    return Response(orjson.dumps(content), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def error_response(problem: Problem) -> Response:
    """Return the response to a refused or failed request."""
    return json_response({"error": problem.message}, problem.status, problem.headers)
