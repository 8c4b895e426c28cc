"""Keep a model up to date: `python examples/updates.py`.

New points are learned by a warm start, a new label is described in words, and an old label is retired.
"""

from __future__ import annotations

from zipfel import Tagger

TEXTS = ["no paper in the printer", "paper jam", "no wifi in the office", "the wifi is slow"] * 5
TAGS = [["printer"], ["printer"], ["network"], ["network", "slow"]] * 5
ABOUT = {"printer": "printers, paper and toner", "network": "wifi and cables", "slow": "slow things"}


def main() -> None:
    """Fit, add points, add a label by its text, and remove one."""
    tagger = Tagger("decaf", "fast", text={"min_count": 1}, warm_start=True).fit(TEXTS, TAGS, label_texts=ABOUT)
    print("fitted:     ", [tag.label for tag in tagger.predict(["paper jam"], k=1)[0]])
    tagger.fit([*TEXTS, *["the badge opens no door"] * 5], [*TAGS, *[["access"]] * 5], label_texts=ABOUT)
    print("new points: ", [tag.label for tag in tagger.predict(["my badge and the door"], k=1)[0]])
    tagger.add_labels({"toner": "toner, paper"})
    print("new label:  ", sorted(tag.label for tag in tagger.predict(["paper"], k=9)[0]))
    tagger.remove_labels(["slow"])
    print("one removed:", sorted(tag.label for tag in tagger.predict(["the wifi is slow"], k=9)[0]))


if __name__ == "__main__":
    main()
