"""`zipfel report` on the command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

SMALL = ["--set", "dimension=16", "--set", "epochs=4", "--set", "min_steps=1", "--set", "learning_rate=0.01"]


@pytest.fixture
def trained(zipfel_command, planted, tmp_path) -> Path:
    assert zipfel_command("train", planted, "--model", "glas", "--out", tmp_path / "run", *SMALL).code == 0
    return tmp_path / "run"


def test_a_page_with_the_figures_of_evaluate(zipfel_command, planted, trained, tmp_path):
    outcome = zipfel_command("report", trained, planted, "--out", tmp_path / "page.html")
    assert outcome.code == 0, outcome.err
    content = (tmp_path / "page.html").read_text()
    zipfel_command("evaluate", trained, planted, "--json", tmp_path / "figures.json")
    figures = json.loads((tmp_path / "figures.json").read_text())
    for name in ("P@1", "PSP@3", "coverage@5", "macroF1@5", "tail nDCG@3"):
        assert f"<td>{figures[name]:.2f}</td>" in content, name
    assert f"P@1 {figures['P@1']:.2f}" in outcome.out
    about = json.loads((trained / "model" / "model.json").read_text())
    assert about["sha256"][:16] in content
    assert str(tmp_path) not in content
    assert zipfel_command("report", trained, planted, "--out", tmp_path / "page.html").code == 0  # replaces the old one


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{data}", "{data}", "--out", "{tmp}/page.html"], "not a saved model"),
        (["{run}", "{data}", "--out", "{tmp}/page.html", "--part", "tset"], "part must be one of train, test"),
        (["{run}", "{data}", "--out", "{tmp}/none/page.html"], "cannot be written"),
        (["{run}", "{data}", "--out", "{tmp}"], "it is a folder"),
    ],
)
def test_a_bad_argument_is_refused_in_one_line(zipfel_command, planted, trained, tmp_path, words, message):
    outcome = zipfel_command("report", *(word.format(data=planted, run=trained, tmp=tmp_path) for word in words))
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_without_matplotlib_the_error_says_what_to_install(zipfel_command, planted, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    outcome = zipfel_command("report", planted, planted, "--out", tmp_path / "page.html")
    assert outcome.code == 2
    assert outcome.err.strip() == "error: a report needs matplotlib: pip install 'zipfel[report]'"
