"""Request bodies: their size is limited while they arrive, before they are parsed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from zipfel.server.answers import Problem, busy

HELD = 64 << 20  # bytes of all bodies that a process holds at a time
DISCARDED = 64 << 20  # bytes of a too large body to read and drop, so that its client gets to read the response
PATIENCE = 30.0  # seconds within which a body must arrive
CLOSE = {"Connection": "close"}


class Bodies:
    """Reads request bodies; limits the size of each and of all that are being handled.  limit: bytes of one body."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0

    @asynccontextmanager
    async def of(self, request: Request) -> AsyncIterator[bytes]:
        """Read the body of a request; it counts as held until the block ends."""
        chunks: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._read(request, chunks)
            except TimeoutError:
                raise Problem(408, f"the request body did not arrive within {PATIENCE:.0f} s", CLOSE) from None
            except ClientDisconnect:
                raise Problem(499, "the client disconnected") from None
            yield b"".join(chunks)
        finally:
            self._release(chunks)

    async def _read(self, request: Request, chunks: list[bytes]) -> None:
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or len(declared) > 18 or int(declared) > DISCARDED:
            raise self._too_large(CLOSE)
        problem, seen = None, 0
        async for chunk in request.stream():
            seen += len(chunk)
            if seen > DISCARDED:
                raise self._too_large(CLOSE)
            if problem is None:
                chunks.append(chunk)
                self.held += len(chunk)
                problem = self._problem(seen)
            if problem is not None:
                self._release(chunks)
        if problem is not None:
            raise problem

    def _problem(self, size: int) -> Problem | None:
        """Return a problem if a body of this size, or all bodies together, exceed their limit."""
        if size > self.limit:
            return self._too_large()
        return busy("the server is receiving too many large requests") if self.held > HELD else None

    def _release(self, chunks: list[bytes]) -> None:
        self.held -= sum(map(len, chunks))
        chunks.clear()

    def _too_large(self, headers: dict[str, str] | None = None) -> Problem:
        return Problem(413, f"a request body may have at most {self.limit} bytes", headers)
