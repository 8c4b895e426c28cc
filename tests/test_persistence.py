from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file

from zipfel import persistence
from zipfel.data.labels import LabelSpace
from zipfel.errors import DataError, ZipfelError
from zipfel.fitting import Fitted
from zipfel.models.base import settings_of
from zipfel.persistence import FORMAT, SHARDED, Saved
from zipfel.tagger import Tagger
from zipfel.training.run import write_state

TEXTS = ["red apple", "green pear", "fast car", "slow car", "red car", "green apple"] * 2
TAGS = [["fruit", "red"], ["fruit"], ["car"], ["car"], ["car", "red"], ["fruit"]] * 2


@pytest.fixture(scope="module")
def tagger() -> Tagger:
    settings = {"dimension": 8, "epochs": 3, "min_steps": 1}
    return Tagger("glas", settings=settings, text={"min_count": 1}, device="cpu").fit(TEXTS, TAGS)


@pytest.fixture
def folder(tagger: Tagger, tmp_path: Path) -> Path:
    tagger.save(tmp_path / "model")
    return tmp_path / "model"


def files(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def edit(path: Path, **changes: Any) -> None:
    path.write_bytes(orjson.dumps({**orjson.loads(path.read_bytes()), **changes}))


def test_load_returns_what_was_saved(tmp_path):
    about = {"model": "glas", "sizes": {"labels": 2}, "seed": np.int64(3), "best": float("-inf")}
    documents = {"labels": ["ä", "b\n"], "vocabulary": {"idf": [0.1]}}
    saved = Saved(about, documents, {"a": torch.arange(4.0)}, {"b": torch.zeros(0, 3)})
    persistence.save(saved, tmp_path / "deep" / "model")
    loaded = persistence.load(tmp_path / "deep" / "model")
    assert loaded.documents == documents
    assert loaded.serve["a"].tolist() == [0, 1, 2, 3]
    assert loaded.train["b"].shape == (0, 3)
    assert (loaded.about["seed"], loaded.about["best"], loaded.about["format"]) == (3, None, FORMAT)
    assert {"zipfel", "versions", "files"} <= loaded.about.keys()
    assert persistence.verify(tmp_path / "deep" / "model") == 4


def test_the_files_of_a_saved_model(folder):
    assert set(files(folder)) == {
        "README.md",
        "model.json",
        "serve/labels.json",
        "serve/vocabulary.json",
        "serve/weights.safetensors",
        "train/weights.safetensors",
    }
    assert {path.name for path in folder.parent.iterdir()} == {"model"}
    about = orjson.loads((folder / "model.json").read_bytes())
    assert about["format"] == FORMAT == 2
    assert about["model"] == "glas"
    assert about["settings"]["dimension"] == 8
    assert about["sizes"] == {"features": 7, "labels": 3}
    assert about["training"]["epochs"] == 3
    assert set(about["files"]) == set(files(folder)) - {"model.json", "README.md"}
    assert persistence.verify(folder) == 4


def test_no_pickle_anywhere(folder):
    for name, content in files(folder).items():
        assert name.endswith((".json", ".safetensors")) or name == "README.md"
        assert not content.startswith((b"\x80", b"PK"))  # pickle, and the zip that torch.save writes
        assert b"\x93NUMPY" not in content
        if name.endswith(".json"):
            orjson.loads(content)
        elif name != "README.md":
            assert load_file(folder / name)
    source = "\n".join(path.read_text() for path in Path(persistence.__file__).parent.rglob("*.py"))
    for word in ("import pickle", "import joblib", "torch.save(", "torch.load(", "allow_pickle=True"):
        assert word not in source


@pytest.mark.parametrize("name", ["serve/weights.safetensors", "train/weights.safetensors", "serve/labels.json"])
@pytest.mark.parametrize("damage", ["cut", "longer", "missing"])
def test_a_truncated_longer_or_missing_file_is_refused(folder, name, damage):
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(content[:-3] if damage == "cut" else content + b" ")
    message = "is missing" if damage == "missing" else f"{name}: has .* bytes; it was written with {len(content)}"
    for read in (Tagger.load, persistence.verify):
        with pytest.raises(DataError, match=message):
            read(folder)


def test_an_edited_document_is_refused(folder):
    path = folder / "serve" / "labels.json"
    path.write_bytes(path.read_bytes().replace(b"fruit", b"fruid"))
    for read in (Tagger.load, persistence.verify):
        with pytest.raises(DataError, match=r"labels\.json: was changed since the model was saved"):
            read(folder)


def test_verify_detects_an_edited_tensor(folder):
    path = folder / "serve" / "weights.safetensors"
    tensors = load_file(path)
    before = path.read_bytes()
    content = bytearray(before)
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"weights\.safetensors: was changed"):
        persistence.verify(folder)
    path.write_bytes(before)
    assert persistence.verify(folder) == 4
    save_file({**tensors, "classifier.labels.rows": tensors["classifier.labels.rows"][:1].clone()}, path)
    with pytest.raises(DataError, match="bytes; it was written with"):
        Tagger.load(folder)


def test_an_edited_model_json_is_refused(folder):
    about = orjson.loads((folder / "model.json").read_bytes())
    for changes in ({"settings": {**about["settings"], "dimension": 9}}, {"model": "decaf"}, {"sizes": {}}):
        edit(folder / "model.json", **{**about, **changes})
        for read in (Tagger.load, persistence.verify):
            with pytest.raises(DataError, match=r"model\.json: was changed"):
                read(folder)
    edit(folder / "model.json", **about)  # the layout may change
    assert persistence.verify(folder) == 4


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format": 1}', b"\xff"])
def test_a_broken_model_json_is_refused(folder, content):
    (folder / "model.json").write_bytes(content)
    with pytest.raises(DataError, match=r"model\.json: not a saved model"):
        Tagger.load(folder)


@pytest.mark.parametrize(
    ("format", "advice"),
    [(SHARDED + 1, "update zipfel"), (FORMAT - 1, "train the model again, or load it with the version that saved it")],
)
def test_another_format_is_refused_with_advice(folder, format, advice):
    edit(folder / "model.json", format=format, new_field=1)
    for read in (Tagger.load, persistence.verify):
        with pytest.raises(
            DataError, match=f"format {format}, but this version reads {FORMAT} and {SHARDED}; {advice}$"
        ):
            read(folder)


def test_other_folders_and_added_files_are_refused(tmp_path, folder):
    (tmp_path / "photos").mkdir()
    (tmp_path / "file").write_text("")
    for other in (tmp_path / "photos", tmp_path / "file", tmp_path / "nothing"):
        for read in (Tagger.load, persistence.verify):
            with pytest.raises(DataError, match=r"not a saved model: model\.json is missing") as caught:
                read(other)
            assert str(caught.value).endswith("that `zipfel train --out` wrote") is (other.name != "photos")
    (folder / "serve" / "more.json").write_text("{}")
    with pytest.raises(DataError, match=r"more\.json: does not belong to the saved model"):
        Tagger.load(folder)


def test_a_model_is_loaded_from_the_current_folder(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert Tagger.load(".").classes_ == Tagger.load(folder).classes_
    assert Tagger.load("serve/..").classes_ == Tagger.load(folder).classes_
    assert persistence.located(Path("/")) == Path("/")


def test_a_folder_without_a_model_is_not_searched(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "rglob", failing)  # it may be `/`, with files that come and go
    for read in (Tagger.load, persistence.upgrade):
        with pytest.raises(DataError, match="not a saved model"):
            read(tmp_path)


def test_an_existing_target_is_not_changed(tagger, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for target, options in (("full", {}), ("full", {"replace": True}), ("file", {})):
        with pytest.raises(DataError, match="exists already"):
            tagger.save(tmp_path / target, **options)
    assert files(tmp_path) == {"full/a.txt": b"mine", "file": b"mine"}
    (tmp_path / "empty").mkdir()
    tagger.save(tmp_path / "empty")
    assert persistence.verify(tmp_path / "empty") == 4
    with pytest.raises(DataError, match=r"exists already; choose another path, or .* replace=True"):
        tagger.save(tmp_path / "empty")


def test_an_older_model_is_replaced_on_request(tagger, folder, monkeypatch):
    before = files(folder)
    monkeypatch.setattr(persistence, "checksum", failing)
    with pytest.raises(DataError, match="No space left"):
        tagger.save(folder, replace=True)
    assert files(folder) == before
    monkeypatch.undo()
    Tagger.load(folder).rename_labels({"car": "a", "fruit": "b", "red": "c"}).save(folder, replace=True)
    assert Tagger.load(folder).classes_ == ["a", "b", "c"]
    assert persistence.verify(folder) == 4
    assert {path.name for path in folder.parent.iterdir()} == {"model"}


def failing(*given: Any, **options: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("part", ["write_state", "write_bytes", "checksum", "_seal"])
def test_a_save_that_fails_leaves_nothing_behind(tagger, tmp_path, monkeypatch, part):
    calls = iter(range(100))
    real = getattr(persistence, part)

    def second_time(*given: Any, **options: Any) -> Any:
        return real(*given, **options) if next(calls) < 1 and part != "_seal" else failing()

    monkeypatch.setattr(persistence, part, second_time)
    with pytest.raises(DataError, match="cannot be written: No space left on device") as caught:
        tagger.save(tmp_path / "new" / "model")
    assert str(tmp_path / "new" / "model") in str(caught.value)
    assert ".part" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_reported_and_nothing_is_left_behind(tmp_path):
    """A limit on the size of files stands for a full disk: the weights alone are larger."""
    code = (
        "import resource, signal, sys, torch\n"
        "from pathlib import Path\n"
        "from zipfel import persistence\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "saved = persistence.Saved({}, {}, {'a': torch.zeros(100_000)}, {})\n"
        "try:\n"
        "    persistence.save(saved, Path(sys.argv[1]))\n"
        "except persistence.DataError as error:\n"
        "    print('error', error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "model"], capture_output=True, text=True)
    assert done.stdout.startswith(f"error {tmp_path / 'model'}"), done.stderr
    assert "cannot be written" in done.stdout
    assert ".part" not in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_names_that_json_cannot_hold_are_refused(tmp_path):
    half = Saved({}, {"labels": ["\ud800"]}, {}, {})
    with pytest.raises(DataError, match="cannot be saved as JSON"):
        persistence.save(half, tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_the_model_in_the_folder_of_a_run_is_located(folder, tmp_path):
    (tmp_path / "out").mkdir()
    shutil.move(folder, tmp_path / "out" / "model")
    assert persistence.located(tmp_path / "out") == persistence.located(tmp_path / "out" / "model")
    assert Tagger.load(tmp_path / "out").classes_ == ["car", "fruit", "red"]


def test_errors_are_zipfel_errors(folder):
    (folder / "model.json").unlink()
    with pytest.raises(ZipfelError):
        Tagger.load(folder)


LARGE = 100_000  # labels, × 500 numbers of 4 bytes = 200 MB


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory, tagger: Tagger) -> Path:
    """Return the folder of a model of 200 MB with the same vocabulary."""
    labels = LabelSpace([f"l{label}" for label in range(LARGE)], [0] * LARGE)
    settings = settings_of("glas", changes={"dimension": 500})
    blueprint = dataclasses.replace(tagger.fitted_.blueprint, settings=settings, labels=labels)
    model = blueprint.built(len(tagger.features_.terms), seed=0)
    big = Tagger("glas", settings={"dimension": 500}, text={"min_count": 1}, device="cpu")
    big.fitted_ = Fitted(blueprint, model, model.predictor(), tagger.outcome_)
    path = tmp_path_factory.mktemp("large") / "model"
    big.save(path)
    return path


def test_loading_maps_the_weights_without_copying_them(large):
    code = (
        "import sys, time\n"
        "from zipfel.tagger import Tagger\n"
        "import zipfel.models.glas\n"
        "def private(): return int(open('/proc/self/status').read().split('RssAnon:')[1].split()[0]) / 1e3\n"
        "before, start = private(), time.process_time()\n"
        "tagger = Tagger.load(sys.argv[1], device='cpu')\n"
        "print(time.process_time() - start, private() - before)\n"
        "start = time.process_time()\n"
        "tags = tagger.predict(['a red car'], k=2)[0]\n"
        "print(time.process_time() - start, len(tags))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, large], capture_output=True, text=True, check=True)
    loading, first = (list(map(float, line.split())) for line in done.stdout.splitlines())
    assert (large / "serve" / "weights.safetensors").stat().st_size > 200e6
    assert loading[0] < 0.5
    assert loading[1] < 60  # megabytes, most of them names of labels
    assert first[0] < 1
    assert first[1] == 2


def test_saving_needs_no_second_copy_of_the_weights(tmp_path):
    code = (
        "import resource, sys, torch\n"
        "from pathlib import Path\n"
        "from zipfel import persistence\n"
        "weights = torch.ones(50_000_000)\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3\n"
        "before = peak()\n"
        "persistence.save(persistence.Saved({}, {}, {'a': weights}, {}), Path(sys.argv[1]))\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / "m"], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 100  # megabytes, of 200


def test_a_loaded_model_is_saved_as_it_was(folder, tmp_path):
    Tagger.load(folder).save(tmp_path / "again")
    one, two = files(folder), files(tmp_path / "again")
    assert {name for name in one if one[name] != two[name]} <= {"model.json"}


def test_files_get_the_permissions_of_the_umask(tmp_path):
    before = os.umask(0o022)
    try:
        write_state(tmp_path / "a.safetensors", {"x": torch.zeros(1)}, {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644
