"""The script of LightDXML's tables, on planted data: which arms there are, what a line holds, an arm that fails."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from benchmarks import light_tables
from zipfel import metrics
from zipfel.data.dataset import Dataset, Part
from zipfel.data.formats import write
from zipfel.data.splits import hold_out
from zipfel.data.synthetic import Synthetic, make
from zipfel.data.text import Tfidf
from zipfel.errors import ConfigError
from zipfel.models.base import Lesson, settings_of
from zipfel.models.lightdxml import LightDxml
from zipfel.models.reranker import RerankedPredictor
from zipfel.training.run import Run

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SMALL = {"dimension": "8", "epochs": "2", "min_steps": "1", "shortlist_size": "6", "learning_rate": "0.02"}


@pytest.fixture(scope="module")
def dataset() -> Dataset:
    counted = make(Synthetic(points=300, labels=12, seed=1))
    return hold_out(Tfidf.fit(counted.train.X).apply(counted), 0.2, into="validation")


def recorded(capsys) -> list[dict]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_every_arm_is_a_setting_of_lightdxml():
    for arm, changes in light_tables.ARMS.items():
        row = {name: value for name, value in changes.items() if name != "preset"}
        settings = settings_of("lightdxml", changes.get("preset", "default"), row)
        same = settings == settings_of("lightdxml")
        assert same == (arm in ("default", "beta", "label-epochs=1", "d=768")), arm


def test_groups_and_sums_of_arms():
    assert list(light_tables.arms_of("k")) == ["k=25", "k=50", "k=100", "k=200", "k=400", "k=700"]
    assert light_tables.arms_of("d=512+own-k=50,relu") == {
        "d=512+own-k=50": {"dimension": 512, "shortlist_size": 50, "shared_negatives": False},
        "relu": {"relu": True},
    }
    assert light_tables.arms_of(None) == light_tables.ARMS
    with pytest.raises(ConfigError, match=r"unknown arm 'rerank'; did you mean 'reranker'\?"):
        light_tables.arms_of("relu,rerank")


def test_lines_have_all_figures_and_a_failing_arm_does_not_stop_the_next(dataset, capsys, monkeypatch):
    plain = light_tables.evaluated

    def evaluated(dataset, settings, *more):
        if settings.relu:
            raise RuntimeError("out of memory")
        return plain(dataset, settings, *more)

    monkeypatch.setattr(light_tables, "evaluated", evaluated)
    arms = light_tables.arms_of("relu,reranker,beta,cycle=none")
    assert not light_tables.run_arms(dataset, "test", arms, SMALL, [0, 1], CPU)
    failed, reranked, beta, never = recorded(capsys)
    assert (failed["arm"], failed["error"]) == ("relu", "RuntimeError: out of memory")
    for line in (reranked, beta, never):
        assert {*light_tables.NAMES, "recall", "first recall", "MB", "train seconds", "P@1 sd"} < line.keys()
        assert line["P@1"] > 50
        assert 50 < line["labels scored by a step, %"] <= 100
        assert line["seconds"]["fit"] > line["seconds"]["place_labels"] >= 0
        assert line["seeds"] == [0, 1]
    assert reranked["MB"] > 1.5 * beta["MB"]
    assert "learn_reranker" in reranked["seconds"]
    assert len(beta["curve"]) == 21
    assert "curve" not in never
    assert beta["curve"]["1.0"][0] == pytest.approx(beta["P@1"], abs=15)
    assert light_tables.run_arms(dataset, "test", {"default": {}}, SMALL, [0], CPU)


def test_figures_are_those_of_the_model_that_ranks_with_its_re_ranker(dataset):
    settings = settings_of("lightdxml", changes={**SMALL, "reranker": "true"})
    found = light_tables.evaluated(dataset, settings, 0, CPU)
    run = Run()
    model = LightDxml(dataset.sizes.features, 12, settings, run.generator("start"))
    model.fit(Lesson(dataset.train, dataset.validation, Z=dataset.Z), run)
    predictor = model.predictor()
    assert isinstance(predictor, RerankedPredictor)
    expected = metrics.measure(predictor.rank(dataset.test.X, 5), dataset.test.Y)
    assert {name: found[name] for name in ("P@1", "P@5", "nDCG@3")} == pytest.approx(
        {name: expected[name] for name in ("P@1", "P@5", "nDCG@3")}
    )
    weights = sum(value.nbytes for value in model.tensors().serve.values())
    assert weights < 1e6 * found["MB"] < 1.5 * weights


def test_labels_that_a_step_scores_by_hand(monkeypatch):
    """Ten points, one in a batch: its label and the two that are listed for all."""
    part = Part(csr_array(np.eye(10, 8, dtype=np.float32)[[0] * 10]), X=csr_array(np.ones((10, 3), dtype=np.float32)))
    model = LightDxml(3, 8, settings_of("lightdxml", changes=SMALL), torch.Generator())
    monkeypatch.setattr(model, "shortlists", lambda points, k: torch.tensor([[5, 6]] * len(points)))
    assert light_tables.share_scored(model, Lesson(part), 0) == pytest.approx(100 * 3 / 8)


def test_points_of_validation_are_judged_on_and_choose_nothing(tmp_path):
    counted = make(Synthetic(points=300, labels=12, test_share=0.2, seed=1))
    write(counted, tmp_path / "data", "repository")
    on_test, on_validation = (light_tables.loaded(str(tmp_path / "data"), part) for part in ("test", "validation"))
    assert len(on_test.test) == len(counted.test)
    assert len(on_validation.test) == pytest.approx(0.1 * len(counted.train), abs=2)
    assert len(on_validation.validation) == pytest.approx(0.05 * 0.9 * len(counted.train), abs=2)
    sizes = [len(getattr(on_validation, part)) for part in ("train", "validation", "test")]
    assert sum(sizes) == len(counted.train)


def test_the_command_line(tmp_path, capsys):
    """Settings may follow options; a mistake is one line, before anything is trained."""
    data = str(tmp_path / "data")
    write(make(Synthetic(points=300, labels=12, test_share=0.2, seed=1)), data, "repository")
    shared = [f"{name}={value}" for name, value in SMALL.items()]
    light_tables.main(
        [data, "--arms", "default,relu", "--seeds", "0", "--part", "validation", "--device", "cpu", *shared]
    )
    assert [(line["arm"], line["part"], line["shared"]) for line in recorded(capsys)] == [
        ("default", "validation", SMALL),
        ("relu", "validation", SMALL),
    ]
    for words, message in (
        (["--arms", "kk"], "unknown arm 'kk'"),
        (["dimensions=3"], "unknown setting 'dimensions'; did you mean 'dimension'?"),
        (["--device", "gpu"], "unknown device 'gpu'"),
    ):
        with pytest.raises(SystemExit):
            light_tables.main([data, *words])
        assert message in capsys.readouterr().err
