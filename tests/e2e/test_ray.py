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


@pytest.mark.usefixtures("mark")
def test_ray_tags_only_the_parts_that_are_missing(zipfel_command, model, texts, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(6):
        (tmp_path / "in" / f"{number}.txt").write_text("\n".join(texts[10 * number : 10 * number + 10]) + "\n")
    out = tmp_path / "out"
    words = ["--input", tmp_path / "in", "--out", out, "--engine"]
    assert zipfel_command("predict", model, *words, "local").code == 0
    wanted = rows_of(out)
    for number in (1, 4):
        (out / f"part-{number:06d}.parquet").unlink()
    kept = {path: path.stat().st_mtime_ns for path in out.glob("part-*")}
    again = zipfel_command("predict", model, *words, "ray", "--workers", 1)
    assert again.code == 0, again.err
    assert "part-000001.parquet is missing or damaged (2 parts)" in again.err
    assert rows_of(out) == wanted
    assert len(kept) == 4
    assert {path: path.stat().st_mtime_ns for path in kept} == kept


@pytest.mark.usefixtures("mark")
def test_a_strict_job_of_ray_ends_at_a_bad_row_with_one_line(zipfel_command, model, texts, tmp_path):
    (tmp_path / "in").mkdir()
    for number in range(3):
        rows = [f"{number},{texts[number]}", "7,two,cells" if number == 1 else f"7,{texts[9]}"]
        (tmp_path / "in" / f"{number}.csv").write_text("\n".join(["id,text", *rows]) + "\n")
    words = ["--input", tmp_path / "in", "--out", tmp_path / "out", "--engine", "ray", "--workers", 1, "--strict"]
    strict = zipfel_command("predict", model, *words)
    assert strict.code == 2
    assert f"error: {tmp_path}/in/1.csv:3: " in strict.err
    assert strict.err.count("error: ") == 1
    assert "tagged" not in strict.out
    assert not list((tmp_path / "out").glob(".part-*"))


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


def test_dask_tags_partitions_in_other_processes(model, texts, tmp_path):
    import dask.dataframe as dd

    frame = pd.DataFrame({"id": range(60), "text": texts[:60]})
    tagger = BatchTagger(model, k=3, device="cpu", threads=1)
    table = dd.from_pandas(frame, npartitions=4)
    tagged = table.map_partitions(tagger, meta=tagger.meta(table._meta)).compute(scheduler="processes", num_workers=2)
    assert tagged["id"].tolist() == list(range(60))
    pairs = [
        (list(tags), list(map(float, scores))) for tags, scores in zip(tagged["tags"], tagged["scores"], strict=True)
    ]
    assert pairs == expected(model, texts[:60])
