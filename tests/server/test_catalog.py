"""Models by name, and new versions of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from scipy.sparse import csr_array

from zipfel.errors import ConfigError, DataError
from zipfel.index import exact
from zipfel.server import catalog
from zipfel.server.catalog import Slot, load
from zipfel.server.settings import ServeSettings, named_folders
from zipfel.tagger import Tagger

pytestmark = pytest.mark.usefixtures("one_thread")


def test_models_are_named_by_their_folder_or_explicitly():
    assert named_folders(["runs/light", "mine=runs/other", "runs/third/model"]) == {
        "light": Path("runs/light"),
        "mine": Path("runs/other"),
        "third": Path("runs/third/model"),
    }
    for words in (["a/x", "b/x"], ["=a"], ["x=a", "x=b"]):
        with pytest.raises(ConfigError, match="NAME=FOLDER"):
            named_folders(words)


def test_invalid_settings_are_refused():
    for wrong in ({"workers": 0}, {"port": 70000}, {"max_texts": 5, "max_queue": 4}, {"max_body": 0}):
        with pytest.raises(ConfigError, match=f"{next(iter(reversed(wrong)))} must"):
            ServeSettings(**wrong)


def test_a_new_version_is_noticed_and_so_is_a_return_to_the_old_one(models, tmp_path):
    link = tmp_path / "model"
    link.symlink_to(models / "glas")
    slot = Slot("m", link)
    assert slot.newer() is None
    first = slot.current
    link.unlink()
    link.symlink_to(models / "newer")
    newer = slot.newer()
    assert newer is not None
    assert newer.version != first.version
    slot.current = newer
    link.unlink()
    link.symlink_to(models / "glas")
    back = slot.newer()
    assert back is not None
    assert back.version == first.version
    assert back.tagger.predict(["paper"]) == first.tagger.predict(["paper"]) != newer.tagger.predict(["paper"])


def test_a_loaded_model_is_warmed_up_before_the_first_request(models, monkeypatch):
    monkeypatch.setattr(exact, "MANY", 0)
    index = load("m", models / "glas").tagger.predictor_.first.index
    assert index.coarse is not None or index.asked < 0  # below 0: it was tried, and is unsound for these vectors


def test_a_folder_that_changes_while_it_is_read_is_read_again(models, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(models / "glas", folder)
    real, reads = Tagger.load, []

    def meanwhile(path, device):
        tagger = real(path, device)
        if not reads:
            shutil.rmtree(folder)
            shutil.copytree(models / "newer", folder)
        reads.append(path)
        return tagger

    monkeypatch.setattr(catalog.Tagger, "load", meanwhile)
    loaded = load("m", folder)
    assert len(reads) == 2
    assert loaded.tagger.predict(["paper"]) == real(models / "newer").predict(["paper"])


def test_models_that_cannot_be_served_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"not a saved model"):
        load("m", tmp_path)
    X = csr_array([[1.0, 0], [0, 1.0]] * 5)
    tagger = Tagger("glas", settings={"min_steps": 1, "dimension": 4, "epochs": 1}, validation=0).fit(
        X, [["a"], ["b"]] * 5
    )
    tagger.save(tmp_path / "matrix")
    with pytest.raises(DataError, match="only models fitted on texts can be served"):
        load("m", tmp_path / "matrix")


def test_a_failed_swap_keeps_the_current_version(serving, models, tmp_path, capfd):
    client = serving("glas")
    slot = client.service.catalog.slot("glas")
    before = slot.current
    slot.folder = tmp_path / "missing"
    client.runner.run(client.service.swap())
    assert slot.current is before
    assert '"event":"swap failed"' in capfd.readouterr().err
    slot.folder = models / "newer"
    client.runner.run(client.service.swap())
    assert client.tag(["paper"]).json()["model"]["version"] == slot.current.version != before.version
