"""Answers as JSON."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.responses import Response

from zipfel.server.problem import Problem


def answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return an answer that nobody keeps."""
    return Response(orjson.dumps(content), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def error(problem: Problem) -> Response:
    """Return what tells of a problem."""
    return answer({"error": problem.message}, problem.status, problem.headers)
