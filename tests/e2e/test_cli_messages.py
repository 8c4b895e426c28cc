"""Messages that a user acts on: suggestions, notes, what a failed command leaves behind, and Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from zipfel.tagger import Tagger

SMALL = ["--model", "glas", "--set", "dimension=16", "--set", "learning_rate=0.01"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    tagger = Tagger("glas", settings={"dimension": 8, "epochs": 1, "min_steps": 1}, text={"min_count": 1})
    tagger.fit(["read a file", "no network"] * 10, [["import"], ["network"]] * 10).save(folder)
    return folder


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"word{n % 3} of row {n},tag{n % 3}" for n in range(60)]
    (tmp_path / "table.csv").write_text("\n".join(["subject,kind", *rows]))
    return tmp_path / "table.csv"


# --- Suggestions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "hint"),
    [
        ("Import", "did you mean 'import'?"),
        ("newtork", "did you mean 'network'?"),
        ("nnn", "known are import, network"),
    ],
)
def test_an_unknown_label_gets_the_nearest_in_any_case_or_all(zipfel_command, model, label, hint):
    outcome = zipfel_command("explain", model, "read a file", "--label", label)
    assert (outcome.code, outcome.err) == (2, f"error: unknown label '{label}'; {hint}\n")


def test_k_may_be_short(zipfel_command, model):
    assert (
        zipfel_command("predict", model, "a file", "-k", "1").out
        == zipfel_command("predict", model, "a file", "--k", "1").out
    )
    assert zipfel_command("predict", model, "a file", "-k", "1").code == 0


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["predict", "m", "x", "--k", "two"], "invalid value for '--k' / '-k': .*'two'.*--help`)"),
        (["train", "x", "--out", "y", "--epochs", "3"], "no such option: --epochs.*; settings of a model are given as "
         "--set key=value (see `zipfel train --help`)"),
        (["predict", "m", "--colour"], "no such option: --colour.* (see `zipfel predict --help`)"),
        (["train", "x"], "missing option '--out' (see `zipfel train --help`)"),
        (["data", "inf"], "no such command 'inf'. Did you mean 'info'? (see `zipfel data --help`)"),
        (["train", "x", "--out"], "option '--out' requires an argument (see `zipfel --help`)"),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line_that_says_where_help_is(zipfel_command, words, problem):
    outcome = zipfel_command(*words)
    assert (outcome.code, outcome.out) == (2, "")
    assert re.fullmatch("error: " + re.escape(problem).replace(r"\.\*", ".*") + "\n", outcome.err), outcome.err


def test_without_a_command_there_is_help(zipfel_command):
    outcome = zipfel_command()
    assert "COMMAND [ARGS]" in outcome.out + outcome.err
    assert "error" not in outcome.err


def test_a_file_that_is_given_as_a_text_is_noticed(zipfel_command, model, table, monkeypatch):
    monkeypatch.chdir(table.parent)
    outcome = zipfel_command("predict", model, "table.csv")
    assert outcome.code == 0
    assert outcome.err == "note: table.csv is tagged as a text; to tag the texts in this file, use --input table.csv\n"


def test_explain_says_that_no_word_is_known(zipfel_command, model):
    outcome = zipfel_command("explain", model, "zyzzyva")
    assert outcome.code == 0
    assert outcome.out.startswith("zyzzyva\n\nno known word, so there are no reasons for any label\n")
    assert "no known word" not in zipfel_command("explain", model, "read a file").out


def test_models_takes_names(zipfel_command):
    outcome = zipfel_command("models", "mnn")
    assert outcome.code == 0, outcome.err
    assert outcome.out.startswith("mnn: ")
    assert "glas:" not in outcome.out
    assert zipfel_command("models", "auto").out.count("\n") == 1
    wrong = zipfel_command("models", "mnn", "Glass")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err == "error: unknown model 'Glass'; did you mean 'glas'?\n"


def test_more_epochs_than_asked_for_are_explained_once(zipfel_command, planted, tmp_path):
    words = ["train", planted, *SMALL, "--set", "epochs=1", "--out", tmp_path / "run"]
    outcome = zipfel_command(*words, "--set", "min_steps=20")
    assert outcome.err.count("note: 2 epochs instead of 1: small data needs more of them for enough steps") == 1
    assert "instead of" not in zipfel_command(*words, "--set", "min_steps=1", "--fresh").err


def test_validation_has_the_name_of_its_metric(zipfel_command, planted, tmp_path):
    words = ["train", planted, *SMALL, "--set", "epochs=1", "--set", "min_steps=1", "--out", tmp_path / "run"]
    outcome = zipfel_command(*words)
    assert "glas, epoch 1: validation P@1 0." in outcome.err
    assert "best P@1 on validation 0." in outcome.out


def test_a_file_that_cannot_be_written_is_no_internal_error(zipfel_command, monkeypatch, model):
    def refused(*_: object) -> int:
        raise PermissionError(13, "Permission denied", "results.jsonl")

    monkeypatch.setattr("zipfel.persistence.verify", refused)
    outcome = zipfel_command("verify", model)
    assert (outcome.code, outcome.err) == (2, "error: results.jsonl: Permission denied\n")


# --- A command that failed --------------------------------------------------------------------------------------------


def test_predict_that_failed_leaves_nothing_behind(zipfel_command, model, table, tmp_path):
    words = ["predict", model, "--input", table, "--out", tmp_path / "tags.csv"]
    before = set(tmp_path.iterdir())
    assert "no text column found" in zipfel_command(*words).err
    assert "no column 'subjct'; did you mean 'subject'?" in zipfel_command(*words, "--text", "subjct").err
    assert set(tmp_path.iterdir()) == before
    assert zipfel_command(*words, "--text", "subject").code == 0


def test_predict_that_failed_in_its_first_rows_leaves_nothing_behind(zipfel_command, model, tmp_path):
    (tmp_path / "broken.csv").write_text("text\nread a file\ntoo,many\n")
    words = ["predict", model, "--input", tmp_path / "broken.csv", "--out", tmp_path / "tags.csv"]
    assert "broken.csv:3: expected 1 cells, found 2" in zipfel_command(*words).err
    assert [path.name for path in tmp_path.iterdir()] == ["broken.csv"]


def test_predict_that_was_killed_before_its_first_row_is_no_obstacle(zipfel_command, model, table, tmp_path):
    (tmp_path / "tags.csv.part").write_bytes(b"text,label_1\n")
    journal = {"rows": 0, "bytes": 13, "inputs": {"model": "another"}}
    (tmp_path / "tags.csv.part.json").write_text(json.dumps(journal))
    assert (
        zipfel_command("predict", model, "--input", table, "--text", "subject", "--out", tmp_path / "tags.csv").code
        == 0
    )
    assert (tmp_path / "tags.csv").read_text().count("label_1") == 1


def test_train_that_failed_leaves_nothing_behind(zipfel_command, table, tmp_path):
    words = ["train", table, "--text", "subject", "--labels", "kind", "--out", tmp_path / "new" / "run", *SMALL]
    words += ["--set", "epochs=1", "--set", "min_steps=1"]
    failed = zipfel_command(*words, "--min-count", "1000")
    assert failed.code == 2, failed.err
    assert not (tmp_path / "new").exists()
    assert zipfel_command(*words).code == 0


def test_train_that_failed_keeps_what_was_there(zipfel_command, table, tmp_path):
    words = ["train", table, "--text", "subject", "--labels", "kind", "--out", tmp_path / "run", *SMALL]
    words += ["--set", "epochs=1", "--set", "min_steps=1"]
    assert zipfel_command(*words).code == 0
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert "holds a run with other inputs" in zipfel_command(*words, "--min-count", "1000").err
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == kept


KILLED_TRAINING = """
import os, signal, sys
from zipfel.training import trainer

trainer._Training._end_epoch = lambda self, epoch: os.kill(os.getpid(), signal.SIGKILL)
from zipfel.cli.main import main
sys.argv = ["zipfel", *sys.argv[1:]]
main()
"""


def test_train_that_was_killed_before_its_first_checkpoint_needs_no_fresh(zipfel_command, table, tmp_path):
    words = ["train", table, "--text", "subject", "--labels", "kind", "--out", tmp_path / "run", *SMALL]
    words += ["--set", "epochs=1", "--set", "min_steps=1"]
    assert shell(KILLED_TRAINING, *words).returncode == -signal.SIGKILL
    assert (tmp_path / "run" / "run" / "run.json").exists()
    table.write_text(table.read_text() + "\nword1 of a new row,tag1")
    corrected = zipfel_command(*words, "--set", "dimension=8", "--seed", "1")
    assert corrected.code == 0, corrected.err
    assert json.loads((tmp_path / "run" / "model" / "model.json").read_bytes())["settings"]["dimension"] == 8


# --- Ctrl-C -----------------------------------------------------------------------------------------------------------

INTERRUPTED_TRAINING = """
import os, signal, sys
from zipfel.training import trainer

end = trainer._Training._end_epoch

def interrupted(self, epoch):
    end(self, epoch)
    if epoch == 1:
        os.kill(os.getpid(), signal.SIGINT)

trainer._Training._end_epoch = interrupted
from zipfel.cli.main import main
sys.argv = ["zipfel", *sys.argv[1:]]
main()
"""


def shell(code: str, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_ctrl_c_in_training_saves_the_model_and_exits_with_130(zipfel_command, planted, tmp_path):
    words = ["train", planted, *SMALL, "--set", "epochs=4", "--set", "min_steps=1", "--out", tmp_path / "run"]
    stopped = shell(INTERRUPTED_TRAINING, *words)
    assert stopped.returncode == 130, stopped.stderr
    assert "stopped by Ctrl-C: the model is saved as it is; run the same command to resume" in stopped.stderr
    assert "stopped early in" in stopped.stdout
    assert zipfel_command("verify", tmp_path / "run").code == 0
    outcome = zipfel_command(*words)
    assert outcome.code == 0
    assert "resuming at epoch" in outcome.err
    assert "trained in" in outcome.out


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_the_service_with_130(model, tmp_path, workers):
    command = [sys.executable, "-m", "zipfel", "serve", str(model), "--port", "0", "--workers", str(workers)]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        end = time.monotonic() + 60
        while (tmp_path / "log").read_text().count('"serving"') < workers and time.monotonic() < end:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130, (tmp_path / "log").read_text()
