"""The script of GLaS's tables, on planted data: which arms there are, what a line holds, and the plot."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import glas_table1
from zipfel.data.dataset import Dataset
from zipfel.data.splits import hold_out
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.models.base import settings_of
from zipfel.models.glas import GlasSettings

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    counted = make(Synthetic(points=400, labels=12, seed=1))
    return hold_out(Tfidf.fit(counted.train.X).apply(counted), 0.2, into="validation")


@pytest.fixture
def base() -> GlasSettings:
    return settings_of("glas", "paper", {"dimension": 16, "epochs": 3, "learning_rate": 0.02, "batch_size": 64})


def recorded(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_arms_are_those_of_table_1():
    arms = glas_table1.ARMS
    assert {"none", "glas", "spread_out", "laplacian", "gravity", "base", "linear", "algorithm-1"} < arms.keys()
    assert [arm for arm in arms if arm.startswith("lambda=")] == [f"lambda={10**power}" for power in range(6)]
    assert {arms["rho=1.0"]["feature_dropout"], arms["rho=0.6"]["feature_dropout"]} == {0.0, 0.4}
    assert [arms[f"B={size}"]["batch_size"] for size in (1024, 2048)] == [1024, 2048]
    assert [arms[f"d={width}"]["dimension"] for width in (256, 512)] == [256, 512]


def test_a_line_has_the_gap_and_a_curve_for_each_seed(dataset, base, capsys):
    glas_table1.tables(dataset, base, ["algorithm-1"], [0, 1], "cpu")
    (line,) = recorded(capsys)
    assert (line["arm"], line["seeds"], line["settings"]["regularizer"]) == ("algorithm-1", [0, 1], "none")
    assert line["gap P@1"] == pytest.approx(line["train P@1"] - line["P@1"], abs=0.02)
    assert {"P@3", "P@5", "nDCG@1", "nDCG@5", "gap P@3", "gap P@5", "P@1 sd"} < line.keys()
    assert [len(curve) for curve in line["curves"]] == [3, 3]
    assert all(epoch.keys() == {"train", "validation"} for curve in line["curves"] for epoch in curve)
    assert line["batch size in effect"] == len(dataset.train) // 10


def test_test_is_also_ranked_without_some_of_its_features(dataset, base, capsys):
    X = dataset.test.X
    partly = glas_table1.corrupted(X)
    assert np.count_nonzero(partly.data == 0) / X.nnz == pytest.approx(glas_table1.CORRUPTED, abs=0.03)
    assert (partly.data[partly.data > 0] == X.data[partly.data > 0]).all()
    glas_table1.tables(dataset, base, ["base"], [0], "cpu")
    (line,) = recorded(capsys)
    assert 0 < line["corrupted P@1"] < line["P@1"]


def test_a_regularizer_has_the_weight_that_is_best_on_validation(dataset, base, capsys, monkeypatch):
    monkeypatch.setattr(glas_table1, "GRID", (1.0, 10.0))
    glas_table1.tables(dataset, base, ["gravity"], [0], "cpu")
    *tried, line = recorded(capsys)
    assert [(one["tried"], one["lambda"]) for one in tried] == [("gravity", 1.0), ("gravity", 10.0)]
    best = max(tried, key=lambda one: one["validation P@1"])
    assert line["settings"]["regularizer_weight"] == best["lambda"]
    assert line["P@1 sd"] is None


def test_the_plot(tmp_path):
    curve = [{"train": 50.0, "validation": 45.0}, {"train": 90.0, "validation": 44.0}]
    lines = [{"benchmark": "glas_table1", "data": "planted", "arm": arm, "curves": [curve]} for arm in ("none", "glas")]
    (tmp_path / "results.jsonl").write_text("\n".join(map(json.dumps, [*lines, {"benchmark": "train"}])))
    glas_table1.main(["plot", str(tmp_path / "results.jsonl"), str(tmp_path / "curve.svg")])
    assert "planted" in (tmp_path / "curve.svg").read_text()


def test_an_unknown_arm_is_refused(capsys):
    with pytest.raises(SystemExit):
        glas_table1.main(["data", "--arms", "glass"])
    assert "unknown arms glass; known are none, glas" in capsys.readouterr().err
