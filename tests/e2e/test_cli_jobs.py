"""Jobs of `zipfel predict --engine`: formats, slices, bad rows, resuming, and folders of other jobs. No Ray here."""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import zipfel
from tests.s3 import StandIn
from zipfel.cli.job import engines, files, folder, run, worker
from zipfel.cli.job.files import File, Slice, line_of, local_copy, slices_of
from zipfel.errors import ConfigError
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model(planted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model"
    Tagger("linear", device="cpu", validation=0.3).fit_dataset(zipfel.read(planted)).save(path)
    return path


@pytest.fixture(scope="module")
def texts(planted: Path) -> list[str]:
    return list(next(iter(zipfel.read(planted).test.texts.values())))


@pytest.fixture
def job(zipfel_command, model, tmp_path):
    def run_job(*words: object, source: object = None, out: str = "out"):
        where = tmp_path / "in" if source is None else source
        return zipfel_command("predict", model, "--input", where, "--out", tmp_path / out, "--engine", "local", *words)

    return run_job


def records(texts: list[str]) -> list[dict[str, object]]:
    """Return rows with kinds of values that differ from row to row, and line breaks."""
    odd = [1, 2.5, None, "x", True, [1, "a"]]
    return [
        {"id": n, "text": f'{text}\n"{n}"', "odd": odd[n % 6], "share": n / 2 if n % 2 else n, "none": None}
        for n, text in enumerate(texts)
    ]


def write(path: Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        kept = [{name: value for name, value in row.items() if name != "odd"} for row in rows]
        schema = pa.schema({"id": pa.int32(), "text": pa.string(), "share": pa.float64(), "none": pa.int64()})
        pq.write_table(pa.Table.from_pylist(kept, schema), path, row_group_size=7)
    elif path.suffix == ".csv":
        import csv

        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def content(path: Path) -> list[bytes]:
    table = pq.read_table(path)
    return [
        str(table.schema.remove_metadata()).encode(),
        *sorted(json.dumps(row).encode() for row in table.to_pylist()),
    ]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_parts_together_equal_one_file_byte_for_byte(zipfel_command, job, model, texts, tmp_path, monkeypatch, ending):
    monkeypatch.setattr(files, "LEAST", 2000)  # bytes, so that each file has several slices
    rows = records(texts[:60])
    write(tmp_path / "in" / f"a.{ending}", rows[:45])
    write(tmp_path / "in" / f"b.{ending}", rows[45:])
    write(tmp_path / f"all.{ending}", rows)
    outcome = job("--k", 3)
    assert outcome.code == 0, outcome.err
    assert "60 texts tagged" in outcome.out
    one = tmp_path / "all.tags.parquet"
    assert zipfel_command("predict", model, "--input", tmp_path / f"all.{ending}", "--out", one, "--k", 3).code == 0
    parts = sorted((tmp_path / "out").glob("part-*"))
    assert len(parts) > 4
    assert content(tmp_path / "out") == content(one)
    assert [row["id"] for row in pq.read_table(tmp_path / "out").to_pylist()] == [
        row["id"] for row in pq.read_table(one).to_pylist()
    ]  # parts are in the order of the input
    manifest = json.loads((tmp_path / "out" / folder.MANIFEST).read_text())
    assert manifest["finished"]["rows"] == 60
    assert sum(manifest["finished"]["part_rows"]) == 60


@pytest.mark.parametrize("ending", ["jsonl", "csv"])
@pytest.mark.parametrize("size", [1, 50, 300, 10**6])
def test_slices_hold_each_row_once_and_know_their_lines(tmp_path, ending, size):
    path = tmp_path / f"a.{ending}"
    write(path, records(["ä one", "two", "three"] * 9))
    lines = path.read_bytes().split(b"\n")
    slices = slices_of([File(str(path), path.stat().st_size, 0)], "utf-8", size)
    assert len(slices) == 27 if size == 1 else len(slices) >= 1
    joined = b""
    for number, part in enumerate(slices):
        (tmp_path / str(number)).mkdir()
        copy = local_copy(part, tmp_path / str(number)).read_bytes()
        header = copy[: part.header] if not part.is_whole else b""
        joined += copy[len(header) :] if joined else copy
        first = header.count(b"\n") + 1
        if not part.is_whole:
            assert lines[line_of(part, first) - 1] == copy.split(b"\n")[first - 1]
    assert joined == path.read_bytes()


def test_bad_rows_are_listed_with_file_and_row_and_all_others_are_tagged(job, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LEAST", 300)
    (tmp_path / "in").mkdir()
    good = [json.dumps({"text": text}) for text in texts[:12]]
    lines = [*good[:5], "{broken", *good[5:9], '{"other": 1}', '{"text": {"a": 1}}', "[1]", *good[9:]]
    (tmp_path / "in" / "a.jsonl").write_text("\n".join(lines) + "\n")
    rows = [b"text,n", b"one,1", b"two", b"th\xe9e,3", b"four,4"]
    (tmp_path / "in" / "b.csv").write_bytes(b"\n".join(rows) + b"\n")
    outcome = job("--text", "text", "--keep", "text")
    assert outcome.code == 0, outcome.err
    assert pq.read_table(tmp_path / "out").num_rows == 14
    listed = [json.loads(line) for line in (tmp_path / "out" / folder.BAD_ROWS).read_text().splitlines()]
    places = [(Path(row["file"]).name, row["row"]) for row in listed]
    assert places == [("a.jsonl", 6), ("a.jsonl", 11), ("a.jsonl", 12), ("a.jsonl", 13), ("b.csv", 3), ("b.csv", 4)]
    assert "6 bad rows are left out" in outcome.err
    assert f"{tmp_path}/in/b.csv:4: not utf-8: byte 0xe9" in outcome.err
    strict = job("--text", "text", "--keep", "text", "--strict", out="strict")
    assert strict.code == 2
    assert f"{tmp_path}/in/a.jsonl:6: broken JSON" in strict.err
    assert strict.err.count("error") == 1


def test_a_bad_row_of_parquet_is_named_by_its_number_in_the_file(job, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LEAST", 100)
    (tmp_path / "in").mkdir()
    table = pa.table({"text": pa.array([b"a word"] + [b"x" * 30] * 20, pa.binary())})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    assert job("--keep", "").code == 0
    listed = [json.loads(line) for line in (tmp_path / "out" / folder.BAD_ROWS).read_text().splitlines()]
    assert [row["row"] for row in listed] == list(range(21))


# --- Resuming ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def six(texts, tmp_path) -> None:
    for number in range(6):
        write(tmp_path / "in" / f"{number}.jsonl", records(texts[:10]))


@pytest.mark.usefixtures("six")
def test_an_interrupted_job_tags_only_the_rest(job, tmp_path, monkeypatch):
    tagged, whole = worker.PartTagger._part, job(out="whole")
    assert whole.code == 0
    done = []

    def stopping(self, number, part):
        if len(done) == 4:
            raise KeyboardInterrupt
        done.append(number)
        return tagged(self, number, part)

    with monkeypatch.context() as patch:
        patch.setattr(worker.PartTagger, "_part", stopping)
        stopped = job()
    assert stopped.code == 130
    assert "stopped after 40 texts" in stopped.err
    (tmp_path / "out" / ".part-000004.parquet.77.part").write_bytes(b"half")  # of a killed process
    before = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    again = job()
    assert again.code == 0, again.err
    assert "resuming after 40 texts: 4 of 6 parts" in again.err
    after = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("part-*")}
    assert {name: after[name] for name in before} == before
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert not list((tmp_path / "out").glob(".*"))
    assert "complete already, 60 texts" in job().out


@pytest.mark.usefixtures("six")
def test_a_missing_or_damaged_part_is_tagged_again(job, tmp_path):
    assert job().code == 0
    wanted = content(tmp_path / "out")
    (tmp_path / "out" / "part-000001.parquet").unlink()
    os.truncate(tmp_path / "out" / "part-000003.parquet", 100)
    outcome = job()
    assert outcome.code == 0
    assert "part-000001.parquet is missing or damaged (2 parts)" in outcome.err
    assert content(tmp_path / "out") == wanted


@pytest.mark.usefixtures("six")
def test_a_folder_of_another_job_is_refused_and_left_alone(job, texts, tmp_path):
    assert job().code == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert "belongs to a job with a different k;" in job("--k", 2).err
    assert "belongs to a job with a different threshold;" in job("--threshold", 0.5, "--k", 5).err
    write(tmp_path / "in" / "6.jsonl", records(texts[:1]))
    write(tmp_path / "in" / "0.jsonl", records(texts[:2]))
    outcome = job()
    assert outcome.code == 2
    assert "different input (2 files are new, gone or changed" in outcome.err
    assert outcome.err.count("error: ") == 1
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    assert "contains files that are not of a job" in job("--fresh", out="other").err
    assert (tmp_path / "other" / "thesis.txt").read_text() == "mine"
    assert job("--fresh").code == 0
    assert pq.read_table(tmp_path / "out").num_rows == 53


@pytest.mark.usefixtures("six")
def test_a_file_that_cannot_be_read_fails_alone(job, texts, tmp_path):
    (tmp_path / "in" / "3.jsonl").unlink()
    write(tmp_path / "in" / "3.csv", [{"title": "no such column"}])
    outcome = job()
    assert outcome.code == 2
    assert "3.csv:1: no column" in outcome.err
    assert "all other parts are tagged" in outcome.err
    assert len(list((tmp_path / "out").glob("part-*"))) == 5
    assert json.loads((tmp_path / "out" / folder.MANIFEST).read_text())["finished"] is None


@pytest.mark.usefixtures("six")
def test_a_part_that_always_ends_its_process_is_given_up(job, tmp_path, monkeypatch):
    monkeypatch.setattr(worker, "TRIES", 2)
    left = tmp_path / "out" / ".part-000001.tries.part"
    tagged = worker.PartTagger._part

    def lost(self, number, part):
        if number == 1:
            left.write_bytes(b"..")  # of two processes that were killed
        return tagged(self, number, part)

    monkeypatch.setattr(worker.PartTagger, "_part", lost)
    outcome = job()
    assert outcome.code == 2
    assert "part 1 has ended 2 processes" in outcome.err
    assert outcome.err.count("error: ") == 1
    assert not left.exists()


@pytest.mark.usefixtures("six")
def test_a_full_disk_ends_the_job_with_one_line(job, tmp_path, monkeypatch):
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("zipfel.cli.parquet.os.fsync", full)
        patch.setattr(run, "write_plan", lambda *_: None)
        outcome = job()
    assert outcome.code == 2
    assert outcome.err.count("error: ") == 1
    assert "part-000000.parquet: cannot be written: No space left on device" in outcome.err
    assert not (tmp_path / "out").exists()


def test_mistakes_are_one_line_and_write_nothing(zipfel_command, model, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    source = tmp_path / "a.jsonl"
    for words, problem in [
        (["--input", tmp_path / "no" / "*.csv", "--out", tmp_path / "o", "--engine", "local"], "no such file"),
        (["--input", "nowhere://bucket/*.csv", "--out", tmp_path / "o", "--engine", "local"], "cannot be read"),
        (["--input", source, "--engine", "local"], "--engine needs --input and --out"),
        (["--input", source, "--out", source, "--engine", "local"], "expected a folder, found a file"),
        (["--input", source, "--out", tmp_path / "o", "--workers", 2], "need --engine ray"),
        (["--input", source, "--out", tmp_path / "o", "--engine", "spark"], "engine"),
        (
            ["--input", source, "--out", tmp_path / "o", "--engine", "ray", "--address", "127.0.0.1:1"],
            "no Ray at 127.0.0.1:1: Connection refused",
        ),
        (["--input", source, "--out", tmp_path / "o", "--engine", "ray", "--address", "nowhere"], "must be HOST:PORT"),
    ]:
        outcome = zipfel_command("predict", model, *words)
        assert outcome.code == 2
        assert problem in outcome.err
        assert len([line for line in outcome.err.splitlines() if not line.startswith("note: ")]) == 1
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_that_listens_and_never_answers_ends_in_time_with_one_line(
    zipfel_command, model, tmp_path, monkeypatch, scheme
):
    monkeypatch.setattr(engines, "CONNECTING", 0.5)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    out, began = tmp_path / "o", []

    class Watched(subprocess.Popen):
        def __init__(self, *words: object, **options: object) -> None:
            super().__init__(*words, **options)
            began.append(self)

    monkeypatch.setattr(subprocess, "Popen", Watched)  # a class, of which others may derive theirs
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"{scheme}127.0.0.1:{server.getsockname()[1]}"
        words = ["--input", tmp_path / "a.jsonl", "--out", out, "--engine", "ray", "--address", address]
        outcome = zipfel_command("predict", model, *words)
    assert outcome.code == 2
    lines = [line for line in outcome.err.splitlines() if not line.startswith("note: ")]
    assert len(lines) == 1
    assert lines[0].startswith(f"error: no Ray at {address}: the port is open, but connecting took more than 0.5 ")
    assert [process.poll() for process in began if engines._TRY in process.args] == [-signal.SIGKILL]
    assert not out.exists()


def test_ray_that_ends_its_process_while_connecting_is_one_line(monkeypatch):
    for code, line in (
        ("print('too old')\nexit(1)", "too old"),
        ("import os\nos.abort()", "connecting ended with code -6"),
    ):
        monkeypatch.setattr(engines, "_TRY", code)
        with pytest.raises(ConfigError, match=f"^no Ray at head:6379: {line}$"):
            engines._try("head:6379")


def test_ray_that_is_not_installed_is_one_line(zipfel_command, model, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    monkeypatch.delitem(__import__("sys").modules, "ray.data", raising=False)
    (tmp_path / "a.jsonl").write_text('{"text": "a"}\n')
    outcome = zipfel_command(
        "predict", model, "--input", tmp_path / "a.jsonl", "--out", tmp_path / "o", "--engine", "ray"
    )
    assert outcome.code == 2
    assert "pip install 'zipfel[ray]'" in outcome.err
    assert not (tmp_path / "o").exists()


def test_a_uri_is_read_as_a_path(job, texts, tmp_path):
    write(tmp_path / "in" / "a.parquet", records(texts[:5]))
    write(tmp_path / "in" / "b.jsonl", records(texts[:5]))
    assert job(source=f"file://{tmp_path}/in/*.parquet").code == 0
    assert pq.read_table(tmp_path / "out").num_rows == 5
    assert job(source=f"file://{tmp_path}/in/*.jsonl", out="lines").code == 0
    assert pq.read_table(tmp_path / "lines").num_rows == 5


@pytest.mark.parametrize("ending", ["parquet", "jsonl", "csv"])
def test_files_of_a_store_are_tagged_as_those_of_a_folder(job, texts, tmp_path, monkeypatch, ending):
    monkeypatch.setattr(files, "LEAST", 2000)  # bytes, so that files of lines and of Parquet have several slices
    for name in ("a", "b", "deep/c"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / "in" / f"{name}.{ending}", records(texts[:40]))
    objects = {f"in/{path.relative_to(tmp_path / 'in')}": path.read_bytes() for path in tmp_path.rglob(f"*.{ending}")}
    assert job("--k", 3, out="local").code == 0
    with StandIn(objects) as store:
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        for source, out, rows in (("s3://bucket/in", "folder", 80), ("s3://bucket/in/**", "all", 120),
                                  (f"s3://bucket/in/b.{ending}", "one", 40)):  # fmt: skip
            outcome = job("--k", 3, source=source, out=out)
            assert outcome.code == 0, outcome.err
            assert pq.read_table(tmp_path / out).num_rows == rows
        assert "complete already, 40 texts" in job("--k", 3, source=f"s3://bucket/in/b.{ending}", out="one").out
    assert content(tmp_path / "folder") == content(tmp_path / "local")
    assert store.ranges


@pytest.mark.parametrize(("key", "code"), [("other", "ACCESS_DENIED"), ("reader", "NETWORK_CONNECTION")])
def test_a_store_that_refuses_or_is_not_there_is_one_line(job, tmp_path, monkeypatch, key, code):
    with StandIn({}) as store:
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        for name, value in {**store.environment, "AWS_ACCESS_KEY_ID": key}.items():
            monkeypatch.setenv(name, value)
        if key == "reader":
            monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        outcome = job(source="s3://bucket/in/*.csv")
    assert outcome.code == 2
    assert outcome.err.startswith("error: s3://bucket/in/*.csv: cannot be read: ")
    assert code in outcome.err
    assert outcome.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_slice_of_a_whole_local_file_is_not_copied(tmp_path):
    (tmp_path / "a.csv").write_text("text\none\n")
    assert local_copy(Slice(str(tmp_path / "a.csv")), tmp_path / "nowhere") == tmp_path / "a.csv"
