"""A saved model: a folder with `model.json`, and safetensors and JSON in `serve/` and `train/`. No pickle anywhere.

`serve/` is what prediction needs, memory-mapped on load; `train/` is what warm starts need besides. Whoever changes the
format increases FORMAT and adds a model of each kind to tests/fixtures.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import orjson

from zipfel import __version__
from zipfel.data.formats.files import new_folder, write_bytes
from zipfel.errors import DataError
from zipfel.training.run import State, read_state, state_size, write_state

FORMAT = 2
_TENSORS = "weights.safetensors"


@dataclass(frozen=True)
class Saved:
    """The content of a saved model: descriptions for `model.json`, JSON documents and tensors."""

    about: dict[str, Any]  # model, settings, sizes, training, ...
    documents: dict[str, Any]  # name -> content of `serve/name.json`
    serve: State
    train: State


def save(saved: Saved, folder: Path, replace: bool = False) -> None:
    """Write a model into a new folder, or replace an older model; if that fails, nothing is left behind."""
    if replace and (folder / "model.json").is_file():
        newer, older = (folder.with_name(f".{folder.name}.{age}") for age in ("newer", "older"))
        for leftover in (newer, older):
            shutil.rmtree(leftover, ignore_errors=True)
        save(saved, newer)
        folder.rename(older)
        newer.rename(folder)
        shutil.rmtree(older)
        return
    with new_folder(folder) as target:
        for part, state in (("serve", saved.serve), ("train", saved.train)):
            (target / part).mkdir()
            write_state(target / part / _TENSORS, state, {})
        for name, document in saved.documents.items():
            write_bytes(target / "serve" / f"{name}.json", _json(document))
        files = sorted(path for path in target.rglob("*") if path.is_file())
        listed = {p.relative_to(target).as_posix(): {"bytes": p.stat().st_size, "sha256": checksum(p)} for p in files}
        write_bytes(target / "model.json", _model_json(saved, listed))


def _model_json(saved: Saved, files: Mapping[str, Any]) -> bytes:
    versions = {name: version(name) for name in ("numpy", "scipy", "torch")} | {"python": platform.python_version()}
    about = {"format": FORMAT, "zipfel": __version__, **saved.about, "versions": versions, "files": files}
    about = orjson.loads(_json(about))  # as it will be read
    return _json(about | {"sha256": _seal(about)}, orjson.OPT_INDENT_2) + b"\n"


def sizes(saved: Saved) -> dict[str, int]:
    """Return about how many bytes each file has that `save` would write."""
    files = {f"serve/{name}.json": len(_json(document)) for name, document in saved.documents.items()}
    files |= {f"serve/{_TENSORS}": state_size(saved.serve), f"train/{_TENSORS}": state_size(saved.train)}
    listed = {name: {"bytes": size, "sha256": "0" * 64} for name, size in files.items()}
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


def load(folder: Path) -> Saved:
    """Read a saved model; tensors are mapped into memory, not read."""
    about, documents = _checked_about(folder), {}
    for path in sorted((folder / "serve").glob("*.json")):
        _check_sum(folder, path, about)
        documents[path.stem] = orjson.loads(path.read_bytes())
    serve, train = (read_state(folder / part / _TENSORS)[0] for part in ("serve", "train"))
    return Saved(about, documents, serve, train)


def located(folder: Path) -> Path:
    """Return the folder of a saved model: this one, or `model` in it, as `zipfel train --out` leaves it."""
    inner = folder / "model"
    return inner if not (folder / "model.json").is_file() and (inner / "model.json").is_file() else folder


def read_about(folder: Path) -> dict[str, Any]:
    """Read `model.json`; raise DataError if it is not a saved model of this format."""
    path = folder / "model.json"
    if not path.is_file():
        raise DataError("not a saved model: model.json is missing", folder)
    try:
        about = orjson.loads(path.read_bytes())
        format, seal, _ = about["format"], about["sha256"], about["files"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"not a saved model: {error!r}", path) from None
    if format != FORMAT:
        todo = (
            "update zipfel" if format > FORMAT else "train the model again, or load it with the version that saved it"
        )
        raise DataError(f"format {format}, but this version reads {FORMAT}; {todo}", path)
    if seal != _seal(about):
        raise DataError("was changed since the model was saved", path)
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
    """Check every file against its checksum, and return how many there are."""
    about = _checked_about(folder)
    for name in about["files"]:
        _check_sum(folder, folder / name, about)
    return len(about["files"])


def _check_sum(folder: Path, path: Path, about: Mapping[str, Any]) -> None:
    entry = about["files"].get(path.relative_to(folder).as_posix())
    if entry is None:
        raise DataError("does not belong to the saved model", path)
    if checksum(path) != entry["sha256"]:
        raise DataError("was changed since the model was saved", path)


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
