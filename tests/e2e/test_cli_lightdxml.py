"""LightDXML from the command line: train, evaluate, predict; a killed process resumes."""

from __future__ import annotations

import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import zipfel

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--model", "lightdxml"]
for word in ("dimension=16", "epochs=4", "min_steps=1", "learning_rate=0.02", "batch_size=32", "shortlist_size=10"):
    SMALL += ["--set", word]


@pytest.mark.parametrize(
    "changes", [[], ["--set", "index=hnsw", "--set", "float16=true", "--set", "token_init=fasttext"]]
)
def test_train_evaluate_predict_train_again(planted, tmp_path, changes, learned, nothing_is_learned_again):
    words = ["train", planted, "--out", tmp_path / "run", *SMALL, *changes]
    figures, tags, own = learned(words, tmp_path / "run")
    assert figures["P@1"] > 60
    assert ("index recall" in figures) == bool(changes)
    assert own & {tag["label"] for tag in tags[: len(own)]}  # which one comes first depends on few points
    assert 0 <= tags[-1]["score"] <= tags[0]["score"] <= 1
    nothing_is_learned_again(words, tmp_path / "run")


def test_token_vectors_are_read_from_a_file(zipfel_command, planted, tmp_path):
    terms = sorted({word for text in next(iter(zipfel.read(planted).train.texts.values())) for word in text.split()})
    path = tmp_path / "words.vec"
    path.write_text(
        "".join(f"{term} {' '.join(str((n * k) % 7 - 3) for k in range(16))}\n" for n, term in enumerate(terms))
    )
    words = ["train", planted, *SMALL, "--set", "epochs=1", "--out", tmp_path / "run", "--set", f"token_init={path}"]
    assert zipfel_command(*words).code == 0
    narrow = zipfel_command(*words[:-1], f"token_init={path}", "--set", "dimension=8", "--out", tmp_path / "narrow")
    assert narrow.code == 2
    assert "words.vec has vectors of width 16; set dimension=16" in narrow.err
    assert "Traceback" not in narrow.err


def train_slowly(data: Path, out: Path, pause: float) -> None:
    """Train in a process that may be killed; each step leaves a checkpoint."""
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
    sys.argv = ["zipfel", "train", str(data), "--out", str(out), *SMALL, "--set", "cycle_epochs=2"]
    main()


def test_a_process_that_is_killed_resumes_and_ends_with_the_same_weights(zipfel_command, planted, tmp_path):
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
    assert zipfel_command("train", planted, "--out", tmp_path / "plain", *SMALL, "--set", "cycle_epochs=2").code == 0
    for path in ("serve/weights.safetensors", "train/weights.safetensors"):
        assert (killed / "model" / path).read_bytes() == (tmp_path / "plain" / "model" / path).read_bytes()
