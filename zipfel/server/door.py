"""The listening socket, and how to close it without resetting pending connections."""

from __future__ import annotations

import ctypes
import os
import socket
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from zipfel.errors import ConfigError
from zipfel.server.settings import ServeSettings

_ATTACH_FILTER = 26  # Linux' SO_ATTACH_FILTER, which Python lacks
_DROP_ALL = struct.pack("HBBI", 6, 0, 0, 0)  # a filter of one instruction: drop every packet
_PENDING = 24  # offset in Linux' TCP_INFO of the number of connections waiting to be accepted
_CLOSED = 7  # Linux' TCP_CLOSE, the first byte of TCP_INFO
PATIENCE = 5.0  # seconds to wait until pending connections are accepted
_files: dict[Path, os.stat_result] = {}  # of the Unix sockets that this process has bound
UNIX_PATIENCE = 0.1  # the same for a Unix socket, whose pending connections cannot be counted


@contextmanager
def bound(settings: ServeSettings) -> Iterator[socket.socket]:
    """Make a socket bound to the address; it starts to listen when a process is ready."""
    with _bound_to_port(settings) if settings.unix_socket is None else _bound_to_path(settings.unix_socket) as sock:
        try:
            yield sock
        finally:
            remove_path(settings)


def remove_path(settings: ServeSettings) -> None:
    """Remove the file of a Unix socket, so that nobody connects any more; not that of a service which came after us."""
    path = settings.unix_socket
    ours = None if path is None else _files.pop(path, None)
    if path is not None and ours is not None:
        with suppress(OSError):  # it is gone already
            if os.path.samestat(path.stat(), ours):
                path.unlink()


def _bound_to_path(path: Path) -> socket.socket:
    """Return a Unix socket that its owner and its group may use; replace one that nobody listens on any more."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode):
            with socket.socket(socket.AF_UNIX) as other:
                if other.connect_ex(str(path)) != 0:
                    path.unlink()
        before = os.umask(0o117)
        try:
            sock.bind(str(path))
            _files[path] = path.stat()
        finally:
            os.umask(before)
    except OSError as error:
        sock.close()
        raise ConfigError(f"cannot listen on {path}: {error.strerror or error}") from None
    return sock


def _bound_to_port(settings: ServeSettings) -> socket.socket:
    host, port, sock = settings.host, settings.port, None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, proto, _, address = addresses[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        return sock
    except OSError as error:
        if sock is not None:
            sock.close()
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror}") from None


def ignore_new_connections(sock: socket.socket) -> None:
    """Make the system ignore new connections; pending ones can still be accepted.

    Closing a socket resets all connections that are not accepted yet, although their clients believe that they are
    connected. An ignored client retries a second later and then finds the socket closed. Does nothing for Unix sockets
    and on systems other than Linux.
    """
    if sock.family == socket.AF_UNIX:
        return
    program = ctypes.create_string_buffer(_DROP_ALL, len(_DROP_ALL))
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def pending_connections(sock: socket.socket) -> int:
    """Return how many connections wait to be accepted; 0 if the system does not report it."""
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
    except (OSError, AttributeError):
        return 0
    return int(struct.unpack_from("I", info, _PENDING)[0])


def is_reset(sock: socket.socket) -> bool:
    """Whether the client has reset a connection; False if the system does not report it."""
    try:
        return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSED)
    except (OSError, AttributeError):
        return False


def wait_until_accepted(sock: socket.socket) -> None:
    """Wait until other processes have accepted all pending connections, at most PATIENCE seconds."""
    if sock.family == socket.AF_UNIX:
        time.sleep(UNIX_PATIENCE)
    end = time.monotonic() + PATIENCE
    while pending_connections(sock) and time.monotonic() < end:
        time.sleep(0.01)
