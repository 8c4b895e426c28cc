"""The page's files, served from the package."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.responses import Response

from zipfel.server.answers import NOT_FOUND, Problem

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return content, media type and ETag of each file. They are read once: no request path ever opens a file."""
    by_name = {}
    folder = files("zipfel.server") / "page"
    for entry in folder.iterdir() if folder.is_dir() else ():
        kind = KINDS.get(entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            by_name[entry.name] = (content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return by_name


def page_file(name: str, known: str | None = None) -> Response:
    """Return a file of the page; 304 without content if `known`, the browser's ETag, is current."""
    if name not in _files():
        raise Problem(404, NOT_FOUND)
    content, kind, tag = _files()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # cached, but revalidated: it belongs to this version
    if known == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
