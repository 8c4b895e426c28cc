"""A saved model: a folder with `model.json`, and safetensors and JSON in `serve/` and `train/`. No pickle anywhere.

`serve/` is what prediction needs, memory-mapped on load; `train/` is what warm starts need besides. `README.md`
is a card for people, which they may edit: it is no part of the model, and has no checksum. Tensors with a row
for each label may lie in several files of `serve/`, by ranges of labels (`shards`). Whoever changes the format
increases FORMAT and adds a model of each kind to tests/fixtures.
"""

from __future__ import annotations

import hashlib
import math
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import orjson
import torch

from zipfel import __version__
from zipfel.data.formats import shards
from zipfel.data.formats.atomic import new_folder, older_version, recover
from zipfel.data.formats.checksums import CHUNK, checksum, chunk_sums
from zipfel.data.formats.files import write_bytes
from zipfel.data.formats.readme import copy_cards, write_card
from zipfel.errors import ConfigError, DataError
from zipfel.training.run import State, read_state, state_size, write_state

FORMAT = 2
SHARDED = 3  # the format of models whose `serve/` has shards; all else is as in FORMAT
_TENSORS = "weights.safetensors"
_WHOLE = (f"serve/{_TENSORS}", f"train/{_TENSORS}")  # tensors that are not divided by labels
_CHANGED = "was changed since the model was saved"
_ATTEMPTS = 5  # to load a model that is being replaced
_BLOCK = 16 << 20  # bytes copied at a time


@dataclass(frozen=True)
class Saved:
    """The content of a saved model: descriptions for `model.json`, JSON documents and tensors."""

    about: dict[str, Any]  # model, settings, sizes, training, ...
    documents: dict[str, Any]  # name -> content of `serve/name.json`
    serve: State
    train: State
    card: str = ""  # content of `README.md`


def save(saved: Saved, folder: Path, replace: bool = False) -> None:
    """Write a model into a new folder, or replace an older model; if that fails, nothing is left behind.

    At every moment the folder holds the whole old model or the whole new one, also after a kill or a power cut. A link
    to a folder stays a link: the folder is replaced.
    """
    recover(folder)
    with new_folder(folder, replace and (folder / "model.json").is_file()) as target:
        for part, state in (("serve", saved.serve), ("train", saved.train)):
            (target / part).mkdir()
            write_state(target / part / _TENSORS, state, {})
        for name, document in saved.documents.items():
            write_bytes(target / "serve" / f"{name}.json", _json(document))
        write_bytes(target / "model.json", _model_json(saved, _listed(target)))
        write_card(target, saved.card, folder)


def _listed(folder: Path) -> dict[str, Any]:
    """Return what `model.json` says of the files of a folder."""
    paths = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
    sums = chunk_sums(paths)
    return {name: _entry(path.stat().st_size, checksum(path), sums[name]) for name, path in paths.items()}


def _entry(size: int, sha256: str, crc32: list[int]) -> dict[str, Any]:
    """Return what `model.json` says of a file.  crc32: of each chunk."""
    return {"bytes": size, "sha256": sha256, "crc32": crc32}


def _model_json(saved: Saved, files: Mapping[str, Any]) -> bytes:
    versions = {name: version(name) for name in ("numpy", "scipy", "torch")} | {"python": platform.python_version()}
    return _sealed({"format": FORMAT, "zipfel": __version__, **saved.about, "versions": versions, "files": files})


def _sealed(about: Mapping[str, Any]) -> bytes:
    """Return the content of `model.json` with its own sum."""
    about = orjson.loads(_json(about))  # as it will be read
    return _json({**about, "sha256": _seal(about)}, orjson.OPT_INDENT_2) + b"\n"


def sizes(saved: Saved) -> dict[str, int]:
    """Return about how many bytes each file has that `save` would write."""
    files = {f"serve/{name}.json": len(_json(document)) for name, document in saved.documents.items()}
    files |= {f"serve/{_TENSORS}": state_size(saved.serve), f"train/{_TENSORS}": state_size(saved.train)}
    listed = {name: _entry(size, "0" * 64, [2**32 - 1] * math.ceil(size / CHUNK)) for name, size in files.items()}
    return files | {"model.json": len(_model_json(saved, listed))}


def _json(document: Any, options: int = 0) -> bytes:
    try:
        return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY | options)
    except TypeError as error:  # half a surrogate pair, or an object of the user's
        raise DataError(f"cannot be saved as JSON: {error}") from None


def _seal(about: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the content of `model.json`, whatever its layout, apart from the sum itself."""
    content = {name: value for name, value in about.items() if name != "sha256"}
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def load(folder: Path, copy: bool = False) -> Saved:
    """Read a saved model, and check all of it against its checksums.

    Tensors are mapped into memory: the file must not be overwritten while they are used. copy: read them instead.
    """
    for _ in range(_ATTEMPTS):
        before = _all_stamps(folder)
        try:
            saved = _read(folder, copy)
        except DataError:
            if _all_stamps(folder) == before:
                raise
            continue  # half of it was replaced meanwhile
        if _all_stamps(folder) == before:
            return saved
    raise DataError("kept changing while it was loaded; try again when it is fully written", folder)


def _read(folder: Path, copy: bool) -> Saved:
    about = _checked_about(folder)
    with ExitStack() as stack:
        weights = {name: folder / name for name in _weights(about)}
        read = {name: stack.enter_context(_copied(path)) if copy else path for name, path in weights.items()}
        documents = {path.relative_to(folder).as_posix(): path for path in sorted((folder / "serve").glob("*.json"))}
        _check_sums(folder, read | documents, about)
        serve, train = (_finite(read_state(read[name])[0], folder / name) for name in _WHOLE)
        if by_label := [path for name, path in read.items() if name not in _WHOLE]:
            of, bounds = about["shards"]["of"], about["shards"]["labels"]
            serve |= _finite(shards.read(by_label, of, bounds), folder / "serve")
    return Saved(about, {path.stem: orjson.loads(path.read_bytes()) for path in documents.values()}, serve, train)


@contextmanager
def _copied(path: Path) -> Iterator[Path]:
    """Yield the path of a copy that no other process can change; once mapped, it lives as long as the mapping."""
    with path.open("rb") as source:
        if hasattr(os, "memfd_create"):  # Linux: a file in memory
            with os.fdopen(os.memfd_create(path.name), "wb") as out:
                shutil.copyfileobj(source, out, _BLOCK)
                out.flush()
                yield Path(f"/proc/self/fd/{out.fileno()}")
        else:
            with NamedTemporaryFile() as out:
                shutil.copyfileobj(source, out, _BLOCK)
                out.flush()
                yield Path(out.name)


def _finite(state: State, path: Path) -> State:
    """Return tensors; raise DataError if one holds a number that is not finite."""
    for name, tensor in state.items():
        if tensor.is_floating_point() and tensor.numel():
            least, most = torch.aminmax(tensor)  # NaN if there is any
            if not (least.isfinite() and most.isfinite()):
                raise DataError(f"tensor {name!r} holds numbers that are not finite", path)
    return state


def upgrade(folder: Path) -> bool:
    """Rewrite a model of an older version of this format as it is written now; return whether it was older.

    Its files stay byte by byte, after a check by their SHA-256; checksums of chunks are added, which load faster.
    """
    before = _all_stamps(folder)
    verify(folder)
    about = read_about(folder)
    if all("crc32" in entry for entry in about["files"].values()):
        return False
    with new_folder(folder, replace=True) as target:
        for part in ("serve", "train"):
            (target / part).mkdir()
        for name in about["files"]:
            shutil.copyfile(folder / name, target / name)
        own = {name: value for name, value in about.items() if name not in ("files", "sha256")}
        write_bytes(target / "model.json", _sealed(own | {"files": _listed(target)}))
        copy_cards(folder, target)
        _check_unchanged(folder, before)
    return True


# --- Shards ----------------------------------------------------------------------------------------------------------


def reshard(folder: Path, out: Path, count: int) -> tuple[int, int]:
    """Write a saved model with another number of shards to a new folder; return the bytes by label, and of all tensors.

    Tensors with a row for each label are divided into ranges of labels. Names, vocabulary and `train/` are copied byte
    by byte, so that the model is the same.  count: 1 for a model without shards.
    """
    before = _all_stamps(folder)
    saved = _read(folder, copy=False)
    labels = int(saved.about["sizes"]["labels"])
    if not 1 <= count <= min(labels, shards.MOST):
        raise ConfigError(f"shards must be from 1 to {min(labels, shards.MOST)} for {labels} labels; found {count}")
    by_label = {} if count == 1 else {n: t for n, t in saved.serve.items() if t.ndim and len(t) == labels}
    about = {name: value for name, value in saved.about.items() if name not in ("files", "sha256", "shards")}
    with new_folder(out) as target:
        for part in ("serve", "train"):
            (target / part).mkdir()
        for name in (_WHOLE[1], *(n for n in saved.about["files"] if n.endswith(".json"))):
            shutil.copyfile(folder / name, target / name)
        copy_cards(folder, target)
        write_state(target / _WHOLE[0], {n: t for n, t in saved.serve.items() if n not in by_label}, {})
        if count > 1:
            about["shards"] = {"of": str(saved.about["sha256"])[:16], "labels": shards.ranges(labels, count)}
            _write_shards(target / "serve", by_label, about["shards"])
        about["format"] = SHARDED if count > 1 else FORMAT
        write_bytes(target / "model.json", _sealed(about | {"files": _listed(target)}))
        _check_unchanged(folder, before)
    sizes = [sum(tensor.nbytes for tensor in state.values()) for state in (by_label, saved.serve)]
    return sizes[0], sizes[1]


def _write_shards(folder: Path, state: State, about: Mapping[str, Any]) -> None:
    bounds = about["labels"]
    for name, (first, last) in zip(shards.names_of(len(bounds) - 1), pairwise(bounds), strict=True):
        notes = {"of": about["of"], "labels": orjson.dumps([first, last]).decode()}
        shards.write(folder / name, state, first, last, notes)


def _weights(about: Mapping[str, Any]) -> list[str]:
    """Return the names of the files of tensors: the whole ones, then the shards in the order of their labels."""
    count = len(about["shards"]["labels"]) - 1 if about["format"] == SHARDED else 0
    return [*_WHOLE, *(f"serve/{name}" for name in shards.names_of(count))]


def _check_owners(folder: Path, about: Mapping[str, Any]) -> None:
    """Raise DataError for a shard of another model, which checksums would only call changed."""
    for name in _weights(about)[len(_WHOLE) :]:
        if name not in about["files"]:
            raise DataError("does not belong to the saved model", folder / name)
        owner = shards.owner(folder / name)
        if owner not in (None, about["shards"]["of"]):
            raise DataError("is a shard of another model", folder / name)


# --- Files that change -----------------------------------------------------------------------------------------------


class Stamp(NamedTuple):
    """The version of a file's content, without reading it."""

    size: int
    modified: int  # nanoseconds
    inode: int


def stamps(folder: Path) -> dict[Path, Stamp]:
    """Return the stamps of the files of a saved model that `load` maps into memory."""
    return _stamps(path for part in ("serve", "train") for path in sorted((folder / part).glob("*.safetensors")))


def overwritten(loaded: Mapping[Path, Stamp]) -> list[Path]:
    """Return the files that were overwritten in place since these stamps were made, so that a mapping is wrong.

    A file that was replaced by another one, or removed, is not among them: a mapping keeps the old one.
    """
    now = _stamps(loaded)
    return [path for path, stamp in loaded.items() if now.get(path, stamp) != stamp and now[path].inode == stamp.inode]


def _stamps(paths: Iterable[Path]) -> dict[Path, Stamp]:
    found: dict[Path, Stamp] = {}
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            found[path] = Stamp(status.st_size, status.st_mtime_ns, status.st_ino)
    return found


def _all_stamps(folder: Path) -> dict[Path, Stamp]:
    """Return the stamps of all files of a saved model; none for another folder, which may be as large as `/`."""
    return _stamps(folder.rglob("*")) if (folder / "model.json").is_file() else {}


def _check_unchanged(folder: Path, before: Mapping[Path, Stamp]) -> None:
    """Raise DataError if files were replaced since: some of them may have been copied before, and others after."""
    if _all_stamps(folder) != before:
        raise DataError("changed while it was copied; run the command again", folder)


# --- Checks ----------------------------------------------------------------------------------------------------------


def located(folder: Path) -> Path:
    """Return the folder of a saved model: this one, or `model` in it, as `zipfel train --out` leaves it.

    If it was being replaced when a process was killed, return the folder of the old model.
    """
    for candidate in (folder, folder / "model", older_version(folder), older_version(folder / "model")):
        if (candidate / "model.json").is_file():
            return candidate
    return folder


def read_about(folder: Path) -> dict[str, Any]:
    """Read `model.json`; raise DataError if it is not a saved model of this format."""
    path = folder / "model.json"
    if not path.is_file():
        hint = "" if folder.is_dir() else "; expected the folder that `zipfel train --out` wrote"
        raise DataError(f"not a saved model: model.json is missing{hint}", folder)
    try:
        about = orjson.loads(path.read_bytes())
        format, seal, files = about["format"], about["sha256"], about["files"]
        newer = format > SHARDED
        [(entry["bytes"], entry["sha256"]) for entry in files.values()]
        if format == SHARDED:
            _ = about["shards"]["of"], len(about["shards"]["labels"])
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"not a saved model: {error!r}", path) from None
    if format not in (FORMAT, SHARDED):
        todo = "update zipfel" if newer else "train the model again, or load it with the version that saved it"
        raise DataError(f"format {format}, but this version reads {FORMAT} and {SHARDED}; {todo}", path)
    if seal != _seal(about):
        raise DataError(_CHANGED, path)
    return dict(about)


def _checked_about(folder: Path) -> dict[str, Any]:
    """Read `model.json`; raise DataError if a file is missing or has another size than when it was written."""
    about = read_about(folder)
    for name in about["files"]:
        if not (folder / name).is_file():
            raise DataError("is missing", folder / name)
    _check_owners(folder, about)
    for name, entry in about["files"].items():
        path = folder / name
        if path.stat().st_size != entry["bytes"]:
            raise DataError(f"has {path.stat().st_size} bytes; it was written with {entry['bytes']}", path)
    return about


def verify(folder: Path) -> int:
    """Check every file against its checksums, and return how many there are."""
    about = _checked_about(folder)
    paths = {name: folder / name for name in about["files"]}
    _check_sums(folder, paths, about)
    for name, path in paths.items():
        if checksum(path) != about["files"][name]["sha256"]:
            raise DataError(_CHANGED, path)
    return len(paths)


def _check_sums(folder: Path, paths: Mapping[str, Path], about: Mapping[str, Any]) -> None:
    """Check files by the CRC-32 of their chunks, which is fast; those that an older version saved, by SHA-256."""
    files = about["files"]
    for name in paths:
        if name not in files:
            raise DataError("does not belong to the saved model", folder / name)
    sums = chunk_sums({name: path for name, path in paths.items() if "crc32" in files[name]})
    for name, path in paths.items():
        if name not in sums and checksum(path) != files[name]["sha256"]:
            raise DataError(_CHANGED, folder / name)
        if name in sums and sums[name] != files[name]["crc32"]:
            raise DataError(_CHANGED, folder / name)
