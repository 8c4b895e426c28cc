"""Held-out points: chosen by content and seed alone, equal points together, about the requested share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.sparse import csr_array

from zipfel.data.dataset import Dataset, Part
from zipfel.data.splits import Preparation, hold_out, prepared, shared_points, split_rows, with_min_label_count
from zipfel.errors import ConfigError, DataError

SHARES = st.floats(0.01, 0.99)
SEEDS = st.integers(0, 2**64 - 1)
CONTENTS = st.lists(st.integers(0, 12), min_size=2, max_size=60)  # equal numbers are equal points


def part_of(contents, texts=True):
    contents = np.asarray(contents, dtype=np.int64)
    Y = csr_array(np.eye(4)[contents % 4])
    if texts:
        return Part(Y, texts={"text": [f"point {number}" for number in contents]}, uids=[str(n) for n in contents])
    X = csr_array(np.stack([contents + 1, contents % 3], axis=1).astype(np.float64))
    return Part(Y, X, uids=[str(n) for n in contents])


@given(CONTENTS, SHARES, SEEDS, st.booleans())
def test_parts_are_disjoint_complete_and_keep_equal_points_together(contents, share, seed, texts):
    assume(len(set(contents)) > 1)
    stay, held = split_rows(part_of(contents, texts), share, seed)
    assert sorted([*stay, *held]) == list(range(len(contents)))
    assert list(stay) == sorted(stay)
    assert list(held) == sorted(held)
    assert len(stay) > 0
    assert len(held) > 0
    assert not {contents[row] for row in stay} & {contents[row] for row in held}


@given(CONTENTS, SHARES, SEEDS)
def test_the_share_is_met_up_to_a_group_of_equal_points(contents, share, seed):
    assume(len(set(contents)) > 1)
    _, held = split_rows(part_of(contents), share, seed)
    largest = np.bincount(contents).max()
    assert abs(len(held) - share * len(contents)) <= largest


@given(st.integers(2, 200), SHARES, SEEDS)
def test_the_share_is_met_where_all_points_differ(points, share, seed):
    _, held = split_rows(part_of(range(points), texts=False), share, seed)
    assert abs(len(held) - share * points) <= 0.5 or len(held) in (1, points - 1)


@given(CONTENTS.flatmap(lambda c: st.tuples(st.just(c), st.permutations(range(len(c))))), SHARES, SEEDS, st.booleans())
def test_the_order_of_rows_makes_no_difference(data, share, seed, texts):
    contents, order = data
    assume(len(set(contents)) > 1)
    shuffled = [contents[row] for row in order]
    first = {contents[row] for row in split_rows(part_of(contents, texts), share, seed)[1]}
    second = {shuffled[row] for row in split_rows(part_of(shuffled, texts), share, seed)[1]}
    assert first == second


@pytest.mark.parametrize("texts", [False, True])
def test_seeds_give_independent_splits_and_the_same_seed_the_same(texts):
    part = part_of(range(2_000), texts)
    halves = [set(split_rows(part, 0.5, seed)[1].tolist()) for seed in (0, 0, 1, 2, 2**64 - 1)]
    assert halves[0] == halves[1]
    for one in range(1, 5):
        for other in range(one + 1, 5):
            assert 400 < len(halves[one] & halves[other]) < 600  # half of a half, by chance


def test_held_out_points_resemble_the_remaining_ones():
    """Labels and lengths must not depend on the side: a hash that leaves a pattern would show here."""
    contents = np.arange(4_000)
    for texts in (False, True):
        _, held = split_rows(part_of(contents, texts), 0.25, 3)
        assert abs(contents[held].mean() - 2_000) < 120
        assert all(200 < count < 300 for count in np.bincount(contents[held] % 4))


def test_a_pinned_split():
    """A change here changes every split that anybody has made."""
    assert split_rows(part_of(range(20)), 0.2, 0)[1].tolist() == [2, 3, 5, 15]
    assert split_rows(part_of(range(20), texts=False), 0.2, 0)[1].tolist() == [1, 9, 13, 16]


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ConfigError, match=f"share to hold out must be above 0 and below 1; found {share}"):
        split_rows(part_of([1, 2]), share, 0)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ConfigError, match=f"seed must be .*; found {seed}"):
        split_rows(part_of([1, 2]), 0.5, seed)


@pytest.mark.parametrize("contents", [[], [1], [1, 1, 1]])
def test_too_few_points_are_an_error(contents):
    different = len(set(contents))
    with pytest.raises(
        DataError,
        match=f"needs 2 distinct points; found {len(contents)} points, {different} distinct; .*set holdout to 0",
    ):
        split_rows(part_of(contents), 0.5, 0)


def test_a_small_share_of_few_points_is_one_point():
    assert len(split_rows(part_of([1, 2, 3]), 0.01, 0)[1]) == 1
    assert len(split_rows(part_of([1, 2, 3]), 0.99, 0)[1]) == 2


def test_holding_out_moves_rows_with_all_that_belongs_to_them():
    contents = list(range(30))
    filtered = csr_array(np.eye(4)[np.array(contents) % 4 // 2])
    train = part_of(contents)
    train = Part(train.Y, texts=train.texts, uids=train.uids, filtered=filtered)
    dataset = Dataset(train, name="whole", label_names=list("abcd"))
    split = hold_out(dataset, 0.3, seed=5, into="validation")
    assert list(split.parts) == ["train", "validation"]
    assert (split.name, split.label_names) == ("whole", list("abcd"))
    assert sorted([*split.train.uids, *split.validation.uids], key=int) == train.uids
    for part in split.parts.values():
        rows = [int(uid) for uid in part.uids]
        assert part.texts == {"text": [f"point {row}" for row in rows]}
        assert (part.Y.toarray() == train.Y.toarray()[rows]).all()
        assert (part.filtered.toarray() == filtered.toarray()[rows]).all()
    again = hold_out(split, 0.3, seed=5, into="test")
    assert [len(part) for part in again.parts.values()] == [15, 6, 9]
    for into in ("train", "test", "validation"):
        with pytest.raises(DataError, match=f"whole already has a {into} part"):
            hold_out(again, 0.3, into=into)
    assert len(dataset.train) == 30


def test_a_data_set_is_prepared():
    dataset = Dataset(part_of([*range(40), 2, 2, 2]), notes=("read",))
    made = prepared(dataset, Preparation(holdout=0.25, min_label_count=0, seed=1))
    assert len(made.train) + len(made.test) == 43
    assert made.notes == ("read", f"no test file: {len(made.test)} points held out of train (seed 1)")
    assert shared_points(made) == {"test": 0}
    assert prepared(made, Preparation(holdout=0.5)) is made
    assert prepared(dataset, Preparation(holdout=0)) is dataset


def test_rare_labels_are_left_out_by_their_points_in_train():
    train = Part(csr_array([[1, 0, 1, 0], [1, 1, 0, 0], [1, 0, 1, 0]]), csr_array(np.eye(3)))
    test = Part(csr_array([[1, 1, 1, 1], [0, 1, 0, 0]]), csr_array([[9.0, 0, 0], [0, 9, 0]]))
    dataset = Dataset(train, test, label_names=list("abcd"), label_texts={"title": list("ABCD")})
    assert with_min_label_count(dataset, 0) is dataset
    fewer = with_min_label_count(dataset, 1)
    assert fewer.label_names == list("abc")
    fewest = with_min_label_count(dataset, 2)
    assert fewest.label_names == list("ac")
    assert fewest.label_texts == {"title": list("AC")}
    assert fewest.train.Y.toarray().tolist() == [[1, 1], [1, 0], [1, 1]]
    assert fewest.test.Y.toarray().tolist() == [[1, 1], [0, 0]]  # a point that has lost all its labels stays
    assert fewest.notes == ("2 labels with fewer than 2 points in train dropped",)
    with pytest.raises(DataError, match="no label has at least 4 points in train; the most frequent has 3"):
        with_min_label_count(dataset, 4)
    with pytest.raises(DataError, match="the most frequent has 0"):
        with_min_label_count(Dataset(Part(csr_array((2, 0)))), 1)


def test_filtered_pairs_do_not_count_and_what_is_held_out_does_not_either():
    Y = csr_array([[1, 1], [1, 0]])
    dataset = Dataset(Part(Y, csr_array(np.eye(2)), filtered=csr_array([[0, 1], [0, 0]])))
    assert with_min_label_count(dataset, 1).sizes.labels == 1
    contents = list(range(40))  # ten points a label, of which some are held out before labels are counted
    made = prepared(Dataset(part_of(contents)), Preparation(holdout=0.25, min_label_count=8, seed=0))
    counts = np.bincount([int(uid) % 4 for uid in made.train.uids], minlength=4)
    assert made.sizes.labels == (counts >= 8).sum() < 4


def test_leaks_are_counted():
    dataset = Dataset(part_of([1, 2, 3]), part_of([3, 3, 9, 1]), part_of([7]))
    assert shared_points(dataset) == {"test": 3, "validation": 0}
