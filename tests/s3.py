"""A stand-in for a store that speaks S3 on loopback: what pyarrow asks for to list a bucket and to read objects."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tests.stand_in import Server

KEY = "reader"  # whose requests are answered


class StandIn(Server):
    """The server of one bucket; `with StandIn({"in/a.csv": b"..."}) as store: store.environment`."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        self.objects, self.ranges = objects, list[str]()
        super().__init__(_Handler, store=self)
        self.environment = {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "eu-central-1",
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: StandIn

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        _, _, key = unquote(url.path).lstrip("/").partition("/")
        if f"Credential={KEY}/" not in self.headers.get("Authorization", ""):
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>no such key</Message></Error>")
        elif not key:
            asked = {name: values[0] for name, values in parse_qs(url.query).items()}
            self._answer(200, self._listed(asked.get("prefix", ""), asked.get("delimiter")))
        elif key not in self.store.objects:
            self._answer(404, b"")
        else:
            self._read(self.store.objects[key])

    def do_HEAD(self) -> None:
        self.do_GET()

    def _read(self, content: bytes) -> None:
        about = {"Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT", "ETag": '"1"'}
        wanted = self.headers.get("Range")
        if wanted is None:
            self._answer(200, content, **about)
            return
        first, last = (int(end) for end in wanted.removeprefix("bytes=").split("-"))
        self.store.ranges.append(wanted)
        about["Content-Range"] = f"bytes {first}-{min(last, len(content) - 1)}/{len(content)}"
        self._answer(206, content[first : last + 1], **about)

    def _listed(self, prefix: str, delimiter: str | None) -> bytes:
        keys = [key for key in sorted(self.store.objects) if key.startswith(prefix)]
        if delimiter is not None:
            keys = [key for key in keys if delimiter not in key[len(prefix) :]]
        entries = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.store.objects[key])}</Size>"
            "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            for key in keys
        )
        count = f"<IsTruncated>false</IsTruncated><KeyCount>{len(keys)}</KeyCount>"
        return f"<ListBucketResult>{count}{entries}</ListBucketResult>".encode()

    def _answer(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
