"""Errors that zipfel raises on purpose. Each message is one line a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import Path

MOST = 30  # names that a message lists


class ZipfelError(Exception):
    """Base of all errors that are the input's fault; the command line prints them and exits with 2."""


class DataError(ZipfelError, ValueError):
    """Something is wrong with a file or an array. The message starts with `file:line: ` where they are known."""

    def __init__(self, problem: str, path: Path | str | None = None, line: int | None = None) -> None:
        self.problem, self.path, self.line = problem, path, line
        name = str(path) if str(path).isprintable() else repr(str(path))[1:-1]  # a message stays one line
        where = "" if path is None else f"{name}: " if line is None else f"{name}:{line}: "
        super().__init__(where + problem)


class ConfigError(ZipfelError, ValueError):
    """A setting is unknown or has a value that is not allowed."""


class MissingDependencyError(ZipfelError, ImportError):
    """An optional package is needed and not installed."""

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'zipfel[{extra}]'")
        self.args = (package, purpose, extra)  # what pickle hands back to this constructor


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint that offers the known name nearest to `name`, or lists what is known.

    >>> did_you_mean("lables", ["labels", "text"])
    "; did you mean 'labels'?"
    >>> did_you_mean("zzz", ["labels", "text"])
    '; known are labels, text'
    """
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"; did you mean {nearest[0]!r}?"
    return f"; known are {', '.join(known[:MOST])}{', …' if len(known) > MOST else ''}" if known else ""
