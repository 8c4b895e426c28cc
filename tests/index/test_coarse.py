"""A first look in 8 bits: what it lets through holds the best, whatever the vectors."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from zipfel.index import coarse, exact
from zipfel.index.coarse import Coarse
from zipfel.index.exact import ExactIndex

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(vectors: int, width: int, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(vectors, width, generator=generator) * torch.rand(vectors, 1, generator=generator) * scale
    return torch.randn(1, width, generator=generator), rows


@given(
    vectors=st.integers(1, 60), width=st.sampled_from([1, 3, 4, 8, 16, 33, 64]), wanted=st.integers(1, 70),
    seed=st.integers(0, 999), scale=st.sampled_from([1e-6, 1.0, 1e4]),
)  # fmt: skip
def test_the_best_are_among_the_candidates(vectors, width, wanted, seed, scale):
    query, rows = drawn(vectors, width, seed, scale)
    rows[::5] = 0
    with patch.object(coarse, "CHUNK", 7):
        look = Coarse(rows)
    assume(look.is_sound())  # narrow vectors are not multiplied right everywhere, and are not looked at so
    found = set(look.candidates(query, wanted).tolist())
    best = (query.double() @ rows.double().T)[0].topk(min(wanted, vectors)).indices.tolist()
    assert set(best) <= found


def test_few_are_let_through():
    query, rows = drawn(5000, 256, 0)
    assert len(Coarse(rows).candidates(query, 10)) < 250


@given(vectors=st.integers(1, 60), wanted=st.integers(1, 70), seed=st.integers(0, 99))
def test_single_queries_find_the_same_as_others(vectors, wanted, seed):
    """Whole numbers, of which many tie."""
    generator = torch.Generator().manual_seed(seed)
    query, rows = (torch.randint(-2, 3, (size, 16), generator=generator).float() for size in (1, vectors))
    with patch.multiple(exact, MANY=0, PATIENCE=0):
        index = ExactIndex(rows)
        found = index.search(query, wanted)
    wanted_ = ExactIndex(rows).search(query, wanted)
    assert torch.equal(found.ids, wanted_.ids)
    assert torch.equal(found.scores, wanted_.scores)


def test_it_is_made_once_it_pays_and_anew_for_other_vectors():
    query, rows = drawn(300, 64, 0)
    with patch.multiple(exact, MANY=0, PATIENCE=2):
        index = ExactIndex(rows)
        made = []
        for _ in range(4):
            index.search(query, 5)
            made.append(index.coarse is not None)
        assert made == [False, False, True, True]
        index.add(10 * rows[:5])
        assert index.coarse is None
        for _ in range(3):
            found = index.search(query, 5)
        assert torch.equal(found.ids, ExactIndex(index.vectors).search(query.repeat(2, 1), 5).ids[:1])


def test_a_processor_that_overflows_is_not_trusted():
    query, rows = drawn(300, 64, 0)
    with (
        patch.multiple(exact, MANY=0, PATIENCE=0),
        patch.object(torch, "_int_mm", lambda a, b: (a.int() @ b.int()) - 1),
    ):
        index = ExactIndex(rows)
        found = index.search(query, 5)
        assert index.coarse is None
        assert index.search(query, 5) is not None
    assert torch.equal(found.ids, ExactIndex(rows).search(query, 5).ids)
