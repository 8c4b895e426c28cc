"""The work on a request: its model, and an end to work that takes too long or whose client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from zipfel.server.answers import Problem, gone, json_response
from zipfel.server.catalog import Slot
from zipfel.server.service import Service

Result = TypeVar("Result")


def chosen(
    request: Request, service: Service, model: str | None, version: str | None, texts: int | None = None
) -> Slot:
    """Return the model that a request asks for, and note it for log and metrics."""
    slot, passage = service.catalog.slot(model, version), request.scope["passage"]
    passage.model, passage.version, passage.texts = slot.id, slot.current.version, texts
    return slot


async def answered(request: Request, service: Service, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """Return the response to a request; stop the work if it takes too long or if the client is gone."""
    content = await in_time(request, service, work)
    request.scope["passage"].version = content["model"]["version"]  # a swap may have come in between
    return json_response(content)


async def in_time(request: Request, service: Service, work: Coroutine[Any, Any, Result]) -> Result:
    """Return the result of work; stop it if it takes too long or if the client is gone."""
    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected(request))
    try:
        done, _ = await asyncio.wait(
            {task, watch}, timeout=service.settings.timeout, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        watch.cancel()
        if not task.done():
            task.cancel()
    if task not in done:
        raise gone() if watch in done else too_slow(service.settings.timeout)
    return task.result()


def too_slow(seconds: float) -> Problem:
    """Return the response to a request that took too long."""
    return Problem(503, f"the request took longer than {seconds:g} s; try again later", {"Retry-After": "5"})


async def disconnected(request: Request) -> None:
    """Wait until the client is gone; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
