"""DECAF beyond the paper: longer classifiers for rare labels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from zipfel.data.dataset import Part
from zipfel.models.decaf_network import Network
from zipfel.models.learner import evenly_spaced, ndcg_at_5

POWERS = (0.0, 0.005, 0.01, 0.015, 0.02, 0.025, 0.03, 0.04, 0.05, 0.06, 0.08)  # of n̄ / n_l that are tried
SPARED = 0.0005  # of nDCG@5 that may be given up for the tail: chosen on validation, docs/papers/decaf.md
FEW, MANY = 800, 10_000  # held-out points: fewer say too little about powers, more add nothing


@torch.no_grad()
def boost_rare(network: Network, counts: Tensor, held_out: Part | None) -> None:
    """Lengthen composed classifiers of rare labels and shorten those of frequent ones: w_l (n̄ / n_l)^γ.

    γ is the largest with which held-out points are ranked as well as with the best; with few held-out points, and after
    Ctrl-C, it stays as it was.  counts: training points of each label, [L].
    """
    W, logs = network.composed_classifiers, rarity(counts).to(network.composed_classifiers)[:, None]
    logs = logs if network.own is None else logs[network.own.rows]

    def lengthened(power: float | Tensor) -> Tensor:
        D = network.settings.dimension
        return torch.cat([W[:, :D] * torch.exp(power * logs), W[:, D:]], dim=1)  # a bias stays as it is

    def quality(power: float, part: Part) -> float:
        network.composed_classifiers = lengthened(power)
        return ndcg_at_5(network.learner(counts, len(counts)), part)

    try:
        if held_out is not None and len(held_out) >= FEW:
            sample = evenly_spaced(held_out, MANY)
            network.rare_power.fill_(largest_power({power: quality(power, sample) for power in POWERS}))
    finally:
        network.composed_classifiers = lengthened(network.rare_power)


def rarity(counts: Tensor) -> Tensor:
    """Return ln(n̄ / n_l), [L]; n_l is one more than a label's points, n̄ its geometric mean over all right labels.

    So 0 is the mean over right labels, and the value of new labels, whose scores are `cautious` anyway.

    >>> rarity(torch.tensor([3, 0, 1])).exp()  # n̄ = (4³ · 2) ** (1 / 4) = 3.364
    tensor([0.8409, 3.3636, 1.6818], dtype=torch.float64)
    """
    logs = torch.log1p(counts.double())
    return counts.double() @ logs / counts.sum().clamp_min(1) - logs


def largest_power(qualities: Mapping[float, float]) -> float:
    """Return the largest power whose quality is within SPARED of the best.

    >>> largest_power({0.0: 0.7, 0.1: 0.7004, 0.2: 0.7, 0.3: 0.69})
    0.2
    """
    best = max(qualities.values())
    return max(power for power, quality in qualities.items() if quality >= best - SPARED)
