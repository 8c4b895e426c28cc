"""The curve of P@1 against PSP@1 of a blend: main part, linear part, and weights with a growing say of rare labels.

    python -m benchmarks.blend_curve DATA [DATA ...] [--main MODEL]

Trains as `zipfel train DATA` does, on train without up to 3,000 points, which are judged; test is not looked at.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.record import record
from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.splits import split_rows
from zipfel.data.text import Tfidf
from zipfel.models import blend
from zipfel.tagger import Tagger
from zipfel.types import Ranking

JUDGED, SPLIT = 3000, 7
TAILS = (0.0, 0.25, 0.5, 1.0)
METRICS = ("P@1", "P@5", "PSP@1", "PSP@5")


def split(dataset: Dataset) -> tuple[Dataset, Part]:
    """Return a data set without test and validation, and points of train that are judged instead."""
    if dataset.train.X is not None and (dataset.train.X.data % 1 == 0).all():
        dataset = Tfidf.fit(dataset.train.X).apply(dataset)
    share = min(JUDGED / len(dataset.train), 0.2)
    stay, held = split_rows(dataset.train, share, SPLIT)
    rest = dataclasses.replace(dataset, train=dataset.train.take(stay), test=None, validation=None)
    return rest, dataset.train.take(held)


def fitted(dataset: Dataset, main: str | None) -> tuple[Tagger, blend.Judged]:
    """Return a fitted tagger, and the held-out points on which its weights were chosen."""
    seen, plain = list[blend.Judged](), blend.chosen_weights

    def noted(judged: blend.Judged, tail: float) -> Any:
        seen.append(judged)
        return plain(judged, tail)

    blend.chosen_weights = noted
    try:
        tagger = Tagger("auto") if main is None else Tagger("blend", settings={"main": main})
        return tagger.fit_dataset(dataset), seen[0]
    finally:
        blend.chosen_weights = plain


def figures(tagger: Tagger, dataset: Dataset, judged: Part) -> dict[str, float]:
    """Return the metrics on the judged points; labels without a training point do not count."""
    counts = dataset.label_counts
    Y = judged.Y.multiply((counts > 0).astype(np.float32)).tocsr()
    Y.eliminate_zeros()
    inverse = metrics.inverse_propensities(counts, len(dataset.train), *dataset.propensity)
    ranking = tagger.rank(judged.X if judged.texts is None else judged.texts, 5, judged.filtered)
    some = np.diff(Y.indptr) > 0
    found = metrics.measure(Ranking(ranking.ids[some], ranking.scores[some]), Y[some], inverse, ks=(1, 5))
    return {name: round(found[name], 2) for name in METRICS}


def curve(tagger: Tagger, dataset: Dataset, judged: Part, weighed: blend.Judged) -> dict[str, Any]:
    """Return the metrics of each part alone, of the chosen weights, and of those for each of TAILS."""
    model, fit = tagger.model_, tagger.fitted_
    assert isinstance(model, blend.Blend)
    assert fit is not None
    chosen = model.knots.clone()
    weights = {"main": [0.0] * 3, "linear": [blend.ALONE] * 3, "chosen": chosen.tolist()}
    weights |= {f"tail {tail}": blend.learned_weights(weighed, tail).tolist() for tail in TAILS}
    found = {}
    for name, knots in weights.items():
        model.knots.copy_(torch.tensor(knots))
        tagger.fitted_ = dataclasses.replace(fit, predictor=model.predictor())
        found[name] = {**figures(tagger, dataset, judged), "w": [round(w, 2) for w in knots]}
    return found


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--main", help="main model, with the usual text features; default: what auto chooses")
    arguments = parser.parse_args(words)
    for path in arguments.data:
        dataset, judged = split(read(path))
        tagger, weighed = fitted(dataset, arguments.main)
        about = {"data": Path(path).name, "judged": len(judged), "main model": tagger.settings_.main,
                 "text": tagger.text_choice_.text, "seconds": round(tagger.outcome_.seconds, 1)}  # fmt: skip
        record("blend_curve", {**about, **curve(tagger, dataset, judged, weighed)}, 0, ("torch",))


if __name__ == "__main__":
    main(sys.argv[1:])
