"""`zipfel predict --engine ray`, and `BatchTagger`, on a Ray of two workers that is started once."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zipfel
from zipfel.engines import BatchTagger
from zipfel.errors import DataError
from zipfel.tagger import Tagger

pytestmark = [pytest.mark.usefixtures("one_thread"), pytest.mark.filterwarnings("ignore")]  # Ray's own
FILES = 40


@pytest.fixture(scope="module")
def model(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    Tagger("linear", device="cpu", validation=0.3).fit_dataset(zipfel.read(planted)).save(path)
    return path


@pytest.fixture(scope="module")
def texts(planted: Path) -> list[str]:
    return list(next(iter(zipfel.read(planted).test.texts.values())))


@pytest.fixture(scope="module")
def mark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start Ray with two CPUs; return a mark in the environment of its processes."""
    import logging

    import ray

    mark = str(tmp_path_factory.mktemp("ray"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ZIPFEL_TEST_MARK", mark)
        patch.delenv("RAY_ADDRESS", raising=False)
        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        yield mark
        ray.shutdown()


def workers(mark: str) -> list[int]:
    """Return the actors of our Ray."""
    own = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if (
                b"ray::MapWorker" in (path / "cmdline").read_bytes()
                and mark.encode() in (path / "environ").read_bytes()
            ):
                own.append(int(path.name))
        except OSError:  # ended meanwhile
            pass
    return own


def rows_of(path: Path) -> list[bytes]:
    return sorted(json.dumps(row).encode() for row in pq.read_table(path).to_pylist())


def test_a_killed_worker_loses_and_doubles_no_row(zipfel_command, model, texts, mark, tmp_path):
    rows = [json.dumps({"id": n, "text": texts[n % len(texts)]}) for n in range(FILES * 50)]
    (tmp_path / "in").mkdir()
    for number in range(FILES):
        (tmp_path / "in" / f"{number:03}.jsonl").write_text("\n".join(rows[number * 50 : number * 50 + 50]) + "\n")
    (tmp_path / "all.jsonl").write_text("\n".join(rows) + "\n")
    out, one, killed = tmp_path / "out", tmp_path / "one.parquet", []

    def kill() -> None:
        while not killed:
            parts = len(list(out.glob("part-*"))) if out.exists() else 0
            if parts and (own := workers(mark)):
                os.kill(own[0], signal.SIGKILL)
                killed.append(parts)
            time.sleep(0.002)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    words = ["--input", tmp_path / "in" / "*.jsonl", "--out", out, "--engine", "ray", "--workers", 2]
    outcome = zipfel_command("predict", model, *words)
    thread.join(1)
    assert outcome.code == 0, outcome.err
    assert killed
    assert killed[0] < FILES - 4
    assert zipfel_command("predict", model, "--input", tmp_path / "all.jsonl", "--out", one).code == 0
    assert len(list(out.glob("part-*"))) == FILES
    assert rows_of(out) == rows_of(one)
    assert "complete already, 2,000 texts" in zipfel_command("predict", model, *words).out
    assert not list(out.glob(".part-*"))


# --- BatchTagger ------------------------------------------------------------------------------------------------------


def expected(model: Path, texts: list[str]) -> list[tuple[list[str], list[float]]]:
    tagged = Tagger.load(model, "cpu").predict(texts, 3)
    return [([tag.label for tag in row], [tag.score for tag in row]) for row in tagged]


@pytest.mark.parametrize("kind", ["pandas", "arrow", "arrays", "iterator"])
def test_batches_come_back_as_they_are_with_tags(model, texts, kind):
    tagger, frame = (
        BatchTagger(model, k=3, device="cpu"),
        pd.DataFrame({"id": [7, 8, 9], "text": texts[:3]}, index=[4, 5, 6]),
    )
    given = {"pandas": frame, "arrow": pa.table({"id": [7, 8, 9], "text": texts[:3]}),
             "arrays": {"id": np.array([7, 8, 9]), "text": np.array(texts[:3], dtype=object)},
             "iterator": iter([frame])}[kind]  # fmt: skip
    tagged = tagger(given)
    tagged = next(tagged) if kind == "iterator" else tagged
    assert type(tagged) is (pd.DataFrame if kind == "iterator" else type(given))
    columns = tagged.to_pydict() if kind == "arrow" else {name: list(tagged[name]) for name in tagged}
    assert list(columns) == ["id", "text", "known", "tags", "scores"]
    assert columns["id"] == [7, 8, 9]
    pairs = [
        (list(tags), [float(s) for s in scores])
        for tags, scores in zip(columns["tags"], columns["scores"], strict=True)
    ]
    assert pairs == expected(model, texts[:3])


def test_a_batch_tagger_travels_without_its_model(model, texts):
    import pickle

    tagger = BatchTagger(str(model), k=3, device="cpu")
    tagger(pd.DataFrame({"text": texts[:1]}))
    assert len(pickle.dumps(tagger)) < 1000
    assert list(BatchTagger("nowhere").meta(pd.DataFrame({"text": ["a"]})).columns) == [
        "text",
        "known",
        "tags",
        "scores",
    ]
    with pytest.raises(DataError, match="has a column 'tags' already"):
        tagger(pd.DataFrame({"text": ["a"], "tags": ["b"]}))


def test_ray_data_tags_batches_with_one_model_a_process(model, texts, mark):
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    table = ray.data.from_items([{"id": n, "text": text} for n, text in enumerate(texts[:60])], override_num_blocks=6)
    tagged = table.map_batches(
        BatchTagger, fn_constructor_kwargs={"model": str(model), "k": 3, "device": "cpu"}, batch_size=16,
        compute=ray.data.ActorPoolStrategy(size=2))  # fmt: skip
    rows = sorted(tagged.take_all(), key=lambda row: row["id"])
    pairs = [(list(row["tags"]), [float(score) for score in row["scores"]]) for row in rows]
    assert pairs == expected(model, texts[:60])
