"""`python -m benchmarks.train`: one line with accuracy and cost, for texts as for features."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.sparse import csr_array

from benchmarks import train
from zipfel.data.dataset import Dataset, Part
from zipfel.data.text import featurized

pytestmark = pytest.mark.usefixtures("one_thread")

WORDS = ("apple", "pear", "car", "bus")


def planted(points: int, seed: int) -> Part:
    """Points of three words, of which the first is the label."""
    numbers = np.random.default_rng(seed)
    labels = numbers.integers(0, len(WORDS), points)
    texts = [f"{WORDS[label]} {WORDS[label]} word{numbers.integers(9)}" for label in labels]
    return Part(csr_array(np.eye(len(WORDS), dtype=np.float32)[labels]), texts={"text": texts})


@pytest.mark.parametrize("as_texts", [True, False])
def test_a_line_has_accuracy_and_cost(monkeypatch, capsys, as_texts):
    dataset = Dataset(planted(200, 0), test=planted(50, 1), name="planted")
    if not as_texts:
        dataset = featurized(dataset).with_parts(lambda part: replace(part, texts=None), vocabulary=None)
    monkeypatch.setattr(train, "read", lambda path: dataset)
    train.main(["planted", "lightdxml", "default", "seeds=0,1", "device=cpu", "dimension=8", "epochs=1"])
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert line["P@1"] > 80
    assert all(line[name] >= 0 for name in train.COSTS)
    assert line["changes"] == {"dimension": "8", "epochs": "1"}
    assert line["seeds"] == [0, 1]
