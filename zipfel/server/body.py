"""Bodies of requests: counted while they arrive, and refused before anybody parses them."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.requests import ClientDisconnect, Request

from zipfel.server.problem import Problem, busy

HELD = 64 << 20  # bytes of bodies that a process holds at a time
DISCARDED = 64 << 20  # bytes of a body that is too large are read, so that its sender comes to read the answer
PATIENCE = 30.0  # seconds that a body may take to arrive
CLOSE = {"Connection": "close"}


class Bodies:
    """Reads bodies up to a size each, and up to a size of all that are in work."""

    def __init__(self, most: int) -> None:
        self.most, self.held = most, 0

    def of(self, request: Request) -> Body:
        """Return the body of a request, which is read by `async with`, and held until that ends."""
        return Body(self, request)


class Body:
    """One body."""

    def __init__(self, bodies: Bodies, request: Request) -> None:
        self.bodies, self.request, self.size = bodies, request, 0

    async def __aenter__(self) -> bytes:
        """Read it."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self._read()
        except TimeoutError:
            self._release()
            raise Problem(408, f"the body took longer than {PATIENCE:.0f} s", CLOSE) from None
        except ClientDisconnect:
            self._release()
            raise Problem(499, "who sent this has gone") from None
        except BaseException:
            self._release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Count it no longer."""
        self._release()

    def _release(self) -> None:
        self.bodies.held -= self.size
        self.size = 0

    async def _read(self) -> bytes:
        declared = self.request.headers.get("content-length", "0")
        if not declared.isdecimal() or len(declared) > 18 or int(declared) > DISCARDED:
            raise self._too_large(CLOSE)
        chunks, problem, seen = list[bytes](), None, 0
        async for chunk in self.request.stream():
            seen += len(chunk)
            if seen > DISCARDED:
                raise self._too_large(CLOSE)
            if problem is None:
                problem = self._hold(chunk)
                chunks.append(chunk)
            if problem is not None:
                chunks.clear()
                self._release()
        if problem is not None:
            raise problem
        return b"".join(chunks)

    def _hold(self, chunk: bytes) -> Problem | None:
        """Count a chunk as held, and return what is wrong with that."""
        self.size += len(chunk)
        self.bodies.held += len(chunk)
        if self.size > self.bodies.most:
            return self._too_large()
        return busy("too much is being sent at a time") if self.bodies.held > HELD else None

    def _too_large(self, headers: dict[str, str] | None = None) -> Problem:
        return Problem(413, f"a body may have {self.bodies.most} bytes", headers)
