"""`zipfel mcp`."""

from __future__ import annotations

from zipfel.cli.options import Model
from zipfel.errors import DataError, check_installed


def mcp(model: Model) -> None:
    """Offer a model to assistants over standard input and output (Model Context Protocol)."""
    check_installed("zipfel mcp", "mcp", "mcp")
    from zipfel.server.assistants import server_of
    from zipfel.tagger import Tagger

    tagger = Tagger.load(model, "cpu")
    if tagger.features_ is None or tagger.features_.vectors:
        raise DataError("was fitted on features or vectors; assistants need a model fitted on texts alone", model)
    server_of(tagger, model.name).run()
