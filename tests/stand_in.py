"""A server on loopback for tests, in a thread, that runs for a `with` block."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self


class Server:
    """Serves by the given kind of handler, to which `names` are bound as attributes."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], **names: object) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (handler,), names))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
