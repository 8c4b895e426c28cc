"""A saved model: a folder with `model.json`, and safetensors and JSON in `serve/` and `train/`. No pickle anywhere.

`serve/` is what prediction needs, memory-mapped on load; `train/` is what warm starts need besides. Whoever changes the
format increases FORMAT and adds a model of each kind to tests/fixtures.
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
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

import orjson
import torch

from zipfel import __version__
from zipfel.data.formats.atomic import new_folder, older_version, recover
from zipfel.data.formats.checksums import CHUNK, checksum, chunk_sums
from zipfel.data.formats.files import write_bytes
from zipfel.errors import DataError
from zipfel.training.run import State, read_state, state_size, write_state

FORMAT = 2
_TENSORS = "weights.safetensors"
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
        paths = {p.relative_to(target).as_posix(): p for p in sorted(target.rglob("*")) if p.is_file()}
        sums = chunk_sums(paths)
        listed = {name: _entry(path.stat().st_size, checksum(path), sums[name]) for name, path in paths.items()}
        write_bytes(target / "model.json", _model_json(saved, listed))


def _entry(size: int, sha256: str, crc32: list[int]) -> dict[str, Any]:
    """Return what `model.json` says of a file.  crc32: of each chunk."""
    return {"bytes": size, "sha256": sha256, "crc32": crc32}


def _model_json(saved: Saved, files: Mapping[str, Any]) -> bytes:
    versions = {name: version(name) for name in ("numpy", "scipy", "torch")} | {"python": platform.python_version()}
    about = {"format": FORMAT, "zipfel": __version__, **saved.about, "versions": versions, "files": files}
    about = orjson.loads(_json(about))  # as it will be read
    return _json(about | {"sha256": _seal(about)}, orjson.OPT_INDENT_2) + b"\n"


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
        before = _stamps(folder.rglob("*"))
        try:
            saved = _read(folder, copy)
        except DataError:
            if _stamps(folder.rglob("*")) == before:
                raise
            continue  # half of it was replaced meanwhile
        if _stamps(folder.rglob("*")) == before:
            return saved
    raise DataError("kept changing while it was loaded; try again when it is fully written", folder)


def _read(folder: Path, copy: bool) -> Saved:
    about = _checked_about(folder)
    with ExitStack() as stack:
        weights = {f"{part}/{_TENSORS}": folder / part / _TENSORS for part in ("serve", "train")}
        read = {name: stack.enter_context(_copied(path)) if copy else path for name, path in weights.items()}
        documents = {path.relative_to(folder).as_posix(): path for path in sorted((folder / "serve").glob("*.json"))}
        _check_sums(folder, read | documents, about)
        serve, train = (_finite(read_state(path)[0], folder / name) for name, path in read.items())
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


# --- Files that change -----------------------------------------------------------------------------------------------


class Stamp(NamedTuple):
    """What tells one content of a file from another without reading it."""

    size: int
    modified: int  # nanoseconds
    inode: int


def stamps(folder: Path) -> dict[Path, Stamp]:
    """Return the stamps of the files of a saved model that `load` maps into memory."""
    return _stamps(folder / part / _TENSORS for part in ("serve", "train"))


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
        raise DataError("not a saved model: model.json is missing", folder)
    try:
        about = orjson.loads(path.read_bytes())
        format, seal, files = about["format"], about["sha256"], about["files"]
        newer = format > FORMAT
        [(entry["bytes"], entry["sha256"]) for entry in files.values()]
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
        raise DataError(f"not a saved model: {error!r}", path) from None
    if format != FORMAT:
        todo = "update zipfel" if newer else "train the model again, or load it with the version that saved it"
        raise DataError(f"format {format}, but this version reads {FORMAT}; {todo}", path)
    if seal != _seal(about):
        raise DataError(_CHANGED, path)
    return dict(about)


def _checked_about(folder: Path) -> dict[str, Any]:
    """Read `model.json`; raise DataError if a file is missing or has another size than when it was written."""
    about = read_about(folder)
    for name, entry in about["files"].items():
        path = folder / name
        if not path.is_file():
            raise DataError("is missing", path)
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
