"""`zipfel shard`, `merge`, `upgrade`: rewrite a saved model, in several files, in one, or as it is written today."""

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
    """Split the labels of a saved model over several files; rankings stay the same."""
    _write(model, out, shards)


def merge(model: Model, out: Out) -> None:
    """Join the files of a sharded model into one; rankings stay the same."""
    _write(model, out, 1)


def upgrade(model: Model) -> None:
    """Rewrite a model of an older version in this version's format, in one step; rankings stay the same."""
    from zipfel import persistence
    from zipfel.card import folder as cards

    folder = persistence.located(model)
    older = persistence.upgrade(folder)
    card = folder / "README.md"
    done = ["faster checksums added"] if older else []
    if not card.exists():
        cards.write(cards.card_of(folder), card)
        done.append("card written")
    say(f"{model}: {', '.join(done) or 'already in the format of this version'}")


def _write(model: Path, out: Path, count: int) -> None:
    from zipfel import persistence

    check_new(out)
    by_label, all_bytes = persistence.reshard(persistence.located(model), out, count)
    if count == 1:
        say(f"{out}: one file, {all_bytes / 1e6:,.1f} MB")
    else:
        say(f"{out}: {count} shards hold {by_label / 1e6:,.1f} MB by label, of {all_bytes / 1e6:,.1f} MB")
