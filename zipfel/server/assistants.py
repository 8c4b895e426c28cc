"""A model as tools of an assistant, by the Model Context Protocol."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

from zipfel import __version__
from zipfel.errors import ConfigError, ZipfelError, quoted
from zipfel.grounding import LONGEST
from zipfel.tagger import Tagger
from zipfel.tagging import Request

ABOUT = "Tags texts with the labels of one fixed vocabulary. Answer with these labels only; never invent one."


def _told(tool: Callable[..., dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """Return a tool whose errors in the input reach the assistant as one line; the SDK would hide them."""

    @functools.wraps(tool)
    def told(*given: Any, **named: Any) -> dict[str, Any]:
        try:
            return tool(*given, **named)
        except ZipfelError as error:
            raise ToolError(str(error)) from None

    return told


def _id(tagger: Tagger, name: str) -> int:
    """Return the id of a label by its name or title; an error names the one that is most like an unknown one."""
    labels = tagger.labels_
    id = labels.live.get(labels.named(name))
    if id is None:
        near = tagger.ground(name[:LONGEST], 1)
        hint = f"; did you mean {labels.title(near[0].label)!r}?" if near else ""
        raise ConfigError(f"unknown label {quoted(name)}{hint}")
    return id


def server_of(tagger: Tagger, name: str) -> MCPServer:
    """Return a server with the tools `tag`, `candidates`, `ground` and `label` of a model."""
    server = MCPServer(name, instructions=ABOUT, version=__version__, log_level="WARNING")

    @server.tool()
    @_told
    def tag(text: str, k: int = 5) -> dict[str, Any]:
        """Return up to k labels of a text, best first, with their probabilities."""
        return {"tags": tagger.tag([Request([text], k)])[0].items()[0]}

    @server.tool()
    @_told
    def candidates(text: str, k: int = 50) -> dict[str, Any]:
        """Return k existing labels that may fit a text, with their texts and paths, to choose from."""
        return {"candidates": [each._asdict() for each in tagger.candidates(text, k)]}

    @server.tool()
    @_told
    def ground(phrase: str, k: int = 5) -> dict[str, Any]:
        """Return existing labels that a phrase may mean, with the probability of each, if one is meant."""
        return {"labels": [each._asdict() for each in tagger.ground(phrase, k)]}

    @server.tool()
    @_told
    def label(name: str) -> dict[str, Any]:
        """Return the text of a label, given by its name or title, its number of training texts and its paths."""
        labels = tagger.labels_
        id = _id(tagger, name)
        text, own = labels.texts[id] if labels.texts else "", labels.names[id]
        paths = [[labels.title(above) for above in path] for path in labels.paths(own)]
        return {"label": own, "text": text, "count": labels.counts[id], "paths": paths,
                **({"title": labels.title(own)} if labels.titles else {})}  # fmt: skip

    return server
