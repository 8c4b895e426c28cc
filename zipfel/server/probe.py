"""Whether the service of this container is ready: `python -m zipfel.server.probe`, the health check of the image.

It asks where the service listens, which the options of the container's first process say. It imports little, because
it runs every few seconds.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

PATIENCE = 2.0  # seconds


class Address(NamedTuple):
    """Where a service listens."""

    port: int
    tls: bool
    unix_socket: str | None


def address_of(words: Sequence[str]) -> Address:
    """Return where a service listens that was started with these words."""
    options: dict[str, str] = {}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        options[name] = value if equals else following
    return Address(int(options.get("--port", 8000)), "--tls-cert" in options, options.get("--unix-socket"))


def is_ready(address: Address) -> bool:
    """Ask the service whether it is ready."""
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=PATIENCE)
    connection.sock = _connected(address)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    finally:
        connection.close()


def _connected(address: Address) -> socket.socket:
    if address.unix_socket is None:
        sock = socket.create_connection(("127.0.0.1", address.port), PATIENCE)
    else:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(PATIENCE)
        try:
            sock.connect(address.unix_socket)
        except OSError:
            sock.close()
            raise
    if not address.tls:
        return sock
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is ourselves, under a name of our choice
    return context.wrap_socket(sock)


def main(command_line: Path = Path("/proc/1/cmdline")) -> int:
    """Return 0 if the service is ready, else 1."""
    words = command_line.read_bytes().decode(errors="surrogateescape").split("\0")
    try:
        return 0 if is_ready(address_of(words)) else 1
    except (OSError, http.client.HTTPException):
        return 1


if __name__ == "__main__":
    sys.exit(main())
