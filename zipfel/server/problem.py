"""What a request is refused with."""

from __future__ import annotations


class Problem(Exception):  # noqa: N818
    """An answer other than 200: a status, a line that the sender can act on, and maybe headers."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers or {}


def busy(what: str) -> Problem:
    """Return the answer to a request that came when there is too much to do."""
    return Problem(429, f"{what}; try again in a moment", {"Retry-After": "1"})
