"""Models by name, and new versions of them."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest
from scipy.sparse import csr_array

from zipfel.errors import ConfigError, DataError
from zipfel.index import exact
from zipfel.server import catalog, schema, service
from zipfel.server.answers import Problem
from zipfel.server.catalog import Catalog, Slot, load
from zipfel.server.settings import ServeSettings, Sources, named_folders
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

    def meanwhile(path, device, copy):
        tagger = real(path, device, copy)
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


@pytest.mark.parametrize(
    ("model", "damage"),
    [
        ("glas", lambda content: bytes(b ^ (i % 50 == 0) for i, b in enumerate(content))),  # 2 % of the bytes
        ("mnn", lambda content: content[:-1] + bytes([content[-1] ^ 64])),  # one bit
        ("mnn", lambda content: content[:-1]),
    ],
)
def test_a_swap_to_damaged_weights_is_refused_and_the_old_ones_answer(serving, models, tmp_path, capfd, model, damage):
    client = serving("glas")
    slot = client.service.catalog.slot("glas")
    before, answer = slot.current, client.tag(["paper"]).json()
    slot.folder = shutil.copytree(models / ("newer" if model == "glas" else model), tmp_path / "damaged")
    weights = slot.folder / "serve" / "weights.safetensors"
    weights.write_bytes(damage(weights.read_bytes()))
    client.runner.run(client.service.swap())
    assert slot.current is before
    assert client.tag(["paper"]).json() == answer
    logged = capfd.readouterr().err
    assert '"event":"swap failed"' in logged
    assert "weights.safetensors" in logged


def test_files_that_are_overwritten_under_the_service_are_logged_once(serving, models, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(service, "WATCH", 0.01)
    client = serving("glas")
    slot = client.service.catalog.slot("glas")
    slot.folder = shutil.copytree(models / "newer", tmp_path / "newer")
    client.runner.run(client.service.swap())
    client.runner.run(asyncio.sleep(0.1))
    assert "files overwritten" not in capfd.readouterr().err
    weights = slot.folder / "serve" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes())
    os.utime(weights, ns=(0, weights.stat().st_mtime_ns + 1))
    client.runner.run(asyncio.sleep(0.3))
    logged = capfd.readouterr().err
    assert logged.count('"event":"files overwritten"') == 1
    assert str(weights) in logged
    assert "--copy" in logged


def test_overwritten_files_are_refused_and_sound_ones_of_the_same_version_are_loaded(serving, models, tmp_path, capfd):
    client = serving("glas")
    slot = client.service.catalog.slot("glas")
    slot.folder = shutil.copytree(models / "newer", tmp_path / "newer")
    client.runner.run(client.service.swap())
    expected, weights = client.tag(["paper"]).json(), slot.folder / "serve" / "weights.safetensors"
    sound, header = weights.read_bytes(), 8 + int.from_bytes(weights.read_bytes()[:8], "little")
    with weights.open("r+b") as file:  # all numbers become 0
        file.seek(header)
        file.write(bytes(len(sound) - header))
    assert client.tag(["paper"]).json() != expected
    client.runner.run(client.service.swap())
    assert "weights.safetensors: was changed since the model was saved" in capfd.readouterr().err
    weights.unlink()
    weights.write_bytes(sound)
    client.runner.run(client.service.swap())
    assert client.tag(["paper"]).json() == expected


def test_copied_models_do_not_depend_on_their_files(models, tmp_path):
    folder = shutil.copytree(models / "mnn", tmp_path / "model")
    slot = Slot("m", folder, copy=True)
    before = slot.current.tagger.predict(["paper"])
    for path in folder.rglob("*.safetensors"):
        os.truncate(path, 0)  # a mapping would end the process now
    assert slot.current.tagger.predict(["paper"]) == before
    assert slot.current.mapped == {}


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


@pytest.fixture
def from_file(serving, models, tmp_path):
    """Return a client whose models come from a file, and a function that rewrites the file and reloads."""
    file = tmp_path / "models.toml"
    client = serving("glas")
    client.service.catalog.sources = Sources({}, file)

    def reload(content: str) -> list[tuple[str, bool]]:
        file.write_text(content.replace("MODELS", str(models)))
        client.runner.run(client.service.swap())
        return [(model["id"], model["default"]) for model in client.ask("GET", "/models").json()["models"]]

    return client, reload


def test_models_are_added_and_removed_by_a_file(from_file, capfd):
    client, reload = from_file
    kept = client.service.catalog.slot("glas").current
    assert reload('[models]\nmnn = "MODELS/mnn"\nglas = "MODELS/glas"') == [("mnn", True), ("glas", False)]
    assert client.service.catalog.slot("glas").current is kept  # the same folder: not loaded again
    assert client.tag(["paper"]).json()["model"]["id"] == "mnn"
    assert client.tag(["paper"], model="glas").status_code == 200
    assert reload('[models]\nmnn = "MODELS/mnn"') == [("mnn", True)]
    assert client.tag(["paper"], model="glas").status_code == 404
    for _ in range(500):  # the removed model's queue ends in a moment
        if len(client.service.tasks) > 2:
            client.runner.run(asyncio.sleep(0.01))
    assert (len(client.service.tasks), len(client.service.batchers)) == (2, 1)  # a task watches the files
    capfd.readouterr()
    assert reload('[models]\nmnn = "MODELS/none"\nglas = "MODELS/glas"') == [("mnn", True), ("glas", False)]
    assert '"event":"swap failed","level":"error","model":"mnn"' in capfd.readouterr().err
    no_name, more = "[models]\n'' = 'x'", '[models]\nmnn = "x"\n[more]\na = 1'
    for wrong in ("[models", "", "[models]", "[models]\nmnn = 1", no_name, more):
        assert reload(wrong) == [("mnn", True), ("glas", False)]
        assert '"event":"reload failed"' in capfd.readouterr().err
    assert client.tag(["paper"]).status_code == 200


def test_a_request_finds_the_model_that_replaced_its_own_since_it_was_parsed(from_file):
    client, reload = from_file
    old, asked = client.service.catalog.slot("glas"), schema.TagRequest(texts=["paper"])
    reload('[models]\nmnn = "MODELS/mnn"\nglas = "MODELS/newer"')
    answer = client.runner.run(client.service.tag(old, asked))
    assert answer["model"] == {"id": "glas", "version": client.service.catalog.slot("glas").current.version}
    assert answer["model"]["version"] != old.current.version
    reload('[models]\nmnn = "MODELS/mnn"')
    with pytest.raises(Problem, match="unknown model 'glas'"):
        client.runner.run(client.service.tag(old, asked))


def test_a_request_chooses_a_version_where_two_are_loaded(from_file, models):
    client, reload = from_file
    old, new = (json.loads((models / name / "model.json").read_text())["sha256"][:12] for name in ("glas", "newer"))
    assert reload('[models]\nm = ["MODELS/glas", "MODELS/newer"]') == [("m", True), ("m", False)]
    expected = {version: Tagger.load(models / name).predict(["paper"], k=1)[0][0].score
                for version, name in ((old, "glas"), (new, "newer"))}  # fmt: skip
    assert len(set(expected.values())) == 2
    for version in (old, new):
        answer = client.tag(["paper"], k=1, version=version).json()
        assert answer["model"] == {"id": "m", "version": version}
        assert answer["tags"][0][0]["score"] == expected[version]
        label = client.ask("GET", f"/labels/printer?version={version}").json()
        assert label["model"]["version"] == version
    assert client.tag(["paper"]).json()["model"]["version"] == old
    missing = client.tag(["paper"], version="abc")
    assert (missing.status_code, missing.json()["error"]) == (
        404, f"version 'abc' of the model is not loaded; loaded are {old}, {new}"
    )  # fmt: skip
    slots = client.service.catalog.versions["m"]
    reload('[models]\nm = ["MODELS/newer", "MODELS/glas"]')
    assert client.service.catalog.versions["m"] == slots[::-1]  # only their order changes
    assert client.tag(["paper"]).json()["model"]["version"] == new


def test_folders_of_a_file_are_relative_to_it_and_one_source_is_needed(tmp_path, zipfel_command):
    (tmp_path / "models.toml").write_text('[models]\na = "runs/a"\nb = ["x", "/y", "x"]')
    assert Sources({}, tmp_path / "models.toml").read() == {
        "a": [tmp_path / "runs/a"],
        "b": [tmp_path / "x", Path("/y")],
    }
    for words in ((), ("a", "--models-file", tmp_path / "models.toml")):
        outcome = zipfel_command("serve", *words)
        assert (outcome.code, "expected either folders of models or --models-file" in outcome.err) == (2, True)


def test_swaps_that_are_asked_for_together_load_a_model_once(serving, models, monkeypatch, capfd):
    client = serving("glas")
    client.service.catalog.slot("glas").folder = models / "newer"
    reads, real = [], Tagger.load
    monkeypatch.setattr(catalog.Tagger, "load", lambda path, **more: reads.append(path) or real(path, **more))

    async def twice() -> None:
        await asyncio.gather(client.service.swap(), client.service.swap())

    client.runner.run(twice())
    assert len(reads) == 1


def test_models_are_loaded_onto_the_chosen_device(models, monkeypatch):
    devices, real = [], Tagger.load
    monkeypatch.setattr(catalog.Tagger, "load", lambda path, device, copy: devices.append(device) or real(path, "cpu"))
    Catalog(Sources({"m": [models / "glas"]}), "cuda:1")
    assert devices == ["cuda:1"]
    with pytest.raises(ConfigError, match="unknown device 'gpu'"):
        real(models / "glas", "gpu")
