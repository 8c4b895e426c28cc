"""Tagging files of any size: the three kinds of output, thresholds, and resuming."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import load_npz

import zipfel
from zipfel.cli import predict, unfinished
from zipfel.data.synthetic import Synthetic, make
from zipfel.tagger import Tagger
from zipfel.tagging import calibrated

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "planted"
    zipfel.write(make(Synthetic(points=1200, labels=20, texts=True, noise=0.2, seed=1)), folder, "lf")
    return folder


@pytest.fixture(scope="module")
def model(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "model"
    settings = {"dimension": 16, "epochs": 4, "min_steps": 1, "learning_rate": 0.01}
    Tagger("glas", settings=settings, device="cpu", validation=0.3).fit_dataset(zipfel.read(planted)).save(folder)
    return folder


@pytest.fixture(scope="module")
def texts(planted: Path) -> list[str]:
    return list(next(iter(zipfel.read(planted).test.texts.values())))


@pytest.fixture
def source(texts: list[str], tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("\n".join(texts) + "\n")
    return tmp_path / "in.txt"


def long_file(path: Path, texts: list[str], lines: int) -> Path:
    path.write_text("".join(f"{text}\n" for text in islice(cycle(texts), lines)))
    return path


def leftovers(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if ".part" in path.name}


# --- Kinds of output --------------------------------------------------------------------------------------------------


def test_lines_of_json_equal_predict(zipfel_command, model, source, texts, tmp_path):
    outcome = zipfel_command("predict", model, "--input", source, "--out", tmp_path / "tags.jsonl", "--k", 3)
    assert outcome.code == 0, outcome.err
    assert f"{len(texts)} texts tagged" in outcome.out
    lines = [json.loads(line) for line in (tmp_path / "tags.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == texts
    tags = [[(tag["label"], tag["score"]) for tag in line["tags"]] for line in lines]
    assert tags == [[tuple(tag) for tag in row] for row in Tagger.load(model).predict(texts, 3)]
    shown = zipfel_command("predict", model, "--input", source, "--k", 3, "--json").out
    assert shown == (tmp_path / "tags.jsonl").read_text()
    assert leftovers(tmp_path) == set()


def test_a_table_has_a_row_for_each_text(zipfel_command, model, texts, tmp_path):
    odd = [texts[0], 'with "quotes", commas', "", texts[1]]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in odd))
    out = tmp_path / "tags.csv"
    assert zipfel_command("predict", model, "--input", tmp_path / "in.jsonl", "--out", out, "--k", 2).code == 0
    with out.open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == ["text", "known", "label_1", "score_1", "label_2", "score_2"]
    assert [row[0] for row in rows[1:]] == odd
    assert [row[1] for row in rows[1:]] == ["true", "false", "false", "true"]
    for row, tags in zip(rows[1:], Tagger.load(model).predict(odd, 2), strict=True):
        assert row[2::2] == [tag.label for tag in tags]
        assert [float(cell) for cell in row[3::2]] == pytest.approx([tag.score for tag in tags], rel=1e-5)
    few = tmp_path / "few.csv"
    words = ["predict", model, "--input", tmp_path / "in.jsonl", "--out", few, "--threshold", 0.5, "--k", 4]
    assert zipfel_command(*words).code == 0
    with few.open(newline="") as file:
        cells = [row[2:] for row in csv.reader(file)][1:]
    wanted = [len(tags) for tags in Tagger.load(model).predict(odd, 4, threshold=0.5)]
    assert [sum(map(bool, row)) // 2 for row in cells] == wanted
    assert {len(row) for row in cells} == {8}


def test_a_matrix_of_scores_is_evaluated_like_the_model(zipfel_command, planted, model, source, texts, tmp_path):
    outcome = zipfel_command("predict", model, "--input", source, "--out", tmp_path / "scores.npz", "--k", 7)
    assert outcome.code == 0, outcome.err
    scores, tagger = load_npz(tmp_path / "scores.npz"), Tagger.load(model)
    expected = calibrated(tagger.fitted_, tagger.rank(texts, 7)).as_scores(20)
    assert scores.shape == (len(texts), 20)
    assert scores.has_canonical_format
    assert (scores != expected).nnz == 0
    assert json.loads((tmp_path / "scores.labels.json").read_text()) == tagger.classes_
    zipfel_command("evaluate", model, planted, "--json", tmp_path / "a.json")
    zipfel_command("evaluate", planted, "--predictions", tmp_path / "scores.npz", "--json", tmp_path / "b.json")
    ours, theirs = (json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json"))
    assert {**ours, "seconds": 0} == {**theirs, "seconds": 0}


@pytest.mark.parametrize("threshold", [[], ["--threshold", 0.99999]])
def test_a_matrix_of_several_blocks_and_an_empty_one(
    zipfel_command, monkeypatch, model, source, texts, tmp_path, threshold
):
    monkeypatch.setattr("zipfel.cli.outputs.BLOCK", 7)
    words = ["predict", model, "--input", source, "--out", tmp_path / "scores.npz", "--k", 3, *threshold]
    assert zipfel_command(*words).code == 0
    assert load_npz(tmp_path / "scores.npz").nnz == (0 if threshold else 3 * len(texts))
    (tmp_path / "empty.txt").write_text("")
    assert zipfel_command("predict", model, "--input", tmp_path / "empty.txt", "--out", tmp_path / "e.npz").code == 0
    assert load_npz(tmp_path / "e.npz").shape == (0, 20)


@pytest.mark.parametrize("name", ["tags.jsonl", "tags.csv", "tags.npz"])
def test_removed_labels_are_in_no_file(zipfel_command, model, source, texts, tmp_path, name):
    tagger = Tagger.load(model)
    gone = tagger.predict(texts, 1)[0][0].label
    tagger.remove_labels([gone]).save(tmp_path / "less")
    outcome = zipfel_command("predict", tmp_path / "less", "--input", source, "--out", tmp_path / name, "--k", 99)
    assert outcome.code == 0, outcome.err
    if name.endswith(".npz"):
        columns = np.diff(load_npz(tmp_path / name).tocsc().indptr)
        assert np.flatnonzero(columns == 0).tolist() == [tagger.classes_.index(gone)]
    else:
        assert gone not in (tmp_path / name).read_text()


# --- Thresholds -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "precision", "by_frequency"),
    [
        (["--precision", "0.7"], 0.7, False),
        (["--precision", "0.7", "--by-frequency"], 0.7, True),
        (["--best-f1"], None, False),
        (["--best-f1", "--by-frequency"], None, True),
    ],
)
def test_a_threshold_is_chosen(zipfel_command, model, source, texts, words, precision, by_frequency):
    lines = zipfel_command("predict", model, "--input", source, "--json", *words).out.splitlines()
    labels = [[tag["label"] for tag in json.loads(line)["tags"]] for line in lines]
    tagger = Tagger.load(model)
    rows = tagger.predict(texts, threshold=tagger.choose_threshold(precision, by_frequency))
    assert labels == [[tag.label for tag in row] for row in rows]
    assert len({len(row) for row in labels}) > 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--input", "{in}", "--threshold", "0.3", "--best-f1"],
            "give only one of --threshold, --precision and --best-f1",
        ),
        (["--input", "{in}", "--by-frequency"], "--by-frequency needs --precision or --best-f1"),
        (["--input", "{in}", "--precision", "1.5"], "precision must be above 0 and at most 1; found 1.5"),
        (
            ["--input", "{in}", "--out", "{tmp}/tags.txt"],
            "--out must end in .jsonl, .csv, .parquet, .npz; found 'tags.txt'",
        ),
        (["--input", "{in}", "--out", "{tmp}/no/tags.csv"], "cannot be written: No such file or directory"),
        (["--input", "{tmp}/no.txt", "--out", "{tmp}/tags.csv"], "no.txt: cannot be read: no such file"),
        (["--input", "{in}", "--out", "{tmp}/tags.csv", "--k", "0"], "k must be at least 1; found 0"),
        (["a text", "--out", "{tmp}/tags.csv"], "--out needs --input"),
    ],
)
def test_bad_options_give_one_line_of_error(zipfel_command, model, source, tmp_path, words, message):
    outcome = zipfel_command("predict", model, *(w.format(**{"in": source, "tmp": tmp_path}) for w in words))
    assert outcome.code == 2
    assert message in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt"}


# --- Any size, and resuming -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tags.jsonl", "tags.npz"])
def test_memory_does_not_grow_with_the_file(zipfel_command, monkeypatch, model, texts, tmp_path, name):
    monkeypatch.setattr(predict, "BATCH", 256)
    monkeypatch.setattr("zipfel.cli.outputs.BLOCK", 256)
    peaks = []
    for lines in (2_000, 20_000):
        path = long_file(tmp_path / f"{lines}.txt", [text[:60] for text in texts], lines)
        tracemalloc.start()
        assert zipfel_command("predict", model, "--input", path, "--out", tmp_path / f"{lines}-{name}").code == 0
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_000_000  # room for garbage; 18,000 lines that are kept take several times that
    assert (tmp_path / f"20000-{name}").stat().st_size > 4 * (tmp_path / f"2000-{name}").stat().st_size > 0


def test_long_texts_make_small_batches(monkeypatch):
    monkeypatch.setattr(predict, "CHARACTERS", 10)
    monkeypatch.setattr(predict, "BATCH", 3)
    batches = list(predict.batches(["a"] * 7 + ["b" * 30, "c", "d" * 9, "e"]))
    assert batches == [["a"] * 3, ["a"] * 3, ["a", "b" * 30], ["c", "d" * 9], ["e"]]
    assert list(predict.batches([])) == []


SLOW = """
import sys
from zipfel.cli import predict, unfinished
from zipfel.cli.main import main
predict.BATCH, unfinished.SECONDS = 4, 0.0
sys.argv = ["zipfel", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize(
    ("name", "by", "code"),
    [("tags.jsonl", signal.SIGKILL, -9), ("tags.csv", signal.SIGINT, 130), ("tags.npz", signal.SIGTERM, 143)],
)
def test_an_interrupted_file_is_resumed_to_the_same_bytes(zipfel_command, model, texts, tmp_path, name, by, code):
    source = long_file(tmp_path / "in.txt", texts, 4000)
    words = ["predict", model, "--input", source, "--k", 3, "--out", tmp_path / name]
    journal = tmp_path / f"{name}.part.json"
    command = [sys.executable, "-c", SLOW, *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while process.poll() is None and not (journal.exists() and json.loads(journal.read_text())["rows"] >= 40):
            time.sleep(0.01)
        process.send_signal(by)
        _, errors = process.communicate()
    assert process.returncode == code, errors
    assert not (tmp_path / name).exists()
    done = json.loads(journal.read_text())["rows"]
    assert 40 <= done < 4000
    if by == signal.SIGINT:
        assert f"stopped after {done:,} texts; run the same command to resume" in errors
    if by == signal.SIGKILL:
        with (tmp_path / f"{name}.part").open("ab") as part:
            part.write(b'{"text": "half a li')
        (tmp_path / f".{name}.part.json.1.part").write_bytes(b'{"rows"')  # killed while it wrote the journal
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    assert f"resuming after {done:,} texts" in outcome.err
    undisturbed = tmp_path / f"whole-{name}"
    assert zipfel_command(*words[:-1], undisturbed).code == 0
    assert (tmp_path / name).read_bytes() == undisturbed.read_bytes()
    assert leftovers(tmp_path) == set()


class StoppedError(Exception):
    pass


@pytest.fixture
def begun(zipfel_command, monkeypatch, model, source, tmp_path) -> Iterator[list[Any]]:
    """Leave a file unfinished, by an error after 64 texts; return the words of the command."""
    words = ["predict", model, "--input", source, "--out", tmp_path / "tags.jsonl", "--k", 3]
    batches = predict.batches

    def failing(texts: Any) -> Iterator[list[str]]:
        for number, batch in enumerate(batches(texts)):
            if number == 2:
                raise StoppedError("stop")
            yield batch

    with monkeypatch.context() as patch:
        patch.setattr(predict, "BATCH", 32)
        patch.setattr(predict, "batches", failing)
        assert zipfel_command(*words).code == 1
    assert json.loads((tmp_path / "tags.jsonl.part.json").read_text())["rows"] == 64
    return words


def test_other_inputs_are_refused(zipfel_command, begun, model, source, texts, tmp_path):
    refused = zipfel_command(*begun[:-1], 4)
    assert refused.code == 2
    assert "tags.jsonl was started with a different k; start over with --fresh" in refused.err
    refused = zipfel_command(*begun, "--threshold", 0.2)
    assert "was started with a different threshold; start over" in refused.err
    source.write_text(source.read_text() + "one more\n")
    refused = zipfel_command(*begun)
    assert "was started with a different input; start over with --fresh" in refused.err
    Tagger.load(model).save(tmp_path / "copy")
    other = Tagger("glas", settings={"dimension": 8, "epochs": 1, "min_steps": 1}, device="cpu")
    other.fit(texts[:20], [["a"], ["b"]] * 10).save(tmp_path / "other")
    assert "started with a different model, input" in zipfel_command("predict", tmp_path / "other", *begun[2:]).err
    assert zipfel_command(*begun, "--fresh").code == 0
    assert len((tmp_path / "tags.jsonl").read_text().splitlines()) == len(texts) + 1
    assert leftovers(tmp_path) == set()


def test_a_finished_file_is_not_overwritten(zipfel_command, begun, tmp_path):
    assert zipfel_command(*begun).code == 0
    before = (tmp_path / "tags.jsonl").read_bytes()
    refused = zipfel_command(*begun)
    assert refused.code == 2
    assert "tags.jsonl: already exists; name another file, or overwrite it with --fresh" in refused.err
    assert zipfel_command(*begun, "--fresh").code == 0
    assert (tmp_path / "tags.jsonl").read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"[]", b'{"rows": 1}', b'{"rows": 64, "bytes": "x", "inputs": {}}'])
def test_a_broken_journal_is_refused(zipfel_command, begun, tmp_path, content):
    (tmp_path / "tags.jsonl.part.json").write_bytes(content)
    refused = zipfel_command(*begun)
    assert refused.code == 2
    assert "the journal is unreadable" in refused.err


def test_a_truncated_part_is_refused(zipfel_command, begun, tmp_path):
    part = tmp_path / "tags.jsonl.part"
    part.write_bytes(part.read_bytes()[:-1])
    assert "is shorter than the" in zipfel_command(*begun).err


def test_a_second_process_is_refused(zipfel_command, begun, tmp_path):
    inputs = json.loads((tmp_path / "tags.jsonl.part.json").read_text())["inputs"]
    with unfinished.unfinished(tmp_path / "tags.jsonl", inputs) as file:
        assert file.rows == 64
        refused = zipfel_command(*begun)
    assert refused.code == 2
    assert "another process is writing" in refused.err


def test_the_header_of_a_table_is_written_once(tmp_path):
    for round in range(3):
        with unfinished.unfinished(tmp_path / "out.csv", {"k": 1}) as file:
            assert file.bytes == (0 if round == 0 else 6 + 2 * round)
            if not file.bytes:
                file.write(b"a,b\r\n\n", 0)
            file.write(b"1\n", 1)
    assert (tmp_path / "out.csv.part").read_bytes() == b"a,b\r\n\n1\n1\n1\n"


def test_a_terminal_shows_texts_of_labels_beside_their_names(zipfel_command, tmp_path):
    tagger = Tagger("glas", settings={"dimension": 8, "epochs": 5}, text={"min_count": 1}, validation=0)
    about = {"R07.1": "Chest pain on breathing\nSecond line", "R06": "R06"}
    tagger.fit(["chest pain", "short breath", "tired"] * 3, [["R07.1"], ["R06"], ["X"]] * 3, label_texts=about)
    tagger.save(tmp_path / "model")
    shown = zipfel_command("predict", tmp_path / "model", "chest pain", "--k", 3).out
    assert shown.startswith("chest pain\n")
    assert sorted(line.split(maxsplit=1)[1] for line in shown.splitlines()[1:]) == [
        "R06",
        "R07.1  Chest pain on breathing",
        "X",
    ]
