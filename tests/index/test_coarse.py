"""Coarse search in low precision: its candidates contain the best vectors, whatever the vectors."""

from __future__ import annotations

import pickle
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from zipfel.index import coarse, exact
from zipfel.index.coarse import Coarse, Half
from zipfel.index.exact import ExactIndex

pytestmark = pytest.mark.usefixtures("one_thread")


def drawn(vectors: int, width: int, seed: int, scale: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(vectors, width, generator=generator) * torch.rand(vectors, 1, generator=generator) * scale
    return torch.randn(1, width, generator=generator), rows


@given(
    vectors=st.integers(1, 60), width=st.sampled_from([1, 3, 4, 8, 16, 33, 64]), wanted=st.integers(1, 70),
    seed=st.integers(0, 999), scale=st.sampled_from([1e-6, 1.0, 1e4]), group=st.sampled_from([1, 4, 64]),
    even=st.booleans(),
)  # fmt: skip
def test_the_best_are_among_the_candidates(vectors, width, wanted, seed, scale, group, even):
    query, rows = drawn(vectors, width, seed, scale)
    rows[::5] = 0
    if even:
        rows = torch.nn.functional.normalize(rows + 1e-3, dim=1)
    with patch.multiple(coarse, CHUNK=7, GROUP=group):
        look = Coarse(rows)
        assume(look.is_sound())  # narrow vectors are not multiplied right everywhere, and are not looked at so
        found = set(look.candidates(query, wanted).tolist())
    best = (query.double() @ rows.double().T)[0].topk(min(wanted, vectors)).indices.tolist()
    assert set(best) <= found


HEAD = [127.0]  # makes the step 1, so that the other numbers are rounded


@pytest.mark.parametrize(
    ("query", "best", "other"),
    [
        ([1.0] * 64, HEAD + [0.499] * 63, HEAD + [0.501] * 62 + [0]),
        (HEAD + [0.499] * 31 + [0.501] * 31 + [0], HEAD * 32 + [0] * 32, HEAD + [0] * 31 + HEAD * 30 + [0] * 2),
    ],
    ids=["vectors lose", "the query loses"],
)
def test_what_only_looks_better_does_not_hide_the_best(query, best, other):
    look = Coarse(torch.tensor([best, other]))
    about = look.multiplied(np.rint(np.array(query, dtype=np.float32) * (127 / max(query))))
    assert about[0] < about[1]
    assert 0 in look.candidates(torch.tensor([query]), 1)


@pytest.mark.parametrize("scale", [1e-28, 1e-20, 1e20])
def test_queries_that_are_tiny_or_huge(scale):
    query, rows = drawn(500, 64, 0)
    assert Coarse(rows).candidates(scale * query, 5).tolist() == pytest.approx(
        Coarse(rows).candidates(query, 5).tolist()
    )


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_where_a_vector_is_no_number_there_is_no_first_look(value):
    query, rows = drawn(300, 64, 0)
    rows[7, 3] = value
    assert not Coarse(rows).is_sound()
    with patch.multiple(exact, MANY=0, PATIENCE=0):
        assert ExactIndex(rows).search(query, 5).ids.shape == (1, 5)


def test_an_index_is_pickled_without_its_first_looks():
    query, rows = drawn(300, 64, 0)
    with patch.multiple(exact, MANY=0, PATIENCE=0):
        index = ExactIndex(rows)
        found = index.search(query, 5)
        assert index.coarse is not None
        again = pickle.loads(pickle.dumps(index))
        assert again.coarse is None
        assert torch.equal(again.search(query, 5).ids, found.ids)


def test_few_are_let_through():
    query, rows = drawn(5000, 256, 0)
    found = Coarse(rows).candidates(query, 10)
    assert len(found) < 250
    assert (found[1:] > found[:-1]).all()
    rows[0] *= 100 / rows[0].norm()  # one that is long does not make the others less sure
    assert len(Coarse(rows).candidates(query, 10)) < 250
    even = torch.nn.functional.normalize(rows, dim=1)
    look = Coarse(even)
    assert look.lengths.shape == ()
    assert len(look.candidates(query, 10)) < 250


def test_scores_that_need_not_be_taken_anew_are_those_of_row_products():
    _, rows = drawn(3000, 64, 0)
    rows[1000:1100] = rows[1000] * (1 + 1e-4 * torch.rand(100, 1, generator=torch.Generator().manual_seed(2)))
    queries = torch.randn(130, 64, generator=torch.Generator().manual_seed(1))
    queries[5:9] = rows[1000]  # many vectors are equally near: 16 bits cannot distinguish them
    with patch.multiple(exact, MANY=0, PATIENCE=0, half_is_faster=lambda: True):
        index = ExactIndex(rows)
        alone, many, some = (index.search(queries[:count], 10) for count in (1, 130, 5))
        assert not index.half.candidates(queries, 10)[1].all()
    assert (alone.steady, many.steady, some.steady) == (True, True, False)
    for found in (alone, many):
        assert torch.equal(found.scores, exact.row_products(queries[: len(found.ids)], rows, found.ids))
    assert torch.equal(alone.scores, many.scores[:1])


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


def off_by_one(kind):
    return lambda rows, steps: lambda short: kind(rows, steps)(short) - steps.numpy()


def gone(rows, steps):
    raise AttributeError


def not_for_this_processor(rows, steps):
    def refused(short):
        raise RuntimeError

    return refused


@pytest.mark.parametrize("packed", [off_by_one(coarse.packed), gone, not_for_this_processor])
def test_without_a_sound_8_bit_product_the_search_is_exact_all_the_same(packed):
    query, rows = drawn(300, 64, 0)
    assert Coarse(rows).is_sound()
    with patch.multiple(exact, MANY=0, PATIENCE=0), patch.object(coarse, "packed", packed):
        index = ExactIndex(rows)
        found = index.search(query, 5)
        assert index.coarse is None
        assert index.search(query, 5) is not None
    assert torch.equal(found.ids, ExactIndex(rows).search(query, 5).ids)


# --- many queries, in 16 bits -----------------------------------------------------------------------------------------


@given(
    queries=st.integers(1, 5), vectors=st.integers(4, 90), width=st.sampled_from([1, 3, 16, 64]),
    wanted=st.integers(1, 9), more=st.integers(1, 9), room=st.integers(1, 300), seed=st.integers(0, 999),
    near=st.sampled_from([0.0, 1e-3, 1.0]),
)  # fmt: skip
def test_where_it_is_sure_the_best_are_among_the_candidates(queries, vectors, width, wanted, more, room, seed, near):
    """Vectors are equal, nearly so, or far apart: by 16 bits alone many tie that do not by whole numbers."""
    assume(wanted + more <= vectors)
    generator = torch.Generator().manual_seed(seed)
    Q, middle = (torch.randn(size, width, generator=generator) for size in (queries, 1))
    rows = middle + near * torch.randn(vectors, width, generator=generator)
    with patch.multiple(coarse, MORE=more, ROOM=room):
        ids, sure = Half(rows).candidates(Q, wanted)
    assert ids.shape == (queries, wanted + more)
    assert (ids.diff(dim=1) > 0).all()
    best = (Q.double() @ rows.double().T).topk(wanted, dim=1).indices
    for found, those, certain in zip(ids.tolist(), best.tolist(), sure.tolist(), strict=True):
        assert set(those) <= set(found) or not certain
    if near == 0:
        assert not sure.any()


def test_it_is_mostly_sure_of_vectors_that_are_far_apart():
    generator = torch.Generator().manual_seed(0)
    Q, rows = (torch.randn(size, 256, generator=generator) for size in (200, 5000))
    assert Half(rows).candidates(Q, 10)[1].float().mean() > 0.9


@pytest.mark.parametrize("near", [0.0, 0.01, 1.0])
def test_many_queries_find_the_same_as_few(near):
    """One of the queries is zero, so that all vectors tie; for others 16 bits cannot decide."""
    generator = torch.Generator().manual_seed(1)
    Q = torch.randint(-3, 4, (200, 16), generator=generator).float()
    Q[7] = 0
    rows = torch.randint(-3, 4, (1000, 16), generator=generator).float()
    rows = rows if near == 1 else rows[:1] + (near * rows[:]).round(decimals=2)
    wanted = ExactIndex(rows).search(Q, 9)
    with patch.object(exact, "MANY", 0), patch.object(exact, "half_is_faster", lambda: True):
        index = ExactIndex(rows)
        found = index.search(Q, 9)
        assert index.half is not None
        assert torch.equal(found.ids, wanted.ids) if near != 0.01 else found.ids.shape == wanted.ids.shape
        torch.testing.assert_close(found.scores.sort(dim=1).values, wanted.scores.sort(dim=1).values)
        torch.testing.assert_close((Q @ rows.T).gather(1, found.ids), found.scores)  # ids are those of the scores
        index.add(rows[:1])
        assert index.half is None


def test_few_queries_small_indices_and_other_processors_do_without():
    Q, rows = torch.randn(200, 16), torch.randn(1000, 16)
    for many, faster, count in ((1 << 21, True, 200), (0, False, 200), (0, True, 100)):
        with patch.object(exact, "MANY", many), patch.object(exact, "half_is_faster", lambda faster=faster: faster):
            index = ExactIndex(rows)
            index.search(Q[:count], 9)
            assert index.half is None


@pytest.mark.parametrize(
    ("capabilities", "faster"),
    [({}, False), ({"avx512_bf16": False}, False), ({"avx512_bf16": True}, True), ({"amx_bf16": True}, True)],
)
def test_torch_is_asked_for_the_instructions(monkeypatch, capabilities, faster):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)
    assert coarse.half_is_faster.__wrapped__() is faster


def test_rows_are_packed_in_blocks_with_the_same_products(monkeypatch):
    """All rows at once crash torch from 2^30 numbers on."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(-127, 128, (103, 8), generator=generator, dtype=torch.int8)
    steps, query = torch.rand(103, generator=generator), np.rint(100 * np.random.default_rng(0).random(8)).astype("f4")
    whole = coarse.packed(rows, steps)(query)
    monkeypatch.setattr(coarse, "PACKED", 8 * 25)
    sizes = []
    prepack = torch.ops.quantized.linear_prepack
    monkeypatch.setattr(
        torch.ops.quantized, "linear_prepack", lambda typed, bias: sizes.append(len(typed)) or prepack(typed, bias)
    )
    np.testing.assert_array_equal(coarse.packed(rows, steps)(query), whole)
    assert sizes == [25, 25, 25, 25, 3]
