"""The models of remembered points from the command line."""

from __future__ import annotations

import json

import pytest

import zipfel

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "mnn": ["--set", "dimension=16", "--set", "epochs=4", "--set", "learning_rate=0.01"],
    "dxml": ["--set", "dimension=16", "--set", "hidden_size=32", "--set", "epochs=4", "--set", "learning_rate=0.01"],
}


@pytest.mark.parametrize("index", ["exact", "ivf"])
@pytest.mark.parametrize("model", sorted(SMALL))
def test_train_evaluate_train_again(zipfel_command, planted, tmp_path, model, index, nothing_is_learned_again):
    changes = ["--set", f"index={index}", *(["--set", "probes=2"] if index == "ivf" else [])]
    words = ["train", planted, "--model", model, "--out", tmp_path / "run", *SMALL[model], *changes]
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    assert "epoch 4" in outcome.err
    assert "trained in" in outcome.out
    evaluated = zipfel_command("evaluate", tmp_path / "run", planted, "--json", tmp_path / "figures.json")
    assert evaluated.code == 0, evaluated.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["P@1"] > 60
    if index == "ivf":
        assert 1 < figures["index recall"] < 100  # in percent, like the rest
        assert f"the index finds {figures['index recall']:.2f} % of what an exact search finds" in evaluated.out
    else:
        assert "index recall" not in figures
        assert "the index finds" not in evaluated.out
    nothing_is_learned_again(words, tmp_path / "run")


def test_a_text_is_tagged(zipfel_command, planted, tmp_path):
    dataset = zipfel.read(planted)
    train = ["train", planted, "--model", "mnn", "--out", tmp_path / "run", *SMALL["mnn"]]
    assert zipfel_command(*train).code == 0
    text = next(iter(dataset.train.texts.values()))[0]
    outcome = zipfel_command("predict", tmp_path / "run", text, "--k", "20", "--json")
    tags = json.loads(outcome.out)["tags"]
    assert {tag["label"] for tag in tags} == set(dataset.label_names)
    assert tags[0]["label"] in {dataset.label_names[label] for label in dataset.train.Y[[0]].indices}
    assert 0 <= tags[-1]["score"] <= tags[0]["score"] <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["mnn", "--set", "negative=3"], "unknown setting 'negative'; did you mean 'negatives'?"),
        (["dxml", "--set", "hiden_size=3"], "unknown setting 'hiden_size'; did you mean 'hidden_size'?"),
        (["dxml", "--set", "hidden=3"], "unknown setting 'hidden'; it is now called hidden_size"),
        (["mnn", "--set", "keep=0.5"], "unknown setting 'keep'; it is now called feature_dropout, which is 1 - keep"),
        (["dxml", "--set", "index=ifv"], "index must be one of exact, hnsw, ivf; found 'ifv'"),
        (["mnn", "--set", "neighbours=0"], "neighbours must be at least 1; found 0"),
        (["dxml", "--set", "feature_dropout=2"], "feature_dropout must be at least 0 and below 1; found 2.0"),
    ],
)
def test_a_bad_setting_is_refused_in_one_line(zipfel_command, planted, tmp_path, words, message):
    outcome = zipfel_command("train", planted, "--out", tmp_path / "x", "--model", *words)
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_random_label_vectors_need_no_file(zipfel_command, planted, tmp_path):
    words = ["--model", "dxml", *SMALL["dxml"], "--set", "label_vectors=random"]
    outcome = zipfel_command("train", planted, "--out", tmp_path / "run", *words)
    assert outcome.code == 0, outcome.err
    settings = json.loads((tmp_path / "run" / "model" / "model.json").read_text())["settings"]
    assert settings["label_vectors"] == "random"


def test_a_graph_with_an_unknown_label_is_refused(zipfel_command, planted, tmp_path):
    (tmp_path / "graph.txt").write_text("nobody\tnowhere\n")
    words = ["--model", "dxml", *SMALL["dxml"], "--set", f"graph={tmp_path / 'graph.txt'}"]
    outcome = zipfel_command("train", planted, "--out", tmp_path / "x", *words)
    assert outcome.code == 2
    assert "graph.txt:1: unknown label 'nobody'" in outcome.err
    assert "Traceback" not in outcome.err


def test_models_lists_the_settings_of_neighbours(zipfel_command):
    outcome = zipfel_command("models")
    for word in ("mnn", "dxml", "neighbours", "sharpness", "negatives", "walks_per_label"):
        assert word in outcome.out
