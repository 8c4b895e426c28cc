"""Labels for language models and people to choose from: candidates for a text, and labels that a phrase means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from zipfel import tagging
from zipfel.data.formats.files import shortened
from zipfel.data.phrases import Match, Phrases, title_of
from zipfel.data.tokens import tokenize
from zipfel.errors import ConfigError, DataError
from zipfel.fitting import Fitted

CANDIDATES = 50  # by default
NAMED = 3  # one in so many candidates may be there because the text names it, not because of its rank
DEEP = 1000  # labels ranked, so that candidates which a text names have the model's score
LOOKED_AT = 200  # names compared with a phrase word by word
RANKED = 50  # labels that the model adds to those found by name
LONGEST = 1000  # characters of a phrase
SHOWN = 300  # characters of a label's text in a candidate
NAME, MODEL = "name", "model"

# Logistic regression: is this label meant? Fitted on removed synonyms of half of a thesaurus' headings and measured on
# the other half (docs/guide/llm.md).
_BIAS = -8.27
_WEIGHTS = {
    "cosine": 7.8,  # of the pieces of words
    "said": -5.15,  # share of the phrase that the name says, word by word
    "meant": -5.7,  # share of the name that the phrase says
    "both": 7.29,  # said × meant
    "least": 8.1,  # the lesser of the two
    "same": 2.33,  # whether the words are the same, in any order
    "model": 1.9,  # the model's score of the phrase as a text, relative to its best label
}


class Candidate(NamedTuple):
    """A label to choose: its name, its title and text for people, its paths in the hierarchy, and a score in [0, 1].

    by: "model" if the model ranks it among the best, "name" if its name or a synonym was found.
    """

    label: str
    title: str
    text: str
    paths: list[list[str]]
    score: float
    by: str


def candidates(fitted: Fitted, text: str | Mapping[str, str], k: int = CANDIDATES) -> list[Candidate]:
    """Return up to k labels that may fit a document, by score: the model's best, and others that the document names."""
    _check_k(k)
    if fitted.blueprint.features is None:
        raise ConfigError("a model that was fitted on a matrix has no texts to find candidates for")
    ranked = tagging.tag(fitted, [tagging.Request([text], max(k, DEEP))])[0].ranking
    scores = {label: score for label, score in zip(ranked.ids[0].tolist(), ranked.scores[0].tolist(), strict=True)
              if label >= 0}  # fmt: skip
    words = text if isinstance(text, str) else " ".join(text.values())
    chosen = _merged(list(scores), fitted.labels.phrases.mentioned(words), k)
    best = sorted(chosen.items(), key=lambda item: -scores.get(item[0], 0.0))
    return [_candidate(fitted, label, scores.get(label, 0.0), by) for label, by in best]


def _merged(ranked: Sequence[int], mentioned: Mapping[int, int], k: int) -> dict[int, str]:
    """Return k labels and how each was found; names may take the last third, longest names first, then by rank."""
    head = ranked[: k - k // NAMED]
    places = {label: place for place, label in enumerate(ranked)}
    left = [label for label in mentioned if label not in set(head)]
    left.sort(key=lambda label: (-mentioned[label], places.get(label, len(places)), label))
    named = left[: k // NAMED]
    rest = [label for label in ranked[len(head) :] if label not in set(named)][: k - len(head) - len(named)]
    return {**dict.fromkeys([*head, *rest], MODEL), **dict.fromkeys(named, NAME)}


def ground(fitted: Fitted, phrase: str, k: int = 5) -> list[Candidate]:
    """Return up to k labels that a phrase may mean, best first; none if it has no word.

    The score is the probability that the label is meant.
    """
    _check_k(k)
    if not isinstance(phrase, str):
        raise DataError(f"expected a phrase, which is text; found {type(phrase).__name__}")
    if len(phrase) > LONGEST:
        raise DataError(f"a phrase may have at most {LONGEST} characters; found {len(phrase)}")
    if not tokenize(phrase):
        return []
    phrases = fitted.labels.phrases
    found = _compared(phrases, phrase, phrases.search(phrase, LOOKED_AT))
    shares = _shares(fitted, phrase)
    scores = {label: _probability(found.get(label, {}), shares.get(label, 0.0)) for label in {**found, **shares}}
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
    return [_candidate(fitted, label, score, NAME if label in found else MODEL) for label, score in best]


def _compared(phrases: Phrases, phrase: str, matches: Iterable[Match]) -> dict[int, dict[str, float]]:
    """Return by label how its best name compares with a phrase, word by word; see `_WEIGHTS`."""
    asked = tokenize(phrase)
    compared: dict[int, dict[str, float]] = {}
    for label, name, cosine in matches:
        words = name.split()
        said, meant = _covered(phrases, asked, words), _covered(phrases, words, asked)
        features = {"cosine": cosine, "said": said, "meant": meant, "both": said * meant, "least": min(said, meant),
                    "same": float(sorted(asked) == sorted(words))}  # fmt: skip
        if label not in compared or cosine + said * meant > compared[label]["cosine"] + compared[label]["both"]:
            compared[label] = features
    return compared


def _covered(phrases: Phrases, words: Sequence[str], others: Sequence[str]) -> float:
    """Return the share of words that others begin like, weighted by how rare they are."""
    weights = [phrases.rarity(word) for word in words]
    alike = [max(_alike(word, other) for other in others) ** 2 for word in words]
    return sum(weight * share for weight, share in zip(weights, alike, strict=True)) / sum(weights)


def _alike(one: str, other: str) -> float:
    """Return the share of two words that is their common beginning, of at least 3 characters."""
    if one == other:
        return 1.0
    common = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return 2 * common / (len(one) + len(other)) if common >= 3 else 0.0


def _shares(fitted: Fitted, phrase: str) -> dict[int, float]:
    """Return the model's scores of the phrase as a text, relative to the best; none if it knows none of its words."""
    if fitted.blueprint.features is None:
        return {}
    tagged = tagging.tag(fitted, [tagging.Request([phrase], RANKED)])[0]
    scores = zip(tagged.ranking.ids[0].tolist(), tagged.ranking.scores[0].tolist(), strict=True)
    best = float(tagged.ranking.scores[0].max(initial=0))
    if not tagged.known[0] or best <= 0:
        return {}
    return {label: score / best for label, score in scores if label >= 0}


def _probability(features: Mapping[str, float], share: float) -> float:
    total = _BIAS + sum(weight * features.get(name, 0.0) for name, weight in _WEIGHTS.items())
    return 1 / (1 + math.exp(-total - _WEIGHTS["model"] * share))


def _candidate(fitted: Fitted, label: int, score: float, by: str) -> Candidate:
    labels = fitted.labels
    name = labels.names[label]
    text = labels.texts[label] if labels.texts else ""
    return Candidate(name, title_of(name, text), shortened(text, SHOWN), labels.paths(name), score, by)


def prompt(choices: Iterable[Candidate]) -> str:
    """Return candidates as lines for a prompt: number, label, text and path; an answer can name number or label."""
    return "\n".join(f"{number}. {_line(each)}" for number, each in enumerate(choices, start=1))


def _line(choice: Candidate) -> str:
    about = f": {choice.text}" if choice.text and choice.text != choice.label else ""
    path = f" (in {' > '.join(choice.paths[0][:-1])})" if choice.paths else ""
    return " ".join(f"{choice.label}{about}{path}".split())


def _check_k(k: int) -> None:
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= DEEP:
        raise ConfigError(f"k must be a whole number from 1 to {DEEP}; found {k!r}")
