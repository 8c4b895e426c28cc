"""What is known of labels besides what a model learns: their texts, and how many points they have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from zipfel.data.dataset import Dataset

Value = TypeVar("Value", str, int)


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
        older = [""] * len(names) if self.texts is None else _longer(self.texts, "", len(names))
        before = None if self.counts is None else _longer(self.counts, 0, len(names))
        return LabelNotes(
            [texts.get(name) or old for name, old in zip(names, older, strict=True)] if texts or self.texts else None,
            before and [old + counts.get(name, 0) for name, old in zip(names, before, strict=True)],
        )

    def added(self, size: int, texts: Sequence[str]) -> LabelNotes:
        """Return the notes on so many labels, of which the last have these texts, and no points yet."""
        counts = None if self.counts is None else _longer(self.counts, 0, size)
        return LabelNotes([*_longer(self.texts or [], "", size - len(texts)), *texts], counts)


def _longer(values: list[Value], blank: Value, size: int) -> list[Value]:
    return values + [blank] * (size - len(values))
