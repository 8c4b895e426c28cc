"""DECAF from the command line: train with and without shortlists, an ensemble; evaluate, predict, train again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import zipfel
from zipfel.data.synthetic import Synthetic, make

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--model", "decaf"]
for word in ("dimension=16", "epochs=4", "first_epochs=4", "steps=1", "rate=0.03", "first_rate=0.03", "batch=32",
             "drop=0.1"):  # fmt: skip
    SMALL += ["--set", word]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "planted"
    zipfel.write(make(Synthetic(points=500, labels=20, texts=True, noise=0.2, seed=1)), folder, "lf")
    return folder


@pytest.mark.parametrize("changes", [["learners=2"], ["learners=2", "shortlist=beam", "beam=2", "lite=true"]])
def test_train_evaluate_predict_train_again(zipfel_command, planted, tmp_path, changes, nothing_is_learned_again):
    more = [part for word in changes for part in ("--set", word)]
    words = ["train", planted, "--out", tmp_path / "run", *SMALL, *more]
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    assert "epoch 4" in outcome.err
    judged = zipfel_command("evaluate", tmp_path / "run", planted, "--json", tmp_path / "figures.json")
    assert judged.code == 0, judged.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["P@1"] > 50
    assert ("index recall" in figures) == (len(changes) > 1)
    dataset = zipfel.read(planted)
    text = next(iter(dataset.train.texts.values()))[1]
    tags = json.loads(zipfel_command("predict", tmp_path / "run", text, "--k", "20", "--json").out)["tags"]
    assert {tag["label"] for tag in tags} == set(dataset.label_names)
    own = {dataset.label_names[label] for label in dataset.train.Y[[1]].indices}
    assert own & {tag["label"] for tag in tags[: len(own) + 1]}
    nothing_is_learned_again(words, tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["learnrs=3"], "unknown setting 'learnrs'; did you mean 'learners'?"),
        (["clusters=12"], "clusters must be a power of two; found 12"),
        (["shortlist=hnsw"], "shortlist must be one of none, beam; found 'hnsw'"),
    ],
)
def test_bad_settings_are_one_line(zipfel_command, planted, tmp_path, words, told):
    more = [part for word in words for part in ("--set", word)]
    outcome = zipfel_command("train", planted, "--out", tmp_path / "x", "--model", "decaf", *more)
    assert outcome.code == 2
    assert told in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_models_lists_what_decaf_takes(zipfel_command):
    outcome = zipfel_command("models")
    for word in ("decaf", "learners", "refinement", "first_epochs", "lite"):
        assert word in outcome.out
