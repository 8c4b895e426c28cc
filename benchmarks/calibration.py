"""Whether scores are probabilities: `python -m benchmarks.calibration DATA MODEL PRESET [seed=0] [device=auto] [...]`.

Trains like `zipfel train` and computes the expected calibration error (equal-mass bins) and the Brier score of the top
5 on test: for the model's own scores, for calibrated ones, and for the best constant score, which is the share of hits.
One JSON line, with the bins of the reliability plot (mean score, share of hits), and the precision and recall on test
of thresholds that were chosen on held-out points for a precision of 0.8 or for the best micro-F1.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from benchmarks.record import record
from zipfel.calibration import DEPTH, SHOWN, brier, calibration_error
from zipfel.config import words_of
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.tagger import Tagger
from zipfel.tagging import calibrated
from zipfel.types import Ranking, stored

EQUAL_MASS = 15


def hits_of(ranking: Ranking, part: Part) -> np.ndarray[Any, Any]:
    """Return which labels of a ranking are right, [B, k]."""
    rows = np.repeat(np.arange(len(ranking)), ranking.k)
    return stored(part.Y, rows, ranking.ids.ravel()).reshape(ranking.ids.shape)


def reliability(scores: np.ndarray[Any, Any], hits: np.ndarray[Any, Any]) -> list[tuple[float, float]]:
    """Return the mean score and the share of hits of each bin."""
    parts = np.array_split(np.argsort(scores, kind="stable"), EQUAL_MASS)
    return [(round(float(scores[part].mean()), 4), round(float(hits[part].mean()), 4)) for part in parts]


def reached(tagger: Tagger, ranking: Ranking, part: Part, threshold: Any) -> dict[str, float]:
    """Return precision, recall, micro-F1 and tags per point above a threshold, on test."""
    assert tagger.fitted_ is not None
    kept = calibrated(tagger.fitted_, ranking, threshold)
    tags, hits = int((kept.ids >= 0).sum()), int(hits_of(kept, part).sum())
    numbers = {"precision": hits / max(tags, 1), "recall": hits / part.Y.nnz, "F1": 2 * hits / (tags + part.Y.nnz)}
    return {**{name: round(value, 4) for name, value in numbers.items()}, "tags": round(tags / len(part), 2)}


def evaluated(tagger: Tagger, dataset: Dataset) -> dict[str, Any]:
    """Return the figures on test."""
    test = dataset.test
    assert test is not None
    assert tagger.fitted_ is not None
    ranking = tagger.rank(test.texts if tagger.features_ is not None else test.X, DEPTH, test.filtered)
    hits, after = hits_of(ranking, test), calibrated(tagger.fitted_, ranking)
    figures: dict[str, Any] = {}
    for name, places in (("", slice(0, SHOWN)), (" place 1", slice(0, 1)), (" places 6-10", slice(5, 10))):
        right = hits[:, places].ravel()
        for kind, scores in (("raw", ranking.scores), ("calibrated", after.scores)):
            figures[f"ECE{name} {kind}"] = round(
                100 * calibration_error(scores[:, places].ravel(), right, EQUAL_MASS), 2
            )
            figures[f"Brier{name} {kind}"] = round(brier(scores[:, places].ravel(), right), 4)
        figures[f"Brier{name} constant"] = round(float(right.mean() * (1 - right.mean())), 4)
    top = hits[:, :SHOWN].ravel()
    figures["bins raw"] = reliability(ranking.scores[:, :SHOWN].ravel(), top)
    figures["bins calibrated"] = reliability(after.scores[:, :SHOWN].ravel(), top)
    for precision, by_frequency in ((0.8, False), (0.8, True), (None, False), (None, True)):
        name = "best F1" if precision is None else f"precision {precision}"
        threshold = tagger.choose_threshold(precision, by_frequency)
        figures[name + (" by frequency" if by_frequency else "")] = {
            "threshold": np.round(threshold, 4).tolist(),
            **reached(tagger, ranking, test, threshold),
        }
    return figures


def main(words: list[str]) -> None:
    path, model, preset = words[:3]
    changes = words_of(words[3:])
    seed, device = int(changes.pop("seed", "0")), changes.pop("device", "auto")
    method: Any = changes.pop("calibration", "auto")
    dataset = read(path)
    tagger = Tagger(model, preset, changes or None, device=device, seed=seed, calibration=method).fit_dataset(dataset)
    assert tagger.calibration_ is not None
    learned = tagger.calibration_.figures
    about = {"data": dataset.name, "model": model, "preset": preset, "changes": changes}
    held_out = {
        "method": learned.method,
        "points": learned.points,
        "cross-fitted ECE": round(100 * learned.error_after, 2),
    }
    record("calibration", {**about, **held_out, **evaluated(tagger, dataset)}, seed, ("scikit-learn", "torch"))


if __name__ == "__main__":
    main(sys.argv[1:])
