"""Explanations at the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zipfel import Tagger


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    settings = {"dimension": 16, "epochs": 20, "min_steps": 1, "learning_rate": 0.03}
    tagger = Tagger("glas", settings=settings, text={"min_count": 1}, validation=0, device="cpu")
    texts = ["red apple", "green apple", "fast [car]", "slow car"]
    tagger.fit(texts, [["[b]fruit"], ["[b]fruit"], ["car"], ["car"]])
    folder = tmp_path_factory.mktemp("model") / "model"
    tagger.save(folder)
    return folder


def test_the_best_label_is_explained(zipfel_command, model):
    outcome = zipfel_command("explain", model, "A fast [red] Apple, an apple!")
    assert outcome.code == 0
    assert "A fast [red] Apple, an apple!" in outcome.out
    assert "[b]fruit: +" in outcome.out
    lines = {line.split()[0]: float(line.split()[1]) for line in outcome.out.splitlines()[3:]}
    assert set(lines) == {"fast", "red", "apple"}
    assert lines["apple"] > 0 > lines["fast"]


def test_json_has_all_terms_with_their_places(zipfel_command, model):
    outcome = zipfel_command("explain", model, "fast apple 👍 Apple", "--label", "car", "--json")
    found = json.loads(outcome.out)
    assert (found["text"], found["label"]) == ("fast apple 👍 Apple", "car")
    assert {reason["term"]: reason["places"] for reason in found["reasons"]} == {
        "fast": [[0, 4]],
        "apple": [[5, 10], [13, 18]],
    }
    assert {reason["term"]: reason["weight"] > 0 for reason in found["reasons"]} == {"fast": True, "apple": False}


def test_an_empty_text_has_a_total_of_0(zipfel_command, model):
    outcome = zipfel_command("explain", model, "", "--label", "car")
    assert outcome.code == 0
    assert "car: +0.000 in total" in outcome.out


def test_an_unknown_label_is_one_line(zipfel_command, model):
    outcome = zipfel_command("explain", model, "apple", "--label", "[b]fruits")
    assert outcome.code == 2
    assert outcome.err.strip() == "error: unknown label '[b]fruits'; did you mean '[b]fruit'?"
