"""Tag support tickets of a CSV file: `python examples/tickets.py [TABLE LABELS]`.

Trains on the table, tags three new tickets, and names the words that decided.
"""

from __future__ import annotations

import sys
from pathlib import Path

import zipfel

FOLDER = Path(__file__).parent
NEW = ["cannot connect to VPN from the hotel", "a virus in an attachment of a mail", "the printer is out of toner"]


def main(table: str = str(FOLDER / "tickets.csv"), labels: str = str(FOLDER / "labels.csv")) -> None:
    """Train, tag and explain."""
    columns = zipfel.TableSettings(text=("title", "body"), labels="tags", sep=";", label_texts=Path(labels))
    tagger = zipfel.Tagger(preset="fast").fit_dataset(zipfel.read(table, columns))
    for text, tags in zip(NEW, tagger.predict(NEW, k=2), strict=True):
        words = ", ".join(reason.term for reason in tagger.explain(text, tags[0].label)[:3])
        print(f"{text}: {', '.join(f'{tag.label} {tag.score:.2f}' for tag in tags)} (because of: {words})")


if __name__ == "__main__":
    main(*sys.argv[1:])
