"""Why a label: what each term of a text adds to the label's score. Evaluated in docs/guide/explain.md."""

from __future__ import annotations

from typing import NamedTuple

from zipfel.data.text import TextFeatures
from zipfel.models.base import Predictor


class Reason(NamedTuple):
    """A term of a text, its contribution to a label's score, and the characters [start, end) at which it occurs."""

    term: str
    weight: float
    places: list[tuple[int, int]]


def reasons(predictor: Predictor, features: TextFeatures, text: str, label: int) -> list[Reason]:
    """Return the contribution of each known term of a text to a label's score, the largest first."""
    row, places = features.transform([text]), features.places(text)
    weights = predictor.explained(row, label).tolist()
    named = [
        Reason(features.terms[term], weight, places[term])
        for term, weight in zip(row.indices.tolist(), weights, strict=True)
    ]
    return sorted(named, key=lambda reason: (-abs(reason.weight), reason.places))
