"""`zipfel serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from zipfel.cli.options import with_options
from zipfel.errors import ConfigError, DataError, check_installed
from zipfel.server.settings import ServeSettings, named_folders


@with_options
def serve(
    models: Annotated[
        list[str],
        typer.Argument(metavar="MODEL ...", help="Models to serve: FOLDER or NAME=FOLDER.", show_default=False),
    ],
    settings: ServeSettings,
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token that requests must send; default: $ZIPFEL_TOKEN.")
    ] = None,
) -> None:
    """Serve models over HTTP: POST /tag, /explain; GET /labels, /models, /health, /ready, /metrics, /docs."""
    check_installed("zipfel serve", "serve", "fastapi", "httptools", "uvicorn")
    from zipfel.server.supervisor import serve as start

    raise typer.Exit(start(named_folders(models), settings, _token(token_file)))


def _token(file: Path | None) -> str | None:
    """Return the token from the file, else from the environment; None if there is none."""
    token = os.environ.get("ZIPFEL_TOKEN")
    if file is not None:
        try:
            token = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"cannot be read: {error}", file) from None
    if token is not None and not (token and token.isascii() and token.isprintable() and " " not in token):
        raise ConfigError("the token must be printable ASCII without blanks, and not empty")
    return token
