"""The socket that the service listens on, and how it is closed without turning away anybody who is in line."""

from __future__ import annotations

import ctypes
import socket
import struct
import time
from contextlib import suppress

from zipfel.errors import ConfigError
from zipfel.server.settings import ServeSettings

_ATTACH_FILTER = 26  # Linux' SO_ATTACH_FILTER, which Python does not name
_RETURN_NOTHING = struct.pack("HBBI", 6, 0, 0, 0)  # a filter of one instruction: drop every packet
_IN_LINE = 24  # where Linux' TCP_INFO of a socket that listens tells how many are waiting to be accepted
PATIENCE = 5.0  # seconds that those in line may take to be accepted


def bound(settings: ServeSettings) -> socket.socket:
    """Return a socket at the address; it begins to listen when a process is ready to answer."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise _cannot_listen(settings, error) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise _cannot_listen(settings, error) from None
    return sock


def _cannot_listen(settings: ServeSettings, error: OSError) -> ConfigError:
    return ConfigError(f"cannot listen on {settings.host} port {settings.port}: {error.strerror}")


def let_nobody_in(sock: socket.socket) -> None:
    """Have the system ignore new connections; those who are in line still can be accepted.

    To close a socket resets all connections that nobody has accepted yet, though their senders believe that they are
    through. Who is ignored tries again a second later, and then finds the socket closed. Elsewhere than on Linux
    nothing is done.
    """
    program = ctypes.create_string_buffer(_RETURN_NOTHING, len(_RETURN_NOTHING))
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def in_line(sock: socket.socket) -> int:
    """Return how many connections wait to be accepted, as far as the system tells."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except (OSError, AttributeError):
        return 0
    return int(struct.unpack_from("I", told, _IN_LINE)[0])


def wait_for_line(sock: socket.socket) -> None:
    """Wait until other processes have accepted all that are in line."""
    end = time.monotonic() + PATIENCE
    while in_line(sock) and time.monotonic() < end:
        time.sleep(0.01)
