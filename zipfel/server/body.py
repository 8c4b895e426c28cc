"""Request bodies: their size is limited while they arrive and are unpacked, before they are parsed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import ClientDisconnect, Request

from zipfel.server.answers import Problem, busy, gone

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
        packed = _is_packed(request)
        try:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._read(request, chunks)
            except TimeoutError:
                raise Problem(408, f"the request body did not arrive within {PATIENCE:.0f} s", CLOSE) from None
            except ClientDisconnect:
                raise gone() from None
            yield self._unpacked(chunks) if packed else b"".join(chunks)
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

    def _unpacked(self, chunks: list[bytes]) -> bytes:
        """Unpack a body, up to the limit; what is unpacked counts as held."""
        decoder = zlib.decompressobj(16 + zlib.MAX_WBITS)
        try:
            content = decoder.decompress(b"".join(chunks), self.limit + 1)
        except zlib.error:
            raise Problem(400, "the request body is not valid gzip") from None
        if len(content) > self.limit:
            raise self._too_large()
        if not decoder.eof or decoder.unused_data:
            raise Problem(400, "the request body is not valid gzip")
        chunks.append(content)
        self.held += len(content)
        return content

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


def _is_packed(request: Request) -> bool:
    """Whether the body is compressed; raise Problem 415 for a compression that we do not know."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise Problem(415, f"unknown Content-Encoding {encoding[:40]!r}; known are gzip and identity")
    return encoding == "gzip"
