"""The card of a saved model on disk."""

from __future__ import annotations

from pathlib import Path

import orjson

from zipfel import persistence
from zipfel.card.figures import Figures
from zipfel.card.front import Stated
from zipfel.card.text import UNKNOWN, card
from zipfel.data.formats.files import write_bytes
from zipfel.data.formats.readme import NAME, edited_in
from zipfel.errors import DataError

DOCUMENTS = ("labels", "vocabulary", "calibration")  # that a card is about


def card_of(folder: Path, stated: Stated = UNKNOWN, figures: Figures | None = None) -> str:
    """Return a new card of a saved model."""
    about, paths = persistence.read_about(folder), {name: folder / "serve" / f"{name}.json" for name in DOCUMENTS}
    documents = {name: orjson.loads(path.read_bytes()) for name, path in paths.items() if path.is_file()}
    return card(about, documents, stated, figures)


def check_unedited(folder: Path) -> None:
    """Raise DataError if a saved model has a card that somebody has edited."""
    if edited_in(folder):
        raise DataError("was edited by hand; --replace overwrites it, --out FILE writes elsewhere", folder / NAME)


def write(text: str, path: Path) -> None:
    """Write a card to a file."""
    write_bytes(path, text.encode("utf-8", "replace"))
