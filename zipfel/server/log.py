"""The log: one JSON object per line on standard error. Texts of requests are never logged.

A service must not wait for its log: with `start`, a thread writes the lines. Lines that standard error does not take
(a full disk) or that are too many to wait (a stalled pipe) are dropped and counted, and no caller ever sees an error.
"""

from __future__ import annotations

import datetime
import json
import logging
import os
import select
import threading
import traceback
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import orjson

STDERR = 2
LAST_LINES = 2.0  # seconds to write the last lines at the end
WAITING = 10_000  # lines that may wait to be written


class Writer(threading.Thread):
    """Writes lines in the background. A daemon: a stalled pipe must not keep the process from ending."""

    def __init__(self) -> None:
        super().__init__(name="log", daemon=True)
        self.lines: SimpleQueue[bytes | threading.Event] = SimpleQueue()  # put may be called in a signal handler
        self.lost = self.reported = 0
        self.torn = False  # whether the last line was cut off

    def put(self, line: bytes) -> None:
        """Queue a line, or drop it if too many are waiting."""
        if self.lines.qsize() < WAITING:
            self.lines.put(line)
        else:
            self.lost += 1

    def flush(self, seconds: float) -> None:
        """Wait until all lines are written, but no longer than this."""
        written = threading.Event()
        self.lines.put(written)
        written.wait(seconds)

    def run(self) -> None:
        """Write lines for ever."""
        while True:
            line = self.lines.get()
            if isinstance(line, threading.Event):
                line.set()
                continue
            try:
                self._write(line)
            except OSError:
                self.lost += 1

    def _write(self, line: bytes) -> None:
        lost = self.lost
        if lost > self.reported:
            line = _line("log lines lost", level="error", lines=lost - self.reported) + line
        rest = b"\n" + line if self.torn else line
        self.torn = False
        while rest:
            rest = rest[_written(rest) :]
            self.torn = bool(rest)
        self.reported = lost


def _written(content: bytes) -> int:
    """Write to standard error and return the number of bytes it took; wait if another process made it non-blocking."""
    try:
        return os.write(STDERR, content)
    except BlockingIOError:
        select.select([], [STDERR], [], 1.0)
        return 0


_writer: Writer | None = None


def start() -> None:
    """Write in the background from now on."""
    global _writer
    if _writer is None:
        _writer = Writer()
        _writer.start()


def flush(seconds: float = LAST_LINES) -> None:
    """Wait until all lines are written, but no longer than this."""
    if _writer is not None:
        _writer.flush(seconds)


def lost() -> int:
    """Return how many lines of this process could not be written."""
    return 0 if _writer is None else _writer.lost


def line(event: str, **more: Any) -> None:
    """Write one line."""
    content = _line(event, **more)
    if _writer is not None:
        _writer.put(content)
        return
    with suppress(OSError):  # there is nobody to tell
        os.write(STDERR, content)


def _line(event: str, **more: Any) -> bytes:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
    content = {"time": now, "event": event, **more}
    try:
        return orjson.dumps(content) + b"\n"
    except TypeError:  # orjson refuses what is not UTF-8, such as some file names
        return json.dumps(content, default=repr).encode() + b"\n"


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
