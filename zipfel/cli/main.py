"""The `zipfel` command."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Annotated

import typer

from zipfel import __version__
from zipfel.cli import data, model
from zipfel.cli.bench import bench
from zipfel.cli.demo import demo
from zipfel.cli.explain import explain
from zipfel.cli.predict import predict
from zipfel.cli.report import report
from zipfel.cli.serve import serve
from zipfel.cli.show import say, warn
from zipfel.errors import ZipfelError

app = typer.Typer(
    help="Tag text with labels from a set of hundreds to millions, most of them rare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        say(f"zipfel {__version__}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")]


@app.callback()
def root(version: Version = False) -> None:
    """Tag text with labels from a set of hundreds to millions, most of them rare."""


COMMANDS = (demo, model.plan, model.train, model.evaluate, predict, explain, report, model.models, model.verify, serve,
            bench)  # fmt: skip
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Run the command line. Errors in the input print one line and exit with code 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # runs `finally` blocks: no half-written files
    try:
        app()
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
        if os.environ.get("ZIPFEL_TRACEBACK"):
            traceback.print_exc()
        warn(f"internal error in zipfel: {type(error).__name__}: {error}")
        warn("(please report it; ZIPFEL_TRACEBACK=1 prints the stack trace)")
        sys.exit(1)
