"""faiss is lent with threads and without BLAS, and handed back as it was."""

from __future__ import annotations

import faiss
import numpy as np
import pytest
import torch

from zipfel.index import engine

VECTORS = np.random.default_rng(0).normal(size=(400, 100)).astype(np.float32)
QUERIES = np.random.default_rng(1).normal(size=(3000, 100)).astype(np.float32)


def settings():
    return faiss.omp_get_max_threads(), faiss.cvar.distance_compute_blas_threshold, torch.get_num_threads()


@pytest.fixture
def two_threads():
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("two_threads")
def test_threads_follow_torch_and_are_handed_back():
    before = settings()
    for lent, threads in (
        (engine.building(deterministic=True), 1),
        (engine.building(deterministic=False), 2),
        (engine.searching(1), 1),
        (engine.searching(1000), 2),
    ):
        with lent as library:
            assert library is faiss
            assert faiss.omp_get_max_threads() == threads
        assert settings() == before


@pytest.mark.parametrize("lend", [lambda: engine.building(True), lambda: engine.searching(5)])
def test_handed_back_after_an_error(lend):
    before = settings()
    with pytest.raises(ZeroDivisionError), lend():
        raise ZeroDivisionError
    assert settings() == before


def test_sums_do_not_depend_on_how_many_queries_come_at_a_time():
    index = faiss.IndexFlatIP(100)
    index.add(VECTORS)
    with engine.searching(len(QUERIES)):
        whole = index.search(QUERIES, 10)[0]
        parts = [index.search(QUERIES[start : start + 100], 10)[0] for start in range(0, 3000, 100)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, index.search(QUERIES, 10)[0])  # with BLAS, outside


def test_seeds_of_any_size():
    seeds = [engine.small(seed) for seed in (0, 1, 2**64 - 1)] + [engine.small(0, 1)]
    assert len(set(seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)
