"""Tag clinical phrases with ICD-10-CM codes: `python examples/clinical_codes.py [START]`.

It takes the codes that start so: J by default (diseases of the respiratory system). Every tenth of them is kept from
training. The model learns it afterwards from its description only, without a single phrase.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np

from zipfel import Part, Tagger
from zipfel.data import registry

NEW = ("a sore throat with streptococci", "asthma that comes with exercise")


def phrases(part: Part, names: np.ndarray, kept: set[str]) -> tuple[list[str], list[list[str]]]:
    """Return the phrases with a code in `kept`, and these codes."""
    assert part.texts is not None
    codes = [[*names[part.Y.indices[start:end]]] for start, end in pairwise(part.Y.indptr)]
    pairs = [(text, [code for code in row if code in kept])
             for text, row in zip(part.texts["title"], codes, strict=True)]  # fmt: skip
    texts, tags = zip(*[(text, row) for text, row in pairs if row], strict=True)
    return [*texts], [*tags]


def main(start: str = "J") -> None:
    """Train with descriptions of codes, tag two phrases, add new codes by their descriptions, and count how often."""
    dataset = registry.load("icd10cm")
    assert dataset.label_names is not None
    assert dataset.label_texts is not None
    assert dataset.test is not None
    described = dict(zip(dataset.label_names, dataset.label_texts["title"], strict=True))
    codes = {code: text for code, text in described.items() if code.startswith(start)}
    new = {code: codes[code] for code in [*codes][5::10]}
    known = {code: text for code, text in codes.items() if code not in new}

    names = np.array(dataset.label_names, dtype=object)
    texts, tags = phrases(dataset.train, names, {*known})
    tagger = Tagger("decaf", "fast", text={"min_count": 1}).fit(texts, tags, label_texts=known)
    right = tagger.score(*phrases(dataset.test, names, {*known}))
    print(f"{len(texts):,} phrases, {len(known):,} codes; P@1 {right:.0%}")
    for text, row in zip(NEW, tagger.predict(NEW, k=2), strict=True):
        print(text, *(f"  {tag.score:.2f}  {tag.label:8}{codes[tag.label].partition(';')[0]}" for tag in row), sep="\n")

    tagger.add_labels(new)
    texts, wanted = phrases(dataset.test, names, {*new})
    ranked = [{tag.label for tag in row} for row in tagger.predict(texts, k=5)]
    found = sum(bool(tags & {*codes}) for tags, codes in zip(ranked, wanted, strict=True))
    print(f"{len(new)} new codes, known by their descriptions only: "
          f"among the first 5 tags of {found} of the {len(texts)} test phrases that have one")  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
