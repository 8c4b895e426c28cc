from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import zipfel
from zipfel.data.synthetic import Synthetic, make


@pytest.fixture(scope="session")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of texts with planted labels; nobody writes into it."""
    folder = tmp_path_factory.mktemp("data") / "planted"
    zipfel.write(make(Synthetic(points=600, labels=20, texts=True, noise=0.2, seed=1)), folder, "lf")
    return folder


class Learned(NamedTuple):
    """Metrics on test, and the tags of the second text of train, of a model trained at the command line."""

    figures: dict[str, float]
    tags: list[dict[str, Any]]  # all labels, best first
    own: set[str]  # those that are right


@pytest.fixture
def learned(zipfel_command: Any, planted: Path) -> Callable[..., Learned]:
    """Train in four epochs, evaluate and predict."""

    def trained(words: list[object], folder: Path) -> Learned:
        outcome = zipfel_command(*words)
        assert outcome.code == 0, outcome.err
        assert "epoch 4" in outcome.err
        judged = zipfel_command("evaluate", folder, planted, "--json", folder / "figures.json")
        assert judged.code == 0, judged.err
        dataset = zipfel.read(planted)
        text = next(iter(dataset.train.texts.values()))[1]
        tags = json.loads(zipfel_command("predict", folder, text, "--k", "20", "--json").out)["tags"]
        assert {tag["label"] for tag in tags} == set(dataset.label_names)  # also those that are on no shortlist
        own = {dataset.label_names[label] for label in dataset.train.Y[[1]].indices}
        return Learned(json.loads((folder / "figures.json").read_text()), tags, own)

    return trained
