"""`zipfel bench` from end to end: one model of ours, one peer that runs, and one that is not installed."""

from __future__ import annotations

import stat
import sys

import pytest

import zipfel
from zipfel.bench import machine
from zipfel.bench.results import read_results
from zipfel.data.synthetic import Synthetic, make
from zipfel.models.base import model_names


@pytest.fixture
def words(tmp_path, monkeypatch):
    """Return a bench on a small data set; the test's own python stands for the environment of k-NN."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    python = tmp_path / "peers" / "sklearn" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    zipfel.write(make(Synthetic(points=400, labels=15, texts=True, noise=0.2, seed=1)), tmp_path / "planted", "lf")
    return ["bench", tmp_path / "planted", "--models", "mnn:fast", "--peers", "knn,pecos", "--seeds", 1,
            "--threads", 1, "--environments", tmp_path / "peers", "--out", tmp_path / "out"]  # fmt: skip


def test_models_and_peers_side_by_side(zipfel_command, words, tmp_path):
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    assert "4 of 4: synthetic-15, pecos, test, seed 0: not installed" in outcome.err
    lines = {(line["part"], line["contestant"]): line for line in read_results(tmp_path / "out" / "results.jsonl")}
    assert list(lines) == [("validation", "mnn:fast"), ("test", "mnn:fast"), ("test", "knn"), ("test", "pecos")]
    for name in ("mnn:fast", "knn"):
        line = lines["test", name]
        assert line["status"] == "ok", line
        assert line["P@1"] > 80
        assert all(line[cost] > 0 for cost in ("train_seconds", "train_cpu_seconds", "batch_ms", "alone_p50_ms"))
        assert line["alone_p99_ms"] >= line["alone_p50_ms"]
        assert 0 < line["startup_seconds"] < 60
        assert line["model_mb"] > 0.001
        assert line["predict_peak_mb"] > 20
    assert {"zipfel", "torch"} < set(lines["test", "mnn:fast"]["versions"])
    table = (tmp_path / "out" / "table.md").read_text()
    assert "**zipfel mnn:fast** (chosen on validation)" in table
    assert "| k-NN (20) |" in table
    assert "PECOS XR-Linear: not installed" in table
    assert all((tmp_path / "out" / f"{name}.svg").exists() for name in ("accuracy-time", "accuracy-size", "frequency"))
    assert not (tmp_path / "out" / "work").exists()

    before = (tmp_path / "out" / "results.jsonl").read_bytes()
    (tmp_path / "out" / "table.md").unlink()
    again = zipfel_command("bench", "--report-only", "--out", tmp_path / "out")
    assert again.code == 0, again.err
    assert "synthetic-15: zipfel mnn:fast" in again.out
    assert (tmp_path / "out" / "table.md").read_text() == table
    assert zipfel_command(*words[:5], "none", *words[6:]).code == 0  # nothing is left to do without peers
    assert (tmp_path / "out" / "results.jsonl").read_bytes() == before


def test_auto_with_features_that_train_chooses(zipfel_command, words, tmp_path):
    words[words.index("mnn:fast")] = "auto:fast"
    words[words.index("knn,pecos")] = "knn"
    outcome = zipfel_command(*words, "--features", "chosen")
    assert outcome.code == 0, outcome.err
    auto, knn = read_results(tmp_path / "out" / "results.jsonl")
    assert (auto["status"], knn["status"]) == ("ok", "ok"), auto
    assert auto["chosen"]["main"] in model_names()
    assert "note" not in auto
    for line in (auto, knn):
        assert line["features_from"] == "chosen"
        assert line["text"] == {}  # 320 points are too few to choose
    assert f"synthetic-15: zipfel auto:fast ({auto['chosen']['main']}), chosen features, " in outcome.out
    assert "| k-NN (20), chosen features |" in (tmp_path / "out" / "table.md").read_text()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--models", "glass"], "unknown model 'glass'; did you mean 'glas'?"),
        (["--models", "none", "--peers", "none"], "nothing to run"),
        (["--seeds", "0"], "seeds must be at least 1"),
        (["--features", "best"], "features must be one of plain, chosen"),
        (["--report-only"], "has no results"),
        ([], "nowhere: no such file or folder"),
    ],
)
def test_errors_are_reported_in_one_line(zipfel_command, tmp_path, words, problem):
    outcome = zipfel_command("bench", tmp_path / "nowhere", "--out", tmp_path / "out", *words)
    assert outcome.code == 2
    assert problem in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_missing_checkout_is_reported(zipfel_command, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "PACKAGE", tmp_path / "zipfel")
    outcome = zipfel_command("bench", tmp_path, "--out", tmp_path / "out")
    assert outcome.code == 2
    assert "bench needs a checkout of zipfel" in outcome.err


def test_results_that_cannot_be_written_are_refused_in_one_line(zipfel_command, tmp_path):
    zipfel.write(make(Synthetic(points=60, labels=5, texts=True)), tmp_path / "data", "lf")
    (tmp_path / "file").write_text("")
    words = ["bench", tmp_path / "data", "--models", "glas", "--peers", "none", "--out", tmp_path / "file" / "out"]
    outcome = zipfel_command(*words)
    assert outcome.code == 2
    assert outcome.err == f"error: {tmp_path / 'file' / 'out'}: cannot be written: Not a directory\n"
