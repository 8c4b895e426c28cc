"""`zipfel shard` and `zipfel merge`: change the number of files that a saved model's labels lie in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from zipfel.cli.options import Model
from zipfel.cli.show import say
from zipfel.data.formats.atomic import check_new

Out = Annotated[Path, typer.Argument(metavar="OUT", help="Folder to write; must not exist.", show_default=False)]
Count = Annotated[
    int, typer.Option("--shards", help="Number of files, by ranges of labels.", min=1, show_default=False)
]


def shard(model: Model, out: Out, shards: Count) -> None:
    """Write a saved model with its labels in several files, by ranges of labels; it ranks as before."""
    _write(model, out, shards)


def merge(model: Model, out: Out) -> None:
    """Write a saved model that lies in several files with one file of weights; it ranks as before."""
    _write(model, out, 1)


def _write(model: Path, out: Path, count: int) -> None:
    from zipfel import persistence

    check_new(out)
    by_label, all_bytes = persistence.reshard(persistence.located(model), out, count)
    if count == 1:
        say(f"{out}: one file, {all_bytes / 1e6:,.1f} MB")
    else:
        say(f"{out}: {count} shards hold {by_label / 1e6:,.1f} MB by label, of {all_bytes / 1e6:,.1f} MB")
