from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--set", "dimension=16", "--set", "epochs=2", "--device", "cpu")


def test_a_plan_is_shown_and_written(zipfel_command, planted, tmp_path):
    path = tmp_path / "plan.json"
    outcome = zipfel_command("plan", planted, "--model", "glas", *SMALL, "--set", "min_steps=1", "--json", path)
    assert outcome.code == 0, outcome.err
    first, *rows = outcome.out.splitlines()
    assert first.startswith("glas, preset default, on cpu: ")
    assert first.endswith(" 20 labels")
    assert [row.split()[0] for row in rows] == ["training", "prediction", "memory", "disk"]
    assert "steps rehearsed" in rows[0]
    written = json.loads(path.read_text())
    assert written["model"] == "glas"
    assert written["labels"] == 20
    trained = zipfel_command(
        "train", planted, "--model", "glas", *SMALL, "--set", "min_steps=1", "--out", tmp_path / "run"
    )
    assert trained.code == 0
    files = [file for file in (tmp_path / "run" / "model").rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files if file.name != "README.md")  # a few KB, which no plan counts
    assert written["disk_bytes"] == pytest.approx(size, rel=0.02)


def test_without_a_model_plan_and_train_choose_the_same(zipfel_command, planted, tmp_path):
    planned = zipfel_command("plan", planted, *SMALL)
    trained = zipfel_command("train", planted, *SMALL, "--out", tmp_path / "run")
    assert (planned.code, trained.code) == (0, 0), planned.err + trained.err
    about = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert about["model"] == "blend"
    assert about["chosen"]["why"] == "decaf and linear: labels have texts"
    assert trained.out.startswith("model blend, preset default (decaf and linear: labels have texts)\n")
    assert about["tagger"]["model"] == "auto"
    assert planned.out.startswith("blend, preset default (decaf and linear: labels have texts), on ")
    again = zipfel_command("train", planted, *SMALL, "--out", tmp_path / "run")  # resumes, with the same choice
    assert again.code == 0, again.err


def test_a_warning_says_that_memory_is_too_small(zipfel_command, planted, monkeypatch):
    monkeypatch.setattr("zipfel.plan.free_memory", lambda device="cpu": 1 << 20)
    outcome = zipfel_command("plan", planted, "--model", "decaf", "--device", "cpu")
    assert outcome.code == 0
    assert "unknown" in outcome.out
    assert "warning: about " in outcome.err
    assert "this machine has 1 MB free" in outcome.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "glass"), "unknown model 'glass'; did you mean 'glas'?"),
        (("--model", "glas", "--set", "beam=3"), "unknown setting 'beam'"),
        (("--model", "glas", "--set", "beam"), "expected key=value, found 'beam'"),
        (
            ("--set", "nothing=3"),
            "model auto is blend here (decaf and linear: labels have texts): main_settings: unknown",
        ),
        (("--preset", "fats"), "unknown preset 'fats'; did you mean 'fast'?"),
        (("--device", "cdua"), "unknown device 'cdua'"),
    ],
)
def test_errors_are_one_line(zipfel_command, planted, words, message):
    outcome = zipfel_command("plan", planted, *words)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert message in outcome.err
    assert outcome.err.count("\n") == 1
    assert outcome.out == ""


def test_a_missing_folder_is_named(zipfel_command, tmp_path):
    outcome = zipfel_command("plan", tmp_path / "nowhere", "--model", "glas")
    assert outcome.code == 2
    assert "nowhere" in outcome.err


def test_models_lists_auto_too(zipfel_command):
    assert zipfel_command("models").out.startswith("auto: chooses the model (by size")
