"""The choice of text features (zipfel.text_choice.py): it finds what is planted, and nothing in random labels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.text_choice import Trial, chosen_text, proposals, quality_of_points
from zipfel.training.run import Run
from zipfel.types import Ranking

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = ["red", "green", "blue", "apple", "pear", "plum"]
CPU = torch.device("cpu")


def pairs(count: int = 700, random: bool = False) -> Dataset:
    """Return texts of two words, whose label is the first word, or a random one."""
    numbers = np.random.default_rng(0)
    words = np.array([numbers.permutation(6)[:2] for _ in range(count)])
    labels = numbers.integers(0, 6, count) if random else words[:, 0]
    Y = csr_array((np.ones(count), (np.arange(count), labels)), shape=(count, 6))
    return Dataset(Part(Y, texts={"text": [f"{WORDS[a]} {WORDS[b]}" for a, b in words]}))


def test_pairs_of_words_are_chosen_where_their_order_decides():
    choice = chosen_text(pairs(), None, Run(), CPU)
    assert choice.text == {"ngrams": 2}
    (kept,) = [trial for trial in choice.trials if trial.kept]
    assert kept.gain > 10
    assert "ngrams=2 (+" in str(choice)


def test_nothing_is_gained_on_random_labels():
    choice = chosen_text(pairs(random=True), None, Run(), CPU)
    assert choice.text == {}
    assert choice.trials
    assert not any(trial.kept for trial in choice.trials)


def test_named_settings_are_not_touched():
    choice = chosen_text(pairs(), {"ngrams": 1}, Run(), CPU)
    assert choice.text["ngrams"] == 1
    assert all("ngrams" not in trial.changes for trial in choice.trials)


def test_few_points_decide_nothing():
    assert chosen_text(pairs(400), {"min_count": 3}, Run(), CPU).text == {"min_count": 3}


def test_a_run_keeps_the_choice(tmp_path, monkeypatch):
    run = Run(tmp_path)
    run.open({})
    first = chosen_text(pairs(), None, run, CPU)
    monkeypatch.setattr("zipfel.text_choice._search", None)  # is not asked again
    again = Run(tmp_path)
    again.open({})
    assert chosen_text(pairs(), None, again, CPU) == first


def test_proposals_suit_the_texts():
    short = Part(csr_array((2, 1)), texts={"title": ["a b", "c"], "body": ["+ - * /", "x ≤ y"]})
    tried = list(proposals(short, {}))
    assert {"symbols": True} in tried
    assert {"characters": 5} in tried
    assert {"field_weights": {"title": 1.0, "body": 1.0}} in tried
    long = Part(csr_array((1, 1)), texts={"text": ["word " * 100]})
    assert all("characters" not in changes and "symbols" not in changes for changes in proposals(long, {}))


def test_the_quality_of_points_adds_up_to_the_metrics():
    numbers = np.random.default_rng(1)
    Y = csr_array((numbers.random((40, 12)) < 0.3).astype(np.float32))
    Y = csr_array(Y[np.diff(Y.indptr) > 0])
    ids = np.array([numbers.permutation(12)[:5] for _ in range(Y.shape[0])])
    ranking = Ranking(ids, np.tile(np.arange(5, 0, -1), (len(ids), 1)).astype(np.float32))
    inverse = metrics.inverse_propensities(np.bincount(Y.indices, minlength=12), Y.shape[0])
    wanted = metrics.measure(ranking, Y, inverse, ks=[5])
    assert 100 * quality_of_points(ranking, Y, inverse).mean() == pytest.approx(wanted["nDCG@5"] + wanted["PSnDCG@5"])


def test_a_trial_in_words():
    assert str(Trial({"field_weights": {"title": 1.0}}, 1.25, True)) == "field_weights=title:1 (+1.2)"
