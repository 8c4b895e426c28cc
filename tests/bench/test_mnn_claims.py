"""The script of MNN's claims: which splits it trains on, and what a line holds."""

from __future__ import annotations

import math

import pytest

from benchmarks import mnn_claims


def row(value: float) -> dict[str, float]:
    return dict.fromkeys(mnn_claims.COMPARED, value)


def test_two_runs_share_the_splits(monkeypatch):
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(mnn_claims, "resplit", lambda dataset, number: number)
    monkeypatch.setattr(mnn_claims, "prepared", lambda split, name: split)
    monkeypatch.setattr(mnn_claims, "Tagger", lambda *given, seed, **more: seed)
    monkeypatch.setattr(mnn_claims, "figures", lambda split, seed: asked.append((split, seed)) or row(split + seed))
    options = mnn_claims.arguments(["data", "--splits", "2", "--first-split", "3", "--seeds", "0", "4"])
    found = mnn_claims.trained(None, "dropout", "p=0.9", options)
    assert asked == [(3, 0), (3, 4), (4, 0), (4, 4)]
    assert [figures["P@1"] for figures in found] == [5, 6]  # means over seeds


def test_a_line_has_the_figures_of_each_split_and_corrected_standard_errors():
    line = mnn_claims.summary([row(60), row(62.5)], [row(60), row(61)], test_per_train=0.5)
    assert (line["P@1"], line["by split"]["P@1"]) == (61.25, [60, 62.5])
    mean, error = line["ahead of the first row, standard error"]["P@1"]
    assert mean == 0.75
    assert error == pytest.approx(math.sqrt(1.5**2 / 2 * (1 / 2 + 0.5)), abs=0.01)
