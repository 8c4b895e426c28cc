"""The `zipfel` command."""

from __future__ import annotations

import ast
import os
import signal
import sys
import traceback
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from zipfel import __version__
from zipfel.cli.show import say, warn
from zipfel.errors import INTERRUPTED, ZipfelError

COMMANDS = {  # command to its module, in which it has the same name; `data` is a group: the `app` of its module
    "demo": "zipfel.cli.demo",
    "plan": "zipfel.cli.model",
    "train": "zipfel.cli.model",
    "tune": "zipfel.cli.tune",
    "evaluate": "zipfel.cli.model",
    "predict": "zipfel.cli.predict",
    "explain": "zipfel.cli.explain",
    "report": "zipfel.cli.report",
    "models": "zipfel.cli.model",
    "verify": "zipfel.cli.model",
    "card": "zipfel.cli.share",
    "push": "zipfel.cli.share",
    "pull": "zipfel.cli.share",
    "shard": "zipfel.cli.shards",
    "merge": "zipfel.cli.shards",
    "upgrade": "zipfel.cli.shards",
    "serve": "zipfel.cli.serve",
    "corrections": "zipfel.cli.corrections",
    "suggest": "zipfel.cli.suggest",
    "mcp": "zipfel.cli.mcp",
    "bench": "zipfel.cli.bench",
    "data": "zipfel.cli.data",
}
GROUPS = ("data",)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"zipfel {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]


def root(version: Version = False) -> None:
    """Tag text with labels from a set of hundreds to millions, most of them rare."""


def app_for(wanted: str | None) -> typer.Typer:
    """Return the command line; only the wanted command is imported, the others are there for help and suggestions."""
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name, module in COMMANDS.items():
        if name != wanted:
            app.command(name, help=summary(module, name))(lambda: None)
        elif name in GROUPS:
            app.add_typer(import_module(module).app, name=name)
        else:
            app.command(name)(getattr(import_module(module), name))
    return app


def summary(module: str, name: str) -> str:
    """Return the docstring of a command, or of a group's module, without importing it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_bytes())
    own = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    return ast.get_docstring(tree if name in GROUPS else own[0]) or ""


def usage(error: Any) -> str:
    """Return in one line which words of a command are wrong, and where its help is; empty if help was shown instead."""
    problem = " ".join(error.format_message().split()).removesuffix(".")
    if not problem or type(error).__name__ == "NoArgsIsHelpError":
        return ""
    for wrong in getattr(error.__cause__, "errors", list)():  # of pydantic, which typer does not quote
        problem += f"; found {wrong['input']!r:.60}"
    options = [] if error.ctx is None else error.ctx.command.params
    if type(error).__name__ == "NoSuchOption" and any("--set" in option.opts for option in options):
        problem += "; settings of a model are given as --set key=value"
    command = "zipfel" if error.ctx is None else error.ctx.command_path
    return f"{problem[0].lower()}{problem[1:]} (see `{command} --help`)"


def main() -> None:
    """Run the command line. Errors in the input print one line and exit with code 2."""
    try:
        _run()
    except SystemExit as stop:
        if "zipfel.cli.ranks" in sys.modules:
            sys.modules["zipfel.cli.ranks"].end(stop.code)
        raise


def _run() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs `finally` blocks: no half-written files
    try:
        app = app_for(next((word for word in sys.argv[1:] if not word.startswith("-")), None))
        sys.exit(app(prog_name="zipfel", standalone_mode=False) or 0)  # alone, typer draws a box around its errors
    except (KeyboardInterrupt, typer.Abort):  # while a command is imported, and from older versions of typer
        sys.exit(INTERRUPTED)
    except ZipfelError as error:
        warn(f"error: {error}")
        sys.exit(2)
    except MemoryError:
        warn("error: not enough memory for data of the size that its files declare")
        sys.exit(2)
    except BrokenPipeError:  # the reader of the pipe has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if hasattr(error, "format_message"):  # of typer, which has no public name for all of them
            if problem := usage(error):
                warn(f"error: {problem}")
            sys.exit(2)
        if os.environ.get("ZIPFEL_TRACEBACK"):
            traceback.print_exc()
        if isinstance(error, OSError) and error.filename is not None:  # such as a file that may not be written
            warn(f"error: {error.filename}: {error.strerror}")
            sys.exit(2)
        warn(f"internal error in zipfel: {type(error).__name__}: {error}")
        warn("(please report it; ZIPFEL_TRACEBACK=1 prints the stack trace)")
        sys.exit(1)
