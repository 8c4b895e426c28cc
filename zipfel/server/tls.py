"""TLS between a socket and a `Connection`, under the limits that hold without it.

With asyncio's own TLS, handshakes count for no limit, nobody sees how much encrypted data waits to be sent, and a
client that closes its half of the connection gets no answer. So this does, with `ssl.SSLObject`, what asyncio does
with it, and leaves out nothing but waiting for the client's last word. (docs/decisions/019-service.md)
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any, cast

from zipfel.errors import ConfigError
from zipfel.server import connection
from zipfel.server.answers import Problem
from zipfel.server.connection import Connection, client_of
from zipfel.server.settings import ServeSettings

BLOCK = 256 << 10  # bytes that are decrypted at a time


def tls_context(settings: ServeSettings) -> ssl.SSLContext:
    """Return a context with the certificate and the key that the files have now.

    A new one each time: a context that has failed to take a certificate has lost the one that it had.
    """
    assert settings.tls_cert is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, _no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = f"the certificate {settings.tls_cert} with the key {settings.tls_key}"
        raise ConfigError(f"cannot use {files}: {error}") from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password; a service has nobody to ask for it")


class Tls(asyncio.Protocol):
    """The protocol of a transport, and itself the transport of `inner`, which begins after the handshake."""

    is_half_closed = awaits_body = False

    def __init__(self, inner: Connection, context: ssl.SSLContext) -> None:
        self.inner, self.context, self.crowd = inner, context, inner.crowd
        self.received, self.encrypted = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.ssl = context.wrap_bio(self.received, self.encrypted, server_side=True)
        self.is_open, self.is_paused, self.stays = False, False, True  # after the handshake; not reading; after the end

    # --- The protocol of a transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the handshake."""
        self.transport, self.loop = transport, asyncio.get_running_loop()
        self.address, self.since = client_of(transport)[0], self.loop.time()
        self.share = self.crowd.share_of(self.address)
        self.crowd.enter(self)

    def data_received(self, data: bytes) -> None:
        """Continue the handshake, or decrypt."""
        self.received.write(data)
        self._continue()

    def eof_received(self) -> bool:
        """Tell the connection that the client has sent all; return whether it stays open nevertheless."""
        return self.is_open and self._ended()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self.crowd.leave(self)
        if self.is_open:
            self.inner.connection_lost(exc)

    def pause_writing(self) -> None:
        """Tell the connection that enough waits to be sent."""
        if self.is_open:
            self.inner.pause_writing()

    def resume_writing(self) -> None:
        """Tell the connection that there is room again."""
        if self.is_open:
            self.inner.resume_writing()

    def _continue(self) -> None:
        try:
            if not self.is_open:
                self._shake_hands()
            while self.is_open and not self.is_paused and not self.is_closing():
                content = self.ssl.read(BLOCK)
                if not content:  # the client's last word
                    self._ended()
                    break
                self.inner.data_received(content)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # no TLS, or broken
            self._flush()
            self.transport.close()
        self._flush()

    def _shake_hands(self) -> None:
        self.ssl.do_handshake()
        self._flush()
        self.crowd.leave(self)
        self.is_open = True
        self.inner.connection_made(cast(asyncio.Transport, self))

    def _ended(self) -> bool:
        if self.stays:
            self.stays = self.inner.eof_received()
            if not self.stays:
                self.close()
        return self.stays

    def _flush(self) -> None:
        """Send the encrypted bytes."""
        if self.encrypted.pending and not self.is_closing():
            self.transport.write(self.encrypted.read())

    # --- A connection during its handshake, as `Crowd` knows it ------------------------------------------------------

    def drop_if_stalled(self, now: float, patience: float) -> None:
        """Close the connection if its handshake takes too long."""
        if now >= self.since + min(patience, connection.HEAD_TIME):
            self.transport.abort()

    def refuse(self, problem: Problem) -> None:
        """Close the connection; there is no way yet to say why."""
        self.transport.abort()
        self.crowd.refused(problem, self.address)

    # --- The transport of `inner` ------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        rest = memoryview(data)
        while rest and not self.is_closing():
            rest = rest[self.ssl.write(rest) :]
        self._flush()

    def close(self) -> None:
        """Say that nothing follows, and close when all is sent; do not wait until the client says so too."""
        if not self.is_closing():
            with suppress(ssl.SSLError):  # the client has not said so yet
                self.ssl.unwrap()
            self._flush()
            self.transport.close()

    def abort(self) -> None:
        """Close at once."""
        self.transport.abort()

    def is_closing(self) -> bool:
        """Whether the connection is closed, or being closed."""
        return self.transport.is_closing()

    def pause_reading(self) -> None:
        """Let the client wait."""
        self.is_paused = True
        self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again, first what is here already."""
        if self.is_paused:
            self.is_paused = False
            self.transport.resume_reading()
            self.loop.call_soon(self._continue)

    def get_write_buffer_size(self) -> int:
        """Return how many encrypted bytes wait to be sent."""
        return self.transport.get_write_buffer_size()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known about the connection."""
        return self.context if name == "sslcontext" else self.transport.get_extra_info(name, default)
