"""Models whose labels lie in several files: the same rankings, the same checks, nothing half-written."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from zipfel import persistence
from zipfel.data.formats import shards
from zipfel.errors import ConfigError, DataError
from zipfel.persistence import Saved, load, reshard, save, verify
from zipfel.tagger import Tagger

FIXTURES = Path(__file__).parent / "fixtures" / f"format-{persistence.FORMAT}"
LABELS = 3 * shards.ROWS + 77
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    """A saved model with enough labels to be mapped from several files."""
    folder = tmp_path_factory.mktemp("large") / "model"
    generator = torch.Generator().manual_seed(0)
    serve = {
        "rows": torch.randn(LABELS, 5, generator=generator),
        "half": torch.randn(LABELS, 3, generator=generator).half(),
        "counts": torch.arange(LABELS),
        "flags": torch.arange(LABELS) % 3 == 0,
        "tokens": torch.randn(11, 5, generator=generator),
        "scale": torch.tensor(2.0),
    }
    save(
        Saved({"sizes": {"labels": LABELS, "features": 11}}, {"labels": {"names": ["é"]}}, serve, {"t": serve["rows"]}),
        folder,
    )
    return folder


@pytest.fixture(scope="module")
def sharded(large, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("sharded") / "model"
    reshard(large, folder, 3)
    return folder


def same(one: Saved, other: Saved) -> bool:
    states = ((one.serve, other.serve), (one.train, other.train))
    equal = all(a.keys() == b.keys() and all(torch.equal(a[n], b[n]) for n in a) for a, b in states)
    return equal and one.documents == other.documents


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_tensors_are_the_same_in_any_number_of_files(large, sharded, tmp_path):
    assert same(load(large), load(sharded))
    assert same(load(large), load(sharded, copy=True))
    reshard(sharded, tmp_path / "two", 2)
    assert same(load(large), load(tmp_path / "two"))
    assert verify(sharded) == 6  # three shards, two whole files, labels.json


def test_merging_gives_the_model_back_byte_for_byte(large, sharded, tmp_path):
    reshard(sharded, tmp_path / "merged", 1)
    assert files(tmp_path / "merged") == files(large)


def test_only_rows_of_labels_are_divided_and_every_tool_reads_the_files(sharded):
    names = shards.names_of(3)
    bounds = json.loads((sharded / "model.json").read_text())["shards"]["labels"]
    assert bounds == [0, shards.ROWS, 2 * shards.ROWS, LABELS]
    whole = load(sharded).serve
    for name, first, last in zip(names, bounds, bounds[1:], strict=False):
        with safe_open(sharded / "serve" / name, framework="pt") as file:
            assert {key for key in file.keys() if "filler" not in key} == {"rows", "half", "counts", "flags"}  # noqa: SIM118
            assert torch.equal(file.get_tensor("rows"), whole["rows"][first:last])


@pytest.mark.skipif(sys.platform != "linux", reason="other systems read shards into memory")
def test_files_are_mapped_together_and_not_copied(sharded):
    before = set(mapped(sharded))
    state = load(sharded).serve
    assert len(mapped(sharded)) - len(before) >= 3 * 4  # of four tensors in three files
    state["rows"][0] = 7  # private: the file does not change
    verify(sharded)
    del state
    assert set(mapped(sharded)) == before


def mapped(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if f"{folder}/serve/weights-" in line]


@pytest.mark.parametrize("name", ["glas", "lightdxml", "decaf-beam", "blend", "mnn-hnsw"])
def test_rankings_are_identical_before_and_after(name, tmp_path):
    reshard(FIXTURES / name, tmp_path / "three", 3)
    reshard(tmp_path / "three", tmp_path / "one", 1)
    texts = ["a jam in the printer", "slow wifi", "nothing known"]
    rankings = [Tagger.load(p, "cpu").rank(texts, 4) for p in (FIXTURES / name, tmp_path / "three", tmp_path / "one")]
    for other in rankings[1:]:
        np.testing.assert_array_equal(rankings[0].ids, other.ids)
        np.testing.assert_array_equal(rankings[0].scores, other.scores)


def test_a_sharded_model_is_saved_again_as_one(tmp_path):
    reshard(FIXTURES / "glas", tmp_path / "two", 2)
    tagger = Tagger.load(tmp_path / "two", "cpu")
    tagger.save(tmp_path / "two", replace=True)
    assert persistence.read_about(tmp_path / "two")["format"] == persistence.FORMAT
    assert not list((tmp_path / "two").rglob("weights-*"))
    verify(tmp_path / "two")


# --- Damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(sharded, tmp_path) -> Path:
    return Path(shutil.copytree(sharded, tmp_path / "own"))


@pytest.mark.parametrize("check", [load, verify])
def test_a_missing_shard_is_named(own, check):
    (own / "serve" / shards.names_of(3)[1]).unlink()
    with pytest.raises(DataError, match=r"weights-00002-of-00003\.safetensors: is missing$"):
        check(own)


@pytest.mark.parametrize("check", [load, verify])
def test_a_shard_of_another_model_is_named(own, check, tmp_path):
    saved = load(own)
    save(Saved({"sizes": {"labels": LABELS}}, {}, {**saved.serve, "rows": saved.serve["rows"] * 2}, {}), tmp_path / "b")
    reshard(tmp_path / "b", tmp_path / "others", 3)
    name = shards.names_of(3)[2]
    shutil.copyfile(tmp_path / "others" / "serve" / name, own / "serve" / name)
    with pytest.raises(DataError, match=r"weights-00003-of-00003\.safetensors: is a shard of another model$"):
        check(own)


def test_shards_in_the_wrong_order_and_flipped_bytes_are_found(own):
    first, second, _ = (own / "serve" / name for name in shards.names_of(3))
    content = first.read_bytes()
    shutil.copyfile(second, first)
    with pytest.raises(DataError, match=r"00001-of-00003\.safetensors: was changed since the model was saved"):
        load(own)
    first.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    with pytest.raises(DataError, match=r"00001-of-00003\.safetensors: was changed"):
        load(own)
    first.write_bytes(content[:-9])
    with pytest.raises(DataError, match=r"has \d+ bytes; it was written with"):
        load(own)


def test_a_shard_of_other_labels_with_right_sums_is_refused(own):
    paths = [own / "serve" / name for name in shards.names_of(3)]
    about = persistence.read_about(own)["shards"]
    with pytest.raises(DataError, match=f"holds labels {shards.ROWS} to {2 * shards.ROWS - 1}, expected 0 to"):
        shards.read([paths[1], paths[0], paths[2]], about["of"], about["labels"])


def test_a_full_disk_leaves_nothing_behind(large, tmp_path, monkeypatch):
    real, calls = shards._write_rows, iter(range(99))

    def full(*given):
        if next(calls) > 4:
            raise OSError(28, "No space left on device")
        real(*given)

    monkeypatch.setattr(shards, "_write_rows", full)
    with pytest.raises(DataError, match="cannot be written: No space left on device") as caught:
        reshard(large, tmp_path / "new" / "model", 3)
    assert ".part" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "rewrite", [lambda model, out: reshard(model, out, 3), lambda model, _: persistence.upgrade(model)]
)
def test_a_model_that_is_replaced_while_it_is_copied_is_named(tmp_path, monkeypatch, rewrite):
    shutil.copytree(FIXTURES / "glas", tmp_path / "model")
    real = persistence.copy_cards

    def replaced(*given):
        monkeypatch.setattr(persistence, "copy_cards", real)
        save(load(FIXTURES / "mnn-hnsw"), tmp_path / "model", replace=True)
        real(*given)

    monkeypatch.setattr(persistence, "copy_cards", replaced)
    with pytest.raises(DataError, match="model: changed while it was copied; run the command again"):
        rewrite(tmp_path / "model", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert load(tmp_path / "model").about["model"] == "mnn"  # the new one stays


@pytest.mark.parametrize("count", [0, 5, 10**6])
def test_a_number_of_shards_that_makes_no_sense(count, tmp_path):
    with pytest.raises(ConfigError, match=f"shards must be from 1 to 4 for 4 labels; found {count}"):
        reshard(FIXTURES / "glas", tmp_path / "out", count)
    assert list(tmp_path.iterdir()) == []


def test_the_commands(zipfel_command, tmp_path):
    done = zipfel_command("shard", FIXTURES / "glas", tmp_path / "two", "--shards", "2")
    assert done.code == 0
    assert "2 shards hold" in done.out
    again = zipfel_command("shard", FIXTURES / "glas", tmp_path / "two", "--shards", "2")
    assert again.code == 2
    assert "exists already" in again.err
    assert zipfel_command("merge", tmp_path / "two", tmp_path / "one").code == 0
    merged, model = files(tmp_path / "one"), files(FIXTURES / "glas")
    assert merged.pop("model.json") != model.pop("model.json")  # that of the fixture has no CRC-32
    assert merged == model


def test_a_tensor_with_filler_inside_its_name_is_kept(tmp_path):
    state = {"a": torch.arange(6), "text.filler.rows": torch.arange(6.0)}
    save(Saved({"sizes": {"labels": 6}}, {}, state, {}), tmp_path / "one")
    reshard(tmp_path / "one", tmp_path / "two", 2)
    assert same(load(tmp_path / "one"), load(tmp_path / "two"))
