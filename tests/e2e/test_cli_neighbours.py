"""The models of remembered points from the command line."""

from __future__ import annotations

import json

import pytest

import zipfel

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "mnn": ["--set", "dimension=16", "--set", "epochs=4", "--set", "rate=0.01"],
    "dxml": ["--set", "dimension=16", "--set", "hidden=32", "--set", "epochs=4", "--set", "rate=0.01"],
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
    judged = zipfel_command("evaluate", tmp_path / "run", planted, "--json", tmp_path / "figures.json")
    assert judged.code == 0, judged.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["P@1"] > 60
    if index == "ivf":
        assert 1 < figures["index recall"] < 100  # in percent, as the rest
        assert f"the index finds {figures['index recall']:.2f} % of what an exact search finds" in judged.out
    else:
        assert "index recall" not in figures
        assert "the index finds" not in judged.out
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
    ("words", "told"),
    [
        (["mnn", "--set", "negative=3"], "unknown setting 'negative'; did you mean 'negatives'?"),
        (["dxml", "--set", "hiden=3"], "unknown setting 'hiden'; did you mean 'hidden'?"),
        (["dxml", "--set", "index=ifv"], "ivf"),
        (["mnn", "--set", "neighbours=0"], "neighbours must be at least 1; found 0"),
        (["dxml", "--set", "keep=2"], "keep must lie in (0, 1]; found 2"),
    ],
)
def test_bad_settings_are_one_line(zipfel_command, planted, tmp_path, words, told):
    outcome = zipfel_command("train", planted, "--out", tmp_path / "x", "--model", *words)
    assert outcome.code == 2
    assert told in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_a_graph_with_an_unknown_label_is_one_line(zipfel_command, planted, tmp_path):
    (tmp_path / "graph.txt").write_text("nobody\tnowhere\n")
    words = ["--model", "dxml", *SMALL["dxml"], "--set", f"graph={tmp_path / 'graph.txt'}"]
    outcome = zipfel_command("train", planted, "--out", tmp_path / "x", *words)
    assert outcome.code == 2
    assert "graph.txt:1: unknown label 'nobody'" in outcome.err
    assert "Traceback" not in outcome.err


def test_models_lists_what_neighbours_take(zipfel_command):
    outcome = zipfel_command("models")
    for word in ("mnn", "dxml", "neighbours", "sharpness", "negatives", "walks"):
        assert word in outcome.out
