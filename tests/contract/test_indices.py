"""Tests that every index must pass, over vectors drawn around many centres."""

from __future__ import annotations

import math
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize

from zipfel.errors import DataError
from zipfel.index import KINDS, build_index, load_index, recall
from zipfel.index.exact import ExactIndex

pytestmark = pytest.mark.usefixtures("one_thread")
DIMENSION = 16


def drawn(rows, seed=0):
    """Return unit vectors around rows / 20 centres; the centres do not depend on the seed."""
    centres = torch.randn(max(rows // 20, 1), DIMENSION, generator=torch.Generator().manual_seed(99))
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(centres), (rows,), generator=generator)
    return normalize(centres[chosen] + 0.3 * torch.randn(rows, DIMENSION, generator=generator))


VECTORS, QUERIES = drawn(2000), drawn(2000, seed=1)[:100]


@pytest.fixture(params=KINDS, scope="module")
def kind(request):
    return request.param


def built(kind, vectors, **settings):
    index = build_index(kind, vectors, **settings)
    if kind == "ivf":
        index.probes = 16  # of 44 clusters; the default looks at all of so few
    return index


@pytest.fixture(scope="module")
def index(kind):
    return built(kind, VECTORS, seed=5)


def same(one, other):
    return torch.equal(one.ids, other.ids) and torch.equal(one.scores, other.scores)


def assert_sound(shortlist, queries, vectors, width):
    """Check shape, types, that no row is found twice, and that scores are inner products."""
    shape = (len(queries), min(width, len(vectors)))
    assert shortlist.ids.shape == shortlist.scores.shape == shape
    assert shortlist.ids.dtype == torch.long
    assert shortlist.scores.dtype == torch.float32
    true = queries @ vectors.T
    for row, (ids, scores) in enumerate(zip(shortlist.ids, shortlist.scores, strict=True)):
        found = ids >= 0
        assert len(set(ids[found].tolist())) == int(found.sum())
        assert (scores[~found] == -math.inf).all()
        torch.testing.assert_close(scores[found], true[row, ids[found]], rtol=0, atol=1e-5)


@pytest.mark.parametrize("width", [1, 7, 100, 1999, 2000, 5000])
def test_rows_that_exist_with_their_inner_products(index, width):
    assert len(index) == 2000
    assert_sound(index.search(QUERIES, width), QUERIES, VECTORS, width)


@pytest.mark.parametrize("rows", [1, 2, 10])
@pytest.mark.parametrize("width", [1, 2, 10, 20])
def test_few_rows_are_searched_exactly(kind, rows, width):
    vectors, index = VECTORS[:rows], build_index(kind, VECTORS[:rows])
    shortlist = index.search(QUERIES, width)
    assert_sound(shortlist, QUERIES, vectors, width)
    assert recall(index, ExactIndex(vectors), QUERIES, width) == 1


def test_no_queries(index):
    assert index.search(torch.empty(0, DIMENSION), 7).ids.shape == (0, 7)
    assert recall(index, index, torch.empty(0, DIMENSION), 7) == 1


def test_no_vectors(kind):
    if kind == "exact":
        assert build_index(kind, torch.empty(0, DIMENSION)).search(QUERIES, 3).ids.shape == (100, 0)
        return
    with pytest.raises(DataError, match="at least one vector"):
        build_index(kind, torch.empty(0, DIMENSION))


@pytest.mark.parametrize("width", [1, 10, 100])
def test_nearly_all_of_the_best_are_found(index, width):
    assert recall(index, ExactIndex(VECTORS), QUERIES, width) >= 0.95


def test_a_query_that_is_no_unit_vector_finds_the_same(index):
    once, longer = index.search(QUERIES, 10), index.search(4 * QUERIES, 10)
    assert torch.equal(once.ids, longer.ids)
    torch.testing.assert_close(4 * once.scores, longer.scores)


def test_an_empty_query_finds_scores_of_zero(index):
    shortlist = index.search(torch.zeros(2, DIMENSION), 5)
    assert_sound(shortlist, torch.zeros(2, DIMENSION), VECTORS, 5)
    assert (shortlist.ids >= 0).all()


def test_two_builds_are_the_same_and_another_seed_is_not(kind, index):
    again = built(kind, VECTORS, seed=5)
    ours, theirs = index.state(), again.state()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert same(index.search(QUERIES, 50), again.search(QUERIES, 50))
    other = build_index(kind, VECTORS, seed=2**64 - 1).state()
    assert kind == "exact" or not all(
        ours[name].shape == other[name].shape and torch.equal(ours[name], other[name])
        for name in ("graph", "centroids")
        if name in ours
    )


def test_a_build_on_all_cores_finds_as_much(kind):
    index = built(kind, VECTORS, deterministic=False)
    assert recall(index, ExactIndex(VECTORS), QUERIES, 50) >= 0.95


def through_a_file(kind, index, vectors, path):
    save_file(index.state() | {"vectors": vectors}, path)
    state = load_file(path)
    return load_index(kind, state, state.pop("vectors"))


def test_a_file_keeps_an_index_and_its_future(kind, tmp_path):
    index = built(kind, VECTORS, seed=2**63)
    loaded = through_a_file(kind, index, VECTORS, tmp_path / "index.safetensors")
    assert len(loaded) == 2000
    assert same(index.search(QUERIES, 50), loaded.search(QUERIES, 50))
    new = drawn(2000, seed=2)[:300]
    index.add(new)
    loaded.add(new)
    assert all(torch.equal(value, loaded.state()[name]) for name, value in index.state().items())
    assert same(index.search(QUERIES, 50), loaded.search(QUERIES, 50))
    twice = through_a_file(kind, loaded, torch.cat([VECTORS, new]), tmp_path / "again.safetensors")
    assert same(index.search(QUERIES, 50), twice.search(QUERIES, 50))


def test_vectors_that_do_not_belong_to_a_file_are_refused(kind, index):
    if kind != "exact":
        with pytest.raises(DataError, match="made for 2000 vectors; found 1999"):
            load_index(kind, index.state(), VECTORS[1:])


def test_new_rows_are_found_behind_the_old_ones(kind):
    index = built(kind, VECTORS)
    new = drawn(2000, seed=3)[:200]
    index.add(new)
    every = torch.cat([VECTORS, new])
    assert len(index) == 2200
    assert_sound(index.search(QUERIES, 50), QUERIES, every, 50)
    assert recall(index, ExactIndex(every), QUERIES, 50) >= 0.95
    found = (index.search(new, 1).ids[:, 0] == torch.arange(2000, 2200)).float().mean()
    assert found >= 0.98


def test_the_vectors_given_may_change_afterwards(kind):
    if kind == "exact":
        return  # holds the model's own vectors, without a copy
    vectors = VECTORS.clone()
    index = built(kind, vectors)
    before = index.search(QUERIES, 10)
    vectors.zero_()
    assert same(before, index.search(QUERIES, 10))


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_the_batch_size_changes_no_answer(index, batch):
    whole = index.search(QUERIES, 30)
    parts = [index.search(QUERIES[start : start + batch], 30) for start in range(0, len(QUERIES), batch)]
    ids, scores = torch.cat([part.ids for part in parts]), torch.cat([part.scores for part in parts])
    assert torch.equal(whole.ids, ids)
    torch.testing.assert_close(whole.scores, scores, rtol=0, atol=1e-6)


def test_threads_change_no_answer(index):
    once = index.search(QUERIES, 30)
    torch.set_num_threads(2)
    twice = index.search(QUERIES, 30)
    torch.set_num_threads(1)
    assert same(once, twice)


def test_many_copies_of_one_vector_hide_nothing(kind):
    vectors = VECTORS.clone()
    vectors[500:1500] = vectors[3]
    index, exact = built(kind, vectors), ExactIndex(vectors)
    others = QUERIES[(QUERIES @ vectors[3]) < 0.5]
    assert len(others) > 50
    assert recall(index, exact, others, 20) >= 0.95
    copies = index.search(vectors[3:4], 100)
    assert_sound(copies, vectors[3:4], vectors, 100)
    assert all(row == 3 or 500 <= row < 1500 for row in copies.ids[0].tolist())
    everything = index.search(vectors[3:4], 2000).ids[0].tolist()
    assert kind == "ivf" or sorted(everything) == list(range(2000))
    index.add(vectors[3:4])
    assert 2000 in index.search(vectors[3:4], 1002).ids[0].tolist()


def test_nothing_but_copies(kind):
    index = build_index(kind, torch.ones(50, 2))
    shortlist = index.search(torch.ones(3, 2), 4)
    assert_sound(shortlist, torch.ones(3, 2), torch.ones(50, 2), 4)
    assert (shortlist.ids >= 0).all()


def test_empty_rows_hide_nothing(kind):
    vectors = VECTORS.clone()
    vectors[::4] = 0
    index = built(kind, vectors)
    assert_sound(index.search(QUERIES, 50), QUERIES, vectors, 50)
    assert recall(index, ExactIndex(vectors), QUERIES, 20) >= 0.95


def test_half_precision_goes_in(index):
    assert_sound(index.search(QUERIES.half().float(), 5), QUERIES.half().float(), VECTORS, 5)
    if not isinstance(index, ExactIndex):
        assert same(index.search(QUERIES.half(), 5), index.search(QUERIES.half().float(), 5))


def test_recall_counts_what_is_found():
    exact = ExactIndex(torch.eye(4))
    tilted = ExactIndex(torch.eye(4)[[1, 0, 2, 3]])
    queries = torch.tensor([[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
    assert recall(exact, exact, queries, 2) == 1
    assert recall(tilted, exact, queries, 1) == 0.5  # the first finds row 1 for row 0, the second row 3
    assert recall(tilted, exact, queries, 2) == 1


def test_without_faiss_an_exact_index_is_used(kind, index, monkeypatch, recwarn):
    state = index.state()
    monkeypatch.setitem(sys.modules, "faiss", None)
    if kind == "exact":
        assert isinstance(build_index(kind, VECTORS), ExactIndex)
        assert len(recwarn) == 0
        return
    with pytest.warns(UserWarning, match=f"faiss.*using an exact index instead of {kind}"):
        built = build_index(kind, VECTORS)
    with pytest.warns(UserWarning, match="exact"):
        loaded = load_index(kind, state, VECTORS)
    for found in (built, loaded):
        assert recall(found, ExactIndex(VECTORS), QUERIES, 10) == 1
        assert found.state() == {}
    monkeypatch.undo()
    assert isinstance(load_index(kind, built.state(), VECTORS), ExactIndex)  # what was saved without faiss
