"""`README.md` of a saved model, its card: written by zipfel, free to be edited, and not among the checksums.

The last line of a written card has the checksum of the others, so that a card that somebody has edited is not
overwritten.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from zipfel.data.formats.files import write_bytes

NAME = "README.md"
KEPT = "README.old.md"  # an edited card of the model that was replaced
_SEAL = re.compile(r"<!-- written by zipfel card ([0-9a-f]{16}): edit freely -->\n\Z")


def sealed(text: str) -> str:
    r"""Return a card with its checksum as the last line; a seal that it has already is replaced.

    >>> is_edited(sealed("# glas\n")), is_edited(sealed("# glas\n").replace("glas", "my model"))
    (False, True)
    """
    text = _SEAL.sub("", text)
    return f"{text}<!-- written by zipfel card {_sum(text)}: edit freely -->\n"


def is_edited(text: str) -> bool:
    """Whether a person wrote or changed a card."""
    seal = _SEAL.search(text)
    return seal is None or seal[1] != _sum(text[: seal.start()])


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]


def edited_in(folder: Path) -> bool:
    """Whether a saved model has a card that somebody has edited."""
    path = folder / NAME
    return path.is_file() and is_edited(path.read_text("utf-8", "replace"))


def write_card(folder: Path, card: str, old: Path | None = None) -> None:
    """Write the card of a new saved model.  old: the model that it replaces, whose edited card is kept as KEPT."""
    if card:
        write_bytes(folder / NAME, card.encode("utf-8", "replace"))
    if old is None:
        return
    kept = old / (NAME if edited_in(old) else KEPT)  # the last one that was edited
    if kept.is_file():
        write_bytes(folder / KEPT, kept.read_bytes())


def copy_cards(folder: Path, target: Path) -> None:
    """Copy the cards of a saved model, as far as it has any."""
    for name in (NAME, KEPT):
        if (folder / name).is_file():
            write_bytes(target / name, (folder / name).read_bytes())
