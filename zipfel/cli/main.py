"""The `zipfel` command."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Annotated

import typer
from rich.markup import escape

from zipfel import __version__
from zipfel.cli import data, model
from zipfel.cli.bench import bench
from zipfel.cli.demo import demo
from zipfel.cli.explain import explain
from zipfel.cli.plan import plan
from zipfel.cli.predict import predict
from zipfel.cli.report import report
from zipfel.cli.serve import serve
from zipfel.cli.show import console, warnings
from zipfel.errors import ZipfelError

app = typer.Typer(
    help="Tag text with labels out of hundreds to millions, most of them rare.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")


def _version(wanted: bool) -> None:
    if wanted:
        console.print(f"zipfel {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Tag text with labels out of hundreds to millions, most of them rare."""


COMMANDS = (
    demo, plan, model.train, model.evaluate, predict, explain, report, model.models, model.verify, serve, bench,
)  # fmt: skip
for command in COMMANDS:
    app.command()(command)


def main() -> None:
    """Run the command line: what is the input's fault is told in one line, with exit code 2."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of `finally`, so that nothing is left half-written
    try:
        app()
    except ZipfelError as error:
        warnings.print(f"error: {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except MemoryError:
        warnings.print("error: not enough memory for data of the size that its files claim")
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except Exception as error:
        if os.environ.get("ZIPFEL_TRACEBACK"):
            traceback.print_exc()
        warnings.print(f"error in zipfel itself: {type(error).__name__}: {escape(str(error))}", soft_wrap=True)
        warnings.print("(ZIPFEL_TRACEBACK=1 shows where; please report it)")
        sys.exit(1)
