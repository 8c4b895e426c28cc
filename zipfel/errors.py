"""Errors that zipfel raises on purpose. Each message is one line that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from importlib import import_module
from pathlib import Path

MOST = 30  # names listed in a message
INTERRUPTED = 130  # exit code after Ctrl-C


class ZipfelError(Exception):
    """Base class of all errors caused by the input; the command line prints them and exits with code 2.

    Example:
        >>> from zipfel import read
        >>> try:
        ...     read("no/such/folder")
        ... except ZipfelError as error:
        ...     print(error)
        no/such/folder: no such file or folder
    """


class DataError(ZipfelError, ValueError):
    """A file or an array is invalid. The message starts with `file:line:` if these are known.

    Args:
        problem: what is wrong, and what was expected.
        path: the file.
        line: the line, counted from 1.

    Example:
        >>> str(DataError("expected a number, found 'x'", "train.txt", 17))
        "train.txt:17: expected a number, found 'x'"
    """

    def __init__(self, problem: str, path: Path | str | None = None, line: int | None = None) -> None:
        self.problem, self.path, self.line = problem, path, line
        name = str(path) if str(path).isprintable() else repr(str(path))[1:-1]  # a message stays one line
        where = "" if path is None else f"{name}: " if line is None else f"{name}:{line}: "
        super().__init__(where + problem)


def raised(error: DataError) -> None:
    """Raise an error about a row; what readers do with a bad row by default."""
    raise error


class ConfigError(ZipfelError, ValueError):
    """A setting is unknown or has an invalid value.

    Example:
        >>> from zipfel import TextSettings
        >>> TextSettings(ngrams=0)
        Traceback (most recent call last):
        zipfel.errors.ConfigError: ngrams must be at least 1; found 0
    """


class LostRankError(ZipfelError, RuntimeError):
    """Another process that trains the same model has died."""


class OtherRankError(ZipfelError, RuntimeError):
    """Another process that trains the same model has failed, and says why; this one stops in silence."""


class MissingDependencyError(ZipfelError, ImportError):
    """An optional package is needed but not installed."""

    def __init__(self, package: str, purpose: str, extra: str) -> None:
        super().__init__(f"{purpose} needs {package}: pip install 'zipfel[{extra}]'")
        self.args = (package, purpose, extra)  # pickle calls the constructor with these


def check_installed(purpose: str, extra: str, *packages: str) -> None:
    """Raise MissingDependencyError if a package of an extra is not installed."""
    for package in packages:
        try:
            import_module(package)
        except ImportError:
            raise MissingDependencyError(package, purpose, extra) from None


class ZipfelWarning(UserWarning):
    """Training continues, but a part of the input is not used; the message says which."""


def quoted(value: object, most: int = 60) -> str:
    """Return a value in quotes, as Python writes it; a text of more than `most` characters is cut off within them.

    >>> quoted("apples and pears", 7)
    "'apples…'"
    """
    if isinstance(value, str):
        return repr(value if len(value) <= most else value[: most - 1] + "…")
    written = repr(value)
    return written if len(written) <= most else written[: most - 1] + "…"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name nearest to `name`, ignoring case; None if none is near.

    >>> nearest("Imprt", ["export", "import"])
    'import'
    """
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    return folded[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str], compared: Iterable[str] | None = None) -> str:
    """Return a hint with the known name nearest to `name`, or with a list of known names if none is near.

    compared: the known names to look for a near one in, where all of them are too many; default: all.

    >>> did_you_mean("Lables", ["labels", "text"])
    "; did you mean 'labels'?"
    >>> did_you_mean("zzz", ["labels", "text"])
    '; known are labels, text'
    """
    known = list(known)
    near = nearest(name, known if compared is None else compared)
    if near is not None:
        return f"; did you mean {near!r}?"
    return f"; known are {', '.join(known[:MOST])}{', …' if len(known) > MOST else ''}" if known else ""
