"""`zipfel serve`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from zipfel.cli.options import with_options
from zipfel.errors import ConfigError, check_installed
from zipfel.server.settings import ServeSettings, Sources, named_folders


@with_options
def serve(
    settings: ServeSettings,
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL", help="Models to serve: FOLDER or NAME=FOLDER.", show_default=False),
    ] = None,
    models_file: Annotated[
        Path | None, typer.Option(help="TOML file with the models, instead of MODEL; read again on SIGHUP.")
    ] = None,
) -> None:
    """Serve models over HTTP: POST /tag, /explain, /candidates, /ground; GET /labels, /models, /health, ..., /docs."""
    if os.name != "posix":
        raise ConfigError("zipfel serve needs Linux or macOS; on Windows, use WSL or a container")
    from zipfel.server.signals import signals_wait

    with signals_wait():
        check_installed("zipfel serve", "serve", "fastapi", "httptools", "uvicorn")
        from zipfel.server.supervisor import serve as start

        if bool(models) == bool(models_file):
            raise ConfigError("expected either folders of models or --models-file")
        folders = {name: [folder] for name, folder in named_folders(models or []).items()}
        raise typer.Exit(start(Sources(folders, models_file), settings))
