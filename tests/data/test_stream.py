"""Tables to a mapped folder, piece by piece: the folder that the same tables give in memory, and bad input."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import zipfel
from zipfel.data import processes, stream
from zipfel.data.formats import TableSettings
from zipfel.data.formats.atomic import new_folder
from zipfel.data.splits import Preparation, prepared
from zipfel.data.stream import convert, tables_of
from zipfel.data.text import TextSettings, featurized
from zipfel.errors import ConfigError, DataError

RUN = "runpy.run_module('zipfel', run_name='__main__')"
WORDS = [
    "rot",
    "grün",
    "Äpfel",
    "schnelle",
    "cars",
    "東京都",
    "blue-green",
    "x²",
    "trees",
    "of",
    "the",
    "forest",
    "don't",
    "stop",
    "5",
    "%",
    "C++",
    "naïve",
]


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "ROWS", 7)


def rows(count: int, seed: int = 0) -> list[dict[str, object]]:
    numbers = np.random.default_rng(seed)

    def text(longest: int) -> str:
        return " ".join(numbers.choice(WORDS, numbers.integers(0, longest)))

    return [
        {"title": text(4), "text": text(20), "labels": [f"l{label}" for label in numbers.zipf(1.5, 3) % 20]}
        for _ in range(count)
    ]


def jsonl(path: Path, items: list[dict[str, object]]) -> Path:
    content = b"".join(json.dumps(item).encode() + b"\n" for item in items)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def check_same(
    source: Path,
    settings: TableSettings | None = None,
    preparation: Preparation | None = None,
    text: TextSettings | None = None,
    count: int = 1,
) -> None:
    """Check that a conversion in pieces writes what one in memory does, and says the same."""
    settings, preparation, text = settings or TableSettings(), preparation or Preparation(), text or TextSettings()
    tables, target = tables_of(source, settings), source.with_name("pieces")
    assert tables is not None
    streamed, points = convert(tables, target, preparation, text, count)
    whole = featurized(prepared(zipfel.read(source, settings), preparation), text)
    zipfel.write(whole, source.with_name("whole"), "mapped")
    pieces, expected = files_of(target), files_of(source.with_name("whole"))
    assert pieces.keys() == expected.keys()
    for name, content in expected.items():
        assert pieces[name] == content, name
    assert streamed.notes == whole.notes
    assert (str(streamed.columns), streamed.name) == (str(whole.columns), whole.name)
    assert points == {name: len(part) for name, part in whole.parts.items()}


@pytest.mark.parametrize("text", [
    TextSettings(),
    TextSettings(ngrams=2, characters=4, max_features=50, sublinear=False),
    TextSettings(min_count=1, symbols=True, field_weights={"title": 0.5}),
])  # fmt: skip
@pytest.mark.parametrize("preparation", [Preparation(), Preparation(holdout=0), Preparation(min_label_count=8, seed=5)])
def test_pieces_give_the_folder_that_memory_gives(tmp_path, text, preparation):
    check_same(jsonl(tmp_path / "table.jsonl", rows(100)), preparation=preparation, text=text)


def test_other_processes_give_the_same_folder(tmp_path):
    check_same(jsonl(tmp_path / "table.jsonl.gz", rows(100)), count=2)


def test_a_folder_with_parts_and_label_texts(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    for seed, name in enumerate(["train", "test", "validation"]):
        jsonl(folder / f"{name}.jsonl", rows(60, seed))
    jsonl(folder / "labels.jsonl", [{"label": f"l{n}", "text": " ".join(WORDS[n:])} for n in range(12)])
    (folder / "dataset.json").write_text('{"name": "Names", "propensity": {"A": 0.6, "B": 2.6}}')
    check_same(folder)
    assert zipfel.read(folder.with_name("pieces")).Z is not None


def test_csv_with_a_separator_and_other_columns(tmp_path):
    lines = [f"{n};{' '.join(map(str, r['labels']))};{r['text']}" for n, r in enumerate(rows(50))]
    (tmp_path / "table.csv").write_text(
        "uid;Labels;Text\n" + "\n".join(lines) + "\n", encoding="cp1252", errors="replace"
    )
    check_same(tmp_path / "table.csv", TableSettings(sep=" ", encoding="cp1252"))


def test_several_parquet_files_of_a_part_are_read_one_after_the_other(tmp_path):
    folder, items = tmp_path / "folder", rows(80)
    folder.mkdir()
    for number in range(4):
        table = pyarrow.Table.from_pylist(items[20 * number : 20 * number + 20])
        pyarrow.parquet.write_table(table, folder / f"train-{number:05}-of-00004.parquet")
    jsonl(tmp_path / "table.jsonl", items)
    for source in ("folder", "table.jsonl"):
        tables = tables_of(tmp_path / source, TableSettings())
        assert tables is not None
        convert(tables, tmp_path / f"of-{source}", Preparation(), TextSettings())
    one, other = files_of(tmp_path / "of-folder"), files_of(tmp_path / "of-table.jsonl")
    for name in one.keys() - {"dataset.json", "mapped.json"}:  # which have the name
        assert one[name] == other[name], name


def test_each_part_may_be_one_table_or_several(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    jsonl(folder / "train.jsonl", rows(20))
    for number in range(2):
        jsonl(folder / f"test-{number}.jsonl", rows(5, seed=number + 1))
    tables = tables_of(folder, TableSettings())
    assert tables is not None
    dataset, points = convert(tables, tmp_path / "new", Preparation(), TextSettings())
    assert points == {"train": 20, "test": 10}
    assert "test: 2 tables, test-0.jsonl to test-1.jsonl" in dataset.notes
    assert not any("held out" in note for note in dataset.notes)
    left = "not read: test-0.jsonl, test-1.jsonl; only `zipfel data convert --to mapped` reads such tables"
    assert left in zipfel.read(folder).notes
    with pytest.raises(
        DataError, match=r"folder: several tables of a part, such as test-0\.jsonl, need labels without"
    ):
        tables_of(folder, TableSettings(parents="p.tsv"))


@pytest.mark.parametrize(("first", "second"), [
    ("train.jsonl", "train-0.jsonl"), ("train-0.jsonl", "train-0.jsonl.gz"), ("test.csv", "test-0.jsonl"),
])  # fmt: skip
def test_tables_that_may_be_the_same_are_refused(tmp_path, first, second):
    for name in ("train.jsonl", first, second) if first.startswith("test") else (first, second):
        jsonl(tmp_path / name, rows(3))
    with pytest.raises(DataError, match=f"holds both {first} and {second}; remove one"):
        tables_of(tmp_path, TableSettings())


def test_the_command_streams_and_says_what_it_read(zipfel_command, tmp_path, monkeypatch):
    source = jsonl(tmp_path / "table.jsonl", rows(100))
    monkeypatch.setattr("zipfel.cli.data.load", None)  # which would read all rows
    outcome = zipfel_command("data", "convert", source, tmp_path / "new", "--to", "mapped", "--tfidf")
    assert outcome.code == 0, outcome.err
    assert "note: text from title, text; labels from labels\n" in outcome.err
    assert "points held out of train (seed 0)" in outcome.err
    assert "note: --tfidf has no effect: the source has text\n" in outcome.err
    assert outcome.out.replace("\n", "").endswith("20 labels (mapped)")


@pytest.mark.parametrize("columns", [{"ancestors": True, "parents": "p.tsv"}, {"parents": "p.tsv"}])
def test_labels_with_a_hierarchy_are_read_as_a_whole(tmp_path, columns):
    assert tables_of(jsonl(tmp_path / "table.jsonl", rows(9)), TableSettings(**columns)) is None


# --- Bad input --------------------------------------------------------------------------------------------------------


def broken(tmp_path: Path, line: str) -> Path:
    path = jsonl(tmp_path / "table.jsonl", rows(40))
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:24], line, *lines[25:]]) + "\n")
    return path


@pytest.mark.parametrize(("line", "problem"), [
    ("{", r"table\.jsonl:25: broken JSON"),
    ('{"title": "a", "labels": []}', r"table\.jsonl:25: no key 'text' \(keys: title, labels\)"),
    ('{"title": "a", "text": {}, "labels": []}', r"table\.jsonl:25: expected text, found dict"),
])  # fmt: skip
@pytest.mark.parametrize("count", [1, 2])
def test_a_bad_row_is_named_and_nothing_is_left(tmp_path, line, problem, count):
    tables = tables_of(broken(tmp_path, line), TableSettings())
    assert tables is not None
    with pytest.raises(DataError, match=problem):
        convert(tables, tmp_path / "new" / "folder", Preparation(), TextSettings(), count)
    assert [path.name for path in tmp_path.iterdir()] == ["table.jsonl"]


def test_weights_of_fields_that_are_not_there_are_refused_before_the_rows_are_read(tmp_path, monkeypatch):
    tables = tables_of(jsonl(tmp_path / "table.jsonl", rows(40)), TableSettings())
    assert tables is not None
    monkeypatch.setattr(stream.Stream, "pieces", None)
    with pytest.raises(ConfigError, match="field_weights names 'body'; the text fields are title, text"):
        convert(tables, tmp_path / "new", Preparation(), TextSettings(field_weights={"body": 2}))


def test_test_and_validation_with_the_same_points_are_refused(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    jsonl(folder / "train.jsonl", rows(30))
    for name in ("test", "validation"):
        jsonl(folder / f"{name}.jsonl", rows(10, seed=3)[:: 1 if name == "test" else -1])
    tables = tables_of(folder, TableSettings())
    assert tables is not None
    with pytest.raises(DataError, match="test and validation hold the same points"):
        convert(tables, tmp_path / "new", Preparation(), TextSettings())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("change", [
    lambda items: items[:-3],
    lambda items: items + items[:1],
    lambda items: [*items[:-1], {**items[-1], "labels": ["new"]}],
])  # fmt: skip
def test_a_table_that_changes_between_the_readings_is_named(tmp_path, monkeypatch, change):
    path, plain = jsonl(tmp_path / "table.jsonl", rows(40)), stream.Stream._vocabulary
    tables = tables_of(path, TableSettings())
    assert tables is not None

    def changed(self, dataset):
        jsonl(path, change(rows(40)))
        return plain(self, dataset)

    monkeypatch.setattr(stream.Stream, "_vocabulary", changed)
    with pytest.raises(DataError, match=r"table\.jsonl: changed while it was converted; convert it again"):
        convert(tables, tmp_path / "new", Preparation(), TextSettings())
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path):
    path = jsonl(tmp_path / "table.jsonl", rows(3000))
    words = ["data", "convert", str(path), str(tmp_path / "new"), "--to", "mapped"]
    limited = f"import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); {RUN}"
    done = subprocess.run([sys.executable, "-c", limited, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == f"error: {tmp_path / 'new'}: cannot be written: File too large\n"
    assert [path.name for path in tmp_path.iterdir()] == ["table.jsonl"]


def died(shared: str, item: int) -> None:
    os._exit(9)


def test_a_process_that_dies_is_one_line(tmp_path):
    with pytest.raises(DataError, match="a process that reads texts died"), new_folder(tmp_path / "new"):
        list(processes.spread(died, "", range(5), 2))


def marked(folder: str, item: int) -> None:
    Path(folder, str(item)).touch()
    time.sleep(0.2)


def test_after_an_early_end_nobody_waits_for_items_that_have_not_begun(tmp_path):
    results = processes.spread(marked, str(tmp_path), range(9), 2)
    next(results)  # five items are taken ahead
    results.close()
    assert 1 <= len(list(tmp_path.iterdir())) <= 4


# --- Memory -----------------------------------------------------------------------------------------------------------

MEASURED = """
import sys, threading
from pathlib import Path
from zipfel.data.formats import TableSettings
from zipfel.data.splits import Preparation
from zipfel.data.stream import convert, tables_of
from zipfel.data.text import TextSettings

def own():
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) >> 10

most, stop = [own()], threading.Event()
def watch():
    while not stop.wait(0.005):
        most[0] = max(most[0], own())
thread = threading.Thread(target=watch, daemon=True)
thread.start()
before = own()
convert(tables_of(Path(sys.argv[1]), TableSettings()), Path(sys.argv[2]), Preparation(), TextSettings(), 1)
stop.set()
thread.join()
print(most[0] - before)
"""
SLACK = 12  # MB


def test_own_memory_does_not_grow_with_the_rows(tmp_path):
    used = []
    for count in (30, 200):
        lines = b"".join(json.dumps(row).encode() + b"\n" for row in rows(1000))
        path = tmp_path / f"{count}.jsonl"
        path.write_bytes(lines * count)
        words = [sys.executable, "-c", MEASURED, str(path), str(tmp_path / f"new-{count}")]
        used.append(int(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
    assert (tmp_path / "200.jsonl").stat().st_size > 2 * SLACK << 20
    assert used[1] - used[0] <= SLACK, used
