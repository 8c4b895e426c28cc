"""Who may use the service: host names that requests are for, and named tokens."""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Mapping
from hashlib import sha256
from ipaddress import ip_address
from pathlib import Path

from zipfel.errors import ConfigError, DataError
from zipfel.server.answers import Problem
from zipfel.server.settings import ServeSettings

ONLY = "default"  # name of a token that has none


class Hosts:
    """The hosts that a request may be for, against DNS rebinding.

    A web page can make its own name resolve to this machine, and then read what we answer; but its requests carry that
    name in `Host`. So names must be known. IP addresses cannot be rebound.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = {name.lower() for name in names}

    @classmethod
    def of(cls, settings: ServeSettings) -> Hosts:
        """Return the allowed hosts; without any named, all are allowed unless the service is on loopback."""
        local = settings.unix_socket is None and (settings.host == "localhost" or _is_loopback(settings.host))
        return cls(settings.allowed_hosts or (() if local else ("*",)))

    def check(self, header: bytes | None) -> None:
        """Check the header `Host`; raise Problem 421 if its host is not allowed."""
        host = _host_of(header or b"")
        if not self._allows(host):
            raise Problem(
                421, f"host {host[:100]!r} is not allowed; the server's option --allowed-hosts names those that are"
            )

    def _allows(self, host: str) -> bool:
        if "*" in self.names or host in ("", "localhost") or host in self.names or _is_address(host):
            return True
        parts = host.split(".")
        return any(f"*.{'.'.join(parts[first:])}" in self.names for first in range(1, len(parts)))


def _host_of(header: bytes) -> str:
    """Return the host of a header `Host`, without port, brackets and the dot that may end a name."""
    text = header.decode("latin-1").strip().lower()
    if text.startswith("["):
        address, _, port = text[1:].partition("]")
        return address if port == "" or port.startswith(":") else text
    return text.partition(":")[0].removesuffix(".")


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return _is_address(host) and ip_address(host).is_loopback


class Tokens:
    """Tokens by name; without any, requests need none. They are kept as digests, whose comparison takes equal time."""

    def __init__(self, tokens: Mapping[str, str], file: Path | None = None) -> None:
        self.file = file
        self.digests = {name: _digest(token.encode()) for name, token in tokens.items()}

    @classmethod
    def of(cls, file: Path | None) -> Tokens:
        """Read the tokens from a file; without one, from the environment."""
        if file is not None:
            return cls(_read_tokens(file), file)
        token = os.environ.get("ZIPFEL_TOKEN")
        if token is None:
            return cls({})
        _check_token(token)
        return cls({ONLY: token})

    def read_again(self) -> None:
        """Replace the tokens by those that the file has now."""
        if self.file is not None:
            self.digests = Tokens.of(self.file).digests

    def name_of(self, header: bytes | None) -> str | None:
        """Return the name of the token in a header `Authorization`; None if it has no known one."""
        scheme, _, token = (header or b"").strip().partition(b" ")
        given, name = _digest(token.strip()), None
        for known, digest in self.digests.items():
            if hmac.compare_digest(given, digest) and scheme.lower() == b"bearer":
                name = known
        return name

    def __bool__(self) -> bool:
        """Whether requests need a token."""
        return bool(self.digests)


def _digest(token: bytes) -> bytes:
    return sha256(token).digest()


def _read_tokens(file: Path) -> dict[str, str]:
    """Read lines of `NAME TOKEN`, or a line with one token; blank lines and those that begin with # are skipped."""
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot be read: {error}", file) from None
    tokens: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        *names, token = line.split()
        name = names[0] if names else ONLY
        try:
            _check_token(token)
        except ConfigError as error:
            raise DataError(str(error), file, number) from None
        if len(names) > 1 or name in tokens:
            problem = (
                f"expected NAME TOKEN; found {len(names) + 1} words" if len(names) > 1 else f"a second token {name!r}"
            )
            raise DataError(problem, file, number)
        tokens[name] = token
    if not tokens:
        raise DataError("has no token", file)
    return tokens


def _check_token(token: str) -> None:
    if not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("the token must be printable ASCII without blanks, and not empty")
