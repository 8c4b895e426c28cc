"""LightDXML from the command line: train, evaluate, predict; a process that is killed goes on."""

from __future__ import annotations

import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import zipfel
from zipfel.data.synthetic import Synthetic, make

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--model", "lightdxml"]
for word in ("dimension=16", "epochs=4", "steps=1", "rate=0.02", "batch=32", "shortlist=10"):
    SMALL += ["--set", word]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "planted"
    zipfel.write(make(Synthetic(points=500, labels=20, texts=True, noise=0.2, seed=1)), folder, "lf")
    return folder


@pytest.mark.parametrize("changes", [[], ["--set", "index=hnsw", "--set", "half=true", "--set", "tokens=fasttext"]])
def test_train_evaluate_predict_train_again(zipfel_command, planted, tmp_path, changes, nothing_is_learned_again):
    words = ["train", planted, "--out", tmp_path / "run", *SMALL, *changes]
    outcome = zipfel_command(*words)
    assert outcome.code == 0, outcome.err
    assert "epoch 4" in outcome.err
    judged = zipfel_command("evaluate", tmp_path / "run", planted, "--json", tmp_path / "figures.json")
    assert judged.code == 0, judged.err
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures["P@1"] > 60
    assert ("index recall" in figures) == bool(changes)
    dataset = zipfel.read(planted)
    text = next(iter(dataset.train.texts.values()))[1]
    tags = json.loads(zipfel_command("predict", tmp_path / "run", text, "--k", "20", "--json").out)["tags"]
    assert {tag["label"] for tag in tags} == set(dataset.label_names)  # also those that are on no shortlist
    own = {dataset.label_names[label] for label in dataset.train.Y[[1]].indices}
    assert own & {tag["label"] for tag in tags[: len(own)]}  # which one comes first hangs on few points
    assert 0 <= tags[-1]["score"] <= tags[0]["score"] <= 1
    nothing_is_learned_again(words, tmp_path / "run")


def test_token_vectors_of_a_file(zipfel_command, planted, tmp_path):
    terms = sorted({word for text in next(iter(zipfel.read(planted).train.texts.values())) for word in text.split()})
    path = tmp_path / "words.vec"
    path.write_text(
        "".join(f"{term} {' '.join(str((n * k) % 7 - 3) for k in range(16))}\n" for n, term in enumerate(terms))
    )
    words = ["train", planted, *SMALL, "--set", "epochs=1", "--out", tmp_path / "run", "--set", f"tokens={path}"]
    assert zipfel_command(*words).code == 0
    narrow = zipfel_command(*words[:-1], f"tokens={path}", "--set", "dimension=8", "--out", tmp_path / "narrow")
    assert narrow.code == 2
    assert "words.vec has vectors of width 16; set dimension=16" in narrow.err
    assert "Traceback" not in narrow.err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["shortlst=3"], "unknown setting 'shortlst'; did you mean 'shortlist'?"),
        (["beta=2"], "beta must lie in [0, 1]; found 2"),
        (["cycle=0"], "cycle must be at least 1; found 0"),
    ],
)
def test_bad_settings_are_one_line(zipfel_command, planted, tmp_path, words, told):
    more = [part for word in words for part in ("--set", word)]
    outcome = zipfel_command("train", planted, "--out", tmp_path / "x", "--model", "lightdxml", *more)
    assert outcome.code == 2
    assert told in outcome.err
    assert len(outcome.err.splitlines()) == 1
    assert not (tmp_path / "x").exists()


def test_models_lists_what_lightdxml_takes(zipfel_command):
    outcome = zipfel_command("models")
    for word in ("lightdxml", "shortlist", "label_epochs", "beta", "tokens"):
        assert word in outcome.out


def train_slowly(data: Path, out: Path, pause: float) -> None:
    """Train in a process that may be killed; each step is kept."""
    from functools import partial

    import torch

    from zipfel.cli.main import main
    from zipfel.models import lightdxml
    from zipfel.training.trainer import Schedule

    def slow(self: lightdxml.LightDxml, *given: Any) -> Any:
        time.sleep(pause)
        return plain(self, *given)

    torch.set_num_threads(1)
    plain = lightdxml.LightDxml.loss
    lightdxml.LightDxml.loss = slow  # type: ignore[method-assign]
    lightdxml.Schedule = partial(Schedule, checkpoint_seconds=0)  # type: ignore[misc, assignment]
    sys.argv = ["zipfel", "train", str(data), "--out", str(out), *SMALL, "--set", "cycle=2"]
    main()


def test_kills_change_no_weight(zipfel_command, planted, tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["zipfel.cli.main", "zipfel.models.lightdxml", "torch._dynamo"])
    killed = tmp_path / "killed"
    log = killed / "run" / "log.jsonl"

    def lines() -> int:
        return len(log.read_bytes().splitlines()) if log.exists() else 0

    def started(pause: float) -> Any:
        process = context.Process(target=train_slowly, args=(planted, killed, pause))
        process.start()
        return process

    for kill in range(3):
        before, end = lines(), time.monotonic() + 30
        process = started(0.03)
        while lines() < before + 2 and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1 * kill)  # before the first step, and within an epoch
        assert process.is_alive(), "the training ended before it was killed; make it longer"
        process.kill()
        process.join()
    process = started(0)
    process.join(60)
    assert process.exitcode == 0
    assert log.read_bytes().count(b'"resumed_at_epoch"') >= 2
    assert zipfel_command("train", planted, "--out", tmp_path / "plain", *SMALL, "--set", "cycle=2").code == 0
    for path in ("serve/weights.safetensors", "train/weights.safetensors"):
        assert (killed / "model" / path).read_bytes() == (tmp_path / "plain" / "model" / path).read_bytes()
