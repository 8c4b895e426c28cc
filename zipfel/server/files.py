"""The page's files, out of the package."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from starlette.responses import Response

from zipfel.server.problem import Problem

KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Return content, kind and tag of each file: read once, and no path of a request ever opens one."""
    found = {}
    folder = files("zipfel.server") / "page"
    for entry in folder.iterdir() if folder.is_dir() else ():
        kind = KINDS.get(entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            found[entry.name] = (content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return found


def page_file(name: str, known: str | None = None) -> Response:
    """Return a file of the page; nothing of it where the browser has it already."""
    if name not in _files():
        raise Problem(404, "nothing is here")
    content, kind, tag = _files()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # kept, but asked for each time: it belongs to this version
    if known == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
