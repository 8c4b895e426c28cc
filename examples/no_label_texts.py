"""Tag with labels that say nothing, such as account numbers: `python examples/no_label_texts.py`.

Without label texts, the model learns a label from its points only. It still tells which words stand for a label. A new
label needs points of its own, which a warm start learns.
"""

from __future__ import annotations

from zipfel import Tagger

INVOICES = {  # lines of invoices, and the accounts that they are booked on
    "4210": ["rent of the office in March", "rent of the warehouse", "parking space, rent", "deposit for office rent"],
    "4240": ["electricity of the office", "gas and electricity", "electricity, meter of March", "water and gas"],
    "4530": ["fuel for the van", "diesel for two vans", "tyres of the van", "fuel and motor oil"],
    "4930": ["paper and pens", "toner for the printer", "envelopes and paper", "pens, folders, envelopes"],
}
NEW = ("office rent for April", "diesel", "printer paper")
TRAVEL = ["train to Lyon", "hotel in Lyon", "hotel and train to the fair", "taxi to the train"]


def main() -> None:
    """Train, tag, name the words that stand for each label, and learn a new label from its points."""
    texts = [text for own in INVOICES.values() for text in own]
    accounts = [[account] for account, own in INVOICES.items() for _ in own]
    tagger = Tagger("linear", text={"min_count": 1}, warm_start=True).fit(texts, accounts)
    for text, tags in zip(NEW, tagger.predict(NEW, k=2), strict=True):
        print(f"{text}: {', '.join(f'{tag.label} {tag.score:.2f}' for tag in tags)}")
    for account, own in INVOICES.items():
        reasons = tagger.explain("; ".join(own), account)
        print(f"{account} stands for: {', '.join(reason.term for reason in reasons[:4] if reason.weight > 0)}")
    tagger.fit([*texts, *TRAVEL], [*accounts, *[["4660"]] * len(TRAVEL)])
    print(f"new account, hotel by train: {tagger.predict(['hotel by train'], k=1)[0][0].label}")


if __name__ == "__main__":
    main()
