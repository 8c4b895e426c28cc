"""Saved models of each kind and format are loaded and asked, or refused with one line that says what to do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.fixtures.make import DATA, KINDS, RELEASE, SHARDED_KINDS, asked
from zipfel import persistence
from zipfel.errors import DataError
from zipfel.models.base import BUILT_IN
from zipfel.persistence import FORMAT, SHARDED, verify
from zipfel.tagger import Tagger

FIXTURES = Path(__file__).parent / "fixtures"
pytestmark = pytest.mark.usefixtures("one_thread")


READABLE = [path for path in sorted(FIXTURES.glob("*/*")) if path.is_dir() and path.parent.name != "format-1"]
CURRENT = FIXTURES / RELEASE


def answers_of(folder: Path) -> list[list[list]]:
    """Return the answers that were saved beside a model; shards of a model have its answers."""
    return json.loads(folder.with_name(folder.name.removesuffix("-shards") + ".json").read_text())


def test_there_is_a_saved_model_of_each_kind_and_each_format_that_this_version_writes():
    assert {path.name for path in CURRENT.iterdir() if path.is_dir()} == {*KINDS, *DATA, *SHARDED_KINDS}
    formats = {name: {} for name in BUILT_IN}
    for path in READABLE:
        if path.parent == CURRENT:
            about = json.loads((path / "model.json").read_text())
            assert about["zipfel"].startswith(RELEASE)
            formats[about["model"]][about["format"]] = path
    assert {name: {*known} for name, known in formats.items()} == {name: {FORMAT, SHARDED} for name in BUILT_IN}


def outline(value: object) -> object:
    """Return the names and types of a document; of lists and mappings by label, only that they are such."""
    if isinstance(value, dict) and not any(key in value for key in ("printer", "text:2", "hardware")):
        return {key: outline(item) for key, item in value.items()}
    return "list" if hasattr(value, "__len__") and not isinstance(value, str) else "scalar"


@pytest.mark.parametrize("name", [*KINDS, *DATA])
def test_this_version_still_writes_what_the_saved_models_have(name):
    """If this fails, what is saved has changed: see "Change the format of saved models" in CONTRIBUTING.md."""
    on_disk = persistence.load(CURRENT / name)
    written = Tagger.load(CURRENT / name, device="cpu").saved()
    assert outline(written.about) == {
        key: outline(value) for key, value in on_disk.about.items() if key in written.about
    }
    assert set(on_disk.about) - set(written.about) == {"format", "zipfel", "versions", "files", "sha256"}
    assert outline(written.documents) == outline(on_disk.documents)
    for part in ("serve", "train"):
        ours, theirs = getattr(written, part), getattr(on_disk, part)
        assert {n: (t.dtype, t.ndim) for n, t in ours.items()} == {n: (t.dtype, t.ndim) for n, t in theirs.items()}


def test_the_saved_models_have_all_documents_and_choices():
    documents = {path.name for path in CURRENT.glob("*/serve/*.json")}
    assert documents == {"labels.json", "vocabulary.json", "calibration.json"}
    vocabularies = [json.loads(path.read_text()) for path in CURRENT.glob("*/serve/vocabulary.json")]
    assert any("vectors" in vocabulary for vocabulary in vocabularies)
    assert any(json.loads(path.read_text())["curve"] for path in CURRENT.glob("*/serve/calibration.json"))
    assert json.loads((CURRENT / "hierarchy/serve/labels.json").read_text())["hierarchy"]
    assert all("crc32" in entry for path in CURRENT.glob("*/model.json")
               for entry in json.loads(path.read_text())["files"].values())  # fmt: skip


@pytest.mark.parametrize("folder", READABLE, ids=lambda path: path.relative_to(FIXTURES).as_posix())
def test_a_saved_model_answers_as_when_it_was_saved(folder):
    assert verify(folder) >= 4
    answers = Tagger.load(folder, device="cpu").predict(asked(folder.name), k=3)
    expected = answers_of(folder)
    assert [[tag.label for tag in tags] for tags in answers] == [[label for label, _ in tags] for tags in expected]
    scores = [tag.score for tags in answers for tag in tags]
    assert scores == pytest.approx([score for tags in expected for _, score in tags], abs=1e-4)  # other processors
    assert all(tag.label != "slow" for tags in answers for tag in tags)


@pytest.mark.parametrize("name", KINDS)
def test_a_saved_model_of_an_older_version_learns_on(name):
    tagger = Tagger.load(FIXTURES / f"format-{FORMAT}" / name, device="cpu")
    tagger.set_params(warm_start=True)
    tagger.fit(["toner is empty", "the fax is broken"] * 60, [["printer"], ["fax"]] * 60)
    assert "fax" in tagger.labels_.live
    assert len(tagger.predict(["the fax"], k=4)[0]) == 4


def test_a_model_of_an_older_format_is_refused_with_what_to_do():
    with pytest.raises(
        DataError, match=f"format 1, but this version reads {FORMAT} and {SHARDED}; train the model again"
    ):
        Tagger.load(FIXTURES / "format-1" / "glas")


def test_a_model_of_a_later_format_is_refused_with_what_to_do(tmp_path):
    about = json.loads((FIXTURES / f"format-{FORMAT}" / "glas" / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**about, "format": SHARDED + 1}))
    with pytest.raises(
        DataError, match=f"format {SHARDED + 1}, but this version reads {FORMAT} and {SHARDED}; update zipfel"
    ):
        Tagger.load(tmp_path)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_upgrade_writes_an_older_model_as_this_version_does(tmp_path, zipfel_command):
    old = FIXTURES / f"format-{FORMAT}" / "blend"
    shutil.copytree(old, tmp_path / "blend")
    outcome = zipfel_command("upgrade", tmp_path / "blend")
    assert outcome.out == f"{tmp_path / 'blend'}: faster checksums added, card written\n"
    before, after = contents(old), contents(tmp_path / "blend")
    assert before.keys() | {"README.md"} == after.keys()
    assert {name for name in before if before[name] != after[name]} == {"model.json"}
    was, now = (json.loads(content["model.json"]) for content in (before, after))
    assert {k: v for k, v in was.items() if k not in ("files", "sha256")} == {
        k: v for k, v in now.items() if k not in ("files", "sha256")
    }
    assert all(
        now["files"][name] == {**entry, "crc32": now["files"][name]["crc32"]} for name, entry in was["files"].items()
    )
    assert verify(tmp_path / "blend") == len(was["files"])
    tags = Tagger.load(tmp_path / "blend", device="cpu").predict(asked("blend"), k=3)
    assert [[tag.label for tag in row] for row in tags] == [[label for label, _ in row] for row in answers_of(old)]
    assert "already in the format of this version" in zipfel_command("upgrade", tmp_path / "blend").out
    assert contents(tmp_path / "blend") == after
    assert [path.name for path in tmp_path.iterdir()] == ["blend"]


def test_upgrade_keeps_a_card_that_somebody_wrote(tmp_path, zipfel_command):
    shutil.copytree(FIXTURES / f"format-{FORMAT}" / "glas", tmp_path / "glas")
    (tmp_path / "glas" / "README.md").write_text("# mine")
    assert zipfel_command("upgrade", tmp_path / "glas").code == 0
    assert (tmp_path / "glas" / "README.md").read_text() == "# mine"


def test_upgrade_leaves_a_damaged_or_unreadable_model_alone(tmp_path, zipfel_command):
    shutil.copytree(FIXTURES / f"format-{FORMAT}" / "glas", tmp_path / "glas")
    damaged = bytearray((tmp_path / "glas/serve/weights.safetensors").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "glas/serve/weights.safetensors").write_bytes(damaged)
    shutil.copytree(FIXTURES / "format-1" / "glas", tmp_path / "first")
    for name, message in (("glas", "was changed since the model was saved"), ("first", "train the model again")):
        before = contents(tmp_path / name)
        outcome = zipfel_command("upgrade", tmp_path / name)
        assert (outcome.code, outcome.err.count("\n")) == (2, 1)
        assert message in outcome.err
        assert contents(tmp_path / name) == before


def test_the_command_line_says_it_in_one_line(zipfel_command):
    outcome = zipfel_command("predict", FIXTURES / "format-1" / "glas", "a text")
    assert outcome.code != 0
    assert outcome.err.count("\n") == 1
    assert "format 1, but this version reads" in outcome.err
