from __future__ import annotations

import json

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ("--set", "dimension=16", "--set", "epochs=2", "--device", "cpu")


def test_a_plan_is_shown_and_written(zipfel_command, planted, tmp_path):
    path = tmp_path / "plan.json"
    outcome = zipfel_command("plan", planted, "--model", "glas", *SMALL, "--set", "steps=1", "--json", path)
    assert outcome.code == 0, outcome.err
    first, *rows = outcome.out.splitlines()
    assert first.startswith("glas, preset default, on cpu: ")
    assert first.endswith(" 20 labels")
    assert [row.split()[0] for row in rows] == ["training", "prediction", "memory", "disk"]
    assert "steps rehearsed" in rows[0]
    found = json.loads(path.read_text())
    assert found["model"] == "glas"
    assert found["labels"] == 20
    trained = zipfel_command("train", planted, "--model", "glas", *SMALL, "--set", "steps=1", "--out", tmp_path / "run")
    assert trained.code == 0
    size = sum(file.stat().st_size for file in (tmp_path / "run" / "model").rglob("*") if file.is_file())
    assert found["disk_bytes"] == pytest.approx(size, rel=0.02)


def test_without_a_model_plan_and_train_choose_the_same(zipfel_command, planted, tmp_path):
    planned = zipfel_command("plan", planted, *SMALL)
    trained = zipfel_command("train", planted, *SMALL, "--out", tmp_path / "run")
    assert (planned.code, trained.code) == (0, 0), planned.err + trained.err
    about = json.loads((tmp_path / "run" / "model" / "model.json").read_text())
    assert trained.out.startswith(f"model {about['model']}, preset default (labels have ")
    assert planned.out.startswith(f"{about['model']}, preset default (labels have ")
    again = zipfel_command("train", planted, *SMALL, "--out", tmp_path / "run")  # goes on, with the same choice
    assert again.code == 0, again.err


def test_a_warning_tells_where_memory_is_short(zipfel_command, planted, monkeypatch):
    monkeypatch.setattr("zipfel.plan.free_memory", lambda device="cpu": 1 << 20)
    outcome = zipfel_command("plan", planted, "--model", "decaf", "--device", "cpu")
    assert outcome.code == 0
    assert "unknown" in outcome.out
    assert "warning: about " in outcome.err
    assert "this machine has 1 MB free" in outcome.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--model", "glass"), "unknown model 'glass'; did you mean 'glas'?"),
        (("--model", "glas", "--set", "beam=3"), "unknown setting 'beam'"),
        (("--model", "glas", "--set", "beam"), "expected key=value, found 'beam'"),
        (("--set", "nothing=3"), "here (labels have "),
        (("--preset", "fats"), "unknown preset 'fats'; did you mean 'fast'?"),
        (("--device", "cdua"), "unknown device 'cdua'"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(zipfel_command, planted, words, told):
    outcome = zipfel_command("plan", planted, *words)
    assert outcome.code == 2
    assert outcome.err.startswith("error: ")
    assert told in outcome.err
    assert outcome.out == ""


def test_a_folder_that_is_not_there_is_named(zipfel_command, tmp_path):
    outcome = zipfel_command("plan", tmp_path / "nowhere", "--model", "glas")
    assert outcome.code == 2
    assert "nowhere" in outcome.err


def test_models_lists_the_choice_too(zipfel_command):
    assert zipfel_command("models").out.startswith("auto: what fits the data")
