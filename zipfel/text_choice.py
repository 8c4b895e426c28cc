"""Text features that the data chooses: n-grams, pieces of words, symbols, weights of fields, least counts.

No setting is right for all data: pairs of words gain points on definitions and cost some on package descriptions. So a
few changes are tried, one after the other, on a part of train. A change stays if held-out points gain by more than
noise. Settings that the user names are not touched. What it chose on which data: docs/decisions/017-text-choice.md.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from zipfel import config, metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.data.splits import split_rows
from zipfel.data.text import DEFAULT_FIELD_WEIGHTS, TextFeatures, TextSettings
from zipfel.data.tokens import tokenize
from zipfel.errors import DataError
from zipfel.models.base import Lesson, evenly_spaced, labelled, model_class, settings_of
from zipfel.training.progress import Moment, Observer
from zipfel.training.run import Run
from zipfel.types import Ranking, stored

STAGE = "text"
POINTS = 10_000  # at most, of train
TOKENS = 800_000  # at most, of these points
LABELS = 1_000  # at most: half of them the most frequent ones
HELD_OUT = 0.2
FEWEST = 500  # points; fewer decide nothing
SURE = 2.0  # standard errors that a gain must exceed
LEAST_GAIN = 0.003  # of nDCG@5 + PSnDCG@5: less is not worth more features
FEW_WORDS = 30  # per point, up to which pieces of words are tried
LONG_PIECES = 5  # characters
MANY_SYMBOLS = 0.01  # share of tokens from which symbols are tried
UNKNOWN = 0.01  # share of points without a known word from which words that occur once are tried
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
    """The text settings to use, and the trials that chose them."""

    text: dict[str, Any] = dataclasses.field(default_factory=dict)
    trials: tuple[Trial, ...] = ()

    def __str__(self) -> str:
        """Return the choice in words."""
        kept = ", ".join(str(trial) for trial in self.trials if trial.kept) or "the usual ones"
        tried = f"; {len(self.trials)} changes tried on held-out points" if self.trials else ""
        return f"text features: {kept}{tried}"

    def as_json(self) -> dict[str, Any]:
        """Return the choice as JSON."""
        return {"text": self.text, "trials": [dataclasses.asdict(trial) for trial in self.trials]}

    @classmethod
    def of_json(cls, kept: Mapping[str, Any]) -> TextChoice:
        """Return the choice that `as_json` wrote."""
        return cls(dict(kept["text"]), tuple(Trial(**trial) for trial in kept["trials"]))


def chosen_text(dataset: Dataset, named: Mapping[str, Any] | None, run: Run, device: torch.device) -> TextChoice:
    """Return the text settings for a data set: the named ones as they are, the others chosen by held-out points."""
    known = run.load(STAGE)
    if known is not None:
        choice = TextChoice.of_json(known[1])
    else:
        start = time.perf_counter()
        judge = Judge.of(dataset, run.seed, device)
        if judge is None:  # nothing is kept, so that a command that fails now does not block a corrected one
            return TextChoice(dict(named or {}))
        choice = _search(judge, dict(named or {}), run)
        run.observer.made(STAGE, time.perf_counter() - start, "labels")
        run.keep(STAGE, {}, choice.as_json())
    if choice.trials:
        run.note(str(choice))
    return choice


def seconds_of_choice(dataset: Dataset, named: Mapping[str, Any] | None, seed: int, device: torch.device) -> float:
    """Return about how long `chosen_text` takes: one trial, times their number."""
    judge = Judge.of(dataset, seed, device)
    if judge is None:
        return 0.0
    start = time.perf_counter()
    judge.quality(named or {})
    return (time.perf_counter() - start) * (1 + len(list(proposals(judge, named or {}))))


def _search(judge: Judge, given: dict[str, Any], run: Run) -> TextChoice:
    text, trials, start = given, list[Trial](), time.perf_counter()
    best = judge.quality(text)
    tried = list(proposals(judge, given))
    for number, changes in enumerate(tried):
        if _is_pointless(changes, trials):
            continue
        quality = judge.quality(text | changes)
        gains = quality - best
        kept = float(gains.mean()) > max(LEAST_GAIN, SURE * float(gains.std()) / math.sqrt(len(gains)))
        trials.append(Trial(changes, 100 * float(gains.mean()), kept))
        if kept:
            text, best = text | changes, quality
        _report(run, number + 1, len(tried), len(judge.train), time.perf_counter() - start)
    return TextChoice(text, tuple(trials))


def _is_pointless(changes: Mapping[str, Any], trials: list[Trial]) -> bool:
    """Whether earlier trials make a change needless: three words where pairs gained nothing, or another value kept."""
    if changes.get("ngrams", 0) > 2:
        return not any(trial.kept and "ngrams" in trial.changes for trial in trials)
    return any(trial.kept and trial.changes.keys() == changes.keys() for trial in trials)


def _report(run: Run, done: int, trials: int, points: int, took: float) -> None:
    left = took * (trials - done) / done
    run.progress.update(Moment("text features", 0, 1, done, trials, done * points / max(took, 1e-9), left, {}))


def proposals(judge: Judge, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield changes of the usual settings that suit these texts, without settings that the user has named."""
    settings, train = config.from_mapping(TextSettings, given), judge.train
    texts = train.texts or {}
    words = symbols = 0
    for column in texts.values():
        for text in column[:: max(1, len(train) // 500)]:
            tokens = len(tokenize(text))
            words, symbols = words + tokens, symbols + len(tokenize(text, symbols=True)) - tokens
    points = len(range(0, len(train), max(1, len(train) // 500)))
    tried: list[dict[str, Any]] = []
    if len(texts) > 1:
        if DEFAULT_FIELD_WEIGHTS.keys() & texts.keys():
            tried.append({"field_weights": dict.fromkeys(texts, 1.0)})
        else:
            tried += [{"field_weights": {name: FIELD_WEIGHT}} for name in [*texts][:FIELDS]]
    if symbols > MANY_SYMBOLS * words:
        tried.append({"symbols": True})
    tried += [{"ngrams": 2}, {"ngrams": 3}]
    if words <= FEW_WORDS * points:
        tried.append({"characters": LONG_PIECES})
    tried.append({"sublinear": not settings.sublinear})
    if judge.unknown(given) > UNKNOWN:  # in a part of train words are rarer, so that without need 1 would win too often
        tried.append({"min_count": 1})
    yield from (changes for changes in tried if not changes.keys() & given.keys())


@dataclass(frozen=True)
class Judge:
    """Judges text settings by the linear model on a part of train."""

    train: Part
    held_out: Part
    inverse: NDArray[np.float64]  # inverse propensities of the labels
    device: torch.device
    label_fields: tuple[str, ...] = ()  # of label texts, which may have weights too

    @classmethod
    def of(cls, dataset: Dataset, seed: int, device: torch.device) -> Judge | None:
        """Take some points of train; None if points are no texts, or too few, or have vectors beside their texts."""
        part = labelled(dataset.train)
        if part.texts is None or part.vectors or len(part) < FEWEST:
            return None
        part = with_some_labels(evenly_spaced(part, most_points(part)))
        stay, held = split_rows(part, HELD_OUT, seed)
        train, held_out = part.take(stay), part.take(held)
        counts = np.bincount(train.Y.indices, minlength=part.Y.shape[1])
        Y = csr_array(held_out.Y.multiply((counts > 0).astype(np.float32)))
        Y.eliminate_zeros()
        held_out = labelled(dataclasses.replace(held_out, Y=Y))
        if not len(train) or not len(held_out):
            return None
        inverse = metrics.inverse_propensities(counts, len(train), *dataset.propensity)
        return cls(train, held_out, inverse, device, tuple(dataset.label_texts or ()))

    def features(self, text: Mapping[str, Any]) -> tuple[csr_array, csr_array] | None:
        """Return the features of the training points and of the held-out points; None if no term is frequent enough."""
        settings, texts = config.from_mapping(TextSettings, text), self.train.texts or {}
        try:
            made = TextFeatures.fit(texts, {name: [] for name in self.label_fields}, settings)
        except DataError:
            return None
        return made.transform(texts), made.transform(self.held_out.texts or {})

    def unknown(self, text: Mapping[str, Any]) -> float:
        """Return the share of held-out points without a known word."""
        made = self.features(text)
        return 1.0 if made is None else float(np.mean(np.diff(made[1].indptr) == 0))

    def quality(self, text: Mapping[str, Any]) -> NDArray[np.float64]:
        """Return nDCG@5 plus propensity-scored nDCG@5 of each held-out point, by the linear model."""
        made = self.features(text)
        if made is None:
            return np.zeros(len(self.held_out))
        X, Q = made
        run, negatives = Run(observer=Quiet()), "all" if self.device.type == "cuda" else "mined"
        settings = settings_of("linear", changes={"rounds": 2, "negatives": negatives})
        model = model_class("linear")(X.shape[1], self.train.Y.shape[1], settings, run.generator("start"))
        outcome = model.to(self.device).fit(Lesson(dataclasses.replace(self.train, X=X)), run)
        if outcome.interrupted:  # half of its rounds judge nothing
            raise KeyboardInterrupt
        ranking = model.predictor().rank(Q, min(5, self.train.Y.shape[1]), self.held_out.filtered)
        return quality_of_points(ranking, self.held_out.Y, self.inverse)


class Quiet(Observer):
    """Keeps the judge's models out of the log."""

    is_logged = False


def quality_of_points(ranking: Ranking, Y: csr_array, inverse: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return nDCG@5 plus propensity-scored nDCG@5 of each point, [N].

    The second is a ratio of sums; a point's part of it is divided by the mean of the best possible ones.
    """
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
    """Return a part with at most LABELS of its labels, the most frequent ones and others at even spacing."""
    order = np.argsort(-np.bincount(part.Y.indices, minlength=part.Y.shape[1]), kind="stable")
    order = order[: len(np.unique(part.Y.indices))]
    rest = order[LABELS // 2 :]
    some = rest[np.linspace(0, len(rest) - 1, min(len(rest), LABELS // 2)).astype(np.int64)]
    labels = np.sort(np.concatenate([order[: LABELS // 2], some]))
    filtered = None if part.filtered is None else csr_array(part.filtered[:, labels])
    return labelled(dataclasses.replace(part, Y=csr_array(part.Y[:, labels]), filtered=filtered))


def _spoken(value: Any) -> str:
    return (
        ",".join(f"{name}:{item:g}" for name, item in value.items()) if isinstance(value, dict) else str(value).lower()
    )
