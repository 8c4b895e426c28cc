"""The log: one JSON object per line on standard error. Texts of requests are never logged."""

from __future__ import annotations

import datetime
import logging
import sys
import traceback
from typing import Any

import orjson


def line(event: str, **more: Any) -> None:
    """Write one line."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    sys.stderr.buffer.write(orjson.dumps({"time": now, "event": event, **more}) + b"\n")
    sys.stderr.buffer.flush()


def failure(event: str, error: BaseException, **more: Any) -> None:
    """Log type and stack frames of an unexpected error, but not its message, which may quote a text."""
    frames = [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(error.__traceback__)]
    line(event, level="error", error=type(error).__name__, frames=frames[-8:], **more)


class JsonLines(logging.Handler):
    """Logging handler for the records of libraries."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record."""
        error = record.exc_info[1] if record.exc_info else None
        message = record.getMessage().strip()
        if error is not None:
            failure("log", error, message=message)
        else:
            line("log", level=record.levelname.lower(), message=message)
