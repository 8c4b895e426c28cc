"""Theorem 3.1 of DECAF on data: `python -m benchmarks.decaf_bound DATA [--preset paper] [--seed 0] [key=value ...]`.

The theorem: if Θ̂ minimises the loss over shortlists that hold a share r of the right labels, and a share s of all pairs
is right, then 𝓛(Θ̂) ≤ min 𝓛(Θ) + O(s (1 − r) ln(1 / (s (1 − r)))).

Trains one learner on shortlists and one, with the same settings, against all labels, which stands for min 𝓛. Prints one
JSON line with each term on train: s, r, the excess s (1 − r) ln(1 / (s (1 − r))), 𝓛 of both models, 𝓛̃ (the loss over
shortlists) of the first, and the constant that O would need: (𝓛(Θ̂) − 𝓛(Θ)) / excess. A constant that stays bounded as
s (1 − r) falls, over data sets and beams (beam=10, beam=50 ...), speaks for the theorem; one that is negative says only
that training against all labels did not reach the minimum.
"""

from __future__ import annotations

import argparse
import math
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor

from benchmarks.record import record
from zipfel.config import words_of
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import read
from zipfel.data.text import featurized
from zipfel.fitting import chosen_device, lesson_of
from zipfel.models.base import settings_of
from zipfel.models.decaf import Decaf
from zipfel.models.learner import evenly_spaced
from zipfel.models.shortlisters import batches
from zipfel.training.run import Run
from zipfel.types import stored

POINTS = 20_000  # of train, on which losses and recall are computed


class Terms(NamedTuple):
    """The terms of the theorem for one model, on N points with L labels."""

    sparsity: float  # s, the share of pairs that are right
    recall: float  # r, the share of right pairs that are on shortlists
    loss: float  # 𝓛, the mean of ln(1 + exp(−y w · x)) over all pairs
    listed_loss: float  # 𝓛̃, the same over pairs on shortlists

    @property
    def excess(self) -> float:
        """The term of the bound: s (1 − r) ln(1 / (s (1 − r))); 0 where nothing is missed.

        >>> round(Terms(0.25, 0.5, 0, 0).excess, 4)  # 1/8 · ln 8
        0.2599
        """
        missed = self.sparsity * (1 - self.recall)
        return missed * math.log(1 / missed) if missed > 0 else 0.0


def terms_of(scores: Tensor, Y: csr_array, lists: NDArray[np.int64] | None) -> Terms:
    """Return the terms of points.

    scores: [N, L].  Y: [N, L], right pairs.  lists: labels on shortlists, [N, W], −1 pads; None: all labels.
    """
    right = torch.from_numpy(Y.toarray() > 0).to(scores.device)
    losses = F.softplus(torch.where(right, -scores, scores).double())  # [N, L]
    if lists is None:
        return Terms(float(right.double().mean()), 1.0, float(losses.mean()), float(losses.mean()))
    rows = np.repeat(np.arange(len(lists)), lists.shape[1])[lists.ravel() >= 0]
    labels = lists.ravel()[lists.ravel() >= 0]
    found = int(stored(Y, rows, labels).sum())
    listed = losses[torch.from_numpy(rows), torch.from_numpy(labels)]
    return Terms(float(right.double().mean()), found / max(1, Y.nnz), float(losses.mean()), float(listed.mean()))


def together(parts: list[tuple[int, Terms]], right: int) -> Terms:
    """Return the terms of all points from those of batches, each with its number of points.

    Recall is weighted by the right pairs of a batch, the others by its points.  right: right pairs of all batches.
    """
    points = sum(count for count, _ in parts)
    means = [sum(count * terms[column] for count, terms in parts) / points for column in range(4)]
    pairs = [count * terms.sparsity for count, terms in parts]
    found = (
        sum(pair * terms.recall for pair, (_, terms) in zip(pairs, parts, strict=True)) / sum(pairs) if right else 1.0
    )
    return Terms(means[0], found, means[2], means[3])


@torch.no_grad()
def measured(model: Decaf, part: Part) -> Terms:
    """Return the terms of a model's first learner on the points of a part."""
    learner, network = model.learners()[0], model.all_networks()[0]
    W, parts = network.composed_classifiers, []
    for rows in batches(len(part)):
        some = part.take(rows)
        queries, lists = learner.encode(some.X), None
        if network.shortlister is not None:
            index = network.shortlister.index()
            lists = index.labels(index.open(learner.keys(some.X, queries)).ids).cpu().numpy()
        parts.append((len(rows), terms_of((queries @ W.T + network.offset).cpu(), some.Y, lists)))
    return together(parts, int(part.Y.nnz))


def trained(dataset: Dataset, preset: str, changes: dict[str, str], seed: int, device: str) -> Decaf:
    """Train one learner on all points."""
    settings, run = settings_of("decaf", preset, {"learners": 1, **changes}), Run(seed=seed)
    model = Decaf(dataset.sizes.features, dataset.sizes.labels, settings, run.generator("start"))
    model.to(chosen_device(device)).fit(lesson_of(model, dataset, dataset.label_names or (), 0.0, seed), run)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="The terms of DECAF's Theorem 3.1.")
    parser.add_argument("data")
    parser.add_argument("changes", nargs="*", help="settings of both models: key=value")
    parser.add_argument("--preset", default="paper")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    asked = parser.parse_args()
    dataset, changes = featurized(read(asked.data)), words_of(asked.changes)
    some = evenly_spaced(dataset.train, POINTS)
    listed, every = (
        measured(trained(dataset, asked.preset, {**changes, "shortlist": kind}, asked.seed, asked.device), some)
        for kind in ("beam", "none")
    )
    constant = (listed.loss - every.loss) / listed.excess if listed.excess else None
    figures = {"data": dataset.name, "preset": asked.preset, "changes": changes, **listed._asdict(),
               "excess": listed.excess, "loss against all labels": every.loss, "constant": constant}  # fmt: skip
    record("decaf_bound", figures, asked.seed, ("torch",))


if __name__ == "__main__":
    main()
