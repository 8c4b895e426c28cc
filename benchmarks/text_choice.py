"""Text features that the data chooses: n-grams, pieces of words, symbols, weights of fields, least counts.

    python -m benchmarks.text_choice DATA [DATA ...]

No setting is right for all data: pairs of words gain points on definitions and cost some on package descriptions. So a
few are tried, one after the other, with the linear model on a part of train. A change stays if held-out points gain by
more than noise. Settings that the user names are not touched. It is meant for `auto`, which does not use it yet.
"""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import config, metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.splits import split_rows
from zipfel.data.text import DEFAULT_FIELD_WEIGHTS, TextFeatures, TextSettings
from zipfel.data.tokens import tokenize
from zipfel.fitting import chosen_device
from zipfel.models.base import Lesson, evenly_spaced, labelled, model_class, settings_of
from zipfel.training.run import Run
from zipfel.types import Ranking, stored

STAGE = "text"
POINTS = 10_000  # at most, of train
TOKENS = 1_000_000  # at most, of these points
LABELS = 1_000  # at most: half of them the most frequent ones
HELD_OUT = 0.2
FEWEST = 500  # points; fewer decide nothing
SURE = 2.0  # standard errors that a gain must exceed
FEW_WORDS = 30  # per point, up to which pieces of words are tried
LONG_PIECES = 5  # characters
MANY_SYMBOLS = 0.01  # share of tokens from which symbols are tried
FIELD_WEIGHT = 3.0  # tried for each of the first FIELDS fields
FIELDS = 3


@dataclass(frozen=True)
class Trial:
    """A change of text settings, and its gain on held-out points: nDCG@5 plus propensity-scored nDCG@5, in percent."""

    changes: dict[str, Any]
    gain: float
    kept: bool

    def __str__(self) -> str:
        """Return the trial in words."""
        words = ", ".join(f"{name}={_spoken(value)}" for name, value in self.changes.items())
        return f"{words} ({self.gain:+.1f})"


@dataclass(frozen=True)
class TextChoice:
    """The text settings to use, and what was tried."""

    text: dict[str, Any]
    trials: tuple[Trial, ...] = ()

    def __str__(self) -> str:
        """Return the choice in words."""
        if not self.trials:
            return "text features: the usual ones"
        kept = ", ".join(str(trial) for trial in self.trials if trial.kept) or "the usual ones"
        return f"text features: {kept}; {len(self.trials)} changes tried"


def chosen_text(dataset: Dataset, named: Mapping[str, Any] | None, run: Run, device: torch.device) -> TextChoice:
    """Return the text settings for a data set: those that are named, and for the others what held-out points prefer."""
    given = dict(named or {})
    if dataset.train.texts is None or dataset.train.vectors or len(dataset.train) < FEWEST:
        return TextChoice(given)
    known = run.load(STAGE)
    if known is None:
        choice = _search(dataset, given, run, device)
        trials = [dataclasses.asdict(trial) for trial in choice.trials]
        run.keep(STAGE, {}, {"text": choice.text, "trials": trials})
    else:
        choice = TextChoice(known[1]["text"], tuple(Trial(**trial) for trial in known[1]["trials"]))
    if choice.trials:
        run.note(str(choice))
    return choice


def _search(dataset: Dataset, given: dict[str, Any], run: Run, device: torch.device) -> TextChoice:
    judge = Judge.of(dataset, run.seed, device)
    if judge is None:
        return TextChoice(given)
    text, trials = given, list[Trial]()
    best = judge.quality(text)
    for changes in proposals(judge.train, given):
        if trials and not trials[-1].kept and changes.get("ngrams", 0) > 2:
            continue  # three words, where pairs gained nothing
        if any(trial.kept and trial.changes.keys() == changes.keys() for trial in trials) and "ngrams" not in changes:
            continue  # another value was kept
        quality = judge.quality(text | changes)
        gains = quality - best
        kept = float(gains.mean()) > SURE * float(gains.std()) / math.sqrt(len(gains))
        trials.append(Trial(changes, 100 * float(gains.mean()), kept))
        if kept:
            text, best = text | changes, quality
    return TextChoice(text, tuple(trials))


def proposals(train: Part, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield changes of the usual settings that suit these texts, without settings that the user has named."""
    settings = config.from_mapping(TextSettings, given)
    texts = train.texts or {}
    sample = [text for column in texts.values() for text in column[:: max(1, len(train) // 500)]]
    words = sum(len(tokenize(text)) for text in sample)
    symbols = sum(len(tokenize(text, symbols=True)) for text in sample) - words
    points = max(1, len(sample) // max(len(texts), 1))
    tried: list[dict[str, Any]] = []
    if len(texts) > 1:
        if DEFAULT_FIELD_WEIGHTS.keys() & texts.keys():
            tried.append({"field_weights": dict.fromkeys(texts, 1.0)})
        others = [name for name in texts if name not in DEFAULT_FIELD_WEIGHTS][:FIELDS]
        tried += [{"field_weights": {name: FIELD_WEIGHT}} for name in others]
    if symbols > MANY_SYMBOLS * words:
        tried.append({"symbols": True})
    tried += [{"ngrams": 2}, {"ngrams": 3}]
    if words / points <= FEW_WORDS:
        tried.append({"characters": LONG_PIECES})
    tried += [{"sublinear": not settings.sublinear}, {"min_count": 1}]
    yield from (changes for changes in tried if not changes.keys() & given.keys())


@dataclass(frozen=True)
class Judge:
    """Judges text settings by the linear model on a part of train."""

    train: Part
    held_out: Part
    inverse: NDArray[np.float64]  # inverse propensities of the labels
    seed: int
    device: torch.device

    @classmethod
    def of(cls, dataset: Dataset, seed: int, device: torch.device) -> Judge | None:
        """Take some points and labels of train; None if there are too few."""
        part = labelled(dataset.train)
        part = labelled(with_some_labels(evenly_spaced(part, most_points(part))))
        if len(part) < FEWEST:
            return None
        stay, held = split_rows(part, HELD_OUT, seed)
        train, held_out = part.take(stay), part.take(held)
        counts = np.bincount(train.Y.indices, minlength=part.Y.shape[1])
        held_out = labelled(dataclasses.replace(held_out, Y=csr_array(held_out.Y.multiply(counts > 0))))
        if not len(train) or not len(held_out):
            return None
        return cls(train, held_out, metrics.inverse_propensities(counts, len(train), *dataset.propensity), seed, device)

    def quality(self, text: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return nDCG@5 plus propensity-scored nDCG@5 of each held-out point, with the linear model on these features.

        The second is a ratio of sums; a point's part of it is divided by the mean of the best possible ones.
        """
        features = TextFeatures.fit(self.train.texts or {}, None, config.from_mapping(TextSettings, text))
        X, Q = features.transform(self.train.texts or {}), features.transform(self.held_out.texts or {})
        kind, run = model_class("linear"), Run(seed=self.seed)
        settings = settings_of(
            "linear", changes={"rounds": 2, "negatives": "all" if self.device.type == "cuda" else "mined"}
        )
        model = kind(X.shape[1], self.train.Y.shape[1], settings, run.generator("start")).to(self.device)
        model.fit(Lesson(dataclasses.replace(self.train, X=X)), run)
        return quality_of_points(model.predictor().rank(Q, 5), self.held_out.Y, self.inverse)


def quality_of_points(ranking: Ranking, Y: csr_array, inverse: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return nDCG@5 plus propensity-scored nDCG@5 of each point, [N]."""
    ids = ranking.ids
    right = stored(Y, np.arange(len(ids))[:, None], ids)  # [N, 5]
    positives, last = np.diff(Y.indptr), ids.shape[1] - 1
    plain = metrics.ndcg_of_points(right.astype(np.float64), positives)[:, last]
    gains = metrics.ndcg_of_points(right * inverse[np.maximum(ids, 0)], positives)[:, last]
    best = metrics.ndcg_of_points(metrics.best_gains(Y, inverse, ids.shape[1]), positives)[:, last]
    return np.asarray(plain + gains / max(float(best.mean()), 1e-12))


def most_points(part: Part) -> int:
    """Return how many points to take, so that they are not more than TOKENS tokens."""
    sample = evenly_spaced(part, 200)
    tokens = sum(len(tokenize(text)) for column in (sample.texts or {}).values() for text in column)
    return max(FEWEST, min(POINTS, int(TOKENS * len(sample) / max(tokens, 1))))


def with_some_labels(part: Part) -> Part:
    """Return a part with at most LABELS of its labels: the most frequent ones, and others at even spacing."""
    order = np.argsort(-np.bincount(part.Y.indices, minlength=part.Y.shape[1]), kind="stable")
    order = order[: len(np.unique(part.Y.indices))]
    rest = order[LABELS // 2 :]
    some = rest[np.linspace(0, len(rest) - 1, min(len(rest), LABELS // 2)).astype(np.int64)]
    labels = np.sort(np.concatenate([order[: LABELS // 2], some]))
    filtered = None if part.filtered is None else csr_array(part.filtered[:, labels])
    return dataclasses.replace(part, Y=csr_array(part.Y[:, labels]), filtered=filtered)


def _spoken(value: Any) -> str:
    return (
        ",".join(f"{name}:{item:g}" for name, item in value.items()) if isinstance(value, dict) else str(value).lower()
    )


def main(paths: list[str]) -> None:
    """Print the choice for each data set, and every change that was tried."""
    for path in paths:
        choice = chosen_text(read(path), None, Run(seed=0), chosen_device("auto"))
        print(f"{path}: {choice}")
        for trial in choice.trials:
            print(f"  {trial}{', kept' if trial.kept else ''}")


if __name__ == "__main__":
    main(sys.argv[1:])
