"""Theorem 2.1 of GLaS in numbers: fewer dimensions than labels are enough for perfect accuracy.

By the construction of such proofs: label vectors are random signs, divided by √d, and φ(x) is the sum of those of a
point's labels. The model's own parts compute everything: unit label vectors, a linear φ whose features are the labels
of a point, and the ranking. φ has length 1 in the model, which changes no ranking; the theorem bounds φ before that.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from zipfel.data.batches import bags
from zipfel.models.glas import Glas, GlasSettings

pytestmark = pytest.mark.usefixtures("one_thread")

LABELS = 2000  # K


class Case(NamedTuple):
    most: int  # s, labels of a point at most
    points: int  # |S|
    dimension: int  # d

    @property
    def coherence(self) -> float:
        """Statement 5: the largest inner product of two label vectors."""
        return math.sqrt(2 * math.log(4 * LABELS**2) / self.dimension)


CASES = {
    # with d = 18 s² ln(4 K²), the bound of statement 5 is 1 / (3 s): s such terms are at most 1/3, for any labels
    "s² log K": Case(2, 500, math.ceil(18 * 2**2 * math.log(4 * LABELS**2))),
    # a sum of s vectors has about length √s: of K |S| products with it, none exceeds 1/3 if d = 18 s ln(4 K |S|)
    "s log K|S|": Case(6, 100, math.ceil(18 * 6 * math.log(4 * LABELS * 100))),
}


@pytest.fixture(params=CASES, scope="module")
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def truth(case) -> csr_array:
    """Points with one to s labels, at random, [S, K]."""
    numbers, Y = np.random.default_rng(0), np.zeros((case.points, LABELS), dtype=np.float32)
    for row in Y:
        row[numbers.choice(LABELS, numbers.integers(1, case.most + 1), replace=False)] = 1
    return csr_array(Y)


@pytest.fixture(scope="module")
def model(case) -> Glas:
    """A model whose label vectors are random signs of any length, and φ the sum of those of length 1."""
    generator = torch.Generator().manual_seed(0)
    settings = GlasSettings(dimension=case.dimension, layers=1, nonlinear=False, loss="margin")
    model = Glas(LABELS, LABELS, settings, generator).eval()
    signs = 2.0 * torch.randint(2, (LABELS, case.dimension), generator=generator) - 1
    model.classifier.labels.rows.copy_(signs)
    model.embedding.input.rows.copy_(signs / math.sqrt(case.dimension))
    return model


@pytest.fixture(scope="module")
def phi(model, truth) -> torch.Tensor:
    with torch.no_grad():
        return model.embedding.unscaled(bags(truth))


def test_1_there_are_fewer_dimensions_than_labels(case):
    assert case.dimension < LABELS


def test_2_and_5_label_vectors_have_length_1_and_are_nearly_orthogonal(case, model):
    V = model.classifier.composed()
    torch.testing.assert_close(V.norm(dim=1), torch.ones(LABELS))
    products = V @ V.T
    products.fill_diagonal_(-1)
    assert products.max().item() <= case.coherence


def test_3_and_4_own_labels_score_two_thirds_or_more_and_others_a_third_or_less(model, phi, truth):
    scores, own = phi @ model.classifier.composed().T, torch.from_numpy(truth.toarray() > 0)
    assert scores[own].min().item() >= 2 / 3
    assert scores[~own].max().item() <= 1 / 3
    assert torch.equal(scores > 0.5, own)  # the classifier of the theorem


def test_6_phi_is_short(case, phi):
    bound = case.most * (math.log(LABELS) / case.dimension) ** 0.25
    assert phi.norm(dim=1).max().item() <= 4 * bound  # O(bound)


def test_the_model_ranks_own_labels_first(case, model, truth):
    ranking = model.learners()[0].rank(truth, case.most)
    for row, ids in enumerate(ranking.ids):
        own = truth[[row]].indices
        assert set(ids[: len(own)].tolist()) == set(own.tolist())
