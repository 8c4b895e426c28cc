"""Labels for language models and people to choose from: candidates for a text, and labels that a phrase means."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from zipfel import tagging
from zipfel.data.formats.files import shortened
from zipfel.data.phrases import Phrases, title_of
from zipfel.data.tokens import tokenize
from zipfel.errors import ConfigError, DataError
from zipfel.fitting import Fitted

CANDIDATES = 50  # by default
DEEP = 1000  # labels ranked, of which candidates are chosen
LOOKED_AT = 200  # names compared with a phrase word by word
RANKED = 50  # labels that the model adds to those found by name
LONGEST = 1000  # characters of a phrase
SHOWN = 300  # characters of a label's text in a candidate
NAME, MODEL = "name", "model"

# What a label is worth as a candidate: COVERED · share of a name whose words the text has + FREQUENT · ln(1 + training
# points) − ln(1 + rank). Fitted on points held out of training (docs/guide/llm.md).
COVERED, FREQUENT = 1.9, 0.17
UNRANKED = 45  # rank of a label that the text names and that is not among the model's best DEEP
WHOLE = 0.999  # coverage from which a text names a label

# Which label is meant? The probability of label l is e^{s_l} / (e^NONE + Σ_j e^{s_j}), where s weighs what speaks for a
# label, and NONE stands for one that was not found. Fitted on removed synonyms of half of a thesaurus' headings and
# measured on the other half (docs/guide/llm.md).
_NONE = 6.94
_WEIGHTS = {
    "cosine": 2.27,  # of the pieces of words
    "spelled": 4.71,  # how alike phrase and name are spelled, without blanks
    "said": -1.07,  # share of the phrase that the name says, word by word
    "meant": -2.53,  # share of the name that the phrase says
    "both": 5.37,  # said × meant
    "least": 7.07,  # the lesser of the two
    "same": 1.61,  # whether the words are the same, in any order
    "model": 1.67,  # the model's score of the phrase as a text, relative to its best label
}


class Candidate(NamedTuple):
    """A label to choose, with what people and language models need for the choice.

    Args:
        label: its name.
        title: what people call it.
        text: what is known about it.
        paths: its ancestors in the hierarchy, from the top, and itself.
        score: in [0, 1].
        by: "model" if the model ranks it among the best, "name" if its name or a synonym was found.

    Example:
        >>> Candidate("s3", "violins", "fiddles", [["s1", "s2", "s3"]], 0.7, "name").title
        'violins'
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
    ids, scores = _ranked(fitted, text)
    covered = fitted.labels.phrases.coverage(text if isinstance(text, str) else " ".join(text.values()))
    named = np.setdiff1d(np.flatnonzero(covered >= WHOLE), ids)
    ranks, first = np.append(np.arange(len(ids)), np.full(len(named), UNRANKED)), min(k, len(ids))
    ids, scores = np.append(ids, named), np.append(scores, np.zeros(len(named)))
    counts = np.asarray(fitted.labels.counts)[ids]
    values = COVERED * covered[ids] + FREQUENT * np.log1p(counts) - np.log1p(ranks)
    best = np.sort(np.argsort(-values, kind="stable")[:k])  # by score again
    return [
        _candidate(fitted, int(ids[place]), float(scores[place]), MODEL if place < first else NAME) for place in best
    ]


def _ranked(fitted: Fitted, text: str | Mapping[str, str]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the labels that the model ranks highest for a document, and their probabilities."""
    request = tagging.Request([text], DEEP)
    request.check(fitted)
    X = fitted.rows(request.X)
    ranking = tagging.calibrated(fitted, tagging.rank(fitted, X, DEEP, deep=True), known=tagging.known_rows(X))
    valid = ranking.ids[0] >= 0
    return ranking.ids[0][valid], ranking.scores[0][valid].astype(np.float64)


def ground(fitted: Fitted, phrase: str, k: int = 5) -> list[Candidate]:
    """Return up to k labels that a phrase may mean, best first; none if it has no word.

    The score is the probability that the label is meant, if a label is.
    """
    _check_k(k)
    if not isinstance(phrase, str):
        raise DataError(f"expected a phrase, which is text; found {type(phrase).__name__}")
    if len(phrase) > LONGEST:
        raise DataError(f"a phrase may have at most {LONGEST} characters; found {len(phrase)}")
    if not tokenize(phrase):
        return []
    found = _compared(fitted.labels.phrases, phrase)
    for label, share in _shares(fitted, phrase).items():
        found.setdefault(label, {})["model"] = share
    scores = _probabilities(found)
    best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
    return [_candidate(fitted, label, score, NAME if "cosine" in found[label] else MODEL) for label, score in best]


def _compared(phrases: Phrases, phrase: str) -> dict[int, dict[str, float]]:
    """Return by label how its best name compares with a phrase, see `_WEIGHTS`; most unlike names are left out."""
    asked = tokenize(phrase)
    compared: dict[int, dict[str, float]] = {}
    for label, name, cosine in phrases.search(phrase, LOOKED_AT):
        words = name.split()
        said, meant = _covered(phrases, asked, words)
        features = {
            "cosine": cosine, "spelled": _spelled("".join(asked), "".join(words)), "said": said, "meant": meant,
            "both": said * meant, "least": min(said, meant), "same": float(sorted(asked) == sorted(words)),
        }  # fmt: skip
        if label not in compared or _likeness(features) > _likeness(compared[label]):
            compared[label] = features
    return compared


def _likeness(features: Mapping[str, float]) -> float:
    return features["cosine"] + features["spelled"] + features["both"]


def _covered(phrases: Phrases, asked: Sequence[str], words: Sequence[str]) -> tuple[float, float]:
    """Return the share of the words asked that others are like, and the share of the others, weighted by rarity."""
    alike = [[_alike(one, other) for other in words] for one in asked]
    said = _average(map(max, alike), map(phrases.rarity, asked))
    return said, _average(map(max, zip(*alike, strict=True)), map(phrases.rarity, words))


def _average(values: Iterable[float], weights: Iterable[float]) -> float:
    total = weighted = 0.0
    for value, weight in zip(values, weights, strict=True):
        total, weighted = total + weight, weighted + weight * value
    return weighted / total


def _alike(one: str, other: str) -> float:
    """Return how alike two words are: the square of their common beginning's share, or of their likeness in letters."""
    if one == other:
        return 1.0
    common = next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    beginning = 2 * common / (len(one) + len(other)) if common >= 3 else 0.0
    return float(max(beginning, _spelled(one, other)) ** 2)


def _spelled(one: str, other: str) -> float:
    """Return the share of pairs of letters that two words have in common (Dice's coefficient)."""
    first, second = _pairs(one), _pairs(other)
    return 2 * len(first & second) / (len(first) + len(second))


@lru_cache(maxsize=1 << 16)
def _pairs(word: str) -> frozenset[str]:
    """Return the pairs of letters of a word, with a blank before and after it."""
    return frozenset(map("".join, pairwise(f" {word} ")))


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


def _probabilities(found: Mapping[int, Mapping[str, float]]) -> dict[int, float]:
    """Return how likely each label is meant, from what speaks for it; they sum up to less than 1."""
    scores = {label: sum(_WEIGHTS[name] * value for name, value in features.items())
              for label, features in found.items()}  # fmt: skip
    highest = max([_NONE, *scores.values()])
    total = math.exp(_NONE - highest) + sum(math.exp(score - highest) for score in scores.values())
    return {label: math.exp(score - highest) / total for label, score in scores.items()}


def _candidate(fitted: Fitted, label: int, score: float, by: str) -> Candidate:
    labels = fitted.labels
    name = labels.names[label]
    text = labels.texts[label] if labels.texts else ""
    title = labels.titles[label] if labels.titles else ""
    paths = [list(map(labels.title, path)) for path in labels.paths(name)]
    return Candidate(name, title or title_of(name, text), shortened(text, SHOWN), paths, score, by)


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
