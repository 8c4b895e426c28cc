"""The command line from end to end: arguments, output, and files."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array, save_npz

import zipfel
from zipfel.cli.model import check_out
from zipfel.data.formats import FORMATS, WRITABLE
from zipfel.data.synthetic import Synthetic, make

REPOSITORY = "3 4 3\n0,2 0:1 3:0.5\n1 1:-2\n 2:1\n"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A data set small enough to work by hand: test is judged with labels 0, 1 and 2."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "train.txt").write_text(REPOSITORY)
    (folder / "test.txt").write_text("2 4 3\n0,1 0:1\n2 1:1\n")
    (folder / "labels.txt").write_text("red\ngreen\nblue\n")
    return folder


@pytest.fixture
def tickets(tmp_path: Path) -> Path:
    """A user's table with a header in Latin-1, semicolons between labels, and label texts beside it."""
    rows = ["title,body,tags"]
    rows += [f"Störung {n},der Drucker {n} druckt nicht,drucker;büro" for n in range(15)]
    rows += [f"Netz {n},kein Netz im Büro {n},netz" for n in range(15)]
    rows += ["Frage,wer hilft,selten"]
    path = tmp_path / "tickets.csv"
    path.write_bytes("\n".join(rows).encode("cp1252"))
    (tmp_path / "labels.csv").write_bytes("tag,text\ndrucker,Drucker und Scanner\nnetz,Netzwerk\n".encode("cp1252"))
    return path


def figures(text: str) -> dict[str, list[str]]:
    """Return the numbers that follow the words at the start of each line of a table."""
    lines = [line.rsplit("  ", line.strip().count("  ")) for line in text.splitlines()]
    return {cells[0].strip(): [c.strip() for c in cells[1:] if c.strip()] for cells in lines}


def test_help_names_the_commands(zipfel_command):
    code, out, _ = zipfel_command("--help")
    assert code == 0
    assert "evaluate" in out
    assert "data" in out
    code, out, _ = zipfel_command("data", "convert", "--help")
    assert code == 0
    for option in ("--text", "--labels", "--sep", "--label-texts", "--encoding", "--min-label-count", "--ngrams"):
        assert option in out


def test_version_and_module_form(zipfel_command):
    assert zipfel_command("--version").out == f"zipfel {zipfel.__version__}\n"
    run = subprocess.run([sys.executable, "-m", "zipfel", "--version"], capture_output=True, text=True, check=True)
    assert run.stdout == f"zipfel {zipfel.__version__}\n"


def test_info_shows_sizes_labels_and_plot(zipfel_command, repository):
    code, out, err = zipfel_command("data", "info", repository)
    assert code == 0
    assert err == ""
    rows = figures(out)
    assert rows["points"] == ["3", "2"]
    assert rows["labels per point"] == ["1.0", "1.5"]
    assert rows["points without labels"] == ["1", "0"]
    assert rows["features"] == ["4"]
    assert rows["labels"] == ["3"]
    assert rows["label text"] == ["names"]
    assert "red" in out
    assert "rank 1" in out


def test_info_counts_test_points_that_train_has(zipfel_command, repository):
    (repository / "test.txt").write_text("2 4 3\n0,1 2:1\n2 1:1\n")
    assert figures(zipfel_command("data", "info", repository).out)["points also in train"] == ["1"]


def test_info_on_a_table_with_named_columns(zipfel_command, tickets):
    code, out, err = zipfel_command(
        "data", "info", tickets, "--text", "title,body", "--labels", "tags", "--sep", ";", "--encoding", "cp1252",
        "--label-texts", tickets.parent / "labels.csv", "--min-label-count", "2",
    )  # fmt: skip
    assert code == 0
    rows = figures(out)
    assert [int(n) for n in rows["points"]] == [25, 6]
    assert "no test file: 6 points held out of train (seed 0)" in err
    assert "dropped" in err  # the label "selten" has one point
    assert rows["labels"] == ["3"]
    assert "drucker: Drucker und Scanner" in out


@pytest.mark.parametrize("format", WRITABLE)
def test_convert_to_every_format_and_back(zipfel_command, tickets, tmp_path, format):
    options = ["--labels", "tags", "--sep", ";", "--encoding", "cp1252", "--text", "title,body"]
    packed = [] if format in ("npz", "mapped", "parquet") else ["--gzip"]
    code, out, _ = zipfel_command("data", "convert", tickets, tmp_path / "out", "--to", format, *options, *packed)
    assert code == 0
    assert f"25 train, 6 test, 4 labels ({format})" in out
    dataset = zipfel.read(tmp_path / "out")
    assert len(dataset.train) == 25
    assert dataset.test is not None
    assert sorted(dataset.label_names or []) == ["büro", "drucker", "netz", "selten"]
    assert (dataset.train.X is not None) == (FORMATS[format].holds == "features")
    if packed:
        names = [path.name for path in (tmp_path / "out").iterdir() if path.suffix == ".gz"]
        assert names
        assert gzip.decompress((tmp_path / "out" / names[0]).read_bytes())


def test_convert_weights_numeric_features_where_asked(zipfel_command, repository, tmp_path):
    zipfel_command("data", "convert", repository, tmp_path / "plain", "--to", "npz")
    zipfel_command("data", "convert", repository, tmp_path / "weighted", "--to", "npz", "--tfidf")
    plain, weighted = zipfel.read(tmp_path / "plain"), zipfel.read(tmp_path / "weighted")
    assert plain.train.X.toarray()[0].tolist() == [1, 0, 0, 0.5]
    assert weighted.train.X.toarray()[0] == pytest.approx(np.array([1, 0, 0, 0.5]) / np.sqrt(1.25))


def test_split_is_seeded_and_keeps_the_format(zipfel_command, tmp_path):
    zipfel.write(make(Synthetic(points=300, labels=20, seed=3)), tmp_path / "src", "split")
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        code, out, _ = zipfel_command(
            "data", "split", tmp_path / "src", tmp_path / name, "--validation", "0.25", "--seed", seed
        )
        assert code == 0
        assert "60 validation" in out
    read = {name: (tmp_path / name / "val_X_Xf.txt").read_text() for name in "abc"}
    assert read["a"] == read["b"] != read["c"]


def test_get_writes_an_lf_folder(zipfel_command, tmp_path):
    code, out, _ = zipfel_command("data", "get", "icd10cm", tmp_path / "icd")
    assert code == 0
    assert "labels (lf)" in out
    dataset = zipfel.read(tmp_path / "icd")
    assert dataset.name == "icd10cm"
    assert dataset.label_texts is not None
    assert 13_900 < len(dataset.train) < 15_500


def test_evaluate_scores_text_and_npz_alike(zipfel_command, repository, tmp_path):
    # Point 0 has labels 0 and 1, ranked 1, 2, 0; point 1 has label 2, which is not predicted.
    scores = csr_array(np.array([[0.1, 0.9, 0.5], [0.7, 0.0, 0.0]], dtype=np.float32))
    save_npz(tmp_path / "scores.npz", scores)
    (tmp_path / "scores.txt").write_text("2 3\n1:0.9 0:0.1 2:0.5\n0:0.7\n")
    (tmp_path / "headless.txt").write_text("1:0.9 0:0.1 2:0.5\n0:0.7\n")
    written = []
    for name in ("scores.npz", "scores.txt", "headless.txt"):
        json_file = tmp_path / "out.json"
        code, out, _ = zipfel_command("evaluate", "--predictions", tmp_path / name, repository, "--json", json_file)
        assert code == 0
        assert figures(out)["P"] == ["50.00", "33.33", "20.00"]
        written.append(json.loads(json_file.read_text()))
        assert written[-1].pop("seconds") >= 0
    assert written[0] == written[1] == written[2]
    assert written[0]["P@1"] == 50
    assert (written[0]["A"], written[0]["B"]) == (0.55, 1.5)
    assert sum(piece["contribution"] for piece in written[0]["contributions"]) == pytest.approx(20)
    assert written[0]["R@3"] == 50
    assert written[0]["coverage@5"] == pytest.approx(100 * 2 / 3)
    assert (written[0]["points"], written[0]["labels"]) == (2, 3)


def test_evaluate_refuses_a_label_twice_in_a_row(zipfel_command, repository, tmp_path):
    (tmp_path / "scores.txt").write_text("0:1 0:2\n1:1\n")
    twice = csr_array((np.array([1, 2, 1], dtype=np.float32), np.array([0, 0, 1]), np.array([0, 2, 3])), shape=(2, 3))
    save_npz(tmp_path / "scores.npz", twice)
    for name in ("scores.txt", "scores.npz"):
        code, _, err = zipfel_command("evaluate", repository, "--predictions", tmp_path / name)
        assert code == 2
        assert f"{name}: labels must not repeat within a row; 1 repeated" in err


def test_evaluate_takes_propensities_from_options(zipfel_command, repository, tmp_path):
    (repository / "train.txt").write_text("4 4 3\n0,2 0:1\n0,1 1:1\n0 2:1\n0 3:1\n")  # label 0 is frequent
    (tmp_path / "scores.txt").write_text("0:1\n2:1\n")
    psp = []
    for options in ([], ["--A", "0.6", "--B", "2.6"]):
        zipfel_command("evaluate", repository, "--predictions", tmp_path / "scores.txt", "--k", "1,2",
                       "--json", tmp_path / "out.json", *options)  # fmt: skip
        psp.append(json.loads((tmp_path / "out.json").read_text())["PSP@2"])
    assert psp[0] != psp[1]


def test_evaluate_leaves_filtered_pairs_out(zipfel_command, repository, tmp_path):
    (repository / "filter_labels_test.txt").write_text("0 2\n")
    (tmp_path / "scores.txt").write_text("2:9 0:1\n2:1\n")  # label 2 would be the first answer for point 0
    zipfel_command("evaluate", repository, "--predictions", tmp_path / "scores.txt", "--json", tmp_path / "out.json")
    assert json.loads((tmp_path / "out.json").read_text())["P@1"] == 100


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["data", "info", "nowhere"], "nowhere: no such file or folder"),
        (["data", "info", "."], "no data set here"),
        (["data", "convert", "tiny", "out", "--to", "cvs"], "unknown format 'cvs'; did you mean 'csv'?"),
        (["data", "convert", "tiny", "out", "--to", "lf"], "tiny has features but no texts"),
        (["data", "convert", "tiny", "tiny", "--to", "npz"], "tiny: exists already"),
        (["data", "get", "icd10"], "unknown data set 'icd10'; did you mean 'icd10cm'?"),
        (["data", "split", "tiny", "out", "--validation", "2"], "must be above 0 and below 1"),
        (["data", "info", "tiny", "--holdout", "nonsense"], "--holdout"),
        (["data", "info", "tickets.csv", "--labels", "tgs", "--encoding", "cp1252"], "no column 'tgs'; did you mean"),
        (["data", "info", "tickets.csv", "--labels", "tags"], "tickets.csv:2: not utf-8"),
        (["data", "info", "tickets.csv", "--encoding", "klingon"], "unknown encoding 'klingon'"),
        (["evaluate", "tiny", "--predictions", "none.npz"], "none.npz: cannot be read: No such file"),
        (["evaluate", "tiny", "--predictions", "tiny/train.txt"], "tiny/train.txt:1: expected the header '2 3' or"),
        (["evaluate", "tiny", "--predictions", "bad.txt"], "bad.txt:2: label id 7 is outside 0..2 (the data set has 3"),
        (["evaluate", "tiny", "--predictions", "bad.txt", "--k", "0"], "k must be at least 1; found 0"),
        (["evaluate", "tiny", "--predictions", "bad.txt", "--k", "2000"], "k must be at most 1000; found 2000"),
        (["evaluate", "tiny", "--predictions", "tiny/x.npy"], "scores are sparse"),
        (["evaluate", "tiny", "--predictions", "bad.txt", "--part", "tset"], "part must be one of train, test"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(zipfel_command, repository, tickets, monkeypatch, words, message):
    monkeypatch.chdir(repository.parent)
    Path("bad.txt").write_text("0:1\n7:1\n")
    before = sorted(Path().rglob("*"))
    code, out, err = zipfel_command(*words)
    assert code == 2
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert [line for line in err.splitlines() if not line.startswith("note: ")] == [err.splitlines()[-1]]
    assert sorted(Path().rglob("*")) == before


@pytest.mark.parametrize(
    ("file", "message"), [("notes.txt", "exists already"), ("model.json", "is a model without its run")]
)
def test_training_does_not_begin_where_it_would_replace_something_else(
    zipfel_command, repository, tmp_path, file, message
):
    (tmp_path / "out" / "model").mkdir(parents=True)
    (tmp_path / "out" / "model" / file).write_text("mine")
    code, _, err = zipfel_command("train", repository, "--model", "glas", "--out", tmp_path / "out")
    assert code == 2
    assert f"error: {tmp_path / 'out' / 'model'}: {message}" in err
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == [file]


def test_a_model_without_its_run_is_replaced_where_the_training_starts_over(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.json").write_text("old")
    check_out(tmp_path, fresh=True)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    check_out(tmp_path, fresh=False)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["serve", "m", "--workers", "two"], "error: invalid value for '--workers': "),
        (["serve", "m", "--workers"], "error: option '--workers' requires an argument (see `"),
        (["serve", "m", "--worker", "2"], "error: no such option: --worker"),
        (["predict"], "error: missing argument 'MODEL' (see `"),
        (["nonsense"], "error: no such command 'nonsense' (see `"),
    ],
)
def test_misused_words_are_one_line(zipfel_command, words, line):
    code, out, err = zipfel_command(*words)
    assert (code, out, len(err.splitlines())) == (2, "", 1)
    assert err.startswith(line)
    assert err.endswith("--help`)\n")


def test_sigterm_leaves_nothing_half_written(tmp_path):
    zipfel.write(make(Synthetic(points=60_000, labels=200, seed=0)), tmp_path / "src", "npz")
    command = [sys.executable, "-m", "zipfel", "data", "convert", str(tmp_path / "src"), str(tmp_path / "out")]
    process = subprocess.Popen([*command, "--to", "repository"])
    for _ in range(1000):
        if any(tmp_path.glob(".out.*.part/*")):  # it has begun to write
            break
        time.sleep(0.01)
    process.terminate()
    assert process.wait() == 143
    assert [path.name for path in tmp_path.iterdir()] == ["src"]


def test_options_without_effect_are_reported(zipfel_command, repository, tickets, tmp_path):
    outcome = zipfel_command("data", "convert", repository, tmp_path / "a", "--to", "npz", "--ngrams", "2")
    assert "note: text settings have no effect" in outcome.err
    words = ["--labels", "tags", "--encoding", "cp1252", "--to", "lf", "--tfidf"]
    assert "--tfidf has no effect" in zipfel_command("data", "convert", tickets, tmp_path / "b", *words).err


def test_a_bug_is_reported_without_a_stack_trace(zipfel_command, repository, monkeypatch):
    def broken(*_: object) -> None:
        raise RuntimeError("oops")

    monkeypatch.setattr("zipfel.cli.data.read", broken)
    code, _, err = zipfel_command("data", "info", repository)
    assert code == 1
    assert "internal error in zipfel: RuntimeError: oops" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("columns", ["40", "200"])
def test_info_works_in_a_pipe_and_at_any_width(repository, columns):
    environment = {**os.environ, "COLUMNS": columns, "PYTHONIOENCODING": "utf-8"}
    command = [sys.executable, "-m", "zipfel", "data", "info", str(repository)]
    run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, check=True)
    assert "points" in run.stdout
    assert "\x1b" not in run.stdout
