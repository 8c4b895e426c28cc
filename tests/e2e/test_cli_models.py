"""Training, evaluating and using a model from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import zipfel
from zipfel.data.synthetic import Synthetic, make

SMALL = ["--set", "dimension=16", "--set", "epochs=4", "--set", "min_steps=1", "--set", "learning_rate=0.01"]


@pytest.fixture
def trained(zipfel_command, planted, tmp_path) -> Path:
    outcome = zipfel_command("train", planted, "--model", "glas", "--out", tmp_path / "run", *SMALL)
    assert outcome.code == 0, outcome.err
    assert "epoch 4" in outcome.err
    assert "trained in" in outcome.out
    return tmp_path / "run"


def test_a_trained_model_is_evaluated_and_beats_the_most_frequent_label(zipfel_command, planted, trained, tmp_path):
    outcome = zipfel_command("evaluate", trained, planted, "--json", tmp_path / "figures.json")
    assert outcome.code == 0
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["P@1"] > 60
    assert figures["points"] == 120
    assert figures["seconds"] > 0


def test_the_same_command_again_trains_nothing(zipfel_command, planted, trained):
    weights = (trained / "model" / "serve" / "weights.safetensors").read_bytes()
    outcome = zipfel_command("train", planted, "--model", "glas", "--out", trained, *SMALL)
    assert outcome.code == 0
    assert "epoch 4" not in outcome.err  # nothing was trained again
    assert (trained / "model" / "serve" / "weights.safetensors").read_bytes() == weights


def test_other_settings_need_another_folder_or_fresh(zipfel_command, planted, trained):
    other = ["--set", "dimension=8", "--set", "epochs=1", "--set", "min_steps=1"]
    outcome = zipfel_command("train", planted, "--out", trained, *other)
    assert outcome.code == 2
    assert "--fresh" in outcome.err
    assert zipfel_command("train", planted, "--out", trained, "--fresh", *other).code == 0
    about = json.loads((trained / "model" / "model.json").read_text())
    assert about["settings"]["main_settings"]["dimension"] == "8"


def test_changed_label_texts_are_different_data(zipfel_command, tmp_path):
    (tmp_path / "data").mkdir()
    points = [{"uid": str(n), "title": f"word{n % 3} word{n % 2}", "target_ind": [n % 2]} for n in range(60)]
    for name in ("trn", "tst"):
        (tmp_path / "data" / f"{name}.json").write_text("\n".join(map(json.dumps, points)))
    small = ("--set", "dimension=4", "--set", "epochs=1", "--set", "min_steps=1", "--out", tmp_path / "run")
    for texts, code in ((["one", "two"], 0), (["one", "two"], 0), (["one", "three"], 2)):
        labels = [{"uid": str(n), "title": text} for n, text in enumerate(texts)]
        (tmp_path / "data" / "lbl.json").write_text("\n".join(map(json.dumps, labels)))
        outcome = zipfel_command("train", tmp_path / "data", "--model", "decaf", *small)
        assert outcome.code == code, outcome.err
    assert "data" in outcome.err
    assert "--fresh" in outcome.err


def test_predict_takes_texts_and_files(zipfel_command, planted, trained, tmp_path):
    texts = next(iter(zipfel.read(planted).test.texts.values()))
    lines = zipfel_command("predict", trained, texts[0], texts[1], "--k", "3", "--json").out.splitlines()
    answers = [json.loads(line) for line in lines]
    assert [answer["text"] for answer in answers] == list(texts[:2])
    scores = [tag["score"] for tag in answers[0]["tags"]]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    (tmp_path / "in.txt").write_text("\n".join(texts[:2]) + "\n")
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:2]))
    (tmp_path / "in.csv").write_text("body\n" + "\n".join(texts[:2]) + "\n")
    for name, more in (("in.txt", []), ("in.jsonl", []), ("in.csv", ["--text", "body"])):
        outcome = zipfel_command("predict", trained, "--input", tmp_path / name, "--k", "3", "--json", *more)
        column = more[1] if more else "text"
        expected = [{column: answer["text"], "tags": answer["tags"], "known": True} for answer in answers]
        assert [json.loads(line) for line in outcome.out.splitlines()] == expected, name


def test_an_automatic_choice_is_shown_and_saved_with_its_reason(zipfel_command, planted, tmp_path):
    """Label texts are there, so the choice is a blend with DECAF."""
    words = ["train", planted, "--out", tmp_path / "run", *SMALL, "--set", "epochs=1"]
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    assert "model blend, preset default (decaf and linear: labels have texts)" in outcome.out
    about = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    why = "decaf and linear: labels have texts"
    assert about["chosen"] == {"model": "blend", "preset": "default", "why": why, "settings": {"main": "decaf"}}
    named = zipfel_command(*words, "--model", "decaf", "--out", tmp_path / "named")
    assert named.code == 0, named.err
    assert "labels have texts" not in named.out
    about = json.loads((tmp_path / "named" / "model" / "model.json").read_text())
    assert about["chosen"] == {"model": "decaf", "preset": "default", "why": "named", "settings": {}}


def listed_models(zipfel_command) -> str:
    """Return the output of `zipfel models` as one line."""
    outcome = zipfel_command("models")
    assert outcome.code == 0
    return " ".join(outcome.out.split())


def test_models_lists_settings_with_values_and_help(zipfel_command):
    listed = listed_models(zipfel_command)
    assert "auto: chooses the model (by size, label texts and device) and the text features; the default" in listed
    assert "glas: Settings of GLaS." in listed
    assert "dimension (1024): width d of the vectors of points and labels" in listed  # the same in all presets
    assert "learning_rate (paper 0.008, default 0.002, fast 0.004): highest learning rate" in listed


def test_models_lists_what_each_model_can_do(zipfel_command):
    listed = listed_models(zipfel_command)
    for model, abilities in {
        "glas": "scores label texts, takes new words, weights points, splits labels, reads mapped data",
        "mnn": "remembers points",
        "dxml": "remembers points",
        "lightdxml": "scores label texts, places labels by text, takes new words, weights points, splits labels, "
        "takes shortlist, reads mapped data",
        "decaf": "reads label texts, scores label texts, takes labels by text, takes new words, weights points, "
        "splits labels, takes shortlist, reads mapped data",
        "astec": "takes new words, weights points, takes shortlist",
        "linear": "takes new words, splits labels",
        "blend": "reads label texts, scores label texts, takes labels by text, takes new words, splits labels",
    }.items():
        about = listed.partition(f" {model}: Settings of ")[2].partition(" (")[0]
        assert f" {abilities} " in about, model


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("lightdxml", ("shortlist_size", "label_epochs", "beta", "token_init", "float16")),
        ("decaf", ("learners", "refinement", "module1_epochs")),
        ("astec", ("learners", "gamma", "freeze_tokens", "negatives")),
    ],
)
def test_models_lists_the_settings_of_each_model(zipfel_command, model, settings):
    about = listed_models(zipfel_command).partition(f" {model}: Settings of ")[2].partition(": Settings of ")[0]
    for name in settings:
        assert f" {name} (" in about, name


def test_verify_detects_a_changed_file(zipfel_command, trained):
    assert "files match their checksums" in zipfel_command("verify", trained).out
    path = trained / "model" / "serve" / "weights.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    outcome = zipfel_command("verify", trained)
    assert outcome.code == 2
    assert "was changed since the model was saved" in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "{data}", "--out", "{tmp}/x", "--model", "glass"], "unknown model 'glass'; did you mean 'glas'?"),
        (
            ["train", "{data}", "--out", "{tmp}/x", "--set", "epoch=1"],
            "unknown setting 'epoch'; did you mean 'epochs'?",
        ),
        (["train", "{data}", "--out", "{tmp}/x", "--set", "epochs"], "expected key=value, found 'epochs'"),
        (["train", "{data}", "--out", "{tmp}/x", "--preset", "papr"], "unknown preset 'papr'; did you mean 'paper'?"),
        (["train", "{data}", "--out", "{tmp}/x", "--device", "gpu"], "unknown device 'gpu'"),
        (["evaluate", "{data}"], "evaluate takes MODEL DATA, or DATA --predictions FILE"),
        (["evaluate", "{data}", "{data}"], "not a saved model"),
        (["predict", "{data}", "text"], "not a saved model"),
        (["predict", "{data}"], "give either texts to tag or a file of texts with --input"),
        (["verify", "{data}"], "not a saved model"),
    ],
)
def test_bad_arguments_give_one_line(zipfel_command, planted, tmp_path, words, message):
    outcome = zipfel_command(*(word.format(data=planted, tmp=tmp_path) for word in words))
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_demo_trains_evaluates_and_tags(zipfel_command, monkeypatch, tmp_path):
    dataset = make(Synthetic(points=400, labels=12, texts=True, seed=2))
    monkeypatch.setattr("zipfel.data.registry.load", lambda name: dataset)
    monkeypatch.setattr("zipfel.cli.demo.SETTINGS", {"dimension": 16, "epochs": 2})
    outcome = zipfel_command("demo", tmp_path / "demo")
    assert outcome.code == 0, outcome.err
    assert "trained in" in outcome.out
    assert "fracture of the wrist" in outcome.out
    assert "label-" in outcome.out
    assert zipfel_command("predict", tmp_path / "demo", "anything").code == 0
    again = zipfel_command("demo", tmp_path / "demo")
    assert again.code == 0
    assert "epoch 2" not in again.err  # nothing is trained again


@pytest.mark.parametrize(
    ("model", "word", "message"),
    [
        ("lightdxml", "shortlist_sze=3", "unknown setting 'shortlist_sze'; did you mean 'shortlist_size'?"),
        ("lightdxml", "rate=0.1", "unknown setting 'rate'; it is now called learning_rate"),
        ("glas", "keep=0.9", "unknown setting 'keep'; it is now called feature_dropout, which is 1 - keep"),
        ("lightdxml", "beta=2", "beta must be at least 0 and at most 1; found 2.0"),
        ("lightdxml", "cycle_epochs=0", "cycle_epochs must be at least 1; found 0"),
        ("decaf", "learning_rate=-1", "learning_rate must be above 0; found -1.0"),
        ("decaf", "learnrs=3", "unknown setting 'learnrs'; did you mean 'learners'?"),
        ("decaf", "clusters=12", "clusters must be a power of two; found 12"),
        ("decaf", "shortlist=tree", "shortlist must be one of none, beam, hnsw, parabel; found 'tree'"),
    ],
)
def test_bad_settings_give_one_line(zipfel_command, planted, tmp_path, model, word, message):
    outcome = zipfel_command("train", planted, "--out", tmp_path / "x", "--model", model, "--set", word)
    assert outcome.code == 2
    assert outcome.err == f"error: {message}\n"
    assert not (tmp_path / "x").exists()


def test_a_model_that_ignores_label_texts_warns_before_training(zipfel_command, tmp_path, monkeypatch):
    (tmp_path / "train.csv").write_text("text,labels\n" + "red apple,fruit\nfast car,car\n" * 8)
    (tmp_path / "labels.csv").write_text("label,text\nfruit,apples and pears\n")
    words = ["train", tmp_path / "train.csv", "--holdout", 0, "--set", "dimension=8", "--set", "epochs=1"]
    described = ["--label-texts", tmp_path / "labels.csv"]
    plain = zipfel_command(*words, "--model", "glas", "--out", tmp_path / "plain")
    assert (plain.code, plain.err.count("label texts")) == (0, 0), plain.err
    outcome = zipfel_command(*words, "--model", "glas", "--out", tmp_path / "out", *described)
    assert outcome.code == 0
    assert "warning: glas does not learn from label texts, and only shows them" in outcome.err


def test_threads_and_devices_are_options_of_every_command_that_runs_a_model(zipfel_command, planted, trained, tmp_path):
    import torch

    before = torch.get_num_threads()
    commands = {
        "train": [planted, "--model", "glas", "--out", trained, *SMALL],
        "evaluate": [trained, planted],
        "predict": [trained, "w1 w2"],
        "explain": [trained, "w1 w2", "--label", zipfel.read(planted).label_names[0]],
    }
    try:
        for name, words in commands.items():
            torch.set_num_threads(2)
            outcome = zipfel_command(name, *words, "--threads", 1, "--device", "cpu")
            assert (outcome.code, torch.get_num_threads()) == (0, 1), outcome.err
            outcome = zipfel_command(name, *words, "--threads", 0)
            assert outcome.code == 2
            assert "threads must be at least 1; found 0" in outcome.err
            outcome = zipfel_command(name, *words, "--device", "cuda:99")
            assert outcome.code == 2
            assert "device is cuda:99, but torch finds" in outcome.err
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("quota", "threads"), [(1, 1), (3, 2)])
def test_threads_are_no_more_than_a_container_has_cores(zipfel_command, trained, monkeypatch, quota, threads):
    import joblib
    import torch

    before = torch.get_num_threads()
    monkeypatch.setattr(joblib, "cpu_count", lambda: quota)
    try:
        torch.set_num_threads(2)
        assert zipfel_command("predict", trained, "w1 w2").code == 0
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
