"""DECAF from the command line: train with and without shortlists, an ensemble; evaluate, predict, train again."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = ["--model", "decaf"]
for word in ("dimension=16", "epochs=4", "module1_epochs=4", "min_steps=1", "learning_rate=0.03",
             "module1_learning_rate=0.03", "batch_size=32", "dropout=0.1"):  # fmt: skip
    SMALL += ["--set", word]


@pytest.mark.parametrize("changes", [["learners=2"], ["learners=2", "shortlist=beam", "beam=2", "lite=true"]])
def test_train_evaluate_predict_train_again(planted, tmp_path, changes, learned, nothing_is_learned_again):
    more = [part for word in changes for part in ("--set", word)]
    words = ["train", planted, "--out", tmp_path / "run", *SMALL, *more]
    figures, tags, own = learned(words, tmp_path / "run")
    assert figures["P@1"] > 50
    assert ("index recall" in figures) == (len(changes) > 1)
    assert own & {tag["label"] for tag in tags[: len(own) + 1]}
    nothing_is_learned_again(words, tmp_path / "run")
