"""The output folder of a job: parts, a manifest, and the list of bad rows.

`_manifest.json` is written before the first part: what the job is, and which slice of which file each part is. A part
appears under its name only when it is complete, and carries the job's digest and its bad rows in its own metadata, so
that a part is finished if and only if it is there. When all are, the manifest says so.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from zipfel import __version__
from zipfel.cli.job.files import Slice
from zipfel.data.formats.files import json_line, lock, new_file, write_bytes
from zipfel.errors import ConfigError, DataError

MANIFEST, BAD_ROWS = "_manifest.json", "_bad_rows.jsonl"  # readers of folders skip names that start with _
SHOWN = 3  # files named in a message


@dataclass(frozen=True)
class Plan:
    """A job as its manifest has it. inputs: what it was started with.  kinds: names of types of the copied columns."""

    inputs: Mapping[str, Any]
    parts: Sequence[Slice]
    kinds: Mapping[str, str] | None
    finished: bool = False

    @property
    def digest(self) -> str:
        """Identifies the job: its inputs, parts and types."""
        content = [self.inputs, [list(part) for part in self.parts], self.kinds]
        return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


@contextmanager
def opened_folder(out: Path, fresh: bool) -> Iterator[None]:
    """Make the folder and keep other jobs out of it; remove leftovers of killed processes, and with `fresh` an old job.

    A folder that is new and still empty at the end is removed.
    """
    if out.exists() and not out.is_dir():
        raise DataError("cannot be written: expected a folder, found a file", out)
    new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
        file = os.open(out, os.O_RDONLY)
    except OSError as error:
        raise DataError(f"cannot be written: {error.strerror or error}", out) from None
    try:
        lock(file, f"another job is writing {out}; wait for it, or name another folder")
        _clean(out, fresh)
        yield
    finally:
        os.close(file)
        if new:
            with suppress(OSError):  # not empty
                out.rmdir()


def _clean(out: Path, fresh: bool) -> None:
    foreign = next((path for path in out.iterdir() if not path.name.startswith(("part-", ".part-", "_", "._"))), None)
    if foreign is not None or (not (out / MANIFEST).exists() and any(out.glob("part-*"))):
        raise DataError("contains files that are not of a job; name a new folder", out)
    leftovers = [*out.glob(".part-*.part"), *out.glob("._*.part")]
    for path in [*leftovers, *([out / MANIFEST, *out.glob("part-*.parquet"), out / BAD_ROWS] if fresh else [])]:
        path.unlink(missing_ok=True)


def read_plan(out: Path) -> Plan | None:
    """Return the plan of a folder; None if it has none."""
    path = out / MANIFEST
    if not path.exists():
        return None
    try:
        about = orjson.loads(path.read_bytes())
        parts = [Slice(**part) for part in about["parts"]]
        return Plan(about["inputs"], parts, about["kinds"], about["finished"] is not None)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"the manifest is unreadable ({error!r}); start over with --fresh", path) from None


def write_plan(out: Path, plan: Plan, finished: Mapping[str, Any] | None = None) -> None:
    """Write the manifest.  finished: figures of a job that is done."""
    parts = [part._asdict() for part in plan.parts]
    about = {"zipfel": __version__, "inputs": plan.inputs, "kinds": plan.kinds, "finished": finished, "parts": parts}
    with new_file(out / MANIFEST) as file:
        file.write(orjson.dumps(about, option=orjson.OPT_INDENT_2))
        file.flush()
        os.fsync(file.fileno())


def write_bad_rows(out: Path, bad: Sequence[Sequence[Any]]) -> None:
    """Write the list of bad rows, if there are any."""
    if bad:
        write_bytes(
            out / BAD_ROWS, b"".join(json_line(dict(zip(("file", "row", "problem"), row, strict=True))) for row in bad)
        )
    else:
        (out / BAD_ROWS).unlink(missing_ok=True)


def check_same(out: Path, plan: Plan, inputs: Mapping[str, Any]) -> None:
    """Raise ConfigError if a folder is that of another job; name what differs."""
    changed = [
        name for name in {**inputs, **plan.inputs} if name != "files" and plan.inputs.get(name) != inputs.get(name)
    ]
    old, new = ({path: tuple(rest) for path, *rest in given["files"]} for given in (plan.inputs, inputs))
    files = [path for path in {**old, **new} if old.get(path) != new.get(path)]
    if files:
        named = ", ".join(files[:SHOWN]) + (", …" if len(files) > SHOWN else "")
        changed.append(f"input ({len(files)} files are new, gone or changed: {named})")
    if changed:
        raise ConfigError(
            f"{out} belongs to a job with a different {', '.join(changed)}; "
            "name another folder, or start over with --fresh"
        )
