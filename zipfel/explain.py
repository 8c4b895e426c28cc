"""Why a label: what each term of a document adds to the label's score. Evaluated in docs/guide/explain.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from zipfel.data.text import TextFeatures
from zipfel.models.base import Predictor

Places = list[tuple[int, int]]


class Reason(NamedTuple):
    """A term of a document, its contribution to a label's score, and the characters at which it occurs.

    Args:
        term: a word, or an n-gram.
        weight: what it adds to the score.
        places: pairs [start, end) of characters in the text, or such pairs by field if the document has fields.

    Example:
        >>> reason = Reason("apple", 0.4, [(2, 7)])
        >>> ["a apple pie"[start:end] for start, end in reason.places_in("")]
        ['apple']
    """

    term: str
    weight: float
    places: Places | dict[str, Places]

    def places_in(self, field: str) -> Places:
        """Return its places in a field; in a document without fields, those in the text.

        Args:
            field: name of the field.

        Returns:
            Pairs [start, end) of characters; none if the field does not have the term.

        Example:
            >>> Reason("apple", 0.4, {"title": [(0, 5)]}).places_in("title")
            [(0, 5)]
        """
        return self.places if isinstance(self.places, list) else self.places.get(field, [])


def reasons(
    predictor: Predictor, features: TextFeatures, document: str | Mapping[str, str], label: int
) -> list[Reason]:
    """Return the contribution of each known term of a document to a label's score, the largest first.

    document: a text, or a text for each field of the model.
    """
    texts = {"": document} if isinstance(document, str) else document
    row = features.transform({name: [text] for name, text in texts.items()})
    weights = predictor.explained(row, label).tolist()
    spans = features.places_by_field(texts)
    named = []
    for term, weight in zip(row.indices.tolist(), weights, strict=True):
        places = {name: found[term] for name, found in spans.items() if term in found}
        named.append(Reason(features.terms[term], weight, places.get("", []) if texts is not document else places))
    return sorted(named, key=lambda reason: (-abs(reason.weight), [reason.places_in(name) for name in texts]))


def in_one_text(document: Mapping[str, str], reasons: Iterable[Reason]) -> tuple[str, list[Reason]]:
    """Join the fields of a document with line breaks; return the text, and the reasons with their places in it."""
    starts, start = dict[str, int](), 0
    for name, text in document.items():
        starts[name] = start
        start += len(text) + 1
    moved = [
        reason._replace(places=[(at + a, at + b) for name, at in starts.items() for a, b in reason.places_in(name)])
        for reason in reasons
    ]
    return "\n".join(document.values()), moved
