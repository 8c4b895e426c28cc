"""What is known of labels besides what a model learns: their texts, and how many points they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zipfel.data.dataset import Dataset


@dataclass(frozen=True)
class LabelNotes:
    """Texts and counts, label by label; None where nobody knows, as in models that were saved without."""

    texts: list[str] | None = None
    counts: list[int] | None = None

    def grown(self, names: Sequence[str], dataset: Dataset) -> LabelNotes:
        """Return the notes on labels of these names, those that were there first, with what a data set adds.

        Counts add up; a text stays until there is another one. Fields of a text become lines.
        """
        given = list(dataset.label_names or map(str, range(dataset.sizes.labels)))
        counts = dict(zip(given, dataset.label_counts.tolist(), strict=True))
        rows = zip(*dataset.label_texts.values(), strict=True) if dataset.label_texts else ()
        texts = {name: "\n".join(filter(None, row)) for name, row in zip(given, rows, strict=False)}
        older, before = self.texts or [], self.counts or []
        blank = [""] * (len(names) - len(older)), [0] * (len(names) - len(before))
        return LabelNotes(
            [texts.get(name) or old for name, old in zip(names, older + blank[0], strict=True)]
            if texts or self.texts
            else None,
            [old + counts.get(name, 0) for name, old in zip(names, before + blank[1], strict=True)],
        )
