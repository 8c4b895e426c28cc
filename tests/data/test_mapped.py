"""Data in mapped files: the same model as from memory, own memory that does not grow, and damaged files."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import zipfel
from zipfel.data import disk
from zipfel.data.dataset import Dataset, Part, fingerprints
from zipfel.data.disk import distinct, in_file, is_mapped, permuted, taken
from zipfel.data.formats import mapped
from zipfel.data.splits import split_rows
from zipfel.data.synthetic import Synthetic, make, streamed, without_points
from zipfel.errors import DataError
from zipfel.labelspace import graph
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = Synthetic(points=900, labels=30, noise=0.2, seed=4)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    zipfel.write(make(SETTINGS), tmp_path / "mapped", "mapped")
    return tmp_path / "mapped"


def same(one: csr_array | None, other: csr_array | None) -> bool:
    assert one is not None
    assert other is not None
    return one.shape == other.shape and (one != other).nnz == 0


def test_a_data_set_is_mapped_and_equal(folder):
    whole, read = make(SETTINGS), zipfel.read(folder)
    for name, part in whole.parts.items():
        assert is_mapped(read.parts[name].X)
        assert is_mapped(read.parts[name].Y)
        assert same(read.parts[name].X, part.X)
        assert same(read.parts[name].Y, part.Y)
    assert same(read.Z, whole.Z)
    assert (read.label_names, read.feature_names, read.name) == (whole.label_names, whole.feature_names, whole.name)


def test_synthetic_points_in_pieces_are_those_of_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("zipfel.data.synthetic.CHUNK", 100)
    whole, writer = make(SETTINGS), mapped.Writer(tmp_path)
    for part, Y, X in streamed(SETTINGS):
        assert Y.shape[0] <= 100
        writer.append(part, Y, X)
    writer.close()
    writer.finish(without_points(SETTINGS))
    read = zipfel.read(tmp_path)
    assert same(read.train.X, whole.train.X)
    assert same(read.train.Y, whole.train.Y)
    assert same(read.test.X, whole.test.X)
    assert same(read.Z, whole.Z)


@pytest.mark.parametrize(("model", "settings"), [("glas", {}), ("decaf", {}), ("decaf", {"shortlist": "beam"}),
                                                 ("lightdxml", {})])  # fmt: skip
def test_a_model_of_mapped_data_equals_one_of_the_same_data_in_memory(folder, monkeypatch, model, settings):
    for module, name in ((disk, "_ROWS"), (graph, "ROWS"), (disk, "LARGE")):  # so that held-out points are copied into
        monkeypatch.setattr(module, name, 50)  # files, and pairs of labels are counted piece by piece, and kept there
    settings = {"dimension": 16, "epochs": 2, **settings}
    taggers = [
        Tagger(model, settings=settings, device="cpu").fit_dataset(data)
        for data in (make(SETTINGS), zipfel.read(folder))
    ]
    if model == "glas":
        assert [disk.is_mapped(tagger._fitted().model.A) for tagger in taggers] == [False, True]
    memory, files = (tagger.saved() for tagger in taggers)
    for own, other in ((memory.serve, files.serve), (memory.train, files.train)):
        assert own.keys() == other.keys()
        assert all(own[name].numpy().tobytes() == other[name].numpy().tobytes() for name in own)
    assert files.documents["labels"] == memory.documents["labels"]


MEASURED = """
import sys, threading, zipfel
from pathlib import Path
from zipfel.data import disk
from zipfel.labelspace import graph
from zipfel.tagger import Tagger
from zipfel.training.progress import Observer
from zipfel.training.run import Run

disk.LARGE, graph.ROWS = 1 << 18, 1 << 14  # of more points: so that few tell

class Few(Observer):
    steps = 0
    def did(self, event):
        self.steps += event == "step"
    def is_enough(self):
        return self.steps >= 8

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
dataset = zipfel.read(sys.argv[1])
settings = {"dimension": 8, "batch_size": 256}
Tagger(sys.argv[2], settings=settings, device="cpu").fit_dataset(dataset, Run(observer=Few()))
stop.set()
thread.join()
print(most[0] - before)
"""
SLACK = 12  # MB: the allocator's, and what a sample of a few milliseconds misses or hits


def random_points(folder: Path, points: int) -> int:
    """Write a mapped folder of random points; return the megabytes of its matrices."""
    numbers, writer = np.random.default_rng(0), mapped.Writer(folder)

    def rows(count: int, each: int, columns: int) -> csr_array:
        ids = np.sort(numbers.integers(0, columns // each, (count, each)) + np.arange(each) * (columns // each), axis=1)
        ends = np.arange(0, count * each + 1, each)
        return csr_array((np.ones(count * each, np.float32), ids.ravel().astype(np.int32), ends.astype(np.int32)),
                         shape=(count, columns))  # fmt: skip

    folder.mkdir()
    for part, count in (("train", points), ("validation", 500)):
        for start in range(0, count, 50_000):
            size = min(50_000, count - start)
            writer.append(part, rows(size, 3, 60), rows(size, 16, 1600))
    writer.close()
    empty = Part(csr_array((0, 60)), csr_array((0, 1600)))
    writer.finish(Dataset(empty, name="random"))
    return sum(path.stat().st_size for path in folder.iterdir()) >> 20


@pytest.fixture(scope="module")
def few_and_many(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folders = [tmp_path_factory.mktemp("points") / str(points) for points in (60_000, 600_000)]
    few, many = (random_points(folder, int(folder.name)) for folder in folders)
    assert many - few > 6 * SLACK
    return folders


@pytest.mark.parametrize("model", ["glas", "decaf"])
def test_own_memory_does_not_grow_with_the_points(few_and_many, model):
    words = [[sys.executable, "-c", MEASURED, str(folder), model] for folder in few_and_many]
    used = [int(subprocess.run(each, check=True, capture_output=True, text=True).stdout) for each in words]
    assert used[1] - used[0] <= SLACK, used


@pytest.mark.parametrize(("model", "copies"), [("linear", True), ("mnn", True), ("glas", False)])
def test_a_model_that_copies_mapped_data_says_so_in_one_note(zipfel_command, folder, tmp_path, model, copies):
    zipfel.write(make(SETTINGS), tmp_path / "plain", "npz")
    note = f"note: {model} copies mapped data into memory; `zipfel models` lists the models that do not\n"
    for source, count in ((folder, int(copies)), (tmp_path / "plain", 0)):
        short = [] if model == "linear" else ["--set", "epochs=1"]  # which has no epochs
        words = ["--model", model, "--preset", "fast", "--holdout", "0", *short]
        outcome = zipfel_command("train", source, "--out", tmp_path / source.name / "out", *words)
        assert outcome.code == 0, outcome.err
        assert outcome.err.count(note) == count


def test_a_model_that_reads_texts_asks_for_texts_in_one_line(zipfel_command, tmp_path):
    texts, plain, files = tmp_path / "texts", tmp_path / "plain", tmp_path / "files"
    zipfel.write(make(Synthetic(points=200, labels=5, texts=True, seed=4)), texts, "lf")
    zipfel.write(make(SETTINGS), plain, "npz")
    assert zipfel_command("data", "convert", texts, files, "--to", "mapped", "--min-count", 1).code == 0
    for source in (files, plain):
        assert zipfel_command("train", source, "--model", "linear", "--out", tmp_path / f"of-{source.name}").code == 0
    model, out = tmp_path / "of-files", tmp_path / "out"
    had = "has features, but the model reads texts; give"
    for words, line in [
        (["evaluate", model, files], f"{files}: {had} the texts that these were made of"),
        (["report", model, files, "--out", out], f"{files}: {had} the texts that these were made of"),
        (["evaluate", model, plain], f"{plain}: {had} a data set with texts"),
        (["evaluate", tmp_path / "of-plain", texts], f"{texts}: has texts, but the model reads the features of a "
         "matrix; give a data set with features"),
        *((["predict", model, "--input", files, *more], f"{files}: a mapped data set, which has features; give files "
           "of the texts that these were made of") for more in ([], ["--out", out, "--engine", "local"])),
    ]:  # fmt: skip
        outcome = zipfel_command(*words)
        assert outcome.code == 2
        assert outcome.err == f"error: {line}\n"
    assert not out.exists()
    assert zipfel_command("evaluate", model, texts).code == 0


# --- Damaged files ----------------------------------------------------------------------------------------------------


def listed_anew(folder: Path, name: str, content: bytes) -> None:
    """Write a file and list it, as somebody would who writes such folders without zipfel."""
    (folder / name).write_bytes(content)
    about = json.loads((folder / mapped.ABOUT).read_text())
    about["files"][name] = {"bytes": len(content), "crc32": mapped.chunk_sums({name: folder / name})[name]}
    (folder / mapped.ABOUT).write_text(json.dumps(about))


def forged(folder: Path, name: str, array: np.ndarray, save: Callable[..., None] = np.save) -> None:
    content = io.BytesIO()
    save(content, array)
    listed_anew(folder, name, content.getvalue())


def cut(folder: Path) -> None:
    path = folder / "X.trn.data.npy"
    path.write_bytes(path.read_bytes()[:-8])


def flip(folder: Path) -> None:
    path = folder / "X.trn.data.npy"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def descend(folder: Path) -> None:
    ends = np.load(folder / "Y.trn.indptr.npy")
    ends[5] = ends[4] - 1
    forged(folder, "Y.trn.indptr.npy", ends)


def leave(folder: Path) -> None:
    ids = np.load(folder / "Y.trn.indices.npy")
    ids[7] = 30
    forged(folder, "Y.trn.indices.npy", ids)


def endless(folder: Path) -> None:
    values = np.load(folder / "X.trn.data.npy")
    values[-1] = np.inf
    forged(folder, "X.trn.data.npy", values)


def changed(key: str, value: dict[str, object]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        about = json.loads((folder / mapped.ABOUT).read_text())
        about[key] = {**(about[key] or {}), **value}
        (folder / mapped.ABOUT).write_text(json.dumps(about))

    return change


DAMAGE = {
    lambda folder: forged(folder, "X.trn.data.npy", np.zeros(3), np.savez): r"X\.trn\.data\.npy: not an array of NumPy",
    lambda folder: listed_anew(folder, "label_texts.json", b"[1]"): r"label_texts\.json: expected an object of lists",
    lambda folder: listed_anew(folder, "label_texts.json", b'{"text": [1]}'): r"label_texts\.json: expected an object",
    changed("shapes", {"X.trn": [720, 1 << 80]}): r"mapped\.json: not the list of files of a mapped data set",
    changed("columns", {"text": [1]}): r"mapped\.json: not the list of files of a mapped data set",
    cut: r"X\.trn\.data\.npy: has \d+ bytes, expected \d+; convert the data again",
    flip: r"X\.trn\.data\.npy: was changed after it was written; convert the data again",
    descend: r"Y\.trn\.indptr\.npy: the matrix is broken: the ends of its rows are not in ascending order",
    leave: r"Y\.trn\.indptr\.npy: the matrix is broken: column 30 is outside 0\.\.29",
    endless: r"row 719 of X has a value that is not a finite float32 number",
    lambda folder: (folder / "Z.data.npy").unlink(): r"Z\.data\.npy is missing",
    lambda folder: (folder / mapped.ABOUT).write_text("{"): r"mapped\.json: broken JSON",
    lambda folder: (folder / mapped.ABOUT).write_text('{"format": 9}'): "format 9, but this version reads 1; update",
    lambda folder: (folder / mapped.ABOUT).write_text('{"format": 1}'): "not the list of files of a mapped data set",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_named(zipfel_command, folder, damage):
    damage(folder)
    with pytest.raises(DataError, match=DAMAGE[damage]):
        zipfel.read(folder)
    outcome = zipfel_command("data", "info", folder)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1, outcome.err


@pytest.mark.parametrize(("labels", "features", "problem"), [
    ((3, 4), (3, 6), r"X\.trn: expected rows with 5 columns, found 6"),
    ((3, 9), (3, 5), r"Y\.trn: expected rows with 4 columns, found 9"),
    ((3, 4), (2, 5), "train: labels of 3 points, but features of 2"),
])  # fmt: skip
def test_pieces_that_do_not_fit_are_refused_when_they_are_written(tmp_path, labels, features, problem):
    writer = mapped.Writer(tmp_path)
    writer.append("train", csr_array((2, 4)), csr_array((2, 5)))
    with pytest.raises(DataError, match=problem):
        writer.append("train", csr_array(labels), csr_array(features))
    writer.release()


# --- Arrays in files --------------------------------------------------------------------------------------------------


def test_an_order_in_a_file_is_that_of_numpy(monkeypatch):
    expected = np.random.default_rng(3).permutation(5000)
    monkeypatch.setattr(disk, "LARGE", 1)
    assert np.array_equal(permuted(5000, np.random.default_rng(3)), expected)


def test_distinct_numbers_in_a_file_are_those_of_numpy(monkeypatch):
    monkeypatch.setattr(disk, "LARGE", 1)
    monkeypatch.setattr(disk, "pieces", lambda count: (slice(n, min(n + 7, count)) for n in range(0, count, 7)))
    numbers = np.random.default_rng(3).integers(0, 50, 300).astype(np.uint64)
    assert np.array_equal(distinct([numbers[:100], numbers[100:]]), np.unique(numbers))
    assert len(distinct([])) == 0


def test_rows_of_a_mapped_matrix_are_copied_into_files(folder, monkeypatch):
    monkeypatch.setattr(disk, "_ROWS", 20)
    X, rows = zipfel.read(folder).train.X, np.random.default_rng(0).permutation(720)[:333]
    copy = taken(X, rows)
    assert is_mapped(copy)
    assert same(copy, X[rows])


@pytest.mark.parametrize("share", [0.001, 0.05, 0.31, 0.5, 0.99])
def test_points_are_held_out_as_near_to_the_share_as_equal_points_allow(share):
    part = make(Synthetic(points=60, labels=5, tokens_per_point=1, features=4, test_share=0)).train
    stay, held = split_rows(part, share, 0)
    prints, sizes = np.unique(fingerprints(part), return_counts=True)
    assert sorted([*stay, *held]) == list(range(60))
    assert not set(fingerprints(part)[stay]) & set(fingerprints(part)[held])
    assert 0 < len(held) < 60
    assert abs(len(held) - share * 60) <= sizes.max()
    assert len(prints) > 2


def test_a_full_disk_is_an_error_before_anything_is_written(monkeypatch):
    def full(file: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(DataError, match=r"GB for a temporary file: No space left on device; set TMPDIR"):
        in_file(10, np.int64)
    assert len(disk.roomy(10**7, np.int32)) == 10**7  # what fits into memory does without
