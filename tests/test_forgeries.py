"""Saved models whose content is wrong although their checksums are right: one typed error each, never a crash."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.fixtures.make import ASKED, KINDS
from zipfel import persistence, tagging
from zipfel.data.formats.checksums import checksum, chunk_sums
from zipfel.errors import DataError, ZipfelError
from zipfel.index import hnsw
from zipfel.index.hnsw import HnswIndex
from zipfel.persistence import FORMAT
from zipfel.tagger import Tagger

FIXTURES = Path(__file__).parent / "fixtures" / f"format-{FORMAT}"
FREE = ("source.prints", "index.seed")  # numbers that index nothing
ANY_ROWS = ("index.graph", "documents.graph", "index.centroids")  # whose rows cannot be counted by other tensors
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def forged(tmp_path: Path) -> Callable[[str], Path]:
    """Return a function that copies a fixture, to be changed and sealed again."""

    def copied(kind: str) -> Path:
        return Path(shutil.copytree(FIXTURES / kind, tmp_path / "model"))

    return copied


def seal(folder: Path, **changes: Any) -> None:
    """Write sizes and checksums of all files anew, and change `model.json`."""
    about = {**orjson.loads((folder / "model.json").read_bytes()), **changes}
    paths = {path.relative_to(folder).as_posix(): path for path in folder.glob("*/*")}
    sums = chunk_sums(paths)
    about["files"] = {
        name: {"bytes": path.stat().st_size, "sha256": checksum(path), "crc32": sums[name]}
        for name, path in paths.items()
    }
    del about["sha256"]
    sum = hashlib.sha256(orjson.dumps(about, option=orjson.OPT_SORT_KEYS)).hexdigest()
    (folder / "model.json").write_bytes(orjson.dumps({**about, "sha256": sum}))


def with_tensor(folder: Path, part: str, tensors: dict[str, Tensor], name: str, tensor: Tensor) -> None:
    path = folder / part / "weights.safetensors"
    path.unlink()  # an earlier model may have it mapped
    save_file({**tensors, name: tensor.contiguous()}, path, {"notes": "{}"})
    seal(folder)


def refusal(folder: Path) -> ZipfelError | None:
    """Return the error with which a model is refused; None if it is loaded."""
    try:
        Tagger.load(folder, device="cpu")
    except ZipfelError as error:
        return error
    return None


def wrong_kinds(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors that cannot be right, whatever their numbers are."""
    if name.endswith(FREE):
        return
    yield "one more dimension", tensor[None]
    yield "another type", tensor.to(torch.int16 if tensor.is_floating_point() else torch.float64)
    if tensor.ndim and len(tensor) and not name.endswith(ANY_ROWS):
        yield "a row less", tensor[:-1]
        if not name.endswith("shortlister.heads"):  # a cluster without labels is possible
            yield "a row more", torch.cat([tensor, tensor[-1:]])
    if tensor.ndim == 2 and tensor.numel():
        yield "a column less", tensor[:, :-1]
    if tensor.is_floating_point() and tensor.numel():
        yield "not a number", tensor.clone().flatten().index_fill(0, torch.tensor([0]), np.nan).view(tensor.shape)
        yield "infinite", tensor.clone().flatten().index_fill(0, torch.tensor([0]), np.inf).view(tensor.shape)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_of_a_wrong_type_or_shape_are_refused(kind, forged):
    folder = forged(kind)
    for part in ("serve", "train"):
        tensors = load_file(folder / part / "weights.safetensors")
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            for what, wrong in wrong_kinds(name, tensor):
                with_tensor(folder, part, tensors, name, wrong)
                error = refusal(folder)
                assert isinstance(error, DataError), (part, name, what)
                assert str(folder) in str(error), (name, what)
                assert "\n" not in str(error)
                if what in ("a row less", "one more dimension"):
                    with pytest.raises(DataError):
                        tagging.verify(folder)
        with_tensor(folder, part, tensors, "unused", torch.zeros(1))
    assert tagging.verify(folder) >= 4


@pytest.mark.parametrize("kind", KINDS)
def test_ids_out_of_range_are_refused_or_harmless(kind, forged):
    """Whole numbers that index memory are refused; others, such as counts, may be anything."""
    folder, refused = forged(kind), set()
    for part in ("serve", "train"):
        tensors = load_file(folder / part / "weights.safetensors")
        tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            if tensor.is_floating_point() or tensor.dtype == torch.uint8 or not tensor.numel():
                continue
            for value in (-1, 2**30, torch.iinfo(tensor.dtype).max):
                for position in {0, tensor.numel() // 2, tensor.numel() - 1}:
                    wrong = tensor.clone().flatten()
                    wrong[position] = value
                    with_tensor(folder, part, tensors, name, wrong.view(tensor.shape))
                    try:
                        Tagger.load(folder, device="cpu").predict(ASKED, k=3)
                    except DataError:
                        refused.add(name)
                    else:
                        assert not name.endswith(
                            (".indices", ".indptr", "clusters", "nodes", "starts", "assignment", "learned")
                        ), (name, value, position)
        with_tensor(folder, part, tensors, "unused", torch.zeros(1))
    assert {name.rpartition(".")[2] for name in refused} <= {
        "indices", "indptr", "clusters", "nodes", "starts", "labels", "assignment", "learned", "probes", "beam"
    }  # fmt: skip


@pytest.mark.parametrize("kind", ["lightdxml", "mnn-hnsw", "decaf-hnsw"])
def test_a_graph_with_wrong_bytes_is_refused_or_harmless(kind, forged):
    folder = forged(kind)
    tensors = {name: t.clone() for name, t in load_file(folder / "serve" / "weights.safetensors").items()}
    name = next(name for name in tensors if name.endswith("index.graph"))
    numbers, refused = np.random.default_rng(0), 0
    for _ in range(150):
        wrong = tensors[name].clone()
        position = int(numbers.integers(len(wrong)))
        wrong[position] = int(wrong[position]) ^ (1 << int(numbers.integers(8)))
        with_tensor(folder, "serve", tensors, name, wrong)
        try:
            Tagger.load(folder, device="cpu").predict(ASKED, k=3)
        except DataError:
            refused += 1
    assert refused > 50


@pytest.mark.parametrize("part", ["neighbors", "offsets", "levels"])
def test_links_that_lead_out_of_a_graph_are_refused(part):
    import faiss

    vectors = torch.nn.functional.normalize(torch.randn(300, 4, generator=torch.Generator().manual_seed(0)))
    state = HnswIndex.build(vectors).state()
    written = state["graph"].numpy().tobytes()
    right = faiss.deserialize_index(state["graph"].numpy())  # must outlive its arrays
    numbers = faiss.vector_to_array(getattr(right.hnsw, part))
    start = written.index(numbers.tobytes())
    assert len(HnswIndex.of_state(state, vectors)) == 300
    for position in (0, len(numbers) // 2):
        for value in (-7, 300, 2**30):
            wrong = numbers.copy()
            wrong[position] = wrong.dtype.type(value) if value >= 0 or wrong.dtype.kind == "i" else 2**40
            forged = written[:start] + wrong.tobytes() + written[start + numbers.nbytes :]
            graph = torch.from_numpy(np.frombuffer(forged, np.uint8).copy())
            with pytest.raises(DataError, match="the index"):
                HnswIndex.of_state({**state, "graph": graph}, vectors)
            faiss.copy_array_to_vector(wrong, getattr(right.hnsw, part))  # older versions of faiss read such a graph
            with pytest.raises(DataError, match="the links of the index point outside of it"):
                hnsw._check_links(faiss, right)
            faiss.copy_array_to_vector(numbers, getattr(right.hnsw, part))
            hnsw._check_links(faiss, right)


def test_descriptions_that_do_not_fit_are_refused(forged):
    folder = forged("decaf")
    about = orjson.loads((folder / "model.json").read_bytes())
    labels = orjson.loads((folder / "serve" / "labels.json").read_bytes())
    vocabulary = orjson.loads((folder / "serve" / "vocabulary.json").read_bytes())
    calibration = folder / "serve" / "calibration.json"
    descriptions: list[dict[str, Any]] = [
        {"sizes": {"features": 19, "labels": 5}}, {"sizes": {"features": 18, "labels": 4}}, {"sizes": {}},
        {"sizes": {"features": 10**12, "labels": 4}}, {"chosen": {}}, {"settings": {"dimension": 9}},
        {"settings": 3}, {"tagger": {"color": "red"}}, {"training": None}, {"source": {"columns": 1}},
    ]  # fmt: skip
    for changes in descriptions:
        seal(folder, **changes)
        assert refusal(folder) is not None, changes
        (folder / "model.json").write_bytes(orjson.dumps(about))
    documents: list[tuple[str, Any, Any]] = [
        ("labels", {**labels, "names": labels["names"][:3]}, labels),
        ("labels", {**labels, "names": [1, 2, 3, 4]}, labels),
        ("labels", {**labels, "removed": [4]}, labels),
        ("labels", [], labels),
        ("vocabulary", {**vocabulary, "terms": vocabulary["terms"][:-1], "idf": vocabulary["idf"][:-1]}, vocabulary),
        ("vocabulary", {}, vocabulary),
    ]
    if calibration.exists():
        right = orjson.loads(calibration.read_bytes())
        documents.append(("calibration", {**right, "frequent": [[10**10], []]}, right))
    for name, wrong, right in documents:
        path = folder / "serve" / f"{name}.json"
        path.write_bytes(orjson.dumps(wrong))
        seal(folder)
        for read in (Tagger.load, tagging.verify):
            with pytest.raises(DataError):
                read(folder)
        path.write_bytes(orjson.dumps(right))
    seal(folder)
    assert tagging.verify(folder) >= 4


@pytest.mark.parametrize("wrong", [{"files": {}}, {"files": {"serve/labels.json": 3}}, {"files": 3}, {"format": "2"}])
def test_a_description_without_its_files_is_refused(wrong, forged):
    folder = forged("glas")
    about = {**orjson.loads((folder / "model.json").read_bytes()), **wrong}
    (folder / "model.json").write_bytes(orjson.dumps({**about, "sha256": persistence._seal(about)}))
    for read in (Tagger.load, tagging.verify):
        with pytest.raises(DataError, match="model"):
            read(folder)
