"""Progress of training in Python: a bar in a terminal or notebook, lines elsewhere, and the logging module."""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from sklearn.base import clone

from zipfel import display
from zipfel.tagger import Tagger
from zipfel.training.progress import Moment

SETTINGS = {"dimension": 8, "epochs": 2, "min_steps": 1}
TEXTS, TAGS = ["red apple", "green pear", "fast car", "slow car"] * 40, [["fruit"], ["fruit"], ["car"], ["car"]] * 40


def fitted(**given: object) -> Tagger:
    return Tagger("glas", settings=SETTINGS, text={"min_count": 1}, device="cpu", **given).fit(TEXTS, TAGS)


def test_verbose_prints_a_line_for_each_epoch_and_the_outcome(capsys):
    quiet = fitted()
    assert capsys.readouterr() == ("", "")
    loud = fitted(verbose=1)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(
        r"(glas, epoch \d: validation P@1 \d\.\d{4}, [^\n]*; \d+ s\n){2}"
        r"glas, preset default \(named\): trained in \d+ s, best P@1 on validation \d\.\d{4} in epoch \d\n",
        err,
    ), err
    before, after = quiet.model_.state_dict(), loud.model_.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_more_epochs_than_asked_for_are_explained(capsys):
    Tagger("glas", settings={**SETTINGS, "min_steps": 45}, text={"min_count": 1}, verbose=1).fit(TEXTS, TAGS)
    assert (
        "note: 5 epochs instead of 2: small data needs more of them for enough steps (min_steps sets how many)\n"
        in capsys.readouterr().err
    )


def test_verbose_is_a_parameter_that_is_not_saved(tmp_path, capsys):
    tagger = fitted(verbose=1)
    assert clone(tagger).get_params()["verbose"] == 1
    tagger.save(tmp_path / "model")
    assert json.loads((tmp_path / "model" / "model.json").read_text())["tagger"]["verbose"] == 0
    assert Tagger.load(tmp_path / "model").verbose == 0


def test_logging_gets_every_epoch(caplog):
    with caplog.at_level(logging.INFO, "zipfel"):
        fitted()
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["glas, epoch 1", "glas, epoch 2"]
    assert caplog.records[0].zipfel["stage"] == "glas"
    assert caplog.records[0].zipfel["metric"] == "P@1"


def test_the_renderer_is_imported_only_where_it_is_wanted():
    code = f"""
import sys
from zipfel import Tagger
def fit(verbose):
    Tagger("glas", settings={SETTINGS}, text={{"min_count": 1}}, verbose=verbose).fit({TEXTS[:8]}, {TAGS[:8]})
    print("zipfel.display" in sys.modules)
fit(0)
fit(1)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "True"]


MOMENT = Moment("glas", 0, 4, 5, 40, 1000.0, 90.0, {"margin": 0.25})


def test_a_terminal_gets_a_bar_that_disappears():
    file = io.StringIO()
    with display.Shown(Console(file=file, force_terminal=True, width=120)) as shown:
        shown.update(MOMENT)
        shown.bar.refresh()
    assert "glas, epoch 1 of 4" in file.getvalue()
    assert "margin 0.250; 1,000 points/s; 1:30 min left" in file.getvalue()


def test_other_files_get_a_line_now_and_then(monkeypatch):
    file = io.StringIO()
    with display.Shown(Console(file=file)) as shown:
        shown.update(MOMENT)
        assert file.getvalue() == ""
        monkeypatch.setattr(display, "SECONDS_BETWEEN_LINES", -1.0)
        shown.update(MOMENT)
    assert file.getvalue() == "glas, epoch 1 of 4: margin 0.250; 1,000 points/s; 1:30 min left\n"


@pytest.mark.parametrize("widgets", [None, "found"])
def test_a_notebook_gets_a_bar_if_it_has_widgets(monkeypatch, widgets):
    monkeypatch.setattr(display, "find_spec", lambda name: widgets)
    console = Console(file=io.StringIO(), force_jupyter=True)
    assert display.draws_bars(console) == (widgets is not None)
    assert display.bar(console).disable == (widgets is None)


def test_a_stage_without_losses_shows_only_its_speed(monkeypatch):
    monkeypatch.setattr(display, "SECONDS_BETWEEN_LINES", -1.0)
    file = io.StringIO()
    with display.Shown(Console(file=file)) as shown:
        shown.update(Moment("text features", 0, 1, 1, 4, 1000.0, 90.0, {}))
    assert file.getvalue() == "text features, epoch 1 of 1: 1,000 points/s; 1:30 min left\n"
