"""Push and pull against a stand-in for the Hub: whole models or nothing, and one line for what goes wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from zipfel import hub as library
from zipfel.data.formats.readme import is_edited, sealed
from zipfel.errors import DataError
from zipfel.persistence import verify

FIXTURE = Path(__file__).parent / "fixtures" / "format-2" / "glas"
REPO = "tester/tickets"


def files_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def model(tmp_path):
    shutil.copytree(FIXTURE, tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def pushed(hub, model):
    library.push(model, REPO)
    return hub.repositories[REPO]


def test_a_model_comes_back_as_it_went(hub, model, tmp_path, zipfel_command):
    (model / "README.md").write_text(sealed("# glas\nzipfel pull OWNER/NAME model\n"))
    outcome = zipfel_command("push", model, REPO, "--private", "--message", "first")
    assert outcome.code == 0, outcome.err
    assert outcome.out.strip() == f"{hub.address}/{REPO}/commit/{hub.repositories[REPO].head}"
    assert hub.repositories[REPO].private
    assert hub.repositories[REPO].messages == ["first"]  # one commit
    outcome = zipfel_command("pull", REPO, tmp_path / "pulled")
    assert outcome.code == 0, outcome.err
    assert "5 files match their checksums" in outcome.out
    sent, came = files_of(model), files_of(tmp_path / "pulled")
    card = came.pop("README.md").decode()
    assert "zipfel pull tester/tickets model" in card
    assert not is_edited(card)
    assert came == {name: content for name, content in sent.items() if name != "README.md"}


def test_a_model_without_a_card_gets_one(pushed, model):
    assert b"library_name" in pushed.files["README.md"]
    assert not (model / "README.md").exists()


def test_a_newer_model_replaces_the_files_of_the_older(pushed, model):
    shutil.rmtree(model)
    shutil.copytree(FIXTURE.parent / "linear", model)
    pushed.files["notes.txt"] = b"ours"
    pushed.files["serve/weights-00002-of-00002.safetensors"] = b"older"
    library.push(model, REPO)
    assert set(pushed.files) == {*files_of(model), "README.md", ".gitattributes", "notes.txt"}
    assert len(pushed.messages) == 2


def test_a_damaged_model_is_not_pushed(hub, model):
    content = bytearray((model / "serve/labels.json").read_bytes())
    content[5] ^= 1
    (model / "serve/labels.json").write_bytes(content)
    with pytest.raises(DataError, match="was changed since the model was saved"):
        library.push(model, REPO)
    assert hub.asked == []


def test_pull_takes_only_files_of_a_model(pushed, hub, tmp_path):
    pushed.files["evil.py"] = pushed.files["serve/deep/evil.json"] = b"1"
    library.pull(REPO, tmp_path / "pulled")
    assert set(files_of(tmp_path / "pulled")) == {*files_of(FIXTURE), "README.md"}


def test_an_older_commit_can_be_pulled(pushed, model, tmp_path):
    first = pushed.head
    shutil.rmtree(model)
    shutil.copytree(FIXTURE.parent / "linear", model)
    library.push(model, REPO)
    library.pull(REPO, tmp_path / "pulled", first)
    assert json.loads((tmp_path / "pulled/model.json").read_text())["model"] == "glas"
    library.pull(REPO, tmp_path / "pulled", replace=True)
    assert json.loads((tmp_path / "pulled/model.json").read_text())["model"] == "linear"


@pytest.mark.parametrize("before", [False, True], ids=["nothing there", "a model there"])
@pytest.mark.parametrize("harm", ["cut", "damaged"])
def test_half_a_download_leaves_nothing_behind(pushed, hub, tmp_path, zipfel_command, harm, before):
    if before:
        library.pull(REPO, tmp_path / "pulled")
    there = files_of(tmp_path / "pulled") if before else {}
    setattr(hub, harm, "serve/weights.safetensors")
    outcome = zipfel_command("pull", REPO, tmp_path / "pulled", *(["--replace"] if before else []))
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert {"cut": "Entry not found", "damaged": "pulled/serve/weights.safetensors: was changed"}[harm] in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", *(["pulled"] if before else [])]
    assert files_of(tmp_path / "pulled") == there
    if before:
        assert verify(tmp_path / "pulled") == 5


def test_ctrl_c_leaves_nothing_behind(pushed, tmp_path, monkeypatch):
    def interrupted(*_: object, local_dir: Path, **__: object) -> None:
        (local_dir / "serve").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr("huggingface_hub.snapshot_download", interrupted)
    with pytest.raises(KeyboardInterrupt):
        library.pull(REPO, tmp_path / "pulled")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("token", "words", "message"),
    [
        (None, ["push", FIXTURE, "tester/new"], "push needs a token that may write: set HF_TOKEN"),
        ("hf_reader", ["push", FIXTURE, "tester/new"], "tester/new: the token may not write there"),
        ("hf_wrong", ["push", FIXTURE, "tester/new"], "tester/new: the Hub does not accept the token"),
        ("hf_writer", ["push", FIXTURE, "not a name"], "'not a name' is not a repository name such as owner/name"),
        ("hf_writer", ["push", "missing", "tester/new"], "not a saved model"),
        (None, ["pull", "tester/none", "new"], "tester/none: no such repository, or private: set HF_TOKEN"),
        ("hf_writer", ["pull", "tester/none", "new"], "tester/none: no such repository, or the token may not read it"),
        (None, ["pull", "tester/private", "new"], "tester/private: no such repository, or private: set HF_TOKEN"),
        ("hf_reader", ["pull", "tester/private", "new"], "no such repository, or the token may not read it"),
        ("hf_wrong", ["pull", REPO, "new"], "the Hub does not accept the token"),
        ("hf_writer", ["pull", REPO, "new", "--revision", "v9"], "tester/tickets has no revision 'v9'"),
        ("hf_writer", ["pull", "tester/empty", "new"], "tester/empty has no saved model: model.json is missing"),
        ("hf_writer", ["pull", REPO, "full"], "full: exists already"),
    ],
)
def test_what_goes_wrong_is_one_line(hub, pushed, tmp_path, monkeypatch, zipfel_command, token, words, message):
    from tests.hub import Repository

    hub.repositories["tester/private"] = Repository(True, {"1" * 40: pushed.files})
    hub.repositories["tester/empty"] = Repository(False, {"2" * 40: {"README.md": b"# nothing"}})
    monkeypatch.delenv("HF_TOKEN")
    if token:
        monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    before = sorted(path.name for path in tmp_path.iterdir())
    outcome = zipfel_command(*words)
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert message in outcome.err
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert "tester/new" not in hub.repositories


def test_a_server_that_is_not_there_is_one_line(hub, tmp_path, monkeypatch, zipfel_command):
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    outcome = zipfel_command("pull", REPO, tmp_path / "new")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1), outcome.err
    assert "tester/tickets: no connection to the Hub" in outcome.err


def test_the_environment_names_the_server(pushed, hub, tmp_path):
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.address,
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_DISABLE_XET": "1",
    }
    words = [sys.executable, "-m", "zipfel", "pull", REPO, str(tmp_path / "pulled")]
    run = subprocess.run(words, env=environment, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert verify(tmp_path / "pulled") == 5
